//! The objects in memory: one handle per inode, dropped when idle and stored.

use crate::core::Core;
use crate::error::StoreError;
use crate::kv::key::{self, Tag};
use crate::kv::{Done, WriteBatch};
use crate::object::Object;
use crate::touched::By;
use parking_lot::Mutex;
use perigee_types::{ContainerId, InodeId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Locks of the table; a power of two above the threads that a node runs.
const SHARDS: usize = 64;
/// Objects in memory beyond which idle ones are dropped: about 1 KiB each, with one checksum group.
const OBJECTS_MAX: usize = 1 << 16;

type Shard = HashMap<InodeId, Arc<Object>>;

/// The table.
#[derive(Debug)]
pub(crate) struct Objects {
    core: Arc<Core>,
    shards: Vec<Mutex<Shard>>,
    /// What the last process left to verify, and who else may have changed it.
    unrecovered: Mutex<BTreeMap<InodeId, By>>,
    any_unrecovered: AtomicBool,
    /// Removed objects whose keys are still being deleted.
    leaving: Arc<Leaving>,
    open_files_max: usize,
}

/// An object whose removal failed.
#[derive(Debug)]
pub struct Unremoved {
    /// Which.
    pub inode: InodeId,
    /// Why. Where it is the backing file that stays, the object is gone all the same.
    pub why: StoreError,
}

#[derive(Debug, Default)]
struct Leaving {
    inodes: Mutex<HashSet<InodeId>>,
    count: AtomicUsize,
}

impl Objects {
    pub(crate) fn new(core: Arc<Core>, open_files_max: usize) -> Self {
        let unrecovered: BTreeMap<InodeId, By> = core.touched.list().into_iter().collect();
        Self {
            core,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            any_unrecovered: AtomicBool::new(!unrecovered.is_empty()),
            unrecovered: Mutex::new(unrecovered),
            leaving: Arc::default(),
            open_files_max,
        }
    }

    fn shard(&self, inode: InodeId) -> &Mutex<Shard> {
        // Fibonacci hashing: neighbours, which inodes of one directory are, go to different shards.
        let at = (inode.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        &self.shards[at % SHARDS]
    }

    /// The handle of an inode; refuses those that are not recovered.
    pub(crate) fn get(&self, inode: InodeId) -> Result<Arc<Object>, StoreError> {
        if self.any_unrecovered.load(Ordering::Acquire)
            && self.unrecovered.lock().contains_key(&inode)
        {
            return Err(StoreError::Unrecovered { inode });
        }
        let object = self.get_any(inode)?;
        if self.core.open_files.load(Ordering::Relaxed) > self.open_files_max {
            self.close_idle_files();
        }
        Ok(object)
    }

    /// The handle of an inode, recovered or not. One whose removal is not on disk yet is removed:
    /// waiting for that here would hang a callback of the committer.
    pub(crate) fn get_any(&self, inode: InodeId) -> Result<Arc<Object>, StoreError> {
        let mut shard = self.shard(inode).lock();
        // Looked at under the lock under which a handle goes: one of what leaves is not made anew.
        if self.leaving.has(inode) {
            return Err(StoreError::Removed { inode });
        }
        if let Some(object) = shard.get(&inode) {
            object.mark_used();
            return Ok(Arc::clone(object));
        }
        if shard.len() >= OBJECTS_MAX / SHARDS {
            drop_idle(&mut shard);
        }
        let object = Arc::new(Object::load(&self.core, inode)?);
        object.mark_used();
        shard.insert(inode, Arc::clone(&object));
        Ok(object)
    }

    /// All handles.
    pub(crate) fn all(&self) -> Vec<Arc<Object>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Forgets all handles: nothing more is to come.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            drop(gone);
        }
    }

    /// Closes the files of the objects that were not asked for longest, down to three quarters of the limit.
    pub(crate) fn close_idle_files(&self) {
        let mut open: Vec<Arc<Object>> = self.all();
        open.retain(|object| object.has_open_file());
        let keep = self.open_files_max / 4 * 3;
        let excess = open.len().saturating_sub(keep);
        open.sort_by_key(|object| object.last_use());
        for object in &open[..excess] {
            object.close_idle_file();
        }
    }

    pub(crate) fn left_to_verify(&self) -> Vec<(InodeId, By)> {
        let left = self.unrecovered.lock();
        left.iter().map(|(inode, by)| (*inode, *by)).collect()
    }

    pub(crate) fn unrecovered(&self) -> Vec<InodeId> {
        self.unrecovered.lock().keys().copied().collect()
    }

    pub(crate) fn set_recovered(&self, inode: InodeId) {
        let mut left = self.unrecovered.lock();
        left.remove(&inode);
        self.any_unrecovered
            .store(!left.is_empty(), Ordering::Release);
    }

    /// Removes the objects' files now, and their keys with the next commit. Gives what stays.
    pub(crate) fn remove(&self, inodes: &[InodeId]) -> Vec<Unremoved> {
        let mut stays = Vec::new();
        // In the order of their keys: neighbours go as one range, and turns are taken as `sync_together` takes them.
        let mut removed: BTreeMap<InodeId, Arc<Object>> = BTreeMap::new();
        for &inode in inodes {
            match self.get_any(inode) {
                Ok(object) => _ = removed.insert(inode, object),
                Err(StoreError::Removed { .. }) => {}
                Err(why) => stays.push(Unremoved { inode, why }),
            }
        }
        let mut batch = WriteBatch::new();
        let mut turns = Vec::with_capacity(removed.len());
        self.leaving.add(removed.keys().copied());
        for (&inode, object) in &removed {
            let unrecovered = self.any_unrecovered.load(Ordering::Acquire)
                && self.unrecovered.lock().contains_key(&inode);
            let (retired, gone) = object.retire(unrecovered);
            turns.push(retired);
            if unrecovered {
                self.set_recovered(inode);
            }
            self.shard(inode).lock().remove(&inode);
            let (from, to) = (key::object_start(inode), key::object_end(inode));
            batch.delete_range_tagged(inode.container(), Tag::Objects, &from, Some(&to));
            if let Err(error) = gone {
                let what = format!("remove the backing file of inode {inode}");
                let why = StoreError::io(what, &error);
                stays.push(Unremoved { inode, why });
            }
        }
        let leaving = Arc::clone(&self.leaving);
        let inodes: Vec<InodeId> = removed.keys().copied().collect();
        let done: Done = Box::new(move |_| leaving.remove(&inodes));
        self.core.kv.submit_lazy(batch, Some(done));
        drop(turns);
        stays
    }

    /// Ends all handles of a container, and what is remembered of its objects.
    pub(crate) fn retire_container(&self, container: ContainerId) {
        for shard in &self.shards {
            let mut gone = Vec::new();
            shard.lock().retain(|inode, object| {
                let leaves = inode.container() == container;
                if leaves {
                    gone.push(Arc::clone(object));
                }
                !leaves
            });
            for object in gone {
                // The whole directory goes next: whether one file could be removed does not matter.
                _ = object.retire(true);
            }
        }
        for inode in self.unrecovered() {
            if inode.container() == container {
                self.core.touched.remove(inode);
                self.set_recovered(inode);
            }
        }
    }
}

/// Drops the half of the stored, unused objects that was not asked for longest.
fn drop_idle(shard: &mut Shard) {
    let mut idle: Vec<(u64, InodeId)> = shard
        .iter()
        .filter(|(_, object)| Arc::strong_count(object) == 1 && object.is_settled())
        .map(|(&inode, object)| (object.last_use(), inode))
        .collect();
    idle.sort_unstable();
    for (_, inode) in &idle[..idle.len().div_ceil(2)] {
        if let Some(object) = shard.remove(inode) {
            object.untouch();
        }
    }
}

impl Leaving {
    fn has(&self, inode: InodeId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.inodes.lock().contains(&inode)
    }

    fn add(&self, added: impl Iterator<Item = InodeId>) {
        let mut inodes = self.inodes.lock();
        inodes.extend(added);
        self.count.store(inodes.len(), Ordering::Release);
    }

    fn remove(&self, gone: &[InodeId]) {
        let mut inodes = self.inodes.lock();
        for inode in gone {
            inodes.remove(inode);
        }
        self.count.store(inodes.len(), Ordering::Release);
    }
}
