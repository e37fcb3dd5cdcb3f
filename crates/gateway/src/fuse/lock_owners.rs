//! Locks that end with an open file, and of whose end the kernel says nothing.
//!
//! An open-file-description lock (`F_OFD_SETLK`) comes as a lock of fcntl whose owner is the open
//! file. The kernel leaves it to `FLUSH` to drop locks at a close, but `FLUSH` names the process,
//! which is the owner of the other locks only. So those owners are kept here that locked through a
//! handle and were not flushed when the handle is released.

use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::HashMap;

/// Owners of fcntl locks, by inode: the handle that was used, and the owner.
#[derive(Debug, Default)]
pub(crate) struct LockOwners {
    inodes: Mutex<HashMap<InodeId, Vec<(u64, u64)>>>,
}

impl LockOwners {
    /// `owner` asks for a lock through `handle`.
    pub(crate) fn locked(&self, inode: InodeId, handle: u64, owner: u64) {
        let mut inodes = self.inodes.lock();
        let owners = inodes.entry(inode).or_default();
        if !owners.contains(&(handle, owner)) {
            owners.push((handle, owner));
        }
    }

    /// All locks of `owner` ended.
    pub(crate) fn flushed(&self, inode: InodeId, owner: u64) {
        self.retain(inode, |_, by| by != owner);
    }

    /// The handle is closed. Returns the owners whose locks end with it.
    pub(crate) fn released(&self, inode: InodeId, handle: u64) -> Vec<u64> {
        let mut ended = Vec::new();
        self.retain(inode, |through, by| {
            let stays = through != handle;
            if !stays {
                ended.push(by);
            }
            stays
        });
        ended
    }

    fn retain(&self, inode: InodeId, mut stays: impl FnMut(u64, u64) -> bool) {
        let mut inodes = self.inodes.lock();
        let Some(owners) = inodes.get_mut(&inode) else {
            return;
        };
        owners.retain(|(handle, owner)| stays(*handle, *owner));
        if owners.is_empty() {
            inodes.remove(&inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(owners.inodes.lock().is_empty());
    }
}
