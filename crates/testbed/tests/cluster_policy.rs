//! Directories with a number of copies of their own.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::map::{Access, Shared};
use perigee_testbed::{Cluster, program, wait};
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// On how many nodes a path is.
fn copies(cluster: &mut Cluster, path: &Path) -> usize {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    let placement: Value = serde_json::from_str(&ended.stdout).unwrap();
    placement["copies"].as_array().unwrap().len()
}

fn becomes(cluster: &mut Cluster, path: &Path, wanted: usize) {
    let what = format!("{} has {wanted} copies", path.display());
    wait::until(&what, LIMIT, || {
        Ok((copies(cluster, path) == wanted).then_some(()))
    })
    .unwrap();
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

/// Value and origin of a policy at a path.
fn policy(cluster: &mut Cluster, path: &Path, key: &str) -> (String, Value) {
    let path = path.to_string_lossy();
    let ended = cluster
        .command(&["policy", "get", "--json", &path])
        .unwrap();
    let values: Value = serde_json::from_str(&ended.stdout).unwrap();
    let mut values = values.as_array().unwrap().iter();
    let found = values.find(|value| value["key"] == key).unwrap();
    let value = found["value"].as_str().unwrap().to_owned();
    (value, found["from"].clone())
}

/// What is made below a directory with a policy follows it, on whichever host it is made.
fn a_tree_follows_its_directory(cluster: &mut Cluster, here: &Path, there: &Path) {
    fs::create_dir(here.join("once")).unwrap();
    fs::create_dir(here.join("often")).unwrap();
    must_set(cluster, &here.join("once"), "copies=1");
    fs::create_dir(there.join("once/sub")).unwrap();
    fs::write(there.join("once/sub/far"), "made on another host").unwrap();
    fs::write(here.join("once/near"), "made here").unwrap();
    fs::write(here.join("often/file"), "as everywhere").unwrap();
    for path in ["once", "once/near", "once/sub", "once/sub/far"] {
        assert_eq!(copies(cluster, &here.join(path)), 1, "{path}");
    }
    assert_eq!(copies(cluster, &here.join("often/file")), 3);
    assert_eq!(fs::read(there.join("once/near")).unwrap(), b"made here");
    let sub = policy(cluster, &there.join("once/sub"), "copies");
    assert_eq!(sub, ("1".to_owned(), Value::from("/once")));
}

/// Through a node that does not own the directory: what is made there lies with that node.
fn another_node_can_begin_one(cluster: &mut Cluster, here: &Path, there: &Path) {
    fs::create_dir(here.join("away")).unwrap();
    must_set(cluster, &there.join("away"), "copies=2");
    fs::write(here.join("away/file"), "from here").unwrap();
    assert_eq!(copies(cluster, &here.join("away/file")), 2);
    let path = here.join("away/file").to_string_lossy().into_owned();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    let placement: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(placement["owner"], 2);
    assert_eq!(fs::read(there.join("away/file")).unwrap(), b"from here");
}

/// The root's policy and that of a directory are changed apart; what is taken back follows the root.
fn policies_are_changed_apart(cluster: &mut Cluster, here: &Path) {
    must_set(cluster, here, "copies=2");
    becomes(cluster, &here.join("often/file"), 2);
    assert_eq!(copies(cluster, &here.join("once/near")), 1);
    must_set(cluster, &here.join("once"), "copies=3");
    becomes(cluster, &here.join("once/near"), 3);
    assert_eq!(copies(cluster, &here.join("often/file")), 2);
    must_set(cluster, &here.join("once"), "copies=");
    becomes(cluster, &here.join("once/near"), 2);
    must_set(cluster, here, "copies=3");
    becomes(cluster, &here.join("once/near"), 3);
    becomes(cluster, &here.join("often/file"), 3);
    must_set(cluster, &here.join("once"), "copies=1");
    becomes(cluster, &here.join("once/near"), 1);
    assert_eq!(fs::read(here.join("once/near")).unwrap(), b"made here");
}

/// A directory that has content cannot have copies of its own, and stays as it is.
fn what_has_content_is_refused(cluster: &mut Cluster, here: &Path) {
    let (done, why) = set(cluster, &here.join("often"), "copies=1");
    assert!(
        !done && why.contains("not empty") && why.contains("hint:"),
        "{why}"
    );
    assert_eq!(copies(cluster, &here.join("often/file")), 3);
    let (done, why) = set(cluster, &here.join("often/file"), "copies=1");
    assert!(!done && why.contains("only directories"), "{why}");
}

/// `migration` as `where` tells it at a path.
fn migration(cluster: &mut Cluster, path: &Path) -> String {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    let placement: Value = serde_json::from_str(&ended.stdout).unwrap();
    placement["migration"].as_str().unwrap().to_owned()
}

#[test]
fn whether_ownership_moves_is_inherited_by_directory() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::create_dir_all(here.join("a/b")).unwrap();
    fs::create_dir(there.join("a/b/far")).unwrap();
    fs::write(there.join("a/b/far/file"), "made on another host").unwrap();
    fs::write(here.join("other"), "").unwrap();
    let far = here.join("a/b/far/file");
    assert_eq!(migration(&mut cluster, &far), "adaptive");
    // Nothing has to be empty, and other policies stay as they are.
    must_set(&mut cluster, &here.join("a"), "migration=off");
    must_set(&mut cluster, &here, "copies=2");
    let cluster = &mut cluster;
    assert_eq!(migration(cluster, &far), "off");
    assert_eq!(migration(cluster, &here.join("other")), "adaptive");
    let inherited = policy(cluster, &here.join("a/b"), "migration");
    assert_eq!(inherited, ("off".to_owned(), Value::from("/a")));
    let copies = policy(cluster, &here.join("a/b"), "copies");
    assert_eq!(copies, ("2".to_owned(), Value::from("/")));
    must_set(cluster, &there.join("a/b"), "migration=always");
    assert_eq!(migration(cluster, &far), "always");
    fs::rename(&far, here.join("moved")).unwrap();
    assert_eq!(migration(cluster, &here.join("moved")), "adaptive");
    must_set(cluster, &here.join("a/b"), "migration=");
    assert_eq!(migration(cluster, &here.join("a/b/far")), "off");
    let (done, why) = set(cluster, &here.join("a"), "migration=maybe");
    assert!(!done && why.contains("`always`"), "{why}");
}

