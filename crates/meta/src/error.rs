//! Why an operation has no outcome.

use crate::view::Missing;
use perigee_types::{ContainerId, Errno};

/// An operation that changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The answer of the file system to the program.
    #[error("{0}")]
    Errno(Errno),
    /// The view lacked something, and has noted it: fetch it and run the operation again.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The state holds what no operation writes. The program gets EIO.
    #[error("container {container} is corrupt at key {key:02x?}: {what}")]
    Corrupt {
        /// Whose state it is.
        container: ContainerId,
        /// The key whose value cannot be right.
        key: Vec<u8>,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl Refusal {
    /// What a program gets to see; `None` when the operation shall be run again.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Errno(errno) => Some(*errno),
            Self::Missing(_) => None,
            Self::Corrupt { .. } => Some(Errno::EIO),
        }
    }
}
