#![expect(clippy::unwrap_used, reason = "a test")]
use super::*;

/// Round trips between four sites, in milliseconds, as between places of one country and beyond.
const SITES: [[f64; 4]; 4] = [
    [0.15, 5.0, 12.0, 30.0],
    [5.0, 0.15, 8.0, 25.0],
    [12.0, 8.0, 0.15, 18.0],
    [30.0, 25.0, 18.0, 0.15],
];

/// Nodes that measure each other once a second, at moments of their own.
struct Net {
    rng: Rng,
    now: Tick,
    sites: [[f64; 4]; 4],
    nodes: Vec<Member>,
    /// So many of a hundred round trips take up to 50 times as long.
    late_percent: u64,
    liar: Option<usize>,
}

struct Member {
    site: usize,
    /// Milliseconds that each of its messages takes on its own line, there and back.
    line: f64,
    vivaldi: Vivaldi,
    /// Whom it measures; all where it is empty.
    measures: Vec<usize>,
    since: Tick,
}

impl Net {
    fn new(seed: u64, nodes: usize) -> Self {
        let member = |node| Member {
            site: node % 4,
            line: 0.0,
            vivaldi: Vivaldi::default(),
            measures: Vec::new(),
            since: Tick(0),
        };
        Self {
            rng: Rng::new(seed),
            now: Tick(0),
            sites: SITES,
            nodes: (0..nodes).map(member).collect(),
            late_percent: 10,
            liar: None,
        }
    }

    fn is(&self, a: usize, b: usize) -> f64 {
        let (a, b) = (&self.nodes[a], &self.nodes[b]);
        (self.sites[a.site][b.site] + a.line + b.line) * 1e3
    }

    fn measure(&mut self, a: usize, b: usize) {
        let noise = 1.0 + self.rng.below(100) as f64 / 1e3;
        let mut took = self.is(a, b) * noise + self.rng.below(150) as f64;
        if self.rng.chance(self.late_percent, 100) {
            took *= 1.0 + self.rng.below(50) as f64;
        }
        let mut told = self.nodes[b].vivaldi.coordinate();
        if self.liar == Some(b) {
            let anywhere = |rng: &mut Rng| rng.below(2_000_000) as i32 - 1_000_000;
            (told.x, told.y) = (anywhere(&mut self.rng), anywhere(&mut self.rng));
            told.error = 0;
            took += self.rng.below(200_000) as f64;
        }
        let told = (NodeId(b as u32 + 1), told);
        let took = Span(took as u64);
        let vivaldi = &mut self.nodes[a].vivaldi;
        vivaldi.on_round_trip(self.now, told, took, &mut self.rng);
    }

    fn run(&mut self, secs: u64) {
        for _ in 0..secs {
            for a in 0..self.nodes.len() {
                let all: Vec<usize> = (0..self.nodes.len()).collect();
                let peers = match self.nodes[a].measures.is_empty() {
                    true => all,
                    false => self.nodes[a].measures.clone(),
                };
                for b in peers.into_iter().filter(|b| *b != a) {
                    self.measure(a, b);
                }
            }
            self.now = self.now + Span::from_millis(1_000);
        }
    }

    /// The relative error of each prediction between two of some nodes, in the middle.
    fn wrong_among(&self, some: impl Fn(usize) -> bool) -> f64 {
        let some: Vec<usize> = (0..self.nodes.len()).filter(|node| some(*node)).collect();
        let at = |node: usize| self.nodes[node].vivaldi.coordinate();
        let pairs = some
            .iter()
            .flat_map(|a| some.iter().filter(move |b| a < b).map(move |b| (*a, *b)));
        let wrong = pairs.map(|(a, b)| {
            let is = self.is(a, b);
            (at(a).distance(at(b)).as_micros() as f64 - is).abs() / is
        });
        middle(wrong).unwrap()
    }

