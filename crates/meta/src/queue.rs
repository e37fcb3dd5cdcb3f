//! Who waits for a file lock, whose turn it is, and who would wait for ever.
//!
//! A container's owner keeps one [`LockQueue`] in memory beside the table of held locks, which is
//! state. A waiter asks, is told when its turn has come, and asks again; it also asks again after
//! [`ASK_AGAIN`], so a lost word or another owner costs it that long and no more. A waiter that
//! does not ask for [`ABSENT`] has lost its place: nothing here outlives a dead host.
//!
//! Order: a request that is free of held locks still goes behind whoever came before it and cannot
//! have its lock beside it, so readers do not starve a writer. Two exceptions keep that order from
//! making a deadlock where the locks alone have none. Nobody goes behind a waiter that waits for
//! him. And nobody goes behind a waiter for longer than that one's hold, [`HOLD`] at first, doubled
//! whenever somebody passed: a cycle through other containers is broken, and a writer still gets
//! its turn once the hold is longer than the readers keep their locks. Who converts a lock that it
//! has goes before all who have none, and behind earlier ones that convert theirs.
//!
//! Deadlock: a wait for an `fcntl` lock, or one of the service, that closes a cycle of owners, each
//! waiting in this container for a lock that the next one holds, is refused: so the second of two
//! that convert up against each other. `flock` has no such promise; its lock is given up first. Cycles over several
//! containers are found by who puts their [waits](LockQueue::waits) together ([`crate::lock::cycle`]), and
//! [ended](LockQueue::end_cycle) here.
//!
//! Beside those who wait it numbers the grants, and knows which sessions must change what no more
//! ([`Fences`]): a [`LockQueue`] is all that an owner's memory has of locks.

use crate::lock::{
    self, Fences, FileLock, LockKind, LockOwner, Patience, Token, WaitId,
    cycle::Wait,
    planted,
    table::{self, InTheWay},
};
use crate::op::{Op, Reply};
use crate::record::HeldLocks;
use perigee_types::{Epoch, Errno, InodeId, SessionId, Span, Tick};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a waiter waits for word before it asks again.
pub const ASK_AGAIN: Span = Span::from_millis(1_000);

/// A waiter that has not asked for so long is gone.
pub const ABSENT: Span = Span::from_millis(3_000);

/// For how long a waiter that nobody has passed yet holds back those who came later.
pub const HOLD: Span = Span::from_millis(1_000);

/// Sessions that are remembered to be over.
const OVER_MAX: usize = 256;

/// The most waiters of one container.
pub const WAITERS_MAX: usize = 4096;

/// Names a wait in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The mount that waits.
    pub session: SessionId,
    /// Its own name of the wait.
    pub wait: WaitId,
}

/// A request for a lock by somebody who is ready to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The file.
    pub inode: InodeId,
    /// Names the wait; the same each time that it asks.
    pub ticket: Ticket,
    /// What is wanted.
    pub lock: FileLock,
}

/// What somebody who asks is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing stands in the way: the lock is to be taken now. The place is given up.
    Take,
    /// A held lock stands in the way; the place is kept.
    Blocked,
    /// No held lock stands in the way, but this waiter came first; the place is kept.
    Behind(FileLock),
    /// The wait would never end. There is no place for it.
    Deadlock,
    /// There are too many waiters.
    Full,
}

/// What becomes of an operation on locks before it may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It may run now.
    Run,
    /// It may run now, and will find that others have what it wants: these are called back, who may only keep it.
    RunAndCall(Vec<LockOwner>),
    /// The same, of a request that does not wait, or only looks: it is [`Asked::Called`] when they have been called, who may only keep it. It
    /// runs when nobody has it any more, or one of them has said that a program uses it.
    CallFirst(Vec<LockOwner>),
    /// This is its answer; the locks on the inode stay as they are.
    Answered(Result<Reply, Errno>),
    /// The same; others may go on by it.
    Gone(Errno),
}

/// What was done before an operation asks for admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    First,
    /// Those who have what it wants were called back, and these have answered that a program uses it. Of the others
    /// nobody knows: they did not answer, or what they gave back has not come, or their session has ended.
    Called(BTreeSet<LockOwner>),
}

