//! Which thread of a mount waits for requests.
//!
//! One at a time, the leader; the others rest. As long as requests come one after another the leader answers each
//! itself, so that nobody is woken in vain and the next request meets a thread that is awake. It gives the lead
//! away when requests are queued before it comes back for more. A deputy watches it while there are requests, and
//! takes the lead when one of them keeps it for a [`TICK`]: no request waits for another one to end.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long one request may keep the leader before another thread leads; at most twice as long.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without a request after which nobody watches.
const IDLE_TICKS: u32 = 50;
/// So many requests in a row that were queued already mean that one thread is not enough.
const QUEUED_MAX: u32 = 8;

/// The turns of a mount's threads.
pub(super) struct Turns {
    /// Called while no request comes, by who watches.
    on_pause: Box<dyn Fn() + Send + Sync>,
    /// Rises when the lead changes hands.
    reign: AtomicU64,
    /// Requests taken by leaders.
    taken: AtomicU64,
    /// The number of the request that the leader is at; 0: none.
    at: AtomicU64,
    resting: AtomicUsize,
    /// Whether somebody watches, or was asked to.
    watched: AtomicBool,
    state: Mutex<State>,
    rested: Condvar,
}

#[derive(Debug, Default)]
struct State {
    led: bool,
    over: bool,
    /// One of those who rest is asked to watch.
    deputy_wanted: bool,
}

/// How a request was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It was there when the leader came for it.
    Queued,
    /// The leader waited for it.
    Awaited,
}

/// What the watch of a deputy came to.
enum Watch {
    /// The leader does not come back.
    Stuck,
    /// There is nothing to watch.
    Idle,
}

/// A thread's time as the leader.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    reign: u64,
    request: u64,
    queued: u32,
}

impl Turns {
    /// Nobody leads yet. `on_pause` is called, again and again, when requests have come and no more come for a
    /// [`TICK`], or when one keeps the leader as long, while [`Turn::is_watched`]; it may not block.
    pub(super) fn new(on_pause: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            on_pause: Box::new(on_pause),
            reign: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            at: AtomicU64::new(0),
            resting: AtomicUsize::new(0),
            watched: AtomicBool::new(false),
            state: Mutex::default(),
            rested: Condvar::new(),
        }
    }

    /// Rests until this thread leads. `None`: nobody does any more.
    pub(super) fn lead(&self) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        self.resting.fetch_add(1, Ordering::Relaxed);
        let leads = self.rest(&mut state);
        self.resting.fetch_sub(1, Ordering::Relaxed);
        leads.then(|| Turn {
            turns: self,
            reign: self.reign.fetch_add(1, Ordering::AcqRel) + 1,
            request: 0,
            queued: 0,
        })
    }

    fn rest(&self, state: &mut MutexGuard<'_, State>) -> bool {
        loop {
            if state.over {
                return false;
            }
            if !state.led {
                state.led = true;
                if std::mem::take(&mut state.deputy_wanted) {
                    // This may have been the one who was called.
                    self.watched.store(false, Ordering::Release);
                }
                return true;
            }
            if std::mem::take(&mut state.deputy_wanted) {
                let watch = self.watch(state);
                self.watched.store(false, Ordering::Release);
                // Requests may have come since it looked last, and nobody looks any more.
                (self.on_pause)();
                if matches!(watch, Watch::Stuck) {
                    self.at.store(0, Ordering::Release);
                    return true;
                }
                continue;
            }
            self.rested.wait(state);
        }
    }

    fn watch(&self, state: &mut MutexGuard<'_, State>) -> Watch {
        let mut seen_at = 0;
        let mut seen_taken = 0;
        let mut idle = 0;
        while state.led && !state.over && idle < IDLE_TICKS {
            self.rested.wait_for(state, TICK);
            let at = self.at.load(Ordering::Acquire);
            let taken = self.taken.load(Ordering::Acquire);
            if taken == seen_taken {
                (self.on_pause)();
            }
            if at != 0 && at == seen_at && state.led && !state.over {
                return Watch::Stuck;
            }
            idle = if taken == seen_taken { idle + 1 } else { 0 };
            (seen_at, seen_taken) = (at, taken);
        }
        Watch::Idle
    }

    /// Nobody leads any more.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.rested.notify_all();
    }
}

