//! Copies move to nodes with more room while programs work: nothing is lost, and it ends.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const FOLDERS: u8 = 5;
const FILE_BYTES: usize = 6 << 20;

/// Folders with one copy each, all on node 1, and a file in each of them.
fn fill(cluster: &mut Cluster, mount: &Path, folders: u8) {
    for number in 0..folders {
        let folder = mount.join(format!("d{number}"));
        fs::create_dir(&folder).unwrap();
        let shown = folder.to_string_lossy();
        let ended = cluster.command(&["policy", "set", &shown, "copies=1"]);
        assert!(ended.unwrap().status.success());
        let mut file = fs::File::create(folder.join("f")).unwrap();
        file.write_all(&vec![number; FILE_BYTES]).unwrap();
        file.sync_all().unwrap();
    }
}

fn check(mount: &Path) {
    for number in 0..FOLDERS {
        let seen = fs::read(mount.join(format!("d{number}/f"))).unwrap();
        assert!(seen == vec![number; FILE_BYTES], "d{number}/f");
    }
}

fn plan(cluster: &mut Cluster) -> Value {
    let text = cluster
        .perigee(&["rebalance", "--dry-run", "--json"])
        .unwrap();
    let outcome: Value = serde_json::from_str(&text).unwrap();
    outcome["plan"].clone()
}

/// Once the disks are counted, so many copies should move.
fn planned(cluster: &mut Cluster, moves: usize) {
    wait::until("the plan is as it should be", LIMIT, || {
        let plan = plan(cluster);
        let planned = plan["moves"].as_array().unwrap().len();
        Ok((planned == moves).then_some(()))
    })
    .unwrap();
}

fn owners(cluster: &mut Cluster, mount: &Path) -> Vec<u32> {
    let folders = (0..FOLDERS).map(|number| mount.join(format!("d{number}")));
    let mut owners: Vec<u32> = folders.map(|path| cluster.owner(&path).unwrap()).collect();
    owners.sort_unstable();
    owners
}

/// Appends numbers until told to stop; every call must succeed. Says how many, and the longest call.
fn append(path: PathBuf, stop: &AtomicBool) -> (u64, Duration) {
    let mut log = fs::File::options();
    let mut log = log.create(true).append(true).open(path).unwrap();
    let (mut lines, mut worst) = (0, Duration::ZERO);
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        log.write_all(format!("{lines:09}\n").as_bytes()).unwrap();
        worst = worst.max(began.elapsed());
        lines += 1;
        thread::sleep(Duration::from_millis(2));
    }
    (lines, worst)
}

#[test]
fn copies_move_to_nodes_with_room_under_load_and_it_ends() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fill(&mut cluster, &first, FOLDERS);
    // Five of one size: two for each, and one more for one of them.
    planned(&mut cluster, 3);
    let homes = cluster.chains().unwrap()[..3].to_vec();
    let stop = AtomicBool::new(false);
    let logs: Vec<String> = (0..FOLDERS).map(|n| format!("d{n}/log")).collect();
    let done: Vec<(u64, Duration)> = thread::scope(|scope| {
        let writers: Vec<_> = logs
            .iter()
            .zip([&first, &second].into_iter().cycle())
            .map(|(log, mount)| (mount.join(log), &stop))
            .map(|(path, stop)| scope.spawn(move || append(path, stop)))
            .collect();
        let text = cluster.perigee(&["rebalance"]);
        stop.store(true, Ordering::SeqCst);
        let done = writers.into_iter().map(|writer| writer.join().unwrap());
        let done = done.collect();
        let text = text.unwrap();
        assert!(text.contains("moves, with the ownership"), "{text}");
        assert!(text.contains("done: 3 moves"), "{text}");
        done
    });
    for ((lines, worst), log) in done.iter().zip(&logs) {
        eprintln!("{log}: {lines} lines, longest call {worst:?}");
        let expected: String = (0..*lines).map(|number| format!("{number:09}\n")).collect();
        for mount in [&first, &second] {
            assert!(
                fs::read_to_string(mount.join(log)).unwrap() == expected,
                "{log}"
            );
        }
    }
    check(&first);
    check(&second);
    let spread = owners(&mut cluster, &first);
    let of = |node| spread.iter().filter(|owner| **owner == node).count();
    assert!(
        (1..=3).all(|node| (1..=2).contains(&of(node))),
        "{spread:?}"
    );
    let chains = cluster.chains().unwrap();
    assert_eq!(chains[..3], homes, "homes stay");
    assert!(
        chains[3..].iter().all(|chain| chain.len() == 1),
        "{chains:?}"
    );
    planned(&mut cluster, 0);
    let text = cluster.perigee(&["rebalance"]).unwrap();
    assert!(text.contains("no move makes this better by 5 %"), "{text}");
    what_was_given_up_is_freed(&cluster, &first);
}

