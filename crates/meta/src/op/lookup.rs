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
            let record = draft.named_inode(parent, above)?;
            return Ok(Reply::Entry(record.attr(above)));
        }
        _ => dentry::check_name(name)?,
    }
    match dentry::find(draft, parent, name)? {
        Some(found) => {
            let record = draft.named_inode(parent, found.inode)?;
            Ok(Reply::Entry(record.attr(found.inode)))
        }
        None => Ok(Reply::Absent),
    }
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