    fn wrong(&self) -> f64 {
        self.wrong_among(|node| self.liar != Some(node))
    }

    /// The longest round trip that is predicted within a site.
    fn widest_site(&self) -> Span {
        let predicted = |(a, b): (&Member, &Member)| {
            let alike = a.site == b.site;
            alike.then(|| a.vivaldi.coordinate().distance(b.vivaldi.coordinate()))
        };
        let pairs = self
            .nodes
            .iter()
            .flat_map(|a| self.nodes.iter().map(move |b| (a, b)));
        pairs.filter_map(predicted).max().unwrap()
    }
}

#[test]
fn round_trips_are_predicted_within_a_tenth_after_a_minute_and_again_after_routes_change() {
    for seed in 0..60 {
        let mut net = Net::new(seed, 8);
        net.run(60);
        assert!(net.wrong() < 0.1, "seed {seed}: {}", net.wrong());
        let site = net.widest_site();
        assert!(site < Span::from_millis(3), "seed {seed}: {site}");
        // The first site is farther from the second, and near to the last.
        for (a, b, ms) in [(0, 1, 22.0), (0, 2, 20.0), (0, 3, 6.0)] {
            (net.sites[a][b], net.sites[b][a]) = (ms, ms);
        }
        net.run(60);
        assert!(net.wrong() < 0.1, "seed {seed}, rerouted: {}", net.wrong());
    }
}

#[test]
fn slow_lines_of_nodes_are_heights() {
    for seed in 0..20 {
        let mut net = Net::new(seed, 12);
        for (node, ms) in [(1, 12.0), (6, 8.0), (7, 20.0)] {
            net.nodes[node].line = ms;
        }
        net.run(60);
        let slow = |node: usize| net.nodes[node].line > 0.0;
        let (all, among) = (net.wrong(), net.wrong_among(slow));
        assert!(all < 0.1 && among < 0.15, "seed {seed}: {all}, {among}");
    }
}

#[test]
fn nodes_that_measure_a_few_others_know_how_far_all_are() {
    for seed in 0..8 {
        let mut net = Net::new(seed, 48);
        for node in 0..48 {
            let of_its_site = [(node + 4) % 48, (node + 8) % 48];
            let others: Vec<usize> = (0..PROBES).map(|_| net.rng.below(48) as usize).collect();
            net.nodes[node].measures = [&of_its_site[..], &others].concat();
        }
        net.run(120);
        assert!(net.wrong() < 0.1, "seed {seed}: {}", net.wrong());
    }
}

#[test]
fn a_newcomer_is_placed_by_three_probes() {
    for seed in 0..40 {
        let mut net = Net::new(seed, 13);
        let newcomer = 12;
        net.nodes[newcomer].measures = vec![newcomer];
        for node in 0..newcomer {
            net.nodes[node].measures = (0..newcomer).collect();
        }
        net.late_percent = 0;
        net.run(60);
        for probe in [1, 2, 7] {
            net.measure(newcomer, probe);
        }
        let told = net.nodes[newcomer].vivaldi.coordinate();
        assert!(told.is_known(), "seed {seed}: {told:?}");
        let wrong = (0..newcomer).map(|node| {
            let predicted = told.distance(net.nodes[node].vivaldi.coordinate());
            (predicted.as_micros() as f64 - net.is(newcomer, node)).abs()
        });
        let wrong = middle(wrong).unwrap();
        assert!(wrong < 2_500.0, "seed {seed}: {wrong} us");
    }
}

#[test]
fn who_lies_moves_nobody_far() {
    for seed in 0..40 {
        let mut net = Net::new(seed, 12);
        net.liar = Some(5);
        net.run(120);
        assert!(net.wrong() < 0.2, "seed {seed}: {}", net.wrong());
    }
}

