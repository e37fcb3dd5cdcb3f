//! Checkpoints of containers: making, reading and removing them, at their owners.

use perigee_meta::{Op, Reply};
use perigee_types::{CheckpointId, ContainerId, Epoch, Errno, InodeId, SnapshotId};
use serde::{Deserialize, Serialize};

/// Runs an operation that changes nothing on a container as of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// The container.
    pub container: ContainerId,
    /// As of when.
    pub checkpoint: CheckpointId,
    /// What is asked.
    pub operation: Op,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queried {
    /// The reply, or the error for the program: ESTALE when there is no such checkpoint (any more).
    pub result: Result<Reply, Errno>,
}

/// Reads a file as of a checkpoint; the payload of the answer is the content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPast {
    /// The file.
    pub inode: InodeId,
    /// As of when.
    pub checkpoint: CheckpointId,
    /// First byte.
    pub offset: u64,
    /// At most 1 MiB.
    pub len: u32,
}

/// The payload has the bytes; fewer than asked for only at the end of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRead {
    /// Success, or the error for the program.
    pub result: Result<(), Errno>,
}

/// Names one stop of a container's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopId {
    /// Of the owner that stopped.
    pub epoch: Epoch,
    /// Counts its stops.
    pub number: u64,
}

/// A step of making or removing a container's part of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// No changes from here on, for at most so many microseconds.
    Stop {
        /// For how long.
        for_us: u64,
    },
    /// The checkpoint is made, if changes are stopped still by that stop, and by no later one.
    Take {
        /// As [`Part::Stopped`] named it.
        stop: StopId,
    },
    /// Changes go on.
    Release,
    /// All content of now goes to every member's disk.
    Settle,
    /// The snapshot is deleted.
    Forget,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Nothing to tell.
    Done,
    /// [`Step::Stop`]: nothing is under way any more.
    Stopped(StopId),
    /// [`Step::Take`]: the checkpoint is on every member.
    Taken(CheckpointId),
}

/// Has an owner do its part of a snapshot. A repeat is harmless, but of [`Step::Take`], which makes another checkpoint: one
/// that no snapshot has is removed after a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOfSnapshot {
    /// The container.
    pub container: ContainerId,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// What is to be done.
    pub step: Step,
}

/// It is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartDone {
    /// What came of it.
    pub result: Result<Part, Errno>,
}

/// Asks what content of checkpoints takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskPastUse {
    /// The container.
    pub container: ContainerId,
}

/// What content of one checkpoint takes beside the files of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastUse {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The snapshot that it is a part of.
    pub snapshot: SnapshotId,
    /// Bytes, in one copy.
    pub bytes: u64,
}

/// By checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastUses {
    /// All of the container.
    pub result: Result<Vec<PastUse>, Errno>,
}
