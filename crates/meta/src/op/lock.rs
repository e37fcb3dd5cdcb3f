//! `fcntl` and `flock` locks. They are state like any other, so a new owner of the container knows
//! them. Who waits for one is not: see [`crate::queue`].

use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::lock::{Fences, FileLock, Holder, LockKind, table};
use crate::op::{Leftovers, Reply, stripe};
use crate::record::{self, HeldLocks};
use crate::view::View;
use perigee_types::{ContainerId, Errno, InodeId, InodeIndex, SessionId};
use std::collections::BTreeSet;

/// Lock tables that one scan of a release takes.
const TABLES_PER_SCAN: usize = 1024;

pub(crate) fn get(
    draft: &mut Draft<'_>,
    inode: InodeId,
    session: SessionId,
    asked: &FileLock,
) -> Result<Reply, Refusal> {
    draft.inode(inode)?;
    let locks = read(draft, inode)?;
    Ok(Reply::Lock(table::conflict(&locks, session, asked)))
}

pub(crate) fn set(
    draft: &mut Draft<'_>,
    inode: InodeId,
    session: SessionId,
    asked: &FileLock,
) -> Result<Reply, Refusal> {
    let record = draft.inode(inode)?;
    if asked.kind != LockKind::Flock && asked.range.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    let before = read(draft, inode)?;
    // What was ended of the session's locks its programs still let go of here.
    if (asked.kind, asked.mode.is_some()) == (LockKind::Cover, true)
        && before.fence(session).is_some()
    {
        return Err(Errno::EAGAIN.into());
    }
    let mut locks = before.clone();
    if let Some(conflict) = table::conflict(&locks, session, asked) {
        // A flock that is converted is given up first, as Linux has it: else two who share one and
        // both want it alone would wait for ever.
        if asked.kind == LockKind::Flock {
            table::release(
                &mut locks,
                session,
                Some(asked.owner),
                Some(LockKind::Flock),
            );
            write(draft, inode, &before, locks);
        }
        return Ok(Reply::Blocked(conflict));
    }
    // It may keep somebody out whose locks have ended.
    if asked.mode.is_some() && stripe::is_being_cut(&record) {
        return Err(Errno::EAGAIN.into());
    }
    let Some(token) = table::set(&mut locks, session, asked, draft.context.grant) else {
        return Err(Errno::ENOLCK.into());
    };
    write(draft, inode, &before, locks);
    Ok(match asked.mode {
        Some(_) => Reply::Granted(token),
        None => Reply::Done,
    })
}

pub(crate) fn release(
    draft: &mut Draft<'_>,
    inode: InodeId,
    holder: Holder,
    kind: Option<LockKind>,
) -> Result<Reply, Refusal> {
    let before = read(draft, inode)?;
    let mut locks = before.clone();
    table::release(&mut locks, holder.session, holder.owner, kind);
    write(draft, inode, &before, locks);
    Ok(Reply::Done)
}

pub(crate) fn end_cover(
    draft: &mut Draft<'_>,
    inode: InodeId,
    session: SessionId,
    cover: u64,
    exact: &[FileLock],
) -> Result<Reply, Refusal> {
    let before = read(draft, inode)?;
    let mut locks = before.clone();
    if table::end_cover(&mut locks, session, cover, exact).is_none() {
        return Err(Errno::EINVAL.into());
    }
    write(draft, inode, &before, locks);
    Ok(Reply::Done)
}

/// What becomes of the locks of a session, and of what was ended of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nobody is left who could believe to have them.
    Over(Leftovers),
    /// Its host is gone, and may come back with programs that do.
    WithoutItsWord,
}

pub(crate) fn end_session(
    draft: &mut Draft<'_>,
    container: ContainerId,
    session: SessionId,
    how: End,
) -> Result<Reply, Refusal> {
    let mut ended = Vec::new();
    let mut from = key::locks().0;
    loop {
        let range = (from, key::locks().1);
        let rows = draft.scan(container, &range, TABLES_PER_SCAN)?;
        let Some((last, _)) = rows.last() else {
            return Ok(Reply::Inodes(ended));
        };
        from = last.to_vec();
        from.push(0);
        for (key, value) in &rows {
            let inode = inode_of(container, key)?;
            let before = record::decode_locks(container, key, value)?;
            let mut locks = before.clone();
            match how {
                End::Over(_) => table::release(&mut locks, session, None, None),
                End::WithoutItsWord => table::expire(&mut locks, session),
            }
            let held = before.sessions().any(|(holder, _)| holder == session);
            if held && how != End::Over(Leftovers::None) {
                stripe::fence(draft, inode)?;
            }
            if locks != before {
                write(draft, inode, &before, locks);
                ended.push(inode);
            }
        }
    }
}

fn inode_of(container: ContainerId, key: &[u8]) -> Result<InodeId, Refusal> {
    match Key::decode(key) {
        Some(Key::Locks(index)) => Ok(InodeId::new(container, index)),
        _ => Err(record::corrupt(
            container,
            key,
            "not the key of a lock table",
        )),
    }
}

/// The locks held on an inode; none when there is no such inode.
///
/// Errors: [`Refusal::Missing`] when the view lacks the inode's container, or [`Refusal::Corrupt`].
pub fn held_locks(view: &mut dyn View, inode: InodeId) -> Result<HeldLocks, Refusal> {
    let key = Key::Locks(inode.index()).encode();
    let value = view.get(inode.container(), &key)?;
    decode(inode, &key, value.as_deref())
}

/// What the tables of locks in a container say of sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockSessions {
    /// They hold locks.
    pub holders: BTreeSet<SessionId>,
    /// Inodes that have a table.
    pub tables: BTreeSet<InodeIndex>,
    /// Locks of theirs were ended without their word.
    pub fences: Fences,
}

/// The sessions that hold locks in a container, and those that did.
///
/// Errors: as [`held_locks`].
pub fn lock_sessions(view: &mut dyn View, container: ContainerId) -> Result<LockSessions, Refusal> {
    let (mut from, to) = key::locks();
    let mut sessions = LockSessions::default();
    loop {
        let rows = view.scan(container, &from, &to, TABLES_PER_SCAN)?;
        let Some((last, _)) = rows.last() else {
            return Ok(sessions);
        };
        from = last.to_vec();
        from.push(0);
        for (key, value) in &rows {
            let locks = record::decode_locks(container, key, value)?;
            let holders = locks.sessions().map(|(session, _)| session);
            sessions.holders.extend(holders);
            let inode = inode_of(container, key)?;
            sessions.tables.insert(inode.index());
            sessions.fences.note(inode, &locks);
        }
    }
}

fn read(draft: &mut Draft<'_>, inode: InodeId) -> Result<HeldLocks, Refusal> {
    let key = Key::Locks(inode.index()).encode();
    let value = draft.get(inode.container(), &key)?;
    decode(inode, &key, value.as_deref())
}

fn decode(inode: InodeId, key: &[u8], value: Option<&[u8]>) -> Result<HeldLocks, Refusal> {
    value.map_or_else(
        || Ok(HeldLocks::default()),
        |value| record::decode_locks(inode.container(), key, value),
    )
}

fn write(draft: &mut Draft<'_>, inode: InodeId, before: &HeldLocks, locks: HeldLocks) {
    if locks == *before {
        return;
    }
    let key = Key::Locks(inode.index()).encode();
    if locks.is_empty() {
        draft.delete(inode.container(), key);
    } else {
        draft.put(inode.container(), key, record::encode_locks(locks));
    }
}
