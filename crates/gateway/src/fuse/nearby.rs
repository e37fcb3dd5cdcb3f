//! Keeps the thread that answers requests on the processor of the program that asks.
//!
//! A program that asks for one thing after another sleeps while it is answered, and the thread that answers waits
//! while it works: on one processor the one follows the other, on two each wakes the other's, which takes several
//! times as long where processors are virtual. Only while requests come briskly and from one program.

use super::threads::processor_of;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::debug;

/// Requests in a row from one program after which it is followed.
const ALIKE_MIN: u32 = 16;
/// Requests after which it is looked up again where the program runs.
const LOOK_EVERY: u32 = 256;

/// Where a thread runs, and why.
#[derive(Debug)]
pub(super) struct Nearby {
    /// Where it may run when it follows nobody.
    home: Option<CpuSet>,
    caller: u32,
    alike: u32,
    processor: Option<usize>,
}

impl Nearby {
    /// For the current thread.
    pub(super) fn new() -> Self {
        Self {
            // A thread that cannot ask where it may run stays where the system puts it.
            home: sched_getaffinity(None).ok().filter(|home| home.count() > 1),
            caller: 0,
            alike: 0,
            processor: None,
        }
    }

    /// Whether it runs where the program does that it answers.
    pub(super) fn follows(&self) -> bool {
        self.processor.is_some()
    }

    /// A request of thread `caller` was taken; 0: nobody waits for it.
    pub(super) fn asked_by(&mut self, caller: u32) {
        if caller == 0 || self.home.is_none() {
            return;
        }
        if caller != self.caller {
            self.roam();
            self.caller = caller;
            return;
        }
        self.alike += 1;
        if self.alike == ALIKE_MIN || self.alike.is_multiple_of(LOOK_EVERY) {
            self.follow();
        }
    }

    fn follow(&mut self) {
        let processor = processor_of(self.caller);
        if processor == self.processor {
            return;
        }
        match (processor, self.home) {
            (Some(processor), Some(home)) if home.is_set(processor) => {
                let mut only = CpuSet::new();
                only.set(processor);
                self.move_to(&only, Some(processor));
            }
            _ => self.roam(),
        }
    }

    /// Goes wherever the system puts it.
    pub(super) fn roam(&mut self) {
        self.alike = 0;
        if self.processor.is_some()
            && let Some(home) = self.home
        {
            self.move_to(&home, None);
        }
    }

    fn move_to(&mut self, to: &CpuSet, processor: Option<usize>) {
        match sched_setaffinity(None, to) {
            Ok(()) => self.processor = processor,
            Err(error) => {
                // It works from anywhere, only more slowly.
                debug!(%error, "a thread of the mount cannot choose its processor");
                self.home = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads::this_thread;
    use super::*;

    #[test]
    fn a_thread_follows_its_caller_and_is_free_again() {
        let mut nearby = Nearby::new();
        let Some(home) = nearby.home else {
            return eprintln!("skipped: one processor only");
        };
        let me = this_thread();
        for _ in 0..=ALIKE_MIN {
            nearby.asked_by(me);
            nearby.asked_by(0);
        }
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        nearby.roam();
        assert_eq!(sched_getaffinity(None).unwrap(), home);
        // Callers by turns are not followed.
        for caller in 0..10 * ALIKE_MIN {
            nearby.asked_by(me + caller % 2);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), home);
    }
}
