//! Owner, mode, extended attributes with ACLs, and times.

use super::place::{At, Failed, in_fd, kind};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    getxattr, listxattr, removexattr, setxattr, utimensat,
};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Labels that mean something under one host's policy only: no cluster keeps them.
const OF_ONE_HOST: &str = "security.selinux";
/// What a directory that is being made is known by when its making goes on; no part of what it is to be.
pub const MARK: &str = "user.perigee.adopted-from";
/// The most bytes that the kernel gives of a list, or of a value.
const XATTR_LEN_MAX: usize = 64 << 10;

/// Gives `target` what `source`, with the attributes `was`, has, in the order in which none undoes another. `path`: for
/// messages.
pub fn attributes(
    source: &OwnedFd,
    was: &Stat,
    target: &OwnedFd,
    path: &Path,
) -> Result<(), Failed> {
    let is = rustix::fs::fstat(target).at(path)?;
    let there = in_fd(target);
    if (is.st_uid, is.st_gid) != (was.st_uid, was.st_gid) {
        let (uid, gid) = (Uid::from_raw(was.st_uid), Gid::from_raw(was.st_gid));
        chownat(target, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).at(path)?;
    }
    if kind(was) != FileType::Symlink {
        let mode = Mode::from_raw_mode(was.st_mode & 0o7777);
        // Also of what was opened for nothing but its place.
        rustix::fs::chmod(&there, mode).at(path)?;
    }
    xattrs(source, target, path)?;
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

/// The extended attributes alone; says whether any differed.
pub fn xattrs(source: &OwnedFd, target: &OwnedFd, path: &Path) -> Result<bool, Failed> {
    let (here, there) = (in_fd(source), in_fd(target));
    let (was, is) = (names(&here).at(path)?, names(&there).at(path)?);
    let mut changed = false;
    for name in is.difference(&was) {
        removexattr(&there, name.as_os_str()).at(path)?;
        changed = true;
    }
    for name in &was {
        let value = value(&here, name).at(path)?;
        if is.contains(name) && self::value(&there, name).at(path)? == value {
            continue;
        }
        setxattr(&there, name.as_os_str(), &value, XattrFlags::empty()).at(path)?;
        changed = true;
    }
    Ok(changed)
}

fn names(path: &Path) -> rustix::io::Result<BTreeSet<OsString>> {
    let mut buf = vec![0; XATTR_LEN_MAX];
    let len = match listxattr(path, &mut buf[..]) {
        // A file system that has none.
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        listed => listed?,
    };
    let names = buf[..len].split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let names = names.map(|name| OsString::from_vec(name.to_vec()));
    let left_out = [OF_ONE_HOST, MARK].map(OsStr::new);
    Ok(names
        .filter(|name| !left_out.contains(&name.as_os_str()))
        .collect())
}

fn value(path: &Path, name: &OsString) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; XATTR_LEN_MAX];
    let len = getxattr(path, name.as_os_str(), &mut buf[..])?;
    buf.truncate(len);
    Ok(buf)
}
