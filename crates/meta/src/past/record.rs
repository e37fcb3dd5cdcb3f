//! Stored values of checkpoints, and their codec: versioned as all of [`crate::record`].

use super::checkpoints::Checkpoint;
use crate::error::Refusal;
use crate::key::Key;
use crate::op::Snapshot;
use crate::record::{corrupt, decode, encode};
use bytes::Bytes;
use perigee_types::{CheckpointId, ContainerId, InodeIndex, Mutation};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
enum StoredCheckpoint {
    V1(Checkpoint),
}

pub(crate) fn encode_checkpoint(checkpoint: &Checkpoint) -> Vec<u8> {
    encode(&StoredCheckpoint::V1(*checkpoint))
}

pub(crate) fn decode_checkpoint(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Checkpoint, Refusal> {
    match decode(value) {
        Some(StoredCheckpoint::V1(checkpoint)) => Ok(checkpoint),
        None => Err(corrupt(container, key, "not a checkpoint")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredKept {
    /// Nothing was there.
    V1Absent,
    V1Was(Vec<u8>),
}

pub(crate) fn encode_kept(was: Option<&[u8]>) -> Vec<u8> {
    encode(&match was {
        None => StoredKept::V1Absent,
        Some(was) => StoredKept::V1Was(was.to_vec()),
    })
}

pub(crate) fn decode_kept(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Option<Bytes>, Refusal> {
    match decode(value) {
        Some(StoredKept::V1Absent) => Ok(None),
        Some(StoredKept::V1Was(was)) => Ok(Some(was.into())),
        None => Err(corrupt(container, key, "not a kept row")),
    }
}

/// Where units of a file's content are as of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// The file that has them, at the offsets where they were.
    pub file: InodeIndex,
    /// How long the file was then, in bytes: what lies beyond needs not be kept.
    pub size: u64,
}

#[derive(Serialize, Deserialize)]
enum StoredKeptFile {
    V1(KeptFile),
}

/// The row that says so of the file `index`.
#[must_use]
pub fn put_kept_file(index: InodeIndex, at: CheckpointId, kept: Option<KeptFile>) -> Mutation {
    Mutation {
        key: Key::KeptFile(index, at).encode(),
        value: kept.map(|kept| encode(&StoredKeptFile::V1(kept))),
    }
}

/// What such a row says.
///
/// Errors: [`Refusal::Corrupt`] when it is no such row.
pub fn kept_file(container: ContainerId, key: &[u8], value: &[u8]) -> Result<KeptFile, Refusal> {
    match decode(value) {
        Some(StoredKeptFile::V1(kept)) => Ok(kept),
        None => Err(corrupt(container, key, "not a file of a checkpoint")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredSnapshot {
    V1(Snapshot),
}

pub(crate) fn encode_snapshot(snapshot: &Snapshot) -> Vec<u8> {
    encode(&StoredSnapshot::V1(snapshot.clone()))
}

pub(crate) fn decode_snapshot(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Snapshot, Refusal> {
    match decode(value) {
        Some(StoredSnapshot::V1(snapshot)) => Ok(snapshot),
        None => Err(corrupt(container, key, "not a snapshot")),
    }
}
