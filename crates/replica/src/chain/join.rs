//! A node's way into the chain, as its owner drives it: catch up, be filled, be counted, hold the data, be listed.
//!
//! It is filled in rounds, each of what was written during the one before, so that an fsync waits for a joiner only when
//! there is little left to fetch. From `Admitting` on, commits and leases wait for the joiner: the proposal that lists it may win before this
//! node hears of it, and a listed member may become the owner.

use super::lead::Peer;
use super::{Chain, Part, planted};
use crate::message::{Output, Standing};
use perigee_types::{NodeId, Seq, Span, Tick};

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
        let mut in_doubt = false;
        for (&node, peer) in &mut reign.peers {
            while leased
                && let Some(next) = next_stage(peer, timing.brief, now, (committed, written))
            {
                peer.standing = next;
            }
            if let Standing::Admitting { frontier } = peer.standing
                && peer.matched >= frontier
                && (peer.data >= frontier || early)
            {
                ready = ready.or(Some(node));
            } else if peer.standing != Standing::Member {
                in_doubt |= proposals.may_list(node);
            }
        }
        // A joiner that lost what it was proposed for is awaited until the epoch moves on, and it need not ever be ready
        // again: it must not discard what it has for the state while it may be listed. Any proposal settles that.
        if let Some(view) = self.view.as_ref().filter(|_| ready.is_some() || in_doubt) {
            let chain = view.chain.iter().copied().chain(ready).collect();
            self.propose_chain(chain, out);
        }
    }
}

/// The stage that a joiner has come to, on its way to be counted.
fn next_stage(
    peer: &Peer,
    brief: Span,
    now: Tick,
    (committed, written): (Seq, Seq),
) -> Option<Standing> {
    let fill = |before| Standing::Filling {
        frontier: written,
        since: now,
        before,
    };
    match peer.standing {
        Standing::CatchingUp if peer.matched >= committed => Some(fill(None)),
        Standing::Filling {
            frontier,
            since,
            before,
        } if peer.data >= frontier => {
            let took = now.since(since);
            // One that writers outrun is awaited: then they cannot.
            let gains = before.is_none_or(|before| took.0 < before.0 / 2);
            Some(if took > brief && gains {
                fill(Some(took))
            } else {
                Standing::Admitting { frontier: written }
            })
        }
        Standing::Member
        | Standing::CatchingUp
        | Standing::Filling { .. }
        | Standing::Admitting { .. } => None,
    }
}
