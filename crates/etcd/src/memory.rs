//! What a process remembers of its etcd, on its own disk: which one it is, and how far it was.
//!
//! An etcd that was put back to an older state answers like any other. So each process puts a mark of its own with
//! what it commits, and writes down which revision that was before it answers. At the start of every connection,
//! as which each etcd that was put back must be met, the mark must be of that revision or a later one. Revisions
//! alone would not do: somebody else's changes may bring them up again.

use crate::error::OpenError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use tracing::warn;

/// How far an etcd was, as it counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The number that it gives itself.
    pub etcd: u64,
    /// The last revision that it acknowledged to this process, which left its mark there; 0: none.
    pub marked: u64,
    /// The last revision that this process has heard of.
    pub seen: u64,
}

impl Known {
    /// Whether what an etcd says of itself may follow.
    #[must_use]
    pub fn allows(&self, now: Self) -> bool {
        now.etcd == self.etcd && now.marked >= self.marked && now.seen >= self.seen
    }
}

/// Where the two places of the file begin: apart, so that a torn write leaves the other one.
const PLACES: [u64; 2] = [0, 4096];
/// The longest text of one: a checksum, and three numbers with their names.
const TEXT_LEN_MAX: usize = 256;

/// The memory of a process, and its file: two places, written by turns, each with a checksum and a line of JSON.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    known: Mutex<Known>,
    written: Mutex<Written>,
}

/// What the file has.
#[derive(Debug)]
struct Written {
    file: File,
    known: Known,
    /// The place that is written next.
    next: usize,
}

impl Memory {
    /// Makes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path, known: Known) -> Result<Self, OpenError> {
        make(path, &known).map_err(failed("write", path))?;
        Self::open(path)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let opened = File::options().read(true).write(true).open(path);
        let file = opened.map_err(failed("open", path))?;
        let found = PLACES.map(|at| read(&file, at));
        let newest = found.iter().flatten().max_by_key(|known| known.seen);
        let Some(known) = newest.copied() else {
            let nothing = io::Error::from(io::ErrorKind::InvalidData);
            return Err(failed("read", path)(nothing));
        };
        // The other place may be torn, or older.
        let next = usize::from(found[0] == Some(known));
        Ok(Self {
            path: path.to_path_buf(),
            known: Mutex::new(known),
            written: Mutex::new(Written { file, known, next }),
        })
    }

    /// What is known now.
    #[must_use]
    pub fn known(&self) -> Known {
        *self.known.lock()
    }

    /// Notes a revision that was heard of. The file has it with the next [`Memory::keep`].
    pub(crate) fn see(&self, seen: u64) {
        let mut known = self.known.lock();
        known.seen = known.seen.max(seen);
    }

    /// Notes a revision in which this process left its mark. The file has it with the next [`Memory::keep`].
    pub(crate) fn mark(&self, marked: u64) {
        let mut known = self.known.lock();
        known.marked = known.marked.max(marked);
        known.seen = known.seen.max(marked);
    }

    /// Puts what is known into the file. Blocks for as long as that takes; whoever waited meanwhile has little left.
    pub fn keep(&self) {
        let mut written = self.written.lock();
        let known = self.known();
        if written.known == known {
            return;
        }
        let at = PLACES[written.next];
        let put = text(&known).and_then(|text| written.file.write_all_at(text.as_bytes(), at));
        match put.and_then(|()| written.file.sync_data()) {
            Ok(()) => {
                written.known = known;
                written.next = 1 - written.next;
            }
            // What was acknowledged is in etcd nevertheless: only its loss could go unseen.
            Err(error) => {
                warn!(%error, file = %self.path.display(), "how far etcd is is not remembered");
            }
        }
    }
}

/// An [`OpenError::Io`] in the making.
fn failed(action: &'static str, file: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let file = file.to_path_buf();
    move |source| OpenError::Io {
        action,
        file,
        source,
    }
}

pub(crate) fn text(known: &Known) -> io::Result<String> {
    let json = serde_json::to_string(known)?;
    Ok(format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())))
}

/// What one place holds, if it is whole.
fn read(file: &File, at: u64) -> Option<Known> {
    let mut bytes = [0; TEXT_LEN_MAX];
    let len = file.read_at(&mut bytes, at).ok()?;
    parse(&bytes[..len])
}

pub(crate) fn parse(bytes: &[u8]) -> Option<Known> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (sum, json) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
    let sum = u32::from_str_radix(sum, 16).ok()?;
    if sum != crc32c::crc32c(json.as_bytes()) {
        return None;
    }
    serde_json::from_str(json).ok()
}

/// Makes a file with both places. The old file or the new one is there after a crash.
fn make(path: &Path, known: &Known) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let file = options.open(&new)?;
    for at in PLACES {
        file.write_all_at(text(known)?.as_bytes(), at)?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_is_known_to_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("etcd.memory");
        let first = Known {
            etcd: 7,
            ..Known::default()
        };
        let memory = Memory::create(&file, first).unwrap();
        memory.mark(5);
        memory.see(9);
        memory.mark(3);
        memory.keep();
        let known = Memory::open(&file).unwrap().known();
        let (marked, seen) = (5, 9);
        assert_eq!(
            known,
            Known {
                etcd: 7,
                marked,
                seen
            }
        );
    }

    #[test]
    fn a_torn_write_leaves_what_was_known_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.memory");
        let memory = Memory::create(&path, Known::default()).unwrap();
        for marked in 1..=6 {
            memory.mark(marked);
            memory.keep();
            let whole = fs::read(&path).unwrap();
            for at in PLACES {
                let mut torn = whole.clone();
                torn[at as usize + 12] ^= 1;
                let copy = dir.path().join("torn");
                fs::write(&copy, torn).unwrap();
                let known = Memory::open(&copy).unwrap().known();
                assert!([marked - 1, marked].contains(&known.marked), "{known:?}");
            }
            assert_eq!(Memory::open(&path).unwrap().known().marked, marked);
        }
        fs::write(&path, "nothing of it").unwrap();
        assert!(Memory::open(&path).is_err());
    }

    #[test]
    fn an_etcd_that_went_back_is_not_allowed_and_nor_is_another_one() {
        let known = Known {
            etcd: 7,
            marked: 5,
            seen: 9,
        };
        assert!(known.allows(known));
        assert!(known.allows(Known { seen: 10, ..known }));
        assert!(!known.allows(Known { etcd: 8, ..known }));
        assert!(!known.allows(Known { marked: 4, ..known }));
        assert!(!known.allows(Known { seen: 8, ..known }));
        // others' changes have brought its revision up again
        let grown = Known {
            marked: 4,
            seen: 99,
            ..known
        };
        assert!(!known.allows(grown));
    }
}
