//! Requests that a signal may call off: those that wait for a lock.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// Interrupts that came before their request was seen here; more than the kernel can have under
/// way between two reader threads.
const EARLY_MAX: usize = 256;

/// Lock requests under way, by the kernel's number of them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: BTreeMap<u64, Phase>,
    /// Interrupts without a request: of other kinds, or of one that another reader is about to
    /// begin. Numbers are never used twice, so old ones do no harm.
    early: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The file system is being told of it, and may not know it yet.
    Entering,
    /// Interrupted while it was entering.
    Interrupted,
    /// The file system knows it.
    Entered,
}

impl Waiting {
    /// A request is about to be handed over. False: it has been interrupted already.
    pub(crate) fn begin(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        if let Some(at) = state.early.iter().position(|&early| early == unique) {
            state.early.remove(at);
            return false;
        }
        state.requests.insert(unique, Phase::Entering);
        true
    }

    /// The file system knows the request. True: it was interrupted meanwhile, and is to be called off.
    pub(crate) fn entered(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        let before = state.requests.get_mut(&unique);
        before.is_some_and(|phase| std::mem::replace(phase, Phase::Entered) == Phase::Interrupted)
    }

    /// A request is answered.
    pub(crate) fn end(&self, unique: u64) {
        self.state.lock().requests.remove(&unique);
    }

    /// The program was interrupted. True: the request waits, and is to be called off.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        if let Some(phase) = state.requests.get_mut(&unique) {
            if *phase == Phase::Entering {
                *phase = Phase::Interrupted;
            }
            return *phase == Phase::Entered;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_counts_whenever_it_comes() {
        let waiting = Waiting::default();
        assert!(!waiting.interrupt(7));
        assert!(!waiting.begin(7), "interrupted before it was seen");
        assert!(waiting.begin(8));
        assert!(!waiting.interrupt(8));
        assert!(waiting.entered(8), "interrupted while it was handed over");
        assert!(waiting.begin(9));
        assert!(!waiting.entered(9));
        assert!(waiting.interrupt(9), "interrupted while it waits");
    }

    #[test]
    fn answered_requests_are_left_alone() {
        let waiting = Waiting::default();
        assert!(waiting.begin(9));
        waiting.end(9);
        assert!(!waiting.entered(9));
        assert!(!waiting.interrupt(9));
    }

    #[test]
    fn early_interrupts_take_bounded_room() {
        let waiting = Waiting::default();
        (0..10_000).for_each(|unique| assert!(!waiting.interrupt(unique)));
        assert_eq!(waiting.state.lock().early.len(), EARLY_MAX);
    }
}
