//! What members of a union ask each other, and what their starter tells them: all of it on one screen.
//!
//! Messages are postcard; bytes of files travel beside them. All of them are bounded by the frames of the network.

use crate::lease::Identity;
use crate::path::RelPath;
use perigee_client::fs::{Allocate, Kind, NewNode, RenameMode, SetAttr};
use perigee_types::{ByteRange, Errno, NodeId, WallTime};
use serde::{Deserialize, Serialize};

/// The version of these messages. Members carry the starter's own binary, so there is no other.
pub const VERSION: u16 = 1;

/// A branch: one directory of one host. Numbers follow the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BranchId(pub u16);

/// A file that a member has opened for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId(pub u64);

/// What `stat(2)` says on the host of a branch, with the far user's own ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// The file system.
    pub device: u64,
    /// The inode in it.
    pub inode: u64,
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Of a device.
    pub rdev: u32,
    /// Last access.
    pub atime: WallTime,
    /// Last change of content.
    pub mtime: WallTime,
    /// Last change.
    pub ctime: WallTime,
}

#[cfg(test)]
impl Stat {
    /// Of something that a test needs.
    pub(crate) fn of(inode: u64, kind: Kind, nlink: u32) -> Self {
        let time = WallTime { secs: 1, nanos: 0 };
        Self {
            device: 1,
            inode,
            kind,
            mode: 0o644,
            nlink,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }
}

/// What is looked for in one directory of every branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// These names.
    Names(Vec<Vec<u8>>),
    /// All names with their attributes, at most `limit`, those after one in the order of bytes.
    List {
        /// The last name of the page before.
        after: Option<Vec<u8>>,
        /// How many.
        limit: u32,
    },
}

/// What one branch has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// No such directory.
    NoDirectory,
    /// For each name what it is; `None`: nothing; or why it cannot be looked at.
    Names(Vec<Result<Option<Stat>, Errno>>),
    /// Names in the order of bytes.
    List {
        /// What there is.
        entries: Vec<(Vec<u8>, Stat)>,
        /// There are more.
        more: bool,
    },
    /// It cannot be looked at.
    Failed(Errno),
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Answers {
    /// Of each branch that answered.
    pub found: Vec<(BranchId, Found)>,
    /// Members that did not.
    pub away: Vec<NodeId>,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct How {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Emptied.
    pub truncate: bool,
    /// Made, with these permission bits, if it is not there.
    pub create: Option<u32>,
    /// With `create`: it must not be there.
    pub exclusive: bool,
    /// It has to be this inode of this device; nothing is done to another one.
    pub expected: Option<(u64, u64)>,
}

/// A directory that is to be made where a branch lacks it, and its permission bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Where.
    pub path: RelPath,
    /// As on the branch that has it.
    pub mode: u32,
}

/// One operation on one branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Attributes.
    Stat,
    /// Opens; answered with [`Done::Opened`] and up to `head` bytes from the start.
    Open {
        /// In which way.
        how: How,
        /// Directories above it that the branch may lack.
        parents: Vec<Parent>,
        /// Content that is wanted with the answer, bytes.
        head: u32,
    },
    /// The content of files of a directory that are opened next, as programs read it; nobody changes it for a while. Answered
    /// with [`Done::Ahead`].
    ReadAhead {
        /// Their names, and what they have to be.
        files: Vec<(Vec<u8>, Identity)>,
        /// So many bytes together at most.
        bytes: u32,
        /// For how long after the request came, milliseconds.
        term_ms: u32,
    },
    /// Makes anything but a file.
    Make {
        /// What.
        node: NewNode,
        /// Permission bits.
        mode: u32,
        /// Directories above it that the branch may lack.
        parents: Vec<Parent>,
    },
    /// Removes a name that is no directory's.
    Unlink,
    /// Removes an empty directory.
    Rmdir,
    /// Moves the name.
    Rename {
        /// To here.
        to: RelPath,
        /// In which way.
        mode: RenameMode,
        /// Directories above the target that the branch may lack.
        parents: Vec<Parent>,
    },
    /// One more name.
    Link {
        /// There.
        to: RelPath,
        /// Directories above it that the branch may lack.
        parents: Vec<Parent>,
    },
    /// The target of a symbolic link.
    ReadLink,
    /// Changes attributes.
    SetAttr {
        /// To these.
        set: SetAttr,
        /// As of [`How::expected`].
        expected: Option<(u64, u64)>,
    },
    /// The value of an extended attribute.
    GetXattr(Vec<u8>),
    /// Their names, each with a NUL behind it.
    ListXattr,
    /// Sets one.
    SetXattr {
        /// Which.
        name: Vec<u8>,
        /// To this.
        value: Vec<u8>,
        /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
        flags: u32,
    },
    /// Removes one.
    RemoveXattr(Vec<u8>),
    /// Space of the file system.
    Space,
    /// Makes the entries of a directory durable.
    SyncDir,
}

/// One operation on an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// Attributes.
    Stat,
    /// Bytes.
    Read {
        /// From here.
        offset: u64,
        /// At most so many.
        len: u32,
    },
    /// Writes what travels beside it; none: at the end.
    Write {
        /// From here.
        offset: Option<u64>,
    },
    /// Changes attributes.
    SetAttr(SetAttr),
    /// Makes it durable.
    Sync,
    /// `fallocate(2)`.
    Allocate(ByteRange, Allocate),
    /// The next byte that is data (true), or in a hole.
    Seek {
        /// From here.
        offset: u64,
        /// Which.
        data: bool,
    },
}

