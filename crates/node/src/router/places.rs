//! What an operation works on, and so whose owner runs it.

use crate::container::changes;
use crate::env::Env;
use perigee_cluster::Directory;
use perigee_meta::{NewNode, Op};
use perigee_replica::work::Done as What;
use perigee_types::{ContainerId, InodeId};

/// What an operation works on first, whose owner runs it: an inode, or a container as a whole.
pub(crate) fn place_of(op: &Op) -> Result<InodeId, ContainerId> {
    match op {
        Op::Lookup { parent, .. }
        | Op::Make { parent, .. }
        | Op::Unlink { parent, .. }
        | Op::Rmdir { parent, .. }
        | Op::Rename { parent, .. }
        | Op::Rehome { parent, .. } => Ok(*parent),
        Op::Link { new_parent, .. } | Op::Undelete { new_parent, .. } => Ok(*new_parent),
        Op::GetAttr { inode }
        | Op::SetAttr { inode, .. }
        | Op::ReadLink { inode }
        | Op::ReadDir { inode, .. }
        | Op::GetXattr { inode, .. }
        | Op::ListXattr { inode }
        | Op::SetXattr { inode, .. }
        | Op::RemoveXattr { inode, .. }
        | Op::Wrote { inode, .. }
        | Op::Allocate { inode, .. }
        | Op::GetLock { inode, .. }
        | Op::SetLock { inode, .. }
        | Op::WithdrawLock { inode, .. }
        | Op::ReleaseLocks { inode, .. }
        | Op::EndCover { inode, .. }
        | Op::Reap { inode }
        | Op::SetPolicy { inode, .. }
        | Op::GetPolicy { inode }
        | Op::Columns { inode }
        | Op::MakeColumns { inode, .. }
        | Op::Claim { inode, .. }
        | Op::CutColumn { inode, .. }
        | Op::PunchColumn { inode, .. }
        | Op::DropColumns { inode }
        | Op::EndCut { inode, .. } => Ok(*inode),
        Op::ReleaseSession { container, .. }
        | Op::ExpireSession { container, .. }
        | Op::Orphans { container, .. }
        | Op::Trash { container, .. }
        | Op::Purge { container, .. } => Err(*container),
        Op::Snapshots | Op::KeepSnapshot { .. } | Op::ForgetSnapshot { .. } => {
            Err(ContainerId::ROOT)
        }
    }
}

/// Where what would start in a container does so instead, since that is as large as it may be.
pub(super) fn further(directory: &Directory, id: ContainerId) -> Option<ContainerId> {
    Some(directory.goes_on_in(id)).filter(|newest| *newest != id)
}

/// Where a directory starts that another node makes, and of which it says nothing.
pub(crate) fn place_for_guest(env: &Env, op: &Op) -> Option<ContainerId> {
    match op {
        Op::Make {
            parent,
            node: NewNode::Directory,
            ..
        } => further(&env.directory.read(), parent.container()),
        _ => None,
    }
}

/// Whether an operation reads or changes.
pub(super) fn what_of(op: &Op) -> What {
    match changes(op) {
        true => What::Change,
        false => What::Read,
    }
}

/// The container whose owner runs an operation.
pub(crate) fn container_of(op: &Op) -> ContainerId {
    match place_of(op) {
        Ok(inode) => inode.container(),
        Err(container) => container,
    }
}

/// The file whose attributes or content are all that a change concerns, where it is but one.
pub(super) fn only_file_of(op: &Op) -> Option<InodeId> {
    match op {
        Op::SetAttr { inode, .. }
        | Op::SetXattr { inode, .. }
        | Op::RemoveXattr { inode, .. }
        | Op::Allocate { inode, .. }
        | Op::SetLock { inode, .. }
        | Op::WithdrawLock { inode, .. }
        | Op::ReleaseLocks { inode, .. } => Some(*inode),
        _ => None,
    }
}
