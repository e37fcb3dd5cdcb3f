//! Where a container's next copy should lie.

use crate::directory::Directory;
use crate::model::Node;
use crate::nearness::nearest;
use perigee_types::{ContainerId, NodeId};
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

impl Candidate<'_> {
    fn has_room(&self) -> bool {
        self.node.takes_containers() && self.free > 0
    }
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
        .filter(|c| c.has_room())
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

/// Where the first copy should lie of what is made on a node that keeps none itself: on its machine, else at its site, else as
/// near as there is room; of equals, where [`choose_member`] says.
#[must_use]
pub fn choose_first(
    dir: &Directory,
    creator: &Node,
    candidates: &[Candidate<'_>],
) -> Option<NodeId> {
    let with_room = candidates.iter().filter(|c| c.has_room()).copied();
    choose_member(&[], &nearest(dir, creator, with_room, |c| c.node))
}

/// What an owner does next about who keeps its container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// All is as it should be, or has to wait.
    Nothing,
    /// Bring in one more member.
    BringIn(Whom),
    /// Propose a chain without this member, which is not the owner.
    Dismiss(NodeId),
    /// The owner's copy moves, and nothing else of it: this member, which has everything, is to own next.
    Cede(NodeId),
    /// The owner itself is to leave, and the others can go on without it.
    HandOver,
}

/// Which node is brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The one that [`choose_member`] says.
    Best,
    /// This one, to which a copy moves.
    This(NodeId),
}

