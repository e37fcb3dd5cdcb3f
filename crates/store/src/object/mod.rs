//! The data of one inode.
//!
//! Checksums follow what the file holds, valid or not; validity says whether it is what it should be.
//! The order that makes a stop at any point safe: `touched.log` knows an object before its file
//! changes; stored checksums and "valid" marks come after the data's sync; "invalid" marks may come any time.
//! The bytes of a small object are stored with its record and validity, in one commit, and have no stored checksums.
//!
//! Locks, in this order: `outside`, `turn`, `body`, `saved`, `file`. The committer takes `saved` alone.

mod file;
mod outside;
mod read;
mod save;
mod scan;
mod shape;
mod small;
mod sync;
mod table;
mod taken;
mod validity;
mod write;

use crate::core::Core;
use crate::error::StoreError;
use crate::format::{ObjectRecord, Place, decode_record, decode_regions};
use crate::kv::key::{self, Part, Tag};
use crate::touched::By;
use outside::Outside;
use parking_lot::{Mutex, RwLock};
use perigee_replica::RegionMap;
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{ByteRange, InodeId};
use save::Saved;
pub use scan::{AsItIs, Unverified, Verified};
use small::Open;
pub(crate) use small::blocks_for;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Pending, Turn};
use table::SumTable;
pub use taken::{AsTaken, Local, LocalFile};
pub use write::is_hole;

/// Bytes whose validity is stored under one key: bounds what a small invalidation rewrites.
const SPAN_LEN: u64 = 16 << 20;

/// The data of one inode on this node: its bytes, their checksums, and which of them are valid.
#[derive(Debug)]
pub struct Object {
    inode: InodeId,
    core: Arc<Core>,
    turn: Mutex<Turn>,
    body: RwLock<Body>,
    saved: Mutex<Saved>,
    file: Mutex<Option<Open>>,
    outside: Mutex<Outside>,
    marks: Marks,
}

/// Whether the kernel may change the file unseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// Only this object writes.
    Here,
    /// A passthrough writer or a shared mapping may too.
    Outside,
}

/// Where the bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// There are none yet.
    None,
    /// Among the object's keys; in memory from a change until it is stored.
    Small,
    /// In a file made just now: its directory entry is not durable.
    Fresh,
    /// In a file.
    Present,
    /// The object was removed.
    Removed,
}

/// Where a change of the content goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// To a backing file, at once.
    ToFile,
    /// To memory, and among the keys with the next sync.
    ToKeys,
}

impl Body {
    /// Where a change goes that reaches up to `end`.
    fn goes(&self, end: u64, small_len_max: u64) -> Goes {
        match self.backing {
            Backing::None | Backing::Small if self.len.max(end) <= small_len_max => Goes::ToKeys,
            _ => Goes::ToFile,
        }
    }
}

/// What is true of the object now.
#[derive(Debug)]
struct Body {
    len: u64,
    /// Up to where the system was asked to begin bringing the file to the disk.
    begun: u64,
    backing: Backing,
    writers: Writers,
    sums: SumTable,
    invalid: RegionMap,
    /// Blocks that others have changed, whose checksums are taken, and nobody has been told of: a rescan tells.
    unseen: Vec<ByteRange>,
    /// Spans where something became valid since the last sync began.
    filled: BTreeSet<u64>,
    /// What a sync that is on its way will store.
    pending: Option<Pending>,
}

/// Counters that are read without the lock; changed under it.
#[derive(Debug, Default)]
struct Marks {
    /// Counts changes of any kind.
    change: AtomicU64,
    /// The last change of the file's content.
    data_change: AtomicU64,
    /// The last change that is stored.
    committed: AtomicU64,
    /// Whether the inode is in `touched.log`.
    touched: AtomicBool,
    /// When the first change after the last sync was made, in the core's milliseconds; 0: none.
    dirty_since: AtomicU64,
    used: AtomicU64,
    /// Space taken as of a data change; the change, then the space in units of 512 bytes. A change of 0: not known.
    blocks: Mutex<(u64, u64)>,
    /// A commit of a sync was refused: what it held must be stored again.
    refused: AtomicBool,
}

impl Object {
    /// Reads what is stored of an inode.
    pub(crate) fn load(core: &Arc<Core>, inode: InodeId) -> Result<Self, StoreError> {
        let from = key::object(inode, Part::Record, 0);
        let to = key::object_part_end(inode, Part::Validity);
        let (c, tag) = (inode.container(), Tag::Objects);
        let mut record = ObjectRecord::default();
        let mut invalid = RegionMap::new();
        for (key, value) in core.kv.scan(c, tag, &from, Some(&to), usize::MAX)? {
            if key.len() == from.len() {
                record = decode_record(inode, &value)?;
            } else {
                let all = ByteRange::ALL;
                invalid.merge(&decode_regions(inode, &value)?, all);
            }
        }
        Ok(Self {
            inode,
            core: Arc::clone(core),
            turn: Mutex::default(),
            saved: Mutex::new(Saved::new(record, invalid.clone())),
            body: RwLock::new(Body {
                len: record.len,
                begun: record.len,
                backing: match record.place {
                    Place::Nowhere => Backing::None,
                    Place::Keys => Backing::Small,
                    Place::File => Backing::Present,
                },
                writers: Writers::Here,
                sums: SumTable::default(),
                invalid,
                unseen: Vec::new(),
                filled: BTreeSet::new(),
                pending: None,
            }),
            file: Mutex::new(None),
            outside: Mutex::default(),
            marks: Marks::default(),
        })
    }

