//! File content and state between the members of a chain.

use perigee_types::{ByteRange, ContainerId, Epoch, Errno, InodeId, InodeIndex, Seq, Version};
use serde::{Deserialize, Serialize};

/// A replica asks the owner for regions that it marked invalid. Reading only: a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The container.
    pub container: ContainerId,
    /// What is wanted; at most 8 MiB in all.
    pub regions: Vec<Wanted>,
    /// An owner asks a member: where it lacks something, too, older content that is in place will do.
    pub older: bool,
}

/// One region of a [`Fetch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The file.
    pub inode: InodeId,
    /// Its bytes.
    pub range: ByteRange,
    /// What the one who asks has in place of them: if that is their content, it need not travel.
    pub in_place: Option<InPlace>,
}

/// Bytes, by the SHA-256 of each [`InPlace::UNIT`] of them, the last of which may be shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InPlace {
    /// From the first byte of the region on.
    pub units: Vec<[u8; 32]>,
}

impl InPlace {
    /// Bytes of one hash.
    pub const UNIT: usize = 64 << 10;
}

/// What became of one region of a [`Fetch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Region {
    /// Its bytes are the next `len` of the payload; beyond them the region lies past the end.
    Bytes {
        /// How many bytes of the payload.
        len: u64,
    },
    /// Its content has `len` bytes. The units of `same` are those that [`Wanted::in_place`] tells of; the others are the next
    /// bytes of the payload, one after the other.
    Beside {
        /// How many bytes, in all.
        len: u64,
        /// Which units, ascending.
        same: Vec<u32>,
    },
    /// The member that was asked lacks a part of it, too.
    Missing,
    /// The object does not exist (any more).
    Gone,
    /// It is there, and cannot be read now.
    Unreadable,
    /// The owner's answer: nobody has this part of it.
    Lost {
        /// Which.
        part: ByteRange,
    },
    /// A part of it is missing, and all that is in place is older content, if it is not the content: the next `len` bytes of
    /// the payload.
    Older {
        /// How many bytes of the payload.
        len: u64,
    },
    /// As `Bytes`, of bytes that are all zero and do not travel.
    Zeros {
        /// How many.
        len: u64,
    },
}

/// The answer; regions in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// One for each region asked for, with the record that its bytes are as of: they show every
    /// write up to it, and none after it (rule F1).
    pub regions: Vec<(Region, Version)>,
}

/// What the owner asks of a member's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    /// It can be read there.
    InPlace,
    /// And it is on the disk.
    OnDisk,
}

/// The owner asks a member to have everything of some files up to `through`. Harmless to repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncData {
    /// The files' container.
    pub container: ContainerId,
    /// The files, at most [`SyncData::FILES_MAX`].
    pub files: Vec<InodeIndex>,
    /// The log place whose data must be there.
    pub through: Seq,
    /// How.
    pub until: Until,
    /// The owner's reign: a member of another one must not answer, since a new owner may have
    /// fallen back from what this one asks for.
    pub epoch: Epoch,
}

impl SyncData {
    /// Files that one request names.
    pub const FILES_MAX: usize = 1_024;
}

/// The member has it so, or says why it cannot have it: ENOSPC, or how its disk failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSynced {
    /// The outcome.
    pub result: Result<(), Errno>,
}

/// An owner asks how much a member's disk can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskRoom;

/// The disk under a member's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// All bytes of the file system.
    pub total: u64,
    /// Bytes that data may still take.
    pub available: u64,
    /// Bytes that are yet to be fetched.
    pub missing: u64,
    /// All inodes of the file system; 0 where it does not count them.
    pub files: u64,
    /// Inodes that are left.
    pub files_free: u64,
}

impl Room {
    /// Bytes that it can take beyond what it has to fetch.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.available.saturating_sub(self.missing)
    }
}

/// A joining node reads the committed state in pages of one consistent snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePage {
    /// The container.
    pub container: ContainerId,
    /// The snapshot of an earlier page; `None` opens a new one.
    pub snapshot: Option<u64>,
    /// Rows after this key.
    pub after: Option<Vec<u8>>,
    /// What the joining node has of them from an earlier time, in pages that follow each other; 64 at most.
    pub in_place: Vec<RowsInPlace>,
}

/// A page of rows, by their hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsInPlace {
    /// Its last key.
    pub through: Vec<u8>,
    /// Their SHA-256, each as the length of the key, the key, the length of the value, and the value; lengths in 8 bytes, the
    /// least one first.
    pub sha256: [u8; 32],
}

/// What the state has in the place of a page that a joining node told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The same rows.
    Same,
    /// So many others.
    Rows(usize),
}

/// A page of the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRows {
    /// Names the snapshot in the next request. It is forgotten after a minute without one.
    pub snapshot: u64,
    /// The state is what the log gives up to here.
    pub base: Version,
    /// What takes the place of the first pages of [`StatePage::in_place`].
    pub in_place: Vec<Place>,
    /// Key and value, ascending: those of pages that are not the same, one after the other. Where nothing is said of any page, the
    /// next ones.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Nothing follows.
    pub last: bool,
    /// Bytes that the container's files take on the owner's disk, at most, as far as that was counted: a copy needs no more,
    /// however much of their length is holes.
    pub content: Option<u64>,
}

/// How much of a file is current at this member?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskValid {
    /// The file.
    pub inode: InodeId,
    /// Its length, as the owner knows it.
    pub size: u64,
}

/// So much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Valid {
    /// Bytes.
    pub bytes: u64,
    /// The rest, in order; where it is in more than [`INVALID_MAX`] pieces, what lies between the last ones counts to it.
    pub invalid: Vec<ByteRange>,
}

/// The most pieces of a file that are told one by one not to be current.
pub const INVALID_MAX: usize = 1_024;
