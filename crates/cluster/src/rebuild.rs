//! Making the control store anew from what the nodes have of it.
//!
//! Each node keeps a [`Copy`] of the control store beside its data, and knows of each container that it holds under which
//! chain it last wrote anything ([`Held`]). Both together are its [`Inventory`]. [`rebuild`] makes the records of a new
//! control store out of the inventories of all nodes that are left ([`Inventories`]); how a container's chain goes on is the replication
//! protocol's to say, and given as an argument.

use crate::codec::{DecodeError, Record};
use crate::directory::{Directory, Known};
use crate::key;
use crate::model::{ClusterInfo, Container, Node, NodeState};
use crate::store::{KeyValue, Revision};
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The first bytes of a copy; the digit is the format.
const COPY: &[u8] = b"perigee copy 1\n";
/// The first bytes of a file of inventories.
const INVENTORIES: &[u8] = b"perigee inventory 2\n";
/// Those of one without times.
const INVENTORIES_1: &[u8] = b"perigee inventory 1\n";
const CRC_LEN: usize = 4;

/// Why bytes are no copy and no inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotACopy {
    /// It begins otherwise, or a later program wrote it.
    #[error("it is not one, or of a later version")]
    Other,
    /// The checksum does not fit.
    #[error("it is damaged")]
    Damaged,
}

fn seal(magic: &[u8], body: &impl Serialize) -> Vec<u8> {
    // No map and no sequence of unknown length, all that postcard can refuse.
    let body = postcard::to_allocvec(body).expect("copies always encode");
    let mut bytes = magic.to_vec();
    bytes.extend(crc32c::crc32c(&body).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn open<'a, T: Deserialize<'a>>(magic: &[u8], bytes: &'a [u8]) -> Result<T, NotACopy> {
    let rest = bytes.strip_prefix(magic).ok_or(NotACopy::Other)?;
    let (crc, body) = rest
        .split_first_chunk::<CRC_LEN>()
        .ok_or(NotACopy::Damaged)?;
    if u32::from_le_bytes(*crc) != crc32c::crc32c(body) {
        return Err(NotACopy::Damaged);
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(NotACopy::Damaged),
    }
}

/// What a node keeps of the control store: everything but signs of life and tokens, which mean nothing to a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// The state that it is a copy of.
    pub revision: Revision,
    /// The records.
    pub records: Vec<KeyValue>,
}

impl Copy {
    /// What is to be kept of a picture of the control store.
    #[must_use]
    pub fn of(directory: &Directory) -> Self {
        let mut records = Vec::new();
        let mut add = |key: String, value: Vec<u8>, revision| {
            records.push(KeyValue {
                key,
                value,
                revision,
            });
        };
        if let Some(known) = &directory.cluster {
            add(key::CLUSTER.into(), known.record.encode(), known.revision);
        }
        for (id, known) in &directory.nodes {
            add(key::node(*id), known.record.encode(), known.revision);
        }
        for (id, known) in &directory.containers {
            add(key::container(*id), known.record.encode(), known.revision);
        }
        for (name, known) in &directory.policies {
            add(key::policy(name), known.record.encode(), known.revision);
        }
        for (id, known) in &directory.grown {
            add(key::grown(*id), known.record.encode(), known.revision);
        }
        for (serial, known) in &directory.revoked {
            add(key::revoked(serial), known.record.encode(), known.revision);
        }
        for (process, known) in &directory.controls {
            add(
                key::control(*process),
                known.record.encode(),
                known.revision,
            );
        }
        if let Some(known) = &directory.next_node {
            add(key::NEXT_NODE.into(), known.record.encode(), known.revision);
        }
        if let Some(known) = &directory.next_container {
            let at = key::NEXT_CONTAINER.into();
            add(at, known.record.encode(), known.revision);
        }
        Self {
            revision: directory.revision,
            records,
        }
    }

    /// As a file has it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        seal(COPY, self)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`NotACopy`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NotACopy> {
        open(COPY, bytes)
    }
}

/// A chain and its epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Counts the chains that a container has had.
    pub epoch: Epoch,
    /// The nodes, the owner first.
    pub chain: Vec<NodeId>,
}

