//! Replication of one container on one node: which node owns it, what its log holds, when a record is
//! committed, and which bytes of its data objects are valid here.
//!
//! Pure: no clock, file, socket or thread. A driver feeds inputs and performs the outputs in order. Read
//! [`chain`] first, then [`message`], [`pull`] and [`region`].
//!
//! # What a driver must keep
//!
//! Most of these have a planted fault that leaves them out, and histories that find it.
//!
//! - Writes finish in order. What `Truncated` names is invalid on disk no later than the write after it; the state
//!   applied through `trim_through` is durable no later than that write.
//! - A committed record is applied once its `Committed` arrives, and nothing else is. At a start,
//!   `HardState::committed` covers every record whose effects the disk has.
//! - The first view of a process is read from the control store after the process has started. Each proposal gets one
//!   answer; a time-out is `Unknown`.
//! - An owner's bytes reach a file only after their record is on its disk, or where the disk says that the region is
//!   suspect. At a start, commands after the last `Synced` are [`Origin::Unsynced`].
//! - Another host is shown, and an fsync acknowledges, only what is committed and whose bytes every node of
//!   [`Chain::counted`] has synced, and never while this node is [`Role::Reconciling`]. A member answers such a request only to the owner of its own epoch.
//! - The newest [`LogWrite::view`] outlives the control store: with it a new one can be made ([`rebuild`]).
//! - Bytes leave a node as of [`Chain::content_version_of`] their object, and are installed when [`Chain::holds`] says `Yes`.
//! - A new owner logs what it falls back on. That it asks each member first loses less; no law needs it.
//! - Bytes that a record carries are put in place once it is committed. No [`Input::Synced`] reaches [`Pull::carried_from`], and a start
//!   takes up again what the records of its log carry. Those that replace carried bytes carry what [`Unsettled::to_carry`] says. An fsync
//!   waits for no bytes of a file of which [`Unsettled::lacking`] says nothing, once its records are committed.
//! - An owner gives its word that other copies may be read ([`reads`]) only once all of these have in place what there is of a file. It calls
//!   that back before it changes the file, and before it cedes; a node that starts again changes nothing before any word is over that it
//!   may have given. A member's own change is in place there before it is answered.
//! - A fetched state is installed only while [`Chain::accepts_state`] says so, when its turn among the writes comes.
#![forbid(unsafe_code)]

pub mod chain;
pub mod chunk;
mod log;
pub mod message;
pub mod notes;
#[cfg(feature = "plant")]
pub mod plant;
pub mod pull;
pub mod reads;
pub mod rebuild;
pub mod region;
pub mod timing;
pub mod unsettled;
pub mod work;

pub use chain::{Chain, Config, FIRST_EPOCH, Limits};
pub use chunk::{Chunk, Hold, Holding};
pub use message::{
    CasOutcome, ChainView, Entry, Fault, HardState, Holds, Input, LogWrite, MemberProgress,
    Message, NotOwner, Output, PersistId, Refusal, Role, Standing,
};
pub use notes::{Note, Notes};
#[cfg(feature = "plant")]
pub use plant::Plant;
pub use pull::{Carried, Fetch, FetchId, Fetched, Nobody, NotGiven, Origin, Pull};
pub use rebuild::{Goes, Witness};
pub use region::RegionMap;
pub use timing::Timing;
pub use unsettled::Unsettled;
pub use work::Work;
