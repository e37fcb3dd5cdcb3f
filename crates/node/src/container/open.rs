//! A container comes to life on this node: what the disk has, and what the control store says.

use super::drive::{Stored, VIEW};
use super::log_rows;
use super::logged::Logged;
use super::transfer::RECEIVING;
use super::visitors::Visitors;
use super::{After, Container, Dirty, Leases, Overlay, State, transfer};
use crate::env::Env;
use parking_lot::{Mutex, RwLock};
use perigee_cluster::rebuild::{Held, Place};
use perigee_meta::Answers;
use perigee_meta::tx::Transactions;
use perigee_replica::Pull;
use perigee_replica::{Chain, ChainView, Config, Entry, HardState, Input, Limits, Role, Timing};
use perigee_store::{Space, Store, StoreError, WriteBatch};
use perigee_types::{Batch, ContainerId, Epoch, Seq, Tick, Version};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tracing::{info, warn};

impl Container {
    /// Opens what this node's disk has of a container. `view`: what the control store says now.
    /// Blocks on the disk.
    pub(crate) fn open(
        env: &Arc<Env>,
        id: ContainerId,
        view: &ChainView,
    ) -> Result<Arc<Self>, StoreError> {
        let store = &env.store;
        if store.get(Space::Local(id), RECEIVING)?.is_some() {
            warn!(container = %id, "an unfinished state transfer is discarded");
            store.wipe_container(id)?;
        }
        let listed = view.lists(env.me);
        store.begin_order(id);
        let mut stored = Stored::read(store, id)?;
        if stored.is_none() && listed && view.epoch == Epoch(1) {
            format(env, id)?;
            stored = Stored::read(store, id)?;
        }
        let known = stored.is_some() || !(listed && view.epoch > Epoch(1));
        let fresh = stored.is_none();
        let stored = stored.unwrap_or_default();
        let log_rows::StoredLog { rows, entries } = log_rows::read(store, id, stored.base.seq)?;
        info!(container = %id, epoch = %view.epoch, records = entries.len(), known, "container opened");
        let hard = HardState {
            promised: stored.promised,
            complete: stored.complete,
            view: read_view(store, id)?,
            committed: stored.committed,
            base: stored.base,
            entries: entries.clone(),
        };
        let now = env.clock.now();
        let config = Config {
            me: env.me,
            timing: Timing::default(),
            limits: Limits::default(),
        };
        super::intents::give_up(env, id)?;
        let kept = perigee_meta::key::Lane::Past;
        let mut pull = Pull::new().with_kept(kept.first()..=kept.last());
        pull.note_committed(stored.applied);
        for (inode, invalid) in store.invalid_objects(id)? {
            pull.restore(inode, invalid, stored.applied);
        }
        // Kernels may hold what an earlier process of this node allowed them to.
        let settled = fresh || stored.promised == Epoch(0);
        let changes_from = if settled {
            Tick(0)
        } else {
            now + perigee_meta::lease::TERM
        };
        let last = entries
            .last()
            .map_or(stored.base.seq, |entry| entry.version.seq);
        let state = State {
            chain: Chain::new(config, hard, known, now),
            role: Role::Outside,
            pull,
            overlay: Overlay::default(),
            leases: Leases::new(env.me),
            lock_queue: perigee_meta::queue::LockQueue::default(),
            away: super::hold::Away::default(),
            alone: super::alone::Alone::default(),
            unsent: super::hold::Unsent::default(),
            dirty: Dirty::default(),
            gathering: super::gather::Gathering::default(),
            full_at: None,
            lies_since: None,
            announced: Tick(0),
            commit_waiters: BTreeMap::new(),
            persisting: 0,
            log_rows: rows,
            logged: Logged::default(),
            unapplied: VecDeque::new(),
            unsubmitted: None,
            extracted: stored.applied.seq,
            applied: stored.applied,
            reigning: false,
            reigns_from: Tick(0),
            losses_noted: false,
            changes_from,
            data: perigee_replica::Unsettled::default(),
            removals: BTreeMap::new(),
            data_elsewhere: Seq::ZERO,
            lock_tables: None,
            visitors: Visitors::default(),
            answers: Answers::default(),
            mark: None,
            work: perigee_replica::Work::default(),
            moving: false,
            given_away: 0,
            content: None,
            written: 0,
            hands_over_from: Tick(0),
            cedes_since: None,
            move_over: None,
            candidate: None,
            former: super::member::Former::default(),
            avoid: BTreeMap::new(),
            refusals: super::refusals::Refusals::default(),
            dismissed_full_at: None,
            transactions: Transactions::new(id),
            own: BTreeSet::new(),
            distrusted_through: last,
            uncertain: super::uncertain::Uncertain::of(&entries),
            intents: super::intents::Intents::default(),
            marks: WriteBatch::default(),
            held: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            synced: Seq::ZERO,
            data_done: stored.data_done,
            looks_at: now,
            swept: now,
            damaged: BTreeMap::new(),
            lost_unsynced: BTreeSet::new(),
            complete: stored.complete,
            receiving: false,
            orphans: BTreeSet::new(),
            reaped_through: None,
            spared: BTreeSet::new(),
            checkpoints: perigee_meta::past::Checkpoints::default(),
            keeping: perigee_meta::past::Keeping::default(),
            stopped: None,
            stops: 0,
            unlisted: BTreeSet::new(),
        };
        let container = Arc::new(Self {
            id,
            env: env.clone(),
            state: Mutex::new(state),
            wake: Notify::new(),
            held: Notify::new(),
            refill: Notify::new(),
            sources_changed: Notify::new(),
            progress: Notify::new(),
            files: Mutex::new(HashMap::new()),
            installs: RwLock::new(()),
            unseen: super::unseen::UnseenWrites::default(),
            heat: env.heats.of(id),
            abroad: Arc::default(),
            snapshots: Mutex::new(transfer::Snapshots::default()),
            failing: AtomicBool::new(false),
            lost_records: AtomicBool::new(false),
            drops_columns: AtomicBool::new(false),
            forgetting: AtomicBool::new(false),
            looks_often: AtomicBool::new(false),
            tasks: Mutex::default(),
        });
        container.replay(&entries, stored.data_done);
        Ok(container)
    }

