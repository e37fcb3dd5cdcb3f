//! At most once: the answers that a container keeps for sessions that ask again.
//!
//! The answer to a change is stored by the record that makes the change. A later change of the session says up to where it
//! has had its answers: those rows go, and whatever of them still comes in is too late. The newest row of a session keeps
//! that bound, so a new owner knows it too.

use crate::error::Refusal;
use crate::key::{self, Key};
#[cfg(feature = "plant")]
use crate::plant::Plant;
use crate::planted;
use crate::record::{self, ToldOf, corrupt};
use crate::view::View;
use perigee_types::{Batch, ContainerId, Errno, Mutation, OpId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that are read at a time.
const PAGE: usize = 1_000;

/// What is known of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It was not executed.
    Never,
    /// It was executed, and this is the stored answer.
    Answered(Vec<u8>),
    /// It was refused so, for good: it must not be executed.
    Refused(Errno),
    /// It is being executed over several containers, or its answer waits for leases that are taken back: ask again.
    Running,
    /// Its session has had the answer: nobody waits for another one, and it must not be executed.
    TooLate,
}

/// How a change comes to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comes {
    /// From another host, which asks again where it has no answer.
    Abroad,
    /// From a program of the owner's own host: nobody else has it, and nobody asks again.
    Home,
    /// From its own host, after an owner elsewhere was asked, which may still run it when it owns again.
    HomeAgain,
}

/// Names one execution of an operation, in the life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(u64);

/// Of one session.
#[derive(Debug, Default)]
struct Kept {
    /// It has had the answers up to here.
    through: OpId,
    /// Every operation that has a row.
    ops: BTreeSet<OpId>,
}

/// The answers that one container keeps, in one reign of its owner.
#[derive(Debug, Default)]
pub struct Answers {
    sessions: BTreeMap<SessionId, Kept>,
    /// Executions that have not ended. A repeat beside one could be refused, and the first still take effect.
    running: BTreeMap<RunId, (SessionId, OpId)>,
    runs: u64,
    #[cfg(feature = "plant")]
    plant: Option<Plant>,
}

impl Answers {
    /// Switches a deliberate fault on.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// A reign begins: finds what earlier owners have kept. Executions of an earlier reign are over: see
    /// [`Self::is_running`].
    pub fn restore(mut self, view: &mut dyn View, container: ContainerId) -> Result<Self, Refusal> {
        self.sessions.clear();
        self.running.clear();
        if planted!(self, AnswersNotRestored) {
            return Ok(self);
        }
        let (mut from, to) = key::dedup_of_all();
        loop {
            let rows = view.scan(container, &from, &to, PAGE)?;
            let Some((last, _)) = rows.last() else {
                return Ok(self);
            };
            from = last.to_vec();
            from.push(0);
            for (key, value) in &rows {
                let Some(Key::Dedup(session, op)) = Key::decode(key) else {
                    return Err(corrupt(container, key, "not the key of an answer"));
                };
                let (through, _) = record::decode_answer(container, key, value)?;
                let kept = self.sessions.entry(session).or_default();
                kept.through = kept.through.max(through);
                kept.ops.insert(op);
            }
        }
    }

    /// A session asks for something, and has had the answers up to there: what comes late of those is not run again, also where
    /// the answer was an error, of which nothing is kept.
    pub fn hear(&mut self, session: SessionId, answered_through: OpId) {
        let kept = self.sessions.entry(session).or_default();
        kept.through = kept.through.max(answered_through);
    }

