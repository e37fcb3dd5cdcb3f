//! The admin socket: what the command line says to a node of this machine.
//!
//! One JSON object per line, each way, over `admin.sock` (mode 0600) in the node's data directory.
//! The socket never leaves the machine, so its messages need no golden bytes: an unknown request
//! is refused with a [`Failure`], and fields may be added where they have a default.

mod adopt;
mod locate;
mod rebalance;
mod topology;
mod trash;
mod union;

pub use self::adopt::{ADOPTED_MAX, AdoptFile, AdoptSource, AdoptStep, Adopted};
pub use self::locate::{LOCATED_MAX, Located, LocatedFile, LocatedNode, LocatedPiece};
pub use self::rebalance::{CopyMove, CopyMoving, Goes, NodeFill, RebalancePlan};
pub use self::topology::{MapPoint, MappedNode, MeasuredPair, Topology};
pub use self::union::{UnionHost, UnionStatus, UnionWay};
pub use crate::message::report::{
    Heat, Hold, Rates, ScrubFound, ScrubPass, ScrubState, ScrubWish, Thousandths,
};
pub use trash::{Bring, Brought, TrashKind, TrashName, TrashRow};

use perigee_cluster::{Admits, Role};
use perigee_types::{ContainerId, Epoch, InodeId, NodeId};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the socket in a node's data directory.
pub const SOCKET_NAME: &str = "admin.sock";
/// The longest request line, in bytes, with its line feed: several paths of `PATH_MAX` and room for options.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The longest answer line, in bytes: the status of a cluster with tens of thousands of containers.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A path, which on Unix is bytes: JSON text where it is UTF-8, else a list of byte values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "PathForm", into = "PathForm")]
pub struct AdminPath(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathForm {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<PathForm> for AdminPath {
    fn from(form: PathForm) -> Self {
        match form {
            PathForm::Text(text) => Self(text.into_bytes()),
            PathForm::Bytes(bytes) => Self(bytes),
        }
    }
}

impl From<AdminPath> for PathForm {
    fn from(path: AdminPath) -> Self {
        match String::from_utf8(path.0) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes(error.into_bytes()),
        }
    }
}

/// As in a log: in quotes, with what is no printable character escaped.
impl fmt::Debug for AdminPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_path().fmt(f)
    }
}

impl AdminPath {
    /// The path as the local file system takes it.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for AdminPath {
    fn from(path: &P) -> Self {
        Self(path.as_ref().as_os_str().as_bytes().to_vec())
    }
}

impl From<AdminPath> for PathBuf {
    fn from(path: AdminPath) -> Self {
        path.as_path().to_path_buf()
    }
}

impl fmt::Display for AdminPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

