//! The changes that the cluster's record may undergo, each as one transaction.
//!
//! A plan compares every record that its checks have read, so that what was true when it was made is
//! true when it is committed. Ids come from counters and are never reused; epochs rise by one.

use crate::codec::{DecodeError, Record, is_name};
use crate::directory::Directory;
use crate::key;
use crate::model::{
    CHAIN_LEN_MAX, ClusterInfo, Container, Node, NodeState, Policy, Token, TokenUse,
};
use crate::store::{ControlStore, Revision, StoreError, Txn};
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    /// The chain has more than [`CHAIN_LEN_MAX`] members.
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
    /// A number of copies that cannot be.
    #[error("{copies} copies are outside 1 to 16")]
    BadCopies {
        /// The number.
        copies: u8,
    },
    /// All numbers of nodes or containers are used up.
    #[error("there are no more numbers for {what}")]
    NoMoreIds {
        /// Nodes or containers.
        what: &'static str,
    },
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
    /// A token with this hash exists.
    #[error("the token exists already")]
    TokenExists,
}

/// What a node says of itself when it asks to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The name that it wants.
    pub name: String,
    /// Where other nodes reach it.
    pub address: SocketAddr,
    /// Its site, if its administrator named one.
    pub site: Option<String>,
    /// Whether it holds containers.
    pub storage: bool,
    /// Bytes that it offers; 0 when not known.
    pub capacity: u64,
}

/// A node that joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its record.
    pub node: Node,
    /// Its home container; `None` when it stores nothing.
    pub home: Option<Container>,
}

/// Makes the cluster's own record and its default policy.
///
/// # Errors
/// [`PlanError::ClusterExists`].
pub fn create_cluster(dir: &Directory, info: ClusterInfo) -> Result<Planned<()>, PlanError> {
    if dir.cluster.is_some() {
        return Err(PlanError::ClusterExists);
    }
    let txn = Txn::default()
        .when(key::CLUSTER, None)
        .put(key::CLUSTER, info.encode())
        .put(key::policy(key::DEFAULT_POLICY), Policy::default().encode());
    Ok(Planned { txn, made: () })
}

/// The number that the next node to join will get: its certificate must name it.
///
/// # Errors
/// [`PlanError::NoMoreIds`].
pub fn next_node(dir: &Directory) -> Result<NodeId, PlanError> {
    let next = dir.next_node.as_ref().map_or(NodeId(1), |k| k.record);
    if next.0 == u32::MAX {
        return Err(PlanError::NoMoreIds { what: "nodes" });
    }
    Ok(next)
}

/// Registers a node and makes its home container, without a token: for the host that holds the
/// control store itself, or as a part of [`join`].
///
/// # Errors
/// A name that is taken or malformed, an unusable address, no more numbers.
pub fn register_node(
    dir: &Directory,
    request: &JoinRequest,
    cert_serial: Vec<u8>,
    now: WallTime,
) -> Result<Planned<Joined>, PlanError> {
    check_request(dir, request)?;
    let id = next_node(dir)?;
    let node = Node {
        id,
        name: request.name.clone(),
        address: request.address,
        site: request.site.clone(),
        storage: request.storage,
        joined: now,
        cert_serial,
        state: NodeState::Active,
        capacity: request.capacity,
    };
    let mut txn = Txn::default()
        .when(key::NEXT_NODE, revision(&dir.next_node))
        .when(key::node(id), None)
        .put(key::NEXT_NODE, NodeId(id.0 + 1).encode())
        .put(key::node(id), node.encode());
    let home = if node.storage {
        let (with, home) = add_container(dir, txn, vec![id], dir.default_policy().copies, id)?;
        txn = with;
        Some(home)
    } else {
        None
    };
    Ok(Planned {
        txn,
        made: Joined { node, home },
    })
}

