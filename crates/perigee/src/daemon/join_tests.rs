//! A join that is cut off after any of its steps is completed by the next one, as the same node.

use super::*;
use perigee_cluster::{ControlStore, Node, codec::Record, key};
use perigee_control::process::{Control, init_control};
use perigee_net::PeerName;
use perigee_types::{NodeId, Span};
use tempfile::TempDir;

/// A control store that serves on threads of its own.
struct World {
    dir: TempDir,
    runtime: tokio::runtime::Runtime,
    control: Control,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let control = runtime.block_on(async {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            init_control(dir.path(), listen).await.unwrap();
            Control::start(dir.path()).await.unwrap()
        });
        Self {
            dir,
            runtime,
            control,
        }
    }

    fn token(&self) -> String {
        let keeper = self.control.gatekeeper();
        let made =
            keeper.create_token(Span::from_millis(600_000), perigee_cluster::Admits::Anybody);
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
            site: "default".to_owned(),
            storage: true,
            log: "info".to_owned(),
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
