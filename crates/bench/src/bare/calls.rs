//! The kernel's calls, each handed on.

use super::KEPT;
use super::attributes::{self, of};
use super::nodes::{Node, Nodes};
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, Request,
    TimeOrNow,
};
use rustix::fs::{AtFlags, CWD, Dir, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::fs::{UTIME_NOW, UTIME_OMIT};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const FIRST: Generation = Generation(0);
/// The kernel reads and writes by itself and syncs by inode: no handle is needed.
const NO_HANDLE: FileHandle = FileHandle(0);

/// What one open directory lists.
type Listing = Arc<Vec<Listed>>;
type Listings = HashMap<u64, Listing>;

#[derive(Debug)]
struct Listed {
    name: OsString,
    number: INodeNo,
    kind: FileType,
}

/// The file system.
#[derive(Debug)]
pub(super) struct Bare {
    nodes: Nodes,
    listings: Mutex<Listings>,
    handles: AtomicU64,
}

/// Sends what a call gave, or why it failed.
macro_rules! answer {
    ($reply:ident, $outcome:expr, $value:pat => $good:expr) => {
        match $outcome {
            Ok($value) => $good,
            Err(error) => $reply.error(error),
        }
    };
}

impl Bare {
    pub fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            nodes: Nodes::new(directory)?,
            listings: Mutex::default(),
            handles: AtomicU64::new(1),
        })
    }

    fn listings(&self) -> MutexGuard<'_, Listings> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, parent: &Node, name: &OsStr, reply: ReplyEntry) {
        match self.nodes.look_up(parent, name) {
            Ok((_, stat)) => {
                reply.entry(&KEPT, &of(&stat, self.nodes.number(stat.st_ino)), FIRST);
            }
            // The kernel keeps that, too.
            Err(error) if i32::from(error) == libc::ENOENT => {
                reply.entry(&KEPT, &attributes::nothing(), FIRST);
            }
            Err(error) => reply.error(error),
        }
    }

    /// Something new below `parent`, which the kernel then knows.
    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
        make: impl FnOnce(&Node) -> rustix::io::Result<()>,
    ) {
        let made = self.nodes.get(parent).and_then(|parent| {
            make(&parent).map_err(io::Error::from)?;
            Ok(parent)
        });
        answer!(reply, made, parent => self.entry(&parent, name, reply));
    }

    /// Something that only works or fails, below `parent`.
    fn change(
        &self,
        parent: INodeNo,
        reply: ReplyEmpty,
        change: impl FnOnce(&Node) -> rustix::io::Result<()>,
    ) {
        let changed = self.nodes.get(parent);
        let changed = changed.and_then(|node| Ok(change(&node).map_err(io::Error::from)?));
        answer!(reply, changed, () => reply.ok());
    }

    fn list(&self, directory: INodeNo) -> Result<Vec<Listed>, Errno> {
        let file = self.nodes.get(directory)?;
        let file = file.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut listing = Vec::new();
        for entry in Dir::new(file).map_err(io::Error::from)? {
            let entry = entry.map_err(io::Error::from)?;
            let kind = match entry.file_type() {
                rustix::fs::FileType::Directory => FileType::Directory,
                rustix::fs::FileType::Symlink => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            listing.push(Listed {
                name: OsString::from_vec(entry.file_name().to_bytes().to_vec()),
                number: self.nodes.number(entry.ino()),
                kind,
            });
        }
        Ok(listing)
    }

    fn set(&self, number: INodeNo, wanted: &Wanted) -> Result<fuser::FileAttr, Errno> {
        let node = self.nodes.get(number)?;
        wanted.apply(&node).map_err(io::Error::from)?;
        Ok(of(&node.stat()?, number))
    }
}

/// What SETATTR asks for.
struct Wanted {
    mode: Option<u32>,
    owner: Option<u32>,
    group: Option<u32>,
    size: Option<u64>,
    accessed: Option<TimeOrNow>,
    modified: Option<TimeOrNow>,
}

impl Wanted {
    fn apply(&self, node: &Node) -> rustix::io::Result<()> {
        let path = node.path();
        if let Some(mode) = self.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode & 0o7777))?;
        }
        if self.owner.is_some() || self.group.is_some() {
            let (owner, group) = (self.owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
            rustix::fs::chownat(&node.fd, "", owner, group, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = self.size {
            let file = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::ftruncate(file, size)?;
        }
        if self.accessed.is_some() || self.modified.is_some() {
            let times = Timestamps {
                last_access: time(self.accessed),
                last_modification: time(self.modified),
            };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
        }
        Ok(())
    }
}

fn time(wanted: Option<TimeOrNow>) -> Timespec {
    let special = |nanos| Timespec {
        tv_sec: 0,
        tv_nsec: nanos,
    };
    match wanted {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: since.subsec_nanos().into(),
            }
        }
    }
}

