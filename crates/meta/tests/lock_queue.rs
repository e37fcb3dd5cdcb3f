//! Those who wait for locks, beside a model with one cell for each byte.

mod fixture;

use fixture::{Fs, ROOT, in_mode, lock, session};
use perigee_meta::queue::{
    ABSENT, ASK_AGAIN, Admission, Ask, Asked, HOLD, LockQueue, Ticket, Turn,
};
use perigee_meta::{
    FileLock, LockKind, LockOwner, Mode, Op, Patience, Reply, Token, WaitId, held_locks,
};
use perigee_types::{InodeId, SessionId, Span, Tick};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const OWNERS: u64 = 5;
const FILES: usize = 2;
const BYTES: u64 = 6;

#[derive(Debug, Clone)]
struct Wait {
    ask: Ask,
    arrived: Tick,
    asked: Tick,
}

/// Owners of locks at a queue: what the driver does, and what each of them knows.
struct World {
    fs: Fs,
    files: Vec<InodeId>,
    queue: LockQueue,
    now: Tick,
    next: u64,
    /// By arrival.
    waits: Vec<Wait>,
    cells: BTreeMap<(InodeId, LockKind, u64), BTreeMap<u64, Mode>>,
    /// The last grant.
    granted: Token,
    /// Words to waiters are lost.
    deaf: bool,
}

fn session_of(owner: u64) -> SessionId {
    session(1 + owner % 2)
}

fn bytes(lock: &FileLock) -> std::ops::Range<u64> {
    match lock.kind {
        LockKind::Posix | LockKind::Service | LockKind::Cover => {
            lock.range.start..lock.range.end.min(BYTES)
        }
        LockKind::Flock => 0..BYTES,
    }
}

/// Table 1 of the AwareFS paper once more, as text.
fn compatible(one: Mode, two: Mode) -> bool {
    let place = |mode| Mode::ALL.iter().position(|m| *m == mode).expect("a mode");
    let rows = ["11110", "11000", "10100", "10000", "00000"];
    rows[place(one)].as_bytes()[place(two)] == b'1'
}

fn exclude(one: &FileLock, two: &FileLock) -> bool {
    let (first, second) = (bytes(one), bytes(two));
    one.kind == two.kind
        && !compatible(one.mode.expect("asked for"), two.mode.expect("asked for"))
        && first.start < second.end
        && second.start < first.end
}

impl World {
    fn new() -> Self {
        let mut fs = Fs::new();
        let files = (0..FILES).map(|n| fs.file(ROOT, &n.to_string())).collect();
        Self {
            fs,
            files,
            queue: LockQueue::default(),
            now: Tick(1),
            next: 1,
            waits: Vec::new(),
            cells: BTreeMap::new(),
            granted: Token::default(),
            deaf: false,
        }
    }

    fn waiting(&self, owner: u64) -> Option<usize> {
        let of_owner = |wait: &Wait| wait.ask.lock.owner == owner;
        self.waits.iter().position(of_owner)
    }

