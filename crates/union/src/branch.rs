//! A branch: one directory of this host, and what may be done in it.
//!
//! Every path is resolved below the branch's root by the kernel itself (`openat2` with `RESOLVE_BENEATH`), and no symbolic
//! link is followed on the way: the hosts that ask follow links themselves, in the union. Everything is done with the rights
//! of this process, which are those of the user who logged in.

use crate::lease::{self, Identity};
use crate::path::{RelPath, is_name};
use crate::wire::{BranchId, Done, Found, How, Op, Parent, Query, Space, Stat};
use perigee_client::fs::{Kind, NewNode, RenameMode, SetAttr};
use perigee_meta::SetTime;
use perigee_types::{Errno, WallTime};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The id that stands for the user, or the group, with whose rights a member works: whoever mounts shows its own in its
/// place. No system gives it to anybody.
pub const OWN: u32 = u32::MAX - 1;
/// Entries of one answer at most.
pub const PAGE_LEN_MAX: u32 = 8_192;
/// The longest value of an extended attribute that Linux has, bytes.
const XATTR_LEN_MAX: usize = 64 << 10;

/// One directory of this host.
#[derive(Debug)]
pub struct Branch {
    /// Its number.
    pub id: BranchId,
    root: OwnedFd,
    owner: Owner,
}

/// With whose rights this process works.
#[derive(Debug, Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_code(error.raw_os_error())
}

/// The error of a call on a file.
#[must_use]
pub fn from_io(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_code)
}

/// Opens what is there, and does not wait for what is no file; only for the end of a lease, which files alone have.
fn open_patiently(at: &Place<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let open = |flags| rustix::fs::openat(&at.directory, at.name, flags, Mode::empty());
    let opened = match open(flags) {
        Err(rustix::io::Errno::AGAIN) => open(flags - OFlags::NONBLOCK),
        opened => opened,
    };
    opened.map_err(errno)
}

/// An open parent directory, and a name in it.
struct Place<'a> {
    directory: OwnedFd,
    name: &'a Path,
}

impl Place<'_> {
    /// For calls that take no directory.
    fn by_proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(self.name)
    }
}

