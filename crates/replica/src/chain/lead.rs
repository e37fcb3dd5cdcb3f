//! The owner's side: sends records, counts who has them, holds leases.
//!
//! A record is committed when every node that commits wait for has it on disk and said so in this epoch; records
//! of older epochs are committed together with the record that starts this one.

use super::{Chain, Part, planted};
use crate::log;
use crate::message::{ChainView, Entry, MemberProgress, Message, Output, Refusal, Standing};
use bytes::Bytes;
use perigee_types::{Epoch, NodeId, Seq, Span, Tick, Version};
use std::collections::{BTreeMap, VecDeque};

/// What the owner knows of one member or joiner.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) standing: Standing,
    /// The first record that was not sent yet.
    next: Seq,
    /// On its disk and equal to this log up to here, said in this epoch.
    pub(super) matched: Seq,
    pub(super) data: Seq,
    /// When the newest message that it acknowledged was sent: its lease counts from there.
    acked: Option<Tick>,
    /// When it was last heard.
    pub(super) heard: Tick,
    /// Since when it has made nothing durable although there was something to do.
    behind_since: Option<Tick>,
    /// Acknowledgements of messages that were sent before this are another disk's.
    since: Tick,
    /// Refusals of messages that were sent before this are old news.
    resent_at: Tick,
    /// Sent and not acknowledged: the last record and the bytes of each message.
    in_flight: VecDeque<(Seq, u64)>,
    pub(super) unreachable: bool,
    /// Its storage was wiped, or an operator dismissed it: propose a chain without it.
    pub(super) unwanted: bool,
}

impl Peer {
    pub(super) fn new(standing: Standing, next: Seq, now: Tick) -> Self {
        Self {
            standing,
            next,
            matched: Seq::ZERO,
            data: Seq::ZERO,
            acked: None,
            heard: now,
            behind_since: None,
            since: now,
            resent_at: now,
            in_flight: VecDeque::new(),
            unreachable: false,
            unwanted: false,
        }
    }

    /// Whether commits and leases wait for it.
    pub(super) fn counts(&self) -> bool {
        match self.standing {
            Standing::Member | Standing::Admitting { .. } => true,
            Standing::CatchingUp | Standing::Filling { .. } => false,
        }
    }

    /// A joiner lost its disk, or is to discard what it has: nothing counts that was heard of it, and what it
    /// acknowledged it must get again.
    fn forget(&mut self, written: Option<Seq>, now: Tick) {
        self.matched = Seq::ZERO;
        self.data = Seq::ZERO;
        self.acked = None;
        self.since = now;
        if let (
            Standing::Filling { frontier, .. } | Standing::Admitting { frontier },
            Some(written),
        ) = (&mut self.standing, written)
        {
            *frontier = written;
        }
    }

    /// Its lease counts no more, and none that it grants for what was sent until now.
    pub(super) fn void_lease(&mut self, now: Tick) {
        self.acked = None;
        self.since = Tick(now.0 + 1);
    }

    fn in_flight_bytes(&self) -> u64 {
        self.in_flight.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Sends again from `next` on.
    fn rewind(&mut self, next: Seq, now: Tick) {
        self.next = next;
        self.in_flight.clear();
        self.resent_at = now;
    }

    fn on_durable(&mut self, durable: Seq, last: Seq, now: Tick) {
        if durable > self.matched {
            self.matched = durable;
            self.behind_since = None;
            self.next = self.next.max(durable.next());
            while self
                .in_flight
                .front()
                .is_some_and(|(seq, _)| *seq <= durable)
            {
                self.in_flight.pop_front();
            }
        }
        if self.matched < last && self.behind_since.is_none() {
            self.behind_since = Some(now);
        }
    }

    pub(super) fn is_stalled(&self, now: Tick, stall: Span) -> bool {
        self.behind_since
            .is_some_and(|since| now.since(since) > stall)
    }
}

/// An epoch that this node won in this process lifetime.
#[derive(Debug)]
pub(super) struct Reign {
    epoch: Epoch,
    /// The record that starts the epoch: the owner serves once it is committed.
    start: Seq,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    heartbeat_at: Tick,
    /// The reign before this one was this node's too, and had begun: its own writes are in place.
    continues: bool,
    /// A member knows a later epoch.
    deposed: bool,
}

impl Reign {
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the members' logs were made equal.
    pub(super) fn has_begun(&self, committed: Seq) -> bool {
        committed >= self.start
    }

