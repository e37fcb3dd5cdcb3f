//! What `perigee status` and `perigee where` say is so, and what they cannot know they do not say.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::lock::{self, Mode, Patience};
use perigee_testbed::{Cluster, program, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn json(cluster: &mut Cluster, arguments: &[&str]) -> Value {
    serde_json::from_str(&cluster.perigee(arguments).unwrap()).unwrap()
}

fn status(cluster: &mut Cluster) -> Value {
    json(cluster, &["status", "--json", "--node", "1"])
}

fn of_node(status: &Value, id: u32) -> &Value {
    let nodes = status["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["id"] == id).unwrap()
}

/// What the members of all containers have yet to fetch, as far as it is known.
fn behind(status: &Value) -> Vec<Option<u64>> {
    let containers = status["containers"].as_array().unwrap().iter();
    let members = containers.flat_map(|container| container["members"].as_array().unwrap());
    members.map(|member| member["bytes"].as_u64()).collect()
}

/// Every node says how much space it takes and how much it has yet to fetch.
fn space_and_lag_are_known(cluster: &mut Cluster, mount: &Path) {
    let content: Vec<u8> = (0..8 * MIB).map(|n| (n % 251) as u8).collect();
    let path = mount.join("big");
    let used = |status: &Value| -> Vec<u64> {
        let used = (1..=3).map(|id| of_node(status, id)["used_bytes"].as_u64());
        used.map(Option::unwrap_or_default).collect()
    };
    let before = used(&status(cluster));
    assert!(before.iter().all(|used| *used > 0), "{before:?}");
    fs::write(&path, &content).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    wait::until("each node counts the bytes that it holds", LIMIT, || {
        let now = used(&status(cluster));
        let mut pairs = before.iter().zip(&now);
        Ok(pairs
            .all(|(before, now)| *now >= before + 8 * MIB)
            .then_some(()))
    })
    .unwrap();
    let now = status(cluster);
    assert!((1..=3).all(|id| of_node(&now, id)["free_bytes"].as_u64() > Some(0)));
    wait::until("nothing is left to fetch", LIMIT, || {
        let lag = behind(&status(cluster));
        let whole = lag.len() >= 2 && lag.iter().all(|bytes| *bytes == Some(0));
        Ok(whole.then_some(()))
    })
    .unwrap();

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::write(&path, &content).unwrap();
            }
        });
        let seen = wait::until("a member is seen to be behind a writer", LIMIT, || {
            let lag = behind(&status(cluster));
            Ok(lag.iter().flatten().any(|bytes| *bytes > 0).then_some(()))
        });
        stop.store(true, Ordering::Relaxed);
        seen.unwrap();
    });
}

/// Hosts that may cache a file, and those that have locked it, are named.
fn holders_are_named(cluster: &mut Cluster, here: &Path, there: &Path) {
    fs::write(here.join("held"), "content").unwrap();
    let file = File::open(there.join("held")).unwrap();
    lock::flock(&file, Mode::Shared, Patience::Wait).unwrap();
    fs::read(there.join("held")).unwrap();
    let path = here.join("held").to_string_lossy().into_owned();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    let placement: Value = serde_json::from_str(&ended.stdout).unwrap();
    let held = placement["held_by"].as_array().unwrap();
    let has = |what: &str| {
        let holder = |holder: &&Value| holder["node"] == 2 && holder["what"] == what;
        held.iter().any(|each| holder(&each))
    };
    assert!(has("read") && has("flock"), "{held:?}");
    assert!(!has("fcntl"), "{held:?}");
    drop(file);
}

/// A node that shows a sign of life and does not answer is late; then it is down; then up again.
fn a_node_that_does_not_answer_is_late(cluster: &mut Cluster) {
    let state = |cluster: &mut Cluster| of_node(&status(cluster), 3)["state"].clone();
    assert_eq!(state(cluster), "up");
    cluster.kill(3, Signal::STOP).unwrap();
    let late = status(cluster);
    let node = of_node(&late, 3);
    assert_eq!(node["state"], "suspect");
    assert!(node["used_bytes"].is_null() && node["free_bytes"].is_null());
    wait::until("its sign of life expires", LIMIT, || {
        Ok((state(cluster) == "down").then_some(()))
    })
    .unwrap();
    cluster.kill(3, Signal::CONT).unwrap();
    wait::until("it is back", LIMIT, || {
        Ok((state(cluster) == "up").then_some(()))
    })
    .unwrap();
}

/// A node that has lost its disk is in the chains still when it starts, and its place is as good as empty.
fn a_wiped_node_is_no_copy(cluster: &mut Cluster) {
    cluster.settle().unwrap();
    let epochs = |status: &Value| -> Vec<u64> {
        let containers = status["containers"].as_array().unwrap().iter();
        let with_it = containers.filter(|one| one["chain"].as_array().unwrap().contains(&3.into()));
        with_it.map(|one| one["epoch"].as_u64().unwrap()).collect()
    };
    let before = epochs(&status(cluster));
    assert_eq!(before.len(), 3);
    cluster.kill(3, Signal::KILL).unwrap();
    fs::remove_dir_all(cluster.dir().join("node-3/store")).unwrap();
    let (perigee, dir) = (program::perigee().unwrap(), cluster.dir());
    let stop = AtomicBool::new(false);
    // What it says from its start on, not only once it has been found to be empty.
    let look = || {
        let mut said = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let mut ask = Command::new(&perigee);
            ask.args(["status", "--json", "--node", "1", "--dir"])
                .arg(&dir);
            let ended = ask.output().unwrap();
            if ended.status.success() {
                said.push(epochs(&serde_json::from_slice(&ended.stdout).unwrap()));
            }
        }
        said
    };
    std::thread::scope(|scope| {
        let looks = scope.spawn(look);
        let well = cluster.up().and_then(|()| cluster.settle());
        stop.store(true, Ordering::Relaxed);
        well.unwrap();
        // Whoever was given a place anew is in a later chain.
        for after in looks.join().unwrap() {
            let anew = before
                .iter()
                .zip(&after)
                .all(|(before, after)| before < after);
            assert!(after.len() == 3 && anew, "{before:?} {after:?}");
        }
    });
}

#[test]
fn what_status_says_is_so() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    space_and_lag_are_known(&mut cluster, &here);
    holders_are_named(&mut cluster, &here, &there);
    a_node_that_does_not_answer_is_late(&mut cluster);
    a_wiped_node_is_no_copy(&mut cluster);
}
