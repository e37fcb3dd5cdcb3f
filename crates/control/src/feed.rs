//! What an etcd has told of late, for all nodes at once: this process watches, and nodes ask it.
//!
//! A picture of the record, and the events that led there since this process began. Who asks for older ones is told
//! that they are gone, and lists again.

use parking_lot::RwLock;
use perigee_cluster::{
    ControlStore as _, Directory, Event, Node, Revision, StoreError, WatchError, key,
};
use perigee_etcd::EtcdControl;
use perigee_types::NodeId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

/// How many events are kept for those who were away.
const EVENTS_MAX: usize = 16_384;
/// How many bytes of keys and values.
const LEN_MAX: usize = 16 << 20;
/// The pause before the next try.
const PAUSE: Duration = Duration::from_millis(300);

/// The events of the recent past. Unlike an engine's own past it has no event for most revisions: others use the
/// same etcd.
#[derive(Debug, Default)]
struct Past {
    /// Everything from here on was heard, up to `heard`.
    oldest: Revision,
    heard: Revision,
    events: VecDeque<Event>,
    len: usize,
}

impl Past {
    fn after(now: Revision) -> Self {
        Self {
            oldest: now.next(),
            heard: now,
            ..Self::default()
        }
    }

    fn push(&mut self, event: Event) {
        self.heard = event.revision;
        self.len += event_len(&event);
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX || (self.len > LEN_MAX && self.events.len() > 1) {
            let Some(gone) = self.events.pop_front() else {
                return;
            };
            self.len -= event_len(&gone);
            // Some of its revision are gone, so all are.
            self.oldest = gone.revision.next();
        }
    }

    /// The events under `prefix` of revision `from` and later, whole revisions, until about `len_max` bytes; and the
    /// revision with which to go on.
    fn since(&self, prefix: &str, from: Revision, len_max: usize) -> (Vec<Event>, Revision) {
        let skip = self.events.partition_point(|event| event.revision < from);
        let mut found: Vec<Event> = Vec::new();
        let mut len = 0;
        for event in self.events.iter().skip(skip) {
            let last = found.last().map(|event| event.revision);
            if len >= len_max && last != Some(event.revision) {
                return (found, event.revision);
            }
            if event.key.starts_with(prefix) {
                len += event_len(event);
                found.push(event.clone());
            }
        }
        (found, from.max(self.heard.next()))
    }
}

fn event_len(event: &Event) -> usize {
    event.key.len() + event.value.as_ref().map_or(0, Vec::len)
}

#[derive(Debug, Default)]
struct Heard {
    past: Past,
    directory: Directory,
}

#[derive(Debug)]
struct Shared {
    heard: RwLock<Heard>,
    /// The revision that was heard of last, at the end of what etcd told at once.
    revision: watch::Sender<Revision>,
}

/// Follows an etcd until it is dropped.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    /// Begins to follow. Returns at once: until the first picture is there, nothing is known.
    #[must_use]
    pub fn begin(store: EtcdControl) -> Self {
        let shared = Arc::new(Shared {
            heard: RwLock::default(),
            revision: watch::Sender::new(Revision(0)),
        });
        let task = tokio::spawn(follow(store, Arc::clone(&shared)));
        Self { shared, task }
    }

    /// The events under `prefix` of revision `from` and later that were heard, whole revisions, about `len_max` bytes;
    /// and the revision with which to go on.
    ///
    /// # Errors
    /// [`WatchError::Compacted`].
    pub(crate) fn events(
        &self,
        prefix: &str,
        from: Revision,
        len_max: usize,
    ) -> Result<(Vec<Event>, Revision), WatchError> {
        let heard = self.shared.heard.read();
        let oldest = heard.past.oldest;
        if oldest == Revision(0) {
            // nothing was heard yet
            return Ok((Vec::new(), from));
        }
        if from < oldest {
            return Err(WatchError::Compacted { oldest });
        }
        Ok(heard.past.since(prefix, from, len_max))
    }

    /// Changes with what is heard.
    pub(crate) fn revisions(&self) -> watch::Receiver<Revision> {
        self.shared.revision.subscribe()
    }

    /// The last revision that was heard of.
    pub(crate) fn heard(&self) -> Revision {
        self.shared.heard.read().past.heard
    }

    /// A node's record, as it was a moment ago.
    pub(crate) fn node(&self, id: NodeId) -> Option<Node> {
        self.shared.heard.read().directory.node(id).cloned()
    }
}

async fn follow(store: EtcdControl, shared: Arc<Shared>) {
    let mut before = Ok(());
    loop {
        let listed = store.list(key::ROOT).await;
        let told = listed.as_ref().map(|_| ()).map_err(Clone::clone);
        if told != before {
            tell(&store, told.as_ref().err());
            before = told;
        }
        if let Ok((list, at)) = listed {
            match Directory::from_list(&list, at) {
                Ok(directory) => {
                    let past = Past::after(at);
                    *shared.heard.write() = Heard { past, directory };
                    shared.revision.send_replace(at);
                    hear(&store, at, &shared).await;
                    continue;
                }
                Err(error) => error!(%error, "the record in etcd cannot be read"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Says once what becomes of etcd.
fn tell(store: &EtcdControl, error: Option<&StoreError>) {
    let place = store.place();
    match error {
        None => info!(%place, "etcd answers"),
        Some(StoreError::WentBack) => error!(
            %place,
            "etcd has lost what it acknowledged, so nothing is read from it: bring back its newest state; if that is \
             lost for good, `perigee rebuild`"
        ),
        Some(error) => warn!(%place, %error, "etcd does not answer as it should"),
    }
}

/// Hears of changes until the watch ends.
async fn hear(store: &EtcdControl, at: Revision, shared: &Shared) {
    let mut watch = store.watch(key::ROOT, at.next());
    while let Ok(event) = watch.next().await {
        let revision = event.revision;
        let mut heard = shared.heard.write();
        if let Err(error) = heard.directory.apply(&event) {
            error!(%error, "a record in etcd cannot be read");
        }
        heard.past.push(event);
        drop(heard);
        shared.revision.send_replace(revision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: u64, key: &str) -> Event {
        Event {
            key: key.to_owned(),
            value: Some(vec![0; 100]),
            revision: Revision(revision),
        }
    }

    #[test]
    fn what_was_heard_is_told_in_whole_revisions() {
        let mut past = Past::after(Revision(10));
        for (revision, key) in [(12, "/a"), (12, "/b"), (15, "/a"), (20, "/c")] {
            past.push(event(revision, key));
        }
        let told = |from, len| {
            let (events, next) = past.since("/", Revision(from), len);
            let revisions: Vec<u64> = events.iter().map(|event| event.revision.0).collect();
            (revisions, next.0)
        };
        assert_eq!(told(11, 1), (vec![12, 12], 15));
        assert_eq!(told(13, 1000), (vec![15, 20], 21));
        assert_eq!(told(21, 1000), (vec![], 21));
        // a list of a store that others use, too, may be ahead of what was heard
        assert_eq!(told(30, 1000), (vec![], 30));
        let (events, next) = past.since("/c", Revision(11), 1000);
        assert_eq!((events.len(), next), (1, Revision(21)));
    }

    #[test]
    fn what_is_forgotten_is_forgotten_by_whole_revisions() {
        let mut past = Past::after(Revision(0));
        for n in 0..=EVENTS_MAX as u64 {
            past.push(event(1 + n / 2, "/a"));
        }
        assert_eq!(past.oldest, Revision(2));
        let first = past.since("/a", past.oldest, 1).0;
        assert_eq!((first.len(), first[0].revision), (2, past.oldest));
    }
}
