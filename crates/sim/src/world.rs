//! The simulated world: time, hosts, network, control store, and the loop that lets one thing happen after another.

use crate::chaos::{Chaos, Taste};
use crate::clock::{Clock, Drift};
use crate::control::{Store, StoreReply, StoreRequest};
use crate::disk::Disk;
use crate::law::{self, Laws};
use crate::model::{Op, Outcome};
use crate::network::Network;
use crate::node::{Node, Packet, Session};
use crate::numbered::{Detail, Happening, LeftOut, Numbered};
use crate::oracle::{Mark, Marks, Oracle, Violation};
use crate::queue::Queue;
use crate::strike::ControlStore;
use perigee_history::Recorder;
use perigee_history::model::register::Registers;
use perigee_replica::chunk::FlushNumber;
use perigee_replica::{ChainView, Chunk, Hold, Limits, Plant, Timing};
use perigee_types::{Epoch, NodeId, Rng, SessionId, Span};
use std::collections::{BTreeMap, BTreeSet};

/// How long after the chaos everything must be well.
const CALM_US: u64 = 24_000_000;

/// What happens in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Everything that can go wrong.
    Chaos,
    /// All is well, but the control store is away after the first seconds.
    StoreAway,
    /// Disks spoil what they were given, and processes end; never the last good copy of anything.
    BadDisks,
}

impl Scenario {
    /// What happens in a seed's history, where nothing else is asked for: in each sixteenth disks are bad.
    #[must_use]
    pub const fn of(seed: u64) -> Self {
        if seed % 16 == 9 {
            Self::BadDisks
        } else {
            Self::Chaos
        }
    }
}

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// What happens.
    pub scenario: Scenario,
    /// Everything follows from it.
    pub seed: u64,
    /// A deliberate fault.
    pub plant: Option<Plant>,
    /// How wrong the clocks are.
    pub drift: Drift,
    /// What does not take place.
    pub left_out: LeftOut,
    /// What is told of it.
    pub detail: Detail,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The first broken law.
    pub violation: Option<Violation>,
    /// Of every event: the same seed gives the same.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// What was met.
    pub marks: Marks,
    /// Strikes and operations that took place, if they were asked for.
    pub happened: Vec<Happening>,
}

/// Something that happens.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Deliver {
        from: usize,
        to: usize,
        sent: u64,
        packet: Packet,
    },
    Disk {
        node: usize,
        life: u32,
    },
    SyncDone {
        node: usize,
        life: u32,
        id: u64,
    },
    Wake {
        node: usize,
        life: u32,
    },
    Duty {
        node: usize,
        life: u32,
    },
    StoreArrive {
        node: usize,
        life: u32,
        sent: u64,
        request: StoreRequest,
    },
    StoreAnswer {
        node: usize,
        life: u32,
        sent: u64,
        reply: StoreReply,
    },
    StoreTimeout {
        node: usize,
        life: u32,
        id: Option<u64>,
    },
    Refused {
        node: usize,
        life: u32,
        by: usize,
    },
    Start {
        node: usize,
        life: u32,
    },
    Kill {
        node: usize,
        life: u32,
    },
    Step {
        node: usize,
    },
    OpTimeout {
        node: usize,
        id: u64,
    },
    CallTimeout {
        node: usize,
        life: u32,
        id: u64,
    },
    FlushDue {
        node: usize,
        life: u32,
    },
    RecallDue {
        node: usize,
        life: u32,
        id: u64,
    },
    Give {
        node: usize,
        life: u32,
        by: SessionId,
        file: usize,
    },
    FlushTimeout {
        node: usize,
        life: u32,
        chunk: Chunk,
        hold: Hold,
        number: FlushNumber,
    },
    RotAlone {
        node: usize,
        block: usize,
    },
    Wipe {
        node: usize,
    },
    Mend {
        from: usize,
        to: usize,
    },
    CutOff {
        node: usize,
    },
    Amnesia {
        owner: usize,
        view: ChainView,
        sent: u64,
    },
    HandOver {
        node: usize,
        life: u32,
    },
    Cede {
        node: usize,
        life: u32,
        heir: usize,
    },
    Move,
    Checkpoint,
    Part {
        node: usize,
    },
    Unreachable {
        node: usize,
        by: usize,
    },
    Restart {
        node: usize,
        life: u32,
    },
    RecordDue {
        node: usize,
        life: u32,
    },
    Chaos,
    CalmBegins,
    Probe {
        round: u32,
    },
    ProbeAgain {
        node: usize,
        round: u32,
    },
    End,
}

