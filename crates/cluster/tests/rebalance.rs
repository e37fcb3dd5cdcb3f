//! Plans for clusters of any kind: no copy is lost, none comes nearer to another one, and they end.

use perigee_cluster::codec::Record;
use perigee_cluster::rebalance::{Disk, Goes, Margin, Picture, Plan, keeps_apart, plan};
use perigee_cluster::{Container, Directory, KeyValue, Live, Node, NodeState, Revision, Role, key};
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;

/// A node: its machine, its site, and the size of its disk in GiB.
type Host = (u8, Option<u8>, u64);

fn node(id: u32, (machine, site, _): Host) -> Node {
    Node {
        id: NodeId(id),
        name: format!("h{id}"),
        address: ([10, 0, 0, machine], 7000).into(),
        site: site.map(|site| format!("s{site}")),
        role: Role::Stores,
        joined: WallTime::default(),
        cert_serial: Vec::new(),
        state: NodeState::Active,
        capacity: 0,
    }
}

fn directory(rows: Vec<(String, Vec<u8>)>) -> Directory {
    let revision = Revision(1);
    let row = |(key, value)| KeyValue {
        key,
        value,
        revision,
    };
    let rows: Vec<KeyValue> = rows.into_iter().map(row).collect();
    Directory::from_list(&rows, revision).expect("rows that were just encoded")
}

/// Homes of all nodes come first, as in a real cluster; they are empty.
fn cluster(hosts: &[Host], containers: &[(Vec<u32>, u64)]) -> (Directory, Picture) {
    let mut rows = Vec::new();
    let mut picture = Picture::default();
    let mut add = |rows: &mut Vec<_>, chain: Vec<u32>, bytes: u64| {
        let id = ContainerId(picture.sizes.len() as u32 + 1);
        let container = Container {
            id,
            epoch: Epoch(1),
            copies: chain.len() as u8,
            home: NodeId(chain[0]),
            chain: chain.into_iter().map(NodeId).collect(),
        };
        picture.sizes.insert(id, bytes);
        rows.push((key::container(id), container.encode()));
    };
    for (host, id) in hosts.iter().zip(1..) {
        rows.push((key::node(NodeId(id)), node(id, *host).encode()));
        let live = Live {
            node: NodeId(id),
            free: host.2 * GIB,
            version: String::new(),
            ..Live::default()
        };
        rows.push((key::live(NodeId(id)), live.encode()));
        add(&mut rows, vec![id], 0);
    }
    for (chain, gib) in containers {
        add(&mut rows, chain.clone(), gib * GIB);
    }
    let dir = directory(rows);
    for (host, id) in hosts.iter().zip(1..) {
        let capacity = host.2 * GIB;
        let held = held(&dir, &picture, NodeId(id));
        let free = capacity.saturating_sub(held);
        picture.disks.insert(NodeId(id), Disk { capacity, free });
    }
    (dir, picture)
}

fn held(dir: &Directory, picture: &Picture, node: NodeId) -> u64 {
    let here = dir.containers.values().map(|known| &known.record);
    let here = here.filter(|container| container.chain.contains(&node));
    here.filter_map(|container| picture.sizes.get(&container.id))
        .sum()
}

/// All fills, the greatest first, in parts of 10^12.
fn fills(dir: &Directory, picture: &Picture) -> Vec<u128> {
    let fill = |(node, disk): (&NodeId, &Disk)| {
        u128::from(held(dir, picture, *node)) * 1_000_000_000_000 / u128::from(disk.capacity.max(1))
    };
    let mut fills: Vec<u128> = picture.disks.iter().map(fill).collect();
    fills.sort_unstable_by_key(|fill| Reverse(*fill));
    fills
}

/// Carries a plan out, and checks each of its steps.
fn carry_out(dir: &mut Directory, picture: &mut Picture, plan: &Plan) {
    for step in &plan.transfers {
        let before = fills(dir, picture);
        let container = dir
            .containers
            .get(&step.container)
            .expect("a container")
            .record
            .clone();
        assert!(container.chain.contains(&step.from) && !container.chain.contains(&step.to));
        assert!(
            keeps_apart(dir, &container.chain, step.from, step.to),
            "{step:?}"
        );
        assert_ne!(
            dir.home_of(step.from).map(|home| home.id),
            Some(step.container)
        );
        let owns = container.owner() == Some(step.from);
        assert_eq!(step.goes == Goes::Ownership, owns);
        let disk = picture.disks.get_mut(&step.to).expect("a disk");
        assert!(disk.free >= step.bytes, "{step:?} finds no room");
        disk.free -= step.bytes;
        picture.disks.get_mut(&step.from).expect("a disk").free += step.bytes;
        let known = dir
            .containers
            .get_mut(&step.container)
            .expect("a container");
        let places = known.record.chain.iter_mut();
        places
            .filter(|node| **node == step.from)
            .for_each(|place| *place = step.to);
        assert!(known.record.is_sound(), "{:?}", known.record);
        assert!(
            fills(dir, picture) < before,
            "{step:?} makes nothing better"
        );
    }
    for (node, bytes) in &plan.after {
        assert_eq!(held(dir, picture, *node), *bytes);
    }
}

fn hosts() -> impl Strategy<Value = Vec<Host>> {
    let host = (0..6_u8, prop::option::of(0..3_u8), 100..2_000_u64);
    prop::collection::vec(host, 1..8)
}

