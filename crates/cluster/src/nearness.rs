//! Who is near to whom, and which copy of a container makes room for one that is nearer to its work.
//!
//! Every question of nearness is asked here. The records of nodes answer it: the machine, by its address; the site, where it
//! is named; and otherwise where the nodes are in the network, and how fast their disks are ([`Live`](crate::Live)).

use crate::coordinate::Coordinate;
use crate::directory::Directory;
use crate::model::Node;
use crate::rebalance::keeps_apart;
use perigee_types::{ContainerId, NodeId, Span};
use std::cmp::Reverse;
use std::net::IpAddr;

/// Nodes of which no site is named are at one when a round trip between them is predicted to be no longer.
const SITE_REACH: Span = Span::from_millis(3);
/// A part of a disk's latency counts as way: not all of what is asked has to wait for it (PERFUSE, section III.B, `alpha`).
const DISK_PART: u64 = 4;
/// What is nearer by less than this is as near.
const CLEARLY: Span = Span::from_millis(1);

/// Where a node is, seen from another one; what comes first is nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// They are on one machine.
    Machine,
    /// They are at one site.
    Site,
    /// Something lies between them.
    Elsewhere,
}

/// How near a node is to one that it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearness {
    /// Where it is.
    pub place: Place,
    /// That is by what was measured, for lack of names.
    measured: bool,
    /// The round trip that is predicted, and a part of its disk's latency; `None` where nobody knows, and on one machine, where
    /// differences are noise.
    pub cost: Option<Span>,
}

impl Nearness {
    /// Whether it is nearer by so much that it is worth a change: choices must not follow what is only noise.
    #[must_use]
    pub fn is_clearly_below(self, other: Self) -> bool {
        let cheaper = || match (self.cost, other.cost) {
            (Some(Span(here)), Some(Span(there))) => {
                here.saturating_add((there / 4).max(CLEARLY.0)) < there
            }
            (None, _) | (_, None) => false,
        };
        // One that is just within a site by what is measured is not clearly nearer than one that is just without.
        let clearly = self.place < other.place && !self.measured;
        clearly || (self.place <= other.place && cheaper())
    }

    /// As a rank among several, in which small differences do not count: the place, and the cost by factors of two. What
    /// nobody knows comes last.
    #[must_use]
    pub fn rank(self) -> (Place, u32) {
        let millis = self.cost.map(|cost| cost.as_micros() / 1_000);
        (self.place, millis.map_or(u32::MAX, |ms| (ms + 1).ilog2()))
    }
}

/// What says where somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot<'a> {
    /// The machine.
    pub machine: IpAddr,
    /// The site, where somebody named it.
    pub site: Option<&'a str>,
    /// Where it is in the network, once it knows.
    pub coordinate: Option<Coordinate>,
    /// How long its disk takes to keep a few bytes for good.
    pub disk: Option<Span>,
}

/// How near `server` is to `client`.
#[must_use]
pub fn between(client: Spot<'_>, server: Spot<'_>) -> Nearness {
    let known = |spot: Spot<'_>| spot.coordinate.filter(|at| at.is_known());
    let way = known(client).zip(known(server));
    let way = way.map(|(from, to)| from.distance(to));
    let on_one_machine = client.machine == server.machine;
    let sites = client.site.zip(server.site);
    let place = match sites {
        _ if on_one_machine => Place::Machine,
        Some((a, b)) if a == b => Place::Site,
        Some(_) => Place::Elsewhere,
        None if way.is_some_and(|way| way <= SITE_REACH) => Place::Site,
        None => Place::Elsewhere,
    };
    let disk = server.disk.unwrap_or(Span::ZERO);
    Nearness {
        place,
        measured: !on_one_machine && sites.is_none() && way.is_some(),
        cost: way
            .filter(|_| place != Place::Machine)
            .map(|way| way + Span(disk.as_micros() / DISK_PART)),
    }
}

/// How near the node `server` is to the node `client`.
#[must_use]
pub fn nearness(dir: &Directory, client: &Node, server: &Node) -> Nearness {
    between(spot(dir, client), spot(dir, server))
}

fn spot<'a>(dir: &Directory, node: &'a Node) -> Spot<'a> {
    let live = dir.live.get(&node.id).map(|known| &known.record);
    Spot {
        machine: node.address.ip(),
        site: node.site.as_deref(),
        coordinate: live.and_then(|live| live.coordinate),
        disk: live.and_then(|live| live.disk),
    }
}

/// Whether two nodes are at one site, or on one machine.
#[must_use]
pub fn are_at_one_site(dir: &Directory, a: &Node, b: &Node) -> bool {
    nearness(dir, a, b).place <= Place::Site
}

