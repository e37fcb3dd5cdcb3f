//! The way out of a queue. The connection's task empties the queue, and waits with what does not fit; but who queues a frame
//! when nobody else has something under way writes it there and then: to wake a task takes longer than to write.
//!
//! Invariant: frames are taken from the queue and written by one at a time, whoever that is, and by nobody after
//! [`Outlet::close`] has returned.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::{FrameWriter, Sent};
use crate::connection::Leaving;
use crate::error::Ended;
use crate::frame::Kind;
use crate::limits::{Limits, Merging};
use crate::queue::{Outgoing, SendQueue, Taken};
use crate::stats::PeerCounters;

/// The open connection of a queue.
pub(crate) struct Open {
    pub(crate) writer: FrameWriter,
    pub(crate) leaving: Box<dyn Leaving>,
    pub(crate) counters: Arc<PeerCounters>,
    /// Why it has failed for one who is not its task.
    failed: Option<Ended>,
}

/// Empty while there is no connection, and while its task has it.
#[derive(Default)]
pub(crate) struct Outlet(Mutex<Option<Open>>);

/// Whether a frame has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Yes,
    /// The connection's task has to see to it.
    No,
}

impl Open {
    pub(crate) fn new(
        writer: FrameWriter,
        leaving: Box<dyn Leaving>,
        counters: Arc<PeerCounters>,
    ) -> Self {
        Self {
            writer,
            leaving,
            counters,
            failed: None,
        }
    }

    /// Writes what is queued, as long as the system takes it. Gives the time until which the rest waits for company.
    pub(crate) async fn empty(
        &mut self,
        queue: &SendQueue,
        merging: Merging,
        limits: &Limits,
    ) -> Result<Option<Instant>, Ended> {
        if let Some(ended) = self.failed.take() {
            return Err(ended);
        }
        let mut batch = Vec::new();
        loop {
            let now = Instant::now();
            match queue.take(merging, limits.watermark_wait, now, &mut batch) {
                Taken::Frames { waiting } => {
                    batch.retain(|frame| self.leaving.before_sending(frame));
                    if batch.is_empty() {
                        continue;
                    }
                    self.counters
                        .on_write(batch.len(), waiting, waited(&batch, now));
                    let acknowledged = self.leaving.watermark();
                    self.writer
                        .send(&batch, acknowledged, limits.idle_timeout)
                        .await?;
                    batch.clear();
                    // those who were woken by the last answers queue their next calls before the next write: more leave
                    // together, and nobody waits when nobody else is ready
                    tokio::task::yield_now().await;
                }
                Taken::Until(until) => return Ok(Some(until)),
                Taken::Nothing => {
                    self.writer.flush(limits.idle_timeout).await?;
                    return Ok(None);
                }
            }
        }
    }
}

/// How long calls and answers have waited that leave now, all together.
fn waited(batch: &[Outgoing], now: Instant) -> Duration {
    let counts = |frame: &&Outgoing| matches!(frame.kind, Kind::Call | Kind::Answer);
    let batch = batch.iter().filter(counts);
    batch.map(|frame| frame.waited(now)).sum()
}

impl Outlet {
    /// A connection is there, or its task is done for now.
    pub(crate) fn put(&self, open: Open) {
        *self.0.lock() = Some(open);
    }

    /// For the connection's task, which puts it back.
    pub(crate) fn take(&self) -> Option<Open> {
        self.0.lock().take()
    }

    /// The connection has ended.
    pub(crate) fn close(&self) {
        drop(self.take());
    }

    /// Writes what is queued on this thread, without waiting for anybody.
    pub(crate) fn write_now(&self, queue: &SendQueue) -> Left {
        let Some(mut place) = self.0.try_lock() else {
            return Left::No;
        };
        let Some(open) = place.as_mut().filter(|open| open.failed.is_none()) else {
            return Left::No;
        };
        // others may have queued something since
        if !queue.is_short() {
            return Left::No;
        }
        let (mut batch, now) = (Vec::new(), Instant::now());
        let taken = queue.take(Merging::Adaptive, Duration::ZERO, now, &mut batch);
        let Taken::Frames { waiting } = taken else {
            return Left::Yes;
        };
        batch.retain(|frame| open.leaving.before_sending(frame));
        if batch.is_empty() {
            return Left::Yes;
        }
        open.counters
            .on_write(batch.len(), waiting, waited(&batch, now));
        let acknowledged = open.leaving.watermark();
        match open.writer.send_now(&batch, acknowledged) {
            Ok(Sent::All) => Left::Yes,
            Ok(Sent::InPart) => Left::No,
            Err(ended) => {
                open.failed = Some(ended);
                Left::No
            }
        }
    }
}

impl std::fmt::Debug for Outlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outlet")
    }
}
