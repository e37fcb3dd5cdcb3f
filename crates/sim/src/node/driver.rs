//! Drives the chain: what a daemon's replication task does.

use super::{Packet, Running, SyncWait};
use crate::disk::{DiskOp, apply};
use crate::law;
use crate::model::{ALL_FILES, FILE_LEN, Record, file_of, inode, range_of};
use crate::oracle::Mark;
use crate::world::{Event, Scenario, World, host_of, id_of};
use perigee_replica::{Entry, Fault, Input, Message, Origin, Output, Plant, Pull, Refusal, Role};
use perigee_types::{Seq, Tick, Version};
use std::collections::BTreeMap;

/// How often a driver looks after its duties: placement, lost requests, syncing.
const DUTY_US: u64 = 500_000;

/// How often an owner that leaves looks whether it may.
const HAND_OVER_US: u64 = 50_000;

/// Of so many times that a driver looks after its duties, it scrubs once.
const SCRUBS: u64 = 4;

/// A slow disk works faster when this much waits: the chaos ends at some time.
const BACKLOG_US: u64 = 4_000_000;

impl World {
    pub(crate) fn local(&self, node: usize) -> Tick {
        self.nodes[node].clock.at(self.now)
    }

    pub(crate) fn wake(&mut self, node: usize) {
        let local = self.local(node);
        if let Some(run) = &mut self.nodes[node].run {
            run.armed = u64::MAX;
            if run.chain.next_wakeup() <= local {
                return self.step(node, Input::Tick);
            }
        }
        self.arm(node);
    }

    /// Gives the chain an input, and performs what it asks for.
    pub(crate) fn step(&mut self, node: usize, input: Input) {
        let local = self.local(node);
        let Some(run) = &mut self.nodes[node].run else {
            return;
        };
        let mut out = Vec::new();
        run.chain.step(local, input, &mut out);
        for output in out {
            self.perform(node, output);
            if self.nodes[node].run.is_none() {
                return;
            }
        }
        self.after_step(node);
    }

    fn after_step(&mut self, node: usize) {
        self.release_held(node);
        self.install_carried(node);
        self.forget_settled(node);
        self.answer_syncs(node);
        self.settle(node);
        self.pump_fetches(node);
        self.start_sync(node, false);
        if self.nodes[node].run.as_ref().is_some_and(|run| run.stirred) {
            law::no_wrong_bytes::check(self, node);
            law::checkpoint::check(self, node);
            if let Some(run) = &mut self.nodes[node].run {
                run.stirred = false;
            }
        }
        self.arm(node);
    }

    fn arm(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let Some(run) = &mut host.run else { return };
        let next = run.chain.next_wakeup();
        if next == Tick(u64::MAX) {
            return;
        }
        let at = host.clock.when(next).max(self.now + 1);
        if at < run.armed {
            run.armed = at;
            let life = host.incarnation;
            self.at(at, Event::Wake { node, life });
        }
    }

    fn perform(&mut self, node: usize, output: Output) {
        match output {
            Output::Send { to, message } => self.send_chain(node, host_of(to), message),
            Output::Persist { id, write } => {
                self.feed(node, &write.append);
                if write.trim_through.is_some() {
                    self.note(Mark::Trim);
                }
                let run = self.running(node);
                let invalid = std::mem::take(&mut run.invalid_next);
                let ended = self.end_notes(node, &write);
                let log = DiskOp::Log {
                    id,
                    write,
                    invalid,
                    ended,
                };
                self.enqueue(node, log);
            }
            Output::Committed { through } => self.committed(node, through),
            Output::Truncated { entries, needed } => self.truncated(node, &entries, needed),
            Output::ProposeView { expect, view } => self.propose_view(node, expect, view),
            Output::ReadView => self.read_view(node),
            Output::Role(role) => self.role(node, role),
            Output::NeedState { from } => {
                let run = self.running(node);
                if !run.installing {
                    run.installing = true;
                    self.send(node, host_of(from), Packet::State);
                }
            }
            Output::Fault(fault) => self.fault(node, fault),
        }
    }

