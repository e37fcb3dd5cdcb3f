//! The file's lock, as its owner sees it, and the law about who has lost it.
//!
//! Each life of a host is a session. The owner ends the locks of a session without its word at any moment, as if the host had been
//! silent for too long, and those of a life that is over. **fence**: once another session is granted the lock, nothing that the one
//! which lost it has asked for, or asks for while it does not know that, changes the file.

use super::Mark;
use super::world::World;
use perigee_meta::memory::MemView;
use perigee_meta::queue::LockQueue;
use perigee_meta::stripe::plant::Plant;
use perigee_meta::{
    FileLock, Key, Leftovers, LockKind, Mode, Op, Patience, Reply, Token, held_locks, lock_sessions,
};
use perigee_types::{ByteRange, Errno, NodeId, SessionId, Tick};
use std::collections::BTreeMap;

/// Since it has lost the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// Nobody has had it.
    Free,
    /// Another session was granted it.
    Granted,
}

/// What the owner knows of sessions.
#[derive(Debug, Default)]
pub struct Locks {
    queue: LockQueue,
    lost: BTreeMap<SessionId, Since>,
}

/// The session of a host in one of its lives.
#[must_use]
pub fn session_of(host: usize, life: u32) -> SessionId {
    SessionId::new(NodeId(host as u32 + 1), life)
}

impl World {
    /// To take the lock, or to let go of it.
    pub(super) fn lock_op(&self, session: SessionId, mode: Option<Mode>) -> Op {
        let lock = FileLock {
            kind: LockKind::Flock,
            owner: 1,
            range: ByteRange::ALL,
            mode,
            pid: 0,
        };
        Op::SetLock {
            inode: self.file,
            session,
            lock,
            patience: Patience::Refuse,
        }
    }

    /// What the owner answers to an operation of a session, by its fences.
    pub(super) fn operate(&mut self, session: SessionId, op: &Op) -> Result<Reply, Errno> {
        let is_told = matches!(op, Op::Columns { .. }) && self.is(Plant::FencedIsTold);
        // As admission to the line of waiters says of a session that is no more.
        if matches!(op, Op::SetLock { .. })
            && self.is_kept_out(session)
            && !self.is_of_today(session)
        {
            return Err(Errno::EIO);
        }
        if !is_told && let Some(errno) = self.locks.queue.refuses(op, session) {
            self.marks.hit(Mark::Refused);
            return Err(errno);
        }
        let mut reply = self.run(op);
        if let Op::SetLock { .. } = op {
            if reply == Err(Errno::EAGAIN) {
                self.marks.hit(Mark::LockWaited);
                if self.is(Plant::GrantedBesideCut) {
                    reply = Ok(Reply::Granted(Token::default()));
                }
            }
            if let Ok(Reply::Granted(_)) = reply {
                self.granted(session);
            }
            self.learns(session);
        }
        if let Ok(reply) = &reply {
            self.locks_changed(op, reply);
            if op.data_inode().is_some() && !matches!(op, Op::CutColumn { .. } | Op::EndCut { .. })
            {
                self.changes(session);
            }
        }
        reply
    }

    /// Whether the owner takes bytes of a session for the file's own inode.
    pub(super) fn is_kept_out(&self, session: SessionId) -> bool {
        self.locks.queue.keeps_out(self.file, session)
    }

    /// A session changes the file, or its content.
    pub(super) fn changes(&mut self, session: SessionId) {
        if self.locks.lost.get(&session) == Some(&Since::Granted) {
            self.breaks(format!(
                "{session} has lost its lock, another one has had it since, and {session} changes the file"
            ));
        }
    }

    /// A session asks for the lock again, or lets go of it: it knows of what it has lost.
    fn learns(&mut self, session: SessionId) {
        let held = held_locks(&mut self.states, self.file);
        if held.is_ok_and(|held| held.fence(session).is_none()) && self.is_of_today(session) {
            self.locks.lost.remove(&session);
        }
    }

