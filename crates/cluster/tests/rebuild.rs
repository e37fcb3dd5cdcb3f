//! A control store that is made anew has what the newest copy has, and the chains that the nodes' disks have.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

use perigee_cluster::rebuild::{
    self, Copy, Held, Inventories, Inventory, Outcome, Place, RebuildError, Rebuilt, Seat,
    Unserved, Why, decode_all, encode_all,
};
use perigee_cluster::{
    ClusterInfo, Container, Directory, KeyValue, Node, NodeState, Policy, Revision, codec::Record,
    key,
};
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};
use std::collections::BTreeSet;

const CLUSTER: u128 = 7;

fn n(id: u32) -> NodeId {
    NodeId(id)
}

fn chain(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn put(key: String, value: Vec<u8>) -> KeyValue {
    let revision = Revision(1);
    KeyValue {
        key,
        value,
        revision,
    }
}

/// A cluster of three nodes, with one container in epoch 4.
fn copy(revision: u64) -> Copy {
    let info = ClusterInfo {
        id: CLUSTER,
        created: WallTime::default(),
        format: 1,
    };
    let mut records = vec![
        put(key::CLUSTER.into(), info.encode()),
        put(key::policy("default"), Policy { copies: 2 }.encode()),
        put(key::NEXT_NODE.into(), n(4).encode()),
        put(key::NEXT_CONTAINER.into(), ContainerId(2).encode()),
    ];
    for id in 1..=3 {
        let node = Node {
            id: n(id),
            name: format!("h{id}"),
            address: ([10, 0, 0, id as u8], 7400).into(),
            site: None,
            role: perigee_cluster::Role::Stores,
            joined: WallTime::default(),
            cert_serial: vec![id as u8],
            state: NodeState::Active,
            capacity: 0,
        };
        records.push(put(key::node(n(id)), node.encode()));
    }
    let container = Container {
        id: ContainerId(1),
        epoch: Epoch(4),
        chain: chain(&[1, 2]),
        copies: 3,
        home: n(1),
    };
    records.push(put(key::container(ContainerId(1)), container.encode()));
    Copy {
        revision: Revision(revision),
        records,
    }
}

fn held(container: u32, epoch: u64, members: &[u32]) -> Held {
    Held {
        container: ContainerId(container),
        promised: Epoch(epoch),
        complete: true,
        place: Some(Place {
            epoch: Epoch(epoch),
            chain: chain(members),
        }),
    }
}

fn inventory(node: u32, held: Vec<Held>) -> Inventory {
    Inventory {
        node: n(node),
        cluster: CLUSTER,
        taken: Some(at(7)),
        changed: Some(at(5)),
        copy: copy(u64::from(node) * 10),
        held,
    }
}

/// As a protocol would that takes the newest chain and adds one.
fn newest(listed: Option<Place>, held: &[(NodeId, &Held)]) -> Outcome {
    let places = held.iter().filter_map(|(_, held)| held.place.clone());
    let newest = listed
        .into_iter()
        .chain(places)
        .max_by_key(|place| place.epoch);
    newest.map_or(Outcome::Unknown, |place| {
        Outcome::On(Place {
            epoch: Epoch(place.epoch.0 + 1),
            ..place
        })
    })
}

fn at(secs: i64) -> WallTime {
    WallTime { secs, nanos: 0 }
}

fn rebuild(
    inventories: &[Inventory],
    lost: &BTreeSet<NodeId>,
    go_on: impl Fn(Option<Place>, &[(NodeId, &Held)]) -> Outcome,
) -> Result<Rebuilt, RebuildError> {
    rebuild::rebuild(&Inventories::of(inventories.to_vec()), lost, go_on)
}

fn none() -> BTreeSet<NodeId> {
    BTreeSet::new()
}

#[test]
fn chains_are_those_of_the_disks_and_the_rest_is_that_of_the_newest_copy() {
    let inventories = [
        inventory(1, vec![held(1, 5, &[2, 1])]),
        inventory(2, vec![held(1, 6, &[2]), held(9, 2, &[2])]),
        inventory(3, Vec::new()),
    ];
    let rebuilt = rebuild(&inventories, &none(), newest).unwrap();
    assert_eq!(rebuilt.unserved, []);
    assert!(
        rebuilt.base > Revision(1 << 31),
        "above what nobody here has seen"
    );
    let list: Vec<KeyValue> = rebuilt
        .records
        .iter()
        .map(|(key, value)| put(key.clone(), value.clone()))
        .collect();
    let directory = Directory::from_list(&list, Revision(1)).unwrap();
    let first = directory.container(ContainerId(1)).unwrap();
    assert_eq!((first.epoch, &first.chain), (Epoch(7), &chain(&[2])));
    assert_eq!((first.copies, first.home), (3, n(1)));
    let unlisted = directory.container(ContainerId(9)).unwrap();
    assert_eq!((unlisted.epoch, unlisted.copies), (Epoch(3), 2));
    let next = directory.next_container.as_ref().unwrap().record;
    assert_eq!(next, ContainerId(10), "no number is given twice");
    assert_eq!(directory.nodes.len(), 3);
    assert_eq!(directory.cluster.unwrap().record.id, CLUSTER);
}

#[test]
fn what_a_node_knows_is_left_out_only_when_the_node_is_given_up() {
    let two = [
        inventory(1, vec![held(1, 4, &[1, 2])]),
        inventory(2, Vec::new()),
    ];
    let missing = rebuild(&two, &none(), newest).unwrap_err();
    assert_eq!(missing.to_string(), "what h3 knows is missing");
    let lost = BTreeSet::from([n(3)]);
    let rebuilt = rebuild(&two, &lost, newest).unwrap();
    let third = rebuilt.nodes.iter().find(|node| node.id == n(3)).unwrap();
    assert_eq!(third.state, NodeState::Left);
    let here = BTreeSet::from([n(1), n(3)]);
    let wrong = rebuild(&two, &here, newest).unwrap_err();
    assert_eq!(wrong, RebuildError::NotLost { node: n(1) });
    assert_eq!(rebuild(&[], &none(), newest), Err(RebuildError::Nothing));
}

#[test]
fn a_container_that_nobody_has_keeps_its_record_and_its_nodes_stay() {
    let two = [inventory(2, Vec::new()), inventory(3, Vec::new())];
    let lost = BTreeSet::from([n(1)]);
    let gone = Place {
        epoch: Epoch(6),
        chain: chain(&[1]),
    };
    let rebuilt = rebuild(&two, &lost, |_, _| Outcome::Lost(gone.clone())).unwrap();
    let why = Why::NobodyLeft(gone.clone());
    let container = ContainerId(1);
    assert_eq!(rebuilt.unserved, [Unserved { container, why }]);
    // Who was in an older chain must not go on with it.
    let container = &rebuilt.containers[0];
    assert_eq!(
        (container.epoch, &container.chain),
        (Epoch(6), &chain(&[1]))
    );
    let first = rebuilt.nodes.iter().find(|node| node.id == n(1)).unwrap();
    assert_eq!(first.state, NodeState::Active, "it may come back");
}

#[test]
fn who_was_given_up_before_has_no_say_any_more() {
    let lost = BTreeSet::from([n(3)]);
    let held_by_two = || inventory(2, vec![held(1, 6, &[2])]);
    let two = [inventory(1, Vec::new()), held_by_two()];
    let rebuilt = rebuild(&two, &lost, newest).unwrap();
    assert!(rebuilt.records.contains_key(key::NEXT_CONTAINER));
    let records = rebuilt
        .records
        .into_iter()
        .map(|(key, value)| put(key, value));
    let later = Copy {
        revision: rebuilt.base,
        records: records.collect(),
    };
    let mut second = held_by_two();
    second.copy = later;
    let back = inventory(3, vec![held(1, 9, &[3])]);
    let first = inventory(1, Vec::new());
    let again = rebuild(&[first, second, back], &none(), newest).unwrap();
    let container = &again.containers[0];
    assert_eq!(
        container.chain,
        chain(&[2]),
        "what it went on with alone is no more"
    );
}

#[test]
fn two_clusters_are_not_mixed() {
    let mut other = inventory(2, Vec::new());
    other.cluster += 1;
    let mixed = [other, inventory(3, Vec::new())];
    let wrong = rebuild(&mixed, &none(), newest).unwrap_err();
    assert_eq!(wrong, RebuildError::OtherCluster { node: n(2) });
}

#[test]
fn copies_and_inventories_read_back_and_damage_is_found() {
    let copy = copy(3);
    let mut bytes = copy.encode();
    assert_eq!(Copy::decode(&bytes).as_ref(), Ok(&copy));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(Copy::decode(&bytes).is_err());
    let all = [
        inventory(1, vec![held(1, 2, &[1])]),
        inventory(2, Vec::new()),
    ];
    let bytes = encode_all(&all);
    assert_eq!(decode_all(&bytes).as_deref(), Ok(&all[..]));
    assert!(decode_all(&copy.encode()).is_err(), "another kind of file");
}

#[test]
fn which_inventories_count_does_not_depend_on_the_order_in_which_they_are_given() {
    let of = |node, revision, taken, held| Inventory {
        taken,
        copy: copy(revision),
        ..inventory(node, held)
    };
    let (early, late) = (Some(at(10)), Some(at(20)));
    let all = [
        of(2, 40, early, vec![held(1, 4, &[2])]),
        of(1, 40, early, Vec::new()),
        of(3, 50, early, Vec::new()),
        of(2, 40, late, Vec::new()),
        of(2, 39, late, vec![held(1, 9, &[2])]),
        of(3, 50, None, Vec::new()),
        of(1, 40, early, vec![held(1, 3, &[1])]),
    ];
    let count = |order: &[usize]| {
        let given = order.iter().map(|at| all[*at].clone());
        Inventories::of(given.collect())
    };
    let first = count(&[0, 1, 2, 3, 4, 5, 6]);
    let which: Vec<_> = first.iter().map(|one| (one.node, one.taken)).collect();
    assert_eq!(which, [(n(3), early), (n(1), early), (n(2), late)]);
    assert_eq!(first.newest().unwrap().node, n(3));
    for turn in 0..all.len() {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.rotate_left(turn);
        assert_eq!(count(&order), first);
        order.reverse();
        assert_eq!(count(&order), first);
    }
}

#[test]
fn what_is_given_up_and_why_nobody_serves_a_container_is_told() {
    let place = |epoch, members: &[u32]| Place {
        epoch: Epoch(epoch),
        chain: chain(members),
    };
    let (lost, old) = (
        BTreeSet::from([n(3)]),
        inventory(1, vec![held(1, 3, &[3, 1])]),
    );
    let two = [
        old,
        inventory(
            2,
            vec![held(1, 5, &[2, 3]), held(2, 6, &[2]), held(3, 2, &[2])],
        ),
    ];
    let go_on = |_: Option<Place>, held: &[(NodeId, &Held)]| match held[0].1.container.0 {
        1 => Outcome::Lost(place(5, &[3])),
        2 => Outcome::Lost(place(6, &[2])),
        _ => Outcome::Unknown,
    };
    let rebuilt = rebuild(&two, &lost, go_on).unwrap();
    let told: Vec<_> = rebuilt
        .unserved
        .iter()
        .map(|u| (u.container.0, &u.why))
        .collect();
    let (left, whole) = (
        Why::NobodyLeft(place(5, &[3])),
        Why::NobodyWhole(place(6, &[2])),
    );
    assert_eq!(told, [(1, &left), (2, &whole), (3, &Why::NoChain)]);
    // In epoch 3 it was there as well; what counts is where it was last.
    let (container, epoch) = (ContainerId(1), Epoch(5));
    let given_up = rebuilt.given_up.into_iter().collect::<Vec<_>>();
    assert_eq!(given_up, [(n(3), vec![Seat { container, epoch }])]);
}

/// As the first version of the program wrote it, which noted no times.
#[test]
fn an_inventory_of_the_first_format_is_read() {
    let bytes: &[u8] = b"perigee inventory 1\n?\xed\xfe\xc6\x01\x01\x07\x09\x01\x01c\x03\x01\x02\x03\x04\x01\x01\x03\x01\x01\x03\x02\x01\x02";
    let all = decode_all(bytes).unwrap();
    let [one] = all.as_slice() else {
        panic!("{all:?}")
    };
    assert_eq!((one.node, one.cluster), (n(1), CLUSTER));
    assert_eq!((one.taken, one.changed), (None, None));
    assert_eq!(one.copy.revision, Revision(9));
    assert_eq!(one.copy.records[0].value, [1, 2, 3]);
    assert_eq!(one.held, [held(1, 3, &[1, 2])]);
    let mut damaged = bytes.to_vec();
    damaged[30] ^= 1;
    assert!(decode_all(&damaged).is_err());
}
