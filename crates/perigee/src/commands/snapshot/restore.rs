//! `perigee snapshot restore`: a directory as it was, by ordinary operations on the mount.
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
    AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    lgetxattr, llistxattr, lremovexattr, lsetxattr, lstat, mknodat, utimensat,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
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
        let source = self.path.join(".snapshots").join(&self.name);
        let what = || {
            let (name, dir) = (&self.name, self.path.display());
            format!("cannot restore snapshot `{name}` of `{dir}`")
        };
        if !source.is_dir() {
            let why = "the directory has no such snapshot";
            return Err(Failure::new(what(), why).hint("`perigee snapshot list DIR` lists them"));
        }
        let target = self.to.as_ref().unwrap_or(&self.path);
        let mut work = Work::default();
        if self.to.is_some() {
            check_empty(target).map_err(|why| Failure::new(what(), why))?;
        } else if !self.no_safety {
            let name = format!("before-restore-{}", super::name_of_now());
            work.done.safety = Some(create(&self.path, name)?.name);
        }
        let restored = work.directory(&source, target);
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

struct Work {
    done: Done,
    progress: Progress,
    /// Where the first name of each file with several has been restored to.
    linked: BTreeMap<u64, PathBuf>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            done: Done::default(),
            progress: Progress::new(),
            linked: BTreeMap::new(),
        }
    }
}

