//! The granted list of one inode: who has which bytes in which mode, and whose locks were ended without his word.

use super::{FileLock, LockKind, LockOwner, Token, range_of};
use crate::record::{EndedLock, HeldLock, HeldLocks};
use perigee_types::{ByteRange, SessionId};

/// The most locks on one inode, of each kind.
pub const LOCKS_MAX: usize = 8192;

/// The most locks that a session has under a cover.
pub const EXACT_MAX: usize = 1024;

impl HeldLocks {
    pub(crate) const fn list(&self, kind: LockKind) -> &Vec<HeldLock> {
        match kind {
            LockKind::Posix => &self.posix,
            LockKind::Flock => &self.flock,
            LockKind::Service => &self.service,
            LockKind::Cover => &self.covers,
        }
    }

    const fn list_mut(&mut self, kind: LockKind) -> &mut Vec<HeldLock> {
        match kind {
            LockKind::Posix => &mut self.posix,
            LockKind::Flock => &mut self.flock,
            LockKind::Service => &mut self.service,
            LockKind::Cover => &mut self.covers,
        }
    }

    fn all(&self) -> impl Iterator<Item = &HeldLock> {
        LockKind::ALL.into_iter().flat_map(|kind| self.list(kind))
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
        LockKind::ALL.into_iter().flat_map(|kind| {
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

    pub(crate) const fn told(&self, kind: LockKind) -> FileLock {
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

/// The kinds that a lock of this one meets.
const fn met(kind: LockKind) -> &'static [LockKind] {
    match kind {
        LockKind::Posix | LockKind::Cover => &[LockKind::Posix, LockKind::Cover],
        LockKind::Flock => &[LockKind::Flock],
        LockKind::Service => &[LockKind::Service],
    }
}

/// The locks of others that stand in the way, each with its kind.
fn obstacles<'a>(
    locks: &'a HeldLocks,
    session: SessionId,
    asked: &'a FileLock,
) -> impl Iterator<Item = (LockKind, &'a HeldLock)> {
    let range = range_of(asked);
    let is_of_others = move |kind: LockKind, held: &HeldLock| match (asked.kind, kind) {
        // What a session has is no obstacle to its own cover, nor that to it.
        (LockKind::Cover, _) | (_, LockKind::Cover) => held.session != session,
        _ => !held.is_of(session, asked.owner),
    };
    let kinds = met(asked.kind).iter().copied();
    let met = kinds.flat_map(|kind| locks.list(kind).iter().map(move |held| (kind, held)));
    met.filter(move |(kind, held)| is_of_others(*kind, held))
        .filter(move |(kind, held)| *kind != LockKind::Posix || !is_under_cover(locks, held))
        .filter(move |(_, held)| {
            let wanted = asked.mode;
            wanted.is_some_and(|mode| !mode.is_compatible_with(held.mode))
                && held.range.overlaps(range)
        })
}

/// Whether it is for the session to say what its program has there: what the table says may be let go of since.
fn is_under_cover(locks: &HeldLocks, held: &HeldLock) -> bool {
    locks.covers.iter().any(|cover| {
        cover.session == held.session
            && cover.mode.covers(held.mode)
            && cover.range.start <= held.range.start
            && held.range.end <= cover.range.end
    })
}

fn owners<'a>(held: impl Iterator<Item = (LockKind, &'a HeldLock)>) -> Vec<LockOwner> {
    let owner = |(_, held): (LockKind, &HeldLock)| LockOwner {
        session: held.session,
        owner: held.owner,
    };
    let mut owners: Vec<LockOwner> = held.map(owner).collect();
    owners.dedup();
    owners
}

/// The owners whose locks stand in the way, each once.
pub(crate) fn obstructors(
    locks: &HeldLocks,
    session: SessionId,
    asked: &FileLock,
) -> Vec<LockOwner> {
    owners(obstacles(locks, session, asked))
}

/// What stands in the way of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// Nothing.
    Nothing,
    /// Somebody uses it, whatever others do.
    Used,
    /// These may only keep it.
    MayBeKept(Vec<LockOwner>),
}

