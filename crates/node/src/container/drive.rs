//! Performs what the chain protocol decides, and keeps its time.

use super::gather::Weight;
use super::payload::{self, CarriedParts, Carrying, Payload};
use super::view::{len_of, stored_len};
use super::{After, Container, Elsewhere, State, Unapplied, Waiter};
use perigee_meta::{Key, key};
use perigee_net::{Call, PeerName};
use perigee_proto::Rpc;
use perigee_proto::message::chain::Envelope;
use perigee_replica::Origin;
use perigee_replica::{Entry, Holds, Input, LogWrite, Message, Output, PersistId, Role};
use perigee_store::{Space, WithoutRoom, WriteBatch};
use perigee_types::{
    Batch, ContainerId, DataCommand, Epoch, InodeId, Mutation, NodeId, Seq, Span, Tick, Version,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::error;

/// Committed effects gather until there are this many, since rows lie in the order of hashes: what a write of them costs
/// hardly grows with their number,
const APPLY_MAX: u64 = 2_000;

/// or so many bytes, each of which is on its way to the disk at once: a part of what the store's queue takes;
const APPLY_BYTES: usize = 4 << 20;

/// or until the first has waited for so long. Until then they are in memory, and in the log.
const APPLY_AFTER: Span = Span::from_millis(1_000);

/// More records than this that are not replicated yet, or more bytes of those that are not sent: programs wait. All of them must
/// fit into the store's queue, since whoever holds the lock must not wait for it.
pub(super) const BACKLOG_MAX: usize = 20_000;
const BACKLOG_BYTES_MAX: usize = 16 << 20;

/// How often what has ended by itself is looked for.
const SWEEP: Span = Span::from_millis(500);

/// Where this node keeps what the chain protocol must find again, in the container's local space.
pub(super) const HARD: &[u8] = b"chain";

/// Where the newest view lies under which anything was written here: for a control store that is made anew.
pub(super) const VIEW: &[u8] = b"view";

/// Everything of [`perigee_replica::HardState`] but the entries and the view, and how far they have come here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) promised: Epoch,
    pub(super) complete: bool,
    pub(super) committed: Seq,
    pub(super) base: Version,
    /// The key-value state includes every record up to here.
    pub(super) applied: Version,
    /// What the data commands up to here did is on disk. What later ones did is uncertain after a
    /// restart.
    pub(super) data_done: Seq,
}

impl Stored {
    pub(super) fn read(
        store: &perigee_store::Store,
        id: ContainerId,
    ) -> Result<Option<Self>, perigee_store::StoreError> {
        let Some(bytes) = store.get(Space::Local(id), HARD)? else {
            return Ok(None);
        };
        perigee_proto::decode(&bytes).map(Some).map_err(|error| {
            perigee_store::StoreError::Damaged {
                what: format!("chain record of {id}: {error}"),
            }
        })
    }
}

/// Committed effects that are not on their way to the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unsubmitted {
    /// When the first of them was committed.
    since: Tick,
    /// Bytes of their rows.
    bytes: usize,
}

impl State {
    /// When committed effects are to go to the disk, if any may.
    fn applies_at(&self) -> Option<Tick> {
        let waiting = self
            .unsubmitted
            .filter(|_| !matches!(self.role, Role::Outside))?;
        let records = self.extracted.0.saturating_sub(self.applied.seq.0);
        let is_much = records >= APPLY_MAX || waiting.bytes >= APPLY_BYTES;
        Some(if is_much {
            waiting.since
        } else {
            waiting.since + APPLY_AFTER
        })
    }

    /// When there is something to do without a new event, besides writes that wait for their record; a time that has passed: now.
    fn next_look(&self) -> Tick {
        let mut next = self.chain.next_wakeup();
        // While the log is being written nothing leaves; its end is an event.
        if self.persisting == 0 {
            let effects = self.applies_at().map(|at| self.behind_group(at));
            for due in [self.gathering.due(), effects].into_iter().flatten() {
                next = next.min(due);
            }
        }
        next
    }

    /// Effects that are due then follow the next write of the log, if there is to be one soon.
    fn behind_group(&self, at: Tick) -> Tick {
        if self.gathering.is_empty() {
            at
        } else {
            at + APPLY_AFTER
        }
    }

