//! Where files may hold bytes that no record covers yet, as the disk knows it.
//!
//! A write that replaces bytes is in the backing file before it is in a record, and background syncs store its checksum;
//! so is what a map changed, and where a file was cut or punched.
//! A process that ends in between would leave bytes that look valid and that no other member has: two hosts would read
//! two contents for ever. So a part of a file is noted before the first such write to it, and the note goes with the
//! record. The next process gives up what is noted and takes it from the other members, as it does with what the disk
//! lost in a crash. It is the write-intent bitmap of RAID, over nodes.

use super::dirty::Dirty;
use super::view::stored_len;
use super::{Container, State};
use crate::env::Env;
use parking_lot::Mutex;
use perigee_store::{Space, StoreError, WriteBatch};
use perigee_types::{ByteRange, ContainerId, InodeId, Seq, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::{info, warn};

/// What one note covers: a busy gigabyte takes 64 of them, and a crash has few bytes fetched in vain.
const SEGMENT: u64 = 16 << 20;
/// Notes' keys in the container's local space: this, the inode, the segment's number.
const PREFIX: &[u8] = b"intent/";
/// Notes read at a time.
const PAGE: usize = 4_096;

/// The notes on this node's disk.
#[derive(Debug, Default)]
pub(super) struct Intents {
    noted: BTreeSet<Note>,
    /// Writes between their note and their place among the dirty ones, by inode.
    under_way: BTreeMap<InodeId, u32>,
    /// Files whose writes up to a record are in it.
    recorded: Vec<(Seq, InodeId)>,
    /// Notes that a full disk refused: they are tried again with the next ones, and before the next records.
    refused: Arc<Mutex<Vec<Note>>>,
}

/// A file, and the number of a segment.
type Note = (InodeId, u64);

fn key(inode: InodeId, segment: u64) -> Vec<u8> {
    [PREFIX, &inode.0.to_be_bytes(), &segment.to_be_bytes()].concat()
}

fn parse(key: &[u8]) -> Option<Note> {
    let (inode, segment) = key.strip_prefix(PREFIX)?.split_first_chunk()?;
    let segment = segment.try_into().ok()?;
    Some((
        InodeId(u64::from_be_bytes(*inode)),
        u64::from_be_bytes(segment),
    ))
}

impl Intents {
    /// A write to `range`, which is not empty, begins: [`Self::note`], until [`Self::end`].
    fn begin(&mut self, inode: InodeId, range: ByteRange) -> Vec<Note> {
        *self.under_way.entry(inode).or_default() += 1;
        self.note(inode, range)
    }

    /// `range`, which is not empty, is about to change. Gives the notes that have to reach the disk before its checksums.
    fn note(&mut self, inode: InodeId, range: ByteRange) -> Vec<Note> {
        let mut notes = self.refused();
        for segment in range.start / SEGMENT..=(range.end - 1) / SEGMENT {
            if self.noted.insert((inode, segment)) {
                notes.push((inode, segment));
            }
        }
        notes
    }

    /// The notes that the disk refused and that are still wanted, to be put there once more.
    fn refused(&mut self) -> Vec<Note> {
        let mut refused = std::mem::take(&mut *self.refused.lock());
        refused.retain(|note| self.noted.contains(note));
        refused
    }

    /// Puts notes on their way to the disk. The store keeps the order: what is synced later is on the disk later.
    fn put(&self, env: &Env, notes: Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let mut batch = WriteBatch::default();
        for (inode, segment) in &notes {
            batch.put(Space::Local(inode.container()), &key(*inode, *segment), &[]);
        }
        let refused = self.refused.clone();
        let done = move |result: Result<(), StoreError>| {
            if result.is_err() {
                refused.lock().extend(notes);
            }
        };
        env.store.submit_lazy(batch, Some(Box::new(done)));
    }

    /// Records are about to go to the disk: first the notes that it refused.
    pub(super) fn put_again(&mut self, env: &Env) {
        let refused = self.refused();
        self.put(env, refused);
    }

    /// A write is among the dirty ones, or did not happen.
    fn end(&mut self, inode: InodeId) {
        if let Some(count) = self.under_way.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&inode);
            }
        }
    }

    /// What was dirty of a file is in the records up to `through`, or went with the file.
    pub(super) fn on_recorded(&mut self, through: Seq, inode: InodeId) {
        let first = (inode, 0);
        if self.noted.range(first..).next().map(|(i, _)| *i) == Some(inode) {
            self.recorded.push((through, inode));
        }
    }

    /// The log up to `through` goes to the disk with `batch`: so do the ends of the notes that are not needed any more.
    pub(super) fn on_persist(&mut self, through: Seq, dirty: &Dirty, batch: &mut WriteBatch) {
        let recorded = std::mem::take(&mut self.recorded);
        for (seq, inode) in recorded {
            if seq > through {
                self.recorded.push((seq, inode));
            } else if dirty.get(inode).is_none() && !self.under_way.contains_key(&inode) {
                self.forget(inode, batch);
            }
        }
    }

    /// Nothing here is without a record any more.
    pub(super) fn forget_all(&mut self, batch: &mut WriteBatch) {
        self.recorded.clear();
        let inodes: BTreeSet<InodeId> = self.noted.iter().map(|(inode, _)| *inode).collect();
        for inode in inodes {
            if !self.under_way.contains_key(&inode) {
                self.forget(inode, batch);
            }
        }
    }

    fn forget(&mut self, inode: InodeId, batch: &mut WriteBatch) {
        let whole = (inode, 0)..=(inode, u64::MAX);
        let segments: Vec<u64> = self.noted.range(whole).map(|(_, s)| *s).collect();
        for segment in segments {
            self.noted.remove(&(inode, segment));
            batch.delete(Space::Local(inode.container()), &key(inode, segment));
        }
    }
}

