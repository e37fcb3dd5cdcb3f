//! Copies that move to nodes with more room, as the command line asks for it.

use perigee_cluster::rebalance::Margin;
use perigee_node::Node;
use perigee_node::rebalance::MoveError;
use perigee_proto::admin::{Answer, Failure};
use perigee_types::{ContainerId, NodeId};

/// Says what should move.
pub async fn plan(node: &Node, margin_percent: Option<u8>) -> Result<Answer, Failure> {
    let margin = match margin_percent {
        None => Margin::default(),
        Some(percent) => Margin::percent(percent).ok_or_else(|| {
            let (least, most) = (Margin::RANGE.start(), Margin::RANGE.end());
            let why = format!("a margin is {least} to {most} per cent, not {percent}");
            Failure::new("cannot plan which copies move", why)
        })?,
    };
    Ok(Answer::Rebalance(node.rebalance_plan(margin).await))
}

/// Has a copy move.
pub async fn move_copy(
    node: &Node,
    container: ContainerId,
    from: NodeId,
    to: NodeId,
) -> Result<Answer, Failure> {
    let what = format!("cannot move a copy of {container} from node {from} to node {to}");
    let moved = node.move_copy(container, from, to).await;
    moved
        .map(|()| Answer::Done)
        .map_err(|error| failure(what, &error))
}

/// Has nothing move any more.
pub async fn stop(node: &Node) -> Result<Answer, Failure> {
    let stopped = node.stop_moves().await;
    stopped
        .map(Answer::Stopped)
        .map_err(|error| failure("cannot stop what moves".to_owned(), &error))
}

fn failure(what: String, error: &MoveError) -> Failure {
    Failure::new(what, error)
        .hint("`perigee status` shows what moves, `perigee doctor` what is wrong")
}
