//! What the simulator knows and no host does: every operation in the order in which owners ordered their effects, which
//! records are committed, and what sessions were told.
//!
//! A transaction holds all its keys when its decision is ordered, so the order of decisions is one in which everything
//! could have happened one after the other.

use super::Mark;
use super::calls::Request;
use super::host::Rows;
use super::leases::Name;
use super::world::Names;
use crate::law::Laws;
use crate::oracle::Violation;
use perigee_meta::tx::Plan;
use perigee_meta::{Context, Op, Outcome, RenameMode, Reply};
use perigee_types::{CheckpointId, ContainerId, Errno, OpId, SessionId, Version};
use std::collections::BTreeMap;

/// An operation that an owner has run to its end.
#[derive(Debug, Clone)]
pub struct Executed {
    /// Where: the container that ordered it.
    pub container: ContainerId,
    /// Whose.
    pub session: SessionId,
    /// Its number there.
    pub op: OpId,
    /// What.
    pub operation: Op,
    /// With what.
    pub context: Context,
    /// What it came to.
    pub result: Result<Reply, Errno>,
    /// The record that carries its effects, or the decision about them.
    pub record: Option<Version>,
    /// The latest record that it has seen, or made.
    pub depends: Version,
    /// Its place among the effects: how many operations had been executed before.
    pub place: usize,
}

/// What a session was told.
#[derive(Debug, Clone)]
pub struct Told {
    /// Whose.
    pub session: SessionId,
    /// Its number there.
    pub op: OpId,
    /// What.
    pub operation: Op,
    /// The answer.
    pub result: Result<Reply, Errno>,
    /// The owner was on its host: a crash there may lose what it did.
    pub home: bool,
}

/// What a session does, as seen from outside.
#[derive(Debug, Clone)]
pub enum Heard {
    /// It asks for this.
    Began(SessionId, OpId, Op),
    /// It has this answer of [`History::told`].
    Told(usize),
}

/// See the module.
#[derive(Debug, Default)]
pub struct History {
    /// Operations.
    pub executed: Vec<Executed>,
    /// Records that some host took for committed, from place 1.
    pub committed: BTreeMap<ContainerId, Vec<Version>>,
    /// The state that they make, from the first contents on.
    pub rows: BTreeMap<ContainerId, Rows>,
    /// What each checkpoint that is wanted has to show.
    pub past: BTreeMap<(ContainerId, CheckpointId), Rows>,
    /// The latest change of each name that was answered: its place, and whose it was.
    pub answered: BTreeMap<Name, (usize, SessionId)>,
    /// Answers.
    pub told: Vec<Told>,
    /// How calls began and were answered, in this order.
    pub heard: Vec<Heard>,
    /// The first broken law.
    pub violation: Option<Violation>,
    /// Which are looked at.
    pub laws: Laws,
}

impl History {
    /// The operations in an order in which they could have run one after the other.
    #[must_use]
    pub fn in_order(&self) -> Vec<&Executed> {
        let mut all: Vec<&Executed> = self.executed.iter().collect();
        // What was found before an effect was noted is noted after it, and belongs before it.
        all.sort_by_key(|executed| (executed.place, executed.record.is_some()));
        all
    }

    /// The place of a session's operation.
    #[must_use]
    pub fn place_of(&self, session: SessionId, op: OpId) -> Option<usize> {
        let mut latest = self.executed.iter().rev();
        let found = latest.find(|executed| (executed.session, executed.op) == (session, op));
        found.map(|executed| executed.place)
    }

    /// Whether a record is committed. What is before every record is.
    #[must_use]
    pub fn is_committed(&self, container: ContainerId, version: Version) -> bool {
        let Some(index) = version.seq.0.checked_sub(1) else {
            return true;
        };
        let known = self.committed.get(&container);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        known.and_then(|known| known.get(index)) == Some(&version)
    }
}

impl Names {
    pub(crate) fn accuse(&mut self, law: &'static str, what: String) {
        let at = self.now;
        if self.history.laws.include(law) {
            self.history
                .violation
                .get_or_insert(Violation { law, what, at });
        }
    }

    /// Notes what a transaction does, as worth seeing.
    pub(super) fn note_outcome(&mut self, plan: &Plan, request: &Request, outcome: &Outcome) {
        self.note(Mark::Committed);
        if let Op::Rename {
            parent,
            new_parent,
            mode,
            ..
        } = &request.operation
            && !plan.intents.is_empty()
        {
            if parent.container() != new_parent.container() {
                self.note(Mark::RenamedAcross);
            }
            if *mode == RenameMode::Exchange {
                self.note(Mark::Exchanged);
            }
            if let Reply::Renamed {
                replaced: Some(_), ..
            } = &outcome.reply
            {
                self.note(Mark::Replaced);
            }
        }
    }
}
