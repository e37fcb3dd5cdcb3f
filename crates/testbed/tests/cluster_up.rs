//! `perigee up` that dies at any moment is completed by the next one, and starts what it has made whatever was done to
//! the machine meanwhile.

use perigee_testbed::cluster::{Cluster, run};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{program, wait};
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Moments at which it is killed: from its first file to about when it is ready, and later ones in
/// case the machine is slow.
const MOMENTS_MS: [u64; 14] = [4, 10, 20, 30, 45, 60, 80, 100, 120, 140, 165, 190, 230, 300];

#[test]
fn an_up_that_is_killed_is_completed_by_the_next() {
    let perigee = program::perigee().unwrap();
    let workspace = Workspace::new().unwrap();
    let mut cut_off = 0;
    for moment in MOMENTS_MS {
        let dir = workspace.path().join(format!("c{moment}"));
        let path = dir.to_string_lossy();
        let mut first = Command::new(&perigee)
            .args(["up", "--nodes", "3", "--dir", &path])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A moment, not a wait for something: whatever it is in the middle of is a case.
        std::thread::sleep(Duration::from_millis(moment));
        first.kill().unwrap();
        first.wait().unwrap();
        workspace.record().unwrap();
        let half = |number: u32| dir.join(format!("node-{number}/joining.toml")).exists();
        cut_off += u32::from((1..=3).any(half));

        let say = |name: &str, arguments: &[&str]| {
            let base = workspace.path().join(format!("{name}-{moment}"));
            let ended = run(&perigee, arguments, &base, LIMIT).unwrap();
            assert!(
                ended
                    .status
                    .code()
                    .is_some_and(|code| code == 0 || code == 3),
                "{ended:?}"
            );
            ended.stdout
        };
        say("up", &["up", "--nodes", "3", "--dir", &path]);
        workspace.record().unwrap();
        let status = say("status", &["status", "--json", "--dir", &path]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["nodes"].as_array().unwrap().len(), 3, "{status}");
        let left = (1..=3).filter(|number| half(*number)).count();
        assert_eq!(left, 0, "{left} joins are left over");
        say("down", &["down", "--dir", &path]);
    }
    eprintln!("{cut_off} of {} joins were cut off", MOMENTS_MS.len());
}

/// Another program may take the port of a node that is down.
#[test]
fn a_node_whose_port_was_taken_gets_another_one() {
    let mut cluster = Cluster::start(3).unwrap();
    let mount = cluster.mount(1).unwrap();
    fs::write(mount.join("file"), "before").unwrap();
    cluster.settle().unwrap();
    let config = cluster.dir().join("node-2/node.toml");
    let listen = || -> SocketAddr {
        let text = fs::read_to_string(&config).unwrap();
        let mut told = text
            .lines()
            .filter_map(|line| line.strip_prefix("listen = "));
        told.next().unwrap().trim_matches('"').parse().unwrap()
    };
    let before = listen();
    cluster.down().unwrap();
    let _taken = TcpListener::bind(before).unwrap();
    cluster.up().unwrap();
    assert_ne!(listen(), before);
    // its peers find it: it sees what another host does, and has a copy again
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::write(here.join("file"), "after").unwrap();
    assert_eq!(fs::read_to_string(there.join("file")).unwrap(), "after");
    cluster.settle().unwrap();
}

/// The threads of a process that has ended may be in the kernel for a while yet, with the store's lock.
#[test]
fn a_node_waits_for_a_store_that_its_last_process_has_not_let_go() {
    let mut cluster = Cluster::start(1).unwrap();
    let node = cluster.dir().join("node-1");
    cluster.down().unwrap();
    let store = File::open(node.join("store")).unwrap();
    store.lock().unwrap();
    let pid = node.join("pid");
    let letting_go = std::thread::spawn(move || {
        wait::until("a process has begun to serve", LIMIT, || {
            let named = fs::metadata(&pid).is_ok_and(|file| file.len() > 0);
            Ok(named.then_some(()))
        })
        .unwrap();
        // A moment, in which it looks for its store.
        std::thread::sleep(Duration::from_millis(200));
        drop(store);
    });
    let up = cluster.up();
    letting_go.join().unwrap();
    up.unwrap();
}
