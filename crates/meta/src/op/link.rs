//! `link`: one more name for an inode.

use crate::dentry;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::op::Reply;
use perigee_types::limits::LINK_MAX;
use perigee_types::{Errno, InodeId};

pub(crate) fn link(
    draft: &mut Draft<'_>,
    inode: InodeId,
    new_parent: InodeId,
    new_name: &[u8],
) -> Result<Reply, Refusal> {
    dentry::check_name(new_name)?;
    draft.live_directory(new_parent)?;
    let vacancy = dentry::vacancy(draft, new_parent, new_name)?;
    let mut record = draft.inode(inode)?;
    if record.is_directory() {
        return Err(Errno::EPERM.into());
    }
    // An orphan is only on its way out: a new name could lose the race against its reaping.
    if record.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    if record.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    record.nlink += 1;
    record.ctime = draft.now();
    record.parent = Some(new_parent);
    draft.set_inode(inode, record);
    dentry::add(draft, new_parent, new_name, vacancy, inode, record.kind)?;
    Ok(Reply::Entry(record.attr(inode)))
}
