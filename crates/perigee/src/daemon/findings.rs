//! What a node finds wrong with its cluster, for `perigee doctor`.

use crate::human;
use perigee_proto::admin::{ControlState, Finding, NodeState, NodeStatus, Status};
use std::time::Duration;

/// Wall clocks that differ by more make the times of files jump.
const CLOCK_MS_MAX: i64 = 500;
/// Free space below which a node's disk is soon full.
pub const FREE_BYTES_MIN: u64 = 1 << 30;
/// A peer that takes longer to answer makes every change of another host's files slow.
const ANSWER_US_MAX: u64 = 50_000;

/// Everything that the status of a cluster tells, good or bad.
pub fn of(status: &Status) -> Vec<Finding> {
    let mut findings = vec![control(status)];
    findings.extend(copies(status));
    findings.extend(status.nodes.iter().flat_map(|node| of_node(node, status)));
    findings.push(clocks(status));
    findings
}

fn control(status: &Status) -> Finding {
    match status.control.state {
        ControlState::Up => Finding::ok("the control store answers"),
        ControlState::Away => Finding::warn(
            format!(
                "the control store at {} does not answer",
                status.control.address
            ),
            "`perigee up` on its machine starts it; until then chains cannot change",
        ),
        ControlState::WentBack => Finding::bad(
            format!(
                "the control store at {} has lost what it told: it was put back to an older state, or is another one",
                status.control.address
            ),
            "bring back its newest state; if that is lost for good, `perigee rebuild`; until then chains cannot change",
        ),
    }
}

fn copies(status: &Status) -> Vec<Finding> {
    let all = status.containers.len();
    let mut findings = Vec::new();
    let degraded = status.containers.iter().filter(|c| c.degraded).count();
    findings.push(match degraded {
        0 => Finding::ok("every container has its copies"),
        some => Finding::warn(
            format!("{some} of {all} containers have fewer copies than wanted"),
            "start the nodes that are down: `perigee status` names them",
        ),
    });
    let ownerless = status.containers.iter().filter(|c| c.owner.is_none());
    let ownerless = ownerless.count();
    if ownerless > 0 {
        findings.push(Finding::bad(
            format!("{ownerless} of {all} containers have no owner: their files wait"),
            "start the nodes that keep them: `perigee status` names them",
        ));
    }
    findings
}

fn of_node(node: &NodeStatus, status: &Status) -> Vec<Finding> {
    let name = &node.name;
    let mut findings = Vec::new();
    match node.state {
        NodeState::Up | NodeState::Leaving => {}
        NodeState::Suspect => findings.push(Finding::warn(
            format!("{name} shows signs of life, and does not answer at {}", node.address),
            "look at the network between the machines, and at its daemon.log",
        )),
        NodeState::Down => findings.push(Finding::warn(
            format!("{name} is down"),
            "`perigee up` on its machine starts it; `perigee remove` forgets one that is gone for good",
        )),
    }
    if !node.read_only.is_empty() {
        let containers = human::plural(node.read_only.len(), "container");
        findings.push(Finding::bad(
            format!("the disk of {name} failed: it takes no changes of {containers}"),
            format!("replace the disk; `perigee drain {name}` moves what else it keeps"),
        ));
    }
    if let Some(free) = node.free_bytes.filter(|free| *free < FREE_BYTES_MIN) {
        findings.push(Finding::warn(
            format!("{name}: only {} free on its disk", human::size(free)),
            "make room: files with a copy there cannot grow when it is full",
        ));
    }
    if let Some(us) = node.answer_us.filter(|us| *us > ANSWER_US_MAX) {
        let time = human::time(Duration::from_micros(us));
        findings.push(Finding::warn(
            format!("{name} took {time} to answer"),
            "its machine or the network is slow; changes wait for every copy",
        ));
    }
    let known = !node.version.is_empty() && !status.version.is_empty();
    if known && node.version != status.version {
        findings.push(Finding::warn(
            format!(
                "{name} runs version {}, this node {}",
                node.version, status.version
            ),
            "bring all nodes to one version, one after the other",
        ));
    }
    findings
}

fn clocks(status: &Status) -> Finding {
    let nodes = status.nodes.iter();
    let apart = nodes.filter_map(|node| Some((node, node.clock_ahead_ms?)));
    let worst = apart.max_by_key(|(_, ms)| ms.abs());
    match worst {
        Some((node, ms)) if ms.abs() > CLOCK_MS_MAX => {
            let time = human::time(Duration::from_millis(ms.unsigned_abs()));
            let way = if ms > 0 { "ahead of" } else { "behind" };
            Finding::warn(
                format!("the clock of {} is {time} {way} this one", node.name),
                "keep the clocks in step (chrony, systemd-timesyncd): times of files follow them, nothing else does",
            )
        }
        _ => Finding::ok("the clocks of the nodes agree"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::Level;
    use perigee_types::ContainerId;

    fn said(change: impl FnOnce(&mut Status)) -> Vec<String> {
        let mut status = Status {
            version: "1".to_owned(),
            nodes: vec![NodeStatus {
                name: "n2".to_owned(),
                state: NodeState::Up,
                version: "1".to_owned(),
                free_bytes: Some(FREE_BYTES_MIN),
                answer_us: Some(400),
                clock_ahead_ms: Some(-CLOCK_MS_MAX),
                ..NodeStatus::default()
            }],
            ..Status::default()
        };
        status.control.state = ControlState::Up;
        change(&mut status);
        let bad = of(&status).into_iter().filter(|f| f.level != Level::Ok);
        bad.map(|finding| finding.what).collect()
    }

    #[test]
    fn what_is_wrong_with_a_cluster_is_said_in_words() {
        assert_eq!(said(|_| ()), Vec::<String>::new());
        let node = |change: fn(&mut NodeStatus)| said(|status| change(&mut status.nodes[0]));
        assert_eq!(node(|n| n.state = NodeState::Down), ["n2 is down"]);
        assert_eq!(
            node(|n| n.read_only = vec![ContainerId(1)]),
            ["the disk of n2 failed: it takes no changes of 1 container"]
        );
        assert_eq!(
            node(|n| n.free_bytes = Some(5 << 20)),
            ["n2: only 5.00 MiB free on its disk"]
        );
        assert_eq!(
            node(|n| n.answer_us = Some(70_000)),
            ["n2 took 70 ms to answer"]
        );
        assert_eq!(
            node(|n| n.version = "2".to_owned()),
            ["n2 runs version 2, this node 1"]
        );
        assert_eq!(
            node(|n| n.clock_ahead_ms = Some(-3_000)),
            ["the clock of n2 is 3.0 s behind this one"]
        );
        assert_eq!(
            said(|status| status.control.state = ControlState::Away).len(),
            1
        );
    }
}
