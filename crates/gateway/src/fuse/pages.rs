//! Reads and writes of the same pages that are under way at once.
//!
//! A kernel may keep a page locked for a write until that has its answer: nobody can wait for it to be dropped then. A page
//! that it has whole is not locked. It may be dropped beside the write, when its file's time is news, and read again: the
//! answer may be what was before the write, and nothing tells the kernel. So pages that were read beside a write to them
//! are dropped before the write is answered.

use perigee_types::{ByteRange, InodeId};
use std::collections::{HashMap, VecDeque};

/// The least that a kernel locks: where its pages are larger, it is waited for in vain
/// ([`perigee_client::fs::KernelCache::is_writing`]).
const PAGE: u64 = 4_096;
/// Reads that are remembered. Requests are numbered as the kernel asks, and may be looked at in another order: when more
/// reads than these overtake a write, it counts as one whose pages were read.
const READS: usize = 64;

/// Unanswered writes of one mount, and what was read beside them.
#[derive(Debug, Default)]
pub(super) struct Pages {
    writes: HashMap<InodeId, Vec<Locked>>,
    /// The last reads, in the order in which they were looked at.
    reads: VecDeque<Request>,
}

/// A request for bytes, by its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) inode: InodeId,
    pub(super) range: ByteRange,
    /// The kernel's numbers rise.
    pub(super) unique: u64,
}

/// How the kernel writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Through its pages, which it keeps locked until the answer.
    Cached,
    /// Past them.
    Direct,
}

/// An unanswered write.
#[derive(Debug, Clone)]
struct Locked {
    unique: u64,
    way: Way,
    pages: ByteRange,
    /// Those of them that may hold what was before the write, when it is answered. Only pages that it has not locked are
    /// read beside it, but by who reads past the kernel's cache.
    shown: Vec<ByteRange>,
    /// They are to be dropped after it was answered.
    dropped: bool,
}

impl Pages {
    /// The kernel has asked for a write.
    pub(super) fn write(&mut self, write: Request, way: Way) {
        let pages = write.range.align_out(PAGE);
        let overtook = |read: &&Request| read.unique > write.unique;
        let later = self.reads.iter().filter(overtook);
        let shown = if self.reads.len() == READS && self.reads.iter().all(|read| overtook(&read)) {
            vec![pages]
        } else {
            let of_inode = later.filter(|read| read.inode == write.inode);
            let read = of_inode.map(|read| read.range.align_out(PAGE));
            read.filter_map(|read| read.intersect(pages)).collect()
        };
        let of_inode = self.writes.entry(write.inode).or_default();
        of_inode.push(Locked {
            unique: write.unique,
            way,
            pages,
            shown,
            dropped: false,
        });
    }

    /// The kernel has asked for a read.
    pub(super) fn read(&mut self, read: Request) {
        if self.reads.len() == READS {
            self.reads.pop_front();
        }
        self.reads.push_back(read);
        for write in self.writes.get_mut(&read.inode).into_iter().flatten() {
            let pages = read.range.align_out(PAGE).intersect(write.pages);
            if let Some(pages) = pages.filter(|_| write.unique < read.unique)
                && write.shown.last() != Some(&pages)
            {
                write.shown.push(pages);
            }
        }
    }

    /// A write is about to be answered: what is to be dropped before.
    pub(super) fn shown(&mut self, inode: InodeId, unique: u64) -> Vec<ByteRange> {
        let of_inode = self.writes.get_mut(&inode).into_iter().flatten();
        let mut write = of_inode.filter(|write| write.unique == unique);
        let write = write.next();
        write.map_or_else(Vec::new, |write| std::mem::take(&mut write.shown))
    }

    /// A write was answered: what is to be dropped now.
    pub(super) fn answered(&mut self, inode: InodeId, unique: u64) -> Option<ByteRange> {
        let of_inode = self.writes.get_mut(&inode)?;
        let at = of_inode.iter().position(|write| write.unique == unique)?;
        let ended = of_inode.swap_remove(at);
        if of_inode.is_empty() {
            self.writes.remove(&inode);
        }
        ended.dropped.then_some(ended.pages)
    }

