//! How files get their content: the node takes large ones as they lie on the disk, small ones are copied.
//!
//! A file gets the time of the one that it is like only when all its copies are there: so whatever has that time, and the same
//! length, need not be looked at again when the command goes on, also after a loss of power.

use super::mirror::{At, Bring, Content, Done, Entry, Failed, Same, attributes, in_fd, xattrs};
use super::places::Places;
use super::scan::Scanned;
use super::{admin, unexpected};
use crate::admin_client::ask;
use crate::human;
use perigee_proto::admin::{
    ADOPTED_MAX, AdoptFile, AdoptSource, AdoptStep, Adopted, Answer, Failure, REQUEST_BYTES_MAX,
    Request,
};
use perigee_types::InodeId;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, utimensat};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files up to this length are among the node's keys, not files of its disk; in bytes.
const SMALL_LEN_MAX: u64 = 16 << 10;
/// Bytes of files that are brought together, but for one file: so that whoever waits sees something happen.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes that are copied at once.
const COPY: usize = 1 << 20;
/// A node reads a large file once, and waits for the other copies.
const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Names that a node had given files are gone so long after a run begins that goes on with another one's work; at most.
const NAME_GOES: Duration = Duration::from_secs(20);

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// To bring what is not there.
    Bring {
        /// An earlier run may have given files names in the node's store that are about to go.
        resumed: bool,
    },
    /// To find out whether anything is different, too.
    Check,
    /// To bring what has come after everything else was there.
    Add,
}

/// Whether nothing about a file, as `stat` tells it, has changed since it was brought.
pub(super) fn is_same(was: &Stat, is: &Stat) -> bool {
    (was.st_mode, was.st_size) == (is.st_mode, is.st_size)
        && (was.st_uid, was.st_gid) == (is.st_uid, is.st_gid)
        && (was.st_mtime, was.st_mtime_nsec) == (is.st_mtime, is.st_mtime_nsec)
}

/// What is known of a file that looks the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sure {
    /// The node took it, and it is as it was.
    Taken,
    /// The new one has bytes of its own.
    Own,
    /// Somebody writes to it.
    InUse,
    /// It has changed.
    Changed,
}

/// Questions to the node.
pub(super) struct Asks<'a> {
    places: &'a Places,
    /// Where the old directory is.
    root: &'a Path,
    /// Files to which somebody writes.
    pub(super) in_use: Vec<PathBuf>,
}

impl<'a> Asks<'a> {
    /// Files of one question: each may be held open.
    pub(super) const FILES_MAX: usize = 200;

    pub(super) const fn new(places: &'a Places, root: &'a Path) -> Self {
        Self {
            places,
            root,
            in_use: Vec::new(),
        }
    }

    /// The file on the node's disk, where it is on that. `source`: its path below the root.
    fn local(&self, source: &Path, was: &Stat, names: u64) -> Option<AdoptSource> {
        let found = |path: &Path, device, inode| AdoptSource {
            path: admin(path),
            device,
            inode,
            names,
        };
        let Some(union) = &self.places.union else {
            return Some(found(source, was.st_dev, was.st_ino));
        };
        let below = source.strip_prefix(self.root).ok()?;
        let name = self.root.file_name()?;
        union.branches.iter().find_map(|branch| {
            let path = branch.join(name).join(below);
            let there = fs::symlink_metadata(&path).ok()?;
            let same = there.is_file()
                && there.dev() == self.places.device
                && there.len() == was.st_size.unsigned_abs()
                && (there.mtime(), there.mtime_nsec()) == (was.st_mtime, was.st_mtime_nsec as _);
            same.then(|| found(&path, there.dev(), there.ino()))
        })
    }

    /// The question about a file that looks the same.
    pub(super) fn of(&self, source: Entry<'_>, was: &Stat, is: &Stat, names: u64) -> AdoptFile {
        AdoptFile {
            inode: InodeId(is.st_ino),
            source: self.local(&source.path(), was, names),
        }
    }

