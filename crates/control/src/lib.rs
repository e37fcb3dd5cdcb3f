//! The embedded control store: its engine, the process that serves it, and the client that calls it.
//!
//! Promises: what [`engine`] acknowledged survives `kill -9` and the loss of power; a damaged file is
//! named and never guessed at; nobody without a certificate of the cluster gets past the join exchange.
//! May use `cluster` (the trait, the records), `net` (connections) and `proto`. Read [`engine`] first,
//! then [`local`].
#![forbid(unsafe_code)]

pub mod disk;
pub mod engine;
pub mod error;
mod journal;
mod lease;
pub mod local;
mod log;
mod state;

pub use disk::{DirDisk, Disk};
pub use engine::{Engine, EngineConfig, EngineStatus};
pub use error::EngineError;
pub use local::LocalControl;
