//! With which view a container goes on when the control store was lost: what the disks of its nodes say.
//!
//! All nodes have stopped when their disks are asked. A record is acknowledged under a view by every member of it, and
//! each has that view on its disk no later than the record ([`crate::LogWrite::view`]). So the newest view that any disk
//! has is the one under which the last record was acknowledged, or a later one, whose members hold that record as well:
//! whoever is in it may own. Only when every member of a later view was lost is that view unknown, and then everything
//! that was acknowledged under it is lost as well.

use crate::chain::FIRST_EPOCH;
use crate::message::ChainView;
use perigee_types::{Epoch, NodeId};
use std::num::NonZeroU64;

/// What one node's disk says of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witness {
    /// The node.
    pub node: NodeId,
    /// See [`crate::HardState::promised`].
    pub promised: Epoch,
    /// See [`crate::HardState::complete`].
    pub complete: bool,
    /// See [`crate::HardState::view`].
    pub view: Option<ChainView>,
}

/// How a container goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Goes {
    /// With this view: what was acknowledged is on each of its members.
    On(ChainView),
    /// Not before one of these comes back: nobody else has all that was acknowledged.
    Lost(ChainView),
}

/// How a container goes on.
///
/// `listed`: the views that copies of the lost control store have. `witnesses`: what is on the disks that are left, one
/// for each node that has anything of the container. `leap`: by how much the epoch rises, above what nodes may have reached
/// that are lost, and by another number each time that a store is made anew. `None`: nobody knows a view of it.
#[must_use]
pub fn go_on(listed: &[ChainView], witnesses: &[Witness], leap: NonZeroU64) -> Option<Goes> {
    let on_disk = witnesses.iter().filter_map(|witness| witness.view.as_ref());
    let newest = listed.iter().chain(on_disk).max_by_key(|view| view.epoch)?;
    let promised = witnesses.iter().map(|witness| witness.promised).max();
    let promised = promised.unwrap_or(Epoch(0));
    if newest.epoch <= FIRST_EPOCH && promised <= FIRST_EPOCH {
        // Nobody has written anything: who is listed begins as after a first start.
        return Some(Goes::On(newest.clone()));
    }
    let holds = |node: &NodeId| {
        let mut all = witnesses.iter();
        all.any(|witness| witness.node == *node && witness.complete)
    };
    let chain: Vec<NodeId> = newest.chain.iter().copied().filter(holds).collect();
    if chain.is_empty() {
        return Some(Goes::Lost(newest.clone()));
    }
    // Above everything that anybody has promised, so that proposals to the lost store mean nothing any more. Should a lost node
    // come back, its records must not pass for others, also when it was lost after an earlier store was made anew.
    let epoch = Epoch(newest.epoch.max(promised).0.saturating_add(leap.get()));
    Some(Goes::On(ChainView { epoch, chain }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAP: NonZeroU64 = NonZeroU64::new(1 << 40).unwrap();

    fn view(epoch: u64, chain: &[u32]) -> ChainView {
        ChainView {
            epoch: Epoch(epoch),
            chain: chain.iter().copied().map(NodeId).collect(),
        }
    }

    fn witness(node: u32, promised: u64, view: Option<ChainView>) -> Witness {
        Witness {
            node: NodeId(node),
            promised: Epoch(promised),
            complete: true,
            view,
        }
    }

    #[test]
    fn the_newest_view_of_any_disk_counts_above_every_promise() {
        let witnesses = [
            witness(1, 4, Some(view(4, &[1, 2, 3]))),
            witness(2, 6, Some(view(5, &[2, 3]))),
            witness(3, 5, Some(view(5, &[2, 3]))),
        ];
        let on = go_on(&[view(3, &[3, 1])], &witnesses, LEAP);
        assert_eq!(on, Some(Goes::On(view(6 + LEAP.get(), &[2, 3]))));
    }

    #[test]
    fn who_has_lost_its_disk_is_left_out_and_who_was_out_stays_out() {
        let mut wiped = witness(2, 5, None);
        wiped.complete = false;
        let witnesses = [wiped, witness(3, 5, Some(view(5, &[2, 3])))];
        let on = go_on(&[], &witnesses, LEAP);
        assert_eq!(on, Some(Goes::On(view(5 + LEAP.get(), &[3]))));
        let left = [witness(1, 4, Some(view(4, &[1, 2, 3])))];
        let lost = go_on(&[view(5, &[2, 3])], &left, LEAP);
        assert_eq!(lost, Some(Goes::Lost(view(5, &[2, 3]))));
    }

    #[test]
    fn a_container_that_nobody_has_begun_with_begins_as_it_was_listed() {
        let on = go_on(&[view(1, &[1, 2])], &[], LEAP);
        assert_eq!(on, Some(Goes::On(view(1, &[1, 2]))));
        let begun = [witness(1, 2, None)];
        let on = go_on(&[view(1, &[1])], &begun, LEAP);
        assert_eq!(on, Some(Goes::On(view(2 + LEAP.get(), &[1]))));
        assert_eq!(go_on(&[], &[], LEAP), None);
    }
}