    fn send_chain(&mut self, node: usize, to: usize, message: Message) {
        if let Message::AppendRefused { reason, .. } = &message {
            match reason {
                Refusal::StaleEpoch { .. } => self.note(Mark::Conflict),
                Refusal::Lost => self.note(Mark::LostMember),
                Refusal::Gap { .. } | Refusal::Mismatch { .. } | Refusal::Installing => {}
            }
        }
        let message = if self.codec {
            let bytes = postcard::to_stdvec(&message).expect("a message encodes");
            postcard::from_bytes(&bytes).expect("what was encodes decodes")
        } else {
            message
        };
        self.log(12, node, || format!("-> n{}: {}", to + 1, brief(&message)));
        self.on_ceded(node, to, &message);
        self.send(node, to, Packet::Chain(message));
    }

    /// Shows the pull what came into the log.
    fn feed(&mut self, node: usize, entries: &[Entry]) {
        let remote = if self.planted(Plant::DurableIsEnough) {
            Origin::Unsynced
        } else {
            Origin::Remote
        };
        let early = self.planted(Plant::CarriedUncommitted);
        let mut uncommitted = Vec::new();
        let run = self.running(node);
        for entry in entries {
            if entry.version.seq <= run.fed {
                continue;
            }
            run.fed = entry.version.seq;
            let record = Record::decode(&entry.payload);
            for command in record.commands() {
                let carried = record.carried_by(&command);
                run.pull
                    .on_command(entry.version, &command, remote, carried);
            }
            if early {
                uncommitted.push(record);
            }
        }
        for record in uncommitted {
            self.install_uncommitted(node, &record);
        }
    }

    fn committed(&mut self, node: usize, through: Seq) {
        let run = self.running(node);
        let from = run.applied.next();
        let entries: Vec<Entry> = run.chain.entries(from, through).cloned().collect();
        self.log(13, node, || format!("committed {through}"));
        for entry in entries {
            let record = Record::decode(&entry.payload);
            law::replicated::on_committed(self, node, entry.version, &record);
            let rows = record.rows.clone();
            let again = self.planted(Plant::HolesMadeAgain);
            self.note_below(node, entry.version, &record);
            let run = self.running(node);
            apply(&mut run.state, &record);
            for (block, token) in record.blocks() {
                run.expected[usize::from(block)] = token;
            }
            let own = run.own.iter().any(|(seq, _)| *seq == entry.version.seq);
            // What was in the log before may have been done, and so may what came after it.
            let sure =
                entry.version.seq > run.uncertain_through && !run.done.contains(&entry.version.seq);
            if !own && (sure || again) {
                for (block, token) in &record.holes {
                    let block = usize::from(*block);
                    if self.lacks(node, block, entry.version) {
                        law::checkpoint::on_replaced(self, node, block, *token);
                        self.nodes[node].disk.write(block, *token);
                    }
                }
            }
            let run = self.running(node);
            run.applied = entry.version.seq;
            while run
                .own
                .front()
                .is_some_and(|(seq, _)| *seq <= entry.version.seq)
            {
                run.own.pop_front();
            }
            run.stirred = true;
            if !rows.is_empty() {
                self.apply_data(node, entry.version.seq);
                self.rows_changed(node, &rows);
            }
        }
        self.apply_data(node, through);
        self.release_held(node);
        self.install_carried(node);
        if self
            .running(node)
            .waiters
            .iter()
            .any(|w| !w.files.is_empty())
        {
            self.send(node, node, Packet::Announce);
        }
    }

    /// Data commands up to `through` are applied.
    fn apply_data(&mut self, node: usize, through: Seq) {
        let fetched_over = self.planted(Plant::OwnRecordFetchedOver);
        let run = self.running(node);
        run.pull.note_committed(run.chain.committed_version());
        if fetched_over {
            run.pull.on_committed(through);
        } else {
            run.pull.on_committed_beside(through, &run.holding);
        }
        self.settle_held(node, through);
    }

