//! Copies that no chain counts any more: their space is given back.
//!
//! A copy that was left out for a while is worth keeping: a node that comes back catches up from it. So it goes only when
//! the chain has been complete without it for some time; at once where the node is to leave anyway. One whose keys have
//! rotted is worth nothing: it goes, and comes back whole, as soon as two others go on without it. A node that wiped its
//! copy is to the protocol what a node with a new disk is.

use crate::container::Container;
use crate::env::Env;
use perigee_cluster::{Directory, Node};
use perigee_store::StoreError;
use perigee_types::{ContainerId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, error, info};

/// How often leftovers are looked for.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// How long a copy is kept that the chain does without: a node that returns within the time need not fetch it all.
const KEPT: Duration = Duration::from_secs(600);
/// The same on a node that leaves, of a copy that has moved to another node, and of one that is spoiled.
const KEPT_FOR_NOTHING: Duration = Duration::from_secs(4);
/// Members that keep a container while a spoiled copy of it is dropped.
const OTHERS: usize = 2;
/// One that is no copy at all goes beside so many.
const TORN: usize = 1;
/// How long who still works with a copy may take to let go of it.
const LET_GO: Duration = Duration::from_secs(2);

/// What this node keeps and no chain counts.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// What the store had when the process started, or since then has had of a container that was closed.
    stored: BTreeSet<ContainerId>,
    /// Since when.
    since: BTreeMap<ContainerId, Instant>,
    /// Copies that are being freed; nobody may open them.
    freeing: JoinSet<(ContainerId, Freed)>,
}

/// How freeing a copy ended.
#[derive(Debug)]
enum Freed {
    Yes,
    /// The disk did not let go of it.
    Not,
}

impl Leftovers {
    /// Reads what the store has. Blocks on the disk.
    pub(crate) fn of(env: &Env) -> Result<Self, StoreError> {
        Ok(Self {
            stored: env.store.containers()?.into_iter().collect(),
            since: BTreeMap::new(),
            freeing: JoinSet::new(),
        })
    }

    /// The store has something of a container that is not open.
    pub(crate) fn note_stored(&mut self, id: ContainerId) {
        self.stored.insert(id);
    }

    /// Begins to free what is due. Nobody may open containers meanwhile, nor one of `env.closing` until [`Self::freed`].
    pub(crate) fn free(&mut self, env: &Arc<Env>) {
        for id in self.due(env, Instant::now()) {
            let container = env.container(id);
            // Programs may have its files from the kernel.
            let in_use = |open: &Arc<Container>| !open.is_idle() || open.maps_change_unseen();
            if container.as_ref().is_some_and(in_use) {
                continue;
            }
            if env.closing.lock().insert(id) {
                env.containers.write().remove(&id);
                self.freeing.spawn(free_one(env.clone(), id, container));
            }
        }
    }

    /// Waits until a copy is freed that another owner may speak of by now; for ever if none is being freed.
    pub(crate) async fn freed(&mut self, env: &Env) {
        let (id, freed) = match self.freeing.join_next().await {
            Some(Ok(ended)) => ended,
            // Only a node that ends ends its tasks.
            Some(Err(error)) => return debug!(%error, "freeing a copy ended"),
            None => return std::future::pending().await,
        };
        self.since.remove(&id);
        if matches!(freed, Freed::Yes) {
            self.stored.remove(&id);
            env.spoiled.lock().remove(&id);
            env.torn.lock().remove(&id);
            info!(container = %id, "freed a copy that no chain counts");
        }
        env.closing.lock().remove(&id);
    }

    fn due(&mut self, env: &Env, now: Instant) -> Vec<ContainerId> {
        let mut kept = self.stored.clone();
        for container in env.all_containers() {
            if container.is_outside() {
                kept.insert(container.id);
            } else {
                kept.remove(&container.id);
            }
        }
        let spoiled = env.spoiled.lock().clone();
        let torn = env.torn.lock().clone();
        kept.extend(spoiled.union(&torn).filter(|id| {
            let open = env.container(**id);
            open.is_none_or(|container| container.is_outside())
        }));
        let directory = env.directory.read();
        kept.retain(|id| {
            let others = match (torn.contains(id), spoiled.contains(id)) {
                // It is nobody's copy, whoever else has one.
                (true, _) => Some(TORN),
                (false, spoiled) => spoiled.then_some(OTHERS),
            };
            is_useless(&directory, env.me, *id, others)
        });
        self.since.retain(|id, _| kept.contains(id));
        let stays = directory.node(env.me).is_some_and(Node::takes_containers);
        // Its place is another node's, for good.
        let moved_away = |id: &ContainerId| {
            let record = directory.moves.get(id).map(|known| known.record);
            record.is_some_and(|record| record.from == env.me)
        };
        let long = |id: &ContainerId| {
            let wait = if stays && !spoiled.contains(id) && !torn.contains(id) && !moved_away(id) {
                KEPT
            } else {
                KEPT_FOR_NOTHING
            };
            let since = self.since.entry(*id).or_insert(now);
            now.duration_since(*since) >= wait
        };
        kept.into_iter().filter(long).collect()
    }
}

