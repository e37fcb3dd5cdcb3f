//! Who keeps the record that this process serves: its own engine, or an etcd.

use crate::feed::Feed;
use crate::local::{LocalControl, WATCH_PAGE_LEN};
use crate::wire::{Page, Poll, Polled};
use parking_lot::Mutex;
use perigee_cluster::codec::Record as _;
use perigee_cluster::{
    BoxFuture, Committed, ControlStore, Event, KeyValue, LeaseNumber, Node, Revision, StoreError,
    Txn, Watch, WatchError, key,
};
use perigee_etcd::EtcdControl;
use perigee_types::{NodeId, Span};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bytes of one page of an engine's list; with one more value it stays far below a frame.
const PAGE_LEN: usize = 1 << 20;
/// The same of an etcd's, where the pages after the first cost a list each, if this process has it no more.
const ETCD_PAGE_LEN: usize = 8 << 20;
/// How long the rest of a list is kept for who asks for it.
const LIST_KEPT: Duration = Duration::from_secs(10);

/// A store that this process answers for. Clones are the same store.
#[derive(Debug, Clone)]
pub enum Keeper {
    /// The engine of this process.
    Embedded(LocalControl),
    /// An etcd.
    Etcd(Arc<EtcdKeeper>),
}

/// An etcd, and what this process knows of it.
#[derive(Debug)]
pub struct EtcdKeeper {
    store: EtcdControl,
    /// Names this process among those that serve the record.
    process: u128,
    feed: Feed,
    /// The last list that was too long for one page.
    long: Mutex<Option<LongList>>,
}

#[derive(Debug)]
struct LongList {
    taken: Instant,
    prefix: String,
    list: Vec<KeyValue>,
    revision: Revision,
}

impl EtcdKeeper {
    /// The keeper of `store`, of which `process` is this process' number; begins to follow it.
    #[must_use]
    pub fn begin(store: EtcdControl, process: u128) -> Self {
        Self {
            process,
            feed: Feed::begin(store.clone()),
            store,
            long: Mutex::default(),
        }
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>) -> Result<Page, StoreError> {
        if let Some(after) = after
            && let Some(long) = &*self.long.lock()
            && long.prefix == prefix
            && long.taken.elapsed() < LIST_KEPT
        {
            return Ok(page(&long.list, Some(after), long.revision));
        }
        let (list, revision) = self.store.list(prefix).await?;
        let page = page(&list, after, revision);
        if page.more {
            *self.long.lock() = Some(LongList {
                taken: Instant::now(),
                prefix: prefix.to_owned(),
                list,
                revision,
            });
        }
        Ok(page)
    }

    /// Whether `from` is a revision that etcd, as far as it can be asked, knows of or gives next.
    async fn will_come(&self, from: Revision) -> bool {
        if from <= self.feed.heard().next() {
            return true;
        }
        match self.store.revision().await {
            Ok(now) => from <= now.next(),
            Err(error) => error != StoreError::WentBack,
        }
    }
}

fn page(list: &[KeyValue], after: Option<&str>, revision: Revision) -> Page {
    let skip = after.map_or(0, |after| {
        list.partition_point(|found| found.key.as_str() <= after)
    });
    let mut entries = Vec::new();
    let mut len = 0;
    for found in &list[skip..] {
        if len >= ETCD_PAGE_LEN {
            break;
        }
        len += found.key.len() + found.value.len();
        entries.push(found.clone());
    }
    let more = skip + entries.len() < list.len();
    Page {
        entries,
        more,
        revision,
    }
}

impl Keeper {
    /// The store itself.
    fn store(&self) -> &dyn ControlStore {
        match self {
            Self::Embedded(local) => local,
            Self::Etcd(etcd) => &etcd.store,
        }
    }

    /// The number of this process among those that serve the record; `None` where no other can.
    pub(crate) fn process(&self) -> Option<u128> {
        match self {
            Self::Embedded(_) => None,
            Self::Etcd(etcd) => Some(etcd.process),
        }
    }