    fn is_of_today(&self, session: SessionId) -> bool {
        let mut hosts = self.hosts.iter().enumerate();
        hosts.any(|(number, host)| session_of(number, host.life) == session)
    }

    fn granted(&mut self, session: SessionId) {
        for (lost, since) in &mut self.locks.lost {
            if *lost != session {
                *since = Since::Granted;
                self.marks.hit(Mark::Granted);
            }
        }
    }

    fn locks_changed(&mut self, op: &Op, reply: &Reply) {
        for inode in self.locks.queue.ran(op, reply) {
            if let Ok(held) = held_locks(&mut self.states, inode) {
                self.locks.queue.changed(Tick(self.now), inode, &held);
            }
        }
    }

    /// The owner ends the locks of a session that has some, or a host lets go of what it has, or has lost.
    pub(super) fn locks_end(&mut self) {
        let file = self.file;
        let Ok(sessions) = lock_sessions(&mut self.states, file.container()) else {
            return self.breaks("locks unreadable".to_owned());
        };
        let lives = |session: SessionId| {
            let mut hosts = self.hosts.iter().enumerate();
            hosts.find(|(number, host)| session_of(*number, host.life) == session)
        };
        let container = file.container();
        let mut ends = Vec::new();
        for session in sessions.holders {
            match lives(session) {
                Some(_) => ends.push(Op::ExpireSession { container, session }),
                None => ends.push(Op::ReleaseSession {
                    container,
                    session,
                    leftovers: Leftovers::Perhaps,
                }),
            }
            if lives(session).is_some_and(|(_, host)| host.is_idle()) {
                ends.push(self.lock_op(session, None));
            }
        }
        for session in sessions.fences.sessions() {
            match lives(session) {
                Some((_, host)) if host.is_idle() => ends.push(self.lock_op(session, None)),
                Some(_) => {}
                None => ends.push(Op::ReleaseSession {
                    container,
                    session,
                    leftovers: Leftovers::Perhaps,
                }),
            }
        }
        // The owner tries again.
        ends.retain(|op| match op {
            Op::ExpireSession { session, .. } | Op::ReleaseSession { session, .. } => {
                !self.is_writing(*session)
            }
            _ => true,
        });
        if ends.is_empty() {
            return;
        }
        let op = ends.swap_remove(self.rng.below(ends.len() as u64) as usize);
        self.end_locks(&op);
    }

    /// Nobody is kept out any more.
    pub(super) fn let_go(&mut self) {
        for host in 0..self.hosts.len() {
            let session = session_of(host, self.hosts[host].life);
            let op = self.lock_op(session, None);
            self.end_locks(&op);
        }
    }

    fn end_locks(&mut self, op: &Op) {
        let before = match self.is(Plant::FencedInPart) {
            true => Some(self.states.clone()),
            false => None,
        };
        let reply = self.run(op);
        self.note(&("locks end", op, &reply));
        let Ok(reply) = reply else {
            return self.breaks(format!("{op:?}: {reply:?}"));
        };
        match op {
            Op::ExpireSession { session, .. } | Op::ReleaseSession { session, .. } => {
                self.locks.lost.entry(*session).or_insert(Since::Free);
            }
            Op::SetLock { session, .. } => _ = self.locks.lost.remove(session),
            _ => {}
        }
        self.locks_changed(op, &reply);
        if let Some(before) = before {
            self.forget_cut(before);
        }
    }

    /// A deliberate fault: the file is spread as if no locks had ended.
    fn forget_cut(&mut self, before: MemView) {
        let key = Key::Inode(self.file.index()).encode();
        let container = self.file.container();
        let row = |states: &MemView| Some(states.states.get(&container)?.get(&key)?.clone());
        let row = row(&before);
        if let (Some(row), Some(state)) = (row, self.states.states.get_mut(&container)) {
            state.insert(key, row);
        }
    }
}
