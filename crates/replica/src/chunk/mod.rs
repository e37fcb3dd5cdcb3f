//! Ownership of chunks that moves to the host that writes: the local-write protocol of AwareFS (section 4.2 there), with
//! what it leaves out, failures.
//!
//! A chunk belongs to its container's owner, or to another host, its **holder**. Who holds it is a row of the
//! container's state, put and removed by records: so every member has agreed before it counts (the two phases as
//! published), and whoever becomes the container's owner knows it. The row's **token** is the version of the record that
//! put it; it fences what an earlier holder sends.
//!
//! The holder writes in place, with no word to anybody, while its **right** lasts: a lease, asked for again by use. It
//! sends what it has written to the owner later: when due, when called, for `fsync`. The owner puts that in place and records
//! it like any other host's write, so a chunk has one history, the log's, wherever it is written.
//!
//! - H1: A holder asks for its right when the record of its row is committed there, or is given it with the row once that is, and writes, and reads its own copy, under it alone. The owner removes a row when the holder has
//!   stopped, or when every right that it granted is over by its own clock; a new owner counts its predecessor's.
//! - H2: Before a chunk is given away, the owner has recorded its own writes to it.
//! - H3: Whoever else reads a chunk is answered after its holder was asked for what it has written until then; whoever else
//!   changes it, after the row is removed.
//! - H4: What a holder sends counts while its row stands, with its token, in order, and for the owner of its epoch.
//! - H5: A holder keeps what it sent as its own until the record of it is committed here. It gives nobody else bytes that
//!   have no record.
//! - H6: A record that replaces bytes makes nothing invalid, and no hole, at a holder that has written them since, or has
//!   sent them: its own record of them is this one or comes later.
//! - H8: What a holder has the owner change for it goes there after what it has written itself, and has a number like that.
//! - H9: A holder that keeps no copy has each of its programs' writes sent at once, with its row; the owner carries it out
//!   while the row stands. It answers them before the owner does under its right alone, and no two to the same bytes are under way
//!   at once, since messages overtake each other. A program that closes the file is told when the owner has put all of them in place and
//!   ordered their records: they outlive the host, or, since that keeps and repeats them until they are committed, the owner.
//! - H7: What a holder has not sent when its row is gone is lost, as a crash loses what a local disk has not: it is not the
//!   content, and the next `fsync` says so. A process holds nothing of what an earlier one held.

mod behind;
mod claim;
mod habit;
mod holder;
mod owner;
#[cfg(test)]
mod tests;

#[cfg(feature = "plant")]
pub use behind::plant as behind_plant;
pub use behind::{Begin, Behind, Given, Room, Word, WriteNumber};
pub use habit::Habit;
pub use holder::{Flush, FlushNumber, Holding, May, Part, Report, Share, Turn, Unsent};
pub use owner::{Access, Call, Holds, Need, Silence, Stale};

use crate::timing::Timing;
use perigee_types::limits::CHUNK_LEN;
use perigee_types::{ByteRange, InodeId, SessionId, Span, Version};
use serde::{Deserialize, Serialize};

/// A part of a file that one node owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunk {
    /// The file.
    pub inode: InodeId,
    /// Which of its parts of [`CHUNK_LEN`] bytes each, from 0.
    pub index: u64,
}

impl Chunk {
    /// The bytes of the file that it is.
    #[must_use]
    pub const fn range(self) -> ByteRange {
        ByteRange::with_len(self.index.saturating_mul(CHUNK_LEN), CHUNK_LEN)
    }

    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self {
            inode: self.inode,
            index: self.index.saturating_add(1),
        }
    }

    /// The chunks that `range`, which is not empty, touches, in order.
    pub fn touched(inode: InodeId, range: ByteRange) -> impl Iterator<Item = Self> {
        let last = range.end.saturating_sub(1) / CHUNK_LEN;
        (range.start / CHUNK_LEN..=last).map(move |index| Self { inode, index })
    }

    /// The only chunk that `range` touches, if there is one.
    #[must_use]
    pub fn around(inode: InodeId, range: ByteRange) -> Option<Self> {
        let mut touched = Self::touched(inode, range);
        touched.next().filter(|_| touched.next().is_none())
    }

    /// All chunks that a file may have.
    #[must_use]
    pub const fn all_of(inode: InodeId) -> std::ops::RangeInclusive<Self> {
        let first = Self { inode, index: 0 };
        let last = Self {
            inode,
            index: u64::MAX,
        };
        first..=last
    }
}

/// What the row of a chunk says that does not belong to its container's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Who may be given the right to write. Another session of the same node is another host to it.
    pub holder: SessionId,
    /// The version of the record that put this row.
    pub token: Version,
    /// What the right is.
    pub manner: Manner,
}

/// How a holder writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// In its own copy, and sends it later: a member.
    InPlace,
    /// At the owner as anybody does, but its programs do not wait for the answers ([`Behind`]): a host without a copy.
    WriteBehind,
}

/// How long rights last. The same inequality makes them safe that makes an owner's lease safe
/// ([`Timing::is_safe`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// For so long after it asked a holder may write, by its clock.
    pub held: Span,
    /// After so long since it granted an owner counts a right as over, by its clock.
    pub waited: Span,
}

impl From<&Timing> for Terms {
    fn from(timing: &Timing) -> Self {
        Self {
            held: timing.lease_held(),
            waited: timing.takeover,
        }
    }
}