    /// How long a file is by the newest committed row of it, in bytes; 0 where there is no such file.
    pub(super) fn committed_len(
        &self,
        store: &perigee_store::Store,
        inode: InodeId,
    ) -> Result<u64, perigee_store::StoreError> {
        let key = Key::Inode(inode.index()).encode();
        let newest_first = self.unapplied.iter().rev();
        let mut rows = newest_first.flat_map(|unapplied| unapplied.batch.mutations.iter().rev());
        match rows.find(|mutation| mutation.key == key) {
            Some(row) => Ok(len_of(inode, row.value.as_deref())),
            None => stored_len(store, inode),
        }
    }

    /// What bytes of a file that are valid here are as of.
    pub(super) fn content_version_of(&self, inode: InodeId) -> Version {
        // What is not among these is on every disk, and so committed.
        let removal = self.removals.get(&inode).copied();
        let changed = self.data.last(inode).max(removal);
        self.chain.content_version_of(changed.unwrap_or(Seq::ZERO))
    }

    /// The record that must be on every member before a session is told what goes up to `seq`; one at home need not wait.
    pub(super) fn before_telling(&self, local: bool, seq: Seq) -> Option<Version> {
        (!local && seq > self.chain.committed()).then(|| self.chain.version_at(seq))
    }
}

impl Container {
    /// Gives the protocol an event, and performs what follows.
    pub(crate) fn step(self: &Arc<Self>, input: Input) {
        let mut after = After::default();
        {
            let mut st = self.state.lock();
            self.step_locked(&mut st, input, &mut after);
        }
        after.run();
    }

    pub(super) fn step_locked(self: &Arc<Self>, st: &mut State, input: Input, after: &mut After) {
        let now = self.env.clock.now();
        let mut outputs = Vec::new();
        st.chain.step(now, input, &mut outputs);
        for output in outputs {
            match output {
                Output::Send { to, message } => self.send(to, &message),
                Output::Persist { id, write } => self.persist(st, id, &write),
                Output::Committed { through } => self.note_committed(st, through, after),
                Output::Truncated { entries, needed } => self.distrust(st, &entries, needed),
                Output::ProposeView { expect, view } => self.propose_view(expect, view),
                Output::ReadView => self.read_view(),
                Output::Role(role) => self.enter(st, role, after),
                Output::NeedState { from } => self.receive_state(st, from),
                Output::Fault(fault) => {
                    error!(container = %self.id, %fault, "replication fault");
                }
            }
        }
        self.release_held(st);
        self.look_in_time(st);
    }

    fn send(&self, to: NodeId, message: &Message) {
        let call = Call {
            method: Envelope::METHOD,
            body: perigee_proto::encode(&Envelope { container: self.id }),
            payload: perigee_proto::encode(message),
        };
        self.env
            .network()
            .cast(PeerName::Node(to), call, Envelope::PRIORITY);
    }

    /// Puts a write of the log on its way to the disk, with the committed effects that are due.
    fn persist(self: &Arc<Self>, st: &mut State, id: PersistId, write: &LogWrite) {
        st.intents.put_again(&self.env);
        let mut batch = WriteBatch::default();
        st.log_rows.put(self.id, write, &mut batch);
        if let Some(last) = write.append.last() {
            let State {
                intents,
                dirty,
                unsent,
                ..
            } = st;
            let waits = |inode| dirty.get(inode).is_some() || unsent.keeps(inode);
            intents.on_persist(last.version.seq, waits, &mut batch);
        }
        if let Some(view) = &write.view {
            let view = perigee_proto::encode(view);
            batch.put(Space::Local(self.id), VIEW, &view);
        }
        st.complete |= write.complete;
        self.note_logged(st, &write.append);
        // What is trimmed from the log is nowhere else.
        let trims = write
            .trim_through
            .is_some_and(|through| through > st.applied.seq);
        if trims {
            apply(st, self.id, &mut batch);
        }
        self.submit(st, batch, Some(id));
        // Behind the log, for which somebody waits.
        if st.applies_at().is_some_and(|at| at <= self.env.clock.now()) {
            self.apply_now(st);
        }
    }

    /// Committed effects go to the disk, if any wait for that.
    pub(super) fn apply_now(self: &Arc<Self>, st: &mut State) {
        if st.applies_at().is_some() {
            let mut batch = WriteBatch::default();
            apply(st, self.id, &mut batch);
            self.submit(st, batch, None);
        }
    }