impl Turn<'_> {
    /// The leader has a request, and goes to answer it.
    pub(super) fn took(&mut self, found: Found) {
        let turns = self.turns;
        self.request = turns.taken.fetch_add(1, Ordering::AcqRel) + 1;
        turns.at.store(self.request, Ordering::Release);
        self.queued = match found {
            Found::Queued => self.queued + 1,
            Found::Awaited => 0,
        };
        if turns.resting.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.queued >= QUEUED_MAX {
            let mut state = turns.state.lock();
            // Only who leads can give the lead away.
            if self.leads() {
                turns.reign.fetch_add(1, Ordering::AcqRel);
                turns.at.store(0, Ordering::Release);
                state.led = false;
                drop(state);
                turns.rested.notify_one();
            }
        } else if !turns.watched.swap(true, Ordering::AcqRel) {
            turns.state.lock().deputy_wanted = true;
            turns.rested.notify_one();
        }
    }

    /// The request is answered, or somebody else will answer it. Whether this thread still leads.
    pub(super) fn done(&mut self) -> bool {
        let at = &self.turns.at;
        // Another leader may be at another one.
        _ = at.compare_exchange(self.request, 0, Ordering::AcqRel, Ordering::Relaxed);
        self.leads()
    }

    /// Whether another thread looks whether requests come, and tells of a pause.
    pub(super) fn is_watched(&self) -> bool {
        self.turns.watched.load(Ordering::Acquire)
    }

    fn leads(&self) -> bool {
        self.turns.reign.load(Ordering::Acquire) == self.reign
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Far above a tick.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Leads while another thread rests; `run` has the leader's turn, and hears when the other leads.
    fn beside_another(run: impl FnOnce(&mut Turn<'_>, &mpsc::Receiver<()>)) {
        let turns = Turns::new(|| ());
        let mut turn = turns.lead().unwrap();
        let (leads, led) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                if turns.lead().is_some() {
                    leads.send(()).unwrap();
                }
            });
            while turns.resting.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            run(&mut turn, &led);
            turns.end();
        });
    }

    #[test]
    fn one_thread_answers_what_comes_one_after_another() {
        beside_another(|turn, led| {
            for _ in 0..1000 {
                turn.took(Found::Awaited);
                assert!(turn.done());
            }
            assert!(led.try_recv().is_err());
        });
    }

    #[test]
    fn a_leader_that_does_not_come_back_is_replaced() {
        beside_another(|turn, led| {
            turn.took(Found::Awaited);
            assert!(turn.done());
            turn.took(Found::Awaited);
            led.recv_timeout(PATIENCE).unwrap();
            assert!(!turn.done());
        });
    }

    #[test]
    fn requests_that_were_queued_bring_another_thread() {
        beside_another(|turn, led| {
            for _ in 1..QUEUED_MAX {
                turn.took(Found::Queued);
                assert!(turn.done());
            }
            turn.took(Found::Queued);
            led.recv_timeout(PATIENCE).unwrap();
            assert!(!turn.done());
        });
    }

    #[test]
    fn who_watches_tells_of_a_pause() {
        let (pauses, paused) = mpsc::channel();
        let turns = Turns::new(move || _ = pauses.send(()));
        let mut turn = turns.lead().unwrap();
        assert!(!turn.is_watched());
        thread::scope(|scope| {
            scope.spawn(|| turns.lead().is_none());
            while turns.resting.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            turn.took(Found::Awaited);
            assert!(turn.is_watched());
            assert!(turn.done());
            paused.recv_timeout(PATIENCE).unwrap();
            turns.end();
        });
    }

    #[test]
    fn the_end_is_the_end_of_all() {
        let turns = Turns::new(|| ());
        let _leader = turns.lead().unwrap();
        thread::scope(|scope| {
            let others: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| turns.lead().is_none()))
                .collect();
            turns.end();
            assert!(others.into_iter().all(|other| other.join().unwrap()));
        });
    }
}
