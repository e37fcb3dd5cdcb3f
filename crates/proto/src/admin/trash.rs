//! What was removed and is kept.

use super::AdminPath;
use perigee_types::InodeId;
use serde::{Deserialize, Serialize};

/// Names what is kept of something that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashName {
    /// What was removed.
    pub inode: InodeId,
    /// Until when it is kept, in milliseconds since 1970.
    pub until_ms: u64,
}

/// Something that was removed and is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashRow {
    /// Names it.
    pub name: TrashName,
    /// The path that it had, inside the file system; where a directory above was renamed since, by its new name. None where
    /// a directory above it is not known any more.
    pub path: Option<AdminPath>,
    /// The last part of that.
    pub last: AdminPath,
    /// When it was removed, in milliseconds since 1970.
    pub removed_ms: u64,
    /// The number of the user who removed it.
    pub by: u32,
    /// What it is.
    pub kind: TrashKind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
}

/// What something is that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrashKind {
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device.
    Special,
    /// A directory, of which no more is known than what is shown.
    Directory,
}

/// Something that is to be there again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bring {
    /// A directory, which is made where it is not there.
    Directory {
        /// Path inside the file system.
        path: AdminPath,
        /// Permission, set-id and sticky bits.
        mode: u32,
        /// Owning user.
        uid: u32,
        /// Owning group.
        gid: u32,
    },
    /// What is kept gets a name.
    Kept {
        /// What.
        name: TrashName,
        /// Path inside the file system.
        to: AdminPath,
    },
}

/// What came of bringing something back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Brought {
    /// It is there.
    Done,
    /// Something had that name, and is as it was.
    Occupied,
    /// It is not kept any more.
    Gone,
    /// This user may not.
    Denied,
    /// Something else was in the way.
    Failed(String),
}
