//! The committer: one thread that makes queued batches durable, many in one commit.
//!
//! Order: batches are applied, and their callbacks run, in the order of their submission. A lazy batch
//! keeps its place; it only does not ask for a commit of its own. On a full disk, batches that wait for room keep their
//! order among those of their container alone.

use super::{Kv, Op, TABLE, WithoutRoom, WriteBatch, failed};
use crate::error::StoreError;
use crate::reserve::{Admission, Reserve};
use perigee_types::ContainerId;
use redb::{Durability, Table};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Runs on the committer thread when a batch is durable, or can never be. It must not wait for another commit.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A lazy batch waits no longer than this for a durable one to ride with.
const LAZY_MAX: Duration = Duration::from_millis(100);
/// Queued bytes beyond which `submit` waits: a few commits' worth of a disk that writes 1 GB/s.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// After so long a full disk is asked again for the room that batches wait for.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
/// Bytes in one commit; bounds the memory of dirty pages, and the wait of those who come next.
const GROUP_BYTES_MAX: usize = 16 << 20;

struct Item {
    batch: WriteBatch,
    done: Option<Done>,
}

#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    /// Those that wait for room on the disk.
    waiting: VecDeque<Item>,
    /// When to look for that room again.
    room_at: Option<Instant>,
    /// Of those that do not.
    bytes: usize,
    /// Commit now.
    urgent: bool,
    /// Commit then.
    due: Option<Instant>,
    end: Option<End>,
    /// The committer is.
    ended: bool,
    committer: Option<ThreadId>,
}

/// What goes to the disk in one commit.
struct Group {
    items: Vec<Item>,
    room: Room,
}

/// What is known of the room for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Unknown,
    /// There is some.
    Found,
    /// What there is is for logs, of which some wait for it: others would be there before what they build on.
    Spoken,
}

/// Why nothing more is taken.
enum End {
    /// The store is closing; what is queued will be committed.
    Closing,
    /// The engine failed.
    Failed(StoreError),
}

impl Queue {
    /// Whether it is time to look whether there is room for those that wait for it.
    fn looks_for_room(&self) -> bool {
        let is_time = self.room_at.is_some_and(|at| at <= Instant::now());
        !self.waiting.is_empty() && (is_time || self.end.is_some())
    }

    /// Items that wait for room, for which there is some together: of each order from its first one on, so that one that needs
    /// much holds no other order up. All of them where nobody waits any more.
    fn take_waiting(&mut self, reserve: &Reserve) -> Group {
        if self.end.is_some() {
            let items = self.waiting.drain(..).collect();
            return Group {
                items,
                room: Room::Unknown,
            };
        }
        let (mut stuck, mut bytes) = (BTreeSet::new(), 0);
        let (mut items, mut left) = (Vec::new(), VecDeque::new());
        for item in self.waiting.drain(..) {
            let more = bytes + item.batch.bytes;
            let is_stuck = item.batch.order.is_some_and(|id| stuck.contains(&id));
            let is_late = more > GROUP_BYTES_MAX && !items.is_empty();
            if is_stuck || is_late || reserve.admit(more) == Admission::DeletesOnly {
                stuck.extend(item.batch.order);
                left.push_back(item);
            } else {
                bytes = more;
                items.push(item);
            }
        }
        self.waiting = left;
        self.room_at = (!self.waiting.is_empty()).then(|| Instant::now() + ROOM_PAUSE);
        Group {
            items,
            room: Room::Found,
        }
    }

    /// The next in the queue. While some wait for room there is none for what keeps no order, and what keeps that of one of
    /// them waits behind it.
    fn take_items(&mut self) -> Group {
        let waiting = self.waiting.iter().filter_map(|item| item.batch.order);
        let orders: BTreeSet<ContainerId> = waiting.collect();
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < GROUP_BYTES_MAX
            && let Some(item) = self.items.pop_front()
        {
            bytes += item.batch.bytes;
            if item.batch.order.is_some_and(|id| orders.contains(&id)) {
                self.waiting.push_back(item);
            } else {
                items.push(item);
            }
        }
        self.bytes -= bytes;
        if self.items.is_empty() {
            self.urgent = false;
            self.due = None;
        }
        let room = match self.waiting.is_empty() {
            true => Room::Unknown,
            false => Room::Spoken,
        };
        Group { items, room }
    }
}

impl Kv {
    /// Queues a batch; `done` runs when it is durable. Waits while the queue is full.
    pub(crate) fn submit(&self, batch: WriteBatch, done: Done) {
        let now = None;
        self.enqueue(batch, Some(done), now);
    }

    /// Queues a batch that is in no hurry.
    pub(crate) fn submit_lazy(&self, batch: WriteBatch, done: Option<Done>) {
        if batch.is_empty() && done.is_none() {
            return;
        }
        self.enqueue(batch, done, Some(Instant::now() + LAZY_MAX));
    }

