//! Reading and writing files at their owner.

pub use perigee_meta::WriteAt as At;
use perigee_meta::stripe::Cuts;
use perigee_replica::{Chunk, Hold};
use perigee_types::{ByteRange, Epoch, Errno, InodeId, NodeId, OpId, SessionId};
use serde::{Deserialize, Serialize};

/// Reads at the owner; the payload of the answer is the content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// The mount that reads.
    pub session: SessionId,
    /// The file.
    pub inode: InodeId,
    /// First byte.
    pub offset: u64,
    /// At most 1 MiB.
    pub len: u32,
    /// The session would like to read a copy that is nearer than the owner's from now on: its own node's, or a member's.
    pub want_lease: bool,
    /// The file is a column, of which the reader knows so many cuts; ESTALE where there were more.
    pub cuts: Option<Cuts>,
}

/// The payload has the bytes; fewer than asked for only at the end of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDone {
    /// Success, or the error for the program.
    pub result: Result<(), Errno>,
    /// For how long the session may read another valid copy, microseconds; 0: not.
    pub read_ttl_us: u64,
    /// Which.
    pub copy: CopyAt,
}

/// Which copy a session may read without asking the owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyAt {
    /// Its own node's.
    #[default]
    Own,
    /// That of a member which is nearer to it than the owner is, while the chain is as in this epoch.
    Member {
        /// The member.
        node: NodeId,
        /// The epoch.
        epoch: Epoch,
    },
}

/// Reads a member's copy, by a lease that the owner has given ([`CopyAt::Member`]); the payload of the answer is the content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCopy {
    /// The file.
    pub inode: InodeId,
    /// First byte.
    pub offset: u64,
    /// At most 1 MiB.
    pub len: u32,
    /// In which the owner gave the lease.
    pub epoch: Epoch,
}

/// What came of [`ReadCopy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyRead {
    /// The payload has the bytes; fewer than asked for only at the end of the file.
    Valid,
    /// They are not all valid there, or the chain is another one.
    Not,
}

/// Writes the payload, at most 1 MiB. Run at most once by (session, op).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The mount that writes.
    pub session: SessionId,
    /// Names the write for repeats.
    pub op: OpId,
    /// Of operations up to this one the session knows the answers.
    pub answered_through: OpId,
    /// The file.
    pub inode: InodeId,
    /// Where.
    pub at: At,
    /// Set-id bits go.
    pub kill_privileges: bool,
    /// The file is striped, or a column, of which the writer knows so many cuts; ESTALE where there were more, EAGAIN while one
    /// that has not come to its end is in the way.
    pub cuts: Option<Cuts>,
    /// Its program was answered already, by the right to the chunk of this row; EIO where the row is gone.
    pub behind: Option<Hold>,
}

/// The write is on every replica (law 3: another host has seen it).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The bytes that were written, or the error for the program.
    pub result: Result<ByteRange, Errno>,
    /// The session holds this chunk, without a copy: it may ask for the right to answer programs by itself.
    pub row: Option<HeldChunk>,
}

/// A chunk, and its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldChunk {
    /// The chunk.
    pub chunk: Chunk,
    /// Who holds it.
    pub hold: Hold,
}

/// fsync: everything of the file that was acknowledged is to be on every replica's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// The file or directory.
    pub inode: InodeId,
}

/// Done, or the error for the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// Success or error.
    pub result: Result<(), Errno>,
}

/// What [`Seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whence {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// `lseek(2)` over holes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seek {
    /// The file.
    pub inode: InodeId,
    /// From here on.
    pub offset: u64,
    /// What is looked for.
    pub whence: Whence,
}

/// The offset found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sought {
    /// The offset, or ENXIO.
    pub result: Result<u64, Errno>,
}
