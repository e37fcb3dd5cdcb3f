//! When it pays that a container moves to another of its members.
//!
//! A move stops changes for a few round trips, and everybody asks anew for what was kept. So it pays when another host has
//! asked for so much more than the owner's own programs have done meanwhile that this is paid back, and its work is
//! expected to go on. Whoever was given a container, and whose programs do not change much more in it than others, got it too
//! cheaply: it goes on at twice the price, and two hosts that take turns soon have a fixed owner. Sister of
//! [`Habit`](crate::chunk::Habit), which does the same for chunks.

use perigee_types::{NodeId, Span, Tick};
use std::collections::BTreeMap;

/// What a change of another host counts. Reads that had to ask count one each, and no more than the changes do: who only
/// reads keeps what it has read.
const CHANGE: u32 = 4;
/// What the owner's own work counts against that of others, as often: it would have to ask from then on.
const OWN: u32 = 2;
/// A move costs as much as so many changes of another host.
pub const PRICE: u32 = 32;
/// A stay was worth the moves there and back when the owner's own programs changed so many times the price more than others
/// did. Until then whoever wants it away asks for twice as much.
const STAY: u32 = 4;
/// The dearest that it becomes where moves proved wrong again and again.
const PRICE_MAX: u32 = 1 << 16;
/// After so many changes a container moves where it always shall.
pub const HANDFUL: u32 = 4;
/// Who has asked for nothing for so long begins anew.
const IDLE: Span = Span::from_millis(10_000);
/// What a host without a copy has asked for is looked at when it is worth so many changes, and then each time that it has doubled.
const VISIT: u32 = 1_024;
/// The work has lasted for so long then: a burst is over before a copy would be there.
const VISIT_MIN: Span = Span::from_millis(10_000);
/// A change of a host without a copy costs as much as so many bytes of a copy that is made for it.
const BYTES_PER_CHANGE: u64 = 64 << 10;
/// A move is half as dear for each such time without one.
const CALM: Span = Span::from_millis(30_000);

/// What somebody did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It changed something.
    Change,
    /// It asked for something.
    Read,
}

/// What one other host has asked for.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    changes: u32,
    reads: u32,
    last: Tick,
}

impl Asked {
    fn count(&mut self, now: Tick, done: Done) {
        if self.is_idle(now) {
            *self = Self::default();
        }
        self.last = now;
        let count = match done {
            Done::Change => &mut self.changes,
            Done::Read => &mut self.reads,
        };
        *count = count.saturating_add(1);
    }

    /// The owner's own programs have done something.
    fn outdone(&mut self, done: Done) {
        match done {
            Done::Change => self.changes = self.changes.saturating_sub(OWN),
            Done::Read => self.reads = self.reads.saturating_sub(OWN),
        }
    }

    fn is_idle(&self, now: Tick) -> bool {
        now.since(self.last) > IDLE
    }

    /// In changes.
    fn worth(self) -> u32 {
        let changes = self.changes.saturating_mul(CHANGE);
        (changes + self.reads.min(changes)) / CHANGE
    }
}

/// What a host without a copy has asked for.
#[derive(Debug, Clone, Copy)]
struct Visits {
    asked: Asked,
    since: Tick,
    /// The next worth at which it is looked at.
    look: u32,
}

impl Visits {
    fn new(now: Tick) -> Self {
        let asked = Asked {
            last: now,
            ..Asked::default()
        };
        Self {
            asked,
            since: now,
            look: VISIT,
        }
    }
}

/// A host without a copy that works on, as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor {
    /// Who.
    pub node: NodeId,
    /// What it has asked for, in changes, and in how many times the usual price of a move.
    worth: u32,
    price: u32,
    lasted: Span,
}

