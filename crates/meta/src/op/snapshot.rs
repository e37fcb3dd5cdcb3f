//! The list of snapshots. It lies in [`ContainerId::ROOT`]; what each is made of lies in the containers' checkpoints.

use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::Reply;
use crate::past::{decode_snapshot, encode_snapshot};
use perigee_types::{CheckpointId, ContainerId, Errno, InodeId, SnapshotId, WallTime};
use serde::{Deserialize, Serialize};

/// Snapshots of a cluster, at most.
pub const SNAPSHOTS_MAX: usize = 4_000;
/// The longest name, in bytes, as of any name in a directory.
pub const SNAPSHOT_NAME_MAX: usize = perigee_types::limits::NAME_LEN_MAX;

/// Who wanted a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A person: it stays until a person deletes it.
    Asked,
    /// The policy of its directory: it goes when the policy no longer keeps it.
    Scheduled,
}

/// One container's part of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPart {
    /// The container.
    pub container: ContainerId,
    /// Its checkpoint.
    pub checkpoint: CheckpointId,
}

/// A directory with all that is below it, as of a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its number.
    pub id: SnapshotId,
    /// Its name, below `.snapshots` of the directory; no two of one directory have the same.
    pub name: String,
    /// The directory.
    pub directory: InodeId,
    /// Where the directory was then, from the root of the file system.
    pub path: String,
    /// When it was made.
    pub taken: WallTime,
    /// Who wanted it.
    pub origin: Origin,
    /// The containers as of that moment: every one in which the tree may have something.
    pub parts: Vec<SnapshotPart>,
}

impl Snapshot {
    /// The checkpoint of a container.
    #[must_use]
    pub fn part(&self, container: ContainerId) -> Option<CheckpointId> {
        let mut parts = self.parts.iter();
        let found = parts.find(|part| part.container == container);
        found.map(|part| part.checkpoint)
    }
}

/// Whether a snapshot can have this name: a name that a directory can hold, and that no shell pattern or listing hides.
#[must_use]
pub fn is_snapshot_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= SNAPSHOT_NAME_MAX
        && !name.starts_with(['.', '-'])
        && !name.chars().any(|c| c == '/' || c.is_control())
}

fn all(draft: &mut Draft<'_>) -> Result<Vec<Snapshot>, Refusal> {
    let rows = draft.scan(ContainerId::ROOT, &key::snapshots(), SNAPSHOTS_MAX + 1)?;
    let rows = rows.into_iter();
    rows.map(|(key, value)| decode_snapshot(ContainerId::ROOT, &key, &value))
        .collect()
}

pub(crate) fn list(draft: &mut Draft<'_>) -> Result<Reply, Refusal> {
    Ok(Reply::Snapshots(all(draft)?))
}

/// Adds one: EEXIST when its directory has one of that name, ENOSPC when there are too many.
pub(crate) fn keep(draft: &mut Draft<'_>, snapshot: &Snapshot) -> Result<Reply, Refusal> {
    if !is_snapshot_name(&snapshot.name) {
        return Err(Errno::EINVAL.into());
    }
    let others = all(draft)?;
    if others.len() >= SNAPSHOTS_MAX {
        return Err(Errno::ENOSPC.into());
    }
    let same = |other: &Snapshot| {
        other.id == snapshot.id
            || (other.directory == snapshot.directory && other.name == snapshot.name)
    };
    if others.iter().any(same) {
        return Err(Errno::EEXIST.into());
    }
    let key = Key::Snapshot(snapshot.id).encode();
    draft.put(ContainerId::ROOT, key, encode_snapshot(snapshot));
    Ok(Reply::Done)
}

/// Takes one off the list; ENOENT when it is not there.
pub(crate) fn forget(draft: &mut Draft<'_>, id: SnapshotId) -> Result<Reply, Refusal> {
    let key = Key::Snapshot(id).encode();
    if draft.get(ContainerId::ROOT, &key)?.is_none() {
        return Err(Errno::ENOENT.into());
    }
    draft.delete(ContainerId::ROOT, key);
    Ok(Reply::Done)
}