/// A question, or what is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Looks on the receiver's branches, and passes the question on to those that it is to cover.
    Search {
        /// In this directory.
        directory: RelPath,
        /// For this.
        query: Query,
        /// The branches that are of interest; empty: all.
        branches: Vec<BranchId>,
        /// The other members that the receiver is to ask.
        cover: Vec<NodeId>,
    },
    /// An operation on a branch of the receiver.
    On {
        /// Which.
        branch: BranchId,
        /// Below its root.
        path: RelPath,
        /// What.
        op: Op,
    },
    /// An operation on a file that the receiver has opened for the sender.
    In {
        /// Which.
        file: FileId,
        /// What.
        op: FileOp,
    },
}

/// What a call brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Files that the receiver has opened for the sender, and that are not needed any more.
    pub closing: Vec<FileId>,
    /// Then this.
    pub ask: Option<Ask>,
}

/// What an operation gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// It is done.
    Nothing,
    /// Attributes, after it.
    Stat(Stat),
    /// An open file; the first bytes travel beside it.
    Opened {
        /// Names it.
        file: FileId,
        /// Attributes.
        stat: Stat,
        /// The file was made by this.
        made: bool,
        /// Nothing follows the bytes that travel beside it.
        all: bool,
    },
    /// Bytes, which travel beside it.
    Bytes,
    /// Of each file that was asked for its attributes, where its content travels beside it, one after the other.
    Ahead(Vec<Option<Stat>>),
    /// A place in a file.
    At(u64),
    /// Written; how long the file is now.
    Written {
        /// Attributes after it.
        stat: Stat,
    },
    /// Space.
    Space(Space),
}

/// As `statvfs(3)` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Space {
    /// Which file system it is.
    pub device: u64,
    /// All bytes.
    pub total: u64,
    /// Free ones.
    pub free: u64,
    /// Those that the far user may take.
    pub available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free ones.
    pub inodes_free: u64,
}

/// What a change of names has made of the directories that it was in, on its branch: kernels ask for that next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Above {
    /// The directory of the path.
    pub of: Option<Stat>,
    /// That of the path to which something was moved or linked.
    pub to: Option<Stat>,
}

/// An answer to [`Ask::On`] and [`Ask::In`].
pub type Outcome = Result<(Done, Above), Errno>;

/// What a starter tells a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The first word.
    Welcome(Box<Welcome>),
    /// Who is in the union, and where.
    Members(Members),
    /// Still here.
    Ping,
}

/// Who a member is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its number.
    pub me: NodeId,
    /// The certificate of its key, PEM.
    pub certificate: String,
    /// Certificate of the union's authority, PEM.
    pub authority: String,
    /// Its branches.
    pub branches: Vec<(BranchId, Vec<u8>)>,
    /// Where its host is to have the mount, too.
    pub mountpoint: Option<Vec<u8>>,
    /// The starter's host, as [`crate::ssh::boot`] tells hosts apart, and where that has the mount.
    pub starter: (String, Vec<u8>),
    /// What holds for all.
    pub settings: Settings,
}

/// Where new files go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placing {
    /// To the first branch of the host whose program makes it; where it has none, as [`Placing::Path`].
    Here,
    /// To the nearest branch that has the directory.
    Path,
    /// To the branch whose file system has most space.
    Space,
    /// To the first branch of this member.
    Host(NodeId),
}

/// What holds for all members of a union.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How old what is known of other hosts' names and attributes may be, milliseconds.
    pub fresh_ms: u32,
    /// Where new files go.
    pub placing: Placing,
    /// A host that is away is left out; otherwise what it might have is EIO.
    pub partial: bool,
    /// Members may connect to each other past SSH.
    pub direct: bool,
}

/// A member as all know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub id: NodeId,
    /// Its host, as the command line names it.
    pub name: String,
    /// Where it listens: to be tried in this order. None: through SSH alone.
    pub addresses: Vec<std::net::SocketAddr>,
    /// Its branches.
    pub branches: Vec<BranchId>,
    /// Where it is in the network, as [`perigee_cluster::Coordinate::to_note`] writes it.
    pub coordinate: Vec<u8>,
    /// It cannot be reached now.
    pub away: bool,
    /// How many processes it has had: files that an earlier one had open are no longer of use.
    pub born: u32,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Members {
    /// Rises with each change: what arrives late is left out.
    pub version: u64,
    /// By number.
    pub members: Vec<Member>,
}

/// What a member tells its starter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The first word.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// The request to have its new key certified, PEM. The key itself stays where it was made.
        request: String,
    },
    /// It serves.
    Started {
        /// Where it listens; none: nowhere but behind SSH.
        addresses: Vec<std::net::SocketAddr>,
        /// Where its starter is, seen from there.
        seen: Option<std::net::IpAddr>,
    },
    /// It has the mount, too.
    Mounted,
    /// It cannot, for this reason.
    Failed(String),
    /// Where it is in the network.
    Coordinate(Vec<u8>),
    /// Still here.
    Ping,
}

/// A message that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message that cannot be read")]
pub struct Garbled;

/// Encodes a message.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Nothing here can fail to be written: there are no maps of unknown length, no errors of our own.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Reads a message to its last byte.
///
/// # Errors
/// It is none.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Garbled> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Garbled),
    }
}