    /// What a node's disk has of a container, for a control store that is made anew; `None`: nothing but files.
    pub(crate) fn on_disk(store: &Store, id: ContainerId) -> Result<Option<Held>, StoreError> {
        let stored = Stored::read(store, id)?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let view = read_view(store, id)?;
        let receiving = store.get(Space::Local(id), RECEIVING)?.is_some();
        Ok(Some(Held {
            container: id,
            promised: stored.promised,
            complete: stored.complete && !receiving,
            place: view.map(|ChainView { epoch, chain }| Place { epoch, chain }),
        }))
    }

    /// Takes up again what was committed and not applied, and what of the data is uncertain.
    fn replay(self: &Arc<Self>, entries: &[Entry], synced: Seq) {
        let mut after = After::default();
        {
            let mut st = self.state.lock();
            let applied = st.applied.seq;
            st.overlay.clear(applied);
            let uncertain: Vec<Entry> = entries
                .iter()
                .filter(|entry| entry.version.seq > synced)
                .cloned()
                .collect();
            self.note_logged(&mut st, &uncertain);
            let mut undone = Vec::new();
            for entry in uncertain
                .iter()
                .filter(|entry| entry.version.seq <= applied)
            {
                match super::drive::decode_batch(&entry.payload) {
                    Ok(batch) => undone.extend(self.obey(&mut st, entry.version, &batch.data)),
                    Err(error) => {
                        tracing::error!(container = %self.id, %error, "record unreadable");
                    }
                }
            }
            st.note_committed_to_pull();
            st.pull.on_committed(applied);
            self.make_up(&mut st, undone);
            let committed = st.chain.committed();
            if committed > applied {
                self.note_committed(&mut st, committed, &mut after);
            }
        }
        after.run();
    }

