//! `perigee status`: nodes, containers, mounts.

use super::where_is::percent;
use super::{DirArg, JsonArg, NodeArg};
use crate::admin_client::{ask_any, unexpected};
use crate::config::NodeConfig;
use crate::human::{self, Align, Table};
use crate::layout::Layout;
use crate::output::{Outcome, Report};
use crate::{mounts, pid_file};
use clap::Args;
use perigee_cluster::Role;
use perigee_proto::admin::{
    AdminPath, Answer, ContainerStatus, ControlState, Failure, NodeState, Request, Status,
};
use perigee_types::NodeId;
use std::fmt::Write;
use std::time::Duration;

/// Sound containers that are listed before the rest is only counted.
const CONTAINERS_SHOWN: usize = 20;

/// Show nodes, containers and mounts.
///
/// Served locally is which part of its programs' calls a node has answered by itself lately (`perigee where --help`).
///
/// Exit code 3 when the cluster works but a node is away or a container has too few copies.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee status
  perigee status --json | jq '.nodes[] | {id, pid, state}'")]
pub struct StatusArgs {
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    node: NodeArg,
    #[command(flatten)]
    json: JsonArg,
}

impl StatusArgs {
    /// Asks a node and prints what it sees.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let status = fetch(&layout, self.node.node)?;
        let faults = faults(&status);
        let outcome = if faults.is_empty() {
            Outcome::Done
        } else {
            Outcome::Degraded
        };
        let report = Report::either(self.json.json, &status, || text(&status, &faults))?;
        Ok(report.outcome(outcome))
    }
}

/// The status, with the processes of this machine filled in.
pub fn fetch(layout: &Layout, node: Option<u32>) -> Result<Status, Failure> {
    let mut status = match ask_any(&layout.chosen(node)?, &Request::Status)? {
        Answer::Status(status) => status,
        other => return Err(unexpected(&other)),
    };
    // a node knows only its own process and mounts; its neighbours' are found in their directories
    // and in the mount table
    let table = mounts::table()?;
    for dir in &layout.nodes {
        let Ok(config) = NodeConfig::load(&dir.config()) else {
            continue;
        };
        let pid = pid_file::running(&dir.path).map(|process| process.pid);
        if let Some(node) = status
            .nodes
            .iter_mut()
            .find(|node| node.name == config.name)
        {
            node.pid = pid;
            let mounts = mounts::of_node(&table, &dir.path);
            node.mounts = mounts
                .iter()
                .map(|mount| AdminPath::from(&mount.mountpoint))
                .collect();
        }
    }
    Ok(status)
}

/// The name of a node, or its number where it has none.
pub fn node_name(status: &Status, id: NodeId) -> String {
    let node = status.nodes.iter().find(|node| node.id == id);
    node.map_or_else(|| id.to_string(), |node| node.name.clone())
}

/// What is missing, one sentence each; empty when all is well.
fn faults(status: &Status) -> Vec<String> {
    let mut faults = Vec::new();
    for node in &status.nodes {
        match node.state {
            NodeState::Up | NodeState::Leaving => {}
            NodeState::Suspect => faults.push(format!("{} does not answer", node.name)),
            NodeState::Down => faults.push(format!("{} is down", node.name)),
        }
    }
    let degraded = status.containers.iter().filter(|c| c.degraded).count();
    if degraded > 0 {
        let has = if degraded == 1 { "has" } else { "have" };
        faults.push(format!(
            "{} {has} fewer copies than wanted",
            human::plural(degraded, "container")
        ));
    }
    let ownerless = status
        .containers
        .iter()
        .filter(|c| c.owner.is_none())
        .count();
    if ownerless > 0 {
        let waits = if ownerless == 1 { "waits" } else { "wait" };
        faults.push(format!(
            "{} {waits} for an owner",
            human::plural(ownerless, "container")
        ));
    }
    match status.control.state {
        ControlState::Up => {}
        ControlState::Away => {
            let silent = human::time(Duration::from_millis(status.control.silent_ms));
            faults.push(format!("the control store has not answered for {silent}"));
        }
        ControlState::WentBack => faults.push(
            "the control store has lost what it told, and is not listened to: `perigee doctor`"
                .to_owned(),
        ),
    }
    faults
}

