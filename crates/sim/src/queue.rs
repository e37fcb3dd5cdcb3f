//! Events in the order of simulated time; those of one moment in the order in which they were made.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Slot<E> {
    at: u64,
    order: u64,
    event: E,
}

impl<E> PartialEq for Slot<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Slot<E> {}

impl<E> PartialOrd for Slot<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Slot<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The future.
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Slot<E>>>,
    order: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            order: 0,
        }
    }
}

impl<E> Queue<E> {
    /// `event` will happen at `at` (microseconds of true time).
    pub fn push(&mut self, at: u64, event: E) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Slot { at, order, event }));
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(slot)| (slot.at, slot.event))
    }
}
