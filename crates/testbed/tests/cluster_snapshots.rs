//! Snapshots: made under load, read as they were, restored byte for byte, kept through the loss of the owner.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program, tree, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const UNIT: u64 = 64 << 10;
/// A debug build, three nodes and as many programs on two processors; it is below a second where there is room.
const MADE_MAX: Duration = Duration::from_secs(10);
/// Files of the tree; `PERIGEE_SNAPSHOT_FILES` says otherwise.
fn files() -> usize {
    let wanted = std::env::var("PERIGEE_SNAPSHOT_FILES");
    wanted.map_or(1_000, |files| files.parse().unwrap())
}

fn snapshot(cluster: &mut Cluster, arguments: &[&str], dir: &Path) -> String {
    let dir = dir.to_string_lossy();
    let (verb, rest) = arguments.split_first().unwrap();
    let mut all = vec!["snapshot", verb, &dir];
    all.extend(rest);
    let ended = cluster.command(&all).unwrap();
    assert!(ended.status.success(), "{all:?}: {}", ended.stderr);
    ended.stdout
}

fn make(cluster: &mut Cluster, dir: &Path, name: &str) -> PathBuf {
    snapshot(cluster, &["create", name], dir);
    dir.join(".snapshots").join(name)
}

/// Ends what runs beside a test, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Names, and bytes that are kept.
fn list(cluster: &mut Cluster, dir: &Path) -> Vec<(String, u64)> {
    let listed = snapshot(cluster, &["list", "--json"], dir);
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let shown = listed.iter().map(|one| {
        let name = one["name"].as_str().unwrap().to_owned();
        (name, one["kept_bytes"].as_u64().unwrap())
    });
    shown.collect()
}

fn same(expected: &tree::Tree, seen: &Path) {
    let seen = tree::read(seen).unwrap();
    let differences = tree::differences(expected, &seen, 5);
    assert!(differences.is_empty(), "{differences:#?}");
}

fn times(path: &Path) -> (i64, i64) {
    let is = path.symlink_metadata().unwrap();
    (is.mtime(), is.mtime_nsec())
}

/// One program on each of two hosts, whose containers differ: each counts in a file of its own, and the second counts what
/// it has read of the first. Whoever sees the second's count must see the first's, also in a snapshot.
fn count(first: &Path, second: &Path, stop: &AtomicBool) {
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        fs::write(first, number.to_string()).unwrap();
        fs::write(second, number.to_string()).unwrap();
    }
}

fn counted(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    // A file is cut before it is written.
    text.parse().unwrap_or(u64::MAX)
}

/// Writes into files of a tree and makes new ones, over and over.
fn disturb(dir: &Path, stop: &AtomicBool) {
    let large = File::create(dir.join("large")).unwrap();
    large.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    let mut round = 0u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let at = (round * 7_919 * 4_096) % (4 << 20);
        large.write_all_at(&[round as u8; 4_096], at).unwrap();
        let path = dir.join(format!("new-{}", round % 50));
        if round.is_multiple_of(3) {
            _ = fs::remove_file(&path);
        } else {
            fs::write(&path, format!("round {round}")).unwrap();
        }
    }
}

/// Everything about a tree becomes something else.
fn spoil(dir: &Path) {
    let all = tree::read(dir).unwrap();
    for (number, path) in all.keys().enumerate() {
        let path = dir.join(path);
        let Ok(meta) = path.symlink_metadata() else {
            continue;
        };
        if meta.is_dir() {
            continue;
        }
        match number % 4 {
            0 => fs::remove_file(&path).unwrap(),
            1 if meta.is_file() => fs::write(&path, "other").unwrap(),
            2 => fs::rename(&path, path.with_extension("moved")).unwrap(),
            _ if meta.is_file() => {
                let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(b"more").unwrap();
            }
            _ => {}
        }
    }
    fs::create_dir(dir.join("d00/new")).unwrap();
    fs::remove_dir_all(dir.join("d01")).unwrap();
}

