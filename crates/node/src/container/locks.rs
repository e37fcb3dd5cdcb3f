//! Waiting for file locks at the owner: the queue decides, this tells the waiters.

use super::execute::Owed;
use super::view::{Foreign, owner_view};
use super::{After, Container, Failed, Request, State};
use crate::env::Env;
use perigee_cluster::NodeState;
use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::lock::{LockOwner, Presence, SessionEnd, lost};
use perigee_meta::queue::{Admission, Asked, Ticket};
use perigee_meta::{
    Comes, HeldLocks, Leftovers, LockKind, LockSessions, Op, Overlay, Refusal, Reply, held_locks,
    lock_sessions,
};
use perigee_proto::message::report::Hold;
use perigee_proto::message::session::{AskSessions, CallLock, LockTurn};
use perigee_replica::chunk::Access;
use perigee_types::{Errno, InodeId, NodeId, OpId, Seq, SessionId, Tick};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info, warn};

/// How long a word to a waiter is tried to be sent: it asks by itself before that.
const WORD: Duration = Duration::from_secs(1);

/// Before somebody is called again who has not answered, or whose lock has not come back yet.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The most sessions of one node that are asked about at a time.
const SESSIONS_MAX: usize = 1_000;

/// What a request for a lock may do.
#[allow(clippy::large_enum_variant, reason = "moved once")]
pub(super) enum Admitted {
    /// Run it.
    Run,
    /// Ask once more when these have been called, who may only keep what it wants.
    CallFirst(Vec<CallLock>),
    /// This is its answer; the state is as it was.
    Answered(Result<Reply, Errno>, Owed),
}

/// The calls for what stands in the way of a request.
fn calls(operation: &Op, owners: Vec<LockOwner>) -> Vec<CallLock> {
    let (Op::SetLock { inode, lock, .. } | Op::GetLock { inode, lock, .. }) = operation else {
        return Vec::new();
    };
    let Some(kind) = lock.kind.kept_as() else {
        return Vec::new();
    };
    let call = |LockOwner { session, owner }| CallLock {
        session,
        id: KeptId {
            inode: *inode,
            kind,
            owner,
        },
    };
    owners.into_iter().map(call).collect()
}

impl Container {
    /// Whether an operation on locks may run now, in the order of those who wait.
    pub(super) fn admit(
        &self,
        st: &mut State,
        now: Tick,
        session: SessionId,
        (operation, asked): (&Op, &Asked),
        after: &mut After,
    ) -> Admitted {
        let mut shown = None;
        let admitted = {
            let State {
                lock_queue,
                overlay,
                ..
            } = st;
            lock_queue.admit(now, session, (operation, asked), |inode| {
                let (held, latest) = self.held(overlay, inode)?;
                shown = Some(latest);
                Ok(held)
            })
        };
        let result = match admitted {
            Ok(Admission::Run) => return Admitted::Run,
            Ok(Admission::RunAndCall(owners)) => {
                for call in calls(operation, owners) {
                    let env = self.env.clone();
                    // Who waits asks again, and calls again.
                    after.push(move || {
                        let runtime = env.runtime.clone();
                        runtime.spawn(async move { _ = call_for(&env, &call).await });
                    });
                }
                return Admitted::Run;
            }
            Ok(Admission::CallFirst(owners)) => {
                return Admitted::CallFirst(calls(operation, owners));
            }
            Ok(Admission::Answered(result)) => result,
            Ok(Admission::Gone(errno)) => {
                if let Ok(inode) = crate::router::place_of(operation) {
                    self.tell_waiters(st, now, inode, after);
                }
                Err(errno)
            }
            Err(errno) => Err(errno),
        };
        let local = session.node() == self.env.me;
        let owed = Owed {
            commit: shown.and_then(|shown| st.before_telling(local, shown)),
            ..Owed::default()
        };
        Admitted::Answered(result, owed)
    }

