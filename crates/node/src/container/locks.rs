//! Waiting for file locks at the owner: the queue decides, this tells the waiters.

use super::execute::Owed;
use super::view::{Foreign, OwnerView};
use super::{After, Container, Failed, State, store_errno};
use crate::env::Env;
use perigee_meta::queue::{Ask, Ticket, Turn};
use perigee_meta::{HeldLocks, LockKind, Op, Patience, Refusal, Reply, held_locks};
use perigee_proto::message::report::Hold;
use perigee_proto::message::session::LockTurn;
use perigee_types::{Errno, InodeId, NodeId, Seq, SessionId, Tick};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error};

/// How long a word to a waiter is tried to be sent: it asks by itself before that.
const WORD: Duration = Duration::from_secs(1);

/// What a request for a lock may do.
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
            commit: (!local && shown > st.chain.committed()).then_some(shown),
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
        Ok(leases.chain(locks).collect())
    }

    /// The locks held on an inode, and the record that they are as of.
    fn held(&self, st: &State, inode: InodeId) -> Result<(HeldLocks, Seq), Errno> {
        let mut foreign = Foreign::default();
        let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
        let held = held_locks(&mut view, inode);
        if let Some(failed) = view.failed.take() {
            error!(container = %self.id, %failed, "state cannot be read");
            return Err(store_errno(&failed));
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
