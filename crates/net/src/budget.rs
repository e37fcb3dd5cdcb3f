//! Bytes that one peer may hold in this process.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Budget {
    used: Mutex<usize>,
    max: usize,
    room: Notify,
}

/// What anything costs at least: about what its task and table entries take.
const CHARGE_MIN: usize = 1 << 10;

/// Bytes in use, given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: Mutex::new(0),
            max,
            room: Notify::new(),
        })
    }

    pub(crate) fn used(&self) -> usize {
        *self.used.lock()
    }

    /// Takes `bytes` at once, even beyond the bound: they are here already. The bound holds the next ones off.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let bytes = bytes.max(CHARGE_MIN);
        *self.used.lock() += bytes;
        Charge {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// Returns when less than the bound is in use.
    ///
    /// # Cancel safety
    /// Safe: it holds nothing.
    pub(crate) async fn room(&self) {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.used() < self.max {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut used = self.budget.used.lock();
        let was_full = *used >= self.budget.max;
        *used -= self.bytes;
        let has_room = *used < self.budget.max;
        drop(used);
        if was_full && has_room {
            self.budget.room.notify_waiters();
        }
    }
}
