//! The log of objects whose data may be ahead of their stored checksums: what an unclean stop leaves to verify.
//!
//! An inode is appended before the first write to its object, with one `write`, so that a killed
//! process leaves it behind; it is synced in the background at once, and always before the object's
//! own file is. What is left: power lost in the milliseconds before that, when the kernel has written a
//! page of the object back already (it waits for seconds; `O_DIRECT` through the backing file does
//! not). Then recovery does not know of the object, and such a block reads as corrupt. An entry takes 16 bytes: inode (8,
//! little-endian), CRC-32C of it and of what follows if that is not zero (4), 1 if others write the file unseen, else 0 (4).
//! Of two entries of an inode the one that says so counts. An entry outlives its need until the log is written anew, and serves
//! again: what is written and synced over and over waits for this log once.

use crate::disk::{Disk, DiskFile, OpenMode, read_padded, write_all};
use crate::error::StoreError;
use parking_lot::{Mutex, MutexGuard};
use perigee_types::{ByteRange, InodeId};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ENTRY_LEN: usize = 16;
/// Entries beyond which the log may be written anew.
const COMPACT_ENTRIES: u64 = 4096;

/// Who may change an object's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    /// This process alone.
    Process,
    /// Programs, too, past this process: they may outlive it and go on.
    Others,
}

/// The log, open.
#[derive(Debug)]
pub(crate) struct Touched {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    path: PathBuf,
    log: Mutex<Log>,
    unsynced: AtomicBool,
    /// Held while the file is synced or replaced.
    sync_turn: Mutex<()>,
}

#[derive(Debug)]
struct Log {
    file: Arc<dyn DiskFile>,
    entries: u64,
    /// Whose data may be ahead.
    set: HashMap<InodeId, By>,
    /// What the file says.
    written: HashMap<InodeId, By>,
}

impl Touched {
    /// Opens the log; what it lists is what the last process left.
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path, path: PathBuf) -> io::Result<Self> {
        let file = disk.open(&path, OpenMode::Existing)?;
        reserve(&*file);
        let entries = file.size()? / ENTRY_LEN as u64;
        let mut set = HashMap::new();
        let mut entry = [0; ENTRY_LEN];
        for at in 0..entries {
            read_padded(&*file, at * ENTRY_LEN as u64, &mut entry)?;
            // An entry that was torn never had its write follow it to the disk, or the blocks will tell.
            if let Some((inode, by)) = decode(&entry) {
                note(&mut set, inode, by);
            }
        }
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            path,
            log: Mutex::new(Log {
                file,
                entries,
                written: set.clone(),
                set,
            }),
            unsynced: AtomicBool::new(entries > 0),
            sync_turn: Mutex::new(()),
        })
    }

    /// The inodes in the log.
    pub(crate) fn list(&self) -> Vec<(InodeId, By)> {
        let log = self.log.lock();
        let mut list: Vec<_> = log.set.iter().map(|(inode, by)| (*inode, *by)).collect();
        list.sort_unstable();
        list
    }

    /// Appends an inode, unless it is there.
    pub(crate) fn add(&self, inode: InodeId, by: By) -> Result<(), StoreError> {
        let mut log = self.log.lock();
        if log.set.get(&inode).is_some_and(|known| *known >= by) {
            return Ok(());
        }
        if log.written.get(&inode).is_some_and(|known| *known >= by) {
            note(&mut log.set, inode, by);
            return Ok(());
        }
        let at = log.entries * ENTRY_LEN as u64;
        write_all(&*log.file, at, &encode(inode, by))
            .map_err(|e| StoreError::io("append to touched.log", &e))?;
        log.entries += 1;
        note(&mut log.set, inode, by);
        note(&mut log.written, inode, by);
        drop(log);
        self.unsynced.store(true, Ordering::Release);
        Ok(())
    }

    /// Forgets an inode: its checksums are durable, or it is gone. Its entry stays until the log is compacted.
    pub(crate) fn remove(&self, inode: InodeId) {
        self.log.lock().set.remove(&inode);
    }

    /// Makes all entries durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let _turn = self.sync_turn.lock();
        if !self.unsynced.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let file = Arc::clone(&self.log.lock().file);
        file.sync_data()
            .inspect_err(|_| self.unsynced.store(true, Ordering::Release))
    }

    /// Writes the log anew when most of it is old, or `always`.
    pub(crate) fn compact(&self, always: bool) -> io::Result<()> {
        let turn = self.sync_turn.lock();
        let mut log = self.log.lock();
        let live = log.set.len() as u64;
        let stale = log.entries > COMPACT_ENTRIES && log.entries > 4 * live;
        if stale || (always && log.entries > live) {
            return self.replace(&mut log, &turn);
        }
        Ok(())
    }

    fn replace(&self, log: &mut Log, _turn: &MutexGuard<'_, ()>) -> io::Result<()> {
        let next = self.path.with_extension("log.new");
        let file = self.disk.open(&next, OpenMode::Truncate)?;
        reserve(&*file);
        let entries = log.set.iter().map(|(inode, by)| encode(*inode, *by));
        let bytes: Vec<u8> = entries.flatten().collect();
        write_all(&*file, 0, &bytes)?;
        file.sync_data()?;
        self.disk.rename(&next, &self.path)?;
        self.disk.sync_dir(&self.dir)?;
        log.file = file;
        log.entries = log.set.len() as u64;
        log.written = log.set.clone();
        self.unsynced.store(false, Ordering::Release);
        Ok(())
    }
}

