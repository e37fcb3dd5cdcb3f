//! What nodes ask of each other to answer people.

use perigee_types::{ContainerId, InodeId, NodeId};
use serde::{Deserialize, Serialize};

/// How does this node do? Reading only: a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskReport;

/// So it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Bytes that its store takes on its disk; none while they are still being counted.
    pub used: Option<u64>,
    /// Bytes free on that disk; none when the disk does not say.
    pub free: Option<u64>,
    /// Bytes of file content that it has yet to fetch, of each container that it holds.
    pub missing: Vec<(ContainerId, u64)>,
    /// How fast it fetches them; 0 when it does not, or does not know yet.
    pub bytes_per_second: u64,
    /// Containers that take no changes there, since its disk failed.
    pub read_only: Vec<ContainerId>,
    /// Its wall clock, in milliseconds since 1970.
    pub clock_ms: i64,
    /// Of the containers that it holds those of which it does not have what a member must have, as after the loss of its disk.
    pub partial: Vec<ContainerId>,
    /// How often it has given containers away to members that worked in them, since it started.
    pub given_away: Vec<(ContainerId, u64)>,
}

/// What is wanted of a node's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubWish {
    /// How it stands.
    Look,
    /// A pass over everything that it keeps, from now on; one that somebody asked for already goes on as it is.
    Begin {
        /// Bytes to read in a second; none: as fast as it goes.
        bytes_per_second: Option<u64>,
    },
    /// No more of the pass that is under way.
    Stop,
}

/// Something is wanted of this node's scrub. A repeat changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// What.
    pub wish: ScrubWish,
}

/// How it stands with a node's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbing {
    /// The pass under way, or the last one since the node started.
    pub pass: Option<ScrubPass>,
}

/// Whether a pass is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubState {
    /// It is under way.
    Running,
    /// It went over everything.
    Done,
    /// Somebody stopped it; the next one in the background goes on there.
    Stopped,
}

/// One pass of a node over what it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPass {
    /// Whether it is over.
    pub state: ScrubState,
    /// Somebody asked for it; otherwise it was due.
    pub asked_for: bool,
    /// When it began, in seconds since 1970.
    pub began_secs: u64,
    /// How long it has taken.
    pub took_ms: u64,
    /// About how many bytes there are.
    pub bytes_in_all: u64,
    /// What it has found.
    pub found: ScrubFound,
}

impl ScrubPass {
    /// One that begins.
    #[must_use]
    pub fn begun(asked_for: bool, began_secs: u64, bytes_in_all: u64) -> Self {
        Self {
            state: ScrubState::Running,
            asked_for,
            began_secs,
            took_ms: 0,
            bytes_in_all,
            found: ScrubFound::default(),
        }
    }
}

/// What a pass has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFound {
    /// Files that were gone over.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of blocks that are not what was written.
    pub corrupt: u64,
    /// Of those: here again, from another member.
    pub repaired: u64,
    /// Of those: no member could give them in time.
    pub unrepaired: u64,
    /// Files that could not be read at all.
    pub errors: u64,
}

/// Who may keep a file, or has locks on it? Answered by the owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskHolders {
    /// The file or directory.
    pub inode: InodeId,
}

/// Why a host is a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// It may keep attributes, names or content, and is told before they change.
    Read,
    /// A program of it has a `flock` lock.
    Flock,
    /// A program of it has an `fcntl` lock.
    Fcntl,
    /// Chunks of the file belong to it: it writes there without asking.
    Chunks,
}

/// These do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// Each host once for each kind of hold.
    pub holders: Vec<(NodeId, Hold)>,
}
