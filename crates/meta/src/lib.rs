//! The namespace of all containers: inodes, names, attributes, locks, as pure functions.
//!
//! An operation ([`Op`]) is executed on a [`View`] of the key-value states of one or more
//! containers, and yields an [`Outcome`]: the reply, the effects as one [`Batch`](perigee_types::Batch)
//! per container, and what other hosts' caches must drop. This room has no clock, no file and no
//! network; its driver does what the outcome says.
#![forbid(unsafe_code)]

mod acl;
pub mod answers;
pub mod attr;
mod dentry;
mod draft;
pub mod error;
pub mod format;
#[cfg(test)]
mod fuzz;
pub mod key;
pub mod lease;
pub mod lock;
pub mod memory;
pub mod near;
pub mod op;
pub mod overlay;
pub mod owner_view;
pub mod past;
#[cfg(feature = "plant")]
pub mod plant;
pub mod queue;
mod record;
pub mod schedule;
pub mod stripe;
pub mod tx;
pub mod view;
pub mod xattr;

pub use answers::{Answers, Comes, RunId, Seen};
pub use attr::{Attr, Kind, SetAttr, SetTime};
pub use error::Refusal;
pub use format::format_container;
pub use key::{Key, dedup_key};
pub use lease::Leases;
pub use lock::{Fences, FileLock, LockKind, LockOwner, Mode, Patience, Token, WaitId};
pub use op::{
    Allocate, Context, Credential, Leftovers, ListEntry, LockSessions, Nearest, NewNode, Op,
    Origin, Outcome, RenameMode, Reply, SNAPSHOT_NAME_MAX, SNAPSHOTS_MAX, Setting, Snapshot,
    SnapshotPart, Touched, TrashId, Trashed, WriteAt, execute, held_locks, is_snapshot_name,
    lock_sessions, nearest_setting, remove_with_name, settings_named,
};
pub use overlay::Overlay;
pub use owner_view::{Foreign, OwnerView};
#[cfg(feature = "plant")]
pub use plant::Plant;
pub use record::HeldLocks;
pub use view::{Missing, View};

/// True when this deliberate fault is switched on; a constant `false` in a product build.
macro_rules! planted {
    ($room:expr, $name:ident) => {{
        #[cfg(feature = "plant")]
        {
            $room.plant == Some(crate::plant::Plant::$name)
        }
        #[cfg(not(feature = "plant"))]
        {
            false
        }
    }};
}
pub(crate) use planted;

/// The attributes that a stored inode record tells, for who copies a container's state.
///
/// Errors: [`Refusal::Corrupt`] when it is no such record.
pub fn stored_attr(inode: perigee_types::InodeId, value: &[u8]) -> Result<Attr, Refusal> {
    let key = Key::Inode(inode.index()).encode();
    Ok(record::decode_inode(inode.container(), &key, value)?.attr(inode))
}
