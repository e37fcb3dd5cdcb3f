//! `perigee snapshot restore`: a directory as it was, by ordinary operations on the mount.
//!
//! Whoever restores is often root, and the directory belongs to users who may exchange its entries meanwhile: everything is done
//! below directories that are held open, no link is followed, and what is made anew is its maker's alone until it has the
//! attributes that it had.
//!
//! What has not changed since is left alone: where the times of a file and its length are those of the snapshot, its `ctime`
//! among them, nothing about it has. Of what has, only the blocks that differ are written.

use super::create;
use crate::commands::JsonArg;
use crate::human;
use crate::output::{Progress, Report};
use clap::Args;
use perigee_proto::admin::Failure;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chownat, fchmod, getxattr, linkat, listxattr, mkdirat, mknodat, openat, readlinkat,
    removexattr, setxattr, statat, symlinkat, unlinkat, utimensat,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are compared, and written, at once.
const PIECE: usize = 64 << 10;
/// Bytes that are read at once.
const READ: usize = 1 << 20;

/// Bring a directory back to what it was.
///
/// Makes everything below DIR what it was in the snapshot: content, owners, modes, times, ACLs, extended attributes, links.
/// What is there now and was not then is removed. Before that a snapshot of now is made, unless `--no-safety` is given, so
/// that it can be undone. Files that have not changed are left alone. Programs that use the directory should be stopped.
/// Exit code 1 when something could not be brought back; the rest is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee snapshot restore /mnt/perigee/data before-upgrade
  perigee snapshot restore /mnt/perigee/data before-upgrade --to /mnt/perigee/old
  cp -a /mnt/perigee/data/.snapshots/before-upgrade/file .    one file")]
pub struct Restore {
    /// The directory that the snapshot is of
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// The snapshot
    #[arg(value_name = "NAME")]
    name: String,
    /// Write it to this directory, which is made, or is empty
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Make no snapshot of what is there now
    #[arg(long)]
    no_safety: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Done {
    /// The snapshot of what was there before.
    safety: Option<String>,
    /// Entries that were looked at.
    entries: u64,
    /// Those that were made or changed.
    changed: u64,
    /// Those that were removed.
    removed: u64,
    /// Bytes of content that were written.
    written_bytes: u64,
}

impl Restore {
    pub(super) fn run(self) -> Result<Report, Failure> {
        let what = || {
            let (name, dir) = (&self.name, self.path.display());
            format!("cannot restore snapshot `{name}` of `{dir}`")
        };
        let failed = |error: io::Error| Failure::new(what(), error);
        let root = fs::File::open(&self.path).map_err(failed)?;
        let source = in_fd(&root).join(".snapshots").join(&self.name);
        let Ok(source) = fs::File::open(source) else {
            let why = "the directory has no such snapshot";
            return Err(Failure::new(what(), why).hint("`perigee snapshot list DIR` lists them"));
        };
        let target = self.to.as_ref().unwrap_or(&self.path);
        if self.to.is_some() {
            check_empty(target).map_err(|why| Failure::new(what(), why))?;
            fs::create_dir_all(target).map_err(failed)?;
        }
        let held = match self.to {
            Some(_) => fs::File::open(target).map_err(failed)?,
            None => root,
        };
        let mut work = Work::new(Dir::new(held.into(), target));
        if self.to.is_none() && !self.no_safety {
            let name = format!("before-restore-{}", super::name_of_now());
            work.done.safety = Some(create(&self.path, name)?.name);
        }
        let restored = work.all(&in_fd(&source));
        work.progress.clear();
        if let Err(Failed { at, error }) = restored {
            let failure = Failure::new(format!("{}, at `{}`", what(), at.display()), error);
            return Err(match work.done.safety {
                Some(name) => failure.hint(format!(
                    "run it again to go on, or go back with `perigee snapshot restore {} {name}`",
                    self.path.display()
                )),
                None => failure.hint("run it again to go on"),
            });
        }
        Report::either(self.json.json, &work.done, || text(&work.done))
    }
}

fn text(done: &Done) -> String {
    let entries = human::count(done.entries);
    let mut text = format!(
        "{entries} entries looked at: {} changed, {} removed, {} written\n",
        done.changed,
        done.removed,
        human::size(done.written_bytes)
    );
    if let Some(safety) = &done.safety {
        text.push_str(&format!("what was there before is snapshot {safety}\n"));
    }
    text
}

fn check_empty(target: &Path) -> Result<(), String> {
    match fs::read_dir(target) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(format!("`{}` is not empty", target.display())),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("`{}`: {error}", target.display())),
    }
}