    /// Where the record is kept, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Embedded(_) => "embedded".to_owned(),
            Self::Etcd(etcd) => etcd.store.place().to_string(),
        }
    }

    /// A node's record, as far as it is known without asking anybody; else as it is now.
    pub(crate) async fn node(&self, id: NodeId) -> Result<Option<Node>, StoreError> {
        if let Self::Etcd(etcd) = self
            && let Some(node) = etcd.feed.node(id)
        {
            return Ok(Some(node));
        }
        let found = self.get(&key::node(id)).await?;
        Ok(found.and_then(|found| Node::decode(&found.value).ok()))
    }

    /// A page of a list.
    pub(crate) async fn list_page(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Page, StoreError> {
        match self {
            Self::Embedded(local) => {
                let page = local.engine().list_page(prefix, after, PAGE_LEN)?;
                let (entries, more, revision) = page;
                Ok(Page {
                    entries,
                    more,
                    revision,
                })
            }
            Self::Etcd(etcd) => etcd.list_page(prefix, after).await,
        }
    }

    /// Events, waited for until `until` or the end of the service.
    pub(crate) async fn poll(
        &self,
        poll: &Poll,
        until: Instant,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<Polled, WatchError> {
        // Before the look at the events: a change between the two must end the wait.
        let mut revisions = match self {
            Self::Embedded(local) => local.engine().revisions(),
            Self::Etcd(etcd) => etcd.feed.revisions(),
        };
        let mut from = poll.from;
        if let Self::Etcd(etcd) = self
            && !etcd.will_come(from).await
        {
            return Err(WatchError::Lost);
        }
        loop {
            revisions.borrow_and_update();
            let (events, next) = self.events(&poll.prefix, from)?;
            if !events.is_empty() {
                return Ok(Polled { events, next });
            }
            if next == from {
                tokio::select! {
                    changed = revisions.changed() => changed.map_err(|_| WatchError::Lost)?,
                    () = tokio::time::sleep_until(until) => return Ok(Polled { events, next }),
                    _ = stopping.wait_for(|stopping| *stopping) => {
                        return Ok(Polled { events, next });
                    }
                }
            }
            from = next;
        }
    }

    fn events(&self, prefix: &str, from: Revision) -> Result<(Vec<Event>, Revision), WatchError> {
        match self {
            Self::Embedded(local) => local.engine().events(prefix, from, WATCH_PAGE_LEN),
            Self::Etcd(etcd) => etcd.feed.events(prefix, from, WATCH_PAGE_LEN),
        }
    }

    /// Returns when the store failed in a way that only a new process can mend: an etcd does not.
    ///
    /// # Cancel safety
    /// Holds nothing.
    pub(crate) async fn failed(&self) {
        match self {
            Self::Embedded(local) => local.engine().failed().await,
            Self::Etcd(_) => std::future::pending().await,
        }
    }

    /// Does what was asked so far, and frees the directory.
    pub(crate) async fn close(&self) {
        if let Self::Embedded(local) = self {
            let engine = Arc::clone(local.engine());
            // It waits for a sync. A panic in it is the engine's own, and reported there.
            _ = tokio::task::spawn_blocking(move || engine.close()).await;
        }
    }
}

impl ControlStore for Keeper {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<KeyValue>, StoreError>> {
        self.store().get(key)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<KeyValue>, Revision), StoreError>> {
        self.store().list(prefix)
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.store().commit(txn)
    }

    fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watch> {
        self.store().watch(prefix, from)
    }

    fn grant_lease(&self, ttl: Span) -> BoxFuture<'_, Result<LeaseNumber, StoreError>> {
        self.store().grant_lease(ttl)
    }

    fn keep_alive(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<Span, StoreError>> {
        self.store().keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store().revoke(lease)
    }
}
