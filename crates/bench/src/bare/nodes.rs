//! What the kernel knows: each inode by a descriptor that only names it, counted as the kernel counts.

use fuser::{BackingId, Errno, INodeNo};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, fstat, openat, statat};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// One inode of the local directory.
#[derive(Debug)]
pub(super) struct Node {
    /// Names it (`O_PATH`): while it is open, the local file system gives its number to no other file.
    pub fd: OwnedFd,
    /// Where the kernel reads and writes it by itself.
    pub backing: OnceLock<BackingId>,
}

impl Node {
    pub fn stat(&self) -> Result<Stat, Errno> {
        Ok(fstat(&self.fd).map_err(io::Error::from)?)
    }

    /// A path that leads to it, whatever its name is now.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Opened anew.
    pub fn open(&self, flags: OFlags) -> Result<File, Errno> {
        let fd = rustix::fs::open(self.path(), flags | OFlags::CLOEXEC, Mode::empty());
        Ok(fd.map_err(io::Error::from)?.into())
    }
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    lookups: u64,
}

/// All inodes that the kernel knows.
#[derive(Debug)]
pub(super) struct Nodes {
    root: u64,
    known: Mutex<HashMap<u64, Known>>,
}

impl Nodes {
    pub fn new(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::empty())?;
        let root = fstat(&fd)?.st_ino;
        let known = Known {
            node: Arc::new(Node {
                fd,
                backing: OnceLock::new(),
            }),
            lookups: 1,
        };
        Ok(Self {
            root,
            known: Mutex::new(HashMap::from([(INodeNo::ROOT.0, known)])),
        })
    }

    /// The number that the kernel knows an inode of the local file system by.
    pub fn number(&self, local: u64) -> INodeNo {
        if local == self.root {
            INodeNo::ROOT
        } else {
            INodeNo(local)
        }
    }

    pub fn get(&self, number: INodeNo) -> Result<Arc<Node>, Errno> {
        let known = self.lock();
        let node = known.get(&number.0).map(|known| Arc::clone(&known.node));
        node.ok_or(Errno::ESTALE)
    }

    /// Looks a name up, and counts it as one that the kernel hears of.
    pub fn look_up(&self, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Stat), Errno> {
        // Most names that a listing gives are known already.
        let stat = statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        if let Some(known) = self.lock().get_mut(&self.number(stat.st_ino).0) {
            known.lookups += 1;
            return Ok((Arc::clone(&known.node), stat));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&parent.fd, name, flags, Mode::empty()).map_err(io::Error::from)?;
        // Another program may have put another file there since.
        let stat = fstat(&fd).map_err(io::Error::from)?;
        let mut all = self.lock();
        let known = all
            .entry(self.number(stat.st_ino).0)
            .or_insert_with(|| Known {
                node: Arc::new(Node {
                    fd,
                    backing: OnceLock::new(),
                }),
                lookups: 0,
            });
        known.lookups += 1;
        Ok((Arc::clone(&known.node), stat))
    }

    /// The kernel has forgotten so many lookups.
    pub fn forget(&self, number: INodeNo, lookups: u64) {
        let mut all = self.lock();
        if let Some(known) = all.get_mut(&number.0) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 && number != INodeNo::ROOT {
                all.remove(&number.0);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
