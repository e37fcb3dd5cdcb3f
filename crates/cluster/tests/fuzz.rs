//! Whatever the control store gives for a record or a key is one, or an error.

use perigee_cluster::codec::Record;
use perigee_cluster::key::{self, Name};
use perigee_cluster::rebuild::{Copy, Held, Inventory, Place, decode_all, encode_all};
use perigee_cluster::{
    ClusterInfo, Container, ControlProcess, Grown, KeyValue, Live, Move, Node, NodeState, Policy,
    Readmission, Revision, Revoked, Role, Token,
};
use perigee_fuzz::{Verdict, assault, assault_plain};
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};

fn read<R: Record>(bytes: &[u8]) -> Verdict {
    let Ok(record) = R::decode(bytes) else {
        return Verdict::Refused;
    };
    let written = record.encode();
    assert!(R::decode(&written).is_ok_and(|again| again.encode() == written));
    Verdict::Taken
}

#[test]
fn fuzz_every_record() {
    let node = Node {
        id: NodeId(3),
        name: "three".to_owned(),
        address: ([10, 0, 0, 3], 7400).into(),
        site: Some("north".to_owned()),
        role: Role::Stores,
        joined: WallTime::default(),
        cert_serial: vec![1, 2, 3],
        state: NodeState::Draining,
        capacity: 1 << 40,
    };
    let container = Container {
        id: ContainerId(7),
        epoch: Epoch(9),
        chain: vec![NodeId(3), NodeId(1)],
        copies: 3,
        home: NodeId(1),
    };
    assault("cluster::Node", &[node.encode()], read::<Node>);
    assault(
        "cluster::Container",
        &[container.encode()],
        read::<Container>,
    );
    assault(
        "cluster::Policy",
        &[Policy::default().encode()],
        read::<Policy>,
    );
    assault("cluster::NodeId", &[NodeId(1).encode()], read::<NodeId>);
    assault(
        "cluster::ContainerId",
        &[ContainerId(1).encode()],
        read::<ContainerId>,
    );
    assault_plain("cluster::ClusterInfo", read::<ClusterInfo>);
    assault_plain("cluster::Live", read::<Live>);
    let moving = Move {
        container: ContainerId(7),
        from: NodeId(1),
        to: NodeId(2),
    };
    let grown = Grown {
        container: ContainerId(7),
        root: ContainerId(2),
        purpose: perigee_cluster::Purpose::Columns,
    };
    assault("cluster::Grown", &[grown.encode()], read::<Grown>);
    assault("cluster::Move", &[moving.encode()], read::<Move>);
    assault_plain("cluster::ControlProcess", read::<ControlProcess>);
    assault_plain("cluster::Token", read::<Token>);
    assault_plain("cluster::Readmission", read::<Readmission>);
    assault_plain("cluster::Revoked", read::<Revoked>);
}

#[test]
fn fuzz_keys() {
    let examples = [
        key::node(NodeId(3)),
        key::container(ContainerId(7)),
        key::live(NodeId(2)),
        key::moving(ContainerId(7)),
        key::grown(ContainerId(7)),
        key::revoked(&[1, 0xfe]),
        key::token(&[7; 32]),
    ];
    let examples = examples.map(String::into_bytes);
    assault("cluster::Name", &examples, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Verdict::Refused;
        };
        match Name::parse(text) {
            Name::Other => Verdict::Refused,
            Name::Node(id) => {
                // One key for each node: another text would be a second record of it.
                assert_eq!(Name::parse(&key::node(id)), Name::Node(id));
                Verdict::Taken
            }
            _ => Verdict::Taken,
        }
    });
}

#[test]
fn fuzz_copies_and_inventories() {
    let copy = Copy {
        revision: Revision(9),
        records: vec![KeyValue {
            key: key::CLUSTER.to_owned(),
            value: vec![1, 2, 3],
            revision: Revision(4),
        }],
    };
    let place = Place {
        epoch: Epoch(3),
        chain: vec![NodeId(1), NodeId(2)],
    };
    let inventory = Inventory {
        node: NodeId(1),
        cluster: 5,
        taken: Some(WallTime::default()),
        changed: None,
        copy: copy.clone(),
        held: vec![Held {
            container: ContainerId(1),
            promised: Epoch(3),
            complete: true,
            place: Some(place),
        }],
    };
    assault(
        "cluster::Copy",
        &[copy.encode()],
        |bytes| match Copy::decode(bytes) {
            Ok(copy) => {
                assert_eq!(Copy::decode(&copy.encode()), Ok(copy));
                Verdict::Taken
            }
            Err(_) => Verdict::Refused,
        },
    );
    assault(
        "cluster::Inventory",
        &[encode_all(&[inventory])],
        |bytes| match decode_all(bytes) {
            Ok(all) => {
                assert_eq!(decode_all(&encode_all(&all)), Ok(all));
                Verdict::Taken
            }
            Err(_) => Verdict::Refused,
        },
    );
}
