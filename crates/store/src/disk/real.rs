//! The real disk.

use super::{Disk, DiskFile, DiskSpace, OpenMode, SeekTo};
use perigee_types::ByteRange;
use rustix::fs::{
    FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, fallocate, fdatasync, flock, fstat,
    ftruncate, seek,
};
use rustix::io::{Errno, pread, pwrite};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

/// The local system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

#[derive(Debug)]
struct RealFile {
    fd: Arc<OwnedFd>,
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let more = match mode {
            OpenMode::Existing => OFlags::empty(),
            OpenMode::Create => OFlags::CREATE,
            OpenMode::Truncate => OFlags::CREATE | OFlags::TRUNC,
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Arc::new(RealFile { fd: Arc::new(fd) }))
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

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
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

impl DiskFile for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(pread(&self.fd, buf, offset)?)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        Ok(pwrite(&self.fd, data, offset)?)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(u64::try_from(fstat(&self.fd)?.st_size).unwrap_or(0))
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

    fn sync_data(&self) -> io::Result<()> {
        Ok(fdatasync(&self.fd)?)
    }

    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        Ok(Arc::clone(&self.fd))
    }
}