impl Branch {
    /// Opens a directory as a branch; `~/` begins at the user's home, where this process started.
    ///
    /// # Errors
    /// There is none, or it may not be entered.
    pub fn open(id: BranchId, directory: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, directory, flags, Mode::empty())?;
        let allowed = rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK;
        rustix::fs::accessat(CWD, directory, allowed, AtFlags::EACCESS)?;
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        Ok(Self { id, root, owner })
    }

    /// Performs one operation but [`Op::Open`], for which see [`Branch::open_file`].
    ///
    /// # Errors
    /// What the system says.
    pub fn perform(&self, path: &RelPath, op: &Op) -> Result<(Done, Vec<u8>), Errno> {
        match op {
            Op::Stat => return Ok((Done::Stat(self.stat(path)?), Vec::new())),
            Op::Open { .. } | Op::ReadAhead { .. } => return Err(Errno::EINVAL),
            Op::Make {
                node,
                mode,
                parents,
            } => {
                self.make_parents(parents)?;
                return Ok((Done::Stat(self.make(path, node, *mode)?), Vec::new()));
            }
            Op::Unlink => {
                let at = self.place(path)?;
                rustix::fs::unlinkat(&at.directory, at.name, AtFlags::empty()).map_err(errno)?;
            }
            Op::Rmdir => {
                let at = self.place(path)?;
                rustix::fs::unlinkat(&at.directory, at.name, AtFlags::REMOVEDIR).map_err(errno)?;
            }
            Op::Rename { to, mode, parents } => {
                self.make_parents(parents)?;
                self.rename(path, to, *mode)?;
            }
            Op::Link { to, parents } => {
                self.make_parents(parents)?;
                let (from, to_place) = (self.place(path)?, self.place(to)?);
                let flags = AtFlags::empty();
                rustix::fs::linkat(
                    &from.directory,
                    from.name,
                    &to_place.directory,
                    to_place.name,
                    flags,
                )
                .map_err(errno)?;
                return Ok((Done::Stat(self.stat(to)?), Vec::new()));
            }
            Op::ReadLink => {
                let at = self.place(path)?;
                let target = rustix::fs::readlinkat(&at.directory, at.name, Vec::new());
                return Ok((Done::Bytes, target.map_err(errno)?.into_bytes()));
            }
            Op::SetAttr { set, expected } => {
                let stat = self.stat(path)?;
                is_expected(&stat, *expected)?;
                return Ok((Done::Stat(self.set_attr(path, set)?), Vec::new()));
            }
            Op::GetXattr(name) => return Ok((Done::Bytes, self.xattr(path, name)?)),
            Op::ListXattr => return Ok((Done::Bytes, self.xattrs(path)?)),
            Op::SetXattr { name, value, flags } => {
                let flags = XattrFlags::from_bits(*flags).ok_or(Errno::EINVAL)?;
                let at = self.place(path)?;
                rustix::fs::lsetxattr(at.by_proc(), &name[..], value, flags).map_err(errno)?;
            }
            Op::RemoveXattr(name) => {
                let at = self.place(path)?;
                rustix::fs::lremovexattr(at.by_proc(), &name[..]).map_err(errno)?;
            }
            Op::Space => return Ok((Done::Space(self.space()?), Vec::new())),
            Op::SyncDir => {
                let directory = self.directory(path, OFlags::RDONLY)?;
                rustix::fs::fsync(directory).map_err(errno)?;
            }
        }
        Ok((Done::Nothing, Vec::new()))
    }

    /// Opens a file, and says whether this made it.
    ///
    /// # Errors
    /// What the system says; EISDIR and the like of what is no regular file.
    pub fn open_file(
        &self,
        path: &RelPath,
        how: How,
        parents: &[Parent],
    ) -> Result<(File, Stat, bool), Errno> {
        let flags = match (how.read, how.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            (_, false) => OFlags::RDONLY,
        };
        // What is no file is not waited for.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Some(mode) = how.create else {
            let at = self.place(path)?;
            return self.opened(open_patiently(&at, flags)?, how, false);
        };
        self.make_parents(parents)?;
        let at = self.place(path)?;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let made = flags | OFlags::CREATE | OFlags::EXCL;
        let (file, made) = match rustix::fs::openat(&at.directory, at.name, made, mode) {
            Err(rustix::io::Errno::EXIST) if !how.exclusive => (open_patiently(&at, flags)?, false),
            file => (file.map_err(errno)?, true),
        };
        self.opened(file, how, made)
    }

    /// Empties a file where that is wanted, once it is known to be the right one.
    fn opened(&self, file: OwnedFd, how: How, made: bool) -> Result<(File, Stat, bool), Errno> {
        let mut stat = self.of_file(&file)?;
        is_expected(&stat, how.expected)?;
        if how.truncate && how.write && !made {
            rustix::fs::ftruncate(&file, 0).map_err(errno)?;
            stat = self.of_file(&file)?;
        }
        Ok((file.into(), stat, made))
    }

    /// Opens files of a directory for reading, of which `wanted` says what they have to be: those that are so, if leases
    /// on them keep all writers out.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn open_files<'a>(
        &'a self,
        path: &RelPath,
        wanted: &'a [(Vec<u8>, Identity)],
    ) -> Result<impl Iterator<Item = Option<(File, Stat)>> + 'a, Errno> {
        let directory = self.directory(path, OFlags::PATH)?;
        let of_use = lease::are_of_use(&directory);
        Ok(wanted.iter().map(move |(name, identity)| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let name = (of_use && is_name(name)).then_some(name)?;
            let file = rustix::fs::openat(&directory, name, flags, Mode::empty());
            let file = file.ok()?;
            let stat = self.of_file(&file).ok()?;
            let is = is_expected(&stat, Some(*identity)).is_ok();
            is.then(|| (file.into(), stat))
        }))
    }

    /// Attributes of an open file.
    ///
    /// # Errors
    /// What the system says; EISDIR where it is none.
    pub fn of_file(&self, file: impl AsFd) -> Result<Stat, Errno> {
        let stat = self.told(&rustix::fs::fstat(file).map_err(errno)?);
        match stat.kind {
            Kind::File => Ok(stat),
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::ENXIO),
        }
    }

    /// Looks for something in a directory.
    #[must_use]
    pub fn look(&self, path: &RelPath, query: &Query) -> Found {
        let flags = match query {
            Query::Names(_) => OFlags::PATH,
            Query::List { .. } => OFlags::RDONLY,
        };
        let directory = match self.directory(path, flags) {
            Ok(directory) => directory,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Found::NoDirectory,
            Err(errno) => return Found::Failed(errno),
        };
        match query {
            Query::Names(names) => {
                let mut found = Vec::with_capacity(names.len());
                for name in names {
                    found.push(match self.stat_in(&directory, name) {
                        _ if !is_name(name) => Ok(None),
                        Err(Errno::ENOENT) => Ok(None),
                        stat => stat.map(Some),
                    });
                }
                Found::Names(found)
            }
            Query::List { after, limit } => {
                let limit = (*limit).clamp(1, PAGE_LEN_MAX) as usize;
                let listed = self.list(&directory, after.as_deref(), limit);
                listed.unwrap_or_else(Found::Failed)
            }
        }
    }

    fn list(
        &self,
        directory: &OwnedFd,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Found, Errno> {
        let mut names: Vec<(Vec<u8>, Kind, u64)> = Vec::new();
        for entry in Dir::read_from(directory).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && after.is_none_or(|after| name > after) {
                names.push((name.to_vec(), of_entry(entry.file_type()), entry.ino()));
            }
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let more = names.len() > limit;
        names.truncate(limit);
        let mut entries = Vec::with_capacity(names.len());
        for (name, kind, inode) in names {
            match self.stat_in(directory, &name) {
                Ok(stat) => entries.push((name, stat)),
                // Removed meanwhile.
                Err(Errno::ENOENT) => {}
                // Another file system that does not answer, mostly: it has a name, and nobody may do anything with it.
                Err(_) => entries.push((name, unknown(kind, inode))),
            }
        }
        Ok(Found::List { entries, more })
    }

    fn stat_in(&self, directory: &OwnedFd, name: &[u8]) -> Result<Stat, Errno> {
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(self.told(&stat.map_err(errno)?))
    }

    /// Attributes of a name.
    ///
    /// # Errors
    /// What the system says.
    pub fn stat(&self, path: &RelPath) -> Result<Stat, Errno> {
        let Some((above, name)) = path.split() else {
            return Ok(self.told(&rustix::fs::fstat(&self.root).map_err(errno)?));
        };
        let directory = self.directory(&above, OFlags::PATH)?;
        self.stat_in(&directory, name)
    }

    fn directory(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let ways = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let open = || rustix::fs::openat2(&self.root, path.as_path(), flags, Mode::empty(), ways);
        // Something that was renamed meanwhile makes the kernel unsure; it says so at once.
        let opened = match open() {
            Err(rustix::io::Errno::AGAIN) => open(),
            opened => opened,
        };
        opened.map_err(errno)
    }

    fn place<'a>(&self, path: &'a RelPath) -> Result<Place<'a>, Errno> {
        let (above, _) = path.split().ok_or(Errno::EBUSY)?;
        let name = path.as_path().file_name().ok_or(Errno::EINVAL)?;
        Ok(Place {
            directory: self.directory(&above, OFlags::PATH)?,
            name: Path::new(name),
        })
    }

    /// Makes those directories that are not there.
    fn make_parents(&self, parents: &[Parent]) -> Result<(), Errno> {
        for parent in parents.iter().filter(|parent| !parent.path.is_root()) {
            let at = self.place(&parent.path)?;
            let mode = Mode::from_raw_mode(parent.mode & 0o7777);
            match rustix::fs::mkdirat(&at.directory, at.name, mode) {
                Ok(()) => {}
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    }

    fn make(&self, path: &RelPath, node: &NewNode, mode: u32) -> Result<Stat, Errno> {
        let at = self.place(path)?;
        let bits = Mode::from_raw_mode(mode & 0o7777);
        let node_of = |kind, device: u32| {
            rustix::fs::mknodat(&at.directory, at.name, kind, bits, u64::from(device))
        };
        match node {
            NewNode::Directory => rustix::fs::mkdirat(&at.directory, at.name, bits),
            NewNode::Symlink(target) => rustix::fs::symlinkat(&target[..], &at.directory, at.name),
            NewNode::File => node_of(FileType::RegularFile, 0),
            NewNode::Fifo => node_of(FileType::Fifo, 0),
            NewNode::Socket => node_of(FileType::Socket, 0),
            NewNode::CharDevice(device) => node_of(FileType::CharacterDevice, *device),
            NewNode::BlockDevice(device) => node_of(FileType::BlockDevice, *device),
        }
        .map_err(errno)?;
        self.stat(path)
    }

    fn rename(&self, from: &RelPath, to: &RelPath, mode: RenameMode) -> Result<(), Errno> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&from.directory, from.name, &to.directory, to.name, flags)
            .map_err(errno)
    }

    fn set_attr(&self, path: &RelPath, set: &SetAttr) -> Result<Stat, Errno> {
        if let Some(size) = set.size {
            let how = How {
                write: true,
                ..How::default()
            };
            let (file, ..) = self.open_file(path, how, &[])?;
            file.set_len(size).map_err(|error| from_io(&error))?;
        }
        let Some((above, _)) = path.split() else {
            return Err(Errno::EPERM);
        };
        let directory = self.directory(&above, OFlags::PATH)?;
        let name = path.as_path().file_name().unwrap_or_default();
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = self.owners(set);
            rustix::fs::chownat(&directory, name, uid, gid, no_follow).map_err(errno)?;
        }
        if let Some(mode) = set.mode {
            if self.stat(path)?.kind == Kind::Symlink {
                return Err(Errno::EOPNOTSUPP);
            }
            let mode = Mode::from_raw_mode(mode & 0o7777);
            rustix::fs::chmodat(&directory, name, mode, AtFlags::empty()).map_err(errno)?;
        }
        if let Some(times) = times(set) {
            rustix::fs::utimensat(&directory, name, &times, no_follow).map_err(errno)?;
        }
        self.stat(path)
    }

    /// The same of an open file.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_attr_of(&self, file: &File, set: &SetAttr) -> Result<Stat, Errno> {
        if let Some(size) = set.size {
            file.set_len(size).map_err(|error| from_io(&error))?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = self.owners(set);
            rustix::fs::fchown(file, uid, gid).map_err(errno)?;
        }
        if let Some(mode) = set.mode {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)?;
        }
        if let Some(times) = times(set) {
            rustix::fs::futimens(file, &times).map_err(errno)?;
        }
        self.of_file(file)
    }

    fn owners(&self, set: &SetAttr) -> (Option<Uid>, Option<Gid>) {
        let own = |id: u32, own: u32| if id == OWN { own } else { id };
        let uid = set.uid.map(|uid| Uid::from_raw(own(uid, self.owner.uid)));
        let gid = set.gid.map(|gid| Gid::from_raw(own(gid, self.owner.gid)));
        (uid, gid)
    }

    fn xattr(&self, path: &RelPath, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; XATTR_LEN_MAX];
        let len = match path.is_root() {
            true => rustix::fs::getxattr(self.root_by_proc(), name, &mut value[..]),
            false => rustix::fs::lgetxattr(self.place(path)?.by_proc(), name, &mut value[..]),
        };
        value.truncate(len.map_err(errno)?);
        Ok(value)
    }

    fn xattrs(&self, path: &RelPath) -> Result<Vec<u8>, Errno> {
        let mut names = vec![0; XATTR_LEN_MAX];
        let len = match path.is_root() {
            true => rustix::fs::listxattr(self.root_by_proc(), &mut names[..]),
            false => rustix::fs::llistxattr(self.place(path)?.by_proc(), &mut names[..]),
        };
        names.truncate(len.map_err(errno)?);
        Ok(names)
    }

    fn root_by_proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()))
    }

    fn space(&self) -> Result<Space, Errno> {
        let told = rustix::fs::fstatvfs(&self.root).map_err(errno)?;
        let device = rustix::fs::fstat(&self.root).map_err(errno)?.st_dev;
        Ok(Space {
            device,
            total: told.f_blocks.saturating_mul(told.f_frsize),
            free: told.f_bfree.saturating_mul(told.f_frsize),
            available: told.f_bavail.saturating_mul(told.f_frsize),
            inodes: told.f_files,
            inodes_free: told.f_ffree,
        })
    }

    fn told(&self, stat: &rustix::fs::Stat) -> Stat {
        let time = |secs: i64, nanos: u64| WallTime {
            secs,
            nanos: nanos.min(999_999_999) as u32,
        };
        let shown = |id: u32, own: u32| if id == own { OWN } else { id };
        Stat {
            device: stat.st_dev,
            inode: stat.st_ino,
            kind: kind(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: shown(stat.st_uid, self.owner.uid),
            gid: shown(stat.st_gid, self.owner.gid),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            rdev: u32::try_from(stat.st_rdev).unwrap_or(0),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

fn is_expected(stat: &Stat, expected: Option<(u64, u64)>) -> Result<(), Errno> {
    let right = expected.is_none_or(|expected| expected == (stat.device, stat.inode));
    if right { Ok(()) } else { Err(Errno::ESTALE) }
}

/// What is told of an entry that cannot be looked at.
fn unknown(kind: Kind, inode: u64) -> Stat {
    let time = WallTime { secs: 0, nanos: 0 };
    Stat {
        device: 0,
        inode,
        kind,
        mode: 0,
        nlink: 1,
        uid: OWN,
        gid: OWN,
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn kind(mode: u32) -> Kind {
    of_entry(FileType::from_raw_mode(mode))
}

fn of_entry(kind: FileType) -> Kind {
    match kind {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    }
}

fn times(set: &SetAttr) -> Option<Timestamps> {
    let time = |time: Option<SetTime>| match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        Some(SetTime::At(at)) => Timespec {
            tv_sec: at.secs,
            tv_nsec: i64::from(at.nanos),
        },
    };
    (set.atime.is_some() || set.mtime.is_some()).then(|| Timestamps {
        last_access: time(set.atime),
        last_modification: time(set.mtime),
    })
}

/// The directory that a command line names on this host: `~` and relative paths begin at the home of the user.
#[must_use]
pub fn named(bytes: &[u8]) -> PathBuf {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
    match path.strip_prefix("~") {
        Ok(below) => home.join(below),
        Err(_) => home.join(path),
    }
}
