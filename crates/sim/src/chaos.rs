//! What goes wrong, and when: drawn from the seed. Plain chaos strikes at random; aimed chaos strikes when a chain is
//! about to change, which is where replication protocols are wrong.

use crate::clock::Drift;
use crate::control::StoreReply;
use crate::law;
use crate::network::Network;
use crate::node::Node;
use crate::numbered::{Dice, Kind, Numbered};
use crate::oracle::Mark;
use crate::strike::{ControlStore, Strike, Way, number_lasting};
use crate::world::{Event, SECOND, Scenario, World, host_of, id_of};
use perigee_replica::rebuild::go_on;
use perigee_replica::{ChainView, Goes, Witness};
use perigee_types::{Epoch, Rng};
use std::num::NonZeroU64;

/// A process that is killed soon ends between two of its messages.
pub(crate) const KILL_SOON_US: u64 = 8_000;

/// The shortest time from the end of a process to its next start.
const RESTART_US: u64 = 1_000;

/// The longest jump of a clock: beyond every lease, and below every patience.
pub(crate) const JUMP_US: u64 = 8 * SECOND;

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

    /// Sets the lasting faults, which are strikes, too.
    pub(crate) fn spoil(&mut self, net: &mut Network, rng: &mut Rng, numbered: &mut Numbered) {
        net.loss = [0, 0, 20, 100][rng.below(4) as usize];
        net.repeat = [0, 30, 200][rng.below(3) as usize];
        net.tail = [0, 0, 20, 120][rng.below(4) as usize];
        net.tail_us = [200_000, 2_000_000, 8_000_000][rng.below(3) as usize];
        net.base_us = [100, 500, 10_000][rng.below(3) as usize];
        number_lasting(net, numbered);
        let number = numbered.by_clock().number;
        let strike = Strike::StoreFails(self.store_loss, self.store_late);
        let what = || strike.to_string();
        if self.store_loss > 0 && !numbered.takes_place((Kind::Strike, number), 0, what) {
            self.store_loss = 0;
            self.store_late = 0;
        }
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
        let mut dice = self.numbered.by_clock();
        let pause = self.chaos.pause(&mut dice.rng);
        self.after(pause, Event::Chaos);
        if let Some(strike) = self.any_strike(&mut dice.rng) {
            self.strike(&dice, strike);
        }
    }

    fn any_strike(&self, rng: &mut Rng) -> Option<Strike> {
        let node = self.any_node(rng);
        if self.scenario == Scenario::BadDisks {
            return self.disk_strike(node, rng);
        }
        if self.drift == Drift::Beyond && rng.chance(1, 6) {
            return Some(Strike::ClockJumps(node, rng.below(JUMP_US)));
        }
        match self.chaos.taste {
            Taste::Laggards if rng.chance(1, 3) => return Some(self.slow_disk(node, rng)),
            Taste::HotBlock if rng.chance(1, 3) => return self.half_told(rng),
            Taste::Even | Taste::Laggards | Taste::HotBlock => {}
        }
        let owner = self.store.view.owner().map(host_of);
        Some(match rng.below(29) {
            0..=3 => Strike::Kill(node),
            4 if rng.chance(1, 2) => Strike::LoseStore,
            4 => Strike::KillAll,
            5 | 6 => Strike::CutOff(node, cut_from_store(rng)),
            7 if rng.chance(1, 2) => Strike::CutOneWay(node, Way::Out),
            7 => Strike::CutOneWay(node, Way::In),
            8 => Strike::CutPair(node, self.any_node(rng), any_way(rng)),
            9..=12 => Strike::Heal,
            13 => Strike::StoreAway(rng.below(12 * SECOND)),
            14 | 15 => pause(node, rng),
            16 => self.slow_disk(node, rng),
            17 => Strike::FailWrite(node),
            18 => Strike::Wipe(node),
            19 => Strike::CutFromStore(node),
            20 | 23 | 24 => Strike::OldGuard(owner?, 3 * SECOND + rng.below(3 * SECOND)),
            25 | 26 => self.half_told(rng)?,
            27 | 28 => Strike::HandOver(owner?, SECOND + rng.below(3 * SECOND)),
            21 => Strike::CutOff(owner?, cut_from_store(rng)),
            _ => Strike::Kill(owner?),
        })
    }

    fn any_node(&self, rng: &mut Rng) -> usize {
        rng.below(self.nodes.len() as u64) as usize
    }

    /// An owner ends when only some members have its last records.
    fn half_told(&self, rng: &mut Rng) -> Option<Strike> {
        let owner = host_of(self.store.view.owner()?);
        let (other, after) = (self.any_node(rng), rng.below(2 * SECOND));
        Some(Strike::HalfTold(owner, other, after))
    }

    fn slow_disk(&self, node: usize, rng: &mut Rng) -> Strike {
        let most = 100_000 + rng.below(2_000_000);
        let slow = self.nodes[node].slow_disk_us == 0;
        Strike::Slow(node, slow.then_some(most))
    }

    /// Whether nothing is to go wrong.
    pub(crate) fn is_kind(&self) -> bool {
        self.calm || self.scenario != Scenario::Chaos
    }

    /// The chain has just changed: a good moment.
    pub(crate) fn aim_at_change(&mut self) {
        if let Some(owner) = self.store.view.owner().map(host_of) {
            self.aim_at_last_copy(owner);
            self.aim_at_lost(owner);
        }
        if self.is_kind() {
            return;
        }
        if let Some(owner) = self.store.view.owner().map(host_of) {
            self.aim_at_longer_log(owner);
            self.aim_at_former(owner);
        }
        let mut dice = self.numbered.aimed();
        if dice.rng.chance(1, 6)
            && let Some(owner) = self.store.view.owner().map(host_of)
        {
            // A new owner's first words to one member are lost.
            let (to, span) = (self.any_node(&mut dice.rng), dice.rng.below(400_000));
            self.strike(&dice, Strike::CutBriefly(owner, to, 5_000 + span));
        }
        let mut dice = self.numbered.aimed();
        if !dice.rng.chance(self.chaos.aim, 1000) {
            return;
        }
        let view = &self.store.view;
        let pick = dice.rng.below(view.chain.len() as u64) as usize;
        let Some(member) = view.chain.get(pick).copied().map(host_of) else {
            return;
        };
        let rng = &mut dice.rng;
        let strike = match rng.below(6) {
            0 => Strike::KillSoon(member, rng.below(KILL_SOON_US)),
            1 => Strike::Kill(member),
            2 => Strike::CutOff(member, cut_from_store(rng)),
            3 => pause(member, rng),
            4 => Strike::KillAll,
            _ => Strike::Heal,
        };
        self.strike(&dice, strike);
    }

    /// A member proposes itself: the old owner may be back before the proposal arrives. Returns whether it is late.
    pub(crate) fn aim_at_takeover(&mut self, node: usize, view: &ChainView) -> bool {
        let takeover = view.owner() == Some(id_of(node)) && self.store.view.owner() != view.owner();
        if !takeover || self.is_kind() {
            return false;
        }
        let mut dice = self.numbered.aimed();
        dice.rng.chance(1, 8) && self.strike(&dice, Strike::LateTakeover(node))
    }

    /// A node proposes a chain: a good moment to cut it off, or to end it.
    pub(crate) fn aim_at_proposal(&mut self, node: usize, joiner: Option<usize>) {
        if self.is_kind() {
            return;
        }
        if let Some(joiner) = joiner {
            self.aim_at_listed(joiner);
        }
        let mut dice = self.numbered.aimed();
        let rng = &mut dice.rng;
        if let Some(joiner) = joiner
            && rng.chance(1, 12)
        {
            // It may be listed at any time from now on, and nobody can find out: it must not lose anything.
            let away = SECOND + rng.below(5 * SECOND);
            let wiped = rng.chance(2, 3).then(|| rng.below(3 * SECOND));
            self.strike(&dice, Strike::JoinerUnheard(joiner, away, wiped));
            return;
        }
        if !rng.chance(self.chaos.aim / 2, 1000) {
            return;
        }
        let strike = match rng.below(4) {
            0 => Strike::KillSoon(node, rng.below(KILL_SOON_US)),
            1 => Strike::Heal,
            2 => Strike::CutFromStore(node),
            _ => pause(node, rng),
        };
        self.strike(&dice, strike);
    }

    /// Whom a proposal would list that is not listed.
    pub(crate) fn joiner_of(&self, view: &ChainView) -> Option<usize> {
        let mut gained = view.chain.iter().filter(|n| !self.store.view.lists(**n));
        gained.next().copied().map(host_of)
    }

    /// Lets a strike take place, unless it is left out; says which.
    pub(crate) fn strike(&mut self, dice: &Dice, strike: Strike) -> bool {
        let name = (Kind::Strike, dice.number);
        let what = || strike.to_string();
        if !self.numbered.takes_place(name, self.now, what) {
            return false;
        }
        self.log(1_000 + dice.number, 0, || {
            format!("-- strike {}: {strike}", dice.number)
        });
        match strike {
            // These last.
            Strike::Loses(_) | Strike::Repeats(_) | Strike::Delays(..) | Strike::StoreFails(..) => {
            }
            Strike::Kill(node) => self.kill_now(node),
            Strike::KillSoon(node, after) => self.kill_later(node, after),
            Strike::KillAll => (0..self.nodes.len()).for_each(|node| self.kill_now(node)),
            Strike::LoseStore => {
                (0..self.nodes.len()).for_each(|node| self.kill_now(node));
                self.lose_store();
            }
            Strike::CutOff(node, store) => self.net.isolate(node, store),
            Strike::CutOneWay(node, way) => self.net.cut_one_way(node, way),
            Strike::CutPair(a, b, way) => self.net.cut_pair(a, b, way),
            Strike::CutBriefly(from, to, span) => {
                self.net.cut[from][to] = true;
                self.after(span, Event::Mend { from, to });
            }
            Strike::CutFromStore(node) => self.net.store_cut[node] = true,
            Strike::Heal | Strike::LateTakeover(_) => self.net.heal(),
            Strike::StoreAway(span) => {
                self.store.away_until = self.now + span;
                self.note(Mark::StoreAway);
            }
            Strike::Pause(node, span) => self.pause_node(node, span),
            Strike::Slow(node, most) => self.nodes[node].slow_disk_us = most.unwrap_or(0),
            Strike::FailWrite(node) => self.nodes[node].fail_next_write = true,
            Strike::Wipe(node) => self.wipe(node),
            Strike::Rot(node, block) => self.rot(node, block),
            Strike::RotAlone(node, block, after) => {
                self.after(after, Event::RotAlone { node, block });
            }
            Strike::Misdirect(node) => self.nodes[node].disk.misdirects = true,
            Strike::OldGuard(owner, after) => self.old_guard(owner, after),
            Strike::HalfTold(owner, other, after) => {
                self.net.cut[owner][other] = true;
                self.kill_later(owner, after);
            }
            Strike::ComesBack(former, owner, member, span) => {
                self.net.heal();
                self.net.cut[owner][member] = true;
                self.after(
                    span,
                    Event::Mend {
                        from: owner,
                        to: member,
                    },
                );
                self.restart_soon(former);
            }
            Strike::LastWords(owner, other, after) => {
                self.net.cut[owner][other] = true;
                self.after(after, Event::CutOff { node: owner });
            }
            Strike::HandOver(owner, span) => self.drain(owner, span),
            Strike::Cede(owner, heir, span) => self.begin_to_cede(owner, heir, span),
            Strike::Parted(node, by, after) => self.part_later(node, by, after),
            Strike::LateCession(heir, restarts, late) => {
                self.cede_once_more(heir, restarts, late);
            }
            Strike::ClockJumps(node, span) => {
                self.note(Mark::ClockJump);
                self.nodes[node].clock.jump(span);
                if self.nodes[node].run.is_some() {
                    self.wake(node);
                }
            }
            Strike::LateCall(joiner, after) => {
                if let Some((from, packet)) = self.state_calls.get(&joiner).cloned() {
                    self.deliver_after(after, from, joiner, packet);
                }
            }
            Strike::JoinerUnheard(joiner, away, wiped) => {
                self.store.away_until = self.now + away;
                if let Some(after) = wiped {
                    self.after(after, Event::Wipe { node: joiner });
                }
            }
        }
        true
    }

    /// A process ends, and starts again.
    pub(crate) fn kill_now(&mut self, node: usize) {
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

    /// A process ends, and starts again at once.
    pub(crate) fn restart_soon(&mut self, node: usize) {
        if self.nodes[node].run.is_some() {
            self.crash(node);
            let life = self.nodes[node].incarnation;
            self.after(RESTART_US, Event::Start { node, life });
        }
    }

    /// Ends a node a moment later: between two of its messages.
    fn kill_later(&mut self, node: usize, after: u64) {
        let life = self.nodes[node].incarnation;
        self.after(after, Event::Kill { node, life });
    }

    /// An owner that hears of nothing is replaced; then those who replaced it start again, or hear a view of long
    /// ago, and find the old owner and nobody else.
    fn old_guard(&mut self, owner: usize, after: u64) {
        self.net.isolate(owner, ControlStore::CutOff);
        let view = self.store.view.clone();
        let sent = self.now;
        self.after(after, Event::Amnesia { owner, view, sent });
    }

    /// See [`Self::old_guard`].
    pub(crate) fn forget(&mut self, owner: usize, view: &ChainView, sent: u64) {
        // Nobody hears any more of what a store said that was lost since: no node ran when it was made anew.
        if self.calm || sent < self.store.made {
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
                let answer = Event::StoreAnswer {
                    node,
                    life: self.nodes[node].incarnation,
                    sent: self.now,
                    reply: StoreReply::View(view.clone()),
                };
                self.after(1_000, answer);
            } else if restart && self.nodes[node].run.is_some() {
                self.crash(node);
                let life = self.nodes[node].incarnation;
                let delay = 1_000 + self.rng.below(100_000);
                self.after(delay, Event::Start { node, life });
            }
        }
    }

    /// The control store is lost while no node runs, and made anew from what their disks say. A copy of the store is as
    /// old as can be.
    fn lose_store(&mut self) {
        let mut witnesses: Vec<Witness> = (0..self.nodes.len())
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
        let listed = self.first_view.clone();
        let leap = NonZeroU64::MIN.saturating_add(self.now << 20);
        let all = go_on(std::slice::from_ref(&listed), &witnesses, leap);
        let absent = id_of((self.now % (2 * self.nodes.len() as u64)) as usize);
        let begun = |witness: &Witness| witness.node != absent && witness.promised > Epoch(1);
        if let Some(Goes::On(view)) = &all
            && view.chain.iter().any(|member| *member != absent)
            && witnesses.iter().any(begun)
        {
            // A node may be given up, and come back later: another member has all that was acknowledged.
            witnesses.retain(|witness| witness.node != absent);
        }
        if let Some(Goes::On(view)) = go_on(&[listed], &witnesses, leap) {
            self.log(60, 0, || {
                format!("store made anew: {} {:?}", view.epoch, view.chain)
            });
            self.note(Mark::StoreMadeAnew);
            self.store.view = view;
            self.store.made = self.now;
            self.under_way.clear();
            // What was sent before went to processes that are gone: a record of a reign that nobody's disk knew of when the
            // store was made would bind who hears of it to an epoch that the store has yet to reach.
            for node in &mut self.nodes {
                node.hears_since = self.now;
            }
            law::replicated::check_members(self, "when the control store was made anew");
        }
    }

    /// The owner is to leave: it takes no changes, and hands over as soon as it may.
    fn drain(&mut self, node: usize, span: u64) {
        let until = self.now + span;
        let life = self.nodes[node].incarnation;
        if let Some(run) = &mut self.nodes[node].run {
            run.leaves_until = until;
            self.after(1, Event::HandOver { node, life });
        }
    }

    fn pause_node(&mut self, node: usize, span: u64) {
        if self.nodes[node].run.is_some() {
            self.nodes[node].paused_until = self.now + span;
            self.note(Mark::Pause);
        }
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

fn pause(node: usize, rng: &mut Rng) -> Strike {
    Strike::Pause(node, rng.below(5 * SECOND))
}

fn cut_from_store(rng: &mut Rng) -> ControlStore {
    match rng.below(3) {
        0 => ControlStore::CutOff,
        _ => ControlStore::Reached,
    }
}

fn any_way(rng: &mut Rng) -> Way {
    match rng.below(2) {
        0 => Way::Both,
        _ => Way::Out,
    }
}