/// What stands in the way, as far as the owner of the container knows.
pub(crate) fn in_the_way(locks: &HeldLocks, session: SessionId, asked: &FileLock) -> InTheWay {
    let obstacles: Vec<_> = obstacles(locks, session, asked).collect();
    if obstacles.is_empty() {
        return InTheWay::Nothing;
    }
    let is_kept = |(kind, _): &(LockKind, &HeldLock)| Some(*kind) == asked.kind.kept_as();
    match obstacles.iter().all(is_kept) {
        true => InTheWay::MayBeKept(owners(obstacles.into_iter())),
        false => InTheWay::Used,
    }
}

/// The owners in the way that may only keep what they have.
pub(crate) fn keepers(locks: &HeldLocks, session: SessionId, asked: &FileLock) -> Vec<LockOwner> {
    let obstacles = obstacles(locks, session, asked);
    owners(obstacles.filter(|(kind, _)| Some(*kind) == asked.kind.kept_as()))
}

/// The lock of another holder that stands in the way, the first by offset.
pub(crate) fn conflict(
    locks: &HeldLocks,
    session: SessionId,
    asked: &FileLock,
) -> Option<FileLock> {
    obstacles(locks, session, asked)
        .min_by_key(|(_, held)| held.range.start)
        .map(|(_, held)| held.told(asked.kind))
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
    for of in LockKind::ALL {
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
    for kind in LockKind::ALL {
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
        ended.lock.range = ByteRange::ALL;
    }
}

/// Ends a cover: its session's programs have these locks, exactly. Where the cover was ended without the session's word,
/// these are ended, too. A session that has no such cover any more has said so before.
///
/// None, and nothing done: these are not what the cover gave a right to.
pub(crate) fn end_cover(
    locks: &mut HeldLocks,
    session: SessionId,
    cover: u64,
    exact: &[FileLock],
) -> Option<()> {
    let held = locks.covers.iter().find(|held| held.is_of(session, cover));
    let of_cover =
        |ended: &&EndedLock| ended.kind == LockKind::Cover && ended.lock.is_of(session, cover);
    let ended = locks.ended.iter().find(of_cover).map(|ended| ended.lock);
    let is_of_session = |kind, held: &HeldLock| match kind {
        LockKind::Posix => held.session == session,
        LockKind::Cover => held.is_of(session, cover),
        LockKind::Flock | LockKind::Service => false,
    };
    if let Some(held) = held {
        let exact = exact_locks(held, exact)?;
        for kind in [LockKind::Posix, LockKind::Cover] {
            let list = locks.list_mut(kind);
            list.retain(|held| !is_of_session(kind, held));
        }
        locks.posix.extend(exact);
        let order = |held: &HeldLock| (held.session, held.owner, held.range);
        locks.posix.sort_by_key(order);
    } else if let Some(held) = ended {
        let exact = exact_locks(&held, exact)?;
        let ended = &mut locks.ended;
        ended.retain(|ended| !is_of_session(ended.kind, &ended.lock));
        ended.extend(exact.into_iter().map(|lock| EndedLock {
            kind: LockKind::Posix,
            lock,
        }));
    }
    Some(())
}

/// The locks that a session's programs have under a cover, by its token. None: some go beyond it, or over each other.
fn exact_locks(cover: &HeldLock, exact: &[FileLock]) -> Option<Vec<HeldLock>> {
    let under = |lock: &FileLock| {
        let mode = lock.mode.filter(|mode| cover.mode.covers(*mode))?;
        let range = lock.range;
        let within = cover.range.start <= range.start && range.end <= cover.range.end;
        (lock.kind == LockKind::Posix && within && !range.is_empty()).then_some(HeldLock {
            owner: lock.owner,
            pid: lock.pid,
            mode,
            range,
            ..*cover
        })
    };
    let mut held: Vec<HeldLock> = exact.iter().map(under).collect::<Option<_>>()?;
    held.sort_by_key(|held| (held.owner, held.range));
    let apart = |pair: &[HeldLock]| {
        pair[0].owner != pair[1].owner || pair[0].range.end <= pair[1].range.start
    };
    (held.len() <= EXACT_MAX && held.windows(2).all(apart)).then_some(held)
}