/// The live member of a chain, the owner first, that is clearly nearer to `node` than its owner is; the nearest, and of equals
/// the first. A host without a copy works best where this one owns.
#[must_use]
pub fn nearer_than_owner(dir: &Directory, chain: &[NodeId], node: NodeId) -> Option<NodeId> {
    let to = dir.node(node)?;
    let how_near = |member: &NodeId| Some(nearness(dir, to, dir.node(*member)?));
    let owner = how_near(chain.first()?)?;
    let live = chain.iter().filter(|m| dir.live.contains_key(*m));
    let near = live.filter_map(|member| Some((how_near(member)?, *member)));
    let nearer = near.filter(|(near, _)| near.is_clearly_below(owner));
    nearer
        .min_by_key(|(near, _)| near.rank())
        .map(|(_, node)| node)
}

/// The nodes of a list that are nearest to `client`: all that are about as near as the nearest.
#[must_use]
pub(crate) fn nearest<'a, T>(
    dir: &Directory,
    client: &Node,
    list: impl IntoIterator<Item = T>,
    node: impl Fn(&T) -> &'a Node,
) -> Vec<T> {
    let rank = |item: T| (nearness(dir, client, node(&item)).rank(), item);
    let mut ranked: Vec<_> = list.into_iter().map(rank).collect();
    let best = ranked.iter().map(|(rank, _)| *rank).min();
    ranked.retain(|(rank, _)| Some(*rank) == best);
    ranked.into_iter().map(|(_, item)| item).collect()
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
        .filter_map(|member| Some((nearness(dir, taker, dir.node(*member)?), *member)))
        .min_by_key(|(near, member)| (near.rank(), free(member), Reverse(*member)))
        .map(|(_, member)| member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::Coordinate;
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
                ..Live::default()
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

    /// Tells where a node is, in milliseconds, and how fast its disk is.
    fn tell(dir: &mut Directory, id: u32, [x, y]: [i32; 2], disk_ms: u64) {
        let live = &mut dir.live.get_mut(&NodeId(id)).expect("it is there").record;
        let note = postcard::to_allocvec(&(x * 1_000, y * 1_000, 100_u32, 50_u16));
        live.coordinate = Coordinate::from_note(&note.expect("plain data"));
        live.disk = Some(Span::from_millis(disk_ms));
    }

    #[test]
    fn where_no_site_is_named_the_network_says_who_is_near() {
        let mut dir = cluster(&[(1, None, 1), (2, None, 1), (3, None, 1), (4, None, 1)]);
        let near = |dir: &Directory, chain: &[u32], node| {
            nearer_than_owner(dir, &ids(chain), NodeId(node)).map(|node| node.0)
        };
        tell(&mut dir, 1, [96, 0], 0);
        tell(&mut dir, 2, [2, 1], 0);
        assert_eq!(near(&dir, &[1, 2], 4), None, "it does not know where it is");
        tell(&mut dir, 4, [0, 0], 0);
        assert_eq!(near(&dir, &[1, 2], 4), Some(2));
        assert_eq!(near(&dir, &[2, 1], 4), None);
        // Both of one site: the faster disk, where it is clearly faster.
        tell(&mut dir, 3, [1, 1], 12);
        assert_eq!(near(&dir, &[3, 2], 4), Some(2));
        tell(&mut dir, 3, [1, 1], 3);
        assert_eq!(near(&dir, &[3, 2], 4), None);
        // One is just within a site, the other one just without: that alone is not worth a change.
        tell(&mut dir, 1, [3, 0], 0);
        tell(&mut dir, 2, [2, 1], 0);
        assert_eq!(near(&dir, &[1, 2], 4), None);
        // Far from both: a little nearer is not worth a change.
        tell(&mut dir, 1, [80, 0], 0);
        tell(&mut dir, 2, [70, 0], 0);
        assert_eq!(near(&dir, &[1, 2], 4), None);
        tell(&mut dir, 2, [50, 0], 0);
        assert_eq!(near(&dir, &[1, 2], 4), Some(2));
    }

    #[test]
    fn a_site_that_is_named_overrides_the_network() {
        let (a, b) = (Some("a"), Some("b"));
        let mut dir = cluster(&[(1, a, 1), (2, b, 1), (3, a, 1), (4, None, 1)]);
        for (id, x) in [(1, 0), (2, 1), (3, 90), (4, 1)] {
            tell(&mut dir, id, [x, 0], 0);
        }
        let place = |from: u32, to: u32| {
            let node = |id| dir.node(NodeId(id)).expect("it is there");
            nearness(&dir, node(from), node(to)).place
        };
        assert_eq!(place(1, 2), Place::Elsewhere);
        assert_eq!(place(1, 3), Place::Site);
        assert_eq!(place(1, 4), Place::Site);
        assert_eq!(place(3, 4), Place::Elsewhere);
        // Two on one machine are equally near, whatever was measured.
        let mut dir = cluster(&[(1, None, 1), (1, None, 1), (1, None, 1)]);
        for (id, x) in [(1, 30), (2, 0), (3, 0)] {
            tell(&mut dir, id, [x, 0], 0);
        }
        assert_eq!(nearer_than_owner(&dir, &ids(&[1, 2]), NodeId(3)), None);
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
