//! File locks of one session: waiting, interruption, and which inodes may have locks to drop.

use crate::fs::{Done, FileLock};
use crate::vfs::Session;
use parking_lot::Mutex;
use perigee_meta::{LockKind, Op, Reply};
use perigee_types::{Errno, InodeId};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The first and the longest pause between two tries for a lock that somebody holds.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// What a session remembers of its locks.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Owners that have asked for a lock on an inode and not let go of all. An owner that is not
    /// here has nothing to drop at close, which spares an operation on each.
    owners: Mutex<BTreeSet<(InodeId, u64)>>,
    waiting: Mutex<HashSet<u64>>,
}

impl Locks {
    /// Whether `owner` may hold locks of `inode`; it is taken off the record.
    pub(crate) fn take_owner(&self, inode: InodeId, owner: u64) -> bool {
        self.owners.lock().remove(&(inode, owner))
    }

    /// Ends the wait of `request`, if it waits.
    pub(crate) fn interrupt(&self, request: u64) {
        self.waiting.lock().remove(&request);
    }
}

/// One try after another until the lock is had, the wait ends, or an error comes.
pub(crate) struct Attempt {
    pub(crate) session: Arc<Session>,
    pub(crate) inode: InodeId,
    pub(crate) lock: FileLock,
    /// The kernel's request, when it may wait.
    pub(crate) waits: Option<u64>,
    pub(crate) pause: Duration,
}

impl Attempt {
    pub(crate) fn start(
        session: Arc<Session>,
        inode: InodeId,
        lock: FileLock,
        waits: Option<u64>,
        done: Done<()>,
    ) {
        if lock.exclusive.is_some() {
            session.locks.owners.lock().insert((inode, lock.owner));
        }
        if let Some(request) = waits {
            session.locks.waiting.lock().insert(request);
        }
        Self {
            session,
            inode,
            lock,
            waits,
            pause: PAUSE.0,
        }
        .run(done);
    }

    fn run(self, done: Done<()>) {
        let op = Op::SetLock {
            inode: self.inode,
            session: self.session.id,
            lock: self.lock,
        };
        let session = self.session.clone();
        session.backend.execute(
            session.id,
            op,
            Box::new(move |result| match result {
                Ok((Reply::Blocked(_), _)) => self.blocked(done),
                Ok(_) => self.finish(done, Ok(())),
                Err(errno) => self.finish(done, Err(errno)),
            }),
        );
    }

    fn blocked(mut self, done: Done<()>) {
        let Some(request) = self.waits else {
            return done(Err(Errno::EAGAIN));
        };
        if !self.session.locks.waiting.lock().contains(&request) {
            return done(Err(Errno::EINTR));
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(PAUSE.1);
        let backend = self.session.backend.clone();
        backend.after(pause, Box::new(move || self.run(done)));
    }

    fn finish(self, done: Done<()>, result: Result<(), Errno>) {
        if let Some(request) = self.waits {
            let still_wanted = self.session.locks.waiting.lock().remove(&request);
            if !still_wanted && result.is_ok() {
                // The program has gone on without it: give the lock back, then say so.
                let unlock = FileLock {
                    exclusive: None,
                    ..self.lock
                };
                let op = Op::SetLock {
                    inode: self.inode,
                    session: self.session.id,
                    lock: unlock,
                };
                let id = self.session.id;
                return self.session.backend.execute(
                    id,
                    op,
                    Box::new(move |_| done(Err(Errno::EINTR))),
                );
            }
        }
        done(result);
    }
}

/// The kind of lock that a closing descriptor drops.
pub(crate) fn release(
    session: &Session,
    inode: InodeId,
    owner: u64,
    kind: LockKind,
    done: Done<()>,
) {
    if !session.locks.take_owner(inode, owner) {
        return done(Ok(()));
    }
    let op = Op::ReleaseLocks {
        inode,
        session: session.id,
        owner: Some(owner),
        kind: Some(kind),
    };
    session.backend.execute(
        session.id,
        op,
        Box::new(move |result| done(result.map(|_| ()))),
    );
}
