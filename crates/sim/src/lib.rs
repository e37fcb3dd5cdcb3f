//! A deterministic simulator. Five worlds: one replicated container with its bytes ([`world`]), where the real chain and
//! pull run on simulated hosts with lossy networks, drifting clocks, crashes, lost disks and a control store that is
//! often away, and hosts read their own copies under leases; a namespace over several containers ([`names`]), where the real operations and transactions do; the lock
//! service of a container ([`locks`]); a striped file ([`stripes`]); and hosts that write behind ([`behind`]).
//!
//! One seed is one history. Safety is checked after every event (see [`law`]); then everything heals, and all must be
//! well again. Reading order: [`model`], [`world`], [`node`], [`chaos`], [`law`].
#![forbid(unsafe_code)]

pub mod behind;
pub mod chaos;
pub mod clock;
pub mod control;
pub mod disk;
pub mod law;
pub mod locks;
mod marks;
pub mod model;
mod moves;
pub mod names;
pub mod network;
pub mod node;
pub mod numbered;
pub mod oracle;
pub mod queue;
mod rare;
pub mod shrink;
mod spoil;
pub mod strike;
pub mod stripes;
mod wire;
pub mod world;

pub use clock::Drift;
pub use law::Laws;
pub use numbered::{Detail, Happening, LeftOut, Numbers};
pub use oracle::{Mark, Marks, Violation};
pub use world::{Options, Report, Scenario, run, run_under};
