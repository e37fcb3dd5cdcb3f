//! Foreign interfaces onto the client's [`FileSystem`](perigee_client::fs::FileSystem): the FUSE mount.
//!
//! Promises: every request of the kernel is answered exactly once, with an answer or an errno;
//! no reader thread waits for the network; whatever ends, ends without hanging.
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test stops where it is wrong")
)]

pub mod fuse;
pub mod lock_call;
