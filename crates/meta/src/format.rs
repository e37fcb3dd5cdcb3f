//! What a container holds before its first operation.

use crate::attr::Kind;
use crate::key::{self, Key};
use crate::record::{self, InodeRecord};
use perigee_types::{Batch, ContainerId, InodeId, InodeIndex, Mutation, WallTime};

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
