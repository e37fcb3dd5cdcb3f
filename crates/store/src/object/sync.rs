//! Making an object durable, and removing it.

use super::table::{UnsavedSums, encode};
use super::{Backing, Body, Goes, Object, Writers};
use crate::error::StoreError;
use crate::format::{ObjectRecord, Place};
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
    /// The bytes of a small object, where they changed.
    small: Option<Vec<u8>>,
    sums: UnsavedSums,
}

impl Plan {
    /// Whether a file holds data that may not be on the disk.
    fn has_to_flush(&self, turn: &Turn) -> bool {
        self.backing != Backing::Small && self.data_change > turn.data_synced
    }
}

/// Whether another commit is about to be asked for.
enum Company {
    None,
    Expected,
}

/// From so many files to flush on, the whole file system is brought to the disk.
const WHOLE_MIN: usize = 32;

/// What a sync has to do.
enum Begun {
    /// All is stored.
    Nothing,
    /// Another sync has queued it all.
    Queued,
    Planned(Plan),
}

/// Syncs of many objects, by their places.
#[derive(Default)]
struct Together {
    plans: Vec<(usize, Plan)>,
    queued: Vec<usize>,
    failed: Option<StoreError>,
}

impl Together {
    fn note(&mut self, error: StoreError) {
        self.failed.get_or_insert(error);
    }
}

impl Object {
    /// Makes all that was done before durable: the data (on this thread), then checksums and validity, then
    /// `done` runs, on the committer thread or, on failure or where nothing is to do, on this one.
    ///
    /// Errors, through `done`: `ReadOnly` when the disk failed: the container takes no more writes here.
    pub fn sync(self: &Arc<Self>, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        self.sync_with(done, Company::None);
    }

    /// [`Object::sync`], whose checksums and validity go with a commit that the caller is about to ask for, or
    /// wait a tenth of a second.
    pub fn sync_in_company(self: &Arc<Self>, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        self.sync_with(done, Company::Expected);
    }

