//! The disk at the level of system calls: the seam where tests put a faulty one.
//!
//! One method is one system call, so that a fault can hit each of them. Errors carry the system's number.

mod real;

pub use real::RealDisk;

use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, WallTime};
use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened: for reading and writing, where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// It must exist.
    Existing,
    /// Made if it is not there.
    Create,
    /// Made, or emptied.
    Truncate,
    /// Made, and it must not exist.
    New,
    /// It must exist; for reading alone.
    ReadOnly,
}

/// What a seek looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that takes space.
    Data,
    /// The next byte that takes none; the end of a file counts.
    Hole,
}

/// Room on the file system of a directory, in bytes and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// All bytes.
    pub total: u64,
    /// Bytes that this process may still use.
    pub available: u64,
    /// All inodes; 0 where the file system does not count them.
    pub files: u64,
    /// Inodes that are left.
    pub files_free: u64,
}

/// Which file of a machine: the same under each of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNumber {
    /// Of its file system.
    pub device: u64,
    /// Of the file there.
    pub inode: u64,
}

/// A file system.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Opens a file for reading and writing, mode 0600.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a regular file for reading, if the path leads to the one with that number; anything else is not even opened.
    fn open_known(&self, path: &Path, number: FileNumber) -> io::Result<Option<Arc<dyn DiskFile>>>;
    /// Makes a directory and its parents, mode 0700.
    fn create_dirs(&self, path: &Path) -> io::Result<()>;
    /// Names in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// Renames over whatever is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives an open file one more name, which must be free.
    ///
    /// Errors: `EXDEV` where it is on another file system, too.
    fn link(&self, file: &dyn DiskFile, to: &Path) -> io::Result<()>;
    /// Whether anybody has the file open for writing, this process included, or a map of it that can be stored to.
    ///
    /// Errors: where the file system cannot tell, too.
    fn has_writers(&self, path: &Path) -> io::Result<bool>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory's entries durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The directory's file system.
    fn whole(&self, dir: &Path) -> io::Result<Arc<dyn WholeDisk>>;
    /// Room on the directory's file system.
    fn space(&self, dir: &Path) -> io::Result<DiskSpace>;
    /// Takes the directory for this process alone, as long as the descriptor lives; `None` when another has it.
    fn lock_dir(&self, dir: &Path) -> io::Result<Option<OwnedFd>>;
}

/// A file system as a whole.
pub trait WholeDisk: Debug + Send + Sync + 'static {
    /// Makes everything durable that was written to it before. An error may be any file's, since the last call.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. All methods may be called from many threads at once.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Reads at an offset; fewer bytes than asked at the end, or by the system's whim.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes at an offset; how many bytes, maybe fewer than given.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// [`DiskFile::write_at`] of whole blocks (4,096 bytes) at a block's border, past the page cache where the file
    /// system can: for content that nobody is likely to read here soon. Not for more than 1 MiB.
    fn write_past_cache(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.write_at(offset, data)
    }
    /// Has `range` share the disk's blocks with the same range of another file, until one of them is written (reflink); a
    /// file system that cannot does nothing.
    fn share(&self, _range: ByteRange, _from: &dyn DiskFile) -> io::Result<Sharing> {
        Ok(Sharing::Impossible)
    }
    /// The length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Which file of this machine it is.
    ///
    /// Errors: `Unsupported` of what is no file of a file system.
    fn number(&self) -> io::Result<FileNumber> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether anybody has it open for writing, or a map of it that can be stored to; of a file that is open for reading.
    ///
    /// Errors: where the file system cannot tell, too.
    fn has_writers(&self) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Makes it this process's user's, mode 0600.
    fn make_own(&self) -> io::Result<()> {
        Ok(())
    }
    /// When anything about it was last changed.
    ///
    /// Errors: `Unsupported` of what is no file of a file system.
    fn touched(&self) -> io::Result<WallTime> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// How many names it has.
    fn links(&self) -> io::Result<u64> {
        Ok(1)
    }
    /// When the content was last changed, by whomever.
    ///
    /// Errors: `Unsupported` of what is no file of a file system.
    fn modified(&self) -> io::Result<WallTime> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Space taken, in units of 512 bytes.
    fn blocks(&self) -> io::Result<u64>;
    /// Cuts or extends; what is new reads as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Takes space for a range, length unchanged.
    fn allocate(&self, range: ByteRange) -> io::Result<()>;
    /// Gives the space of a range back; it reads as zeros. Length unchanged.
    fn punch(&self, range: ByteRange) -> io::Result<()>;
    /// The next data or hole at or after `offset`; `None` when there is none up to the end.
    fn seek(&self, offset: u64, to: SeekTo) -> io::Result<Option<u64>>;
    /// Has the system begin to bring a range to the disk; promises nothing.
    ///
    /// Errors: as of [`DiskFile::sync_data`], which may not tell them again.
    fn begin_writeback(&self, _range: ByteRange) -> io::Result<()> {
        Ok(())
    }
    /// Writes a range back: when this returns, its pages in memory are as the disk was given them, and whoever changes one
    /// through a map has to ask the system again.
    ///
    /// Errors: as of [`DiskFile::sync_data`], which may not tell them again.
    fn write_back(&self, _range: ByteRange) -> io::Result<()> {
        self.sync_data()
    }
    /// Makes the content durable.
    fn sync_data(&self) -> io::Result<()>;
    /// A descriptor that can only be read, for handing to the kernel.
    fn fd(&self) -> io::Result<Arc<OwnedFd>>;
}

