//! Making an object durable, and removing it.

use super::table::{UnsavedSums, encode};
use super::{Backing, Body, Object, Writers};
use crate::error::StoreError;
use crate::format::ObjectRecord;
use crate::kv::key::{self, Part, Tag};
use crate::kv::{Done, WriteBatch};
use parking_lot::MutexGuard;
use perigee_replica::RegionMap;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the syncs of an object have reached; its lock makes them wait for one another.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The last change that a queued commit holds.
    submitted: u64,
    /// The last data change that is on the disk.
    data_synced: u64,
}

/// Validity as it was when a sync began, with what became invalid since.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) spans: BTreeSet<u64>,
    pub(super) regions: RegionMap,
    pub(super) len: u64,
}

/// What one sync makes durable.
struct Plan {
    change: u64,
    data_change: u64,
    backing: Backing,
    sums: UnsavedSums,
}

impl Object {
    /// Makes all that was done before durable: the data (on this thread), then checksums and validity, then
    /// `done` runs, on the committer thread or, on failure or where nothing is to do, on this one.
    ///
    /// Errors, through `done`: `ReadOnly` when the disk failed: the container takes no more writes here.
    pub fn sync(self: &Arc<Self>, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        let mut turn = self.turn.lock();
        let result = self.sync_data(&mut turn);
        match result {
            Ok(Some(batch)) => {
                let change = turn.submitted;
                let object = Arc::clone(self);
                let finish: Done = Box::new(move |result| done(object.finish_sync(change, result)));
                self.core.kv.submit(batch, finish);
            }
            Ok(None) => {
                drop(turn);
                done(Ok(()));
            }
            Err(error) => {
                drop(turn);
                done(Err(error));
            }
        }
    }

    /// [`Object::sync`], waited for. Not for callbacks of the committer.
    pub fn sync_wait(self: &Arc<Self>) -> Result<(), StoreError> {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        // The receiver waits below, so the send cannot fail.
        self.sync(Box::new(move |result| drop(tx.send(result))));
        rx.recv().unwrap_or(Err(StoreError::Closed))
    }

    /// Brings the data to the disk. Returns what must be committed after it; `None` when all is stored.
    fn sync_data(self: &Arc<Self>, turn: &mut Turn) -> Result<Option<WriteBatch>, StoreError> {
        if self.marks.refused.swap(false, Ordering::AcqRel) {
            turn.submitted = self.committed();
        }
        let mut body = self.body.write();
        if body.backing == Backing::Removed {
            return Ok(None);
        }
        if body.writers == Writers::Outside {
            self.note_data_change()?;
        }
        let change = self.marks.change.load(Ordering::Acquire);
        if change <= self.committed() {
            return Ok(None);
        }
        self.core.check_writable(self.inode.container())?;
        if change <= turn.submitted {
            // Another sync has queued it all: an empty batch behind it waits for it.
            return Ok(Some(WriteBatch::new()));
        }
        let plan = self.plan_sync(&mut body, turn, change);
        drop(body);
        if plan.data_change > turn.data_synced {
            self.flush(plan.backing).map_err(|e| {
                self.body.write().pending = None;
                let why = format!("sync of inode {}: {e}", self.inode);
                self.core.set_read_only(self.inode.container(), why)
            })?;
        }
        turn.data_synced = plan.data_change;
        turn.submitted = change;
        Ok(Some(self.store_plan(plan)))
    }

    fn plan_sync(&self, body: &mut Body, turn: &Turn, change: u64) -> Plan {
        let spans = std::mem::take(&mut body.filled);
        let regions = if spans.is_empty() {
            RegionMap::new()
        } else {
            body.invalid.clone()
        };
        let len = body.len;
        body.pending = Some(Pending {
            spans,
            regions,
            len,
        });
        let backing = body.backing;
        if backing == Backing::Fresh {
            // Under `turn`: the next sync starts after this one has made the entry durable, or never.
            body.backing = Backing::Present;
        }
        self.marks.dirty_since.store(0, Ordering::Relaxed);
        Plan {
            change,
            data_change: self.marks.data_change.load(Ordering::Acquire),
            backing,
            sums: body.sums.unsaved(turn.submitted),
        }
    }

    fn flush(&self, backing: Backing) -> io::Result<()> {
        self.core.touched.sync()?;
        let body = self.body.read();
        let Ok(Some(file)) = self.open_file(&body) else {
            return match body.backing {
                Backing::None | Backing::Removed => Ok(()),
                Backing::Fresh | Backing::Present => {
                    Err(io::Error::other("the backing file cannot be opened"))
                }
            };
        };
        drop(body);
        file.sync_data()?;
        if backing == Backing::Fresh {
            self.core
                .disk
                .sync_dir(&self.core.layout.shelf(self.inode))?;
        }
        Ok(())
    }

    /// The data is durable: so may what is known about it be.
    fn store_plan(self: &Arc<Self>, plan: Plan) -> WriteBatch {
        let mut body = self.body.write();
        let mut saved = self.saved.lock();
        if let Some(pending) = body.pending.take() {
            for &span in &pending.spans {
                saved.set_span(span, &pending.regions);
            }
            saved.set_record(ObjectRecord {
                len: pending.len,
                present: matches!(plan.backing, Backing::Fresh | Backing::Present),
            });
        }
        drop(saved);
        drop(body);
        let mut batch = WriteBatch::new();
        batch.save_object(self);
        let (c, inode) = (self.inode.container(), self.inode);
        if let Some(from) = plan.sums.cut {
            let from = key::object(inode, Part::Sums, from);
            let to = key::object_part_end(inode, Part::Sums);
            batch.delete_range_tagged(c, Tag::Objects, &from, Some(&to));
        }
        for (index, sums) in plan.sums.groups {
            let key = key::object(inode, Part::Sums, index);
            if sums.iter().all(|&sum| sum == 0) {
                batch.delete_tagged(c, Tag::Objects, &key);
            } else {
                batch.put_tagged(c, Tag::Objects, &key, &encode(&sums));
            }
        }
        debug_assert!(plan.change > 0, "a sync stores at least one change");
        batch
    }

    /// On the committer thread, in the order of the syncs.
    fn finish_sync(&self, change: u64, result: Result<(), StoreError>) -> Result<(), StoreError> {
        match result {
            Ok(()) if self.marks.refused.load(Ordering::Acquire) => Err(StoreError::NoSpace),
            Ok(()) => {
                self.marks.committed.fetch_max(change, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                self.marks.refused.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Ends the object: its file is gone, handles on it fail. The turn keeps its keys from coming back.
    pub(crate) fn retire(&self) -> (Retired<'_>, io::Result<()>) {
        let turn = self.turn.lock();
        let mut body = self.body.write();
        body.backing = Backing::Removed;
        body.pending = None;
        self.saved.lock().set_removed();
        self.close_file();
        self.marks.touched.store(false, Ordering::Release);
        self.core.touched.remove(self.inode);
        drop(body);
        let path = self.core.layout.object(self.inode);
        let gone = match self.core.disk.remove_file(&path) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        };
        (Retired { _turn: turn }, gone)
    }
}

/// Proof that no sync of a removed object is on its way to the queue.
pub(crate) struct Retired<'a> {
    _turn: MutexGuard<'a, Turn>,
}