    /// What the fences of locks say of an operation that is about to be ordered, or answered.
    pub(super) fn refused_for_locks(st: &State, request: &Request) -> Option<Errno> {
        if let Some(errno) = st.lock_queue.refuses(&request.operation, request.session) {
            return Some(errno);
        }
        match &request.operation {
            // Whatever it changes at this moment would come after the lock of somebody else: the next round tries again.
            Op::ExpireSession { session, .. } => {
                let holds = |(_, hold): (_, perigee_replica::Hold)| hold.holder == *session;
                let at_work = st.leases.is_changed_by(*session) || st.away.holds.iter().any(holds);
                at_work.then_some(Errno::EBUSY)
            }
            Op::ReleaseSession { session, .. } => {
                let at_work = st.leases.is_changed_by(*session);
                at_work.then_some(Errno::EBUSY)
            }
            _ => None,
        }
    }

    /// A reign begins: finds whose locks earlier owners have ended.
    pub(super) fn restore_locks(&self, st: &mut State) {
        match self.lock_sessions_now(st) {
            Ok(sessions) => {
                st.lock_tables = Some(sessions.tables);
                st.lock_queue.begin_reign(sessions.fences);
            }
            Err(failed) => {
                error!(container = %self.id, ?failed, "locks unreadable");
                st.lock_tables = None;
                st.lock_queue.clear();
            }
        }
    }

    /// After an operation that took effect: those whose turn has come by it are told.
    pub(super) fn locks_changed(
        &self,
        st: &mut State,
        now: Tick,
        operation: &Op,
        reply: &Reply,
        after: &mut After,
    ) {
        for inode in st.lock_queue.ran(operation, reply) {
            self.tell_waiters(st, now, inode, after);
        }
        if let (Op::ReleaseSession { .. } | Op::ExpireSession { .. }, Reply::Inodes(ended)) =
            (operation, reply)
            && !ended.is_empty()
        {
            let (env, id, ended) = (self.env.clone(), self.id, ended.clone());
            after.push(move || {
                if let Some(container) = env.container(id) {
                    container.end_fences(ended);
                }
            });
        }
    }