#[test]
fn a_snapshot_under_load_is_made_at_once_and_comes_back_byte_for_byte() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let (root, tree_dir) = (here.join("all"), here.join("all/tree"));
    fs::create_dir_all(&tree_dir).unwrap();
    for (mount, name) in [(&here, "one"), (&there, "two")] {
        fs::create_dir(mount.join("all").join(name)).unwrap();
    }
    tree::make(&tree_dir, files(), 41).unwrap();
    let expected = tree::read(&tree_dir).unwrap();
    // What was written just now goes to every disk first, as with `sync`.
    make(&mut cluster, &root, "warm");
    let some_file = tree_dir.join("d03/s03/f03");
    let time = times(&some_file);

    let stop = AtomicBool::new(false);
    let (first, second) = (root.join("one/count"), there.join("all/two/count"));
    let shown = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| count(&first, &second, &stop));
        scope.spawn(|| disturb(&root.join("one"), &stop));
        scope.spawn(|| disturb(&there.join("all/two"), &stop));
        let began = wait::until("the programs work", LIMIT, || {
            Ok((second.exists() && root.join("one/new-49").exists()).then(Instant::now))
        });
        began.unwrap();
        let mut made = Vec::new();
        for name in ["first", "second", "third"] {
            // Programs go on meanwhile.
            let reached = counted(&second);
            wait::until("the programs go on", LIMIT, || {
                let now = counted(&second);
                Ok((now != u64::MAX && (now > reached || reached == u64::MAX)).then_some(()))
            })
            .unwrap();
            let began = Instant::now();
            made.push(make(&mut cluster, &root, name));
            let took = began.elapsed();
            println!(
                "{} files beside the load: made in {took:.2?}",
                expected.len()
            );
            assert!(took < MADE_MAX, "made in {took:?}");
        }
        made
    });
    let mut before = 0;
    for at in &shown {
        let (one, two) = (
            counted(&at.join("one/count")),
            counted(&at.join("two/count")),
        );
        // Either may just have been cut: it says nothing then.
        assert!(two == u64::MAX || two <= one, "{two} was seen before {one}");
        before = if one == u64::MAX {
            before
        } else {
            one.max(before)
        };
        assert!(one >= before);
        same(&expected, &at.join("tree"));
    }

    spoil(&tree_dir);
    let elsewhere = there.join("all/.snapshots/first/tree");
    same(&expected, &elsewhere);
    same(&expected, &shown[2].join("tree"));
    assert_eq!(times(&shown[0].join("tree/d03/s03/f03")), time);

    snapshot(&mut cluster, &["restore", "second", "--no-safety"], &root);
    same(&expected, &tree_dir);
    same(&expected, &there.join("all/tree"));
    assert_eq!(times(&some_file), time);
    same(&tree::read(&shown[1]).unwrap(), &root);

    for name in ["warm", "second", "first", "third"] {
        snapshot(&mut cluster, &["delete", name], &root);
        // Those that stay are what they were, also while another one goes.
        if name == "second" {
            same(&expected, &shown[0].join("tree"));
        }
    }
    assert_eq!(list(&mut cluster, &root), []);
    wait::until("the list of none is gone", LIMIT, || {
        Ok((!root.join(".snapshots").exists()).then_some(()))
    })
    .unwrap();
}

#[test]
fn a_snapshot_costs_what_is_replaced_and_outlives_its_owner() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let dir = here.join("d");
    fs::create_dir(&dir).unwrap();
    let mut content: Vec<u8> = (0..32u64 << 20).map(|at| (at >> 8) as u8).collect();
    fs::write(dir.join("file"), &content).unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(dir.join("file"))
        .unwrap();
    file.sync_all().unwrap();
    let shown = make(&mut cluster, &dir, "before");
    assert_eq!(list(&mut cluster, &dir), [("before".to_owned(), 0)]);
    // Many writes in one place cost as much as one.
    for round in 0..100u64 {
        file.write_all_at(&[255; 4_096], 3 * UNIT + (round % 16) * 4_096)
            .unwrap();
    }
    file.write_all_at(&[255; 2], 9 * UNIT - 1).unwrap();
    assert_eq!(list(&mut cluster, &dir), [("before".to_owned(), 3 * UNIT)]);
    assert!(fs::read(shown.join("file")).unwrap() == content);

    make(&mut cluster, &dir, "middle");
    let middle = fs::read(dir.join("file")).unwrap();
    fs::write(dir.join("new"), vec![7; 1 << 20]).unwrap();
    for unit in [3, 100, 511] {
        file.write_all_at(&[254; 10], unit * UNIT).unwrap();
    }
    file.sync_all().unwrap();
    let kept = |before, middle| {
        vec![
            ("before".to_owned(), before * UNIT),
            ("middle".to_owned(), middle * UNIT),
        ]
    };
    assert_eq!(list(&mut cluster, &dir), kept(3, 3));

    // Nobody else can say what was there before.
    cluster.kill(1, Signal::KILL).unwrap();
    let past = there.join("d/.snapshots");
    wait::until("another node answers", LIMIT, || {
        Ok(fs::read(past.join("before/file")).ok())
    })
    .map(|seen: Vec<u8>| assert!(seen == content))
    .unwrap();
    assert!(fs::read(past.join("middle/file")).unwrap() == middle);
    assert!(!past.join("middle/new").exists());
    let other = OpenOptions::new()
        .write(true)
        .open(there.join("d/file"))
        .unwrap();
    other.write_all_at(&[1; 10], 200 * UNIT).unwrap();
    other.set_len(20 * UNIT).unwrap();
    assert!(fs::read(past.join("before/file")).unwrap() == content);
    cluster.up().unwrap();
    cluster.settle().unwrap();
    assert!(fs::read(past.join("middle/file")).unwrap() == middle);

    // The one before takes over what only the other had.
    snapshot(&mut cluster, &["delete", "middle"], &there.join("d"));
    wait::until("what nobody needs is gone", LIMIT, || {
        let listed = list(&mut cluster, &there.join("d"));
        Ok((listed == [("before".to_owned(), (32 << 20) - 20 * UNIT + 3 * UNIT)]).then_some(()))
    })
    .unwrap();
    assert!(fs::read(past.join("before/file")).unwrap() == content);
    content.truncate(0);
}

