//! `lookup`, `getattr`, `readlink`: from names to inodes, and what they are.

use crate::attr::Kind;
use crate::dentry;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::Key;
use crate::op::Reply;
use crate::record;
use perigee_types::{Errno, InodeId};

pub(crate) fn lookup(
    draft: &mut Draft<'_>,
    parent: InodeId,
    name: &[u8],
) -> Result<Reply, Refusal> {
    let dir = draft.directory(parent)?;
    match name {
        b"." => return Ok(Reply::Entry(dir.attr(parent))),
        b".." => {
            let Some(above) = draft.parent(parent)? else {
                return Ok(Reply::Absent);
            };
            return leads_to(draft, parent, above);
        }
        _ => dentry::check_name(name)?,
    }
    match dentry::find(draft, parent, name)? {
        Some(found) => leads_to(draft, parent, found.inode),
        None => Ok(Reply::Absent),
    }
}

/// What an inode in another container is like is that container's to say, and to give a lease on.
fn leads_to(draft: &mut Draft<'_>, parent: InodeId, inode: InodeId) -> Result<Reply, Refusal> {
    if inode.container() != parent.container() {
        return Ok(Reply::Leads(inode));
    }
    let record = draft.named_inode(parent, inode)?;
    Ok(Reply::Entry(record.attr(inode)))
}

pub(crate) fn getattr(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    Ok(Reply::Attr(draft.inode(inode)?.attr(inode)))
}

pub(crate) fn readlink(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    if draft.inode(inode)?.kind != Kind::Symlink {
        return Err(Errno::EINVAL.into());
    }
    let key = Key::Symlink(inode.index()).encode();
    match draft.get(inode.container(), &key)? {
        Some(target) => Ok(Reply::Bytes(target.to_vec())),
        None => Err(record::corrupt(
            inode.container(),
            &key,
            "a symbolic link without a target",
        )),
    }
}
