//! The control store's content as a typed picture: from one list, then kept current by events.

use crate::codec::{DecodeError, Record};
use crate::key::{self, Name};
use crate::model::{
    ClusterInfo, Container, ControlProcess, Grown, Live, Move, Node, Policy, Purpose, Readmission,
    Revoked, Token,
};
use crate::store::{Event, KeyValue, Revision};
use perigee_types::{ContainerId, NodeId};
use std::collections::BTreeMap;

/// A record with the revision that last wrote it, which is what a transaction compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known<T> {
    /// The record.
    pub record: T,
    /// The revision that wrote it.
    pub revision: Revision,
}

/// All records at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    /// The state of the store that this is a picture of.
    pub revision: Revision,
    /// The cluster; `None` before it is made.
    pub cluster: Option<Known<ClusterInfo>>,
    /// Every node that ever joined.
    pub nodes: BTreeMap<NodeId, Known<Node>>,
    /// Every container.
    pub containers: BTreeMap<ContainerId, Known<Container>>,
    /// Copies that are to lie elsewhere, by their containers.
    pub moves: BTreeMap<ContainerId, Known<Move>>,
    /// Containers that go on for others.
    pub grown: BTreeMap<ContainerId, Known<Grown>>,
    /// The nodes that show signs of life.
    pub live: BTreeMap<NodeId, Known<Live>>,
    /// Policies by name.
    pub policies: BTreeMap<String, Known<Policy>>,
    /// Join tokens by the hash of their secret.
    pub tokens: BTreeMap<[u8; 32], Known<Token>>,
    /// Readmissions by the hash of their secret.
    pub readmissions: BTreeMap<[u8; 32], Known<Readmission>>,
    /// Void certificates by serial number.
    pub revoked: BTreeMap<Vec<u8>, Known<Revoked>>,
    /// The processes that serve the record, where several can; by their numbers.
    pub controls: BTreeMap<u128, Known<ControlProcess>>,
    /// The number that the next node gets; `None` before the first.
    pub next_node: Option<Known<NodeId>>,
    /// The number that the next container gets; `None` before the first.
    pub next_container: Option<Known<ContainerId>>,
}

impl Directory {
    /// The picture of a list of [`key::ROOT`]. Keys that are not known are left out.
    ///
    /// # Errors
    /// The first record that cannot be read: a picture with holes would be taken for the truth.
    pub fn from_list(list: &[KeyValue], revision: Revision) -> Result<Self, DecodeError> {
        let mut directory = Self {
            revision,
            ..Self::default()
        };
        for entry in list {
            directory.set(&entry.key, Some(&entry.value), entry.revision)?;
        }
        Ok(directory)
    }

    /// Brings the picture to the state after `event`. An event that it already has changes nothing.
    ///
    /// # Errors
    /// The record cannot be read; the picture stays as it was.
    pub fn apply(&mut self, event: &Event) -> Result<(), DecodeError> {
        if event.revision < self.revision {
            return Ok(());
        }
        self.set(&event.key, event.value.as_deref(), event.revision)?;
        self.revision = event.revision;
        Ok(())
    }

    fn set(&mut self, at: &str, value: Option<&[u8]>, r: Revision) -> Result<(), DecodeError> {
        match Name::parse(at) {
            Name::Cluster => self.cluster = read(at, value, r, |_| true)?,
            Name::NextNode => self.next_node = read(at, value, r, |_| true)?,
            Name::NextContainer => self.next_container = read(at, value, r, |_| true)?,
            Name::Node(id) => {
                let known = read(at, value, r, |n: &Node| n.id == id)?;
                replace(&mut self.nodes, id, known);
            }
            Name::Container(id) => {
                let known = read(at, value, r, |c: &Container| c.id == id)?;
                replace(&mut self.containers, id, known);
            }
            Name::Move(id) => {
                let known = read(at, value, r, |m: &Move| m.container == id)?;
                replace(&mut self.moves, id, known);
            }
            Name::Grown(id) => {
                let known = read(at, value, r, |g: &Grown| g.container == id)?;
                replace(&mut self.grown, id, known);
            }
            Name::Live(id) => {
                let known = read(at, value, r, |l: &Live| l.node == id)?;
                replace(&mut self.live, id, known);
            }
            Name::Revoked(serial) => {
                let known = read(at, value, r, |_| true)?;
                replace(&mut self.revoked, serial, known);
            }
            Name::Control(process) => {
                let known = read(at, value, r, |_| true)?;
                replace(&mut self.controls, process, known);
            }
            Name::Policy(name) => {
                replace(
                    &mut self.policies,
                    name.to_owned(),
                    read(at, value, r, |_| true)?,
                );
            }
            Name::Token(_) => match read(at, value, r, |t: &Token| key::token(&t.hash) == at)? {
                Some(known) => {
                    self.tokens.insert(known.record.hash, known);
                }
                None => self.tokens.retain(|hash, _| key::token(hash) != at),
            },
            Name::Readmission(_) => {
                let fits = |r: &Readmission| key::readmission(&r.token.hash) == at;
                match read(at, value, r, fits)? {
                    Some(known) => {
                        self.readmissions.insert(known.record.token.hash, known);
                    }
                    None => self
                        .readmissions
                        .retain(|hash, _| key::readmission(hash) != at),
                }
            }
            Name::Other => {}
        }
        Ok(())
    }

