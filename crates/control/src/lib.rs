//! The control store: its embedded engine, the process that serves that or an etcd, and the client that calls it.
//!
//! Promises: what [`engine`] acknowledged survives `kill -9` and the loss of power; a damaged file is
//! named and never guessed at; nobody without a certificate of the cluster gets past the join exchange.
//! May use `cluster` (the trait, the records), `net` (connections), `proto` and `etcd`. Read [`engine`]
//! first, then [`keeper`], [`server`], [`gatekeeper`], [`client`], [`process`] and [`on_etcd`].
#![forbid(unsafe_code)]

pub mod client;
mod committer;
pub mod disk;
pub mod engine;
pub mod error;
mod feed;
pub mod further;
#[cfg(test)]
mod fuzz;
pub mod gatekeeper;
mod journal;
pub mod keeper;
mod lease;
pub mod local;
mod log;
pub mod on_etcd;
pub mod process;
pub mod rebuild;
pub mod server;
mod state;
pub mod wire;

pub use client::{Caller, EnterError, RemoteControl, enter};
pub use disk::{DirDisk, Disk};
pub use engine::{Engine, EngineConfig};
pub use error::EngineError;
pub use further::{Bundle, join_control};
pub use gatekeeper::Gatekeeper;
pub use keeper::Keeper;
pub use local::LocalControl;
pub use on_etcd::{EtcdChoice, MoveNeeded, Moved, check_move, move_control};
pub use process::{Control, ControlError, NewControl, init_control, init_control_on, run_control};
pub use rebuild::{RebuiltControl, rebuild_control};
pub use server::ControlService;
pub use wire::{AdminError, Admission, ControlStatus, JoinRefusal, NewToken, TokenInfo};
