//! An owner's account of the data that may not be in place on every disk: what an `fsync` waits for.
//!
//! Bytes that a record carries are safe once it is committed. Members have to fetch all others, and say when they are on their
//! disks.

use crate::chain::planted;
use crate::region::RegionMap;
use perigee_types::{ByteRange, DataCommand, Epoch, InodeId, Seq, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes that a record carries for its own sake.
pub const CARRIED_MAX: u64 = 16 << 10;

/// No more of a file is carried while so many bytes of it may not be in place on every disk: what replaces them has to be.
pub const OPEN_MAX: u64 = 1 << 20;

/// One file's data.
#[derive(Debug, Clone)]
struct File {
    /// The last record of it.
    last: Seq,
    /// The last one of which members have to do more than store it.
    lacking: Option<Seq>,
    /// Carried bytes, with their records,
    open: RegionMap,
    /// and how many they are: an append after the other would count them for ever.
    open_bytes: u64,
}

/// The files of one container with data that may not be in place on every disk.
#[derive(Debug, Clone, Default)]
pub struct Unsettled {
    files: BTreeMap<InodeId, File>,
    /// Of any file, records up to here may be lacking: this owner has not ordered them, and its log has them no more.
    before: Option<Seq>,
    /// Not of these: all nodes have been asked since.
    asked: BTreeSet<InodeId>,
    #[cfg(feature = "plant")]
    plant: Option<crate::Plant>,
}

impl Unsettled {
    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<crate::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// A reign begins with a log after `base`, whose records are to be noted next. Who ordered them knew whose data was on all
    /// members; here it is so when they have said it.
    pub fn begin(&mut self, base: Seq) {
        self.clear();
        self.before = Some(base).filter(|base| *base > Seq::ZERO);
    }

    /// A record is ordered, or was found in the log, after all others so far. `carried` are the parts of what the command writes
    /// whose bytes it has.
    pub fn note(&mut self, seq: Seq, command: &DataCommand, carried: &[ByteRange]) {
        let inode = command.inode();
        if let DataCommand::Removed { .. } = command {
            self.files.remove(&inode);
            return;
        }
        let file = self.files.entry(inode).or_insert_with(|| File {
            last: seq,
            lacking: None,
            open: RegionMap::new(),
            open_bytes: 0,
        });
        file.last = seq;
        let lacks = match command {
            DataCommand::Written { range, .. } => {
                let mut rest = RegionMap::new();
                rest.invalidate(*range, Version::default());
                for part in carried {
                    rest.drop_range(*part);
                    file.carry(*part, seq);
                }
                !rest.is_empty()
            }
            _ => true,
        };
        if lacks {
            file.lacking = Some(seq);
        }
    }

    /// The parts of `range`, which is about to be written by a record, that it has to carry: see
    /// [`Carried`](crate::pull::Carried).
    #[must_use]
    pub fn to_carry(&self, inode: InodeId, range: ByteRange) -> Vec<ByteRange> {
        if planted!(self, CarriedReplacedBare) {
            return Vec::new();
        }
        let file = self.files.get(&inode).into_iter();
        let parts = file.flat_map(|file| file.open.overlapping(range));
        let mut joined: Vec<ByteRange> = Vec::new();
        for (part, _) in parts {
            match joined.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => joined.push(part),
            }
        }
        joined
    }

    /// Divides what is to be written, ascending ranges, among records: each has so many ranges at most, and does not have to
    /// carry more than [`OPEN_MAX`].
    #[must_use]
    pub fn divide(&self, inode: InodeId, ranges: &[ByteRange], most: usize) -> Vec<Vec<ByteRange>> {
        let mut records = vec![Vec::new()];
        let mut carried = 0;
        for range in ranges {
            if records.last().is_some_and(|record| record.len() >= most) {
                records.push(Vec::new());
                carried = 0;
            }
            let mut rest = *range;
            for open in self.to_carry(inode, *range) {
                let mut from = open.start;
                while from < open.end {
                    let end = open.end.min(from + (OPEN_MAX - carried));
                    carried += end - from;
                    from = end;
                    if carried == OPEN_MAX {
                        add(&mut records, ByteRange::new(rest.start, end));
                        rest.start = end;
                        records.push(Vec::new());
                        carried = 0;
                    }
                }
            }
            add(&mut records, rest);
        }
        records.retain(|record| !record.is_empty());
        records
    }

    /// Whether a record may carry so many bytes of a file because somebody waits for them.
    #[must_use]
    pub fn may_carry(&self, inode: InodeId, bytes: u64) -> bool {
        let open = self.files.get(&inode).map_or(0, |file| file.open_bytes);
        bytes <= CARRIED_MAX && open.saturating_add(bytes) <= OPEN_MAX
    }

    /// The last record of a file's data that may not be in place everywhere.
    #[must_use]
    pub fn last(&self, inode: InodeId) -> Option<Seq> {
        let file = self.files.get(&inode).map(|file| file.last);
        file.or(self.before_of(inode))
    }

    /// The last record of a file of which members have to do more than store it.
    #[must_use]
    pub fn lacking(&self, inode: InodeId) -> Option<Seq> {
        if planted!(self, CarriedIsAll) {
            let file = self.files.get(&inode)?;
            return file.lacking.filter(|_| file.open.is_empty());
        }
        let file = self.files.get(&inode).and_then(|file| file.lacking);
        file.or(self.before_of(inode))
    }

    fn before_of(&self, inode: InodeId) -> Option<Seq> {
        self.before.filter(|_| !self.asked.contains(&inode))
    }

    /// The files with their last records.
    pub fn iter(&self) -> impl Iterator<Item = (InodeId, Seq)> + '_ {
        self.files.iter().map(|(inode, file)| (*inode, file.last))
    }

    /// The files with the last records that are not safe once they are committed.
    pub fn lacking_files(&self) -> impl Iterator<Item = (InodeId, Seq)> + '_ {
        let files = self.files.iter();
        files.filter_map(|(inode, file)| Some((*inode, file.lacking?)))
    }

    /// Records up to here may be lacking of files that are not known.
    #[must_use]
    pub const fn before(&self) -> Option<Seq> {
        self.before
    }

    /// How many files are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether all data is in place on every disk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.before.is_none()
    }

    /// All nodes have a file's data up to `through` in place, and on their disks.
    pub fn on_settled(&mut self, inode: InodeId, through: Seq) {
        if self.before.is_some_and(|before| before <= through) {
            self.asked.insert(inode);
        }
        if let Some(file) = self.files.get_mut(&inode) {
            file.settle(through);
            if file.last <= through {
                self.files.remove(&inode);
            }
        }
    }

    /// The same of all files.
    pub fn on_all_settled(&mut self, through: Seq) {
        self.before = self.before.filter(|before| *before > through);
        if self.before.is_none() {
            self.asked.clear();
        }
        self.files.retain(|_, file| {
            file.settle(through);
            file.last > through
        });
    }

    /// Another node orders now.
    pub fn clear(&mut self) {
        self.files.clear();
        self.before = None;
        self.asked.clear();
    }
}

