//! Extended attributes: names, limits, flags, and how they are stored.

use crate::attr::Kind;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::Key;
use crate::record::InodeRecord;
use crate::{acl, record};
use perigee_types::limits::{XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX};
use perigee_types::{Errno, InodeId};

/// `setxattr(2)`: the attribute must not exist.
pub const XATTR_CREATE: u32 = 1;
/// `setxattr(2)`: the attribute must exist.
pub const XATTR_REPLACE: u32 = 2;
/// Beside an access ACL: clear the set-group-id bit (`FUSE_SETXATTR_ACL_KILL_SGID` in the kernel's own field).
pub const XATTR_KILL_SETGID: u32 = 1 << 31;
/// The most bytes of names and values of one inode; sixteen values of the largest size.
pub const XATTR_BYTES_MAX: u64 = 1 << 20;
/// The attribute that a write takes away: capabilities of a program file.
pub const CAPABILITY: &[u8] = b"security.capability";
/// Not kept: a label means something under the policy of one host only, and hosts share these files. `ls -l` asks for
/// it once per file, until a file system says that it has none.
const LABEL: &[u8] = b"security.selinux";

/// What an attribute's name makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Stored as it is.
    Plain,
    /// The list that governs access.
    AccessAcl,
    /// The list that new entries inherit.
    DefaultAcl,
}

/// Classifies a name, or says why no inode of this kind can have it.
pub(crate) fn classify(name: &[u8], kind: Kind) -> Result<Class, Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
        return Err(Errno::ERANGE);
    }
    if name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let acl = match name {
        acl::ACCESS => Some(Class::AccessAcl),
        acl::DEFAULT => Some(Class::DefaultAcl),
        _ => None,
    };
    if let Some(class) = acl {
        return if kind == Kind::Symlink {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(class)
        };
    }
    if name == LABEL {
        return Err(Errno::EOPNOTSUPP);
    }
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let Some(space) = spaces.into_iter().find(|space| name.starts_with(space)) else {
        return Err(Errno::EOPNOTSUPP);
    };
    if name.len() == space.len() {
        return Err(Errno::EINVAL);
    }
    if space == b"user." && !matches!(kind, Kind::File | Kind::Directory) {
        return Err(Errno::EPERM);
    }
    Ok(Class::Plain)
}

/// The value of an attribute. Costs nothing where the inode has none at all.
pub(crate) fn read(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &InodeRecord,
    name: &[u8],
) -> Result<Option<Vec<u8>>, Refusal> {
    if record.xattrs == 0 {
        return Ok(None);
    }
    let key = Key::Xattr(inode.index(), name.to_vec()).encode();
    let value = draft.get(inode.container(), &key)?;
    Ok(value.map(|value| value.to_vec()))
}

/// Stores an attribute, and counts it in `record`, which the caller sets. ENOSPC beyond the limits.
pub(crate) fn write(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
    name: &[u8],
    value: Vec<u8>,
) -> Result<(), Refusal> {
    remove(draft, inode, record, name)?;
    record.xattrs = record.xattrs.saturating_add(1);
    record.xattr_bytes = record.xattr_bytes.saturating_add(footprint(name, &value));
    if value.len() > XATTR_VALUE_LEN_MAX || record.xattr_bytes > XATTR_BYTES_MAX {
        return Err(Errno::ENOSPC.into());
    }
    mark(record, name, true);
    draft.put(
        inode.container(),
        Key::Xattr(inode.index(), name.to_vec()).encode(),
        value,
    );
    Ok(())
}

/// Removes an attribute, if it is there, and says whether it was.
pub(crate) fn remove(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &mut InodeRecord,
    name: &[u8],
) -> Result<bool, Refusal> {
    let Some(old) = read(draft, inode, record, name)? else {
        return Ok(false);
    };
    let key = Key::Xattr(inode.index(), name.to_vec()).encode();
    let counts = record
        .xattrs
        .checked_sub(1)
        .zip(record.xattr_bytes.checked_sub(footprint(name, &old)));
    let Some((xattrs, bytes)) = counts else {
        return Err(record::corrupt(
            inode.container(),
            &key,
            "more attributes than their inode counts",
        ));
    };
    record.xattrs = xattrs;
    record.xattr_bytes = bytes;
    mark(record, name, false);
    draft.delete(inode.container(), key);
    Ok(true)
}

fn footprint(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len()) as u64
}

fn mark(record: &mut InodeRecord, name: &[u8], present: bool) {
    match name {
        acl::ACCESS => record.access_acl = present,
        acl::DEFAULT => record.default_acl = present,
        _ => {}
    }
}

/// A stored ACL of an inode whose record says that it has it.
pub(crate) fn read_acl(
    draft: &mut Draft<'_>,
    inode: InodeId,
    record: &InodeRecord,
    name: &'static [u8],
) -> Result<Option<acl::Acl>, Refusal> {
    let Some(value) = read(draft, inode, record, name)? else {
        return Ok(None);
    };
    acl::Acl::parse(&value).map_err(|_errno| {
        let key = Key::Xattr(inode.index(), name.to_vec()).encode();
        record::corrupt(inode.container(), &key, "not an access control list")
    })
}
