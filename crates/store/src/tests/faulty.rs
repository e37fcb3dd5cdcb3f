//! A disk that fails when told to, and forgets what was not synced.

use crate::disk::{
    Disk, DiskFile, DiskSpace, FileNumber, OpenMode, RealDisk, SeekTo, WholeDisk, read_padded,
    write_all,
};
use parking_lot::Mutex;
use perigee_types::{ByteRange, Rng, WallTime};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a power loss drops or keeps as a whole.
const GRAIN: u64 = 4096;

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultyDisk {
    faults: Arc<Mutex<Faults>>,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Every call fails: the machine is off.
    frozen: bool,
    /// Calls that change something before the power goes by itself.
    pub(crate) calls_left: Option<u32>,
    /// Syncs of object files that succeed before one fails.
    pub(crate) syncs_left: Option<u32>,
    /// Bytes that object files still take.
    pub(crate) object_bytes_left: Option<u64>,
    /// Writes of the engine that find no room before one does.
    pub(crate) keys_refused: u32,
    /// What `space` answers.
    pub(crate) available: Option<u64>,
    /// Reads of object files fail with EIO.
    pub(crate) unreadable: bool,
    /// To begin with a part fails with EIO.
    pub(crate) cannot_begin: bool,
    /// Parts of object files that the system was asked to begin with.
    pub(crate) begun: Vec<ByteRange>,
    /// `touched.log`.
    log: Option<u64>,
    unsynced: HashMap<u64, Unsynced>,
    /// Files whose directory entry is not durable.
    created: HashMap<PathBuf, ()>,
}