/// What is at a path, if anything.
fn look(path: &Path) -> Result<Option<Stat>, Failed> {
    match lstat(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error).at(path),
    }
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

    /// Makes `target` what the directory `source` is, with all that is below it.
    fn directory(&mut self, source: &Path, target: &Path) -> Result<(), Failed> {
        self.saw();
        let was = lstat(source).at(source)?;
        let before = self.clear_way(target, FileType::Directory)?;
        if before.is_none() {
            fs::create_dir(target).at(target)?;
            self.done.changed += 1;
        }
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(source).at(source)? {
            names.insert(entry.at(source)?.file_name());
        }
        for entry in fs::read_dir(target).at(target)? {
            let name = entry.at(target)?.file_name();
            if !names.contains(&name) {
                self.remove(&target.join(name))?;
            }
        }
        for name in names {
            let (from, to) = (source.join(&name), target.join(&name));
            let was = lstat(&from).at(&from)?;
            match kind(&was) {
                FileType::Directory => self.directory(&from, &to)?,
                FileType::RegularFile => self.file(&from, &was, &to)?,
                FileType::Symlink => self.symlink(&from, &was, &to)?,
                _ => self.special(&from, &was, &to)?,
            }
        }
        attributes(source, &was, target)
    }

    /// Removes what is in the way of something of another kind; gives what is there else.
    fn clear_way(&mut self, target: &Path, wanted: FileType) -> Result<Option<Stat>, Failed> {
        let before = look(target)?;
        match before {
            Some(stat) if kind(&stat) != wanted => {
                self.remove(target)?;
                Ok(None)
            }
            before => Ok(before),
        }
    }

    fn remove(&mut self, path: &Path) -> Result<(), Failed> {
        let Some(stat) = look(path)? else {
            return Ok(());
        };
        if kind(&stat) == FileType::Directory {
            for entry in fs::read_dir(path).at(path)? {
                self.remove(&path.join(entry.at(path)?.file_name()))?;
            }
            fs::remove_dir(path).at(path)?;
        } else {
            fs::remove_file(path).at(path)?;
        }
        self.done.removed += 1;
        Ok(())
    }

    /// Gives `target` the name of a file that has been restored under another one; says whether it has.
    fn link(&mut self, was: &Stat, target: &Path) -> Result<bool, Failed> {
        if was.st_nlink < 2 {
            return Ok(false);
        }
        let Some(first) = self.linked.get(&was.st_ino).cloned() else {
            self.linked.insert(was.st_ino, target.to_path_buf());
            return Ok(false);
        };
        let there = look(target)?;
        let one = lstat(&first).at(&first)?;
        if there.is_some_and(|there| there.st_ino == one.st_ino) {
            return Ok(true);
        }
        self.remove(target)?;
        fs::hard_link(&first, target).at(target)?;
        self.done.changed += 1;
        Ok(true)
    }

    fn file(&mut self, source: &Path, was: &Stat, target: &Path) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let mut before = self.clear_way(target, FileType::RegularFile)?;
        if let Some(is) = &before {
            if same(was, is) {
                return Ok(());
            }
            // Other names of it may be of another file in the snapshot.
            if is.st_nlink > 1 {
                self.remove(target)?;
                before = None;
            }
        }
        self.done.changed += 1;
        self.content(source, target, before.is_none())?;
        attributes(source, was, target)
    }

    fn content(&mut self, source: &Path, target: &Path, new: bool) -> Result<(), Failed> {
        let from = fs::File::open(source).at(source)?;
        let to = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(target)
            .at(target)?;
        let (mut was, mut is) = (vec![0; READ], vec![0; READ]);
        let mut at = 0;
        loop {
            let len = read_full(&from, &mut was, at).at(source)?;
            if len == 0 {
                break;
            }
            let known = match new {
                true => 0,
                false => read_full(&to, &mut is[..len], at).at(target)?,
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

    fn symlink(&mut self, source: &Path, was: &Stat, target: &Path) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let leads = fs::read_link(source).at(source)?;
        let before = self.clear_way(target, FileType::Symlink)?;
        if let Some(is) = &before {
            if same(was, is) {
                return Ok(());
            }
            if fs::read_link(target).at(target)? != leads {
                self.remove(target)?;
            }
        }
        if look(target)?.is_none() {
            std::os::unix::fs::symlink(&leads, target).at(target)?;
        }
        self.done.changed += 1;
        attributes(source, was, target)
    }

    fn special(&mut self, source: &Path, was: &Stat, target: &Path) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let before = self.clear_way(target, kind(was))?;
        if let Some(is) = &before {
            if same(was, is) {
                return Ok(());
            }
            if is.st_rdev != was.st_rdev {
                self.remove(target)?;
            }
        }
        if look(target)?.is_none() {
            let mode = Mode::from_raw_mode(was.st_mode);
            mknodat(CWD, target, kind(was), mode, was.st_rdev).at(target)?;
        }
        self.done.changed += 1;
        attributes(source, was, target)
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
fn attributes(source: &Path, was: &Stat, target: &Path) -> Result<(), Failed> {
    let is = lstat(target).at(target)?;
    let link = kind(was) == FileType::Symlink;
    if (is.st_uid, is.st_gid) != (was.st_uid, was.st_gid) {
        let (uid, gid) = (Uid::from_raw(was.st_uid), Gid::from_raw(was.st_gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(CWD, target, Some(uid), Some(gid), flags).at(target)?;
    }
    if !link {
        let mode = was.st_mode & 0o7777;
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(target, mode).at(target)?;
    }
    xattrs(source, target)?;
    let time = |secs: i64, nanos| Timespec {
        tv_sec: secs,
        tv_nsec: nanos,
    };
    let times = Timestamps {
        last_access: time(was.st_atime, was.st_atime_nsec as _),
        last_modification: time(was.st_mtime, was.st_mtime_nsec as _),
    };
    utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW).at(target)
}

fn xattrs(source: &Path, target: &Path) -> Result<(), Failed> {
    let (was, is) = (names(source).at(source)?, names(target).at(target)?);
    for name in is.difference(&was) {
        lremovexattr(target, name.as_os_str()).at(target)?;
    }
    for name in &was {
        let value = value(source, name).at(source)?;
        if is.contains(name) && self::value(target, name).at(target)? == value {
            continue;
        }
        lsetxattr(target, name.as_os_str(), &value, XattrFlags::empty()).at(target)?;
    }
    Ok(())
}

fn names(path: &Path) -> rustix::io::Result<BTreeSet<OsString>> {
    let mut buf = vec![0; 64 << 10];
    let len = llistxattr(path, &mut buf[..])?;
    let names = buf[..len].split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    Ok(names
        .map(|name| OsString::from_vec(name.to_vec()))
        .collect())
}

fn value(path: &Path, name: &OsString) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 64 << 10];
    let len = lgetxattr(path, name.as_bytes(), &mut buf[..])?;
    buf.truncate(len);
    Ok(buf)
}
