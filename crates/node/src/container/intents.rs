//! Where files may hold bytes that no record covers yet, as the disk knows it.
//!
//! When notes come and go is decided by [`Notes`]; here they reach the disk. Beside writes that replace bytes, what a
//! map changed is noted, and where a file was cut or punched. The next process gives up what is noted and takes it from the
//! other members, as it does with what the disk lost in a crash.

use super::view::stored_len;
use super::{Container, State};
use crate::env::Env;
use parking_lot::Mutex;
use perigee_replica::{Note, Notes};
use perigee_store::{Space, StoreError, WriteBatch};
use perigee_types::{ByteRange, ContainerId, InodeId, Seq, Version};
use std::sync::Arc;
use tracing::{info, warn};

/// Notes' keys in the container's local space: this, the inode, the segment's number.
const PREFIX: &[u8] = b"intent/";
/// Notes read at a time.
const PAGE: usize = 4_096;

/// The notes on this node's disk.
#[derive(Debug, Default)]
pub(super) struct Intents {
    notes: Notes,
    /// Notes that a full disk refused: they are tried again with the next ones, and before the next records.
    refused: Arc<Mutex<Vec<Note>>>,
}

fn key(note: Note) -> Vec<u8> {
    let Note { inode, segment } = note;
    [PREFIX, &inode.0.to_be_bytes(), &segment.to_be_bytes()].concat()
}

fn parse(key: &[u8]) -> Option<Note> {
    let (inode, segment) = key.strip_prefix(PREFIX)?.split_first_chunk()?;
    let segment = segment.try_into().ok()?;
    Some(Note {
        inode: InodeId(u64::from_be_bytes(*inode)),
        segment: u64::from_be_bytes(segment),
    })
}

fn delete(notes: Vec<Note>, batch: &mut WriteBatch) {
    for note in notes {
        batch.delete(Space::Local(note.inode.container()), &key(note));
    }
}

impl Intents {
    /// A write to `range`, which is not empty, begins: [`Self::note`], until [`Self::end`].
    fn begin(&mut self, inode: InodeId, range: ByteRange) -> Vec<Note> {
        let mut notes = self.refused();
        notes.extend(self.notes.begin(inode, range));
        notes
    }

    /// `range`, which is not empty, is about to change. Gives the notes that have to reach the disk before its checksums.
    fn note(&mut self, inode: InodeId, range: ByteRange) -> Vec<Note> {
        let mut notes = self.refused();
        notes.extend(self.notes.note(inode, range));
        notes
    }

    /// The notes that the disk refused and that are still wanted, to be put there once more.
    fn refused(&mut self) -> Vec<Note> {
        let mut refused = std::mem::take(&mut *self.refused.lock());
        refused.retain(|note| self.notes.wants(note));
        refused
    }

    /// Puts notes on their way to the disk. The store keeps the order: what is synced later is on the disk later.
    fn put(&self, env: &Env, notes: Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let mut batch = WriteBatch::default();
        for note in &notes {
            batch.put(Space::Local(note.inode.container()), &key(*note), &[]);
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

    /// What was dirty of a file is in the records up to `through`, or went with the file.
    pub(super) fn on_recorded(&mut self, through: Seq, inode: InodeId) {
        self.notes.on_recorded(through, inode);
    }

    /// The log up to `through` goes to the disk with `batch`: so do the ends of the notes that are not needed any more.
    /// `waits` says of which files there are later bytes without a record.
    pub(super) fn on_persist(
        &mut self,
        through: Seq,
        waits: impl Fn(InodeId) -> bool,
        batch: &mut WriteBatch,
    ) {
        delete(self.notes.on_persist(through, waits), batch);
    }

    /// Nothing here is without a record any more, but in files that `waits` names.
    pub(super) fn forget_all(&mut self, waits: impl Fn(InodeId) -> bool, batch: &mut WriteBatch) {
        delete(self.notes.forget_all(waits), batch);
    }
}

/// A write that was noted and is not among the dirty ones yet.
pub(super) struct UnderWay<'a> {
    container: &'a Container,
    inode: InodeId,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.container.state.lock().intents.notes.end(self.inode);
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
            let Some(note) = parse(key) else {
                continue;
            };
            let inode = note.inode;
            match env.store.object(inode) {
                Ok(object) => {
                    // A cut may be on the disk, and its record not.
                    let len = object.len()?.max(stored_len(&env.store, inode)?);
                    let range = note.range(len);
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

    fn first(index: u64) -> Note {
        Note {
            inode: inode(index),
            segment: 0,
        }
    }

    #[test]
    fn keys_come_back_and_lie_in_the_range_that_is_read() {
        let note = Note {
            inode: inode(7),
            segment: u64::MAX >> 24,
        };
        let key = key(note);
        assert_eq!(parse(&key), Some(note));
        assert_eq!(parse(b"chain"), None);
        assert_eq!(parse(&key[..20]), None);
    }

    #[test]
    fn a_note_that_the_disk_refused_is_put_there_again_while_it_is_wanted() {
        let mut intents = Intents::default();
        let notes = intents.begin(inode(5), ByteRange::new(0, 1));
        intents.refused.lock().extend(&notes);
        let next = intents.begin(inode(6), ByteRange::new(0, 1));
        assert_eq!(next, [first(5), first(6)]);
        intents.refused.lock().extend(&next);
        intents.notes.end(inode(5));
        intents.on_recorded(Seq(3), inode(5));
        intents.on_persist(Seq(3), |_| false, &mut WriteBatch::default());
        assert_eq!(intents.refused(), [first(6)]);
        assert!(intents.refused().is_empty(), "given once");
    }
}
