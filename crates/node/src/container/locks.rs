//! Waiting for file locks at the owner: the queue decides, this tells the waiters.

use super::execute::Owed;
use super::view::{Foreign, owner_view};
use super::{After, Container, Failed, Request, State};
use crate::env::Env;
use perigee_meta::queue::{Ask, Ticket, Turn};
use perigee_meta::{HeldLocks, LockKind, Op, Patience, Refusal, Reply, held_locks, lock_sessions};
use perigee_proto::message::report::Hold;
use perigee_proto::message::session::{AskSessions, LockTurn};
use perigee_types::{Errno, InodeId, NodeId, OpId, Seq, SessionId, Tick};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info, warn};

/// How long a word to a waiter is tried to be sent: it asks by itself before that.
const WORD: Duration = Duration::from_secs(1);

/// The most sessions of one node that are asked about at a time.
const SESSIONS_MAX: usize = 1_000;

/// What is known of a node whose sessions have locks.
enum Presence {
    /// It answers: these of them are mounted.
    Answers(Vec<SessionId>),
    /// It does not answer, and its sign of life has not expired.
    Silent,
    /// It does not answer, and shows no sign of life.
    Gone,
}

/// The sessions whose locks end. Of a node that is silent nothing is known: none.
fn lost(sessions: &[SessionId], presence: &Presence) -> Vec<SessionId> {
    let ends = |session: &&SessionId| match presence {
        Presence::Answers(mounted) => !mounted.contains(session),
        Presence::Silent => false,
        Presence::Gone => true,
    };
    sessions.iter().filter(ends).copied().collect()
}

/// What a request for a lock may do.
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart at once, by one caller"
)]
pub(super) enum Admitted {
    /// Run it.
    Run,
    /// This is its answer; the state is as it was.
    Answered(Result<Reply, Errno>, Owed),
}

