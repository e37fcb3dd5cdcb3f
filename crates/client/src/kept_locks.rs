//! The locks that a session keeps when no program uses them: flocks, and those of the lock service.
//!
//! [`perigee_meta::lock::kept`] decides; this asks the owner, tells it what is given back, and knows which open file uses
//! which lock. A program's lock is a use of one that the container's owner has granted to this session under a name of its
//! own: so the owner is asked once for many.

use crate::fs::{Done, FileLock};
use crate::locks::Attempt;
use crate::session::Session;
use parking_lot::Mutex;
use perigee_meta::lock::kept::{Fate, Kept, KeptId, Wanted};
use perigee_meta::{LockKind, Op, Patience, Token};
use perigee_types::{ByteRange, Errno, InodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// A lock that nobody uses for so long is given back.
const IDLE: Duration = Duration::from_secs(30);
/// Before the owner is told again what it may not have heard.
const AGAIN: Duration = Duration::from_secs(1);

/// What has a lock: an open file, by its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct User {
    inode: InodeId,
    kind: LockKind,
    owner: u64,
}

/// What it uses for that.
#[derive(Debug, Clone, Copy)]
struct Use {
    id: KeptId,
    wanted: Wanted,
}

/// All of a session.
#[derive(Default)]
pub(crate) struct KeptLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Kept,
    uses: BTreeMap<User, Use>,
    /// Those that are looked at when they have been idle for a while.
    looked_at: BTreeSet<KeptId>,
    /// Names of locks, for the owner.
    last: u64,
    over: bool,
}

/// A lock that is wanted.
struct Request {
    user: User,
    wanted: Wanted,
    lock: FileLock,
    patience: Patience,
}

/// Takes a lock, or lets one go. Another lock of the same open file is given up first, as flock(2) has it.
pub(crate) fn set(
    session: Arc<Session>,
    inode: InodeId,
    lock: FileLock,
    patience: Patience,
    done: Done<()>,
) {
    let user = User {
        inode,
        kind: lock.kind,
        owner: lock.owner,
    };
    let Some(mode) = lock.mode else {
        return let_go(&session, user, Box::new(move || done(Ok(()))));
    };
    let range = match lock.kind {
        LockKind::Flock => ByteRange::ALL,
        LockKind::Posix | LockKind::Service | LockKind::Cover => lock.range,
    };
    if range.is_empty() {
        return done(Err(Errno::EINVAL));
    }
    let wanted = Wanted {
        inode,
        kind: lock.kind,
        range,
        mode,
    };
    let had = session.kept_locks.state.lock().uses.get(&user).copied();
    if had.is_some_and(|had| had.wanted == wanted) {
        return done(Ok(()));
    }
    let request = Request {
        user,
        wanted,
        lock,
        patience,
    };
    let asker = session.clone();
    let_go(
        &session,
        user,
        Box::new(move || begin(&asker, request, done)),
    );
}

/// Serves a request with a lock that is kept, or asks the owner for one.
fn begin(session: &Arc<Session>, request: Request, done: Done<()>) {
    let (way, id) = {
        let mut state = session.kept_locks.state.lock();
        let wanted = request.wanted;
        if let Some((id, _)) = state.kept.begin(wanted, session.backend.life()) {
            state.uses.insert(request.user, Use { id, wanted });
            drop(state);
            return done(Ok(()));
        }
        state.last += 1;
        let id = KeptId {
            inode: wanted.inode,
            kind: wanted.kind,
            owner: state.last,
        };
        state.kept.asks(id);
        (state.kept.make_way(wanted), id)
    };
    let asker = session.clone();
    let ask = Box::new(move || ask(asker, request, id, done));
    give_back_all(session.clone(), way, ask);
}

fn ask(session: Arc<Session>, request: Request, id: KeptId, done: Done<()>) {
    let lock = FileLock {
        owner: id.owner,
        ..request.lock
    };
    let asker = session.clone();
    let had = Box::new(move |result: Result<(), Errno>| {
        let token = asker.locks.token(id.inode, id.kind, id.owner);
        asker.locks.take_owner(id.inode, id.kind, id.owner);
        let mut state = asker.kept_locks.state.lock();
        let granted = result.and_then(|()| token.ok_or(Errno::EIO));
        match granted {
            Ok(token) => {
                let (user, wanted) = (request.user, request.wanted);
                state.kept.granted(id, wanted, token);
                state.uses.insert(user, Use { id, wanted });
            }
            // Should the owner have granted it all the same, it calls for it when it stands in somebody's way.
            Err(_) => state.kept.gives_up(id),
        }
        drop(state);
        done(granted.map(|_| ()));
    });
    Attempt::start(session, id.inode, lock, request.patience, had);
}

