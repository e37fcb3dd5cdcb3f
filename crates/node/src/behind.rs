//! Writes of this node's programs to files that other hosts own: a program that writes a part of one alone is answered before
//! the owner is (write-behind, [`perigee_replica::chunk::Behind`]), so that a stream of writes fills the link.
//!
//! Whatever else this node's programs do with such a file waits until what is under way has arrived, as `fsync` does. `close`
//! waits until owners have ordered it, and tells of what failed.

use crate::env::Env;
use crate::search::at_owner;
use parking_lot::Mutex;
use perigee_proto::message::hold::{AskRight, CallHolder, Right, WantChunk, Wanted, WriteOrdered};
use perigee_replica::chunk::{
    Access, Begin, Behind, Given, Report, Room, Terms, Word, WriteNumber,
};
use perigee_replica::{Chunk, Hold, Timing};
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId, OpId, SessionId, Span, Tick};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{debug, warn};

/// Bytes that may be under way to one container at most, ordered by its owner or not: what a link of 1 Gbit/s and 200 ms takes, and
/// below what a peer keeps of requests at work.
const WINDOW_MAX: u64 = 32 << 20;
/// To all of them: one peer may own several.
const WINDOWS_MAX: u64 = WINDOW_MAX / 2 * 3;
/// As many as may be at first, and at least: one write of a program, and the next.
const WINDOW_MIN: u64 = 2 << 20;
/// A write that took longer waited behind others, on a link that takes no more: fewer are to wait. Far below the time in which an
/// owner is believed to be dead.
const SLOW: Span = Span::from_millis(1_500);
/// So near to the end of its chunk a stream of writes asks for the next one.
const NEAR: u64 = 16 << 20;
/// How long the owner may take to say whether this node may write.
const CALL: Duration = Duration::from_secs(10);
/// The same of a chunk that is wanted: its write waits meanwhile, and can do without.
const WANT: Duration = Duration::from_secs(3);
/// How long a node that stops, or a mount that ends, waits for what is under way, of which the owner may be gone, and the next one
/// has to be found: files may be closed of which it is the only host that has what was written.
const FAREWELL: Duration = Duration::from_secs(10);
/// Calls of owners that are remembered until they are answered.
const CALLS_MAX: usize = 1_024;

/// What is under way from this node.
#[derive(Debug, Default)]
pub(crate) struct WritesBehind {
    state: Mutex<State>,
    /// Writes that are under way: nothing has to be waited for while there are none.
    count: AtomicUsize,
    /// Something has arrived.
    progress: Notify,
}

#[derive(Debug)]
struct State {
    behind: Behind,
    /// Chunks of which the owner is being asked.
    asking: BTreeSet<Chunk>,
    /// Bytes that may be under way to one container before its owner has ordered them.
    window: u64,
    /// When the window became smaller.
    narrowed: Tick,
    /// How often a write was ordered or answered for so far.
    arrivals: u64,
    /// What is under way, by the names that owners have for it.
    names: BTreeMap<OpId, Named>,
    /// What had begun when an owner called first, by its number of the call.
    calls: BTreeMap<(NodeId, u64), WriteNumber>,
    /// This node stops: programs wait for owners.
    closing: bool,
    /// Files of which kernels are forgetting what they keep, since writes have failed.
    forgetting: BTreeMap<InodeId, Forgets>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            behind: Behind::default(),
            asking: BTreeSet::new(),
            window: WINDOW_MIN,
            narrowed: Tick(0),
            arrivals: 0,
            names: BTreeMap::new(),
            calls: BTreeMap::new(),
            closing: false,
            forgetting: BTreeMap::new(),
        }
    }
}

/// A write that its program was answered for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    number: WriteNumber,
    pub(crate) hold: Hold,
    at: Tick,
    len: u64,
}

/// A write that is under way.
#[derive(Debug, Clone, Copy)]
struct Named {
    sent: Sent,
    window: Grown,
}

/// Whether what may be under way has grown by a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grown {
    NotYet,
    Yes,
}

/// What came of a question for a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The owner has answered, whatever it said; or somebody else has asked.
    Answered,
    /// No owner did in time.
    Unanswered,
}

/// How often kernels are to forget what they keep of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgets {
    /// Once.
    Once,
    /// Once more after that.
    Again,
}

/// What a program's write may do.
#[derive(Debug)]
pub(crate) enum May {
    /// Its program is answered at once; [`WritesBehind::arrived`] follows.
    Send(Sent),
    /// When the owner has been asked for the right.
    Ask(Chunk),
    /// When the owner has been asked for the chunk.
    Want(Chunk),
    /// When more has arrived than so much ([`WritesBehind::more_than`]).
    Wait(u64),
    /// Its program waits for the owner.
    No,
}

