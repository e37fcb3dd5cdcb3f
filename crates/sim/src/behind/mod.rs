//! The fifth world: one file of two chunks, whose hosts keep no copy and write behind, under programs that read and write runs
//! of blocks, messages that are lost, repeated and late, hosts that are cut off or crash, and owners that die or are replaced.
//!
//! The room is the real one: [`perigee_replica::chunk::Behind`] at each host, and [`perigee_replica::chunk::Holds`] in each
//! owner's reign. The container is one state to which an owner's records are applied a moment after they are ordered; those that
//! are not yet are lost with their owner, but for some of the first. That is the contract of the chain, which the first world
//! checks. Reading order: [`world`], then [`owner`], [`host`], and [`laws`].

pub mod host;
pub mod laws;
pub mod owner;
pub mod world;

pub use world::{Options, Report, run};

use crate::marks::marks;
use perigee_replica::Chunk;
use perigee_types::limits::CHUNK_LEN;
use perigee_types::{ByteRange, ContainerId, InodeId, InodeIndex};

/// The file.
pub const FILE: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(7));
/// Blocks of a chunk that are used.
pub const EACH: usize = 4;
/// All blocks: the last ones of the first chunk, and the first ones of the second.
pub const BLOCKS: usize = 2 * EACH;
/// Bytes of a block.
pub const BLOCK_LEN: u64 = 16 << 10;

/// Some blocks in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first of them.
    pub first: usize,
    /// How many there are, at least one.
    pub len: usize,
}

impl Run {
    /// All of them.
    pub const ALL: Self = Self {
        first: 0,
        len: BLOCKS,
    };

    /// Where it lies in the file.
    #[must_use]
    pub const fn bytes(self) -> ByteRange {
        let start = CHUNK_LEN - EACH as u64 * BLOCK_LEN + self.first as u64 * BLOCK_LEN;
        ByteRange::with_len(start, self.len as u64 * BLOCK_LEN)
    }

    /// Its blocks.
    #[must_use]
    pub const fn blocks(self) -> std::ops::Range<usize> {
        self.first..self.first + self.len
    }

    /// The chunks that it touches.
    pub fn chunks(self) -> impl Iterator<Item = Chunk> {
        Chunk::touched(FILE, self.bytes())
    }
}

marks! {
    Given = "a chunk was given to the host that writes";
    GivenAhead = "a chunk was given to the host whose stream came near to it";
    Wanted = "a chunk was given to a host that asked for it before it wrote";
    Ordered = "a host heard that its write was ordered before it heard that it was carried out";
    Closed = "a program waited until what its host had under way was with the owner";
    OutlivedHost = "a host crashed whose write its owner had ordered and not carried out";
    WrittenBehind = "a program's write was answered before the owner had it";
    OverBoth = "a program wrote to both chunks at once";
    Full = "a write waited since too much was under way";
    Overlapping = "a write waited for another one to the same bytes";
    FellBack = "a write waited for the owner since its host was not given the right";
    OwnBeside = "a holder's write came without a row, and was carried out beside that";
    CalledUnderWay = "a holder was called while something was under way";
    WentOn = "a holder that was called for a read went on";
    Rested = "a holder that was called for a read had nothing under way";
    Stopped = "a holder stopped";
    Silent = "a row was removed since its holder was silent";
    Refused = "a write that its program was answered for was refused after that";
    RightRefused = "a holder was refused the right";
    RowLate = "a host heard of a row that it had given back";
    OlderRow = "a host heard of an earlier row than it knew";
    Repeated = "a write that was carried out before came again";
    CarriedByNext = "a write was carried out in a later reign than it began in";
    BesideHolder = "an owner began its reign beside a holder";
    RowLost = "an owner was lost before its record of a row was committed";
    RemovalLost = "an owner was lost before its record that removes a row was committed";
    OwnerCutOff = "an owner was cut off";
    OwnerDied = "an owner died";
    CrashedUnderWay = "a host crashed with writes under way";
    LateCarriedOut = "a write of a host that had crashed was carried out";
    LateRefused = "a write of a host that had crashed was refused";
    Waited = "a program waited until what its host had under way had arrived";
}