/// Where it ended, and why.
struct Failed {
    at: PathBuf,
    error: io::Error,
}

trait At<T> {
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

/// A directory that is restored, held open.
#[derive(Debug)]
struct Dir {
    fd: OwnedFd,
    /// For messages.
    path: PathBuf,
}

/// An entry of one, or none yet.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    dir: &'a Dir,
    name: &'a OsStr,
}

/// The way to what is open.
fn in_fd(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

impl Dir {
    fn new(fd: OwnedFd, path: &Path) -> Self {
        let path = path.to_path_buf();
        Self { fd, path }
    }

    const fn entry<'a>(&'a self, name: &'a OsStr) -> Entry<'a> {
        Entry { dir: self, name }
    }

    fn names(&self) -> Result<BTreeSet<OsString>, Failed> {
        let entries = fs::read_dir(in_fd(&self.fd)).at(&self.path)?;
        let names = entries.map(|entry| Ok(entry.at(&self.path)?.file_name()));
        names.collect()
    }
}

impl Entry<'_> {
    fn path(&self) -> PathBuf {
        self.dir.path.join(self.name)
    }

    /// Opens what it is now, and no link.
    fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Failed> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.dir.fd, self.name, flags, mode).at(&self.path())
    }

    fn open_dir(&self) -> Result<Dir, Failed> {
        let fd = self.open(OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Dir::new(fd, &self.path()))
    }

    /// What it is, if anything.
    fn look(&self) -> Result<Option<Stat>, Failed> {
        match statat(&self.dir.fd, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error).at(&self.path()),
        }
    }
}

/// A file with several names, once the first has been restored.
#[derive(Debug, Clone)]
struct Linked {
    /// From the directory that is restored on.
    way: Vec<OsString>,
    /// The one that was restored.
    inode: u64,
}

struct Work {
    done: Done,
    progress: Progress,
    target: Dir,
    /// Where this is at present, below that.
    way: Vec<OsString>,
    /// By the number in the snapshot.
    linked: BTreeMap<u64, Linked>,
}