    /// The same, after a transaction.
    pub(super) fn locks_changed_apart(&self, operation: &Op, reply: &Reply) {
        let mut after = After::default();
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if Self::reign(&st, now).is_ok() {
                self.locks_changed(&mut st, now, operation, reply, &mut after);
            }
        }
        after.run();
    }

    fn tell_waiters(&self, st: &mut State, now: Tick, inode: InodeId, after: &mut After) {
        let Ok((held, _)) = self.held(&st.overlay, inode) else {
            // Each asks by itself, and has the error.
            return;
        };
        for ticket in st.lock_queue.changed(now, inode, &held) {
            let env = self.env.clone();
            after.push(move || tell(env, ticket));
        }
    }

    /// Who waits for whom here; nobody where another node owns.
    pub(crate) fn waits(&self) -> Vec<Wait> {
        let st = self.state.lock();
        match Self::reign(&st, self.env.clock.now()) {
            Ok(_) => st.lock_queue.waits().collect(),
            Err(_) => Vec::new(),
        }
    }

    /// A wait here is part of a circle over several containers: it ends with that word.
    pub(crate) fn end_cycle(&self, wait: &Wait) {
        if self.state.lock().lock_queue.end_cycle(wait) {
            info!(inode = %wait.inode, session = %wait.ticket.session, "a wait for a lock is part of a circle");
            tell(self.env.clone(), wait.ticket);
        }
    }

    /// The hosts that may keep something of an inode, or have locks on it.
    pub(crate) fn holders(&self, inode: InodeId) -> Result<BTreeSet<(NodeId, Hold)>, Failed> {
        let now = self.env.clock.now();
        let st = self.state.lock();
        Self::reign(&st, now)?;
        let (held, _) = self.held(&st.overlay, inode)?;
        let locks = held.sessions().map(|(session, kind)| {
            let hold = match kind {
                LockKind::Posix | LockKind::Cover => Hold::Fcntl,
                LockKind::Flock | LockKind::Service => Hold::Flock,
            };
            (session.node(), hold)
        });
        let leases = st.leases.holders(now, inode);
        let leases = leases.map(|session| (session.node(), Hold::Read));
        let rows = st.away.holds.of(inode);
        let chunks = rows.map(|(_, hold)| (hold.holder.node(), Hold::Chunks));
        Ok(leases.chain(locks).chain(chunks).collect())
    }

    /// Ends the locks of sessions that are no more: their host is gone, or its daemon is another.
    pub(crate) async fn end_lost_sessions(self: Arc<Self>, live: BTreeSet<NodeId>) {
        let known = match self.lock_sessions() {
            Ok(known) => {
                let mut st = self.state.lock();
                st.leases.hosts_are_gone(|node| !live.contains(&node));
                known
            }
            Err(error) => return debug!(container = %self.id, ?error, "locks not looked at"),
        };
        let mut by_node: BTreeMap<NodeId, Vec<SessionId>> = BTreeMap::new();
        for session in known.holders.union(&known.fences.sessions()) {
            by_node.entry(session.node()).or_default().push(*session);
        }
        for (node, mut sessions) in by_node {
            sessions.truncate(SESSIONS_MAX);
            let presence = self.presence(node, &sessions, &live).await;
            for (session, end) in lost(&sessions, &known.holders, &presence) {
                if end == SessionEnd::WithoutItsWord {
                    self.take_chunks_back(session).await;
                }
                self.end_session(session, end);
            }
        }
    }

    async fn presence(
        &self,
        node: NodeId,
        sessions: &[SessionId],
        live: &BTreeSet<NodeId>,
    ) -> Presence {
        if node == self.env.me {
            return Presence::Answers(self.env.sessions.mounted(sessions));
        }
        let asked = AskSessions {
            sessions: sessions.to_vec(),
        };
        let answer = self.env.ask(node, &asked, bytes::Bytes::new(), WORD).await;
        match answer {
            Ok((open, _)) => Presence::Answers(open.sessions),
            Err(_) if live.contains(&node) => Presence::Silent,
            Err(_) if self.has_left(node) => Presence::Left,
            Err(_) => Presence::Gone,
        }
    }

    /// Whether a node has left the cluster.
    pub(super) fn has_left(&self, node: NodeId) -> bool {
        let directory = self.env.directory.read();
        let node = directory.node(node);
        node.is_some_and(|node| node.state == NodeState::Left)
    }

    /// Takes back the chunks that a session may write to without a word, once its right to is over.
    async fn take_chunks_back(self: &Arc<Self>, session: SessionId) {
        let held: Vec<_> = {
            let st = self.state.lock();
            let held = st.away.holds.iter();
            held.filter(|(_, hold)| hold.holder == session)
                .map(|(chunk, _)| chunk)
                .collect()
        };
        for chunk in held {
            let part = chunk.range();
            if let Err(error) = self
                .pass_holders(chunk.inode, part, Access::Change, Vec::new())
                .await
            {
                // The next round tries again.
                debug!(container = %self.id, %session, ?error, "chunk of a lost session not taken back");
            }
        }
    }

    fn lock_sessions(&self) -> Result<LockSessions, Failed> {
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        self.lock_sessions_now(&st)
    }

    fn lock_sessions_now(&self, st: &State) -> Result<LockSessions, Failed> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let sessions = lock_sessions(&mut view, self.id);
        if let Some(failed) = view.failed.take() {
            return Err(self.store_refused(&failed).into());
        }
        sessions.map_err(|refusal| {
            error!(container = %self.id, %refusal, "locks cannot be read");
            Errno::EIO.into()
        })
    }

    fn end_session(self: &Arc<Self>, session: SessionId, end: SessionEnd) {
        info!(container = %self.id, %session, ?end, "locks of a lost session end");
        let container = self.id;
        let request = Request {
            session: self.env.sessions.own(),
            op: OpId::UNREPEATED,
            answered_through: OpId(0),
            new_directory_in: None,
            names_max: 0,
            comes: Comes::Home,
            operation: match end {
                SessionEnd::Over => Op::ReleaseSession {
                    container,
                    session,
                    leftovers: Leftovers::Perhaps,
                },
                SessionEnd::WithoutItsWord => Op::ExpireSession { container, session },
            },
        };
        let answer = move |result: Result<_, Failed>| {
            if let Err(error) = result {
                // The next round tries again.
                warn!(%container, %session, ?error, "locks of a lost session not released");
            }
        };
        self.execute(request, Box::new(answer));
    }

    /// Locks on these have ended: where that is a cut of columns, it is brought to its end. Who is to be granted a lock does it too.
    fn end_fences(self: &Arc<Self>, mut inodes: Vec<InodeId>) {
        if !self.env.directory.read().stripes_files() {
            return;
        }
        let Some(router) = self.env.router() else {
            return;
        };
        let me = self.clone();
        self.env.runtime.spawn(async move {
            inodes.retain(|inode| me.has_columns(*inode));
            let ends = inodes.into_iter().map(|inode| {
                let router = router.clone();
                async move {
                    if let Err(error) = router.end_cut(inode).await {
                        warn!(%inode, %error, "columns not told that locks have ended");
                    }
                }
            });
            futures_util::future::join_all(ends).await;
        });
    }

    /// The locks held on an inode, and the record that they are as of.
    fn held(&self, overlay: &Overlay, inode: InodeId) -> Result<(HeldLocks, Seq), Errno> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, overlay, &self.env.store, &mut foreign);
        let held = held_locks(&mut view, inode);
        if let Some(failed) = view.failed.take() {
            error!(container = %self.id, %failed, "state cannot be read");
            return Err(self.store_refused(&failed));
        }
        let latest = view.latest;
        match held {
            Ok(held) => Ok((held, latest)),
            Err(Refusal::Errno(errno)) => Err(errno),
            Err(refusal) => {
                error!(container = %self.id, %inode, %refusal, "locks cannot be read");
                Err(Errno::EIO)
            }
        }
    }
}