impl Asked {
    /// Whether somebody is known to use what he has.
    fn is_used(&self, in_the_way: &[LockOwner]) -> bool {
        match self {
            Self::First => false,
            Self::Called(users) => in_the_way.iter().any(|owner| users.contains(owner)),
        }
    }
}

/// Whether who waits has something of what he wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nothing.
    New,
    /// A lock on some of the bytes, in whatever mode.
    Converts,
}

#[derive(Debug, Clone)]
struct Waiter {
    ticket: Ticket,
    lock: FileLock,
    standing: Standing,
    /// When it last asked.
    asked: Tick,
    /// Owners of held locks that stand in its way.
    holders: Vec<LockOwner>,
    /// Since when only earlier waiters stand in its way.
    behind_since: Option<Tick>,
    /// How many went before it that came later.
    passed: u32,
    /// It has been told that its turn has come.
    told: bool,
    /// Those who hold what it wants, and wait, over others in other containers, for it. Its next word is a refusal, if one of
    /// them stands in its way still.
    circle: BTreeSet<LockOwner>,
}

impl Waiter {
    fn owner(&self) -> LockOwner {
        LockOwner {
            session: self.ticket.session,
            owner: self.lock.owner,
        }
    }

    /// For how long those who came later are held back.
    fn hold(&self) -> Span {
        Span(
            HOLD.0
                .saturating_mul(1_u64.checked_shl(self.passed).unwrap_or(u64::MAX)),
        )
    }

    /// Whether `later`, who came later, goes behind this one.
    fn goes_before(&self, later: &Self) -> bool {
        let owner = later.owner();
        let passes = later.standing == Standing::Converts && self.standing == Standing::New;
        !passes
            && self.owner() != owner
            && lock::exclude(&self.lock, &later.lock)
            && !self.holders.contains(&owner)
    }

    /// Whether it waits for somebody who waited for it a moment ago. That is believed once: the others may go on.
    fn was_in_circle(&mut self) -> bool {
        let circle = std::mem::take(&mut self.circle);
        self.holders.iter().any(|owner| circle.contains(owner))
    }

    /// Notes which held locks stand in the way now.
    fn look(&mut self, held: &HeldLocks) {
        self.standing = match held.converts(self.ticket.session, &self.lock) {
            true => Standing::Converts,
            false => Standing::New,
        };
        self.holders = table::obstructors(held, self.ticket.session, &self.lock);
        if !self.holders.is_empty() {
            self.behind_since = None;
            self.told = false;
        }
    }
}

/// Those who wait for locks in one container, by inode, first come first.
#[derive(Debug, Default)]
pub struct LockQueue {
    lines: BTreeMap<InodeId, Vec<Waiter>>,
    fences: Fences,
    /// Sessions that are no more: what of theirs is still on its way comes to nothing. The last ones.
    over: VecDeque<SessionId>,
    /// Grants of this process. It has another epoch than any before it, so they rise for ever.
    grants: u64,
    #[cfg(feature = "plant")]
    plant: Option<lock::plant::Plant>,
}

impl LockQueue {
    /// Switches a deliberate fault on.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<lock::plant::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Whether an operation on locks may run now, in the order of those who wait. `held` reads the locks on an inode.
    ///
    /// Errors: those of `held`.
    pub fn admit<E>(
        &mut self,
        now: Tick,
        session: SessionId,
        (operation, asked): (&Op, &Asked),
        held: impl FnOnce(InodeId) -> Result<HeldLocks, E>,
    ) -> Result<Admission, E> {
        let ask = match operation {
            Op::SetLock {
                inode,
                lock,
                patience: Patience::Wait(wait),
                ..
            } if lock.kind != LockKind::Cover => Ask {
                inode: *inode,
                ticket: Ticket {
                    session,
                    wait: *wait,
                },
                lock: *lock,
            },
            Op::WithdrawLock { inode, wait, .. } => {
                let wait = *wait;
                self.withdraw(*inode, Ticket { session, wait });
                return Ok(Admission::Run);
            }
            Op::SetLock { .. } if self.over.contains(&session) => {
                return Ok(Admission::Answered(Err(Errno::EIO)));
            }
            Op::SetLock { inode, lock, .. } if lock.kind == LockKind::Cover => {
                return Ok(self.admit_cover(*inode, lock));
            }
            Op::SetLock {
                inode,
                lock,
                patience: Patience::Refuse,
                ..
            } if lock.mode.is_some() => {
                return Ok(self.admit_impatient(asked, &held(*inode)?, session, lock));
            }
            Op::GetLock { inode, lock, .. } => {
                return Ok(self.admit_impatient(asked, &held(*inode)?, session, lock));
            }
            _ => return Ok(Admission::Run),
        };
        if self.over.contains(&session) {
            return Ok(Admission::Answered(Err(Errno::EIO)));
        }
        let held = held(ask.inode)?;
        Ok(match self.ask(now, &ask, &held) {
            Turn::Blocked => match table::keepers(&held, session, &ask.lock) {
                keepers if keepers.is_empty() => Admission::Run,
                keepers => Admission::RunAndCall(keepers),
            },
            Turn::Take => Admission::Run,
            Turn::Behind(lock) => Admission::Answered(Ok(Reply::Blocked(lock))),
            Turn::Deadlock => Admission::Gone(Errno::EDEADLK),
            Turn::Full => Admission::Answered(Err(Errno::ENOLCK)),
        })
    }

