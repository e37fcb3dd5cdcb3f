//! `perigee explain`: in words, how a file is read and written and why so.

use super::JsonArg;
use super::status::{fetch as fetch_status, node_name};
use super::where_is::fetch;
use crate::human;
use crate::layout::Layout;
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::{ControlState, Failure, Hold, Placement, Rung, Status};
use std::path::PathBuf;

/// Say in words how a file is read and written, and why so.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  perigee explain /mnt/perigee/data/file")]
pub struct Explain {
    /// A path in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

impl Explain {
    /// Asks where it is and how the cluster is, and draws the conclusions.
    pub fn run(self) -> Result<Report, Failure> {
        let (place, placement) = fetch(&self.path)?;
        let status = fetch_status(&Layout::open(&place.data_dir)?, None)?;
        let lines = conclusions(&placement, &status);
        Report::either(self.json.json, &lines, || {
            let lines: String = lines
                .iter()
                .map(|line| human::paragraph("- ", line))
                .collect();
            format!("{}\n{lines}", self.path.display())
        })
    }
}

fn conclusions(placement: &Placement, status: &Status) -> Vec<String> {
    let mut lines = vec![reads(placement, status), writes(placement, status)];
    lines.extend(rungs(placement, status));
    lines.extend(moves(placement, status));
    lines.extend(durable(placement, status));
    lines.extend(caches(placement, status));
    if status.control.state != ControlState::Up {
        lines.push(
            "the control store is away: reads and writes go on, but a chain that loses a member \
             waits for it"
                .to_owned(),
        );
    }
    lines
}

fn reads(placement: &Placement, status: &Status) -> String {
    let here = node_name(status, placement.asked);
    let own = placement
        .copies
        .iter()
        .find(|copy| copy.node == placement.asked);
    match own {
        Some(copy) if copy.valid_bytes == Some(placement.size_bytes) => {
            format!("reads on {here} come from its own disk: its copy is whole and current")
        }
        Some(_) => format!(
            "reads on {here} come from its own disk where its copy is current, and from {} where not",
            owner_name(placement, status)
        ),
        None => format!(
            "reads on {here} come over the network: it holds no copy of container {}",
            placement.container
        ),
    }
}

fn writes(placement: &Placement, status: &Status) -> String {
    if placement.owner == Some(placement.asked) {
        return format!(
            "writes on {} need no other node before they return: it owns container {} (epoch {})",
            node_name(status, placement.asked),
            placement.container,
            placement.epoch.0
        );
    }
    let go = format!(
        "writes go to {}, which owns container {} (epoch {})",
        owner_name(placement, status),
        placement.container,
        placement.epoch.0
    );
    // What has columns is written as programs ask for it.
    if is_member(placement) || !placement.columns.is_empty() {
        return go;
    }
    format!(
        "{go}; programs that write a part of it some times alone do not wait for that until they close it (write-behind)"
    )
}

/// Whether the node that answers holds a copy.
fn is_member(placement: &Placement) -> bool {
    let mut copies = placement.copies.iter();
    copies.any(|copy| copy.node == placement.asked)
}

/// Which rung of the ladder of the mount programs are on, and why not on a higher one.
fn rungs(placement: &Placement, status: &Status) -> Vec<String> {
    let here = node_name(status, placement.asked);
    let reads = placement.reads.as_ref().map(|rung| match rung {
        Rung::PastDaemon => {
            format!("programs on {here} that open it for reading use the local file itself (passthrough)")
        }
        Rung::ThroughDaemon(why) => {
            format!("programs on {here} read it through the daemon and the kernel's cache: {why}")
        }
    });
    let writes = placement.writes.as_ref().map(|rung| match rung {
        Rung::PastDaemon => format!(
            "programs on {here} that open it for writing use the local file itself, unless mounted with passthrough=readers"
        ),
        Rung::ThroughDaemon(why) => {
            format!("programs on {here} write it through the daemon: {why}")
        }
    });
    reads.into_iter().chain(writes).collect()
}

/// Whether writes here would bring the ownership here.
fn moves(placement: &Placement, status: &Status) -> Option<String> {
    let here = node_name(status, placement.asked);
    if placement.owner == Some(placement.asked) || placement.migration.is_empty() {
        return None;
    }
    Some(match placement.migration.as_str() {
        "off" => "the ownership stays where it is (migration=off)".to_owned(),
        _ if !is_member(placement) => {
            format!("the ownership does not move to {here}: it holds no copy")
        }
        "always" => {
            format!("the ownership moves to {here} after a few changes there (migration=always)")
        }
        _ => format!(
            "the ownership moves to {here} when enough is changed there (migration={})",
            placement.migration
        ),
    })
}

fn owner_name(placement: &Placement, status: &Status) -> String {
    placement.owner.map_or_else(
        || "a new owner, which is being chosen".to_owned(),
        |id| node_name(status, id),
    )
}

fn durable(placement: &Placement, status: &Status) -> Vec<String> {
    let names: Vec<String> = placement
        .copies
        .iter()
        .map(|copy| node_name(status, copy.node))
        .collect();
    let mut lines = Vec::new();
    match names.len() {
        0 => {}
        1 => lines.push(format!("fsync returns when the data is on the disk of {}, the only copy", names[0])),
        copies => lines.push(format!(
            "fsync returns when the data is on the disks of {}: then {} of them may be lost for good",
            names.join(", "),
            copies - 1
        )),
    }
    let container = status
        .containers
        .iter()
        .find(|c| c.id == placement.container);
    if let Some(container) = container.filter(|c| c.degraded) {
        lines.push(format!(
            "there are {} copies where the policy asks for {}",
            container.chain.len(),
            container.copies_wanted
        ));
    }
    lines
}

fn caches(placement: &Placement, status: &Status) -> Option<String> {
    let others: Vec<String> = placement
        .held_by
        .iter()
        .flatten()
        .filter(|holder| holder.what == Hold::Read && Some(holder.node) != placement.owner)
        .map(|holder| node_name(status, holder.node))
        .collect();
    if others.is_empty() {
        return None;
    }
    Some(format!(
        "{} may cache it, and is told before a change is acknowledged",
        others.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::{CopyStatus, Holder, NodeStatus};
    use perigee_types::NodeId;

    fn scene(owner: u32, asked: u32, valid: u64) -> Vec<String> {
        let status = Status {
            nodes: (1..=3)
                .map(|id| NodeStatus {
                    id: NodeId(id),
                    name: format!("node-{id}"),
                    ..NodeStatus::default()
                })
                .collect(),
            ..Status::default()
        };
        let copy = |id, valid| CopyStatus {
            node: NodeId(id),
            valid_bytes: Some(valid),
            ..CopyStatus::default()
        };
        let placement = Placement {
            size_bytes: 100,
            owner: Some(NodeId(owner)),
            asked: NodeId(asked),
            copies: vec![copy(1, 100), copy(2, valid)],
            held_by: Some(vec![Holder {
                node: NodeId(3),
                what: Hold::Read,
            }]),
            migration: "adaptive".to_owned(),
            ..Placement::default()
        };
        conclusions(&placement, &status)
    }

    #[test]
    fn an_owner_with_all_bytes_works_at_home() {
        let lines = scene(1, 1, 100);
        assert!(lines[0].contains("its own disk: its copy is whole"));
        assert!(lines[1].contains("need no other node"));
        assert!(lines[2].contains("node-1, node-2: then 1 of them"));
    }

    #[test]
    fn a_replica_reads_at_home_what_it_has_and_writes_at_the_owner() {
        let lines = scene(1, 2, 40);
        assert!(lines[0].contains("from node-1 where not"));
        assert!(lines[1].starts_with("writes go to node-1") && !lines[1].contains("behind"));
        assert!(lines[2].starts_with("the ownership moves to node-2 when"));
    }

    #[test]
    fn a_node_without_a_copy_reads_over_the_network() {
        let lines = scene(1, 3, 100);
        assert!(lines[0].contains("over the network"));
        assert!(lines[1].contains("do not wait for that"));
        assert!(lines[2].starts_with("the ownership does not move to node-3"));
    }

    #[test]
    fn the_rung_is_named_and_why_it_is_no_higher() {
        let placement = Placement {
            reads: Some(Rung::PastDaemon),
            writes: Some(Rung::ThroughDaemon("it has set-id bits".to_owned())),
            ..Placement::default()
        };
        let lines = rungs(&placement, &Status::default());
        assert!(lines[0].contains("use the local file itself"));
        assert!(lines[1].ends_with("through the daemon: it has set-id bits"));
    }

    #[test]
    fn a_host_that_caches_is_named() {
        assert!(
            scene(1, 1, 100)
                .iter()
                .any(|line| line.starts_with("node-3 may cache it"))
        );
    }
}