    fn truncated(&mut self, node: usize, entries: &[Entry], needed: Version) {
        self.note(Mark::Truncation);
        self.log(14, node, || {
            format!("truncated {} records, needs {needed}", entries.len())
        });
        let trusting = self.planted(Plant::NoInvalidationOnTruncation);
        let run = self.running(node);
        let Some(first) = entries.first() else { return };
        let kept = Seq(first.version.seq.0 - 1);
        let blocks: Vec<usize> = entries
            .iter()
            .flat_map(|e| Record::decode(&e.payload).blocks().collect::<Vec<_>>())
            .map(|(block, _)| usize::from(block))
            .collect();
        let valid = |pull: &Pull, b: usize| {
            pull.invalid(file_of(b))
                .is_none_or(|m| m.is_valid(range_of(b)))
        };
        let before: Vec<bool> = blocks.iter().map(|b| valid(&run.pull, *b)).collect();
        run.pull.on_truncated(kept, needed);
        for (block, was_valid) in blocks.iter().zip(before) {
            if trusting && was_valid {
                run.pull.force_valid(file_of(*block), range_of(*block));
            } else if !valid(&run.pull, *block) {
                run.invalid_next
                    .push((file_of(*block), range_of(*block), needed));
            }
        }
        run.fed = run.fed.min(kept);
        run.uncertain_through = run.uncertain_through.min(kept);
        run.done.retain(|seq| *seq <= kept);
        run.own.retain(|(seq, _)| *seq <= kept);
        if let Some(job) = &mut run.sync {
            job.sound = false;
        }
        run.stirred = true;
        run.data_unsaid = true;
    }

    pub(crate) fn refused_by(&mut self, node: usize, by: usize) {
        self.step(node, Input::Unreachable(id_of(by)));
    }

    fn role(&mut self, node: usize, role: Role) {
        self.log(17, node, || format!("role {role:?}"));
        let reign = match role {
            Role::Owner { epoch } | Role::Reconciling { epoch } | Role::Suspended { epoch } => {
                Some(epoch)
            }
            Role::Outside | Role::Replica { .. } | Role::Joining { .. } | Role::Returning => None,
        };
        self.note_cession(node, role);
        let before = self.running(node).reign;
        if reign.is_none() {
            self.distrust_unrecorded(node);
            self.running(node).holding.on_step_down();
            self.drop_rows(node);
            if !matches!(role, Role::Replica { .. }) {
                self.lose_all_held(node);
            }
        }
        let run = self.running(node);
        if reign.is_none() {
            run.reign = None;
            run.waiters.clear();
            run.done.extend(run.own.iter().map(|(seq, _)| *seq));
            run.own.clear();
            run.pull.on_stepped_down();
            run.newest = run.state;
            run.unsettled.clear();
            run.stirred = true;
        } else if before.is_none() {
            run.newest = newest(run);
            run.reign = reign;
            self.take_over_unsettled(node);
            self.take_over_rows(node);
        } else {
            run.reign = reign;
        }
        let run = self.running(node);
        run.pull.on_source_changed();
        run.pull.look_again();
        run.asking.clear();
        run.holding.on_source_changed();
        self.go_on_holding(node);
    }

    fn note_cession(&mut self, node: usize, role: Role) {
        let ceded = self.running_ref(node).ceded_in;
        let Some(ceded) = ceded.filter(|ceded| role != Role::Suspended { epoch: *ceded }) else {
            return;
        };
        self.running(node).ceded_in = None;
        self.note(match role {
            Role::Owner { epoch } | Role::Reconciling { epoch } if epoch == ceded => {
                Mark::CededInVain
            }
            _ => Mark::CededForGood,
        });
    }

    fn fault(&mut self, node: usize, fault: Fault) {
        match fault {
            Fault::ViewWentBack { .. } => {}
            Fault::PersistFailed => {}
            Fault::CommittedConflict { .. } | Fault::StateTooOld { .. } => {
                let what = format!("n{}: {fault}", node + 1);
                self.oracle.accuse(self.now, "replicated", what);
            }
        }
    }

    /// Puts a write on its way to the disk.
    pub(crate) fn enqueue(&mut self, node: usize, op: DiskOp) {
        let late = self.nodes[node].disk_free_at > self.now + BACKLOG_US;
        let slow = if late { 0 } else { self.slow(node) };
        let took = 100 + self.rng.below(2_000) + slow;
        let host = &mut self.nodes[node];
        host.disk.queue.push_back(op);
        host.disk_free_at = host.disk_free_at.max(self.now) + took;
        let (at, life) = (host.disk_free_at, host.incarnation);
        self.at(at, Event::Disk { node, life });
    }