    fn holders(&self, inode: InodeId, asked: &FileLock) -> BTreeSet<u64> {
        let cells = bytes(asked).filter_map(|byte| self.cells.get(&(inode, asked.kind, byte)));
        cells
            .flatten()
            .filter(|(owner, _)| **owner != asked.owner)
            .filter(|(_, held)| asked.mode.is_some_and(|mode| !compatible(mode, **held)))
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// Whether a wait of `asked` would be for itself.
    fn cycle(&self, inode: InodeId, asked: &FileLock) -> bool {
        let mut reached = self.holders(inode, asked);
        loop {
            let waits = self.waits.iter().filter(|wait| {
                wait.ask.lock.kind == asked.kind && reached.contains(&wait.ask.lock.owner)
            });
            let more: BTreeSet<u64> = waits
                .flat_map(|wait| self.holders(wait.ask.inode, &wait.ask.lock))
                .collect();
            let before = reached.len();
            reached.extend(more);
            if reached.len() == before {
                return asked.kind != LockKind::Flock && reached.contains(&asked.owner);
            }
        }
    }

    /// Whether one who asks has some of the bytes already.
    fn converts(&self, ask: &Ask) -> bool {
        let mut cells =
            bytes(&ask.lock).filter_map(|byte| self.cells.get(&(ask.inode, ask.lock.kind, byte)));
        cells.any(|cell| cell.contains_key(&ask.lock.owner))
    }

    /// Whether somebody came before the one at `place` whom he must let go first.
    fn is_behind(&self, place: usize) -> bool {
        let me = self.waits[place].ask;
        self.waits[..place].iter().map(|wait| wait.ask).any(|ask| {
            ask.inode == me.inode
                && exclude(&ask.lock, &me.lock)
                && (self.converts(&ask) || !self.converts(&me))
                && !self.holders(ask.inode, &ask.lock).contains(&me.lock.owner)
        })
    }

    /// Performs a request on the table, and on the cells.
    fn set(&mut self, inode: InodeId, lock: FileLock) -> Reply {
        let op = Op::SetLock {
            inode,
            session: session_of(lock.owner),
            lock,
            patience: Patience::Refuse,
        };
        let reply = self.fs.run(&op).expect("an answer");
        let taken = !matches!(reply, Reply::Blocked(_));
        assert_eq!(
            taken,
            lock.mode.is_none() || self.holders(inode, &lock).is_empty()
        );
        if let Reply::Granted(token) = reply {
            assert!(token > self.granted, "grants are numbered upwards");
            self.granted = token;
        }
        for byte in bytes(&lock) {
            let cell = self.cells.entry((inode, lock.kind, byte)).or_default();
            match lock.mode {
                Some(mode) if taken => _ = cell.insert(lock.owner, mode),
                None => _ = cell.remove(&lock.owner),
                // A flock that is converted is given up while it waits.
                Some(_) if lock.kind == LockKind::Flock => _ = cell.remove(&lock.owner),
                Some(_) => {}
            }
        }
        reply
    }

    /// What the driver does after anything that may let somebody go on.
    fn changed(&mut self, inode: InodeId) {
        let held = held_locks(&mut self.fs.view, inode).expect("a table");
        let told = self.queue.changed(self.now, inode, &held);
        if self.deaf {
            return;
        }
        for ticket in told {
            let of_ticket = |wait: &Wait| wait.ask.ticket == ticket;
            // One who was told and has its lock by now has nothing to ask.
            if let Some(place) = self.waits.iter().position(of_ticket) {
                self.ask(place);
            }
        }
    }

    /// The one at `place` asks, and the answer is what it must be.
    fn ask(&mut self, place: usize) -> Turn {
        self.waits[place].asked = self.now;
        let ask = self.waits[place].ask;
        let held = held_locks(&mut self.fs.view, ask.inode).expect("a table");
        let turn = self.queue.ask(self.now, &ask, &held);
        let held_by_others = !self.holders(ask.inode, &ask.lock).is_empty();
        let cycle = self.cycle(ask.inode, &ask.lock);
        let behind = self.is_behind(place);
        match turn {
            Turn::Take => {
                let waited = self.now.since(self.waits[place].arrived);
                assert!(!held_by_others && (!behind || waited >= HOLD), "{ask:?}");
                self.waits.remove(place);
                let reply = self.set(ask.inode, ask.lock);
                assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
            }
            Turn::Blocked => {
                assert!(held_by_others && !cycle, "{ask:?}");
                self.set(ask.inode, ask.lock);
            }
            Turn::Behind(_) => assert!(!held_by_others && behind),
            Turn::Deadlock => {
                assert!(held_by_others && cycle, "{ask:?}");
                self.waits.remove(place);
            }
            Turn::Full => panic!("five owners fill no queue"),
        }
        self.changed(ask.inode);
        turn
    }

    fn begin(&mut self, owner: u64, file: usize, lock: FileLock) -> Turn {
        let ticket = Ticket {
            session: session_of(owner),
            wait: WaitId(self.next),
        };
        self.next += 1;
        let ask = Ask {
            inode: self.files[file],
            ticket,
            lock,
        };
        self.waits.push(Wait {
            ask,
            arrived: self.now,
            asked: self.now,
        });
        self.ask(self.waits.len() - 1)
    }

    fn unlock_all(&mut self, owner: u64) {
        for inode in self.files.clone() {
            for kind in [LockKind::Posix, LockKind::Flock, LockKind::Service] {
                self.set(inode, lock(kind, owner, 0, u64::MAX, None));
            }
            self.changed(inode);
        }
    }

    fn interrupt(&mut self, owner: u64) {
        if let Some(place) = self.waiting(owner) {
            let ask = self.waits.remove(place).ask;
            self.queue.withdraw(ask.inode, ask.ticket);
            self.changed(ask.inode);
        }
    }

    /// Time passes; who has not asked for a while asks.
    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        let due = |wait: &Wait, now: Tick| now.since(wait.asked) >= ASK_AGAIN;
        for ticket in self
            .waits
            .iter()
            .map(|wait| wait.ask.ticket)
            .collect::<Vec<_>>()
        {
            let of_ticket = |wait: &Wait| wait.ask.ticket == ticket && due(wait, self.now);
            if let Some(place) = self.waits.iter().position(of_ticket) {
                self.ask(place);
            }
        }
    }

