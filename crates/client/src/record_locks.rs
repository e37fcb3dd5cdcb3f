//! The `fcntl` locks of one session's programs.
//!
//! [`perigee_meta::lock::cover`] says who decides about each; this asks the owner for covers and gives them back, and lets
//! requests wait that nobody can decide about yet.

use crate::fs::FileLock;
use crate::kept_locks::give_back;
use crate::session::Session;
use parking_lot::{Mutex, MutexGuard};
use perigee_meta::lock::cover::{
    Called, CoverAnswer, Covers, Decision, EndAnswer, Outcome, Request, Step,
};
use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::{Op, Patience, Reply, WaitId};
use perigee_types::{Errno, InodeId, SessionId, Tick};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::debug;

/// A cover under which nobody has a lock is given back after so long.
const IDLE: Duration = Duration::from_secs(30);
/// Before the owner is told again what it may not have heard.
const AGAIN: Duration = Duration::from_secs(1);

/// Who has decided about a request.
pub(crate) enum Decided {
    /// This session, or nobody could: this is the answer.
    Here(Result<Reply, Errno>),
    /// The owner is to be asked; [`answered`] is told of what it says to a request.
    Owner,
}

type Then = Box<dyn FnOnce(Decided) + Send>;
type Told = Box<dyn FnOnce(Fate) + Send>;

/// What a program wants to be decided.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// It takes a lock, or lets it go.
    Request(Request),
    /// It looks whether it could have one.
    Look(InodeId, FileLock),
}

impl What {
    const fn inode(&self) -> InodeId {
        match self {
            Self::Request(request) => request.inode,
            Self::Look(inode, _) => *inode,
        }
    }
}

/// All of a session.
pub(crate) struct RecordLocks {
    /// Ticks count from here.
    started: Instant,
    state: Mutex<State>,
}

struct State {
    covers: Covers,
    /// What is decided once the owner has answered.
    later: BTreeMap<InodeId, Vec<(What, Then)>>,
    /// Owners that wait for covers that they have called for.
    callers: BTreeMap<KeptId, Vec<Told>>,
    /// Those that are looked at when they have been idle for a while.
    looked_at: BTreeSet<KeptId>,
    over: bool,
}

impl RecordLocks {
    pub(crate) fn new(session: SessionId) -> Self {
        let state = State {
            covers: Covers::new(session),
            later: BTreeMap::new(),
            callers: BTreeMap::new(),
            looked_at: BTreeSet::new(),
            over: false,
        };
        Self {
            started: Instant::now(),
            state: Mutex::new(state),
        }
    }

    fn now(&self) -> Tick {
        let micros = self.started.elapsed().as_micros();
        Tick(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The session ends: its owners end its locks.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.over = true;
        state.callers.clear();
    }

    /// Who waits for whom by what this session decides.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.state().covers.waits().collect()
    }
}

/// Finds who decides; `then` is told, now or later.
pub(crate) fn decide(session: &Arc<Session>, what: What, then: Then) {
    let life = session.backend.life();
    let now = session.record_locks.now();
    let (decided, steps) = {
        let mut state = session.record_locks.state();
        let covers = &mut state.covers;
        let (decision, steps) = match &what {
            What::Request(request) => covers.request(now, request, life),
            What::Look(inode, lock) => covers.look(*inode, lock, life),
        };
        let decided = match decision {
            Decision::Here(result) => Some((Decided::Here(result), then)),
            Decision::Owner => Some((Decided::Owner, then)),
            Decision::Later => {
                let later = state.later.entry(what.inode()).or_default();
                later.push((what, then));
                None
            }
        };
        (decided, steps)
    };
    perform(session, steps);
    if let Some((decided, then)) = decided {
        if matches!(decided, Decided::Here(_)) {
            look_later(session, what.inode());
        }
        then(decided);
    }
}

/// The owner has answered a request that was its to decide.
pub(crate) fn answered(session: &Arc<Session>, inode: InodeId, lock: &FileLock, outcome: Outcome) {
    let life = session.backend.life();
    let steps = {
        let mut state = session.record_locks.state();
        state.covers.answered(inode, lock, outcome, life)
    };
    perform(session, steps);
}

/// A program does not wait any more.
pub(crate) fn withdraw(session: &Arc<Session>, inode: InodeId, wait: WaitId) {
    let now = session.record_locks.now();
    let steps = session
        .record_locks
        .state()
        .covers
        .withdraw(now, inode, wait);
    perform(session, steps);
}

