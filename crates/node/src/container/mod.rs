//! One container on this node: the driver around its protocols.
//!
//! The protocols ([`Chain`], [`Pull`], [`perigee_meta::execute`]) decide; this performs what they
//! decide on the store and the network, and feeds back what happened. All decisions are made under
//! one lock, [`State`]; disk and network work happens outside it, except for what the order of
//! records must not be separated from.

mod abroad;
mod alone;
mod checkpoint;
mod dirty;
mod drive;
mod execute;
mod gather;
mod gentle;
mod heal;
mod hold;
mod in_force;
mod in_place;
mod install;
mod intents;
mod locks;
mod log_rows;
mod logged;
mod member;
mod moves;
mod nobody;
mod open;
mod past;
mod past_shown;
mod payload;
mod read;
mod reap;
mod record;
mod refill;
mod refusals;
mod repeat;
mod role;
mod serve;
mod sync;
mod taken;
mod transact;
mod transfer;
mod trash;
mod uncertain;
mod unseen;
mod view;
mod visitors;
mod write;

use crate::env::Env;
use crate::heat::Heat;
use dirty::Dirty;
use parking_lot::{Mutex, RwLock};
use perigee_meta::past::{Checkpoints, Keeping};
use perigee_meta::queue::LockQueue;
use perigee_meta::tx::Transactions;
use perigee_meta::{Answers, Leases, Overlay};
use perigee_replica::{Chain, Role};
use perigee_replica::{FetchId, Pull, Work};
use perigee_store::{Object, WriteBatch};
use perigee_types::{
    Batch, ContainerId, Epoch, Errno, InodeId, InodeIndex, NodeId, Seq, SnapshotId, Tick, Version,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::Notify;
use visitors::Visitors;

pub(crate) use execute::{Request, Told, changes};
pub(crate) use heal::Damage;
pub(crate) use hold::{AsHolder, is_well_formed, shown};
pub(crate) use repeat::{Repeatable, Word};
pub(crate) use role::Standing;
pub(crate) use taken::{NotTaken, Taken};
pub(crate) use unseen::ThroughDaemon;
pub(crate) use write::{Content, Kept, WriteRequest};

/// Why a container's owner-side work did not happen here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Elsewhere {
    /// Another node owns the container.
    #[error("another node owns the container")]
    NotOwner,
    /// This node owns it, or is about to, and cannot act for the moment.
    #[error("the owner cannot act for the moment")]
    NotReady,
}

/// Why an operation has no result: the program's error, or the wrong place to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The program's error.
    Errno(Errno),
    /// Ask the owner, or ask again.
    Elsewhere(Elsewhere),
}

