//! Locks that end with an open file, and of whose end the kernel says nothing.
//!
//! An open-file-description lock (`F_OFD_SETLK`) comes as a lock of fcntl whose owner is the open
//! file. The kernel leaves it to `FLUSH` to drop locks at a close, but `FLUSH` names the process,
//! which is the owner of the other locks only. So those owners are kept here that locked through a
//! handle and were not flushed when the handle is released.
//!
//! The kernel names an open file by its place in memory, which the next one may have before the end of the first is told,
//! or done: what ends with the first must not end what the next one has locked.

use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::HashMap;

/// A request for a lock that waits for the end of others.
type Later = Box<dyn FnOnce() + Send>;

/// Owners of fcntl locks.
#[derive(Default)]
pub(crate) struct LockOwners(Mutex<Owners>);

#[derive(Default)]
struct Owners {
    /// By inode: the handle that was used, and the owner.
    used: HashMap<InodeId, Vec<(u64, u64)>>,
    /// Those whose locks are being dropped, and what comes after that.
    ending: HashMap<(InodeId, u64), Vec<Later>>,
}

impl LockOwners {
    /// `owner` asks for a lock through `handle`.
    pub(crate) fn locked(&self, inode: InodeId, handle: u64, owner: u64) {
        let mut owners = self.0.lock();
        let used = owners.used.entry(inode).or_default();
        if !used.contains(&(handle, owner)) {
            used.push((handle, owner));
        }
    }

    /// Asks for a lock of `owner`: once what an earlier owner of that name had has ended.
    pub(crate) fn in_turn(&self, inode: InodeId, owner: u64, ask: impl FnOnce() + Send + 'static) {
        if let Some(later) = self.0.lock().ending.get_mut(&(inode, owner)) {
            return later.push(Box::new(ask));
        }
        ask();
    }

    /// All locks of `owner` ended.
    pub(crate) fn flushed(&self, inode: InodeId, owner: u64) {
        self.0.lock().retain(inode, |_, by| by != owner);
    }

    /// The handle is closed. Returns the owners whose locks end with it; of each the caller says when they have
    /// [`ended`](Self::ended).
    ///
    /// An owner that has locked through another handle, too, is that one's: all of its locks end with that.
    pub(crate) fn released(&self, inode: InodeId, handle: u64) -> Vec<u64> {
        let mut owners = self.0.lock();
        let mut released = Vec::new();
        owners.retain(inode, |through, by| {
            if through == handle {
                released.push(by);
            }
            through != handle
        });
        let left = owners.used.get(&inode).cloned().unwrap_or_default();
        released.retain(|owner| !left.iter().any(|(_, by)| by == owner));
        for owner in &released {
            owners.ending.entry((inode, *owner)).or_default();
        }
        released
    }

    /// The locks of an owner that was [`released`](Self::released) are dropped.
    pub(crate) fn ended(&self, inode: InodeId, owner: u64) {
        let later = self.0.lock().ending.remove(&(inode, owner));
        for ask in later.into_iter().flatten() {
            ask();
        }
    }
}

impl Owners {
    fn retain(&mut self, inode: InodeId, mut stays: impl FnMut(u64, u64) -> bool) {
        let Some(used) = self.used.get_mut(&inode) else {
            return;
        };
        used.retain(|(handle, owner)| stays(*handle, *owner));
        if used.is_empty() {
            self.used.remove(&inode);
        }
    }
}

impl std::fmt::Debug for LockOwners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockOwners").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const FILE: InodeId = InodeId((1 << 40) | 9);

    #[test]
    fn only_owners_that_were_not_flushed_end_with_the_handle() {
        let owners = LockOwners::default();
        let (process, open_file) = (100, 200);
        owners.locked(FILE, 1, process);
        owners.locked(FILE, 1, open_file);
        owners.locked(FILE, 2, process);
        owners.flushed(FILE, process);
        assert_eq!(owners.released(FILE, 1), [open_file]);
        assert_eq!(owners.released(FILE, 2), []);
        assert!(owners.0.lock().used.is_empty());
    }

    #[test]
    fn the_next_open_file_of_the_same_name_keeps_its_locks() {
        let (owners, file) = (LockOwners::default(), 200);
        let asked = Arc::new(AtomicBool::new(false));
        owners.locked(FILE, 1, file);
        assert_eq!(owners.released(FILE, 1), [file]);
        owners.locked(FILE, 2, file);
        let ask = asked.clone();
        owners.in_turn(FILE, file, move || ask.store(true, Ordering::Relaxed));
        assert!(
            !asked.load(Ordering::Relaxed),
            "the other's end is under way"
        );
        owners.ended(FILE, file);
        assert!(asked.load(Ordering::Relaxed));
        // It is asked for before the end of the other is told.
        owners.locked(FILE, 3, file);
        assert_eq!(owners.released(FILE, 2), []);
        assert_eq!(owners.released(FILE, 3), [file]);
    }
}
