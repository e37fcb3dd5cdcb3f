//! File locks of one session: waiting, interruption, and which inodes may have locks to drop.
//!
//! Who waits and whose turn it is, is decided at the owner ([`perigee_meta::queue`]). A session asks,
//! sleeps until it is told to ask again or [`ASK_AGAIN`] has passed, and withdraws when its program
//! no longer waits.

use crate::fs::{Done, FileLock};
use crate::session::Session;
use parking_lot::Mutex;
use perigee_meta::queue::ASK_AGAIN;
use perigee_meta::{LockKind, Op, Patience, Reply, Token, WaitId};
use perigee_types::{Errno, InodeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a session remembers of its locks.
#[derive(Default)]
pub(crate) struct Locks {
    /// Owners that have asked for a lock on an inode and not let go of all. An owner that is not
    /// here has nothing to drop at close, which spares an operation on each. With the token of its last grant.
    owners: Mutex<BTreeMap<(InodeId, LockKind, u64), Option<Token>>>,
    waits: Mutex<HashMap<WaitId, Wait>>,
}

/// How far a wait has come.
enum Wait {
    /// The owner is being asked. `told`: it has said meanwhile that the turn has come.
    Asking { told: bool },
    /// Somebody holds the lock.
    Sleeping(Box<Sleeper>),
    /// The program does not wait any more; the owner has not answered yet.
    CalledOff,
}

struct Sleeper {
    attempt: Attempt,
    done: Done<()>,
}

impl Locks {
    /// Whether `owner` may hold locks of `inode`; it is taken off the record.
    pub(crate) fn take_owner(&self, inode: InodeId, kind: LockKind, owner: u64) -> bool {
        self.owners.lock().remove(&(inode, kind, owner)).is_some()
    }

    /// The token of the last lock of `inode` that `owner` was granted and has not let go of with all others.
    pub(crate) fn token(&self, inode: InodeId, kind: LockKind, owner: u64) -> Option<Token> {
        let owners = self.owners.lock();
        owners.get(&(inode, kind, owner)).copied().flatten()
    }

    fn granted(&self, inode: InodeId, lock: &FileLock, token: Token) {
        let key = (inode, lock.kind, lock.owner);
        if let Some(last) = self.owners.lock().get_mut(&key) {
            *last = Some(token);
        }
    }

    /// The owner says that the turn of `wait` has come.
    pub(crate) fn turn(&self, wait: WaitId) {
        if let Some(sleeper) = self.wake(wait, None) {
            sleeper.attempt.run(sleeper.done);
        }
    }

    /// Ends the wait, if it still waits.
    pub(crate) fn interrupt(&self, wait: WaitId) {
        let mut waits = self.waits.lock();
        match waits.remove(&wait) {
            Some(Wait::Sleeping(sleeper)) => {
                drop(waits);
                sleeper.attempt.call_off(sleeper.done);
            }
            Some(Wait::Asking { .. } | Wait::CalledOff) => {
                waits.insert(wait, Wait::CalledOff);
            }
            None => {}
        }
    }

    /// Ends every wait.
    pub(crate) fn interrupt_all(&self) {
        let waits: Vec<WaitId> = self.waits.lock().keys().copied().collect();
        for wait in waits {
            self.interrupt(wait);
        }
    }

    /// Whoever sleeps in `wait` is to ask again: at the word of the owner, or after `round`.
    fn wake(&self, wait: WaitId, round: Option<u64>) -> Option<Box<Sleeper>> {
        let mut waits = self.waits.lock();
        let state = waits.get_mut(&wait)?;
        match state {
            Wait::Asking { told } => {
                *told |= round.is_none();
                return None;
            }
            Wait::Sleeping(sleeper) if round.is_none_or(|round| round == sleeper.attempt.round) => {
            }
            Wait::Sleeping(_) | Wait::CalledOff => return None,
        }
        match std::mem::replace(state, Wait::Asking { told: false }) {
            Wait::Sleeping(sleeper) => Some(sleeper),
            Wait::Asking { .. } | Wait::CalledOff => None,
        }
    }
}

/// One try after another until the lock is had, the wait ends, or an error comes.
pub(crate) struct Attempt {
    session: Arc<Session>,
    inode: InodeId,
    lock: FileLock,
    patience: Patience,
    /// Counts the tries.
    round: u64,
}

impl Attempt {
    pub(crate) fn start(
        session: Arc<Session>,
        inode: InodeId,
        lock: FileLock,
        patience: Patience,
        done: Done<()>,
    ) {
        if lock.mode.is_some() {
            let mut owners = session.locks.owners.lock();
            owners.entry((inode, lock.kind, lock.owner)).or_default();
        }
        if let Patience::Wait(wait) = patience {
            let asking = Wait::Asking { told: false };
            session.locks.waits.lock().insert(wait, asking);
        }
        Self {
            session,
            inode,
            lock,
            patience,
            round: 0,
        }
        .run(done);
    }

    fn run(mut self, done: Done<()>) {
        self.round += 1;
        let op = Op::SetLock {
            inode: self.inode,
            session: self.session.id,
            lock: self.lock,
            patience: self.patience,
        };
        let session = self.session.clone();
        session.backend.execute(
            session.id,
            op,
            Box::new(move |result| match result {
                Ok((Reply::Blocked(_), _)) => self.blocked(done),
                Ok((Reply::Granted(token), _)) => {
                    self.session.locks.granted(self.inode, &self.lock, token);
                    self.finish(done, Ok(()));
                }
                Ok(_) => self.finish(done, Ok(())),
                Err(errno) => self.finish(done, Err(errno)),
            }),
        );
    }

    fn blocked(self, done: Done<()>) {
        let Patience::Wait(wait) = self.patience else {
            return done(Err(Errno::EAGAIN));
        };
        let session = self.session.clone();
        let round = self.round;
        {
            let mut waits = session.locks.waits.lock();
            match waits.get(&wait) {
                Some(Wait::Asking { told: false }) => {
                    let attempt = self;
                    let sleeper = Box::new(Sleeper { attempt, done });
                    waits.insert(wait, Wait::Sleeping(sleeper));
                }
                Some(Wait::Asking { told: true }) => {
                    waits.insert(wait, Wait::Asking { told: false });
                    drop(waits);
                    return self.run(done);
                }
                Some(Wait::CalledOff | Wait::Sleeping(_)) | None => {
                    waits.remove(&wait);
                    drop(waits);
                    return self.call_off(done);
                }
            }
        }
        let backend = session.backend.clone();
        let again = move || {
            if let Some(sleeper) = session.locks.wake(wait, Some(round)) {
                sleeper.attempt.run(sleeper.done);
            }
        };
        backend.after(ASK_AGAIN.as_duration(), Box::new(again));
    }

    /// The program has gone on: the owner is told, who forgets the wait by itself if the word is
    /// lost.
    fn call_off(self, done: Done<()>) {
        if let Patience::Wait(wait) = self.patience {
            let op = Op::WithdrawLock {
                inode: self.inode,
                session: self.session.id,
                wait,
            };
            let id = self.session.id;
            self.session.backend.execute(id, op, Box::new(|_| {}));
        }
        done(Err(Errno::EINTR));
    }

    fn finish(self, done: Done<()>, result: Result<(), Errno>) {
        let Patience::Wait(wait) = self.patience else {
            return done(result);
        };
        let state = self.session.locks.waits.lock().remove(&wait);
        let wanted = matches!(state, Some(Wait::Asking { .. }));
        if wanted || result.is_err() {
            return done(result);
        }
        // The program has gone on without it: give the lock back, then say so.
        let unlock = FileLock {
            mode: None,
            ..self.lock
        };
        let op = Op::SetLock {
            inode: self.inode,
            session: self.session.id,
            lock: unlock,
            patience: Patience::Refuse,
        };
        let id = self.session.id;
        let answer = Box::new(move |_| done(Err(Errno::EINTR)));
        self.session.backend.execute(id, op, answer);
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
    if !session.locks.take_owner(inode, kind, owner) {
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