    /// What is known of an operation. An answer may be told when everything ordered so far is replicated: the record of
    /// the first run may still be under way.
    pub fn seen(
        &self,
        view: &mut dyn View,
        container: ContainerId,
        session: SessionId,
        op: OpId,
    ) -> Result<Seen, Refusal> {
        if op == OpId::UNREPEATED || planted!(self, RepeatRunsAgain) {
            return Ok(Seen::Never);
        }
        let mut running = self.running.values();
        if running.any(|run| *run == (session, op)) && !planted!(self, RepeatRunsBeside) {
            return Ok(Seen::Running);
        }
        let Some(kept) = self.sessions.get(&session) else {
            return Ok(Seen::Never);
        };
        if kept.ops.contains(&op) {
            let key = key::dedup_key(session, op);
            if let Some(value) = view.get(container, &key)? {
                let (_, told) = record::decode_answer(container, &key, &value)?;
                return Ok(match told {
                    ToldOf::Done(answer) => Seen::Answered(answer),
                    ToldOf::Refused(errno) => Seen::Refused(errno),
                });
            }
        }
        Ok(if op <= kept.through {
            Seen::TooLate
        } else {
            Seen::Never
        })
    }

    /// Whether the answer to a change is to be kept ([`Self::keep`]): it may come again.
    #[must_use]
    pub fn must_keep(&self, comes: Comes) -> bool {
        match comes {
            Comes::Abroad => true,
            Comes::Home => false,
            Comes::HomeAgain => !planted!(self, HomeAgainForgotten),
        }
    }

    /// An operation that was never seen is about to be executed over several containers, or was executed and must not be
    /// answered yet.
    pub fn begin(&mut self, session: SessionId, op: OpId) -> RunId {
        self.runs += 1;
        let run = RunId(self.runs);
        self.running.insert(run, (session, op));
        run
    }

    /// Whether an execution may go on: not when another reign has begun meanwhile.
    #[must_use]
    pub fn is_running(&self, run: RunId) -> bool {
        self.running.contains_key(&run)
    }

    /// An execution has ended, with an answer or without.
    pub fn end(&mut self, run: RunId) {
        self.running.remove(&run);
    }

    /// Adds to `batch`, which is about to be ordered, the answer to an operation, and the end of those that the session
    /// has had.
    pub fn keep(
        &mut self,
        session: SessionId,
        op: OpId,
        answered_through: OpId,
        answer: &[u8],
        batch: &mut Batch,
    ) {
        let told = ToldOf::Done(answer.to_vec());
        self.keep_told((session, op), answered_through, told, batch);
    }

    /// The same of one that has failed. Of most nothing is kept: a repeat may be executed once there is what it lacked. What an
    /// owner elsewhere may still carry out ([`Comes::HomeAgain`]) would be done after its session was told that it was not.
    pub fn keep_refusal(
        &mut self,
        session: SessionId,
        op: OpId,
        answered_through: OpId,
        errno: Errno,
        batch: &mut Batch,
    ) {
        let told = ToldOf::Refused(errno);
        self.keep_told((session, op), answered_through, told, batch);
    }

    fn keep_told(
        &mut self,
        (session, op): (SessionId, OpId),
        answered_through: OpId,
        told: ToldOf,
        batch: &mut Batch,
    ) {
        if op == OpId::UNREPEATED {
            return;
        }
        let kept = self.sessions.entry(session).or_default();
        kept.through = kept.through.max(answered_through);
        let later = kept.ops.split_off(&OpId(kept.through.0.saturating_add(1)));
        for old in std::mem::replace(&mut kept.ops, later) {
            let key = key::dedup_key(session, old);
            batch.mutations.push(Mutation { key, value: None });
        }
        kept.ops.insert(op);
        let key = key::dedup_key(session, op);
        let value = Some(record::encode_answer(kept.through, told));
        batch.mutations.push(Mutation { key, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemView;
    use perigee_types::NodeId;

    #[test]
    fn what_comes_late_is_not_run_again_though_its_answer_was_an_error() {
        let (session, here) = (SessionId::new(NodeId(2), 1), ContainerId::ROOT);
        let mut answers = Answers::default();
        let seen = |answers: &Answers, op| {
            let seen = answers.seen(&mut MemView::new(), here, session, OpId(op));
            seen.expect("nothing is kept that could be damaged")
        };
        assert!(matches!(seen(&answers, 1), Seen::Never));
        // The second one says that the session knows the answer of the first.
        answers.hear(session, OpId(1));
        assert!(matches!(seen(&answers, 1), Seen::TooLate));
        assert!(matches!(seen(&answers, 2), Seen::Never));
    }
}
