//! What a host decides by itself about `fcntl` locks, and how it comes by the right to.

use super::Mark;
use super::host::For;
use super::owner::{Answer, What};
use super::world::{CallId, Locks, Word};
use crate::law;
use perigee_meta::lock::cover::{
    Called, CoverAnswer, Covers, Decision, EndAnswer, Outcome, Request, Step,
};
use perigee_meta::lock::cycle::{Wait, victims};
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::lock::plant::Plant;
use perigee_meta::{FileLock, LockKind, Op, Patience, Reply, WaitId};
use perigee_types::{ByteRange, Errno, InodeId, SessionId};

impl Locks {
    /// Finds who decides what a program asks for.
    pub(super) fn decide(&mut self, host: usize, life: u32, place: usize, request: Request) {
        let alive = self.life_of(host);
        let now = self.tick();
        let Some(session) = self.session(host, life) else {
            return;
        };
        let id = session.id;
        let (decision, steps) = session.covers.request(now, &request, alive);
        match decision {
            Decision::Here(result) => {
                if let Ok(Reply::Granted(token)) = &result {
                    let token = *token;
                    self.note(Mark::Covered);
                    law::locks::on_kept_use(self, token);
                }
                self.log(7, host, || format!("program {place} here: {request:?}"));
                let what = What::Locks(operation(id, &request));
                self.program_answered(host, life, place, &what, Answer::Done(result));
            }
            Decision::Owner => {
                let what = What::Locks(operation(id, &request));
                self.call(host, life, what, For::Program(place));
            }
            Decision::Later => session.later.push((place, request)),
        }
        self.perform(host, life, steps);
    }

    fn perform(&mut self, host: usize, life: u32, steps: Vec<Step>) {
        for step in steps {
            let Some(session) = self.session(host, life) else {
                return;
            };
            let session_id = session.id;
            match step {
                Step::Ask(id) => {
                    let ask = Op::SetLock {
                        inode: id.inode,
                        session: session_id,
                        lock: Covers::cover(id),
                        patience: Patience::Refuse,
                    };
                    self.call(host, life, What::Locks(ask), For::Cover(id));
                }
                Step::End(id, locks) => {
                    if !locks.is_empty() {
                        self.note(Mark::Uncovered);
                    }
                    let end = Op::EndCover {
                        inode: id.inode,
                        session: session_id,
                        cover: id.owner,
                        locks,
                    };
                    self.call(host, life, What::Locks(end), For::Cover(id));
                }
                Step::GoOn(inode) => {
                    let all = std::mem::take(&mut session.later);
                    let (now, later): (Vec<_>, Vec<_>) = all
                        .into_iter()
                        .partition(|(_, request)| request.inode == inode);
                    session.later = later;
                    for (place, request) in now {
                        self.decide(host, life, place, request);
                    }
                }
                // An owner is asked until it answers.
                Step::GiveUp(_) => {}
                Step::Wake(wait) => self.ask_again(host, life, wait, None),
            }
        }
    }

    /// The owner has answered what it was asked about `fcntl` locks for a program.
    pub(super) fn owner_decided(&mut self, host: usize, life: u32, what: &What, answer: &Answer) {
        let What::Locks(op) = what else { return };
        let (inode, lock) = match op {
            Op::SetLock { inode, lock, .. } if lock.kind == LockKind::Posix => (*inode, *lock),
            Op::ReleaseLocks {
                inode,
                owner: Some(owner),
                ..
            } => (*inode, Self::all_of(*owner)),
            _ => return,
        };
        let outcome = match answer {
            Answer::Done(Ok(Reply::Granted(_))) => Outcome::Granted,
            Answer::Done(Ok(Reply::Done)) => Outcome::LetGo,
            _ => Outcome::Unchanged,
        };
        let alive = self.life_of(host);
        let Some(session) = self.session(host, life) else {
            return;
        };
        let steps = session.covers.answered(inode, &lock, outcome, alive);
        self.perform(host, life, steps);
    }