fn text(status: &Status, faults: &[String]) -> String {
    let short: String = status.cluster.chars().take(8).collect();
    let mut out = if faults.is_empty() {
        format!("cluster {short}: all is well\n")
    } else {
        format!("cluster {short} works, but:\n  {}\n", faults.join("\n  "))
    };
    let control = match status.control.state {
        ControlState::Up => "up",
        ControlState::Away => "away",
        ControlState::WentBack => "went back",
    };
    let kept = match status.control.kept.as_str() {
        "" | "embedded" => String::new(),
        etcd => format!(", its record in {etcd}"),
    };
    // writing to a string cannot fail
    let _ = writeln!(
        out,
        "control store {control} at {}{kept}\n",
        status.control.address
    );
    out.push_str(&nodes_table(status));
    out.push('\n');
    out.push_str(&containers_table(status));
    let mounts: Vec<String> = status
        .nodes
        .iter()
        .flat_map(|node| {
            node.mounts
                .iter()
                .map(|mount| format!("  {mount} through {}\n", node.name))
        })
        .collect();
    if !mounts.is_empty() {
        let _ = write!(out, "\nmounts\n{}", mounts.concat());
    }
    out
}

fn nodes_table(status: &Status) -> String {
    let mut table = Table::new(&[
        ("ID", Align::Right),
        ("NODE", Align::Left),
        ("STATE", Align::Left),
        ("PID", Align::Right),
        ("ADDRESS", Align::Left),
        ("SITE", Align::Left),
        ("USED", Align::Right),
        ("FREE", Align::Right),
    ]);
    for node in &status.nodes {
        let state = match node.state {
            NodeState::Up => "up",
            NodeState::Suspect => "late",
            NodeState::Down => "down",
            NodeState::Leaving => "leaving",
        };
        table.row(vec![
            node.id.0.to_string(),
            node.name.clone(),
            format!("{state}{}", role_of(node.role)),
            node.pid
                .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            node.address.clone(),
            super::topo::site(&node.site),
            size(node.used_bytes),
            size(node.free_bytes),
        ]);
    }
    table.render(0) + &locality(status)
}

/// Which part of its programs' calls each node has answered by itself lately.
fn locality(status: &Status) -> String {
    let known = status.nodes.iter().filter_map(|node| {
        let local = node.local_calls?;
        Some(format!("{} {}", node.name, percent(local)))
    });
    let known: Vec<String> = known.collect();
    match known.is_empty() {
        true => String::new(),
        false => human::paragraph("", &format!("served locally: {}", known.join(", "))),
    }
}

/// What is special about a node, beside its state.
fn role_of(role: Role) -> &'static str {
    match role {
        Role::Stores => "",
        Role::Mounts => ", only mounts",
        Role::Reads => ", only reads",
    }
}

/// Bytes, or that nobody said.
fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), human::size)
}

fn containers_table(status: &Status) -> String {
    let mut table = Table::new(&[
        ("CONTAINER", Align::Left),
        ("OWNER", Align::Left),
        ("EPOCH", Align::Right),
        ("COPIES", Align::Left),
        ("SIZE", Align::Right),
        ("ON", Align::Left),
        ("BEHIND", Align::Right),
        ("MOVED", Align::Right),
    ]);
    // those that need a look come first
    let mut containers: Vec<&ContainerStatus> = status.containers.iter().collect();
    containers.sort_by_key(|c| (!c.degraded && c.owner.is_some(), c.id));
    for container in containers.iter().take(CONTAINERS_SHOWN) {
        let names: Vec<String> = container
            .chain
            .iter()
            .map(|id| node_name(status, *id))
            .collect();
        table.row(vec![
            container.id.to_string(),
            container
                .owner
                .map_or_else(|| "none".to_owned(), |id| node_name(status, id)),
            container.epoch.0.to_string(),
            format!("{} of {}", container.copies, container.copies_wanted),
            size(container.size_bytes),
            names.join(" "),
            behind(container),
            container.moves.to_string(),
        ]);
    }
    let mut out = table.render(0);
    out.push_str(&moves(status));
    if let Some(more) = containers
        .len()
        .checked_sub(CONTAINERS_SHOWN)
        .filter(|more| *more > 0)
    {
        // writing to a string cannot fail
        let _ = writeln!(
            out,
            "and {} more (--json lists all)",
            human::plural(more, "container")
        );
    }
    out
}

/// Copies on their way, a line each.
fn moves(status: &Status) -> String {
    let moving = status.containers.iter().filter_map(|container| {
        let moving = container.moving?;
        let left = moving.left_bytes.map_or_else(String::new, |bytes| {
            // Before it knows how much there is, it lacks all that can be.
            let bytes = bytes.min(container.size_bytes.unwrap_or(u64::MAX));
            format!(", {} to copy", human::size(bytes))
        });
        Some(format!(
            "a copy of {} moves from {} to {}{left}\n",
            container.id,
            node_name(status, moving.from),
            node_name(status, moving.to)
        ))
    });
    moving.collect()
}

