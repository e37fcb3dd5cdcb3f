//! A join that is cut off after any of its steps is completed by the next one, as the same node.

use super::*;
use perigee_cluster::rebuild::{Copy, Inventories, Inventory};
use perigee_cluster::{ControlStore, Directory, Node, codec::Record, key};
use perigee_control::process::{Control, init_control};
use perigee_control::rebuild::rebuild_control;
use perigee_net::{Merging, PeerName};
use perigee_node::inventory::{give_away, is_given_away, rebuild};
use perigee_store::{Store, StoreIdentity};
use perigee_types::{NodeId, Span};
use std::collections::{BTreeMap, BTreeSet};
use tempfile::TempDir;

const TTL: Span = Span::from_millis(600_000);

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A control store that serves on threads of its own.
struct World {
    dir: TempDir,
    runtime: tokio::runtime::Runtime,
    control: Control,
}

impl World {
    fn new() -> Self {
        Self::made(async |dir| drop(init_control(dir, ANY).await.unwrap())).0
    }

    /// A control store that something made, and what that gave.
    fn made<T>(make: impl AsyncFnOnce(&Path) -> T) -> (Self, T) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (control, made) = runtime.block_on(async {
            let made = make(dir.path()).await;
            (Control::start(dir.path()).await.unwrap(), made)
        });
        let world = Self {
            dir,
            runtime,
            control,
        };
        (world, made)
    }

    /// One that is made anew from what the nodes know of this one, which goes on; and the token of each node.
    fn anew(&self) -> (Self, BTreeMap<NodeId, String>) {
        let store = self.control.store();
        let (rows, revision) = self.runtime.block_on(store.list(key::ROOT)).unwrap();
        let directory = Directory::from_list(&rows, revision).unwrap();
        let knows = |node: &NodeId| Inventory {
            node: *node,
            cluster: directory.cluster.as_ref().unwrap().record.id,
            taken: None,
            changed: None,
            copy: Copy::of(&directory),
            held: Vec::new(),
        };
        let inventories = Inventories::of(directory.nodes.keys().map(knows).collect());
        let rebuilt = rebuild(&inventories, &BTreeSet::new()).unwrap();
        let (world, made) = Self::made(async |dir| {
            let nobody = BTreeMap::new();
            let made = rebuild_control(dir, ANY, &rebuilt, &nobody);
            made.await.unwrap()
        });
        let tokens = made.tokens.into_iter();
        (
            world,
            tokens
                .map(|(node, token)| (node, token.to_string()))
                .collect(),
        )
    }

    fn token(&self) -> String {
        let keeper = self.control.gatekeeper();
        let made = keeper.create_token(TTL, perigee_cluster::Admits::Anybody);
        self.runtime.block_on(made).unwrap().text
    }

    fn token_again(&self, node: NodeId) -> String {
        let keeper = self.control.gatekeeper();
        let made = keeper.create_readmission(node, TTL);
        self.runtime.block_on(made).unwrap().text
    }

    /// Number and name of every node.
    fn nodes(&self) -> Vec<(NodeId, String)> {
        let store = self.control.store();
        let (rows, _) = self.runtime.block_on(store.list(key::NODES)).unwrap();
        let nodes = rows.iter().map(|row| Node::decode(&row.value).unwrap());
        nodes.map(|node| (node.id, node.name)).collect()
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self, name: &str, token: &str) -> NodeConfig {
        NodeConfig {
            name: name.to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7001)),
            control: control_address(token).unwrap(),
            site: None,
            storage: true,
            log: "info".to_owned(),
            merging: Merging::default(),
        }
    }
}

/// How far a join comes before its process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    ConfigKept,
    Begun,
    Asked,
    /// The identity has its key and not its certificate.
    HalfKept,
    Kept,
    Configured,
}

const STEPS: [Step; 6] = [
    Step::ConfigKept,
    Step::Begun,
    Step::Asked,
    Step::HalfKept,
    Step::Kept,
    Step::Configured,
];