fn containers() -> impl Strategy<Value = Vec<(Vec<u32>, u64)>> {
    let chain =
        prop::collection::btree_set(1..8_u32, 1..4).prop_map(|set| set.into_iter().collect());
    prop::collection::vec((chain, 0..90_u64), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_keep_every_copy_and_every_place_and_end(
        hosts in hosts(), containers in containers(), percent in 1..50_u8,
    ) {
        let there = |chain: &Vec<u32>| chain.iter().all(|node| *node as usize <= hosts.len());
        let containers: Vec<_> = containers.into_iter().filter(|(chain, _)| there(chain)).collect();
        let (mut dir, mut picture) = cluster(&hosts, &containers);
        let margin = Margin::percent(percent).expect("a margin");
        let mut rounds = 0;
        loop {
            let plan = plan(&dir, &picture, margin);
            if plan.transfers.is_empty() {
                break;
            }
            carry_out(&mut dir, &mut picture, &plan);
            rounds += 1;
            prop_assert!(rounds < 50, "plans go on and on");
        }
    }
}

fn transfers(plan: &Plan) -> Vec<(u32, u32, u32)> {
    let each = plan.transfers.iter();
    each.map(|t| (t.container.0, t.from.0, t.to.0)).collect()
}

/// Hosts on machines of their own, with disks of a TiB.
fn alike(count: u8) -> Vec<Host> {
    (1..=count).map(|machine| (machine, None, 1_024)).collect()
}

#[test]
fn a_new_node_gets_its_share_of_replicas_and_nobody_its_home() {
    // Containers 5 and on, on three of four nodes.
    let chains = vec![
        (vec![1, 2, 3], 40),
        (vec![2, 3, 1], 40),
        (vec![3, 1, 2], 40),
        (vec![1, 2, 3], 40),
    ];
    let (mut dir, mut picture) = cluster(&alike(4), &chains);
    let made = plan(&dir, &picture, Margin::default());
    assert_eq!(made.transfers.len(), 3, "{made:?}");
    assert!(
        made.transfers
            .iter()
            .all(|t| t.to == NodeId(4) && t.goes == Goes::Copy)
    );
    carry_out(&mut dir, &mut picture, &made);
    let expected = BTreeMap::from([1, 2, 3, 4].map(|node| (NodeId(node), 120 * GIB)));
    assert_eq!(made.after, expected);
    assert_eq!(plan(&dir, &picture, Margin::default()).transfers, []);
}

#[test]
fn with_one_copy_ownership_goes_along_and_homes_stay() {
    let chains = vec![(vec![1], 10), (vec![1], 10), (vec![1], 10), (vec![1], 10)];
    let (dir, mut picture) = cluster(&alike(2), &chains);
    // What lies in the home of node 1 cannot go.
    picture.sizes.insert(ContainerId(1), 20 * GIB);
    let made = plan(&dir, &picture, Margin::default());
    assert_eq!(transfers(&made), [(3, 1, 2), (4, 1, 2), (5, 1, 2)]);
    assert!(made.transfers.iter().all(|t| t.goes == Goes::Ownership));
}

#[test]
fn a_site_that_a_copy_is_alone_in_keeps_it() {
    let hosts = [(1, Some(0), 100), (2, Some(1), 100), (3, Some(1), 100)];
    let (dir, picture) = cluster(&hosts, &[(vec![1, 2], 30), (vec![2, 1], 30)]);
    let made = plan(&dir, &picture, Margin::default());
    assert_eq!(transfers(&made), [(4, 2, 3)], "within the site alone");
    let hosts = [(1, None, 100), (1, None, 100), (2, None, 100)];
    let (dir, picture) = cluster(&hosts, &[(vec![1, 3], 30), (vec![3, 1], 30)]);
    let made = plan(&dir, &picture, Margin::default());
    assert_eq!(transfers(&made), [(5, 1, 2)], "within the machine alone");
}

#[test]
fn a_larger_disk_gets_more_and_a_full_one_nothing() {
    let hosts = [(1, None, 100), (2, None, 1_000)];
    let chains: Vec<_> = (0..8).map(|_| (vec![1], 10)).collect();
    let (dir, mut picture) = cluster(&hosts, &chains);
    assert_eq!(plan(&dir, &picture, Margin::default()).transfers.len(), 8);
    // Somebody else fills it.
    if let Some(disk) = picture.disks.get_mut(&NodeId(2)) {
        disk.free = 55 * GIB;
    }
    assert_eq!(plan(&dir, &picture, Margin::default()).transfers, []);
}

#[test]
fn what_moves_already_or_lacks_a_copy_or_whose_member_is_silent_stays() {
    let chains = vec![(vec![1], 10), (vec![1], 10), (vec![1], 10)];
    let (dir, picture) = cluster(&alike(2), &chains);
    let planned =
        |dir: &Directory, picture: &Picture| plan(dir, picture, Margin::default()).transfers.len();
    assert_eq!(planned(&dir, &picture), 1);
    let mut silent = picture.clone();
    silent.disks.remove(&NodeId(1));
    assert_eq!(planned(&dir, &silent), 0);
    let mut short = dir.clone();
    for known in short.containers.values_mut() {
        known.record.copies = 2;
    }
    assert_eq!(planned(&short, &picture), 0);
    let mut dead = dir.clone();
    dead.live.remove(&NodeId(2));
    assert_eq!(planned(&dead, &picture), 0);
}
