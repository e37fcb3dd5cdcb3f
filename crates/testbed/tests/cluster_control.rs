//! A control store whose directory was put back to an older state: nodes that know better do not listen to it.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::process::Identity;
use perigee_testbed::{Cluster, program, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn stop_control(cluster: &Cluster) {
    let pid = fs::read_to_string(cluster.dir().join("control/pid")).unwrap();
    let pid = pid.split_whitespace().next().unwrap().parse().unwrap();
    let process = Identity::of(pid).unwrap();
    process.signal(Signal::KILL).unwrap();
    wait::until("the control store is dead", LIMIT, || {
        Ok((!process.lives()).then_some(()))
    })
    .unwrap();
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

fn until_control_is(cluster: &mut Cluster, state: &str) {
    wait::until(&format!("the control store is {state}"), LIMIT, || {
        let asked = cluster.on_this(&["status", "--json", "--node", "1"])?;
        let status: Value = serde_json::from_str(&asked.stdout).unwrap();
        Ok((status["control"]["state"] == state).then_some(()))
    })
    .unwrap();
}

#[test]
fn a_control_store_that_was_put_back_is_not_listened_to() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let mount = cluster.mount(1).unwrap();
    let (place, old) = (cluster.dir().join("control"), cluster.path().join("old"));
    let newest = cluster.path().join("newest");
    stop_control(&cluster);
    copy(&place, &old);
    cluster.up().unwrap();
    // What nodes keep of the record is newer from then on.
    let kept = cluster.dir().join("node-2/cluster.copy");
    let before = fs::read(&kept).unwrap();
    fs::create_dir(mount.join("once")).unwrap();
    let set = [
        "policy",
        "set",
        mount.join("once").to_str().unwrap(),
        "copies=1",
    ]
    .map(str::to_owned);
    let ended = cluster.command(&set).unwrap();
    assert!(ended.status.success(), "{}", ended.stderr);
    wait::until("the nodes have written it down", LIMIT, || {
        Ok((fs::read(&kept).unwrap() != before).then_some(()))
    })
    .unwrap();
    stop_control(&cluster);
    fs::rename(&place, &newest).unwrap();
    copy(&old, &place);
    // Nodes that run go on without it.
    cluster.perigee(&["up"]).unwrap();
    until_control_is(&mut cluster, "went_back");
    fs::write(mount.join("file"), "content").unwrap();
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
    // One that starts does not start.
    cluster.kill(2, Signal::KILL).unwrap();
    let refused = cluster.on_this(&["up"]).unwrap();
    assert!(!refused.status.success());
    assert!(
        refused.stderr.contains("older than what it told"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("newest state"),
        "{}",
        refused.stderr
    );
    stop_control(&cluster);
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&newest, &place).unwrap();
    cluster.up().unwrap();
    until_control_is(&mut cluster, "up");
    cluster.settle().unwrap();
}