    /// The inode.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        self.inode
    }

    /// The length in bytes; regions not yet fetched count.
    pub fn len(&self) -> Result<u64, StoreError> {
        let body = self.body.read();
        self.current_len(&body)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.len()? == 0)
    }

    /// The length now, which the kernel may have changed.
    fn current_len(&self, body: &Body) -> Result<u64, StoreError> {
        if body.writers == Writers::Here {
            return Ok(body.len);
        }
        match self.open_file(body)? {
            Some(file) => file
                .size()
                .map(|physical| physical.max(body.len))
                .map_err(|e| self.io("read the length of", &e)),
            None => Ok(body.len),
        }
    }

    fn check_live(&self, body: &Body) -> Result<(), StoreError> {
        if body.backing == Backing::Removed {
            return Err(StoreError::Removed { inode: self.inode });
        }
        Ok(())
    }

    fn check_end(&self, end: u64) -> Result<(), StoreError> {
        if end > FILE_LEN_MAX {
            let inode = self.inode;
            return Err(StoreError::TooLong { inode, end });
        }
        Ok(())
    }

    fn corrupt(&self, ranges: Vec<ByteRange>) -> StoreError {
        let inode = self.inode;
        StoreError::Corrupt { inode, ranges }
    }

    fn io(&self, what: &str, error: &std::io::Error) -> StoreError {
        StoreError::io(
            format!("{what} the backing file of inode {}", self.inode),
            error,
        )
    }

    /// Counts a change of what is known about the object. Returns its number.
    fn note_change(&self) -> u64 {
        let now = self.core.now_ms();
        let since = &self.marks.dirty_since;
        // Only the first change after a sync sets it; another thread's first one is as good.
        _ = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        self.marks.change.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts a change of the content, before it is made; when it goes to a file, `touched.log` knows it when this
    /// returns.
    fn note_data_change(&self, goes: Goes) -> Result<u64, StoreError> {
        if goes == Goes::ToFile && !self.marks.touched.load(Ordering::Acquire) {
            self.core.touched.add(self.inode, By::Process)?;
            self.marks.touched.store(true, Ordering::Release);
            self.core.keeper.ring();
        }
        let change = self.note_change();
        self.marks.data_change.store(change, Ordering::Release);
        Ok(change)
    }

    fn committed(&self) -> u64 {
        self.marks.committed.load(Ordering::Acquire)
    }

    /// Whether something is not stored yet.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.marks.change.load(Ordering::Acquire) > self.committed()
    }

    /// Since when something is not synced, in the core's milliseconds.
    pub(crate) fn dirty_since(&self) -> Option<u64> {
        let since = self.marks.dirty_since.load(Ordering::Relaxed);
        (self.is_dirty() && since != 0).then_some(since)
    }

    /// Remembers that the object was asked for.
    pub(crate) fn mark_used(&self) {
        let now = self.core.next_use();
        self.marks.used.store(now, Ordering::Relaxed);
    }

    /// When it was asked for last.
    pub(crate) fn last_use(&self) -> u64 {
        self.marks.used.load(Ordering::Relaxed)
    }

    /// Takes the inode off `touched.log` if nothing is unstored and no one outside writes. Does not wait.
    pub(crate) fn untouch(&self) {
        let Some(body) = self.body.try_write() else {
            return;
        };
        if self.marks.touched.load(Ordering::Acquire)
            && body.writers == Writers::Here
            && !self.is_dirty()
        {
            self.marks.touched.store(false, Ordering::Release);
            self.core.touched.remove(self.inode);
        }
    }

    /// Whether all of it is stored, so that it may leave memory. Does not wait.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(body) = self.body.try_read() else {
            return false;
        };
        body.writers == Writers::Here && body.pending.is_none() && !self.is_dirty()
    }

    /// Whether the inode is in `touched.log` on this object's account.
    pub(crate) fn is_touched(&self) -> bool {
        self.marks.touched.load(Ordering::Acquire)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.close_file();
    }
}

/// What `range` has outside of `hole`, in order.
fn outside(range: ByteRange, hole: ByteRange) -> [ByteRange; 2] {
    [
        ByteRange::new(range.start, range.end.min(hole.start)),
        ByteRange::new(range.start.max(hole.end), range.end),
    ]
}

/// Whether all of `range` is invalid.
fn wholly_invalid(map: &RegionMap, range: ByteRange) -> bool {
    let invalid: u64 = map.overlapping(range).map(|(r, _)| r.len()).sum();
    invalid == range.len()
}

/// The spans that a range touches.
fn spans_of(range: ByteRange) -> std::ops::Range<u64> {
    range.start / SPAN_LEN..range.end.div_ceil(SPAN_LEN)
}

fn span_range(span: u64) -> ByteRange {
    ByteRange::with_len(span * SPAN_LEN, SPAN_LEN)
}

/// Appends a block to a list of ranges, joined with its neighbour.
fn push_block(ranges: &mut Vec<ByteRange>, block: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end == block.start => last.end = block.end,
        _ => ranges.push(block),
    }
}