    /// A request that does not wait: who only keeps what is in its way is called for that first.
    fn admit_impatient(
        &self,
        asked: &Asked,
        held: &HeldLocks,
        session: SessionId,
        lock: &FileLock,
    ) -> Admission {
        if *asked != Asked::First && planted!(self, RefusedForSilence) {
            return Admission::Run;
        }
        match table::in_the_way(held, session, lock) {
            InTheWay::MayBeKept(keepers)
                if !asked.is_used(&keepers) && !planted!(self, RefusedUncalled) =>
            {
                Admission::CallFirst(keepers)
            }
            InTheWay::Nothing | InTheWay::Used | InTheWay::MayBeKept(_) => Admission::Run,
        }
    }

    /// A session asks to decide by itself: not while anybody waits, whose turn only the owner knows.
    fn admit_cover(&self, inode: InodeId, lock: &FileLock) -> Admission {
        let line = self.lines.get(&inode).into_iter().flatten();
        let mut waiting = line.filter(|waiter| waiter.lock.kind == LockKind::Posix);
        match waiting.next() {
            Some(waiter) if lock.mode.is_some() => {
                Admission::Answered(Ok(Reply::Blocked(waiter.lock)))
            }
            _ => Admission::Run,
        }
    }

    /// An operation took effect: the inodes whose locks, or waiters, are others than before. Each is to be
    /// [looked at](Self::changed).
    pub fn ran(&mut self, operation: &Op, reply: &Reply) -> Vec<InodeId> {
        match operation {
            Op::SetLock { inode, .. }
            | Op::ReleaseLocks { inode, .. }
            | Op::WithdrawLock { inode, .. }
            | Op::EndCover { inode, .. }
                if self.lines.contains_key(inode) || self.fences.are_on(*inode) =>
            {
                vec![*inode]
            }
            Op::ReleaseSession { session, .. } | Op::ExpireSession { session, .. } => {
                if matches!(operation, Op::ReleaseSession { .. }) {
                    self.over.push_back(*session);
                    let old = self.over.len().saturating_sub(OVER_MAX);
                    self.over.drain(..old);
                }
                let mut inodes = self.end_session(*session);
                if let Reply::Inodes(ended) = reply {
                    inodes.extend(ended);
                }
                inodes
            }
            _ => Vec::new(),
        }
    }

    /// The name of the next grant, if it is one.
    pub const fn next_grant(&mut self, epoch: Epoch) -> Token {
        self.grants += 1;
        Token {
            epoch,
            number: self.grants,
        }
    }

    /// A reign begins, and the tables say so of sessions whose locks were ended.
    pub fn begin_reign(&mut self, fences: Fences) {
        self.lines.clear();
        self.fences = fences;
    }

    /// Whether a session is kept from changing a file, since it is no more, or by [`Fences`].
    #[must_use]
    pub fn keeps_out(&self, inode: InodeId, session: SessionId) -> bool {
        let fenced = self.over.contains(&session) || self.fences.keeps_out(inode, session);
        fenced && !planted!(self, FenceNotChecked)
    }

