//! Operations over several containers: reads of foreign keys, and two-phase commit.

use perigee_meta::tx::Intent;
use perigee_types::{ContainerId, TxId};
use serde::{Deserialize, Serialize};

/// Reads keys of a container's state at its owner. What it shows is replicated first (law 3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadKeys {
    /// The container.
    pub container: ContainerId,
    /// Single keys.
    pub gets: Vec<Vec<u8>>,
    /// Ranges: from, to (exclusive), limit.
    pub scans: Vec<(Vec<u8>, Vec<u8>, u32)>,
}

/// One row.
pub type Row = (Vec<u8>, Vec<u8>);

/// The values, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// One for each single key.
    pub gets: Vec<Option<Vec<u8>>>,
    /// One list for each range.
    pub scans: Vec<Vec<Row>>,
}

/// First phase: check what was read, lock the keys, log the intent. Harmless to repeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// The participant.
    pub container: ContainerId,
    /// What shall happen there.
    pub intent: Intent,
}

/// The participant's vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Prepared {
    /// The intent is on every member of the chain.
    Yes,
    /// Something that was read has changed, or another transaction holds a key: run the operation again.
    Conflict,
}

/// Second phase. Harmless to repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolve {
    /// The participant.
    pub container: ContainerId,
    /// The transaction.
    pub tx: TxId,
    /// Whether it takes effect.
    pub commit: bool,
}

/// The participant has done so, on every member of its chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved;

/// A participant in doubt asks the coordinator's container. Without a decision, the answer is
/// "no", and is made durable first: it stays "no" (presumed abort).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskDecision {
    /// The transaction.
    pub tx: TxId,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Whether it took effect; `None`: still being decided, ask again.
    pub commit: Option<bool>,
}
