//! A node's disk: the log, the applied state, and the files behind a cache that a crash loses in part.
//!
//! Checksums of blocks lie apart from them, among the keys, by file and place; a sync commits them after the data. So they
//! find a block that rotted or was torn, one that another one's write went to, and one whose write went elsewhere. What
//! stands for a checksum is the content that it is of.

use crate::model::{
    ALL_BLOCKS, ALL_FILES, BLOCKS_PER_FILE, Blocks, PastRow, Record, State, blocks_of_file,
};
use perigee_replica::{HardState, LogWrite, Note, PersistId, RegionMap};
use perigee_types::{ByteRange, InodeId, Rng, Seq, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A write that is on its way; they are done in order, each wholly or not at all.
#[derive(Debug, Clone)]
pub enum DiskOp {
    /// A change of the log, with the regions that it makes invalid.
    Log {
        /// Its number.
        id: PersistId,
        /// What changes.
        write: LogWrite,
        /// Invalid from now on (F3).
        invalid: Vec<(InodeId, ByteRange, Version)>,
        /// Notes that go with it.
        ended: Vec<Note>,
    },
    /// Notes: with whatever follows them.
    Note(Vec<Note>),
    /// What is known of blocks that are on the disk now.
    Sums {
        /// The sync's number.
        id: u64,
        /// The checksums of all blocks.
        sums: Blocks,
        /// What is known of the files; none if that is not stored.
        objects: Option<ObjectMap>,
    },
    /// A state from the owner replaces everything.
    Install {
        /// The last record that it includes.
        base: Version,
        /// Registers, and who holds what.
        state: State,
        /// The invalid regions.
        invalid: BTreeMap<InodeId, RegionMap>,
    },
}

/// What the disk knows of the objects, as of one record.
#[derive(Debug, Clone, Default)]
pub struct ObjectMap {
    /// Commands up to here are in the map.
    pub through: Seq,
    /// The invalid regions.
    pub invalid: BTreeMap<InodeId, RegionMap>,
}

/// One node's disk.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    /// The log.
    pub hard: HardState,
    /// The applied state, up to `hard.base`.
    pub state: State,
    /// The objects' map.
    pub objects: ObjectMap,
    /// The files, as a power failure leaves them.
    pub files: Blocks,
    /// The files, as reads see them.
    pub cache: Blocks,
    /// Whether the cache is newer.
    pub dirty: [bool; ALL_BLOCKS],
    /// The checksums, with those of the cache.
    pub sums: Blocks,
    /// The checksums, as a power failure leaves them.
    pub saved_sums: Blocks,
    /// Where there may be bytes without a record.
    pub notes: BTreeSet<Note>,
    /// Files that may be newer than their saved checksums.
    pub touched: [bool; ALL_FILES],
    /// A block of the next sync is written to another one's place.
    pub misdirects: bool,
    /// Not yet done.
    pub queue: VecDeque<DiskOp>,
    /// Everything was lost, and it has not been a complete member's disk since.
    pub wiped: bool,
}

impl Disk {
    /// Performs the oldest write, and the notes before it.
    pub fn perform_next(&mut self) -> Option<DiskOp> {
        let mut op = self.queue.pop_front()?;
        while let DiskOp::Note(notes) = &op {
            self.notes.extend(notes);
            op = self.queue.pop_front()?;
        }
        match &op {
            DiskOp::Note(_) => {}
            DiskOp::Sums { sums, objects, .. } => {
                self.saved_sums = *sums;
                self.objects = objects.clone().unwrap_or(std::mem::take(&mut self.objects));
                for file in 0..ALL_FILES {
                    self.touched[file] = blocks_of_file(file).any(|block| self.dirty[block]);
                }
            }
            DiskOp::Log {
                write,
                invalid,
                ended,
                ..
            } => {
                if let Some(through) = write.trim_through {
                    // Only committed records are trimmed, and they are on this disk already.
                    for entry in &self.hard.entries {
                        if entry.version.seq <= through {
                            apply(&mut self.state, &Record::decode(&entry.payload));
                        }
                    }
                }
                for (inode, range, needed) in invalid {
                    let map = self.objects.invalid.entry(*inode).or_default();
                    map.invalidate_since(*range, *needed, Version::default());
                }
                for note in ended {
                    self.notes.remove(note);
                }
                write.apply(&mut self.hard);
                self.wiped &= !write.complete;
            }
            DiskOp::Install {
                base,
                state,
                invalid,
            } => {
                self.hard.base = *base;
                self.hard.committed = base.seq;
                self.hard.entries.clear();
                self.hard.complete = false;
                self.notes.clear();
                self.state = *state;
                self.objects = ObjectMap {
                    through: base.seq,
                    invalid: invalid.clone(),
                };
                // Files that the state has not are removed.
                for block in state.files().end * BLOCKS_PER_FILE..ALL_BLOCKS {
                    let block = [
                        &mut self.files,
                        &mut self.cache,
                        &mut self.sums,
                        &mut self.saved_sums,
                    ]
                    .map(|all| &mut all[block]);
                    block.into_iter().for_each(|one| *one = 0);
                }
            }
        }
        Some(op)
    }

