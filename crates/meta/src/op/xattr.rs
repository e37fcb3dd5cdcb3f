//! `getxattr`, `listxattr`, `setxattr`, `removexattr`, ACLs among them.

use crate::acl::{self, Acl};
use crate::attr::MODE_SETGID;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::Reply;
use crate::record::{self, InodeRecord};
use crate::xattr::{self, Class, XATTR_BYTES_MAX, XATTR_CREATE, XATTR_KILL_SETGID, XATTR_REPLACE};
use perigee_types::limits::XATTR_VALUE_LEN_MAX;
use perigee_types::{Errno, InodeId};

pub(crate) fn get(draft: &mut Draft<'_>, inode: InodeId, name: &[u8]) -> Result<Reply, Refusal> {
    let record = draft.inode(inode)?;
    match xattr::classify(name, record.kind) {
        Ok(_) => {}
        // What an inode cannot have, it does not have.
        Err(Errno::EPERM) => return Err(Errno::ENODATA.into()),
        Err(errno) => return Err(errno.into()),
    }
    match xattr::read(draft, inode, &record, name)? {
        Some(value) => Ok(Reply::Bytes(value)),
        None => Err(Errno::ENODATA.into()),
    }
}

pub(crate) fn list(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    let record = draft.inode(inode)?;
    if record.xattrs == 0 {
        return Ok(Reply::Names(Vec::new()));
    }
    // Every attribute has a byte of name at least.
    let rows = draft.scan(
        inode.container(),
        &key::xattrs(inode.index()),
        XATTR_BYTES_MAX as usize,
    )?;
    let mut names = Vec::with_capacity(rows.len());
    for (key, _) in rows {
        let Some(Key::Xattr(_, name)) = Key::decode(&key) else {
            return Err(record::corrupt(
                inode.container(),
                &key,
                "not an attribute's key",
            ));
        };
        names.push(name);
    }
    Ok(Reply::Names(names))
}

pub(crate) fn set(
    draft: &mut Draft<'_>,
    inode: InodeId,
    name: &[u8],
    value: &[u8],
    flags: u32,
) -> Result<Reply, Refusal> {
    let mut record = draft.inode(inode)?;
    let class = xattr::classify(name, record.kind)?;
    if flags & !(XATTR_CREATE | XATTR_REPLACE | XATTR_KILL_SETGID) != 0 {
        return Err(Errno::EINVAL.into());
    }
    if value.len() > XATTR_VALUE_LEN_MAX {
        return Err(Errno::ENOSPC.into());
    }
    if flags & (XATTR_CREATE | XATTR_REPLACE) != 0 {
        let exists = xattr::read(draft, inode, &record, name)?.is_some();
        if exists && flags & XATTR_CREATE != 0 {
            return Err(Errno::EEXIST.into());
        }
        if !exists && flags & XATTR_REPLACE != 0 {
            return Err(Errno::ENODATA.into());
        }
    }
    match class {
        Class::Plain => xattr::write(draft, inode, &mut record, name, value.to_vec())?,
        Class::AccessAcl => {
            if flags & XATTR_KILL_SETGID != 0 {
                record.mode &= !MODE_SETGID;
            }
            set_access(draft, inode, &mut record, Acl::parse(value)?)?;
        }
        Class::DefaultAcl => set_default(draft, inode, &mut record, Acl::parse(value)?)?,
    }
    record.ctime = draft.now();
    draft.set_inode(inode, record);
    Ok(Reply::Done)
}

/// The mode follows the list; a list that says no more than the mode is not kept.
fn set_access(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
    list: Option<Acl>,
) -> Result<(), Refusal> {
    if let Some(list) = &list {
        record.mode = (record.mode & !0o777) | list.mode();
    }
    match list.filter(|list| !list.is_minimal()) {
        Some(list) => xattr::write(draft, inode, record, acl::ACCESS, list.encode()),
        None => xattr::remove(draft, inode, record, acl::ACCESS).map(drop),
    }
}

fn set_default(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
    list: Option<Acl>,
) -> Result<(), Refusal> {
    match list {
        Some(_) if !record.is_directory() => Err(Errno::EACCES.into()),
        Some(list) => xattr::write(draft, inode, record, acl::DEFAULT, list.encode()),
        None => xattr::remove(draft, inode, record, acl::DEFAULT).map(drop),
    }
}

pub(crate) fn remove(draft: &mut Draft<'_>, inode: InodeId, name: &[u8]) -> Result<Reply, Refusal> {
    let mut record = draft.inode(inode)?;
    xattr::classify(name, record.kind)?;
    if !xattr::remove(draft, inode, &mut record, name)? {
        return Err(Errno::ENODATA.into());
    }
    record.ctime = draft.now();
    draft.set_inode(inode, record);
    Ok(Reply::Done)
}
