//! The embedded control store: state in memory, every change in a log that is durable before anybody
//! sees it.
//!
//! One thread commits. It takes all requests that wait, plans them one after the other on its own copy
//! of the state, writes their changes as one frame, syncs once, and only then shows the new state to
//! readers and answers. So a read never returns what a crash could take back, and the price of a sync
//! is shared by all who waited.

use crate::disk::{DirDisk, Disk};
use crate::error::EngineError;
use crate::journal::{AppendError, Journal, Replayed, SwitchError};
use crate::lease::{LOOK_EVERY, LeaseClock};
use crate::state::{Change, History, State};
use parking_lot::{Mutex, RwLock};
use perigee_cluster::{
    Committed, Event, KeyValue, LeaseNumber, Refusal, Revision, StoreError, Txn, WatchError,
};
use perigee_types::{Span, Tick};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

/// How the engine behaves; the defaults suit a cluster of any size.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// How many events the past has at most, for watches that were away.
    pub history_events: usize,
    /// How many bytes of keys and values the past has at most.
    pub history_len: usize,
    /// How many bytes are appended at least before the log is replaced by a shorter one.
    pub log_len: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            // A node that is away for an hour while one container changes each second misses 3,600.
            history_events: 16_384,
            history_len: 16 << 20,
            log_len: 4 << 20,
        }
    }
}

/// How many requests may wait for the committer. More are told to come back.
const WAITING_MAX: usize = 4096;
/// How many requests share one sync at most, so that a frame stays far below its limit.
const GROUP_MAX: usize = 512;
/// How many bytes of transactions share one sync at most.
const GROUP_LEN_MAX: usize = 4 << 20;

/// What the engine has been doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStatus {
    /// The current revision.
    pub revision: Revision,
    /// How many keys there are.
    pub keys: u64,
    /// How many leases there are.
    pub leases: u64,
    /// Bytes of keys and values.
    pub len: u64,
}

enum Request {
    Commit(Txn, oneshot::Sender<Result<Committed, StoreError>>),
    Grant(Span, oneshot::Sender<Result<LeaseNumber, StoreError>>),
    Revoke(LeaseNumber, oneshot::Sender<Result<(), StoreError>>),
}

/// What readers see: durable, always.
#[derive(Debug)]
struct Published {
    state: State,
    history: History,
}

#[derive(Debug)]
struct Shared {
    published: RwLock<Published>,
    leases: Mutex<LeaseClock>,
    started: Instant,
    /// The revision that was published last; wakes those who watch.
    revision: watch::Sender<Revision>,
    /// True once the disk failed in a way that only a restart mends.
    failed: watch::Sender<bool>,
}

impl Shared {
    fn now(&self) -> Tick {
        let us = self.started.elapsed().as_micros();
        Tick(u64::try_from(us).unwrap_or(u64::MAX))
    }
}

/// The engine of one directory. Ends, and frees the directory, when it is dropped.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    /// `None` only while it is being dropped.
    requests: Option<SyncSender<Request>>,
    committer: Option<JoinHandle<()>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(committer) = self.committer.take() {
            // A panic there was reported by the panic hook, and has failed all requests.
            _ = committer.join();
        }
    }
}

impl Engine {
    /// Makes an empty store in an existing directory, and opens it.
    ///
    /// # Errors
    /// [`EngineError::Exists`], [`EngineError::Locked`], or the disk's.
    pub fn create(dir: &Path, config: EngineConfig) -> Result<Self, EngineError> {
        Self::create_on(Box::new(DirDisk::open(dir)?), config)
    }

    /// Opens the store of a directory.
    ///
    /// # Errors
    /// [`EngineError::Missing`], [`EngineError::Locked`], [`EngineError::Corrupt`],
    /// [`EngineError::NewerFormat`], or the disk's.
    pub fn open(dir: &Path, config: EngineConfig) -> Result<Self, EngineError> {
        Self::open_on(Box::new(DirDisk::open(dir)?), config)
    }

    /// [`Engine::create`] on any disk.
    ///
    /// # Errors
    /// As there.
    pub fn create_on(disk: Box<dyn Disk>, config: EngineConfig) -> Result<Self, EngineError> {
        let journal = Journal::create(disk)?;
        let state = State::at(Revision(0), 1);
        let history = History::after(Revision(0), config.history_events, config.history_len);
        Self::start(journal, state, history, config)
    }

