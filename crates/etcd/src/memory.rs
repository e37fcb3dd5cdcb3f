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
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
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

/// The memory of a process, and its file.
#[derive(Debug)]
pub struct Memory {
    file: PathBuf,
    known: Mutex<Known>,
    /// What the file has.
    written: Mutex<Known>,
}

impl Memory {
    /// Makes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(file: &Path, known: Known) -> Result<Self, OpenError> {
        write(file, &known).map_err(failed("write", file))?;
        Ok(Self::of(file, known))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn open(file: &Path) -> Result<Self, OpenError> {
        let bytes = fs::read(file).map_err(failed("read", file))?;
        let known = serde_json::from_slice(&bytes).map_err(io::Error::from);
        Ok(Self::of(file, known.map_err(failed("read", file))?))
    }

    fn of(file: &Path, known: Known) -> Self {
        Self {
            file: file.to_path_buf(),
            known: Mutex::new(known),
            written: Mutex::new(known),
        }
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
        if *written == known {
            return;
        }
        match write(&self.file, &known) {
            Ok(()) => *written = known,
            // What was acknowledged is in etcd nevertheless: only its loss could go unseen.
            Err(error) => {
                warn!(%error, file = %self.file.display(), "how far etcd is is not remembered");
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

/// The old file or the new one is there after a crash.
fn write(file: &Path, known: &Known) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let mut out = options.open(&new)?;
    out.write_all(&serde_json::to_vec(known)?)?;
    out.sync_data()?;
    fs::rename(&new, file)?;
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
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
