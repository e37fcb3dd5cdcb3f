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