fn check_request(dir: &Directory, request: &JoinRequest) -> Result<(), PlanError> {
    for name in std::iter::once(&request.name).chain(&request.site) {
        if !is_name(name) {
            return Err(PlanError::BadName {
                name: name.chars().take(64).collect(),
            });
        }
    }
    check_address(request.address)?;
    let taken = |node: &&Node| node.state != NodeState::Left && node.name == request.name;
    match dir.nodes.values().map(|known| &known.record).find(taken) {
        Some(node) => Err(PlanError::NameTaken {
            name: request.name.clone(),
            node: node.id,
        }),
        None => Ok(()),
    }
}

fn check_address(address: SocketAddr) -> Result<(), PlanError> {
    if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(PlanError::BadAddress { address });
    }
    Ok(())
}

fn revision<T>(known: &Option<crate::directory::Known<T>>) -> Option<Revision> {
    known.as_ref().map(|known| known.revision)
}

fn add_container(
    dir: &Directory,
    txn: Txn,
    chain: Vec<NodeId>,
    copies: u8,
    home: NodeId,
) -> Result<(Txn, Container), PlanError> {
    let next = dir.next_container.as_ref();
    let id = next.map_or(ContainerId::ROOT, |known| known.record);
    if id > ContainerId::MAX {
        return Err(PlanError::NoMoreIds { what: "containers" });
    }
    let container = Container {
        id,
        epoch: Epoch(1),
        chain,
        copies,
        home,
    };
    let txn = txn
        .when(key::NEXT_CONTAINER, revision(&dir.next_container))
        .when(key::container(id), None)
        .put(key::NEXT_CONTAINER, ContainerId(id.0 + 1).encode())
        .put(key::container(id), container.encode());
    Ok((txn, container))
}

/// Makes a further container for the node `home`, held by `chain`.
///
/// # Errors
/// The chain breaks the rules (see [`change_chain`]), or the number of copies does.
pub fn create_container(
    dir: &Directory,
    chain: Vec<NodeId>,
    copies: u8,
    home: NodeId,
) -> Result<Planned<Container>, PlanError> {
    if !(1..=CHAIN_LEN_MAX).contains(&usize::from(copies)) {
        return Err(PlanError::BadCopies { copies });
    }
    check_members(dir, &chain)?;
    let mut txn = Txn::default();
    for node in chain.iter().chain([&home]) {
        txn = compare_node(dir, txn, *node)?;
    }
    for node in &chain {
        check_takes(dir, *node)?;
    }
    let (txn, made) = add_container(dir, txn, chain, copies, home)?;
    Ok(Planned { txn, made })
}

fn check_members(dir: &Directory, chain: &[NodeId]) -> Result<(), PlanError> {
    if chain.is_empty() {
        return Err(PlanError::EmptyChain);
    }
    if chain.len() > CHAIN_LEN_MAX {
        return Err(PlanError::LongChain {
            members: chain.len(),
        });
    }
    for (at, node) in chain.iter().enumerate() {
        if chain[..at].contains(node) {
            return Err(PlanError::DuplicateMember { node: *node });
        }
        if dir.node(*node).is_none() {
            return Err(PlanError::UnknownNode { node: *node });
        }
    }
    Ok(())
}

fn compare_node(dir: &Directory, txn: Txn, node: NodeId) -> Result<Txn, PlanError> {
    let known = dir.nodes.get(&node);
    let known = known.ok_or(PlanError::UnknownNode { node })?;
    Ok(txn.when(key::node(node), Some(known.revision)))
}

fn check_takes(dir: &Directory, node: NodeId) -> Result<(), PlanError> {
    match dir.node(node) {
        Some(record) if record.takes_containers() => Ok(()),
        Some(_) => Err(PlanError::NoStorage { node }),
        None => Err(PlanError::UnknownNode { node }),
    }
}

