//! File locks: what is asked for, and the table of those held on one inode.

use perigee_types::ByteRange;
use serde::{Deserialize, Serialize};

/// A kind of file lock. The kinds do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// `fcntl`: by process and byte range.
    Posix,
    /// `flock`: by open file, the whole file.
    Flock,
}

/// A lock that is asked for, or that stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// `fcntl` or `flock`.
    pub kind: LockKind,
    /// The kernel's name of the owner inside its session.
    pub owner: u64,
    /// The bytes; `end` is `u64::MAX` for "to the end of the file".
    pub range: ByteRange,
    /// None: unlock; `Some(true)`: exclusive; `Some(false)`: shared.
    pub exclusive: Option<bool>,
    /// The process, as shown by `F_GETLK`.
    pub pid: u32,
}
