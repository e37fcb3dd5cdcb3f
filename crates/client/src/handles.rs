//! The open files and directories of one session.

use crate::fs::OpenFlags;
use parking_lot::RwLock;
use perigee_types::{ContainerId, Epoch, InodeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One open file or directory.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) inode: InodeId,
    pub(crate) flags: OpenFlags,
    unseen: AtomicBool,
    /// How many losses of unsynced work this descriptor need not hear of.
    losses: AtomicU64,
}

impl Handle {
    /// Of how many losses it knows.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// It knows of so many.
    pub(crate) fn knows_losses(&self, count: u64) {
        self.losses.store(count, Ordering::Release);
    }

    /// Its maps may change the file unseen from now on; says whether that is new.
    pub(crate) fn begin_unseen(&self) -> bool {
        !self.unseen.swap(true, Ordering::AcqRel)
    }

    /// They may not, after all.
    pub(crate) fn end_unseen(&self) {
        self.unseen.store(false, Ordering::Release);
    }

    /// Whether its maps may have changed the file unseen.
    pub(crate) fn is_unseen(&self) -> bool {
        self.unseen.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct Use {
    /// Handles, and opens that are under way.
    count: u64,
}

/// All of a session's handles, and how often each inode is open.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<Handle>>>,
    inodes: RwLock<HashMap<InodeId, Use>>,
    /// The owner's epoch under which this session's kernel may hold pages of an inode.
    pages: RwLock<HashMap<InodeId, Epoch>>,
}

impl Handles {
    /// Notes that `inode` is being opened; from now on it counts as open.
    pub(crate) fn begin(&self, inode: InodeId) {
        self.inodes.write().entry(inode).or_default().count += 1;
    }

    /// The opening came to nothing, or the last descriptor is closed.
    pub(crate) fn end(&self, inode: InodeId) {
        let mut inodes = self.inodes.write();
        if let Some(entry) = inodes.get_mut(&inode) {
            entry.count -= 1;
            if entry.count == 0 {
                inodes.remove(&inode);
            }
        }
    }

    /// Makes a handle of an opening that [`Handles::begin`] has noted. `losses`: those before.
    pub(crate) fn insert(&self, inode: InodeId, flags: OpenFlags, losses: u64) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().insert(
            number,
            Arc::new(Handle {
                inode,
                flags,
                unseen: AtomicBool::new(false),
                losses: AtomicU64::new(losses),
            }),
        );
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Handle>> {
        self.open.read().get(&number).cloned()
    }

    /// Closes a handle.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<Handle>> {
        let handle = self.open.write().remove(&number)?;
        self.end(handle.inode);
        Some(handle)
    }

    pub(crate) fn open_inodes(&self, container: ContainerId) -> Vec<InodeId> {
        let inodes = self.inodes.read();
        inodes
            .keys()
            .copied()
            .filter(|inode| inode.container() == container)
            .collect()
    }

    pub(crate) fn is_open(&self, inode: InodeId) -> bool {
        self.inodes.read().contains_key(&inode)
    }

    /// Whether pages that the kernel kept of `inode` are still good; remembers the answer's basis.
    pub(crate) fn keep_pages(&self, inode: InodeId, home: Option<Epoch>) -> bool {
        let mut pages = self.pages.write();
        match home {
            Some(epoch) => pages.insert(inode, epoch) == Some(epoch),
            None => {
                pages.remove(&inode);
                false
            }
        }
    }

    /// The kernel holds nothing of `inode` any more.
    pub(crate) fn forget(&self, inode: InodeId) {
        if !self.pages.read().contains_key(&inode) {
            return;
        }
        self.pages.write().remove(&inode);
    }
}