impl Filesystem for Bare {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_PASSTHROUGH
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS;
        let missing = |missing| io::Error::other(format!("the kernel lacks {missing:?}"));
        config.add_capabilities(wanted).map_err(missing)?;
        let depth = config.set_max_stack_depth(1);
        depth.map_err(|_| io::Error::other("the kernel stacks no file systems"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer!(reply, self.nodes.get(parent), parent => self.entry(&parent, name, reply));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.nodes.forget(number, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let stat = self.nodes.get(number).and_then(|node| node.stat());
        answer!(reply, stat, stat => reply.attr(&KEPT, &of(&stat, number)));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let wanted = Wanted {
            mode,
            owner,
            group,
            size,
            accessed,
            modified,
        };
        answer!(reply, self.set(number, &wanted), attr => reply.attr(&KEPT, &attr));
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let target = self.nodes.get(number).and_then(|node| {
            let target = rustix::fs::readlinkat(&node.fd, "", Vec::new());
            Ok(target.map_err(io::Error::from)?)
        });
        answer!(reply, target, target => reply.data(target.to_bytes()));
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let mode = Mode::from_raw_mode(mode & !umask & 0o7777);
        self.make(parent, name, reply, |parent| {
            rustix::fs::mknodat(&parent.fd, name, kind, mode, device.into())
        });
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = Mode::from_raw_mode(mode & !umask & 0o7777);
        self.make(parent, name, reply, |parent| {
            rustix::fs::mkdirat(&parent.fd, name, mode)
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.change(parent, reply, |parent| {
            rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty())
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.change(parent, reply, |parent| {
            rustix::fs::unlinkat(&parent.fd, name, AtFlags::REMOVEDIR)
        });
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.make(parent, name, reply, |parent| {
            rustix::fs::symlinkat(target, &parent.fd, name)
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let to = match self.nodes.get(new_parent) {
            Ok(to) => to,
            Err(error) => return reply.error(error),
        };
        self.change(parent, reply, |from| {
            rustix::fs::renameat_with(&from.fd, name, &to.fd, new_name, flags)
        });
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match self.nodes.get(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        self.make(parent, name, reply, |parent| {
            rustix::fs::linkat(&node.fd, "", &parent.fd, name, AtFlags::EMPTY_PATH)
        });
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let node = match self.nodes.get(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        if flags.0 & libc::O_TRUNC != 0 {
            let cut = Wanted {
                mode: None,
                owner: None,
                group: None,
                size: Some(0),
                accessed: None,
                modified: None,
            };
            if let Err(error) = self.set(number, &cut) {
                return reply.error(error);
            }
        }
        if node.backing.get().is_none() {
            match reply.open_backing(&node.fd) {
                // Another thread may have been first: one of the two goes again.
                Ok(backing) => drop(node.backing.set(backing)),
                Err(error) => return reply.error(error.into()),
            }
        }
        match node.backing.get() {
            Some(backing) => reply.opened_passthrough(NO_HANDLE, FopenFlags::empty(), backing),
            None => reply.error(Errno::EIO),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.nodes.get(parent).and_then(|parent| {
            let exclusive = if flags & libc::O_EXCL == 0 {
                OFlags::empty()
            } else {
                OFlags::EXCL
            };
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(mode & !umask & 0o7777);
            let made = rustix::fs::openat(&parent.fd, name, flags | exclusive, mode);
            made.map_err(io::Error::from)?;
            self.nodes.look_up(&parent, name)
        });
        let (node, stat) = match made {
            Ok(made) => made,
            Err(error) => return reply.error(error),
        };
        if node.backing.get().is_none() {
            match reply.open_backing(&node.fd) {
                Ok(backing) => drop(node.backing.set(backing)),
                Err(error) => return reply.error(error.into()),
            }
        }
        let attr = of(&stat, self.nodes.number(stat.st_ino));
        let none = FopenFlags::empty();
        match node.backing.get() {
            Some(backing) => {
                reply.created_passthrough(&KEPT, &attr, FIRST, NO_HANDLE, none, backing);
            }
            None => reply.error(Errno::EIO),
        }
    }

    fn fsync(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.nodes.get(number).and_then(|node| {
            let file = node.open(OFlags::RDONLY)?;
            let synced = if data_only {
                file.sync_data()
            } else {
                file.sync_all()
            };
            Ok(synced?)
        });
        answer!(reply, synced, () => reply.ok());
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.list(number), listing => {
            let handle = self.handles.fetch_add(1, Ordering::Relaxed);
            self.listings().insert(handle, Arc::new(listing));
            reply.opened(FileHandle(handle), FopenFlags::empty());
        });
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listing = self.listings().get(&handle.0).cloned();
        let Some(listing) = listing else {
            return reply.error(Errno::EBADF);
        };
        for (index, entry) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(entry.number, index as u64 + 1, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listing = self.listings().get(&handle.0).cloned();
        let (Some(listing), Ok(parent)) = (listing, self.nodes.get(directory)) else {
            return reply.error(Errno::EBADF);
        };
        for (index, entry) in listing.iter().enumerate().skip(offset as usize) {
            let next = index as u64 + 1;
            let (attr, counted) = match entry.name.as_bytes() {
                // The kernel looks neither of these up.
                b"." | b".." => (attributes::nothing(), false),
                _ => match self.nodes.look_up(&parent, &entry.name) {
                    Ok((_, stat)) => (of(&stat, self.nodes.number(stat.st_ino)), true),
                    // It has gone since.
                    Err(_) => continue,
                },
            };
            if reply.add(entry.number, next, &entry.name, &KEPT, &attr, FIRST) {
                if counted {
                    self.nodes.forget(attr.ino, 1);
                }
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings().remove(&handle.0);
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        let all = self.nodes.get(number).and_then(|node| {
            let all = rustix::fs::statvfs(node.path());
            Ok(all.map_err(io::Error::from)?)
        });
        answer!(reply, all, all => reply.statfs(
            all.f_blocks,
            all.f_bfree,
            all.f_bavail,
            all.f_files,
            all.f_ffree,
            u32::try_from(all.f_bsize).unwrap_or(4_096),
            u32::try_from(all.f_namemax).unwrap_or(255),
            u32::try_from(all.f_frsize).unwrap_or(4_096),
        ));
    }
}
