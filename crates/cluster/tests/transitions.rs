//! The record keeps its invariants under any mix of changes, also when each was planned on a picture
//! that is out of date: a plan compares what its checks have read.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

use perigee_cluster::codec::Record;
use perigee_cluster::transition as t;
use perigee_cluster::{
    Admits, ClusterInfo, Container, Directory, JoinRequest, KeyValue, Live, Node, NodeState,
    PlanError, Policy, Purpose, Revision, TokenUse, Txn, Write, key,
};
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A control store reduced to its transactions.
#[derive(Debug, Clone, Default)]
struct Model {
    keys: BTreeMap<String, (Vec<u8>, Revision)>,
    revision: Revision,
}

impl Model {
    fn commit(&mut self, txn: &Txn) -> bool {
        txn.check().unwrap();
        let now = |key: &str| self.keys.get(key).map(|(_, revision)| *revision);
        if !txn.compare.iter().all(|c| now(&c.key) == c.revision) {
            return false;
        }
        self.revision = self.revision.next();
        for write in &txn.writes {
            match write {
                Write::Put { key, value, .. } => {
                    self.keys
                        .insert(key.clone(), (value.clone(), self.revision));
                }
                Write::Delete { key } => _ = self.keys.remove(key),
            }
        }
        true
    }

    fn directory(&self) -> Directory {
        let entry = |(key, (value, revision)): (&String, &(Vec<u8>, Revision))| KeyValue {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        };
        let list: Vec<_> = self.keys.iter().map(entry).collect();
        Directory::from_list(&list, self.revision).unwrap()
    }

    fn apply<T>(&mut self, planned: Result<t::Planned<T>, PlanError>) -> T {
        let planned = planned.unwrap();
        assert!(self.commit(&planned.txn));
        planned.made
    }
}

const NOW: WallTime = WallTime {
    secs: 1_000,
    nanos: 0,
};
const LATER: WallTime = WallTime {
    secs: 2_000,
    nanos: 0,
};

fn request(name: &str) -> JoinRequest {
    JoinRequest {
        name: name.to_owned(),
        address: "10.0.0.1:7000".parse().unwrap(),
        site: None,
        storage: true,
        capacity: 0,
    }
}

fn certified(request: &str) -> t::Certified {
    t::Certified {
        request: request.to_owned(),
        certificate: "certificate".to_owned(),
        serial: request.as_bytes().to_vec(),
    }
}

fn with_nodes(count: u8) -> Model {
    let mut model = Model::default();
    for n in 0..count {
        let planned =
            t::register_node(&model.directory(), &request(&format!("h{n}")), vec![n], NOW);
        model.apply(planned);
    }
    model
}

fn n(id: u32) -> NodeId {
    NodeId(id)
}

