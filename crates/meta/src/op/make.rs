//! `create`, `mkdir`, `mknod`, `symlink`: a new inode and its first name.

use crate::attr::{Kind, MODE_ALL, MODE_SETGID};
use crate::dentry::Entry;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{Key, Lane};
use crate::op::{Credential, NewNode, Reply};
use crate::record::InodeRecord;
use crate::stripe::Layout;
use crate::{acl, dentry, xattr};
use perigee_types::limits::SYMLINK_LEN_MAX;
use perigee_types::{Errno, InodeId};

impl NewNode {
    /// The kind of inode that it makes.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::File => Kind::File,
            Self::Directory => Kind::Directory,
            Self::Symlink(_) => Kind::Symlink,
            Self::Fifo => Kind::Fifo,
            Self::Socket => Kind::Socket,
            Self::CharDevice(_) => Kind::CharDevice,
            Self::BlockDevice(_) => Kind::BlockDevice,
        }
    }
}

/// The parts of [`crate::Op::Make`] beside the name.
pub(crate) struct Make<'a> {
    pub(crate) node: &'a NewNode,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) cred: Credential,
    pub(crate) open_existing: bool,
}

pub(crate) fn make(
    draft: &mut Draft<'_>,
    parent: InodeId,
    name: &[u8],
    make: &Make<'_>,
) -> Result<Reply, Refusal> {
    dentry::check_name(name)?;
    let dir = draft.live_directory(parent)?;
    let vacancy = match dentry::search(draft, parent, name)? {
        Entry::There(found) => return existing(draft, parent, &found, make),
        Entry::Missing(vacancy) => vacancy,
    };
    if let NewNode::Symlink(target) = make.node {
        check_target(target)?;
    }
    let kind = make.node.kind();
    let (mode, access) = initial_mode(draft, parent, &dir, make)?;
    let inherits_group = dir.mode & MODE_SETGID != 0;
    let gid = if inherits_group {
        dir.gid
    } else {
        make.cred.gid
    };
    let passed_on = if inherits_group && kind == Kind::Directory {
        MODE_SETGID
    } else {
        0
    };
    let mut record = InodeRecord::new(kind, mode | passed_on, make.cred.uid, gid, draft.now());
    if let NewNode::CharDevice(rdev) | NewNode::BlockDevice(rdev) = make.node {
        record.rdev = *rdev;
    }
    record.parent = (kind != Kind::Directory).then_some(parent);
    if kind == Kind::File {
        record.layout = Layout::of_width(draft.context.width);
    }

    let container = match draft.context.new_directory_in {
        Some(container) if kind == Kind::Directory => container,
        _ => parent.container(),
    };
    let lane = if container == parent.container() {
        Lane::Home
    } else {
        Lane::Away
    };
    let inode = draft.make_inode(container, lane, record)?;
    if let NewNode::Symlink(target) = make.node {
        record.size = target.len() as u64;
        draft.put(
            container,
            Key::Symlink(inode.index()).encode(),
            target.clone(),
        );
    }
    if let Some(access) = access {
        xattr::write(draft, inode, &mut record, acl::ACCESS, access.encode())?;
    }
    if kind == Kind::Directory {
        draft.set_parent(inode, parent);
        if let Some(default) = xattr::read_acl(draft, parent, &dir, acl::DEFAULT)? {
            xattr::write(draft, inode, &mut record, acl::DEFAULT, default.encode())?;
        }
    }
    draft.fill_inode(inode, record);
    dentry::add(draft, parent, name, vacancy, inode, kind)?;
    Ok(Reply::Created {
        attr: record.attr(inode),
        existed: false,
    })
}

/// The name is taken: the answer for `O_CREAT` without `O_EXCL`, else EEXIST.
fn existing(
    draft: &mut Draft<'_>,
    parent: InodeId,
    found: &dentry::Found,
    make: &Make<'_>,
) -> Result<Reply, Refusal> {
    if !make.open_existing || *make.node != NewNode::File {
        return Err(Errno::EEXIST.into());
    }
    match found.kind {
        Kind::File => {
            let record = draft.named_inode(parent, found.inode)?;
            Ok(Reply::Created {
                attr: record.attr(found.inode),
                existed: true,
            })
        }
        Kind::Directory => Err(Errno::EISDIR.into()),
        // The kernel asked to create because it knew of no such name. Others than files it opens
        // itself, or follows: it shall look again.
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            Err(Errno::ESTALE.into())
        }
    }
}

fn check_target(target: &[u8]) -> Result<(), Refusal> {
    if target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if target.len() > SYMLINK_LEN_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if target.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// The mode of the new inode, and its access ACL if it needs one. The umask counts only where the
/// parent has no default ACL.
fn initial_mode(
    draft: &mut Draft<'_>,
    parent: InodeId,
    dir: &InodeRecord,
    make: &Make<'_>,
) -> Result<(u32, Option<acl::Acl>), Refusal> {
    if matches!(make.node, NewNode::Symlink(_)) {
        return Ok((0o777, None));
    }
    let asked = make.mode & MODE_ALL;
    if !dir.default_acl {
        return Ok((asked & !make.umask, None));
    }
    let Some(default) = xattr::read_acl(draft, parent, dir, acl::DEFAULT)? else {
        return Ok((asked & !make.umask, None));
    };
    let (access, permissions) = default.inherit(asked);
    let mode = (asked & !0o777) | permissions;
    Ok((mode, (!access.is_minimal()).then_some(access)))
}
