//! Who is near to whom, and which copy of a container makes room for one that is nearer to its work.
//!
//! Nearness is what the records of nodes tell: the machine, by its address, and the site, where it is named.

use crate::directory::Directory;
use crate::model::Node;
use crate::rebalance::keeps_apart;
use perigee_types::{ContainerId, NodeId};
use std::cmp::Reverse;

/// How near one node is to another; less is nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// They are on one machine.
    Machine,
    /// They are at one site.
    Site,
    /// Nothing is known of what lies between.
    Elsewhere,
}

/// How near two nodes are.
#[must_use]
pub fn nearness(a: &Node, b: &Node) -> Nearness {
    if a.address.ip() == b.address.ip() {
        Nearness::Machine
    } else if a.site.is_some() && a.site == b.site {
        Nearness::Site
    } else {
        Nearness::Elsewhere
    }
}

/// The live member of a chain, the owner first, that is nearer to `node` than its owner is; the nearest, and of equals the
/// first. A host without a copy works best where this one owns.
#[must_use]
pub fn nearer_than_owner(dir: &Directory, chain: &[NodeId], node: NodeId) -> Option<NodeId> {
    let to = dir.node(node)?;
    let how_near = |member: &NodeId| dir.node(*member).map(|member| nearness(member, to));
    let owner = how_near(chain.first()?)?;
    let live = chain.iter().filter(|m| dir.live.contains_key(*m));
    let near = live.filter_map(|member| Some((how_near(member)?, *member)));
    let nearer = near.filter(|(near, _)| *near < owner);
    nearer.min_by_key(|(near, _)| *near).map(|(_, node)| node)
}

/// The member of a chain, the owner first, whose copy of `bytes` is to lie on `to` instead, since that is where the work is.
///
/// It is never the owner where there is another, none that `works` in it, and none whose absence leaves copies on fewer sites
/// or machines; of several the one that is nearest to `to`, and then the one with the least room. `None`: all stays as it is,
/// also where `to` has no room for two of it, or the chain is changing anyway.
#[must_use]
pub fn makes_room(
    dir: &Directory,
    (id, chain): (ContainerId, &[NodeId]),
    to: NodeId,
    bytes: u64,
    works: &dyn Fn(NodeId) -> bool,
) -> Option<NodeId> {
    let taker = dir.live_storage().find(|node| node.id == to)?;
    let free = |node: &NodeId| dir.live.get(node).map_or(0, |live| live.record.free);
    let settled = |member: &NodeId| {
        let takes = dir.node(*member).is_some_and(Node::takes_containers);
        takes && dir.live.contains_key(member)
    };
    let busy = chain.contains(&to) || dir.move_of(id, chain).is_some();
    if busy || !chain.iter().all(settled) || free(&to) / 2 <= bytes {
        return None;
    }
    let candidates = match chain {
        [owner] => std::slice::from_ref(owner),
        [_, replicas @ ..] => replicas,
        [] => &[],
    };
    candidates
        .iter()
        .filter(|member| !works(**member) && keeps_apart(dir, chain, **member, to))
        .filter_map(|member| Some((nearness(dir.node(*member)?, taker), *member)))
        .min_by_key(|(near, member)| (*near, free(member), Reverse(*member)))
        .map(|(_, member)| member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{known, node};
    use crate::model::{Live, Move, NodeState};

    const C: ContainerId = ContainerId(7);
    const GIB: u64 = 1 << 30;

    /// Live nodes from 1 on: the last byte of the address, the site, and how much is free.
    fn cluster(nodes: &[(u8, Option<&str>, u64)]) -> Directory {
        let mut dir = Directory::default();
        for ((ip, site, free), id) in nodes.iter().zip(1_u32..) {
            let node = node(id, *ip, *site);
            let live = Live {
                node: NodeId(id),
                free: *free,
                version: String::new(),
            };
            dir.nodes.insert(NodeId(id), known(node));
            dir.live.insert(NodeId(id), known(live));
        }
        dir
    }

    fn ids(numbers: &[u32]) -> Vec<NodeId> {
        numbers.iter().copied().map(NodeId).collect()
    }

    fn room(dir: &Directory, chain: &[u32], to: u32, bytes: u64, works: &[u32]) -> Option<u32> {
        let works = |node: NodeId| works.contains(&node.0);
        let chain = ids(chain);
        makes_room(dir, (C, &chain), NodeId(to), bytes, &works).map(|node| node.0)
    }

    #[test]
    fn the_nearest_member_is_the_owner_of_choice() {
        let (a, b) = (Some("a"), Some("b"));
        let dir = cluster(&[(1, a, 1), (2, b, 1), (3, b, 1), (3, b, 1), (5, None, 1)]);
        let near = |chain: &[u32], node| {
            nearer_than_owner(&dir, &ids(chain), NodeId(node)).map(|node| node.0)
        };
        assert_eq!(near(&[1, 2, 3], 4), Some(3), "the same machine");
        assert_eq!(near(&[1, 2], 4), Some(2), "the same site");
        assert_eq!(near(&[2, 1], 4), None, "the owner is as near");
        assert_eq!(near(&[1, 2, 3], 5), None, "of a site without a name");
        let mut away = dir.clone();
        away.live.remove(&NodeId(3));
        let near = nearer_than_owner(&away, &ids(&[1, 2, 3]), NodeId(4));
        assert_eq!(near, Some(NodeId(2)));
    }

    #[test]
    fn the_owner_and_who_works_stay_and_copies_stay_apart() {
        let (a, b) = (Some("a"), Some("b"));
        let dir = cluster(&[
            (1, a, 9 * GIB),
            (2, a, 9 * GIB),
            (3, b, 5 * GIB),
            (4, b, 9 * GIB),
        ]);
        assert_eq!(room(&dir, &[1, 2, 3], 4, GIB, &[]), Some(3));
        assert_eq!(room(&dir, &[1, 2, 3], 4, GIB, &[3]), Some(2));
        assert_eq!(room(&dir, &[1, 2, 3], 4, GIB, &[2, 3]), None);
        assert_eq!(room(&dir, &[1, 3], 2, GIB, &[]), None, "one site less");
        assert_eq!(
            room(&dir, &[1], 4, GIB, &[]),
            Some(1),
            "the only copy goes along"
        );
        assert_eq!(room(&dir, &[1, 2, 3], 3, GIB, &[]), None, "it has one");
        assert_eq!(room(&dir, &[1, 2], 3, 3 * GIB, &[]), None, "no room");
        let mut draining = dir.clone();
        if let Some(node) = draining.nodes.get_mut(&NodeId(2)) {
            node.record.state = NodeState::Draining;
        }
        assert_eq!(room(&draining, &[1, 2, 3], 4, GIB, &[]), None);
        let mut moving = dir.clone();
        let record = Move {
            container: C,
            from: NodeId(2),
            to: NodeId(4),
        };
        moving.moves.insert(C, known(record));
        assert_eq!(room(&moving, &[1, 2, 3], 4, GIB, &[]), None);
    }
}
