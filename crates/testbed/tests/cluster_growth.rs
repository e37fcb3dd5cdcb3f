//! Containers of bounded size: new directories start in another one, and everything stays as it is promised.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program, wait};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn placement(cluster: &mut Cluster, path: &Path) -> Value {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    serde_json::from_str(&ended.stdout).unwrap()
}

fn container(cluster: &mut Cluster, path: &Path) -> u64 {
    placement(cluster, path)["container"].as_u64().unwrap()
}

fn set(cluster: &mut Cluster, path: &Path, pair: &str) -> (bool, String) {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["policy", "set", &path, pair]).unwrap();
    (ended.status.success(), ended.stderr)
}

fn must_set(cluster: &mut Cluster, path: &Path, pair: &str) {
    let (done, why) = set(cluster, path, pair);
    assert!(done, "{pair} of {}: {why}", path.display());
}

fn write(path: &Path, byte: u8) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&vec![byte; 3 << 20]).unwrap();
    file.sync_all().unwrap();
}

/// Waits until the container of a directory is known to be full, and says which one goes on for it.
fn goes_on(cluster: &mut Cluster, path: &Path) -> u64 {
    wait::until("a full container goes on in another one", LIMIT, || {
        Ok(placement(cluster, path)["goes_on_in"].as_u64())
    })
    .unwrap()
}

/// At a node that keeps the root's container: directories start in its next one; files stay with their directories.
fn homes_go_on(cluster: &mut Cluster, here: &Path, there: &Path) {
    fs::create_dir(here.join("early")).unwrap();
    write(&here.join("early/large"), 1);
    let first = container(cluster, &here.join("early"));
    let next = goes_on(cluster, &here.join("early"));
    assert_ne!(first, next);
    fs::create_dir(here.join("early/late")).unwrap();
    fs::write(here.join("early/file"), "stays").unwrap();
    fs::create_dir_all(here.join("early/late/below")).unwrap();
    let late = placement(cluster, &there.join("early/late/below"));
    assert_eq!(
        (&late["container"], &late["owner"]),
        (&Value::from(next), &Value::from(1))
    );
    assert_eq!(late["copies"].as_array().unwrap().len(), 2, "{late:#}");
    assert_eq!(container(cluster, &here.join("early/file")), first);
    // Another node's directories start at that node, as ever.
    fs::create_dir(there.join("early/far")).unwrap();
    assert_eq!(placement(cluster, &here.join("early/far"))["owner"], 2);
    write(&here.join("early/late/large"), 2);
    let third = goes_on(cluster, &here.join("early/late"));
    fs::create_dir(here.join("early/late/later")).unwrap();
    assert_eq!(container(cluster, &here.join("early/late/later")), third);
    fs::rename(here.join("early/late/later"), here.join("early/moved")).unwrap();
    assert!(fs::read(there.join("early/late/large")).unwrap() == vec![2; 3 << 20]);
}

/// A directory with copies of its own keeps them, in all the containers that go on for it.
fn directories_go_on(cluster: &mut Cluster, here: &Path, there: &Path) {
    let own = here.join("own");
    fs::create_dir(&own).unwrap();
    must_set(cluster, &own, "copies=1");
    must_set(cluster, &own, "container-size=1MiB");
    write(&own.join("large"), 3);
    let next = goes_on(cluster, &own);
    fs::create_dir(there.join("own/far")).unwrap();
    fs::create_dir(own.join("near")).unwrap();
    fs::write(there.join("own/far/file"), "far").unwrap();
    for path in ["far", "far/file", "near"] {
        let found = placement(cluster, &own.join(path));
        assert_eq!(found["container"], next, "{path}");
        assert_eq!(found["copies"].as_array().unwrap().len(), 1, "{path}");
    }
    must_set(cluster, &own, "copies=2");
    wait::until("its content follows", LIMIT, || {
        let found = placement(cluster, &own.join("far/file"));
        Ok((found["copies"].as_array().unwrap().len() == 2).then_some(()))
    })
    .unwrap();
    // The first directory of a further container is none with a policy.
    let (done, why) = set(cluster, &own.join("far"), "copies=1");
    assert!(!done && why.contains("not empty"), "{why}");
    let (done, why) = set(cluster, &own.join("near"), "container-size=1MiB");
    assert!(!done && why.contains("no container of its own"), "{why}");
}

#[test]
fn what_is_large_enough_goes_on_in_another_container() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    must_set(&mut cluster, &here, "migration=off");
    let (done, why) = set(&mut cluster, &here, "container-size=5");
    assert!(!done && why.contains("64GiB"), "{why}");
    must_set(&mut cluster, &here, "container-size=2MiB");
    homes_go_on(&mut cluster, &here, &there);
    directories_go_on(&mut cluster, &here, &there);
    // It is so after a restart of everything, too.
    cluster.down().unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    let here = cluster.mount(1).unwrap();
    let before = container(&mut cluster, &here.join("own/far"));
    fs::create_dir(here.join("own/again")).unwrap();
    assert_eq!(container(&mut cluster, &here.join("own/again")), before);
    assert_eq!(fs::read(here.join("own/far/file")).unwrap(), b"far");
    assert!(fs::read(here.join("early/large")).unwrap() == vec![1; 3 << 20]);
}