impl Container {
    /// Whether an operation on locks may run now, in the order of those who wait.
    pub(super) fn admit(
        &self,
        st: &mut State,
        now: Tick,
        session: SessionId,
        operation: &Op,
        after: &mut After,
    ) -> Admitted {
        let ask = match operation {
            Op::SetLock {
                inode,
                lock,
                patience: Patience::Wait(wait),
                ..
            } => Ask {
                inode: *inode,
                ticket: Ticket {
                    session,
                    wait: *wait,
                },
                lock: *lock,
            },
            Op::WithdrawLock { inode, wait, .. } => {
                let wait = *wait;
                st.lock_queue.withdraw(*inode, Ticket { session, wait });
                return Admitted::Run;
            }
            _ => return Admitted::Run,
        };
        let (held, shown) = match self.held(st, ask.inode) {
            Ok(held) => held,
            Err(errno) => return Admitted::Answered(Err(errno), Owed::default()),
        };
        let result = match st.lock_queue.ask(now, &ask, &held) {
            Turn::Take | Turn::Blocked => return Admitted::Run,
            Turn::Behind(lock) => Ok(Reply::Blocked(lock)),
            Turn::Deadlock => {
                self.tell_waiters(st, now, ask.inode, after);
                Err(Errno::EDEADLK)
            }
            Turn::Full => Err(Errno::ENOLCK),
        };
        let local = session.node() == self.env.me;
        let owed = Owed {
            commit: st.before_telling(local, shown),
            ..Owed::default()
        };
        Admitted::Answered(result, owed)
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
        match operation {
            Op::SetLock { inode, .. }
            | Op::ReleaseLocks { inode, .. }
            | Op::WithdrawLock { inode, .. } => self.tell_waiters(st, now, *inode, after),
            Op::ReleaseSession { session, .. } => {
                let mut inodes = st.lock_queue.end_session(*session);
                if let Reply::Inodes(released) = reply {
                    inodes.extend(released);
                }
                for inode in inodes {
                    self.tell_waiters(st, now, inode, after);
                }
            }
            _ => {}
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
        if !st.lock_queue.waits_on(inode) {
            return;
        }
        let Ok((held, _)) = self.held(st, inode) else {
            // Each asks by itself, and has the error.
            return;
        };
        for ticket in st.lock_queue.changed(now, inode, &held) {
            let env = self.env.clone();
            after.push(move || tell(env, ticket));
        }
    }

    /// The hosts that may keep something of an inode, or have locks on it.
    pub(crate) fn holders(&self, inode: InodeId) -> Result<BTreeSet<(NodeId, Hold)>, Failed> {
        let now = self.env.clock.now();
        let st = self.state.lock();
        Self::reign(&st, now)?;
        let (held, _) = self.held(&st, inode)?;
        let locks = held.sessions().map(|(session, kind)| {
            let hold = match kind {
                LockKind::Posix => Hold::Fcntl,
                LockKind::Flock => Hold::Flock,
            };
            (session.node(), hold)
        });
        let leases = st.leases.holders(now, inode);
        let leases = leases
            .into_iter()
            .map(|session| (session.node(), Hold::Read));
        let rows = st.away.holds.of(inode);
        let chunks = rows.map(|(_, hold)| (hold.holder.node(), Hold::Chunks));
        Ok(leases.chain(locks).chain(chunks).collect())
    }

    /// Ends the locks of sessions that are no more: their host is gone, or its daemon is another.
    pub(crate) async fn end_lost_sessions(self: Arc<Self>, live: BTreeSet<NodeId>) {
        let holders = match self.lock_sessions() {
            Ok(holders) => {
                let mut st = self.state.lock();
                st.leases.hosts_are_gone(|node| !live.contains(&node));
                holders
            }
            Err(error) => return debug!(container = %self.id, ?error, "locks not looked at"),
        };
        let mut by_node: BTreeMap<NodeId, Vec<SessionId>> = BTreeMap::new();
        for session in holders {
            by_node.entry(session.node()).or_default().push(session);
        }
        for (node, mut sessions) in by_node {
            sessions.truncate(SESSIONS_MAX);
            let mounted = if node == self.env.me {
                Some(self.env.sessions.mounted(&sessions))
            } else {
                let asked = AskSessions {
                    sessions: sessions.clone(),
                };
                let answer = self.env.ask(node, &asked, bytes::Bytes::new(), WORD).await;
                answer.ok().map(|(open, _)| open.sessions)
            };
            let presence = match mounted {
                Some(mounted) => Presence::Answers(mounted),
                None if live.contains(&node) => Presence::Silent,
                None => Presence::Gone,
            };
            for session in lost(&sessions, &presence) {
                self.end_session(session);
            }
        }
    }

    fn lock_sessions(&self) -> Result<BTreeSet<SessionId>, Failed> {
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
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

    fn end_session(self: &Arc<Self>, session: SessionId) {
        info!(container = %self.id, %session, "locks of a lost session end");
        let container = self.id;
        let request = Request {
            session: self.env.sessions.own(),
            op: OpId(0),
            answered_through: OpId(0),
            new_directory_in: None,
            operation: Op::ReleaseSession { container, session },
        };
        let answer = move |result: Result<_, Failed>| {
            if let Err(error) = result {
                // The next round tries again.
                warn!(%container, %session, ?error, "locks of a lost session not released");
            }
        };
        self.execute(request, Box::new(answer));
    }

    /// The locks held on an inode, and the record that they are as of.
    fn held(&self, st: &State, inode: InodeId) -> Result<(HeldLocks, Seq), Errno> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_that_are_surely_over_lose_their_locks() {
        let session = |number| SessionId::new(NodeId(2), number);
        let held = [session(1), session(2)];
        assert_eq!(
            lost(&held, &Presence::Answers(vec![session(2)])),
            [session(1)]
        );
        assert_eq!(lost(&held, &Presence::Silent), []);
        assert_eq!(lost(&held, &Presence::Gone), held);
    }
}