    /// Whether every record of the log is committed or this node's own.
    pub(super) fn has_newest(&self, committed: Seq) -> bool {
        self.continues || self.has_begun(committed)
    }

    pub(super) fn is_active(&self, committed: Seq) -> bool {
        self.has_begun(committed) && !self.deposed
    }

    pub(super) fn heartbeat_at(&self) -> Tick {
        self.heartbeat_at
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = NodeId> {
        self.peers
            .iter()
            .filter(|(_, p)| p.counts())
            .map(|(n, _)| *n)
    }

    /// The end of the shortest lease; `None` when one was never granted.
    pub(super) fn lease_until(&self, held: Span, members_only: bool) -> Option<Tick> {
        let mut until = Tick(u64::MAX);
        for peer in self.peers.values().filter(|p| p.counts()) {
            if members_only && peer.standing != Standing::Member {
                continue;
            }
            until = until.min(peer.acked? + held);
        }
        Some(until)
    }

    pub(super) fn slowest_joiner(&self) -> Option<Seq> {
        let joining = |p: &&Peer| p.standing != Standing::Member;
        self.peers.values().filter(joining).map(|p| p.matched).min()
    }

    pub(super) fn progress(&self, now: Tick) -> Vec<MemberProgress> {
        self.peers
            .iter()
            .map(|(&node, peer)| MemberProgress {
                node,
                standing: peer.standing,
                durable: peer.matched,
                data: peer.data,
                silent_for: now.since(peer.heard),
            })
            .collect()
    }
}

impl Chain {
    /// Begins to reign in a view that this node won. Joiners of its last reign go on from the start.
    pub(super) fn begin_reign(&mut self, view: ChainView, out: &mut Vec<Output>) {
        let last = self.log.last();
        let start = Version {
            epoch: view.epoch,
            seq: last.seq.next(),
        };
        let peer = |standing| Peer::new(standing, start.seq, self.now);
        let others = view.chain.iter().filter(|n| **n != self.me);
        let mut peers: BTreeMap<NodeId, Peer> =
            others.map(|n| (*n, peer(Standing::Member))).collect();
        if let (Part::Reign(old), Some(before)) = (&self.part, &self.view) {
            // Whom this view removes is no joiner.
            let joiners = old
                .peers
                .keys()
                .filter(|n| !before.lists(**n) && !view.lists(**n));
            peers.extend(joiners.map(|n| (*n, peer(Standing::CatchingUp))));
        }
        self.log.push(Entry {
            version: start,
            payload: Bytes::new(),
        });
        self.promised = self.promised.max(view.epoch);
        let continues = match &self.part {
            Part::Reign(old) => old.has_newest(self.committed),
            Part::Follow(_) => false,
        };
        self.part = Part::Reign(Reign {
            epoch: view.epoch,
            start: start.seq,
            peers,
            heartbeat_at: self.now,
            continues,
            deposed: false,
        });
        self.view = Some(view);
        self.persist(None, None, out);
    }

    /// Ends a reign. What was proposed and never left this process is dropped.
    pub(super) fn step_down(&mut self, out: &mut Vec<Output>) {
        if self.written < self.log.last().seq {
            self.truncate(self.written.next(), out);
        }
    }

    pub(super) fn on_flush(&mut self, out: &mut Vec<Output>) {
        let Part::Reign(_) = &self.part else { return };
        if self.written < self.log.last().seq {
            self.persist(None, None, out);
            self.pump(out);
        }
    }

    pub(super) fn on_announce(&mut self, out: &mut Vec<Output>) {
        self.on_flush(out);
        self.send_all(out);
    }

    /// A write of this node's own log is done.
    pub(super) fn on_own_progress(&mut self, out: &mut Vec<Output>) {
        self.advance_commit(out);
        self.pump(out);
    }

