//! File locks of one session: waiting, interruption, and which inodes may have locks to drop.
//!
//! Who waits and whose turn it is, is decided at the owner ([`perigee_meta::queue`]). A session asks,
//! sleeps until it is told to ask again or [`ASK_AGAIN`] has passed, and withdraws when its program
//! no longer waits.

use crate::fs::{Done, FileLock};
use crate::record_locks::{self, Decided, What};
use crate::session::{Session, unexpected};
use parking_lot::Mutex;
use perigee_meta::lock::cover::{Outcome, Request};
use perigee_meta::queue::ASK_AGAIN;
use perigee_meta::{LockKind, Op, Patience, Reply, Token, WaitId};
use perigee_types::{ByteRange, Errno, InodeId};
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
    /// Whether it may have a place at the owner.
    place: Place,
}

/// Where a wait may be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In this session alone.
    Here,
    /// At the owner, too.
    Owner,
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
            place: Place::Here,
        }
        .run(done);
    }

    fn run(mut self, done: Done<()>) {
        self.round += 1;
        if self.lock.kind != LockKind::Posix {
            return self.ask_owner(done);
        }
        let session = self.session.clone();
        let request = Request {
            inode: self.inode,
            lock: self.lock,
            patience: self.patience,
        };
        let then = move |decided| match decided {
            Decided::Here(result) => self.told(done, result),
            Decided::Owner => self.ask_owner(done),
        };
        record_locks::decide(&session, What::Request(request), Box::new(then));
    }

    fn ask_owner(mut self, done: Done<()>) {
        self.place = Place::Owner;
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
            Box::new(move |result| {
                let result = result.map(|(reply, _)| reply);
                if self.lock.kind == LockKind::Posix {
                    let outcome = match result {
                        Ok(Reply::Granted(_)) => Outcome::Granted,
                        Ok(Reply::Done) => Outcome::LetGo,
                        Ok(_) | Err(_) => Outcome::Unchanged,
                    };
                    record_locks::answered(&self.session, self.inode, &self.lock, outcome);
                }
                self.told(done, result);
            }),
        );
    }

    fn told(self, done: Done<()>, result: Result<Reply, Errno>) {
        match result {
            Ok(Reply::Blocked(_)) => self.blocked(done),
            Ok(Reply::Granted(token)) => {
                self.session.locks.granted(self.inode, &self.lock, token);
                self.finish(done, Ok(()));
            }
            Ok(_) => self.finish(done, Ok(())),
            Err(errno) => self.finish(done, Err(errno)),
        }
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
        if let Patience::Wait(wait) = self.patience
            && self.lock.kind == LockKind::Posix
        {
            record_locks::withdraw(&self.session, self.inode, wait);
        }
        if let Patience::Wait(wait) = self.patience
            && self.place == Place::Owner
        {
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
        let answer = Box::new(move |_| done(Err(Errno::EINTR)));
        Self::start(self.session, self.inode, unlock, Patience::Refuse, answer);
    }
}

/// A descriptor is closed: the `fcntl` locks of its process end.
pub(crate) fn release(session: &Arc<Session>, inode: InodeId, owner: u64, done: Done<()>) {
    if !session.locks.take_owner(inode, LockKind::Posix, owner) {
        return done(Ok(()));
    }
    let lock = FileLock {
        kind: LockKind::Posix,
        owner,
        range: ByteRange::ALL,
        mode: None,
        pid: 0,
    };
    let request = Request {
        inode,
        lock,
        patience: Patience::Refuse,
    };
    let asker = session.clone();
    let then = move |decided| match decided {
        Decided::Here(result) => done(result.map(|_| ())),
        Decided::Owner => release_at_owner(asker, inode, lock, done),
    };
    record_locks::decide(session, What::Request(request), Box::new(then));
}

fn release_at_owner(session: Arc<Session>, inode: InodeId, lock: FileLock, done: Done<()>) {
    let op = Op::ReleaseLocks {
        inode,
        session: session.id,
        owner: Some(lock.owner),
        kind: Some(lock.kind),
    };
    let asker = session.clone();
    let answer = move |result: Result<_, Errno>| {
        let outcome = match result {
            Ok(_) => Outcome::LetGo,
            Err(_) => Outcome::Unchanged,
        };
        record_locks::answered(&asker, inode, &lock, outcome);
        done(result.map(|_| ()));
    };
    session.backend.execute(session.id, op, Box::new(answer));
}

/// Finds the first lock that stands in the way of one.
pub(crate) fn look(
    session: &Arc<Session>,
    inode: InodeId,
    lock: FileLock,
    done: Done<Option<FileLock>>,
) {
    let found = |result| match result {
        Ok(Reply::Lock(found)) => Ok(found),
        Ok(_) => unexpected(),
        Err(errno) => Err(errno),
    };
    let asker = session.clone();
    let then = move |decided| match decided {
        Decided::Here(result) => done(found(result)),
        Decided::Owner => {
            let op = Op::GetLock {
                inode,
                session: asker.id,
                lock,
            };
            let answer = move |result: Result<(Reply, _), Errno>| {
                done(found(result.map(|(reply, _)| reply)));
            };
            asker.backend.execute(asker.id, op, Box::new(answer));
        }
    };
    match lock.kind {
        LockKind::Posix => {
            record_locks::decide(session, What::Look(inode, lock), Box::new(then));
        }
        LockKind::Flock | LockKind::Service | LockKind::Cover => then(Decided::Owner),
    }
}
