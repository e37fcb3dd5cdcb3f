//! Ways through the world: packets between hosts, requests to the control store, and its watch.

use crate::control::{StoreReply, StoreRequest};
use crate::law;
use crate::node::Packet;
use crate::oracle::Mark;
use crate::world::{Event, SECOND, World};
use perigee_replica::{ChainView, Message};
use perigee_types::NodeId;

/// How long a driver waits for the control store before it calls the outcome unknown.
const STORE_PATIENCE_US: u64 = 1_000_000;

impl World {
    /// Sends a packet through the network.
    pub(crate) fn send(&mut self, from: usize, to: usize, packet: Packet) {
        if from == to {
            return self.deliver_after(1, from, to, packet);
        }
        let [first, second] = self.net.deliveries(from, to, &mut self.rng);
        // A session layer executes a request once: that is not what is simulated here.
        let once = matches!(packet, Packet::Request { .. });
        if let Some(delay) = second.filter(|_| !once) {
            self.deliver_after(delay, from, to, packet.clone());
        }
        let rare = matches!(packet, Packet::Chain(Message::StateNeeded { .. }));
        if rare {
            self.state_calls.insert(to, (from, packet.clone()));
        }
        if rare && self.net.tail > 0 {
            // Rare messages get their share of lateness.
            for _ in 0..4 {
                let delay = self.rng.below(4 * SECOND);
                self.deliver_after(delay, from, to, packet.clone());
            }
        }
        if let Some(delay) = first {
            if self.nodes[to].run.is_none() && !self.net.cut[to][from] && self.chaos.hints {
                let life = self.nodes[from].incarnation;
                self.after(
                    delay,
                    Event::Refused {
                        node: from,
                        life,
                        by: to,
                    },
                );
            }
            self.deliver_after(delay, from, to, packet);
        }
    }

    /// Sends a packet that takes `extra` longer.
    pub(crate) fn send_slowly(&mut self, extra: u64, from: usize, to: usize, packet: Packet) {
        if let [Some(delay), _] = self.net.deliveries(from, to, &mut self.rng) {
            self.deliver_after(delay + extra, from, to, packet);
        }
    }

    pub(crate) fn deliver_after(&mut self, delay: u64, from: usize, to: usize, packet: Packet) {
        let sent = self.now;
        self.after(
            delay,
            Event::Deliver {
                from,
                to,
                sent,
                packet,
            },
        );
    }

    /// Sends a request to the control store; it may get lost, and it may arrive very late.
    pub(crate) fn ask_store(&mut self, node: usize, request: StoreRequest) {
        let late = self.rng.chance(self.chaos.store_late, 1000);
        self.ask_store_at(node, request, late);
    }

    /// The same, where the request is late for sure or not at all.
    pub(crate) fn ask_store_at(&mut self, node: usize, request: StoreRequest, late: bool) {
        let life = self.nodes[node].incarnation;
        if let StoreRequest::Cas { id, .. } = request
            && self.store.away_until > self.now
            && self.rng.chance(1, 2)
        {
            let reply = StoreReply::Unavailable(id);
            return self.answer_from_store(1_000, node, life, reply);
        }
        let id = match &request {
            StoreRequest::Cas { id, .. } => Some(*id),
            StoreRequest::Read => None,
        };
        self.after(STORE_PATIENCE_US, Event::StoreTimeout { node, life, id });
        let lost = self.net.store_cut[node] || self.rng.chance(self.chaos.store_loss, 1000);
        if !lost {
            let delay = self.net.delay(&mut self.rng);
            let delay = if late {
                self.rng.below(6_000_000)
            } else {
                delay
            };
            if let StoreRequest::Cas { view, .. } = &request {
                self.under_way.push(view.clone());
            }
            let sent = self.now;
            self.after(
                delay,
                Event::StoreArrive {
                    node,
                    life,
                    sent,
                    request,
                },
            );
        }
    }

    pub(crate) fn store_arrive(&mut self, node: usize, life: u32, request: StoreRequest) {
        if self.store.away_until > self.now {
            return;
        }
        let cas = matches!(request, StoreRequest::Cas { .. });
        let before = self.store.view.clone();
        let (reply, changed) = self.store.handle(request);
        if changed {
            let view = self.store.view.clone();
            self.log(2, node, || {
                format!("store: {} {:?}", view.epoch, view.chain)
            });
            if self.nodes[node].incarnation != life {
                self.note(Mark::LateCas);
            }
            self.view_changed(&before);
        }
        let lost = self.net.store_cut[node] || self.rng.chance(self.chaos.store_loss, 1000);
        if !(cas && lost) {
            let delay = self.net.delay(&mut self.rng);
            self.answer_from_store(delay, node, life, reply);
        }
    }

    fn answer_from_store(&mut self, delay: u64, node: usize, life: u32, reply: StoreReply) {
        let sent = self.now;
        self.after(
            delay,
            Event::StoreAnswer {
                node,
                life,
                sent,
                reply,
            },
        );
    }

    /// Whether a proposal that may still win lists a node.
    pub(crate) fn may_be_listed(&self, id: NodeId) -> bool {
        let next = self.store.view.epoch.next();
        self.under_way
            .iter()
            .any(|view| view.epoch == next && view.lists(id))
    }

    /// Proposals that may still win.
    pub(crate) fn open_proposals(&self) -> Vec<ChainView> {
        let next = self.store.view.epoch.next();
        let open = self.under_way.iter().filter(|view| view.epoch >= next);
        open.cloned().collect()
    }

    /// The watch: every node hears of a new view, some late, some never.
    fn view_changed(&mut self, before: &ChainView) {
        let view = self.store.view.clone();
        for node in 0..self.nodes.len() {
            let life = self.nodes[node].incarnation;
            let reply = StoreReply::View(view.clone());
            if self.calm || !(self.net.store_cut[node] || self.rng.chance(1, 4)) {
                let delay = self.net.delay(&mut self.rng);
                self.answer_from_store(delay, node, life, reply);
            }
        }
        let lost = before.chain.iter().any(|n| !view.lists(*n));
        let gained = view.chain.iter().any(|n| !before.lists(*n));
        self.note(match (before.owner() == view.owner(), lost, gained) {
            (false, ..) => Mark::Takeover,
            (true, true, _) => Mark::Removal,
            (true, false, true) => Mark::Admission,
            (true, false, false) => Mark::OwnerRestart,
        });
        self.note_unkept();
        law::replicated::check_members(self, "when the chain changed");
        self.aim_at_change();
    }
}