/// What the command line asks of a node.
///
/// Paths *inside the file system* are absolute and start at its root, whatever the mount point is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// The cluster as this node sees it. Answer: [`Answer::Status`].
    Status,
    /// Mounts the file system. Answer: [`Answer::Done`] once the mount serves requests.
    Mount {
        /// Absolute path of an empty directory of this machine.
        mountpoint: AdminPath,
        /// Options as in `-o`, one per item: `ro`, `allow_other`, ...
        #[serde(default)]
        options: Vec<String>,
    },
    /// Unmounts. Answer: [`Answer::Done`] once it is gone from the mount table.
    Umount {
        /// Absolute path of the mount point.
        mountpoint: AdminPath,
        /// Detach at once, even when files are open there.
        #[serde(default)]
        lazy: bool,
    },
    /// Where nodes are in the network. Answer: [`Answer::Topology`].
    Topology,
    /// The hosts of a union. Answer: [`Answer::Union`].
    Union,
    /// Where the bytes of a file are. Answer: [`Answer::Where`].
    Where {
        /// Path inside the file system.
        path: AdminPath,
    },
    /// Which nodes have which bytes of files. Answer: [`Answer::Located`].
    Locate {
        /// Paths inside the file system, [`LOCATED_MAX`] at most.
        paths: Vec<AdminPath>,
    },
    /// One step of making local files files of the file system. Answer: [`Answer::Adopted`].
    Adopt {
        /// Which.
        step: AdoptStep,
        /// For which files, [`ADOPTED_MAX`] at most.
        files: Vec<AdoptFile>,
    },
    /// The policies in force at a path. Answer: [`Answer::Policy`].
    PolicyGet {
        /// Path inside the file system.
        path: AdminPath,
    },
    /// Sets policies on a directory or file. All pairs or none. Answer: [`Answer::Policy`], as it is then.
    PolicySet {
        /// Path inside the file system.
        path: AdminPath,
        /// Keys and values; an empty value goes back to the inherited one.
        pairs: Vec<(String, String)>,
    },
    /// Makes a snapshot of a directory. Answer: [`Answer::Snapshots`], with it alone.
    SnapshotCreate {
        /// Path inside the file system.
        path: AdminPath,
        /// Its name.
        name: String,
    },
    /// All snapshots. Answer: [`Answer::Snapshots`], the oldest first.
    SnapshotList,
    /// Deletes a snapshot of a directory. Answer: [`Answer::Snapshots`], with it alone.
    SnapshotDelete {
        /// Path inside the file system.
        path: AdminPath,
        /// Its name.
        name: String,
    },
    /// What was removed and is kept, that had this path or one below it, and directories that were above it. Answer:
    /// [`Answer::Trash`].
    TrashList {
        /// Path inside the file system; nothing needs to be there.
        path: AdminPath,
    },
    /// Brings back what was removed, in this order. Answer: [`Answer::Brought`].
    TrashBring {
        /// What, and where to.
        entries: Vec<Bring>,
    },
    /// Keeps no more what was removed. Answer: [`Answer::Purged`].
    TrashPurge {
        /// Names of [`Answer::Trash`].
        entries: Vec<TrashName>,
    },
    /// Makes a single-use join token. Answer: [`Answer::Token`].
    Token {
        /// How long it is good for, in seconds.
        ttl_secs: u64,
        /// What the node may be that it lets in.
        #[serde(default)]
        admits: Admits,
    },
    /// Makes a token with which a node is let in again that was in the cluster. Answer: [`Answer::Token`].
    TokenAgain {
        /// The node's name or number.
        node: String,
        /// How long it is good for, in seconds.
        ttl_secs: u64,
    },
    /// Asks that what a node keeps moves to others, or takes that back. Answer: [`Answer::Node`]; the work is done after
    /// it, as [`Request::Status`] shows.
    Drain {
        /// The node's name or number.
        node: String,
        /// Takes it back.
        #[serde(default)]
        undo: bool,
        /// Fewer copies than wanted will do, where there are too few nodes.
        #[serde(default)]
        fewer_copies: bool,
    },
    /// Which copies should move so that nodes are equally full. Answer: [`Answer::Rebalance`]; nothing is done.
    RebalancePlan {
        /// How much better a move has to make it, in per cent of the mean fill.
        #[serde(default)]
        margin_percent: Option<u8>,
    },
    /// Asks that a copy of a container moves to another node. Answer: [`Answer::Done`]; the work is done after it, as
    /// [`Request::Status`] shows.
    MoveCopy {
        /// The container.
        container: ContainerId,
        /// The node that gives its copy up, when there is another one.
        from: NodeId,
        /// The node that gets one.
        to: NodeId,
    },
    /// Stops the moves of copies: each stays where it is whole. Answer: [`Answer::Stopped`].
    StopMoves,
    /// Strikes off a node that keeps nothing. Answer: [`Answer::Node`].
    Remove {
        /// The node's name or number.
        node: String,
    },
    /// Looks for what is wrong. Answer: [`Answer::Doctor`].
    Doctor,
    /// Has every node go over what it keeps, or says how that stands. Answer: [`Answer::Scrub`].
    Scrub {
        /// What is wanted.
        wish: ScrubWish,
    },
    /// Unmounts everything, and makes all data durable on every copy. Answer: [`Answer::Done`] when that is done; the node
    /// goes on. For nodes that stop together: one that has stopped takes nothing any more.
    Quiesce,
    /// Unmounts everything, makes all data durable, and ends the process. Answer: [`Answer::Done`]
    /// when it has begun; the process ends after it.
    Stop,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is done.
    Done,
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::Topology`].
    Topology(Topology),
    /// To [`Request::Union`].
    Union(UnionStatus),
    /// To [`Request::Where`].
    Where(Box<Placement>),
    /// To [`Request::Locate`].
    Located(Located),
    /// To [`Request::Adopt`], of each file.
    Adopted(Vec<Adopted>),
    /// To [`Request::PolicyGet`] and [`Request::PolicySet`].
    Policy(Vec<PolicyValue>),
    /// To what is asked about snapshots.
    Snapshots(Vec<SnapshotInfo>),
    /// To [`Request::TrashList`], the latest first.
    Trash(Vec<TrashRow>),
    /// To [`Request::TrashBring`]: what came of each.
    Brought(Vec<Brought>),
    /// To [`Request::TrashPurge`]: how many were kept until then.
    Purged(u64),
    /// To [`Request::Token`] and [`Request::TokenAgain`].
    Token(Token),
    /// To [`Request::Drain`] and [`Request::Remove`]: which node was meant.
    Node(NodeId),
    /// To [`Request::RebalancePlan`].
    Rebalance(RebalancePlan),
    /// To [`Request::StopMoves`]: how many there were.
    Stopped(u64),
    /// To [`Request::Doctor`].
    Doctor(Vec<Finding>),
    /// To [`Request::Scrub`]: every node that stores data, by id.
    Scrub(Vec<NodeScrub>),
}

/// Why a request was not done, in a person's words: `error: {what}: {why}` and `hint: {hint}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failure {
    /// What was tried, on what, as `cannot mount `/mnt/data``.
    pub what: String,
    /// The cause, lower case, without a full stop.
    pub why: String,
    /// What mends it, where something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            hint: None,
        }
    }

    /// The same with what mends it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// One line from the node: `{"ok": ...}` or `{"error": {...}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The request was done.
    Ok(Answer),
    /// It was not.
    Error(Failure),
}

