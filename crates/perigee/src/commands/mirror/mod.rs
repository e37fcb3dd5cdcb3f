//! A directory made what another one is, by ordinary operations: owners, modes, times, ACLs, extended attributes, links.
//!
//! Whoever does that is often root, and the directories belong to users who may exchange their entries meanwhile: everything is
//! done below directories that are held open, no link is followed, and what is made anew is its maker's alone until it has the
//! attributes that it is to have.

mod attributes;
mod place;

pub use attributes::{MARK, attributes, xattrs};
pub use place::{At, Dir, Entry, Failed, in_fd, kind};

use crate::output::Progress;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, linkat, mkdirat, mknodat, openat,
    readlinkat, symlinkat, unlinkat,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What was done.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Done {
    /// Entries that were looked at.
    pub entries: u64,
    /// Those that were made or changed.
    pub changed: u64,
    /// Those that were removed.
    pub removed: u64,
}

/// A regular file whose content is to be that of another one.
pub struct Bring<'a> {
    /// The one that it is to be like.
    pub from: fs::File,
    /// What was seen of that.
    pub was: &'a Stat,
    /// It, open for reading and writing.
    pub to: fs::File,
    /// It was made just now, and is empty.
    pub new: bool,
    /// Where that one lies, for messages and for others to find it.
    pub source: PathBuf,
    /// Where it lies, for messages.
    pub path: PathBuf,
}

/// A regular file that is as it was brought.
pub struct Same<'a> {
    /// The one that it is like.
    pub source: Entry<'a>,
    /// What was seen of that.
    pub was: &'a Stat,
    /// It.
    pub target: Entry<'a>,
    /// What was seen of it.
    pub is: &'a Stat,
}

/// What content of files is, and how it comes.
pub trait Content {
    /// Whether nothing about an entry has changed since it was brought.
    fn is_same(&self, was: &Stat, is: &Stat) -> bool;
    /// Whether what a file has is of use for what it is to have; otherwise it is made anew.
    fn rewrites(&self) -> bool;
    /// Gives a file its content and its attributes, at once or by the time [`Content::settle`] has returned.
    fn bring(&mut self, file: Bring<'_>) -> Result<(), Failed>;
    /// Has seen a file that is the same.
    fn pass(&mut self, same: Same<'_>) -> Result<(), Failed>;
    /// Ends what was begun.
    fn settle(&mut self) -> Result<(), Failed>;
    /// A line for whoever waits.
    fn line(&self, done: &Done) -> String;
}

/// A file with several names, once the first has been brought.
#[derive(Debug, Clone)]
struct Linked {
    /// From the directory that is made on.
    way: Vec<OsString>,
    /// The one that was brought.
    inode: u64,
}

/// What is done where the two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Whatever makes them the same.
    All,
    /// What is in the source alone is brought. What is in the target alone stays, and so do attributes of directories.
    Additions,
}

/// The work of making one directory what another is.
pub struct Mirror<C> {
    /// What was done.
    pub done: Done,
    /// How content comes.
    pub content: C,
    progress: Progress,
    scope: Scope,
    target: Dir,
    /// Where this is at present, below that.
    way: Vec<OsString>,
    /// By the number in the source.
    linked: BTreeMap<u64, Linked>,
}

/// Whether a directory was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    There,
    Made,
}

fn gone() -> io::Error {
    let why = "it was exchanged meanwhile; stop the programs that use the directory";
    io::Error::other(why)
}

impl<C: Content> Mirror<C> {
    /// Nothing done yet.
    pub fn new(target: Dir, content: C) -> Self {
        Self::within(Scope::All, target, content)
    }

    /// The same, of which not everything is done.
    pub fn within(scope: Scope, target: Dir, content: C) -> Self {
        Self {
            done: Done::default(),
            content,
            progress: Progress::new(),
            scope,
            target,
            way: Vec::new(),
            linked: BTreeMap::new(),
        }
    }

    /// Makes the target what the directory `source` is.
    ///
    /// Errors: the first entry for which that fails; what was done before stays, and is passed over when this is done again.
    pub fn run(&mut self, source: &Dir) -> Result<(), Failed> {
        let fd = self.target.fd.try_clone().at(&self.target.path)?;
        let target = Dir::new(fd, &self.target.path.clone());
        let made = self.directory(source, &target, Was::There);
        let made = made.and_then(|()| self.content.settle());
        self.progress.clear();
        made
    }

