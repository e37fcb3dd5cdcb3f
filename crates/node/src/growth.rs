//! Containers of bounded size: what is as large as it may be goes on in another one.
//!
//! A node looks after its own home, which it keeps a copy of, and the owner of a directory's container after that one. New
//! directories start in the new container (`Router::home_for`); what is there stays where it is, and goes on growing.

use crate::env::Env;
use crate::policy::{self, await_copies};
use perigee_cluster::{ChangeError, Directory, Node, Planned, Purpose, change, transition};
use perigee_meta::{Op, Reply};
use perigee_types::{ContainerId, ContainerSize, InodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// How often a node looks how large its containers are.
const LOOK: Duration = Duration::from_secs(2);
/// To count takes one part of so many of its time: all files of the store are looked at.
const REST: u32 = 200;
/// The longest that it rests.
const REST_MAX: Duration = Duration::from_secs(900);
/// After what could not be done it is left alone for so long.
const AGAIN: Duration = Duration::from_secs(30);

/// Looks after the containers of this node, for ever.
pub(crate) async fn run(env: Arc<Env>) {
    // Made for another one, and not known to go on for it yet.
    let mut made = BTreeMap::new();
    loop {
        _ = env.usage.bytes().await;
        let counted = env.usage.took().unwrap_or_default();
        let mut pause = LOOK.max(counted.saturating_mul(REST)).min(REST_MAX);
        for full in find_full(&env).await {
            if let Err(error) = go_on(&env, full, &mut made).await {
                warn!(container = %full, %error, "no container made that goes on for it");
                pause = pause.max(AGAIN);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// The containers that this node looks after and that are as large as they may be.
async fn find_full(env: &Arc<Env>) -> Vec<ContainerId> {
    let sizes = env.usage.containers();
    let large = sizes
        .iter()
        .filter(|(_, bytes)| **bytes >= ContainerSize::MIN);
    let mut full = Vec::new();
    for (id, bytes) in large {
        let governs = {
            let directory = env.directory.read();
            looks_after(env, &directory, *id).then(|| policy::governs(&directory, *id))
        };
        let Some(inode) = governs else {
            continue;
        };
        if limit(env, inode)
            .await
            .is_some_and(|limit| *bytes >= limit.bytes())
        {
            full.push(*id);
        }
    }
    full
}

fn looks_after(env: &Env, directory: &Directory, id: ContainerId) -> bool {
    let takes = directory.node(env.me).is_some_and(Node::takes_containers);
    let newest = directory.goes_on_in(id) == id;
    let cares = match directory.is_of_directory(id) {
        true => env.container(id).is_some_and(|open| open.owned().is_some()),
        false => directory.newest_home_of(env.me) == Some(id),
    };
    takes && newest && cares
}

/// How large the containers may become for which the settings of a directory hold; `None`: nobody says now.
async fn limit(env: &Arc<Env>, inode: InodeId) -> Option<ContainerSize> {
    let answer = crate::router::ask_as_node(env, Op::GetPolicy { inode }).await;
    match answer {
        Ok(Reply::Policy(settings)) => Some(policy::container_size(&settings)),
        _ => None,
    }
}

/// Makes another container on this node, and has it go on for one that is full once it has its copies.
async fn go_on(
    env: &Arc<Env>,
    full: ContainerId,
    made: &mut BTreeMap<ContainerId, ContainerId>,
) -> Result<(), ChangeError> {
    let control = env.control.as_ref();
    let new = match made.get(&full) {
        Some(new) => *new,
        None => {
            change(control, |directory| make(env, directory, full))
                .await?
                .id
        }
    };
    made.insert(full, new);
    await_copies(env, new).await;
    change(control, |directory| {
        transition::grow(directory, new, full, Purpose::GoesOn)
    })
    .await?;
    made.remove(&full);
    info!(container = %full, %new, "it is as large as it may be: new directories start in another one");
    Ok(())
}

/// One with the policy of the other.
fn make(
    env: &Env,
    directory: &Directory,
    full: ContainerId,
) -> Result<Planned<perigee_cluster::Container>, perigee_cluster::PlanError> {
    let chain = vec![env.me];
    match directory.own_policy(full) {
        Some(policy) => transition::create_own_container(directory, chain, policy),
        None => {
            let copies = directory.default_policy().copies;
            transition::create_container(directory, chain, copies, env.me)
        }
    }
}
