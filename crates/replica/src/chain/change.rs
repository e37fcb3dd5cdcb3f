//! Views: learning them, and proposing them to the control store.
//!
//! A proposal whose outcome is unknown may win at any later time, until the epoch has moved on. So it stays
//! open: a member that made it grants no lease, and an owner that made it counts whom it would list.

use super::follow::Follow;
use super::{Chain, FIRST_EPOCH, Part, Storage, planted};
use crate::message::{CasOutcome, ChainView, Fault, Output, Standing};
use perigee_types::{Epoch, NodeId, Seq, Tick};

/// This node's proposals for the epoch after its view's.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    /// May have won, or may yet win. The flag: an earlier answer left it in doubt.
    open: Vec<(ChainView, Doubt)>,
    /// The one whose answer has not come.
    asked: Option<ChainView>,
    retry_at: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    Some,
}

impl Proposals {
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether an open proposal lists `node`.
    pub(super) fn may_list(&self, node: NodeId) -> bool {
        self.open.iter().any(|(view, _)| view.lists(node))
    }

    fn is_mine(&self, view: &ChainView) -> bool {
        self.open.iter().any(|(open, _)| open == view)
    }

    pub(super) fn may_ask(&self, now: Tick) -> bool {
        self.asked.is_none() && now >= self.retry_at
    }

    fn withdraw(&mut self, view: &ChainView) {
        self.open
            .retain(|(open, doubt)| open != view || *doubt == Doubt::Some);
    }

    fn doubt(&mut self, view: &ChainView) {
        for (open, doubt) in &mut self.open {
            if open == view {
                *doubt = Doubt::Some;
            }
        }
    }
}

impl Chain {
    pub(super) fn on_view(&mut self, view: ChainView, out: &mut Vec<Output>) {
        let held = self
            .view
            .as_ref()
            .map_or(self.promised, |v| v.epoch)
            .max(self.promised);
        if view.epoch < held && !planted!(self, EpochBackward) {
            let got = view.epoch;
            out.push(Output::Fault(Fault::ViewWentBack { held, got }));
            return;
        }
        if self.view.as_ref().is_none_or(|v| v.epoch != view.epoch) {
            if view.epoch < held {
                // Only a planted fault comes here.
                self.promised = view.epoch;
            }
            self.adopt(view, out);
        }
    }

    /// Makes `view` the current one. Its epoch is above every one before.
    pub(super) fn adopt(&mut self, view: ChainView, out: &mut Vec<Output>) {
        let first = view.owner() == Some(self.me);
        let won =
            first && (self.proposals.is_mine(&view) || planted!(self, RestartedOwnerKeepsEpoch));
        self.proposals.open.clear();
        self.quiet_since = self.now;
        self.found_container(&view, out);
        // In this epoch this node promised before: it was its owner, so every lease it granted had run out.
        if first && self.view.is_none() && self.promised == view.epoch {
            self.granted = None;
        }
        if won {
            self.begin_reign(view, out);
        } else {
            if !view.lists(self.me) {
                // An owner of this epoch has all that is committed, and lists this node for what it hears in it alone.
                self.acknowledged = Seq::ZERO;
            }
            self.view = Some(view);
            self.step_down(out);
            self.part = Part::Follow(Follow::new(self.committed));
        }
    }

    /// Nobody can have written anything in the first epoch: a member of it is complete with nothing. It promises
    /// that epoch, so that the next process finds its storage complete whatever this one proposed.
    fn found_container(&mut self, view: &ChainView, out: &mut Vec<Output>) {
        let fresh = self.known && self.promised == Epoch(0) && self.storage == Storage::Partial;
        if fresh && view.epoch <= FIRST_EPOCH && view.lists(self.me) {
            self.promised = view.epoch;
            self.storage = Storage::Completing;
            self.persist(None, None, out);
        }
    }

    pub(super) fn on_decided(&mut self, outcome: CasOutcome, out: &mut Vec<Output>) {
        let Some(asked) = self.proposals.asked.take() else {
            return;
        };
        let moved_on = self.view.as_ref().is_some_and(|v| v.epoch >= asked.epoch);
        match outcome {
            CasOutcome::Won if !moved_on => self.adopt(asked, out),
            CasOutcome::Won => {}
            CasOutcome::Lost(view) => {
                self.proposals.retry_at = self.now + self.timing.heartbeat;
                self.on_view(view, out);
            }
            CasOutcome::Unknown if planted!(self, UnknownIsLost) => self.proposals.open.clear(),
            CasOutcome::Unknown => {
                self.proposals.doubt(&asked);
                self.proposals.retry_at = self.now + self.timing.heartbeat;
                self.ask_view(out);
            }
            CasOutcome::Unavailable => {
                self.proposals.withdraw(&asked);
                self.proposals.retry_at = self.now + self.timing.heartbeat;
                self.renounce();
            }
        }
    }