    /// `range` of a file is to be dropped: the parts of it that are not locked for writes, in order. The others are dropped
    /// when the writes were answered. The pages of `answering`, which were read beside it, are not locked for it.
    pub(super) fn drop_now(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        answering: Option<u64>,
    ) -> Vec<ByteRange> {
        let mut locked = Vec::new();
        for write in self.writes.get_mut(&inode).into_iter().flatten() {
            if Some(write.unique) != answering && write.way == Way::Cached {
                write.dropped |= write.pages.overlaps(range);
                locked.push(write.pages);
            }
        }
        let parts = outside(locked).into_iter();
        parts.filter_map(|part| part.intersect(range)).collect()
    }

    /// Whether a write that keeps pages of the file locked is unanswered.
    pub(super) fn is_writing(&self, inode: InodeId) -> bool {
        let mut of_inode = self.writes.get(&inode).into_iter().flatten();
        of_inode.any(|write| write.way == Way::Cached)
    }
}

/// The parts of a file outside of `locked`, in order.
fn outside(mut locked: Vec<ByteRange>) -> Vec<ByteRange> {
    locked.sort_unstable();
    let (mut parts, mut from) = (Vec::new(), 0);
    for pages in locked {
        if pages.start > from {
            parts.push(ByteRange::new(from, pages.start));
        }
        from = from.max(pages.end);
    }
    parts.push(ByteRange::new(from, u64::MAX));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn request(unique: u64, start: u64, end: u64) -> Request {
        Request {
            inode: FILE,
            range: ByteRange::new(start, end),
            unique,
        }
    }

    #[test]
    fn pages_that_are_locked_for_writes_are_left_out() {
        let range = ByteRange::new;
        assert_eq!(outside(vec![]), [range(0, u64::MAX)]);
        let locked = vec![range(8_192, 12_288), range(0, 4_096), range(8_192, 16_384)];
        let parts = [range(4_096, 8_192), range(16_384, u64::MAX)];
        assert_eq!(outside(locked), parts);
    }

    #[test]
    fn pages_that_are_read_beside_a_write_are_dropped_before_its_answer() {
        let mut pages = Pages::default();
        pages.read(request(1, 0, 4_096));
        pages.write(request(2, 0, 4_100), Way::Cached);
        assert_eq!(pages.shown(FILE, 2), [], "read before");
        pages.read(request(3, 8_192, 12_288));
        assert_eq!(pages.shown(FILE, 2), [], "another page");
        pages.read(request(4, 0, 4_096));
        let page = ByteRange::new(0, 4_096);
        // Not the second page, which the write may have locked.
        assert_eq!(pages.shown(FILE, 2), [page]);
        assert_eq!(pages.drop_now(FILE, page, None), []);
        assert_eq!(pages.drop_now(FILE, page, Some(2)), [page]);
        let written = ByteRange::new(0, 8_192);
        assert_eq!(
            pages.answered(FILE, 2),
            Some(written),
            "asked to drop it once"
        );
        assert!(!pages.is_writing(FILE));
    }

    #[test]
    fn a_write_past_the_pages_locks_none_and_what_is_read_beside_it_is_dropped() {
        let mut pages = Pages::default();
        pages.write(request(1, 0, 100), Way::Direct);
        pages.read(request(2, 0, 4_096));
        assert!(!pages.is_writing(FILE));
        let page = ByteRange::new(0, 4_096);
        assert_eq!(pages.drop_now(FILE, page, None), [page]);
        assert_eq!(pages.shown(FILE, 1), [page]);
        assert_eq!(pages.answered(FILE, 1), None);
    }

    #[test]
    fn a_read_that_is_looked_at_before_an_earlier_write_was_beside_it() {
        let mut pages = Pages::default();
        pages.read(request(9, 0, 4_096));
        pages.write(request(8, 100, 108), Way::Cached);
        assert_eq!(pages.shown(FILE, 8), [ByteRange::new(0, 4_096)]);
        // So many reads since that it is not known.
        for unique in 100..100 + READS as u64 {
            pages.read(request(unique, 1 << 20, 2 << 20));
        }
        pages.write(request(99, 0, 8), Way::Cached);
        assert_eq!(pages.shown(FILE, 99), [ByteRange::new(0, 4_096)]);
        pages.write(request(100, 0, 8), Way::Cached);
        assert_eq!(pages.shown(FILE, 100), []);
    }
}
