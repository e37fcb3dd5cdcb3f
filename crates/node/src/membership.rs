//! Nodes that leave: drained first, then struck off. Nodes that come back.

use crate::node::Node;
use perigee_cluster::{ChangeError, Directory, NodeState, PlanError, Planned, change, transition};
use perigee_control::AdminError;
use perigee_types::{NodeId, Span};

/// Why a name means no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchNode {
    /// No such node.
    #[error("no node of the cluster has this name or number")]
    Unknown,
    /// It was removed before.
    #[error("it was removed from the cluster")]
    HasLeft,
}

/// Why a node gets no token with which it is let in again.
#[derive(Debug, thiserror::Error)]
pub enum ReadmitError {
    /// There is none.
    #[error(transparent)]
    NoSuchNode(#[from] NoSuchNode),
    /// The control store's reason.
    #[error(transparent)]
    Control(#[from] AdminError),
}

/// Why a node is not drained or removed.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// There is none.
    #[error(transparent)]
    NoSuchNode(#[from] NoSuchNode),
    /// Nobody could take what it keeps.
    #[error("no other node stores data, so nobody can take what it keeps")]
    LastOne,
    /// Fewer nodes would stay than there are copies wanted.
    #[error("{left} other nodes store data, and what it keeps is wanted in {copies} copies")]
    FewerCopies {
        /// Storing nodes that stay.
        left: usize,
        /// The most copies that a container of the node is wanted in.
        copies: usize,
    },
    /// It still keeps something.
    #[error("it still keeps copies of {containers} containers")]
    StillHolds {
        /// How many.
        containers: usize,
    },
    /// The control store's reason.
    #[error("{0}")]
    Control(ChangeError),
}

impl From<ChangeError> for LeaveError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Plan(PlanError::UnknownNode { .. }) => NoSuchNode::Unknown.into(),
            ChangeError::Plan(PlanError::NodeLeft { .. }) => NoSuchNode::HasLeft.into(),
            ChangeError::Plan(PlanError::StillHolds { containers, .. }) => {
                Self::StillHolds { containers }
            }
            error => Self::Control(error),
        }
    }
}

/// Whether a drain may leave containers with fewer copies than their policy wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// It is refused.
    Refused,
    /// As many copies as there are nodes will do.
    Accepted,
}

impl Node {
    /// Asks that everything that a node keeps moves to others. Owners see to it from now on; `status` shows how far
    /// they are.
    ///
    /// # Errors
    /// See [`LeaveError`]; nothing was changed.
    pub async fn drain(&self, name: &str, shortage: Shortage) -> Result<NodeId, LeaveError> {
        let id = self.find_node(name)?;
        {
            let directory = self.env.directory.read();
            check_rest(&directory, id, shortage)?;
        }
        self.change_node(id, |directory| transition::drain(directory, id))
            .await
    }

    /// Takes a drain back: the node gets containers again.
    ///
    /// # Errors
    /// See [`LeaveError`]; nothing was changed.
    pub async fn undrain(&self, name: &str) -> Result<NodeId, LeaveError> {
        let id = self.find_node(name)?;
        self.change_node(id, |directory| transition::undrain(directory, id))
            .await
    }

    /// Strikes a node off that keeps nothing. Its certificate is void from then on.
    ///
    /// # Errors
    /// See [`LeaveError`]; nothing was changed, or the node that kept nothing gets no containers any more.
    pub async fn remove_node(&self, name: &str) -> Result<NodeId, LeaveError> {
        let id = self.find_node(name)?;
        let containers = self.env.directory.read().containers_of(id);
        if containers > 0 {
            return Err(LeaveError::StillHolds { containers });
        }
        self.change_node(id, |directory| transition::drain(directory, id))
            .await?;
        self.change_node(id, |directory| transition::leave(directory, id))
            .await
    }

    /// A token that lets a node in again that has no certificate of the cluster's authority, or has lost it.
    ///
    /// # Errors
    /// See [`ReadmitError`]; nothing was changed.
    pub async fn readmission(&self, name: &str, ttl: Span) -> Result<String, ReadmitError> {
        let id = self.find_node(name)?;
        let made = self.remote.create_readmission(id, ttl).await?;
        Ok(made.text)
    }

    fn find_node(&self, name: &str) -> Result<NodeId, NoSuchNode> {
        let directory = self.env.directory.read();
        find(&directory, name)
    }

    async fn change_node(
        &self,
        id: NodeId,
        plan: impl FnMut(&Directory) -> Result<Planned<perigee_cluster::Node>, PlanError>,
    ) -> Result<NodeId, LeaveError> {
        change(self.env.control.as_ref(), plan).await?;
        Ok(id)
    }
}

/// The node with this name, or else with this number.
fn find(directory: &Directory, name: &str) -> Result<NodeId, NoSuchNode> {
    let nodes = || directory.nodes.values().map(|known| &known.record);
    let present = |node: &&perigee_cluster::Node| node.state != NodeState::Left;
    if let Some(node) = nodes().filter(present).find(|node| node.name == name) {
        return Ok(node.id);
    }
    let number = name.parse().ok().map(NodeId);
    match nodes().find(|node| Some(node.id) == number || node.name == name) {
        Some(node) if present(&node) => Ok(node.id),
        Some(_) => Err(NoSuchNode::HasLeft),
        None => Err(NoSuchNode::Unknown),
    }
}

/// Whether the nodes that stay can take what `id` keeps.
fn check_rest(directory: &Directory, id: NodeId, shortage: Shortage) -> Result<(), LeaveError> {
    let kept = directory.containers.values().map(|known| &known.record);
    let kept = kept.filter(|container| container.chain.contains(&id));
    let Some(copies) = kept.map(|container| usize::from(container.copies)).max() else {
        return Ok(());
    };
    let nodes = directory.nodes.values().map(|known| &known.record);
    let left = nodes
        .filter(|node| node.takes_containers() && node.id != id)
        .count();
    match left {
        0 => Err(LeaveError::LastOne),
        _ if left < copies && shortage == Shortage::Refused => {
            Err(LeaveError::FewerCopies { left, copies })
        }
        _ => Ok(()),
    }
}
