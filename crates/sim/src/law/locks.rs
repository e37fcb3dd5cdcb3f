//! The laws of locks: no two that exclude each other are held at a time; they outlive the owner and end with their holder;
//! nobody writes under one that was ended; grants rise; who came first goes first; and each wait ends.

use crate::locks::program::{Cell, Program, State};
use crate::locks::world::Locks;
use crate::world::host_of;
use perigee_meta::lock::SessionEnd;
use perigee_meta::lock::kept::KeptId;
use perigee_meta::queue::{ABSENT, Admission, HOLD, Ticket};
use perigee_meta::{
    FileLock, HeldLocks, LockKind, LockOwner, Op, Patience, Refusal, Reply, Token, WaitId,
    held_locks,
};
use perigee_types::{ByteRange, Errno, InodeId, SessionId, Tick};
use std::collections::BTreeSet;

/// Somebody who waits, as the law knows him.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    session: SessionId,
    wait: WaitId,
    inode: InodeId,
    lock: FileLock,
    /// When it first asked this owner.
    came: Tick,
    /// When it last did.
    asked: Tick,
}

impl Arrival {
    const fn owner(&self) -> LockOwner {
        LockOwner {
            session: self.session,
            owner: self.lock.owner,
        }
    }

    fn excludes(&self, other: &Self) -> bool {
        self.inode == other.inode && exclude(&self.lock, &other.lock)
    }
}

fn exclude(one: &FileLock, two: &FileLock) -> bool {
    let (Some(first), Some(second)) = (one.mode, two.mode) else {
        return false;
    };
    one.kind == two.kind && one.range.overlaps(two.range) && !first.is_compatible_with(second)
}

fn table(world: &mut Locks, inode: InodeId) -> HeldLocks {
    held_locks(&mut world.reign.view, inode).unwrap_or_default()
}

/// The owners of held locks that exclude what somebody wants.
fn obstacles(held: &HeldLocks, wanted: &Arrival) -> BTreeSet<LockOwner> {
    let in_the_way = |(session, lock, _): (SessionId, FileLock, Token)| {
        let owner = LockOwner {
            session,
            owner: lock.owner,
        };
        (owner != wanted.owner() && exclude(&lock, &wanted.lock)).then_some(owner)
    };
    held.held().filter_map(in_the_way).collect()
}

fn converts(held: &HeldLocks, wanted: &Arrival) -> bool {
    held.held().any(|(session, lock, _)| {
        session == wanted.session
            && (lock.kind, lock.owner) == (wanted.lock.kind, wanted.lock.owner)
            && lock.range.overlaps(wanted.lock.range)
    })
}

/// The owner was asked for a lock, and lets it be taken or not: nobody passes who came before, unless he waits for him, has
/// been held back for long enough, or converts what he has.
pub(crate) fn on_asked(
    world: &mut Locks,
    session: SessionId,
    operation: &Op,
    admitted: &Result<Admission, Refusal>,
) {
    let now = Tick(world.now);
    if let Op::WithdrawLock { wait, .. } = operation {
        let of_other = |arrival: &Arrival| (arrival.session, arrival.wait) != (session, *wait);
        return world.reign.arrivals.retain(of_other);
    }
    let Op::SetLock {
        inode,
        lock,
        patience: Patience::Wait(wait),
        ..
    } = operation
    else {
        return;
    };
    let arrivals = &mut world.reign.arrivals;
    let same = |arrival: &Arrival| (arrival.session, arrival.wait) == (session, *wait);
    let elsewhere = |arrival: &Arrival| arrival.inode != *inode;
    arrivals
        .retain(|arrival| same(arrival) || elsewhere(arrival) || now.since(arrival.asked) < ABSENT);
    let place = arrivals.iter().position(same).unwrap_or_else(|| {
        arrivals.push(Arrival {
            session,
            wait: *wait,
            inode: *inode,
            lock: *lock,
            came: now,
            asked: now,
        });
        arrivals.len() - 1
    });
    arrivals[place].asked = now;
    let me = arrivals[place];
    let before = arrivals[..place].to_vec();
    let held = table(world, *inode);
    let taken = matches!(admitted, Ok(Admission::Run)) && obstacles(&held, &me).is_empty();
    let refused = matches!(
        admitted,
        Ok(Admission::Gone(_) | Admission::Answered(Err(_)))
    );
    if taken || refused {
        world.reign.arrivals.retain(|arrival| !same(arrival));
    }
    let passed = |other: &&Arrival| {
        other.excludes(&me)
            && other.owner() != me.owner()
            && !obstacles(&held, other).contains(&me.owner())
            && (converts(&held, other) || !converts(&held, &me))
    };
    if let (true, Some(other)) = (taken, before.iter().find(passed))
        && now.since(me.came) < HOLD
    {
        let what = format!("{me:?} goes before {other:?}");
        world.accuse("fair", what);
    }
}

