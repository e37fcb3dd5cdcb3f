//! `chmod`, `chown`, `truncate`, `utimensat`.

use crate::attr::{Kind, MODE_ALL, MODE_GROUP_EXEC, MODE_SETGID, MODE_SETUID, SetAttr, SetTime};
use crate::draft::Draft;
use crate::error::Refusal;
use crate::op::{Credential, Reply, Touched, stripe};
use crate::record::InodeRecord;
use crate::{acl, xattr};
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{DataCommand, Errno, InodeId, WallTime};

/// What `chown(2)` takes for "leave it": no one's id.
const NO_ID: u32 = u32::MAX;

pub(crate) fn setattr(
    draft: &mut Draft<'_>,
    inode: InodeId,
    set: &SetAttr,
    cred: Credential,
) -> Result<Reply, Refusal> {
    let mut record = draft.inode(inode)?;
    let now = draft.now();
    if let Some(size) = set.size {
        resize(draft, inode, &mut record, size)?;
    }
    let changes_owner = set.uid.is_some() || set.gid.is_some();
    if set.uid == Some(NO_ID) || set.gid == Some(NO_ID) {
        return Err(Errno::EINVAL.into());
    }
    record.uid = set.uid.unwrap_or(record.uid);
    record.gid = set.gid.unwrap_or(record.gid);
    if let Some(mode) = set.mode {
        chmod(draft, inode, &mut record, mode)?;
    } else if set.kill_privileges || (changes_owner && cred.uid != 0) {
        drop_privileges(&mut record);
    }
    if changes_owner || set.size.is_some() {
        drop_capability(draft, inode, &mut record)?;
    }
    record.atime = moment(set.atime, now).unwrap_or(record.atime);
    record.mtime = moment(set.mtime, now).unwrap_or(record.mtime);
    record.ctime = now;
    draft.set_inode(inode, record);
    Ok(Reply::Attr(record.attr(inode)))
}

fn moment(time: Option<SetTime>, now: WallTime) -> Option<WallTime> {
    time.map(|time| match time {
        SetTime::Now => now,
        SetTime::At(at) => at,
    })
}

/// Truncates or extends a file. The times change even when the size does not.
fn resize(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
    size: u64,
) -> Result<(), Refusal> {
    match record.kind {
        Kind::File => {}
        Kind::Directory => return Err(Errno::EISDIR.into()),
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            return Err(Errno::EINVAL.into());
        }
    }
    if size > FILE_LEN_MAX {
        return Err(Errno::EFBIG.into());
    }
    if size != record.size && stripe::on_resize(record, size)? == stripe::Resize::Now {
        record.size = size;
        draft.command(DataCommand::Resized { inode, size });
        draft.touch(Touched::Data(inode));
    }
    record.mtime = draft.now();
    Ok(())
}

fn chmod(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
    mode: u32,
) -> Result<(), Refusal> {
    record.mode = mode & MODE_ALL;
    if record.access_acl
        && let Some(list) = xattr::read_acl(draft, inode, record, acl::ACCESS)?
    {
        xattr::write(draft, inode, record, acl::ACCESS, list.chmod(mode).encode())?;
    }
    Ok(())
}

/// Clears the set-id bits that must not outlive a change by another user. Directories have them for
/// inheritance and keep them.
pub(crate) fn drop_privileges(record: &mut InodeRecord) {
    if record.is_directory() {
        return;
    }
    record.mode &= !MODE_SETUID;
    // Without group execution the bit has nothing to do with privileges.
    if record.mode & MODE_GROUP_EXEC != 0 {
        record.mode &= !MODE_SETGID;
    }
}

/// Takes capabilities from a file that is no longer what they were given to.
pub(crate) fn drop_capability(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
) -> Result<(), Refusal> {
    if record.kind == Kind::File {
        xattr::remove(draft, inode, record, xattr::CAPABILITY)?;
    }
    Ok(())
}
