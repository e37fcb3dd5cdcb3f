//! The path of an admin socket, short enough for the kernel.

use perigee_proto::admin::SOCKET_NAME;
use rustix::fs::{Mode, OFlags, open};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A socket address holds 108 bytes, with the final NUL.
const ADDRESS_BYTES_MAX: usize = 107;

/// A path to a name in a directory that fits a socket address however deep the directory is.
pub struct ShortPath {
    path: PathBuf,
    /// Keeps `/proc/self/fd/N` alive while the path is used.
    _dir: Option<OwnedFd>,
}

impl ShortPath {
    /// The way to the socket of the node with this data directory.
    pub fn socket(data_dir: &Path) -> std::io::Result<Self> {
        Self::of(data_dir, SOCKET_NAME)
    }

    /// The way to `name` in `dir`.
    pub fn of(dir: &Path, name: &str) -> std::io::Result<Self> {
        let path = dir.join(name);
        if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
            return Ok(Self { path, _dir: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(dir, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", fd.as_raw_fd()));
        Ok(Self {
            path,
            _dir: Some(fd),
        })
    }

    /// The path, good while `self` lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