impl Visitor {
    /// Whether a copy of so many bytes pays that is made on its node: its work has lasted, and what it has cost so far is as
    /// much as the copy will.
    #[must_use]
    pub fn pays(self, bytes: u64) -> bool {
        let cost = (bytes / BYTES_PER_CHANGE).saturating_add(u64::from(VISIT));
        let times = u64::from((self.price / PRICE).max(1));
        self.lasted >= VISIT_MIN && u64::from(self.worth) >= cost.saturating_mul(times)
    }
}

/// Who works in a container, as its owner sees it; and what came of the moves to this node.
#[derive(Debug, Clone)]
pub struct Work {
    asked: BTreeMap<NodeId, Asked>,
    /// The same of hosts without a copy.
    visits: BTreeMap<NodeId, Visits>,
    price: u32,
    /// When it was last given away, or when that was last thought of as long ago.
    moved: Tick,
    /// How much more this node's own programs have changed than those of other members since another one gave it; none where
    /// it came in another way.
    stay: Option<u32>,
    /// This node gave it away, and has not owned it since.
    left: bool,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            asked: BTreeMap::new(),
            visits: BTreeMap::new(),
            price: PRICE,
            moved: Tick(0),
            stay: None,
            left: false,
        }
    }
}

impl Work {
    /// The owner has done something for a session of `by`. Says who has asked for so much that the container moves to it
    /// where it always shall; [`Self::pays`] says whether that pays.
    pub fn on_done(&mut self, now: Tick, (me, by): (NodeId, NodeId), done: Done) -> Option<NodeId> {
        if let (Some(stay), Done::Change) = (&mut self.stay, done) {
            *stay = match by == me {
                true => stay.saturating_add(1),
                false => stay.saturating_sub(1),
            };
        }
        if by == me {
            let visits = self.visits.values_mut().map(|visits| &mut visits.asked);
            for asked in self.asked.values_mut().chain(visits) {
                asked.outdone(done);
            }
            return None;
        }
        let asked = self.asked.entry(by).or_default();
        asked.count(now, done);
        (asked.worth() >= HANDFUL).then_some(by)
    }

    /// The owner has done something for a session of a node that has no copy. From time to time says what that has come to:
    /// [`Visitor::pays`] says whether a copy is to be made there.
    pub fn on_visit(&mut self, now: Tick, by: NodeId, done: Done) -> Option<Visitor> {
        let price = self.price;
        let visits = self.visits.entry(by).or_insert(Visits::new(now));
        if visits.asked.is_idle(now) {
            *visits = Visits::new(now);
        }
        visits.asked.count(now, done);
        let worth = visits.asked.worth();
        if worth < visits.look {
            return None;
        }
        visits.look = visits.look.saturating_mul(2);
        Some(Visitor {
            node: by,
            worth,
            price,
            lasted: now.since(visits.since),
        })
    }

    /// Whether a member's host works in it now.
    #[must_use]
    pub fn works(&self, now: Tick, member: NodeId) -> bool {
        let asked = self.asked.get(&member);
        asked.is_some_and(|asked| !asked.is_idle(now) && asked.worth() >= HANDFUL)
    }

    /// Whether what `by` has asked for is worth a move.
    pub fn pays(&mut self, now: Tick, by: NodeId) -> bool {
        let halves = now.since(self.moved).0 / CALM.0;
        if halves > 0 {
            self.price = self
                .price
                .checked_shr(halves as u32)
                .unwrap_or(0)
                .max(PRICE);
            self.moved = now;
        }
        let asked = self.asked.get(&by).copied().unwrap_or_default();
        asked.worth() >= self.price_now()
    }

    /// Whether it came to this node for less than the moves were worth, so far.
    fn is_short_stay(&self) -> bool {
        let worth = STAY.saturating_mul(self.price);
        self.stay.is_some_and(|stay| stay < worth)
    }

    fn price_now(&self) -> u32 {
        match self.is_short_stay() {
            true => dearer(self.price),
            false => self.price,
        }
    }

    /// Nothing is to move for what `by` has asked for so far.
    pub fn forget(&mut self, by: NodeId) {
        self.asked.remove(&by);
        self.visits.remove(&by);
    }

