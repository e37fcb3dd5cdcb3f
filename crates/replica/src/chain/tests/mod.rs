//! The rules of the chain as scripts: a few nodes whose messages, disks and control store the test moves by hand.

mod ceding;
mod changes;
mod joining;
mod records;

use super::*;
use crate::message::{CasOutcome, LogWrite, Refusal};
use perigee_types::Span;
use std::collections::BTreeMap;

pub(super) const MS: u64 = 1_000;

pub(super) fn n(id: u32) -> NodeId {
    NodeId(id)
}

pub(super) fn view(epoch: u64, chain: &[u32]) -> ChainView {
    ChainView {
        epoch: Epoch(epoch),
        chain: chain.iter().map(|id| n(*id)).collect(),
    }
}

/// One node: its chain, its disk, and what it has asked for.
pub(super) struct Host {
    pub(super) chain: Chain,
    pub(super) disk: HardState,
    pub(super) writes: VecDeque<(PersistId, LogWrite)>,
    pub(super) proposed: Vec<ChainView>,
    pub(super) truncated: Vec<Entry>,
    pub(super) faults: Vec<Fault>,
    pub(super) needs_state: bool,
}

/// Some nodes. Messages wait until they are delivered; disks are fast unless slow.
pub(super) struct Script {
    pub(super) now: u64,
    pub(super) hosts: BTreeMap<NodeId, Host>,
    pub(super) wire: VecDeque<(NodeId, NodeId, Message)>,
    pub(super) limits: Limits,
    pub(super) slow: Vec<NodeId>,
}

impl Script {
    /// Nodes that never ran, and a view that lists them all in the first epoch.
    pub(super) fn fresh(count: u32) -> Self {
        let mut script = Self {
            now: 1_000_000 * MS,
            hosts: BTreeMap::new(),
            wire: VecDeque::new(),
            limits: Limits::default(),
            slow: Vec::new(),
        };
        for id in 1..=count {
            script.start(n(id), HardState::default());
        }
        script
    }

    /// Nodes with an owner, the first, in epoch 2.
    pub(super) fn running(count: u32) -> Self {
        let mut script = Self::fresh(count);
        let all: Vec<u32> = (1..=count).collect();
        for id in all.clone() {
            script.input(n(id), Input::View(view(1, &all)));
        }
        script.decide(n(1), CasOutcome::Won);
        script.settle();
        assert_eq!(script.role(1), Role::Owner { epoch: Epoch(2) });
        script
    }

    pub(super) fn start(&mut self, id: NodeId, disk: HardState) {
        let config = Config {
            me: id,
            timing: Timing::default(),
            limits: self.limits,
        };
        let chain = Chain::new(config, disk.clone(), true, Tick(self.now));
        let host = Host {
            chain,
            disk,
            writes: VecDeque::new(),
            proposed: Vec::new(),
            truncated: Vec::new(),
            faults: Vec::new(),
            needs_state: false,
        };
        self.hosts.insert(id, host);
    }

    /// Ends a node and starts it again from its disk.
    pub(super) fn restart(&mut self, id: u32) {
        let disk = self.hosts[&n(id)].disk.clone();
        self.start(n(id), disk);
    }

    pub(super) fn host(&mut self, id: u32) -> &mut Host {
        self.hosts
            .get_mut(&n(id))
            .expect("the script has this node")
    }

    pub(super) fn role(&self, id: u32) -> Role {
        self.hosts[&n(id)].chain.role()
    }

    pub(super) fn committed(&self, id: u32) -> u64 {
        self.hosts[&n(id)].chain.committed().0
    }

    pub(super) fn input(&mut self, id: NodeId, input: Input) {
        let now = Tick(self.now);
        let mut out = Vec::new();
        let host = self.hosts.get_mut(&id).expect("the script has this node");
        host.chain.step(now, input, &mut out);
        for output in out {
            match output {
                Output::Send { to, message } => self.wire.push_back((id, to, message)),
                Output::Persist { id, write } => host.writes.push_back((id, write)),
                Output::ProposeView { view, .. } => host.proposed.push(view),
                Output::Truncated { entries, .. } => host.truncated.extend(entries),
                Output::Fault(fault) => host.faults.push(fault),
                Output::NeedState { .. } => host.needs_state = true,
                Output::Committed { .. } | Output::ReadView | Output::Role(_) => {}
            }
        }
        if !self.slow.contains(&id) {
            self.persist(id);
        }
    }

    /// Finishes the writes of a node.
    pub(super) fn persist(&mut self, id: NodeId) {
        while let Some((write, change)) = self.hosts.get_mut(&id).and_then(|h| h.writes.pop_front())
        {
            if let Some(host) = self.hosts.get_mut(&id) {
                change.apply(&mut host.disk);
            }
            self.input(id, Input::Persisted(write));
        }
    }

    pub(super) fn decide(&mut self, id: NodeId, outcome: CasOutcome) {
        self.input(id, Input::ViewDecided(outcome));
    }

    /// Delivers one message.
    pub(super) fn deliver(&mut self) -> bool {
        let Some((from, to, message)) = self.wire.pop_front() else {
            return false;
        };
        if self.hosts.contains_key(&to) {
            self.input(to, Input::Receive { from, message });
        }
        true
    }

    /// Delivers everything.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.deliver() {
                return;
            }
        }
        panic!("messages without end");
    }

    /// Time passes in steps of 10 ms; messages from or to `cut` nodes are lost.
    pub(super) fn pass(&mut self, ms: u64, cut: &[u32]) {
        let end = self.now + ms * MS;
        while self.now < end {
            self.now = (self.now + 10 * MS).min(end);
            let ids: Vec<NodeId> = self.hosts.keys().copied().collect();
            for id in ids {
                self.input(id, Input::Tick);
            }
            self.lose(cut);
            self.settle_cut(cut);
        }
    }

    fn settle_cut(&mut self, cut: &[u32]) {
        while self.deliver() {
            self.lose(cut);
        }
    }

    pub(super) fn lose(&mut self, cut: &[u32]) {
        self.wire
            .retain(|(from, to, _)| !cut.contains(&from.0) && !cut.contains(&to.0));
    }

    pub(super) fn propose(&mut self, id: u32, text: &'static str) -> Result<Version, NotOwner> {
        let now = Tick(self.now);
        let version = self
            .host(id)
            .chain
            .propose(now, Bytes::from_static(text.as_bytes()))?;
        self.input(n(id), Input::Flush);
        Ok(version)
    }

    pub(super) fn lease(&self, id: u32) -> Option<Tick> {
        self.hosts[&n(id)].chain.lease_until(Tick(self.now))
    }

    /// What waits on the wire from one node to another.
    pub(super) fn waiting(&self, from: u32, to: u32) -> Vec<&Message> {
        let wire = self.wire.iter();
        wire.filter(|(f, t, _)| (f.0, t.0) == (from, to))
            .map(|(_, _, m)| m)
            .collect()
    }

    pub(super) fn log(&self, id: u32) -> Vec<(u64, u64)> {
        let chain = &self.hosts[&n(id)].chain;
        let entries = chain.entries(Seq(1), chain.last().seq);
        entries
            .map(|e| (e.version.epoch.0, e.version.seq.0))
            .collect()
    }
}

pub(super) fn lease() -> Span {
    Timing::default().lease_held()
}

pub(super) fn is_refusal(message: &Message) -> Option<Refusal> {
    match message {
        Message::AppendRefused { reason, .. } => Some(*reason),
        Message::Append { .. }
        | Message::AppendAck { .. }
        | Message::StateNeeded { .. }
        | Message::Cede { .. } => None,
    }
}
