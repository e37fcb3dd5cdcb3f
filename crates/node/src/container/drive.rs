//! Performs what the chain protocol decides, and keeps its time.

use super::gather::{Due, Weight};
use super::{After, Container, Elsewhere, State, Unapplied, Waiter};
use bytes::Bytes;
use perigee_meta::Key;
use perigee_net::{Call, PeerName};
use perigee_proto::Rpc;
use perigee_proto::message::chain::Envelope;
use perigee_replica::Origin;
use perigee_replica::{Entry, Holds, Input, LogWrite, Message, Output, PersistId, Role};
use perigee_store::{Space, WriteBatch};
use perigee_types::{Batch, DataCommand, Epoch, InodeId, NodeId, Seq, Span, Tick, Version};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::error;

/// Committed effects gather until there are this many, or the linger is over.
const APPLY_MAX: usize = 2_000;

/// More records than this that are not replicated yet: programs wait. All of them must fit into the
/// store's queue, since whoever holds the lock must not wait for it.
pub(super) const BACKLOG_MAX: usize = 20_000;

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
        id: perigee_types::ContainerId,
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

/// The log's key of a place.
pub(super) fn log_key(seq: Seq) -> [u8; 8] {
    seq.0.to_be_bytes()
}

impl State {
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
        self.wake.notify_one();
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

    /// Puts a write of the log on its way to the disk, with the committed effects that are at hand.
    fn persist(self: &Arc<Self>, st: &mut State, id: PersistId, write: &LogWrite) {
        st.intents.put_again(&self.env);
        let mut batch = WriteBatch::default();
        if let Some(from) = write.truncate_from {
            batch.delete_range(Space::Log(self.id), &log_key(from), None);
        }
        for entry in &write.append {
            let key = log_key(entry.version.seq);
            batch.put(Space::Log(self.id), &key, &perigee_proto::encode(entry));
        }
        if let Some(through) = write.trim_through {
            batch.delete_range(Space::Log(self.id), &[], Some(&log_key(through.next())));
        }
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
        self.submit(st, batch, Some(id));
    }

    /// Submits a batch together with the committed effects at hand, the marks of invalid regions,
    /// and the chain's own record.
    fn submit(self: &Arc<Self>, st: &mut State, mut batch: WriteBatch, persist: Option<PersistId>) {
        let submitted = st.applied.seq;
        // A directory's row changes with each of its names: the last of them is enough.
        let mut rows: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        for unapplied in st
            .unapplied
            .iter()
            .filter(|unapplied| unapplied.version.seq > submitted)
        {
            for mutation in &unapplied.batch.mutations {
                rows.insert(&mutation.key, mutation.value.as_deref());
            }
            st.applied = unapplied.version;
        }
        let space = Space::State(self.id);
        for (key, value) in rows {
            match value {
                Some(value) => batch.put(space, key, value),
                None => batch.delete(space, key),
            }
        }
        batch.append(std::mem::take(&mut st.marks));
        let applied = st.applied;
        let stored = Stored {
            promised: st.chain.promised(),
            complete: st.complete,
            committed: st.chain.committed(),
            base: st.chain.base(),
            applied,
            data_done: st.data_done,
        };
        batch.put(Space::Local(self.id), HARD, &perigee_proto::encode(&stored));
        // It says of the records before it that they are on the disk.
        batch.keep_order(self.id);
        st.persisting += 1;
        let me = self.clone();
        self.env.store.submit(
            batch,
            Box::new(move |result| me.submitted(persist, applied.seq, result)),
        );
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
            st.persisting -= 1;
            match result {
                Err(error) => {
                    error!(container = %self.id, %error, "log cannot be written");
                    self.store_refused(&error);
                    self.step_locked(&mut st, Input::PersistFailed, &mut after);
                }
                Ok(()) => {
                    st.applied_on_disk(applied);
                    if let Some(id) = persist {
                        self.step_locked(&mut st, Input::Persisted(id), &mut after);
                    }
                }
            }
        }
        after.run();
        self.wake.notify_one();
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
        let mut undone = Vec::new();
        let mut damaged = BTreeSet::new();
        for entry in entries {
            let batch = match decode_batch(&entry.payload) {
                Ok(batch) => batch,
                Err(error) => {
                    error!(container = %self.id, version = %entry.version, %error, "record unreadable");
                    Batch::default()
                }
            };
            if entry.version.seq > st.overlay.last() {
                st.overlay.apply(entry.version.seq, &batch);
            }
            undone.extend(self.obey(st, entry.version, &batch.data));
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
        st.extracted = st.extracted.max(through);
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
        batch: &Batch,
        urgent: bool,
    ) -> Result<Seq, Elsewhere> {
        let ended = Self::with_rows_ended(st, batch);
        let batch = ended.as_ref().unwrap_or(batch);
        let kept = self.with_past_kept(st, now, batch)?;
        let batch = kept.as_ref().unwrap_or(batch);
        let payload: Bytes = perigee_proto::encode(batch);
        let weight = Weight::of(payload.len(), &batch.data);
        let version = st
            .chain
            .propose(now, payload)
            .map_err(|_| Elsewhere::NotReady)?;
        st.overlay.apply(version.seq, batch);
        st.own.insert(version.epoch);
        self.note_checkpoints(st, batch);
        for command in &batch.data {
            note_data(&mut st.data_last, command, version.seq);
            st.intents.on_recorded(version.seq, command.inode());
            st.pull.on_command(version, command, Origin::Own);
        }
        for mutation in batch
            .mutations
            .iter()
            .filter(|mutation| mutation.value.is_some())
        {
            if let Some(Key::Orphan(index)) = Key::decode(&mutation.key) {
                st.orphans.insert(InodeId::new(self.id, index));
            }
        }
        if st.gathering.add(now, weight) == Due::Changed {
            self.wake.notify_one();
        }
        if urgent {
            self.hurry(st);
        }
        Ok(version.seq)
    }

