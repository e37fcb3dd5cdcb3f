//! What a mount lets programs do, and what a node that only mounts may do: from outside, on real processes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod security;

use perigee_testbed::{Cluster, program};
use security::client::Client;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One cluster at a time: three nodes are all that a small machine bears.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> Option<MutexGuard<'static, ()>> {
    if let Some(reason) = program::why_no_cluster() {
        eprintln!("{reason}");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn a_node_that_only_mounts_serves_its_programs_and_administers_nothing() {
    let Some(_alone) = alone() else { return };
    let mut cluster = Cluster::start(2).unwrap();
    let own = cluster.mount(1).unwrap();
    let client = Client::join(&mut cluster, "client");
    let there = &client.mount;
    fs::create_dir_all(there.join("a/b")).unwrap();
    fs::write(there.join("a/b/f"), vec![b'x'; 300_000]).unwrap();
    fs::rename(there.join("a/b/f"), there.join("a/g")).unwrap();
    assert_eq!(fs::read(own.join("a/g")).unwrap(), vec![b'x'; 300_000]);
    fs::write(own.join("a/g"), "shorter").unwrap();
    assert_eq!(fs::read_to_string(there.join("a/g")).unwrap(), "shorter");
    let (here, file) = (own.join("a/g"), fs::File::open(there.join("a/g")).unwrap());
    file.lock().unwrap();
    assert!(fs::File::open(&here).unwrap().try_lock().is_err());
    drop(file);
    fs::File::open(&here).unwrap().lock().unwrap();

    let asked = client.say(&mut cluster, &["status", "--json"]);
    assert!(asked.stdout.contains("\"client\""), "{asked:?}");
    let drain = ["drain", "node-2", "--fewer-copies", "--no-wait"];
    for command in [&["token"][..], &drain] {
        let refused = client.say(&mut cluster, command);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains("it only mounts"), "{refused:?}");
    }
    let nodes = cluster.status().unwrap();
    assert_eq!(nodes.iter().filter(|node| node.state == "up").count(), 3);
}

#[test]
fn a_mount_has_no_set_id_programs_and_no_devices_unless_root_asks() {
    let Some(_alone) = alone() else { return };
    let mut cluster = Cluster::start(1).unwrap();
    let options = |point: &Path| {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let place = point.to_string_lossy();
        let mut rows = table.lines().map(|row| row.split(' ').collect::<Vec<_>>());
        let row = rows.find(|row| row[4] == place).unwrap();
        (row[5].to_owned(), row[row.len() - 1].to_owned())
    };
    let plain = cluster.mount(1).unwrap();
    let (of_mount, of_system) = options(&plain);
    assert!(of_mount.contains("nosuid") && of_mount.contains("nodev"));
    assert!(of_system.contains("default_permissions"), "{of_system}");
    assert!(of_system.contains("allow_other"), "{of_system}");
    // the kernel refuses whom the mode refuses
    fs::write(plain.join("secret"), "x").unwrap();
    fs::set_permissions(plain.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut cat = Command::new("cat");
    cat.uid(65_534).arg(plain.join("secret"));
    let seen = cat.output().unwrap();
    assert!(!seen.status.success() && seen.stdout.is_empty());

    let other = cluster.path().join("other");
    fs::create_dir(&other).unwrap();
    let words = other.to_string_lossy().into_owned();
    cluster
        .perigee(&["mount", &words, "-o", "suid,dev"])
        .unwrap();
    let (of_mount, _) = options(&other);
    assert!(!of_mount.contains("nosuid") && !of_mount.contains("nodev"));
    cluster.command(&["umount", &words]).unwrap();
}