impl From<Elsewhere> for Failed {
    fn from(elsewhere: Elsewhere) -> Self {
        Self::Elsewhere(elsewhere)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Takes the result of owner-side work.
pub(crate) type Answer<T> = Box<dyn FnOnce(Result<T, Failed>) + Send>;

/// Goes on when a record is replicated, or when this node is no longer the one to say so.
pub(crate) type Waiter = Box<dyn FnOnce(Result<(), Elsewhere>) + Send>;

/// Work found under the lock, to be done when it is released.
#[derive(Default)]
pub(crate) struct After(Vec<Box<dyn FnOnce() + Send>>);

impl After {
    fn push(&mut self, work: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(work));
    }

    fn run(self) {
        for work in self.0 {
            work();
        }
    }
}

/// One file's data on this node.
pub(crate) struct File {
    /// Writers share it; who needs content and records to agree takes it alone (rule F1).
    pub(crate) still: RwLock<()>,
    /// One append at a time, since each needs the size that the one before left.
    pub(crate) append: Mutex<()>,
    /// Held while content of it is copied for a checkpoint.
    pub(crate) keeping: Mutex<()>,
    /// Held while decided bytes are written; nothing else is locked meanwhile.
    pub(crate) installing: Mutex<()>,
    pub(crate) object: Arc<Object>,
}

/// An effect that is committed and not yet in the key-value state.
pub(crate) struct Unapplied {
    version: Version,
    batch: Batch,
}

/// What the lock guards.
pub(crate) struct State {
    chain: Chain,
    role: Role,
    pull: Pull,
    overlay: Overlay,
    leases: Leases,
    lock_queue: LockQueue,
    /// Chunks of files that belong to other members.
    away: hold::Away,
    /// Files that programs of this host write past the daemon, while nobody else uses them.
    alone: alone::Alone,
    /// Chunks of files that belong to this one.
    unsent: hold::Unsent,
    dirty: Dirty,
    /// Writes without a record, and records not yet sent.
    gathering: gather::Gathering,
    /// When members heard last what is committed because somebody waits for their data.
    announced: Tick,
    commit_waiters: BTreeMap<Seq, Vec<Waiter>>,
    /// A log write is on its way to the disk; the next one gathers until it is there.
    persisting: u32,
    log_rows: log_rows::LogRows,
    /// What the records that are not committed do.
    logged: logged::Logged,
    /// Committed, and not known to be in the key-value state on disk; ascending.
    unapplied: VecDeque<Unapplied>,
    /// Those of them that are not on their way there.
    unsubmitted: Option<drive::Unsubmitted>,
    /// Records that have been taken over into `unapplied`.
    extracted: Seq,
    /// Records that are in the key-value state, or on the way to it.
    applied: Version,
    /// This node has ordered records, and been owner without a break since.
    reigning: bool,
    /// Programs are to hear what goes with this reign: it is over, or another node has answered in its place.
    losses_noted: bool,
    /// When the reign began.
    reigns_from: Tick,
    /// No change is taken before this moment: leases that an earlier process gave may stand.
    changes_from: Tick,
    /// The owner's account of the data that may not be in place on every disk.
    data: perigee_replica::Unsettled,
    /// Files whose removal is ordered and not committed, and its record.
    removals: BTreeMap<InodeId, Seq>,
    /// Up to which record all data has been on the disk of every other member of its time.
    data_elsewhere: Seq,
    /// The inodes that have a table of locks, where it is known.
    lock_tables: Option<BTreeSet<InodeIndex>>,
    /// Whether programs of other hosts may have something of it open.
    visitors: Visitors,
    /// How far the last look at `orphans` came.
    reaped_through: Option<InodeId>,
    /// Operations of other nodes' sessions whose answers are kept for repeats.
    answers: Answers,
    /// Transactions over several containers that this one has a part in.
    transactions: Transactions,
    /// Epochs in which this process ordered records.
    own: BTreeSet<Epoch>,
    /// Records up to here may have left traces in the data that nobody knows of.
    distrusted_through: Seq,
    /// What those up to there have written.
    uncertain: uncertain::Uncertain,
    /// Where bytes without a record may be.
    intents: intents::Intents,
    /// Marks of invalid regions that go to disk with the next batch.
    marks: WriteBatch,
    /// Fetched bytes whose record is not committed here yet: where they start, and what they are as of.
    held: BTreeMap<FetchId, install::Arrived>,
    /// When fetched bytes last found no room on this node's disk; none have found it since.
    full_at: Option<Tick>,
    /// Since when fetched bytes find no room though the disk says that it has plenty.
    lies_since: Option<Tick>,
    /// Files with bytes that may not be on this node's disk.
    unsettled: BTreeSet<InodeId>,
    /// The bytes of every record up to here are in place, and on this node's disk.
    synced: Seq,
    /// What committed records up to here did to the data is on disk, or marked there as missing, and the files that they removed
    /// are gone from it: a restart looks at what is behind this record.
    data_done: Seq,
    /// When the container's task looks again by itself whether something is due.
    looks_at: Tick,
    /// When leases were last swept.
    swept: Tick,
    /// Files with blocks here that are not what was written.
    damaged: BTreeMap<InodeId, heal::Damage>,
    /// Files of which bytes were lost in this reign, perhaps before they were synced: the next `fsync` says so.
    lost_unsynced: BTreeSet<InodeId>,
    /// What was committed at one moment of this reign: a member that has its data lags behind by no more than the usual.
    mark: Option<(Tick, Seq)>,
    /// Who works here.
    work: Work,
    /// This owner is about to cede, or tries to.
    moving: bool,
    /// How often this node has given the container away to a member that worked in it.
    given_away: u64,
    /// Bytes that were written to its files here, ever.
    written: u64,
    /// What its files take on the disk of its owner, in bytes, as that told when it gave the state that is being filled.
    content: Option<u64>,
    /// No hand-over is tried before this moment.
    hands_over_from: Tick,
    /// Since when it tries to cede its place to the node to which its copy moves.
    cedes_since: Option<Tick>,
    /// Since when the record of a move means nothing.
    move_over: Option<Tick>,
    /// Who was brought in last, and is not known to have become a member.
    candidate: Option<NodeId>,
    /// Members that the chain does without.
    former: member::Former,
    /// Who was brought in and did not become a member, and until when another one is tried first.
    avoid: BTreeMap<NodeId, Tick>,
    /// Members, and this node, that have no room for what readers wait for.
    refusals: refusals::Refusals,
    /// When the last member was dismissed whose disk is full.
    dismissed_full_at: Option<Tick>,
    /// This storage has held everything that a member must hold.
    complete: bool,
    /// A state transfer to this node is under way.
    receiving: bool,
    /// Inodes that lost their last name while somebody may have them open.
    orphans: BTreeSet<InodeId>,
    /// Those of them that a checkpoint shows.
    spared: BTreeSet<InodeId>,
    /// What of the container's past is kept.
    checkpoints: Checkpoints,
    /// Content of files that is kept for the newest checkpoint.
    keeping: Keeping,
    /// No changes are taken: a checkpoint is being made.
    stopped: Option<checkpoint::Stopped>,
    /// Counts the stops of this process.
    stops: u64,
    /// Snapshots that were deleted.
    unlisted: BTreeSet<SnapshotId>,
}

/// One container on this node.
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    env: Arc<Env>,
    state: Mutex<State>,
    /// Something is to be sent, applied or timed.
    wake: Notify,
    /// What this node holds was written to, or belongs to it no more.
    held: Notify,
    /// Some region is to be fetched.
    refill: Notify,
    /// The nodes that have what is missing here may be others now.
    sources_changed: Notify,
    /// A record was committed, or bytes came in.
    progress: Notify,
    files: Mutex<HashMap<InodeId, Arc<File>>>,
    /// Shared while fetched bytes are put in place; taken alone by a state that arrives whole.
    installs: RwLock<()>,
    unseen: unseen::UnseenWrites,
    pub(crate) heat: Arc<Heat>,
    abroad: Arc<abroad::WritesFromAbroad>,
    snapshots: Mutex<transfer::Snapshots>,
    /// What this node keeps of it can be relied on no more: this node leaves it, until it is started again.
    failing: AtomicBool,
    /// Records found no room on this node's disk: it has left the container, until there is some.
    lost_records: AtomicBool,
    /// Columns of removed files are being dropped.
    drops_columns: AtomicBool,
    /// The mounts of this host are on their way to forget its content.
    forgetting: AtomicBool,
    /// Files that other hosts may map are looked at often.
    looks_often: AtomicBool,
    /// What works for it as long as it is open.
    tasks: Mutex<Vec<tokio::task::AbortHandle>>,
}

