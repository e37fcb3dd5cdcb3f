//! How much of its disk a node's store takes.
//!
//! The files are counted when somebody asks, in the background, and seldom enough that a store of
//! millions of files spends little time on it.

use parking_lot::Mutex;
use perigee_types::ContainerId;
use std::collections::BTreeMap;
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

#[derive(Debug, Clone)]
struct Count {
    found: Found,
    ended: Instant,
    took: Duration,
}

/// What was found on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Found {
    /// In all.
    bytes: u64,
    /// Files of each container. Small files are not in it: they lie among the keys.
    containers: BTreeMap<ContainerId, u64>,
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
        let state = self.state.lock();
        state.last.as_ref().map(|count| count.found.bytes)
    }

    /// The same of the files of each container, as of the last count.
    pub(crate) fn containers(&self) -> BTreeMap<ContainerId, u64> {
        let state = self.state.lock();
        let last = state.last.as_ref();
        last.map_or_else(BTreeMap::new, |count| count.found.containers.clone())
    }

    /// What is not in files of containers, as of the last count: keys, among which small files lie, and logs.
    pub(crate) fn elsewhere(&self) -> u64 {
        let state = self.state.lock();
        state.last.as_ref().map_or(0, |count| {
            let files: u64 = count.found.containers.values().sum();
            count.found.bytes.saturating_sub(files)
        })
    }

    /// When the last count ended; none before it.
    pub(crate) fn ended(&self) -> Option<Instant> {
        self.state.lock().last.as_ref().map(|count| count.ended)
    }

    /// How long the last count took; none before it.
    pub(crate) fn took(&self) -> Option<Duration> {
        self.state.lock().last.as_ref().map(|count| count.took)
    }

    /// Whether it is time for a count, and nobody else makes one.
    fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let fresh = |count: &Count| count.ended.elapsed() < FRESH.max(count.took * REST);
        let due = !state.counting && !state.last.as_ref().is_some_and(fresh);
        state.counting |= due;
        due
    }

    fn count(&self) {
        let began = Instant::now();
        let counted = allocated_below(&self.dir, perigee_store::container_of_dir);
        let mut state = self.state.lock();
        state.counting = false;
        match counted {
            Ok(found) => {
                state.last = Some(Count {
                    found,
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

/// The space that the files below a directory take; those that vanish meanwhile take none. `of` says whose folder it is.
fn allocated_below(dir: &Path, of: fn(&Path, &Path) -> Option<ContainerId>) -> io::Result<Found> {
    let mut found = Found::default();
    let mut folders = vec![(dir.to_owned(), None)];
    while let Some((folder, whose)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder != dir => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(about) if about.is_dir() => {
                    let path = entry.path();
                    let whose = whose.or_else(|| of(dir, &path));
                    folders.push((path, whose));
                }
                Ok(about) => {
                    let bytes = about.blocks().saturating_mul(512);
                    found.bytes = found.bytes.saturating_add(bytes);
                    if let Some(container) = whose {
                        let count = found.containers.entry(container).or_default();
                        *count = count.saturating_add(bytes);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
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
        let nobody = |_: &Path, _: &Path| None;
        let bytes = allocated_below(dir.path(), nobody).unwrap().bytes;
        assert!((256 << 10..1 << 20).contains(&bytes), "{bytes}");
        assert!(allocated_below(&dir.path().join("none"), nobody).is_err());
    }

    #[test]
    fn what_lies_in_the_folder_of_a_container_is_counted_for_it() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, bytes) in [
            ("objects/00000a/07", 256),
            ("objects/00000b", 64),
            ("x", 32),
        ] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("f"), vec![7; bytes << 10]).unwrap();
        }
        let found = allocated_below(dir.path(), perigee_store::container_of_dir).unwrap();
        let each: Vec<_> = found.containers.into_iter().collect();
        let of = |id, kib: u64| (ContainerId(id), kib << 10);
        assert_eq!(each, [of(10, 256), of(11, 64)]);
        assert_eq!(found.bytes, 352 << 10);
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
