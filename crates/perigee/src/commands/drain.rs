//! `perigee drain`: what a node keeps moves to others.

use super::{DirArg, JsonArg, status};
use crate::admin_client::{ask_any, unexpected};
use crate::human;
use crate::layout::Layout;
use crate::output::{Progress, Report};
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Request, Status};
use perigee_types::NodeId;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};

/// How often the cluster is asked how far it is.
const LOOK: Duration = Duration::from_millis(250);

/// Move what a node keeps to other nodes, so that it can be removed.
///
/// Each container gets a whole copy elsewhere before the node's copy is given up, and programs go on meanwhile; changes
/// to a container that the node owns wait for some seconds when the ownership moves. Where programs of the owner's host
/// write a file past the daemon, the drain waits until they have closed it and nobody maps it for writing. Mounts through
/// the node go on working. The wait may be broken off: the move goes on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee drain node-2              move everything away, and wait
  perigee drain node-2 --no-wait    `perigee status` shows how far it is
  perigee drain node-2 --undo       it stays after all
  perigee remove node-2             once it keeps nothing")]
pub struct Drain {
    /// The node's name, or its number
    #[arg(value_name = "NODE")]
    name: String,
    /// Take it back: the node gets containers again
    #[arg(long, conflicts_with_all = ["fewer_copies", "no_wait"])]
    undo: bool,
    /// Go on where too few nodes are left for the copies that are wanted
    #[arg(long)]
    fewer_copies: bool,
    /// Begin, and do not wait for the end
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

/// How far a drain is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Left {
    node: NodeId,
    name: String,
    /// Containers that the node still keeps.
    containers: usize,
    /// Bytes of them that other members have yet to fetch, as far as these said.
    bytes: u64,
}

impl Drain {
    /// Asks for it, and waits.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let request = Request::Drain {
            node: self.name.clone(),
            undo: self.undo,
            fewer_copies: self.fewer_copies,
        };
        let node = match ask_any(&layout.nodes, &request)? {
            Answer::Node(node) => node,
            other => return Err(unexpected(&other)),
        };
        let mut left = look(&layout, node)?;
        if !self.undo && !self.no_wait {
            left = wait(&layout, left)?;
        }
        Report::either(self.json.json, &left, || self.text(&left))
    }

    fn text(&self, left: &Left) -> String {
        let name = &left.name;
        if self.undo {
            return format!("{name} stays\n");
        }
        match left.containers {
            0 => format!("{name} keeps nothing any more: `perigee remove {name}` strikes it off\n"),
            containers => format!(
                "{name} is leaving, and still keeps {}: `perigee status` shows how far it is\n",
                human::plural(containers, "container")
            ),
        }
    }
}

fn look(layout: &Layout, node: NodeId) -> Result<Left, Failure> {
    Ok(left_of(&status::fetch(layout, None)?, node))
}

fn left_of(status: &Status, node: NodeId) -> Left {
    let kept = || status.containers.iter().filter(|c| c.chain.contains(&node));
    let members = kept().flat_map(|container| &container.members);
    Left {
        node,
        name: status::node_name(status, node),
        containers: kept().count(),
        bytes: members.filter_map(|member| member.bytes).sum(),
    }
}

/// Until the node keeps nothing. Somebody may take the drain back meanwhile: then there is nothing to wait for.
fn wait(layout: &Layout, mut left: Left) -> Result<Left, Failure> {
    let mut progress = Progress::new();
    let (began, most) = (Instant::now(), left.clone());
    let mut most_bytes = left.bytes;
    while left.containers > 0 {
        most_bytes = most_bytes.max(left.bytes);
        progress.show(|| line(&left, &most, most_bytes, began.elapsed()));
        thread::sleep(LOOK);
        let status = status::fetch(layout, None)?;
        let node = status.nodes.iter().find(|node| node.id == left.node);
        let leaving = perigee_proto::admin::NodeState::Leaving;
        if node.is_some_and(|node| node.state != leaving) {
            progress.clear();
            let what = format!("cannot wait until `{}` keeps nothing", left.name);
            return Err(Failure::new(what, "the drain was taken back meanwhile"));
        }
        left = left_of(&status, left.node);
    }
    progress.clear();
    Ok(left)
}

fn line(left: &Left, most: &Left, most_bytes: u64, took: Duration) -> String {
    let done = most_bytes - left.bytes;
    let to_go = match (done, left.bytes) {
        (0, _) | (_, 0) => String::new(),
        (done, rest) => {
            let seconds = took.as_secs_f64() * rest as f64 / done as f64;
            format!(
                ", about {} to go",
                human::time(Duration::from_secs_f64(seconds))
            )
        }
    };
    format!(
        "{}: {} of {} left, {} to copy{to_go}",
        left.name,
        left.containers,
        human::plural(most.containers, "container"),
        human::size(left.bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_and_how_long_it_takes_is_said() {
        let left = |containers, bytes| Left {
            node: NodeId(2),
            name: "node-2".to_owned(),
            containers,
            bytes,
        };
        let said = line(
            &left(2, 1 << 30),
            &left(3, 0),
            3 << 30,
            Duration::from_secs(20),
        );
        assert_eq!(
            said,
            "node-2: 2 of 3 containers left, 1.00 GiB to copy, about 10.0 s to go"
        );
        let said = line(&left(1, 0), &left(1, 0), 0, Duration::from_secs(1));
        assert_eq!(said, "node-2: 1 of 1 container left, 0 B to copy");
    }
}