    /// What the fences say of an operation of a session. A striped file's columns know nothing of fences, so a session that is kept out
    /// does not hear how the file is spread.
    #[must_use]
    pub fn refuses(&self, op: &Op, session: SessionId) -> Option<Errno> {
        let concerns = match op {
            Op::Columns { inode } | Op::MakeColumns { inode, .. } => Some(*inode),
            op => op.data_inode(),
        };
        let fenced = |inode| self.keeps_out(inode, session);
        concerns.is_some_and(fenced).then_some(Errno::EIO)
    }

    /// Somebody asks for a lock, for the first time or again. `held`: the locks on that inode.
    pub fn ask(&mut self, now: Tick, ask: &Ask, held: &HeldLocks) -> Turn {
        if ask.lock.mode.is_none() {
            return Turn::Take;
        }
        self.drop_absent(now, ask.inode, ask.ticket);
        let Some(place) = self.place(now, ask) else {
            return Turn::Full;
        };
        let line = self.lines.entry(ask.inode).or_default();
        line[place].look(held);
        let turn = if line[place].holders.is_empty() && planted!(self, LockOvertakes) {
            Turn::Take
        } else if line[place].holders.is_empty() {
            Self::in_order(now, line, place)
        } else if line[place].was_in_circle() || self.closes_cycle(ask, place) {
            Turn::Deadlock
        } else {
            Turn::Blocked
        };
        if matches!(turn, Turn::Take | Turn::Deadlock) {
            self.withdraw(ask.inode, ask.ticket);
        }
        turn
    }

    /// The locks on an inode are others than before, or a waiter is gone: whose turn has come that
    /// has not been told yet.
    pub fn changed(&mut self, now: Tick, inode: InodeId, held: &HeldLocks) -> Vec<Ticket> {
        self.fences.note(inode, held);
        let Some(line) = self.lines.get_mut(&inode) else {
            return Vec::new();
        };
        let mut ready = Vec::new();
        for place in 0..line.len() {
            line[place].look(held);
            if !line[place].holders.is_empty() {
                continue;
            }
            if first_before(line, place).is_some() {
                line[place].behind_since.get_or_insert(now);
                line[place].told = false;
            } else if !std::mem::replace(&mut line[place].told, true) {
                ready.push(line[place].ticket);
            }
        }
        ready
    }

    /// Who waits for whom, as far as such a wait may be refused for a circle.
    pub fn waits(&self) -> impl Iterator<Item = Wait> {
        let lines = self.lines.iter();
        let waiters = lines.flat_map(|(inode, line)| line.iter().map(|waiter| (*inode, waiter)));
        let refusable = |(_, waiter): &(InodeId, &Waiter)| waiter.lock.kind != LockKind::Flock;
        waiters
            .filter(refusable)
            .filter(|(_, waiter)| !waiter.holders.is_empty())
            .map(|(inode, waiter)| Wait {
                kind: waiter.lock.kind,
                inode,
                ticket: waiter.ticket,
                owner: waiter.lock.owner,
                holders: waiter.holders.iter().copied().collect(),
            })
    }

    /// A wait is part of a circle over several containers: it is refused when it asks again, if one of its holders still
    /// stands in its way. Whether it is there.
    pub fn end_cycle(&mut self, wait: &Wait) -> bool {
        let line = self.lines.get_mut(&wait.inode);
        let found = line.and_then(|line| line.iter_mut().find(|w| w.ticket == wait.ticket));
        let Some(waiter) = found else { return false };
        waiter.circle.clone_from(&wait.holders);
        true
    }