/// Whether chunks of a file are to be asked for: at a host that keeps a copy they move as its policy says, and what is spread over
/// several owners on purpose is lent to nobody.
fn may_want(env: &Env, inode: InodeId) -> bool {
    env.container(inode.container()).is_none() && !env.stripes.has(inode)
}

impl State {
    /// The owner has a write, however long its record takes.
    fn widen(&mut self, now: Tick, op: OpId) {
        self.arrivals += 1;
        let named = self.names.get_mut(&op);
        let Some(named) = named.filter(|named| named.window == Grown::NotYet) else {
            return;
        };
        named.window = Grown::Yes;
        let sent = named.sent;
        if now.since(sent.at) <= SLOW {
            // As TCP begins: twice as many when all of them have arrived.
            self.window = (self.window + sent.len).min(WINDOW_MAX);
        } else if sent.at >= self.narrowed {
            self.window = (self.window / 2).max(WINDOW_MIN);
            self.narrowed = now;
        }
    }
}

impl WritesBehind {
    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// A program wants to write `range`, which is not empty.
    pub(crate) fn begin(
        &self,
        env: &Env,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
        op: OpId,
    ) -> May {
        let mut state = self.state.lock();
        if state.closing {
            return May::No;
        }
        let at = env.clock.now();
        let room = Room {
            each: state.window,
            kept: WINDOW_MAX,
            all: WINDOWS_MAX,
        };
        match state.behind.begin(at, session, inode, range, room) {
            Begin::Now(number, hold) => {
                self.count.fetch_add(1, Ordering::AcqRel);
                let len = range.len();
                let sent = Sent {
                    number,
                    hold,
                    at,
                    len,
                };
                let window = Grown::NotYet;
                state.names.insert(op, Named { sent, window });
                May::Send(sent)
            }
            Begin::Ask(chunk) => May::Ask(chunk),
            Begin::Want(chunk) if may_want(env, inode) => May::Want(chunk),
            Begin::Want(chunk) => {
                state.behind.on_wanted(at, session, chunk, None);
                May::No
            }
            Begin::Wait => May::Wait(state.arrivals),
            Begin::No => match Chunk::around(inode, range) {
                // Another program has asked.
                Some(chunk) if state.asking.contains(&chunk) => May::Ask(chunk),
                _ => May::No,
            },
        }
    }

    /// The owner has put a write in place and ordered its record.
    pub(crate) fn on_ordered(&self, env: &Env, from: NodeId, word: &WriteOrdered) {
        {
            let mut state = self.state.lock();
            let known = state.names.get(&word.op).map(|named| named.sent);
            let Some(sent) = known.filter(|sent| sent.hold.holder == word.session) else {
                return;
            };
            if state.behind.on_ordered(sent.number, from) == Word::Nothing {
                return;
            }
            state.widen(env.clock.now(), word.op);
        }
        self.progress.notify_waiters();
    }

    /// A write is sent to an owner, and perhaps not for the first time.
    pub(crate) fn on_sent(&self, op: OpId, to: NodeId) {
        let mut state = self.state.lock();
        if let Some(number) = state.names.get(&op).map(|named| named.sent.number) {
            state.behind.on_sent(number, to);
        }
    }

