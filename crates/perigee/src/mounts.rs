//! Perigee's mounts in the kernel's mount table, and which of them a local path lies in.

use perigee_proto::admin::{AdminPath, Failure};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The type that the kernel shows for Perigee's mounts.
pub const FSTYPE: &str = "fuse.perigee";
/// What the source of a mount begins with; the node's data directory follows.
pub const SOURCE_PREFIX: &str = "perigee:";

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the file system that is the mount's root: not `/` for a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// As in [`FSTYPE`].
    pub fstype: String,
    /// The source.
    pub source: PathBuf,
}

impl Mount {
    /// The data directory of the node that serves it; none for other file systems.
    pub fn data_dir(&self) -> Option<PathBuf> {
        if self.fstype != FSTYPE {
            return None;
        }
        let source = self.source.as_os_str().as_bytes();
        let dir = source.strip_prefix(SOURCE_PREFIX.as_bytes())?;
        Some(PathBuf::from(OsStr::from_bytes(dir)))
    }
}

/// A local path as the node behind its mount knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The node's data directory.
    pub data_dir: PathBuf,
    /// Absolute, from the root of the file system.
    pub inside: AdminPath,
}

/// The mount table of this process.
pub fn table() -> Result<Vec<Mount>, Failure> {
    let bytes = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Failure::new("cannot read the mount table", error))?;
    Ok(parse(&bytes))
}

/// The mounts that the node with this data directory serves, the latest first.
pub fn of_node(table: &[Mount], data_dir: &Path) -> Vec<Mount> {
    table
        .iter()
        .rev()
        .filter(|mount| mount.data_dir().as_deref() == Some(data_dir))
        .cloned()
        .collect()
}

/// Finds the mount that `path` lies in. Links are followed.
pub fn resolve(path: &Path) -> Result<Place, Failure> {
    let what = || format!("cannot find `{}`", path.display());
    let full = path.canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotConnected => Failure::new(what(), "the node behind its mount is not running")
            .hint("`perigee up` starts it, `perigee umount --lazy` removes the dead mount"),
        _ => Failure::new(what(), error),
    })?;
    place_of(&table()?, &full).ok_or_else(|| {
        Failure::new(what(), "it is not in a Perigee mount")
            .hint("`perigee status` lists the mounts")
    })
}

/// Finds the mount that `path` lies in, though nothing may be there; and where it is on this machine. Links are followed
/// above its last name alone.
pub fn resolve_gone(path: &Path) -> Result<(Place, PathBuf), Failure> {
    let what = || format!("cannot find `{}`", path.display());
    let mut at = std::path::absolute(path).map_err(|error| Failure::new(what(), error))?;
    if at.components().any(|part| part == Component::ParentDir) {
        return Err(Failure::new(
            what(),
            "a path that may be gone is to be without `..`",
        ));
    }
    let mut names = Vec::new();
    let mut full = loop {
        let Some(name) = at.file_name().map(OsStr::to_os_string) else {
            break at;
        };
        names.push(name);
        at.pop();
        match at.canonicalize() {
            Ok(found) => break found,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(Failure::new(what(), error)),
        }
    };
    full.extend(names.into_iter().rev());
    let place = place_of(&table()?, &full).ok_or_else(|| {
        Failure::new(what(), "it is not in a Perigee mount")
            .hint("`perigee status` lists the mounts")
    })?;
    Ok((place, full))
}

fn place_of(table: &[Mount], full: &Path) -> Option<Place> {
    // the later of two mounts on one point covers the earlier
    let mount = table
        .iter()
        .filter(|mount| full.starts_with(&mount.mountpoint))
        .max_by_key(|mount| mount.mountpoint.components().count())?;
    let data_dir = mount.data_dir()?;
    let below = full.strip_prefix(&mount.mountpoint).ok()?;
    let mut inside = mount.root.clone();
    if !below.as_os_str().is_empty() {
        inside.push(below);
    }
    Some(Place {
        data_dir,
        inside: AdminPath::from(&inside),
    })
}

/// What a mount does with a directory that has entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// It is refused.
    Refuse,
    /// They are hidden while the mount is there.
    Hide,
}

