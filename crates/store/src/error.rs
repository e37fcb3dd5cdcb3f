//! What can go wrong here, as values that a caller decides on.

use perigee_types::{ByteRange, ContainerId, Errno, InodeId};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why an operation on an open store failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Stored bytes do not match their checksums. Another copy must heal them: invalidate the ranges,
    /// then install good bytes.
    #[error("inode {inode} has corrupt blocks here: {}", list(.ranges))]
    Corrupt {
        /// The object.
        inode: InodeId,
        /// The blocks, cut at the object's end.
        ranges: Vec<ByteRange>,
    },
    /// The read touches bytes that are not valid here. They must be fetched.
    #[error("inode {inode} is not valid here: {}", list(.ranges))]
    Invalid {
        /// The object.
        inode: InodeId,
        /// The invalid parts of what was asked for.
        ranges: Vec<ByteRange>,
    },
    /// Bytes given to `install` are not what their checksums say, or not as many as the range has.
    /// Nothing was written.
    #[error("bytes for inode {inode} at {range} do not match their checksums or length")]
    Mismatch {
        /// The object.
        inode: InodeId,
        /// Where the bytes were to go.
        range: ByteRange,
    },
    /// The local disk is full, or only its reserve is left. Nothing was harmed; deletes still work.
    #[error("no space left on the local disk")]
    NoSpace,
    /// A sync of this container's data failed once, so what the disk holds is unknown: it takes no more
    /// writes until the store is opened again.
    #[error("container {container} is read-only here: {why}")]
    ReadOnly {
        /// The container.
        container: ContainerId,
        /// What failed.
        why: String,
    },
    /// The local system refused an operation.
    #[error("{what}: {}", io::Error::from_raw_os_error(*.code))]
    Io {
        /// What was tried, on what.
        what: String,
        /// The system's error number.
        code: i32,
    },
    /// A stored record is not what was written.
    #[error("damaged record: {what}")]
    Damaged {
        /// Which record, and how it is wrong.
        what: String,
    },
    /// The key-value engine failed, and takes nothing more until the store is opened again.
    #[error("the key-value engine failed: {why}")]
    Failed {
        /// Its first error.
        why: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The object was removed while this handle was held.
    #[error("inode {inode} was removed")]
    Removed {
        /// The object.
        inode: InodeId,
    },
    /// The last process stopped while it wrote this object: [`crate::Store::recover`] must run first.
    #[error("inode {inode} was being written when the last process stopped, and is not recovered")]
    Unrecovered {
        /// The object.
        inode: InodeId,
    },
    /// The backing file has a name beside its own, so it must not be changed in place.
    #[error("the backing file of inode {inode} has another name beside its own")]
    Named {
        /// The object.
        inode: InodeId,
    },
    /// The object would grow beyond [`perigee_types::limits::FILE_LEN_MAX`].
    #[error("inode {inode} cannot reach to {end}: longer than a file may be")]
    TooLong {
        /// The object.
        inode: InodeId,
        /// The length asked for, in bytes.
        end: u64,
    },
}

impl StoreError {
    /// Wraps an error of the system; a full disk becomes [`StoreError::NoSpace`].
    pub(crate) fn io(what: impl Into<String>, error: &io::Error) -> Self {
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        if code == libc::ENOSPC || code == libc::EDQUOT {
            return Self::NoSpace;
        }
        let what = what.into();
        Self::Io { what, code }
    }

    /// What a program sees when nothing better can be done.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NoSpace => Errno::ENOSPC,
            Self::ReadOnly { .. } => Errno::EROFS,
            Self::TooLong { .. } => Errno::EFBIG,
            Self::Removed { .. } => Errno::ESTALE,
            Self::Io { code, .. } => Errno::from_code(*code),
            Self::Corrupt { .. }
            | Self::Invalid { .. }
            | Self::Mismatch { .. }
            | Self::Damaged { .. }
            | Self::Failed { .. }
            | Self::Closed
            | Self::Named { .. }
            | Self::Unrecovered { .. } => Errno::EIO,
        }
    }
}

fn list(ranges: &[ByteRange]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = ranges.iter().take(SHOWN).map(ToString::to_string).collect();
    if ranges.len() > SHOWN {
        text.push(format!("and {} more", ranges.len() - SHOWN));
    }
    text.join(", ")
}

/// Why a store could not be created or opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("`{}` is in use by another process", .dir.display())]
    Busy {
        /// The data directory.
        dir: PathBuf,
    },
    /// There is no store.
    #[error("`{}` holds no store", .dir.display())]
    NotAStore {
        /// The data directory.
        dir: PathBuf,
    },
    /// There is one already.
    #[error("`{}` holds a store already, of cluster {cluster:032x}", .dir.display())]
    Exists {
        /// The data directory.
        dir: PathBuf,
        /// Whose it is.
        cluster: u128,
    },
    /// It belongs to another cluster.
    #[error("`{}` belongs to cluster {found:032x}, not to {expected:032x}", .dir.display())]
    OtherCluster {
        /// The data directory.
        dir: PathBuf,
        /// Whose it is.
        found: u128,
        /// Whose it should be.
        expected: u128,
    },
    /// A newer binary wrote it.
    #[error("`{}` has format {found}, this binary knows up to {known}", .dir.display())]
    Newer {
        /// The data directory.
        dir: PathBuf,
        /// The format of the store.
        found: u32,
        /// The newest format that this binary reads.
        known: u32,
    },
    /// A file of it is not what was written.
    #[error("`{}` is damaged: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it is wrong.
        why: String,
    },
    /// The local system refused an operation.
    #[error("cannot {what} `{}`: {source}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}
