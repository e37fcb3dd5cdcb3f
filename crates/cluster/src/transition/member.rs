//! Nodes: they join, change, are drained, and leave for good.

use super::container::add_container;
use super::{PlanError, Planned, revision, use_token};
use crate::codec::{Record, is_name};
use crate::directory::Directory;
use crate::key;
use crate::model::{
    Admits, Container, Node, NodeState, Readmission, Revoked, Role, Token, TokenUse,
};
use crate::store::Txn;
use perigee_types::{NodeId, WallTime};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What a node says of itself when it asks to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// A certificate and what it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// The request, as PEM.
    pub request: String,
    /// The certificate, as PEM.
    pub certificate: String,
    /// The certificate's serial number.
    pub serial: Vec<u8>,
}

/// A node that joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Its record.
    pub node: Node,
    /// Its home container; `None` when it stores nothing.
    pub home: Option<Container>,
}

/// The number that the next node to join will get: its certificate must name it.
///
/// # Errors
/// [`PlanError::NoMoreNodes`].
pub fn next_node(dir: &Directory) -> Result<NodeId, PlanError> {
    let next = dir.next_node.as_ref().map_or(NodeId(1), |k| k.record);
    if next.0 == u32::MAX {
        return Err(PlanError::NoMoreNodes);
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
    let role = role_of(request, Admits::Anybody)?;
    enrol(dir, request, role, cert_serial, now)
}

/// What a node will be that asks for this by a token that admits so.
fn role_of(request: &JoinRequest, admits: Admits) -> Result<Role, PlanError> {
    match (admits, request.storage) {
        (Admits::Anybody, true) => Ok(Role::Stores),
        (Admits::Anybody, false) => Ok(Role::Mounts),
        (Admits::Readers, false) => Ok(Role::Reads),
        (Admits::Readers, true) => Err(PlanError::TokenForReaders),
    }
}

fn enrol(
    dir: &Directory,
    request: &JoinRequest,
    role: Role,
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
        role,
        joined: now,
        cert_serial,
        state: NodeState::Active,
        capacity: request.capacity,
    };
    let mut txn = Txn::default()
        .when(key::NEXT_NODE, revision(dir.next_node.as_ref()))
        .when(key::node(id), None)
        .put(key::NEXT_NODE, NodeId(id.0 + 1).encode())
        .put(key::node(id), node.encode());
    let home = if role.stores() {
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

/// Lets in a node: spends the token, registers the node, makes its home container; all or nothing.
/// `certified` is the certificate for the node's number, which is that of [`next_node`].
///
/// # Errors
/// Those of [`use_token`] and [`register_node`].
pub fn join(
    dir: &Directory,
    token: [u8; 32],
    certified: &Certified,
    request: &JoinRequest,
    now: WallTime,
) -> Result<Planned<Joined>, PlanError> {
    let used_by = TokenUse {
        node: next_node(dir)?,
        request: certified.request.clone(),
        certificate: certified.certificate.clone(),
    };
    let spent = use_token(dir, token, used_by, now)?;
    let role = role_of(request, spent.made.admits)?;
    let mut planned = enrol(dir, request, role, certified.serial.clone(), now)?;
    planned.txn.compare.extend(spent.txn.compare);
    planned.txn.writes.extend(spent.txn.writes);
    Ok(planned)
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

/// Records a node's new certificate; the one before is revoked.
///
/// # Errors
/// The node does not exist or has left.
pub fn renew_certificate(
    dir: &Directory,
    id: NodeId,
    cert_serial: Vec<u8>,
) -> Result<Planned<Node>, PlanError> {
    let planned = change_node(dir, id, |node| node.cert_serial = cert_serial)?;
    Ok(revoke_certificate(dir, id, planned))
}

/// Writes down that the holder of a secret may have the certificate of node `id`. Any other secret for it is void from then on.
///
/// # Errors
/// The node does not exist, has left, or shows signs of life; there is such a readmission.
pub fn create_readmission(
    dir: &Directory,
    id: NodeId,
    hash: [u8; 32],
    expires: WallTime,
) -> Result<Planned<Readmission>, PlanError> {
    if dir.readmissions.contains_key(&hash) {
        return Err(PlanError::TokenExists);
    }
    let mut txn = change_node(dir, id, |_| {})?.txn;
    txn.writes.clear();
    if dir.live.contains_key(&id) {
        return Err(PlanError::NodeLives { node: id });
    }
    txn = txn.when(key::live(id), None);
    for known in dir.readmissions.values().filter(|k| k.record.node == id) {
        let at = key::readmission(&known.record.token.hash);
        txn = txn.when(at.clone(), Some(known.revision)).delete(at);
    }
    let made = Readmission {
        node: id,
        token: Token {
            hash,
            expires,
            used_by: None,
            admits: Admits::Anybody,
        },
    };
    let txn = txn
        .when(key::readmission(&hash), None)
        .put(key::readmission(&hash), made.encode());
    Ok(Planned { txn, made })
}

/// Lets a node in again, with a new certificate and, perhaps, at another address.
///
/// # Errors
/// The secret is not known, has expired, was used, or is for another node; the node has left.
pub fn readmit(
    dir: &Directory,
    hash: [u8; 32],
    certified: &Certified,
    request: &JoinRequest,
    now: WallTime,
) -> Result<Planned<Node>, PlanError> {
    let known = dir.readmissions.get(&hash);
    let known = known.ok_or(PlanError::UnknownToken)?;
    let Readmission { node, token } = &known.record;
    if let Some(used) = &token.used_by {
        return Err(PlanError::TokenUsed { node: used.node });
    }
    if now >= token.expires {
        return Err(PlanError::TokenExpired);
    }
    check_address(request.address)?;
    if dir
        .node(*node)
        .is_some_and(|node| node.name != request.name)
    {
        return Err(PlanError::OtherNode { node: *node });
    }
    let planned = change_node(dir, *node, |node| {
        node.address = request.address;
        node.cert_serial.clone_from(&certified.serial);
    })?;
    let Planned { txn, made } = revoke_certificate(dir, *node, planned);
    let mut used = known.record.clone();
    used.token.used_by = Some(TokenUse {
        node: *node,
        request: certified.request.clone(),
        certificate: certified.certificate.clone(),
    });
    let txn = txn
        .when(key::readmission(&hash), Some(known.revision))
        .put(key::readmission(&hash), used.encode());
    Ok(Planned { txn, made })
}

/// Adds the certificate that the node has in `dir` to the void ones.
fn revoke_certificate(dir: &Directory, id: NodeId, mut planned: Planned<Node>) -> Planned<Node> {
    if let Some(node) = dir.node(id).filter(|node| !node.cert_serial.is_empty()) {
        let void = Revoked { node: id }.encode();
        planned.txn = planned.txn.put(key::revoked(&node.cert_serial), void);
    }
    planned
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
    let planned = change_node(dir, id, |node| node.state = NodeState::Left)?;
    Ok(revoke_certificate(dir, id, planned))
}