fn chain(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

#[test]
fn the_first_node_gets_the_root_container() {
    let model = with_nodes(2);
    let dir = model.directory();
    let root = dir.container(ContainerId::ROOT).unwrap();
    assert_eq!((root.chain.clone(), root.epoch), (chain(&[1]), Epoch(1)));
    assert_eq!((root.home, root.copies), (n(1), 3));
    assert_eq!(dir.home_of(n(2)).unwrap().id, ContainerId(2));
}

#[test]
fn a_family_goes_on_in_its_newest_and_stays_what_its_root_is() {
    let mut model = with_nodes(2);
    let own = t::create_own_container(&model.directory(), chain(&[1]), &Policy { copies: 1 });
    let own = model.apply(own).id;
    let further = |model: &mut Model, of| {
        let made = t::create_container(&model.directory(), chain(&[1]), 1, n(1));
        let made = model.apply(made).id;
        let root = model
            .apply(t::grow(&model.directory(), made, of, Purpose::GoesOn))
            .root;
        (made, root)
    };
    let (home_2, root) = further(&mut model, ContainerId::ROOT);
    assert_eq!(root, ContainerId::ROOT);
    let (own_2, root) = further(&mut model, own);
    assert_eq!(root, own);
    let (own_3, root) = further(&mut model, own_2);
    assert_eq!(root, own, "a family has one root");
    let dir = model.directory();
    assert_eq!(dir.newest_home_of(n(1)), Some(home_2));
    assert_eq!(
        dir.home_of(n(1)).map(|home| home.id),
        Some(ContainerId::ROOT)
    );
    assert_eq!(dir.newest_home_of(n(2)), Some(ContainerId(2)));
    assert!(!dir.is_of_directory(home_2) && dir.is_of_directory(own_2));
    assert_eq!(dir.goes_on_in(own), own_3);
    assert_eq!(dir.goes_on_in(own_3), own_3);
    assert_eq!(dir.family(own).collect::<Vec<_>>(), [own, own_2, own_3]);
    let unknown = t::grow(&dir, ContainerId(99), own, Purpose::GoesOn);
    assert!(matches!(unknown, Err(PlanError::UnknownContainer { .. })));
}

#[test]
fn a_copy_moves_where_there_is_none_and_one_at_a_time() {
    let mut model = with_nodes(4);
    let c = ContainerId(1);
    let change = t::change_chain(&model.directory(), c, Epoch(1), Epoch(2), chain(&[1, 2]));
    model.apply(change);
    let begin = |dir: &Directory, from, to| t::begin_move(dir, c, n(from), n(to));
    let dir = model.directory();
    assert!(matches!(
        begin(&dir, 3, 4),
        Err(PlanError::HoldsNoCopy { .. })
    ));
    assert!(matches!(
        begin(&dir, 1, 2),
        Err(PlanError::HoldsCopy { .. })
    ));
    assert!(matches!(
        begin(&dir, 1, 9),
        Err(PlanError::UnknownNode { .. })
    ));
    model.apply(t::drain(&dir, n(4)));
    assert!(matches!(
        begin(&model.directory(), 1, 4),
        Err(PlanError::NoStorage { .. })
    ));
    // One that was planned before the drain is refused by the store.
    assert!(!model.commit(&begin(&dir, 1, 4).unwrap().txn));
    let live = Live {
        node: n(3),
        free: 1,
        version: String::new(),
        ..Live::default()
    };
    assert!(model.commit(&Txn::default().put(key::live(n(3)), live.encode())));
    model.apply(begin(&model.directory(), 1, 3));
    let dir = model.directory();
    assert!(matches!(begin(&dir, 2, 3), Err(PlanError::Moving { .. })));
    let kept = t::end_move(&dir, c, t::Ends::Over);
    assert_eq!(kept.made, None, "it is under way");
    let ended = model.apply(Ok(t::end_move(&dir, c, t::Ends::Any)));
    assert_eq!(ended.map(|moving| moving.to), Some(n(3)));
    assert!(model.directory().moves.is_empty());
}

#[test]
fn a_node_without_storage_has_no_home_and_joins_no_chain() {
    let mut model = with_nodes(1);
    let mount = JoinRequest {
        storage: false,
        ..request("laptop")
    };
    let joined = model.apply(t::register_node(&model.directory(), &mount, vec![9], NOW));
    assert_eq!(joined.home, None);
    let dir = model.directory();
    let planned = t::change_chain(&dir, ContainerId(1), Epoch(1), Epoch(2), chain(&[1, 2]));
    assert_eq!(planned, Err(PlanError::NoStorage { node: n(2) }));
}

#[test]
fn a_chain_changes_only_from_the_epoch_that_is_to_the_one_after() {
    let mut model = with_nodes(3);
    let c = ContainerId(1);
    let dir = model.directory();
    let change = |dir: &Directory, old, new, members: &[u32]| {
        t::change_chain(dir, c, Epoch(old), Epoch(new), chain(members))
    };
    model.apply(change(&dir, 1, 2, &[1, 2]));
    // planned on the old picture: refused by the store
    assert!(!model.commit(&change(&dir, 1, 2, &[1, 3]).unwrap().txn));
    let dir = model.directory();
    let (old, new) = (Epoch(2), Epoch(4));
    let stale = PlanError::StaleEpoch {
        container: c,
        expected: Epoch(1),
        current: Epoch(2),
    };
    let refusals = [
        (change(&dir, 1, 2, &[1]), stale),
        (change(&dir, 2, 4, &[1]), PlanError::EpochSkips { old, new }),
        (
            change(&dir, 2, 2, &[1]),
            PlanError::EpochSkips { old, new: old },
        ),
        (change(&dir, 2, 3, &[]), PlanError::EmptyChain),
        (
            change(&dir, 2, 3, &[1, 2, 1]),
            PlanError::DuplicateMember { node: n(1) },
        ),
        (
            change(&dir, 2, 3, &[1, 9]),
            PlanError::UnknownNode { node: n(9) },
        ),
        (
            change(&dir, 2, 3, &[3, 1]),
            PlanError::OwnerHoldsNothing { node: n(3) },
        ),
    ];
    for (planned, why) in refusals {
        assert_eq!(planned, Err(why));
    }
    assert_eq!(model.apply(change(&dir, 2, 3, &[2, 3])).owner(), Some(n(2)));
}

#[test]
fn a_container_of_one_directory_has_its_own_policy_and_is_nobodys_home() {
    let mut model = with_nodes(2);
    let one = Policy { copies: 1 };
    let made = t::create_own_container(&model.directory(), chain(&[2]), &one);
    let made = model.apply(made);
    assert_eq!((made.chain, made.copies), (chain(&[2]), 1));
    let dir = model.directory();
    assert_eq!(dir.own_policy(made.id), Some(&one));
    assert_eq!(dir.own_policy(ContainerId(2)), None);
    assert_eq!(dir.home_of(n(2)).unwrap().id, ContainerId(2));
    let of_directory = |id| dir.is_of_directory(ContainerId(id));
    assert_eq!(
        [1, 2, made.id.0, 99].map(of_directory),
        [false, false, true, false]
    );
    let two = Policy { copies: 2 };
    model.apply(t::set_own_policy(&dir, made.id, Some(&two)));
    let dir = model.directory();
    assert_eq!(dir.own_policy(made.id), Some(&two));
    assert_eq!(dir.container(made.id).unwrap().copies, 2);
    model.apply(t::set_own_policy(&dir, made.id, None));
    let dir = model.directory();
    assert_eq!(dir.own_policy(made.id), None);
    assert_eq!(dir.container(made.id).unwrap().copies, 3, "the default");
    let none = t::create_own_container(&dir, Vec::new(), &one);
    assert_eq!(none.unwrap_err(), PlanError::EmptyChain);
    let many = t::create_own_container(&dir, chain(&[1]), &Policy { copies: 99 });
    assert_eq!(many.unwrap_err(), PlanError::BadCopies { copies: 99 });
}

#[test]
fn a_member_that_is_drained_meanwhile_is_not_added() {
    let mut model = with_nodes(2);
    let before = model.directory();
    model.apply(t::drain(&before, n(2)));
    let add = t::change_chain(&before, ContainerId(1), Epoch(1), Epoch(2), chain(&[1, 2]));
    assert!(!model.commit(&add.unwrap().txn));
}

#[test]
fn a_node_leaves_only_drained_and_empty() {
    let mut model = with_nodes(2);
    let holds = |containers| PlanError::StillHolds {
        node: n(2),
        containers,
    };
    assert_eq!(t::leave(&model.directory(), n(2)), Err(holds(1)));
    let c = ContainerId(2);
    let dir = model.directory();
    model.apply(t::change_chain(&dir, c, Epoch(1), Epoch(2), chain(&[2, 1])));
    let dir = model.directory();
    model.apply(t::change_chain(&dir, c, Epoch(2), Epoch(3), chain(&[1])));
    assert_eq!(t::leave(&model.directory(), n(2)), Err(holds(0)));
    model.apply(t::drain(&model.directory(), n(2)));
    model.apply(t::leave(&model.directory(), n(2)));
    let dir = model.directory();
    assert_eq!(dir.revoked[&vec![1]].record.node, n(2));
    let left = PlanError::NodeLeft { node: n(2) };
    assert_eq!(t::undrain(&dir, n(2)), Err(left));
    // its name is free, its number is not
    let again = model.apply(t::register_node(&dir, &request("h1"), vec![7], NOW));
    assert_eq!(again.node.id, n(3));
}

#[test]
fn a_token_lets_in_one_node_in_time() {
    let mut model = with_nodes(1);
    let hash = [5; 32];
    let dir = model.directory();
    let join = |dir: &Directory, name: &str, now| {
        t::join(dir, hash, &certified(name), &request(name), now)
    };
    assert_eq!(join(&dir, "a", NOW), Err(PlanError::UnknownToken));
    model.apply(t::create_token(&dir, hash, LATER, Admits::Anybody));
    let dir = model.directory();
    assert_eq!(
        t::create_token(&dir, hash, LATER, Admits::Anybody),
        Err(PlanError::TokenExists)
    );
    assert_eq!(join(&dir, "a", LATER), Err(PlanError::TokenExpired));
    let rival = join(&dir, "b", NOW).unwrap();
    let joined = model.apply(join(&dir, "a", NOW));
    assert!(!model.commit(&rival.txn), "one token let in two");
    let dir = model.directory();
    let used = PlanError::TokenUsed { node: n(2) };
    assert_eq!(join(&dir, "b", NOW), Err(used));
    let used_by = TokenUse {
        node: joined.node.id,
        request: "a".to_owned(),
        certificate: "certificate".to_owned(),
    };
    assert_eq!(dir.tokens[&hash].record.used_by, Some(used_by));
    assert_eq!(t::forget_tokens(&dir, LATER).made, 0);
    let after = WallTime {
        secs: 2_001,
        nanos: 0,
    };
    assert_eq!(model.apply(Ok(t::forget_tokens(&dir, after))), 1);
    assert!(model.directory().tokens.is_empty());
}

#[test]
fn one_token_lets_a_node_in_again_that_shows_no_life() {
    let mut model = with_nodes(2);
    let again = |dir: &Directory, hash| t::create_readmission(dir, n(2), hash, LATER);
    model.apply(again(&model.directory(), [1; 32]));
    model.apply(again(&model.directory(), [2; 32]));
    let dir = model.directory();
    let readmit = |hash| t::readmit(&dir, hash, &certified("r"), &request("h1"), NOW);
    assert_eq!(readmit([1; 32]), Err(PlanError::UnknownToken), "replaced");
    assert_eq!(readmit([2; 32]).unwrap().made.id, n(2));
    let begun = again(&dir, [3; 32]).unwrap();
    let live = Live {
        node: n(2),
        free: 0,
        version: String::new(),
        ..Live::default()
    };
    let appears = Txn::default().put(key::live(n(2)), live.encode());
    assert!(model.commit(&appears));
    assert!(!model.commit(&begun.txn), "it has come back meanwhile");
    let lives = again(&model.directory(), [3; 32]).unwrap_err();
    assert_eq!(lives, PlanError::NodeLives { node: n(2) });
    let unknown = t::create_readmission(&model.directory(), n(9), [4; 32], LATER);
    assert_eq!(unknown.unwrap_err(), PlanError::UnknownNode { node: n(9) });
}

#[test]
fn names_and_addresses_are_checked() {
    let model = with_nodes(1);
    let dir = model.directory();
    let register = |r: JoinRequest| t::register_node(&dir, &r, vec![1], NOW).map(|p| p.made);
    for name in ["", "two words", "new\nline", &"x".repeat(254)] {
        let result = register(request(name));
        assert!(matches!(result, Err(PlanError::BadName { .. })), "{name:?}");
    }
    let taken = register(request("h0"));
    assert!(matches!(
        taken,
        Err(PlanError::NameTaken {
            node: NodeId(1),
            ..
        })
    ));
    for address in ["0.0.0.0:7000", "10.0.0.1:0", "224.0.0.1:7000"] {
        let bad = JoinRequest {
            address: address.parse().unwrap(),
            ..request("x")
        };
        let result = register(bad);
        assert!(
            matches!(result, Err(PlanError::BadAddress { .. })),
            "{address}"
        );
    }
}

#[test]
fn there_is_one_cluster() {
    let mut model = Model::default();
    let info = ClusterInfo {
        id: 7,
        created: NOW,
        format: 1,
    };
    model.apply(t::create_cluster(&model.directory(), info.clone()));
    let again = t::create_cluster(&model.directory(), info);
    assert_eq!(again, Err(PlanError::ClusterExists));
}

#[derive(Debug, Clone)]
enum Step {
    Join(u8, bool),
    Chain(u32, u64, Vec<u32>),
    Container(Vec<u32>, u32),
    Drain(u32),
    Undrain(u32),
    Leave(u32),
    Token(u8),
    /// Plans go by the current picture again; until then by one that grows old.
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 1..6_u32;
    let members = prop::collection::vec(1..6_u32, 0..4);
    prop_oneof![
        2 => (0..4_u8, any::<bool>()).prop_map(|(token, storage)| Step::Join(token, storage)),
        8 => (1..5_u32, 0..3_u64, members.clone()).prop_map(|(c, e, m)| Step::Chain(c, e, m)),
        2 => (members, node.clone()).prop_map(|(m, home)| Step::Container(m, home)),
        2 => node.clone().prop_map(Step::Drain),
        1 => node.clone().prop_map(Step::Undrain),
        2 => node.prop_map(Step::Leave),
        1 => (0..4_u8).prop_map(Step::Token),
        6 => Just(Step::Look),
    ]
}

fn plan(dir: &Directory, at: usize, step: &Step) -> Option<Txn> {
    let txn = match step {
        Step::Join(token, storage) => {
            let request = JoinRequest {
                storage: *storage,
                ..request(&format!("h{at}"))
            };
            t::join(
                dir,
                [*token; 32],
                &certified(&at.to_string()),
                &request,
                NOW,
            )
            .map(|p| p.txn)
        }
        Step::Chain(c, up, members) => {
            let old = dir.container(ContainerId(*c)).map_or(Epoch(1), |c| c.epoch);
            let new = Epoch(old.0 + up);
            t::change_chain(dir, ContainerId(*c), old, new, chain(members)).map(|p| p.txn)
        }
        Step::Container(members, home) => {
            t::create_container(dir, chain(members), 2, n(*home)).map(|p| p.txn)
        }
        Step::Drain(node) => t::drain(dir, n(*node)).map(|p| p.txn),
        Step::Undrain(node) => t::undrain(dir, n(*node)).map(|p| p.txn),
        Step::Leave(node) => t::leave(dir, n(*node)).map(|p| p.txn),
        Step::Token(token) => {
            t::create_token(dir, [*token; 32], LATER, Admits::Anybody).map(|p| p.txn)
        }
        Step::Look => return None,
    };
    txn.ok()
}

fn check(old: &Directory, new: &Directory, ever: &mut BTreeSet<(NodeId, String)>) {
    for known in new.containers.values() {
        let container: &Container = &known.record;
        assert!(container.is_sound(), "{container:?}");
        for member in &container.chain {
            assert_ne!(new.node(*member).unwrap().state, NodeState::Left);
        }
        if let Some(before) = old.container(container.id) {
            let same = before.chain == container.chain;
            let rise = container.epoch.0 - before.epoch.0;
            assert_eq!(
                rise,
                u64::from(!same || rise == 1),
                "{before:?} {container:?}"
            );
            assert!(before.chain.contains(&container.owner().unwrap()));
            assert_eq!(before.home, container.home);
        }
    }
    assert!(
        old.containers
            .keys()
            .all(|id| new.containers.contains_key(id))
    );
    let mut names = BTreeSet::new();
    for known in new.nodes.values() {
        let node: &Node = &known.record;
        ever.insert((node.id, node.name.clone()));
        if node.state != NodeState::Left {
            assert!(names.insert(&node.name), "two nodes are {}", node.name);
        }
        let before = old.node(node.id).map(|node| node.state);
        assert!(before != Some(NodeState::Left) || node.state == NodeState::Left);
    }
    let ids: BTreeSet<_> = ever.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), ever.len(), "a number was given twice");
    let used = new
        .tokens
        .values()
        .filter_map(|k| k.record.used_by.as_ref());
    let used: Vec<_> = used.map(|used| used.node).collect();
    assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), used.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn invariants_hold_under_plans_that_are_out_of_date(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = with_nodes(3);
        for token in 0..4 {
            let planned = t::create_token(&model.directory(), [token; 32], LATER, Admits::Anybody);
            model.apply(planned);
        }
        let mut ever = BTreeSet::new();
        let mut seen = model.directory();
        for (at, step) in steps.iter().enumerate() {
            let Some(txn) = plan(&seen, at, step) else {
                seen = model.directory();
                continue;
            };
            let before = model.directory();
            if model.commit(&txn) {
                check(&before, &model.directory(), &mut ever);
            }
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        _ = ClusterInfo::decode(&bytes);
        _ = perigee_cluster::Token::decode(&bytes);
        _ = perigee_cluster::Live::decode(&bytes);
        if let Ok(node) = Node::decode(&bytes) {
            prop_assert_eq!(Node::decode(&node.encode()), Ok(node));
        }
        if let Ok(container) = Container::decode(&bytes) {
            prop_assert!(container.is_sound());
        }
    }
}

#[test]
fn records_read_back_and_say_what_is_wrong_with_them() {
    let model = with_nodes(1);
    let dir = model.directory();
    let node = dir.node(n(1)).unwrap();
    let mut bytes = node.encode();
    assert_eq!(Node::decode(&bytes).as_ref(), Ok(node));
    bytes.push(0);
    assert!(Node::decode(&bytes).is_err(), "bytes after the record");
    bytes[0] = 2;
    let newer = Node::decode(&bytes).unwrap_err().to_string();
    assert_eq!(
        newer,
        "a node record has version 2, this program reads up to 1"
    );
    let twice = Container {
        chain: chain(&[1, 1]),
        ..dir.container(ContainerId(1)).unwrap().clone()
    };
    assert!(Container::decode(&twice.encode()).is_err());
    let misplaced = KeyValue {
        key: key::node(n(2)),
        value: node.encode(),
        revision: Revision(1),
    };
    assert!(Directory::from_list(&[misplaced], Revision(1)).is_err());
}