    /// No two owners have locks that exclude each other.
    fn exclusion(&self) {
        for cell in self.cells.values() {
            let modes: Vec<Mode> = cell.values().copied().collect();
            for (place, one) in modes.iter().enumerate() {
                let others = modes[place + 1..].iter();
                assert!(others.into_iter().all(|two| compatible(*one, *two)));
            }
        }
    }

    fn check(&self) {
        self.exclusion();
        assert_eq!(
            self.queue.waiters(),
            self.waits.len(),
            "no waiter is left over"
        );
        for place in 0..self.waits.len() {
            let ask = self.waits[place].ask;
            let free = self.holders(ask.inode, &ask.lock).is_empty();
            assert!(
                self.deaf || !free || self.is_behind(place),
                "nobody hinders {ask:?}"
            );
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Lock(u64, usize, FileLock),
    Unlock(u64),
    Interrupt(u64),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let locks = (0..OWNERS, 0..FILES, 0..BYTES, 1..=BYTES, 0..8_usize).prop_map(
        |(owner, file, start, len, what)| {
            let end = (start + len).min(BYTES);
            let lock = match what {
                0 | 1 => lock(LockKind::Posix, owner, start, end, Some(what == 1)),
                2 => lock(LockKind::Flock, owner, start, end, Some(owner % 2 == 0)),
                other => {
                    let mode = Mode::ALL[other - 3];
                    in_mode(LockKind::Service, owner, start, end, Some(mode))
                }
            };
            Step::Lock(owner, file, lock)
        },
    );
    let step = prop_oneof![
        6 => locks,
        2 => (0..OWNERS).prop_map(Step::Unlock),
        1 => (0..OWNERS).prop_map(Step::Interrupt),
        1 => (1..1_500_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every answer agrees with the model, nobody waits for nothing, and once those who can go on
    /// give back what they have, everybody gets his lock: words lost or not.
    #[test]
    fn waiters_get_their_locks_in_turn(steps in steps(), deaf in any::<bool>()) {
        let mut world = World::new();
        world.deaf = deaf;
        for step in steps {
            match step {
                // One who waits does nothing else.
                Step::Lock(owner, ..) | Step::Unlock(owner) if world.waiting(owner).is_some() => {}
                Step::Lock(owner, file, lock) => _ = world.begin(owner, file, lock),
                Step::Unlock(owner) => world.unlock_all(owner),
                Step::Interrupt(owner) => world.interrupt(owner),
                Step::Pass(ms) => world.pass(Span::from_millis(ms)),
            }
            world.check();
        }
        // Cycles with a flock in them, or over several kinds, are nobody's to find: those waits are interrupted.
        for _ in 0..4 * OWNERS {
            for owner in 0..OWNERS {
                if world.waiting(owner).is_none() {
                    world.unlock_all(owner);
                }
            }
            world.pass(ASK_AGAIN);
            world.check();
            let all_wait = (0..OWNERS)
                .filter(|owner| world.cells.values().any(|cell| cell.contains_key(owner)))
                .all(|owner| world.waiting(owner).is_some());
            let kinds: BTreeSet<LockKind> = world.waits.iter().map(|wait| wait.ask.lock.kind).collect();
            let found = kinds.len() == 1 && !kinds.contains(&LockKind::Flock);
            if let (true, false, Some(wait)) = (all_wait, found, world.waits.first().cloned()) {
                world.interrupt(wait.ask.lock.owner);
            }
        }
        prop_assert!(world.waits.is_empty(), "{:?}", world.waits);
    }
}

fn posix(owner: u64, exclusive: bool) -> FileLock {
    lock(LockKind::Posix, owner, 0, u64::MAX, Some(exclusive))
}

#[test]
fn a_cycle_of_three_is_refused_to_the_last() {
    let mut world = World::new();
    world.files.push(world.fs.file(ROOT, "third"));
    for (owner, file) in [(0, 0), (1, 1), (2, 2)] {
        assert_eq!(world.begin(owner, file, posix(owner, true)), Turn::Take);
    }
    assert_eq!(world.begin(0, 1, posix(0, true)), Turn::Blocked);
    assert_eq!(world.begin(1, 2, posix(1, true)), Turn::Blocked);
    assert_eq!(world.begin(2, 0, posix(2, true)), Turn::Deadlock);
    world.unlock_all(2);
    assert_eq!(world.waiting(1), None, "the one before it goes on");
    world.unlock_all(1);
    assert_eq!(world.waiting(0), None);
}

#[test]
fn who_is_part_of_a_circle_elsewhere_is_refused_once_and_by_who_is_in_it() {
    let held_by_two = || {
        let mut world = World::new();
        for owner in [0, 1] {
            assert_eq!(world.begin(owner, 0, posix(owner, false)), Turn::Take);
        }
        assert_eq!(world.begin(2, 0, posix(2, true)), Turn::Blocked);
        let mut wait = world.queue.waits().next().expect("a wait");
        assert_eq!(wait.holders.len(), 2);
        wait.holders.retain(|holder| holder.owner == 0);
        assert!(world.queue.end_cycle(&wait));
        let ask = world.waits[0].ask;
        let asks = move |world: &mut World| {
            let held = held_locks(&mut world.fs.view, ask.inode).expect("a table");
            world.queue.ask(world.now, &ask, &held)
        };
        (world, asks, wait)
    };
    let (mut world, asks, wait) = held_by_two();
    assert_eq!(asks(&mut world), Turn::Deadlock);
    assert!(!world.queue.end_cycle(&wait), "it waits no more");
    let (mut world, asks, _) = held_by_two();
    world.unlock_all(0);
    assert_eq!(asks(&mut world), Turn::Blocked, "the other one is in none");
    world.begin(0, 0, posix(0, false));
    assert_eq!(asks(&mut world), Turn::Blocked, "that circle was ended");
}

fn service(owner: u64, mode: Mode) -> FileLock {
    in_mode(LockKind::Service, owner, 0, u64::MAX, Some(mode))
}

#[test]
fn of_two_who_convert_up_against_each_other_the_second_is_refused() {
    for (held, wanted) in [
        (
            service(0, Mode::ProtectedRead),
            service(0, Mode::ProtectedWrite),
        ),
        (posix(0, false), posix(0, true)),
    ] {
        let by = |owner, lock| FileLock { owner, ..lock };
        let mut world = World::new();
        for owner in [0, 1] {
            assert_eq!(world.begin(owner, 0, by(owner, held)), Turn::Take);
        }
        assert_eq!(world.begin(0, 0, by(0, wanted)), Turn::Blocked);
        assert_eq!(world.begin(1, 0, by(1, wanted)), Turn::Deadlock);
        world.unlock_all(1);
        assert_eq!(world.waiting(0), None, "the first has what it wanted");
    }
}

#[test]
fn who_converts_goes_before_who_has_nothing() {
    let mut world = World::new();
    world.begin(0, 0, service(0, Mode::ConcurrentRead));
    world.begin(1, 0, service(1, Mode::ProtectedRead));
    let writer = service(2, Mode::ProtectedWrite);
    assert_eq!(world.begin(2, 0, writer), Turn::Blocked);
    let newcomer = service(3, Mode::ProtectedRead);
    assert!(matches!(world.begin(3, 0, newcomer), Turn::Behind(_)));
    let conversion = service(0, Mode::ProtectedRead);
    assert_eq!(world.begin(0, 0, conversion), Turn::Take);
    // Back to what hinders nobody: then the reader goes, and the writer has its lock at once.
    let down = service(0, Mode::ConcurrentRead);
    assert_eq!(world.begin(0, 0, down), Turn::Take);
    world.unlock_all(1);
    assert_eq!(world.waiting(2), None);
    assert!(world.waiting(3).is_some());
}

#[test]
fn what_stands_in_the_way_of_a_service_lock_is_called_back() {
    let mut world = World::new();
    world.begin(0, 0, service(0, Mode::ProtectedRead));
    world.begin(1, 0, service(1, Mode::ConcurrentRead));
    let inode = world.files[0];
    let held = held_locks(&mut world.fs.view, inode).expect("a table");
    let mut admit = |lock, patience, asked| {
        let operation = Op::SetLock {
            inode,
            session: session_of(2),
            lock,
            patience,
        };
        let read = |_| Ok::<_, ()>(held.clone());
        let admitted = world
            .queue
            .admit(world.now, session_of(2), (&operation, &asked), read);
        admitted.expect("a table")
    };
    let waits = Patience::Wait(WaitId(77));
    let reader = LockOwner {
        session: session_of(0),
        owner: 0,
    };
    let writer = service(2, Mode::ConcurrentWrite);
    assert_eq!(
        admit(writer, waits, Asked::First),
        Admission::RunAndCall(vec![reader])
    );
    let reads = service(2, Mode::ProtectedRead);
    assert_eq!(admit(reads, waits, Asked::First), Admission::Run);
    // Who does not wait is answered when they have been asked.
    let refuse = Patience::Refuse;
    assert_eq!(
        admit(writer, refuse, Asked::First),
        Admission::CallFirst(vec![reader])
    );
    let silent = Asked::Called(BTreeSet::new());
    assert_eq!(
        admit(writer, refuse, silent),
        Admission::CallFirst(vec![reader])
    );
    let used = Asked::Called(BTreeSet::from([reader]));
    assert_eq!(admit(writer, refuse, used), Admission::Run);
    assert_eq!(admit(reads, refuse, Asked::First), Admission::Run);
}

#[test]
fn readers_that_overlap_for_ever_do_not_starve_a_writer() {
    let mut world = World::new();
    world.begin(0, 0, posix(0, false));
    assert_eq!(world.begin(4, 0, posix(4, true)), Turn::Blocked);
    // Each keeps its lock for five seconds and comes back at once: some pass when the hold is
    // over, until the hold is longer than that.
    let mut since = BTreeMap::from([(0, world.now)]);
    for _ in 0..300 {
        for owner in 0..3 {
            let keeps = since.get(&owner).copied();
            if keeps.is_some_and(|since| world.now.since(since) >= Span::from_millis(5_000)) {
                since.remove(&owner);
                world.unlock_all(owner);
            }
            if world.waiting(owner).is_none() && !since.contains_key(&owner) {
                world.begin(owner, 0, posix(owner, false));
            }
        }
        world.pass(Span::from_millis(1_100));
        for owner in 0..3 {
            if world.waiting(owner).is_none() {
                since.entry(owner).or_insert(world.now);
            }
        }
        if world.waiting(4).is_none() {
            return;
        }
    }
    panic!("the writer waits still");
}

#[test]
fn one_who_is_waited_for_is_not_held_back_by_the_waiter() {
    let mut world = World::new();
    let first = lock(LockKind::Posix, 0, 0, 2, Some(false));
    let more = lock(LockKind::Posix, 0, 0, 4, Some(false));
    assert_eq!(world.begin(0, 0, first), Turn::Take);
    assert_eq!(world.begin(1, 0, posix(1, true)), Turn::Blocked);
    assert_eq!(world.begin(0, 0, more), Turn::Take);
    let other = lock(LockKind::Posix, 2, 5, 6, Some(false));
    assert!(matches!(world.begin(2, 0, other), Turn::Behind(_)));
    world.pass(HOLD);
    assert_eq!(world.waiting(2), None, "not for longer than the hold");
}

#[test]
fn who_does_not_ask_loses_the_place_and_a_session_takes_its_waits_along() {
    let mut world = World::new();
    world.begin(0, 0, posix(0, true));
    world.begin(1, 0, posix(1, true));
    world.begin(2, 0, posix(2, true));
    assert_eq!(world.queue.waiters(), 2);
    world.now = world.now + ABSENT;
    assert_eq!(world.ask(1), Turn::Blocked);
    assert_eq!(world.queue.waiters(), 1, "the first never asked again");
    world.waits.remove(0);
    let gone = world.queue.end_session(session_of(2));
    assert_eq!((gone, world.queue.waiters()), (vec![world.files[0]], 0));
}