    pub(super) fn on_ack(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        (durable, data): (Seq, Seq),
        sent_at: Tick,
        out: &mut Vec<Output>,
    ) {
        let (now, written) = (self.now, self.written);
        let durable = if planted!(self, AckUnmatched) {
            durable.min(written)
        } else {
            durable
        };
        let Some(peer) = self.peer_of(from, epoch) else {
            return;
        };
        if durable > written || sent_at > now || sent_at < peer.since {
            return;
        }
        peer.heard = now;
        peer.unreachable = false;
        if peer.acked.is_none_or(|acked| acked <= sent_at) {
            peer.acked = Some(sent_at);
            peer.data = data;
        }
        peer.on_durable(durable, written, now);
        self.advance_commit(out);
        self.pump(out);
    }

    pub(super) fn on_refused(
        &mut self,
        from: NodeId,
        epoch: Epoch,
        reason: Refusal,
        sent_at: Tick,
        out: &mut Vec<Output>,
    ) {
        let (now, base, written) = (self.now, self.log.base(), self.written);
        let stale = planted!(self, StaleFrontier);
        let discards = planted!(self, StateDiscardsData);
        let may_be_listed = self.proposals.may_list(from);
        let Some(peer) = self.peer_of(from, epoch) else {
            return;
        };
        let (common, at, last) = match reason {
            Refusal::StaleEpoch { promised } => return self.on_deposed(promised),
            Refusal::Lost => {
                peer.unwanted = true;
                return;
            }
            Refusal::Installing => {
                peer.heard = now;
                peer.unreachable = false;
                return;
            }
            Refusal::Gap { last } => (last.seq, Seq::ZERO, last),
            Refusal::Mismatch {
                at,
                committed,
                last,
            } => (committed, at, last),
        };
        peer.heard = now;
        peer.unreachable = false;
        // One that came late says how it was before this node acknowledged what was sent after.
        let late = Some(sent_at) < peer.acked && !discards;
        if late || sent_at < peer.resent_at || sent_at > now {
            return;
        }
        // Its log is empty. One that is shorter than what was acknowledged only tells that words overtook each other.
        let lost = common < peer.matched && (common == Seq::ZERO || discards);
        if lost && peer.standing != Standing::Member {
            peer.forget(if stale { None } else { Some(written) }, now);
        }
        let next = common.max(peer.matched).next().min(written.next());
        if next > base.seq {
            peer.rewind(next, now);
            return self.pump(out);
        }
        if at > base.seq {
            peer.rewind(base.seq.next(), now);
            return self.pump(out);
        }
        match peer.standing {
            // A member holds all that is committed: one that does not has lost its storage.
            Standing::Member => peer.unwanted = true,
            // With the state it discards the data that it has: it must not be listed for it.
            _ if may_be_listed && peer.matched > Seq::ZERO && !discards => {}
            Standing::CatchingUp | Standing::Filling { .. } | Standing::Admitting { .. } => {
                if !may_be_listed && !discards {
                    peer.forget(None, now);
                    peer.standing = Standing::CatchingUp;
                }
                if let Some(view) = self.view.clone() {
                    let message = Message::StateNeeded {
                        view,
                        last,
                        sent_at: now,
                    };
                    out.push(Output::Send { to: from, message });
                }
            }
        }
    }

    fn on_deposed(&mut self, promised: Epoch) {
        if let Part::Reign(reign) = &mut self.part
            && promised > reign.epoch
            && !reign.deposed
            && !planted!(self, NoFence)
        {
            reign.deposed = true;
            reign.heartbeat_at = self.now;
        }
    }

    /// The peer, if the answer is to this reign.
    fn peer_of(&mut self, from: NodeId, epoch: Epoch) -> Option<&mut Peer> {
        match &mut self.part {
            Part::Reign(reign) if reign.epoch == epoch => reign.peers.get_mut(&from),
            Part::Reign(_) | Part::Follow(_) => None,
        }
    }

    fn advance_commit(&mut self, out: &mut Vec<Output>) {
        let Part::Reign(reign) = &self.part else {
            return;
        };
        if self.promised_durable < reign.epoch && !planted!(self, PromiseNotPersisted) {
            return;
        }
        let mut through = self.durable;
        if planted!(self, CommitWithoutAll) {
            let best = reign.peers.values().map(|p| p.matched).max();
            through = through.min(best.unwrap_or(through));
        } else {
            for peer in reign.peers.values().filter(|p| p.counts()) {
                if planted!(self, JoinerNotAwaited) && peer.standing != Standing::Member {
                    continue;
                }
                through = through.min(peer.matched);
            }
        }
        if through >= reign.start {
            self.commit_through(through, out);
        }
    }

