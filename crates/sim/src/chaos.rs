//! What goes wrong, and when: drawn from the seed. Plain chaos strikes at random; aimed chaos strikes when a chain is
//! about to change, which is where replication protocols are wrong.

use crate::control::StoreReply;
use crate::law;
use crate::network::Network;
use crate::node::Node;
use crate::oracle::Mark;
use crate::world::{Event, SECOND, Scenario, World, host_of, id_of};
use perigee_replica::rebuild::go_on;
use perigee_replica::{ChainView, Goes, Witness};
use perigee_types::Rng;

/// What a seed is fond of: some faults need things to come together that rarely do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taste {
    /// Nothing.
    Even,
    /// Short logs and slow disks: joiners that fetch the state while the log goes on.
    Laggards,
    /// One block that all write, and owners that end before all have heard.
    HotBlock,
}

/// What a seed draws.
#[derive(Debug)]
pub struct Chaos {
    /// Its taste.
    pub taste: Taste,
    /// How long it lasts.
    pub length_us: u64,
    /// The mean pause between two strikes.
    pub pause_us: u64,
    /// In 1,000: how often a change of the chain draws a strike.
    pub aim: u64,
    /// Whether the transport tells of refused connections.
    pub hints: bool,
    /// In 1,000.
    pub store_loss: u64,
    /// In 1,000: requests that arrive after they were given up.
    pub store_late: u64,
    /// How much longer bytes may take than records.
    pub bytes_us: u64,
    /// The longest pause of a session.
    pub think_us: u64,
    /// Whether a sync that somebody waits for stores the bytes alone, and not what is known of them.
    pub bare_fsync: bool,
}

impl Chaos {
    /// Drawn from the seed.
    pub fn new(rng: &mut Rng) -> Self {
        let calm_store = rng.chance(1, 2);
        let taste = [Taste::Even, Taste::Even, Taste::Laggards, Taste::HotBlock];
        Self {
            taste: taste[rng.below(4) as usize],
            length_us: (12 + rng.below(20)) * SECOND,
            pause_us: [400_000, 1_500_000, 4_000_000][rng.below(3) as usize],
            aim: [0, 200, 600][rng.below(3) as usize],
            hints: rng.chance(1, 3),
            store_loss: if calm_store { 0 } else { 200 },
            store_late: if calm_store { 0 } else { 150 },
            bytes_us: [1, 60_000, 500_000][rng.below(3) as usize],
            think_us: [150_000, 600_000, 1_200_000][rng.below(3) as usize],
            bare_fsync: rng.chance(1, 2),
        }
    }

    /// Sets the network's lasting faults.
    pub fn spoil(&self, net: &mut Network, rng: &mut Rng) {
        net.loss = [0, 0, 20, 100][rng.below(4) as usize];
        net.repeat = [0, 30, 200][rng.below(3) as usize];
        net.tail = [0, 0, 20, 120][rng.below(4) as usize];
        net.tail_us = [200_000, 2_000_000, 8_000_000][rng.below(3) as usize];
        net.base_us = [100, 500, 10_000][rng.below(3) as usize];
    }

    /// The time to the next strike.
    pub fn pause(&self, rng: &mut Rng) -> u64 {
        self.pause_us / 4 + rng.below(self.pause_us * 2)
    }
}

impl World {
    /// A strike, and the next one's time.
    pub(crate) fn wreak(&mut self) {
        if self.calm {
            return;
        }
        if self.scenario == Scenario::StoreAway {
            let first = law::control_store::AWAY_SINCE_US.saturating_sub(self.now);
            if first > 0 {
                return self.after(first, Event::Chaos);
            }
            self.store.away_until = u64::MAX;
            return;
        }
        let pause = self.chaos.pause(&mut self.rng);
        self.after(pause, Event::Chaos);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match self.chaos.taste {
            Taste::Laggards if self.rng.chance(1, 3) => return self.slow_disk(node),
            Taste::HotBlock if self.rng.chance(1, 3) => return self.half_told(),
            Taste::Even | Taste::Laggards | Taste::HotBlock => {}
        }
        match self.rng.below(29) {
            0..=3 => self.kill(node),
            4 => {
                self.kill_all();
                if self.rng.chance(1, 2) {
                    self.lose_store();
                }
            }
            5 | 6 => self.isolate(node),
            7 => self.cut_one_way(node),
            8 => self.cut_pair(node),
            9..=12 => self.net.heal(),
            13 => self.store_away(),
            14 | 15 => self.pause_node(node),
            16 => self.slow_disk(node),
            17 => self.nodes[node].fail_next_write = true,
            18 => self.wipe(node),
            19 => self.cut_from_store(node),
            20 | 23 | 24 => self.old_guard(),
            25 | 26 => self.half_told(),
            27 | 28 => self.drain_owner(),
            21 => {
                if let Some(owner) = self.store.view.owner().map(host_of) {
                    self.isolate(owner);
                }
            }
            _ => {
                if let Some(owner) = self.store.view.owner().map(host_of) {
                    self.kill(owner);
                }
            }
        }
    }

