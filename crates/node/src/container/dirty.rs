//! Writes that the owner has taken and not yet put into a record: one record covers many of them.

use perigee_types::{ByteRange, InodeId, OpId, SessionId, Span, Tick, WallTime};
use std::collections::BTreeMap;

/// For how long writes that only replace what a file has may wait for their record, while nobody asks for it: what is
/// written over and over in that time travels once. A file that is left alone follows sooner. A crash loses no more by
/// it than the local disk's own delay would, which is 30 s on Linux (`vm.dirty_expire_centisecs`).
pub(super) const REPLACED_WAIT: Span = Span::from_millis(30_000);
/// For how long a file is left alone before what was replaced in it gets its record.
pub(super) const QUIET_WAIT: Span = Span::from_millis(2_000);
/// What is kept for a checkpoint waits for so long, to share its record with more of it.
pub(super) const KEPT_WAIT: Span = Span::from_millis(30);
/// A file that grew by so much does not wait for others that share its record's way.
const GROWN_BYTES_MAX: u64 = 4 << 20;
/// A file with so many bytes replaced does not wait, lest the next fsync take long.
const REPLACED_BYTES_MAX: u64 = 2 << 30;

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
    /// Writes of other hosts: their answers go with the record.
    pub(crate) answers: Vec<Pending>,
    /// When the first of the writes was taken, and the last.
    since: Tick,
    last: Tick,
    /// Bytes of `ranges`.
    bytes: u64,
    /// Bytes taken, each as often as it was written.
    taken: u64,
    effect: Effect,
}

impl Written {
    /// How many bytes are new.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether so much was added that the other members had better begin to fetch it.
    pub(crate) fn is_much(&self) -> bool {
        self.effect == Effect::Grew && self.taken >= GROWN_BYTES_MAX
    }

    /// When the record is due, though nobody asks for it.
    pub(crate) fn due(&self) -> Tick {
        match self.effect {
            Effect::Replaced if self.bytes < REPLACED_BYTES_MAX => {
                (self.since + REPLACED_WAIT).min(self.last + QUIET_WAIT)
            }
            Effect::Kept => self.since + KEPT_WAIT,
            Effect::Replaced | Effect::Grew => self.since,
        }
    }
}

/// What writes do to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// They replace what it has.
    Replaced,
    /// They keep what a checkpoint has of another file, whose own writes may be in place already: a crash before their record
    /// loses it.
    Kept,
    /// They add to it: a program that writes once, from the front to the end, is best followed at once.
    Grew,
}

/// A write that may be asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) session: SessionId,
    pub(crate) op: OpId,
    /// Its session knows the answers up to this one.
    pub(crate) answered_through: OpId,
    /// Where it went.
    pub(crate) range: ByteRange,
}

/// One write, as it was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// None of a program of this host.
    pub(crate) answer: Option<Pending>,
    pub(crate) range: ByteRange,
    pub(crate) effect: Effect,
    pub(crate) mtime: WallTime,
    pub(crate) now: Tick,
    /// Set-id bits go.
    pub(crate) kill_privileges: bool,
}

/// All files with such writes.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    files: BTreeMap<InodeId, Written>,
}

/// A file's writes become records when they fall into more pieces than this.
const RANGES_MAX: usize = 4_096;
/// The most pieces of one record, so that it stays small.
pub(super) const RECORD_RANGES_MAX: usize = 512;

impl Dirty {
    /// Adds a write; says whether the file has so many pieces that records are due now.
    pub(crate) fn add(&mut self, inode: InodeId, write: &Taken) -> bool {
        let written = self.files.entry(inode).or_insert_with(|| Written {
            ranges: Vec::new(),
            size_at_least: 0,
            mtime: write.mtime,
            kill_privileges: false,
            answers: Vec::new(),
            since: write.now,
            last: write.now,
            bytes: 0,
            taken: 0,
            effect: write.effect,
        });
        written.bytes += insert(&mut written.ranges, write.range);
        written.last = write.now;
        written.taken += write.range.len();
        written.size_at_least = written.size_at_least.max(write.range.end);
        written.mtime = written.mtime.max(write.mtime);
        written.kill_privileges |= write.kill_privileges;
        written.answers.extend(write.answer);
        if write.effect == Effect::Grew {
            written.effect = Effect::Grew;
        }
        written.ranges.len() >= RANGES_MAX
    }

    /// The files whose records are due.
    pub(crate) fn due(&self, now: Tick) -> Vec<InodeId> {
        let due = self.files.iter().filter(|(_, file)| file.due() <= now);
        due.map(|(inode, _)| *inode).collect()
    }

