//! Where everything is at each stage, and how the next run of the command tells which stage it is.
//!
//! The command is often root's, and the directories above belong to users: they are held open, and everything is named from there.

use super::mirror::{At, Dir, Entry, Failed, MARK, in_fd};
use super::{OFF, TRASH, admin};
use crate::admin_client::{ASK_TIME, CHANGE_TIME, ask};
use crate::mounts::{self, Place};
use perigee_proto::admin::{AdminPath, Answer, Failure, PolicyValue, Request, UnionWay};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, XattrFlags, flock, fsync,
    getxattr, mkdirat, removexattr, renameat_with, setxattr, symlinkat, unlinkat,
};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The longest mark that is read, bytes.
const MARK_LEN_MAX: usize = 8 << 10;

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing has happened.
    Begin,
    /// The new directory is being made what the old one is.
    Bringing,
    /// It is: the old one, which is aside, loses what is in the new one.
    Clearing,
    /// The new directory is there.
    Published,
}

impl Stage {
    const fn word(self) -> &'static str {
        match self {
            Self::Begin | Self::Bringing => "bringing",
            Self::Clearing | Self::Published => "clearing",
        }
    }
}

/// What lies in a union.
#[derive(Debug)]
pub(super) struct OfUnion {
    /// Serves its mount.
    data_dir: PathBuf,
    /// Directories of this machine's disks in which it has its parts, with the path down to the directory above.
    pub(super) branches: Vec<PathBuf>,
}

/// The places of one adoption.
#[derive(Debug)]
pub(super) struct Places {
    /// The directory, as programs of this machine know it.
    pub(super) source: PathBuf,
    /// Where it is while what has changed is looked for.
    pub(super) aside: PathBuf,
    /// Where the new one is filled.
    pub(super) staging: PathBuf,
    /// What it becomes.
    pub(super) target: PathBuf,
    above_source: Dir,
    above_target: Dir,
    /// The directory above the target, in the cluster.
    place: Place,
    /// Where the source lies in a union, and not on a disk itself.
    pub(super) union: Option<OfUnion>,
    /// The file system that the node's data are on.
    pub(super) device: u64,
}

/// A path whose last name is no link, with all links before it followed.
fn named(path: &Path) -> Result<(PathBuf, OsString), Failure> {
    let what = || format!("cannot adopt `{}`", path.display());
    let full = std::path::absolute(path).map_err(|error| Failure::new(what(), error))?;
    let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
        return Err(Failure::new(what(), "it has no name of its own"));
    };
    let parent = parent
        .canonicalize()
        .map_err(|error| Failure::new(what(), format!("`{}`: {error}", parent.display())))?;
    Ok((parent, name.to_owned()))
}

