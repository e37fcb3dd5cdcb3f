//! The key-value engine: one redb database, read by anyone, written by one committer thread.
//!
//! redb does not group durable commits; the committer does: whatever waits while a commit runs goes
//! into the next one.

mod backend;
mod batch;
mod committer;
pub(crate) mod key;

pub(crate) use batch::Op;
pub use batch::{Space, WithoutRoom, WriteBatch};
pub use committer::Done;

use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::reserve::Reserve;
use backend::FileBackend;
use bytes::Bytes;
use committer::Queue;
use key::Tag;
use parking_lot::{Condvar, Mutex, RwLock};
use perigee_types::{ContainerId, InodeId};
use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("kv");

/// The database, its queue of writes, and the room kept for them.
pub(crate) struct Kv {
    /// None once it is closed.
    db: RwLock<Option<Database>>,
    /// The table as of the last commit, if it was read since: to open it takes longer than to find a key in it.
    newest: RwLock<Option<Arc<Table>>>,
    pub(crate) reserve: Arc<Reserve>,
    queue: Mutex<Queue>,
    work: Condvar,
    room: Condvar,
    commits: AtomicU64,
    /// Containers whose order was broken by a refusal.
    broken: Mutex<BTreeSet<ContainerId>>,
}

impl Kv {
    /// Opens the database in `file`, or makes one in an empty file. After an unclean stop the engine
    /// verifies every page here: time and memory in proportion to the metadata.
    pub(crate) fn open(
        file: Arc<dyn DiskFile>,
        reserve: Reserve,
        cache_bytes: usize,
    ) -> Result<Self, String> {
        let reserve = Arc::new(reserve);
        let backend = FileBackend::new(file, Arc::clone(&reserve));
        let db = Database::builder()
            .set_cache_size(cache_bytes)
            .create_with_backend(backend)
            .map_err(|e| e.to_string())?;
        let txn = db.begin_write().map_err(|e| e.to_string())?;
        txn.open_table(TABLE).map_err(|e| e.to_string())?;
        txn.commit().map_err(|e| e.to_string())?;
        Ok(Self {
            db: RwLock::new(Some(db)),
            newest: RwLock::default(),
            reserve,
            broken: Mutex::default(),
            queue: Mutex::new(Queue::default()),
            work: Condvar::new(),
            room: Condvar::new(),
            commits: AtomicU64::new(0),
        })
    }

    /// How many durable commits this process has made.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Reads the state of this moment. The engine is not closed meanwhile.
    fn read<T>(&self, read: impl FnOnce(&Table) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let db = self.db.read();
        let db = db.as_ref().ok_or(StoreError::Closed)?;
        let found = self.newest.read().clone();
        let table = match found {
            Some(table) => table,
            None => self.open_newest(db)?,
        };
        read(&table)
    }

