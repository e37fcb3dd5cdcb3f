//! File locks: what is asked for, and the table of those held on one inode.

use crate::record::{HeldLock, HeldLocks};
use perigee_types::{ByteRange, SessionId};
use serde::{Deserialize, Serialize};

/// A kind of file lock. The kinds do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// `fcntl`: by process and byte range.
    Posix,
    /// `flock`: by open file, the whole file.
    Flock,
}

/// A lock that is asked for, or that stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// `fcntl` or `flock`.
    pub kind: LockKind,
    /// The kernel's name of the owner inside its session.
    pub owner: u64,
    /// The bytes; `end` is `u64::MAX` for "to the end of the file".
    pub range: ByteRange,
    /// None: unlock; `Some(true)`: exclusive; `Some(false)`: shared.
    pub exclusive: Option<bool>,
    /// The process, as shown by `F_GETLK`.
    pub pid: u32,
}

/// Names one wait for a lock inside its session. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaitId(pub u64);

/// What becomes of a request for a lock that somebody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Patience {
    /// It is refused (`F_SETLK`, `LOCK_NB`).
    Refuse,
    /// It has a place among those who wait (`F_SETLKW`).
    Wait(WaitId),
}

/// Who holds a lock, or waits for one: the kernel's name of an owner, and the session it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The mount.
    pub session: SessionId,
    /// The kernel's name of the owner inside it.
    pub owner: u64,
}

/// The most locks on one inode, of each kind.
pub const LOCKS_MAX: usize = 8192;

/// Whose locks: all of a session's, or those of one owner in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) session: SessionId,
    pub(crate) owner: Option<u64>,
}

const WHOLE: ByteRange = ByteRange {
    start: 0,
    end: u64::MAX,
};

/// The bytes that a request is about: a flock is always about all of them.
fn range_of(asked: &FileLock) -> ByteRange {
    match asked.kind {
        LockKind::Posix => asked.range,
        LockKind::Flock => WHOLE,
    }
}

fn table(locks: &HeldLocks, kind: LockKind) -> &Vec<HeldLock> {
    match kind {
        LockKind::Posix => &locks.posix,
        LockKind::Flock => &locks.flock,
    }
}

/// Whether two owners cannot have both of these at a time.
pub(crate) fn exclude(one: &FileLock, two: &FileLock) -> bool {
    let (Some(first), Some(second)) = (one.exclusive, two.exclusive) else {
        return false;
    };
    one.kind == two.kind && (first || second) && range_of(one).overlaps(range_of(two))
}

/// The locks of other owners that stand in the way.
fn obstacles<'a>(
    locks: &'a HeldLocks,
    session: SessionId,
    asked: &'a FileLock,
) -> impl Iterator<Item = &'a HeldLock> {
    let range = range_of(asked);
    table(locks, asked.kind)
        .iter()
        .filter(move |held| (held.session, held.owner) != (session, asked.owner))
        .filter(move |held| {
            let wanted = asked.exclusive;
            wanted.is_some_and(|exclusive| held.exclusive || exclusive)
                && held.range.overlaps(range)
        })
}

/// The owners whose locks stand in the way, each once.
pub(crate) fn obstructors(
    locks: &HeldLocks,
    session: SessionId,
    asked: &FileLock,
) -> Vec<LockOwner> {
    let mut owners: Vec<LockOwner> = obstacles(locks, session, asked)
        .map(|held| LockOwner {
            session: held.session,
            owner: held.owner,
        })
        .collect();
    owners.dedup();
    owners
}

/// The lock of another holder that stands in the way, the first by offset.
pub(crate) fn conflict(
    locks: &HeldLocks,
    session: SessionId,
    asked: &FileLock,
) -> Option<FileLock> {
    obstacles(locks, session, asked)
        .min_by_key(|held| held.range.start)
        .map(|held| FileLock {
            kind: asked.kind,
            owner: held.owner,
            range: held.range,
            exclusive: Some(held.exclusive),
            pid: held.pid,
        })
}

/// Takes or drops a lock that nothing stands in the way of. False, and nothing done, when the inode
/// would have too many.
pub(crate) fn set(locks: &mut HeldLocks, session: SessionId, asked: &FileLock) -> bool {
    let range = range_of(asked);
    let mut kept = Vec::with_capacity(table(locks, asked.kind).len() + 2);
    let mut added = asked.exclusive.map(|exclusive| HeldLock {
        session,
        owner: asked.owner,
        pid: asked.pid,
        exclusive,
        range,
    });
    for held in table(locks, asked.kind) {
        if (held.session, held.owner) != (session, asked.owner) {
            kept.push(*held);
            continue;
        }
        // Neighbours of one mode become one lock.
        if let Some(added) = &mut added
            && added.exclusive == held.exclusive
            && held.range.start <= added.range.end
            && added.range.start <= held.range.end
        {
            added.range.start = added.range.start.min(held.range.start);
            added.range.end = added.range.end.max(held.range.end);
            continue;
        }
        for part in [
            ByteRange::new(held.range.start, held.range.end.min(range.start)),
            ByteRange::new(held.range.start.max(range.end), held.range.end),
        ] {
            if !part.is_empty() {
                kept.push(HeldLock {
                    range: part,
                    ..*held
                });
            }
        }
    }
    kept.extend(added);
    if asked.exclusive.is_some() && kept.len() > LOCKS_MAX {
        return false;
    }
    kept.sort_by_key(|held| (held.session, held.owner, held.range));
    match asked.kind {
        LockKind::Posix => locks.posix = kept,
        LockKind::Flock => locks.flock = kept,
    }
    true
}

/// Drops locks of a session: of one owner or all, of one kind or both.
pub(crate) fn release(
    locks: &mut HeldLocks,
    session: SessionId,
    owner: Option<u64>,
    kind: Option<LockKind>,
) {
    let stays =
        |held: &HeldLock| held.session != session || owner.is_some_and(|owner| owner != held.owner);
    if kind != Some(LockKind::Flock) {
        locks.posix.retain(stays);
    }
    if kind != Some(LockKind::Posix) {
        locks.flock.retain(stays);
    }
}
