//! `fcntl` and `flock` locks. They are state like any other, so a new owner of the container knows
//! them. Who waits for one is not: see [`crate::queue`].

use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::lock::{self, FileLock, Holder, LockKind};
use crate::op::Reply;
use crate::record::{self, HeldLocks};
use crate::view::View;
use perigee_types::{ContainerId, Errno, InodeId, SessionId};
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
    Ok(Reply::Lock(lock::conflict(&locks, session, asked)))
}

pub(crate) fn set(
    draft: &mut Draft<'_>,
    inode: InodeId,
    session: SessionId,
    asked: &FileLock,
) -> Result<Reply, Refusal> {
    draft.inode(inode)?;
    if asked.kind == LockKind::Posix && asked.range.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    let before = read(draft, inode)?;
    let mut locks = before.clone();
    if let Some(conflict) = lock::conflict(&locks, session, asked) {
        // A flock that is converted is given up first, as Linux has it: else two who share one and
        // both want it alone would wait for ever.
        if asked.kind == LockKind::Flock {
            lock::release(
                &mut locks,
                session,
                Some(asked.owner),
                Some(LockKind::Flock),
            );
            write(draft, inode, &before, locks);
        }
        return Ok(Reply::Blocked(conflict));
    }
    if !lock::set(&mut locks, session, asked) {
        return Err(Errno::ENOLCK.into());
    }
    write(draft, inode, &before, locks);
    Ok(Reply::Done)
}

pub(crate) fn release(
    draft: &mut Draft<'_>,
    inode: InodeId,
    holder: Holder,
    kind: Option<LockKind>,
) -> Result<Reply, Refusal> {
    let before = read(draft, inode)?;
    let mut locks = before.clone();
    lock::release(&mut locks, holder.session, holder.owner, kind);
    write(draft, inode, &before, locks);
    Ok(Reply::Done)
}

pub(crate) fn release_session(
    draft: &mut Draft<'_>,
    container: ContainerId,
    session: SessionId,
) -> Result<Reply, Refusal> {
    let (mut from, to) = key::locks();
    let mut released = Vec::new();
    loop {
        let range = (from, to.clone());
        let rows = draft.scan(container, &range, TABLES_PER_SCAN)?;
        for (key, value) in &rows {
            let Some(Key::Locks(index)) = Key::decode(key) else {
                return Err(record::corrupt(
                    container,
                    key,
                    "not the key of a lock table",
                ));
            };
            let inode = InodeId::new(container, index);
            let before = record::decode_locks(container, key, value)?;
            let mut locks = before.clone();
            lock::release(&mut locks, session, None, None);
            if locks != before {
                write(draft, inode, &before, locks);
                released.push(inode);
            }
        }
        let Some((last, _)) = rows.last() else {
            return Ok(Reply::Inodes(released));
        };
        from = last.to_vec();
        from.push(0);
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

/// The sessions that hold locks in a container.
///
/// Errors: as [`held_locks`].
pub fn lock_sessions(
    view: &mut dyn View,
    container: ContainerId,
) -> Result<BTreeSet<SessionId>, Refusal> {
    let (mut from, to) = key::locks();
    let mut sessions = BTreeSet::new();
    loop {
        let rows = view.scan(container, &from, &to, TABLES_PER_SCAN)?;
        let Some((last, _)) = rows.last() else {
            return Ok(sessions);
        };
        from = last.to_vec();
        from.push(0);
        for (key, value) in &rows {
            let locks = record::decode_locks(container, key, value)?;
            sessions.extend(locks.sessions().map(|(session, _)| session));
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
    if locks.posix.is_empty() && locks.flock.is_empty() {
        draft.delete(inode.container(), key);
    } else {
        draft.put(inode.container(), key, record::encode_locks(locks));
    }
}
