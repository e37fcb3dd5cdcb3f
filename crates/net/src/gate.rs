//! Counts tasks, so that a shutdown can wait for them.

use std::sync::Arc;
use tokio::sync::watch;

#[derive(Debug, Clone)]
pub(crate) struct Gate {
    inside: Arc<watch::Sender<usize>>,
}

/// One task inside the gate.
#[derive(Debug)]
pub(crate) struct Inside(Gate);

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            inside: Arc::new(watch::Sender::new(0)),
        }
    }

    pub(crate) fn enter(&self) -> Inside {
        self.inside.send_modify(|count| *count += 1);
        Inside(self.clone())
    }

    /// Returns when nobody is inside.
    pub(crate) async fn empty(&self) {
        let mut watcher = self.inside.subscribe();
        // fails only when the sender is gone, and `self` holds it
        _ = watcher.wait_for(|count| *count == 0).await;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.send_modify(|count| *count -= 1);
    }
}
