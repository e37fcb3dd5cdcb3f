//! The granted list of one inode: who has which bytes in which mode, and whose locks were ended without his word.

use super::{FileLock, LockKind, LockOwner, Token, range_of};
use crate::record::{EndedLock, HeldLock, HeldLocks};
use perigee_types::{ByteRange, SessionId};

/// The most locks on one inode, of each kind.
pub const LOCKS_MAX: usize = 8192;

impl HeldLocks {
    pub(crate) const fn list(&self, kind: LockKind) -> &Vec<HeldLock> {
        match kind {
            LockKind::Posix => &self.posix,
            LockKind::Flock => &self.flock,
            LockKind::Service => &self.service,
        }
    }

    const fn list_mut(&mut self, kind: LockKind) -> &mut Vec<HeldLock> {
        match kind {
            LockKind::Posix => &mut self.posix,
            LockKind::Flock => &mut self.flock,
            LockKind::Service => &mut self.service,
        }
    }

    fn all(&self) -> impl Iterator<Item = &HeldLock> {
        [&self.posix, &self.flock, &self.service]
            .into_iter()
            .flatten()
    }

    /// Nothing is held, and nobody is kept from writing.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().next().is_none() && self.ended.is_empty()
    }

    /// The latest grant that is known here.
    fn latest(&self) -> Token {
        let ended = self.ended.iter().map(|ended| ended.lock.token);
        let tokens = self.all().map(|held| held.token).chain(ended);
        tokens.max().unwrap_or_default()
    }

    /// Of a session whose locks here were ended without its word, while its programs may believe to have them: the latest
    /// grant that counts no more.
    #[must_use]
    pub fn fence(&self, session: SessionId) -> Option<Token> {
        let of_session = self
            .ended
            .iter()
            .filter(|ended| ended.lock.session == session);
        of_session.map(|ended| ended.lock.token).max()
    }

    /// The sessions that have a [`Self::fence`]; one with several ended locks is named several times.
    pub fn fenced(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.ended.iter().map(|ended| ended.lock.session)
    }

    /// What is held, in no order, each with its token.
    pub fn held(&self) -> impl Iterator<Item = (SessionId, FileLock, Token)> + '_ {
        let kinds = [LockKind::Posix, LockKind::Flock, LockKind::Service];
        kinds.into_iter().flat_map(|kind| {
            let list = self.list(kind).iter();
            list.map(move |held| (held.session, held.told(kind), held.token))
        })
    }

    /// Whether an owner has a lock of this kind on some of these bytes: what it asks for there is a conversion.
    pub(crate) fn converts(&self, session: SessionId, asked: &FileLock) -> bool {
        let range = range_of(asked);
        let own = |held: &&HeldLock| held.is_of(session, asked.owner);
        let mut own = self.list(asked.kind).iter().filter(own);
        own.any(|held| held.range.overlaps(range))
    }
}

impl HeldLock {
    fn is_of(&self, session: SessionId, owner: u64) -> bool {
        (self.session, self.owner) == (session, owner)
    }

    const fn told(&self, kind: LockKind) -> FileLock {
        FileLock {
            kind,
            owner: self.owner,
            range: self.range,
            mode: Some(self.mode),
            pid: self.pid,
        }
    }

    /// What is left of it without some bytes.
    fn without(&self, range: ByteRange) -> impl Iterator<Item = Self> + use<> {
        let held = *self;
        let before = ByteRange::new(held.range.start, held.range.end.min(range.start));
        let after = ByteRange::new(held.range.start.max(range.end), held.range.end);
        let parts = [before, after].into_iter();
        parts
            .filter(|part| !part.is_empty())
            .map(move |range| Self { range, ..held })
    }
}