    fn open_newest(&self, db: &Database) -> Result<Arc<Table>, StoreError> {
        // Opened under the lock: what is opened before a commit must not be put there after it.
        let mut newest = self.newest.write();
        if let Some(table) = &*newest {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(table_of(db)?);
        *newest = Some(Arc::clone(&table));
        Ok(table)
    }

    /// There is a later state than what [`Self::read`] has opened.
    fn forget_newest(&self) {
        let opened = self.newest.write().take();
        drop(opened);
    }

    pub(crate) fn get(
        &self,
        container: ContainerId,
        tag: Tag,
        key: &[u8],
    ) -> Result<Option<Bytes>, StoreError> {
        self.read(|table| get_in(table, container, tag, key))
    }

    pub(crate) fn scan(
        &self,
        container: ContainerId,
        tag: Tag,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.read(|table| scan_in(table, container, tag, from, to, limit))
    }

    /// Inodes with any object key, found by leaping from one to the next.
    pub(crate) fn objects_after(
        &self,
        container: ContainerId,
        after: Option<InodeId>,
        limit: usize,
    ) -> Result<Vec<InodeId>, StoreError> {
        self.read(|table| {
            let mut found = Vec::new();
            let mut from = after.map_or_else(Vec::new, key::object_end);
            while found.len() < limit {
                let first = scan_in(table, container, Tag::Objects, &from, None, 1)?;
                let Some(inode) = first.first().map(|(key, _)| key::inode_of(key)) else {
                    break;
                };
                let Some(inode) = inode else {
                    let what = "an object key without an inode".to_owned();
                    return Err(StoreError::Damaged { what });
                };
                found.push(inode);
                from = key::object_end(inode);
            }
            Ok(found)
        })
    }

    /// Containers with any key, found by leaping from one to the next.
    pub(crate) fn containers(&self) -> Result<Vec<ContainerId>, StoreError> {
        self.read(|table| {
            let mut found = Vec::new();
            let mut from = Some(ContainerId(0));
            while let Some(at) = from {
                let lower = at.0.to_be_bytes();
                let bounds = (Bound::Included(lower.as_slice()), Bound::Unbounded);
                let Some(first) = table.range::<&[u8]>(bounds).map_err(failed)?.next() else {
                    break;
                };
                let (stored, _) = first.map_err(failed)?;
                let Some(container) = key::container_of(stored.value()) else {
                    let what = "a key without a container".to_owned();
                    return Err(StoreError::Damaged { what });
                };
                found.push(container);
                from = container.0.checked_add(1).map(ContainerId);
            }
            Ok(found)
        })
    }

    pub(crate) fn snapshot(self: &Arc<Self>) -> Result<Snapshot, StoreError> {
        let db = self.db.read();
        Ok(Snapshot {
            table: table_of(db.as_ref().ok_or(StoreError::Closed)?)?,
            _kv: Arc::clone(self),
        })
    }

    /// Reads every value and checks it. Returns how many there are.
    pub(crate) fn verify(&self) -> Result<u64, StoreError> {
        self.read(|table| {
            let mut count = 0;
            for entry in table.range::<&[u8]>(..).map_err(failed)? {
                let (stored_key, stored) = entry.map_err(failed)?;
                key::unseal(stored_key.value(), stored.value())?;
                count += 1;
            }
            Ok(count)
        })
    }
}

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

fn table_of(db: &Database) -> Result<Table, StoreError> {
    let txn = db.begin_read().map_err(failed)?;
    txn.open_table(TABLE).map_err(failed)
}

fn get_in(
    table: &Table,
    container: ContainerId,
    tag: Tag,
    key: &[u8],
) -> Result<Option<Bytes>, StoreError> {
    let key = key::encode(container, tag, key);
    let Some(stored) = table.get(key.as_slice()).map_err(failed)? else {
        return Ok(None);
    };
    let value = key::unseal(&key, stored.value())?;
    Ok(Some(Bytes::copy_from_slice(value)))
}

fn scan_in(
    table: &Table,
    container: ContainerId,
    tag: Tag,
    from: &[u8],
    to: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
    let (from, to) = key::bounds(container, tag, from, to);
    if from >= to {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let range = table
        .range::<&[u8]>(from.as_slice()..to.as_slice())
        .map_err(failed)?;
    for entry in range.take(limit) {
        let (stored_key, stored) = entry.map_err(failed)?;
        let full = stored_key.value();
        let value = key::unseal(full, stored.value())?;
        let short = full.get(key::PREFIX_LEN..).unwrap_or_default();
        found.push((Bytes::copy_from_slice(short), Bytes::copy_from_slice(value)));
    }
    Ok(found)
}

/// The state of all spaces at one moment, unmoved by later commits. Space that they free stays taken
/// while it lives: drop it when done.
pub struct Snapshot {
    table: Table,
    /// The engine must outlive its tables.
    _kv: Arc<Kv>,
}

impl Snapshot {
    /// The value of a key.
    ///
    /// Errors: `Damaged` when the value is not what was written.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        get_in(&self.table, space.container(), space.tag(), key)
    }

    /// Up to `limit` pairs of `from..to` in key order; `None` reaches to the end of the space.
    ///
    /// Errors: `Damaged` when a value is not what was written.
    pub fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        scan_in(&self.table, space.container(), space.tag(), from, to, limit)
    }
}

/// An error of the engine: whatever it is, the engine must be opened again.
pub(crate) fn failed(error: impl Into<redb::Error>) -> StoreError {
    let why = error.into().to_string();
    StoreError::Failed { why }
}

impl std::fmt::Debug for Kv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kv")
            .field("commits", &self.commits())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}