/// What a node's disk has of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The container.
    pub container: ContainerId,
    /// Below this epoch the node answers nobody.
    pub promised: Epoch,
    /// Whether the disk ever had all that a member must have.
    pub complete: bool,
    /// The newest chain under which anything was written there.
    pub place: Option<Place>,
}

/// What one node knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Which.
    pub node: NodeId,
    /// Of which cluster its data is.
    pub cluster: u128,
    /// When it was taken, by the clock of its machine; none where nobody noted it.
    pub taken: Option<WallTime>,
    /// When the copy was last written, which is soon after the last change that the node has seen; none as above.
    pub changed: Option<WallTime>,
    /// Its copy of the control store.
    pub copy: Copy,
    /// What it holds.
    pub held: Vec<Held>,
}

/// As the first format has it.
#[derive(Deserialize)]
struct Inventory1 {
    node: NodeId,
    cluster: u128,
    copy: Copy,
    held: Vec<Held>,
}

impl From<Inventory1> for Inventory {
    fn from(old: Inventory1) -> Self {
        Self {
            node: old.node,
            cluster: old.cluster,
            taken: None,
            changed: None,
            copy: old.copy,
            held: old.held,
        }
    }
}

/// The inventories of a machine's nodes, as a file has them.
#[must_use]
pub fn encode_all(inventories: &[Inventory]) -> Vec<u8> {
    seal(INVENTORIES, &inventories)
}

/// Reads such a file.
///
/// # Errors
/// See [`NotACopy`].
pub fn decode_all(bytes: &[u8]) -> Result<Vec<Inventory>, NotACopy> {
    if bytes.starts_with(INVENTORIES_1) {
        let old: Vec<Inventory1> = open(INVENTORIES_1, bytes)?;
        return Ok(old.into_iter().map(Inventory::from).collect());
    }
    open(INVENTORIES, bytes)
}

/// One inventory of each node, in the order in which they count, whatever the order in which they were given: that with the
/// newest copy of the control store first, of equally new ones that of the node with the lowest number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventories(Vec<Inventory>);

impl Inventories {
    /// Of several of one node the one with the newest copy counts, and of equally new ones the one that was taken last.
    #[must_use]
    pub fn of(mut all: Vec<Inventory>) -> Self {
        // Two that are alike in all of this may differ in what they hold: by their bytes, so that it is always the same one.
        all.sort_by_cached_key(|one| {
            let bytes = encode_all(std::slice::from_ref(one));
            Reverse((one.copy.revision, Reverse(one.node), one.taken, bytes))
        });
        let mut seen = BTreeSet::new();
        all.retain(|one| seen.insert(one.node));
        Self(all)
    }

    /// All, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Inventory> {
        self.0.iter()
    }

    /// That with the newest copy.
    #[must_use]
    pub fn newest(&self) -> Option<&Inventory> {
        self.0.first()
    }
}

/// How a container goes on, as the replication protocol says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With this chain.
    On(Place),
    /// Not before one of the members of this chain comes back, which is the newest that is known.
    Lost(Place),
    /// Nobody knows a chain of it.
    Unknown,
}

/// Why a container has nobody who serves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Why {
    /// Nobody who is in the newest chain that is known of it has said what he has.
    NobodyLeft(Place),
    /// Some who are in it have, and none of them has everything.
    NobodyWhole(Place),
    /// No chain of it is known.
    NoChain,
}

/// A container that nobody serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unserved {
    /// Which.
    pub container: ContainerId,
    /// Why.
    #[serde(flatten)]
    pub why: Why,
}

/// A place in the newest chain that is known of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Seat {
    /// The container.
    pub container: ContainerId,
    /// The epoch of that chain.
    pub epoch: Epoch,
}

/// What a new control store begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The cluster.
    pub cluster: ClusterInfo,
    /// Above every revision that any node has seen.
    pub base: Revision,
    /// All nodes, also those that are lost.
    pub nodes: Vec<Node>,
    /// All containers.
    pub containers: Vec<Container>,
    /// Containers that nobody serves; their chains are as they were.
    pub unserved: Vec<Unserved>,
    /// Where each node was that is given up.
    pub given_up: BTreeMap<NodeId, Vec<Seat>>,
    /// Everything that is to be put into the store.
    pub records: BTreeMap<String, Vec<u8>>,
}