/// The cluster as one node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster's identity, hexadecimal.
    pub cluster: String,
    /// The node that answers.
    pub node: NodeId,
    /// The version of the answering binary.
    pub version: String,
    /// The control store.
    pub control: ControlStatus,
    /// Every node of the cluster, by id.
    pub nodes: Vec<NodeStatus>,
    /// Every container, by id.
    pub containers: Vec<ContainerStatus>,
    /// The answering node's connections since it started.
    pub net: Box<NetStatus>,
}

/// The control store as the answering node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// Whether it answers.
    pub state: ControlState,
    /// Where it listens.
    pub address: String,
    /// Where it can be reached, as the answering node knows: more than one address where several processes serve it.
    #[serde(default)]
    pub known: Vec<String>,
    /// Where it keeps the record: an etcd, or `embedded`; empty where it does not say.
    #[serde(default)]
    pub kept: String,
    /// Milliseconds since its last answer.
    pub silent_ms: u64,
}

/// Whether the control store answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlState {
    /// It answers.
    Up,
    /// It does not: chains cannot change until it does; everything else goes on.
    #[default]
    Away,
    /// It has lost what it had told: nothing is taken from it, and nothing changed there.
    WentBack,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its process on this machine, when it runs here.
    pub pid: Option<u32>,
    /// Whether it is there.
    pub state: NodeState,
    /// Where it listens for its peers.
    pub address: String,
    /// Its site.
    pub site: String,
    /// Bytes that its store takes on its disk; none when it does not answer or has not counted them yet.
    pub used_bytes: Option<u64>,
    /// Bytes free on the disk of its data directory; none when it does not answer.
    pub free_bytes: Option<u64>,
    /// Mount points of its mounts.
    pub mounts: Vec<AdminPath>,
    /// The version of its program, while it shows signs of life.
    #[serde(default)]
    pub version: String,
    /// How long it took to answer the node that was asked, in microseconds; none for that node itself.
    #[serde(default)]
    pub answer_us: Option<u64>,
    /// How far its wall clock is ahead of that of the node that was asked, in milliseconds.
    #[serde(default)]
    pub clock_ahead_ms: Option<i64>,
    /// Whether it stores data, and what its mounts may do.
    #[serde(default)]
    pub role: Role,
    /// Containers that take no changes there, since its disk failed.
    #[serde(default)]
    pub read_only: Vec<ContainerId>,
    /// What its programs do.
    #[serde(default)]
    pub heat: Heat,
    /// Which part of that it answered by itself, of calls: from 0 to 1; none where they do nothing.
    #[serde(default)]
    pub local_calls: Option<Thousandths>,
    /// The same of bytes of content.
    #[serde(default)]
    pub local_bytes: Option<Thousandths>,
}

