//! The embedded control store: state in memory, every change in a log that is durable before anybody
//! sees it.
//!
//! One thread commits. It takes all requests that wait, plans them one after the other on its own copy
//! of the state, writes their changes as one frame, syncs once, and only then shows the new state to
//! readers and answers. So a read never returns what a crash could take back, and the price of a sync
//! is shared by all who waited.

use crate::committer::{Committer, Request};
use crate::disk::{DirDisk, Disk};
use crate::error::EngineError;
use crate::journal::{Journal, Replayed};
use crate::lease::LeaseClock;
use crate::state::{History, State, StoredKey};
use parking_lot::{Mutex, RwLock};
use perigee_cluster::{
    Committed, Event, KeyValue, LeaseNumber, Refusal, Revision, StoreError, Txn, WatchError,
};
use perigee_types::{Span, Tick};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

/// How the engine behaves; the defaults suit a cluster of any size.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// How many events the past has at most, for watches that were away.
    pub history_events: usize,
    /// How many bytes of keys and values the past has at most.
    pub history_len: usize,
    /// How many bytes are appended at least before the log is replaced by a shorter one.
    pub log_len: u64,
    /// The revision of a store that is made: above those that a lost store has had, for its watchers must never take an
    /// older state for a newer one.
    pub first: Revision,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            // A node that is away for an hour while one container changes each second misses 3,600.
            history_events: 16_384,
            history_len: 16 << 20,
            log_len: 4 << 20,
            first: Revision(0),
        }
    }
}

/// How many requests may wait for the committer. More are told to come back.
const WAITING_MAX: usize = 4096;
/// A whole store.
#[derive(Debug)]
pub(crate) struct Content {
    /// Its revision.
    pub revision: Revision,
    /// The keys, in order.
    pub keys: Vec<StoredKey>,
    /// The terms of its leases.
    pub leases: BTreeMap<LeaseNumber, Span>,
}

/// What readers see: durable, always.
#[derive(Debug)]
pub(crate) struct Published {
    pub state: State,
    pub history: History,
}

/// What callers and the committer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub published: RwLock<Published>,
    pub leases: Mutex<LeaseClock>,
    started: Instant,
    /// The revision that was published last; wakes those who watch.
    pub revision: watch::Sender<Revision>,
    /// True once the disk failed in a way that only a restart mends.
    pub failed: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn now(&self) -> Tick {
        let us = self.started.elapsed().as_micros();
        Tick(u64::try_from(us).unwrap_or(u64::MAX))
    }
}

/// The engine of one directory. Ends, and frees the directory, when it is closed or dropped.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    /// `None` once it is closed.
    committer: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    requests: SyncSender<Request>,
    thread: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
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
        let first = config.first;
        let journal = Journal::create(disk, first)?;
        let state = State::at(first, 1);
        let history = History::after(first, config.history_events, config.history_len);
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
        let thread = std::thread::Builder::new()
            .name("control-commit".to_owned())
            .spawn(move || committer.run())
            .map_err(EngineError::io("start the thread of", "control-commit"))?;
        Ok(Self {
            shared,
            committer: Mutex::new(Some(Running { requests, thread })),
        })
    }

    /// Does what was asked so far, and frees the directory. Blocks for as long as that takes. Every
    /// later call fails.
    pub fn close(&self) {
        let Some(Running { requests, thread }) = self.committer.lock().take() else {
            return;
        };
        drop(requests);
        // A panic there was reported by the panic hook, and has failed all requests.
        _ = thread.join();
        // Those who watch look once more, and find it closed.
        self.shared.revision.send_modify(|_| {});
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Request,
    ) -> Result<T, StoreError> {
        let (answer, waits) = oneshot::channel();
        let sent = match &*self.committer.lock() {
            Some(running) => running.requests.try_send(request(answer)),
            None => return Err(StoreError::Unavailable),
        };
        match sent {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                return Err(StoreError::Unavailable);
            }
        }
        // No answer: the committer died with the request in hand.
        waits.await.unwrap_or(Err(StoreError::Unknown))
    }

    fn check_alive(&self) -> Result<(), StoreError> {
        if *self.shared.failed.borrow() || self.committer.lock().is_none() {
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
    /// [`WatchError::Compacted`]; [`WatchError::Lost`] when the engine is closed or its disk failed, or
    /// when `from` lies in a future that this store cannot have announced: it was restored from an
    /// older state.
    pub fn events(
        &self,
        prefix: &str,
        from: Revision,
        len_max: usize,
    ) -> Result<(Vec<Event>, Revision), WatchError> {
        if self.check_alive().is_err() {
            return Err(WatchError::Lost);
        }
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

    /// All that the engine holds.
    pub(crate) fn content(&self) -> Content {
        let published = self.shared.published.read();
        Content {
            revision: published.state.revision(),
            keys: published.state.stored().collect(),
            leases: published.state.leases().collect(),
        }
    }
}
