//! How the processes of a cluster talk: TLS connections, frames, queues, and calls that run at most once.
//!
//! Promises:
//! - Every connection is mutually authenticated TLS 1.3 under the cluster's own authority; a peer's name comes from its
//!   certificate, never from what it says. The one exception is [`join()`], which may make one bounded request.
//! - A call runs at most once in the life of the process that it reaches, over any number of lost connections; a
//!   [`CallError`] says whether it may have run.
//! - What a peer sends is bounded before memory is taken for it: frames by [`Limits::body_max`] and
//!   [`Limits::payload_max`], requests at work by [`Limits::in_flight_bytes_max`], kept answers by
//!   [`Limits::reply_bytes_max`]. A peer that breaks a rule loses its connection, and nobody else notices.
//! - Payloads are [`bytes::Bytes`] from end to end: one copy into a TLS record, one out of it.
//!
//! The messages themselves are bytes here; `proto` says what they mean. Rooms above (`node`, `control`, `client`, the
//! binary) may use this one; it uses `proto` for the words [`Priority`] and [`Retry`] alone, and `types`.
//!
//! # On the wire
//!
//! A process listens on one TCP port. ALPN tells members (`perigee/1`) from those who join (`perigee-join/1`). Whoever
//! wants to call opens a connection; answers come back over it. A caller has two connections to a peer, its lanes: urgent
//! (control and meta) and bulk (data and background), so that bulk data never stands before a heartbeat. Where their order does
//! not matter, bulk calls go over up to four ([`Network::set_streams`]). Frames are
//! described in `frame.rs`, the first one of each side in `hello.rs`.
//!
//! Frames wait in one queue for each lane and direction, the more urgent first. Whatever waits when the last write has
//! ended leaves in the next one ([`Merging::Adaptive`]); the published fixed watermark ([`Merging::Fixed`]) and no merging
//! are kept for comparison. Who calls, or answers, when hardly anything else is under way writes it on its own thread
//! (`outlet.rs`). Each side pings once a second: that measures the round trip, finds dead peers, brings what the
//! peer tells of itself ([`Network::set_note`]), and carries the
//! watermark below which a caller has all its answers.
//!
//! # At most once
//!
//! A call is known by the caller's name, its process's incarnation, the lane and a rising number. The receiver keeps each
//! answer until the caller's watermark has passed it. When a connection is lost, calls of [`Retry::Same`] that were sent
//! are sent again on the next one, with the same number, while their deadline allows: the receiver answers a number that
//! it knows from what it kept, or when the running call ends. Calls of [`Retry::Never`] fail with [`CallError::Lost`]. A
//! peer that has restarted has lost what it kept, so calls that the earlier process may have run fail with `Lost` too.
//!
//! Reading order: [`service`], [`network`], `lane` (calling), `inbound` (serving), `queue`, `outlet`, `channel`, `frame`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod audit;
pub mod begun;
mod budget;
mod callers;
mod calls;
mod channel;
mod connection;
mod crypto;
mod error;
mod frame;
mod gate;
mod hello;
pub mod identity;
mod inbound;
mod join;
mod lane;
mod limits;
pub mod network;
mod outlet;
mod queue;
mod replies;
pub mod service;
mod shared;
mod stats;
#[cfg(test)]
mod tests;
mod tls;

pub use audit::{AUDIT, Refusals};
pub use bytes::Bytes;
pub use crypto::NoRandomness;
pub use error::{CallError, ConnectError, JoinError, NetError, Refusal};
pub use frame::FrameError;
pub use identity::{
    ClusterCa, ClusterId, Fingerprint, Identity, IdentityError, JoinToken, NodeKey, PeerName,
    SecretHash, Serial, TokenError,
};
pub use join::join;
pub use limits::{Limits, Merging, NetConfig, NoMerging, PROTOCOL};
pub use network::{NOTE_LEN_MAX, Network};
pub use perigee_proto::{Priority, Retry, Retry as RetryClass};
pub use service::{Answer, BoxFuture, Call, CallOptions, Service};
pub use stats::{NetStats, PeerStats, QUEUE_CLASSES};