/// Joins up to and with `last`, and leaves the disk as it is then.
fn join_until(last: Step, dir: &Path, config: &NodeConfig, token: &str) {
    if last == Step::ConfigKept {
        make_private_dir(&identity_dir(dir)).unwrap();
        return config.save(&dir.join(JOINING_FILE)).unwrap();
    }
    let joining = Joining::begin(dir, config).unwrap();
    if last == Step::Begun {
        return;
    }
    let Ok(admission) = joining.ask(&parse(token).unwrap()) else {
        panic!("refused")
    };
    if last == Step::Asked {
        return;
    }
    joining.keep(&admission).unwrap();
    if last == Step::HalfKept {
        return std::fs::remove_file(identity_dir(dir).join("node.pem")).unwrap();
    }
    if last == Step::Configured {
        joining.config.save(&dir.join(NODE_FILE)).unwrap();
    }
}

/// The node in `dir` is whole, is the only one of its name, and has nothing left over.
fn is_whole(world: &World, dir: &Path, config: &NodeConfig) {
    assert_eq!(&NodeConfig::load(&dir.join(NODE_FILE)).unwrap(), config);
    let identity = Identity::load(&identity_dir(dir)).unwrap();
    let nodes = world.nodes();
    let named: Vec<_> = nodes
        .iter()
        .filter(|(_, name)| *name == config.name)
        .collect();
    let [(id, _)] = named[..] else {
        panic!("{nodes:?}")
    };
    assert_eq!(identity.name(), PeerName::Node(*id));
    assert!(!dir.join(JOINING_FILE).exists());
    assert_eq!(cut_off(dir).unwrap(), None);
}

#[test]
fn a_join_that_was_cut_off_is_completed_by_the_same_command() {
    let world = World::new();
    for (number, step) in STEPS.into_iter().enumerate() {
        let (name, token) = (format!("same-{number}"), world.token());
        let (dir, config) = (world.place(&name), world.config(&name, &token));
        join_until(step, &dir, &config, &token);
        join(&dir, &config, &token).unwrap();
        is_whole(&world, &dir, &config);
        assert_eq!(world.nodes().len(), number + 1, "{step:?}");
    }
}

#[test]
fn a_join_that_was_cut_off_is_completed_with_another_token_and_address() {
    let world = World::new();
    for (number, step) in STEPS.into_iter().enumerate() {
        let (name, token) = (format!("other-{number}"), world.token());
        let (dir, config) = (world.place(&name), world.config(&name, &token));
        join_until(step, &dir, &config, &token);
        let moved = NodeConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 7002)),
            ..config
        };
        let another = world.token();
        join(&dir, &moved, &another).unwrap();
        is_whole(&world, &dir, &moved);
        assert_eq!(world.nodes().len(), number + 1, "{step:?}");
    }
}

#[test]
fn another_name_does_not_take_over_a_join_that_was_cut_off() {
    let world = World::new();
    let token = world.token();
    let (dir, config) = (world.place("node"), world.config("first", &token));
    join_until(Step::Asked, &dir, &config, &token);
    let refused = join(&dir, &world.config("second", &token), &token).unwrap_err();
    assert!(refused.why.contains("`first`"), "{refused:?}");
    assert!(refused.hint.is_some());
    join(&dir, &config, &token).unwrap();
    is_whole(&world, &dir, &config);
}

