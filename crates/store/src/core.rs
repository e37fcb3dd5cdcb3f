//! What all objects of a store share.

use crate::disk::{Disk, DiskFile, OpenMode, WholeDisk};
use crate::error::StoreError;
use crate::format::Layout;
use crate::kv::Kv;
use crate::reserve::LetIn;
use crate::touched::Touched;
use parking_lot::{Condvar, Mutex, RwLock};
use perigee_dirtylog::DirtyLog;
use perigee_types::{ByteRange, ContainerId};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use tracing::{error, info};

/// `BTRFS_SUPER_MAGIC`. Where it compresses, pages are clean later than a write-back says: what changes in between is not told.
const BTRFS: i64 = 0x9123_683e;
/// Room for 170,000 events that nobody has taken: where more come, whole files are read.
const DIRTY_RING_BYTES: u32 = 4 << 20;

/// The shared part of a store.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) layout: Layout,
    pub(crate) kv: Arc<Kv>,
    pub(crate) touched: Touched,
    /// The file system that the backing files are on.
    whole: Arc<dyn WholeDisk>,
    /// Objects up to this length keep their bytes among the keys; in bytes.
    pub(crate) small_len_max: u64,
    /// Backing files that are open.
    pub(crate) open_files: AtomicUsize,
    read_only: RwLock<BTreeMap<ContainerId, String>>,
    any_read_only: AtomicBool,
    started: Instant,
    uses: AtomicU64,
    pub(crate) keeper: Bell,
    /// What the keeper shall have the system write back.
    pub(crate) grown: Mutex<Vec<Grown>>,
    /// Who tells what other programs change in backing files; empty where the system does not.
    dirty_log: OnceLock<Option<Arc<DirtyLog>>>,
    /// Keeps other processes away; released with the last handle.
    pub(crate) _lock: OwnedFd,
}

/// A part of a backing file that was written for the first time.
#[derive(Debug)]
pub(crate) struct Grown {
    pub(crate) container: ContainerId,
    /// One that was closed or removed meanwhile need not be written back soon.
    pub(crate) file: Weak<dyn DiskFile>,
    pub(crate) range: ByteRange,
}

/// Wakes the keeper.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    pub(crate) state: Mutex<BellState>,
    pub(crate) rung: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BellState {
    #[default]
    Quiet,
    Rung,
    Stop,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let mut state = self.state.lock();
        if *state == BellState::Quiet {
            *state = BellState::Rung;
            self.rung.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        *self.state.lock() = BellState::Stop;
        self.rung.notify_one();
    }
}

impl Core {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        layout: Layout,
        kv: Arc<Kv>,
        touched: Touched,
        whole: Arc<dyn WholeDisk>,
        small_len_max: u64,
        lock: OwnedFd,
    ) -> Self {
        Self {
            whole,
            small_len_max,
            disk,
            layout,
            kv,
            touched,
            open_files: AtomicUsize::new(0),
            read_only: RwLock::default(),
            any_read_only: AtomicBool::new(false),
            started: Instant::now(),
            uses: AtomicU64::new(1),
            keeper: Bell::default(),
            grown: Mutex::default(),
            dirty_log: OnceLock::new(),
            _lock: lock,
        }
    }

    /// Brings everything that was written to any backing file, and their directories, to the disk.
    pub(crate) fn sync_whole(&self) -> io::Result<()> {
        self.touched.sync()?;
        self.whole.sync()
    }

    /// Who tells what other programs change in backing files, from the first time on that somebody wants to know; none where
    /// the system does not tell.
    pub(crate) fn dirty_log(&self) -> Option<&Arc<DirtyLog>> {
        let opened = self.dirty_log.get_or_init(|| {
            let log = DirtyLog::open(DIRTY_RING_BYTES).map_err(|why| why.to_string());
            let tells = log.and_then(|log| match self.is_told_of(&log) {
                Ok(true) => Ok(log),
                Ok(false) => Err("this file system says nothing".to_owned()),
                Err(error) => Err(format!("it cannot be tried here: {error}")),
            });
            tells
                .inspect_err(|why| {
                    info!(%why, "what programs change past the daemon is found by reading whole files");
                })
                .ok()
        });
        opened.as_ref()
    }

    /// Whether the kernel tells what changes on the store's file system.
    fn is_told_of(&self, log: &Arc<DirtyLog>) -> io::Result<bool> {
        let path = self.layout.probe();
        let file = self.disk.open(&path, OpenMode::Truncate)?;
        let write = |at| crate::disk::write_all(&*file, at, &[1]);
        let told = file.fd().and_then(|fd| {
            let compresses = rustix::fs::fstatfs(&*fd)?.f_type == BTRFS;
            Ok(!compresses && log.tells_of(&*fd, write)?)
        });
        self.disk.remove_file(&path)?;
        told
    }

    /// Milliseconds since the store was opened, from 1.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).map_or(u64::MAX, |ms| ms + 1)
    }

    /// A number that rises with every use of an object.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a container's data may change.
    pub(crate) fn check_writable(&self, container: ContainerId) -> Result<(), StoreError> {
        match self.why_read_only(container) {
            Some(why) => Err(StoreError::ReadOnly { container, why }),
            None => Ok(()),
        }
    }

    /// Whether a container's data may grow: for as long as the answer is kept.
    pub(crate) fn let_in(&self, container: ContainerId) -> Result<LetIn<'_>, StoreError> {
        self.check_writable(container)?;
        self.kv.reserve.let_in().ok_or(StoreError::NoSpace)
    }

    pub(crate) fn why_read_only(&self, container: ContainerId) -> Option<String> {
        if !self.any_read_only.load(Ordering::Acquire) {
            return None;
        }
        self.read_only.read().get(&container).cloned()
    }

    /// Stops writes to a container: a sync failed, so what its disk holds is unknown, and a second
    /// sync would succeed without having written (Rebello et al., ATC '20).
    pub(crate) fn set_read_only(&self, container: ContainerId, why: String) -> StoreError {
        error!(%container, why, "container is read-only from now on");
        let mut map = self.read_only.write();
        let why = map.entry(container).or_insert(why).clone();
        self.any_read_only.store(true, Ordering::Release);
        StoreError::ReadOnly { container, why }
    }

    pub(crate) fn clear_read_only(&self, container: ContainerId) {
        let mut map = self.read_only.write();
        map.remove(&container);
        self.any_read_only.store(!map.is_empty(), Ordering::Release);
    }
}
