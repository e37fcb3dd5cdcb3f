//! A node's way into the chain, as its owner drives it: catch up, be counted, hold the data, be listed.
//!
//! From `Admitting` on, commits and leases wait for the joiner: the proposal that lists it may win before this
//! node hears of it, and a listed member may become the owner.

use super::lead::Peer;
use super::{Chain, Part, planted};
use crate::message::{Output, Standing};
use perigee_types::NodeId;

impl Chain {
    pub(super) fn on_candidate(&mut self, node: NodeId) {
        let (now, next) = (self.now, self.written.next());
        if node == self.me {
            return;
        }
        if let Part::Reign(reign) = &mut self.part {
            reign
                .peers
                .entry(node)
                .or_insert_with(|| Peer::new(Standing::CatchingUp, next, now));
        }
    }

    pub(super) fn on_dismiss(&mut self, node: NodeId) {
        if let Part::Reign(reign) = &mut self.part
            && let Some(peer) = reign.peers.get_mut(&node)
        {
            peer.unwanted = true;
        }
    }

    pub(super) fn on_unreachable(&mut self, node: NodeId) {
        if let Part::Reign(reign) = &mut self.part
            && let Some(peer) = reign.peers.get_mut(&node)
        {
            peer.unreachable = true;
        }
    }

    /// Moves each joiner one stage on, drops silent ones, and proposes one that is ready.
    pub(super) fn admit_joiners(&mut self, out: &mut Vec<Output>) {
        let (now, timing, written, committed) =
            (self.now, self.timing, self.written, self.committed);
        let leased = self.lease_until(now).is_some();
        let (early, proposals) = (planted!(self, JoinerListedEarly), &self.proposals);
        let Part::Reign(reign) = &mut self.part else {
            return;
        };
        reign.peers.retain(|node, peer| {
            let silent = now.since(peer.heard) > timing.lease;
            let leaves = silent || peer.unwanted || peer.is_stalled(now, timing.stall);
            let may_be_listed = peer.standing == Standing::Member || proposals.may_list(*node);
            may_be_listed || !leaves
        });
        let mut ready: Option<NodeId> = None;
        for (&node, peer) in &mut reign.peers {
            match peer.standing {
                Standing::CatchingUp if leased && peer.matched >= committed => {
                    peer.standing = Standing::Admitting { frontier: written };
                }
                Standing::Admitting { frontier } => {
                    let holds = peer.matched >= frontier && (peer.data >= frontier || early);
                    if holds {
                        ready = ready.or(Some(node));
                    }
                }
                Standing::Member | Standing::CatchingUp => {}
            }
        }
        let Some((view, node)) = self.view.as_ref().zip(ready) else {
            return;
        };
        let mut chain = view.chain.clone();
        chain.push(node);
        self.propose_chain(chain, out);
    }
}