/// Gives a container a new chain: the only way in which ownership and membership ever change.
/// `expected` is the epoch that the proposer saw; `epoch` and `chain` are the new view.
///
/// # Errors
/// - [`PlanError::StaleEpoch`]: somebody else was first; [`PlanError::EpochSkips`]: not `expected` + 1.
/// - The chain is empty, too long, has a node twice, or a node that does not exist.
/// - A node that is new in it takes no containers, or is to own what it does not hold.
pub fn change_chain(
    dir: &Directory,
    id: ContainerId,
    expected: Epoch,
    epoch: Epoch,
    chain: Vec<NodeId>,
) -> Result<Planned<Container>, PlanError> {
    let known = dir.containers.get(&id);
    let known = known.ok_or(PlanError::UnknownContainer { container: id })?;
    let old = &known.record;
    if old.epoch != expected {
        return Err(PlanError::StaleEpoch {
            container: id,
            expected,
            current: old.epoch,
        });
    }
    if expected.0.checked_add(1) != Some(epoch.0) {
        return Err(PlanError::EpochSkips {
            old: expected,
            new: epoch,
        });
    }
    check_members(dir, &chain)?;
    if let Some(node) = chain.first().filter(|node| !old.chain.contains(node)) {
        return Err(PlanError::OwnerHoldsNothing { node: *node });
    }
    let mut txn = Txn::default().when(key::container(id), Some(known.revision));
    for node in chain.iter().filter(|node| !old.chain.contains(node)) {
        check_takes(dir, *node)?;
        // Were it drained meanwhile, `leave` would miss this container.
        txn = compare_node(dir, txn, *node)?;
    }
    let made = Container {
        epoch,
        chain,
        ..old.clone()
    };
    let txn = txn.put(key::container(id), made.encode());
    Ok(Planned { txn, made })
}

/// Sets how many copies a container should have.
///
/// # Errors
/// [`PlanError::UnknownContainer`], [`PlanError::BadCopies`].
pub fn set_copies(
    dir: &Directory,
    id: ContainerId,
    copies: u8,
) -> Result<Planned<Container>, PlanError> {
    if !(1..=CHAIN_LEN_MAX).contains(&usize::from(copies)) {
        return Err(PlanError::BadCopies { copies });
    }
    let known = dir.containers.get(&id);
    let known = known.ok_or(PlanError::UnknownContainer { container: id })?;
    let made = Container {
        copies,
        ..known.record.clone()
    };
    let txn = Txn::default()
        .when(key::container(id), Some(known.revision))
        .put(key::container(id), made.encode());
    Ok(Planned { txn, made })
}

fn change_node(
    dir: &Directory,
    id: NodeId,
    change: impl FnOnce(&mut Node),
) -> Result<Planned<Node>, PlanError> {
    let known = dir.nodes.get(&id);
    let known = known.ok_or(PlanError::UnknownNode { node: id })?;
    if known.record.state == NodeState::Left {
        return Err(PlanError::NodeLeft { node: id });
    }
    let mut made = known.record.clone();
    change(&mut made);
    let txn = Txn::default()
        .when(key::node(id), Some(known.revision))
        .put(key::node(id), made.encode());
    Ok(Planned { txn, made })
}

/// Gives a node another address or another capacity, as it says when it starts.
///
/// # Errors
/// The node does not exist or has left; the address cannot be reached.
pub fn update_node(
    dir: &Directory,
    id: NodeId,
    address: SocketAddr,
    capacity: u64,
) -> Result<Planned<Node>, PlanError> {
    check_address(address)?;
    change_node(dir, id, |node| {
        node.address = address;
        node.capacity = capacity;
    })
}

/// Records a node's new certificate; the one before becomes void.
///
/// # Errors
/// The node does not exist or has left.
pub fn renew_certificate(
    dir: &Directory,
    id: NodeId,
    cert_serial: Vec<u8>,
) -> Result<Planned<Node>, PlanError> {
    change_node(dir, id, |node| node.cert_serial = cert_serial)
}

/// Asks that a node's containers move elsewhere. From now on it gets no new ones.
///
/// # Errors
/// The node does not exist or has left.
pub fn drain(dir: &Directory, id: NodeId) -> Result<Planned<Node>, PlanError> {
    change_node(dir, id, |node| node.state = NodeState::Draining)
}

/// Takes back [`drain`].
///
/// # Errors
/// The node does not exist or has left.
pub fn undrain(dir: &Directory, id: NodeId) -> Result<Planned<Node>, PlanError> {
    change_node(dir, id, |node| node.state = NodeState::Active)
}

