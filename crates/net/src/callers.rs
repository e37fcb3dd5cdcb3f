//! Who has called here: the answers kept for each process of each peer, its budget, and its connection.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

use crate::budget::Budget;
use crate::hello::LaneName;
use crate::identity::PeerName;
use crate::replies::Replies;

/// Processes of one peer whose answers are kept at a time: the daemon, and command lines that use its certificate.
const PROCESSES_MAX: usize = 8;
/// Processes of one peer that are remembered as gone, so that they do not come back without their answers.
const GONE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Callers {
    seats: Mutex<BTreeMap<(PeerName, LaneName), Peer>>,
}

#[derive(Debug)]
struct Peer {
    budget: Arc<Budget>,
    /// The one that connected last is at the end.
    processes: VecDeque<Process>,
    gone: VecDeque<u64>,
}

#[derive(Debug)]
struct Process {
    incarnation: u64,
    replies: Arc<Replies>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    /// Dropped to make the connection end.
    _replace: watch::Sender<()>,
    /// Ends when the connection has handed out its last frame.
    done: watch::Receiver<()>,
}

/// The one place for a connection of a lane of a process. While it is held, no younger connection of the same process
/// delivers anything: so casts of an old connection never arrive after those of a new one.
pub(crate) struct Seat {
    callers: Arc<Callers>,
    peer: PeerName,
    lane: LaneName,
    incarnation: u64,
    pub(crate) replies: Arc<Replies>,
    pub(crate) budget: Arc<Budget>,
    replaced: watch::Receiver<()>,
    previous: Option<watch::Receiver<()>>,
    _done: watch::Sender<()>,
}

/// The process was forgotten; its calls could run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superseded;

impl Callers {
    /// Takes the seat, from an older connection of the same process if there is one.
    pub(crate) fn sit(
        self: &Arc<Self>,
        peer: PeerName,
        lane: LaneName,
        incarnation: u64,
        budget_max: usize,
        reply_bytes_max: usize,
    ) -> Result<Seat, Superseded> {
        let mut seats = self.seats.lock();
        let entry = seats.entry((peer, lane)).or_insert_with(|| Peer {
            budget: Budget::new(budget_max),
            processes: VecDeque::new(),
            gone: VecDeque::new(),
        });
        if entry.gone.contains(&incarnation) {
            return Err(Superseded);
        }
        let known = entry
            .processes
            .iter()
            .position(|process| process.incarnation == incarnation);
        let mut process = known
            .and_then(|place| entry.processes.remove(place))
            .unwrap_or_else(|| Process {
                incarnation,
                replies: Arc::new(Replies::new(reply_bytes_max)),
                current: None,
            });
        let (replace, replaced) = watch::channel(());
        let (done_sender, done) = watch::channel(());
        let previous = process
            .current
            .replace(Current {
                _replace: replace,
                done,
            })
            .map(|current| current.done);
        let seat = Seat {
            callers: Arc::clone(self),
            peer,
            lane,
            incarnation,
            replies: Arc::clone(&process.replies),
            budget: Arc::clone(&entry.budget),
            replaced,
            previous,
            _done: done_sender,
        };
        entry.processes.push_back(process);
        entry.forget_beyond_limit();
        Ok(seat)
    }

    fn leave(&self, seat: &Seat) {
        let mut seats = self.seats.lock();
        let process = seats.get_mut(&(seat.peer, seat.lane)).and_then(|peer| {
            peer.processes
                .iter_mut()
                .find(|process| process.incarnation == seat.incarnation)
        });
        if let Some(process) = process
            && let Some(current) = &process.current
            && current.done.same_channel(&seat._done.subscribe())
        {
            process.current = None;
        }
    }
}

impl Peer {
    fn forget_beyond_limit(&mut self) {
        while self.processes.len() > PROCESSES_MAX {
            let place = self
                .processes
                .iter()
                .position(|process| process.current.is_none())
                .unwrap_or(0);
            if let Some(process) = self.processes.remove(place) {
                self.gone.push_back(process.incarnation);
            }
        }
        while self.gone.len() > GONE_MAX {
            self.gone.pop_front();
        }
    }
}

impl Seat {
    /// Returns when the older connection has delivered its last frame.
    pub(crate) async fn free(&mut self) {
        if let Some(mut previous) = self.previous.take() {
            while previous.changed().await.is_ok() {}
        }
    }

    /// Returns when a younger connection has taken the seat.
    pub(crate) async fn replaced(&self) {
        let mut replaced = self.replaced.clone();
        while replaced.changed().await.is_ok() {}
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.callers.leave(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sit(callers: &Arc<Callers>, incarnation: u64) -> Result<Seat, Superseded> {
        callers.sit(PeerName::Control, LaneName::Urgent, incarnation, 1000, 1000)
    }

    #[tokio::test]
    async fn a_younger_connection_waits_for_the_older_one_to_end() {
        let callers = Arc::new(Callers::default());
        let old = sit(&callers, 1).unwrap_or_else(|_| unreachable!());
        let mut new = sit(&callers, 1).unwrap_or_else(|_| unreachable!());
        old.replaced().await;
        assert!(Arc::ptr_eq(&old.replies, &new.replies));
        let order = tokio::join!(
            async {
                new.free().await;
                std::time::Instant::now()
            },
            async {
                tokio::task::yield_now().await;
                let before = std::time::Instant::now();
                drop(old);
                before
            }
        );
        assert!(order.0 >= order.1);
    }

    #[tokio::test]
    async fn a_forgotten_process_does_not_come_back() {
        let callers = Arc::new(Callers::default());
        drop(sit(&callers, 0));
        for incarnation in 1..=PROCESSES_MAX as u64 {
            drop(sit(&callers, incarnation));
        }
        assert_eq!(sit(&callers, 0).err(), Some(Superseded));
        assert!(sit(&callers, 1).is_ok());
    }
}
