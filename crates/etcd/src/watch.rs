//! A watch of an etcd: goes on where it was after any loss of a connection, or of a member.

use crate::client::Lines;
use crate::error::CallError;
use crate::store::EtcdControl;
use crate::wire::{Blob, CreateWatch, EventKind, Streamed, Watch as Asked, Watched, end_of};
use perigee_cluster::{BoxFuture, Event, Revision, Watch, WatchError};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Answers of etcd that wait for whoever watches.
const WAITING_MAX: usize = 16;
/// A member that says nothing for so long is asked anew, or another one: it may have vanished. Asking costs one line.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The first pause after a failure.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(1);

type Part = Result<Vec<Event>, WatchError>;

/// A watch, and the task that follows etcd.
pub(crate) struct EtcdWatch {
    ready: VecDeque<Event>,
    parts: mpsc::Receiver<Part>,
    follower: JoinHandle<()>,
    ended: Option<WatchError>,
}

impl EtcdWatch {
    pub(crate) fn begin(store: EtcdControl, prefix: String, from: Revision) -> Self {
        let (sender, parts) = mpsc::channel(WAITING_MAX);
        let follower = Follower {
            store,
            prefix,
            next: 0,
            held: Vec::new(),
        };
        let follower = tokio::spawn(async move {
            if let Err(error) = follower.run(from, &sender).await {
                // Nobody may wait any more.
                _ = sender.send(Err(error)).await;
            }
        });
        Self {
            ready: VecDeque::new(),
            parts,
            follower,
            ended: None,
        }
    }
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Event, WatchError>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    return Ok(event);
                }
                if let Some(error) = &self.ended {
                    return Err(error.clone());
                }
                match self.parts.recv().await {
                    Some(Ok(events)) => self.ready = events.into(),
                    Some(Err(error)) => self.ended = Some(error),
                    None => self.ended = Some(WatchError::Lost),
                }
            }
        })
    }
}

/// Follows etcd's stream of changes.
struct Follower {
    store: EtcdControl,
    prefix: String,
    /// The first revision, as etcd counts, of which nothing was told.
    next: u64,
    /// Parts of an answer that is not complete: revisions are told whole.
    held: Vec<Event>,
}

impl Follower {
    /// Returns without an error when nobody listens any more.
    async fn run(mut self, from: Revision, parts: &mpsc::Sender<Part>) -> Result<(), WatchError> {
        let Some(first) = self.store.raw(from.max(Revision(1))).filter(|raw| *raw > 0) else {
            // The record is younger: what was before it, nobody has.
            let oldest = self.store.shown(1);
            return Err(WatchError::Compacted { oldest });
        };
        self.next = first;
        let mut pause = PAUSE;
        let mut is_away = false;
        loop {
            let member = self.store.client().member();
            match self.ask().await {
                Ok(lines) => {
                    if std::mem::take(&mut is_away) {
                        info!(prefix = self.prefix, "etcd answers a watch again");
                    }
                    self.held.clear();
                    if self.follow(lines, parts, &mut pause).await? == Listener::Gone {
                        return Ok(());
                    }
                    self.store.client().leave(member);
                }
                Err(CallError::WentBack) => return Err(WatchError::Lost),
                Err(error) => {
                    if !std::mem::replace(&mut is_away, true) {
                        warn!(%error, prefix = self.prefix, "a watch waits for etcd");
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn ask(&self) -> Result<Lines, CallError> {
        let key = self.store.root().state(&self.prefix);
        let create_request = CreateWatch {
            range_end: end_of(&key),
            key: Blob(key),
            // From one revision earlier, which is left out again: of the revision that it has compacted to, etcd
            // tells puts, and has forgotten deletes.
            start_revision: (self.next - 1).max(1),
            fragment: true,
        };
        let asked = Asked { create_request };
        self.store.client().stream("/v3/watch", &asked).await
    }

    async fn follow(
        &mut self,
        mut lines: Lines,
        parts: &mpsc::Sender<Part>,
        pause: &mut Duration,
    ) -> Result<Listener, WatchError> {
        while let Ok(Some(line)) = timeout(SILENCE_MAX, lines.next()).await {
            let watched = match serde_json::from_slice(&line) {
                Ok(Streamed::Result(watched)) => watched,
                Ok(Streamed::Error(said)) => {
                    debug!(said.message, "etcd ended a watch");
                    break;
                }
                Err(error) => {
                    debug!(%error, "etcd's words about a watch cannot be read");
                    break;
                }
            };
            let watched: Watched = watched;
            if watched.compact_revision > 0 {
                let oldest = self.store.shown(watched.compact_revision).next();
                return Err(WatchError::Compacted { oldest });
            }
            if watched.canceled {
                break;
            }
            *pause = PAUSE;
            if watched.created {
                self.check_future(watched.header.revision).await?;
            }
            if let Some(events) = self.take(watched) {
                tokio::select! {
                    sent = parts.send(Ok(events)) => if sent.is_err() { return Ok(Listener::Gone) },
                    () = parts.closed() => return Ok(Listener::Gone),
                }
            }
        }
        Ok(Listener::There)
    }

    /// A revision that etcd does not know yet will come, unless etcd was put back. A member may be late by itself,
    /// so that all are asked.
    async fn check_future(&self, now: u64) -> Result<(), WatchError> {
        if now.saturating_add(1) >= self.next {
            return Ok(());
        }
        match self.store.now().await {
            Ok(now) if now.saturating_add(1) < self.next => Err(WatchError::Lost),
            Err(CallError::WentBack) => Err(WatchError::Lost),
            // Who does not answer is asked again with the next stream.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whole revisions that were not told before.
    fn take(&mut self, watched: Watched) -> Option<Vec<Event>> {
        let mut last = self.next;
        for event in watched.events {
            let at = event.kv.mod_revision;
            last = last.max(at.saturating_add(1));
            if at < self.next {
                continue;
            }
            let Some(key) = self.store.root().key(&event.kv.key.0) else {
                continue;
            };
            self.held.push(Event {
                key,
                value: (event.kind == EventKind::Put).then_some(event.kv.value.0),
                revision: self.store.shown(at),
            });
        }
        if watched.fragment {
            return None;
        }
        let whole = std::mem::take(&mut self.held);
        // After the parts of one answer `next` is behind the last event of any of them.
        let told = whole
            .last()
            .and_then(|event| self.store.raw(event.revision));
        self.next = last.max(told.map_or(0, |told| told.saturating_add(1)));
        (!whole.is_empty()).then_some(whole)
    }
}

/// Whether somebody still waits for events.
#[derive(Debug, PartialEq, Eq)]
enum Listener {
    There,
    Gone,
}
