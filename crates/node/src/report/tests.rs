use super::*;
use perigee_cluster::{Container, KeyValue, Live, Revision, codec::Record, key};
use perigee_types::{Epoch, WallTime};

fn node(state: perigee_cluster::NodeState) -> perigee_cluster::Node {
    perigee_cluster::Node {
        id: NodeId(3),
        name: "n".to_owned(),
        address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)),
        site: None,
        role: perigee_cluster::Role::Stores,
        joined: WallTime { secs: 0, nanos: 0 },
        cert_serial: Vec::new(),
        state,
        capacity: 0,
    }
}

#[test]
fn a_node_with_a_sign_of_life_and_no_answer_is_late() {
    use perigee_cluster::NodeState::{Active, Draining};
    assert_eq!(state_of(&node(Active), true, true), NodeState::Up);
    assert_eq!(state_of(&node(Active), true, false), NodeState::Suspect);
    assert_eq!(state_of(&node(Active), false, false), NodeState::Down);
    assert_eq!(state_of(&node(Active), false, true), NodeState::Up);
    assert_eq!(state_of(&node(Draining), true, false), NodeState::Leaving);
}

#[test]
fn what_a_member_did_not_say_is_not_known() {
    let report = NodeReport {
        missing: vec![(ContainerId(2), 77), (ContainerId(3), 23)],
        bytes_per_second: 10,
        ..NodeReport::default()
    };
    let answered = Answered {
        report,
        took: None,
        clock_ahead_ms: 0,
    };
    let reports = Reports::from([(NodeId(3), answered)]);
    assert_eq!(seconds_left(&reports, NodeId(3)), Some(10));
    assert_eq!(seconds_left(&reports, NodeId(4)), None);
    assert_eq!(missing(&reports, NodeId(3), ContainerId(2)), Some(77));
    assert_eq!(missing(&reports, NodeId(3), ContainerId(9)), None);
    assert_eq!(missing(&reports, NodeId(4), ContainerId(2)), None);
}

/// A cluster of three live nodes with one container on all of them.
fn three_copies() -> Directory {
    let id = ContainerId(7);
    let container = Container {
        id,
        epoch: Epoch(4),
        chain: vec![NodeId(1), NodeId(2), NodeId(3)],
        copies: 3,
        home: NodeId(1),
    };
    let mut rows = vec![(key::container(id), container.encode())];
    for number in 1..=3 {
        let id = NodeId(number);
        let node = perigee_cluster::Node {
            id,
            name: format!("h{number}"),
            ..node(perigee_cluster::NodeState::Active)
        };
        let live = Live {
            node: id,
            free: 0,
            ..Live::default()
        };
        rows.push((key::node(id), node.encode()));
        rows.push((key::live(id), live.encode()));
    }
    let row = |(key, value)| KeyValue {
        key,
        value,
        revision: Revision(1),
    };
    let rows: Vec<KeyValue> = rows.into_iter().map(row).collect();
    Directory::from_list(&rows, Revision(1)).expect("rows that were just encoded")
}

#[test]
fn a_container_is_whole_only_when_each_member_has_said_that_it_has_a_copy() {
    let directory = three_copies();
    let id = ContainerId(7);
    let says = |number, missing: &[ContainerId], partial: &[ContainerId]| {
        let answered = Answered {
            report: NodeReport {
                missing: missing.iter().map(|id| (*id, 0)).collect(),
                bytes_per_second: 0,
                partial: partial.to_vec(),
                given_away: vec![(id, 2)],
                ..NodeReport::default()
            },
            took: None,
            clock_ahead_ms: 0,
        };
        (NodeId(number), answered)
    };
    let told = |third: Option<(NodeId, Answered)>| {
        let others = [says(1, &[id], &[]), says(2, &[id], &[])];
        let reports: Reports = others.into_iter().chain(third).collect();
        let told = containers(&directory, &[], &reports).remove(0);
        // Each that answers has given it away twice.
        assert_eq!(told.moves, 2 * reports.len() as u64);
        (told.copies, told.degraded)
    };
    assert_eq!(told(Some(says(3, &[id], &[]))), (3, false));
    assert_eq!(told(Some(says(3, &[id], &[id]))), (2, true), "a wiped disk");
    assert_eq!(told(Some(says(3, &[], &[]))), (2, true), "not opened yet");
    assert_eq!(told(None), (2, true), "no answer");
}

#[test]
fn a_member_that_lacks_files_to_ends_that_it_does_not_know_is_told_of() {
    let report = NodeReport {
        missing: vec![(ContainerId(2), u64::MAX - 5), (ContainerId(3), u64::MAX)],
        bytes_per_second: 1,
        ..NodeReport::default()
    };
    let answered = Answered {
        report,
        took: None,
        clock_ahead_ms: 0,
    };
    let reports = Reports::from([(NodeId(3), answered)]);
    assert_eq!(seconds_left(&reports, NodeId(3)), Some(u64::MAX));
}
