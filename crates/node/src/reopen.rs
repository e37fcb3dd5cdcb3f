//! Containers that this node has left since its full disk took none of their records any more: once there is room, each is
//! opened anew, as all of them are by a start.

use crate::container::Container;
use crate::env::Env;
use crate::leftovers::let_go;
use perigee_types::ContainerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

/// How often room is looked for.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// After so long what the disk did not take is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// What is on its way to be opened anew.
#[derive(Debug, Default)]
pub(crate) struct Reopening(JoinSet<ContainerId>);

impl Reopening {
    /// Begins to close what can be opened anew. Nobody may open containers meanwhile, nor one of `env.closing` until
    /// [`Self::closed`].
    pub(crate) fn close(&mut self, env: &Arc<Env>) {
        if !env.store.has_room() {
            return;
        }
        for container in env.all_containers() {
            // Programs may have its files from the kernel: what these change unseen is told to the container that is open.
            let ready = container.has_lost_records()
                && container.is_outside()
                && !container.maps_change_unseen();
            let id = container.id;
            if ready && env.closing.lock().insert(id) {
                env.containers.write().remove(&id);
                self.0.spawn(close_one(env.clone(), container));
            }
        }
    }

    /// Waits until a container is closed that may be opened, and gives it; for ever if none is on its way.
    pub(crate) async fn closed(&mut self, env: &Env) -> ContainerId {
        loop {
            match self.0.join_next().await {
                Some(Ok(id)) => {
                    info!(container = %id, "the disk has room again: the container is opened anew");
                    env.closing.lock().remove(&id);
                    return id;
                }
                // Only a node that ends ends its tasks.
                Some(Err(error)) => debug!(%error, "closing a container ended"),
                None => std::future::pending().await,
            }
        }
    }
}

/// Closes a container; of what is in place here then nothing counts that only it knew of.
async fn close_one(env: Arc<Env>, container: Arc<Container>) -> ContainerId {
    let id = container.id;
    let_go(&container).await;
    loop {
        let closed = container.clone();
        let given_up = env
            .runtime
            .spawn_blocking(move || closed.give_up_unrecorded());
        match given_up.await {
            Ok(Ok(())) => return id,
            Ok(Err(error)) => warn!(container = %id, %error, "not opened anew yet"),
            Err(error) => debug!(container = %id, %error, "stopping"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