    fn ask(&self, step: AdoptStep, files: &[AdoptFile]) -> Result<Vec<Adopted>, Failed> {
        let mut answers = Vec::new();
        let mut rest = files;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(ADOPTED_MAX).take_while(|file| {
                let path = file.source.as_ref().map_or(0, |source| source.path.0.len());
                // Each byte may be escaped.
                bytes += path * 6 + 200;
                bytes <= REQUEST_BYTES_MAX - 1_000
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            answers.extend(self.ask_once(step, now).at(&self.places.staging)?);
            rest = later;
        }
        Ok(answers)
    }

    fn ask_once(&self, step: AdoptStep, files: &[AdoptFile]) -> io::Result<Vec<Adopted>> {
        let request = Request::Adopt {
            step,
            files: files.to_vec(),
        };
        let failed = |failure: Failure| io::Error::other(failure.to_string());
        match ask(self.places.data_dir(), &request, PATIENCE).map_err(failed)? {
            Answer::Adopted(answers) if answers.len() == files.len() => Ok(answers),
            other => Err(failed(unexpected(&other))),
        }
    }

    /// What is known of files.
    ///
    /// Errors: the first of which nothing can be known.
    pub(super) fn check(&self, files: Vec<AdoptFile>) -> Result<Vec<Sure>, Failed> {
        let answers = self.ask(AdoptStep::Check, &files)?;
        let sure = files
            .iter()
            .zip(answers)
            .map(|(file, answer)| match answer {
                Adopted::Done => Ok(Sure::Taken),
                Adopted::Own => Ok(Sure::Own),
                Adopted::InUse => Ok(Sure::InUse),
                Adopted::Changed => Ok(Sure::Changed),
                Adopted::Failed { why } => {
                    let path = file.source.as_ref().map(|source| source.path.as_path());
                    Err(io::Error::other(why)).at(path.unwrap_or(&self.places.staging))
                }
            });
        sure.collect()
    }

    /// Files that the node took have lost their old names.
    pub(super) fn settle(&self, inodes: &[u64]) -> Result<(), Failed> {
        for part in inodes.chunks(ADOPTED_MAX) {
            let files = part.iter().map(|inode| AdoptFile {
                inode: InodeId(*inode),
                source: None,
            });
            let answers = self.ask(AdoptStep::Settle, &files.collect::<Vec<_>>())?;
            for answer in answers {
                if let Adopted::Failed { why } = answer {
                    return Err(io::Error::other(why)).at(&self.places.staging);
                }
            }
        }
        Ok(())
    }
}

/// How long it pays to wait for what spares a copy of so many bytes.
fn worth(bytes: u64) -> Duration {
    let copied = Duration::from_millis((bytes >> 20) * 10);
    copied.clamp(Duration::from_millis(500), NAME_GOES)
}

/// Takes back the time that says that a file is what it is to be.
pub(super) fn spoil(file: &OwnedFd, was: &Stat) -> rustix::io::Result<()> {
    let other = Timespec {
        tv_sec: was.st_mtime + 1,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: other,
        last_modification: other,
    };
    utimensat(CWD, in_fd(file), &times, AtFlags::empty())
}

/// Files, and their bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// A file whose attributes come once its bytes are everywhere.
struct Unfinished {
    from: OwnedFd,
    was: Stat,
    to: OwnedFd,
    /// Where it comes from.
    source: PathBuf,
    /// Where it goes to.
    path: PathBuf,
    asked: AdoptFile,
}

/// A file of which is asked whether it is still the same.
struct Unsure {
    was: Stat,
    to: OwnedFd,
    source: PathBuf,
    asked: AdoptFile,
}

/// The content of the files of one pass.
pub(super) struct Adopting<'a> {
    pub(super) asks: Asks<'a>,
    scanned: &'a Scanned,
    pass: Pass,
    began: Instant,
    unfinished: Vec<Unfinished>,
    unsure: Vec<Unsure>,
    waiting_bytes: u64,
    /// Bytes of files that are there.
    there: u64,
    pub(super) taken: Sum,
    pub(super) copied: Sum,
    changed: u64,
}

impl<'a> Adopting<'a> {
    pub(super) fn new(asks: Asks<'a>, scanned: &'a Scanned, pass: Pass) -> Self {
        Self {
            asks,
            scanned,
            pass,
            began: Instant::now(),
            unfinished: Vec::new(),
            unsure: Vec::new(),
            waiting_bytes: 0,
            there: 0,
            taken: Sum { files: 0, bytes: 0 },
            copied: Sum { files: 0, bytes: 0 },
            changed: 0,
        }
    }

    /// Whether everything was as it had been brought.
    pub(super) fn is_clean(&self) -> bool {
        self.asks.in_use.is_empty() && self.changed == 0
    }

