//! A node's disk: the log, the applied state, and the files behind a cache that a crash loses in part.

use crate::model::{BLOCKS, Blocks, Record, Registers};
use perigee_replica::{HardState, LogWrite, PersistId, RegionMap};
use perigee_types::{ByteRange, InodeId, Rng, Seq, Version};
use std::collections::{BTreeMap, VecDeque};

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
    },
    /// A state from the owner replaces everything.
    Install {
        /// The last record that it includes.
        base: Version,
        /// The registers.
        registers: Registers,
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
    pub registers: Registers,
    /// The objects' map.
    pub objects: ObjectMap,
    /// The files, as a power failure leaves them.
    pub files: Blocks,
    /// The files, as reads see them.
    pub cache: Blocks,
    /// Whether the cache is newer.
    pub dirty: [bool; BLOCKS],
    /// Not yet done.
    pub queue: VecDeque<DiskOp>,
    /// Everything was lost, and it has not been a complete member's disk since.
    pub wiped: bool,
}

impl Disk {
    /// Performs the oldest write.
    pub fn perform_next(&mut self) -> Option<DiskOp> {
        let op = self.queue.pop_front()?;
        match &op {
            DiskOp::Log { write, invalid, .. } => {
                if let Some(through) = write.trim_through {
                    // Only committed records are trimmed, and they are on this disk already.
                    for entry in &self.hard.entries {
                        if entry.version.seq <= through {
                            apply(&mut self.registers, &Record::decode(&entry.payload));
                        }
                    }
                }
                for (inode, range, needed) in invalid {
                    let map = self.objects.invalid.entry(*inode).or_default();
                    map.invalidate_since(*range, *needed, Version::default());
                }
                write.apply(&mut self.hard);
                self.wiped &= !write.complete;
            }
            DiskOp::Install {
                base,
                registers,
                invalid,
            } => {
                self.hard.base = *base;
                self.hard.committed = base.seq;
                self.hard.entries.clear();
                self.registers = *registers;
                self.objects = ObjectMap {
                    through: base.seq,
                    invalid: invalid.clone(),
                };
            }
        }
        Some(op)
    }

    /// Writes a block to the cache.
    pub fn write(&mut self, block: usize, token: u64) {
        self.cache[block] = token;
        self.dirty[block] = true;
    }

    /// The power fails: writes on their way are done up to a random one, each dirty block or its older content stays.
    pub fn crash(&mut self, rng: &mut Rng) {
        let done = rng.below(self.queue.len() as u64 + 1);
        for _ in 0..done {
            self.perform_next();
        }
        self.queue.clear();
        for block in 0..BLOCKS {
            if self.dirty[block] && rng.chance(1, 2) {
                self.files[block] = self.cache[block];
            }
        }
        self.cache = self.files;
        self.dirty = [false; BLOCKS];
    }
}

/// Applies a record to the registers.
pub fn apply(registers: &mut Registers, record: &Record) {
    for (key, value) in &record.puts {
        registers[usize::from(*key)] = *value;
    }
}
