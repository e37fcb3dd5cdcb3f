//! The embedded control store: its engine, the process that serves it, and the client that calls it.
//!
//! Promises: what [`engine`] acknowledged survives `kill -9` and the loss of power; a damaged file is
//! named and never guessed at; nobody without a certificate of the cluster gets past the join exchange.
//! May use `cluster` (the trait, the records), `net` (connections) and `proto`. Read [`engine`] first,
//! then [`server`], [`gatekeeper`], [`client`] and [`process`].
#![forbid(unsafe_code)]

pub mod client;
mod committer;
pub mod disk;
pub mod engine;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod gatekeeper;
mod journal;
mod lease;
pub mod local;
mod log;
pub mod process;
pub mod rebuild;
pub mod server;
mod state;
pub mod wire;

pub use client::{Caller, EnterError, RemoteControl, enter};
pub use disk::{DirDisk, Disk};
pub use engine::{Engine, EngineConfig, EngineStatus};
pub use error::EngineError;
pub use gatekeeper::Gatekeeper;
pub use local::LocalControl;
pub use process::{Control, ControlError, NewControl, init_control, run_control};
pub use rebuild::{RebuiltControl, rebuild_control};
pub use server::ControlService;
pub use wire::{AdminError, Admission, ControlStatus, JoinRefusal, NewToken, TokenInfo};
