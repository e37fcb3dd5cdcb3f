//! Two hosts on one file system: what one did, the other sees at once.
//!
//! Each case works in a directory of its own, seen through two paths. Before the writer acts, the
//! reader fills its caches (attributes, listing, negative lookup, pages, an open descriptor), so a
//! stale cache cannot hide.

pub mod appends;
pub mod content;
pub mod exclusion;
pub mod listing;
pub mod maps;
pub mod names;
pub mod open_files;

use crate::ensure;
use crate::error::{Call, Checked};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// One directory seen by two hosts.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The path on the host that acts.
    pub writer: PathBuf,
    /// The path on the host that looks.
    pub reader: PathBuf,
}

/// A check of one promise, in a fresh directory.
pub type Case = (&'static str, fn(&Pair) -> Checked);

impl Pair {
    /// The two paths of one directory.
    #[must_use]
    pub fn new(writer: &Path, reader: &Path) -> Self {
        Self {
            writer: writer.to_owned(),
            reader: reader.to_owned(),
        }
    }

    /// The same directory with the parts exchanged.
    #[must_use]
    pub fn swapped(&self) -> Self {
        Self {
            writer: self.reader.clone(),
            reader: self.writer.clone(),
        }
    }

    /// A fresh directory below, made by the writer.
    ///
    /// Errors: those of mkdir(2).
    pub fn fresh(&self, name: &str) -> Checked<Self> {
        let below = Self {
            writer: self.w(name),
            reader: self.r(name),
        };
        fs::create_dir(&below.writer).call(|| format!("mkdir {}", below.writer.display()))?;
        Ok(below)
    }

    /// `name` on the writer's side.
    #[must_use]
    pub fn w(&self, name: &str) -> PathBuf {
        self.writer.join(name)
    }

    /// `name` on the reader's side.
    #[must_use]
    pub fn r(&self, name: &str) -> PathBuf {
        self.reader.join(name)
    }

    /// The writer makes a file with this content.
    ///
    /// Errors: those of the calls.
    pub fn write(&self, name: &str, content: &[u8]) -> Checked {
        fs::write(self.w(name), content).call(|| format!("write {name}"))
    }

    /// Fills the reader's caches of a file: attributes, listing, pages. The descriptor stays open.
    ///
    /// Errors: the file is not there.
    pub fn prime(&self, name: &str) -> Checked<File> {
        fs::symlink_metadata(self.r(name)).call(|| format!("stat {name}"))?;
        self.names()?;
        let mut file = File::open(self.r(name)).call(|| format!("open {name}"))?;
        file.read_to_end(&mut Vec::new())
            .call(|| format!("read {name}"))?;
        Ok(file)
    }

    /// Fills the reader's caches with the absence of a name.
    ///
    /// Errors: the name exists.
    pub fn prime_absent(&self, name: &str) -> Checked {
        self.absent(name)
    }

    /// The names that the reader lists.
    ///
    /// Errors: those of the listing.
    pub fn names(&self) -> Checked<BTreeSet<String>> {
        let what = || format!("list {}", self.reader.display());
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.reader).call(what)? {
            let name = entry.call(what)?.file_name().to_string_lossy().into_owned();
            ensure!(names.insert(name.clone()), "`{name}` is listed twice");
        }
        Ok(names)
    }

    /// The reader sees `name`, by lookup and in the listing, with the writer's attributes.
    ///
    /// Errors: `Violated` says what differs.
    pub fn present(&self, name: &str) -> Checked {
        ensure!(
            self.names()?.contains(name),
            "`{name}` is not listed by the reader"
        );
        self.same_attributes(name)
    }

    /// The reader sees no `name`, neither by lookup nor in the listing.
    ///
    /// Errors: `Violated` says what it saw.
    pub fn absent(&self, name: &str) -> Checked {
        let looked = fs::symlink_metadata(self.r(name));
        let missing = looked
            .as_ref()
            .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        ensure!(
            missing,
            "the reader finds `{name}`, which is not there: {looked:?}"
        );
        ensure!(
            !self.names()?.contains(name),
            "the reader lists `{name}`, which is not there"
        );
        Ok(())
    }

    /// Both sides show the same attributes of `name`, to the nanosecond.
    ///
    /// Errors: `Violated` shows both.
    pub fn same_attributes(&self, name: &str) -> Checked {
        let writer = attributes(&self.w(name))?;
        let reader = attributes(&self.r(name))?;
        ensure!(
            writer == reader,
            "`{name}`: the writer has {writer:?}, the reader {reader:?}"
        );
        Ok(())
    }

    /// The reader sees `expected` by a new open, by the descriptor opened before, and in the size.
    ///
    /// Errors: `Violated` says where the first difference is.
    pub fn same_content(&self, name: &str, held: &File, expected: &[u8]) -> Checked {
        let size = fs::metadata(self.r(name))
            .call(|| format!("stat {name}"))?
            .len();
        ensure!(
            size == expected.len() as u64,
            "`{name}`: {} bytes, seen {size}",
            expected.len()
        );
        let opened = fs::read(self.r(name)).call(|| format!("read {name}"))?;
        equal(name, "a new open", expected, &opened)?;
        let size = held.metadata().call(|| format!("fstat {name}"))?.len();
        ensure!(
            size == expected.len() as u64,
            "`{name}`: {}, fstat {size}",
            expected.len()
        );
        equal(name, "the old descriptor", expected, &read_all(held)?)?;
        self.same_attributes(name)
    }
}

