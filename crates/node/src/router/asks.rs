//! What this node itself asks the owners of containers for.

use super::{CALL, Router};
use crate::container::{Container, Failed};
use crate::env::{AskError, Env};
use crate::search::at_owner;
use bytes::Bytes;
use perigee_client::Backend;
use perigee_meta::{Leftovers, Op, Reply};
use perigee_proto::Rpc;
use perigee_proto::message::past;
use perigee_proto::message::report::{AskHolders, Holders};
use perigee_proto::message::tx::{
    AskDecision, Decided, Keys, Prepare, Prepared, ReadKeys, Resolve,
};
use perigee_types::{ContainerId, Errno, InodeId, NodeId, SessionId};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// How long the end of a session tries to tell an owner.
const RELEASE: Duration = Duration::from_secs(1);

/// The plain answer of a peer, without the bytes beside it.
pub(super) async fn ask<R: Rpc>(
    env: &Env,
    node: NodeId,
    request: &R,
    deadline: Duration,
) -> Result<R::Reply, AskError> {
    env.ask(node, request, Bytes::new(), deadline)
        .await
        .map(|(reply, _)| reply)
}

/// Runs an operation of this node's own.
pub(crate) async fn ask_as_node(env: &Env, op: Op) -> Result<Reply, Errno> {
    let router = env.router().ok_or(Errno::EIO)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let session = env.sessions.own();
    // The receiver waits below.
    router.execute(session, op, Box::new(move |result| _ = sender.send(result)));
    let answer = receiver.await.unwrap_or(Err(Errno::EIO));
    answer.map(|(reply, _)| reply)
}

/// Reads keys of a container at its owner.
pub(crate) async fn read_keys(env: &Arc<Env>, request: &ReadKeys) -> Result<Keys, Failed> {
    let here = |container: Arc<Container>| async move { container.read_keys(request).await };
    let there = |node| ask(env, node, request, CALL);
    at_owner(env, request.container, CALL, here, there).await
}

/// Has a container's owner prepare its part of a transaction.
pub(crate) async fn prepare(env: &Arc<Env>, request: &Prepare) -> Result<Prepared, Failed> {
    let here = |container: Arc<Container>| async move { container.prepare(&request.intent).await };
    let there = |node| ask(env, node, request, CALL);
    at_owner(env, request.container, CALL, here, there).await
}

/// Has a container's owner end its part of a transaction.
pub(crate) async fn resolve(env: &Arc<Env>, request: &Resolve) -> Result<(), Failed> {
    let here = |container: Arc<Container>| async move {
        container.resolve(request.tx, request.commit).await
    };
    let there = |node| async move { ask(env, node, request, CALL).await.map(|_| ()) };
    at_owner(env, request.container, CALL, here, there).await
}

/// Asks a container's owner who may keep an inode, or has locks on it.
pub(crate) async fn holders(
    env: &Arc<Env>,
    inode: InodeId,
    patience: Duration,
) -> Result<Holders, Failed> {
    let request = AskHolders { inode };
    let here = |container: Arc<Container>| async move {
        container.holders(inode).map(|holders| Holders {
            holders: holders.into_iter().collect(),
        })
    };
    let there = |node| ask(env, node, &request, patience);
    at_owner(env, inode.container(), patience, here, there).await
}

/// Has a container's owner do a step of its part of a snapshot.
pub(crate) async fn part_of_snapshot(
    env: &Arc<Env>,
    request: &past::PartOfSnapshot,
    patience: Duration,
) -> Result<past::Part, Failed> {
    let here = |container: Arc<Container>| async move {
        let done = container.do_part(request.snapshot, request.step).await?;
        Ok(Ok(done))
    };
    let there = |node| async move { Ok(ask(env, node, request, CALL).await?.result) };
    let done = at_owner(env, request.container, patience, here, there).await?;
    done.map_err(Failed::Errno)
}

/// Asks a container's owner what content of its checkpoints takes.
pub(crate) async fn past_use(
    env: &Arc<Env>,
    container: ContainerId,
) -> Result<Vec<past::PastUse>, Failed> {
    let request = past::AskPastUse { container };
    let here = |container: Arc<Container>| async move {
        let uses = env.runtime.spawn_blocking(move || container.past_use());
        uses.await.map_err(|_| Errno::EIO)?.map(Ok)
    };
    let there = |node| {
        let request = &request;
        async move { Ok(ask(env, node, request, CALL).await?.result) }
    };
    let uses = at_owner(env, container, CALL, here, there).await?;
    uses.map_err(Failed::Errno)
}

/// Asks a transaction's coordinator how it ended.
pub(crate) async fn decision(env: &Arc<Env>, request: &AskDecision) -> Result<Decided, Failed> {
    let here = |container: Arc<Container>| async move { container.decision(request.tx).await };
    let there = |node| ask(env, node, request, CALL);
    at_owner(env, request.tx.container, CALL, here, there).await
}

/// Ends the locks of a session that is gone, in one container. A container whose owner cannot be
/// asked ends them itself when it notices that the node is gone.
pub(crate) async fn release_session(
    env: &Arc<Env>,
    container: ContainerId,
    session: SessionId,
    leftovers: Leftovers,
) {
    let Some(router) = env.router() else { return };
    let release = Op::ReleaseSession {
        container,
        session,
        leftovers,
    };
    let request = router.request(session, release);
    let released = tokio::time::timeout(RELEASE, Router::route(env, &request)).await;
    router.answered(request.op);
    if !matches!(released, Ok(Ok(_))) {
        warn!(%container, %session, "locks of an ended session not released");
    }
}
