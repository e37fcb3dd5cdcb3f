//! Identities and versions.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A host that runs `perigee`. Numbered from 1 by the control store, never reused.
    NodeId(u32), "n"
);
number!(
    /// The unit of placement, replication and failure handling. 1 holds the root directory; at most
    /// [`ContainerId::MAX`].
    ContainerId(u32), "c"
);
number!(
    /// The number of an inode inside its container; at most [`InodeIndex::MAX`], never reused.
    InodeIndex(u64), "#"
);
number!(
    /// A reign of one owner over one container. Rises by compare-and-set in the control store, never falls.
    Epoch(u64), "e"
);
number!(
    /// A place in a container's log. The first record has 1; 0 means "before every record".
    Seq(u64), "s"
);
number!(
    /// A moment of a container that is kept: the place in the log of the record that made it. Rises, never reused.
    CheckpointId(u64), "k"
);
number!(
    /// A moment of a directory tree that somebody wanted kept, over all containers. Unique in the cluster.
    SnapshotId(u64), "v"
);
number!(
    /// An operation of one session, rising; the key of at-most-once execution.
    OpId(u64), "op"
);

impl OpId {
    /// Of what a node asks of itself, and does not ask for again: no answer is kept for it.
    pub const UNREPEATED: Self = Self(0);
}

impl ContainerId {
    /// The container that holds the root directory.
    pub const ROOT: Self = Self(1);
    /// Container numbers take 24 bits of an inode number.
    pub const MAX: Self = Self((1 << 24) - 1);
}

impl InodeIndex {
    /// The first index of every container: its own root, and in [`ContainerId::ROOT`] the root directory.
    pub const FIRST: Self = Self(1);
    /// Indexes take 40 bits of an inode number.
    pub const MAX: Self = Self((1 << 40) - 1);
}

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Seq {
    /// Before every record.
    pub const ZERO: Self = Self(0);

    /// The place after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// An inode number that is valid in the whole cluster: container in the upper 24 bits, index in the
/// lower 40. The root directory is (1, 1).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The root directory of the file system.
    pub const ROOT: Self = Self::new(ContainerId::ROOT, InodeIndex::FIRST);

    /// Joins the two parts. Bits beyond their fields are cut off.
    #[must_use]
    pub const fn new(container: ContainerId, index: InodeIndex) -> Self {
        Self(((container.0 as u64) << 40) | (index.0 & InodeIndex::MAX.0))
    }

    /// The container that holds this inode.
    #[must_use]
    pub const fn container(self) -> ContainerId {
        ContainerId((self.0 >> 40) as u32)
    }

    /// The inode's number inside its container.
    #[must_use]
    pub const fn index(self) -> InodeIndex {
        InodeIndex(self.0 & InodeIndex::MAX.0)
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.container(), self.index())
    }
}

/// A place in a container's history that no two different records share: the epoch in which the
/// record was ordered, and its place. Ordered by epoch, then place.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Version {
    /// The epoch whose owner ordered the record.
    pub epoch: Epoch,
    /// The record's place in the log.
    pub seq: Seq,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.epoch, self.seq)
    }
}

/// A value that one owner gives out once in its epoch: the version of a chunk's content.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Stamp {
    /// The epoch of the owner that gave it out.
    pub epoch: Epoch,
    /// Counts up inside the epoch.
    pub count: u64,
}

/// One mount (or gateway) of one node: the holder of leases, locks and open files.
/// The node is in the upper 32 bits; the lower 32 count that node's sessions and are not reused
/// while the node's process lives (they start at a random number).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SessionId(pub u64);

impl SessionId {
    /// Joins the two parts.
    #[must_use]
    pub const fn new(node: NodeId, count: u32) -> Self {
        Self(((node.0 as u64) << 32) | count as u64)
    }

    /// The node whose mount this is.
    #[must_use]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 32) as u32)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node(), self.0 & 0xffff_ffff)
    }
}

/// A transaction over several containers, numbered by the owner of the container that decides it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct TxId {
    /// The container whose log holds the decision.
    pub container: ContainerId,
    /// The epoch in which the transaction began.
    pub epoch: Epoch,
    /// Counts up inside the epoch.
    pub count: u64,
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx{}{}.{}", self.container, self.epoch, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_number_keeps_both_parts_at_their_limits() {
        for (c, i) in [
            (ContainerId::ROOT, InodeIndex::FIRST),
            (ContainerId::MAX, InodeIndex::MAX),
            (ContainerId(77), InodeIndex(0)),
        ] {
            let inode = InodeId::new(c, i);
            assert_eq!((inode.container(), inode.index()), (c, i));
        }
    }

    #[test]
    fn a_later_epoch_is_later_at_any_place() {
        let old = Version {
            epoch: Epoch(3),
            seq: Seq(900),
        };
        let new = Version {
            epoch: Epoch(4),
            seq: Seq(1),
        };
        assert!(old < new);
    }
}