    pub(crate) fn slow(&mut self, node: usize) -> u64 {
        let most = self.nodes[node].slow_disk_us;
        self.rng.below(most.max(1))
    }

    pub(crate) fn disk_done(&mut self, node: usize) {
        if self.nodes[node].fail_next_write {
            return self.write_failed(node);
        }
        match self.nodes[node].disk.perform_next() {
            Some(DiskOp::Log { id, .. }) => {
                self.log(18, node, || format!("persisted {id:?}"));
                self.step(node, Input::Persisted(id));
            }
            Some(DiskOp::Install { base, .. }) => self.installed(node, base),
            Some(DiskOp::Sums { id, .. }) => self.sums_stored(node, id),
            Some(DiskOp::Note(_)) | None => {}
        }
    }

    fn installed(&mut self, node: usize, base: Version) {
        self.note(Mark::StateTransfer);
        self.log(19, node, || format!("installed state up to {base}"));
        let state = self.nodes[node].disk.state;
        let run = self.running(node);
        run.state = state;
        run.newest = state;
        run.applied = base.seq;
        run.fed = base.seq;
        run.synced = Seq::ZERO;
        run.uncertain_through = base.seq;
        run.done.clear();
        run.installing = false;
        self.lose_all_held(node);
        let run = self.running(node);
        run.held.clear();
        run.pull
            .on_state_installed(base, state.files().map(|f| (inode(f), FILE_LEN)));
        run.stirred = true;
        run.data_unsaid = true;
        if let Some(job) = &mut run.sync {
            job.sound = false;
        }
        self.reset_expected(node);
        self.step(node, Input::StateInstalled { base });
    }

    /// Hands over, or tries again a little later.
    pub(crate) fn hand_over(&mut self, node: usize) {
        let run = self.running_ref(node);
        if run.reign.is_none() || self.now >= run.leaves_until {
            return;
        }
        let life = self.nodes[node].incarnation;
        self.after(HAND_OVER_US, Event::HandOver { node, life });
        self.record_writes(node, None);
        // The disk of a last copy may be lost a moment before it is the last, and nobody notices.
        let run = self.running_ref(node);
        let view = run.chain.view();
        if run.unrecorded.is_empty() && view.is_some_and(|view| view.chain.len() > 2) {
            self.step(node, Input::HandOver);
        }
    }

    /// Placement, lost requests, syncing.
    pub(crate) fn duty(&mut self, node: usize) {
        let life = self.nodes[node].incarnation;
        let jitter = self.rng.below(DUTY_US / 4);
        self.after(DUTY_US + jitter, Event::Duty { node, life });
        let run = self.running(node);
        run.pull.on_source_changed();
        run.pull.look_again();
        run.asking.clear();
        for waiter in &mut run.waiters {
            waiter.asked.clear();
        }
        let owns = run.reign.is_some();
        // What is not on its way any more in the calm is asked for again at once: the calm has an end.
        let stale = run.installing && (self.rng.chance(1, 4) || self.calm);
        if stale
            && !self.nodes[node]
                .disk
                .queue
                .iter()
                .any(|op| matches!(op, DiskOp::Install { .. }))
        {
            self.running(node).installing = false;
            self.step(node, Input::StateFailed);
        }
        if owns {
            self.look_after_rows(node);
            for other in 0..self.nodes.len() {
                let up = self.nodes[other].run.is_some();
                let view = self.running(node).chain.view();
                if up && view.is_some_and(|v| !v.lists(id_of(other))) {
                    self.step(node, Input::Candidate(id_of(other)));
                }
            }
        }
        if self.rng.chance(1, 2) {
            self.start_sync(node, true);
        }
        if self.scenario == Scenario::BadDisks && (self.calm || self.rng.chance(1, SCRUBS)) {
            self.scrub(node);
        }
        // A watch that lost something is made again, sooner or later.
        if self.calm || self.rng.chance(1, 8) {
            self.read_view(node);
        }
        self.step(node, Input::Tick);
    }