/// Whether a node is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It answers.
    Up,
    /// Its sign of life in the control store has not expired, and it does not answer the node that
    /// was asked.
    Suspect,
    /// Its sign of life has expired; its containers go on without it.
    #[default]
    Down,
    /// It is being emptied.
    Leaving,
}

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// Its number.
    pub id: ContainerId,
    /// Who orders writes; none while a new owner is being chosen.
    pub owner: Option<NodeId>,
    /// The reign.
    pub epoch: Epoch,
    /// Its members, owner first.
    pub chain: Vec<NodeId>,
    /// Members that have said that they have what a member must have.
    #[serde(default)]
    pub copies: u32,
    /// How many copies its policy asks for (not more than there are nodes that store).
    pub copies_wanted: u32,
    /// It works, but with fewer copies than its policy asks for, or it is not known to have as many.
    pub degraded: bool,
    /// How far each member is behind, where the answering node knows (it does for those that it owns).
    #[serde(default)]
    pub members: Vec<MemberLag>,
    /// How often its ownership moved to a member that worked in it, as far as the nodes that answer remember.
    #[serde(default)]
    pub moves: u64,
    /// What programs of all hosts do in it, as far as their nodes answer.
    #[serde(default)]
    pub heat: Heat,
    /// Which part of the calls the programs' own hosts answered, from 0 to 1.
    #[serde(default)]
    pub local_calls: Option<Thousandths>,
    /// Bytes that its largest copy takes on a disk, without what lies among the keys; none when no member says.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Where new directories start instead, once it is as large as it may be.
    #[serde(default)]
    pub goes_on_in: Option<ContainerId>,
    /// The copy of it that is about to lie elsewhere.
    #[serde(default)]
    pub moving: Option<CopyMoving>,
}

/// How far a chain member is behind its owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberLag {
    /// The member.
    pub node: NodeId,
    /// Log records that it has not made durable.
    pub records: u64,
    /// Bytes of file content that it has yet to fetch; none when it does not answer.
    pub bytes: Option<u64>,
    /// About how long it will take until it lacks nothing; none when it does not fetch, or has just begun.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// Counters of a node's connections, since it started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetStatus {
    /// Open connections to peers.
    pub connections: u64,
    /// Calls and answers sent.
    pub messages_sent: u64,
    /// Frames that carried them: fewer, where calls left merged.
    pub frames_sent: u64,
    /// Calls and answers that left together with others.
    #[serde(default)]
    pub messages_merged: u64,
    /// How many waited whenever something left: class `i` counts from `2^i` to below `2^(i+1)`, the last one all above.
    #[serde(default)]
    pub queue_lengths: Vec<u64>,
    /// How long what was sent to other nodes has waited for its turn before, all together, microseconds.
    #[serde(default)]
    pub waited_us: u64,
    /// Calls to other nodes that have ended. Those to the control store are not counted: they wait for news.
    #[serde(default)]
    pub calls: u64,
    /// How long they took, all together, microseconds.
    #[serde(default)]
    pub calls_took_us: u64,
    /// Calls of other nodes that were run here.
    #[serde(default)]
    pub served: u64,
    /// How long that took, all together, from the call's arrival to its answer, microseconds.
    #[serde(default)]
    pub serving_took_us: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Calls and answers received.
    pub messages_received: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Calls that were sent again after a connection was lost.
    pub retries: u64,
}

