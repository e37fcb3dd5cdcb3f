//! Writes that the owner has taken and not yet put into a record: one record covers many of them.

use perigee_types::{ByteRange, InodeId, WallTime};
use std::collections::BTreeMap;

/// What was written to one file since its last record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// Disjoint, ascending.
    pub(crate) ranges: Vec<ByteRange>,
    /// The file is at least this long.
    pub(crate) size_at_least: u64,
    /// When the last of the writes was taken.
    pub(crate) mtime: WallTime,
    /// Set-id bits go.
    pub(crate) kill_privileges: bool,
}

/// All files with such writes.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    files: BTreeMap<InodeId, Written>,
}

/// A file's writes become a record of their own when they fall into more pieces than this, so that
/// a record stays small.
const RANGES_MAX: usize = 512;

impl Dirty {
    /// Adds a write; says whether the file has so many pieces that a record is due now.
    pub(crate) fn add(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        mtime: WallTime,
        kill_privileges: bool,
    ) -> bool {
        let written = self.files.entry(inode).or_insert_with(|| Written {
            ranges: Vec::new(),
            size_at_least: 0,
            mtime,
            kill_privileges: false,
        });
        insert(&mut written.ranges, range);
        written.size_at_least = written.size_at_least.max(range.end);
        written.mtime = written.mtime.max(mtime);
        written.kill_privileges |= kill_privileges;
        written.ranges.len() >= RANGES_MAX
    }

    pub(crate) fn get(&self, inode: InodeId) -> Option<&Written> {
        self.files.get(&inode)
    }

    pub(crate) fn take(&mut self, inode: InodeId) -> Option<Written> {
        self.files.remove(&inode)
    }

    /// The files with writes.
    pub(crate) fn inodes(&self) -> Vec<InodeId> {
        self.files.keys().copied().collect()
    }

    /// Takes everything: the node owns the container no more.
    pub(crate) fn take_all(&mut self) -> BTreeMap<InodeId, Written> {
        std::mem::take(&mut self.files)
    }
}

/// Adds `range` to disjoint ascending `ranges`, joining what touches.
fn insert(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    let first = ranges.partition_point(|r| r.end < range.start);
    let last = ranges.partition_point(|r| r.start <= range.end);
    if first >= last {
        ranges.insert(first, range);
        return;
    }
    let start = ranges[first].start.min(range.start);
    let end = ranges[last - 1].end.max(range.end);
    ranges.splice(first..last, [ByteRange::new(start, end)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = Vec::new();
        for (start, end) in [(10, 20), (40, 50), (0, 5), (20, 40)] {
            insert(&mut ranges, ByteRange::new(start, end));
        }
        assert_eq!(ranges, [ByteRange::new(0, 5), ByteRange::new(10, 50)]);
        insert(&mut ranges, ByteRange::new(0, 100));
        assert_eq!(ranges, [ByteRange::new(0, 100)]);
    }
}
