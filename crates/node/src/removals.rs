//! Objects that nobody can reach any more: taken off the disk in the background, one after another.

use crate::env::Env;
use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tracing::error;

/// How long a removal may wait for others: waking a thread costs as much as several of them.
const GATHER: Duration = Duration::from_millis(20);

/// What is to be removed, and whether somebody is at it.
#[derive(Debug, Default)]
pub(crate) struct Removals(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    inodes: VecDeque<InodeId>,
    running: bool,
}

impl Removals {
    fn next(&self) -> Option<InodeId> {
        let mut queue = self.0.lock();
        let next = queue.inodes.pop_front();
        queue.running = next.is_some();
        next
    }
}

impl Env {
    /// Takes an object away; there is no hurry.
    pub(crate) fn remove_later(self: &Arc<Self>, inode: InodeId) {
        let mut queue = self.removals.0.lock();
        queue.inodes.push_back(inode);
        if std::mem::replace(&mut queue.running, true) {
            return;
        }
        drop(queue);
        let env = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(GATHER).await;
            tokio::task::spawn_blocking(move || env.remove_all());
        });
    }

    fn remove_all(&self) {
        while let Some(inode) = self.removals.next() {
            if let Err(error) = self.store.remove_object(inode) {
                error!(%inode, %error, "the object of a removed inode stays");
            }
        }
    }
}
