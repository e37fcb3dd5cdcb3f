//! Counters, for each peer and for the process.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::error::Ended;
use crate::identity::PeerName;

/// Classes of [`PeerStats::queue_lengths`].
pub const QUEUE_CLASSES: usize = 12;

/// What happened between this process and one peer, both directions and lanes together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Connections that are open now.
    pub connections: usize,
    /// Round trip of pings, smoothed (RFC 6298, section 2: an eighth of each new sample).
    pub rtt: Option<Duration>,
    /// Bytes received, as encrypted.
    pub bytes_in: u64,
    /// Bytes sent, as encrypted.
    pub bytes_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Writes that they were sent in.
    pub writes: u64,
    /// Frames that left in a write together with others.
    pub frames_merged: u64,
    /// How many frames waited when a write began: class `i` counts lengths from `2^i` to below `2^(i+1)`, the last one all
    /// above.
    pub queue_lengths: [u64; QUEUE_CLASSES],
    /// How long the calls and answers sent have waited in the queue, all together.
    pub waited: Duration,
    /// Calls of this process that have ended, with an answer or without.
    pub calls: u64,
    /// How long they took, all together.
    pub calls_took: Duration,
    /// Calls of the peer that were run here.
    pub served: u64,
    /// How long that took, all together, from the frame to the answer.
    pub serving_took: Duration,
    /// Bytes that wait to be sent now.
    pub queue_bytes: usize,
    /// Casts that were not sent.
    pub casts_dropped: u64,
    /// Connections that were opened, by either side.
    pub connects: u64,
    /// Attempts to open a connection that failed.
    pub connects_failed: u64,
    /// Calls sent again on a new connection.
    pub calls_repeated: u64,
}

/// What happened in this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetStats {
    /// For each peer that was ever connected or called.
    pub peers: BTreeMap<PeerName, PeerStats>,
    /// How often a connection ended, by reason.
    pub disconnects: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    pub(crate) connections: AtomicUsize,
    /// In nanoseconds; 0 before the first.
    rtt: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) frames_in: AtomicU64,
    pub(crate) frames_out: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) frames_merged: AtomicU64,
    queue_lengths: [AtomicU64; QUEUE_CLASSES],
    /// In nanoseconds, as those below.
    waited: AtomicU64,
    calls: AtomicU64,
    calls_took: AtomicU64,
    served: AtomicU64,
    serving_took: AtomicU64,
    pub(crate) casts_dropped: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) connects_failed: AtomicU64,
    pub(crate) calls_repeated: AtomicU64,
}

impl PeerCounters {
    /// A write of `frames` frames begins, out of `waiting` that waited; calls and answers among them for so long in all.
    pub(crate) fn on_write(&self, frames: usize, waiting: usize, waited: Duration) {
        add(&self.waited, waited);
        self.writes.fetch_add(1, Relaxed);
        self.frames_out.fetch_add(frames as u64, Relaxed);
        if frames > 1 {
            self.frames_merged.fetch_add(frames as u64, Relaxed);
        }
        let class = (waiting.max(1).ilog2() as usize).min(QUEUE_CLASSES - 1);
        self.queue_lengths[class].fetch_add(1, Relaxed);
    }

    /// A call of this process has ended.
    pub(crate) fn on_call(&self, took: Duration) {
        self.calls.fetch_add(1, Relaxed);
        add(&self.calls_took, took);
    }

    /// A call of the peer has an answer.
    pub(crate) fn on_served(&self, took: Duration) {
        self.served.fetch_add(1, Relaxed);
        add(&self.serving_took, took);
    }

    pub(crate) fn on_round_trip(&self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX).max(1);
        // two lanes may race here; losing one sample is fine
        let smoothed = match self.rtt.load(Relaxed) {
            0 => sample,
            old => old - old / 8 + sample / 8,
        };
        self.rtt.store(smoothed.max(1), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> PeerStats {
        let rtt = self.rtt.load(Relaxed);
        PeerStats {
            connections: self.connections.load(Relaxed),
            rtt: (rtt > 0).then(|| Duration::from_nanos(rtt)),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            frames_in: self.frames_in.load(Relaxed),
            frames_out: self.frames_out.load(Relaxed),
            writes: self.writes.load(Relaxed),
            frames_merged: self.frames_merged.load(Relaxed),
            queue_lengths: std::array::from_fn(|class| self.queue_lengths[class].load(Relaxed)),
            waited: Duration::from_nanos(self.waited.load(Relaxed)),
            calls: self.calls.load(Relaxed),
            calls_took: Duration::from_nanos(self.calls_took.load(Relaxed)),
            served: self.served.load(Relaxed),
            serving_took: Duration::from_nanos(self.serving_took.load(Relaxed)),
            queue_bytes: 0,
            casts_dropped: self.casts_dropped.load(Relaxed),
            connects: self.connects.load(Relaxed),
            connects_failed: self.connects_failed.load(Relaxed),
            calls_repeated: self.calls_repeated.load(Relaxed),
        }
    }
}

/// Adds nanoseconds: five hundred years of them fit.
fn add(sum: &AtomicU64, took: Duration) {
    sum.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(0), Relaxed);
}

/// The counters of a process.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    peers: Mutex<BTreeMap<PeerName, Arc<PeerCounters>>>,
    disconnects: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    pub(crate) fn peer(&self, name: PeerName) -> Arc<PeerCounters> {
        Arc::clone(self.peers.lock().entry(name).or_default())
    }

    pub(crate) fn on_end(&self, reason: &Ended) {
        *self.disconnects.lock().entry(reason.label()).or_default() += 1;
    }

    pub(crate) fn snapshot(&self) -> NetStats {
        let peers = self.peers.lock();
        NetStats {
            peers: peers
                .iter()
                .map(|(name, counters)| (*name, counters.snapshot()))
                .collect(),
            disconnects: self.disconnects.lock().clone(),
        }
    }
}
