//! A real tree through the file system: copied in, and read back through another node after a kill.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::checks::tree;
use perigee_testbed::checks::two_mounts::Pair;
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{Cluster, program, tree as trees};
use rustix::process::Signal;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn flush(directory: &Path) {
    let status = Command::new("sync")
        .arg("-f")
        .arg(directory)
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_tree_is_the_same_through_another_node_after_a_kill() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let local = Workspace::new().unwrap();
    let source = local.path().join("source");
    trees::make(&source, 2_000, 1).unwrap();

    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let pair = Pair::new(&first.join("tree"), &second.join("tree"));
    let compared = tree::run(&source, &pair).unwrap();
    assert!(compared.names >= 2_000);

    // What the second has seen may not be lost, fsynced or not.
    cluster.kill(1, Signal::KILL).unwrap();
    tree::compare(&source, &second.join("tree")).unwrap();
    let third = cluster.mount(3).unwrap();
    tree::compare(&source, &third.join("tree")).unwrap();

    // The survivors take writes, and the node that comes back has them.
    let again = Pair::new(&second.join("again"), &third.join("again"));
    tree::run(&source, &again).unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    let first = cluster.mount(1).unwrap();
    tree::compare(&source, &first.join("again")).unwrap();

    std::fs::remove_dir_all(first.join("tree")).unwrap();
    assert!(!second.join("tree").exists());
}

/// All stop and start again: nothing but the cluster's directory holds the data.
#[test]
fn a_tree_outlives_down_and_up() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let local = Workspace::new().unwrap();
    let source = local.path().join("source");
    trees::make(&source, 300, 2).unwrap();
    let mut cluster = Cluster::start(1).unwrap();
    let mount = cluster.mount(1).unwrap();
    tree::run(
        &source,
        &Pair::new(&mount.join("tree"), &mount.join("tree")),
    )
    .unwrap();
    flush(&mount);
    for _ in 0..2 {
        cluster.down().unwrap();
        assert!(
            !perigee_testbed::mounts::is_mounted(&mount),
            "`down` left the mount"
        );
        cluster.up().unwrap();
        cluster.settle().unwrap();
        cluster.mount(1).unwrap();
        tree::compare(&source, &mount.join("tree")).unwrap();
    }
}

/// A file system that is mounted until it is dropped.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(at: &Path) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(at)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // It may be gone already: then the test says so.
        _ = Command::new("umount").arg(&self.0).status();
    }
}

/// The kernel forgets names by dropping what it knows of them, and with it what is mounted there.
#[test]
fn a_move_at_home_leaves_what_is_mounted_below_alone() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: mounting a file system needs root");
    }
    let mut cluster = Cluster::start(2).unwrap();
    let here = cluster.mount(1).unwrap().join("work");
    for folder in ["", "from", "to", "below"] {
        std::fs::create_dir(here.join(folder)).unwrap();
    }
    // Of a directory that nothing is moved in: who is asked looks there, and gets leases of its own.
    assert_eq!(cluster.owner(&here).unwrap(), 1);
    let below = here.join("below");
    let _mounted = Tmpfs::mount(&below);
    std::fs::write(below.join("f"), "there").unwrap();
    std::fs::write(here.join("from/f"), "moves").unwrap();
    std::fs::rename(here.join("from/f"), here.join("to/f")).unwrap();
    assert_eq!(std::fs::read_to_string(below.join("f")).unwrap(), "there");
    assert_eq!(std::fs::read_to_string(here.join("to/f")).unwrap(), "moves");
}

/// What a crash takes back has lost nothing: a file that was replaced goes from the disk after the record that says so is
/// there, not before.
#[test]
fn a_file_that_was_replaced_just_before_a_crash_is_whole() {
    let Some(_alone) = program::alone() else {
        return;
    };
    // With one copy nobody else has what is gone here.
    let mut cluster = Cluster::start(1).unwrap();
    // One that lies among the keys, and one that is a file of the disk.
    let lengths = [4 << 10, 64 << 10];
    let (mut old, mut new) = (0, 0);
    // Objects that nobody reaches are taken away after 20 ms, and records that nobody waits for leave after 150 ms.
    let mut directory = cluster.mount(1).unwrap();
    for moment in [20, 140, 155, 165, 175, 185, 200, 230, 300] {
        let place = |len: usize| directory.join(format!("f{len}"));
        let put = |path: &Path, len: usize, byte: u8| {
            let mut file = std::fs::File::create(path).unwrap();
            file.write_all(&vec![byte; len]).unwrap();
            file.sync_all().unwrap();
        };
        for len in lengths {
            put(&place(len), len, 1);
            put(&place(len).with_extension("new"), len, 2);
        }
        flush(&directory);
        for len in lengths {
            std::fs::rename(place(len).with_extension("new"), place(len)).unwrap();
        }
        // A moment, not a wait for something: whatever it is in the middle of is a case.
        std::thread::sleep(Duration::from_millis(moment));
        cluster.kill(1, Signal::KILL).unwrap();
        cluster.up().unwrap();
        directory = cluster.mount(1).unwrap();
        for len in lengths {
            let content = std::fs::read(directory.join(format!("f{len}"))).unwrap();
            let first = content.first().copied();
            assert_eq!(content, vec![first.unwrap_or(0); len], "after {moment} ms");
            old += u32::from(first == Some(1));
            new += u32::from(first == Some(2));
        }
    }
    eprintln!("{old} old and {new} new files");
    assert!(old > 0 && new > 0, "no crash was beside the record");
}