    /// Submits a batch together with the marks of invalid regions, and the chain's own record.
    fn submit(self: &Arc<Self>, st: &mut State, mut batch: WriteBatch, persist: Option<PersistId>) {
        batch.append(std::mem::take(&mut st.marks));
        let applied = st.applied;
        let stored = Stored {
            promised: st.chain.promised(),
            complete: st.complete,
            committed: st.chain.committed(),
            base: st.chain.base(),
            applied,
            // After a start, what a record does to the data is looked at together with its rows.
            data_done: st.data_done.min(applied.seq),
        };
        batch.put(Space::Local(self.id), HARD, &perigee_proto::encode(&stored));
        // It says of the records before it that they are on the disk.
        batch.keep_order(self.id);
        // Where others have it, they go on without this node.
        if st
            .chain
            .view()
            .is_some_and(|view| view.is_alone(self.env.me))
        {
            batch.set_without_room(WithoutRoom::Waits);
        }
        // Rows alone keep nobody waiting.
        st.persisting += u32::from(persist.is_some());
        let me = self.clone();
        let done = move |result: Result<(), _>| match result {
            Ok(()) => me.submitted(persist, applied.seq, Ok(())),
            // A store that takes nothing more says so at once, to who has the container's lock.
            Err(error) => {
                let runtime = me.env.runtime.clone();
                runtime.spawn(async move { me.submitted(persist, applied.seq, Err(error)) });
            }
        };
        self.env.store.submit(batch, Box::new(done));
    }

    /// A batch is on the disk, or the disk failed.
    fn submitted(
        self: &Arc<Self>,
        persist: Option<PersistId>,
        applied: Seq,
        result: Result<(), perigee_store::StoreError>,
    ) {
        let mut after = After::default();
        {
            let mut st = self.state.lock();
            st.persisting -= u32::from(persist.is_some());
            match result {
                Err(error) => {
                    error!(container = %self.id, %error, "log cannot be written");
                    self.store_refused(&error);
                    if matches!(error, perigee_store::StoreError::NoSpace) {
                        self.lost_records.store(true, Ordering::Relaxed);
                    }
                    self.step_locked(&mut st, Input::PersistFailed, &mut after);
                }
                Ok(()) => {
                    st.applied_on_disk(applied);
                    if let Some(id) = persist {
                        self.step_locked(&mut st, Input::Persisted(id), &mut after);
                    }
                }
            }
            self.look_in_time(&mut st);
        }
        after.run();
    }

    /// Everything up to `through` may go into the key-value state, and be shown to other hosts.
    pub(super) fn note_committed(
        self: &Arc<Self>,
        st: &mut State,
        through: Seq,
        after: &mut After,
    ) {
        let entries: Vec<Entry> = st
            .chain
            .entries(st.extracted.next(), through)
            .cloned()
            .collect();
        let mut bytes = 0usize;
        let mut undone = Vec::new();
        let mut damaged = BTreeSet::new();
        for entry in entries {
            let decoded = match st.logged.take(entry.version) {
                Some(batch) => Ok(batch),
                None => decode_batch(&entry.payload),
            };
            let batch = match decoded {
                Ok(batch) => batch,
                Err(error) => {
                    error!(container = %self.id, version = %entry.version, %error, "record unreadable");
                    Batch::default()
                }
            };
            // What another node has ordered is read here by nobody until this one reigns.
            if st.reigning && entry.version.seq > st.overlay.last() {
                st.overlay.apply(entry.version.seq, &batch);
            }
            undone.extend(self.obey(st, entry.version, &batch.data));
            let rows = batch.mutations.iter();
            let value_len = |row: &Mutation| row.value.as_ref().map_or(0, Vec::len);
            bytes += rows
                .map(|row| row.key.len() + value_len(row))
                .sum::<usize>();
            if !st.damaged.is_empty() {
                let touched = batch.data.iter().map(DataCommand::inode);
                damaged.extend(touched.filter(|inode| st.damaged.contains_key(inode)));
            }
            if self.changes_rows(&batch) {
                self.apply_held(st, entry.version.seq);
                self.rows_changed(st, &batch);
            }
            st.unapplied.push_back(Unapplied {
                version: entry.version,
                batch,
            });
        }
        if through > st.extracted {
            let since = self.env.clock.now();
            let waiting = st
                .unsubmitted
                .get_or_insert(Unsubmitted { since, bytes: 0 });
            waiting.bytes = waiting.bytes.saturating_add(bytes);
            st.extracted = through;
        }
        st.removals.retain(|_, seq| *seq > through);
        self.apply_held(st, through);
        self.make_up(st, undone);
        self.recheck_damaged(st, &damaged);
        self.refill.notify_one();
        self.progress.notify_waiters();
        let later = st.commit_waiters.split_off(&through.next());
        for waiters in std::mem::replace(&mut st.commit_waiters, later).into_values() {
            for waiter in waiters {
                after.push(move || waiter(Ok(())));
            }
        }
    }