    fn saw(&mut self) {
        self.done.entries += 1;
        let (content, done) = (&self.content, &self.done);
        self.progress.show(|| content.line(done));
    }

    /// Makes `target` what the directory `source` is, with all that is below it.
    fn directory(&mut self, source: &Dir, target: &Dir, before: Was) -> Result<(), Failed> {
        self.saw();
        let was = rustix::fs::fstat(&source.fd).at(&source.path)?;
        let names = source.names()?;
        if self.scope == Scope::All {
            for name in target.names()?.difference(&names) {
                self.remove(target.entry(name))?;
            }
        }
        for name in &names {
            let (from, to) = (source.entry(name), target.entry(name));
            // It may have gone by now.
            let Some(was) = from.look()? else {
                if self.scope == Scope::All {
                    self.remove(to)?;
                }
                continue;
            };
            self.way.push(name.clone());
            match kind(&was) {
                FileType::Directory => self.below(from, to)?,
                FileType::RegularFile => self.file(from, &was, to)?,
                FileType::Symlink => self.symlink(from, &was, to)?,
                _ => self.special(from, &was, to)?,
            }
            self.way.pop();
        }
        if self.scope == Scope::Additions && before == Was::There {
            return Ok(());
        }
        attributes(&source.fd, &was, &target.fd, &target.path)
    }

    fn below(&mut self, source: Entry<'_>, target: Entry<'_>) -> Result<(), Failed> {
        let mut before = Was::There;
        if self.clear_way(target, FileType::Directory)?.is_none() {
            mkdirat(&target.dir.fd, target.name, Mode::RWXU).at(&target.path())?;
            self.done.changed += 1;
            before = Was::Made;
        }
        self.directory(&source.open_dir()?, &target.open_dir()?, before)
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
        let removed = remove_all(entry)?;
        self.done.removed += removed;
        Ok(())
    }

    /// Gives `target` the name of a file that has been brought under another one; says whether it has.
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

    /// The file that was brought there, and no other one.
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

    /// What was brought may have other names, that come later.
    fn note_link(&mut self, was: &Stat, inode: u64) {
        if was.st_nlink > 1 {
            let way = self.way.clone();
            self.linked.insert(was.st_ino, Linked { way, inode });
        }
    }