    pub(super) fn ask_view(&self, out: &mut Vec<Output>) {
        out.push(Output::ReadView);
    }

    /// Proposes a chain for the next epoch, unless an answer is awaited.
    pub(super) fn propose_chain(&mut self, chain: Vec<NodeId>, out: &mut Vec<Output>) {
        let Some(current) = &self.view else { return };
        if !self.proposals.may_ask(self.now) {
            return;
        }
        let expect = current.epoch;
        let view = current.successor(chain);
        if !self.proposals.is_mine(&view) {
            self.proposals.open.push((view.clone(), Doubt::None));
        }
        self.proposals.asked = Some(view.clone());
        out.push(Output::ProposeView { expect, view });
    }

    /// Proposes a chain without this owner, if nothing would be lost with it. The next member takes over when the
    /// leases that it granted have run out, as it would from a dead owner: what readers elsewhere were promised ends
    /// with them.
    pub(super) fn on_hand_over(&mut self, out: &mut Vec<Output>) {
        let last = self.log.last().seq;
        let leased = self.lease_until(self.now).is_some();
        let Part::Reign(reign) = &self.part else {
            return;
        };
        let has_all = |peer: &super::lead::Peer| {
            peer.standing == Standing::Member && peer.matched == last && peer.data >= last
        };
        let all_have_all = self.committed == last && reign.peers.values().all(has_all);
        let Some(view) = self.view.as_ref().filter(|view| view.chain.len() > 1) else {
            return;
        };
        if leased && (all_have_all || planted!(self, HandOverEarly)) {
            let chain = view.chain.iter().filter(|n| **n != self.me).copied();
            let chain = chain.collect();
            self.propose_chain(chain, out);
        }
    }

    /// When this follower may propose itself; `None` when it must not.
    fn takeover_at(&self) -> Option<Tick> {
        let view = self.view.as_ref()?;
        let place = view.chain.iter().position(|n| *n == self.me)?;
        let sound = self.storage == Storage::Complete || planted!(self, WipedMemberVotes);
        if !sound || self.installing {
            return None;
        }
        if self.is_heir() {
            return Some(Tick(0));
        }
        let mut wait = self.timing.takeover;
        if planted!(self, EagerTakeover) {
            wait.0 /= 2;
        }
        let expired = self.granted.map_or(Tick(0), |granted| granted + wait);
        if place == 0 {
            return Some(expired);
        }
        let mut polite = self.quiet_since + wait;
        for _ in 0..place {
            polite = polite + self.timing.stagger;
        }
        let after_stagger = self.granted.map_or(Tick(0), |granted| {
            granted + wait + perigee_types::Span(self.timing.stagger.0 * place as u64)
        });
        Some(polite.max(after_stagger))
    }

    pub(super) fn follow_timers(&mut self, out: &mut Vec<Output>) {
        let due = self.takeover_at().is_some_and(|at| self.now >= at);
        if due && self.is_heir() {
            return self.propose_as_heir(out);
        }
        let Some(view) = self.view.as_ref().filter(|_| due) else {
            return;
        };
        let old = view.owner().filter(|owner| *owner != self.me);
        let mut chain = vec![self.me];
        chain.extend(
            view.chain
                .iter()
                .filter(|n| **n != self.me && Some(**n) != old),
        );
        self.propose_chain(chain, out);
    }

    pub(super) fn follow_deadline(&self) -> Tick {
        match self.takeover_at() {
            Some(at) if self.proposals.asked.is_none() => at.max(self.proposals.retry_at),
            _ => Tick(u64::MAX),
        }
    }

    /// Proposes a chain without the members that do not answer, make no progress, or are to go.
    pub(super) fn remove_lost_members(&mut self, out: &mut Vec<Output>) {
        let (now, timing) = (self.now, self.timing);
        let Part::Reign(reign) = &self.part else {
            return;
        };
        let lost: Vec<NodeId> = reign
            .peers
            .iter()
            .filter(|(_, peer)| peer.standing == Standing::Member)
            .filter(|(_, peer)| {
                let silent = now.since(peer.heard);
                silent > timing.lease
                    || peer.unreachable && silent.0 > 2 * timing.heartbeat.0
                    || peer.is_stalled(now, timing.stall)
                    || peer.unwanted
            })
            .map(|(&node, _)| node)
            .collect();
        let Some(view) = self.view.as_ref().filter(|_| !lost.is_empty()) else {
            return;
        };
        let chain = view.chain.iter().filter(|n| !lost.contains(n)).copied();
        let chain = chain.collect();
        self.propose_chain(chain, out);
    }
}