    /// A node's record.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).map(|known| &known.record)
    }

    /// A container's record.
    #[must_use]
    pub fn container(&self, id: ContainerId) -> Option<&Container> {
        self.containers.get(&id).map(|known| &known.record)
    }

    /// Whether what is removed may be kept somewhere, so that owners have to look whether it is.
    #[must_use]
    pub fn keeps_trash(&self) -> bool {
        self.policies.contains_key(key::TRASH_IN_USE)
    }

    /// Whether files may be striped somewhere, so that owners have to look whether new ones are.
    #[must_use]
    pub fn stripes_files(&self) -> bool {
        self.policies.contains_key(key::STRIPES_IN_USE)
    }

    /// The move of a container with this chain that is under way: who gives its copy up has one still, and who is to get
    /// one can. Any other that is written down means nothing.
    #[must_use]
    pub fn move_of(&self, id: ContainerId, chain: &[NodeId]) -> Option<Move> {
        let known = self.moves.get(&id)?.record;
        let takes = self.node(known.to).is_some_and(Node::takes_containers);
        let there = chain.contains(&known.to) || self.live.contains_key(&known.to);
        (takes && there && chain.contains(&known.from)).then_some(known)
    }

    /// The policy that holds where no other does.
    #[must_use]
    pub fn default_policy(&self) -> Policy {
        self.policies
            .get(key::DEFAULT_POLICY)
            .map_or_else(Policy::default, |known| known.record.clone())
    }

    /// The container for which this one goes on, or itself.
    #[must_use]
    pub fn root_of(&self, id: ContainerId) -> ContainerId {
        self.grown.get(&id).map_or(id, |known| known.record.root)
    }

    /// The containers of a family, the root first.
    pub fn family(&self, root: ContainerId) -> impl Iterator<Item = ContainerId> + '_ {
        let grown = self.grown.values().map(|known| known.record);
        let of_it = grown.filter(move |grown| grown.root == root);
        std::iter::once(root).chain(of_it.map(|grown| grown.container))
    }

    /// Where new directories start that belong into a container, or go on for it: the newest of its family.
    #[must_use]
    pub fn goes_on_in(&self, id: ContainerId) -> ContainerId {
        let root = self.root_of(id);
        self.made_for(root, Purpose::GoesOn).max().unwrap_or(root)
    }

    /// The containers of a family, but the root, that are for one thing.
    pub fn made_for(
        &self,
        root: ContainerId,
        purpose: Purpose,
    ) -> impl Iterator<Item = ContainerId> + '_ {
        let grown = self.grown.values().map(|known| known.record);
        let of_it = grown.filter(move |grown| grown.root == root && grown.purpose == purpose);
        of_it.map(|grown| grown.container)
    }

    /// The container in which a node's new directories start.
    #[must_use]
    pub fn newest_home_of(&self, node: NodeId) -> Option<ContainerId> {
        self.home_of(node).map(|home| self.goes_on_in(home.id))
    }

    /// Whether a container was made for one directory, and is no node's home.
    #[must_use]
    pub fn is_of_directory(&self, id: ContainerId) -> bool {
        let id = self.root_of(id);
        let made = self.container(id);
        made.is_some_and(|made| self.home_of(made.home).is_some_and(|home| home.id != id))
    }

    /// The policy of a container that belongs to one directory; `None` when the default holds for it.
    #[must_use]
    pub fn own_policy(&self, id: ContainerId) -> Option<&Policy> {
        let known = self.policies.get(&key::policy_of(id));
        known.map(|known| &known.record)
    }

    /// The nodes that can take containers and show signs of life, by number.
    pub fn live_storage(&self) -> impl Iterator<Item = &Node> {
        self.nodes
            .values()
            .map(|known| &known.record)
            .filter(|node| node.takes_containers() && self.live.contains_key(&node.id))
    }

    /// How many containers have this node in their chain.
    #[must_use]
    pub fn containers_of(&self, node: NodeId) -> usize {
        let holds = |known: &&Known<Container>| known.record.chain.contains(&node);
        self.containers.values().filter(holds).count()
    }

    /// The home container of a node, if it has one: the first that was made for it.
    #[must_use]
    pub fn home_of(&self, node: NodeId) -> Option<&Container> {
        self.containers
            .values()
            .map(|known| &known.record)
            .find(|container| container.home == node)
    }
}

fn read<T: Record>(
    at: &str,
    value: Option<&[u8]>,
    revision: Revision,
    belongs: impl Fn(&T) -> bool,
) -> Result<Option<Known<T>>, DecodeError> {
    let Some(bytes) = value else { return Ok(None) };
    let record = T::decode(bytes)?;
    if !belongs(&record) {
        return Err(DecodeError::Misplaced { key: at.to_owned() });
    }
    Ok(Some(Known { record, revision }))
}

fn replace<K: Ord, T>(map: &mut BTreeMap<K, Known<T>>, id: K, known: Option<Known<T>>) {
    match known {
        Some(known) => {
            map.insert(id, known);
        }
        None => {
            map.remove(&id);
        }
    }
}