#[test]
fn a_directory_has_as_many_copies_as_its_policy_says() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    a_tree_follows_its_directory(&mut cluster, &here, &there);
    another_node_can_begin_one(&mut cluster, &here, &there);
    policies_are_changed_apart(&mut cluster, &here);
    what_has_content_is_refused(&mut cluster, &here);
    // A policy outlives the processes.
    cluster.down().unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    let here = cluster.mount(1).unwrap();
    assert_eq!(
        fs::read(here.join("once/sub/far")).unwrap(),
        b"made on another host"
    );
    fs::create_dir(here.join("once/later")).unwrap();
    assert_eq!(copies(&mut cluster, &here.join("once/later")), 1);
    // And what these do is no repeat of what those did.
    let later = here.join("later");
    fs::create_dir(&later).unwrap();
    must_set(&mut cluster, &later, "copies=1");
    becomes(&mut cluster, &later, 1);
}

#[test]
fn an_owner_that_takes_members_in_and_lets_them_go_loses_nothing_that_a_map_stores() {
    const LEN: usize = 256 << 10;
    const ROUNDS: usize = 12;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let directory = cluster.mount(1).unwrap().join("mapped");
    fs::create_dir(&directory).unwrap();
    must_set(&mut cluster, &directory, "copies=3");
    becomes(&mut cluster, &directory, 3);
    let path = directory.join("file");
    fs::write(&path, vec![0; LEN]).unwrap();
    let mut options = File::options();
    let file = options.read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    let over = AtomicBool::new(false);
    let syncs = std::thread::scope(|threads| {
        let storing = threads.spawn(|| {
            let mut map = Shared::new(&file, LEN, Access::Write).unwrap();
            let mut syncs = 0_u64;
            while !over.load(Ordering::SeqCst) {
                syncs += 1;
                let block = syncs as usize % (LEN / 4_096) * 4_096;
                assert!(map.store(block, &syncs.to_le_bytes()));
                // It says what was lost.
                file.sync_all().map_err(|error| (syncs, error))?;
            }
            Ok::<_, (u64, io::Error)>(syncs)
        });
        for _ in 0..ROUNDS {
            for copies in [1, 3] {
                must_set(&mut cluster, &directory, &format!("copies={copies}"));
                becomes(&mut cluster, &directory, copies);
            }
        }
        over.store(true, Ordering::SeqCst);
        storing.join().unwrap()
    });
    let syncs = syncs.unwrap();
    assert!(syncs > 100, "{syncs}");
    assert_eq!(cluster.owner(&path).unwrap(), 1);
}