    /// What was queued without hurry waits for no other batch any more.
    pub(crate) fn hasten(&self) {
        let mut queue = self.queue.lock();
        if !queue.items.is_empty() && !std::mem::replace(&mut queue.urgent, true) {
            drop(queue);
            self.work.notify_one();
        }
    }

    /// Queues a batch and waits until it is durable. Not for the committer thread.
    pub(crate) fn commit(&self, batch: WriteBatch) -> Result<(), StoreError> {
        let (tx, rx) = mpsc::sync_channel(1);
        // The receiver waits below, so the send cannot fail.
        self.submit(batch, Box::new(move |result| drop(tx.send(result))));
        rx.recv().unwrap_or(Err(StoreError::Closed))
    }

    fn enqueue(&self, batch: WriteBatch, done: Option<Done>, due: Option<Instant>) {
        let mut queue = self.queue.lock();
        while queue.bytes > QUEUE_BYTES_MAX
            && queue.end.is_none()
            && queue.committer != Some(thread::current().id())
        {
            self.room.wait(&mut queue);
        }
        if let Some(end) = &queue.end {
            let error = end.error();
            drop(queue);
            if let Some(done) = done {
                done(Err(error));
            }
            return;
        }
        queue.bytes += batch.bytes;
        queue.items.push_back(Item { batch, done });
        // Who waits for a time that has not changed need not look.
        let sooner = match due {
            None => !std::mem::replace(&mut queue.urgent, true),
            Some(at) => {
                let sooner = queue.due.is_none_or(|old| at < old);
                if sooner {
                    queue.due = Some(at);
                }
                sooner
            }
        };
        let wakes = sooner || queue.bytes > QUEUE_BYTES_MAX;
        drop(queue);
        if wakes {
            self.work.notify_one();
        }
    }

    /// Takes nothing more; what is queued will be committed, and then the engine closed.
    pub(crate) fn close(&self) {
        self.queue.lock().end.get_or_insert(End::Closing);
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Waits until [`Self::close`] is done. Not for the committer thread.
    pub(crate) fn wait_until_closed(&self) {
        let mut queue = self.queue.lock();
        while !queue.ended {
            self.room.wait(&mut queue);
        }
    }

    /// The committer's life: until closed and empty, or failed.
    pub(crate) fn run_committer(self: Arc<Self>) {
        self.queue.lock().committer = Some(thread::current().id());
        let guard = FailOnPanic(&self);
        while let Some(group) = self.next_group() {
            self.commit_group(group);
        }
        if matches!(self.queue.lock().end, Some(End::Closing)) {
            // Here and not with the last handle: some may live until the process ends, and an engine that was not closed
            // is verified as after a crash. What it says of its end it says again at the next open.
            let mut db = self.db.write();
            self.forget_newest();
            drop(db.take());
        }
        self.end();
        std::mem::forget(guard);
    }

    fn end(&self) {
        self.queue.lock().ended = true;
        self.room.notify_all();
    }

    /// Waits for work. `None` when there will be no more.
    fn next_group(&self) -> Option<Group> {
        let mut queue = self.queue.lock();
        loop {
            if queue.looks_for_room() {
                break;
            }
            if queue.items.is_empty() {
                if queue.end.is_some() {
                    return None;
                }
                match queue.room_at {
                    Some(at) => _ = self.work.wait_until(&mut queue, at),
                    None => self.work.wait(&mut queue),
                }
            } else if queue.urgent || queue.end.is_some() || queue.bytes > QUEUE_BYTES_MAX {
                break;
            } else if let Some(due) = queue.due
                && Instant::now() < due
            {
                self.work.wait_until(&mut queue, due);
            } else {
                break;
            }
        }
        let group = match queue.looks_for_room() {
            true => queue.take_waiting(&self.reserve),
            false => queue.take_items(),
        };
        drop(queue);
        self.room.notify_all();
        Some(group)
    }

    fn commit_group(&self, group: Group) {
        let Group { items, room } = group;
        let admission = match room {
            Room::Found => Admission::All,
            Room::Spoken | Room::Unknown => {
                let bytes = items.iter().map(|item| item.batch.bytes).sum();
                self.reserve.admit(bytes)
            }
        };
        let items = match admission {
            Admission::All => items,
            Admission::DeletesOnly => self.put_back_waiting(items),
        };
        let refused = self.refused(&items, admission, room);
        let kept = items.iter().zip(&refused).filter(|(_, refused)| !**refused);
        let result = self.apply(kept.map(|(item, _)| &item.batch));
        if let Err(error) = &result {
            self.fail(error.clone());
        }
        for (item, refused) in items.into_iter().zip(refused) {
            let verdict = if refused {
                Err(StoreError::NoSpace)
            } else {
                result.clone()
            };
            // Handles in the batch go first, so that a callback sees them released.
            drop(item.batch);
            if let Some(done) = item.done {
                done(verdict);
            }
        }
    }

    /// Sets those aside that wait for room, unless the store is closing. Returns the others.
    fn put_back_waiting(&self, items: Vec<Item>) -> Vec<Item> {
        let mut queue = self.queue.lock();
        if queue.end.is_some() {
            return items;
        }
        let mut orders = BTreeSet::new();
        let mut waits = |batch: &WriteBatch| {
            let waits = batch.order.is_some_and(|id| orders.contains(&id))
                || (batch.grows && batch.without_room == WithoutRoom::Waits);
            if waits {
                orders.extend(batch.order);
            }
            waits
        };
        let (waiting, others): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| waits(&item.batch));
        if !waiting.is_empty() {
            queue.waiting.extend(waiting);
            queue
                .room_at
                .get_or_insert_with(|| Instant::now() + ROOM_PAUSE);
        }
        others
    }

