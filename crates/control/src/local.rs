//! The engine as a control store, in the same process.

use crate::engine::Engine;
use perigee_cluster::{
    BoxFuture, Committed, ControlStore, Event, KeyValue, LeaseNumber, Revision, StoreError, Txn,
    Watch, WatchError,
};
use perigee_types::Span;
use std::collections::VecDeque;
use std::sync::Arc;

/// A control store that calls an engine directly.
#[derive(Debug, Clone)]
pub struct LocalControl {
    engine: Arc<Engine>,
}

impl LocalControl {
    /// The store of `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl ControlStore for LocalControl {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<KeyValue>, StoreError>> {
        Box::pin(async move { self.engine.get(key) })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<KeyValue>, Revision), StoreError>> {
        Box::pin(async move {
            let (list, _, revision) = self.engine.list_page(prefix, None, usize::MAX)?;
            Ok((list, revision))
        })
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(self.engine.commit(txn))
    }

    fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watch> {
        Box::new(LocalWatch {
            engine: Arc::clone(&self.engine),
            prefix: prefix.to_owned(),
            from,
            ready: VecDeque::new(),
            ended: None,
        })
    }

    fn grant_lease(&self, ttl: Span) -> BoxFuture<'_, Result<LeaseNumber, StoreError>> {
        Box::pin(self.engine.grant_lease(ttl))
    }

    fn keep_alive(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<Span, StoreError>> {
        Box::pin(async move { self.engine.keep_alive(lease) })
    }

    fn revoke(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.engine.revoke(lease))
    }
}

/// Bytes of events that a watch takes at a time.
pub(crate) const WATCH_PAGE_LEN: usize = 1 << 20;

struct LocalWatch {
    engine: Arc<Engine>,
    prefix: String,
    /// The revision with which the next page begins.
    from: Revision,
    ready: VecDeque<Event>,
    ended: Option<WatchError>,
}

impl Watch for LocalWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Event, WatchError>> {
        Box::pin(async move {
            // Before the look at the events: a change between the two must wake this.
            let mut revisions = self.engine.revisions();
            loop {
                if let Some(event) = self.ready.pop_front() {
                    return Ok(event);
                }
                if let Some(error) = &self.ended {
                    return Err(error.clone());
                }
                revisions.borrow_and_update();
                match self.engine.events(&self.prefix, self.from, WATCH_PAGE_LEN) {
                    Ok((events, next)) => {
                        let moved = next != self.from;
                        self.ready = events.into();
                        self.from = next;
                        if moved {
                            continue;
                        }
                    }
                    Err(error) => {
                        self.ended = Some(error);
                        continue;
                    }
                }
                if revisions.changed().await.is_err() {
                    self.ended = Some(WatchError::Lost);
                }
            }
        })
    }
}