    /// Whether nothing is to go wrong.
    fn is_kind(&self) -> bool {
        self.calm || self.scenario == Scenario::StoreAway
    }

    /// The chain has just changed: a good moment.
    pub(crate) fn aim_at_change(&mut self) {
        if self.is_kind() {
            return;
        }
        if self.rng.chance(1, 6) {
            self.cut_briefly();
        }
        if !self.rng.chance(self.chaos.aim, 1000) {
            return;
        }
        let view = &self.store.view;
        let pick = self.rng.below(view.chain.len() as u64) as usize;
        let Some(member) = view.chain.get(pick).copied().map(host_of) else {
            return;
        };
        match self.rng.below(6) {
            0 => self.kill_soon(member),
            1 => self.kill(member),
            2 => self.isolate(member),
            3 => self.pause_node(member),
            4 => self.kill_all(),
            _ => self.net.heal(),
        }
    }

    /// A member proposes itself: the old owner may be back before the proposal arrives. Returns whether it is late.
    pub(crate) fn aim_at_takeover(&mut self, node: usize, view: &ChainView) -> bool {
        let takeover = view.owner() == Some(id_of(node)) && self.store.view.owner() != view.owner();
        let late = takeover && !self.is_kind() && self.rng.chance(1, 8);
        if late {
            self.net.heal();
        }
        late
    }

    /// A node proposes a chain: a good moment to cut it off, or to end it.
    pub(crate) fn aim_at_proposal(&mut self, node: usize, joiner: Option<usize>) {
        if self.is_kind() {
            return;
        }
        if let Some(joiner) = joiner
            && self.rng.chance(1, 12)
        {
            // It may be listed at any time from now on, and nobody can find out: it must not lose anything.
            self.store.away_until = self.now + SECOND + self.rng.below(5 * SECOND);
            if self.rng.chance(2, 3) {
                let delay = self.rng.below(3 * SECOND);
                self.after(delay, Event::Wipe { node: joiner });
            }
            return;
        }
        if !self.rng.chance(self.chaos.aim / 2, 1000) {
            return;
        }
        match self.rng.below(4) {
            0 => self.kill_soon(node),
            1 => self.net.heal(),
            2 => self.cut_from_store(node),
            _ => self.pause_node(node),
        }
    }

    /// Whom a proposal would list that is not listed.
    pub(crate) fn joiner_of(&self, view: &ChainView) -> Option<usize> {
        let mut gained = view.chain.iter().filter(|n| !self.store.view.lists(**n));
        gained.next().copied().map(host_of)
    }

    fn kill(&mut self, node: usize) {
        if self.nodes[node].run.is_none() {
            return;
        }
        self.crash(node);
        let life = self.nodes[node].incarnation;
        let quick = self.rng.chance(1, 2);
        let delay = if quick { 50_000 } else { 6_000_000 };
        let delay = 1_000 + self.rng.below(delay);
        self.after(delay, Event::Start { node, life });
    }

    /// Ends a node a moment later: between two of its messages.
    fn kill_soon(&mut self, node: usize) {
        let until = self.now + self.rng.below(8_000);
        let life = self.nodes[node].incarnation;
        self.at(until, Event::Kill { node, life });
    }

    pub(crate) fn kill_now(&mut self, node: usize) {
        self.kill(node);
    }

    /// An owner that hears of nothing is replaced; then those who replaced it start again, or hear a view of long
    /// ago, and find the old owner and nobody else.
    fn old_guard(&mut self) {
        let Some(owner) = self.store.view.owner().map(host_of) else {
            return;
        };
        self.isolate(owner);
        self.net.store_cut[owner] = true;
        let later = 3 * SECOND + self.rng.below(3 * SECOND);
        let view = self.store.view.clone();
        self.after(later, Event::Amnesia { owner, view });
    }

    /// An owner ends when only some members have its last records.
    fn half_told(&mut self) {
        let Some(owner) = self.store.view.owner().map(host_of) else {
            return;
        };
        let other = self.rng.below(self.nodes.len() as u64) as usize;
        self.net.cut[owner][other] = true;
        let life = self.nodes[owner].incarnation;
        let delay = self.rng.below(2 * SECOND);
        self.after(delay, Event::Kill { node: owner, life });
    }

    /// See [`Self::old_guard`].
    pub(crate) fn forget(&mut self, owner: usize, view: &ChainView) {
        // Nobody hears any more of what a store said that was lost since.
        if self.calm || view.epoch > self.store.view.epoch {
            return;
        }
        self.net.heal();
        self.store.away_until = self.now + 2 * SECOND + self.rng.below(4 * SECOND);
        let restart = self.rng.chance(1, 2);
        for node in (0..self.nodes.len()).filter(|n| *n != owner) {
            let knows = self.nodes[node]
                .run
                .as_ref()
                .is_some_and(|r| r.chain.view().is_some());
            if !restart && knows {
                let life = self.nodes[node].incarnation;
                let reply = StoreReply::View(view.clone());
                self.after(1_000, Event::StoreAnswer { node, life, reply });
            } else if restart && self.nodes[node].run.is_some() {
                self.crash(node);
                let life = self.nodes[node].incarnation;
                let delay = 1_000 + self.rng.below(100_000);
                self.after(delay, Event::Start { node, life });
            }
        }
    }

