//! Attributes of an inode as `stat(2)` shows them, and requests to change them.

use crate::stripe::Layout;
use perigee_types::{InodeId, WallTime};
use serde::{Deserialize, Serialize};

/// Set-user-id bit of a mode.
pub const MODE_SETUID: u32 = 0o4000;
/// Set-group-id bit of a mode; on a directory: new entries inherit its group.
pub const MODE_SETGID: u32 = 0o2000;
/// Execute permission of the group.
pub const MODE_GROUP_EXEC: u32 = 0o010;
/// All bits that an inode's mode can have.
pub const MODE_ALL: u32 = 0o7777;

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode.
    pub inode: InodeId,
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits: `0o7777` at most.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Names that it has; of a directory: 2 and one for each subdirectory; 0 once unlinked.
    pub nlink: u32,
    /// Length in bytes; of a symbolic link: of its target; of a directory: a measure of its entries.
    pub size: u64,
    /// Device number of a device.
    pub rdev: u32,
    /// Last access.
    pub atime: WallTime,
    /// Last change of the content.
    pub mtime: WallTime,
    /// Last change of content or attributes.
    pub ctime: WallTime,
    /// Birth.
    pub btime: WallTime,
    /// Space taken, in units of 512 bytes. As computed here, the whole size rounded up; the node,
    /// which knows holes, may better it.
    pub blocks: u64,
    /// Where the bytes of a file are.
    pub layout: Layout,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The moment of the operation.
    Now,
    /// This moment.
    At(WallTime),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// New permission, set-id and sticky bits. An access ACL follows.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length of a regular file, bytes.
    pub size: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last change; without it, a change of size sets the present.
    pub mtime: Option<SetTime>,
    /// Clear the set-user-id bit, and the set-group-id bit where the group may execute, unless
    /// `mode` says what they shall be.
    pub kill_privileges: bool,
}