/// A cover stands in somebody's way. `done`: when the owner knows what is under it instead.
pub(crate) fn called(session: &Arc<Session>, id: KeptId, done: Told) {
    let called = {
        let mut state = session.record_locks.state();
        let called = state.covers.called(id);
        match called {
            Called::Ends(steps) => {
                state.callers.entry(id).or_default().push(done);
                Ok(steps)
            }
            Called::Unknown => Err(done),
        }
    };
    match called {
        Ok(steps) => perform(session, steps),
        Err(done) => {
            let then = Box::new(move || done(Fate::GivenBack));
            give_back(session.clone(), id, then);
        }
    }
}

/// This host has shown no sign of life for so long that its locks may have been ended.
pub(crate) fn lapsed(session: &Arc<Session>) {
    let steps = session.record_locks.state().covers.lapsed();
    perform(session, steps);
}

fn perform(session: &Arc<Session>, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Ask(id) => ask(session, id),
            Step::End(id, locks) => end(session, id, locks),
            Step::GoOn(inode) => {
                let later = session.record_locks.state().later.remove(&inode);
                for (what, then) in later.into_iter().flatten() {
                    decide(session, what, then);
                }
            }
            Step::GiveUp(id) => give_up(session, id),
            Step::Wake(wait) => session.locks.turn(wait),
        }
    }
}

fn ask(session: &Arc<Session>, id: KeptId) {
    let cover = Op::SetLock {
        inode: id.inode,
        session: session.id,
        lock: Covers::cover(id),
        patience: Patience::Refuse,
    };
    let asker = session.clone();
    let told = move |result: Result<(Reply, Duration), Errno>| {
        let answer = match result {
            Ok((Reply::Granted(token), _)) => CoverAnswer::Granted(token),
            // A host that may only read keeps nobody out.
            Ok(_) | Err(Errno::EAGAIN | Errno::EROFS) => CoverAnswer::Refused,
            Err(_) => CoverAnswer::Unknown,
        };
        let steps = asker.record_locks.state().covers.cover_answered(id, answer);
        perform(&asker, steps);
        tell_callers(&asker, id);
        look_later(&asker, id.inode);
    };
    session.backend.execute(session.id, cover, Box::new(told));
}

fn end(session: &Arc<Session>, id: KeptId, locks: Vec<FileLock>) {
    let end = Op::EndCover {
        inode: id.inode,
        session: session.id,
        cover: id.owner,
        locks,
    };
    let teller = session.clone();
    let told = move |result: Result<_, Errno>| {
        let answer = match result {
            Ok(_) => EndAnswer::Done,
            Err(Errno::ESTALE | Errno::ENOENT) => EndAnswer::Gone,
            Err(errno) => {
                debug!(?id, %errno, "a cover was not given back yet");
                EndAnswer::Unknown
            }
        };
        let steps = teller.record_locks.state().covers.ended(id, answer);
        perform(&teller, steps);
        tell_callers(&teller, id);
    };
    session.backend.execute(session.id, end, Box::new(told));
}

/// Who has called for a cover that is no more looks again.
fn tell_callers(session: &Arc<Session>, id: KeptId) {
    let callers = {
        let mut state = session.record_locks.state();
        match state.covers.knows(id) {
            true => None,
            false => state.callers.remove(&id),
        }
    };
    for done in callers.into_iter().flatten() {
        done(Fate::GivenBack);
    }
}

/// The owner could not be told of the end of a cover.
fn give_up(session: &Arc<Session>, id: KeptId) {
    let (later, callers, over) = {
        let mut state = session.record_locks.state();
        let later = state.later.remove(&id.inode);
        (later, state.callers.remove(&id), state.over)
    };
    for (_, then) in later.into_iter().flatten() {
        then(Decided::Here(Err(Errno::EIO)));
    }
    // Whoever called asks his table, and calls again.
    for done in callers.into_iter().flatten() {
        done(Fate::GivenBack);
    }
    if over {
        return;
    }
    let again = session.clone();
    let end_again = move || {
        let steps = again.record_locks.state().covers.end_again(id);
        perform(&again, steps);
    };
    session.backend.after(AGAIN, Box::new(end_again));
}

/// A cover under which nobody has a lock is looked at after a while.
fn look_later(session: &Arc<Session>, inode: InodeId) {
    let rests = {
        let mut state = session.record_locks.state();
        let rests = state.covers.rests_since(inode).filter(|_| !state.over);
        rests.filter(|(id, _)| state.looked_at.insert(*id))
    };
    let Some((id, since)) = rests else { return };
    let looker = session.clone();
    let look = move || {
        let steps = {
            let mut state = looker.record_locks.state();
            state.looked_at.remove(&id);
            state.covers.rested(id, since)
        };
        perform(&looker, steps);
        look_later(&looker, id.inode);
    };
    session.backend.after(IDLE, Box::new(look));
}