    /// Starts the container's tasks, and tells it what the control store says.
    pub(crate) fn begin(self: &Arc<Self>, view: ChainView) {
        self.step(Input::View(view));
        let runtime = &self.env.runtime;
        let me = || self.clone();
        let (pump, refill, settle, hold) = (me(), me(), me(), me());
        let tasks = [
            runtime.spawn(async move { pump.pump().await }),
            runtime.spawn(async move { refill.refill_loop().await }),
            runtime.spawn(async move { settle.settle_loop().await }),
            runtime.spawn(async move { hold.hold_loop().await }),
        ];
        *self.tasks.lock() = tasks.map(|task| task.abort_handle()).to_vec();
    }

    /// Whether this node has no part in the chain, and is not on its way into it.
    pub(crate) fn is_outside(&self) -> bool {
        matches!(self.state.lock().role, Role::Outside)
    }

    /// Whether nobody but the container's own tasks, the list of containers and the caller hold it.
    pub(crate) fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) <= self.tasks.lock().len() + 2
    }

    /// Whether this node has left it since its disk had no room for records.
    pub(crate) fn has_lost_records(&self) -> bool {
        self.lost_records.load(Ordering::Relaxed)
    }

    /// Whether what this node keeps of it can be relied on no more, until it is started again.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed) || self.env.store.read_only(self.id).is_some()
    }

    /// What is in place here for records that are not on the disk is given up, and the files, with all that is known of them,
    /// are put on the disk: [`Self::open`] goes by what is there. Nobody works with the container any more. Blocks on the disk.
    pub(crate) fn give_up_unrecorded(&self) -> Result<(), StoreError> {
        let (env, id) = (&self.env, self.id);
        let base = Stored::read(&env.store, id)?.unwrap_or_default().base;
        let on_disk = log_rows::read(&env.store, id, base.seq)?.entries;
        let on_disk: BTreeSet<Version> = on_disk.iter().map(|entry| entry.version).collect();
        let marks = {
            let mut st = self.state.lock();
            let (base, last) = (st.chain.base().seq, st.chain.last().seq);
            let unrecorded =
                |entry: &&Entry| entry.version.seq > base && !on_disk.contains(&entry.version);
            let lost = st.chain.entries(base.next(), last).filter(unrecorded);
            let lost: Vec<Entry> = lost.cloned().collect();
            // Nothing older is there either.
            let committed = st.chain.committed_version();
            for needed in [Version::default(), committed] {
                self.distrust(&mut st, &lost, needed);
            }
            std::mem::take(&mut st.marks)
        };
        env.store.commit_with_objects(id, marks)
    }

    /// Ends its tasks: nobody is to use it any more.
    pub(crate) fn close(&self) {
        for task in std::mem::take(&mut *self.tasks.lock()) {
            task.abort();
        }
    }
}

/// Writes the first contents of a container that is this node's from its beginning. The root
/// directory belongs to the user of the first node: a user without privileges has to be able to work in it.
fn format(env: &Env, id: ContainerId) -> Result<(), StoreError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let root = (id == ContainerId::ROOT).then_some((uid.as_raw(), gid.as_raw(), 0o755));
    let first: Batch = perigee_meta::format_container(id, env.clock.wall(), root);
    let mut batch = WriteBatch::default();
    for mutation in &first.mutations {
        if let Some(value) = &mutation.value {
            batch.put(Space::State(id), &mutation.key, value);
        }
    }
    let stored = perigee_proto::encode(&Stored {
        complete: true,
        ..Stored::default()
    });
    batch.put(Space::Local(id), super::drive::HARD, &stored);
    env.store.commit(batch)
}

/// The newest view under which anything was written here.
fn read_view(store: &Store, id: ContainerId) -> Result<Option<ChainView>, StoreError> {
    let Some(bytes) = store.get(Space::Local(id), VIEW)? else {
        return Ok(None);
    };
    perigee_proto::decode(&bytes)
        .map(Some)
        .map_err(|error| StoreError::Damaged {
            what: format!("chain view of {id}: {error}"),
        })
}
