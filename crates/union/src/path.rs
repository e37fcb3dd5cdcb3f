//! Paths below the root of a branch.

use perigee_types::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest path, bytes; the kernel has the same limit.
const PATH_LEN_MAX: usize = 4_096;
/// The longest name, bytes.
const NAME_LEN_MAX: usize = 255;

/// A path from the root of a union, or of a branch: names with `/` between them; the root is empty.
///
/// Invariant: no name is empty, `.` or `..`, or has a NUL; so it leads nowhere but below the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct RelPath(Vec<u8>);

/// Why bytes are no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a path below a root")]
pub struct NotAPath;

impl TryFrom<Vec<u8>> for RelPath {
    type Error = NotAPath;

    fn try_from(bytes: Vec<u8>) -> Result<Self, NotAPath> {
        let good = bytes.is_empty() || bytes.split(|byte| *byte == b'/').all(is_name);
        match good && bytes.len() <= PATH_LEN_MAX {
            true => Ok(Self(bytes)),
            false => Err(NotAPath),
        }
    }
}

impl From<RelPath> for Vec<u8> {
    fn from(path: RelPath) -> Self {
        path.0
    }
}

/// Whether bytes are one name.
#[must_use]
pub fn is_name(bytes: &[u8]) -> bool {
    let special = bytes.is_empty() || bytes == b"." || bytes == b"..";
    !special && bytes.len() <= NAME_LEN_MAX && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
}

impl RelPath {
    /// The root.
    pub const ROOT: Self = Self(Vec::new());

    /// The path of `name` in this directory.
    ///
    /// # Errors
    /// ENAMETOOLONG; EINVAL of what is no name.
    pub fn join(&self, name: &[u8]) -> Result<Self, Errno> {
        if name.len() > NAME_LEN_MAX || self.0.len() + name.len() + 1 > PATH_LEN_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if !is_name(name) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Ok(Self(bytes))
    }

    /// The directory that it is in, and its name there; none of the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (Self(self.0[..at].to_vec()), &self.0[at + 1..]),
            None => (Self::ROOT, &self.0[..]),
        })
    }

    /// Its names, from the root on.
    #[must_use]
    pub fn names(&self) -> Vec<&[u8]> {
        match self.is_root() {
            true => Vec::new(),
            false => self.0.split(|byte| *byte == b'/').collect(),
        }
    }

    /// Whether it is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is `above` or lies below it.
    #[must_use]
    pub fn is_within(&self, above: &Self) -> bool {
        let Some(rest) = self.0.strip_prefix(&above.0[..]) else {
            return false;
        };
        above.is_root() || rest.is_empty() || rest.first() == Some(&b'/')
    }

    /// The directories above it, the root first, and itself last.
    pub fn line(&self) -> impl Iterator<Item = Self> {
        let ends = self.0.iter().enumerate();
        let cuts: Vec<usize> = ends
            .filter(|(_, b)| **b == b'/')
            .map(|(at, _)| at)
            .collect();
        let root = std::iter::once(Self::ROOT).filter(|_| !self.is_root());
        let parents = cuts.into_iter().map(|at| Self(self.0[..at].to_vec()));
        let parents: Vec<Self> = root.chain(parents).collect();
        parents.into_iter().chain(std::iter::once(self.clone()))
    }

    /// As the system takes it; `.` is the root.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        match self.is_root() {
            true => Path::new("."),
            false => Path::new(OsStr::from_bytes(&self.0)),
        }
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::try_from(text.as_bytes().to_vec()).expect("a path")
    }

    #[test]
    fn nothing_leads_out_of_a_branch() {
        for bad in [
            "/", "a/", "/a", "a//b", "..", "a/../b", "./a", "a/.", "a\0b",
        ] {
            let made = RelPath::try_from(bad.as_bytes().to_vec());
            assert_eq!(made, Err(NotAPath), "{bad:?}");
        }
        assert_eq!(path("a").join(b".."), Err(Errno::EINVAL));
        assert_eq!(path("a").join(b"b/c"), Err(Errno::EINVAL));
        assert_eq!(path("a").join(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(RelPath::ROOT.join(b"a"), Ok(path("a")));
    }

    #[test]
    fn names_make_a_path_and_a_path_has_names() {
        assert!(path("a/b/d").is_within(&path("a/b")));
        assert!(path("a/b").is_within(&path("a/b")));
        assert!(!path("a/bb").is_within(&path("a/b")));
        assert!(path("a").is_within(&RelPath::ROOT));
        let line: Vec<RelPath> = path("a/b/c").line().collect();
        assert_eq!(line, [RelPath::ROOT, path("a"), path("a/b"), path("a/b/c")]);
        assert_eq!(RelPath::ROOT.line().count(), 1);
        assert_eq!(path("a/b").split(), Some((path("a"), &b"b"[..])));
    }
}