#[test]
fn a_refusal_leaves_nothing_and_a_lost_answer_leaves_what_is_needed() {
    let world = World::new();
    let token = world.token();
    let dir = world.place("node");
    join(
        &world.place("taken"),
        &world.config("taken", &token),
        &token,
    )
    .unwrap();
    let token = world.token();
    let refused = join(&dir, &world.config("taken", &token), &token).unwrap_err();
    assert!(refused.why.contains("taken"), "{refused:?}");
    assert!(!dir.exists());

    let config = world.config("late", &token);
    let joining = Joining::begin(&dir, &config).unwrap();
    let lost = Asked::Answered(EnterError::Net(JoinError::Lost));
    joining.refused(&lost);
    assert_eq!(cut_off(&dir).unwrap(), Some(config.clone()));
    join(&dir, &config, &token).unwrap();
    is_whole(&world, &dir, &config);
}

/// How far a node that comes back gets before its process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Back {
    WishKept,
    Begun,
    Asked,
    /// The new key, and the old certificates.
    KeyKept,
    /// The new key and authority, and the old certificate.
    AuthorityKept,
    Kept,
    Configured,
    /// It may start.
    LetStart,
    Forgotten,
}

const BACK: [Back; 9] = [
    Back::WishKept,
    Back::Begun,
    Back::Asked,
    Back::KeyKept,
    Back::AuthorityKept,
    Back::Kept,
    Back::Configured,
    Back::LetStart,
    Back::Forgotten,
];

/// A node of a cluster, with its data, whose inventory was given away.
fn given_away(world: &World, name: &str) -> (PathBuf, NodeId) {
    let (dir, token) = (world.place(name), world.token());
    join(&dir, &world.config(name, &token), &token).unwrap();
    let identity = Identity::load(&identity_dir(&dir)).unwrap();
    let PeerName::Node(node) = identity.name() else {
        panic!("{:?}", identity.name())
    };
    let cluster = identity.cluster().0;
    Store::create(&dir.join("store"), StoreIdentity { cluster, node }).unwrap();
    assert_eq!(give_away(&dir).unwrap().node, node);
    assert!(is_given_away(&dir));
    (dir, node)
}

/// Comes back up to and with `last`, and leaves the disk as it is then.
fn come_back_until(last: Back, dir: &Path, token: &str) {
    let control = control_address(token).unwrap();
    if last == Back::WishKept {
        let known = NodeConfig::load(&dir.join(NODE_FILE)).unwrap();
        let wish = NodeConfig { control, ..known };
        return wish.save(&dir.join(JOINING_FILE)).unwrap();
    }
    let joining = Joining::come_back(dir, control).unwrap();
    if last == Back::Begun {
        return;
    }
    let Ok(admission) = joining.ask(&parse(token).unwrap()) else {
        panic!("refused")
    };
    if last == Back::Asked {
        return;
    }
    let old = |file: &str| {
        let path = identity_dir(dir).join(file);
        (path.clone(), std::fs::read(path).unwrap())
    };
    let (authority, certificate) = (old("ca.pem"), old("node.pem"));
    joining.keep(&admission).unwrap();
    let stays: &[(PathBuf, Vec<u8>)] = match last {
        Back::KeyKept => &[authority, certificate],
        Back::AuthorityKept => &[certificate],
        _ => &[],
    };
    for (path, bytes) in stays {
        std::fs::write(path, bytes).unwrap();
    }
    if last >= Back::Configured {
        joining.config.save(&dir.join(NODE_FILE)).unwrap();
    }
    if last >= Back::LetStart {
        let_start(dir).unwrap();
    }
    if last == Back::Forgotten {
        joining.pending.forget().unwrap();
    }
}

/// The node is in the new cluster as what it was, may start, and has nothing left over.
fn is_back(world: &World, dir: &Path, node: NodeId, token: &str, step: Back) {
    let identity = Identity::load(&identity_dir(dir)).unwrap();
    assert_eq!(identity.name(), PeerName::Node(node), "{step:?}");
    assert_eq!(
        identity.fingerprint(),
        parse(token).unwrap().fingerprint,
        "{step:?}"
    );
    let config = NodeConfig::load(&dir.join(NODE_FILE)).unwrap();
    let new = world.config(&config.name, token);
    assert_eq!(config, new, "{step:?}");
    assert!(!is_given_away(dir), "{step:?}");
    assert!(!dir.join(JOINING_FILE).exists(), "{step:?}");
    assert_eq!(cut_off(dir).unwrap(), None, "{step:?}");
    // What it shows is what the cluster has on record.
    let store = world.control.store();
    let record = world.runtime.block_on(store.get(&key::node(node))).unwrap();
    let record = Node::decode(&record.unwrap().value).unwrap();
    assert_eq!(record.cert_serial, identity.serial().as_bytes(), "{step:?}");
}