/// The world.
pub struct World {
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) queue: Queue<Event>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Network,
    pub(crate) store: Store,
    pub(crate) first_view: ChainView,
    pub(crate) oracle: Oracle,
    pub(crate) calls: Recorder<Registers>,
    pub(crate) marks: Marks,
    pub(crate) scenario: Scenario,
    pub(crate) drift: Drift,
    pub(crate) chaos: Chaos,
    pub(crate) plant: Option<Plant>,
    pub(crate) timing: Timing,
    pub(crate) limits: Limits,
    pub(crate) codec: bool,
    /// Remote writes after which a chunk moves.
    pub(crate) price: u32,
    pub(crate) calm: bool,
    pub(crate) next_token: u64,
    pub(crate) next_request: u64,
    /// The round of the operations of the end, when these are under way, and no others.
    pub(crate) probe_round: Option<u32>,
    /// Which hosts have done which rounds of them.
    pub(crate) probes_done: BTreeSet<(usize, u32)>,
    /// Proposals that have not reached the store, or may be made again.
    pub(crate) under_way: Vec<ChainView>,
    pub(crate) numbered: Numbered,
    /// The last call for the state that each host got, and from whom: it may come once more.
    pub(crate) state_calls: BTreeMap<usize, (usize, Packet)>,
    /// Ownership moves.
    moves: bool,
    /// A checkpoint is made.
    has_checkpoint: bool,
    /// Records carry bytes, also where they need not.
    pub(crate) carries: bool,
    /// Hosts read other copies than the owner's.
    pub(crate) reads_copies: bool,
    /// What was ceded to each host last, and by whom: it may come late.
    pub(crate) cessions: BTreeMap<usize, (usize, Packet)>,
    hash: u64,
    events: u64,
}

/// Simulates one history.
#[must_use]
pub fn run(options: Options) -> Report {
    run_under(options, Laws::All)
}

/// The same under some of the laws.
#[must_use]
pub fn run_under(options: Options, laws: Laws) -> Report {
    let mut world = World::new(options);
    world.oracle.laws = laws;
    world.start();
    while world.oracle.violation.is_none() {
        let Some((at, event)) = world.queue.pop() else {
            break;
        };
        world.now = at;
        if matches!(event, Event::End) {
            law::well_again::check(&mut world);
            law::checkpoint::at_end(&mut world);
            law::sound_again::check(&mut world);
            law::explained::check(&mut world);
            break;
        }
        world.handle(event);
    }
    Report {
        violation: world.oracle.violation.take(),
        hash: world.hash,
        events: world.events,
        marks: world.marks,
        happened: world.numbered.into_happened(),
    }
}

impl World {
    fn new(options: Options) -> Self {
        let mut rng = Rng::new(options.seed ^ 0x5045_5249_4745_4521);
        let count = [3, 3, 3, 4, 5][rng.below(5) as usize];
        let mut chaos = Chaos::new(&mut rng);
        if options.scenario != Scenario::Chaos {
            chaos.store_loss = 0;
            chaos.store_late = 0;
        }
        let timing = Timing::default();
        let mut numbered = Numbered::new(options.seed, options.left_out, options.detail);
        let nodes = (0..count)
            .map(|node| {
                let clock = Clock::new(&mut rng, &timing, options.drift);
                Self::host(clock, numbered.session(node as u64))
            })
            .collect();
        let small = rng.chance(1, 2);
        let tiny = chaos.taste == Taste::Laggards;
        let limits = Limits {
            retain_bytes: if tiny {
                150
            } else if small {
                800
            } else {
                4_000
            },
            retain_for_joiners_bytes: if tiny {
                300
            } else if small {
                1_600
            } else {
                16_000
            },
            append_bytes: if rng.chance(1, 2) { 1 } else { 400 },
            window_bytes: if rng.chance(1, 3) { 200 } else { 1_600 },
        };
        let members = 1 + rng.below(count as u64);
        let chain = (1..=members).map(|n| NodeId(n as u32)).collect();
        let price = match options.scenario {
            Scenario::Chaos => price_of(options.seed),
            Scenario::StoreAway | Scenario::BadDisks => u32::MAX,
        };
        if price < u32::MAX {
            chaos.think_us = chaos.think_us.min(300_000);
            // Chunks move where their owner stays for a while.
            chaos.pause_us = chaos.pause_us.max(1_500_000);
            chaos.aim = chaos.aim.min(200);
        }
        let moves = crate::moves::moves(options.seed, options.scenario);
        if moves {
            // Who cedes has to have all its members, and they all its bytes.
            chaos.pause_us = chaos.pause_us.max(1_500_000);
            chaos.aim = chaos.aim.min(200);
            chaos.bare_fsync = false;
        }
        let reads_copies = crate::node::copies::reads_copies(options.seed, options.scenario);
        if reads_copies {
            chaos.think_us = chaos.think_us.min(200_000);
        }
        let mut net = Network::healthy(count);
        if options.scenario != Scenario::StoreAway {
            chaos.spoil(&mut net, &mut rng, &mut numbered);
        }
        let first_view = ChainView {
            epoch: Epoch(1),
            chain,
        };
        Self {
            now: 0,
            queue: Queue::default(),
            nodes,
            net,
            store: Store {
                view: first_view.clone(),
                made: 0,
                away_until: 0,
            },
            first_view,
            scenario: options.scenario,
            drift: options.drift,
            oracle: Oracle::default(),
            calls: Recorder::default(),
            marks: Marks::default(),
            chaos,
            plant: options.plant,
            timing,
            limits,
            codec: options.seed.is_multiple_of(8),
            price,
            calm: false,
            next_token: 0,
            next_request: 0,
            probe_round: None,
            probes_done: BTreeSet::new(),
            under_way: Vec::new(),
            rng: numbered.weather(rng),
            numbered,
            state_calls: BTreeMap::new(),
            moves,
            has_checkpoint: crate::node::past::has_checkpoint(options.seed, options.scenario),
            carries: crate::node::carry::carries(options.seed),
            reads_copies,
            cessions: BTreeMap::new(),
            hash: options.seed,
            events: 0,
        }
    }