    fn file(&mut self, source: Entry<'_>, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let path = target.path();
        let mut before = self.clear_way(target, FileType::RegularFile)?;
        if let Some(is) = &before {
            if self.content.is_same(was, is) {
                self.note_link(was, is.st_ino);
                return self.content.pass(Same {
                    source,
                    was,
                    target,
                    is,
                });
            }
            // Other names of it may be of another file in the source.
            if is.st_nlink > 1 || !self.content.rewrites() {
                self.remove(target)?;
                before = None;
            }
        }
        self.done.changed += 1;
        let from = open_known(source, was, OFlags::RDONLY)?;
        let owner = Mode::RUSR | Mode::WUSR;
        let fd = match &before {
            None => target.open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, owner)?,
            Some(is) => {
                let fd = open_known(target, is, OFlags::RDWR)?;
                let now = rustix::fs::fstat(&fd).at(&path)?;
                let of = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
                if of(was) != of(&now) {
                    fchmod(&fd, owner).at(&path)?;
                }
                fd
            }
        };
        let inode = rustix::fs::fstat(&fd).at(&path)?.st_ino;
        self.note_link(was, inode);
        self.content.bring(Bring {
            from: from.into(),
            was,
            to: fd.into(),
            new: before.is_none(),
            source: source.path(),
            path,
        })
    }

    fn symlink(&mut self, source: Entry<'_>, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let (path, dir) = (target.path(), &target.dir.fd);
        let leads = readlinkat(&source.dir.fd, source.name, Vec::new()).at(&source.path())?;
        let leads = OsStr::from_bytes(leads.as_bytes());
        let before = self.clear_way(target, FileType::Symlink)?;
        if let Some(is) = &before {
            let there = readlinkat(dir, target.name, Vec::new()).at(&path)?;
            let right = there.as_bytes() == leads.as_bytes();
            if self.content.is_same(was, is) && right {
                self.note_link(was, is.st_ino);
                return Ok(());
            }
            if !right {
                self.remove(target)?;
            }
        }
        if target.look()?.is_none() {
            symlinkat(leads, dir, target.name).at(&path)?;
        }
        self.finish(source, was, target)
    }

    fn special(&mut self, source: Entry<'_>, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        self.saw();
        if self.link(was, target)? {
            return Ok(());
        }
        let (path, dir) = (target.path(), &target.dir.fd);
        let before = self.clear_way(target, kind(was))?;
        if let Some(is) = &before {
            if self.content.is_same(was, is) {
                self.note_link(was, is.st_ino);
                return Ok(());
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
    fn finish(&mut self, source: Entry<'_>, was: &Stat, target: Entry<'_>) -> Result<(), Failed> {
        let path = target.path();
        let from = open_known(source, was, OFlags::PATH)?;
        let fd = target.open(OFlags::PATH, Mode::empty())?;
        let now = rustix::fs::fstat(&fd).at(&path)?;
        if kind(&now) != kind(was) {
            return Err(gone()).at(&path);
        }
        self.done.changed += 1;
        self.note_link(was, now.st_ino);
        attributes(&from, was, &fd, &path)
    }
}

/// Opens the entry that was looked at, and nothing that has come in its place: a device or a pipe would do something, or wait.
pub fn open_known(entry: Entry<'_>, seen: &Stat, flags: OFlags) -> Result<OwnedFd, Failed> {
    let flags = match flags.contains(OFlags::PATH) {
        true => flags,
        false => flags | OFlags::NONBLOCK,
    };
    let fd = entry.open(flags, Mode::empty())?;
    let now = rustix::fs::fstat(&fd).at(&entry.path())?;
    match (kind(&now), now.st_ino) == (kind(seen), seen.st_ino) {
        true => Ok(fd),
        false => Err(gone()).at(&entry.path()),
    }
}

/// Removes an entry with all that is below it; how many there were.
pub fn remove_all(entry: Entry<'_>) -> Result<u64, Failed> {
    let Some(stat) = entry.look()? else {
        return Ok(0);
    };
    let mut flags = AtFlags::empty();
    let mut removed = 1;
    if kind(&stat) == FileType::Directory {
        let dir = entry.open_dir()?;
        for name in dir.names()? {
            removed += remove_all(dir.entry(&name))?;
        }
        flags = AtFlags::REMOVEDIR;
    }
    unlinkat(&entry.dir.fd, entry.name, flags).at(&entry.path())?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    struct Nothing;

    impl Content for Nothing {
        fn is_same(&self, _: &Stat, _: &Stat) -> bool {
            false
        }
        fn rewrites(&self) -> bool {
            true
        }
        fn bring(&mut self, _: Bring<'_>) -> Result<(), Failed> {
            Ok(())
        }
        fn pass(&mut self, _: Same<'_>) -> Result<(), Failed> {
            Ok(())
        }
        fn settle(&mut self) -> Result<(), Failed> {
            Ok(())
        }
        fn line(&self, _: &Done) -> String {
            String::new()
        }
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
        let seen = rustix::fs::stat(outside.join("sub/file")).expect("there");
        let held = Dir::open(&target).ok().expect("opened");
        let work = Mirror::new(held, Nothing);
        let entry = |name| work.target.entry(OsStr::new(name));
        assert!(entry("sub").open_dir().is_err());
        assert!(open_known(entry("file"), &seen, OFlags::RDWR).is_err());
        for flags in [OFlags::RDWR, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL] {
            assert!(entry("file").open(flags, Mode::RUSR).is_err());
        }
        // Another name of a file that was brought is looked for in the same way, and known by its number.
        let inode = fs::metadata(outside.join("sub/file")).expect("there").ino();
        let way = ["sub", "file"].map(OsString::from).to_vec();
        let through_a_link = Linked { way, inode };
        assert!(work.open_again(&through_a_link).is_err());
        let way = vec![OsString::from("file")];
        assert!(work.open_again(&Linked { way, inode }).is_err());
    }
}