    /// Writes a block to the cache.
    pub fn write(&mut self, block: usize, token: u64) {
        self.cache[block] = token;
        self.sums[block] = token;
        self.dirty[block] = true;
        self.touched[block / BLOCKS_PER_FILE] = true;
    }

    /// Whether a block is what its checksum says.
    #[must_use]
    pub fn fits(&self, block: usize) -> bool {
        self.cache[block] == self.sums[block]
    }

    /// The same, also after a power failure, and what some write wrote.
    #[must_use]
    pub fn is_sound(&self, block: usize) -> bool {
        let lasts = self.files[block] == self.saved_sums[block];
        lasts && self.fits(block) && self.files[block] < NOISE_FROM
    }

    /// Whether a block is on the disk, and its checksum on its way there.
    #[must_use]
    pub fn awaits_sum(&self, block: usize) -> bool {
        let has_it = |op: &DiskOp| matches!(op, DiskOp::Sums { sums, .. } if sums[block] == self.files[block]);
        self.fits(block) && self.queue.iter().any(has_it)
    }

    /// What a block holds becomes something else.
    pub fn spoil(&mut self, block: usize, content: u64) {
        self.files[block] = content;
        if !self.dirty[block] {
            self.cache[block] = content;
        }
    }

    /// Blocks reach the disk; their checksums do with [`DiskOp::Sums`], and `sums` are what they are then.
    pub fn flushed(&mut self, blocks: &[(usize, u64)], sums: &mut Blocks, astray: Option<Astray>) {
        let before = self.files;
        for &(block, token) in blocks {
            self.files[block] = token;
            self.dirty[block] &= self.cache[block] != token;
        }
        if let Some(Astray {
            block,
            to,
            takes_sum,
        }) = astray
        {
            let token = self.files[block];
            self.spoil(to, token);
            self.spoil(block, before[block]);
            if takes_sum {
                for (place, sum) in [(to, token), (block, self.saved_sums[block])] {
                    sums[place] = sum;
                    self.saved_sums[place] = sum;
                    self.sums[place] = sum;
                }
            }
        }
    }

    /// At a start: blocks that differ from their checksums, in files that may be newer than these. Their checksums are now
    /// those of what is there.
    pub fn settle(&mut self) -> Vec<usize> {
        let touched = |block: &usize| self.touched[block / BLOCKS_PER_FILE];
        let blocks = (0..ALL_BLOCKS).filter(touched);
        let differing: Vec<usize> = blocks.filter(|block| !self.fits(*block)).collect();
        for &block in &differing {
            self.sums[block] = self.cache[block];
            self.saved_sums[block] = self.cache[block];
        }
        self.touched = [false; ALL_FILES];
        differing
    }

    /// The power fails: writes on their way are done up to a random one, each dirty block or its older content stays, or
    /// neither where it may be torn.
    pub fn crash(&mut self, rng: &mut Rng, torn: &Torn) {
        let done = rng.below(self.queue.len() as u64 + 1);
        for _ in 0..done {
            self.perform_next();
        }
        self.queue.clear();
        for (block, torn) in torn.iter().enumerate() {
            if let Some(noise) = torn.filter(|_| rng.chance(1, 2)) {
                self.files[block] = noise;
            } else if self.dirty[block] && rng.chance(1, 2) {
                self.files[block] = self.cache[block];
            }
        }
        self.cache = self.files;
        self.sums = self.saved_sums;
        self.dirty = [false; ALL_BLOCKS];
    }
}

/// What a power failure may leave of each block that it tears.
pub type Torn = [Option<u64>; ALL_BLOCKS];

/// Contents from here on are no write's.
pub const NOISE_FROM: u64 = 1 << 63;

/// A block that is written to another one's place.
#[derive(Debug, Clone, Copy)]
pub struct Astray {
    /// Which.
    pub block: usize,
    /// The other one.
    pub to: usize,
    /// Whether its checksum goes with it.
    pub takes_sum: bool,
}

/// Applies a record to the state.
pub fn apply(state: &mut State, record: &Record) {
    for (key, value) in &record.puts {
        state.registers[usize::from(*key)] = *value;
    }
    for (file, hold) in &record.rows {
        state.rows[usize::from(*file)] = *hold;
    }
    for row in &record.past {
        match row {
            PastRow::Checkpoint => state.checkpoint = true,
            PastRow::Kept(block, token) => state.kept[usize::from(*block)] = Some(*token),
        }
    }
}