impl Rebuilt {
    /// The nodes that go on.
    pub fn present(&self) -> impl Iterator<Item = &Node> {
        let nodes = self.nodes.iter();
        nodes.filter(|node| node.state != NodeState::Left)
    }
}

/// Why no control store can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// There is no inventory.
    #[error("no node's inventory is there")]
    Nothing,
    /// Inventories of two clusters.
    #[error("{node} belongs to another cluster than the rest")]
    OtherCluster {
        /// One of them.
        node: NodeId,
    },
    /// A node keeps data, and nobody knows what it knows.
    #[error("what {} knows is missing", names(.nodes))]
    Missing {
        /// Their names, by number.
        nodes: BTreeMap<NodeId, String>,
    },
    /// A node was given up, and is there.
    #[error("{node} is there, and was named as lost")]
    NotLost {
        /// Which.
        node: NodeId,
    },
    /// An inventory says of a container what cannot be.
    #[error("an inventory says of container {container} what cannot be")]
    Unsound {
        /// Which.
        container: ContainerId,
    },
    /// The newest copy does not say what cluster this is.
    #[error("the newest copy of the control store is empty")]
    Empty,
    /// A copy cannot be read.
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
}

fn names(nodes: &BTreeMap<NodeId, String>) -> String {
    let names: Vec<&str> = nodes.values().map(String::as_str).collect();
    names.join(", ")
}

/// Containers that only lost nodes may have known of.
const CONTAINERS_UNSEEN: u32 = 64;
/// Revisions that the lost store may have reached after the newest copy was made.
const REVISIONS_UNSEEN: u64 = 1 << 32;

/// The records of a new control store.
///
/// `lost`: nodes that will not come back; what only they knew is given up. `go_on` says how the chain of a container goes
/// on, from the chain that the newest copy lists, and what each node has of it.
///
/// # Errors
/// See [`RebuildError`].
pub fn rebuild(
    inventories: &Inventories,
    lost: &BTreeSet<NodeId>,
    go_on: impl Fn(Option<Place>, &[(NodeId, &Held)]) -> Outcome,
) -> Result<Rebuilt, RebuildError> {
    let newest = inventories.newest().ok_or(RebuildError::Nothing)?;
    let other = |inventory: &&Inventory| inventory.cluster != newest.cluster;
    if let Some(Inventory { node, .. }) = inventories.iter().find(other) {
        return Err(RebuildError::OtherCluster { node: *node });
    }
    let mut directory = Directory::from_list(&newest.copy.records, newest.copy.revision)?;
    // They served the store that was lost.
    directory.controls.clear();
    let cluster = directory.cluster.as_ref().map(|known| known.record.clone());
    let cluster = cluster.ok_or(RebuildError::Empty)?;
    check_all_there(&directory, inventories, lost)?;
    let mut unserved = Vec::new();
    let mut given_up: BTreeMap<NodeId, Vec<Seat>> =
        lost.iter().map(|node| (*node, Vec::new())).collect();
    for container in containers(&directory, inventories) {
        let known = directory.containers.get(&container);
        let listed = known.map(|known| Place {
            epoch: known.record.epoch,
            chain: known.record.chain.clone(),
        });
        let held = held_of(&directory, inventories, container);
        note_seats(&mut given_up, container, listed.as_ref(), &held);
        let place = match go_on(listed, &held) {
            Outcome::On(place) => place,
            Outcome::Lost(place) => {
                let is_there = |node: &NodeId| inventories.iter().any(|one| one.node == *node);
                let why = match place.chain.iter().any(is_there) {
                    true => Why::NobodyWhole(place.clone()),
                    false => Why::NobodyLeft(place.clone()),
                };
                unserved.push(Unserved { container, why });
                place
            }
            Outcome::Unknown => {
                let why = Why::NoChain;
                unserved.push(Unserved { container, why });
                continue;
            }
        };
        put_container(&mut directory, container, place, lost)?;
    }
    strike_off(&mut directory, lost);
    let base = Revision(newest.copy.revision.0.saturating_add(REVISIONS_UNSEEN));
    let records = Copy::of(&directory).records.into_iter();
    Ok(Rebuilt {
        cluster,
        base,
        nodes: directory.nodes.values().map(|k| k.record.clone()).collect(),
        containers: directory
            .containers
            .values()
            .map(|k| k.record.clone())
            .collect(),
        unserved,
        given_up,
        records: records.map(|entry| (entry.key, entry.value)).collect(),
    })
}