/// Strikes off a drained node that is in no chain. Its number and certificate are void for ever.
///
/// # Errors
/// [`PlanError::StillHolds`] when it is in a chain, or was not drained first: only a drained node can
/// get no container between this check and the commit.
pub fn leave(dir: &Directory, id: NodeId) -> Result<Planned<Node>, PlanError> {
    let containers = dir.containers_of(id);
    let state = dir.node(id).map(|node| node.state);
    if containers > 0 || state == Some(NodeState::Active) {
        return Err(PlanError::StillHolds {
            node: id,
            containers,
        });
    }
    change_node(dir, id, |node| node.state = NodeState::Left)
}

/// Writes down a new join token.
///
/// # Errors
/// [`PlanError::TokenExists`].
pub fn create_token(
    dir: &Directory,
    hash: [u8; 32],
    expires: WallTime,
) -> Result<Planned<Token>, PlanError> {
    if dir.tokens.contains_key(&hash) {
        return Err(PlanError::TokenExists);
    }
    let made = Token {
        hash,
        expires,
        used_by: None,
    };
    let txn = Txn::default()
        .when(key::token(&hash), None)
        .put(key::token(&hash), made.encode());
    Ok(Planned { txn, made })
}

/// Spends a token on `used_by`.
///
/// # Errors
/// It is not known, has expired, or was used.
pub fn use_token(
    dir: &Directory,
    hash: [u8; 32],
    used_by: TokenUse,
    now: WallTime,
) -> Result<Planned<Token>, PlanError> {
    let known = dir.tokens.get(&hash).ok_or(PlanError::UnknownToken)?;
    if let Some(used) = &known.record.used_by {
        return Err(PlanError::TokenUsed { node: used.node });
    }
    if now >= known.record.expires {
        return Err(PlanError::TokenExpired);
    }
    let made = Token {
        used_by: Some(used_by),
        ..known.record.clone()
    };
    let txn = Txn::default()
        .when(key::token(&hash), Some(known.revision))
        .put(key::token(&hash), made.encode());
    Ok(Planned { txn, made })
}

/// Lets in a node: spends the token, registers the node, makes its home container; all or nothing.
/// `request_hash` is the SHA-256 of its certificate request.
///
/// # Errors
/// Those of [`use_token`] and [`register_node`].
pub fn join(
    dir: &Directory,
    token: [u8; 32],
    request_hash: [u8; 32],
    request: &JoinRequest,
    cert_serial: Vec<u8>,
    now: WallTime,
) -> Result<Planned<Joined>, PlanError> {
    let used_by = TokenUse {
        node: next_node(dir)?,
        request: request_hash,
    };
    let spent = use_token(dir, token, used_by, now)?;
    let mut planned = register_node(dir, request, cert_serial, now)?;
    planned.txn.compare.extend(spent.txn.compare);
    planned.txn.writes.extend(spent.txn.writes);
    Ok(planned)
}

/// Forgets tokens that have been void since before `before`, used ones too.
#[must_use]
pub fn forget_tokens(dir: &Directory, before: WallTime) -> Planned<usize> {
    let mut txn = Txn::default();
    let old = |known: &&crate::directory::Known<Token>| known.record.expires < before;
    for known in dir.tokens.values().filter(old).take(64) {
        let at = key::token(&known.record.hash);
        txn = txn.when(at.clone(), Some(known.revision)).delete(at);
    }
    let made = txn.writes.len();
    Planned { txn, made }
}

/// Sets the policy called `name`.
///
/// # Errors
/// [`PlanError::BadCopies`], [`PlanError::BadName`].
pub fn set_policy(dir: &Directory, name: &str, policy: Policy) -> Result<Planned<()>, PlanError> {
    if policy.broken_rule().is_some() {
        return Err(PlanError::BadCopies {
            copies: policy.copies,
        });
    }
    if !is_name(name) {
        return Err(PlanError::BadName {
            name: name.chars().take(64).collect(),
        });
    }
    let current = dir.policies.get(name).map(|known| known.revision);
    let txn = Txn::default()
        .when(key::policy(name), current)
        .put(key::policy(name), policy.encode());
    Ok(Planned { txn, made: () })
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
