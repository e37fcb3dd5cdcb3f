//! What a process is started with, and the limits that it keeps.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::frame::Bounds;
use crate::identity::Identity;

/// The versions of the messages that this binary speaks.
///
/// 2: records may carry bytes.
pub const PROTOCOL: RangeInclusive<u16> = 2..=2;

/// How frames that wait for one connection leave together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merging {
    /// One frame, one write.
    Off,
    /// Waits until this many frames are queued or [`Limits::watermark_wait`] has passed, as An and Sung published it
    /// ("Efficient I/O Merging Scheme for Distributed File Systems", Symmetry 15(2), 2023). The bound on the wait is ours:
    /// the source has none, and its queue starves when requests depend on each other.
    Fixed(usize),
    /// Whatever waits when the last write has ended leaves in the next one: no timer, no wait at depth 1.
    #[default]
    Adaptive,
}

/// The largest watermark that anybody can ask for: more never wait together.
const WATERMARK_MAX: usize = 1_024;

/// A text that names no way to merge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is \"adaptive\", \"off\", or how many to wait for, 2 to {WATERMARK_MAX}, not \"{0}\"")]
pub struct NoMerging(String);

impl std::str::FromStr for Merging {
    type Err = NoMerging;

    fn from_str(text: &str) -> Result<Self, NoMerging> {
        match text {
            "adaptive" => Ok(Self::Adaptive),
            "off" => Ok(Self::Off),
            number => match number.parse() {
                Ok(watermark @ 2..=WATERMARK_MAX) => Ok(Self::Fixed(watermark)),
                _ => Err(NoMerging(number.to_owned())),
            },
        }
    }
}

impl std::fmt::Display for Merging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Adaptive => f.write_str("adaptive"),
            Self::Off => f.write_str("off"),
            Self::Fixed(watermark) => watermark.fmt(f),
        }
    }
}

/// The limits of one process, towards every peer alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Longest body of a frame, in bytes. Both sides of a connection must have the same.
    pub body_max: usize,
    /// Longest payload of a frame, in bytes. Both sides of a connection must have the same.
    pub payload_max: usize,
    /// Bytes that wait to be sent, for each peer, lane and priority. Calls wait for room; casts push out older casts.
    pub queue_bytes_max: usize,
    /// Bytes of requests that run here and of their answers that are not sent yet, for each peer and lane. Beyond it
    /// nothing more is read from that peer. At least one request always runs.
    pub in_flight_bytes_max: usize,
    /// Bytes of answers kept for repeats until the caller has confirmed them, for each peer and lane. A forgotten answer
    /// makes a repeat fail with [`crate::CallError::Lost`]; the call is not run again.
    pub reply_bytes_max: usize,
    /// From the start of a connection to the end of its hello.
    pub handshake_timeout: Duration,
    /// A connection from which nothing came, or which took nothing, for so long is closed. More than 2 `ping_interval`.
    pub idle_timeout: Duration,
    /// The longest that one frame may take to arrive.
    pub frame_timeout: Duration,
    /// How often each side pings.
    pub ping_interval: Duration,
    /// The first pause after a connection could not be opened; doubles with each.
    pub backoff_min: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// The longest that [`Merging::Fixed`] waits for its watermark.
    pub watermark_wait: Duration,
    /// Connections that have not said hello yet, of all peers together. More are closed at once.
    pub handshakes_max: usize,
    /// The longest that [`crate::Network::shutdown`] waits for requests that run here.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_max: 1 << 20,
            payload_max: 16 << 20,
            queue_bytes_max: 64 << 20,
            in_flight_bytes_max: 64 << 20,
            reply_bytes_max: 32 << 20,
            handshake_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(5),
            frame_timeout: Duration::from_secs(60),
            ping_interval: Duration::from_secs(1),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(500),
            watermark_wait: Duration::from_millis(1),
            handshakes_max: 256,
            shutdown_grace: Duration::from_secs(2),
        }
    }
}

impl Limits {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            body_max: self.body_max,
            payload_max: self.payload_max,
        }
    }

    /// Every inequality that does not hold; empty when all do.
    #[must_use]
    pub fn faults(&self) -> Vec<&'static str> {
        let rules = [
            (
                self.idle_timeout > self.ping_interval * 2,
                "idle_timeout must be more than twice ping_interval",
            ),
            (
                !self.backoff_min.is_zero() && self.backoff_min <= self.backoff_max,
                "backoff_min must be above zero and at most backoff_max",
            ),
            (
                !self.ping_interval.is_zero() && !self.handshake_timeout.is_zero(),
                "ping_interval and handshake_timeout must be above zero",
            ),
            (
                u32::try_from(self.body_max).is_ok() && u32::try_from(self.payload_max).is_ok(),
                "body_max and payload_max must fit 32 bits",
            ),
            (
                self.queue_bytes_max > 0 && self.in_flight_bytes_max > 0 && self.handshakes_max > 0,
                "queue_bytes_max, in_flight_bytes_max and handshakes_max must be above zero",
            ),
        ];
        rules
            .into_iter()
            .filter_map(|(holds, rule)| (!holds).then_some(rule))
            .collect()
    }
}

/// What [`crate::Network::start`] needs.
#[derive(Debug)]
pub struct NetConfig {
    /// Who this process is.
    pub identity: Identity,
    /// Where it listens; port 0 chooses one.
    pub listen: SocketAddr,
    /// How frames leave.
    pub merging: Merging,
    /// Its limits.
    pub limits: Limits,
    /// The versions that it offers; [`PROTOCOL`] except in tests of upgrades.
    pub protocol: RangeInclusive<u16>,
}

impl NetConfig {
    /// Adaptive merging, the default limits, this binary's versions.
    #[must_use]
    pub fn new(identity: Identity, listen: SocketAddr) -> Self {
        Self {
            identity,
            listen,
            merging: Merging::default(),
            limits: Limits::default(),
            protocol: PROTOCOL,
        }
    }
}
