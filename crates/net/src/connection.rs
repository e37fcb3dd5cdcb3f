//! What both ends of a connection do alike: write what is queued, and ping.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval, timeout_at};

use crate::channel::FrameWriter;
use crate::error::Ended;
use crate::frame::{Frame, Kind};
use crate::identity::PeerName;
use crate::queue::{Outgoing, SendQueue, Taken};
use crate::shared::Shared;
use crate::stats::PeerCounters;
use perigee_proto::Priority;

/// What a side does with its frames as they leave.
pub(crate) trait Leaving {
    /// A frame is about to be written; false drops it.
    fn before_sending(&self, frame: &Outgoing) -> bool;
    /// The watermark that the frames carry.
    fn watermark(&self) -> u64;
}

/// Writes what is queued until the connection fails.
pub(crate) async fn write(
    shared: &Shared,
    queue: &SendQueue,
    writer: &mut FrameWriter,
    counters: &PeerCounters,
    leaving: &impl Leaving,
) -> Ended {
    let limits = &shared.limits;
    let mut batch = Vec::new();
    loop {
        let now = Instant::now();
        match queue.take(shared.merging, limits.watermark_wait, now, &mut batch) {
            Taken::Frames { waiting } => {
                batch.retain(|frame| leaving.before_sending(frame));
                if batch.is_empty() {
                    continue;
                }
                counters.on_write(batch.len(), waiting);
                let sent = writer.send(&batch, leaving.watermark(), limits.idle_timeout);
                if let Err(ended) = sent.await {
                    return ended;
                }
                batch.clear();
                // those who were woken by the last answers queue their next calls before the next write: more leave
                // together, and nobody waits when nobody else is ready
                tokio::task::yield_now().await;
            }
            Taken::Until(until) => {
                // either the time comes, or something more does: look again
                _ = timeout_at(until.into(), queue.ready()).await;
            }
            Taken::Nothing => {
                if let Err(ended) = writer.flush(limits.idle_timeout).await {
                    return ended;
                }
                queue.ready().await;
            }
        }
    }
}

/// Queues a ping at once and then in every interval: it measures the round trip, keeps the peer from taking this side for
/// dead, and carries the watermark when no other frame does.
pub(crate) async fn ping(shared: &Shared, queue: &SendQueue) -> Ended {
    let mut ticks = interval(shared.limits.ping_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = u64::try_from(shared.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        queue.push(Outgoing::new(Kind::Ping, Priority::Control, 0, now));
    }
}

/// Answers a ping of a peer, or takes its answer to one.
pub(crate) fn on_ping_or_pong(
    shared: &Shared,
    queue: &SendQueue,
    (peer, counters): (PeerName, &Arc<PeerCounters>),
    frame: &Frame,
) {
    if frame.header.kind == Kind::Ping {
        queue.push_pong(frame.header.id, shared.note.read().clone());
        return;
    }
    let sent = Duration::from_micros(frame.header.id);
    // a time that never was is a peer's mistake, and does no harm
    if let Some(sample) = shared.started.elapsed().checked_sub(sent) {
        counters.on_round_trip(sample);
        shared.service.round_trip(peer, sample, &frame.body);
    }
}

/// Casts that were never written.
pub(crate) fn count_dropped_casts(counters: &PeerCounters, dropped: u64) {
    if dropped > 0 {
        counters.casts_dropped.fetch_add(dropped, Relaxed);
    }
}
