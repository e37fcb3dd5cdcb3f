//! A node's store.

use crate::core::Core;
use crate::disk::{Disk, RealDisk};
use crate::error::{OpenError, StoreError};
use crate::kv::key::Tag;
use crate::kv::{Done, Snapshot, Space, WriteBatch};
use crate::object::{Object, blocks_for};
use crate::objects::{Objects, Unremoved};
use crate::{format, keeper, open};
use bytes::Bytes;
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use tracing::warn;

/// A page of 16 KiB of the engine, less its header and the key: up to here the engine's copies cost less than making,
/// syncing and removing a file.
const SMALL_LEN_MAX: u64 = (16 << 10) - 256;

/// Whose store it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreIdentity {
    /// The cluster.
    pub cluster: u128,
    /// The node.
    pub node: NodeId,
}

/// How a store uses its machine.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Memory for the key-value engine's cache, in bytes.
    pub cache_bytes: usize,
    /// Room that data may not take, in bytes; `None`: 1 % of the disk, 1 MiB to 64 MiB.
    pub reserve_bytes: Option<u64>,
    /// Objects up to this length have no backing file, until they are longer once; in bytes.
    pub small_len_max: u64,
    /// Backing files held open at most, while they are idle.
    pub open_files: usize,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            reserve_bytes: None,
            small_len_max: SMALL_LEN_MAX,
            open_files: 1024,
            disk: Arc::new(RealDisk),
        }
    }
}

/// Room in a store, for `statfs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreSpace {
    /// All bytes of the file system.
    pub total: u64,
    /// Bytes that data may still take.
    pub available: u64,
    /// Bytes held back for metadata and deletes; 0 when they are in use.
    pub reserved: u64,
    /// All inodes of the file system; 0 where it does not count them.
    pub files: u64,
    /// Inodes that are left.
    pub files_free: u64,
}

/// What to do with bytes of unknown history after an unclean stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopt {
    /// Take them as they are, as a local disk would.
    Adopt,
    /// Trust only blocks that match their checksums: the others become invalid, at the lowest version, and are fetched.
    Distrust,
}

/// What recovery did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Objects that were verified.
    pub checked: u64,
    /// Blocks that were taken as they are, by object.
    pub adopted: Vec<(InodeId, Vec<ByteRange>)>,
    /// Blocks that became invalid, by object.
    pub distrusted: Vec<(InodeId, Vec<ByteRange>)>,
    /// Objects that could not be read; they stay unrecovered.
    pub failed: Vec<(InodeId, StoreError)>,
}

/// One node's data directory, open in this process alone. Dropping it commits what is queued; objects
/// that were written since their last sync are verified at the next open, unless [`Store::close`] ran.
///
/// Objects and snapshots that outlive it keep the directory locked.
#[derive(Debug)]
pub struct Store {
    identity: StoreIdentity,
    core: Arc<Core>,
    objects: Arc<Objects>,
    threads: Vec<JoinHandle<()>>,
}

impl Store {
    /// Makes a store in a directory, which is made too.
    pub fn create(dir: &Path, identity: StoreIdentity) -> Result<Arc<Self>, OpenError> {
        Self::create_with(dir, identity, StoreOptions::default())
    }

    /// [`Store::create`], with options.
    pub fn create_with(
        dir: &Path,
        identity: StoreIdentity,
        options: StoreOptions,
    ) -> Result<Arc<Self>, OpenError> {
        open::create(dir, identity, &options)?;
        Self::open_with(dir, Some(identity.cluster), options)
    }

    /// Opens the store of a directory; with `expect_cluster`, only if it is that cluster's.
    pub fn open(dir: &Path, expect_cluster: Option<u128>) -> Result<Arc<Self>, OpenError> {
        Self::open_with(dir, expect_cluster, StoreOptions::default())
    }

