//! Copies that move, and plans for it.

use perigee_types::{ContainerId, NodeId};
use serde::{Deserialize, Serialize};

/// A copy on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMoving {
    /// Who gives its copy up.
    pub from: NodeId,
    /// Who gets one.
    pub to: NodeId,
    /// Bytes that it has yet to fetch; none before it has begun, and when it does not answer.
    pub left_bytes: Option<u64>,
}

/// What would make nodes equally full.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalancePlan {
    /// How much better each move makes it at least, in per cent of the mean fill.
    pub margin_percent: u8,
    /// The nodes that store data and answer, by number.
    pub nodes: Vec<NodeFill>,
    /// The copies that should move, in this order.
    pub moves: Vec<CopyMove>,
    /// Copies that are moving already.
    pub under_way: Vec<CopyMove>,
}

/// How full a node is with what can move.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFill {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Bytes that its store takes, and bytes that are free beside it.
    pub capacity_bytes: u64,
    /// Bytes of containers that it keeps.
    pub before_bytes: u64,
    /// The same when the plan is carried out.
    pub after_bytes: u64,
}

/// One copy that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMove {
    /// Of which container.
    pub container: ContainerId,
    /// Who gives its copy up.
    pub from: NodeId,
    /// Who gets one.
    pub to: NodeId,
    /// Its size.
    pub bytes: u64,
    /// What goes along with it.
    pub goes: Goes,
}

/// What goes along with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goes {
    /// It is a replica.
    Copy,
    /// It is the owner's, and so the ownership goes along.
    Ownership,
}