fn stopped() -> Result<(), Failure> {
    Ok(())
}

#[test]
fn a_node_that_comes_back_and_was_cut_off_goes_on_also_after_a_start_in_vain() {
    let old = World::new();
    let nodes = BACK.map(|step| (step, given_away(&old, &format!("n{}", step as u8))));
    let (new, tokens) = old.anew();
    for (step, (dir, node)) in nodes {
        let token = &tokens[&node];
        come_back_until(step, &dir, token);
        // As `perigee up` does before it starts the node.
        let left = settle(&dir).unwrap();
        let has_certificate = step >= Back::Kept;
        let open = (Back::Begun..Back::Kept).contains(&step);
        assert_eq!(left == Left::Open, open, "{step:?}");
        assert_eq!(is_given_away(&dir), !has_certificate, "{step:?}");
        if has_certificate {
            is_back(&new, &dir, node, token, step);
        }
        join_again(&dir, token, stopped).unwrap();
        is_back(&new, &dir, node, token, step);
    }
    assert_eq!(new.nodes().len(), BACK.len());
}

#[test]
fn a_node_that_comes_back_and_was_cut_off_goes_on_with_the_same_token_and_with_another() {
    let old = World::new();
    let nodes = BACK.map(|step| {
        let name = |way| format!("{way}{}", step as u8);
        let (same, other) = (
            given_away(&old, &name("same-")),
            given_away(&old, &name("other-")),
        );
        (step, same, other)
    });
    let (new, tokens) = old.anew();
    for (step, same, other) in nodes {
        let (dir, node) = same;
        come_back_until(step, &dir, &tokens[&node]);
        join_again(&dir, &tokens[&node], stopped).unwrap();
        is_back(&new, &dir, node, &tokens[&node], step);
        let (dir, node) = other;
        come_back_until(step, &dir, &tokens[&node]);
        let another = new.token_again(node);
        join_again(&dir, &another, stopped).unwrap();
        is_back(&new, &dir, node, &another, step);
    }
    assert_eq!(new.nodes().len(), 2 * BACK.len());
}

#[test]
fn a_token_that_does_not_let_a_node_back_in_leaves_it_as_it_was() {
    let old = World::new();
    let (dir, node) = given_away(&old, "first");
    let (_, second) = given_away(&old, "second");
    let (new, tokens) = old.anew();
    let before = NodeConfig::load(&dir.join(NODE_FILE)).unwrap();
    let never = || panic!("the node was stopped");
    let of_another = World::new().token();
    for token in [&tokens[&second], &new.token(), &of_another] {
        join_again(&dir, token, never).unwrap_err();
        assert!(is_given_away(&dir));
        assert_eq!(NodeConfig::load(&dir.join(NODE_FILE)).unwrap(), before);
        assert_eq!(settle(&dir).unwrap(), Left::Nothing);
        assert!(!dir.join(JOINING_FILE).exists());
    }
    // One that cannot be stopped is not changed either, and comes back later.
    let token = &tokens[&node];
    let busy = || Err(Failure::new("cannot stop it", "it hangs"));
    join_again(&dir, token, busy).unwrap_err();
    assert_eq!(NodeConfig::load(&dir.join(NODE_FILE)).unwrap(), before);
    join_again(&dir, token, stopped).unwrap();
    is_back(&new, &dir, node, token, Back::Begun);
}