    pub(crate) fn running(&mut self, node: usize) -> &mut Running {
        self.nodes[node]
            .run
            .as_mut()
            .expect("the caller has seen it run")
    }

    pub(crate) fn running_ref(&self, node: usize) -> &Running {
        self.nodes[node]
            .run
            .as_ref()
            .expect("the caller has seen it run")
    }

    pub(crate) fn deliver(&mut self, from: usize, to: usize, packet: Packet) {
        if self.nodes[to].run.is_none() {
            return;
        }
        match packet {
            Packet::Chain(message) => {
                let from = id_of(from);
                self.step(to, Input::Receive { from, message });
            }
            Packet::Fetch {
                id,
                inode,
                range,
                needed,
                older,
            } => self.serve_fetch(to, from, id, (inode, range, needed), older),
            Packet::Fetched { id, answer } => self.fetched(to, from, id, answer),
            Packet::Sync {
                id,
                inode,
                version,
                epoch,
            } => {
                let wait = SyncWait {
                    from,
                    id,
                    inode,
                    version,
                    epoch,
                };
                self.running(to).sync_waits.push(wait);
                self.step(to, Input::Tick);
            }
            Packet::Announce => self.step(to, Input::Announce),
            Packet::Synced { id, inode } => self.member_synced((to, from), id, inode),
            Packet::State => {
                let run = self.running(to);
                if run.reign.is_some() {
                    let base = run.chain.committed_version();
                    let state = run.state;
                    self.send(to, from, Packet::StateIs { base, state });
                }
            }
            Packet::StateIs { base, state } => self.install(to, base, state),
            Packet::Request {
                id,
                op,
                session,
                numbered,
            } => self.request(to, from, id, op, (session, numbered)),
            Packet::Hold(packet) => self.hold_packet(to, from, packet),
            Packet::Reply { id, outcome, word } => {
                self.take_word(to, id, word);
                self.finish(to, id, outcome);
            }
            Packet::ReadCopy { id, block, epoch } => self.serve_copy(to, from, id, block, epoch),
            Packet::CopyIs { id, value } => self.copy_is(to, id, value),
            Packet::Revoke {
                id,
                session,
                inodes,
            } => self.revoke(to, from, id, session, &inodes),
            Packet::Revoked { id } => self.revoked(to, id),
        }
    }

    fn install(&mut self, node: usize, base: Version, state: crate::model::State) {
        let queued = self.nodes[node].disk.queue.iter();
        let twice = queued
            .into_iter()
            .any(|op| matches!(op, DiskOp::Install { .. }));
        if twice {
            return;
        }
        if !self.running_ref(node).chain.accepts_state(base) {
            self.running(node).installing = false;
            return self.step(node, Input::StateFailed);
        }
        let mut pull = Pull::new();
        pull.on_state_installed(base, state.files().map(|f| (inode(f), FILE_LEN)));
        let mut invalid = BTreeMap::new();
        for file in (0..ALL_FILES).map(inode) {
            if let Some(map) = pull.invalid(file) {
                invalid.insert(file, map.clone());
            }
        }
        self.enqueue(
            node,
            DiskOp::Install {
                base,
                state,
                invalid,
            },
        );
    }
}

/// The owner's state with every record of its log.
fn newest(run: &Running) -> crate::model::State {
    let mut state = run.state;
    let (from, to) = (run.applied.next(), run.chain.last().seq);
    for entry in run.chain.entries(from, to) {
        apply(&mut state, &Record::decode(&entry.payload));
    }
    state
}

pub(crate) fn brief(message: &Message) -> String {
    match message {
        Message::Append {
            view,
            prev,
            entries,
            commit,
            ..
        } => format!(
            "append {} {:?} after {prev} +{} commit {commit}",
            view.epoch,
            view.chain,
            entries.len()
        ),
        Message::AppendAck {
            epoch,
            durable,
            data,
            ..
        } => format!("ack {epoch} durable {durable} data {data}"),
        Message::AppendRefused { epoch, reason, .. } => format!("refused {epoch} {reason:?}"),
        Message::StateNeeded { view, .. } => format!("state needed {}", view.epoch),
        Message::Cede { view, last, .. } => format!("ceded {} at {last}", view.epoch),
    }
}