/// An open file lets its lock go, if it has one.
fn let_go(session: &Arc<Session>, user: User, then: Box<dyn FnOnce() + Send>) {
    let (id, fate, look) = {
        let mut state = session.kept_locks.state.lock();
        let Some(Use { id, wanted }) = state.uses.remove(&user) else {
            drop(state);
            return then();
        };
        let fate = state.kept.end(id, wanted, session.backend.life());
        let rests = state.kept.rests_since(id);
        let look = rests.filter(|_| state.looked_at.insert(id));
        (id, fate, look)
    };
    if let Some(since) = look {
        look_later(session.clone(), id, since);
    }
    match fate {
        Fate::GivenBack => give_back(session.clone(), id, then),
        Fate::Stays => then(),
    }
}

/// The file is closed: its locks go.
pub(crate) fn released(session: &Arc<Session>, inode: InodeId, owner: u64) {
    for kind in [LockKind::Flock, LockKind::Service] {
        let user = User { inode, kind, owner };
        let_go(session, user, Box::new(|| ()));
    }
}

fn look_later(session: Arc<Session>, id: KeptId, since: u64) {
    let backend = session.backend.clone();
    let look = move || {
        let (fate, next) = {
            let mut state = session.kept_locks.state.lock();
            let fate = state.kept.rested(id, since);
            let next = state.kept.rests_since(id).filter(|_| !state.over);
            if next.is_none() {
                state.looked_at.remove(&id);
            }
            (fate, next)
        };
        if let Some(since) = next {
            return look_later(session, id, since);
        }
        if fate == Fate::GivenBack {
            give_back(session, id, Box::new(|| ()));
        }
    };
    backend.after(IDLE, Box::new(look));
}

/// Locks go back to the owner, one after the other.
fn give_back_all(session: Arc<Session>, mut ids: Vec<KeptId>, then: Box<dyn FnOnce() + Send>) {
    let Some(id) = ids.pop() else {
        return then();
    };
    let next = session.clone();
    let rest = Box::new(move || give_back_all(next, ids, then));
    give_back(session, id, rest);
}

/// A lock goes back to the owner. `then`: when that has heard of it, or could not be asked; it is told again in that case.
pub(crate) fn give_back(session: Arc<Session>, id: KeptId, then: Box<dyn FnOnce() + Send>) {
    let unlock = Op::SetLock {
        inode: id.inode,
        session: session.id,
        lock: FileLock {
            kind: id.kind,
            owner: id.owner,
            range: ByteRange::ALL,
            mode: None,
            pid: 0,
        },
        patience: Patience::Refuse,
    };
    let backend = session.backend.clone();
    let name = session.id;
    let told = move |result: Result<_, Errno>| {
        match result {
            // The file is gone, and its locks with it.
            Ok(_) | Err(Errno::ESTALE | Errno::ENOENT) => {}
            Err(errno) if session.kept_locks.state.lock().over => {
                debug!(?id, %errno, "a lock of a mount that ends was not given back");
            }
            Err(errno) => {
                debug!(?id, %errno, "a lock was not given back yet");
                let again = session.clone();
                let give = move || give_back(again, id, Box::new(|| ()));
                session.backend.after(AGAIN, Box::new(give));
            }
        }
        then();
    };
    backend.execute(name, unlock, Box::new(told));
}

impl KeptLocks {
    /// The token of the lock that an open file has.
    pub(crate) fn token(&self, inode: InodeId, kind: LockKind, owner: u64) -> Option<Token> {
        let state = self.state.lock();
        let used = state.uses.get(&User { inode, kind, owner })?;
        state.kept.token(used.id)
    }

    /// The session ends: its owners end its locks.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
    }

    /// A lock stands in somebody's way.
    pub(crate) fn called(session: Arc<Session>, id: KeptId, done: Box<dyn FnOnce(Fate) + Send>) {
        let fate = session.kept_locks.state.lock().kept.called(id);
        match fate {
            Fate::GivenBack => give_back(session, id, Box::new(move || done(fate))),
            Fate::Stays => done(fate),
        }
    }

    /// This host has shown no sign of life for so long that its locks may have been ended.
    pub(crate) fn lapsed(session: &Arc<Session>) {
        let idle = session.kept_locks.state.lock().kept.lapsed();
        give_back_all(session.clone(), idle, Box::new(|| ()));
    }
}