/// Somebody has asked the owner and waits: not, over others who wait there, for himself.
pub(crate) fn on_waits(world: &mut Locks, session: SessionId, operation: &Op) {
    let Op::SetLock {
        patience: Patience::Wait(wait),
        ..
    } = operation
    else {
        return;
    };
    let ticket = Ticket {
        session,
        wait: *wait,
    };
    let waits: Vec<_> = world.reign.queue.waits().collect();
    let Some(mine) = waits.iter().find(|wait| wait.ticket == ticket) else {
        return;
    };
    let me = LockOwner {
        session,
        owner: mine.owner,
    };
    let mut reached = mine.holders.clone();
    loop {
        let before = reached.len();
        for wait in &waits {
            let (session, owner) = (wait.ticket.session, wait.owner);
            if reached.contains(&LockOwner { session, owner }) {
                reached.extend(&wait.holders);
            }
        }
        if reached.contains(&me) {
            let what = format!("{me:?} waits for itself: {waits:?}");
            return world.accuse("no circle", what);
        }
        if reached.len() == before {
            return;
        }
    }
}

fn covers_mode(held: &FileLock, wanted: &FileLock) -> bool {
    let (Some(held), Some(wanted)) = (held.mode, wanted.mode) else {
        return false;
    };
    held.covers(wanted)
}

/// Whether a lock in the owner's table is the one of an owner, or a cover under which its host knows of it.
fn stands_for(held: &FileLock, kind: LockKind, owner: u64) -> bool {
    let is_cover = (kind, held.kind) == (LockKind::Posix, LockKind::Cover);
    is_cover || (held.kind, held.owner) == (kind, owner)
}

/// A lock is granted.
pub(crate) fn on_granted(world: &mut Locks, token: Token) {
    if token <= world.granted {
        let what = format!("{token:?} after {:?}", world.granted);
        return world.accuse("tokens rise", what);
    }
    world.granted = token;
}

/// An owner takes a write that a program makes under a lock, as it believes.
pub(crate) fn on_write(world: &mut Locks, session: SessionId, inode: InodeId, lock: &FileLock) {
    let covers = |(of, held, _): (SessionId, FileLock, Token)| {
        of == session
            && stands_for(&held, lock.kind, lock.owner)
            && held.range.overlaps(lock.range)
            && covers_mode(&held, lock)
    };
    if !table(world, inode).held().any(covers) {
        let what = format!("{session} writes to {inode} under {lock:?}, which it has no more");
        world.accuse("fenced", what);
    }
}

/// A use of a lock that its host keeps begins: it counts still.
pub(crate) fn on_kept_use(world: &mut Locks, token: Token) {
    if world.ended.contains(&token) {
        let what = format!("{token:?} was ended, and serves a use");
        world.accuse("kept while it counts", what);
    }
}

/// Somebody who does not wait is answered: he is not refused for a lock that a host has only kept since before he came, at
/// `since`.
pub(crate) fn on_refused(
    world: &mut Locks,
    (session, operation): (SessionId, &Op),
    result: &Result<Reply, Errno>,
    since: u64,
) {
    let Op::SetLock {
        inode,
        lock,
        patience: Patience::Refuse,
        ..
    } = operation
    else {
        return;
    };
    let Ok(Reply::Blocked(_)) = result else {
        return;
    };
    let held = table(world, *inode);
    let wanted = LockOwner {
        session,
        owner: lock.owner,
    };
    let in_the_way = |(of, other, _): &(SessionId, FileLock, Token)| {
        let owner = LockOwner {
            session: *of,
            owner: other.owner,
        };
        owner != wanted && exclude(other, lock)
    };
    let in_vain = |(of, other, _): &(SessionId, FileLock, Token)| {
        let id = KeptId {
            inode: *inode,
            kind: other.kind,
            owner: other.owner,
        };
        world.is_kept_in_vain((*of, id), since)
    };
    let obstacles: Vec<_> = held.held().filter(in_the_way).collect();
    // What is under a cover the session that has it knows better.
    let covered = |(of, ..): &(SessionId, FileLock, Token)| {
        held.held()
            .any(|(session, lock, _)| (session, lock.kind) == (*of, LockKind::Cover))
    };
    if lock.kind == LockKind::Posix && obstacles.iter().all(covered) {
        let what = format!("{wanted:?} is refused for a cover, and for {obstacles:?}");
        return world.accuse("not refused for nothing", what);
    }
    if !obstacles.is_empty() && obstacles.iter().all(in_vain) {
        let what = format!("{wanted:?} is refused for {obstacles:?}, which are only kept");
        world.accuse("not refused for nothing", what);
    }
}

