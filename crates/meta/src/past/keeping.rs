//! What an owner knows of content that is kept for the newest checkpoint, while it orders changes: which units of a file are
//! to be copied before a change, and which rows the record of the change must bring along.
//!
//! A unit is copied to the checkpoint's file before the first of its bytes is replaced; the record of that copy is ordered
//! before the one of the change, which tells that the unit is kept. So whoever owns next finds both or neither.

use super::{KeptSum, Sum, Units, chunk_row, units_of};
use perigee_types::{ByteRange, CheckpointId, InodeId, Mutation};
use std::collections::BTreeMap;

/// Files whose kept content is known without a look at their rows.
const KNOWN_MAX: usize = 4_096;

/// What rows tell of a file's content as of the newest checkpoint.
#[derive(Debug, Clone, Default)]
pub struct KeptNow {
    /// The checkpoint's file; none before the first unit.
    pub file: Option<InodeId>,
    /// How long the file was then, in bytes; 0 for what was none.
    pub size: u64,
    /// Units of the checkpoint's file, and of those of later checkpoints that leave.
    pub units: Units,
    /// Units of the checkpoint's file alone.
    pub mine: Units,
}

#[derive(Debug, Clone, Default)]
struct Known {
    now: KeptNow,
    /// Units that no record tells of yet.
    unrecorded: Vec<Due>,
}

/// A unit of which the next record is to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Its number.
    pub unit: u64,
    /// Of its bytes; none where they are lost.
    pub sum: Option<Sum>,
}

/// Of all files.
#[derive(Debug, Clone, Default)]
pub struct Keeping {
    at: Option<CheckpointId>,
    files: BTreeMap<InodeId, Known>,
}

impl Keeping {
    /// Checkpoints were made or removed: nothing is known of any file.
    pub fn begin(&mut self, newest: Option<CheckpointId>) {
        self.at = newest;
        self.files.clear();
    }

    /// Whether a file is known, as of the newest checkpoint.
    pub fn knows(&mut self, inode: InodeId, at: CheckpointId) -> bool {
        if self.at != Some(at) {
            self.begin(Some(at));
        }
        self.files.contains_key(&inode)
    }

    /// Whether it still is, and that checkpoint the newest.
    #[must_use]
    pub fn is_as_of(&self, inode: InodeId, at: CheckpointId) -> bool {
        self.at == Some(at) && self.files.contains_key(&inode)
    }

    /// What rows tell of a file.
    pub fn know(&mut self, inode: InodeId, now: KeptNow) {
        if self.files.len() > KNOWN_MAX {
            self.files.retain(|_, known| !known.unrecorded.is_empty());
        }
        let known = Known {
            now,
            unrecorded: Vec::new(),
        };
        self.files.insert(inode, known);
    }

    /// What is known of a file is not so any more; what no record tells of yet stays.
    pub fn forget(&mut self, inode: InodeId) {
        self.files
            .retain(|file, known| *file != inode || !known.unrecorded.is_empty());
    }

    /// The checkpoint has a file for the units of `inode` now.
    pub fn begun(&mut self, inode: InodeId, file: InodeId) {
        if let Some(known) = self.files.get_mut(&inode) {
            known.now.file = Some(file);
        }
    }

    /// What is known of a file.
    #[must_use]
    pub fn of(&self, inode: InodeId) -> Option<&KeptNow> {
        self.files.get(&inode).map(|known| &known.now)
    }

    /// The units of a range that are to be kept before it is replaced. Of a file that is not known: none.
    #[must_use]
    pub fn missing(&self, inode: InodeId, range: ByteRange) -> Vec<u64> {
        let Some(now) = self.of(inode) else {
            return Vec::new();
        };
        let was = ByteRange::new(range.start.min(now.size), range.end.min(now.size));
        let missing = units_of(was).filter(|unit| !now.units.has(*unit));
        missing.collect()
    }

    /// A unit is in the checkpoint's file, or lost; no record tells so yet.
    pub fn kept(&mut self, inode: InodeId, due: Due) {
        let Some(known) = self.files.get_mut(&inode) else {
            return;
        };
        known.now.units.add(due.unit);
        if known.now.mine.add(due.unit) {
            known.unrecorded.push(due);
        }
    }

    /// A unit of another checkpoint's file is one of `file`, too.
    pub fn joined(&mut self, inode: InodeId, file: InodeId, unit: u64) {
        if let Some(known) = self.files.get_mut(&inode)
            && known.now.file == Some(file)
        {
            known.now.mine.add(unit);
            known.now.units.add(unit);
        }
    }

    /// The checkpoint's file, where the record of a change of `inode` must tell of units, too.
    #[must_use]
    pub fn is_due(&self, inode: InodeId) -> Option<InodeId> {
        let known = self.files.get(&inode)?;
        known.now.file.filter(|_| !known.unrecorded.is_empty())
    }

    /// All files of which that is so, each with the checkpoint's.
    #[must_use]
    pub fn all_due(&self) -> Vec<(InodeId, InodeId)> {
        let due = |inode: &InodeId| Some((*inode, self.is_due(*inode)?));
        self.files.keys().filter_map(due).collect()
    }

    /// A record is about to tell of them: the units that none told of, ascending.
    pub fn take_due(&mut self, inode: InodeId) -> Vec<Due> {
        let known = self.files.get_mut(&inode);
        let mut due = known.map_or_else(Vec::new, |known| std::mem::take(&mut known.unrecorded));
        due.sort_unstable_by_key(|due| due.unit);
        due
    }

    /// The rows that tell of units that were [due](Self::take_due).
    #[must_use]
    pub fn rows(&self, inode: InodeId, due: &[Due]) -> Vec<Mutation> {
        let (mut rows, mut sums) = (BTreeMap::new(), Vec::new());
        if let Some(now) = self.of(inode)
            && let Some(file) = now.file
        {
            for Due { unit, sum } in due {
                rows.insert(chunk_row(*unit), now.mine.row(file.index(), *unit));
                let of = inode.index();
                sums.extend(sum.map(|sum| KeptSum { of, sum }.row(file.index(), *unit)));
            }
        }
        rows.into_values().chain(sums).collect()
    }

    /// The checkpoint's file, if it has a unit, whether or not a record tells so.
    #[must_use]
    pub fn file_of(&self, inode: InodeId, unit: u64) -> Option<InodeId> {
        let now = self.of(inode).filter(|now| now.mine.has(unit));
        now.and_then(|now| now.file)
    }
}