/// A write that was noted and is not among the dirty ones yet.
pub(super) struct UnderWay<'a> {
    container: &'a Container,
    inode: InodeId,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.container.state.lock().intents.end(self.inode);
    }
}

impl Container {
    /// Notes that `range` of a file is about to change, and that its record comes while the lock is held.
    pub(super) fn note(&self, st: &mut State, inode: InodeId, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let notes = st.intents.note(inode, range);
        st.intents.put(&self.env, notes);
    }

    /// Notes that `range` of a file is about to get other bytes; without any there is nothing to note.
    pub(super) fn intend(&self, inode: InodeId, range: ByteRange) -> Option<UnderWay<'_>> {
        if range.is_empty() {
            return None;
        }
        let mut st = self.state.lock();
        let notes = st.intents.begin(inode, range);
        st.intents.put(&self.env, notes);
        drop(st);
        Some(UnderWay {
            container: self,
            inode,
        })
    }
}

/// After a stop: what was noted is given up. An owner that finds nobody who has it makes what is here the content, by a
/// record, so that a member that comes back later hears of it. Blocks on the disk.
pub(super) fn give_up(env: &Arc<Env>, id: ContainerId) -> Result<(), StoreError> {
    let space = Space::Local(id);
    let mut from = PREFIX.to_vec();
    let mut end = PREFIX.to_vec();
    end.push(u8::MAX);
    end.resize(end.len() + 16, u8::MAX);
    loop {
        let rows = env.store.scan(space, &from, Some(&end), PAGE)?;
        let Some((last, _)) = rows.last() else {
            return Ok(());
        };
        from = last.to_vec();
        from.push(0);
        let mut batch = WriteBatch::default();
        for (key, _) in &rows {
            batch.delete(space, key);
            let Some((inode, segment)) = parse(key) else {
                continue;
            };
            match env.store.object(inode) {
                Ok(object) => {
                    let start = segment.saturating_mul(SEGMENT);
                    // A cut may be on the disk, and its record not.
                    let len = object.len()?.max(stored_len(&env.store, inode)?);
                    let end = start.saturating_add(SEGMENT).min(len);
                    let range = ByteRange::new(start.min(end), end);
                    object.invalidate_in(&mut batch, range, Version::default())?;
                    info!(container = %id, %inode, %range, "bytes without a record are given up");
                }
                Err(StoreError::Removed { .. }) => {}
                Err(error) => warn!(container = %id, %inode, %error, "not looked at"),
            }
        }
        env.store.commit(batch)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::InodeIndex;

    fn inode(index: u64) -> InodeId {
        InodeId::new(ContainerId::ROOT, InodeIndex(index))
    }

    #[test]
    fn keys_come_back_and_lie_in_the_range_that_is_read() {
        let key = key(inode(7), u64::MAX >> 24);
        assert_eq!(parse(&key), Some((inode(7), u64::MAX >> 24)));
        assert_eq!(parse(b"chain"), None);
        assert_eq!(parse(&key[..20]), None);
    }

    #[test]
    fn a_note_stays_while_a_write_is_on_its_way_to_the_dirty_ones() {
        let mut intents = Intents::default();
        let range = ByteRange::new(SEGMENT - 1, SEGMENT + 1);
        assert!(!intents.begin(inode(5), range).is_empty());
        intents.end(inode(5));
        assert!(intents.begin(inode(5), range).is_empty(), "noted before");
        intents.on_recorded(Seq(3), inode(5));
        intents.on_recorded(Seq(3), inode(6));
        let dirty = Dirty::default();
        let mut batch = WriteBatch::default();
        intents.on_persist(Seq(2), &dirty, &mut batch);
        intents.on_persist(Seq(3), &dirty, &mut batch);
        assert!(batch.is_empty());
        intents.end(inode(5));
        intents.on_recorded(Seq(4), inode(5));
        intents.on_persist(Seq(4), &dirty, &mut batch);
        assert!(!batch.is_empty());
        assert!(!intents.begin(inode(5), range).is_empty(), "not noted now");
    }

    #[test]
    fn a_note_that_the_disk_refused_is_put_there_again_while_it_is_wanted() {
        let mut intents = Intents::default();
        let notes = intents.begin(inode(5), ByteRange::new(0, 1));
        intents.refused.lock().extend(&notes);
        let next = intents.begin(inode(6), ByteRange::new(0, 1));
        assert_eq!(next, [(inode(5), 0), (inode(6), 0)]);
        intents.refused.lock().extend(&next);
        intents.end(inode(5));
        intents.forget(inode(5), &mut WriteBatch::default());
        assert_eq!(intents.refused(), [(inode(6), 0)]);
        assert!(intents.refused().is_empty(), "given once");
    }
}