/// Reads until `buf` is full or the file ends; what lies beyond its end becomes zeros.
pub(crate) fn read_padded(file: &dyn DiskFile, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(offset + done as u64, &mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    buf[done..].fill(0);
    Ok(())
}

/// What came of a wish to share blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Both files have them.
    Done,
    /// The file system does not do it, or not for these borders: nothing has changed.
    Impossible,
}

/// Whether content is likely to be read soon where it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// It is: by the programs that wrote it.
    Likely,
    /// It is not: large writes need not push other content out of memory.
    Unlikely,
}

/// Writes of fewer bytes go through the page cache in any case: there the system can join them.
const PAST_CACHE_LEN_MIN: usize = 512 << 10;
const PAST_CACHE_LEN_MAX: usize = 1 << 20;

/// Writes all of `data`, over as many calls as it takes.
pub(crate) fn write_all(file: &dyn DiskFile, offset: u64, data: &[u8]) -> io::Result<()> {
    write_fully(data, offset, |at, rest| file.write_at(at, rest))
}

/// [`write_all`] of an object's content.
pub(crate) fn write_content(
    file: &dyn DiskFile,
    offset: u64,
    data: &[u8],
    reuse: Reuse,
) -> io::Result<()> {
    if reuse == Reuse::Likely || data.len() < PAST_CACHE_LEN_MIN {
        return write_all(file, offset, data);
    }
    let head = (offset.next_multiple_of(BLOCK_LEN) - offset) as usize;
    let (head, rest) = data.split_at(head.min(data.len()));
    let (whole, tail) = rest.split_at(rest.len() - rest.len() % BLOCK_LEN as usize);
    let start = offset + head.len() as u64;
    write_all(file, offset, head)?;
    write_fully(whole, start, |at, rest| {
        let piece = &rest[..rest.len().min(PAST_CACHE_LEN_MAX)];
        // After a short write the rest may begin anywhere.
        if at.is_multiple_of(BLOCK_LEN) && piece.len().is_multiple_of(BLOCK_LEN as usize) {
            file.write_past_cache(at, piece)
        } else {
            file.write_at(at, piece)
        }
    })?;
    write_all(file, start + whole.len() as u64, tail)
}

fn write_fully(
    data: &[u8],
    offset: u64,
    mut write: impl FnMut(u64, &[u8]) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match write(offset + done as u64, &data[done..]) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