    /// [`Store::open`], with options.
    pub fn open_with(
        dir: &Path,
        expect_cluster: Option<u128>,
        options: StoreOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let (identity, core) = open::open(dir, expect_cluster, &options)?;
        let core = Arc::new(core);
        let objects = Arc::new(Objects::new(Arc::clone(&core), options.open_files.max(4)));
        let mut store = Self {
            identity,
            core,
            objects,
            threads: Vec::new(),
        };
        // The first thread is stopped by the drop of `store` where the second cannot start.
        let kv = Arc::clone(&store.core.kv);
        store.spawn(dir, "store-commit", move || kv.run_committer())?;
        let (core, objects) = (Arc::clone(&store.core), Arc::clone(&store.objects));
        store.spawn(dir, "store-keeper", move || keeper::run(&core, &objects))?;
        Ok(Arc::new(store))
    }

    fn spawn(
        &mut self,
        dir: &Path,
        name: &str,
        life: impl FnOnce() + Send + 'static,
    ) -> Result<(), OpenError> {
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(life)
            .map_err(|source| OpenError::Io {
                what: "start a thread for",
                path: dir.to_owned(),
                source,
            })?;
        self.threads.push(thread);
        Ok(())
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.core.disk
    }

    pub(crate) fn kv(&self) -> &crate::kv::Kv {
        &self.core.kv
    }

    /// Whose store it is.
    #[must_use]
    pub const fn identity(&self) -> StoreIdentity {
        self.identity
    }