/// Notes for each lost node that it was in the newest chain that is known of a container.
fn note_seats(
    given_up: &mut BTreeMap<NodeId, Vec<Seat>>,
    container: ContainerId,
    listed: Option<&Place>,
    held: &[(NodeId, &Held)],
) {
    let on_disks = held.iter().filter_map(|(_, held)| held.place.as_ref());
    let Some(newest) = listed
        .into_iter()
        .chain(on_disks)
        .max_by_key(|place| place.epoch)
    else {
        return;
    };
    for (_, seats) in given_up
        .iter_mut()
        .filter(|(node, _)| newest.chain.contains(node))
    {
        let epoch = newest.epoch;
        seats.push(Seat { container, epoch });
    }
}

/// Whether every node that may hold data has said what it knows, or is given up.
fn check_all_there(
    directory: &Directory,
    inventories: &Inventories,
    lost: &BTreeSet<NodeId>,
) -> Result<(), RebuildError> {
    let there: BTreeSet<NodeId> = inventories.iter().map(|i| i.node).collect();
    if let Some(node) = lost.intersection(&there).next() {
        return Err(RebuildError::NotLost { node: *node });
    }
    let nodes = directory.nodes.values().map(|known| &known.record);
    let missing: BTreeMap<NodeId, String> = nodes
        .filter(|node| node.role.stores() && node.state != NodeState::Left)
        .filter(|node| !there.contains(&node.id) && !lost.contains(&node.id))
        .map(|node| (node.id, node.name.clone()))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(RebuildError::Missing { nodes: missing })
    }
}

/// Every container that anybody knows.
fn containers(directory: &Directory, inventories: &Inventories) -> BTreeSet<ContainerId> {
    let held = inventories.iter().flat_map(|inventory| &inventory.held);
    let mut all: BTreeSet<ContainerId> = held.map(|held| held.container).collect();
    all.extend(directory.containers.keys());
    all
}

/// What nodes have of a container. One that has left, or was given up by an earlier rebuild, has what others went on from.
fn held_of<'a>(
    directory: &Directory,
    inventories: &'a Inventories,
    container: ContainerId,
) -> Vec<(NodeId, &'a Held)> {
    let mut all = Vec::new();
    let left = |node| {
        directory
            .node(node)
            .is_some_and(|node| node.state == NodeState::Left)
    };
    for inventory in inventories.iter().filter(|inventory| !left(inventory.node)) {
        let here = inventory.held.iter().filter(|h| h.container == container);
        all.extend(here.map(|held| (inventory.node, held)));
    }
    all
}

fn put_container(
    directory: &mut Directory,
    id: ContainerId,
    place: Place,
    lost: &BTreeSet<NodeId>,
) -> Result<(), RebuildError> {
    let Place { epoch, chain } = place;
    let revision = directory.revision;
    let default = directory.default_policy().copies;
    let record = match directory.containers.get(&id) {
        Some(known) => Container {
            epoch,
            chain,
            ..known.record.clone()
        },
        // Made in the last moment: no copy has it, and whose home it is matters for new nodes alone.
        None => Container {
            id,
            epoch,
            copies: default,
            home: chain.first().copied().unwrap_or(NodeId(0)),
            chain,
        },
    };
    if !record.is_sound() {
        return Err(RebuildError::Unsound { container: id });
    }
    directory.containers.insert(id, Known { record, revision });
    let unseen = if lost.is_empty() {
        0
    } else {
        CONTAINERS_UNSEEN
    };
    let next = ContainerId(id.0.saturating_add(1 + unseen));
    let known = directory.next_container.as_ref().map(|known| known.record);
    if known.is_none_or(|known| known < next) {
        let record = next;
        directory.next_container = Some(Known { record, revision });
    }
    Ok(())
}

/// Lost nodes that no chain lists any more have left.
fn strike_off(directory: &mut Directory, lost: &BTreeSet<NodeId>) {
    for id in lost {
        if directory.containers_of(*id) == 0
            && let Some(known) = directory.nodes.get_mut(id)
        {
            known.record.state = NodeState::Left;
        }
    }
}