    fn sync_with(
        self: &Arc<Self>,
        done: Box<dyn FnOnce(Result<(), StoreError>) + Send>,
        company: Company,
    ) {
        let mut turn = self.turn.lock();
        let result = self.sync_data(&mut turn);
        match result {
            Ok(Some(batch)) => {
                let change = turn.submitted;
                let object = Arc::clone(self);
                let finish: Done = Box::new(move |result| done(object.finish_sync(change, result)));
                match company {
                    Company::None => self.core.kv.submit(batch, finish),
                    Company::Expected => self.core.kv.submit_lazy(batch, Some(finish)),
                }
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

    /// [`Object::sync`] of many objects of one store, with one commit. Where many files have to be flushed, the whole file
    /// system is brought to the disk instead, which is less work than one call for each; it waits for what other programs
    /// have written, too. `done` has the first error, or success.
    pub fn sync_together(
        mut objects: Vec<Arc<Self>>,
        done: Box<dyn FnOnce(Result<(), StoreError>) + Send>,
    ) {
        // Always locked in the same order, as by who removes many; nobody else locks more than one turn.
        objects.sort_by_key(|object| object.inode);
        objects.dedup_by_key(|object| object.inode);
        let mut turns: Vec<_> = objects.iter().map(|object| object.turn.lock()).collect();
        let mut together = Together::default();
        for (at, (object, turn)) in objects.iter().zip(&mut turns).enumerate() {
            match object.begin_sync(turn) {
                Ok(Begun::Nothing) => {}
                Ok(Begun::Queued) => together.queued.push(at),
                Ok(Begun::Planned(plan)) => together.plans.push((at, plan)),
                Err(error) => together.note(error),
            }
        }
        let plans = together.plans.iter();
        let to_flush = plans.filter(|(at, plan)| plan.has_to_flush(&turns[*at]));
        let flushed_whole = match objects.first() {
            Some(first) if to_flush.count() >= WHOLE_MIN => first.core.sync_whole().is_ok(),
            _ => false,
        };
        let mut batch = WriteBatch::new();
        let mut reached = Vec::new();
        for (at, plan) in together.plans.drain(..).collect::<Vec<_>>() {
            let (object, turn) = (&objects[at], &mut turns[at]);
            // An error of the whole may be another file's: each is asked for its own.
            let flushed = match flushed_whole {
                true => Ok(()),
                false => object.flush_plan(&plan, turn),
            };
            match flushed {
                Ok(()) => {
                    reached.push((Arc::clone(object), plan.change));
                    batch.append(object.end_flush(plan, turn));
                }
                Err(error) => together.note(error),
            }
        }
        for at in std::mem::take(&mut together.queued) {
            reached.push((Arc::clone(&objects[at]), turns[at].submitted));
        }
        let failed = together.failed;
        let Some(kv) = reached
            .first()
            .map(|(object, _)| Arc::clone(&object.core.kv))
        else {
            drop(turns);
            return done(failed.map_or(Ok(()), Err));
        };
        kv.submit(
            batch,
            Box::new(move |result| {
                let mut all = failed.map_or(Ok(()), Err);
                for (object, change) in reached {
                    all = all.and(object.finish_sync(change, result.clone()));
                }
                done(all);
            }),
        );
    }

    /// Brings the data to the disk. Returns what must be committed after it; `None` when all is stored.
    fn sync_data(self: &Arc<Self>, turn: &mut Turn) -> Result<Option<WriteBatch>, StoreError> {
        match self.begin_sync(turn)? {
            Begun::Nothing => Ok(None),
            Begun::Queued => Ok(Some(WriteBatch::new())),
            Begun::Planned(plan) => {
                self.flush_plan(&plan, turn)?;
                Ok(Some(self.end_flush(plan, turn)))
            }
        }
    }

    /// Decides what a sync makes durable.
    fn begin_sync(&self, turn: &mut Turn) -> Result<Begun, StoreError> {
        if self.marks.refused.swap(false, Ordering::AcqRel) {
            turn.submitted = self.committed();
        }
        let mut body = self.body.write();
        if body.backing == Backing::Removed {
            return Ok(Begun::Nothing);
        }
        if body.writers == Writers::Outside {
            self.note_data_change(Goes::ToFile)?;
        }
        let change = self.marks.change.load(Ordering::Acquire);
        if change <= self.committed() {
            return Ok(Begun::Nothing);
        }
        self.core.check_writable(self.inode.container())?;
        if change <= turn.submitted {
            // Another sync has queued it all: an empty batch behind it waits for it.
            return Ok(Begun::Queued);
        }
        Ok(Begun::Planned(self.plan_sync(&mut body, turn, change)))
    }

    /// Brings the file's data to the disk.
    fn flush_plan(&self, plan: &Plan, turn: &Turn) -> Result<(), StoreError> {
        if !plan.has_to_flush(turn) {
            return Ok(());
        }
        self.flush(plan.backing).map_err(|e| {
            self.body.write().pending = None;
            let why = format!("sync of inode {}: {e}", self.inode);
            self.core.set_read_only(self.inode.container(), why)
        })
    }

    /// The data is on the disk: what must be committed after it.
    fn end_flush(self: &Arc<Self>, plan: Plan, turn: &mut Turn) -> WriteBatch {
        turn.data_synced = plan.data_change;
        turn.submitted = plan.change;
        self.store_plan(plan)
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
        let data_change = self.marks.data_change.load(Ordering::Acquire);
        let is_small = backing == Backing::Small;
        Plan {
            change,
            data_change,
            backing,
            small: (is_small && data_change > turn.submitted)
                .then(|| self.unsaved_small())
                .flatten(),
            sums: if is_small {
                UnsavedSums::default()
            } else {
                body.sums.unsaved(turn.submitted, self.committed())
            },
        }
    }

    fn flush(&self, backing: Backing) -> io::Result<()> {
        self.core.touched.sync()?;
        let body = self.body.read();
        let Ok(Some(file)) = self.open_file(&body) else {
            return match body.backing {
                Backing::None | Backing::Small | Backing::Removed => Ok(()),
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
                place: match plan.backing {
                    Backing::None | Backing::Removed => Place::Nowhere,
                    Backing::Small => Place::Keys,
                    Backing::Fresh | Backing::Present => Place::File,
                },
            });
            if let Some(bytes) = plan.small {
                saved.set_bytes(bytes);
            }
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
                self.forget_small();
                Ok(())
            }
            Err(error) => {
                self.marks.refused.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Ends the object: its file is gone, handles on it fail. The turn keeps its keys from coming back. One that the
    /// last process left `unrecovered` may have a file that its record does not know.
    pub(crate) fn retire(&self, unrecovered: bool) -> (Retired<'_>, io::Result<()>) {
        let turn = self.turn.lock();
        let mut body = self.body.write();
        let has_file = unrecovered
            || self.marks.touched.load(Ordering::Acquire)
            || matches!(body.backing, Backing::Fresh | Backing::Present);
        body.backing = Backing::Removed;
        body.pending = None;
        self.saved.lock().set_removed();
        self.close_file();
        self.marks.touched.store(false, Ordering::Release);
        self.core.touched.remove(self.inode);
        drop(body);
        if !has_file {
            return (Retired { _turn: turn }, Ok(()));
        }
        let gone = self.remove_file();
        (Retired { _turn: turn }, gone)
    }
}

/// Proof that no sync of a removed object is on its way to the queue.
pub(crate) struct Retired<'a> {
    _turn: MutexGuard<'a, Turn>,
}
