//! Room that data may not take: a file of allocated, unused space beside the data.
//!
//! While it stands, data writes meet a full disk before the key-value engine does (which could not go
//! on after a failed write), whoever filled the disk. When the engine's own room gets short, the file
//! is given up, and data writes are refused until it can be made again: also those that were let in before have
//! ended by then, so that none of them takes what the engine is given. Deletes always pass.

use crate::disk::{Disk, DiskFile, OpenMode};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use perigee_types::ByteRange;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// The most that is kept free, in bytes.
pub(crate) const RESERVE_MAX: u64 = 64 << 20;
/// The least, in bytes: a copy-on-write commit of small records takes tens of pages.
pub(crate) const RESERVE_MIN: u64 = 1 << 20;
/// Room beyond four times its content that a commit should find: new pages of all levels, and the
/// file system's own metadata. In bytes.
const COMMIT_ROOM: u64 = 512 << 10;
/// How long data writes that were let in are waited for. A disk that takes longer for one holds the engine up as well.
const WRITES_MAX: Duration = Duration::from_secs(1);

/// What the committer may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Everything.
    All,
    /// Only what makes room.
    DeletesOnly,
}

/// The reserve of one store.
#[derive(Debug)]
pub(crate) struct Reserve {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    /// The file is given up; data writes are refused.
    spent: AtomicBool,
    /// Held while the file changes.
    change: Mutex<()>,
    /// Shared by the data writes that were let in.
    data: RwLock<()>,
}

/// A data write was let in; the reserve is not given up before it has ended.
#[derive(Debug)]
#[must_use]
pub(crate) struct LetIn<'a>(
    #[expect(dead_code, reason = "held until the write has ended")] RwLockReadGuard<'a, ()>,
);

impl Reserve {
    /// Makes or finds the reserve file of a store. `None` takes 1 % of the disk within the bounds above.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        path: &Path,
        bytes: Option<u64>,
    ) -> io::Result<Self> {
        let total = disk.space(dir)?.total;
        let bytes = bytes.unwrap_or((total / 100).clamp(RESERVE_MIN, RESERVE_MAX));
        let reserve = Self {
            file: disk.open(path, OpenMode::Create)?,
            disk,
            dir: dir.to_owned(),
            bytes,
            spent: AtomicBool::new(true),
            change: Mutex::new(()),
            data: RwLock::new(()),
        };
        reserve.refill();
        Ok(reserve)
    }

    /// Whether data writes are to be refused.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Lets a data write in; `None` where it is to be refused.
    pub(crate) fn let_in(&self) -> Option<LetIn<'_>> {
        // One that writes parts of another one must not wait for who waits for that.
        let shared = self.data.read_recursive();
        (!self.is_spent()).then_some(LetIn(shared))
    }

    /// Bytes that the reserve holds now.
    pub(crate) fn held(&self) -> u64 {
        if self.is_spent() { 0 } else { self.bytes }
    }

    /// Whether bytes may be taken into memory that the next commit will store. The reserve stands behind those that
    /// were taken already; without it they could be refused when it is too late to say so.
    pub(crate) fn takes_small(&self) -> bool {
        !self.is_spent() && self.has(2 * COMMIT_ROOM)
    }

    /// Whether a commit of `bytes` will find room; gives the reserve up for it if it must.
    pub(crate) fn admit(&self, bytes: usize) -> Admission {
        let wanted = (bytes as u64).saturating_mul(4).saturating_add(COMMIT_ROOM);
        if self.has(wanted) {
            return Admission::All;
        }
        if !self.is_spent() {
            self.give_up();
            if self.has(wanted) {
                return Admission::All;
            }
        }
        Admission::DeletesOnly
    }

    /// Takes the space again, when there is enough.
    pub(crate) fn refill(&self) {
        let _change = self.change.lock();
        if !self.is_spent() || self.bytes == 0 {
            self.spent.store(false, Ordering::Relaxed);
            return;
        }
        let wanted = self.bytes.saturating_add(2 * COMMIT_ROOM);
        let held = self.file.blocks().unwrap_or(0).saturating_mul(512);
        if !self.has(wanted.saturating_sub(held)) {
            return;
        }
        match self.file.allocate(ByteRange::new(0, self.bytes)) {
            Ok(()) => {
                self.spent.store(false, Ordering::Relaxed);
                info!(bytes = self.bytes, "disk reserve is in place");
            }
            // The disk filled up meanwhile; the next tick tries again.
            Err(error) => warn!(%error, "cannot take the disk reserve"),
        }
    }

    /// Leaves its room to the engine.
    pub(crate) fn give_up(&self) {
        let _change = self.change.lock();
        if self.spent.swap(true, Ordering::SeqCst) {
            return;
        }
        let let_in = self.data.try_write_for(WRITES_MAX);
        if let_in.is_none() {
            warn!(
                "disk is full, and data writes do not end: they may take the room that is for records"
            );
        }
        match self
            .file
            .set_len(0)
            .and_then(|()| self.file.punch(ByteRange::new(0, self.bytes)))
        {
            Ok(()) => warn!("disk is full: data writes are refused until there is room"),
            Err(error) => warn!(%error, "cannot give the disk reserve up"),
        }
    }

    /// A disk that cannot tell is taken to have room: a failing write is noticed anyway.
    fn has(&self, wanted: u64) -> bool {
        self.disk
            .space(&self.dir)
            .is_ok_and(|space| space.available >= wanted)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use crate::tests::faulty::FaultyDisk;
    use std::sync::mpsc;

    #[test]
    fn who_was_let_in_has_ended_before_the_engine_is_given_the_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let disk = FaultyDisk::new();
        let bytes = Some(RESERVE_MIN);
        let reserve = Reserve::open(disk.clone(), dir.path(), &path, bytes).unwrap();
        let let_in = reserve.let_in().unwrap();
        disk.set(|faults| faults.available = Some(0));
        let (sender, receiver) = mpsc::channel();
        let reserve = &reserve;
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let admission = reserve.admit(0);
                sender
                    .send((admission, reserve.file.blocks().unwrap()))
                    .unwrap();
            });
            let early = receiver.recv_timeout(WRITES_MAX / 4);
            assert!(early.is_err(), "{early:?}");
            assert!(reserve.file.blocks().unwrap() > 0);
            assert!(reserve.let_in().is_none(), "nobody comes in any more");
            drop(let_in);
            let given = receiver.recv_timeout(WRITES_MAX / 4).unwrap();
            assert_eq!(given, (Admission::DeletesOnly, 0));
        });
    }
}