    fn host(clock: Clock, session: Rng) -> Node {
        Node {
            clock,
            disk: Disk::default(),
            incarnation: 0,
            hears_since: 0,
            run: None,
            paused_until: 0,
            slow_disk_us: 0,
            fail_next_write: false,
            disk_free_at: 0,
            session: Session::new(session),
        }
    }

    fn start(&mut self) {
        for node in 0..self.nodes.len() {
            let life = self.nodes[node].incarnation;
            let at = self.rng.below(100_000);
            self.at(at, Event::Start { node, life });
            let first = 200_000 + self.rng.below(1_000_000);
            self.at(first, Event::Step { node });
        }
        let first = self.chaos.pause(&mut self.rng);
        self.at(first, Event::Chaos);
        if self.moves {
            self.at(SECOND, Event::Move);
        }
        if self.has_checkpoint {
            self.at(2 * SECOND, Event::Checkpoint);
        }
        let end = self.numbered.chaos_length(self.chaos.length_us);
        self.at(end, Event::CalmBegins);
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.queue.push(self.now + span, event);
    }

    /// Whether this deliberate fault is on.
    pub(crate) fn planted(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    pub(crate) fn note(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    /// Adds to the trace: its hash always, its text when asked for.
    pub(crate) fn log(&mut self, what: u64, node: usize, text: impl FnOnce() -> String) {
        let mixed = (self.hash ^ what ^ ((node as u64) << 56) ^ self.now.rotate_left(20))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
        if self.numbered.is_traced() {
            let line = format!("{:>10.6} n{} {}", self.now as f64 / 1e6, node + 1, text());
            print_line(&line);
        }
    }

    fn handle(&mut self, event: Event) {
        self.events += 1;
        if let Some(node) = event.host()
            && self.nodes[node].paused_until > self.now
        {
            let until = self.nodes[node].paused_until;
            return self.at(until, event);
        }
        match event {
            Event::Deliver {
                from,
                to,
                sent,
                packet,
            } => {
                if sent >= self.nodes[to].hears_since {
                    self.deliver(from, to, packet);
                }
            }
            Event::Disk { node, life } => self.if_alive(node, life, Self::disk_done),
            Event::SyncDone { node, life, id } => {
                self.if_alive(node, life, |w, n| w.sync_done(n, id));
            }
            Event::Wake { node, life } => self.if_alive(node, life, Self::wake),
            Event::Duty { node, life } => self.if_alive(node, life, Self::duty),
            Event::StoreArrive {
                node,
                life,
                sent,
                request,
            } => {
                if sent >= self.store.made {
                    self.store_arrive(node, life, request);
                }
            }
            Event::StoreAnswer {
                node,
                life,
                sent,
                reply,
            } => {
                // A process that starts after a store was lost hears nothing of that one.
                if self.nodes[node].incarnation == life && sent >= self.store.made {
                    self.store_answer(node, reply);
                }
            }
            Event::StoreTimeout { node, life, id } => {
                if self.nodes[node].incarnation == life {
                    self.store_timeout(node, id);
                }
            }
            Event::Refused { node, life, by } => {
                self.if_alive(node, life, |w, n| w.refused_by(n, by));
            }
            Event::Start { node, life } => {
                if self.nodes[node].incarnation == life && self.nodes[node].run.is_none() {
                    self.boot(node);
                }
            }
            Event::Kill { node, life } => self.if_alive(node, life, Self::kill_now),
            Event::HandOver { node, life } => self.if_alive(node, life, Self::hand_over),
            Event::Cede { node, life, heir } => {
                self.if_alive(node, life, |w, n| w.cede(n, heir));
            }
            Event::Move => self.move_owner(),
            Event::Checkpoint => self.ask_for_checkpoint(),
            Event::Part { node } => {
                if !self.calm {
                    self.net.isolate(node, ControlStore::Reached);
                }
            }
            Event::Unreachable { node, by } => {
                if self.net.cut[node][by] && self.nodes[node].run.is_some() {
                    self.refused_by(node, by);
                }
            }
            Event::Restart { node, life } => self.if_alive(node, life, Self::restart_soon),
            Event::RecordDue { node, life } => self.if_alive(node, life, Self::record_due),
            Event::CallTimeout { node, life, id } => {
                self.if_alive(node, life, |w, n| w.call_timed_out(n, id));
            }
            Event::RecallDue { node, life, id } => {
                self.if_alive(node, life, |w, n| w.revoked(n, id));
            }
            Event::Give {
                node,
                life,
                by,
                file,
            } => self.if_alive(node, life, |w, n| w.give(n, by, file)),
            Event::FlushDue { node, life } => {
                self.if_alive(node, life, |w, n| w.flush_held(n, None));
            }
            Event::FlushTimeout {
                node,
                life,
                chunk,
                hold,
                number,
            } => self.if_alive(node, life, |w, n| {
                w.flush_timed_out(n, (chunk, hold, number));
            }),
            Event::Wipe { node } => self.wipe(node),
            Event::RotAlone { node, block } => self.rot_alone(node, block),
            Event::Mend { from, to } => self.net.cut[from][to] = false,
            Event::CutOff { node } => {
                if !self.calm {
                    self.net.isolate(node, ControlStore::CutOff);
                }
            }
            Event::Amnesia { owner, view, sent } => self.forget(owner, &view, sent),
            Event::Step { node } => self.client_step(node),
            Event::OpTimeout { node, id } => self.finish(node, id, Outcome::Unknown),
            Event::Chaos => self.wreak(),
            Event::CalmBegins => self.calm_down(),
            Event::Probe { round } => self.probe(round),
            Event::ProbeAgain { node, round } => self.probe_again(node, round),
            Event::End => {}
        }
        law::one_owner::check(self);
    }

    fn if_alive(&mut self, node: usize, life: u32, act: impl FnOnce(&mut Self, usize)) {
        if self.nodes[node].incarnation == life && self.nodes[node].run.is_some() {
            act(self, node);
        }
    }

    fn calm_down(&mut self) {
        self.log(1, 0, || "-- calm --".into());
        self.calm = true;
        self.net = Network::healthy(self.nodes.len());
        self.store.away_until = 0;
        self.chaos.store_loss = 0;
        self.chaos.store_late = 0;
        self.chaos.bytes_us = 1;
        for node in 0..self.nodes.len() {
            let host = &mut self.nodes[node];
            host.paused_until = 0;
            host.slow_disk_us = 0;
            host.fail_next_write = false;
            if self.drift == Drift::Beyond {
                host.clock.correct(self.now);
            }
            if host.run.is_none() {
                let life = host.incarnation;
                self.after(1, Event::Start { node, life });
            }
        }
        self.after(CALM_US - 6_000_000, Event::Probe { round: 1 });
        self.after(CALM_US, Event::End);
    }

    /// What no write has written yet.
    pub(crate) fn fresh_token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// A random operation.
    pub(crate) fn random_op(&mut self, rng: &mut Rng) -> Op {
        use crate::model::{BLOCKS, FILES, KEYS};
        let token = self.fresh_token();
        if self.chaos.taste == Taste::HotBlock && rng.chance(2, 3) {
            return match rng.below(4) {
                0 => Op::Fsync { file: 0 },
                1 if rng.chance(1, 2) => Op::Punch { block: 0, token },
                _ => Op::Write { block: 0, token },
            };
        }
        match rng.below(10) {
            0 | 1 => Op::Put {
                key: rng.below(KEYS as u64) as u8,
                value: token,
            },
            2 => Op::Get {
                key: rng.below(KEYS as u64) as u8,
            },
            3 if rng.chance(1, 3) => Op::Punch {
                block: rng.below(BLOCKS as u64) as u8,
                token,
            },
            3..=5 => Op::Write {
                block: rng.below(BLOCKS as u64) as u8,
                token,
            },
            6 | 7 => Op::Read {
                block: rng.below(BLOCKS as u64) as u8,
            },
            _ => Op::Fsync {
                file: rng.below(FILES as u64) as u8,
            },
        }
    }

    /// Where chunks move, each file has one host that mostly writes to it, for a while; the others look at it now and then.
    pub(crate) fn favour(&mut self, node: usize, op: Op, rng: &mut Rng) -> Op {
        use crate::model::{BLOCKS_PER_FILE, FILES, blocks_of_file};
        if self.price == u32::MAX && self.reads_copies && rng.chance(2, 3) {
            // Everybody looks at one file, which is written now and then.
            let (token, block) = (self.fresh_token(), rng.below(BLOCKS_PER_FILE as u64) as u8);
            return match rng.below(8) {
                0..=4 => Op::Read { block },
                5 | 6 => Op::Write { block, token },
                _ => Op::Fsync { file: 0 },
            };
        }
        if self.price == u32::MAX || rng.chance(1, 12) {
            return op;
        }
        let token = self.fresh_token();
        // Counted by the session: a pause of its host must not change what it does.
        let turn = (self.nodes[node].session.turns / 24) as usize;
        let hosts = self.nodes.len();
        let writes = |file: &usize| (turn * FILES + file) % hosts == node;
        let Some(file) = (0..FILES).find(writes) else {
            let key = 0;
            let block = rng.below(crate::model::BLOCKS as u64) as u8;
            return match rng.below(8) {
                0 => op,
                1 => Op::Write { block, token },
                2 | 3 => Op::Read { block },
                4 => Op::Put { key, value: token },
                _ => Op::Get { key },
            };
        };
        let first = blocks_of_file(file).start as u64;
        let block = (first + rng.below(BLOCKS_PER_FILE as u64)) as u8;
        match rng.below(24) {
            0 => Op::Punch { block, token },
            1 => Op::Fsync { file: file as u8 },
            2..=6 => Op::Read { block },
            _ => Op::Write { block, token },
        }
    }
}

impl Event {
    /// The host whose processor the event needs.
    fn host(&self) -> Option<usize> {
        match self {
            Self::Deliver { to, .. } => Some(*to),
            Self::Disk { node, .. }
            | Self::SyncDone { node, .. }
            | Self::Wake { node, .. }
            | Self::Duty { node, .. }
            | Self::StoreAnswer { node, .. }
            | Self::StoreTimeout { node, .. }
            | Self::Refused { node, .. }
            | Self::HandOver { node, .. }
            | Self::Cede { node, .. }
            | Self::Unreachable { node, .. }
            | Self::RecordDue { node, .. }
            | Self::CallTimeout { node, .. }
            | Self::FlushDue { node, .. }
            | Self::RecallDue { node, .. }
            | Self::Give { node, .. }
            | Self::FlushTimeout { node, .. }
            | Self::Step { node } => Some(*node),
            Self::StoreArrive { .. }
            | Self::Start { .. }
            | Self::Kill { .. }
            | Self::OpTimeout { .. }
            | Self::Wipe { .. }
            | Self::RotAlone { .. }
            | Self::Mend { .. }
            | Self::CutOff { .. }
            | Self::Amnesia { .. }
            | Self::Chaos
            | Self::Move
            | Self::Checkpoint
            | Self::Part { .. }
            | Self::Restart { .. }
            | Self::CalmBegins
            | Self::Probe { .. }
            | Self::ProbeAgain { .. }
            | Self::End => None,
        }
    }
}

/// Chunks move in each fourth history.
const fn price_of(seed: u64) -> u32 {
    match seed % 8 {
        3 => 1,
        7 => 2,
        _ => u32::MAX,
    }
}

/// The node number of a host.
pub(crate) fn id_of(node: usize) -> NodeId {
    NodeId(node as u32 + 1)
}

/// The host of a node number.
pub(crate) fn host_of(id: NodeId) -> usize {
    id.0 as usize - 1
}

/// The whole of one second, for readability.
pub(crate) const SECOND: u64 = Span::from_millis(1_000).0;

pub(crate) fn print_line(line: &str) {
    use std::io::Write;
    // A trace that nobody reads any more may end.
    let _ = writeln!(std::io::stdout(), "{line}");
}
