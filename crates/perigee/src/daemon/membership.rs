//! Nodes that leave, as the command line asks for it.

use perigee_node::Node;
use perigee_node::membership::{LeaveError, Shortage};
use perigee_proto::admin::{Answer, Failure};

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
            LeaveError::Unknown | LeaveError::HasLeft => {
                failure.hint("`perigee status` lists the nodes")
            }
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
