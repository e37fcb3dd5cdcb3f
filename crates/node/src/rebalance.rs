//! Nodes that are fuller than others give copies up: what should move, and asking for it.
//!
//! What moves is decided in `cluster`, from what all nodes say of themselves; owners do it, one step after the other, as they
//! do for a node that leaves. A move is written down in the cluster's record: it goes on whoever dies.

use crate::node::Node;
use crate::report::{self, Reports};
use perigee_cluster::rebalance::{self, Disk, Margin, Picture, Transfer};
use perigee_cluster::{ChangeError, Directory, change, transition};
use perigee_proto::admin::{CopyMove, Goes, NodeFill, RebalancePlan};
use perigee_types::{ContainerId, NodeId};
use std::collections::BTreeMap;

/// Why a copy does not move.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct MoveError(#[from] ChangeError);

impl Node {
    /// Which copies should move.
    pub async fn rebalance_plan(&self, margin: Margin) -> RebalancePlan {
        let directory = self.env.directory.read().clone();
        let reports = self.reports(&directory).await;
        let picture = picture(&directory, &reports);
        let plan = rebalance::plan(&directory, &picture, margin);
        let nodes = plan.before.iter().map(|(node, before)| {
            let disk = picture.disks.get(node).copied().unwrap_or_default();
            let known = directory.node(*node);
            NodeFill {
                node: *node,
                name: known.map(|node| node.name.clone()).unwrap_or_default(),
                capacity_bytes: disk.capacity,
                before_bytes: *before,
                after_bytes: plan.after.get(node).copied().unwrap_or(*before),
            }
        });
        RebalancePlan {
            margin_percent: margin.as_percent(),
            nodes: nodes.collect(),
            moves: plan.transfers.into_iter().map(told).collect(),
            under_way: under_way(&directory, &picture),
        }
    }

    /// Asks that a copy moves. Its owner sees to it from now on; `status` shows how far it is.
    ///
    /// # Errors
    /// See [`transition::begin_move`]; nothing was changed.
    pub async fn move_copy(
        &self,
        container: ContainerId,
        from: NodeId,
        to: NodeId,
    ) -> Result<(), MoveError> {
        let plan = |directory: &Directory| transition::begin_move(directory, container, from, to);
        change(self.env.control.as_ref(), plan).await?;
        Ok(())
    }

    /// Stops all moves of copies, and says how many there were.
    ///
    /// # Errors
    /// The control store's reason; some may have stopped.
    pub async fn stop_moves(&self) -> Result<u64, MoveError> {
        let ids: Vec<ContainerId> = self.env.directory.read().moves.keys().copied().collect();
        let mut stopped = 0;
        for id in ids {
            let under_way = |directory: &Directory| {
                let record = directory.container(id)?;
                directory.move_of(id, &record.chain)
            };
            let counts = under_way(&self.env.directory.read()).is_some();
            let plan = |directory: &Directory| {
                Ok(transition::end_move(directory, id, transition::Ends::Any))
            };
            let ended = change(self.env.control.as_ref(), plan).await?;
            stopped += u64::from(counts && ended.is_some());
        }
        Ok(stopped)
    }
}

fn told(transfer: Transfer) -> CopyMove {
    let Transfer {
        container,
        from,
        to,
        bytes,
        goes,
    } = transfer;
    CopyMove {
        container,
        from,
        to,
        bytes,
        goes: match goes {
            rebalance::Goes::Copy => Goes::Copy,
            rebalance::Goes::Ownership => Goes::Ownership,
        },
    }
}

/// What the nodes that answer say of their disks.
fn picture(directory: &Directory, reports: &Reports) -> Picture {
    let disk = |(node, answered): (&NodeId, &report::Answered)| {
        let (used, free) = (answered.report.used?, answered.report.free?);
        let capacity = used.saturating_add(free);
        Some((*node, Disk { capacity, free }))
    };
    let containers = directory.containers.values().map(|known| &known.record);
    let sizes = containers.filter_map(|record| {
        let bytes = report::size(reports, &record.chain, record.id)?;
        Some((record.id, bytes))
    });
    let disks: BTreeMap<NodeId, Disk> = reports.iter().filter_map(disk).collect();
    Picture {
        disks,
        sizes: sizes.collect(),
    }
}

fn under_way(directory: &Directory, picture: &Picture) -> Vec<CopyMove> {
    let moves = directory.moves.keys().filter_map(|id| {
        let record = directory.container(*id)?;
        let moving = directory.move_of(*id, &record.chain)?;
        let goes = match record.owner() == Some(moving.from) {
            true => Goes::Ownership,
            false => Goes::Copy,
        };
        Some(CopyMove {
            container: *id,
            from: moving.from,
            to: moving.to,
            bytes: picture.sizes.get(id).copied().unwrap_or(0),
            goes,
        })
    });
    moves.collect()
}