#[test]
fn a_sample_moves_nobody_far_whatever_it_says() {
    let mut net = Net::new(7, 8);
    net.run(60);
    let before = net.nodes[0].vivaldi.coordinate();
    let vivaldi = &mut net.nodes[0].vivaldi;
    let mut now = net.now;
    for (x, took) in [(i32::MAX, 0), (i32::MIN, 4_999_999), (0, u64::MAX)] {
        let told = Coordinate {
            x,
            y: x,
            height: u32::MAX,
            error: 0,
        };
        vivaldi.on_round_trip(now, (NodeId(99), told), Span(took), &mut net.rng);
        now = now + APART;
    }
    let moved = vivaldi.coordinate().moved(before);
    assert!(moved < Span::from_millis(3), "{moved}");
}

#[test]
fn who_answers_without_being_asked_moves_nobody_more_often() {
    let mut net = Net::new(3, 8);
    net.run(60);
    let vivaldi = &mut net.nodes[0].vivaldi;
    let before = vivaldi.coordinate();
    let told = Coordinate {
        x: i32::MAX,
        ..before
    };
    for _ in 0..100_000 {
        net.now = net.now + Span(10);
        vivaldi.on_round_trip(net.now, (NodeId(99), told), Span(100), &mut net.rng);
    }
    let moved = vivaldi.coordinate().moved(before);
    assert!(moved < Span::from_millis(8), "{moved}");
}

#[test]
fn nodes_that_come_and_go_disturb_nobody() {
    for seed in 0..8 {
        let mut net = Net::new(seed, 16);
        net.run(60);
        for round in 0..40 {
            let gone = net.rng.below(16) as usize;
            net.nodes[gone].vivaldi = Vivaldi::default();
            net.nodes[gone].since = net.now;
            net.run(5);
            let settled =
                |node: usize| net.now.since(net.nodes[node].since) > Span::from_millis(4_000);
            let wrong = net.wrong_among(settled);
            assert!(wrong < 0.15, "seed {seed}, round {round}: {wrong}");
        }
    }
}

#[test]
fn what_all_are_told_rests_while_the_network_does_and_follows_it() {
    for seed in 0..20 {
        let mut net = Net::new(seed, 8);
        net.run(60);
        let mut told: Vec<Coordinate> = net.nodes.iter().map(|n| n.vivaldi.coordinate()).collect();
        for (minute, times_max) in [(0, 8), (1, 8), (2, 6), (3, 40)] {
            if minute == 3 {
                // The last site is reached by a satellite.
                for (site, ms) in [(0, 90.0), (1, 86.0), (2, 80.0)] {
                    (net.sites[site][3], net.sites[3][site]) = (ms, ms);
                }
            }
            let mut times = 0;
            for _ in 0..6 {
                net.run(10);
                for (node, told) in net.nodes.iter().zip(&mut told) {
                    if node.vivaldi.is_worth_telling(Some(*told)) {
                        (*told, times) = (node.vivaldi.coordinate(), times + 1);
                    }
                }
            }
            assert!(times <= times_max, "seed {seed}, minute {minute}: {times}");
            let far = told[0].distance(told[3]).as_micros() as f64;
            let wrong = (far - net.is(0, 3)).abs() / net.is(0, 3);
            assert!(wrong < 0.25, "seed {seed}, minute {minute}: {wrong}");
        }
    }
}

#[test]
fn peers_are_forgotten_and_bounded() {
    let mut vivaldi = Vivaldi::default();
    let mut rng = Rng::new(1);
    let told = Coordinate::default();
    let mut now = Tick(0);
    for node in 1..=PEERS_MAX as u32 + 10 {
        vivaldi.on_round_trip(now, (NodeId(node), told), Span(100), &mut rng);
        now = now + Span(10);
    }
    assert_eq!(vivaldi.round_trips().count(), PEERS_MAX);
    now = now + FORGOTTEN;
    vivaldi.on_round_trip(now, (NodeId(9_999), told), Span(100), &mut rng);
    assert_eq!(vivaldi.round_trips().count(), 1);
}
