//! The namespace of all containers: inodes, names, attributes, locks, as pure functions.
//!
//! An operation ([`Op`]) is executed on a [`View`] of the key-value states of one or more
//! containers, and yields an [`Outcome`]: the reply, the effects as one [`Batch`](perigee_types::Batch)
//! per container, and what other hosts' caches must drop. This room has no clock, no file and no
//! network; its driver does what the outcome says.
#![forbid(unsafe_code)]

mod acl;
pub mod attr;
mod dentry;
mod draft;
pub mod error;
pub mod key;
pub mod lock;
pub mod memory;
pub mod op;
mod record;
pub mod tx;
pub mod view;
pub mod xattr;

pub use attr::{Attr, Kind, SetAttr, SetTime};
pub use error::Refusal;
pub use key::{Key, dedup_key};
pub use lock::{FileLock, LockKind};
pub use op::{
    Allocate, Context, Credential, ListEntry, NewNode, Op, Outcome, RenameMode, Reply, Touched,
    execute,
};
pub use view::{Missing, View};

use perigee_types::{Batch, ContainerId, InodeId, InodeIndex, Mutation, WallTime};
use record::InodeRecord;

/// The first contents of a container. `root`: user, group and mode of the root directory, for
/// [`ContainerId::ROOT`]; `None` for every other container.
#[must_use]
pub fn format_container(
    container: ContainerId,
    now: WallTime,
    root: Option<(u32, u32, u32)>,
) -> Batch {
    let mut mutations = vec![Mutation {
        key: Key::NextIndex(key::Lane::Home).encode(),
        value: Some(record::encode_count(key::Lane::Home.first().0)),
    }];
    if let Some((uid, gid, mode)) = root {
        let first = InodeIndex::FIRST;
        let inode = InodeRecord::new(Kind::Directory, mode, uid, gid, now);
        mutations.push(Mutation {
            key: Key::Inode(first).encode(),
            value: Some(record::encode_inode(&inode)),
        });
        mutations.push(Mutation {
            key: Key::Parent(first).encode(),
            value: Some(record::encode_inode_id(InodeId::new(container, first))),
        });
    }
    Batch {
        mutations,
        data: Vec::new(),
    }
}
