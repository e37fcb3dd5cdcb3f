//! What a process offers to its peers, and what it asks of them.

use bytes::Bytes;
use perigee_proto::{Priority, Retry};
use std::pin::Pin;
use std::time::{Duration, Instant};

use crate::error::Refusal;
use crate::identity::PeerName;

/// A future behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request, or a cast. The transport reads none of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Call {
    /// The procedure's number.
    pub method: u16,
    /// The encoded message.
    pub body: Bytes,
    /// Raw bytes beside it.
    pub payload: Bytes,
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The encoded message.
    pub body: Bytes,
    /// Raw bytes beside it.
    pub payload: Bytes,
}

/// How a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOptions {
    /// How long the caller waits, from now, an hour at most; connecting and queueing are part of it. Whole milliseconds
    /// travel.
    pub deadline: Duration,
    /// How urgent it is.
    pub priority: Priority,
    /// What happens when the connection is lost after it was sent.
    pub retry: Retry,
}

/// The longest that a caller waits, whatever it asks for: beyond it nobody remembers why.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

impl CallOptions {
    pub(crate) fn deadline_from(&self, now: Instant) -> Instant {
        now + self.deadline.min(DEADLINE_MAX)
    }
}

/// The receiving side of a process.
pub trait Service: Send + Sync + 'static {
    /// Runs a call. The future is polled to its end, even when the caller has given up; `deadline` says until when
    /// anybody waits for the answer. A call that waits for a later call of the same peer must do so for a bounded time:
    /// the peer's budget may keep the later one from being read.
    fn call(
        &self,
        from: PeerName,
        call: Call,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>>;

    /// Takes a one-way message. Called in the order of arrival for each peer, lane and priority; must not block.
    fn cast(&self, from: PeerName, call: Call);

    /// The first connection with `peer` was made (`up`), or the last one was lost, or an attempt to make one failed while
    /// there was none. Calls for all peers come one after the other; must not block.
    fn link(&self, peer: PeerName, up: bool);

    /// A ping was answered after `took`, with the note of [`crate::Network::set_note`] of `peer`; empty where it has none.
    /// Of each connection about once a second; must not block. Most have no use for it.
    fn round_trip(&self, _peer: PeerName, _took: Duration, _note: &[u8]) {}
}
