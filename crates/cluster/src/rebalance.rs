//! Which copies lie where there is less room than elsewhere, and where they should lie.
//!
//! The *fill* of a node is the part of what its disk could hold of containers that it holds. A copy moves from a fuller
//! node to one that is, with the copy, less full than the fuller was, by a margin: so the list of all fills, the greatest
//! first, gets smaller with each move, and a plan ends. It never goes back and forth either: within a plan each copy moves
//! once, and what a move makes better by more than the margin, the next plan does not make undone.

use crate::directory::Directory;
use crate::model::{Container, Node};
use perigee_types::{ContainerId, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a node's disk, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// What its store takes, and what is free.
    pub capacity: u64,
    /// What is free.
    pub free: u64,
}

/// What a plan is made from. What is not in it stays where it is, and gets nothing.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// The disks of the nodes that answer.
    pub disks: BTreeMap<NodeId, Disk>,
    /// Bytes of a copy of each container.
    pub sizes: BTreeMap<ContainerId, u64>,
}

/// What the fuller of two nodes has to have been fuller than the other one is afterwards: in hundredths of the fill that
/// all nodes would have if they were equally full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margin(u8);

impl Margin {
    /// The least and the greatest.
    pub const RANGE: std::ops::RangeInclusive<u8> = 1..=100;

    /// A margin in per cent; `None` outside [`Self::RANGE`].
    #[must_use]
    pub fn percent(percent: u8) -> Option<Self> {
        Self::RANGE.contains(&percent).then_some(Self(percent))
    }

    /// It in per cent.
    #[must_use]
    pub const fn as_percent(self) -> u8 {
        self.0
    }
}

impl Default for Margin {
    fn default() -> Self {
        Self(5)
    }
}

/// Whether the ownership goes along with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Goes {
    /// It is a replica.
    Copy,
    /// It is the owner's.
    Ownership,
}

/// One copy that should lie elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Of which container.
    pub container: ContainerId,
    /// Who has it.
    pub from: NodeId,
    /// Who gets it.
    pub to: NodeId,
    /// Its size.
    pub bytes: u64,
    /// What goes along with it.
    pub goes: Goes,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The copies that move.
    pub transfers: Vec<Transfer>,
    /// Bytes on each node now.
    pub before: BTreeMap<NodeId, u64>,
    /// Bytes on each node then.
    pub after: BTreeMap<NodeId, u64>,
}

/// Fills are counted in so many parts: one is less than a byte of any disk.
const WHOLE: u128 = 1 << 60;
/// A move has to lower the fuller node's fill by so many thousandths of the mean: tiny containers stay.
const GAIN: u128 = 1;
/// A node is filled up to so many hundredths of its disk.
const FILLED_MAX: u64 = 95;

/// Whether a chain in which `to` takes the place of `from` is on as many sites and machines as before. Members of no named
/// site are not known to be anywhere.
#[must_use]
pub fn keeps_apart(dir: &Directory, chain: &[NodeId], from: NodeId, to: NodeId) -> bool {
    let after = chain
        .iter()
        .map(|node| if *node == from { to } else { *node });
    let (sites, machines) = places(dir, chain.iter().copied());
    let (sites_after, machines_after) = places(dir, after);
    sites_after >= sites && machines_after >= machines
}

fn places(dir: &Directory, chain: impl Iterator<Item = NodeId>) -> (usize, usize) {
    let members: Vec<&Node> = chain.filter_map(|node| dir.node(node)).collect();
    let sites: BTreeSet<_> = members.iter().filter_map(|m| m.site.as_ref()).collect();
    let machines: BTreeSet<_> = members.iter().map(|m| m.address.ip()).collect();
    (sites.len(), machines.len())
}

/// What moves where, until no move makes it better by the margin.
#[must_use]
pub fn plan(dir: &Directory, picture: &Picture, margin: Margin) -> Plan {
    let mut spread = Spread::of(dir, picture, margin);
    let before = spread.load.clone();
    let mut transfers = Vec::new();
    while let Some(next) = spread.next() {
        spread.apply(&next);
        transfers.push(next);
    }
    Plan {
        transfers,
        before,
        after: spread.load,
    }
}

/// Who has what, while a plan is made.
struct Spread<'a> {
    dir: &'a Directory,
    picture: &'a Picture,
    chains: BTreeMap<ContainerId, Vec<NodeId>>,
    load: BTreeMap<NodeId, u64>,
    free: BTreeMap<NodeId, u64>,
    /// Copies that have moved: where they were, and where they are.
    moved: BTreeSet<(ContainerId, NodeId)>,
    margin: u128,
    gain_min: u128,
}

impl<'a> Spread<'a> {
    fn of(dir: &'a Directory, picture: &'a Picture, margin: Margin) -> Self {
        let storing = dir.live_storage().map(|node| node.id);
        let nodes: BTreeSet<NodeId> = storing.filter(|n| picture.disks.contains_key(n)).collect();
        let mut load: BTreeMap<NodeId, u64> = nodes.iter().map(|node| (*node, 0)).collect();
        let mut chains = BTreeMap::new();
        let containers = dir.containers.values().map(|known| &known.record);
        for container in containers {
            let Some(bytes) = picture.sizes.get(&container.id) else {
                continue;
            };
            for node in &container.chain {
                if let Some(load) = load.get_mut(node) {
                    *load = load.saturating_add(*bytes);
                }
            }
            if is_settled(dir, container, &nodes) {
                chains.insert(container.id, container.chain.clone());
            }
        }
        let held: u128 = load.values().map(|bytes| u128::from(*bytes)).sum();
        let disks = nodes.iter().filter_map(|node| picture.disks.get(node));
        let room: u128 = disks.map(|disk| u128::from(disk.capacity)).sum();
        let mean = fraction(held, room);
        let free = picture.disks.iter().map(|(node, disk)| (*node, disk.free));
        Self {
            dir,
            picture,
            chains,
            load,
            free: free.collect(),
            moved: BTreeSet::new(),
            margin: mean * u128::from(margin.0) / 100,
            gain_min: (mean * GAIN / 1_000).max(1),
        }
    }