    /// [`Engine::open`] on any disk.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(disk: Box<dyn Disk>, config: EngineConfig) -> Result<Self, EngineError> {
        let (journal, replayed) = Journal::open(disk, config.history_events, config.history_len)?;
        let Replayed {
            state,
            history,
            torn,
        } = replayed;
        if torn > 0 {
            warn!(torn, "cut a half-written end off the log");
        }
        info!(revision = state.revision().0, "opened the control store");
        Self::start(journal, state, history, config)
    }

    fn start(
        journal: Journal,
        state: State,
        history: History,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        let mut leases = LeaseClock::default();
        for (lease, ttl) in state.leases() {
            leases.start(Tick(0), lease, ttl);
        }
        let shared = Arc::new(Shared {
            leases: Mutex::new(leases),
            started: Instant::now(),
            revision: watch::Sender::new(state.revision()),
            failed: watch::Sender::new(false),
            published: RwLock::new(Published {
                state: state.clone(),
                history,
            }),
        });
        let (requests, inbox) = sync_channel(WAITING_MAX);
        let committer = Committer {
            shared: Arc::clone(&shared),
            inbox,
            journal,
            working: state,
            log_len: config.log_len,
        };
        let committer = std::thread::Builder::new()
            .name("control-commit".to_owned())
            .spawn(move || committer.run())
            .map_err(EngineError::io("start the thread of", "control-commit"))?;
        Ok(Self {
            shared,
            requests: Some(requests),
            committer: Some(committer),
        })
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Request,
    ) -> Result<T, StoreError> {
        let (answer, waits) = oneshot::channel();
        let Some(requests) = &self.requests else {
            return Err(StoreError::Unavailable);
        };
        match requests.try_send(request(answer)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                return Err(StoreError::Unavailable);
            }
        }
        // No answer: the committer died with the request in hand.
        waits.await.unwrap_or(Err(StoreError::Unknown))
    }

    fn check_alive(&self) -> Result<(), StoreError> {
        if *self.shared.failed.borrow() {
            return Err(StoreError::Unavailable);
        }
        Ok(())
    }

    /// See [`perigee_cluster::ControlStore::get`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] after the disk failed; a bad key.
    pub fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.check_alive()?;
        perigee_cluster::store::check_key(key)?;
        Ok(self.shared.published.read().state.get(key))
    }

    /// One page of [`perigee_cluster::ControlStore::list`]: keys after `after`, about `len_max` bytes;
    /// whether more follow; and the revision of all this.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] after the disk failed.
    pub fn list_page(
        &self,
        prefix: &str,
        after: Option<&str>,
        len_max: usize,
    ) -> Result<(Vec<KeyValue>, bool, Revision), StoreError> {
        self.check_alive()?;
        let published = self.shared.published.read();
        let (page, more) = published.state.list(prefix, after, len_max);
        Ok((page, more, published.state.revision()))
    }

    /// See [`perigee_cluster::ControlStore::commit`].
    ///
    /// # Errors
    /// As there.
    pub async fn commit(&self, txn: Txn) -> Result<Committed, StoreError> {
        txn.check()?;
        self.ask(|answer| Request::Commit(txn, answer)).await
    }

    /// See [`perigee_cluster::ControlStore::grant_lease`].
    ///
    /// # Errors
    /// As there.
    pub async fn grant_lease(&self, ttl: Span) -> Result<LeaseNumber, StoreError> {
        self.ask(|answer| Request::Grant(ttl, answer)).await
    }

    /// See [`perigee_cluster::ControlStore::keep_alive`]. Waits for no disk.
    ///
    /// # Errors
    /// As there.
    pub fn keep_alive(&self, lease: LeaseNumber) -> Result<Span, StoreError> {
        self.check_alive()?;
        let now = self.shared.now();
        let term = self.shared.leases.lock().renew(now, lease);
        Ok(term.ok_or(Refusal::NoLease { lease })?)
    }

    /// See [`perigee_cluster::ControlStore::revoke`].
    ///
    /// # Errors
    /// As there.
    pub async fn revoke(&self, lease: LeaseNumber) -> Result<(), StoreError> {
        self.ask(|answer| Request::Revoke(lease, answer)).await
    }

    /// The events under `prefix` of revision `from` and later that are known now, whole revisions,
    /// about `len_max` bytes; and the revision with which to go on.
    ///
    /// # Errors
    /// [`WatchError::Compacted`]; [`WatchError::Lost`] when `from` lies in a future that this store
    /// cannot have announced: it was restored from an older state.
    pub fn events(
        &self,
        prefix: &str,
        from: Revision,
        len_max: usize,
    ) -> Result<(Vec<Event>, Revision), WatchError> {
        let published = self.shared.published.read();
        if from > published.state.revision().next() {
            return Err(WatchError::Lost);
        }
        // Revision 0 wrote nothing: to begin with it is to begin with the first.
        let from = from.max(Revision(1));
        let oldest = published.history.oldest();
        let found = published.history.since(prefix, from, len_max);
        found.ok_or(WatchError::Compacted { oldest })
    }

    /// Changes with every revision.
    #[must_use]
    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.shared.revision.subscribe()
    }

    /// Returns when the disk failed in a way that only a restart mends. Every call fails from then on.
    ///
    /// # Cancel safety
    /// Holds nothing.
    pub async fn failed(&self) {
        let mut failed = self.shared.failed.subscribe();
        // The sender lives as long as `self`.
        _ = failed.wait_for(|failed| *failed).await;
    }

    /// What the engine holds.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let published = self.shared.published.read();
        let (keys, leases, len) = published.state.size();
        EngineStatus {
            revision: published.state.revision(),
            keys,
            leases,
            len: len as u64,
        }
    }
}