/// Checks that something can be mounted on `path`, and makes it absolute.
pub fn check_mountpoint(path: &Path, entries: Entries) -> Result<PathBuf, Failure> {
    let what = || format!("cannot mount on `{}`", path.display());
    let fail = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Failure::new(what(), "there is no such directory")
            .hint(format!("mkdir -p '{}'", path.display())),
        ErrorKind::NotConnected => Failure::new(what(), "a dead mount lies on it")
            .hint(format!("perigee umount --lazy '{}'", path.display())),
        _ => Failure::new(what(), error),
    };
    let full = path.canonicalize().map_err(fail)?;
    if !full.is_dir() {
        return Err(Failure::new(what(), "it is not a directory"));
    }
    if table()?.iter().any(|mount| mount.mountpoint == full) {
        return Err(Failure::new(what(), "something is mounted there already")
            .hint("`perigee status` lists Perigee's mounts"));
    }
    match full.read_dir().map_err(fail)?.next() {
        None => Ok(full),
        Some(_) if entries == Entries::Hide => Ok(full),
        Some(_) => Err(Failure::new(what(), "the directory is not empty")
            .hint("choose an empty directory: what is in it would be hidden")),
    }
}

fn parse(bytes: &[u8]) -> Vec<Mount> {
    bytes
        .split(|b| *b == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `36 35 98:0 /root /mountpoint options [tags] - fstype source super-options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
    Some(Mount {
        root: unescape(fields.get(3)?),
        mountpoint: unescape(fields.get(4)?),
        fstype: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?),
    })
}

/// The kernel writes space, tab, line feed and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(value) => {
                out.push(value);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        40 22 0:50 / /mnt/p rw,nosuid shared:9 master:2 - fuse.perigee perigee:/var/lib/perigee/node-1 rw\n\
        41 22 0:51 / /mnt/a\\040b rw - fuse.perigee perigee:/data\\040dir/node-2 rw\n\
        42 22 0:50 /sub/dir /bind rw - fuse.perigee perigee:/var/lib/perigee/node-1 rw\n\
        43 40 0:60 / /mnt/p/inner rw - tmpfs tmpfs rw\n\
        broken line\n";

    fn place(path: &str) -> Option<(String, String)> {
        let place = place_of(&parse(TABLE), Path::new(path))?;
        Some((
            place.data_dir.display().to_string(),
            place.inside.to_string(),
        ))
    }

    fn found(dir: &str, inside: &str) -> Option<(String, String)> {
        Some((dir.to_owned(), inside.to_owned()))
    }

    #[test]
    fn a_path_is_found_in_its_mount() {
        let node = "/var/lib/perigee/node-1";
        assert_eq!(place("/mnt/p/x/file"), found(node, "/x/file"));
        assert_eq!(place("/mnt/p"), found(node, "/"));
        assert_eq!(place("/mnt/a b/f"), found("/data dir/node-2", "/f"));
    }

    #[test]
    fn a_bind_mount_keeps_the_way_from_the_root() {
        let node = "/var/lib/perigee/node-1";
        assert_eq!(place("/bind/f"), found(node, "/sub/dir/f"));
        assert_eq!(place("/bind"), found(node, "/sub/dir"));
    }

    #[test]
    fn another_file_system_inside_or_beside_a_mount_is_not_perigee() {
        assert_eq!(place("/mnt/p/inner/f"), None);
        assert_eq!(place("/mnt/pq"), None);
        assert_eq!(place("/etc"), None);
    }

    #[test]
    fn mounts_of_a_node_come_latest_first() {
        let mounts = of_node(&parse(TABLE), Path::new("/var/lib/perigee/node-1"));
        let points: Vec<_> = mounts.iter().map(|m| m.mountpoint.as_path()).collect();
        assert_eq!(points, [Path::new("/bind"), Path::new("/mnt/p")]);
    }

    #[test]
    fn a_bad_mount_point_is_refused_with_a_sentence() {
        let temp = tempfile::tempdir().unwrap();
        let missing = check_mountpoint(&temp.path().join("none"), Entries::Refuse).unwrap_err();
        assert_eq!(missing.why, "there is no such directory");
        let file = temp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(
            check_mountpoint(&file, Entries::Refuse).unwrap_err().why,
            "it is not a directory"
        );
        assert_eq!(
            check_mountpoint(temp.path(), Entries::Refuse)
                .unwrap_err()
                .why,
            "the directory is not empty"
        );
        let proc = check_mountpoint(Path::new("/proc"), Entries::Refuse).unwrap_err();
        assert_eq!(proc.why, "something is mounted there already");
        assert!(check_mountpoint(temp.path(), Entries::Hide).is_ok());
        std::fs::remove_file(file).unwrap();
        assert!(check_mountpoint(temp.path(), Entries::Refuse).is_ok());
    }

    #[test]
    fn fuzz_the_mount_table() {
        let line = b"36 35 98:0 / /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw".to_vec();
        perigee_fuzz::assault("perigee::mounts", &[line], |bytes| parse_line(bytes).into());
    }
}
