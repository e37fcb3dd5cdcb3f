//! Nodes that leave and nodes that come back, as the command line asks for it.

use perigee_node::Node;
use perigee_node::membership::{LeaveError, ReadmitError, Shortage};
use perigee_proto::admin::{Answer, Failure, Token};
use perigee_types::Span;

/// What lets a node in again.
pub async fn token_again(node: &Node, name: &str, ttl_secs: u64) -> Result<Answer, Failure> {
    let ttl = Span::from_millis(ttl_secs.saturating_mul(1000));
    let made = node.readmission(name, ttl).await;
    made.map(|token| Answer::Token(Token { token, ttl_secs }))
        .map_err(|error| {
            let failure = Failure::new(format!("cannot make a token for `{name}`"), &error);
            match error {
                ReadmitError::NoSuchNode(_) => failure.hint(NODES),
                ReadmitError::Control(_) => failure,
            }
        })
}

/// Where to look for a node's name.
const NODES: &str = "`perigee status` lists the nodes";

/// Drains a node, or takes that back.
pub async fn drain(
    node: &Node,
    name: &str,
    undo: bool,
    fewer_copies: bool,
) -> Result<Answer, Failure> {
    if undo {
        let active = node.undrain(name).await;
        return answer(active, || format!("cannot take back the drain of `{name}`"));
    }
    let shortage = if fewer_copies {
        Shortage::Accepted
    } else {
        Shortage::Refused
    };
    let drains = node.drain(name, shortage).await;
    answer(drains, || format!("cannot drain `{name}`"))
}

/// Strikes a node off.
pub async fn remove(node: &Node, name: &str) -> Result<Answer, Failure> {
    let removed = node.remove_node(name).await;
    answer(removed, || format!("cannot remove `{name}`"))
}

fn answer(
    result: Result<perigee_types::NodeId, LeaveError>,
    what: impl Fn() -> String,
) -> Result<Answer, Failure> {
    result.map(Answer::Node).map_err(|error| {
        let failure = Failure::new(what(), &error);
        match error {
            LeaveError::NoSuchNode(_) => failure.hint(NODES),
            LeaveError::LastOne => {
                failure.hint("`perigee token` prints what lets another machine in")
            }
            LeaveError::FewerCopies { .. } => failure.hint(
                "let another machine in first (`perigee token`); or --fewer-copies, until there are more nodes",
            ),
            LeaveError::StillHolds { .. } => {
                failure.hint("`perigee drain` moves them to other nodes first")
            }
            LeaveError::Control(_) => failure.hint("`perigee doctor` looks for the cause"),
        }
    })
}