#[test]
fn a_snapshot_is_read_only_and_a_schedule_makes_them() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let mount = cluster.mount(1).unwrap();
    let dir = mount.join("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "as it was").unwrap();
    assert!(!dir.join(".snapshots").exists());
    assert_eq!(
        fs::create_dir(dir.join(".snapshots")).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    let shown = make(&mut cluster, &dir, "s");
    // No listing shows it: whoever walks the tree does not walk its past.
    let names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["f"]);
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    };
    refused(fs::write(shown.join("f"), "x"));
    refused(fs::remove_file(shown.join("f")));
    refused(fs::create_dir(shown.join("n")));
    refused(fs::rename(shown.join("f"), dir.join("g")));
    refused(fs::set_permissions(
        shown.join("f"),
        fs::metadata(&dir).unwrap().permissions(),
    ));
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_ne!(
        inode(&shown.join("f")),
        inode(&dir.join("f")),
        "two files to programs that compare"
    );
    fs::remove_file(dir.join("f")).unwrap();
    assert_eq!(fs::read_to_string(shown.join("f")).unwrap(), "as it was");
    fs::copy(shown.join("f"), dir.join("f")).unwrap();
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "as it was");

    let again = cluster
        .command(&["snapshot", "create", &dir.to_string_lossy(), "s"])
        .unwrap();
    assert!(
        again.stderr.contains("has a snapshot `s`"),
        "{}",
        again.stderr
    );
    let set = ["policy", "set", &dir.to_string_lossy(), "snapshots=10s:1"];
    let set = cluster.command(&set).unwrap();
    assert!(set.status.success(), "{}", set.stderr);
    wait::until("the schedule makes one", LIMIT, || {
        let listed = list(&mut cluster, &dir);
        Ok(listed
            .iter()
            .any(|(name, _)| name.starts_with("auto-"))
            .then_some(()))
    })
    .unwrap();
    assert!(list(&mut cluster, &dir).iter().any(|(name, _)| name == "s"));
}

/// What a file has in the place of each unit: the byte that it is full of; none where that cannot be read.
fn units(path: &Path, count: u64) -> Vec<Option<u8>> {
    let file = File::open(path).unwrap();
    let read = |unit: u64| {
        let mut bytes = vec![0; UNIT as usize];
        file.read_exact_at(&mut bytes, unit * UNIT).ok()?;
        let first = bytes[0];
        assert!(
            bytes.iter().all(|byte| *byte == first),
            "unit {unit} is torn"
        );
        Some(first)
    };
    (0..count).map(read).collect()
}

#[test]
fn the_deletion_of_a_snapshot_spoils_none_of_the_others() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let dir = cluster.mount(1).unwrap().join("dir");
    fs::create_dir(&dir).unwrap();
    let path = dir.join("file");
    let file = File::create(&path).unwrap();
    let put = |unit: u64, byte: u8| {
        file.write_all_at(&vec![byte; UNIT as usize], unit * UNIT)
            .unwrap();
        file.sync_all().unwrap();
    };
    (0..8).for_each(|unit| put(unit, b'0'));
    make(&mut cluster, &dir, "first");
    put(5, b'x');
    make(&mut cluster, &dir, "second");
    put(2, b'A');
    make(&mut cluster, &dir, "third");
    put(2, b'B');
    snapshot(&mut cluster, &["delete", "second"], &dir);
    let of = |name: &str| units(&dir.join(".snapshots").join(name).join("file"), 8);
    let shown = |of: &[Option<u8>]| (of[2], of[5]);
    let kept = |cluster: &mut Cluster| {
        list(cluster, &dir)
            .iter()
            .map(|(_, kept)| kept)
            .sum::<u64>()
    };
    // What it had that others need has come to them.
    wait::until("the snapshot is gone", LIMIT, || {
        Ok((kept(&mut cluster) == 3 * UNIT).then_some(()))
    })
    .unwrap();
    assert_eq!(shown(&of("first")), (Some(b'0'), Some(b'0')));
    assert_eq!(shown(&of("third")), (Some(b'A'), Some(b'x')));
    assert_eq!(shown(&units(&path, 8)), (Some(b'B'), Some(b'x')));
}

