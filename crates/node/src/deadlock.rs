//! Finds waits for locks that go in a circle over the containers of several owners, and ends one of each.
//!
//! Each owner looks by itself, and only while somebody waits in a container of its own: it asks the others who waits
//! there, and by what their mounts decide by themselves, and does so twice ([`cycle`](perigee_meta::lock::cycle)). Whoever looks
//! refuses what waits at its own alone.

use crate::env::Env;
use futures_util::future::join_all;
use perigee_meta::lock::cycle::{Wait, victims};
use perigee_proto::message::session::AskWaits;
use perigee_types::NodeId;
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// How often it is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How long a node may take to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// The most holders, of all waits together, that one node tells of, or believes another one.
const HOLDERS_MAX: usize = 10_000;

/// Who waits for whom in the containers that this node owns, and in its mounts.
pub(crate) fn waits_here(env: &Env) -> Vec<Wait> {
    bounded(owned(env).into_iter().chain(env.sessions.lock_waits())).collect()
}

fn owned(env: &Env) -> Vec<Wait> {
    let containers = env.all_containers();
    containers.iter().flat_map(|c| c.waits()).collect()
}

fn bounded(waits: impl Iterator<Item = Wait>) -> impl Iterator<Item = Wait> {
    let mut holders = 0;
    waits.take_while(move |wait| {
        holders += wait.holders.len();
        holders <= HOLDERS_MAX
    })
}

/// Looks for circles as long as the node runs.
pub(crate) async fn run(env: Arc<Env>) {
    let mut earlier = Vec::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let later = match owned(&env) {
            none if none.is_empty() => none,
            _ => with_others(&env, waits_here(&env)).await,
        };
        for victim in victims(&earlier, &later) {
            // The other owners of the circle find it, too.
            if let Some(container) = env.container(victim.inode.container()) {
                container.end_cycle(&victim);
            }
        }
        earlier = later;
    }
}

/// The same, with what the others say.
async fn with_others(env: &Arc<Env>, mut waits: Vec<Wait>) -> Vec<Wait> {
    let others: Vec<NodeId> = {
        let directory = env.directory.read();
        let live = directory.live.keys().copied();
        live.filter(|node| *node != env.me).collect()
    };
    let asks = others.into_iter().map(|node| async move {
        let answer = env.ask(node, &AskWaits, bytes::Bytes::new(), ANSWER).await;
        answer
            .inspect_err(|error| debug!(%node, %error, "waits for locks not told"))
            .ok()
    });
    for (answer, _) in join_all(asks).await.into_iter().flatten() {
        waits.extend(bounded(answer.waits.into_iter()));
    }
    waits
}