    /// Sends each peer what it lacks, within its window.
    fn pump(&mut self, out: &mut Vec<Output>) {
        self.send(false, out);
    }

    /// Sends to each peer, a heartbeat where there is nothing else.
    pub(super) fn send_all(&mut self, out: &mut Vec<Output>) {
        self.send(true, out);
    }

    fn send(&mut self, heartbeat: bool, out: &mut Vec<Output>) {
        let Part::Reign(reign) = &mut self.part else {
            return;
        };
        let Some(view) = &self.view else { return };
        // Nothing of an epoch leaves before its promise is on disk.
        if self.promised_durable < reign.epoch {
            return;
        }
        for (&to, peer) in &mut reign.peers {
            let mut sent = false;
            while let Some(run) = next_run(peer, &self.log, self.written, self.limits) {
                let told = (self.committed, peer.standing, self.now);
                let message = append(view, &self.log, peer.next, run, told);
                peer.next = advance(peer, &message);
                out.push(Output::Send { to, message });
                sent = true;
            }
            if heartbeat && !sent {
                let run = Vec::new();
                let next = peer.next.max(self.log.base().seq.next());
                let told = (self.committed, peer.standing, self.now);
                let message = append(view, &self.log, next, run, told);
                out.push(Output::Send { to, message });
            }
            if peer.matched < self.written && peer.behind_since.is_none() {
                peer.behind_since = Some(self.now);
            }
        }
    }

    pub(super) fn reign_timers(&mut self, out: &mut Vec<Output>) {
        if let Part::Reign(reign) = &mut self.part
            && reign.deposed
        {
            // It learns the view that ended it, and does not try to change that one.
            if self.now >= reign.heartbeat_at {
                reign.heartbeat_at = self.now + self.timing.takeover;
                self.ask_view(out);
            }
            return;
        }
        self.admit_joiners(out);
        self.remove_lost_members(out);
        let now = self.now;
        if let Part::Reign(reign) = &mut self.part
            && now >= reign.heartbeat_at
        {
            reign.heartbeat_at = self.timing.next_heartbeat(now);
            self.on_flush(out);
            self.send_all(out);
        }
    }
}

/// The next records for a peer; `None` when it has all, or its window is full.
fn next_run(
    peer: &Peer,
    log: &log::Log,
    written: Seq,
    limits: super::Limits,
) -> Option<Vec<Entry>> {
    let from = peer.next.max(log.base().seq.next());
    if from > written || peer.in_flight_bytes() >= limits.window_bytes {
        return None;
    }
    let mut bytes = 0;
    let mut run = Vec::new();
    for entry in log.range(from, written) {
        bytes += log::cost(entry);
        if bytes > limits.append_bytes && !run.is_empty() {
            break;
        }
        run.push(entry.clone());
    }
    Some(run)
}

/// Notes that `message` goes to `peer`; returns the first record after it.
fn advance(peer: &mut Peer, message: &Message) -> Seq {
    let Message::Append { entries, .. } = message else {
        return peer.next;
    };
    let Some(last) = entries.last() else {
        return peer.next;
    };
    let bytes = entries.iter().map(log::cost).sum();
    peer.in_flight.push_back((last.version.seq, bytes));
    last.version.seq.next()
}

fn append(
    view: &ChainView,
    log: &log::Log,
    next: Seq,
    entries: Vec<Entry>,
    (commit, standing, sent_at): (Seq, Standing, Tick),
) -> Message {
    let before = entries.first().map_or(next, |first| first.version.seq);
    let prev = log
        .version_at(Seq(before.0.saturating_sub(1)))
        .unwrap_or(log.base());
    Message::Append {
        view: view.clone(),
        prev,
        entries,
        commit,
        admit: match standing {
            Standing::Filling { frontier, .. } | Standing::Admitting { frontier } => Some(frontier),
            Standing::Member | Standing::CatchingUp => None,
        },
        sent_at,
    }
}