/// Adds a range to the last of some records.
fn add(records: &mut [Vec<ByteRange>], range: ByteRange) {
    if let Some(last) = records.last_mut()
        && !range.is_empty()
    {
        last.push(range);
    }
}

impl File {
    fn carry(&mut self, part: ByteRange, seq: Seq) {
        let known = self.open.overlapping(part).map(|(known, _)| known.len());
        self.open_bytes += part.len() - known.sum::<u64>();
        self.open.invalidate(part, at(seq));
    }

    fn settle(&mut self, through: Seq) {
        self.lacking = self.lacking.filter(|seq| *seq > through);
        if self.open.oldest().is_none_or(|oldest| oldest.seq > through) {
            return;
        }
        let settled: Vec<ByteRange> = self
            .open
            .iter()
            .filter_map(|(part, of)| (of.seq <= through).then_some(part))
            .collect();
        for part in settled {
            self.open_bytes -= part.len();
            self.open.drop_range(part);
        }
    }
}

/// A place of the owner's log: its epochs do not matter here.
const fn at(seq: Seq) -> Version {
    Version {
        epoch: Epoch(0),
        seq,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{ContainerId, InodeIndex};

    const FILE: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(7));

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    fn written(start: u64, end: u64) -> DataCommand {
        DataCommand::Written {
            inode: FILE,
            range: r(start, end),
        }
    }

    #[test]
    fn what_a_record_carries_wholly_is_waited_for_no_longer_than_it() {
        let mut unsettled = Unsettled::default();
        unsettled.note(Seq(1), &written(0, 10), &[r(0, 10)]);
        assert_eq!(unsettled.last(FILE), Some(Seq(1)));
        assert_eq!(unsettled.lacking(FILE), None);
        unsettled.note(Seq(2), &written(5, 20), &[r(5, 10)]);
        assert_eq!(unsettled.lacking(FILE), Some(Seq(2)));
        unsettled.note(Seq(3), &written(0, 5), &[r(0, 5)]);
        assert_eq!(unsettled.lacking(FILE), Some(Seq(2)), "it is still missing");
        unsettled.on_settled(FILE, Seq(2));
        assert_eq!(unsettled.lacking(FILE), None);
        assert_eq!(unsettled.last(FILE), Some(Seq(3)));
    }

    #[test]
    fn carried_bytes_are_open_until_they_are_in_place_everywhere() {
        let mut unsettled = Unsettled::default();
        unsettled.note(Seq(1), &written(0, 10), &[r(0, 10)]);
        unsettled.note(Seq(2), &written(10, 20), &[r(10, 20)]);
        assert_eq!(unsettled.to_carry(FILE, r(5, 15)), [r(5, 15)]);
        let cut = DataCommand::Resized {
            inode: FILE,
            size: 0,
        };
        unsettled.note(Seq(3), &cut, &[]);
        assert_eq!(
            unsettled.to_carry(FILE, r(0, 90)),
            [r(0, 20)],
            "a restart may find it"
        );
        unsettled.on_all_settled(Seq(1));
        assert_eq!(unsettled.to_carry(FILE, r(0, 90)), [r(10, 20)]);
        unsettled.on_all_settled(Seq(3));
        assert!(unsettled.is_empty());
    }

    #[test]
    fn what_a_new_owner_cannot_know_may_be_lacking_of_any_file() {
        let mut unsettled = Unsettled::default();
        unsettled.begin(Seq(5));
        unsettled.note(Seq(6), &written(0, 10), &[r(0, 10)]);
        let other = InodeId::new(ContainerId::ROOT, InodeIndex(8));
        assert_eq!(unsettled.lacking(other), Some(Seq(5)));
        assert_eq!(unsettled.lacking(FILE), Some(Seq(5)));
        assert_eq!(unsettled.last(FILE), Some(Seq(6)));
        unsettled.on_settled(other, Seq(6));
        assert_eq!(unsettled.lacking(other), None, "all were asked");
        assert_eq!(unsettled.lacking(FILE), Some(Seq(5)));
        unsettled.on_all_settled(Seq(5));
        assert_eq!(unsettled.lacking(FILE), None);
        assert_eq!(unsettled.last(other), None);
        unsettled.begin(Seq::ZERO);
        assert!(unsettled.is_empty());
    }

    #[test]
    fn what_has_to_be_carried_is_divided_among_records() {
        let mut unsettled = Unsettled::default();
        let all = [r(0, 10), r(20, 5 * OPEN_MAX), r(6 * OPEN_MAX, 7 * OPEN_MAX)];
        assert_eq!(unsettled.divide(FILE, &all, 2), [&all[..2], &all[2..]]);
        unsettled.note(Seq(1), &written(5, 4 * OPEN_MAX), &[r(5, 4 * OPEN_MAX)]);
        let records = unsettled.divide(FILE, &all, 2);
        for record in &records {
            assert!(record.len() <= 2 && !record.is_empty());
            let parts = record
                .iter()
                .flat_map(|part| unsettled.to_carry(FILE, *part));
            let carried: u64 = parts.map(|part| part.len()).sum();
            assert!(carried <= OPEN_MAX, "{records:?}");
        }
        let mut whole = RegionMap::new();
        for part in records.iter().flatten() {
            assert!(whole.is_valid(*part), "each byte once: {records:?}");
            whole.invalidate(*part, Version::default());
        }
        let joined: Vec<ByteRange> = whole.iter().map(|(part, _)| part).collect();
        assert_eq!(joined, all);
    }

    #[test]
    fn no_more_is_carried_of_a_file_with_much_that_is_open() {
        let mut unsettled = Unsettled::default();
        assert!(!unsettled.may_carry(FILE, CARRIED_MAX + 1));
        let mut seq = 0;
        while unsettled.may_carry(FILE, CARRIED_MAX) {
            let start = seq * CARRIED_MAX;
            let end = start + CARRIED_MAX;
            seq += 1;
            unsettled.note(Seq(seq), &written(start, end), &[r(start, end)]);
        }
        assert_eq!(seq * CARRIED_MAX, OPEN_MAX);
        // What is written again is no more.
        unsettled.note(Seq(seq + 1), &written(0, 10), &[r(0, 10)]);
        unsettled.on_all_settled(Seq(2));
        assert!(unsettled.may_carry(FILE, CARRIED_MAX));
        assert!(!unsettled.may_carry(FILE, CARRIED_MAX + 1));
        unsettled.on_settled(FILE, Seq(seq - 1));
        let open = unsettled.files[&FILE].open_bytes;
        assert_eq!(open, CARRIED_MAX + 10, "of the last records");
    }
}
