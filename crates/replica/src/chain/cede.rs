//! Ownership that goes from one member to another, while both live.
//!
//! The owner gives up its lease on the word of one member, the heir, and says so to it. The heir then need not wait until
//! that lease has run out: it proposes itself at once, with the same members. Nobody else has to hear of it, since an owner
//! needs the leases of all its members.
//!
//! What goes wrong ends in one of two ways. The heir wins the next epoch, and the owner hears of it as of any other. Or the
//! heir acknowledges something that the owner has sent after it ceded: that is a new lease, and the owner goes on in its
//! epoch. The heir keeps these apart: it acknowledges nothing while its proposal may win, and heeds no word that is older
//! than what it has acknowledged.

use super::{Chain, Part, Storage, planted};
use crate::message::{ChainView, Message, Output, Standing};
use perigee_types::{NodeId, Seq, Tick, Version};

impl Chain {
    /// Whether every member has all records of this owner, and the data up to `data`, and has just been heard. Whom commits
    /// do not wait for begins anew with the next owner; who may be listed is waited for.
    fn all_have_all(&self, data: Seq) -> bool {
        let last = self.log.last().seq;
        let Part::Reign(reign) = &self.part else {
            return false;
        };
        let has_all = |peer: &super::lead::Peer| {
            let has = peer.matched == last && peer.data >= data;
            let heard = self.now.since(peer.heard) <= self.timing.heartbeat;
            peer.standing == Standing::Member && has && heard
        };
        let mut counted = reign.peers.values().filter(|peer| peer.counts());
        self.committed == last && counted.all(has_all)
    }

    /// Gives up the lease of a member that has everything, and tells it to propose itself.
    pub(super) fn on_cede(&mut self, heir: NodeId, data: Seq, out: &mut Vec<Output>) {
        let leased = self.lease_until(self.now).is_some();
        let ready = self.all_have_all(data) || planted!(self, CededEarly);
        // What is open may list this node as the owner of the next epoch.
        if !leased || !ready || self.proposals.is_open() {
            return;
        }
        let (now, last) = (self.now, self.log.last());
        let serves_on = planted!(self, CededServing);
        let Some(view) = self.view.clone() else {
            return;
        };
        let Part::Reign(reign) = &mut self.part else {
            return;
        };
        let heirs = reign.peers.get_mut(&heir);
        let Some(peer) = heirs.filter(|peer| peer.standing == Standing::Member) else {
            return;
        };
        if !serves_on {
            peer.void_lease(now);
        }
        let message = Message::Cede {
            view,
            last,
            sent_at: now,
        };
        out.push(Output::Send { to: heir, message });
    }

    /// The owner has given up this node's lease.
    pub(super) fn on_ceded(
        &mut self,
        from: NodeId,
        view: &ChainView,
        (last, sent_at): (Version, Tick),
        out: &mut Vec<Output>,
    ) {
        let current = self.view.as_ref() == Some(view) && view.lists(self.me);
        let current = current && view.owner() == Some(from);
        let sound = self.storage == Storage::Complete && !self.installing;
        let has_all = self.log.last() == last && self.durable >= last.seq;
        let Part::Follow(follow) = &mut self.part else {
            return;
        };
        let renewed = follow.has_answered_after(sent_at) && !planted!(self, LateCessionTaken);
        let has_all = has_all || planted!(self, CededEarly);
        if !current || !sound || !has_all || renewed {
            return;
        }
        // What the process before this one has acknowledged this one does not know.
        let inherits = self
            .born
            .is_some_and(|born| self.now < born + self.timing.takeover);
        if inherits && !planted!(self, CessionToNextLife) || !self.proposals.may_ask(self.now) {
            return;
        }
        follow.ceded = true;
        self.propose_as_heir(out);
    }

    /// Whether the owner has ceded to this node, and it has not renounced.
    pub(super) fn is_heir(&self) -> bool {
        matches!(&self.part, Part::Follow(follow) if follow.ceded)
    }

    /// Proposes this node as the owner, and everybody else as before.
    pub(super) fn propose_as_heir(&mut self, out: &mut Vec<Output>) {
        let Some(view) = &self.view else { return };
        let others = view.chain.iter().filter(|node| **node != self.me);
        let chain = std::iter::once(self.me).chain(others.copied()).collect();
        self.propose_chain(chain, out);
    }

    /// The control store has not taken the heir's proposal, and none can win any more: the owner may go on.
    pub(super) fn renounce(&mut self) {
        if self.proposals.is_open() {
            return;
        }
        if let Part::Follow(follow) = &mut self.part
            && std::mem::take(&mut follow.ceded)
        {
            self.granted = Some(self.now);
            self.quiet_since = self.now;
        }
    }
}
