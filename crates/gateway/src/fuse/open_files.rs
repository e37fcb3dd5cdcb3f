//! The open files of a mount: which mode each was given, and the backing file of each inode.

use super::device::Device;
use super::open_modes::{Counts, Mode, Wish};
use super::wire::{OpenReply, fopen};
use parking_lot::Mutex;
use perigee_client::fs::{OpenMode, Opened};
use perigee_types::InodeId;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tracing::{debug, warn};

/// All open files of a mount.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    device: Arc<Device>,
    /// Whether the kernel agreed to passthrough.
    passthrough: bool,
    inodes: Mutex<HashMap<InodeId, Inode>>,
}

/// What became of an open.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) reply: OpenReply,
    pub(crate) mode: Mode,
}

/// The open files of one inode.
#[derive(Debug, Default)]
struct Inode {
    counts: Counts,
    /// By handle.
    modes: BTreeMap<u64, Mode>,
    /// Registered while `counts` is backed: each backed open must name the same one.
    backing: Option<Backing>,
}

/// A registered backing file.
#[derive(Debug, Clone, Copy)]
struct Backing {
    /// The kernel's number of it.
    id: u32,
    is: Identity,
}

/// Which file of the local file systems one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    number: u64,
}

impl Identity {
    fn of(file: &OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self {
            device: stat.st_dev,
            number: stat.st_ino,
        })
    }
}

impl OpenFiles {
    pub(crate) fn new(device: Arc<Device>, passthrough: bool) -> Self {
        Self {
            device,
            passthrough,
            inodes: Mutex::default(),
        }
    }

    /// Fits an opened file in beside the others of its inode. Its handle must be new there.
    pub(crate) fn open(&self, inode: InodeId, opened: &Opened) -> Placed {
        let mut inodes = self.inodes.lock();
        let entry = inodes.entry(inode).or_default();
        let wish = wish(&opened.mode);
        let mut mode = entry.counts.plan(wish);
        if mode.is_backed() {
            match entry.backing {
                None => {
                    entry.backing = self.register(inode, &opened.mode);
                    if entry.backing.is_none() {
                        mode = Counts::without_backing(wish);
                    }
                }
                // This node's copy was made anew: who has the old one open reads that one to the end, and nobody else does.
                Some(registered) if is_another(registered, &opened.mode) => mode = Mode::Direct,
                Some(_) => {}
            }
        }
        debug!(%inode, ?wish, ?mode, "open file");
        let before = entry.modes.insert(opened.handle, mode);
        debug_assert!(
            before.is_none(),
            "handle {} of {inode} is open twice",
            opened.handle
        );
        entry.counts.add(mode);
        let backing = entry.backing.filter(|_| mode.is_backed());
        let backing = backing.map_or(0, |registered| registered.id);
        Placed {
            reply: OpenReply {
                handle: opened.handle,
                flags: flags(mode, &opened.mode),
                backing,
            },
            mode,
        }
    }

    /// Whether the kernel's page cache takes what an open file writes, unless each call passes it by.
    pub(crate) fn is_cached(&self, inode: InodeId, handle: u64) -> bool {
        let inodes = self.inodes.lock();
        let mode = inodes
            .get(&inode)
            .and_then(|entry| entry.modes.get(&handle));
        mode == Some(&Mode::Cached)
    }

    /// Forgets an open file.
    pub(crate) fn close(&self, inode: InodeId, handle: u64) {
        let mut inodes = self.inodes.lock();
        let Some(entry) = inodes.get_mut(&inode) else {
            return;
        };
        let Some(mode) = entry.modes.remove(&handle) else {
            return;
        };
        entry.counts.remove(mode);
        if !entry.counts.is_backed()
            && let Some(registered) = entry.backing.take()
            && let Err(error) = self.device.close_backing(registered.id)
        {
            warn!(%inode, %error, "backing file could not be given back");
        }
        if entry.counts.is_empty() {
            inodes.remove(&inode);
        }
    }

    fn register(&self, inode: InodeId, mode: &OpenMode) -> Option<Backing> {
        let file = backing(mode).filter(|_| self.passthrough)?;
        let registered = Identity::of(file).and_then(|is| {
            let id = self.device.open_backing(file.as_fd())?;
            Ok(Backing { id, is })
        });
        registered
            // ELOOP: the local file system is itself stacked (overlayfs); EPERM: not this user's to do.
            .inspect_err(|error| warn!(%inode, %error, "kernel takes no backing file here"))
            .ok()
    }
}

fn wish(mode: &OpenMode) -> Wish {
    match mode {
        OpenMode::Cached { .. } => Wish::Cached,
        OpenMode::WriteOnly => Wish::WriteOnly,
        OpenMode::Direct => Wish::Direct,
        OpenMode::Passthrough(_) => Wish::Passthrough,
        OpenMode::DirectBeside(_) => Wish::Beside,
    }
}

/// Whether an open is to have another file than the registered one.
fn is_another(registered: Backing, mode: &OpenMode) -> bool {
    backing(mode).is_some_and(|file| !Identity::of(file).is_ok_and(|is| is == registered.is))
}

fn backing(mode: &OpenMode) -> Option<&Arc<OwnedFd>> {
    match mode {
        OpenMode::Passthrough(file) | OpenMode::DirectBeside(file) => Some(file),
        OpenMode::Cached { .. } | OpenMode::WriteOnly | OpenMode::Direct => None,
    }
}

/// Flags of the kernel for `mode`. Old pages are kept only where the file system said so.
fn flags(mode: Mode, wished: &OpenMode) -> u32 {
    match mode {
        Mode::Cached if matches!(wished, OpenMode::Cached { keep: true }) => fopen::KEEP_CACHE,
        Mode::Cached => 0,
        Mode::Direct | Mode::WriteOnly => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
        Mode::Passthrough => fopen::PASSTHROUGH,
        Mode::Beside => fopen::PASSTHROUGH | fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
    }
}

/// Flags of an open directory: its listing may be kept, or not.
pub(crate) fn directory_flags(mode: &OpenMode) -> u32 {
    match mode {
        OpenMode::Cached { keep: true } => fopen::CACHE_DIR | fopen::KEEP_CACHE,
        OpenMode::Cached { keep: false } => fopen::CACHE_DIR,
        OpenMode::WriteOnly
        | OpenMode::Direct
        | OpenMode::Passthrough(_)
        | OpenMode::DirectBeside(_) => 0,
    }
}
