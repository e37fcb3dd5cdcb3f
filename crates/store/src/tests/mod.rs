//! Tests of the room as a whole, on a disk that fails and forgets.

mod crash;
mod every_crash;
mod fault;
pub(crate) mod faulty;
mod fuzz;
mod keys;
mod model;
mod object;
mod replica;
mod small;
mod taken;

use crate::disk::Disk;
use crate::{Adopt, Object, Store, StoreError, StoreIdentity, StoreOptions};
use faulty::FaultyDisk;
use perigee_types::{ByteRange, ContainerId, Epoch, InodeId, InodeIndex, NodeId, Seq, Version};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const CLUSTER: u128 = 0x1234_5678_9abc_def0;
pub(crate) const C: ContainerId = ContainerId(3);

/// A data directory, its disk, and the store while it is open.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    pub(crate) disk: Arc<FaultyDisk>,
    /// Objects up to this length have no file.
    small_len_max: u64,
    store: Option<Arc<Store>>,
}

pub(crate) fn options(disk: &Arc<FaultyDisk>) -> StoreOptions {
    StoreOptions {
        cache_bytes: 4 << 20,
        reserve_bytes: Some(1 << 20),
        small_len_max: 0,
        open_files: 8,
        disk: Arc::clone(disk) as _,
    }
}

pub(crate) fn identity() -> StoreIdentity {
    StoreIdentity {
        cluster: CLUSTER,
        node: NodeId(2),
    }
}

pub(crate) fn inode(index: u64) -> InodeId {
    InodeId::new(C, InodeIndex(index))
}

pub(crate) fn v(seq: u64) -> Version {
    Version {
        epoch: Epoch(1),
        seq: Seq(seq),
    }
}

pub(crate) fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end)
}

/// Bytes that differ from block to block, and from one seed to another.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at ^ (at >> 8) ^ seed.wrapping_mul(151)) as u8 | 1)
        .collect()
}

impl Bench {
    /// Every object has a file.
    pub(crate) fn new() -> Self {
        Self::with_small(0)
    }

    pub(crate) fn with_small(small_len_max: u64) -> Self {
        Self::within(tempfile::tempdir().unwrap(), small_len_max)
    }

    /// In a directory of its own, which goes with it.
    pub(crate) fn within(dir: tempfile::TempDir, small_len_max: u64) -> Self {
        let disk = FaultyDisk::new();
        let options = StoreOptions {
            small_len_max,
            ..options(&disk)
        };
        let store = Store::create_with(&dir.path().join("s"), identity(), options).unwrap();
        Self {
            dir,
            disk,
            small_len_max,
            store: Some(store),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    pub(crate) fn object(&self, index: u64) -> Arc<Object> {
        self.store().object(inode(index)).unwrap()
    }

    /// Drops the store as a killed process does: the page cache stays.
    pub(crate) fn kill(&mut self) {
        self.store = None;
    }

    /// Everything durable, then away.
    pub(crate) fn close(&mut self) {
        self.store().close().unwrap();
        self.store = None;
    }

    /// The power goes, and comes back; the background has had its moment to sync `touched.log`.
    pub(crate) fn lose_power(&mut self, seed: u64) {
        // A disk that is off already cannot; then nothing new was written to objects either.
        _ = self.store().sync_touched();
        self.disk.freeze();
        self.store = None;
        self.disk.crash(&mut perigee_types::Rng::new(seed));
    }

    pub(crate) fn open(&mut self) {
        self.open_on(Arc::clone(&self.disk) as _);
    }

    pub(crate) fn open_on(&mut self, disk: Arc<dyn Disk>) {
        let options = StoreOptions {
            disk,
            small_len_max: self.small_len_max,
            ..options(&self.disk)
        };
        self.store = Some(Store::open_with(&self.path(), Some(CLUSTER), options).unwrap());
    }

    pub(crate) fn open_and_recover(&mut self, adopt: Adopt) -> crate::Recovered {
        self.open();
        let recovered = self.store().recover(&|_| adopt).unwrap();
        assert_eq!(recovered.failed, []);
        assert_eq!(self.store().unrecovered(), []);
        recovered
    }

    pub(crate) fn file_of(&self, index: u64) -> PathBuf {
        let number = inode(index).0;
        self.path()
            .join("objects/000003")
            .join(format!("{:02x}", number & 0xff))
            .join(format!("{number:016x}"))
    }
}

/// Turns one bit of a file over.
pub(crate) fn flip(path: &Path, byte: u64, bit: u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut one = [0];
    file.read_exact_at(&mut one, byte).unwrap();
    file.write_all_at(&[one[0] ^ (1 << bit)], byte).unwrap();
}

/// [`Object::sync_together`], waited for.
fn sync_together(objects: Vec<Arc<Object>>) -> Result<(), StoreError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    Object::sync_together(objects, Box::new(move |result| _ = sender.send(result)));
    receiver.recv().unwrap()
}
