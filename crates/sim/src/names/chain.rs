//! Drives the chains: what a daemon's replication does, without bytes.

use super::Mark;
use super::host::{Member, Packet, Then, Work, apply, decode, encode};
use super::world::{Event, Names};
use crate::control::{StoreReply, StoreRequest};
use crate::law;
use crate::world::{host_of, id_of};
use perigee_replica::{CasOutcome, Entry, Holds, Input, Output, Role};
use perigee_types::{Batch, ContainerId, Epoch, Seq, Tick, Version};

/// How often a driver looks after placement, lost requests and transactions.
const DUTY_US: u64 = 500_000;
/// How long a driver waits for the control store before it calls the outcome unknown.
const STORE_PATIENCE_US: u64 = 1_000_000;
/// How long records of programs of this host gather.
const LINGER_US: u64 = 5_000;

/// How much work a slow disk has before it.
const BACKLOG_US: u64 = 2_000_000;

/// Whether somebody waits for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// Nobody does.
    None,
    /// Send it now.
    Urgent,
}

impl Names {
    pub(super) fn local(&self, host: usize) -> Tick {
        self.hosts[host].clock.at(self.now)
    }

    /// The epoch of this host's reign over a container, while its lease holds.
    pub(super) fn reign(&self, host: usize, container: ContainerId) -> Option<Epoch> {
        let local = self.local(host);
        let member = self.hosts[host].run.as_ref()?.members.get(&container)?;
        let Role::Owner { epoch } = member.chain.role() else {
            return None;
        };
        let until = member.chain.lease_until(local)?;
        (until > local && member.reigning).then_some(epoch)
    }

    pub(super) fn wake(&mut self, host: usize, container: ContainerId) {
        let local = self.local(host);
        let member = self.member(host, container);
        member.armed = u64::MAX;
        if member.chain.next_wakeup() <= local {
            return self.step(host, container, Input::Tick);
        }
        self.arm(host, container);
    }

