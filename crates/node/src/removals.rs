//! Objects that nobody can reach any more: taken off the disk in the background, many at a time.

use crate::env::Env;
use parking_lot::Mutex;
use perigee_store::Unremoved;
use perigee_types::InodeId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::error;

/// Removals begin when none was asked for during so long: those of a group of records are asked for together.
const QUIET: Duration = Duration::from_millis(20);
/// They begin at the latest when the first waited for so long,
const LONGEST: Duration = Duration::from_secs(1);
/// or when so many wait.
const MANY: usize = 10_000;
/// So many go at once.
const TOGETHER: usize = 64;

/// What is to be removed, and whether somebody is at it.
#[derive(Debug, Default)]
pub(crate) struct Removals(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    inodes: VecDeque<InodeId>,
    /// When the last one was asked for.
    last: Option<Instant>,
    running: bool,
    /// How many were ever asked for, and are done.
    asked: u64,
    done: u64,
}

impl Removals {
    /// How many were ever asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.0.lock().asked
    }

    /// Whether so many of those that were ever asked for are on their way to the disk, before whatever is given to it next.
    pub(crate) fn are_done(&self, asked: u64) -> bool {
        self.0.lock().done >= asked
    }

    /// The next ones; none if there are none.
    fn next(&self) -> Vec<InodeId> {
        let mut queue = self.0.lock();
        // Whoever asks for the next ones is done with those before.
        queue.done = queue.asked - queue.inodes.len() as u64;
        let some = queue.inodes.len().min(TOGETHER);
        queue.running = some > 0;
        queue.inodes.drain(..some).collect()
    }

    /// Waits until what is there is better removed now.
    async fn gather(&self) {
        let first = Instant::now();
        loop {
            tokio::time::sleep(QUIET).await;
            let queue = self.0.lock();
            let quiet = queue.last.is_none_or(|last| last.elapsed() >= QUIET);
            if quiet || first.elapsed() >= LONGEST || queue.inodes.len() >= MANY {
                return;
            }
        }
    }
}

impl Env {
    /// Takes an object away; there is no hurry.
    pub(crate) fn remove_later(self: &Arc<Self>, inode: InodeId) {
        let mut queue = self.removals.0.lock();
        queue.inodes.push_back(inode);
        queue.asked += 1;
        queue.last = Some(Instant::now());
        if std::mem::replace(&mut queue.running, true) {
            return;
        }
        drop(queue);
        let env = self.clone();
        self.runtime.spawn(async move {
            env.removals.gather().await;
            tokio::task::spawn_blocking(move || env.remove_all());
        });
    }

    fn remove_all(&self) {
        loop {
            let inodes = self.removals.next();
            if inodes.is_empty() {
                return;
            }
            for Unremoved { inode, why } in self.store.remove_objects(&inodes) {
                error!(%inode, error = %why, "the object of a removed inode stays");
            }
        }
    }
}