    /// How many wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.lines.values().map(Vec::len).sum()
    }

    /// A wait is over.
    pub fn withdraw(&mut self, inode: InodeId, ticket: Ticket) {
        self.retain(inode, |waiter| waiter.ticket != ticket);
    }

    /// Another decides about an inode: those who wait for it ask there.
    pub(crate) fn dismiss(&mut self, inode: InodeId) -> Vec<Ticket> {
        let line = self.lines.remove(&inode).unwrap_or_default();
        line.iter().map(|waiter| waiter.ticket).collect()
    }

    /// A session is gone; the inodes on which it waited.
    pub fn end_session(&mut self, session: SessionId) -> Vec<InodeId> {
        let waited =
            |line: &Vec<Waiter>| line.iter().any(|waiter| waiter.ticket.session == session);
        let lines = self.lines.iter().filter(|(_, line)| waited(line));
        let inodes: Vec<InodeId> = lines.map(|(inode, _)| *inode).collect();
        for inode in &inodes {
            self.retain(*inode, |waiter| waiter.ticket.session != session);
        }
        inodes
    }

    /// Another node owns the container: its waiters ask there.
    pub fn clear(&mut self) {
        self.lines.clear();
        self.fences = Fences::default();
    }

    fn retain(&mut self, inode: InodeId, stays: impl FnMut(&Waiter) -> bool) {
        if let Some(line) = self.lines.get_mut(&inode) {
            line.retain(stays);
            if line.is_empty() {
                self.lines.remove(&inode);
            }
        }
    }

    fn drop_absent(&mut self, now: Tick, inode: InodeId, but: Ticket) {
        self.retain(inode, |waiter| {
            waiter.ticket == but || now.since(waiter.asked) < ABSENT
        });
    }

    /// The place of the one who asks: the one that it has, or the last.
    fn place(&mut self, now: Tick, ask: &Ask) -> Option<usize> {
        let full = self.waiters() >= WAITERS_MAX;
        let line = self.lines.entry(ask.inode).or_default();
        if let Some(place) = line.iter().position(|waiter| waiter.ticket == ask.ticket) {
            line[place].asked = now;
            line[place].lock = ask.lock;
            line[place].told = false;
            return Some(place);
        }
        if full {
            self.retain(ask.inode, |_| true);
            return None;
        }
        line.push(Waiter {
            ticket: ask.ticket,
            lock: ask.lock,
            standing: Standing::New,
            asked: now,
            holders: Vec::new(),
            behind_since: None,
            passed: 0,
            told: false,
            circle: BTreeSet::new(),
        });
        Some(line.len() - 1)
    }

    /// Whether a waiter whom no held lock hinders may go before those who came earlier.
    fn in_order(now: Tick, line: &mut [Waiter], place: usize) -> Turn {
        let Some(first) = first_before(line, place).map(|waiter| waiter.lock) else {
            return Turn::Take;
        };
        let since = *line[place].behind_since.get_or_insert(now);
        let (earlier, rest) = line.split_at_mut(place);
        let me = &rest[0];
        let hindering = |waiter: &&mut Waiter| waiter.goes_before(me);
        let hold = earlier
            .iter_mut()
            .filter(hindering)
            .map(|waiter| waiter.hold())
            .max();
        if hold.is_some_and(|hold| now.since(since) < hold) {
            return Turn::Behind(first);
        }
        for waiter in earlier.iter_mut().filter(hindering) {
            waiter.passed = waiter.passed.saturating_add(1);
        }
        Turn::Take
    }

    /// Whether the one at `place` waits, over others who wait, for itself.
    fn closes_cycle(&self, ask: &Ask, place: usize) -> bool {
        if ask.lock.kind == LockKind::Flock {
            return false;
        }
        let me = LockOwner {
            session: ask.ticket.session,
            owner: ask.lock.owner,
        };
        let mut waits_for: BTreeMap<LockOwner, BTreeSet<LockOwner>> = BTreeMap::new();
        let ours = planted!(self, CycleOverFilesMissed);
        for (_, line) in self.lines.iter().filter(|(i, _)| !ours || **i == ask.inode) {
            let of_kind = |waiter: &&Waiter| waiter.lock.kind == ask.lock.kind;
            for waiter in line.iter().filter(of_kind) {
                let holders = waits_for.entry(waiter.owner()).or_default();
                holders.extend(&waiter.holders);
            }
        }
        if planted!(self, LongCycleMissed) {
            let of_me = |owner: &LockOwner| waits_for.get(owner).is_some_and(|h| h.contains(&me));
            return self.lines[&ask.inode][place].holders.iter().any(of_me);
        }
        let Some(asker) = self.lines.get(&ask.inode).and_then(|line| line.get(place)) else {
            return false;
        };
        let mut seen = BTreeSet::new();
        let mut next = asker.holders.clone();
        while let Some(owner) = next.pop() {
            if owner == me {
                return true;
            }
            if seen.insert(owner) {
                next.extend(waits_for.get(&owner).into_iter().flatten());
            }
        }
        false
    }
}

/// The first who came before the one at `place` and goes before it.
fn first_before(line: &[Waiter], place: usize) -> Option<&Waiter> {
    let me = &line[place];
    line[..place].iter().find(|waiter| waiter.goes_before(me))
}