    /// The committed value of a key.
    ///
    /// Errors: `Damaged` when the value is not what was written.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.core.kv.get(space.container(), space.tag(), key)
    }

    /// Up to `limit` committed pairs of `from..to` in key order; `None` reaches to the end of the space.
    ///
    /// Errors: `Damaged` when a value is not what was written.
    pub fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let (c, tag) = (space.container(), space.tag());
        self.core.kv.scan(c, tag, from, to, limit)
    }

    /// The state of all spaces now, for reading at leisure.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.core.kv.snapshot()
    }

    /// Queues a batch. `done(Ok)` runs on the committer thread when the batch is durable and visible to
    /// reads; callbacks run in the order of submission, and must not wait for another commit. Waits
    /// while 64 MiB are queued (not on the committer thread).
    ///
    /// Errors, through `done`: `NoSpace`, for all but those that wait for room
    /// ([`WriteBatch::set_without_room`]) (later batches may pass, but for those that keep an order:
    /// [`WriteBatch::keep_order`]), `Failed`, `Closed`.
    pub fn submit(&self, batch: WriteBatch, done: Done) {
        self.core.kv.submit(batch, done);
    }

    /// Queues a batch that rides with the next durable one, or is committed within 100 ms. Like all
    /// batches it is visible to reads only once it is committed. Without a `done`, which is as for [`Self::submit`], its
    /// failure shows in later batches alone.
    pub fn submit_lazy(&self, batch: WriteBatch, done: Option<Done>) {
        self.core.kv.submit_lazy(batch, done);
    }

    /// What was queued by [`Self::submit_lazy`] waits for no other batch any more.
    pub fn hasten(&self) {
        self.core.kv.hasten();
    }

    /// A new order of batches begins ([`WriteBatch::keep_order`]): whoever opens a container builds on what is on the disk.
    pub fn begin_order(&self, container: ContainerId) {
        self.core.kv.begin_order(container);
    }

    /// Commits a batch and waits for it. Not for callbacks of the committer.
    pub fn commit(&self, batch: WriteBatch) -> Result<(), StoreError> {
        self.core.kv.commit(batch)
    }

    /// Puts all content of a container's objects on the disk, and commits a batch together with all that is known of them and
    /// not stored: a full disk may have refused it. Not for callbacks of the committer.
    pub fn commit_with_objects(
        &self,
        container: ContainerId,
        mut batch: WriteBatch,
    ) -> Result<(), StoreError> {
        let mut objects = self.objects.all();
        objects.retain(|object| object.inode().container() == container);
        for (_, synced) in self.sync_all(objects.clone())? {
            match synced {
                Ok(()) | Err(StoreError::Removed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for object in &objects {
            batch.save_object(object);
        }
        self.core.kv.commit(batch)
    }

    /// Drops all keys and objects of a container, durably, and forgets that it was read-only. Nobody
    /// else may use the container meanwhile. Not for callbacks of the committer.
    pub fn wipe_container(&self, container: ContainerId) -> Result<(), StoreError> {
        self.objects.retire_container(container);
        let mut batch = WriteBatch::new();
        for tag in [Tag::State, Tag::Log, Tag::Local, Tag::Objects] {
            batch.delete_range_tagged(container, tag, &[], None);
        }
        self.core.kv.commit(batch)?;
        let path = self.core.layout.container(container);
        match self.core.disk.remove_tree(&path) {
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
                let what = format!("remove the objects of container {container}");
                return Err(StoreError::io(what, &e));
            }
            _ => {}
        }
        self.core.clear_read_only(container);
        Ok(())
    }

    /// The containers that have keys or objects here, in order.
    pub fn containers(&self) -> Result<Vec<ContainerId>, StoreError> {
        let mut found: BTreeSet<ContainerId> = self.core.kv.containers()?.into_iter().collect();
        let names = self
            .core
            .disk
            .list(&self.core.layout.objects())
            .map_err(|e| StoreError::io("list the objects", &e))?;
        let named = names.iter().filter_map(|name| name.to_str());
        found.extend(named.filter_map(format::container_of_name));
        Ok(found.into_iter().collect())
    }

    /// Why a container takes no more writes here, if so.
    #[must_use]
    pub fn read_only(&self, container: ContainerId) -> Option<String> {
        self.core.why_read_only(container)
    }

    /// Whether the disk has room for more than what makes room. Without any, little is left for batches, too.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.core.kv.reserve.is_spent()
    }

    /// Room, for `statfs`.
    pub fn space(&self) -> Result<StoreSpace, StoreError> {
        let disk = self.core.disk.space(self.core.layout.dir());
        let disk = disk.map_err(|e| StoreError::io("ask for the room of the disk", &e))?;
        let spent = self.core.kv.reserve.is_spent();
        Ok(StoreSpace {
            total: disk.total,
            available: if spent { 0 } else { disk.available },
            reserved: self.core.kv.reserve.held(),
            files: disk.files,
            files_free: disk.files_free,
        })
    }

    /// The object of an inode. Nothing is made on disk before its first write.
    ///
    /// Errors: `Unrecovered` before [`Store::recover`] has seen it.
    pub fn object(&self, inode: InodeId) -> Result<Arc<Object>, StoreError> {
        self.objects.get(inode)
    }

    /// Stored objects of a container in the order of their numbers, at most `limit`, after one.
    pub fn objects_after(
        &self,
        container: ContainerId,
        after: Option<InodeId>,
        limit: usize,
    ) -> Result<Vec<InodeId>, StoreError> {
        self.core.kv.objects_after(container, after, limit)
    }

    /// Whether the kernel tells which parts of files others change.
    #[must_use]
    pub fn tells_changes(&self) -> bool {
        self.core.dirty_log().is_some()
    }

    /// Space that an object of `len` bytes takes, in units of 512 bytes, where it needs no file for that.
    #[must_use]
    pub fn small_blocks(&self, len: u64) -> Option<u64> {
        (len <= self.core.small_len_max).then(|| blocks_for(len))
    }

    /// Removes an object: its space is free at once, its keys go within 100 ms. No error where there is none.
    /// After a crash in between it is to be called again (the log is replayed).
    pub fn remove_object(&self, inode: InodeId) -> Result<(), StoreError> {
        let failed = self.remove_objects(&[inode]).pop();
        failed.map_or(Ok(()), |unremoved| Err(unremoved.why))
    }

    /// The same of several, which costs less than one by one. Gives those for which it failed.
    pub fn remove_objects(&self, inodes: &[InodeId]) -> Vec<Unremoved> {
        self.objects.remove(inodes)
    }

    /// Objects that the last process may have left half written.
    #[must_use]
    pub fn unrecovered(&self) -> Vec<InodeId> {
        self.objects.unrecovered()
    }

    /// Verifies every object that the last process may have left half written, and treats blocks that do
    /// not match as its container's policy says. Durable when it returns.
    ///
    /// Errors: an object that cannot be read is listed in `failed`; the engine's failure ends it.
    pub fn recover(
        &self,
        policy_of: &dyn Fn(ContainerId) -> Adopt,
    ) -> Result<Recovered, StoreError> {
        let mut recovered = Recovered::default();
        let mut settled = Vec::new();
        for (inode, by) in self.objects.left_to_verify() {
            let adopt = policy_of(inode.container());
            let object = self.objects.get_any(inode)?;
            recovered.checked += 1;
            match object.settle(adopt, by) {
                Ok(ranges) => {
                    if !ranges.is_empty() {
                        match adopt {
                            Adopt::Adopt => recovered.adopted.push((inode, ranges)),
                            Adopt::Distrust => recovered.distrusted.push((inode, ranges)),
                        }
                    }
                    settled.push(object);
                }
                Err(error) => recovered.failed.push((inode, error)),
            }
        }
        for (object, result) in self.sync_all(settled)? {
            match result {
                Ok(()) => {
                    self.objects.set_recovered(object.inode());
                    object.untouch();
                }
                Err(error) => recovered.failed.push((object.inode(), error)),
            }
        }
        if let Err(error) = self.core.touched.compact(true) {
            // What it lists is verified again at the next open; nothing is lost.
            warn!(%error, "cannot compact touched.log");
        }
        Ok(recovered)
    }

    /// Syncs many objects; their commits share what the committer groups.
    fn sync_all(&self, objects: Vec<Arc<Object>>) -> Result<Vec<Synced>, StoreError> {
        let count = objects.len();
        let (tx, rx) = mpsc::channel();
        for object in objects {
            let tx = tx.clone();
            let handle = Arc::clone(&object);
            // The receiver lives until all have answered, so the send cannot fail.
            object.sync(Box::new(move |result| drop(tx.send((handle, result)))));
        }
        drop(tx);
        let results: Vec<_> = rx.iter().collect();
        if results.len() < count {
            return Err(StoreError::Closed);
        }
        Ok(results)
    }

    /// Makes everything durable, so that the next open finds nothing to verify. The store takes no
    /// more writes. Not for callbacks of the committer.
    ///
    /// Errors: the first object that could not be synced, after trying all.
    pub fn close(&self) -> Result<(), StoreError> {
        let dirty = self.objects.all();
        let results = self.sync_all(dirty)?;
        let mut first = Ok(());
        for (object, result) in results {
            match result {
                Ok(()) => object.untouch(),
                Err(error) => first = first.and(Err(error)),
            }
        }
        self.core.kv.close();
        self.core.kv.wait_until_closed();
        let compacted = self.core.touched.compact(true);
        first.and(compacted.map_err(|e| StoreError::io("compact touched.log", &e)))
    }

    /// Waits for what the background does at once.
    #[cfg(test)]
    pub(crate) fn sync_touched(&self) -> std::io::Result<()> {
        self.core.touched.sync()
    }

    /// Durable commits made since the store was opened.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.core.kv.commits()
    }

    /// Reads every key and value, and checks them; how many there are.
    pub fn verify_keys(&self) -> Result<u64, StoreError> {
        self.core.kv.verify()
    }
}

/// An object, and how its sync ended.
type Synced = (Arc<Object>, Result<(), StoreError>);

impl Drop for Store {
    fn drop(&mut self) {
        self.core.keeper.stop();
        self.core.kv.close();
        for thread in self.threads.drain(..) {
            // The last handle may go in a callback of the committer, which cannot wait for itself. A
            // thread that panicked has failed all that waited for it.
            if thread.thread().id() != thread::current().id() {
                _ = thread.join();
            }
        }
        self.objects.clear();
    }
}