fn gone() -> io::Error {
    let why = "it was exchanged while it was restored; stop the programs that use the directory";
    io::Error::other(why)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether nothing about it has changed since.
fn same(was: &Stat, is: &Stat) -> bool {
    (was.st_mode, was.st_size, was.st_nlink) == (is.st_mode, is.st_size, is.st_nlink)
        && (was.st_mtime, was.st_mtime_nsec) == (is.st_mtime, is.st_mtime_nsec)
        && (was.st_ctime, was.st_ctime_nsec) == (is.st_ctime, is.st_ctime_nsec)
}

impl Work {
    fn new(target: Dir) -> Self {
        Self {
            done: Done::default(),
            progress: Progress::new(),
            target,
            way: Vec::new(),
            linked: BTreeMap::new(),
        }
    }

    fn saw(&mut self) {
        self.done.entries += 1;
        let done = &self.done;
        self.progress.show(|| {
            let bytes = human::size(done.written_bytes);
            format!(
                "{} entries, {} changed, {bytes} written",
                done.entries, done.changed
            )
        });
    }

    /// Makes the target what the directory `source` is.
    fn all(&mut self, source: &Path) -> Result<(), Failed> {
        let fd = self.target.fd.try_clone().at(&self.target.path)?;
        let target = Dir::new(fd, &self.target.path.clone());
        self.directory(source, &target)
    }

    /// Makes `target` what the directory `source` is, with all that is below it.
    fn directory(&mut self, source: &Path, target: &Dir) -> Result<(), Failed> {
        self.saw();
        let was = fs::File::open(source).at(source)?;
        let was = rustix::fs::fstat(&was).at(source)?;
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(source).at(source)? {
            names.insert(entry.at(source)?.file_name());
        }
        for name in target.names()?.difference(&names) {
            self.remove(target.entry(name))?;
        }
        for name in &names {
            let (from, to) = (source.join(name), target.entry(name));
            let was = statat(CWD, &from, AtFlags::SYMLINK_NOFOLLOW).at(&from)?;
            self.way.push(name.clone());
            match kind(&was) {
                FileType::Directory => self.below(&from, to)?,
                FileType::RegularFile => self.file(&from, &was, to)?,
                FileType::Symlink => self.symlink(&from, &was, to)?,
                _ => self.special(&from, &was, to)?,
            }
            self.way.pop();
        }
        attributes(source, &was, &target.fd, &target.path)
    }

    fn below(&mut self, source: &Path, target: Entry<'_>) -> Result<(), Failed> {
        if self.clear_way(target, FileType::Directory)?.is_none() {
            mkdirat(&target.dir.fd, target.name, Mode::RWXU).at(&target.path())?;
            self.done.changed += 1;
        }
        self.directory(source, &target.open_dir()?)
    }

    /// Removes what is in the way of something of another kind; gives what is there else.
    fn clear_way(&mut self, target: Entry<'_>, wanted: FileType) -> Result<Option<Stat>, Failed> {
        let before = target.look()?;
        match before {
            Some(stat) if kind(&stat) != wanted => {
                self.remove(target)?;
                Ok(None)
            }
            before => Ok(before),
        }
    }

    fn remove(&mut self, entry: Entry<'_>) -> Result<(), Failed> {
        let Some(stat) = entry.look()? else {
            return Ok(());
        };
        let mut flags = AtFlags::empty();
        if kind(&stat) == FileType::Directory {
            let dir = entry.open_dir()?;
            for name in dir.names()? {
                self.remove(dir.entry(&name))?;
            }
            flags = AtFlags::REMOVEDIR;
        }
        unlinkat(&entry.dir.fd, entry.name, flags).at(&entry.path())?;
        self.done.removed += 1;
        Ok(())
    }

    /// Gives `target` the name of a file that has been restored under another one; says whether it has.
    fn link(&mut self, was: &Stat, target: Entry<'_>) -> Result<bool, Failed> {
        if was.st_nlink < 2 {
            return Ok(false);
        }
        let Some(linked) = self.linked.get(&was.st_ino).cloned() else {
            return Ok(false);
        };
        let there = target.look()?;
        if there.is_some_and(|there| there.st_ino == linked.inode) {
            return Ok(true);
        }
        let first = self.open_again(&linked)?;
        self.remove(target)?;
        let (dir, name) = (&target.dir.fd, target.name);
        linkat(CWD, in_fd(&first), dir, name, AtFlags::SYMLINK_FOLLOW).at(&target.path())?;
        self.done.changed += 1;
        Ok(true)
    }

    /// The file that was restored there, and no other one.
    fn open_again(&self, linked: &Linked) -> Result<OwnedFd, Failed> {
        let path: PathBuf = linked.way.iter().collect();
        let path = self.target.path.join(path);
        let mut at = self.target.fd.try_clone().at(&path)?;
        for name in &linked.way {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = openat(&at, name, flags, Mode::empty()).at(&path)?;
        }
        let stat = rustix::fs::fstat(&at).at(&path)?;
        match stat.st_ino == linked.inode {
            true => Ok(at),
            false => Err(gone()).at(&path),
        }
    }

    /// What was restored may have other names, that come later.
    fn note_link(&mut self, was: &Stat, restored: &OwnedFd, path: &Path) -> Result<(), Failed> {
        if was.st_nlink > 1 {
            let inode = rustix::fs::fstat(restored).at(path)?.st_ino;
            let way = self.way.clone();
            self.linked.insert(was.st_ino, Linked { way, inode });
        }
        Ok(())
    }

    fn file(&mut self, source: &Path, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let path = target.path();
        let mut before = self.clear_way(target, FileType::RegularFile)?;
        if let Some(is) = &before {
            if same(was, is) {
                let fd = target.open(OFlags::PATH, Mode::empty())?;
                return self.note_link(was, &fd, &path);
            }
            // Other names of it may be of another file in the snapshot.
            if is.st_nlink > 1 {
                self.remove(target)?;
                before = None;
            }
        }
        self.done.changed += 1;
        let owner = Mode::RUSR | Mode::WUSR;
        let fd = match &before {
            None => target.open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, owner)?,
            Some(is) => {
                // A device or a pipe that has come there would do something, or wait.
                let flags = OFlags::RDWR | OFlags::NONBLOCK;
                let fd = target.open(flags, Mode::empty())?;
                let now = rustix::fs::fstat(&fd).at(&path)?;
                if kind(&now) != FileType::RegularFile || now.st_ino != is.st_ino {
                    return Err(gone()).at(&path);
                }
                let of = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
                if of(was) != of(&now) {
                    fchmod(&fd, owner).at(&path)?;
                }
                fd
            }
        };
        let to = fs::File::from(fd);
        self.content(source, &to, &path, before.is_none())?;
        let fd = OwnedFd::from(to);
        attributes(source, was, &fd, &path)?;
        self.note_link(was, &fd, &path)
    }

    fn content(
        &mut self,
        source: &Path,
        to: &fs::File,
        target: &Path,
        new: bool,
    ) -> Result<(), Failed> {
        let from = fs::File::open(source).at(source)?;
        let (mut was, mut is) = (vec![0; READ], vec![0; READ]);
        let mut at = 0;
        loop {
            let len = read_full(&from, &mut was, at).at(source)?;
            if len == 0 {
                break;
            }
            let known = match new {
                true => 0,
                false => read_full(to, &mut is[..len], at).at(target)?,
            };
            // Behind its end a file reads as zeros.
            is[known..len].fill(0);
            for start in (0..len).step_by(PIECE) {
                let end = (start + PIECE).min(len);
                if was[start..end] != is[start..end] {
                    let offset = at + start as u64;
                    to.write_all_at(&was[start..end], offset).at(target)?;
                    self.done.written_bytes += (end - start) as u64;
                }
            }
            at += len as u64;
        }
        if to.metadata().at(target)?.len() != at {
            to.set_len(at).at(target)?;
        }
        Ok(())
    }

    fn symlink(&mut self, source: &Path, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let (path, dir) = (target.path(), &target.dir.fd);
        let leads = fs::read_link(source).at(source)?;
        let before = self.clear_way(target, FileType::Symlink)?;
        if let Some(is) = &before {
            let there = readlinkat(dir, target.name, Vec::new()).at(&path)?;
            let right = there.as_bytes() == leads.as_os_str().as_bytes();
            if same(was, is) && right {
                let fd = target.open(OFlags::PATH, Mode::empty())?;
                return self.note_link(was, &fd, &path);
            }
            if !right {
                self.remove(target)?;
            }
        }
        if target.look()?.is_none() {
            symlinkat(&leads, dir, target.name).at(&path)?;
        }
        self.finish(source, was, target)
    }

    fn special(&mut self, source: &Path, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let (path, dir) = (target.path(), &target.dir.fd);
        let before = self.clear_way(target, kind(was))?;
        if let Some(is) = &before {
            if same(was, is) {
                let fd = target.open(OFlags::PATH, Mode::empty())?;
                return self.note_link(was, &fd, &path);
            }
            if is.st_rdev != was.st_rdev {
                self.remove(target)?;
            }
        }
        if target.look()?.is_none() {
            let owner = Mode::RUSR | Mode::WUSR;
            mknodat(dir, target.name, kind(was), owner, was.st_rdev).at(&path)?;
        }
        self.finish(source, was, target)
    }

    /// The attributes of what is no file and no directory.
    fn finish(&mut self, source: &Path, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        let path = target.path();
        let fd = target.open(OFlags::PATH, Mode::empty())?;
        let now = rustix::fs::fstat(&fd).at(&path)?;
        if kind(&now) != kind(was) {
            return Err(gone()).at(&path);
        }
        self.done.changed += 1;
        attributes(source, was, &fd, &path)?;
        self.note_link(was, &fd, &path)
    }
}

