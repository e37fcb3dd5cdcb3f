//! Attributes of a local file, as the kernel asks for them.

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::Stat;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// As `stat` says, under the number that the kernel knows it by.
pub(super) fn of(stat: &Stat, number: INodeNo) -> FileAttr {
    FileAttr {
        ino: number,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind(stat),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: u32::try_from(stat.st_rdev).unwrap_or(0),
        blksize: 4_096,
        flags: 0,
    }
}

/// Nothing: the kernel keeps that a name leads nowhere.
pub(super) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn kind(stat: &Stat) -> FileType {
    use rustix::fs::FileType as Local;
    match Local::from_raw_mode(stat.st_mode) {
        Local::Directory => FileType::Directory,
        Local::Symlink => FileType::Symlink,
        Local::Fifo => FileType::NamedPipe,
        Local::Socket => FileType::Socket,
        Local::BlockDevice => FileType::BlockDevice,
        Local::CharacterDevice => FileType::CharDevice,
        Local::RegularFile | Local::Unknown => FileType::RegularFile,
    }
}

fn time(seconds: i64, nanos: u64) -> SystemTime {
    let fraction = Duration::from_nanos(nanos);
    match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH + Duration::from_secs(after) + fraction,
        Err(_) => UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()) + fraction,
    }
}