/// Calls for a lock that a session, here or elsewhere, may only keep. `None`: nobody says what became of it.
async fn call_for(env: &Arc<Env>, call: &CallLock) -> Option<Fate> {
    let (session, node) = (call.session, call.session.node());
    let called = match node == env.me {
        true => crate::sessions::call_lock(env, session, call.id)
            .await
            .map_err(|failed| format!("{failed:?}")),
        false => env
            .ask(node, call, bytes::Bytes::new(), WORD)
            .await
            .map(|(called, _)| called.fate)
            .map_err(|error| error.to_string()),
    };
    called
        .inspect_err(|error| debug!(%session, %error, "a lock is called for in vain"))
        .ok()
}

/// Calls for all of them, and tells who has said that a program uses it.
pub(super) async fn call_for_all(env: &Arc<Env>, calls: Vec<CallLock>) -> Asked {
    let answers = calls.iter().map(|call| call_for(env, call));
    let answers = futures_util::future::join_all(answers).await;
    let used = calls.iter().zip(answers);
    let used = used.filter(|(_, fate)| *fate == Some(Fate::Stays));
    let users: BTreeSet<LockOwner> = used
        .map(|(call, _)| LockOwner {
            session: call.session,
            owner: call.id.owner,
        })
        .collect();
    Asked::Called(users)
}

/// Tells a session, here or elsewhere, that a wait's turn has come.
fn tell(env: Arc<Env>, ticket: Ticket) {
    let runtime = env.runtime.clone();
    runtime.spawn(async move {
        let Ticket { session, wait } = ticket;
        if session.node() == env.me {
            if let Some(session) = env.sessions.get(session) {
                session.lock_turn(wait);
            }
            return;
        }
        let turn = LockTurn { session, wait };
        let told = env.ask(session.node(), &turn, bytes::Bytes::new(), WORD);
        if let Err(error) = told.await {
            debug!(%session, %error, "a waiter is not told, and will ask");
        }
    });
}
