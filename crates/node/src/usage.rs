//! How much of its disk a node's store takes.
//!
//! The files are counted when somebody asks, in the background, and seldom enough that a store of
//! millions of files spends little time on it.

use parking_lot::Mutex;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// A count is good for this long at least, and for [`REST`] times as long as it took.
const FRESH: Duration = Duration::from_secs(1);
const REST: u32 = 20;
/// How long an asker waits for a count that is under way.
const WAIT: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy)]
struct Count {
    bytes: u64,
    ended: Instant,
    took: Duration,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Count>,
    counting: bool,
}

/// The bytes of a directory's files on disk.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Usage {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            state: Arc::default(),
        }
    }

    /// The bytes as of the last count; none before the first has ended.
    pub(crate) async fn bytes(&self) -> Option<u64> {
        if self.begin() {
            let me = self.clone();
            let count = tokio::task::spawn_blocking(move || me.count());
            // Without an end in time the last count has to do.
            _ = tokio::time::timeout(WAIT, count).await;
        }
        self.state.lock().last.map(|count| count.bytes)
    }

    /// Whether it is time for a count, and nobody else makes one.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let fresh = |count: Count| count.ended.elapsed() < FRESH.max(count.took * REST);
        let due = !state.counting && !state.last.is_some_and(fresh);
        state.counting |= due;
        due
    }

    fn count(&self) {
        let began = Instant::now();
        let counted = allocated_below(&self.dir);
        let mut state = self.state.lock();
        state.counting = false;
        match counted {
            Ok(bytes) => {
                state.last = Some(Count {
                    bytes,
                    ended: Instant::now(),
                    took: began.elapsed(),
                });
            }
            Err(error) => {
                state.last = None;
                warn!(dir = %self.dir.display(), %error, "space that is in use not counted");
            }
        }
    }
}

/// The space that the files below a directory take; those that vanish meanwhile take none.
fn allocated_below(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder != dir => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => bytes = bytes.saturating_add(about.blocks().saturating_mul(512)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn holes_take_no_space_and_folders_are_walked() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/full"), vec![7; 256 << 10]).unwrap();
        let sparse = fs::File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let bytes = allocated_below(dir.path()).unwrap();
        assert!((256 << 10..1 << 20).contains(&bytes), "{bytes}");
        assert!(allocated_below(&dir.path().join("none")).is_err());
    }

    #[tokio::test]
    async fn a_count_is_kept_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let usage = Usage::new(dir.path().to_owned());
        assert_eq!(usage.bytes().await, Some(0));
        fs::write(dir.path().join("new"), vec![7; 64 << 10]).unwrap();
        assert_eq!(usage.bytes().await, Some(0), "no second count so soon");
        let old = Instant::now().checked_sub(Duration::from_secs(60));
        if let (Some(count), Some(old)) = (&mut usage.state.lock().last, old) {
            count.ended = old;
        }
        assert!(usage.bytes().await.is_some_and(|bytes| bytes >= 64 << 10));
    }
}