    /// The owner has answered for a write, or nobody waits for it any more.
    pub(crate) fn arrived(&self, env: &Env, op: OpId, sent: Sent) {
        {
            let mut state = self.state.lock();
            state.widen(env.clock.now(), op);
            state.names.remove(&op);
            state.behind.on_answered(sent.number);
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        self.progress.notify_waiters();
    }

    /// The owner has told that a chunk is held by a session of this node.
    pub(crate) fn on_row(&self, env: &Env, chunk: Chunk, hold: Hold) {
        if env.sessions.is_open(hold.holder) {
            let now = env.clock.now();
            self.state.lock().behind.on_row(now, chunk, hold);
        }
    }

    /// A write that its program was answered for has failed: its programs wait for the owner from now on, and hear of such by
    /// themselves. Says whether kernels are to forget what they keep of the file: somebody else sees to it otherwise, once more.
    pub(crate) fn on_failed(&self, inode: InodeId, sent: Sent) -> Forgets {
        let mut state = self.state.lock();
        state.behind.on_failed(sent.hold.holder, inode);
        match state.forgetting.entry(inode) {
            Entry::Vacant(place) => {
                place.insert(Forgets::Once);
                Forgets::Once
            }
            Entry::Occupied(mut place) => {
                place.insert(Forgets::Again);
                Forgets::Again
            }
        }
    }

    /// Kernels have forgotten what they kept of a file. Says whether they are to once more, since something has failed
    /// meanwhile.
    pub(crate) fn forgot(&self, inode: InodeId) -> Forgets {
        let mut state = self.state.lock();
        match state.forgetting.remove(&inode) {
            Some(Forgets::Again) => {
                state.forgetting.insert(inode, Forgets::Once);
                Forgets::Again
            }
            Some(Forgets::Once) | None => Forgets::Once,
        }
    }

    /// The files with something under way.
    pub(crate) fn unsettled(&self) -> BTreeSet<InodeId> {
        self.state.lock().behind.unsettled().collect()
    }

    /// Whether something is under way to a file.
    pub(crate) fn concerns(&self, inode: InodeId) -> bool {
        !self.is_idle() && self.state.lock().behind.concerns(inode)
    }

    /// Waits until what is under way to a file now has arrived.
    pub(crate) async fn settle(&self, inode: InodeId) {
        if !self.is_idle() {
            self.settle_those(|_, other| other == inode).await;
        }
    }

    /// Waits until owners have ordered what is under way to a file now, or answered for it.
    pub(crate) async fn hand_over(&self, inode: InodeId) {
        if !self.is_idle() {
            let its = |_, other| other == inode;
            self.all_so_far(|behind, through| behind.is_ordered(its, through))
                .await;
        }
    }

    /// Waits until what is under way to all files of a container now has arrived.
    pub(crate) async fn settle_in(&self, container: ContainerId) {
        self.settle_those(|_, other| other.container() == container)
            .await;
    }

    async fn settle_those(&self, which: impl Fn(SessionId, InodeId) -> bool) {
        self.all_so_far(|behind, through| behind.has_arrived(&which, through))
            .await;
    }

    /// Waits until something is so of all writes that have begun by now, of which the last is told.
    async fn all_so_far(&self, is_so: impl Fn(&Behind, WriteNumber) -> bool) {
        let through = self.state.lock().behind.last();
        self.until(|state| is_so(&state.behind, through).then_some(()))
            .await;
    }

    /// The same of all of a session's, in so far as owners answer within some time.
    pub(crate) async fn settle_session(&self, session: SessionId) {
        self.settle_soon(|of, _| of == session).await;
    }

    async fn settle_soon(&self, which: impl Fn(SessionId, InodeId) -> bool) {
        let settled = tokio::time::timeout(FAREWELL, self.settle_those(which)).await;
        if settled.is_err() {
            warn!("no owner answers for writes that programs were answered for: they may be lost");
        }
    }

    /// A mount begins, so this node does not stop.
    pub(crate) fn open(&self) {
        self.state.lock().closing = false;
    }

    /// This node stops: nothing begins any more, and what is under way arrives.
    pub(crate) async fn close(&self) {
        self.state.lock().closing = true;
        self.settle_soon(|_, _| true).await;
    }

    /// Waits until more has arrived than `seen`, or nothing is under way.
    pub(crate) async fn more_than(&self, seen: u64) {
        self.until(|state| (state.arrivals > seen || state.behind.is_idle()).then_some(()))
            .await;
    }

    async fn until<T>(&self, mut done: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            // From now on nothing is missed.
            progress.as_mut().enable();
            if let Some(result) = done(&mut self.state.lock()) {
                return result;
            }
            progress.await;
        }
    }

    /// The chunk of which the owner is to be asked, or asked again, for the right to write it, since a program has written
    /// `range` of `chunk`: a stream of writes is to find the right, and not to see its end.
    pub(crate) fn to_ask(
        &self,
        env: &Env,
        session: SessionId,
        chunk: Chunk,
        range: ByteRange,
    ) -> Option<Chunk> {
        let state = self.state.lock();
        let held = Terms::from(&Timing::default()).held;
        let until = env.clock.now() + Span(held.as_micros() / 2);
        let near = range.end.saturating_add(NEAR) >= chunk.range().end;
        let candidates = [Some(chunk), near.then(|| chunk.next())];
        let mut wanted = candidates.into_iter().flatten();
        wanted.find(|chunk| {
            !state.asking.contains(chunk) && state.behind.wants_right(session, *chunk, until)
        })
    }

