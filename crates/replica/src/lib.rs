//! Replication of one container on one node: which node owns it, what its log holds, when a record is
//! committed, and which bytes of its data objects are valid here.
//!
//! Pure: no clock, file, socket or thread. A driver feeds inputs and performs the outputs in order. Read
//! [`chain`] first, then [`message`], [`pull`] and [`region`].
#![forbid(unsafe_code)]

pub mod chain;
mod log;
pub mod message;
#[cfg(feature = "plant")]
pub mod plant;
pub mod pull;
pub mod region;
pub mod timing;

pub use chain::{Chain, Config, FIRST_EPOCH, Limits};
pub use message::{
    CasOutcome, ChainView, Entry, Fault, HardState, Holds, Input, LogWrite, MemberProgress,
    Message, NotOwner, Output, PersistId, Refusal, Role, Standing,
};
#[cfg(feature = "plant")]
pub use plant::Plant;
pub use pull::{Fetch, FetchId, Fetched, Origin, Pull};
pub use region::RegionMap;
pub use timing::Timing;