/// Files whose handles are kept though nobody uses them.
const FILES_KEPT: usize = 4096;

impl Container {
    /// The file's data on this node.
    pub(crate) fn file(&self, inode: InodeId) -> Result<Arc<File>, perigee_store::StoreError> {
        if let Some(file) = self.files.lock().get(&inode) {
            return Ok(file.clone());
        }
        let object = self.env.store.object(inode)?;
        let mut files = self.files.lock();
        if files.len() >= FILES_KEPT {
            files.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let file = files.entry(inode).or_insert_with(|| {
            Arc::new(File {
                still: RwLock::new(()),
                append: Mutex::new(()),
                keeping: Mutex::new(()),
                installing: Mutex::new(()),
                object,
            })
        });
        Ok(file.clone())
    }

    fn forget_file(&self, inode: InodeId) {
        self.files.lock().remove(&inode);
    }

    /// The epoch of this node's reign, and until when it holds without new word from the chain.
    fn reign(st: &State, now: Tick) -> Result<(Epoch, Tick), Elsewhere> {
        let Role::Owner { epoch } = st.role else {
            return Err(match st.role {
                Role::Reconciling { .. } | Role::Suspended { .. } | Role::Returning => {
                    Elsewhere::NotReady
                }
                _ => Elsewhere::NotOwner,
            });
        };
        match st.chain.lease_until(now) {
            Some(until) if until > now => Ok((epoch, until)),
            _ => Err(Elsewhere::NotReady),
        }
    }

    /// Whether this node still reigns since `began`: what was let in under an earlier reign counts in that alone, since another
    /// owner may have reigned between.
    fn same_reign(st: &State, now: Tick, began: Tick) -> Result<(), Elsewhere> {
        Self::reign(st, now)?;
        match st.reigns_from == began {
            true => Ok(()),
            false => Err(Elsewhere::NotReady),
        }
    }

    /// What may keep this node from answering for the container, in words, for the log.
    pub(crate) fn hindrances(&self) -> String {
        let st = self.state.lock();
        let now = self.env.clock.now();
        let ms = |until: Tick| until.since(now).as_micros() / 1_000;
        let lease = st.chain.lease_until(now).map_or(0, ms);
        let (last, committed) = (st.chain.last().seq, st.chain.committed());
        let members: Vec<String> = st
            .chain
            .member_progress()
            .iter()
            .map(|member| format!("{member:?}"))
            .collect();
        format!(
            "{:?}, lease for {lease} ms, changes in {} ms, log to {last}, committed to {committed}, {} records to apply, \
             transactions idle: {}, changes under way: {}, moving: {}, chunks away: {}, dirty files: {}, members: {}, rooms: {}",
            st.role,
            ms(st.changes_from),
            st.unapplied.len(),
            st.transactions.is_idle(),
            st.leases.has_any_changes(),
            st.moving,
            st.away.holds.iter().count(),
            st.dirty.inodes().len(),
            members.join(", "),
            self.env.rooms.in_words(now),
        )
    }

    /// Whether this node owns the container now, and in which epoch.
    pub(crate) fn owned(&self) -> Option<Epoch> {
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())
            .ok()
            .map(|(epoch, _)| epoch)
    }

    /// The other nodes that a commit, and so an fsync, waits for.
    fn others(&self, st: &State) -> Vec<NodeId> {
        st.chain.counted().collect()
    }

    /// The other members that the view lists.
    fn listed(&self, st: &State) -> Vec<NodeId> {
        let view = st.chain.view().into_iter();
        let listed = view.flat_map(|view| view.chain.iter().copied());
        listed.filter(|node| *node != self.env.me).collect()
    }
}

/// A store without anything, and its folder.
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
fn empty_store() -> (tempfile::TempDir, Arc<perigee_store::Store>) {
    let dir = tempfile::tempdir().unwrap();
    let identity = perigee_store::StoreIdentity {
        cluster: 1,
        node: NodeId(1),
    };
    let options = perigee_store::StoreOptions::default();
    let store =
        perigee_store::Store::create_with(&dir.path().join("s"), identity, options).unwrap();
    (dir, store)
}
