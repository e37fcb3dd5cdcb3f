//! A node's store.

use crate::disk::{Disk, RealDisk};
use crate::error::{OpenError, StoreError};
use crate::kv::{Snapshot, Space, WriteBatch};
use crate::object::Object;
use bytes::Bytes;
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId};
use std::path::Path;
use std::sync::Arc;

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
#[derive(Debug)]
pub struct Store {}

impl Store {
    /// Makes a store in a directory, which is made too.
    pub fn create(dir: &Path, identity: StoreIdentity) -> Result<Arc<Self>, OpenError> {
        Self::create_with(dir, identity, StoreOptions::default())
    }

    /// [`Store::create`], with options.
    pub fn create_with(
        dir: &Path,
        _identity: StoreIdentity,
        _options: StoreOptions,
    ) -> Result<Arc<Self>, OpenError> {
        Err(OpenError::NotAStore {
            dir: dir.to_owned(),
        })
    }

    /// Opens the store of a directory; with `expect_cluster`, only if it is that cluster's.
    pub fn open(dir: &Path, expect_cluster: Option<u128>) -> Result<Arc<Self>, OpenError> {
        Self::open_with(dir, expect_cluster, StoreOptions::default())
    }

    /// [`Store::open`], with options.
    pub fn open_with(
        dir: &Path,
        _expect_cluster: Option<u128>,
        _options: StoreOptions,
    ) -> Result<Arc<Self>, OpenError> {
        Err(OpenError::NotAStore {
            dir: dir.to_owned(),
        })
    }

    /// Whose store it is.
    #[must_use]
    pub fn identity(&self) -> StoreIdentity {
        StoreIdentity {
            cluster: 0,
            node: NodeId(0),
        }
    }

    /// The committed value of a key.
    ///
    /// Errors: `Damaged` when the value is not what was written.
    pub fn get(&self, _space: Space, _key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Up to `limit` committed pairs of `from..to` in key order; `None` reaches to the end of the space.
    ///
    /// Errors: `Damaged` when a value is not what was written.
    pub fn scan(
        &self,
        _space: Space,
        _from: &[u8],
        _to: Option<&[u8]>,
        _limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The state of all spaces now, for reading at leisure.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Err(StoreError::Closed)
    }

    /// Queues a batch. `done(Ok)` runs on the committer thread when the batch is durable and visible to
    /// reads; callbacks run in the order of submission, and must not wait for another commit. Waits
    /// while 64 MiB are queued (not on the committer thread).
    ///
    /// Errors, through `done`: `NoSpace` (later batches may pass: one who keeps an order stops at the
    /// first failure), `Failed`, `Closed`.
    pub fn submit(&self, _batch: WriteBatch, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        done(Err(StoreError::Closed));
    }

    /// Queues a batch that rides with the next durable one, or is committed within 100 ms. Like all
    /// batches it is visible to reads only once it is committed.
    pub fn submit_lazy(&self, _batch: WriteBatch) {}

    /// Commits a batch and waits for it. Not for callbacks of the committer.
    pub fn commit(&self, _batch: WriteBatch) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Drops all keys and objects of a container, durably, and forgets that it was read-only. Nobody
    /// else may use the container meanwhile. Not for callbacks of the committer.
    pub fn wipe_container(&self, _container: ContainerId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// The containers that have keys or objects here, in order.
    pub fn containers(&self) -> Result<Vec<ContainerId>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Why a container takes no more writes here, if so.
    #[must_use]
    pub fn read_only(&self, _container: ContainerId) -> Option<String> {
        None
    }

    /// Room, for `statfs`.
    pub fn space(&self) -> Result<StoreSpace, StoreError> {
        Err(StoreError::Closed)
    }

    /// The object of an inode. Nothing is made on disk before its first write.
    ///
    /// Errors: `Unrecovered` before [`Store::recover`] has seen it.
    pub fn object(&self, _inode: InodeId) -> Result<Arc<Object>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Removes an object: its space is free at once, its keys go within 100 ms. No error where there is none.
    /// After a crash in between it is to be called again (the log is replayed).
    pub fn remove_object(&self, _inode: InodeId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Objects that the last process may have left half written.
    #[must_use]
    pub fn unrecovered(&self) -> Vec<InodeId> {
        Vec::new()
    }

    /// Verifies every object that the last process may have left half written, and treats blocks that do
    /// not match as its container's policy says. Durable when it returns.
    pub fn recover(
        &self,
        _policy_of: &dyn Fn(ContainerId) -> Adopt,
    ) -> Result<Recovered, StoreError> {
        Err(StoreError::Closed)
    }

    /// Makes everything durable, so that the next open finds nothing to verify. The store takes no
    /// more writes. Not for callbacks of the committer.
    pub fn close(&self) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Durable commits made since the store was opened.
    #[must_use]
    pub fn commits(&self) -> u64 {
        0
    }

    /// Reads every key and value, and checks them; how many there are.
    pub fn verify_keys(&self) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
}
