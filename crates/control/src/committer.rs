//! The thread that commits: groups requests, makes them durable with one sync, shows them, answers.

use crate::engine::Shared;
use crate::journal::{AppendError, Journal, SwitchError};
use crate::lease::LOOK_EVERY;
use crate::state::{Change, State};
use perigee_cluster::{Committed, LeaseNumber, StoreError, Txn};
use perigee_types::Span;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::{error, warn};

/// How many requests share one sync at most, so that a frame stays far below its limit.
const GROUP_MAX: usize = 512;
/// How many bytes of transactions share one sync at most.
const GROUP_LEN_MAX: usize = 4 << 20;

/// What callers ask of it.
pub(crate) enum Request {
    Commit(Txn, oneshot::Sender<Result<Committed, StoreError>>),
    Grant(Span, oneshot::Sender<Result<LeaseNumber, StoreError>>),
    Revoke(LeaseNumber, oneshot::Sender<Result<(), StoreError>>),
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

/// The thread's state.
pub(crate) struct Committer {
    pub shared: Arc<Shared>,
    pub inbox: Receiver<Request>,
    pub journal: Journal,
    /// What will be published when the current group is durable.
    pub working: State,
    /// How many bytes are appended at least before the log is replaced.
    pub log_len: u64,
}

impl Committer {
    /// Runs until nobody can ask any more.
    pub(crate) fn run(mut self) {
        while let Some(group) = self.gather() {
            if self.finish(group) == Fate::Failed {
                self.shared.failed.send_replace(true);
                // Those who watch look once more, and find it failed.
                self.shared.revision.send_modify(|_| {});
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
