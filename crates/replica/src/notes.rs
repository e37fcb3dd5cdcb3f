//! Where an owner's files may hold bytes that no record covers yet, as its disk knows it.
//!
//! A write is in the backing file before it is in a record, and syncs store its checksum. A process that ends in
//! between would leave bytes that look valid and that no other member has. So a part of a file is noted before the first
//! such write to it, and the note goes with the record. The next process gives up what is noted: it is invalid on the
//! disk, and [`Pull::restore`](crate::Pull::restore) says of which version it is needed. It is the write-intent bitmap of
//! RAID, over nodes.
//!
//! The driver keeps two orders: a note is on the disk before any checksum of a write that it covers, and it goes in one
//! step with the log up to the record that covers the last of them.

use crate::chain::planted;
use perigee_types::{ByteRange, InodeId, Seq};
use std::collections::{BTreeMap, BTreeSet};

/// What one note covers: a busy gigabyte takes 64 of them, and a crash has few bytes fetched in vain.
pub const SEGMENT: u64 = 16 << 20;

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The file.
    pub inode: InodeId,
    /// The part: which one of [`SEGMENT`] bytes each.
    pub segment: u64,
}

impl Note {
    /// The bytes that it covers of a file that is `len` long.
    #[must_use]
    pub fn range(self, len: u64) -> ByteRange {
        let start = self.segment.saturating_mul(SEGMENT);
        let end = start.saturating_add(SEGMENT).min(len);
        ByteRange::new(start.min(end), end)
    }

    fn all_of(inode: InodeId) -> std::ops::RangeInclusive<Self> {
        let note = |segment| Self { inode, segment };
        note(0)..=note(u64::MAX)
    }
}

/// The notes of one process on its disk, or on their way there.
#[derive(Debug, Default)]
pub struct Notes {
    noted: BTreeSet<Note>,
    /// Writes between their note and their place among those that wait for a record, by inode.
    under_way: BTreeMap<InodeId, u32>,
    /// Files whose writes up to a record are in it.
    recorded: BTreeSet<(Seq, InodeId)>,
    #[cfg(feature = "plant")]
    plant: Option<crate::Plant>,
}

impl Notes {
    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<crate::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// A write to `range`, which is not empty, begins: [`Self::note`], until [`Self::end`].
    pub fn begin(&mut self, inode: InodeId, range: ByteRange) -> Vec<Note> {
        *self.under_way.entry(inode).or_default() += 1;
        self.note(inode, range)
    }

    /// `range`, which is not empty, is about to change. Gives the notes that have to reach the disk before its
    /// checksums.
    pub fn note(&mut self, inode: InodeId, range: ByteRange) -> Vec<Note> {
        if planted!(self, WriteNotNoted) {
            return Vec::new();
        }
        let segments = range.start / SEGMENT..=(range.end - 1) / SEGMENT;
        let notes = segments.map(|segment| Note { inode, segment });
        notes.filter(|note| self.noted.insert(*note)).collect()
    }

    /// Whether a note is wanted still.
    #[must_use]
    pub fn wants(&self, note: &Note) -> bool {
        self.noted.contains(note)
    }

    /// A write waits for its record with the others of its file, or did not happen.
    pub fn end(&mut self, inode: InodeId) {
        if let Some(count) = self.under_way.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&inode);
            }
        }
    }

    /// What waited for a record of a file is in the records up to `through`, or went with the file.
    pub fn on_recorded(&mut self, through: Seq, inode: InodeId) {
        if self.noted.range(Note::all_of(inode)).next().is_some() {
            self.recorded.insert((through, inode));
        }
    }

    /// The log up to `through` goes to the disk: gives the notes that go with it. `waits` says of which files there are
    /// later writes that wait for a record.
    #[must_use]
    pub fn on_persist(&mut self, through: Seq, waits: impl Fn(InodeId) -> bool) -> Vec<Note> {
        let mut ended = Vec::new();
        for (seq, inode) in std::mem::take(&mut self.recorded) {
            let stored = seq <= through;
            let more = waits(inode) && !planted!(self, NoteForgetsLater);
            if !stored {
                self.recorded.insert((seq, inode));
            } else if !more && !self.under_way.contains_key(&inode) {
                self.forget(inode, &mut ended);
            }
        }
        ended
    }

    /// Nothing of this owner is without a record any more: gives the notes that go with that. `waits` says in which files
    /// there are writes of chunks that this node holds.
    #[must_use]
    pub fn forget_all(&mut self, waits: impl Fn(InodeId) -> bool) -> Vec<Note> {
        self.recorded.clear();
        let inodes: BTreeSet<InodeId> = self.noted.iter().map(|note| note.inode).collect();
        let mut ended = Vec::new();
        for inode in inodes {
            if !self.under_way.contains_key(&inode) && !waits(inode) {
                self.forget(inode, &mut ended);
            }
        }
        ended
    }

    fn forget(&mut self, inode: InodeId, ended: &mut Vec<Note>) {
        let notes: Vec<Note> = self.noted.range(Note::all_of(inode)).copied().collect();
        for note in &notes {
            self.noted.remove(note);
        }
        ended.extend(notes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{ContainerId, InodeIndex};

    fn inode(index: u64) -> InodeId {
        InodeId::new(ContainerId::ROOT, InodeIndex(index))
    }

    #[test]
    fn a_note_stays_while_a_write_is_on_its_way_to_those_that_wait() {
        let mut notes = Notes::default();
        let range = ByteRange::new(SEGMENT - 1, SEGMENT + 1);
        assert_eq!(notes.begin(inode(5), range).len(), 2);
        notes.end(inode(5));
        assert_eq!(notes.begin(inode(5), range), [], "noted before");
        notes.on_recorded(Seq(3), inode(5));
        notes.on_recorded(Seq(3), inode(6));
        assert_eq!(notes.on_persist(Seq(2), |_| false), []);
        assert_eq!(notes.on_persist(Seq(3), |_| false), []);
        notes.end(inode(5));
        notes.on_recorded(Seq(4), inode(5));
        assert_eq!(notes.on_persist(Seq(4), |_| false).len(), 2);
        assert_eq!(notes.begin(inode(5), range).len(), 2, "not noted now");
    }

    #[test]
    fn a_note_stays_while_later_writes_wait_for_a_record() {
        let mut notes = Notes::default();
        let noted = notes.note(inode(5), ByteRange::new(0, 1));
        notes.on_recorded(Seq(3), inode(5));
        assert_eq!(notes.on_persist(Seq(3), |_| true), []);
        notes.on_recorded(Seq(4), inode(5));
        assert_eq!(notes.on_persist(Seq(3), |_| false), []);
        assert_eq!(notes.on_persist(Seq(4), |_| false), noted);
    }

    #[test]
    fn a_note_covers_no_more_than_the_file() {
        let note = Note {
            inode: inode(5),
            segment: 1,
        };
        assert_eq!(note.range(10), ByteRange::new(10, 10));
        assert_eq!(
            note.range(SEGMENT + 10),
            ByteRange::new(SEGMENT, SEGMENT + 10)
        );
        assert_eq!(note.range(u64::MAX), ByteRange::new(SEGMENT, 2 * SEGMENT));
    }
}