    fn capacity(&self, node: NodeId) -> u64 {
        let disk = self.picture.disks.get(&node);
        disk.map_or(0, |disk| disk.capacity)
    }

    /// How full a node would be with so many bytes.
    fn fill(&self, node: NodeId, bytes: u64) -> u128 {
        fraction(bytes.into(), self.capacity(node).into())
    }

    /// From the fullest node from which a move is worth it; copies before ownerships, and what helps most before others.
    fn next(&self) -> Option<Transfer> {
        let mut nodes: Vec<(u128, NodeId)> = self
            .load
            .iter()
            .map(|(node, bytes)| (self.fill(*node, *bytes), *node))
            .collect();
        nodes.sort_unstable_by_key(|(fill, node)| (Reverse(*fill), *node));
        nodes.iter().find_map(|(_, from)| self.best_from(*from))
    }

    fn best_from(&self, from: NodeId) -> Option<Transfer> {
        let there = self.chains.iter().filter(|(id, chain)| {
            chain.contains(&from)
                && !self.moved.contains(&(**id, from))
                && !self.is_home(**id, from)
        });
        let transfers = there.flat_map(|(id, chain)| {
            let takers = self.load.keys().filter(|to| !chain.contains(to));
            takers.filter_map(|to| self.weigh(*id, chain, from, *to))
        });
        let best = transfers.max_by_key(|(gain, transfer)| {
            let Transfer {
                container,
                to,
                goes,
                ..
            } = *transfer;
            (Reverse(goes), *gain, Reverse((container, to)))
        });
        best.map(|(_, transfer)| transfer)
    }

    /// A node keeps its own home: its programs' new directories start there.
    fn is_home(&self, id: ContainerId, node: NodeId) -> bool {
        self.dir.newest_home_of(node) == Some(id)
    }

    /// What a move would gain, where it may be made.
    fn weigh(
        &self,
        container: ContainerId,
        chain: &[NodeId],
        from: NodeId,
        to: NodeId,
    ) -> Option<(u128, Transfer)> {
        let bytes = *self.picture.sizes.get(&container)?;
        let (has, gets) = (*self.load.get(&from)?, *self.load.get(&to)?);
        let gets = gets.checked_add(bytes)?;
        let full = self.fill(from, has);
        let then = self.fill(to, gets);
        let rest = self.fill(from, has.saturating_sub(bytes));
        let gain = full.checked_sub(then.max(rest))?;
        let kept = self.capacity(to) / 100 * (100 - FILLED_MAX);
        let fits = self.free.get(&to)?.saturating_sub(kept) >= bytes;
        let better = then.saturating_add(self.margin) <= full && gain >= self.gain_min;
        // Where it has been within this plan it need not have gone away from.
        let returns = self.moved.contains(&(container, to));
        if !fits || !better || returns || !keeps_apart(self.dir, chain, from, to) {
            return None;
        }
        let goes = match chain.first() == Some(&from) {
            true => Goes::Ownership,
            false => Goes::Copy,
        };
        let transfer = Transfer {
            container,
            from,
            to,
            bytes,
            goes,
        };
        Some((gain, transfer))
    }

    fn apply(&mut self, transfer: &Transfer) {
        let Transfer {
            container,
            from,
            to,
            bytes,
            ..
        } = *transfer;
        if let Some(chain) = self.chains.get_mut(&container) {
            let places = chain.iter_mut().filter(|node| **node == from);
            places.for_each(|place| *place = to);
        }
        for (node, counts) in [(from, &mut self.load), (to, &mut self.free)] {
            if let Some(count) = counts.get_mut(&node) {
                *count = count.saturating_sub(bytes);
            }
        }
        for (node, counts) in [(to, &mut self.load), (from, &mut self.free)] {
            if let Some(count) = counts.get_mut(&node) {
                *count = count.saturating_add(bytes);
            }
        }
        self.moved.extend([(container, from), (container, to)]);
    }
}

/// Whether a container has all its copies, all its members answer, and nothing of it moves.
fn is_settled(dir: &Directory, container: &Container, nodes: &BTreeSet<NodeId>) -> bool {
    let storing = dir.nodes.values().map(|known| &known.record);
    let storing = storing.filter(|node| node.takes_containers()).count();
    let wanted = usize::from(container.copies).min(storing);
    container.chain.len() == wanted
        && container.chain.iter().all(|node| nodes.contains(node))
        && dir.move_of(container.id, &container.chain).is_none()
}

fn fraction(part: u128, whole: u128) -> u128 {
    // Bytes of a cluster stay below 2^68: what has more is as full as can be.
    let part = part.min(1 << 67);
    (part * WHOLE).checked_div(whole).unwrap_or(WHOLE)
}
