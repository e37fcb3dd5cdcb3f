//! Where a container's next copy should lie.

use crate::directory::Directory;
use crate::model::{Node, Policy};
use perigee_types::NodeId;
use std::cmp::Reverse;

/// A node that could hold a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its record.
    pub node: &'a Node,
    /// Bytes that are free for containers.
    pub free: u64,
    /// How many containers it holds.
    pub containers: usize,
}

/// How many members a chain should have when `live` storage nodes are there: as many as the policy
/// wants, as far as there are nodes, and never none.
#[must_use]
pub fn copies_wanted(policy: &Policy, live: usize) -> usize {
    usize::from(policy.copies).min(live).max(1)
}

/// The live nodes that may take a container, with what is known of them.
#[must_use]
pub fn candidates(dir: &Directory) -> Vec<Candidate<'_>> {
    let describe = |node| Candidate {
        node,
        free: dir.live.get(&node.id).map_or(0, |live| live.record.free),
        containers: dir.containers_of(node.id),
    };
    dir.live_storage().map(describe).collect()
}

/// The best new member for a chain that has `members` now; `None` when no candidate is left.
///
/// In this order it prefers: a site that no member is in (what takes a site down leaves a copy), a
/// machine that no member is on, clearly more free space, fewer containers, the lower number. "Clearly
/// more" is a factor of two: finer differences must not gather all new containers on one node.
/// A node without free space is never chosen.
#[must_use]
pub fn choose_member(members: &[&Node], candidates: &[Candidate<'_>]) -> Option<NodeId> {
    candidates
        .iter()
        .filter(|c| c.node.takes_containers() && c.free > 0)
        .filter(|c| members.iter().all(|member| member.id != c.node.id))
        .max_by_key(|c| {
            (
                apart(c.node, members, other_site),
                apart(c.node, members, other_machine),
                c.free.checked_ilog2(),
                Reverse(c.containers),
                Reverse(c.node.id),
            )
        })
        .map(|c| c.node.id)
}

fn apart(node: &Node, members: &[&Node], differ: impl Fn(&Node, &Node) -> bool) -> bool {
    members.iter().all(|member| differ(node, member))
}

/// A node of no named site is not known to be anywhere else.
fn other_site(a: &Node, b: &Node) -> bool {
    matches!((&a.site, &b.site), (Some(a), Some(b)) if a != b)
}

fn other_machine(a: &Node, b: &Node) -> bool {
    a.address.ip() != b.address.ip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeState;
    use perigee_types::WallTime;

    fn node(id: u32, ip: u8, site: Option<&str>) -> Node {
        Node {
            id: NodeId(id),
            name: format!("h{id}"),
            address: ([10, 0, 0, ip], 7000).into(),
            site: site.map(str::to_owned),
            storage: true,
            joined: WallTime::default(),
            cert_serial: Vec::new(),
            state: NodeState::Active,
            capacity: 0,
        }
    }

    fn candidate(node: &Node, free: u64, containers: usize) -> Candidate<'_> {
        Candidate {
            node,
            free,
            containers,
        }
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn another_site_comes_before_another_machine_before_space_before_load() {
        let member = node(1, 1, Some("a"));
        let same_machine = node(2, 1, Some("a"));
        let same_site = node(3, 3, Some("a"));
        let other_site = node(4, 4, Some("b"));
        let all = [
            candidate(&member, 900 * GIB, 0),
            candidate(&same_machine, 900 * GIB, 0),
            candidate(&same_site, 90 * GIB, 5),
            candidate(&other_site, 9 * GIB, 50),
        ];
        assert_eq!(choose_member(&[&member], &all), Some(NodeId(4)));
        assert_eq!(choose_member(&[&member], &all[..3]), Some(NodeId(3)));
        assert_eq!(choose_member(&[&member], &all[..2]), Some(NodeId(2)));
        assert_eq!(choose_member(&[&member], &all[..1]), None);
    }

    #[test]
    fn space_counts_by_factors_of_two_then_load_then_number() {
        let (a, b) = (node(5, 5, None), node(6, 6, None));
        let choose = |fa, ca, fb, cb| {
            choose_member(&[], &[candidate(&a, fa, ca), candidate(&b, fb, cb)]).map(|n| n.0)
        };
        assert_eq!(choose(GIB, 0, 4 * GIB, 9), Some(6));
        assert_eq!(choose(1000, 3, 1020, 4), Some(5));
        assert_eq!(choose(1000, 4, 1020, 3), Some(6));
        assert_eq!(choose(1000, 4, 1020, 4), Some(5));
        assert_eq!(choose(0, 0, 1, 9), Some(6));
        assert_eq!(choose(0, 0, 0, 0), None);
    }

    #[test]
    fn nodes_that_leave_or_only_mount_are_not_chosen() {
        let draining = Node {
            state: NodeState::Draining,
            ..node(1, 1, None)
        };
        let mount = Node {
            storage: false,
            ..node(2, 2, None)
        };
        let all = [candidate(&draining, GIB, 0), candidate(&mount, GIB, 0)];
        assert_eq!(choose_member(&[], &all), None);
    }

    #[test]
    fn a_node_of_no_named_site_is_not_taken_for_far() {
        let member = node(1, 1, Some("a"));
        let unnamed = node(2, 2, None);
        let near = node(3, 3, Some("a"));
        let all = [candidate(&unnamed, GIB, 1), candidate(&near, GIB, 0)];
        assert_eq!(choose_member(&[&member], &all), Some(NodeId(3)));
    }

    #[test]
    fn copies_follow_the_policy_as_far_as_there_are_nodes() {
        let wanted = |live| copies_wanted(&Policy::default(), live);
        assert_eq!([0, 1, 2, 3, 9].map(wanted), [1, 1, 2, 3, 3]);
    }
}