/// How the content of a file is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    WrittenOver,
    CutOff,
}

/// What a snapshot shows of a file that was being written over, or cut, when the only node, or the owner of three, died: what it
/// was, or of the only node an error, and nothing else.
fn killed_while_replacing(nodes: u32, count: u64, how: How) {
    let mut cluster = Cluster::start(nodes).unwrap();
    let dir = cluster.mount(1).unwrap().join("dir");
    let other = if nodes > 1 { 2 } else { 1 };
    if nodes > 1 {
        cluster.mount(other).unwrap();
    }
    fs::create_dir(&dir).unwrap();
    let file = File::create(dir.join("file")).unwrap();
    let fill = |byte: u8| {
        for unit in 0..count {
            file.write_all_at(&vec![byte; UNIT as usize], unit * UNIT)
                .unwrap();
        }
    };
    fill(b'0');
    file.sync_all().unwrap();
    make(&mut cluster, &dir, "before");
    let syncing = file.try_clone().unwrap();
    let mut syncs = None;
    match how {
        How::WrittenOver => {
            fill(b'N');
            syncs = (nodes > 1).then(|| std::thread::spawn(move || _ = syncing.sync_all()));
            std::thread::sleep(Duration::from_millis(300));
        }
        How::CutOff => file.set_len(0).unwrap(),
    }
    cluster.kill(1, Signal::KILL).unwrap();
    drop(file);
    if nodes == 1 {
        cluster.up().unwrap();
    }
    let there = cluster.mount(other).unwrap().join("dir");
    let path = there.join(".snapshots/before/file");
    let seen = wait::until("the snapshot can be read", LIMIT, || {
        Ok(path.exists().then(|| units(&path, count)))
    });
    let seen = seen.unwrap();
    let wrong = |unit: &&Option<u8>| unit.is_some_and(|byte| byte != b'0');
    assert_eq!(seen.iter().filter(wrong).count(), 0, "{seen:?}");
    let lost = seen.iter().filter(|unit| unit.is_none()).count();
    println!("{nodes} nodes, {how:?}: {lost} of {count} units are lost");
    // The others have what was kept, or what it was kept of.
    assert!(nodes == 1 || lost == 0, "{seen:?}");
    if let Some(syncs) = syncs {
        cluster.up().unwrap();
        syncs.join().unwrap();
    }
}

#[test]
fn what_is_kept_is_there_after_a_restart_when_what_replaced_it_was_synced() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let dir = cluster.mount(1).unwrap().join("dir");
    fs::create_dir(&dir).unwrap();
    let file = File::create(dir.join("file")).unwrap();
    let fill = |byte: u8| {
        for unit in 0..24 {
            file.write_all_at(&vec![byte; UNIT as usize], unit * UNIT)
                .unwrap();
        }
        file.sync_all().unwrap();
    };
    fill(b'0');
    make(&mut cluster, &dir, "before");
    fill(b'N');
    // At once: of what is in place no map on the disk tells yet.
    cluster.kill(1, Signal::KILL).unwrap();
    drop(file);
    cluster.up().unwrap();
    let dir = cluster.mount(1).unwrap().join("dir");
    let path = dir.join(".snapshots/before/file");
    let seen = wait::until("the snapshot can be read", LIMIT, || {
        Ok(path.exists().then(|| units(&path, 24)))
    });
    assert_eq!(seen.unwrap(), vec![Some(b'0'); 24]);
    assert_eq!(units(&dir.join("file"), 24), vec![Some(b'N'); 24]);
}

#[test]
fn a_snapshot_shows_what_was_after_the_owner_was_killed_or_an_error_if_nobody_else_had_it() {
    let Some(_alone) = program::alone() else {
        return;
    };
    killed_while_replacing(1, 16, How::WrittenOver);
    for how in [How::WrittenOver, How::CutOff] {
        killed_while_replacing(3, 256, how);
    }
}