    /// Gives a chain an input, and performs what it asks for. Never called while an output is performed.
    pub(super) fn step(&mut self, host: usize, container: ContainerId, input: Input) {
        let local = self.local(host);
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.member(host, container)
                .chain
                .step(local, input, &mut out);
            for output in out {
                self.perform(host, container, output);
            }
            // There are no bytes: the data is complete with the log.
            let member = self.member(host, container);
            let through = member.chain.committed();
            if member.said_through < through {
                member.said_through = through;
                inputs.push(Input::DataThrough(through));
                inputs.push(Input::Synced(through));
            }
        }
        self.arm(host, container);
    }

    fn arm(&mut self, host: usize, container: ContainerId) {
        let now = self.now;
        let clock = self.hosts[host].clock;
        let member = self.member(host, container);
        let next = member.chain.next_wakeup();
        if next == Tick(u64::MAX) {
            return;
        }
        let at = clock.when(next).max(now + 1);
        if at < member.armed {
            member.armed = at;
            let life = self.hosts[host].incarnation;
            let wake = Event::Wake {
                host,
                life,
                container,
            };
            self.at(at, wake);
        }
    }

    fn perform(&mut self, host: usize, container: ContainerId, output: Output) {
        match output {
            Output::Send { to, message } => {
                self.log(12, host, || {
                    let what = crate::node::driver::brief(&message);
                    format!("{container} -> {to}: {what}")
                });
                self.send(host, host_of(to), Packet::Chain(container, message));
            }
            Output::Persist { id, write } => self.enqueue(host, container, Work::Log(id, write)),
            Output::Committed { through } => self.committed(host, container, through),
            Output::Truncated { .. } => {
                self.note(Mark::Truncation);
                self.member(host, container).said_through = Seq::ZERO;
            }
            Output::ProposeView { expect, view } => {
                let id = self.fresh_id();
                self.member(host, container).cas = Some(id);
                self.ask_store(host, container, StoreRequest::Cas { id, expect, view });
            }
            Output::ReadView => self.read_view(host, container),
            Output::Role(role) => self.enter(host, container, role),
            Output::NeedState { from } => {
                let member = self.member(host, container);
                if !member.installing {
                    member.installing = true;
                    self.send(host, host_of(from), Packet::State(container));
                }
            }
            Output::Fault(fault) => {
                self.log(20, host, || format!("{container}: {fault}"));
                let restored = matches!(fault, perigee_replica::Fault::ViewWentBack { .. });
                let expected = matches!(fault, perigee_replica::Fault::PersistFailed);
                if !restored && !expected {
                    let what = format!("n{} {container}: {fault}", host + 1);
                    self.accuse("replicated", what);
                }
            }
        }
    }

    fn committed(&mut self, host: usize, container: ContainerId, through: Seq) {
        let member = self.member(host, container);
        let from = member.applied.next();
        let entries: Vec<Entry> = member.chain.entries(from, through).cloned().collect();
        for entry in entries {
            let batch = decode(&entry.payload);
            law::history::on_committed(self, host, container, entry.version, &batch);
            let member = self.member(host, container);
            apply(&mut member.rows, &batch);
            member.applied = entry.version.seq;
        }
        let member = self.member(host, container);
        member.overlay.drop_through(through);
        let later = member.waiters.split_off(&through.next());
        let ready = std::mem::replace(&mut member.waiters, later);
        for then in ready.into_values().flatten() {
            self.resume_soon(host, container, then);
        }
    }

    /// Orders a batch: from here on it is part of the owner's state.
    pub(super) fn order(
        &mut self,
        host: usize,
        container: ContainerId,
        batch: &Batch,
        haste: Haste,
    ) -> Option<Version> {
        let local = self.local(host);
        let kept = self.with_kept(host, container, batch);
        let batch = kept.as_ref().unwrap_or(batch);
        let member = self.member(host, container);
        let version = member.chain.propose(local, encode(batch)).ok()?;
        member.overlay.apply(version.seq, batch);
        self.note_checkpoints(host, container, batch);
        let delay = match haste {
            Haste::None => self.rng.below(LINGER_US),
            Haste::Urgent => 0,
        };
        let life = self.hosts[host].incarnation;
        let flush = Event::Flush {
            host,
            life,
            container,
        };
        self.after(delay, flush);
        Some(version)
    }

    /// Goes on when `seq` is on every member.
    pub(super) fn when_committed(
        &mut self,
        host: usize,
        container: ContainerId,
        seq: Seq,
        then: Then,
    ) {
        let record = self.member(host, container).chain.version_at(seq);
        self.when_there(host, container, record, then);
    }

    /// Goes on when a record is on every member: that one, and not another in its place.
    pub(super) fn when_there(
        &mut self,
        host: usize,
        container: ContainerId,
        record: Version,
        then: Then,
    ) {
        let member = self.member(host, container);
        match member.chain.holds(record) {
            Holds::Yes => return self.resume_soon(host, container, then),
            Holds::NotYet if member.reigning => {}
            Holds::NotYet | Holds::Never => return self.disappoint(host, container, then),
        }
        member.waiters.entry(record.seq).or_default().push(then);
        let life = self.hosts[host].incarnation;
        let flush = Event::Flush {
            host,
            life,
            container,
        };
        self.after(0, flush);
    }

    pub(super) fn resume_soon(&mut self, host: usize, container: ContainerId, then: Then) {
        let life = self.hosts[host].incarnation;
        let resume = Event::Resume {
            host,
            life,
            container,
            then: Box::new(then),
        };
        self.after(0, resume);
    }

    fn enqueue(&mut self, host: usize, container: ContainerId, work: Work) {
        // A slow disk works faster when this much waits: the chaos ends at some time.
        let late = self.hosts[host].disk_free_at > self.now + BACKLOG_US;
        let slow = self.hosts[host].slow_disk_us * u64::from(!late);
        let took = 100 + self.rng.below(2_000) + self.rng.below(slow.max(1));
        let now = self.now;
        let disk = &mut self.hosts[host];
        disk.disk.queue.push_back((container, work));
        disk.disk_free_at = disk.disk_free_at.max(now) + took;
        let (at, life) = (disk.disk_free_at, disk.incarnation);
        self.at(at, Event::Disk { host, life });
    }

    pub(super) fn disk_done(&mut self, host: usize) {
        if self.hosts[host].fail_next_write {
            self.note(Mark::FailedWrite);
            self.hosts[host].fail_next_write = false;
            // What the disk holds is unknown: the process ends.
            return self.kill(host);
        }
        match self.hosts[host].disk.perform_next() {
            Some((container, Work::Log(id, _))) => {
                self.log(18, host, || format!("{container} persisted {id:?}"));
                self.step(host, container, Input::Persisted(id));
            }
            Some((container, Work::Install(base, rows))) => {
                self.note(Mark::StateTransfer);
                self.log(19, host, || format!("{container} installed {base}"));
                let member = self.member(host, container);
                member.rows = rows;
                member.applied = base.seq;
                member.overlay.clear(base.seq);
                member.installing = false;
                member.said_through = Seq::ZERO;
                self.step(host, container, Input::StateInstalled { base });
            }
            None => {}
        }
    }

    /// A state has come.
    pub(super) fn install(
        &mut self,
        host: usize,
        container: ContainerId,
        base: Version,
        rows: super::host::Rows,
    ) {
        if !self.member(host, container).installing || self.is_installing(host, container) {
            return;
        }
        if self.member(host, container).chain.accepts_state(base) {
            return self.enqueue(host, container, Work::Install(base, rows));
        }
        self.member(host, container).installing = false;
        self.step(host, container, Input::StateFailed);
    }

    fn is_installing(&self, host: usize, container: ContainerId) -> bool {
        let mut queue = self.hosts[host].disk.queue.iter();
        queue.any(|(id, work)| *id == container && matches!(work, Work::Install(..)))
    }

    /// Placement, lost requests, transactions.
    pub(super) fn duty(&mut self, host: usize) {
        let life = self.hosts[host].incarnation;
        let jitter = self.rng.below(DUTY_US / 4);
        self.after(DUTY_US + jitter, Event::Duty { host, life });
        for container in self.containers() {
            let stale = self.member(host, container).installing && self.rng.chance(1, 4);
            if stale && !self.is_installing(host, container) {
                self.member(host, container).installing = false;
                self.step(host, container, Input::StateFailed);
            }
            if self.member(host, container).reigning {
                for other in 0..self.hosts.len() {
                    let up = self.hosts[other].run.is_some();
                    let view = self.member(host, container).chain.view();
                    if up && view.is_some_and(|view| !view.lists(id_of(other))) {
                        self.step(host, container, Input::Candidate(id_of(other)));
                    }
                }
            }
            if self.calm || self.rng.chance(1, 8) {
                self.read_view(host, container);
            }
            self.step(host, container, Input::Tick);
            self.settle_transactions(host, container);
            self.purge_due(host, container);
        }
    }

    pub(super) fn read_view(&mut self, host: usize, container: ContainerId) {
        let member = self.member(host, container);
        if !member.reading {
            member.reading = true;
            self.ask_store(host, container, StoreRequest::Read);
        }
    }

    fn ask_store(&mut self, host: usize, container: ContainerId, request: StoreRequest) {
        let life = self.hosts[host].incarnation;
        let id = match &request {
            StoreRequest::Cas { id, .. } => Some(*id),
            StoreRequest::Read => None,
        };
        let timeout = Event::StoreTimeout {
            host,
            life,
            container,
            id,
        };
        self.after(STORE_PATIENCE_US, timeout);
        if self.net.store_cut[host] {
            return;
        }
        let delay = self.net.delay(&mut self.rng);
        let arrive = Event::StoreArrive {
            host,
            life,
            container,
            request,
        };
        self.after(delay, arrive);
    }

    pub(super) fn store_arrive(
        &mut self,
        (host, life): (usize, u32),
        container: ContainerId,
        request: StoreRequest,
    ) {
        let Some(store) = self.stores.get_mut(&container) else {
            return;
        };
        if store.away_until > self.now {
            return;
        }
        let before = store.view.owner();
        let (reply, changed) = store.handle(request);
        let view = store.view.clone();
        let answer = |host, life, reply| Event::StoreAnswer {
            host,
            life,
            container,
            reply,
        };
        if changed {
            self.log(2, host, || {
                format!("store: {container} {} {:?}", view.epoch, view.chain)
            });
            if before != view.owner() {
                self.note(Mark::Takeover);
            } else if let Some(owner) = before {
                self.aim_at_change(host_of(owner));
            }
            for other in 0..self.hosts.len() {
                if self.calm || !(self.net.store_cut[other] || self.rng.chance(1, 4)) {
                    let delay = self.net.delay(&mut self.rng);
                    let life = self.hosts[other].incarnation;
                    let reply = StoreReply::View(view.clone());
                    self.after(delay, answer(other, life, reply));
                }
            }
        }
        if !self.net.store_cut[host] {
            let delay = self.net.delay(&mut self.rng);
            self.after(delay, answer(host, life, reply));
        }
    }

    pub(super) fn store_answer(&mut self, host: usize, container: ContainerId, reply: StoreReply) {
        let member = self.member(host, container);
        let outcome = match reply {
            StoreReply::View(view) => {
                member.reading = false;
                return self.step(host, container, Input::View(view));
            }
            StoreReply::Won(id) if member.cas == Some(id) => CasOutcome::Won,
            StoreReply::Lost(id, view) if member.cas == Some(id) => CasOutcome::Lost(view),
            StoreReply::Won(_) | StoreReply::Lost(..) | StoreReply::Unavailable(_) => return,
        };
        member.cas = None;
        self.step(host, container, Input::ViewDecided(outcome));
    }

    pub(super) fn store_timeout(&mut self, host: usize, container: ContainerId, id: Option<u64>) {
        let member = self.member(host, container);
        match id {
            Some(id) if member.cas == Some(id) => {
                member.cas = None;
                self.step(host, container, Input::ViewDecided(CasOutcome::Unknown));
            }
            Some(_) => {}
            None => {
                member.reading = false;
                if member.chain.view().is_none() {
                    self.read_view(host, container);
                }
            }
        }
    }

    pub(super) fn member(&mut self, host: usize, container: ContainerId) -> &mut Member {
        let process = self.process(host);
        process
            .members
            .get_mut(&container)
            .expect("a process has every container")
    }
}
