//! What `perigee adopt` has a node do for the large files of a directory of its machine.

use super::AdminPath;
use perigee_types::InodeId;
use serde::{Deserialize, Serialize};

/// Files of one request.
pub const ADOPTED_MAX: usize = 256;

/// What is to be done for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdoptStep {
    /// A local file becomes the content of a file that has none; no byte is copied here. It keeps its name, and must not be
    /// written to from then on. Then the file is brought to all of its copies; where no local file is given, that alone.
    Take,
    /// Brings a file that has the length and the time of a local one to all of its copies. Is that one still like this, and
    /// does nobody write to it?
    Check,
    /// The local files have lost their names: what was taken is the node's alone.
    Settle,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptFile {
    /// In the file system.
    pub inode: InodeId,
    /// The local file; none, where its bytes are copied or it is none.
    #[serde(default)]
    pub source: Option<AdoptSource>,
}

/// A file of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptSource {
    /// Absolute path.
    pub path: AdminPath,
    /// Of its file system, as `stat` gives it: another file that has come to the path meanwhile is not taken.
    pub device: u64,
    /// Of the file there, likewise.
    pub inode: u64,
    /// Names that it has where it comes from; with others somebody else may write to it.
    pub names: u64,
}

/// How it ended for one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Adopted {
    /// It is done; for [`AdoptStep::Check`]: it has the bytes of the local file, by being that file.
    Done,
    /// For [`AdoptStep::Check`]: it has bytes of its own, of which nobody here knows whether they are the same.
    Own,
    /// Somebody has the local file open for writing, or mapped.
    InUse,
    /// The local file has changed.
    Changed,
    /// It could not be done.
    Failed {
        /// Why not, as a sentence about the file.
        why: String,
    },
}
