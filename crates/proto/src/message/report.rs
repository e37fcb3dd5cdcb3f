//! What nodes ask of each other to answer people.

use perigee_types::{ContainerId, InodeId, NodeId};
use serde::{Deserialize, Serialize};

/// How does this node do? Reading only: a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskReport;

/// So it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Bytes that its store takes on its disk; none while they are still being counted.
    pub used: Option<u64>,
    /// Bytes free on that disk; none when the disk does not say.
    pub free: Option<u64>,
    /// Bytes of file content that it has yet to fetch, of each container that it holds.
    pub missing: Vec<(ContainerId, u64)>,
}

/// Who may keep a file, or has locks on it? Answered by the owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskHolders {
    /// The file or directory.
    pub inode: InodeId,
}

/// Why a host is a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// It may keep attributes, names or content, and is told before they change.
    Read,
    /// A program of it has a `flock` lock.
    Flock,
    /// A program of it has an `fcntl` lock.
    Fcntl,
}

/// These do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// Each host once for each kind of hold.
    pub holders: Vec<(NodeId, Hold)>,
}