/// Where a file is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Its inode, valid in the whole cluster.
    pub inode: InodeId,
    /// What it is: `file`, `directory`, `symlink`, ...
    pub kind: String,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The container that holds it.
    pub container: ContainerId,
    /// The container's reign.
    pub epoch: Epoch,
    /// Who orders its writes.
    pub owner: Option<NodeId>,
    /// The node that answers: reads through it prefer its own copy.
    pub asked: NodeId,
    /// The members that hold it, in the order of the chain.
    pub copies: Vec<CopyStatus>,
    /// The hosts that may cache it or have locks on it; none when its owner does not answer.
    pub held_by: Option<Vec<Holder>>,
    /// Whether the right to write moves to the host that writes, as its policy says; empty when that is not known.
    #[serde(default)]
    pub migration: String,
    /// How often the ownership moved to a member that worked in the container, as far as the nodes that answer remember.
    #[serde(default)]
    pub moves: u64,
    /// Bytes that the container's largest copy takes on a disk, without what lies among the keys; none when no member says.
    #[serde(default)]
    pub container_bytes: Option<u64>,
    /// How large it may become before new directories start in another one.
    #[serde(default)]
    pub container_bytes_max: Option<u64>,
    /// That one, once it is as large.
    #[serde(default)]
    pub goes_on_in: Option<ContainerId>,
    /// What programs of all hosts do in the container, as far as their nodes answer.
    #[serde(default)]
    pub heat: Heat,
    /// Which part of the calls the programs' own hosts answered, from 0 to 1; none where they do nothing.
    #[serde(default)]
    pub local_calls: Option<Thousandths>,
    /// The same of bytes of content.
    #[serde(default)]
    pub local_bytes: Option<Thousandths>,
    /// The same of each host that keeps a copy or works there, in the order of the chain.
    #[serde(default)]
    pub hosts: Vec<HostHeat>,
    /// How programs of the node that answers read it; none when it is no file.
    #[serde(default)]
    pub reads: Option<Rung>,
    /// How they write it.
    #[serde(default)]
    pub writes: Option<Rung>,
    /// Of a striped file the columns that its chunks lie in by turns, the file's own inode first; none of any other, nor before
    /// it has more than one chunk.
    #[serde(default)]
    pub columns: Vec<ColumnPlace>,
}

/// Where a column of a striped file is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnPlace {
    /// Its inode.
    pub inode: InodeId,
    /// The container that holds it.
    pub container: ContainerId,
    /// Who orders its writes.
    pub owner: Option<NodeId>,
    /// The members that hold it, in the order of the chain.
    pub copies: Vec<CopyStatus>,
}

/// How far programs of a node are from a file's bytes (the ladder of the mount).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// The kernel uses the local file by itself (passthrough).
    PastDaemon,
    /// The node's daemon sees each call that the kernel cannot answer from its cache, and why that is so.
    ThroughDaemon(String),
}

/// What programs of one host do in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHeat {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// What they do; none when the node does not answer.
    pub heat: Option<Heat>,
    /// Which part of the calls it answered by itself, from 0 to 1.
    pub local_calls: Option<Thousandths>,
    /// The same of bytes of content.
    pub local_bytes: Option<Thousandths>,
}

/// One copy of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// The member.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its site.
    pub site: String,
    /// How many of the file's bytes are current there; none when it did not answer.
    pub valid_bytes: Option<u64>,
}

/// A host that may cache a file or has a lock on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The host.
    pub node: NodeId,
    /// In which way.
    pub what: Hold,
}

/// One policy in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyValue {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Where it comes from: the path that sets it; none for the built-in default.
    pub from: Option<AdminPath>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// Where its directory was, from the root of the file system.
    pub path: AdminPath,
    /// When it was made, in seconds since 1970.
    pub taken: u64,
    /// Made by the policy of its directory, which deletes it, too.
    pub scheduled: bool,
    /// Bytes of content that were replaced between it and the next one, in one copy; none where that is not known.
    pub kept_bytes: Option<u64>,
}

/// A join token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// What `perigee join` takes.
    pub token: String,
    /// Seconds from now until it is worthless.
    pub ttl_secs: u64,
}

/// The scrub of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeScrub {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Whether it answered.
    pub answers: bool,
    /// The pass under way, or the last one since it started.
    pub pass: Option<ScrubPass>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What mends it, where something is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    /// All is well with `what`.
    pub fn ok(what: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            what: what.into(),
            hint: None,
        }
    }

    /// It works, but.
    pub fn warn(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            what: what.into(),
            hint: Some(hint.into()),
        }
    }

    /// It does not work.
    pub fn bad(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            level: Level::Bad,
            what: what.into(),
            hint: Some(hint.into()),
        }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, but somebody should look.
    Warn,
    /// It does not work.
    Bad,
}