/// The next step for the chain of a container, the owner first, that should have `copies` members; `whole` says of a member
/// that nothing is known to be missing there.
///
/// Members that leave count as copies for nobody: others are brought in beside them, and only when enough of those that
/// stay are whole does one leave after the other, the owner last. "Enough" is as many as are wanted, or as there are
/// nodes, alive or not: a node that is away for a while costs no copy. What has one copy stays until another node has it.
/// A member whose copy moves to another node leaves in the same way.
#[must_use]
pub fn next_step(
    dir: &Directory,
    id: ContainerId,
    chain: &[NodeId],
    copies: usize,
    whole: &dyn Fn(NodeId) -> bool,
) -> Step {
    let moving = dir.move_of(id, chain);
    let gives_up = |node: NodeId| moving.is_some_and(|moving| moving.from == node);
    let remains = |node: NodeId| dir.node(node).is_some_and(Node::takes_containers);
    let stays = |node: &NodeId| remains(*node) && !gives_up(*node);
    let (staying, leaving): (Vec<NodeId>, Vec<NodeId>) = chain.iter().partition(|n| stays(n));
    // A chain that is longer than there are live nodes is the protocol's to shorten.
    let wanted = copies.min(dir.live_storage().count().max(staying.len()));
    if staying.len() < wanted {
        let wanted = moving.map(|moving| moving.to);
        let wanted = wanted.filter(|to| !chain.contains(to));
        return Step::BringIn(wanted.map_or(Whom::Best, Whom::This));
    }
    let Some(owner) = chain.first() else {
        return Step::Nothing;
    };
    if leaving.is_empty() {
        let surplus = staying.len() > wanted && chain.len() > 1;
        // The owner is first; the last came last.
        let last = staying.last().filter(|_| surplus);
        return last.map_or(Step::Nothing, |node| Step::Dismiss(*node));
    }
    let nodes = dir.nodes.values().map(|known| &known.record);
    let enough = copies.min(nodes.filter(|node| node.takes_containers()).count());
    let can_go_on = staying.len() >= enough.max(1) && staying.iter().all(|node| whole(*node));
    match leaving.iter().rfind(|node| *node != owner) {
        _ if !can_go_on => Step::Nothing,
        // What the owner lacks, only who leaves may have.
        Some(_) if !whole(*owner) => Step::Nothing,
        Some(node) => Step::Dismiss(*node),
        None => match moving {
            Some(moving) if remains(*owner) => Step::Cede(moving.to),
            Some(_) | None => Step::HandOver,
        },
    }
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
    use crate::fixture::{known, node};
    use crate::model::{Live, Move, NodeState, Role};

    fn candidate(node: &Node, free: u64, containers: usize) -> Candidate<'_> {
        Candidate {
            node,
            free,
            containers,
        }
    }

    const GIB: u64 = 1 << 30;
    const C: ContainerId = ContainerId(7);

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
    fn the_first_copy_is_near_its_creator_where_there_is_room() {
        let creator = node(1, 1, Some("a"));
        let (here, near, far) = (
            node(2, 1, None),
            node(3, 3, Some("a")),
            node(4, 4, Some("b")),
        );
        let dir = Directory::default();
        let choose = |all: &[Candidate<'_>]| choose_first(&dir, &creator, all).map(|node| node.0);
        let all = [
            candidate(&far, 9 * GIB, 0),
            candidate(&near, 2 * GIB, 5),
            candidate(&here, GIB, 9),
        ];
        assert_eq!(choose(&all), Some(2));
        assert_eq!(choose(&all[..2]), Some(3));
        assert_eq!(choose(&all[..1]), Some(4));
        let full = [candidate(&far, 9 * GIB, 0), candidate(&near, 0, 0)];
        assert_eq!(choose(&full), Some(4));
        let nowhere = node(5, 5, None);
        let other = [candidate(&near, GIB, 0), candidate(&far, 4 * GIB, 0)];
        assert_eq!(choose_first(&dir, &nowhere, &other), Some(NodeId(4)));
        assert_eq!(choose(&[]), None);
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
            role: Role::Mounts,
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

    /// Nodes 1 to `states.len()`, all alive.
    fn cluster(states: &[NodeState]) -> Directory {
        let mut dir = Directory::default();
        for (state, id) in states.iter().zip(1_u32..) {
            let record = Node {
                state: *state,
                ..node(id, 1, None)
            };
            dir.nodes.insert(NodeId(id), known(record));
            let live = Live {
                node: NodeId(id),
                free: GIB,
                ..Live::default()
            };
            dir.live.insert(NodeId(id), known(live));
        }
        dir
    }

    fn ids(numbers: &[u32]) -> Vec<NodeId> {
        numbers.iter().copied().map(NodeId).collect()
    }

    use NodeState::{Active, Draining};

    #[test]
    fn a_chain_is_brought_to_its_length() {
        let dir = cluster(&[Active; 4]);
        let next = |chain: &[u32]| next_step(&dir, C, &ids(chain), 3, &|_| true);
        assert_eq!(next(&[1, 2]), Step::BringIn(Whom::Best));
        assert_eq!(next(&[1, 2, 3]), Step::Nothing);
        assert_eq!(next(&[1, 2, 3, 4]), Step::Dismiss(NodeId(4)));
        let two = cluster(&[Active; 2]);
        assert_eq!(
            next_step(&two, C, &ids(&[1, 2]), 3, &|_| true),
            Step::Nothing
        );
    }

    #[test]
    fn who_leaves_is_replaced_before_it_goes_and_the_owner_goes_last() {
        let dir = cluster(&[Draining, Draining, Active, Active, Active]);
        let next = |chain: &[u32], missing: &[u32]| {
            next_step(&dir, C, &ids(chain), 3, &|node| !missing.contains(&node.0))
        };
        assert_eq!(next(&[1, 2, 3], &[]), Step::BringIn(Whom::Best));
        assert_eq!(next(&[1, 2, 3, 4], &[]), Step::BringIn(Whom::Best));
        assert_eq!(next(&[1, 2, 3, 4, 5], &[4]), Step::Nothing);
        assert_eq!(next(&[1, 2, 3, 4, 5], &[1]), Step::Nothing);
        assert_eq!(next(&[1, 2, 3, 4, 5], &[2]), Step::Dismiss(NodeId(2)));
        assert_eq!(next(&[1, 3, 4, 5], &[5]), Step::Nothing);
        assert_eq!(next(&[1, 3, 4, 5], &[1]), Step::HandOver);
        assert_eq!(next(&[3, 4, 5], &[]), Step::Nothing);
    }

    #[test]
    fn a_node_that_is_away_for_a_while_costs_no_copy() {
        let mut dir = cluster(&[Active, Active, Draining, Active]);
        dir.live.remove(&NodeId(4));
        let next = |dir: &Directory| next_step(dir, C, &ids(&[1, 2, 3]), 3, &|_| true);
        assert_eq!(next(&dir), Step::Nothing);
        dir.nodes.remove(&NodeId(4));
        assert_eq!(next(&dir), Step::Dismiss(NodeId(3)));
    }

    #[test]
    fn nobody_leaves_when_nobody_stays() {
        let dir = cluster(&[Draining, Draining]);
        let next = |chain: &[u32]| next_step(&dir, C, &ids(chain), 3, &|_| true);
        assert_eq!(next(&[1, 2]), Step::Nothing);
        assert_eq!(next(&[1]), Step::Nothing);
    }

    /// The copy of a container on node `from` is to lie on node `to`.
    fn moving(mut dir: Directory, from: u32, to: u32) -> Directory {
        let record = Move {
            container: C,
            from: NodeId(from),
            to: NodeId(to),
        };
        dir.moves.insert(C, known(record));
        dir
    }

    #[test]
    fn a_copy_moves_to_the_node_that_is_named_and_goes_when_it_is_there() {
        let dir = moving(cluster(&[Active; 5]), 2, 5);
        let next = |chain: &[u32], missing: &[u32]| {
            next_step(&dir, C, &ids(chain), 3, &|node| !missing.contains(&node.0))
        };
        let five = Step::BringIn(Whom::This(NodeId(5)));
        assert_eq!(next(&[1, 2, 3], &[]), five);
        assert_eq!(next(&[1, 2, 3, 5], &[5]), Step::Nothing);
        assert_eq!(next(&[1, 2, 3, 5], &[1]), Step::Nothing);
        assert_eq!(next(&[1, 2, 3, 5], &[]), Step::Dismiss(NodeId(2)));
        assert_eq!(next(&[1, 3, 5], &[]), Step::Nothing);
        // An owner makes room for the one that gets its copy, and goes as a member.
        assert_eq!(next(&[2, 1, 3], &[]), five);
        assert_eq!(next(&[2, 1, 3, 5], &[3]), Step::Nothing);
        assert_eq!(next(&[2, 1, 3, 5], &[]), Step::Cede(NodeId(5)));
        assert_eq!(next(&[5, 2, 1, 3], &[]), Step::Dismiss(NodeId(2)));
        // What is short of copies gets those first.
        assert_eq!(next(&[1, 2], &[]), five);
        assert_eq!(next(&[1, 2, 5], &[]), Step::BringIn(Whom::Best));
    }

    #[test]
    fn a_move_to_a_node_that_is_gone_or_leaves_means_nothing() {
        let mut dir = moving(cluster(&[Active; 4]), 2, 4);
        let next = |dir: &Directory, chain: &[u32]| next_step(dir, C, &ids(chain), 3, &|_| true);
        dir.live.remove(&NodeId(4));
        assert_eq!(next(&dir, &[1, 2, 3]), Step::Nothing);
        let leaves = moving(cluster(&[Active, Active, Active, Draining]), 2, 4);
        assert_eq!(next(&leaves, &[1, 2, 3]), Step::Nothing);
        assert_eq!(next(&leaves, &[1, 2, 3, 4]), Step::Dismiss(NodeId(4)));
        // Of another container nothing moves.
        let dir = moving(cluster(&[Active; 4]), 2, 4);
        let other = ContainerId(C.0 + 1);
        let step = next_step(&dir, other, &ids(&[1, 2, 3]), 3, &|_| true);
        assert_eq!(step, Step::Nothing);
    }

    #[test]
    fn an_owner_that_leaves_altogether_hands_over_whatever_moves() {
        let dir = moving(cluster(&[Draining, Active, Active, Active]), 1, 4);
        let next = |chain: &[u32]| next_step(&dir, C, &ids(chain), 3, &|_| true);
        assert_eq!(next(&[1, 2, 3, 4]), Step::HandOver);
    }
}
