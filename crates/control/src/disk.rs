//! The few things that the engine asks of a directory, so that tests can cut them off anywhere.

use crate::error::{EngineError, shown};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Files of one directory, at the level of system calls. Nothing is durable before the sync that
/// belongs to it: [`Disk::sync`] for content and length, [`Disk::sync_dir`] for names.
pub trait Disk: Send {
    /// Where this is, for messages.
    fn place(&self) -> String;
    /// The whole file; `None` when there is none.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Makes the file, or empties it. Only its owner may read it.
    fn create(&mut self, name: &str) -> io::Result<()>;
    /// Writes at the end of the file. After an error any part may be there.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Cuts the file to `len` bytes.
    fn truncate(&mut self, name: &str, len: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Gives the file another name, in place of whatever had it.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Makes names durable.
    fn sync_dir(&mut self) -> io::Result<()>;
}

/// Name of the file whose lock says that a process uses the directory.
const LOCK_NAME: &str = "control.lock";

/// A real directory, locked for as long as this lives.
#[derive(Debug)]
pub struct DirDisk {
    dir: PathBuf,
    open: BTreeMap<String, File>,
    /// Holds the lock.
    _lock: File,
}

impl DirDisk {
    /// Opens an existing directory and takes its lock.
    ///
    /// # Errors
    /// [`EngineError::Locked`] while another process has it.
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(LOCK_NAME);
        let name = shown(&path);
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(EngineError::io("open", &name))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(EngineError::Locked { dir: shown(dir) });
            }
            Err(error) => return Err(EngineError::io("lock", &name)(error.into())),
        }
        Ok(Self {
            dir: dir.to_owned(),
            open: BTreeMap::new(),
            _lock: lock,
        })
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        if !self.open.contains_key(name) {
            let file = fs::OpenOptions::new()
                .append(true)
                .open(self.dir.join(name))?;
            self.open.insert(name.to_owned(), file);
        }
        self.open
            .get_mut(name)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for DirDisk {
    fn place(&self) -> String {
        shown(&self.dir)
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.dir.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        let path = self.dir.join(name);
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::APPEND;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?;
        self.open.insert(name.to_owned(), file.into());
        Ok(())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn truncate(&mut self, name: &str, len: u64) -> io::Result<()> {
        self.file(name)?.set_len(len)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))?;
        self.open.remove(to);
        if let Some(file) = self.open.remove(from) {
            self.open.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }
}

/// Writes a file that only its owner may read, to the disk. A crash leaves the old one or the new one.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
