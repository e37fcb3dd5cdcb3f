//! A node at work: it drives the protocols of `meta`, `replica` and `cluster` with a real store,
//! real connections and real clocks, and serves its own mounts.
//!
//! Promises: no decision of a protocol is made here; nothing leaves the node before what it
//! promises is durable; a task that fails is heard of. The binary calls [`Node`]; nothing else does.
//!
//! Reading order: [`node`], `container` (its `mod.rs` first), `router`, `service`.
#![forbid(unsafe_code)]

mod adopt;
mod authority;
mod behind;
mod clock;
mod container;
mod control_place;
mod coordinates;
mod deadlock;
mod env;
mod growth;
mod heat;
mod in_force;
pub mod inventory;
mod leftovers;
mod life;
mod locate;
mod losses;
pub mod membership;
mod migration;
pub mod node;
mod pace;
pub mod policy;
pub mod rebalance;
mod removals;
mod reopen;
mod report;
mod revoke;
mod room;
mod router;
mod scrub;
mod search;
mod service;
mod sessions;
pub mod snapshot;
mod stripes;
mod topology;
pub mod trash;
mod usage;

pub use node::{Node, NodeConfig, StartError};
pub use perigee_meta::schedule;