/// An answer that waits until the group is durable.
type Answer = Box<dyn FnOnce(Durability) + Send>;

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    Durable,
    Undone,
    Unknown,
}

/// The requests that share a sync.
#[derive(Default)]
struct Group {
    changes: Vec<Change>,
    answers: Vec<Answer>,
    len: usize,
    requests: usize,
}

impl Group {
    /// Answers with `result` once that is true for good. `wrote` says whether it changed something.
    fn answer<T: Send + 'static>(
        &mut self,
        to: oneshot::Sender<Result<T, StoreError>>,
        result: Result<T, StoreError>,
        wrote: bool,
    ) {
        self.answers.push(Box::new(move |durability| {
            let result = match durability {
                Durability::Durable => result,
                Durability::Unknown if wrote => Err(StoreError::Unknown),
                // What it found may never have been.
                Durability::Undone | Durability::Unknown => Err(StoreError::Unavailable),
            };
            // The caller may have gone away, which changes nothing.
            _ = to.send(result);
        }));
    }
}

/// Whether the committer goes on.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    GoesOn,
    Failed,
}

struct Committer {
    shared: Arc<Shared>,
    inbox: Receiver<Request>,
    journal: Journal,
    /// What will be published when the current group is durable.
    working: State,
    log_len: u64,
}

impl Committer {
    fn run(mut self) {
        while let Some(group) = self.gather() {
            if self.finish(group) == Fate::Failed {
                self.shared.failed.send_replace(true);
                // Until the process ends, nobody waits in vain.
                while let Ok(request) = self.inbox.recv() {
                    refuse(request);
                }
                return;
            }
        }
    }