    /// Asks the owner for the right to write a chunk, or waits for the answer where it is being asked. Says whether an
    /// owner has answered.
    pub(crate) async fn ask_right(&self, env: &Arc<Env>, chunk: Chunk) -> Asked {
        let begun = {
            let mut state = self.state.lock();
            match state.asking.insert(chunk) {
                true => Some((state.behind.ask(chunk), env.clock.now())),
                false => None,
            }
        };
        let Some((asked, at)) = begun else {
            self.until(|state| (!state.asking.contains(&chunk)).then_some(()))
                .await;
            return Asked::Answered;
        };
        let answered = match asked {
            Some((hold, asked)) => self.ask(env, chunk, (hold, asked), at).await,
            None => Asked::Answered,
        };
        self.state.lock().asking.remove(&chunk);
        self.progress.notify_waiters();
        answered
    }

    /// Asks the owner for a chunk that a session's program is about to write.
    pub(crate) async fn want(&self, env: &Arc<Env>, session: SessionId, chunk: Chunk) {
        let at = env.clock.now();
        {
            let mut state = self.state.lock();
            if !state.asking.insert(chunk) {
                return state.behind.on_wanted(at, session, chunk, None);
            }
        }
        let request = WantChunk { session, chunk };
        let here = |container: Arc<crate::container::Container>| async move {
            let given = container.give_wanted(chunk, session).await?;
            Ok(Wanted { given })
        };
        let there = |node| {
            let (env, request) = (&env, &request);
            async move { Ok(env.ask(node, request, bytes::Bytes::new(), WANT).await?.0) }
        };
        let answer = at_owner(env, chunk.inode.container(), WANT, here, there);
        // Also where the owner says that it is at it: it tells of the row with the next write's answer then.
        let answer = tokio::time::timeout(WANT, answer).await;
        {
            let mut state = self.state.lock();
            let given = match answer {
                Ok(Ok(Wanted { given })) => given,
                Ok(Err(failed)) => {
                    debug!(inode = %chunk.inode, ?failed, "a chunk is not given");
                    None
                }
                Err(_) => None,
            };
            let given = given.filter(|hold| env.sessions.is_open(hold.holder));
            let given = given.map(|hold| Given {
                hold,
                asked_at: at,
                terms: Terms::from(&Timing::default()),
            });
            let now = env.clock.now();
            state.behind.on_wanted(now, session, chunk, given);
            state.asking.remove(&chunk);
        }
        self.progress.notify_waiters();
    }

    async fn ask(
        &self,
        env: &Arc<Env>,
        chunk: Chunk,
        (hold, asked): (Hold, u64),
        at: Tick,
    ) -> Asked {
        let request = AskRight { chunk, hold, asked };
        let here = |container: Arc<crate::container::Container>| async move {
            let granted = container.grant_right(chunk, hold, asked)?;
            Ok(Right { granted })
        };
        let there = |node| {
            let (env, request) = (&env, &request);
            async move { Ok(env.ask(node, request, bytes::Bytes::new(), CALL).await?.0) }
        };
        let answer = at_owner(env, chunk.inode.container(), CALL, here, there).await;
        let mut state = self.state.lock();
        match answer {
            Ok(Right { granted: Ok(()) }) => {
                let terms = Terms::from(&Timing::default());
                state.behind.on_right(chunk, hold, (asked, at), terms);
            }
            Ok(Right { granted: Err(_) }) => state.behind.on_refused(chunk, hold),
            Err(failed) => {
                debug!(inode = %chunk.inode, ?failed, "no right to write behind");
                return Asked::Unanswered;
            }
        }
        Asked::Answered
    }

    /// An owner calls: what was under way when it did so first, by this number, has arrived when this ends.
    pub(crate) async fn answer_call(&self, from: NodeId, call: &CallHolder) -> Report {
        let (chunk, hold, name) = (call.chunk, call.hold, (from, call.number));
        let through = {
            let mut state = self.state.lock();
            let stop = call.access == Access::Change;
            state.behind.on_call(chunk, hold, stop);
            let last = state.behind.last();
            if state.calls.len() >= CALLS_MAX {
                let oldest = state.calls.iter().min_by_key(|(_, through)| **through);
                let oldest = oldest.map(|(name, _)| *name);
                oldest.map(|name| state.calls.remove(&name));
            }
            *state.calls.entry(name).or_insert(last)
        };
        let report = |state: &mut State| {
            let report = state.behind.report(chunk, hold, through)?;
            state.calls.remove(&name);
            Some(report)
        };
        self.until(report).await
    }

    /// A session has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        self.state.lock().behind.forget(session);
    }
}