fn beside(parent: &Path, name: &OsStr, ending: &str) -> PathBuf {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(ending);
    parent.join(hidden)
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

impl Places {
    pub(super) fn find(source: &Path, target: &Path) -> Result<Self, Failure> {
        let (source_parent, source_name) = named(source)?;
        let (target_parent, target_name) = named(target)?;
        let place = mounts::resolve(&target_parent)?;
        let opened = |path: &Path| {
            Dir::open(path).map_err(|Failed { at, error }| {
                Failure::new(format!("cannot open `{}`", at.display()), error)
            })
        };
        let store = fs::metadata(&place.data_dir).map_err(|error| {
            Failure::new(format!("cannot open `{}`", place.data_dir.display()), error)
        })?;
        let places = Self {
            source: source_parent.join(&source_name),
            aside: beside(&source_parent, &source_name, ".adopted"),
            staging: beside(&target_parent, &target_name, ".adopting"),
            target: target_parent.join(&target_name),
            above_source: opened(&source_parent)?,
            above_target: opened(&target_parent)?,
            place,
            union: of_union(&source_parent)?,
            device: store.dev(),
        };
        places.check()?;
        Ok(places)
    }

    /// What is being done, for messages.
    pub(super) fn what(&self) -> String {
        format!("cannot adopt `{}`", self.source.display())
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.place.data_dir
    }

    pub(super) fn parent_inside(&self) -> AdminPath {
        self.place.inside.clone()
    }

    /// A name beside the target, in the cluster.
    fn inside(&self, path: &Path) -> AdminPath {
        admin(&self.place.inside.as_path().join(name_of(path)))
    }

    pub(super) fn fail(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(self.what(), why)
    }

    fn failed(&self, Failed { at, error }: Failed) -> Failure {
        Failure::new(format!("{}, at `{}`", self.what(), at.display()), error)
    }

    fn entry<'a>(&'a self, path: &'a Path) -> Entry<'a> {
        let dir = match path == self.source || path == self.aside {
            true => &self.above_source,
            false => &self.above_target,
        };
        dir.entry(name_of(path))
    }

    fn look(&self, path: &Path) -> Result<Option<Stat>, Failure> {
        self.entry(path)
            .look()
            .map_err(|failed| self.failed(failed))
    }

    fn directory_at(&self, path: &Path) -> Result<Option<Stat>, Failure> {
        let is_dir = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Ok(self.look(path)?.filter(is_dir))
    }

    /// Whether the directory is where programs know it.
    pub(super) fn has_source(&self) -> Result<bool, Failure> {
        Ok(self.directory_at(&self.source)?.is_some())
    }

    fn check(&self) -> Result<(), Failure> {
        let store = self.data_dir();
        if [&self.source, &self.aside]
            .iter()
            .any(|dir| store.starts_with(dir))
        {
            let why = format!("the node's own data lie in it, in `{}`", store.display());
            return Err(self.fail(why));
        }
        if self.target.starts_with(&self.source) {
            return Err(self.fail("what it is to become lies in it"));
        }
        if let Some(union) = &self.union {
            return union.check().map_err(|why| self.fail(why));
        }
        let (source, aside) = (
            self.directory_at(&self.source)?,
            self.directory_at(&self.aside)?,
        );
        match source.or(aside) {
            Some(there) if there.st_dev != self.device => Err(self
                .fail(format!(
                    "it is on another file system than the node's data in `{}`, so its bytes have to be copied",
                    store.display()
                ))
                .hint("`cp -a` copies it")),
            _ => Ok(()),
        }
    }

    /// Opens the old directory under whichever name it has, and keeps other runs of the command away from it; none where it
    /// has gone.
    pub(super) fn hold(&self) -> Result<Option<Dir>, Failure> {
        let (source, aside) = (
            self.directory_at(&self.source)?,
            self.directory_at(&self.aside)?,
        );
        if source.is_some() && aside.is_some() {
            let why = format!("`{}` is there, too", self.aside.display());
            return Err(self.fail(why).hint(
                "it is the directory itself where an earlier run was broken off: what has come in its place since has to \
                 move away, then the same command goes on",
            ));
        }
        let path = match (source, aside) {
            (None, None) => return Ok(None),
            (Some(_), _) => &self.source,
            (None, Some(_)) => &self.aside,
        };
        let dir = self
            .entry(path)
            .open_dir()
            .map_err(|failed| self.failed(failed))?;
        match flock(&dir.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(dir)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(self.fail("another `perigee adopt` is at work on it"))
            }
            Err(error) => Err(self.fail(io::Error::from(error))),
        }
    }

    /// What the new directory is marked with. `inode`: of the old one, which has it under each of its names.
    fn mark(&self, stage: Stage, inode: &str) -> Vec<u8> {
        let host = rustix::system::uname();
        let mut mark = format!("{}\t{inode}\t", stage.word()).into_bytes();
        mark.extend_from_slice(host.nodename().to_bytes());
        mark.push(b'\t');
        mark.extend_from_slice(self.source.as_os_str().as_bytes());
        mark
    }

    /// The number in a mark that is of this adoption, and how far it says it is.
    fn read(&self, mark: &[u8]) -> Option<(Stage, String)> {
        let mut parts = mark.splitn(3, |byte| *byte == b'\t');
        let (_, inode) = (parts.next()?, parts.next()?);
        let inode = String::from_utf8_lossy(inode).into_owned();
        let stages = [Stage::Bringing, Stage::Clearing].into_iter();
        let stage = stages
            .into_iter()
            .find(|stage| mark == self.mark(*stage, &inode))?;
        Some((stage, inode))
    }

    fn read_mark(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        let dir = self
            .entry(path)
            .open_dir()
            .map_err(|failed| self.failed(failed))?;
        let mut mark = vec![0; MARK_LEN_MAX];
        match getxattr(in_fd(&dir.fd), MARK, &mut mark[..]) {
            Ok(len) => mark.truncate(len),
            Err(rustix::io::Errno::NODATA) => mark.clear(),
            Err(error) => return Err(self.fail(io::Error::from(error))),
        }
        Ok(mark)
    }

    /// How far it is; `held`: the old directory.
    pub(super) fn stage(&self, held: Option<&Dir>) -> Result<Stage, Failure> {
        if self.look(&self.target)?.is_some() {
            let published = self.directory_at(&self.target)?.is_some()
                && self.read(&self.read_mark(&self.target)?).is_some();
            return match (published, held) {
                (true, None) => Ok(Stage::Published),
                _ => Err(self
                    .fail(format!("`{}` is there already", self.target.display()))
                    .hint("name a path that is free")),
            };
        }
        let stage = match self.look(&self.staging)? {
            None => Stage::Begin,
            Some(_) => self.stage_of_staging(held)?,
        };
        match (stage, held) {
            (Stage::Begin | Stage::Bringing, None) if self.look(&self.source)?.is_some() => {
                Err(self.fail("it is no directory"))
            }
            (Stage::Begin | Stage::Bringing, None) => Err(self.fail("there is no such directory")),
            _ => Ok(stage),
        }
    }

    fn stage_of_staging(&self, held: Option<&Dir>) -> Result<Stage, Failure> {
        let staging = self
            .entry(&self.staging)
            .open_dir()
            .map_err(|failed| self.failed(failed))?;
        let mark = self.read_mark(&self.staging)?;
        let names = staging.names().map_err(|failed| self.failed(failed))?;
        if mark.is_empty() && names.is_empty() {
            return Ok(Stage::Begin);
        }
        let own = match held {
            Some(held) => Some(self.number(held)?),
            None => None,
        };
        match self.read(&mark) {
            Some((stage, inode)) if own.is_none_or(|own| own == inode) => Ok(stage),
            _ => Err(self.fail(format!(
                "`{}` is there, for a directory that is not this one",
                self.staging.display()
            ))),
        }
    }

    /// What tells the old directory from others, under each of its names.
    fn number(&self, held: &Dir) -> Result<String, Failure> {
        // Those of a union's inodes are made up for one mount.
        if self.union.is_some() {
            return Ok("union".to_owned());
        }
        let there =
            rustix::fs::fstat(&held.fd).map_err(|error| self.fail(io::Error::from(error)))?;
        Ok(there.st_ino.to_string())
    }

    /// Makes the directory that is to be filled, with policies; it counts once it is marked.
    pub(super) fn make_staging(&self, policies: Vec<(String, String)>) -> Result<(), Failure> {
        match mkdirat(&self.above_target.fd, name_of(&self.staging), Mode::RWXU) {
            // An earlier run came so far.
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(self.fail(io::Error::from(error))),
        }
        let set = self.set_policies(&self.staging, policies);
        if set.is_err() {
            self.remove_staging()?;
        }
        set
    }

    /// What is in force at a path in the cluster.
    pub(super) fn policies(&self, path: AdminPath) -> Result<Vec<PolicyValue>, Failure> {
        match ask(self.data_dir(), &Request::PolicyGet { path }, ASK_TIME)? {
            Answer::Policy(values) => Ok(values),
            other => Err(super::unexpected(&other)),
        }
    }

    pub(super) fn set_policies_of_staging(
        &self,
        policies: Vec<(String, String)>,
    ) -> Result<(), Failure> {
        self.set_policies(&self.staging, policies)
    }

    fn set_policies(&self, path: &Path, pairs: Vec<(String, String)>) -> Result<(), Failure> {
        if pairs.is_empty() {
            return Ok(());
        }
        let path = self.inside(path);
        match ask(
            self.data_dir(),
            &Request::PolicySet { path, pairs },
            CHANGE_TIME,
        )? {
            Answer::Policy(_) => Ok(()),
            other => Err(super::unexpected(&other)),
        }
    }

    pub(super) fn open_staging(&self) -> Result<Dir, Failure> {
        self.entry(&self.staging)
            .open_dir()
            .map_err(|failed| self.failed(failed))
    }

    /// Says how far it is, durably.
    pub(super) fn set_mark(&self, stage: Stage, held: &Dir) -> Result<(), Failure> {
        let staging = self.open_staging()?;
        let mark = self.mark(stage, &self.number(held)?);
        let marked = setxattr(in_fd(&staging.fd), MARK, &mark, XattrFlags::empty());
        // Also names of what is no file are on all copies then.
        let synced = marked.and_then(|()| fsync(&staging.fd));
        synced.map_err(|error| self.fail(io::Error::from(error)))
    }

    fn remove_staging(&self) -> Result<(), Failure> {
        let name = name_of(&self.staging);
        let removed = unlinkat(&self.above_target.fd, name, AtFlags::REMOVEDIR);
        removed.map_err(|error| self.fail(io::Error::from(error)))
    }

    /// From now on no program finds the old directory by its name.
    pub(super) fn set_aside(&self, held: &Dir) -> Result<(), Failure> {
        self.rename(&self.source, &self.aside)?;
        let now = self.directory_at(&self.aside)?;
        let was = rustix::fs::fstat(&held.fd).map_err(|error| self.fail(io::Error::from(error)))?;
        match now.is_some_and(|now| (now.st_dev, now.st_ino) == (was.st_dev, was.st_ino)) {
            true => Ok(()),
            false => {
                self.set_back()?;
                Err(self.fail("another directory has come in its place meanwhile"))
            }
        }
    }

    /// It is where programs know it again.
    pub(super) fn set_back(&self) -> Result<(), Failure> {
        self.rename(&self.aside, &self.source)
    }

    /// The old directory, which is empty, goes.
    pub(super) fn remove_aside(&self) -> Result<(), Failure> {
        let removed = unlinkat(
            &self.above_source.fd,
            name_of(&self.aside),
            AtFlags::REMOVEDIR,
        );
        let synced = removed.and_then(|()| fsync(&self.above_source.fd));
        synced.map_err(|error| self.fail(io::Error::from(error)))
    }

    /// The new directory appears.
    pub(super) fn publish(&self) -> Result<(), Failure> {
        self.rename(&self.staging, &self.target)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let (from, to) = (self.entry(from), self.entry(to));
        let (old, new) = (&from.dir.fd, &to.dir.fd);
        let renamed = renameat_with(old, from.name, new, to.name, RenameFlags::NOREPLACE);
        let synced = renamed.and_then(|()| fsync(new));
        synced.at(&to.path()).map_err(|failed| self.failed(failed))
    }

    /// Puts a link in the place of the old directory, and takes off the new one its mark and what it needed while it was made.
    /// Says whether the link is there.
    pub(super) fn finish(&self, link: bool) -> Result<bool, Failure> {
        let inside = self.inside(&self.target);
        let own = |value: &PolicyValue| {
            value.key == TRASH && value.value == OFF && value.from.as_ref() == Some(&inside)
        };
        if self.policies(inside.clone())?.iter().any(own) {
            self.set_policies(&self.target, vec![(TRASH.to_owned(), String::new())])?;
        }
        let free = self.look(&self.source)?.is_none();
        if link && free {
            let dir = &self.above_source.fd;
            let linked = symlinkat(&self.target, dir, name_of(&self.source));
            let synced = linked.and_then(|()| fsync(dir));
            synced.map_err(|error| {
                self.fail(format!("no link can be made: {}", io::Error::from(error)))
            })?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let target = self.entry(&self.target).open(flags, Mode::empty());
        let target = target.map_err(|failed| self.failed(failed))?;
        let unmarked = removexattr(in_fd(&target), MARK);
        unmarked.map_err(|error| self.fail(io::Error::from(error)))?;
        let there = fs::read_link(&self.source);
        Ok(there.is_ok_and(|leads| leads == self.target))
    }

    /// Whether every host of a union that the directory lies in is there.
    pub(super) fn is_whole(&self) -> Result<(), Failure> {
        match &self.union {
            Some(union) => union.check().map_err(|why| self.fail(why)),
            None => Ok(()),
        }
    }
}

impl OfUnion {
    /// What a host that is away has would not be seen.
    fn check(&self) -> Result<(), String> {
        let status = match ask(&self.data_dir, &Request::Union, ASK_TIME) {
            Ok(Answer::Union(status)) => status,
            Ok(other) => return Err(super::unexpected(&other).to_string()),
            Err(failure) => return Err(failure.to_string()),
        };
        match status.hosts.iter().find(|host| host.away) {
            None => Ok(()),
            Some(host) => Err(format!("{} is away, and may have a part of it", host.name)),
        }
    }
}

/// The union that `dir` lies in.
fn of_union(dir: &Path) -> Result<Option<OfUnion>, Failure> {
    let Ok(place) = mounts::resolve(dir) else {
        // It is in no mount of Perigee's.
        return Ok(None);
    };
    let status = match ask(&place.data_dir, &Request::Union, ASK_TIME) {
        Ok(Answer::Union(status)) => status,
        Ok(_) | Err(_) => {
            let what = format!("cannot adopt what lies in `{}`", dir.display());
            return Err(
                Failure::new(what, "it is in a cluster already").hint("`mv` moves it there")
            );
        }
    };
    let below = place.inside.as_path();
    let below = below.strip_prefix("/").unwrap_or(below);
    let here = status
        .hosts
        .iter()
        .filter(|host| host.way == UnionWay::Here);
    let directories = here.flat_map(|host| &host.directories);
    Ok(Some(OfUnion {
        data_dir: place.data_dir,
        branches: directories.map(|own| own.as_path().join(below)).collect(),
    }))
}