    /// The file that the node is to take; none: its bytes have to be copied.
    fn to_take(&self, file: &Bring<'_>) -> Result<Option<AdoptSource>, Failed> {
        if file.was.st_size.unsigned_abs() <= SMALL_LEN_MAX {
            return Ok(None);
        }
        let names = self.scanned.names_of(file.was.st_ino);
        let Some(local) = self.asks.local(&file.source, file.was, names) else {
            return Ok(None);
        };
        loop {
            let there = fs::symlink_metadata(local.path.as_path()).at(&file.source)?;
            // Names elsewhere lead to the same bytes, and whoever knows them may write.
            if there.nlink() <= names {
                return Ok(Some(local));
            }
            let may_go = self.pass == Pass::Bring { resumed: true };
            if !may_go || self.began.elapsed() > worth(file.was.st_size.unsigned_abs()) {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn is_full(&self) -> bool {
        self.unfinished.len() + self.unsure.len() >= Asks::FILES_MAX
            || self.waiting_bytes >= BYTES_MAX
    }

    /// Has the node take, or bring to all copies, what waits.
    fn finish(&mut self) -> Result<(), Failed> {
        let waiting = std::mem::take(&mut self.unfinished);
        let files: Vec<AdoptFile> = waiting.iter().map(|file| file.asked.clone()).collect();
        let answers = self.asks.ask(AdoptStep::Take, &files)?;
        let mut failed = Ok(());
        for (file, answer) in waiting.into_iter().zip(answers) {
            let len = file.was.st_size.unsigned_abs();
            match answer {
                Adopted::Done | Adopted::Own => {
                    attributes(&file.from, &file.was, &file.to, &file.path)?;
                    let sum = match file.asked.source {
                        Some(_) => &mut self.taken,
                        None => &mut self.copied,
                    };
                    sum.files += 1;
                    sum.bytes += len;
                    self.there += len;
                }
                Adopted::InUse => self.asks.in_use.push(file.source),
                Adopted::Changed => self.changed += 1,
                // Those that came to an end count, whatever became of others.
                Adopted::Failed { why } => {
                    let this = Err(io::Error::other(why)).at(&file.source);
                    failed = failed.and(this);
                }
            }
        }
        failed
    }

    fn check(&mut self) -> Result<(), Failed> {
        let waiting = std::mem::take(&mut self.unsure);
        let asked = waiting.iter().map(|file| file.asked.clone()).collect();
        let answers = self.asks.check(asked)?;
        for (file, answer) in waiting.into_iter().zip(answers) {
            match answer {
                Sure::Taken | Sure::Own => {}
                Sure::InUse => self.asks.in_use.push(file.source),
                Sure::Changed => {
                    self.changed += 1;
                    spoil(&file.to, &file.was).at(&file.source)?;
                }
            }
        }
        Ok(())
    }
}

/// Copies content and holes; the target is empty.
fn copy(file: &Bring<'_>) -> Result<(), Failed> {
    let len = file.was.st_size.unsigned_abs();
    file.to.set_len(len).at(&file.path)?;
    let mut buf = vec![0; COPY.min(len as usize)];
    let mut at = 0;
    while at < len {
        let data = match rustix::fs::seek(&file.from, SeekFrom::Data(at)) {
            Ok(data) => data.min(len),
            Err(rustix::io::Errno::NXIO) => break,
            // Where nobody tells holes there are none.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error).at(&file.source),
        };
        let wanted = (len - data).min(buf.len() as u64) as usize;
        let read = file
            .from
            .read_at(&mut buf[..wanted], data)
            .at(&file.source)?;
        if read == 0 {
            // It has become shorter, and has another time by now: a later pass sees that.
            break;
        }
        file.to.write_all_at(&buf[..read], data).at(&file.path)?;
        at = data + read as u64;
    }
    Ok(())
}

impl Content for Adopting<'_> {
    fn is_same(&self, was: &Stat, is: &Stat) -> bool {
        is_same(was, is)
    }

    fn rewrites(&self) -> bool {
        false
    }

    fn bring(&mut self, file: Bring<'_>) -> Result<(), Failed> {
        let source = self.to_take(&file)?;
        if source.is_none() {
            copy(&file)?;
        }
        let inode = InodeId(file.to.metadata().at(&file.path)?.ino());
        self.waiting_bytes += file.was.st_size.unsigned_abs();
        self.unfinished.push(Unfinished {
            from: file.from.into(),
            was: *file.was,
            to: file.to.into(),
            source: file.source,
            path: file.path,
            asked: AdoptFile { inode, source },
        });
        match self.is_full() {
            true => self.settle(),
            false => Ok(()),
        }
    }

    fn pass(&mut self, same: Same<'_>) -> Result<(), Failed> {
        self.there += same.was.st_size.unsigned_abs();
        if self.pass != Pass::Check {
            return Ok(());
        }
        let path = same.target.path();
        let to = same.target.open(OFlags::PATH, Mode::empty())?;
        let from = same.source.open(OFlags::PATH, Mode::empty())?;
        if xattrs(&from, &to, &path)? {
            self.changed += 1;
        }
        let names = self.scanned.names_of(same.was.st_ino);
        self.unsure.push(Unsure {
            was: *same.was,
            to,
            source: same.source.path(),
            asked: self.asks.of(same.source, same.was, same.is, names),
        });
        match self.is_full() {
            true => self.settle(),
            false => Ok(()),
        }
    }

    fn settle(&mut self) -> Result<(), Failed> {
        self.finish()?;
        self.check()?;
        self.waiting_bytes = 0;
        Ok(())
    }

    fn line(&self, done: &Done) -> String {
        let what = match self.pass {
            Pass::Bring { .. } | Pass::Add => "brought",
            Pass::Check => "checked",
        };
        format!(
            "{what}: {} of {} entries, {} of {}",
            human::count(done.entries),
            human::count(self.scanned.entries),
            human::size(self.there),
            human::size(self.scanned.bytes)
        )
    }
}
