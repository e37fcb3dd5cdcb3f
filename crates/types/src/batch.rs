//! What a container's log carries: effects, not operations, so that replay needs no judgement and
//! repeating it does no harm.

use crate::{ByteRange, InodeId};
use serde::{Deserialize, Serialize};

/// A change of one key of a container's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutation {
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// A change of a data object, ordered by the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataCommand {
    /// The owner has new bytes here. A replica marks the range invalid, and fetches it.
    Written {
        /// The file.
        inode: InodeId,
        /// The bytes that changed.
        range: ByteRange,
    },
    /// The object has this length now. Bytes beyond are gone; growth reads as zeros.
    Resized {
        /// The file.
        inode: InodeId,
        /// Its new length in bytes.
        size: u64,
    },
    /// The range reads as zeros now, and takes no space.
    Punched {
        /// The file.
        inode: InodeId,
        /// The bytes that became zeros.
        range: ByteRange,
    },
    /// The object is gone.
    Removed {
        /// The file.
        inode: InodeId,
    },
}

impl DataCommand {
    /// The file that it changes.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        match self {
            Self::Written { inode, .. }
            | Self::Resized { inode, .. }
            | Self::Punched { inode, .. }
            | Self::Removed { inode } => *inode,
        }
    }
}

/// The effects of one operation on one container, applied wholly or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Changes of the state, in order; a later one of the same key wins.
    pub mutations: Vec<Mutation>,
    /// Changes of data objects, in order.
    pub data: Vec<DataCommand>,
}

impl Batch {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mutations.is_empty() && self.data.is_empty()
    }
}