    /// The owner is to leave: it takes no changes, and hands over as soon as it may.
    fn drain_owner(&mut self) {
        let Some(node) = self.store.view.owner().map(host_of) else {
            return;
        };
        let until = self.now + SECOND + self.rng.below(3 * SECOND);
        let life = self.nodes[node].incarnation;
        if let Some(run) = &mut self.nodes[node].run {
            run.leaves_until = until;
            self.after(1, Event::HandOver { node, life });
        }
    }

    fn kill_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }

    /// The control store is lost while no node runs, and made anew from what their disks say. A copy of the store is as
    /// old as can be.
    fn lose_store(&mut self) {
        let witnesses: Vec<Witness> = (0..self.nodes.len())
            .map(|node| {
                let hard = &self.nodes[node].disk.hard;
                Witness {
                    node: id_of(node),
                    promised: hard.promised,
                    complete: hard.complete,
                    view: hard.view.clone(),
                }
            })
            .collect();
        if let Some(Goes::On(view)) = go_on(std::slice::from_ref(&self.first_view), &witnesses) {
            self.log(60, 0, || {
                format!("store made anew: {} {:?}", view.epoch, view.chain)
            });
            self.note(Mark::StoreMadeAnew);
            self.store.view = view;
            self.store.made = self.now;
            self.under_way.clear();
            law::replicated::check_members(self, "when the control store was made anew");
        }
    }

    fn isolate(&mut self, node: usize) {
        for other in 0..self.nodes.len() {
            self.net.cut[node][other] = true;
            self.net.cut[other][node] = true;
        }
        self.net.store_cut[node] = self.rng.chance(1, 3);
        self.log(50, node, || "is cut off".into());
    }

    fn cut_one_way(&mut self, node: usize) {
        let outward = self.rng.chance(1, 2);
        for other in 0..self.nodes.len() {
            let (from, to) = if outward {
                (node, other)
            } else {
                (other, node)
            };
            self.net.cut[from][to] = true;
        }
        self.log(51, node, || format!("is cut one way, outward: {outward}"));
    }

    /// A new owner's first words to one member are lost.
    fn cut_briefly(&mut self) {
        let Some(from) = self.store.view.owner().map(host_of) else {
            return;
        };
        let to = self.rng.below(self.nodes.len() as u64) as usize;
        self.net.cut[from][to] = true;
        let delay = 5_000 + self.rng.below(400_000);
        self.after(delay, Event::Mend { from, to });
    }

    fn cut_pair(&mut self, node: usize) {
        let other = self.rng.below(self.nodes.len() as u64) as usize;
        self.net.cut[node][other] = true;
        self.net.cut[other][node] = self.rng.chance(1, 2);
        self.log(52, node, || format!("and n{} are cut", other + 1));
    }

    fn cut_from_store(&mut self, node: usize) {
        self.net.store_cut[node] = true;
        self.log(53, node, || "is cut from the store".into());
    }

    fn store_away(&mut self) {
        self.store.away_until = self.now + self.rng.below(12 * SECOND);
        self.note(Mark::StoreAway);
        self.log(54, 0, || "the store is away".into());
    }

    fn pause_node(&mut self, node: usize) {
        if self.nodes[node].run.is_none() {
            return;
        }
        self.nodes[node].paused_until = self.now + self.rng.below(5 * SECOND);
        self.note(Mark::Pause);
        self.log(55, node, || "is paused".into());
    }

    fn slow_disk(&mut self, node: usize) {
        let slow = self.nodes[node].slow_disk_us == 0;
        self.nodes[node].slow_disk_us = if slow {
            100_000 + self.rng.below(2_000_000)
        } else {
            0
        };
        self.log(56, node, || format!("has a slow disk: {slow}"));
    }

    /// Loses a disk for good, if another member of every chain that may come has what this one had.
    pub(crate) fn wipe(&mut self, node: usize) {
        if self.calm {
            return;
        }
        let keeps = |host: &Node| !host.disk.wiped && host.disk.hard.complete;
        let survives = |chain: &[perigee_types::NodeId]| {
            chain
                .iter()
                .map(|n| host_of(*n))
                .any(|n| n != node && keeps(&self.nodes[n]))
        };
        let open = self.open_proposals();
        if !survives(&self.store.view.chain) || !open.iter().all(|view| survives(&view.chain)) {
            return;
        }
        self.crash(node);
        self.note(Mark::Wipe);
        self.log(57, node, || "loses its disk".into());
        let host = &mut self.nodes[node];
        host.disk = crate::disk::Disk {
            wiped: true,
            ..crate::disk::Disk::default()
        };
        host.hears_since = self.now;
        let life = host.incarnation;
        let delay = 100_000 + self.rng.below(4_000_000);
        self.after(delay, Event::Start { node, life });
    }
}