    /// Somebody waits for what is not sent yet.
    pub(super) fn hurry(&self, st: &mut State) {
        if !st.urgent {
            st.urgent = true;
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
        if st.data_last.is_empty() {
            return;
        }
        let through = self.hear_of_data(st).min(st.synced);
        st.data_last.retain(|_, seq| *seq > through);
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
            if self.failing.load(Ordering::Relaxed) && !matches!(st.role, Role::Outside) {
                self.step_locked(&mut st, Input::PersistFailed, &mut after);
            }
            if st.chain.next_wakeup() <= now {
                self.step_locked(&mut st, Input::Tick, &mut after);
            }
            let mut next = st.chain.next_wakeup();
            if let Some(due) = st.gathering.due() {
                let is_due = st.urgent || due <= now;
                if is_due && st.persisting == 0 {
                    self.record_due_writes(&mut st, now);
                    st.gathering.clear();
                    st.urgent = false;
                    self.step_locked(&mut st, Input::Flush, &mut after);
                } else if !is_due {
                    next = next.min(due);
                }
            } else if st.urgent {
                // All is sent; the answers are on their way.
                st.urgent = false;
            }
            if st.gathering.is_empty()
                && let Some(due) = st.dirty.next_due()
            {
                // Writes wait for their record: at that time they are unsent.
                if due <= now {
                    _ = st.gathering.begin(now);
                }
                next = next.min(due);
            }
            if st.applied.seq < st.extracted && st.persisting == 0 {
                let many = st.unapplied.len() >= APPLY_MAX;
                if many || st.gathering.is_empty() {
                    self.submit(&mut st, WriteBatch::default(), None);
                }
            }
            if now.since(st.swept) > SWEEP {
                st.swept = now;
                st.leases.sweep(now);
                self.forget_settled(&mut st);
            }
            next.max(now + Span::from_millis(1))
        };
        after.run();
        next
    }

    /// Whether so much waits for replication that programs should wait too.
    pub(super) fn is_backed_up(&self, st: &State) -> bool {
        st.overlay.records() > BACKLOG_MAX
    }
}

/// Reads a record's effects. An empty record begins an epoch, and has none.
pub(super) fn decode_batch(payload: &[u8]) -> Result<Batch, perigee_proto::service::Malformed> {
    if payload.is_empty() {
        return Ok(Batch::default());
    }
    perigee_proto::decode(payload)
}

/// A record concerns a file's content: what has to get to every disk, as long as the file is there.
pub(super) fn note_data(last: &mut BTreeMap<InodeId, Seq>, command: &DataCommand, seq: Seq) {
    match command {
        DataCommand::Removed { inode } => last.remove(inode),
        _ => last.insert(command.inode(), seq),
    };
}
