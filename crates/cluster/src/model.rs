//! The records of the control store.

use crate::coordinate::Coordinate;
use perigee_types::{ContainerId, Epoch, NodeId, Span, WallTime};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The longest chain. Every acknowledged record is on every member, so more costs every write.
pub const CHAIN_LEN_MAX: usize = 16;
/// The longest name of a node or a site, in bytes (a host name's limit).
pub const NODE_NAME_LEN_MAX: usize = 253;

/// The cluster as a whole; written once, by whoever makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Random; two clusters never share one.
    pub id: u128,
    /// When it was made, for people.
    pub created: WallTime,
    /// The feature level that every member understands. Formats on disk do not go beyond it.
    pub format: u32,
}

/// Where a node stands in its life. Goes from left to right; only `Draining` can go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeState {
    /// Takes part.
    Active,
    /// Keeps what it holds until that is elsewhere, and gets nothing new.
    Draining,
    /// Is gone for good: in no chain, its certificate void, its number not used again.
    Left,
}

/// What a node is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    // The first two are as earlier programs wrote whether a node stores: no and yes.
    /// It mounts, and stores nothing.
    Mounts,
    /// It stores data, and may mount.
    #[default]
    Stores,
    /// It mounts for reading alone, and stores nothing.
    Reads,
}

impl Role {
    /// Whether it holds containers, and is trusted with what owners and members say to each other.
    #[must_use]
    pub fn stores(self) -> bool {
        self == Self::Stores
    }

    /// Whether its programs may change files.
    #[must_use]
    pub fn may_change_files(self) -> bool {
        self != Self::Reads
    }
}

/// What a node that joins by a token may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admits {
    /// What it asks to be.
    #[default]
    Anybody,
    /// [`Role::Reads`].
    Readers,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number; given once, never reused.
    pub id: NodeId,
    /// What people call it; unique among nodes that have not left.
    pub name: String,
    /// Where other nodes reach it. The storage service listens here.
    pub address: SocketAddr,
    /// The site that it belongs to, if somebody said so.
    pub site: Option<String>,
    /// Whether it holds containers, and what its mounts may do.
    pub role: Role,
    /// When it joined, for people.
    pub joined: WallTime,
    /// The serial number of its current certificate. Earlier ones are [`Revoked`].
    pub cert_serial: Vec<u8>,
    /// Where it stands.
    pub state: NodeState,
    /// Bytes that it offers in all; 0 when not known. What is free, its [`Live`] record says.
    pub capacity: u64,
}

impl Node {
    /// Whether it may become a member of a chain.
    #[must_use]
    pub fn takes_containers(&self) -> bool {
        self.role.stores() && self.state == NodeState::Active
    }
}

/// A node's sign of life: attached to a lease that the node renews, so it is gone when the node is.
/// It decides nothing about ownership; chain members do that among themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Live {
    /// The node.
    pub node: NodeId,
    /// Bytes that are free for containers, as of the last change of this record.
    pub free: u64,
    /// The version of its program, for people.
    pub version: String,
    /// Where it is in the network, once it knows.
    pub coordinate: Option<Coordinate>,
    /// How long its disk takes to keep a few bytes for good, once that is measured.
    pub disk: Option<Span>,
}

/// A container's place: the record that decides who may order its changes.
///
/// Invariants: the chain is not empty and has no node twice; every change of the chain raises the
/// epoch by one; `chain[0]` was in the chain before (each member holds every acknowledged record, so
/// any member may own, and nobody else).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Its number; given once, never reused.
    pub id: ContainerId,
    /// Counts the chains that it has had. The first has 1.
    pub epoch: Epoch,
    /// The nodes that hold it, the owner first.
    pub chain: Vec<NodeId>,
    /// How many members the chain should have. It has fewer while the cluster has too few nodes.
    pub copies: u8,
    /// The node whose home it is: new directories made there start in it. Does not change, and does
    /// not say who holds it.
    pub home: NodeId,
}

impl Container {
    /// The node that orders its changes.
    #[must_use]
    pub fn owner(&self) -> Option<NodeId> {
        self.chain.first().copied()
    }

    /// Whether the invariants hold that a record alone can show.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut members = self.chain.clone();
        members.sort_unstable();
        members.dedup();
        (1..=ContainerId::MAX.0).contains(&self.id.0)
            && self.epoch >= Epoch(1)
            && (1..=CHAIN_LEN_MAX).contains(&self.chain.len())
            && members.len() == self.chain.len()
            && members.first() != Some(&NodeId(0))
            && (1..=CHAIN_LEN_MAX).contains(&usize::from(self.copies))
    }
}

/// A copy of a container that is to lie on another node. The owner sees to it (see [`crate::placement::next_step`]); the
/// record goes when that is done, or cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The container.
    pub container: ContainerId,
    /// Who gives its copy up, once there is another one.
    pub from: NodeId,
    /// Who gets one.
    pub to: NodeId,
}

/// What a container does for the root of its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// It goes on where the one before has become as large as it may: new directories start here.
    GoesOn,
    /// Columns of striped files lie here, and no names.
    Columns,
}

/// A container that was made for another one. Those that were made for one container are its *family*, and it is their *root*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    /// The container.
    pub container: ContainerId,
    /// The root of its family: a node's home, or a directory's own.
    pub root: ContainerId,
    /// What it is for.
    pub purpose: Purpose,
}

/// A process that serves the record, where several do. Its number is in the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlProcess {
    /// Where it listens.
    pub address: SocketAddr,
}

/// What is wanted of containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// How many copies of everything, as far as there are nodes; 1 to [`CHAIN_LEN_MAX`].
    pub copies: u8,
}

impl Default for Policy {
    /// Three copies: two may be lost for good, or one while another is away.
    fn default() -> Self {
        Self { copies: 3 }
    }
}

/// Who used a join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUse {
    /// The node that joined.
    pub node: NodeId,
    /// Its certificate request: a repeat of the very same one, whose answer got lost, gets the same
    /// answer and is no second use, for only the holder of the key can use the certificate.
    pub request: String,
    /// The certificate that it got, as PEM.
    pub certificate: String,
}

/// A join token as the store knows it: never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The SHA-256 of the secret.
    pub hash: [u8; 32],
    /// From this moment on it is void. Wall clock, for it must hold across restarts.
    pub expires: WallTime,
    /// Who used it. A token lets in one node.
    pub used_by: Option<TokenUse>,
    /// What that node may be.
    pub admits: Admits,
}

/// Lets a node in again whose certificate nobody trusts any more, since the authority was lost with the control store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readmission {
    /// The node that it is for, with its number and everything that it keeps.
    pub node: NodeId,
    /// As for any other token.
    pub token: Token,
}

/// A certificate that is void, though its signature is good. Its serial number is in the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Whose it was.
    pub node: NodeId,
}
