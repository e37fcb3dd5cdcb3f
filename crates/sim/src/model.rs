//! The simulated container: a few registers and a few files of a few blocks, and the operations on them.

use bytes::Bytes;
use perigee_replica::{Chunk, Hold};
use perigee_types::{ByteRange, ContainerId, DataCommand, InodeId, InodeIndex, Version};
use serde::{Deserialize, Serialize};

/// Registers of the replicated state.
pub const KEYS: usize = 4;
/// Files.
pub const FILES: usize = 2;
/// Blocks of each file.
pub const BLOCKS_PER_FILE: usize = 3;
/// Blocks of all files.
pub const BLOCKS: usize = FILES * BLOCKS_PER_FILE;

const BLOCK_LEN: u64 = 4096;

/// The replicated state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// The registers.
    pub registers: [u64; KEYS],
    /// Who holds each file: it is one chunk.
    pub rows: [Option<Hold>; FILES],
}
/// What each block holds: the token of the write that made it; 0 before the first.
pub type Blocks = [u64; BLOCKS];

/// The payload of a simulated record. The tokens stand in for bytes that travel apart from the log: only the
/// oracle reads them here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Registers that change.
    pub puts: Vec<(u8, u64)>,
    /// Blocks that change, and what they hold then.
    pub data: Vec<(u8, u64)>,
    /// Blocks that become holes, and the token that stands for their zeros: each node makes them by itself.
    pub holes: Vec<(u8, u64)>,
    /// The ranges that a new owner fell back on, if this is such a record.
    pub fallback: Vec<(InodeId, ByteRange)>,
    /// Files that get another holder, or none. It follows the rest of the payload, if there is any.
    #[serde(skip)]
    pub rows: Vec<(u8, Option<Hold>)>,
}

impl Record {
    /// The payload bytes.
    ///
    /// # Panics
    /// Never: a list of numbers always encodes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = postcard::to_stdvec(self).expect("a record is plain numbers");
        if !self.rows.is_empty() {
            let rows = postcard::to_stdvec(&self.rows).expect("rows are plain numbers");
            bytes.extend(rows);
        }
        Bytes::from(bytes)
    }

    /// The record of a payload; an empty one (the start of an epoch) changes nothing.
    #[must_use]
    pub fn decode(payload: &Bytes) -> Self {
        let (mut record, rows) = postcard::take_from_bytes::<Self>(payload).unwrap_or_default();
        record.rows = postcard::from_bytes(rows).unwrap_or_default();
        record
    }

    /// Its data commands.
    pub fn commands(&self) -> impl Iterator<Item = DataCommand> + '_ {
        let blocks = self.data.iter().map(|(block, _)| usize::from(*block));
        let blocks = blocks.map(|block| (file_of(block), range_of(block)));
        let written = |(inode, range)| DataCommand::Written { inode, range };
        let own = blocks.filter(|_| self.fallback.is_empty());
        let holes = self.holes.iter().map(|(block, _)| usize::from(*block));
        let punched = holes.map(|block| DataCommand::Punched {
            inode: file_of(block),
            range: range_of(block),
        });
        own.chain(self.fallback.iter().copied())
            .map(written)
            .chain(punched)
    }

    /// Every block that changes, and what it holds then.
    pub fn blocks(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.data.iter().chain(&self.holes).copied()
    }
}

/// A committed record, as the oracle keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its version.
    pub version: Version,
    /// What it says.
    pub record: Record,
}

/// What a session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Set a register.
    Put {
        /// Which.
        key: u8,
        /// To what.
        value: u64,
    },
    /// Read a register.
    Get {
        /// Which.
        key: u8,
    },
    /// Write one block.
    Write {
        /// Which.
        block: u8,
        /// With what.
        token: u64,
    },
    /// Make one block a hole.
    Punch {
        /// Which.
        block: u8,
        /// What stands for its zeros.
        token: u64,
    },
    /// Read one block.
    Read {
        /// Which.
        block: u8,
    },
    /// Make one file durable.
    Fsync {
        /// Which.
        file: u8,
    },
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done; a read's value.
    Ok(u64),
    /// Not done, and will not be.
    Refused,
    /// Nobody can say.
    Unknown,
}

/// The length of each file in bytes.
pub const FILE_LEN: u64 = BLOCKS_PER_FILE as u64 * BLOCK_LEN;

/// The inode number of a block's file.
#[must_use]
pub fn file_of(block: usize) -> InodeId {
    inode(block / BLOCKS_PER_FILE)
}

/// The inode number of a file.
#[must_use]
pub const fn inode(file: usize) -> InodeId {
    InodeId::new(ContainerId::ROOT, InodeIndex(10 + file as u64))
}

/// The chunk that a file is.
#[must_use]
pub const fn chunk(file: usize) -> Chunk {
    Chunk {
        inode: inode(file),
        index: 0,
    }
}

/// The number of a file.
#[must_use]
pub const fn number_of(inode: InodeId) -> usize {
    inode.index().0 as usize - 10
}

/// The blocks of a file.
#[must_use]
pub const fn blocks_of_file(file: usize) -> std::ops::Range<usize> {
    file * BLOCKS_PER_FILE..(file + 1) * BLOCKS_PER_FILE
}

/// Where a block lies in its file.
#[must_use]
pub const fn range_of(block: usize) -> ByteRange {
    ByteRange::with_len((block % BLOCKS_PER_FILE) as u64 * BLOCK_LEN, BLOCK_LEN)
}

/// The blocks of `inode` that lie wholly in `range`.
pub fn blocks_in(inode: InodeId, range: ByteRange) -> impl Iterator<Item = usize> {
    (0..BLOCKS).filter(move |&block| {
        let at = range_of(block);
        file_of(block) == inode && at.start >= range.start && at.end <= range.end
    })
}