    /// The owner has answered about a cover.
    pub(super) fn cover_told(
        &mut self,
        host: usize,
        life: u32,
        (id, what): (KeptId, &What),
        answer: &Answer,
    ) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let steps = match (what, answer) {
            (What::Locks(Op::SetLock { .. }), Answer::Done(Ok(Reply::Granted(token)))) => {
                let granted = CoverAnswer::Granted(*token);
                session.covers.cover_answered(id, granted)
            }
            (What::Locks(Op::SetLock { .. }), Answer::Done(Ok(_) | Err(Errno::EAGAIN))) => {
                session.covers.cover_answered(id, CoverAnswer::Refused)
            }
            (What::Locks(Op::SetLock { .. }), _) => {
                session.covers.cover_answered(id, CoverAnswer::Unknown)
            }
            (_, Answer::Done(Ok(_))) => session.covers.ended(id, EndAnswer::Done),
            (_, answer) => {
                let what = format!("the end of {id:?} is answered {answer:?}");
                return self.accuse("locks", what);
            }
        };
        self.perform(host, life, steps);
        self.tell_callers(host, life, id);
    }

    /// The owner calls for a cover.
    pub(super) fn cover_called(
        &mut self,
        host: usize,
        life: u32,
        id: KeptId,
        call: Option<CallId>,
    ) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let of = (session.id, id);
        match session.covers.called(id) {
            Called::Ends(steps) => {
                session.callers.extend(call.map(|call| (id, call)));
                self.perform(host, life, steps);
            }
            Called::Unknown => {
                self.give_back(host, life, id);
                if let Some(call) = call {
                    self.tell_fate(host, call, of, Fate::GivenBack);
                }
            }
        }
    }

    fn tell_callers(&mut self, host: usize, life: u32, id: KeptId) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        if session.covers.knows(id) {
            return;
        }
        let of = (session.id, id);
        let all = std::mem::take(&mut session.callers);
        let (now, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(other, _)| *other == id);
        session.callers = later;
        for (_, call) in now {
            self.tell_fate(host, call, of, Fate::GivenBack);
        }
    }

    /// A program does not wait any more.
    pub(super) fn withdraw_here(&mut self, host: usize, life: u32, inode: InodeId, wait: WaitId) {
        let now = self.tick();
        let Some(session) = self.session(host, life) else {
            return;
        };
        let steps = session.covers.withdraw(now, inode, wait);
        self.perform(host, life, steps);
    }

    /// The host has shown no sign of life for too long.
    pub(super) fn covers_lapsed(&mut self, host: usize, life: u32) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let steps = session.covers.lapsed();
        self.perform(host, life, steps);
    }

    /// The owner asks all hosts who waits for whom by what they decide, and ends a wait of each circle.
    pub(super) fn look_for_circles(&mut self) {
        let owner = self.reign.owner;
        let mut later: Vec<Wait> = self.reign.queue.waits().collect();
        if !later.is_empty() && !self.planted(Plant::WaitsUntold) {
            for host in 0..self.hosts.len() {
                if self.reach(owner, host)
                    && let Some(session) = &self.hosts[host].session
                {
                    later.extend(session.covers.waits());
                }
            }
        }
        for victim in victims(&self.reign.waits, &later) {
            if self.reign.queue.end_cycle(&victim) {
                self.note(Mark::Circle);
                let ticket = victim.ticket;
                self.tell(owner, ticket.session, Word::Turn(ticket.wait));
            }
        }
        self.reign.waits = later;
    }

    /// Whether a session decides about a lock on a file that the owner knows of.
    pub(crate) fn is_covered(&self, session: SessionId, id: KeptId) -> bool {
        let there = &self.hosts[crate::world::host_of(session.node())].session;
        let there = there.as_ref().filter(|there| there.id == session);
        there.is_some_and(|there| there.covers.knows(id))
    }

    /// What lets go of all bytes.
    pub(super) const fn all_of(owner: u64) -> FileLock {
        FileLock {
            kind: LockKind::Posix,
            owner,
            range: ByteRange {
                start: 0,
                end: u64::MAX,
            },
            mode: None,
            pid: 0,
        }
    }
}

fn operation(session: SessionId, request: &Request) -> Op {
    match request.lock.mode {
        Some(_) => Op::SetLock {
            inode: request.inode,
            session,
            lock: request.lock,
            patience: request.patience,
        },
        None => Op::ReleaseLocks {
            inode: request.inode,
            session,
            owner: Some(request.lock.owner),
            kind: Some(LockKind::Posix),
        },
    }
}