    /// When the next record is due.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        self.files.values().map(Written::due).min()
    }

    /// Bytes that writes added or replaced.
    pub(crate) fn bytes(&self) -> u64 {
        let files = self.files.values().map(|file| file.bytes);
        files.fold(0, u64::saturating_add)
    }

    pub(crate) fn get(&self, inode: InodeId) -> Option<&Written> {
        self.files.get(&inode)
    }

    /// Whether a write is among those that have no record yet.
    pub(crate) fn has(&self, inode: InodeId, session: SessionId, op: OpId) -> bool {
        let written = self.files.get(&inode).into_iter();
        let mut answers = written.flat_map(|written| &written.answers);
        answers.any(|pending| (pending.session, pending.op) == (session, op))
    }

    /// Whether whoever reads `range` of a file sees something of its writes: their bytes, or how long they made it.
    pub(crate) fn shows_in(&self, inode: InodeId, range: ByteRange) -> bool {
        self.files.get(&inode).is_some_and(|written| {
            let after = written.ranges.partition_point(|r| r.end <= range.start);
            let next = written.ranges.get(after);
            written.effect == Effect::Grew || next.is_some_and(|next| next.overlaps(range))
        })
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

/// Adds `range` to disjoint ascending `ranges`, joining what touches; gives how many bytes none of them had.
fn insert(ranges: &mut Vec<ByteRange>, range: ByteRange) -> u64 {
    let first = ranges.partition_point(|r| r.end < range.start);
    let last = ranges.partition_point(|r| r.start <= range.end);
    if first >= last {
        ranges.insert(first, range);
        return range.len();
    }
    let had: u64 = ranges[first..last].iter().map(|r| r.len()).sum();
    let start = ranges[first].start.min(range.start);
    let end = ranges[last - 1].end.max(range.end);
    ranges.splice(first..last, [ByteRange::new(start, end)]);
    end - start - had
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
        assert_eq!(insert(&mut ranges, ByteRange::new(20, 30)), 0);
        assert_eq!(insert(&mut ranges, ByteRange::new(0, 100)), 55);
        assert_eq!(ranges, [ByteRange::new(0, 100)]);
    }

    #[test]
    fn a_reader_beside_what_was_replaced_sees_nothing_of_it() {
        let inode = InodeId::new(
            perigee_types::ContainerId::ROOT,
            perigee_types::InodeIndex(7),
        );
        let mut dirty = Dirty::default();
        let mut write = |start, end, effect| {
            let taken = Taken {
                answer: None,
                range: ByteRange::new(start, end),
                effect,
                mtime: WallTime::default(),
                now: Tick(0),
                kill_privileges: false,
            };
            dirty.add(inode, &taken);
            let shows = |start, end| dirty.shows_in(inode, ByteRange::new(start, end));
            [shows(0, 10), shows(9, 11), shows(15, 16), shows(20, 30)]
        };
        assert_eq!(write(10, 20, Effect::Replaced), [false, true, true, false]);
        assert_eq!(write(29, 40, Effect::Replaced), [false, true, true, true]);
        // Its length is news everywhere.
        assert_eq!(write(90, 99, Effect::Grew), [true; 4]);
    }

    #[test]
    fn what_only_replaces_waits_and_what_grows_does_not() {
        let inode = |index| {
            let index = perigee_types::InodeIndex(index);
            InodeId::new(perigee_types::ContainerId::ROOT, index)
        };
        let write = |start, len, effect, now| Taken {
            answer: None,
            range: ByteRange::with_len(start, len),
            effect,
            mtime: WallTime::default(),
            now: Tick(now),
            kill_privileges: false,
        };
        let mut dirty = Dirty::default();
        let begun = Tick(1_000_000);
        let quiet = begun + QUIET_WAIT;
        dirty.add(inode(5), &write(0, 10, Effect::Replaced, begun.0));
        assert_eq!(dirty.due(begun), []);
        assert_eq!(dirty.next_due(), Some(quiet));
        dirty.add(inode(6), &write(0, 10, Effect::Grew, begun.0));
        assert_eq!(dirty.due(begun), [inode(6)]);
        dirty.take(inode(6));
        // Writing on puts it off, and not for ever.
        let mut now = begun;
        while now < begun + REPLACED_WAIT {
            assert_eq!(dirty.due(now), []);
            dirty.add(inode(5), &write(0, 10, Effect::Replaced, now.0));
            now = now + Span::from_millis(1_000);
        }
        assert_eq!(dirty.next_due(), Some(begun + REPLACED_WAIT));
        assert_eq!(dirty.due(now), [inode(5)]);
        dirty.add(
            inode(7),
            &write(0, REPLACED_BYTES_MAX, Effect::Replaced, now.0),
        );
        assert_eq!(dirty.due(now), [inode(5), inode(7)]);
    }

    #[test]
    fn a_write_that_waits_for_its_record_is_known_until_it_has_one() {
        let inode = InodeId(7);
        let (session, op) = (SessionId(9), OpId(3));
        let range = ByteRange::new(0, 10);
        let mut dirty = Dirty::default();
        let answer = Some(Pending {
            session,
            op,
            answered_through: OpId::default(),
            range,
        });
        dirty.add(
            inode,
            &Taken {
                answer,
                range,
                effect: Effect::Grew,
                mtime: WallTime::default(),
                now: Tick(0),
                kill_privileges: false,
            },
        );
        assert!(dirty.has(inode, session, op));
        assert!(!dirty.has(inode, session, OpId(4)));
        let written = dirty.take(inode);
        assert_eq!(written.map(|written| written.answers.len()), Some(1));
        assert!(!dirty.has(inode, session, op));
    }
}
