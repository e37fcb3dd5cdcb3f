//! Chunks of files that belong to the host that writes them.

use perigee_replica::chunk::{Access, FlushNumber, Part, Report};
use perigee_replica::{Chunk, Hold};
use perigee_types::{ByteRange, Epoch, OpId, SessionId, Version, WallTime};
use serde::{Deserialize, Serialize};

/// A holder asks the owner for the right to write without asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskRight {
    /// Of which chunk.
    pub chunk: Chunk,
    /// By which row.
    pub hold: Hold,
    /// How often it has asked by this row.
    pub asked: u64,
}

/// The answer to [`AskRight`]: it has the right from the moment when it asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Right {
    /// Or why not.
    pub granted: Result<(), NoRight>,
}

/// A host that keeps no copy is about to write a chunk that it knows nothing of, and much at once: it asks the owner for it, and
/// for the right to write it without asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantChunk {
    /// Whose programs write.
    pub session: SessionId,
    /// Where.
    pub chunk: Chunk,
}

/// The answer to [`WantChunk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The row by which it is the session's, which is committed: it has the right from the moment when it asked, as by a question
    /// with the number 0. None where the owner keeps the chunk.
    pub given: Option<Hold>,
}

/// The owner tells a write's host that it has put the write in place and ordered its record, since the commit of that takes its time:
/// the answer to the write follows. A hint: losing or repeating it is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteOrdered {
    /// Whose write.
    pub session: SessionId,
    /// Which.
    pub op: OpId,
}

/// It has heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedHeard;

/// A chunk is to be given back, or was: its holder asks the owner to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRight;

/// A holder sends what it has written; the payload has the bytes of the ranges, one after the other. A repeat does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendWritten {
    /// Of which chunk.
    pub chunk: Chunk,
    /// By which row.
    pub hold: Hold,
    /// Its number.
    pub number: FlushNumber,
    /// Whether more of what was written follows.
    pub part: Part,
    /// The owner's reign: what was sent to another owner does not count.
    pub epoch: Epoch,
    /// In order, disjoint, within the chunk; 12 MiB in all at most.
    pub ranges: Vec<ByteRange>,
    /// When the last of these writes was taken, by the holder's clock.
    pub mtime: WallTime,
    /// How many writes of programs it tells of.
    pub writes: u64,
}

/// The answer to [`SendWritten`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenTaken {
    /// The last record of it, which is committed, and after [`Part::Last`] on every member with all bytes that were sent; none
    /// where it does not count.
    pub version: Option<Version>,
}

/// The owner asks a holder to send what it has written, and perhaps to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallHolder {
    /// Of which chunk.
    pub chunk: Chunk,
    /// By which row.
    pub hold: Hold,
    /// What somebody wants of it.
    pub access: Access,
    /// The same when it is asked again because the holder was still at it: what was written since need not have arrived.
    pub number: u64,
}

/// Everything that was written when the call came has arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// What the holder does now.
    pub report: Report,
}
