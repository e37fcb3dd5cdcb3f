//! The simulated container: a few registers and a few files of a few blocks, and the operations on them.

use bytes::Bytes;
use perigee_replica::{Chunk, Hold};
use perigee_types::{ByteRange, ContainerId, DataCommand, InodeId, InodeIndex, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Registers of the replicated state.
pub const KEYS: usize = 4;
/// Files of programs.
pub const FILES: usize = 2;
/// The same, and for each the file that has what a checkpoint has of it.
pub const ALL_FILES: usize = 2 * FILES;
/// Blocks of each file.
pub const BLOCKS_PER_FILE: usize = 3;
/// Blocks of the files of programs.
pub const BLOCKS: usize = FILES * BLOCKS_PER_FILE;
/// Blocks of all files.
pub const ALL_BLOCKS: usize = ALL_FILES * BLOCKS_PER_FILE;

const BLOCK_LEN: u64 = 4096;

/// The replicated state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// The registers.
    pub registers: [u64; KEYS],
    /// Who holds each file: it is one chunk.
    pub rows: [Option<Hold>; FILES],
    /// Whether there is a checkpoint.
    pub checkpoint: bool,
    /// What each block that is kept for it is known by: what is kept then.
    pub kept: [Option<u64>; BLOCKS],
}

impl State {
    /// The files that there are.
    pub fn files(&self) -> std::ops::Range<usize> {
        0..if self.checkpoint { ALL_FILES } else { FILES }
    }
}

/// A row about the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PastRow {
    /// It is made: what the files have by now is what it has of them.
    Checkpoint,
    /// A block is kept, and this is what it is known by.
    Kept(u8, u64),
}

/// What each block holds: the token of the write that made it; 0 before the first.
pub type Blocks = [u64; ALL_BLOCKS];

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
    /// What changes about the checkpoint; after that.
    #[serde(skip)]
    pub past: Vec<PastRow>,
    /// Those of the blocks that change whose content is in the record, for all nodes to read; after that.
    #[serde(skip)]
    pub carried: BTreeSet<u8>,
}

impl Record {
    /// The payload bytes.
    ///
    /// # Panics
    /// Never: a list of numbers always encodes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = postcard::to_stdvec(self).expect("a record is plain numbers");
        let carries = !self.carried.is_empty();
        if !self.rows.is_empty() || !self.past.is_empty() || carries {
            let rows = postcard::to_stdvec(&self.rows).expect("rows are plain numbers");
            bytes.extend(rows);
        }
        if !self.past.is_empty() || carries {
            let past = postcard::to_stdvec(&self.past).expect("rows are plain numbers");
            bytes.extend(past);
        }
        if carries {
            let carried = postcard::to_stdvec(&self.carried).expect("blocks are plain numbers");
            bytes.extend(carried);
        }
        Bytes::from(bytes)
    }

    /// The record of a payload; an empty one (the start of an epoch) changes nothing.
    #[must_use]
    pub fn decode(payload: &Bytes) -> Self {
        let (mut record, rows) = postcard::take_from_bytes::<Self>(payload).unwrap_or_default();
        let (rows, past) = postcard::take_from_bytes(rows).unwrap_or_default();
        let (past, carried) = postcard::take_from_bytes(past).unwrap_or_default();
        record.rows = rows;
        record.past = past;
        record.carried = postcard::from_bytes(carried).unwrap_or_default();
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

    /// The parts of what a command of it writes that it carries.
    pub fn carried_by(&self, command: &DataCommand) -> Vec<ByteRange> {
        let DataCommand::Written { inode, range } = command else {
            return Vec::new();
        };
        let carried = blocks_in(*inode, *range).filter(|b| self.carried.contains(&(*b as u8)));
        carried.map(range_of).collect()
    }

    /// What a block of it holds then, where the record itself says so.
    #[must_use]
    pub fn carried_token(&self, block: usize) -> Option<u64> {
        let of = |list: &[(u8, u64)]| {
            let found = list.iter().rfind(|(b, _)| usize::from(*b) == block);
            found.map(|(_, token)| *token)
        };
        let carried = self.carried.contains(&(block as u8));
        of(&self.holes).or_else(|| of(&self.data).filter(|_| carried))
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
    /// Make the checkpoint, and all that it has durable.
    Checkpoint,
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

/// The file in which the checkpoint's content of a file is kept, and the other way round.
#[must_use]
pub const fn kept_inode(file: usize) -> InodeId {
    inode(file + FILES)
}

/// Whether a file is the checkpoint's.
#[must_use]
pub const fn is_kept_file(inode: InodeId) -> bool {
    number_of(inode) >= FILES
}

/// Where a block of a program's file is kept.
#[must_use]
pub const fn kept_block(block: usize) -> usize {
    block + BLOCKS
}

/// What is there then: as if it were a write of its own.
#[must_use]
pub const fn kept_token(block: usize, token: u64) -> u64 {
    (1 << 52) + (token << 3) + block as u64
}

/// The blocks of `inode` that lie wholly in `range`.
pub fn blocks_in(inode: InodeId, range: ByteRange) -> impl Iterator<Item = usize> {
    (0..ALL_BLOCKS).filter(move |&block| {
        let at = range_of(block);
        file_of(block) == inode && at.start >= range.start && at.end <= range.end
    })
}
