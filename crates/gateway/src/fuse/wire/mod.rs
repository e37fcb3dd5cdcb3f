//! The kernel's FUSE protocol, as far as Perigee speaks it: requests in, replies and notices out.
//!
//! Field by field as `include/uapi/linux/fuse.h` of protocol 7.45 has them, in the machine's byte
//! order. Nothing here does I/O, and nothing trusts a length that the message does not bear out.
//!
//! Why not a crate: fuser 0.18 hands over neither interrupts (who waits for a lock could not even be
//! killed), nor whether a lock is flock, nor that a truncation shall clear set-id bits, and can send
//! neither names without attributes in `READDIRPLUS` nor the notice that forgets names.

mod fields;
mod reply;
mod request;

pub(crate) use reply::{Body, InitReply, Listing, NodeAttr, OpenReply, StatfsReply};
pub(crate) use request::{
    Header, InitRequest, IoctlRequest, LockRequest, Request, SetattrRequest, parse,
};

/// Major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose messages are known here.
pub(crate) const MINOR: u32 = 45;
/// The oldest kernel that can be served: `max_pages` and parallel directory operations (Linux 5.4).
pub(crate) const MINOR_MIN: u32 = 31;
/// From this minor version on the kernel takes [`notice::INC_EPOCH`] (Linux 6.16).
pub(crate) const MINOR_EPOCH: u32 = 44;
/// Node id of the root directory.
pub(crate) const ROOT_NODE: u64 = 1;

/// Flags of `INIT`. Those above bit 31 travel in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
}

/// Flags of the answer to `OPEN`.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub(crate) const PASSTHROUGH: u32 = 1 << 7;
}

/// Codes of unasked messages to the kernel.
pub(crate) mod notice {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const INC_EPOCH: i32 = 8;
}

/// `WRITE`: the set-id bits shall go.
pub(crate) const WRITE_KILL_PRIVILEGES: u32 = 1 << 2;
/// `SETLK`: it is flock, not fcntl.
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// `FSYNC`: data only.
pub(crate) const FSYNC_DATA_ONLY: u32 = 1 << 0;
