//! What both ends of a connection do alike: write what is queued, and ping.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout_at};

use crate::error::Ended;
use crate::frame::{Frame, Kind};
use crate::identity::PeerName;
use crate::limits::Merging;
use crate::queue::{Haste, Outgoing, SendQueue};
use crate::shared::Shared;
use crate::stats::PeerCounters;
use perigee_proto::Priority;

/// Calls under way of which each is written as it comes: one program's, with one that nobody waits for. Of more, some leave
/// together.
const FEW: usize = 2;

/// What a side does with its frames as they leave.
pub(crate) trait Leaving: Send {
    /// A frame is about to be written; false drops it.
    fn before_sending(&self, frame: &Outgoing) -> bool;
    /// The watermark that the frames carry.
    fn watermark(&self) -> u64;
}

/// Who writes a call, or the answer to one, of so many that are under way on its connection.
pub(crate) const fn haste(merging: Merging, under_way: usize) -> Haste {
    match merging {
        Merging::Adaptive if under_way <= FEW => Haste::Now,
        Merging::Adaptive | Merging::Fixed(_) | Merging::Off => Haste::Company,
    }
}

/// Writes what is queued until the connection fails, in so far as nobody else does: the queue's outlet is open.
pub(crate) async fn write(shared: &Shared, queue: &SendQueue) -> Ended {
    loop {
        let Some(mut open) = queue.outlet().take() else {
            return Ended::Closed;
        };
        let until = match open.empty(queue, shared.merging, &shared.limits).await {
            Ok(until) => until,
            Err(ended) => return ended,
        };
        queue.outlet().put(open);
        // who queued something meanwhile has said so
        match until {
            // either the time comes, or something more does: look again
            Some(until) => _ = timeout_at(until.into(), queue.ready()).await,
            None => queue.ready().await,
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
        let ping = Outgoing::new(Kind::Ping, Priority::Control, 0, now);
        queue.push(ping, Haste::Company);
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
