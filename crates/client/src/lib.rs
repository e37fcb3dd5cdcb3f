//! The file system as programs use it: sessions, open files, and what a mount's kernel may keep.
//!
//! Promises: every operation of [`fs::FileSystem`] is answered exactly once; an operation at home
//! is answered on the calling thread. This room decides what an open file is to the kernel and
//! translates system calls into operations on names and bytes; where those run (in this process
//! or at another node) is behind [`backend::Backend`], which the room `node` implements.
//! Gateways call it; nothing else does.
#![forbid(unsafe_code)]

pub mod backend;
mod copy;
pub mod fs;
mod handles;
mod kept_locks;
pub mod lock_ioctl;
mod locks;
mod past;
mod record_locks;
mod session;
mod vfs;

pub use backend::Backend;
pub use past::{SNAPSHOT_DIRECTORY, WithPast};
pub use session::Session;
