//! Containers that this node has left since its full disk took none of their records any more: once there is room, each is
//! opened anew, as all of them are by a start.

use crate::container::Container;
use crate::env::Env;
use crate::leftovers::let_go;
use crate::revoke::forget_content;
use perigee_store::StoreError;
use perigee_types::ContainerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

/// How often room is looked for.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// After so long what the disk did not take is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long kernels are waited for.
const FORGETS: Duration = Duration::from_secs(3);

/// What is on its way to be opened anew.
#[derive(Debug, Default)]
pub(crate) struct Reopening(JoinSet<(ContainerId, Closed)>);

/// How closing a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// It may be opened.
    Well,
    /// What the disk has of it is worth nothing: another copy is to take its place.
    Rotten,
    /// The disk fails: nobody opens it before this node is started again.
    Failing,
}

impl Reopening {
    /// Begins to close what can be opened anew. Nobody may open containers meanwhile, nor one of `env.closing` until
    /// [`Self::closed`].
    pub(crate) fn close(&mut self, env: &Arc<Env>) {
        if !env.store.has_room() {
            return;
        }
        for container in env.all_containers() {
            let id = container.id;
            // What is no copy is dropped as a leftover.
            let is_copy = !env.spoiled.lock().contains(&id) && !env.torn.lock().contains(&id);
            // Programs may have its files from the kernel: what these change unseen is told to the container that is open.
            let ready = container.has_lost_records()
                && container.is_outside()
                && !container.is_failing()
                && !container.maps_change_unseen()
                && is_copy;
            if ready && env.closing.lock().insert(id) {
                env.containers.write().remove(&id);
                self.0.spawn(close_one(env.clone(), container));
            }
        }
    }

    /// Waits until a container is closed that may be opened, and gives it; for ever if none is on its way.
    pub(crate) async fn closed(&mut self, env: &Env) -> ContainerId {
        loop {
            let (id, closed) = match self.0.join_next().await {
                Some(Ok(ended)) => ended,
                // Only a node that ends ends its tasks.
                Some(Err(error)) => {
                    debug!(%error, "closing a container ended");
                    continue;
                }
                None => return std::future::pending().await,
            };
            match closed {
                Closed::Well => {
                    info!(container = %id, "the disk has room again: the container is opened anew");
                }
                Closed::Rotten => _ = env.spoiled.lock().insert(id),
                Closed::Failing => continue,
            }
            env.closing.lock().remove(&id);
            return id;
        }
    }
}

/// Closes a container; of what is in place here then nothing counts that only it knew of.
async fn close_one(env: Arc<Env>, container: Arc<Container>) -> (ContainerId, Closed) {
    let id = container.id;
    let_go(&container).await;
    // Kernels may have pages of what is given up: the next owner may be this node, and another one does not say so to it.
    let forgets = env.clone();
    let forgot = env
        .runtime
        .spawn_blocking(move || forget_content(&forgets, id));
    // One that has a page locked for a write may wait for who owns the container next.
    match tokio::time::timeout(FORGETS, forgot).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => error!(container = %id, %error, "kernels may keep what they have of it"),
        Err(_) => warn!(container = %id, "a kernel takes its time to forget what it has of it"),
    }
    loop {
        let closed = container.clone();
        let given_up = env
            .runtime
            .spawn_blocking(move || closed.give_up_unrecorded());
        match given_up.await {
            Ok(Ok(())) => return (id, Closed::Well),
            Ok(Err(error @ StoreError::NoSpace)) => {
                warn!(container = %id, %error, "not opened anew yet");
            }
            Ok(Err(error)) => {
                error!(container = %id, %error, "not opened anew");
                let closed = match error {
                    StoreError::Damaged { .. } => Closed::Rotten,
                    _ => Closed::Failing,
                };
                return (id, closed);
            }
            Err(error) => debug!(container = %id, %error, "stopping"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