fn read_full(file: &fs::File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Owner, mode, extended attributes with ACLs, and times, in the order in which none undoes another.
fn attributes(source: &Path, was: &Stat, target: &OwnedFd, path: &Path) -> Result<(), Failed> {
    let is = rustix::fs::fstat(target).at(path)?;
    let link = kind(was) == FileType::Symlink;
    let there = in_fd(target);
    if (is.st_uid, is.st_gid) != (was.st_uid, was.st_gid) {
        let (uid, gid) = (Uid::from_raw(was.st_uid), Gid::from_raw(was.st_gid));
        chownat(target, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).at(path)?;
    }
    if !link {
        let mode = Mode::from_raw_mode(was.st_mode & 0o7777);
        // Also of what was opened for nothing but its place.
        rustix::fs::chmod(&there, mode).at(path)?;
    }
    xattrs(source, &there, path)?;
    let time = |secs: i64, nanos| Timespec {
        tv_sec: secs,
        tv_nsec: nanos,
    };
    let times = Timestamps {
        last_access: time(was.st_atime, was.st_atime_nsec as _),
        last_modification: time(was.st_mtime, was.st_mtime_nsec as _),
    };
    utimensat(CWD, &there, &times, AtFlags::empty()).at(path)
}

/// `there`: the way to what is open, which leads to that and no further.
fn xattrs(source: &Path, there: &Path, path: &Path) -> Result<(), Failed> {
    let (was, is) = (source_names(source).at(source)?, names(there).at(path)?);
    for name in is.difference(&was) {
        removexattr(there, name.as_os_str()).at(path)?;
    }
    for name in &was {
        let value = source_value(source, name).at(source)?;
        if is.contains(name) && self::value(there, name).at(path)? == value {
            continue;
        }
        setxattr(there, name.as_os_str(), &value, XattrFlags::empty()).at(path)?;
    }
    Ok(())
}

fn names_in(buf: &[u8]) -> BTreeSet<OsString> {
    let names = buf.split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    names
        .map(|name| OsString::from_vec(name.to_vec()))
        .collect()
}

fn names(path: &Path) -> rustix::io::Result<BTreeSet<OsString>> {
    let mut buf = vec![0; 64 << 10];
    let len = listxattr(path, &mut buf[..])?;
    Ok(names_in(&buf[..len]))
}

fn value(path: &Path, name: &OsString) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 64 << 10];
    let len = getxattr(path, name.as_bytes(), &mut buf[..])?;
    buf.truncate(len);
    Ok(buf)
}

