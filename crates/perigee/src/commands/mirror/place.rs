//! Entries of directories that are held open: whoever exchanges a directory for a link meanwhile leads nobody astray.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where it ended, and why.
pub struct Failed {
    /// On what.
    pub at: PathBuf,
    /// Why.
    pub error: io::Error,
}

/// Says on what a call failed.
pub trait At<T> {
    /// The same, with the place.
    fn at(self, path: &Path) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, Failed> {
        self.map_err(|error| Failed {
            at: path.to_path_buf(),
            error: error.into(),
        })
    }
}

/// A directory, held open.
#[derive(Debug)]
pub struct Dir {
    /// It.
    pub fd: OwnedFd,
    /// For messages.
    pub path: PathBuf,
}

/// An entry of one, or none yet.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// In which.
    pub dir: &'a Dir,
    /// Its name.
    pub name: &'a OsStr,
}

/// The way to what is open.
pub fn in_fd(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// What kind of entry this is.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

impl Dir {
    /// What is open, of which `path` is to be said.
    pub fn new(fd: OwnedFd, path: &Path) -> Self {
        let path = path.to_path_buf();
        Self { fd, path }
    }

    /// Opens it; no link is followed at the end of the path.
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).at(path)?;
        Ok(Self::new(fd, path))
    }

    /// One of its entries.
    pub const fn entry<'a>(&'a self, name: &'a OsStr) -> Entry<'a> {
        Entry { dir: self, name }
    }

    /// The names in it.
    pub fn names(&self) -> Result<BTreeSet<OsString>, Failed> {
        let entries = fs::read_dir(in_fd(&self.fd)).at(&self.path)?;
        let names = entries.map(|entry| Ok(entry.at(&self.path)?.file_name()));
        names.collect()
    }
}

impl Entry<'_> {
    /// For messages.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(self.name)
    }

    /// Opens what it is now: no link, and nothing that is mounted there.
    pub fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Failed> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let opened = openat2(&self.dir.fd, self.name, flags, mode, within);
        opened
            .map_err(|error| match error {
                rustix::io::Errno::XDEV => io::Error::other("something is mounted there"),
                error => error.into(),
            })
            .at(&self.path())
    }

    /// The directory that it is.
    pub fn open_dir(&self) -> Result<Dir, Failed> {
        let fd = self.open(OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Dir::new(fd, &self.path()))
    }

    /// What it is, if anything.
    pub fn look(&self) -> Result<Option<Stat>, Failed> {
        match statat(&self.dir.fd, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error).at(&self.path()),
        }
    }
}