/// What both hosts must agree on. Blocks and access time are each host's own.
#[derive(Debug, PartialEq, Eq)]
struct Attributes {
    inode: u64,
    mode: u32,
    links: u64,
    owner: (u32, u32),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

fn attributes(path: &Path) -> Checked<Attributes> {
    let data = fs::symlink_metadata(path).call(|| format!("stat {}", path.display()))?;
    Ok(Attributes {
        inode: data.ino(),
        mode: data.mode(),
        links: data.nlink(),
        owner: (data.uid(), data.gid()),
        size: data.size(),
        modified: (data.mtime(), data.mtime_nsec()),
        changed: (data.ctime(), data.ctime_nsec()),
    })
}

/// The whole file by positioned reads.
fn read_all(file: &File) -> Checked<Vec<u8>> {
    let mut content = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let got = file
            .read_at(&mut buffer, content.len() as u64)
            .call(|| format!("read at {}", content.len()))?;
        if got == 0 {
            return Ok(content);
        }
        content.extend_from_slice(&buffer[..got]);
    }
}

fn equal(name: &str, by: &str, expected: &[u8], seen: &[u8]) -> Checked {
    ensure!(
        expected.len() == seen.len(),
        "`{name}` by {by}: {} bytes instead of {}",
        seen.len(),
        expected.len()
    );
    let wrong = expected
        .iter()
        .zip(seen)
        .position(|(want, got)| want != got);
    ensure!(
        wrong.is_none(),
        "`{name}` by {by}: wrong from byte {wrong:?} of {}",
        seen.len()
    );
    Ok(())
}

/// All cases, in the order in which a failure is easiest to understand.
#[must_use]
pub fn cases() -> Vec<Case> {
    let groups: [&[Case]; 7] = [
        names::CASES,
        content::CASES,
        listing::CASES,
        open_files::CASES,
        maps::CASES,
        appends::CASES,
        exclusion::CASES,
    ];
    groups.concat()
}

/// Runs every case in both directions and gives what failed, each with its name.
#[must_use]
pub fn run(a: &Path, b: &Path) -> Vec<(String, crate::CheckError)> {
    let pair = Pair::new(a, b);
    let mut failures = Vec::new();
    for (name, case) in cases() {
        for (direction, side) in [("a-to-b", pair.clone()), ("b-to-a", pair.swapped())] {
            let title = format!("{name}-{direction}");
            let outcome = side.fresh(&title).and_then(|fresh| case(&fresh));
            if let Err(error) = outcome {
                failures.push((title, error));
            }
        }
    }
    failures
}
