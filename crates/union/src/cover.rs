//! Who asks whom in a search: a spanning tree with the asker at its root.
//!
//! Each asker has a tree of its own, so none is a root for all. It is made anew for each search, and each part of it travels
//! with the question: whoever asks for a part says whom that part is to cover. So there is nothing that members would have to
//! agree about, and when one is lost, those whom it was to cover are covered anew by who asked it.

use perigee_cluster::nearness::{Nearness, Place};
use perigee_types::NodeId;

/// How many members one asks by itself, at most.
pub const DEGREE: usize = 8;
/// How many of them are at its own site, at most, where there are others, too.
const AT_SITE: usize = DEGREE / 2;

/// One member that is asked, and those that it is to ask in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Who is asked.
    pub child: NodeId,
    /// Whom it is to cover.
    pub cover: Vec<NodeId>,
}

/// Divides `targets` among at most [`DEGREE`] of them, those that are near to each other together: one message goes to each
/// site that is far away, and the others of the site are asked from there.
///
/// `near` says how near the second member is to the first.
#[must_use]
pub fn plan(
    me: NodeId,
    targets: &[NodeId],
    near: &dyn Fn(NodeId, NodeId) -> Nearness,
) -> Vec<Part> {
    let mut sorted = targets.to_vec();
    sorted.sort_by_key(|to| (near(me, *to).rank(), *to));
    sorted.dedup();
    sorted.retain(|to| *to != me);
    let (here, far): (Vec<NodeId>, Vec<NodeId>) = sorted
        .into_iter()
        .partition(|to| near(me, *to).place <= Place::Site);
    let mut parts = Vec::new();
    for to in far {
        let same_site = |part: &&mut Part| near(part.child, to).place <= Place::Site;
        if let Some(part) = parts.iter_mut().find(same_site) {
            part.cover.push(to);
        } else if parts.len() < DEGREE {
            parts.push(part(to));
        } else {
            let by = parts
                .iter_mut()
                .min_by_key(|part| (near(part.child, to).rank(), part.cover.len()));
            if let Some(part) = by {
                part.cover.push(to);
            }
        }
    }
    // Sites that were found last give way to this one.
    let room = if here.is_empty() {
        0
    } else {
        AT_SITE.min(here.len())
    };
    while parts.len() + room > DEGREE {
        let Some(last) = parts.pop() else { break };
        let by = parts
            .iter_mut()
            .min_by_key(|part| (near(part.child, last.child).rank(), part.cover.len()));
        if let Some(part) = by {
            part.cover.push(last.child);
            part.cover.extend(last.cover);
        }
    }
    let own = DEGREE - parts.len();
    let mut near_parts: Vec<Part> = Vec::new();
    for (at, to) in here.into_iter().enumerate() {
        match near_parts.len() < own {
            true => near_parts.push(part(to)),
            false => near_parts[at % own].cover.push(to),
        }
    }
    near_parts.append(&mut parts);
    near_parts
}

fn part(child: NodeId) -> Part {
    Part {
        child,
        cover: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_cluster::Coordinate;
    use perigee_cluster::nearness::{Spot, between};
    use perigee_types::{Rng, Span, Tick};
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, Ipv4Addr};

    /// Members of four sites; those of one have the same name.
    fn near(a: NodeId, b: NodeId) -> Nearness {
        const SITES: [&str; 4] = ["a", "b", "c", "d"];
        let spot = |node: NodeId| Spot {
            machine: IpAddr::V4(Ipv4Addr::from(node.0)),
            site: Some(SITES[node.0 as usize % 4]),
            coordinate: None,
            disk: None,
        };
        between(spot(a), spot(b))
    }

    /// Walks the tree: who is reached, after how many messages one after the other, and how many leave a site.
    fn walk(me: NodeId, targets: &[NodeId]) -> (BTreeMap<NodeId, u32>, usize) {
        let (mut reached, mut far) = (BTreeMap::new(), 0);
        let mut todo = vec![(me, targets.to_vec(), 1)];
        while let Some((from, targets, depth)) = todo.pop() {
            let parts = plan(from, &targets, &near);
            assert!(parts.len() <= DEGREE, "{} asks {}", from, parts.len());
            for part in parts {
                far += usize::from(near(from, part.child).place > Place::Site);
                assert_eq!(reached.insert(part.child, depth), None, "asked twice");
                todo.push((part.child, part.cover, depth + 1));
            }
        }
        (reached, far)
    }

    #[test]
    fn everybody_is_asked_once_by_few_and_each_far_site_by_one_message() {
        for count in [1, 2, 3, 9, 40, 64, 300] {
            let all: Vec<NodeId> = (0..count).map(NodeId).collect();
            for me in [NodeId(0), NodeId(count / 2), NodeId(count)] {
                let (reached, far) = walk(me, &all);
                let whom: BTreeSet<NodeId> = all.iter().copied().filter(|to| *to != me).collect();
                assert_eq!(reached.keys().copied().collect::<BTreeSet<_>>(), whom);
                let sites = whom.iter().filter(|to| near(me, **to).place > Place::Site);
                let sites: BTreeSet<u32> = sites.map(|to| to.0 % 4).collect();
                assert_eq!(far, sites.len(), "{count} members, from {me}");
                let deepest = reached.values().max().copied().unwrap_or(0);
                assert!(deepest <= 4, "{deepest} messages deep for {count} members");
            }
        }
    }

    #[test]
    fn more_sites_than_one_may_ask_are_asked_by_those_that_are_near() {
        // Forty sites on a line, a member each, 10 ms apart.
        let at = |node: NodeId| {
            let mut vivaldi = perigee_cluster::Vivaldi::default();
            let mut rng = Rng::new(1);
            let origin = Coordinate::default();
            let took = Span::from_millis(10 * u64::from(node.0) + 1);
            for round in 0..20 {
                let now = Tick(round * 1_000_000);
                vivaldi.on_round_trip(now, (NodeId(1_000), origin), took, &mut rng);
            }
            vivaldi.coordinate()
        };
        let spots: Vec<Coordinate> = (0..40).map(|n| at(NodeId(n))).collect();
        let near = |a: NodeId, b: NodeId| {
            let spot = |node: NodeId| Spot {
                machine: IpAddr::V4(Ipv4Addr::from(node.0)),
                site: None,
                coordinate: spots.get(node.0 as usize).copied(),
                disk: None,
            };
            between(spot(a), spot(b))
        };
        let all: Vec<NodeId> = (0..40).map(NodeId).collect();
        let parts = plan(NodeId(0), &all, &near);
        assert!(parts.len() <= DEGREE);
        let asked: usize = parts.iter().map(|part| 1 + part.cover.len()).sum();
        assert_eq!(asked, 39);
    }
}
