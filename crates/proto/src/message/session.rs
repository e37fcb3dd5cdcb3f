//! A session's operations on names and attributes, and the leases that it holds.

use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::near::names::NameHash;
use perigee_meta::{Attr, Op, Reply, Touched, WaitId};
use perigee_types::{ContainerId, Errno, InodeId, OpId, SessionId, Version};
use serde::{Deserialize, Serialize};

/// Runs one operation of the name space at the owner of the container that it starts in.
/// Run at most once by (session, op).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Execute {
    /// The mount that asks.
    pub session: SessionId,
    /// Names the operation for repeats.
    pub op: OpId,
    /// The session has the answers of every operation up to here, and will not repeat them.
    pub answered_through: OpId,
    /// Where a new directory of this session starts, when not in its parent's container.
    pub new_directory_in: Option<ContainerId>,
    /// A look-up that leads to a file of at most so many bytes brings them: a call with its `open` and `read`, which the
    /// program would send next. 0: of none.
    pub content_max: u32,
    /// A change of a name in a directory brings all names that are in it then, if there are so many at most: a call with the
    /// look-ups of other names, which the program would have sent before it makes those. 0: none.
    pub names_max: u32,
    /// What to do.
    pub operation: Op,
}

/// The most bytes that come beside a look-up.
pub const CONTENT_MAX: u32 = 16 << 10;

/// The most names that come beside a change.
pub const NAMES_MAX: u32 = 512;

/// The operation's outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Executed {
    /// The reply, or the error for the program.
    pub result: Result<Reply, Errno>,
    /// For how long names and attributes of the reply may be kept, microseconds; 0: not.
    pub ttl_us: u64,
    /// The last record of the state that the answer is of: of two answers the one of the later state is right.
    pub as_of: Version,
    /// What the directory is like in which a name was changed.
    pub directory: Option<DirectoryAfter>,
    /// The payload is all of the file that was looked up. It may be kept for as long as its attributes may.
    pub with_content: bool,
}

/// A directory after a change of a name in it: a call with its `getattr`, which the kernel of who made the change would send
/// next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryAfter {
    /// Its attributes.
    pub attr: Attr,
    /// For how long they may be kept, microseconds; 0: not.
    pub ttl_us: u64,
    /// All names that are in it, for as long, if they were asked for and are not too many.
    pub names: Option<Vec<NameHash>>,
}

/// The session must forget what it keeps of these before the caller goes on. Harmless to repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// The mount whose leases end.
    pub session: SessionId,
    /// What has changed.
    pub touched: Vec<Touched>,
}

/// It has forgotten them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked;

/// A wait for a lock may go on: the session asks for it again. A hint: losing or repeating it is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockTurn {
    /// The mount that waits.
    pub session: SessionId,
    /// Its wait.
    pub wait: WaitId,
}

/// It has heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockTurnHeard;

/// A lock of this session stands in somebody's way: it is given back, now or when its last use ends. Harmless to repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLock {
    /// The mount that has it.
    pub session: SessionId,
    /// The lock.
    pub id: KeptId,
}

/// What becomes of it. Where it is given back the owner has been told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockCalled {
    /// Given back, or still in use.
    pub fate: Fate,
}

/// Which of these sessions of the node are open? Reading only: a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskSessions {
    /// At most 1,000.
    pub sessions: Vec<SessionId>,
}

/// Those that are mounted now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSessions {
    /// A part of the sessions asked for.
    pub sessions: Vec<SessionId>,
}

/// Who waits for whom for locks in the containers that the node owns? Reading only: a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskWaits;

/// They do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// With at most 10,000 holders in all.
    pub waits: Vec<Wait>,
}

/// Which of these unlinked inodes do the mounts of this node hold open?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillOpen {
    /// At most 1,000.
    pub inodes: Vec<InodeId>,
}

/// Which inodes of a container do the mounts of this node hold open?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenIn {
    /// The container.
    pub container: ContainerId,
    /// No more of them are told.
    pub most: u32,
}

/// Those that are open, or being opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// A part of the inodes asked for, or of the container.
    pub inodes: Vec<InodeId>,
}
