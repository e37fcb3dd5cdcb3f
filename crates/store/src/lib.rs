//! One node's disk: the key-value engine, the backing files of data objects, and their content maps.
//!
//! No protocol decisions are made here. Promises: bytes that do not match their checksums are never
//! returned; what `done(Ok)` acknowledged survives power loss; after a failed sync a container takes
//! no more writes. Synchronous and thread-safe.
//!
//! Reading order: [`Store`], [`WriteBatch`], [`Object`], then `kv` and `object` inside. On-disk layout:
//! `docs/FORMAT.md`.
#![deny(unsafe_code)] // allowed in `sums::rows`, for the checksum instruction, and for one system call in `disk::real`
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod census;
mod core;
pub mod disk;
mod error;
mod format;
mod keeper;
mod kv;
mod object;
mod objects;
mod open;
mod reserve;
mod store;
mod sums;
mod touched;

pub use error::{OpenError, StoreError};
pub use format::container_of_dir;
pub use kv::{Done, Snapshot, Space, WithoutRoom, WriteBatch};
pub use object::{AsItIs, AsTaken, Local, LocalFile, Object, Unverified, Verified, is_hole};
pub use objects::Unremoved;
pub use store::{Adopt, Recovered, Store, StoreIdentity, StoreOptions, StoreSpace};
pub use sums::block_sums;

#[cfg(test)]
mod tests;