/// The locks of other owners that stand in the way.
fn obstacles<'a>(
    locks: &'a HeldLocks,
    session: SessionId,
    asked: &'a FileLock,
) -> impl Iterator<Item = &'a HeldLock> {
    let range = range_of(asked);
    let others = locks.list(asked.kind).iter();
    others
        .filter(move |held| !held.is_of(session, asked.owner))
        .filter(move |held| {
            let wanted = asked.mode;
            wanted.is_some_and(|mode| !mode.is_compatible_with(held.mode))
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
        .map(|held| held.told(asked.kind))
}

/// Takes or drops a lock that nothing stands in the way of; a lock that is taken has the grant's token, or one above all
/// that are known here. None, and nothing done, when the inode would have too many.
///
/// Either way its owner knows from now on what it has of these bytes: what was ended of them is over.
pub(crate) fn set(
    locks: &mut HeldLocks,
    session: SessionId,
    asked: &FileLock,
    token: Token,
) -> Option<Token> {
    let range = range_of(asked);
    let token = token.max(locks.latest().next());
    let mut kept = Vec::with_capacity(locks.list(asked.kind).len() + 2);
    let mut added = asked.mode.map(|mode| HeldLock {
        session,
        owner: asked.owner,
        pid: asked.pid,
        mode,
        range,
        token,
    });
    for held in locks.list(asked.kind) {
        if !held.is_of(session, asked.owner) {
            kept.push(*held);
            continue;
        }
        // Neighbours of one mode become one lock.
        if let Some(added) = &mut added
            && added.mode == held.mode
            && held.range.start <= added.range.end
            && added.range.start <= held.range.end
        {
            added.range.start = added.range.start.min(held.range.start);
            added.range.end = added.range.end.max(held.range.end);
            continue;
        }
        kept.extend(held.without(range));
    }
    kept.extend(added);
    if asked.mode.is_some() && kept.len() > LOCKS_MAX {
        return None;
    }
    kept.sort_by_key(|held| (held.session, held.owner, held.range));
    *locks.list_mut(asked.kind) = kept;
    forget_ended(locks, session, asked, range);
    Some(token)
}

fn forget_ended(locks: &mut HeldLocks, session: SessionId, asked: &FileLock, range: ByteRange) {
    for ended in std::mem::take(&mut locks.ended) {
        if ended.kind != asked.kind || !ended.lock.is_of(session, asked.owner) {
            locks.ended.push(ended);
            continue;
        }
        let left = ended.lock.without(range);
        let kind = ended.kind;
        locks
            .ended
            .extend(left.map(|lock| EndedLock { kind, lock }));
    }
}

/// Drops locks of a session: of one owner or all, of one kind or all.
pub(crate) fn release(
    locks: &mut HeldLocks,
    session: SessionId,
    owner: Option<u64>,
    kind: Option<LockKind>,
) {
    let stays =
        |held: &HeldLock| held.session != session || owner.is_some_and(|owner| owner != held.owner);
    for of in [LockKind::Posix, LockKind::Flock, LockKind::Service] {
        if kind.is_none_or(|kind| kind == of) {
            locks.list_mut(of).retain(stays);
        }
    }
    let other = |ended: &EndedLock| kind.is_some_and(|kind| kind != ended.kind);
    locks
        .ended
        .retain(|ended| other(ended) || stays(&ended.lock));
}

/// Ends the locks of a session that does not know it: nobody is kept out by them, and what it changes as if it had them
/// is refused until it lets go of them.
pub(crate) fn expire(locks: &mut HeldLocks, session: SessionId) {
    for kind in [LockKind::Posix, LockKind::Flock, LockKind::Service] {
        let list = std::mem::take(locks.list_mut(kind));
        let (gone, stay): (Vec<_>, Vec<_>) =
            list.into_iter().partition(|held| held.session == session);
        *locks.list_mut(kind) = stay;
        locks
            .ended
            .extend(gone.into_iter().map(|lock| EndedLock { kind, lock }));
    }
    if locks.ended.len() > LOCKS_MAX {
        one_for_each_owner(&mut locks.ended);
    }
}

/// Remembers less: of the locks of an owner, one that has all bytes. It lets go of that when it closes the file.
fn one_for_each_owner(ended: &mut Vec<EndedLock>) {
    ended.sort_by_key(|ended| {
        let lock = &ended.lock;
        (ended.kind, lock.session, lock.owner, lock.token)
    });
    ended.reverse();
    ended.dedup_by_key(|ended| (ended.kind, ended.lock.session, ended.lock.owner));
    for ended in ended {
        ended.lock.range = ByteRange::new(0, u64::MAX);
    }
}
