//! The changes that the cluster's record may undergo, each as one transaction.
//!
//! A plan compares every record that its checks have read, so that what was true when it was made is
//! true when it is committed. Ids come from counters and are never reused; epochs rise by one.

mod cluster;
mod container;
mod member;
mod moves;
mod token;

pub use cluster::{create_cluster, put_control, set_policy};
pub use container::{
    change_chain, create_container, create_own_container, grow, set_copies, set_own_policy,
};
pub use member::{
    Certified, JoinRequest, Joined, create_readmission, drain, join, leave, next_node, readmit,
    register_node, renew_certificate, undrain, update_node,
};
pub use moves::{Ends, begin_move, end_move};
pub use token::{create_token, forget_tokens, use_token};

use crate::codec::DecodeError;
use crate::directory::{Directory, Known};
use crate::key;
use crate::store::{ControlStore, Revision, StoreError, Txn};
use perigee_types::{ContainerId, Epoch, NodeId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A transaction, and what will be true once it is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned<T> {
    /// What to commit.
    pub txn: Txn,
    /// What it makes.
    pub made: T,
}

/// Why a change is not allowed. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum PlanError {
    /// The store already holds a cluster.
    #[error("the cluster exists already")]
    ClusterExists,
    /// No such node ever joined.
    #[error("node {node} does not exist")]
    UnknownNode {
        /// The node.
        node: NodeId,
    },
    /// The node gets no containers: it stores nothing, is being drained, or has left.
    #[error("node {node} takes no containers")]
    NoStorage {
        /// The node.
        node: NodeId,
    },
    /// The node has left, which is for good.
    #[error("node {node} has left the cluster")]
    NodeLeft {
        /// The node.
        node: NodeId,
    },
    /// The node still holds containers, or has not been drained.
    #[error("node {node} still holds {containers} containers or is not drained")]
    StillHolds {
        /// The node.
        node: NodeId,
        /// In how many chains it is.
        containers: usize,
    },
    /// Another member has this name.
    #[error("node {node} has the name `{name}` already")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        node: NodeId,
    },
    /// A name of a node or a site is empty, too long, or has spaces.
    #[error("`{name}` is no name of a node or a site")]
    BadName {
        /// Its beginning.
        name: String,
    },
    /// An address to which nobody could connect.
    #[error("{address} is no address that other nodes can reach")]
    BadAddress {
        /// The address.
        address: SocketAddr,
    },
    /// No such container.
    #[error("container {container} does not exist")]
    UnknownContainer {
        /// The container.
        container: ContainerId,
    },
    /// The container's epoch is not the one that the change builds on.
    #[error("container {container} is in epoch {current}, not {expected}")]
    StaleEpoch {
        /// The container.
        container: ContainerId,
        /// What the caller built on.
        expected: Epoch,
        /// What is.
        current: Epoch,
    },
    /// The new epoch is not the one after the old.
    #[error("epoch {new} does not follow epoch {old}")]
    EpochSkips {
        /// The current epoch.
        old: Epoch,
        /// The proposed one.
        new: Epoch,
    },
    /// The chain has no member.
    #[error("a chain needs a member")]
    EmptyChain,
    /// The chain has more than [`crate::model::CHAIN_LEN_MAX`] members.
    #[error("a chain of {members} members is too long")]
    LongChain {
        /// How many.
        members: usize,
    },
    /// A node is in the chain twice.
    #[error("node {node} is in the chain twice")]
    DuplicateMember {
        /// The node.
        node: NodeId,
    },
    /// The new owner was not in the chain, so it cannot have what was acknowledged.
    #[error("node {node} cannot own what it does not hold")]
    OwnerHoldsNothing {
        /// The proposed owner.
        node: NodeId,
    },
    /// The node has no copy that could move.
    #[error("node {node} has no copy of container {container}")]
    HoldsNoCopy {
        /// The container.
        container: ContainerId,
        /// The node.
        node: NodeId,
    },
    /// The node has a copy, and needs no second one.
    #[error("node {node} has a copy of container {container} already")]
    HoldsCopy {
        /// The container.
        container: ContainerId,
        /// The node.
        node: NodeId,
    },
    /// Another copy of the container moves.
    #[error("a copy of container {container} is moving already")]
    Moving {
        /// The container.
        container: ContainerId,
    },
    /// Too many of its copies would lie in one place.
    #[error("without node {node}, copies of container {container} would lie in fewer places")]
    FewerPlaces {
        /// The container.
        container: ContainerId,
        /// Who has a copy where no other one is.
        node: NodeId,
    },
    /// A number of copies that cannot be.
    #[error("{copies} copies are outside 1 to 16")]
    BadCopies {
        /// The number.
        copies: u8,
    },
    /// All numbers of nodes are used up.
    #[error("there are no more numbers for nodes")]
    NoMoreNodes,
    /// All numbers of containers are used up.
    #[error("there are no more numbers for containers")]
    NoMoreContainers,
    /// The token was never made, or is forgotten.
    #[error("the token is not known")]
    UnknownToken,
    /// The token's time is over.
    #[error("the token has expired")]
    TokenExpired,
    /// The token has let in a node.
    #[error("the token was used by node {node}")]
    TokenUsed {
        /// The node that joined by it.
        node: NodeId,
    },
    /// The token lets in nodes that mount for reading alone.
    #[error("the token lets in a node that mounts for reading alone, and stores nothing")]
    TokenForReaders,
    /// A token with this hash exists.
    #[error("the token exists already")]
    TokenExists,
    /// The token lets another node in again.
    #[error("the token is for node {node}")]
    OtherNode {
        /// Which.
        node: NodeId,
    },
    /// The node need not be let in again.
    #[error("node {node} is in the cluster, and shows signs of life")]
    NodeLives {
        /// Which.
        node: NodeId,
    },
}

/// Why [`change`] changed nothing, or may not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The record does not allow it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store did not do it ([`StoreError::Unknown`]: or perhaps did).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store holds what this program cannot read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// How often [`change`] begins anew after a conflict. Each time some other change won, so this many
/// losses in a row mean something writes without pause.
const ATTEMPTS_MAX: usize = 32;

/// Reads the record, plans, commits; begins anew when somebody else was faster.
///
/// # Errors
/// See [`ChangeError`]. [`StoreError::Conflict`] after 32 conflicts in a row.
pub async fn change<T>(
    store: &dyn ControlStore,
    mut plan: impl FnMut(&Directory) -> Result<Planned<T>, PlanError>,
) -> Result<T, ChangeError> {
    let mut conflict = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let (list, at) = store.list(key::ROOT).await?;
        let directory = Directory::from_list(&list, at)?;
        let planned = plan(&directory)?;
        match store.commit(planned.txn).await {
            Ok(_) => return Ok(planned.made),
            Err(StoreError::Conflict { current }) => conflict = current,
            Err(other) => return Err(other.into()),
        }
    }
    Err(StoreError::Conflict { current: conflict }.into())
}

/// The revision to compare: `None` when the record must not exist.
fn revision<T>(known: Option<&Known<T>>) -> Option<Revision> {
    known.map(|known| known.revision)
}
