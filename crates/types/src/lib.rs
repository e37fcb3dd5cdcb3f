//! The vocabulary of Perigee: identities, units, time and randomness.
//!
//! Promises: plain values only. No I/O, no clock, no global state; every other room may use it,
//! and it uses none of them. Read [`id`] first, then [`range`], [`time`] and [`limits`].
#![forbid(unsafe_code)]

pub mod batch;
pub mod container_size;
pub mod errno;
pub mod id;
pub mod limits;
pub mod migration;
mod plants;
pub mod random;
pub mod range;
pub mod retention;
pub mod stripe_width;
pub mod time;

pub use batch::{Batch, DataCommand, Mutation};
pub use container_size::ContainerSize;
pub use errno::Errno;
pub use id::{
    CheckpointId, ContainerId, Epoch, InodeId, InodeIndex, NodeId, OpId, Seq, SessionId,
    SnapshotId, Stamp, TxId, Version,
};
pub use migration::Migration;
pub use random::Rng;
pub use range::ByteRange;
pub use retention::Retention;
pub use stripe_width::StripeWidth;
pub use time::{Span, Tick, WallTime};