    /// Waits for requests or the end of a lease, and plans all that there is. `None`: the engine ends.
    fn gather(&mut self) -> Option<Group> {
        let wait = if self.shared.leases.lock().is_empty() {
            Duration::from_secs(1)
        } else {
            LOOK_EVERY.as_duration()
        };
        let mut group = Group::default();
        let first = match self.inbox.recv_timeout(wait) {
            Ok(request) => Some(request),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let now = self.shared.now();
        let ended = self.shared.leases.lock().take_ended(now);
        for lease in ended {
            self.end_lease(&mut group, lease);
        }
        let mut next = first;
        while let Some(request) = next {
            self.plan(&mut group, request);
            group.requests += 1;
            let full = group.requests >= GROUP_MAX || group.len >= GROUP_LEN_MAX;
            next = if full {
                None
            } else {
                self.inbox.try_recv().ok()
            };
        }
        Some(group)
    }

    fn plan(&mut self, group: &mut Group, request: Request) {
        match request {
            Request::Commit(txn, to) => match self.working.plan(&txn) {
                Ok(change) => {
                    let wrote = change.is_some();
                    if let Some(change) = change {
                        group.len += txn.writes.iter().map(write_len).sum::<usize>();
                        self.work(group, change);
                    }
                    let revision = self.working.revision();
                    group.answer(to, Ok(Committed { revision }), wrote);
                }
                Err(error) => group.answer(to, Err(error), false),
            },
            Request::Grant(ttl, to) => match self.working.plan_grant(ttl) {
                Ok(change) => {
                    if let Change::Granted { lease, .. } = change {
                        group.answer(to, Ok(lease), true);
                    }
                    self.work(group, change);
                }
                Err(error) => group.answer(to, Err(error), false),
            },
            Request::Revoke(lease, to) => {
                let wrote = self.end_lease(group, lease);
                group.answer(to, Ok(()), wrote);
            }
        }
    }

    fn end_lease(&mut self, group: &mut Group, lease: LeaseNumber) -> bool {
        match self.working.plan_end(lease) {
            Some(change) => {
                self.work(group, change);
                true
            }
            None => false,
        }
    }

    fn work(&mut self, group: &mut Group, change: Change) {
        let applied = self.working.apply(change.clone());
        assert!(applied.is_ok(), "a change planned on this very state");
        group.changes.push(change);
    }

    fn finish(&mut self, group: Group) -> Fate {
        if group.changes.is_empty() {
            // All that the answers rest on was durable before.
            answer(group.answers, Durability::Durable);
            return Fate::GoesOn;
        }
        match self.journal.append(&group.changes) {
            Ok(()) => {}
            Err(AppendError::Undone(error)) => {
                error!(%error, "cannot write to the log; nothing was changed");
                self.undo(&group.changes);
                answer(group.answers, Durability::Undone);
                return Fate::GoesOn;
            }
            Err(AppendError::Unknown(error)) => {
                error!(%error, "the log failed; the control store stops");
                answer(group.answers, Durability::Unknown);
                return Fate::Failed;
            }
        }
        self.publish(group.changes);
        answer(group.answers, Durability::Durable);
        if !self.journal.is_long(self.log_len) {
            return Fate::GoesOn;
        }
        match self.journal.switch(&self.working) {
            Ok(()) => Fate::GoesOn,
            Err(SwitchError::Kept(error)) => {
                warn!(%error, "cannot shorten the log; it goes on growing");
                Fate::GoesOn
            }
            Err(SwitchError::Unknown(error)) => {
                error!(%error, "the directory failed; the control store stops");
                Fate::Failed
            }
        }
    }

    /// Goes back to what is durable. Leases that were to end get a last, short term.
    fn undo(&mut self, changes: &[Change]) {
        self.working = self.shared.published.read().state.clone();
        let now = self.shared.now();
        let mut leases = self.shared.leases.lock();
        for change in changes {
            if let Change::Ended { lease, .. } = change {
                leases.start(now, *lease, Span::from_millis(1000));
            }
        }
    }

    fn publish(&self, changes: Vec<Change>) {
        let now = self.shared.now();
        let mut leases = self.shared.leases.lock();
        for change in &changes {
            match change {
                Change::Granted { lease, ttl } => leases.start(now, *lease, *ttl),
                Change::Ended { lease, .. } => leases.remove(*lease),
                Change::Commit { .. } => {}
            }
        }
        drop(leases);
        let mut published = self.shared.published.write();
        for change in changes {
            let events = published.state.apply(change);
            let events = events.unwrap_or_else(|misfit| {
                unreachable!("the working state took the same change: {}", misfit.0)
            });
            published.history.push(events);
        }
        let revision = published.state.revision();
        drop(published);
        self.shared.revision.send_if_modified(|current| {
            let moved = *current != revision;
            *current = revision;
            moved
        });
    }
}

fn write_len(write: &perigee_cluster::Write) -> usize {
    let value = match write {
        perigee_cluster::Write::Put { value, .. } => value.len(),
        perigee_cluster::Write::Delete { .. } => 0,
    };
    write.key().len() + value
}

fn answer(answers: Vec<Answer>, durability: Durability) {
    for answer in answers {
        answer(durability);
    }
}

fn refuse(request: Request) {
    // The callers may have gone away, which changes nothing.
    match request {
        Request::Commit(_, to) => _ = to.send(Err(StoreError::Unavailable)),
        Request::Grant(_, to) => _ = to.send(Err(StoreError::Unavailable)),
        Request::Revoke(_, to) => _ = to.send(Err(StoreError::Unavailable)),
    }
}