/// How much the slowest member has yet to get.
fn behind(container: &ContainerStatus) -> String {
    let worst = container
        .members
        .iter()
        .max_by_key(|member| (member.bytes.unwrap_or(0), member.records));
    match worst {
        None => "-".to_owned(),
        Some(member) if member.bytes.is_some_and(|bytes| bytes > 0) => {
            let left = member.seconds.map_or_else(String::new, |seconds| {
                format!(", {}", human::time(Duration::from_secs(seconds)))
            });
            size(member.bytes) + &left
        }
        Some(member) if member.records > 0 => {
            format!("{} records", human::count(member.records))
        }
        Some(_)
            if container
                .members
                .iter()
                .any(|member| member.bytes.is_none()) =>
        {
            "?".to_owned()
        }
        Some(_) => "nothing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::{ControlStatus, MemberLag, NodeStatus};
    use perigee_types::{ContainerId, Epoch};
    use std::path::Path;

    fn sample() -> Status {
        let node = |id: u32, state| NodeStatus {
            id: NodeId(id),
            name: format!("node-{id}"),
            pid: Some(1000 + id),
            state,
            address: format!("127.0.0.1:2000{id}"),
            site: "default".to_owned(),
            used_bytes: Some(5 << 20),
            free_bytes: Some(40 << 30),
            ..NodeStatus::default()
        };
        let mut status = Status {
            cluster: "4f2a91c04f2a91c0".to_owned(),
            node: NodeId(2),
            version: "0.1.0".to_owned(),
            control: ControlStatus {
                state: ControlState::Up,
                address: "127.0.0.1:20000".to_owned(),
                known: vec!["127.0.0.1:20000".to_owned()],
                kept: "embedded".to_owned(),
                silent_ms: 3,
            },
            nodes: vec![node(1, NodeState::Down), node(2, NodeState::Up)],
            containers: vec![ContainerStatus {
                id: ContainerId(1),
                owner: Some(NodeId(2)),
                epoch: Epoch(2),
                chain: vec![NodeId(2)],
                copies: 1,
                copies_wanted: 2,
                degraded: true,
                members: vec![MemberLag {
                    node: NodeId(2),
                    records: 0,
                    bytes: Some(0),
                    seconds: None,
                }],
                moves: 3,
                ..ContainerStatus::default()
            }],
            ..Status::default()
        };
        status.nodes[1]
            .mounts
            .push(AdminPath::from(Path::new("/mnt/p")));
        status
    }

    #[test]
    fn what_is_missing_is_said_in_words() {
        let faults = faults(&sample());
        assert_eq!(
            faults,
            ["node-1 is down", "1 container has fewer copies than wanted"]
        );
    }

    #[test]
    fn how_far_the_slowest_member_is_behind_is_said_only_where_it_is_known() {
        let mut container = sample().containers.remove(0);
        let lag = |records, bytes| MemberLag {
            node: NodeId(2),
            records,
            bytes,
            seconds: bytes.filter(|bytes| *bytes > 0).map(|_| 75),
        };
        for (members, said) in [
            (vec![], "-"),
            (
                vec![lag(0, Some(0)), lag(9, Some(3 << 20))],
                "3.00 MiB, 1 min 15 s",
            ),
            (vec![lag(0, Some(0)), lag(2, None)], "2 records"),
            (vec![lag(0, Some(0)), lag(0, None)], "?"),
            (vec![lag(0, Some(0))], "nothing"),
        ] {
            container.members = members;
            assert_eq!(behind(&container), said);
        }
    }

    #[test]
    fn the_text_fits_eighty_columns_and_names_the_mounts() {
        let mut status = sample();
        status.nodes[0].name = "a-very-long-name-of-a-node-that-somebody-chose".to_owned();
        status.nodes[0].address = "[2001:db8:85a3:8d3:1319:8a2e:370:7348]:65535".to_owned();
        status.containers = (1..40)
            .map(|id| ContainerStatus {
                id: ContainerId(id),
                ..status.containers[0].clone()
            })
            .collect();
        status.nodes[1].local_calls = Some(perigee_proto::admin::Thousandths(987));
        let text = text(&status, &faults(&status));
        assert!(text.contains("served locally: node-2 98 %\n"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(text.contains("/mnt/p through node-2"));
        assert!(text.contains("and 19 containers more"));
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(sample()).unwrap();
        let node = &json["nodes"][0];
        assert_eq!(node["id"], 1);
        assert_eq!(node["pid"], 1001);
        assert_eq!(node["state"], "down");
        assert_eq!(node["address"], "127.0.0.1:20001");
        assert_eq!(json["nodes"][1]["mounts"][0], "/mnt/p");
        let container = &json["containers"][0];
        assert_eq!(container["id"], 1);
        assert_eq!(container["owner"], 2);
        assert_eq!(container["degraded"], true);
        assert_eq!(json["control"]["state"], "up");
    }
}