    /// Orders a batch: from here on it is part of the owner's state.
    pub(super) fn order(
        &self,
        st: &mut State,
        now: Tick,
        batch: Batch,
        urgent: bool,
    ) -> Result<Seq, Elsewhere> {
        self.order_carrying(st, now, batch, Carrying::WhatItMust, urgent)
    }

    /// The same, with bytes of what it writes in the record.
    pub(super) fn order_carrying(
        &self,
        st: &mut State,
        now: Tick,
        batch: Batch,
        carrying: Carrying,
        urgent: bool,
    ) -> Result<Seq, Elsewhere> {
        let batch = Self::with_rows_ended(st, &batch).unwrap_or(batch);
        let batch = self.with_past_kept(st, now, &batch)?.unwrap_or(batch);
        let carries = self.to_carry(st, &batch, carrying);
        let payload = payload::encode(&batch, &carries);
        let carried = CarriedParts::of(&carries);
        let weight = Weight::of(payload.len(), &batch.data);
        let version = st
            .chain
            .propose(now, payload)
            .map_err(|_| Elsewhere::NotReady)?;
        st.overlay.apply(version.seq, &batch);
        st.own.insert(version.epoch);
        self.note_checkpoints(st, &batch);
        self.note_kept_files(st, &batch);
        for command in &batch.data {
            let carried = carried.by(command);
            st.data.note(version.seq, command, &carried);
            if let DataCommand::Removed { inode } = command {
                st.removals.insert(*inode, version.seq);
            }
            st.intents.on_recorded(version.seq, command.inode());
            st.pull.on_command(version, command, Origin::Own, carried);
        }
        for mutation in &batch.mutations {
            if let (Some(tables), Some(index)) =
                (&mut st.lock_tables, key::is_lock_table(&mutation.key))
            {
                _ = match mutation.value {
                    Some(_) => tables.insert(index),
                    None => tables.remove(&index),
                };
            }
            if mutation.value.is_some()
                && let Some(Key::Orphan(index)) = Key::decode(&mutation.key)
            {
                st.orphans.insert(InodeId::new(self.id, index));
            }
        }
        st.logged.push(version, batch);
        st.gathering.add(now, weight);
        if urgent {
            st.gathering.hurry();
        }
        self.look_in_time(st);
        Ok(version.seq)
    }

    /// Somebody waits for what is not sent yet, if anything is not.
    pub(super) fn hurry(&self, st: &mut State) {
        st.gathering.hurry();
        self.look_in_time(st);
    }

    /// Wakes [`Self::pump`] where it would look too late: most of what happens changes nothing for it.
    pub(super) fn look_in_time(&self, st: &mut State) {
        let next = match self.is_to_leave(st) {
            true => Tick::default(),
            false => st.next_look(),
        };
        self.look_by(st, next);
    }

    /// Whether this node counts for the container although its disk fails.
    fn is_to_leave(&self, st: &State) -> bool {
        self.failing.load(Ordering::Relaxed) && !matches!(st.role, Role::Outside)
    }

    /// The same, for what is due at `due`.
    pub(super) fn look_by(&self, st: &mut State, due: Tick) {
        if due < st.looks_at {
            st.looks_at = due;
            self.wake.notify_one();
        }
    }