#[derive(Debug)]
struct Unsynced {
    file: Arc<dyn DiskFile>,
    old_len: u64,
    old_pages: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn DiskFile>,
    id: u64,
    is_object: bool,
    is_keys: bool,
    faults: Arc<Mutex<Faults>>,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Faults {
    /// Something is about to change on the disk, unless the machine is off.
    fn change(&mut self) -> io::Result<()> {
        match &mut self.calls_left {
            Some(0) => self.frozen = true,
            Some(left) => *left -= 1,
            None => {}
        }
        if self.frozen { Err(eio()) } else { Ok(()) }
    }
}

impl FaultyDisk {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock());
    }

    /// The power goes: nothing reaches the disk any more.
    pub(crate) fn freeze(&self) {
        self.faults.lock().frozen = true;
    }

    /// What the power loss leaves: of what was not synced, any part.
    pub(crate) fn crash(&self, rng: &mut Rng) {
        let mut faults = self.faults.lock();
        assert!(faults.frozen, "freeze first, then drop the store");
        for (path, ()) in std::mem::take(&mut faults.created) {
            if rng.below(2) == 0 {
                _ = std::fs::remove_file(path);
            }
        }
        let mut files: Vec<_> = std::mem::take(&mut faults.unsynced).into_iter().collect();
        files.sort_by_key(|(id, _)| *id);
        for (_, lost) in files {
            let now = lost.file.size().unwrap();
            let len = if rng.below(2) == 0 { now } else { lost.old_len };
            for (page, old) in lost.old_pages {
                if rng.below(2) == 0 {
                    write_all(&*lost.file, page * GRAIN, &old).unwrap();
                }
            }
            lost.file.set_len(len).unwrap();
        }
        faults.frozen = false;
        faults.calls_left = None;
    }

    /// Whether the power is gone.
    pub(crate) fn is_frozen(&self) -> bool {
        self.faults.lock().frozen
    }

    fn change(&self) -> io::Result<()> {
        self.faults.lock().change()
    }

    fn alive(&self) -> io::Result<()> {
        if self.faults.lock().frozen {
            Err(eio())
        } else {
            Ok(())
        }
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let is_new = !path.exists();
        if is_new || mode == OpenMode::Truncate {
            self.change()?;
        }
        self.alive()?;
        let inner = RealDisk.open(path, mode)?;
        if is_new {
            self.faults.lock().created.insert(path.to_owned(), ());
        }
        let id = std::fs::metadata(path)?.ino();
        if path.file_name().is_some_and(|name| name == "touched.log") {
            self.faults.lock().log = Some(id);
        }
        Ok(Arc::new(FaultyFile {
            inner,
            id,
            is_object: path.components().any(|part| part.as_os_str() == "objects"),
            is_keys: path.file_name().is_some_and(|name| name == "state.redb"),
            faults: Arc::clone(&self.faults),
        }))
    }

    fn open_known(&self, path: &Path, number: FileNumber) -> io::Result<Option<Arc<dyn DiskFile>>> {
        self.alive()?;
        let Some(inner) = RealDisk.open_known(path, number)? else {
            return Ok(None);
        };
        Ok(Some(Arc::new(FaultyFile {
            inner,
            id: number.inode,
            is_object: false,
            is_keys: false,
            faults: Arc::clone(&self.faults),
        })))
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.create_dirs(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.alive()?;
        RealDisk.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        self.faults.lock().created.remove(from);
        RealDisk.rename(from, to)
    }

    fn link(&self, file: &dyn DiskFile, to: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.link(file, to)?;
        self.faults.lock().created.insert(to.to_owned(), ());
        Ok(())
    }

    fn has_writers(&self, path: &Path) -> io::Result<bool> {
        self.alive()?;
        RealDisk.has_writers(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        self.faults.lock().created.remove(path);
        let id = std::fs::metadata(path)?.ino();
        self.faults.lock().unsynced.remove(&id);
        RealDisk.remove_file(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.remove_tree(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        let mut faults = self.faults.lock();
        faults
            .created
            .retain(|file, ()| file.parent() != Some(path));
        RealDisk.sync_dir(path)
    }

    fn whole(&self, _: &Path) -> io::Result<Arc<dyn WholeDisk>> {
        Ok(Arc::new(FaultyWhole(Arc::clone(&self.faults))))
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        let mut space = RealDisk.space(dir)?;
        if let Some(available) = self.faults.lock().available {
            space.available = available;
        }
        Ok(space)
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Option<OwnedFd>> {
        RealDisk.lock_dir(dir)
    }
}

/// All files of a faulty disk.
#[derive(Debug)]
struct FaultyWhole(Arc<Mutex<Faults>>);

impl WholeDisk for FaultyWhole {
    fn sync(&self) -> io::Result<()> {
        let mut faults = self.0.lock();
        faults.change()?;
        // Where a sync of a file is to fail, this one does not say which.
        if faults.syncs_left.is_some() {
            return Err(eio());
        }
        faults.unsynced.clear();
        faults.created.clear();
        Ok(())
    }
}

impl FaultyFile {
    /// Remembers what `range` holds, and the length, before they change.
    fn remember(&self, range: ByteRange) -> io::Result<()> {
        let mut faults = self.faults.lock();
        faults.change()?;
        let len = self.inner.size()?;
        let lost = faults.unsynced.entry(self.id).or_insert_with(|| Unsynced {
            file: Arc::clone(&self.inner),
            old_len: len,
            old_pages: BTreeMap::new(),
        });
        for page in range.start / GRAIN..range.end.div_ceil(GRAIN) {
            if page * GRAIN < lost.old_len && !lost.old_pages.contains_key(&page) {
                let mut old = vec![0; GRAIN as usize];
                read_padded(&*self.inner, page * GRAIN, &mut old)?;
                lost.old_pages.insert(page, old);
            } else {
                let zeros = || vec![0; GRAIN as usize];
                lost.old_pages.entry(page).or_insert_with(zeros);
            }
        }
        Ok(())
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let faults = self.faults.lock();
        if faults.frozen || (self.is_object && faults.unreadable) {
            return Err(eio());
        }
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let mut data = data;
        if self.is_keys
            && let refused = &mut self.faults.lock().keys_refused
            && *refused > 0
        {
            *refused -= 1;
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if self.is_object
            && let Some(left) = &mut self.faults.lock().object_bytes_left
        {
            if *left == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            data = &data[..data.len().min(*left as usize)];
            *left -= data.len() as u64;
        }
        self.remember(ByteRange::with_len(offset, data.len() as u64))?;
        self.inner.write_at(offset, data)
    }

    fn size(&self) -> io::Result<u64> {
        if self.faults.lock().frozen {
            Err(eio())
        } else {
            self.inner.size()
        }
    }

    fn number(&self) -> io::Result<FileNumber> {
        self.inner.number()
    }

    fn has_writers(&self) -> io::Result<bool> {
        self.inner.has_writers()
    }

    fn make_own(&self) -> io::Result<()> {
        self.faults.lock().change()?;
        self.inner.make_own()
    }

    fn touched(&self) -> io::Result<WallTime> {
        self.inner.touched()
    }

    fn links(&self) -> io::Result<u64> {
        self.inner.links()
    }

    fn modified(&self) -> io::Result<WallTime> {
        self.inner.modified()
    }

    fn blocks(&self) -> io::Result<u64> {
        self.inner.blocks()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.remember(ByteRange::new(len, self.inner.size()?))?;
        self.inner.set_len(len)
    }

    fn allocate(&self, range: ByteRange) -> io::Result<()> {
        self.faults.lock().change()?;
        self.inner.allocate(range)
    }

    fn punch(&self, range: ByteRange) -> io::Result<()> {
        self.remember(range)?;
        self.inner.punch(range)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> io::Result<Option<u64>> {
        self.inner.seek(offset, to)
    }

    fn begin_writeback(&self, range: ByteRange) -> io::Result<()> {
        let mut faults = self.faults.lock();
        let log = faults.log.expect("a store has one");
        assert!(
            !faults.unsynced.contains_key(&log),
            "bytes go to the disk that recovery would not look for"
        );
        faults.begun.push(range);
        if faults.cannot_begin {
            return Err(eio());
        }
        Ok(())
    }

    fn write_back(&self, range: ByteRange) -> io::Result<()> {
        let faults = self.faults.lock();
        let log = faults.log.expect("a store has one");
        assert!(
            !faults.unsynced.contains_key(&log),
            "bytes go to the disk that recovery would not look for"
        );
        self.inner.write_back(range)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut faults = self.faults.lock();
        faults.change()?;
        let lost = faults.unsynced.remove(&self.id);
        match &mut faults.syncs_left {
            Some(0) if self.is_object => {
                faults.syncs_left = None;
                // As Linux does it: the dirty pages are dropped, and the next sync succeeds.
                for (page, old) in lost.into_iter().flat_map(|lost| lost.old_pages) {
                    write_all(&*self.inner, page * GRAIN, &old)?;
                }
                Err(eio())
            }
            Some(left) if self.is_object => {
                *left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        self.inner.fd()
    }
}
