//! The mount, with the real kernel and a file system in memory. Needs root and `/dev/fuse`; without
//! them each test says so and passes.
#![allow(clippy::unwrap_used, reason = "a test stops where it is wrong")]

mod caches;
mod files;
mod life;
mod locks;
#[path = "../memory/mod.rs"]
mod memory;
mod passthrough;
mod rig;