    /// It was to be given away, and that was not possible.
    pub fn on_failed(&mut self, now: Tick) {
        self.asked.clear();
        self.moved = now;
        self.price = dearer(self.price);
    }

    /// It was given away.
    pub fn on_left(&mut self, now: Tick) {
        self.price = match self.stay {
            Some(_) if !self.is_short_stay() => (self.price / 2).max(PRICE),
            _ => self.price_now(),
        };
        self.stay = None;
        self.left = true;
        self.begin(now);
    }

    /// Whether it was given away, and has not come back.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.left
    }

    /// Another member has given it to this node.
    pub fn on_given(&mut self, now: Tick) {
        self.stay = Some(0);
        self.left = false;
        self.begin(now);
    }

    /// It is this node's, for want of another owner.
    pub fn on_taken(&mut self, now: Tick) {
        self.stay = None;
        self.left = false;
        self.begin(now);
    }

    /// It is this node's as before, though it was to be given away.
    pub fn on_kept(&mut self, now: Tick) {
        if std::mem::take(&mut self.left) {
            self.on_failed(now);
        }
    }

    fn begin(&mut self, now: Tick) {
        self.asked.clear();
        self.visits.clear();
        self.moved = now;
    }
}

fn dearer(price: u32) -> u32 {
    (price * 2).min(PRICE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);

    /// Each node's own view of one container, and who owns it.
    struct Container {
        works: Vec<Work>,
        owner: usize,
        moves: u32,
        now: Tick,
    }

    impl Container {
        fn of(nodes: usize) -> Self {
            Self {
                works: vec![Work::default(); nodes],
                owner: 0,
                moves: 0,
                now: Tick(1_000_000),
            }
        }

        /// A host does something, a millisecond after what was done before.
        fn act(&mut self, host: usize, done: Done) {
            self.now = self.now + Span::from_millis(1);
            let id = |host: usize| NodeId(host as u32 + 1);
            let (now, owner) = (self.now, self.owner);
            let work = &mut self.works[owner];
            let heir = work.on_done(now, (id(owner), id(host)), done);
            if heir.is_some_and(|heir| work.pays(now, heir)) {
                work.on_left(now);
                self.owner = host;
                self.moves += 1;
                self.works[host].on_given(now);
            }
        }
    }

    /// Moves of a container in which two hosts work by turns.
    fn moves(turn: u32, turns: u32) -> u32 {
        let mut container = Container::of(2);
        for act in 0..turn * turns {
            container.act((act / turn % 2) as usize, Done::Change);
        }
        container.moves
    }

    #[test]
    fn a_container_follows_long_turns_and_not_short_ones() {
        assert_eq!(moves(1, 20_000), 0);
        assert_eq!(moves(10, 2_000), 0);
        for turn in [40, 70, 100, 140] {
            assert!(moves(turn, 1_000) <= 10, "{turn}: {}", moves(turn, 1_000));
        }
        assert_eq!(moves(5_000, 10), 9);
    }

    #[test]
    fn it_moves_to_who_works_alone_after_some_changes() {
        let mut container = Container::of(3);
        for _ in 0..PRICE - 1 {
            container.act(2, Done::Change);
        }
        assert_eq!(container.moves, 0);
        container.act(2, Done::Change);
        assert_eq!((container.moves, container.owner), (1, 2));
    }

    #[test]
    fn a_little_work_of_others_does_not_hold_it() {
        let mut container = Container::of(3);
        for act in 0..200 {
            let host = match act % 10 {
                0 => 0,
                1 => 1,
                _ => 2,
            };
            container.act(host, Done::Change);
        }
        assert_eq!((container.moves, container.owner), (1, 2));
    }

    #[test]
    fn who_only_reads_moves_nothing() {
        let mut container = Container::of(2);
        (0..10_000).for_each(|_| container.act(1, Done::Read));
        assert_eq!(container.moves, 0);
        // With changes, what had to be asked for counts too.
        (0..PRICE / 2).for_each(|_| container.act(1, Done::Change));
        assert_eq!(container.moves, 1);
    }

    #[test]
    fn seldom_work_moves_nothing() {
        let mut work = Work::default();
        for act in 0..1_000 {
            let now = Tick(act * 2 * IDLE.0);
            assert_eq!(work.on_done(now, (ME, NodeId(2)), Done::Change), None);
        }
    }

    #[test]
    fn wrong_moves_make_the_next_dearer_and_quiet_makes_it_cheaper() {
        let mut work = Work::default();
        let now = Tick(1_000_000);
        for _ in 0..4 {
            work.on_given(now);
            work.on_left(now);
        }
        assert_eq!(work.price, 16 * PRICE);
        work.on_given(now);
        for _ in 0..16 * STAY * PRICE {
            work.on_done(now, (ME, ME), Done::Change);
        }
        work.on_left(now);
        assert_eq!(work.price, 8 * PRICE, "a long stay was right");
        work.on_taken(now);
        work.on_left(now);
        work.on_kept(now);
        assert_eq!(work.price, 16 * PRICE, "it could not be given away");
        work.on_kept(now);
        assert_eq!(work.price, 16 * PRICE, "it was not given away since");
        work.price = 8 * PRICE;
        work.on_failed(now);
        assert_eq!(work.price, 16 * PRICE);
        assert!(!work.pays(now + Span(2 * CALM.0), NodeId(2)));
        assert_eq!(work.price, 4 * PRICE);
        let later = Tick(now.0 + 1_000 * CALM.0);
        assert!(!work.pays(later, NodeId(2)));
        assert_eq!(work.price, PRICE);
    }

    /// When a host without a copy, beside what else is done in between, is worth one of so many bytes; in changes.
    fn worth_a_copy(
        every_ms: u64,
        bytes: u64,
        mut beside: impl FnMut(&mut Work, Tick),
    ) -> Option<u64> {
        let mut work = Work::default();
        (0..200_000).find(|act| {
            let now = Tick(1_000_000) + Span::from_millis(act * every_ms);
            beside(&mut work, now);
            let visitor = work.on_visit(now, NodeId(9), Done::Change);
            visitor.is_some_and(|visitor| visitor.pays(bytes))
        })
    }

    #[test]
    fn who_works_on_without_a_copy_gets_one_when_it_has_cost_as_much() {
        let alone = |every_ms, bytes| worth_a_copy(every_ms, bytes, |_, _| ());
        assert_eq!(alone(10, 0), Some(u64::from(VISIT) - 1));
        // It is looked at when it has doubled.
        let large = alone(10, 1 << 30).unwrap_or(0);
        assert!((16_384..=32_768).contains(&(large + 1)), "{large}");
        // Briskly: not before it has lasted.
        let brisk = alone(1, 0).unwrap_or(0);
        assert!((10_000..=20_000).contains(&brisk), "{brisk}");
        // Pauses begin it anew.
        assert_eq!(alone(2 * IDLE.0 / 1_000, 0), None);
    }

    #[test]
    fn beside_the_owners_own_work_no_copy_is_made() {
        let own = |work: &mut Work, now| _ = work.on_done(now, (ME, ME), Done::Change);
        assert_eq!(worth_a_copy(10, 0, own), None);
        // Where moves were wrong lately, one costs as many times more.
        let dear = |work: &mut Work, now| {
            if now == Tick(1_000_000) {
                work.on_failed(now);
                work.on_failed(now);
            }
        };
        assert_eq!(worth_a_copy(10, 0, dear), Some(4 * u64::from(VISIT) - 1));
    }

    #[test]
    fn where_it_always_moves_a_handful_is_enough() {
        let mut work = Work::default();
        let mut acts = (0..).map(|at| work.on_done(Tick(at), (ME, NodeId(2)), Done::Change));
        let first = acts.position(|heir| heir == Some(NodeId(2)));
        assert_eq!(first, Some(HANDFUL as usize - 1));
    }
}