/// A program has got a lock: nobody else has one that excludes it.
pub(crate) fn exclusion(world: &mut Locks, host: usize, place: usize) {
    let mut clash = None;
    let all = |host: usize| {
        let session = world.hosts[host].session.as_ref();
        session.map_or(&[] as &[Program], |session| &session.programs)
    };
    let valid = |cell: &Cell| !cell.stale;
    for (key, mine) in all(host)[place].cells.iter().filter(|(_, c)| valid(c)) {
        for other in 0..world.hosts.len() {
            for (number, program) in all(other).iter().enumerate() {
                let theirs = program.cells.get(key).filter(|cell| valid(cell));
                let Some(theirs) = theirs.filter(|_| (other, number) != (host, place)) else {
                    continue;
                };
                if !mine.mode.is_compatible_with(theirs.mode) {
                    let (me, them) = ((host, place), (other, number));
                    clash = Some(format!(
                        "{key:?}: {me:?} has {mine:?}, {them:?} has {theirs:?}"
                    ));
                }
            }
        }
    }
    if let Some(what) = clash {
        world.accuse("exclusive", what);
    }
}

/// The locks of a session are about to end: it is over, or has shown no sign of life for long.
pub(crate) fn on_end(world: &mut Locks, session: SessionId, end: SessionEnd) {
    let host = host_of(session.node());
    world
        .reign
        .arrivals
        .retain(|arrival| arrival.session != session);
    let is_there = world.hosts[host].session.as_ref();
    let is_there = is_there.is_some_and(|there| there.id == session);
    let early = match end {
        SessionEnd::Over => is_there,
        SessionEnd::WithoutItsWord => world.lives(host),
    };
    if early {
        let what = format!("the locks of {session} end ({end:?}), which lives");
        return world.accuse("held", what);
    }
    for inode in world.files.clone() {
        let held = table(world, inode);
        let of_session = held.held().filter(|(of, ..)| *of == session);
        world.ended.extend(of_session.map(|(.., token)| token));
    }
    let life = world.hosts[host].life;
    if let (true, Some(session)) = (is_there, world.session(host, life)) {
        let cells = session.programs.iter_mut();
        let cells = cells.flat_map(|program| program.cells.values_mut());
        cells.for_each(|cell| cell.stale = true);
    }
}

/// A new owner begins: it knows each lock that a program has.
pub(crate) fn survive(world: &mut Locks) {
    let mut believed = Vec::new();
    for host in &world.hosts {
        let session = host.session.iter();
        let programs = session.flat_map(|s| s.programs.iter().map(|program| (s.id, program)));
        for (session, program) in programs {
            let valid = program.cells.iter().filter(|(_, cell)| !cell.stale);
            believed.extend(valid.map(|(key, cell)| (session, *key, *cell)));
        }
    }
    let kind = world.kind;
    for (session, (inode, byte), cell) in believed {
        let range = ByteRange::new(byte, byte + 1);
        let known = |(of, held, _): (SessionId, FileLock, Token)| {
            of == session
                && stands_for(&held, kind, cell.owner)
                && held.range.overlaps(range)
                && held.mode.is_some_and(|mode| mode.covers(cell.mode))
        };
        if !table(world, inode).held().any(known) {
            let what =
                format!("{session} has {cell:?} of {inode}, which the new owner does not know");
            return world.accuse("survives", what);
        }
    }
}

/// Everything was healed, and time has passed: nobody waits, and nothing is held that nobody has.
pub(crate) fn at_the_end(world: &mut Locks) {
    let mut waits = None;
    for host in &world.hosts {
        if let Some(session) = &host.session {
            let waiting =
                |program: &&Program| matches!(program.state, State::Asking(_) | State::Sleeping(_));
            if let Some(program) = session.programs.iter().find(waiting) {
                waits = Some(format!("{}: {:?}", session.id, program.state));
            }
        }
    }
    if let Some(what) = waits {
        return world.accuse("each wait ends", what);
    }
    for inode in world.files.clone() {
        let all: Vec<_> = table(world, inode).held().collect();
        let covered = |session: SessionId, world: &Locks| {
            let covers = all
                .iter()
                .filter(|(of, lock, _)| (*of, lock.kind) == (session, LockKind::Cover));
            covers.into_iter().any(|(_, lock, _)| {
                let (kind, owner) = (lock.kind, lock.owner);
                world.is_covered(session, KeptId { inode, kind, owner })
            })
        };
        for (session, lock, _) in &all {
            if covered(*session, world) {
                continue;
            }
            let session = *session;
            let id = KeptId {
                inode,
                kind: lock.kind,
                owner: lock.owner,
            };
            let host = &world.hosts[host_of(session.node())];
            let kept = host.session.as_ref().filter(|there| there.id == session);
            let kept = kept.is_some_and(|there| there.kept.keeps(id));
            if !kept || lock.kind == LockKind::Posix {
                let what = format!("{session} has {lock:?} of {inode}, and does not know");
                return world.accuse("ends with its holder", what);
            }
        }
    }
}
