//! fcntl and flock locks, and the signals that call off waiting for one.

use super::Call;
use crate::fuse::session::Session;
use crate::fuse::wire::{self, Body, LockRequest};
use perigee_client::fs::{Done, FileLock, LockKind, Mode};
use perigee_types::{ByteRange, Errno, InodeId};
use std::sync::Arc;

/// The kernel's last byte of a file (`OFFSET_MAX`): "to the end".
const LAST_BYTE: u64 = i64::MAX as u64;

/// A program was interrupted while `unique` was under way. Only waiting for a lock can be called
/// off: what else is under way may have happened already, and has its own limit of time.
pub(super) fn interrupt(session: &Session, unique: u64) {
    if session.waiting.interrupt(unique) {
        session.fs.interrupt(unique);
    }
}

impl Call<'_> {
    pub(super) fn getlk(self, request: &LockRequest) {
        let Some(lock) = file_lock(request) else {
            return self.reply.error(Errno::EINVAL);
        };
        let reply = self.reply;
        let answer = |found: Option<FileLock>| found.map_or_else(no_lock, |lock| lock_body(&lock));
        self.session.fs.getlk(
            self.inode,
            lock,
            Box::new(move |result| reply.body_or_error(result.map(answer))),
        );
    }

    pub(super) fn setlk(self, request: &LockRequest, wait: bool) {
        let Some(lock) = file_lock(request) else {
            return self.reply.error(Errno::EINVAL);
        };
        let (unique, inode, reply) = (self.unique, self.inode, self.reply);
        if lock.kind == LockKind::Posix && lock.mode.is_some() {
            self.session
                .lock_owners
                .locked(inode, request.handle, lock.owner);
        }
        if wait && !self.session.waiting.begin(unique) {
            return reply.error(Errno::EINTR);
        }
        let session = Arc::clone(self.session);
        let done: Done<()> = Box::new(move |result| reply.done(result));
        let ask = move || session.ask_lock(inode, lock, wait.then_some(unique), done);
        match lock.kind {
            LockKind::Posix => self.session.lock_owners.in_turn(inode, lock.owner, ask),
            LockKind::Flock | LockKind::Service | LockKind::Cover => ask(),
        }
    }
}

impl Session {
    /// Asks for a lock; `wait`: the request that waits for it.
    pub(super) fn ask_lock(
        self: Arc<Self>,
        inode: InodeId,
        lock: FileLock,
        wait: Option<u64>,
        done: Done<()>,
    ) {
        let Some(unique) = wait else {
            return self.fs.setlk(inode, lock, false, 0, done);
        };
        let session = self.clone();
        let done = Box::new(move |result| {
            session.waiting.end(unique);
            done(result);
        });
        self.fs.setlk(inode, lock, true, unique, done);
        if self.waiting.entered(unique) {
            self.fs.interrupt(unique);
        }
    }

    /// Drops the locks of fcntl whose owner was the open file.
    pub(super) fn end_locks(self: &Arc<Self>, inode: InodeId, handle: u64) {
        for owner in self.lock_owners.released(inode, handle) {
            let lock = FileLock {
                kind: LockKind::Posix,
                owner,
                range: ByteRange::ALL,
                mode: None,
                pid: 0,
            };
            let session = self.clone();
            // The file is closed: there is nobody left whom a refusal would concern.
            let done = Box::new(move |_| session.lock_owners.ended(inode, owner));
            self.fs.setlk(inode, lock, false, 0, done);
        }
    }
}

fn file_lock(request: &LockRequest) -> Option<FileLock> {
    let kind = match request.flags & wire::LK_FLOCK {
        0 => LockKind::Posix,
        _ => LockKind::Flock,
    };
    let mode = match i32::try_from(request.kind).ok()? {
        libc::F_RDLCK => Some(Mode::ProtectedRead),
        libc::F_WRLCK => Some(Mode::Exclusive),
        libc::F_UNLCK => None,
        _ => return None,
    };
    if request.first > request.last {
        return None;
    }
    let end = if request.last >= LAST_BYTE {
        u64::MAX
    } else {
        request.last + 1
    };
    let range = ByteRange::new(request.first, end);
    // The kernel's name for an open file may be that of the next one before the end of this one is told.
    let owner = match kind {
        LockKind::Posix => request.owner,
        LockKind::Flock | LockKind::Service | LockKind::Cover => request.handle,
    };
    Some(FileLock {
        kind,
        owner,
        range,
        mode,
        pid: request.pid,
    })
}

fn lock_body(lock: &FileLock) -> Body {
    let kind = match lock.mode {
        Some(mode) if mode.is_for_reading() => libc::F_RDLCK,
        Some(_) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    let last = lock.range.end.saturating_sub(1).min(LAST_BYTE);
    Body::lock(lock.range.start, last, kind.cast_unsigned(), lock.pid)
}

fn no_lock() -> Body {
    Body::lock(0, LAST_BYTE, libc::F_UNLCK.cast_unsigned(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(first: u64, last: u64, kind: i32) -> LockRequest {
        LockRequest {
            handle: 1,
            owner: 9,
            first,
            last,
            kind: kind.cast_unsigned(),
            pid: 4,
            flags: 0,
        }
    }

    #[test]
    fn both_ends_of_the_kernels_range_belong_to_it() {
        let lock = file_lock(&request(10, 19, libc::F_RDLCK)).unwrap();
        assert_eq!(
            (lock.range, lock.mode),
            (ByteRange::new(10, 20), Some(Mode::ProtectedRead))
        );
        let to_end = file_lock(&request(5, LAST_BYTE, libc::F_WRLCK)).unwrap();
        assert_eq!(to_end.range, ByteRange::new(5, u64::MAX));
        assert_eq!(lock_body(&to_end).bytes()[8..16], LAST_BYTE.to_ne_bytes());
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(file_lock(&request(5, 4, libc::F_WRLCK)), None);
        assert_eq!(file_lock(&request(0, 4, 77)), None);
    }

    #[test]
    fn flock_is_told_from_fcntl() {
        let flock = LockRequest {
            flags: wire::LK_FLOCK,
            ..request(0, LAST_BYTE, libc::F_WRLCK)
        };
        assert_eq!(file_lock(&flock).unwrap().kind, LockKind::Flock);
        assert_eq!(
            file_lock(&request(0, 1, libc::F_WRLCK)).unwrap().kind,
            LockKind::Posix
        );
    }
}
