//! What there is to adopt, before anything is done.

use super::mirror::{At, Dir, Failed, kind};
use super::places::Places;
use perigee_proto::admin::Failure;
use rustix::fs::FileType;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

/// How much it is, and which files have several names.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// All entries.
    pub(super) entries: u64,
    /// Bytes of regular files.
    pub(super) bytes: u64,
    /// Names of files that have several, by their number.
    names: RefCell<BTreeMap<u64, u64>>,
}

impl Scanned {
    /// How many names of a file were found, and are there still.
    pub(super) fn names_of(&self, inode: u64) -> u64 {
        self.names.borrow().get(&inode).copied().unwrap_or(1)
    }

    /// One of them is gone.
    pub(super) fn lost_name(&self, inode: u64) {
        if let Some(names) = self.names.borrow_mut().get_mut(&inode) {
            *names -= 1;
        }
    }
}

/// Goes over all of a directory.
///
/// Errors: something else is mounted in it.
pub(super) fn scan(places: &Places, root: &Dir) -> Result<Scanned, Failure> {
    let mut scanned = Scanned::default();
    let walked = rustix::fs::fstat(&root.fd).at(&root.path);
    let walked = walked.and_then(|own| walk(root, own.st_dev, &mut scanned));
    walked.map_err(|Failed { at, error }| {
        Failure::new(format!("{}, at `{}`", places.what(), at.display()), error)
    })?;
    Ok(scanned)
}

fn walk(dir: &Dir, device: u64, scanned: &mut Scanned) -> Result<(), Failed> {
    scanned.entries += 1;
    for name in dir.names()? {
        let entry = dir.entry(&name);
        let Some(stat) = entry.look()? else {
            continue;
        };
        if stat.st_dev != device {
            return Err(io::Error::other("something is mounted there")).at(&entry.path());
        }
        if kind(&stat) == FileType::Directory {
            walk(&entry.open_dir()?, device, scanned)?;
            continue;
        }
        scanned.entries += 1;
        if kind(&stat) == FileType::RegularFile {
            let known = scanned.names.get_mut();
            let names = known.get(&stat.st_ino).copied().unwrap_or(0) + 1;
            if names == 1 {
                scanned.bytes += stat.st_size.unsigned_abs();
            }
            if stat.st_nlink > 1 {
                known.insert(stat.st_ino, names);
            }
        }
    }
    Ok(())
}