    /// Takes the reserve again where there is room for it, and nobody who waits for that.
    pub(crate) fn refill(&self) {
        if self.queue.lock().waiting.is_empty() {
            self.reserve.refill();
        }
    }

    /// Which of the items there is no room for, or which build on one there was none for.
    fn refused(&self, items: &[Item], admission: Admission, room: Room) -> Vec<bool> {
        let mut broken = self.broken.lock();
        let mut refused = |batch: &WriteBatch| {
            let no_room = admission == Admission::DeletesOnly
                || (room == Room::Spoken && batch.order.is_none());
            let refused =
                (no_room && batch.grows) || batch.order.is_some_and(|id| broken.contains(&id));
            if refused {
                broken.extend(batch.order);
            }
            refused
        };
        items.iter().map(|item| refused(&item.batch)).collect()
    }

    /// Batches that keep the order of `container` are taken again.
    pub(crate) fn begin_order(&self, container: ContainerId) {
        self.broken.lock().remove(&container);
    }

    fn apply<'a>(&self, batches: impl Iterator<Item = &'a WriteBatch>) -> Result<(), StoreError> {
        let mut batches = batches.filter(|b| !b.is_empty()).peekable();
        if batches.peek().is_none() {
            return Ok(());
        }
        let db = self.db.read();
        let db = db.as_ref().ok_or(StoreError::Closed)?;
        let mut txn = db.begin_write().map_err(failed)?;
        txn.set_durability(Durability::Immediate).map_err(failed)?;
        {
            let mut table = txn.open_table(TABLE).map_err(failed)?;
            let mut ops = batches.flat_map(|batch| &batch.ops).peekable();
            while let Some(op) = ops.next() {
                let Op::DeleteRange { from, to } = op else {
                    apply_op(&mut table, op)?;
                    continue;
                };
                // Neighbours go together: whoever removes a tree removes inodes in a row.
                let mut to = to;
                while let Some(Op::DeleteRange {
                    from: next,
                    to: end,
                }) = ops.peek()
                    && next == to
                {
                    to = end;
                    ops.next();
                }
                delete_range(&mut table, from, to)?;
            }
        }
        let committed = txn.commit().map_err(failed);
        // Before anybody hears of it.
        self.forget_newest();
        committed?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses everything from now on, and all that waits.
    fn fail(&self, error: StoreError) {
        let mut queue = self.queue.lock();
        let mut waiting = std::mem::take(&mut queue.waiting);
        waiting.append(&mut queue.items);
        queue.bytes = 0;
        queue.end = Some(End::Failed(error.clone()));
        drop(queue);
        self.room.notify_all();
        for item in waiting {
            if let Some(done) = item.done {
                done(Err(error.clone()));
            }
        }
    }
}

fn delete_range(
    table: &mut Table<'_, &[u8], &[u8]>,
    from: &[u8],
    to: &[u8],
) -> Result<(), StoreError> {
    if from < to {
        table
            .retain_in::<&[u8], _>(from..to, |_, _| false)
            .map_err(failed)?;
    }
    Ok(())
}

fn apply_op(table: &mut Table<'_, &[u8], &[u8]>, op: &Op) -> Result<(), StoreError> {
    match op {
        Op::Put { key, value } => {
            table
                .insert(key.as_slice(), value.as_slice())
                .map_err(failed)?;
        }
        Op::Delete { key } => {
            table.remove(key.as_slice()).map_err(failed)?;
        }
        Op::DeleteRange { from, to } => delete_range(table, from, to)?,
        Op::SaveObject(object) => {
            for op in object.take_unsaved() {
                apply_op(table, &op)?;
            }
        }
    }
    Ok(())
}

impl End {
    fn error(&self) -> StoreError {
        match self {
            Self::Closing => StoreError::Closed,
            Self::Failed(error) => error.clone(),
        }
    }
}

/// A callback's panic must not leave others waiting for ever.
struct FailOnPanic<'a>(&'a Kv);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        let why = "a callback of the committer panicked".to_owned();
        self.0.fail(StoreError::Failed { why });
        self.0.end();
    }
}