    /// Waits until a record is on every member. Not only its place counts: between the moment when it was ordered and this
    /// one the container may have got another owner, who has put something else there.
    pub(super) async fn committed(&self, record: Version) -> Result<(), Elsewhere> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        {
            let mut st = self.state.lock();
            match st.chain.holds(record) {
                Holds::Yes => return Ok(()),
                Holds::NotYet if st.reigning => {}
                Holds::NotYet | Holds::Never => return Err(Elsewhere::NotReady),
            }
            // The receiver may have gone: then nobody wants to know.
            let waiter: Waiter = Box::new(move |result| _ = sender.send(result));
            let waiters = st.commit_waiters.entry(record.seq).or_default();
            waiters.push(waiter);
            self.hurry(&mut st);
        }
        receiver.await.unwrap_or(Err(Elsewhere::NotReady))
    }

    /// Up to which record every other member has said that all data is on its disk; without one, what is on this node's.
    fn data_of_members(&self, st: &State) -> Seq {
        let me = self.env.me;
        let counted = st.chain.member_progress().into_iter().filter(|member| {
            use perigee_replica::Standing::{Admitting, Member};
            member.node != me && matches!(member.standing, Member | Admitting { .. })
        });
        let data = counted.map(|member| member.data).min();
        data.unwrap_or(st.chain.committed().min(st.synced))
    }

    /// Takes note of what the members have said of their data: up to which record those of now have all of it.
    pub(super) fn hear_of_data(&self, st: &mut State) -> Seq {
        let members = self.data_of_members(st);
        st.data_elsewhere = st.data_elsewhere.max(members);
        members
    }

    /// Forgets which files' data may not be on every disk, where the members and this node's own store have said it is.
    pub(super) fn forget_settled(&self, st: &mut State) {
        if st.data.is_empty() {
            return;
        }
        let through = self.hear_of_data(st).min(st.synced);
        st.data.on_all_settled(through);
    }

    /// Sends, applies and times what is due, until the node stops.
    pub(crate) async fn pump(self: Arc<Self>) {
        loop {
            let next = self.pump_once();
            let sleep = next.since(self.env.clock.now()).as_duration();
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Does what is due; says when to look again without being woken.
    fn pump_once(self: &Arc<Self>) -> Tick {
        let mut after = After::default();
        let now = self.env.clock.now();
        let next = {
            let mut st = self.state.lock();
            if self.is_to_leave(&st) {
                self.step_locked(&mut st, Input::PersistFailed, &mut after);
            }
            if st.chain.next_wakeup() <= now {
                self.step_locked(&mut st, Input::Tick, &mut after);
            }
            if st.gathering.due().is_some_and(|due| due <= now) && st.persisting == 0 {
                self.record_due_writes(&mut st, now);
                st.gathering.clear();
                self.step_locked(&mut st, Input::Flush, &mut after);
            }
            let mut written = Tick(u64::MAX);
            if st.gathering.is_empty()
                && let Some(due) = st.dirty.next_due()
            {
                // Writes wait for their record: at that time they are unsent.
                if due <= now {
                    st.gathering.begin(now);
                } else {
                    written = due;
                }
            }
            if st.persisting == 0
                && let Some(at) = st.applies_at()
                && st.behind_group(at) <= now
            {
                self.apply_now(&mut st);
            }
            if now.since(st.swept) > SWEEP {
                st.swept = now;
                st.leases.sweep(now);
                self.forget_settled(&mut st);
            }
            let soon = now + Span::from_millis(1);
            st.looks_at = st.next_look().min(written).max(soon);
            st.looks_at
        };
        after.run();
        next
    }

    /// Whether so much waits for replication that programs should wait too.
    pub(super) fn is_backed_up(&self, st: &State) -> bool {
        st.overlay.records() > BACKLOG_MAX || st.gathering.bytes() > BACKLOG_BYTES_MAX
    }
}

/// Puts the committed effects at hand into a batch.
fn apply(st: &mut State, container: ContainerId, batch: &mut WriteBatch) {
    let submitted = st.applied.seq;
    let new = |unapplied: &&Unapplied| unapplied.version.seq > submitted;
    let records = || st.unapplied.iter().filter(new);
    let mut rows: Vec<_> = records()
        .flat_map(|unapplied| &unapplied.batch.mutations)
        .collect();
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    let space = Space::State(container);
    // A directory's row changes with each of its names: the last of them is enough.
    for same in rows.chunk_by(|one, other| one.key == other.key) {
        let Some(row) = same.last() else { continue };
        match &row.value {
            Some(value) => batch.put(space, &row.key, value),
            None => batch.delete(space, &row.key),
        }
    }
    if let Some(last) = records().next_back() {
        st.applied = last.version;
    }
    st.unsubmitted = None;
}

/// Reads a record's effects. An empty record begins an epoch, and has none.
pub(super) fn decode_batch(payload: &[u8]) -> Result<Batch, perigee_proto::service::Malformed> {
    Payload::decode(payload).map(|payload| payload.batch)
}