/// Takes space ahead, so that a full disk does not refuse a truncation for want of an entry.
fn reserve(file: &dyn DiskFile) {
    // Where the disk is full already, the entry's own write will tell.
    _ = file.allocate(ByteRange::new(0, COMPACT_ENTRIES * ENTRY_LEN as u64));
}

fn note(set: &mut HashMap<InodeId, By>, inode: InodeId, by: By) {
    let known = set.entry(inode).or_insert(by);
    *known = by.max(*known);
}

fn encode(inode: InodeId, by: By) -> [u8; ENTRY_LEN] {
    let mut entry = [0; ENTRY_LEN];
    entry[..8].copy_from_slice(&inode.0.to_le_bytes());
    let mut crc = crc32c::crc32c(&entry[..8]);
    if by == By::Others {
        entry[12..].copy_from_slice(&1_u32.to_le_bytes());
        crc = crc32c::crc32c_append(crc, &entry[12..]);
    }
    entry[8..12].copy_from_slice(&crc.to_le_bytes());
    entry
}

fn decode(entry: &[u8; ENTRY_LEN]) -> Option<(InodeId, By)> {
    let number = *entry.first_chunk::<8>()?;
    let inode = InodeId(u64::from_le_bytes(number));
    let matches = |by: &By| *entry == encode(inode, *by);
    let by = [By::Process, By::Others].into_iter().find(matches)?;
    Some((inode, by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn open(dir: &Path) -> Touched {
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join("touched.log"))
            .unwrap();
        Touched::open(Arc::new(RealDisk), dir, dir.join("touched.log")).unwrap()
    }

    #[test]
    fn entries_outlive_the_process_and_a_torn_one_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        for inode in [5, 9, 5, 12] {
            log.add(InodeId(inode), By::Process).unwrap();
        }
        log.add(InodeId(9), By::Others).unwrap();
        log.add(InodeId(9), By::Process).unwrap();
        log.remove(InodeId(9));
        let path = dir.path().join("touched.log");
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 4 * ENTRY_LEN);
        bytes[2 * ENTRY_LEN] ^= 1;
        bytes.extend_from_slice(&[1, 2, 3]);
        std::fs::write(&path, bytes).unwrap();
        let left = [(InodeId(5), By::Process), (InodeId(9), By::Others)];
        assert_eq!(open(dir.path()).list(), left);
    }

    #[test]
    fn what_is_touched_again_needs_no_other_entry() {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let entries = || {
            std::fs::metadata(dir.path().join("touched.log"))
                .unwrap()
                .len()
                / 16
        };
        let inode = InodeId(5);
        for _ in 0..3 {
            log.add(inode, By::Process).unwrap();
            log.sync().unwrap();
            assert_eq!((entries(), log.list().len()), (1, 1));
            log.remove(inode);
            assert_eq!(log.list(), []);
        }
        assert!(!log.unsynced.load(Ordering::Acquire));
        log.add(inode, By::Others).unwrap();
        assert!(log.unsynced.load(Ordering::Acquire));
        assert_eq!(entries(), 2);
        log.remove(inode);
        log.compact(true).unwrap();
        assert_eq!(open(dir.path()).list(), []);
        log.add(inode, By::Process).unwrap();
        assert_eq!(open(dir.path()).list(), [(inode, By::Process)]);
    }

    #[test]
    fn compaction_keeps_what_is_still_touched() {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        for inode in 0..COMPACT_ENTRIES + 10 {
            log.add(InodeId(inode), By::Process).unwrap();
        }
        for inode in 0..COMPACT_ENTRIES {
            log.remove(InodeId(inode));
        }
        log.compact(false).unwrap();
        log.add(InodeId(3), By::Others).unwrap();
        let list = open(dir.path()).list();
        let others = list.iter().filter(|(_, by)| *by == By::Others);
        assert_eq!((list.len(), others.count()), (11, 1));
    }
}