/// Whether a container has all the members that it should have, or `others`, and `me` is not one.
fn is_useless(directory: &Directory, me: NodeId, id: ContainerId, others: Option<usize>) -> bool {
    let Some(record) = directory.container(id) else {
        return false;
    };
    let nodes = directory.nodes.values().map(|known| &known.record);
    let storing = nodes.filter(|node| node.takes_containers()).count();
    let all = usize::from(record.copies).min(storing).max(1);
    let enough = others.map_or(all, |others| others.min(all));
    !record.chain.contains(&me) && record.chain.len() >= enough
}

/// Ends what works for a container, and waits until nobody else holds it.
pub(crate) async fn let_go(container: &Arc<Container>) {
    container.close();
    let began = Instant::now();
    let mut told = false;
    // For ever if need be: who holds on to it could write to what is opened or wiped beside it.
    while Arc::strong_count(container) > 1 {
        if !told && began.elapsed() > LET_GO {
            error!(container = %container.id, "somebody holds on to a copy that is closed");
            told = true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until nobody works with a copy, and drops it.
async fn free_one(
    env: Arc<Env>,
    id: ContainerId,
    container: Option<Arc<Container>>,
) -> (ContainerId, Freed) {
    if let Some(container) = container {
        let_go(&container).await;
    }
    let store = env.store.clone();
    let wiped = env
        .runtime
        .spawn_blocking(move || store.wipe_container(id))
        .await;
    let freed = match wiped {
        Ok(Ok(())) => Freed::Yes,
        Ok(Err(error)) => {
            error!(container = %id, %error, "a copy that no chain counts stays");
            Freed::Not
        }
        Err(error) => {
            debug!(container = %id, %error, "stopping");
            Freed::Not
        }
    };
    (id, freed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_cluster::directory::Known;
    use perigee_cluster::{Container, NodeState, Revision};
    use perigee_types::{Epoch, WallTime};

    fn directory(chain: &[u32], copies: u8, nodes: &[NodeState]) -> Directory {
        let revision = Revision::default();
        let mut directory = Directory::default();
        for (state, number) in nodes.iter().zip(1_u32..) {
            let record = Node {
                id: NodeId(number),
                name: format!("n{number}"),
                address: ([127, 0, 0, 1], 7).into(),
                site: None,
                role: perigee_cluster::Role::Stores,
                joined: WallTime::default(),
                cert_serial: Vec::new(),
                state: *state,
                capacity: 0,
            };
            let known = Known { record, revision };
            directory.nodes.insert(NodeId(number), known);
        }
        let record = Container {
            id: ContainerId(1),
            epoch: Epoch(4),
            chain: chain.iter().copied().map(NodeId).collect(),
            copies,
            home: NodeId(1),
        };
        let known = Known { record, revision };
        directory.containers.insert(ContainerId(1), known);
        directory
    }

    #[test]
    fn a_copy_is_of_no_use_only_beside_all_the_copies_that_are_wanted() {
        use NodeState::{Active, Draining};
        let useless = |chain: &[u32], copies, nodes: &[NodeState]| {
            let directory = directory(chain, copies, nodes);
            is_useless(&directory, NodeId(3), ContainerId(1), None)
        };
        assert!(!useless(&[1, 2, 3], 3, &[Active; 3]));
        assert!(!useless(&[1, 2], 3, &[Active; 3]));
        assert!(useless(&[1, 2], 2, &[Active; 3]));
        assert!(useless(&[1, 2], 3, &[Active, Active, Draining]));
        assert!(useless(&[1, 2, 4], 3, &[Active; 4]));
        assert!(!useless(&[1], 3, &[Active, Active, Draining]));
        let other = directory(&[1, 2], 2, &[Active; 3]);
        assert!(!is_useless(&other, NodeId(3), ContainerId(2), None));
        let spoiled = |chain: &[u32]| {
            let directory = directory(chain, 3, &[Active; 3]);
            is_useless(&directory, NodeId(3), ContainerId(1), Some(OTHERS))
        };
        let torn = |chain: &[u32]| {
            let directory = directory(chain, 3, &[Active; 3]);
            is_useless(&directory, NodeId(3), ContainerId(1), Some(TORN))
        };
        assert!(torn(&[1]) && !torn(&[1, 3]));
        assert!(spoiled(&[1, 2]));
        assert!(!spoiled(&[1]) && !spoiled(&[1, 2, 3]));
    }
}
