//! The real disk.

use super::{Disk, DiskFile, DiskSpace, FileNumber, OpenMode, SeekTo, Sharing, WholeDisk};
use parking_lot::Mutex;
use perigee_types::{ByteRange, WallTime};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat,
    fallocate, fchmod, fchown, fdatasync, flock, fstat, ftruncate, linkat, seek, syncfs,
};
use rustix::io::{Errno, pread, pwrite};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tracing::debug;

/// The local system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile {
    fd: Arc<OwnedFd>,
    past_cache: OnceLock<Option<OwnedFd>>,
    read_only: OnceLock<Arc<OwnedFd>>,
}

/// What the memory of a write past the page cache must be a multiple of; enough for any disk.
const ALIGNMENT: usize = 4096;
/// The longest such write.
const PAST_CACHE_LEN_MAX: usize = 1 << 20;
/// Buffers that are kept for the next such writes.
const BUFFERS_MAX: usize = 4;

/// `F_SETSIG` of Linux, which libc lacks.
const F_SETSIG: libc::c_int = 10;

static BUFFERS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Of a file that is open for reading.
#[expect(unsafe_code, reason = "rustix has no leases")]
fn has_writers(fd: &OwnedFd) -> io::Result<bool> {
    let set = |what, value: libc::c_int| {
        // SAFETY: these take no pointer.
        match unsafe { libc::fcntl(fd.as_raw_fd(), what, value) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // A lease for reading is given where nobody writes. Who opens the file meanwhile waits until it is given back, which
    // is at once, and has this process told by a signal: by one that is ignored unless asked for.
    set(F_SETSIG, libc::SIGURG)?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => set(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

const fn number_of(stat: &Stat) -> FileNumber {
    FileNumber {
        device: stat.st_dev,
        inode: stat.st_ino,
    }
}

impl RealFile {
    fn new(fd: OwnedFd) -> Self {
        Self {
            fd: Arc::new(fd),
            past_cache: OnceLock::new(),
            read_only: OnceLock::new(),
        }
    }

    /// The file, opened for writes past the page cache; `None` where the file system has none.
    fn past_cache(&self) -> Option<&OwnedFd> {
        let open = || {
            self.open_again(OFlags::RDWR | OFlags::DIRECT)
                .inspect_err(|error| debug!(%error, "writes go through the page cache"))
                .ok()
        };
        self.past_cache.get_or_init(open).as_ref()
    }

    fn open_again(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let own = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(rustix::fs::open(
            own,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }
}

/// Calls `write` with the same bytes at an aligned address: where they lie, if that is one.
fn with_aligned<R>(data: &[u8], write: impl FnOnce(&[u8]) -> R) -> R {
    if data.as_ptr().align_offset(ALIGNMENT) == 0 {
        return write(data);
    }
    let kept = BUFFERS.lock().pop();
    let mut buffer = kept.unwrap_or_else(|| vec![0; PAST_CACHE_LEN_MAX + ALIGNMENT]);
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let aligned = &mut buffer[start..start + data.len()];
    aligned.copy_from_slice(data);
    let result = write(aligned);
    let mut kept = BUFFERS.lock();
    if kept.len() < BUFFERS_MAX {
        kept.push(buffer);
    }
    result
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let more = match mode {
            OpenMode::Existing => OFlags::empty(),
            OpenMode::Create => OFlags::CREATE,
            OpenMode::Truncate => OFlags::CREATE | OFlags::TRUNC,
            OpenMode::New => OFlags::CREATE | OFlags::EXCL,
            OpenMode::ReadOnly => OFlags::empty(),
        };
        let access = match mode {
            OpenMode::ReadOnly => OFlags::RDONLY,
            _ => OFlags::RDWR,
        };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Arc::new(RealFile::new(fd)))
    }

    fn open_known(&self, path: &Path, number: FileNumber) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let place = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let stat = fstat(&place)?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || number_of(&stat) != number {
            return Ok(None);
        }
        let own = format!("/proc/self/fd/{}", place.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(own, flags, Mode::empty())?;
        Ok(Some(Arc::new(RealFile::new(fd))))
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, file: &dyn DiskFile, to: &Path) -> io::Result<()> {
        let fd = file.fd()?;
        let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(linkat(CWD, own, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn has_writers(&self, path: &Path) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        has_writers(&rustix::fs::open(path, flags, Mode::empty())?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn whole(&self, dir: &Path) -> io::Result<Arc<dyn WholeDisk>> {
        Ok(Arc::new(RealWhole(File::open(dir)?)))
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(DiskSpace {
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
            files: stat.f_files,
            files_free: stat.f_favail,
        })
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(dir, flags, Mode::empty())?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(fd)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// A directory on the file system.
#[derive(Debug)]
struct RealWhole(File);

impl WholeDisk for RealWhole {
    fn sync(&self) -> io::Result<()> {
        Ok(syncfs(&self.0)?)
    }
}

impl RealFile {
    #[expect(unsafe_code, reason = "rustix has no sync_file_range")]
    fn sync_range(&self, range: ByteRange, flags: libc::c_uint) -> io::Result<()> {
        let (Ok(start), Ok(len)) = (range.start.try_into(), range.len().try_into()) else {
            return Err(Errno::OVERFLOW.into());
        };
        // SAFETY: takes numbers, and a descriptor that lives.
        match unsafe { libc::sync_file_range(self.fd.as_raw_fd(), start, len, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(pread(&self.fd, buf, offset)?)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        Ok(pwrite(&self.fd, data, offset)?)
    }

    fn write_past_cache(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let usable = data.len() <= PAST_CACHE_LEN_MAX;
        if let Some(fd) = self.past_cache().filter(|_| usable) {
            match with_aligned(data, |aligned| pwrite(fd, aligned, offset)) {
                // Not here, or not in such pieces: the page cache takes anything.
                Err(Errno::INVAL) => {}
                written => return Ok(written?),
            }
        }
        self.write_at(offset, data)
    }

    #[expect(unsafe_code, reason = "rustix has no FICLONERANGE")]
    fn share(&self, range: ByteRange, from: &dyn DiskFile) -> io::Result<Sharing> {
        let from = from.fd()?;
        let what = libc::file_clone_range {
            src_fd: from.as_raw_fd().into(),
            src_offset: range.start,
            src_length: range.len(),
            dest_offset: range.start,
        };
        // SAFETY: the descriptors and the structure live until it returns, and the kernel writes to neither.
        let shared =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::FICLONERANGE, &raw const what) };
        if shared == 0 {
            return Ok(Sharing::Done);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EXDEV | libc::EINVAL) => {
                Ok(Sharing::Impossible)
            }
            _ => Err(error),
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(u64::try_from(fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    fn number(&self) -> io::Result<FileNumber> {
        Ok(number_of(&fstat(&self.fd)?))
    }

    fn has_writers(&self) -> io::Result<bool> {
        has_writers(&self.fd)
    }

    fn make_own(&self) -> io::Result<()> {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        fchown(&self.fd, Some(user), Some(group))?;
        Ok(fchmod(&self.fd, Mode::RUSR | Mode::WUSR)?)
    }

    fn touched(&self) -> io::Result<WallTime> {
        let stat = fstat(&self.fd)?;
        Ok(WallTime {
            secs: stat.st_ctime,
            nanos: u32::try_from(stat.st_ctime_nsec).unwrap_or_default(),
        })
    }

    fn links(&self) -> io::Result<u64> {
        Ok(fstat(&self.fd)?.st_nlink)
    }

    fn modified(&self) -> io::Result<WallTime> {
        let stat = fstat(&self.fd)?;
        Ok(WallTime {
            secs: stat.st_mtime,
            nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
        })
    }

    fn blocks(&self) -> io::Result<u64> {
        Ok(u64::try_from(fstat(&self.fd)?.st_blocks).unwrap_or(0))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(ftruncate(&self.fd, len)?)
    }

    fn allocate(&self, range: ByteRange) -> io::Result<()> {
        let keep = FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.fd, keep, range.start, range.len())?)
    }

    fn punch(&self, range: ByteRange) -> io::Result<()> {
        let how = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        Ok(fallocate(&self.fd, how, range.start, range.len())?)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> io::Result<Option<u64>> {
        let from = match to {
            SeekTo::Data => SeekFrom::Data(offset),
            SeekTo::Hole => SeekFrom::Hole(offset),
        };
        match seek(&self.fd, from) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn write_back(&self, range: ByteRange) -> io::Result<()> {
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        self.sync_range(range, libc::SYNC_FILE_RANGE_WRITE | wait)
    }

    fn begin_writeback(&self, range: ByteRange) -> io::Result<()> {
        let Err(error) = self.sync_range(range, libc::SYNC_FILE_RANGE_WRITE) else {
            return Ok(());
        };
        match error.raw_os_error() {
            // Nothing was tried: the file system does not have it, or not now.
            Some(
                libc::EINVAL
                | libc::ENOSYS
                | libc::EOPNOTSUPP
                | libc::ESPIPE
                | libc::EINTR
                | libc::EAGAIN
                | libc::ENOMEM,
            ) => {
                debug!(%error, "writing back waits for the next sync");
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(fdatasync(&self.fd)?)
    }

    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.read_only.get() {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(self.open_again(OFlags::RDONLY)?);
        Ok(Arc::clone(self.read_only.get_or_init(|| fd)))
    }
}