/// At once, not after the ten minutes for which a copy is kept whose node may come back.
fn what_was_given_up_is_freed(cluster: &Cluster, mount: &Path) {
    let objects = cluster.dir().join("node-1/store/objects");
    wait::until("node 1 keeps its own containers alone", LIMIT, || {
        let bytes: u64 = sizes(&objects);
        Ok((bytes < 3 * FILE_BYTES as u64).then_some(()))
    })
    .unwrap();
    check(mount);
}

fn sizes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => sizes(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn what_is_broken_off_goes_on_where_it_was() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let mount = cluster.mount(2).unwrap();
    let first = cluster.mount(1).unwrap();
    fill(&mut cluster, &first, FOLDERS);
    planned(&mut cluster, 2);
    let dir = cluster.dir();
    let mut command = Command::new(program::perigee().unwrap());
    command.args(["rebalance", "--dir"]).arg(&dir);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let moving = |cluster: &mut Cluster| {
        let plan = plan(cluster);
        plan["under_way"].as_array().unwrap().len()
    };
    wait::until("a copy moves, or has moved", LIMIT, || {
        let begun = moving(&mut cluster) > 0 || owners(&mut cluster, &first).contains(&2);
        Ok(begun.then_some(()))
    })
    .unwrap();
    running.kill().unwrap();
    running.wait().unwrap();
    // The node that gives copies up dies, too, in whatever state it is.
    cluster.kill(1, Signal::KILL).unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    cluster.perigee(&["rebalance"]).unwrap();
    check(&mount);
    let spread = owners(&mut cluster, &mount);
    let moved = spread.iter().filter(|owner| **owner == 2).count();
    assert!((2..=3).contains(&moved), "{spread:?}");
    planned(&mut cluster, 0);
    let text = cluster.perigee(&["rebalance", "--stop"]).unwrap();
    assert_eq!(text, "nothing was moving\n");
    let refused = cluster.on_this(&["rebalance", "--margin", "0"]).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
}

#[test]
fn an_owner_whose_kernel_reads_by_itself_gives_its_copy_up_all_the_same() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fill(&mut cluster, &first, 2);
    planned(&mut cluster, 1);
    // The owner does not cede what is open so.
    let mut open: Vec<fs::File> = (0..2)
        .map(|number| fs::File::open(first.join(format!("d{number}/f"))).unwrap())
        .collect();
    cluster.perigee(&["rebalance"]).unwrap();
    for (number, file) in open.iter_mut().enumerate() {
        let mut seen = Vec::new();
        file.read_to_end(&mut seen).unwrap();
        assert!(seen == vec![number as u8; FILE_BYTES], "d{number}/f");
        let path = second.join(format!("d{number}/f"));
        assert!(fs::read(path).unwrap() == seen);
    }
    let owners = [0, 1].map(|number| cluster.owner(&first.join(format!("d{number}"))).unwrap());
    assert_eq!(owners.iter().sum::<u32>(), 3, "one each: {owners:?}");
}