/// Of an entry of the snapshot, which may be a link.
fn source_names(path: &Path) -> rustix::io::Result<BTreeSet<OsString>> {
    let mut buf = vec![0; 64 << 10];
    let len = match is_in_fd(path) {
        true => listxattr(path, &mut buf[..])?,
        false => rustix::fs::llistxattr(path, &mut buf[..])?,
    };
    Ok(names_in(&buf[..len]))
}

fn source_value(path: &Path, name: &OsString) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 64 << 10];
    let len = match is_in_fd(path) {
        true => getxattr(path, name.as_bytes(), &mut buf[..])?,
        false => rustix::fs::lgetxattr(path, name.as_bytes(), &mut buf[..])?,
    };
    buf.truncate(len);
    Ok(buf)
}

/// Whether a path is that of something open itself, and not of an entry below it.
fn is_in_fd(path: &Path) -> bool {
    path.parent() == Some(Path::new("/proc/self/fd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn restore(source: &Path, target: &Path) -> Result<Done, Failed> {
        let held = fs::File::open(target).at(target)?;
        let mut work = Work::new(Dir::new(held.into(), target));
        work.all(source)?;
        Ok(work.done)
    }

    #[test]
    fn a_tree_comes_back_with_links_modes_and_kinds() {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, target) = (dir.path().join("was"), dir.path().join("is"));
        fs::create_dir_all(source.join("sub/deep")).expect("made");
        fs::write(source.join("sub/deep/file"), "as it was").expect("written");
        fs::write(source.join("private"), "secret").expect("written");
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(source.join("private"), mode).expect("set");
        fs::hard_link(source.join("sub/deep/file"), source.join("second")).expect("linked");
        symlink("sub/deep", source.join("short")).expect("linked");
        // Things of other kinds are in the way.
        fs::create_dir_all(target.join("private/more")).expect("made");
        fs::write(target.join("sub"), "a file").expect("written");
        fs::write(target.join("extra"), "new").expect("written");
        symlink("nowhere", target.join("short")).expect("linked");
        let done = restore(&source, &target).ok().expect("restored");
        assert_eq!((done.entries, done.changed), (7, 6));
        assert!(!target.join("extra").exists());
        let read = |path: &str| fs::read_to_string(target.join(path)).expect("there");
        assert_eq!(read("short/file"), "as it was");
        assert_eq!(read("private"), "secret");
        let meta = |path: &str| fs::metadata(target.join(path)).expect("there");
        assert_eq!(meta("private").mode() & 0o7777, 0o640);
        assert_eq!(meta("second").ino(), meta("sub/deep/file").ino());
    }

    #[test]
    fn what_was_exchanged_for_a_link_after_a_look_is_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let [target, outside] = ["is", "outside"].map(|name| dir.path().join(name));
        fs::create_dir_all(&target).expect("made");
        fs::create_dir_all(outside.join("sub")).expect("made");
        fs::write(outside.join("sub/file"), "untouched").expect("written");
        symlink(outside.join("sub"), target.join("sub")).expect("linked");
        symlink(outside.join("sub/file"), target.join("file")).expect("linked");
        let held = fs::File::open(&target).expect("opened");
        let work = Work::new(Dir::new(held.into(), &target));
        let entry = |name| work.target.entry(OsStr::new(name));
        assert!(entry("sub").open_dir().is_err());
        for flags in [OFlags::RDWR, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL] {
            assert!(entry("file").open(flags, Mode::RUSR).is_err());
        }
        // Another name of a file that was restored is looked for in the same way, and known by its number.
        let inode = fs::metadata(outside.join("sub/file")).expect("there").ino();
        let way = ["sub", "file"].map(OsString::from).to_vec();
        let through_a_link = Linked { way, inode };
        assert!(work.open_again(&through_a_link).is_err());
        let way = vec![OsString::from("file")];
        assert!(work.open_again(&Linked { way, inode }).is_err());
    }
}
