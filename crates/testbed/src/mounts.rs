//! Which mounts lie below a directory, and taking them away without waiting for their daemon.

use rustix::mount::{UnmountFlags, unmount};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Mount points at or below `directory`, the deepest and newest first.
///
/// Errors: those of reading `/proc/self/mountinfo`.
pub fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = of("self")?;
    found.retain(|point| point.starts_with(directory));
    found.reverse();
    Ok(found)
}

/// Mount points of a process, by its number or as `self`, in the order of the kernel's table.
///
/// Errors: those of reading the table.
pub(crate) fn of(process: &str) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(unescape).collect())
}

/// Mount points of process `pid` at which others' file systems would outlive their unmounting, as long as its mount
/// namespace does: those of FUSE and of namespaces, and all below `directory`, without itself. The deepest and newest come first.
///
/// Errors: those of reading its table.
pub(crate) fn of_others(pid: i32, directory: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read(format!("/proc/{pid}/mountinfo"))?;
    let table = String::from_utf8_lossy(&table);
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| {
            let (place, rest) = line.split_once(" - ")?;
            let point = unescape(place.split(' ').nth(4)?.as_bytes());
            let is_theirs = rest.starts_with("fuse") || rest.starts_with("nsfs ");
            let is_below = point.starts_with(directory) && point != directory;
            (is_theirs || is_below).then_some(point)
        })
        .collect();
    found.reverse();
    Ok(found)
}

/// Whether `point` is a mount point. Asks the kernel's table, so a dead daemon cannot hang it.
#[must_use]
pub fn is_mounted(point: &Path) -> bool {
    below(point).is_ok_and(|points| points.iter().any(|found| found == point))
}

/// Detaches every mount at or below `directory`; calls that still wait there end when the daemon
/// does.
///
/// Errors: the first refusal; the others are tried all the same.
pub fn detach_below(directory: &Path) -> io::Result<()> {
    let mut outcome = Ok(());
    for point in below(directory)? {
        if let Err(errno) = unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            outcome = outcome.and(Err(errno.into()));
        }
    }
    outcome
}

/// The table writes blank, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let value =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match value {
            Some(value) => {
                bytes.push(value);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_mount_points_are_read() {
        assert_eq!(unescape(br"/tmp/a\040b\134c"), PathBuf::from(r"/tmp/a b\c"));
        assert_eq!(unescape(br"/tmp/a\9"), PathBuf::from(r"/tmp/a\9"));
    }

    #[test]
    fn the_root_is_mounted_and_a_fresh_directory_is_not() {
        let directory = tempfile::tempdir().unwrap();
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(directory.path()));
        assert!(below(directory.path()).unwrap().is_empty());
    }
}
