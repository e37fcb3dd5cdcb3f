//! The old directory loses what is in the new one, name by name.
//!
//! Nothing goes of which it is not known now that the new directory has it: a file that the node took is asked about once more, of
//! one that was copied the bytes are compared, and whatever is not in the new directory, or is another thing there, stays.

use super::content::{Asks, Sure, is_same, spoil};
use super::mirror::{At, Dir, Entry, Failed, kind, open_known};
use super::scan::Scanned;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, readlinkat, unlinkat};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes that are compared at once.
const READ: usize = 256 << 10;

/// What is left, and what has to be settled.
#[derive(Debug, Default)]
pub(super) struct Cleared {
    /// Entries that stay.
    pub(super) left: u64,
    /// Files that the node took, by their numbers in the cluster.
    pub(super) taken: Vec<u64>,
}

struct Clearing<'a, 'b> {
    asks: Asks<'a>,
    scanned: &'a Scanned,
    cleared: &'b mut Cleared,
}

/// Goes over the old directory once; gives files to which somebody writes.
pub(super) fn clear(
    asks: Asks<'_>,
    scanned: &Scanned,
    (source, target): (&Dir, &Dir),
    cleared: &mut Cleared,
) -> Result<Vec<PathBuf>, Failed> {
    cleared.left = 0;
    let mut clearing = Clearing {
        asks,
        scanned,
        cleared,
    };
    clearing.directory(source, target)?;
    Ok(clearing.asks.in_use)
}

impl Clearing<'_, '_> {
    fn directory(&mut self, source: &Dir, target: &Dir) -> Result<(), Failed> {
        let mut files = Vec::new();
        for name in source.names()? {
            let (from, to) = (source.entry(&name), target.entry(&name));
            let (Some(was), Some(is)) = (from.look()?, to.look()?) else {
                self.cleared.left += 1;
                continue;
            };
            if kind(&was) != kind(&is) {
                self.cleared.left += 1;
                continue;
            }
            match kind(&was) {
                FileType::Directory => {
                    self.directory(&from.open_dir()?, &to.open_dir()?)?;
                    // What is left in it is counted there.
                    _ = unlinkat(&source.fd, &name, AtFlags::REMOVEDIR);
                }
                FileType::RegularFile if is_same(&was, &is) => files.push((name, was, is)),
                FileType::Symlink if leads_alike(from, to)? => self.remove(from)?,
                FileType::RegularFile | FileType::Symlink => self.cleared.left += 1,
                _ if was.st_rdev == is.st_rdev => self.remove(from)?,
                _ => self.cleared.left += 1,
            }
        }
        for part in files.chunks(Asks::FILES_MAX) {
            self.files(source, target, part)?;
        }
        Ok(())
    }

    fn files(
        &mut self,
        source: &Dir,
        target: &Dir,
        files: &[(OsString, Stat, Stat)],
    ) -> Result<(), Failed> {
        let asked = files.iter().map(|(name, was, is)| {
            let names = self.scanned.names_of(was.st_ino);
            self.asks.of(source.entry(name), was, is, names)
        });
        let answers = self.asks.check(asked.collect())?;
        for ((name, was, is), answer) in files.iter().zip(answers) {
            let (from, to) = (source.entry(name), target.entry(name));
            let gone = match answer {
                Sure::Taken => {
                    self.cleared.taken.push(is.st_ino);
                    true
                }
                Sure::Own if has_same_bytes((from, was), (to, is))? => true,
                Sure::InUse => {
                    self.asks.in_use.push(from.path());
                    false
                }
                Sure::Own | Sure::Changed => {
                    let other = open_known(to, is, OFlags::PATH)?;
                    spoil(&other, was).at(&to.path())?;
                    false
                }
            };
            match gone {
                true => {
                    self.remove(from)?;
                    self.scanned.lost_name(was.st_ino);
                }
                false => self.cleared.left += 1,
            }
        }
        Ok(())
    }

    fn remove(&mut self, entry: Entry<'_>) -> Result<(), Failed> {
        unlinkat(&entry.dir.fd, entry.name, AtFlags::empty()).at(&entry.path())
    }
}

fn leads_alike(from: Entry<'_>, to: Entry<'_>) -> Result<bool, Failed> {
    let read =
        |entry: Entry<'_>| readlinkat(&entry.dir.fd, entry.name, Vec::new()).at(&entry.path());
    Ok(read(from)? == read(to)?)
}

fn has_same_bytes(
    (from, was): (Entry<'_>, &Stat),
    (to, is): (Entry<'_>, &Stat),
) -> Result<bool, Failed> {
    let one = fs::File::from(open_known(from, was, OFlags::RDONLY)?);
    let other = fs::File::from(open_known(to, is, OFlags::RDONLY)?);
    let len = was.st_size.unsigned_abs();
    let mut at = 0;
    let (mut first, mut second) = (vec![0; READ], vec![0; READ]);
    while at < len {
        let wanted = (len - at).min(READ as u64) as usize;
        let (first, second) = (&mut first[..wanted], &mut second[..wanted]);
        one.read_exact_at(first, at).at(&from.path())?;
        other.read_exact_at(second, at).at(&to.path())?;
        if first != second {
            return Ok(false);
        }
        at += wanted as u64;
    }
    Ok(true)
}
