//! Rot in backing files: found by scrub, mended from another copy, and said when there is none (law 7).
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, disk, pattern, program, wait};
use perigee_types::Rng;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const FILES: u64 = 24;
const FLIPS: usize = 1_000;
const BLOCK: u64 = 4_096;

fn content(seed: u64, len: u64) -> Vec<u8> {
    let mut content = vec![0; len as usize];
    pattern::fill(seed, 0, &mut content);
    content
}

/// All long enough to have backing files, and none at a block's border.
fn len(file: u64) -> u64 {
    40_000 + file * 97_531
}

/// The backing files of a node by their place in its store: the same file has the same place on every node.
fn backing(cluster: &Cluster, node: u32) -> BTreeMap<PathBuf, PathBuf> {
    let root = cluster.dir().join(format!("node-{node}/store/objects"));
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.metadata().unwrap().size() > 0 {
                let place = entry.path().strip_prefix(&root).unwrap().to_owned();
                found.insert(place, entry.path());
            }
        }
    }
    found
}

/// What `perigee scrub` found, summed over the nodes, and how it ended.
fn scrub(cluster: &mut Cluster) -> (BTreeMap<String, u64>, Option<i32>) {
    let ended = cluster.on_this(&["scrub", "--json"]).unwrap();
    let nodes: Value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    let mut sum = BTreeMap::new();
    for node in nodes.as_array().unwrap() {
        assert_eq!(node["pass"]["state"], "done", "{node}");
        for (name, value) in node["pass"]["found"].as_object().unwrap() {
            *sum.entry(name.clone()).or_default() += value.as_u64().unwrap();
        }
    }
    (sum, ended.status.code())
}

fn all_are_right(mount: &Path) {
    for file in 0..FILES {
        let seen = fs::read(mount.join(format!("f{file}"))).unwrap();
        assert!(seen == content(file, len(file)), "f{file} has other bytes");
    }
}

#[test]
fn a_thousand_flipped_bytes_are_found_and_mended() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts: Vec<PathBuf> = [1, 2, 3].map(|node| cluster.mount(node).unwrap()).into();
    for file in 0..FILES {
        let path = mounts[0].join(format!("f{file}"));
        fs::write(&path, content(file, len(file))).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    let nodes: Vec<_> = (1..=3).map(|node| backing(&cluster, node)).collect();
    assert!(nodes.iter().all(|files| files.len() == FILES as usize));

    let (found, code) = scrub(&mut cluster);
    assert_eq!((found["corrupt"], found["errors"], code), (0, 0, Some(0)));
    assert!(found["files"] >= 3 * FILES, "{found:?}");

    // Each block rots on one node at most, so that a good copy is left.
    let places: Vec<&PathBuf> = nodes[0].keys().collect();
    let mut rng = Rng::new(5);
    let mut rotten: BTreeMap<(&PathBuf, u64), usize> = BTreeMap::new();
    let mut flipped = BTreeSet::new();
    while flipped.len() < FLIPS {
        let place = places[rng.below(places.len() as u64) as usize];
        let node = rng.below(3) as usize;
        let size = fs::metadata(&nodes[node][place]).unwrap().size();
        let at = rng.below(size);
        let there = *rotten.entry((place, at / BLOCK)).or_insert(node);
        if there == node && flipped.insert((place, at)) {
            disk::flip(&nodes[node][place], at).unwrap();
        }
    }
    let bytes = |(place, block): &(&PathBuf, u64)| {
        let size = fs::metadata(&nodes[0][*place]).unwrap().size();
        BLOCK.min(size - block * BLOCK)
    };
    let expected: u64 = rotten
        .keys()
        .filter(|block| {
            flipped
                .iter()
                .any(|(place, at)| (*place, at / BLOCK) == **block)
        })
        .map(bytes)
        .sum();

    let (found, code) = scrub(&mut cluster);
    assert_eq!(found["corrupt"], expected, "{found:?}");
    assert_eq!(found["repaired"], expected, "{found:?}");
    assert_eq!((found["unrepaired"], code), (0, Some(0)), "{found:?}");
    mounts.iter().for_each(|mount| all_are_right(mount));
    // On the disks themselves, too.
    for place in places {
        let copies: Vec<Vec<u8>> = nodes
            .iter()
            .map(|files| fs::read(&files[place]).unwrap())
            .collect();
        assert!(
            copies.iter().all(|copy| *copy == copies[0]),
            "{}",
            place.display()
        );
    }
    let (found, _) = scrub(&mut cluster);
    assert_eq!(found["corrupt"], 0, "{found:?}");
}

#[test]
fn what_has_no_other_copy_is_said_and_never_read() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let mount = cluster.mount(1).unwrap();
    for file in 0..2 {
        let path = mount.join(format!("f{file}"));
        fs::write(&path, content(file, len(file))).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    let files = backing(&cluster, 1);
    let rotten = files
        .values()
        .find(|path| fs::metadata(path).unwrap().size() == len(0))
        .unwrap();
    disk::flip(rotten, 5_000).unwrap();
    let (found, code) = scrub(&mut cluster);
    assert_eq!((found["corrupt"], found["unrepaired"]), (BLOCK, BLOCK));
    assert_eq!(code, Some(1));
    let shown = cluster.on_this(&["scrub", "--status"]).unwrap();
    assert!(
        shown.stdout.contains("could not be mended"),
        "{}",
        shown.stdout
    );
    // EIO is better than a lie; what is whole is read.
    let read = fs::read(mount.join("f0")).unwrap_err();
    assert_eq!(
        read.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    assert!(fs::read(mount.join("f1")).unwrap() == content(1, len(1)));
}

/// Kills all nodes of three but one, which owns alone then. Gives the others.
fn leave_alone(cluster: &mut Cluster, owner: u32) -> Vec<u32> {
    let others: Vec<u32> = (1..=3).filter(|node| *node != owner).collect();
    for &node in &others {
        cluster.kill(node, Signal::KILL).unwrap();
    }
    wait::until("the node owns alone", LIMIT, || {
        Ok((cluster.chains()?[0] == [owner]).then_some(()))
    })
    .unwrap();
    others
}

/// The last copy of a block rots while its node is alone: the others get everything else, and are copies again.
#[test]
fn a_block_that_nobody_has_keeps_nobody_out() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let first = cluster.mount(1).unwrap();
    for file in 0..2 {
        let path = first.join(format!("f{file}"));
        fs::write(&path, content(file, len(file))).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    cluster.settle().unwrap();
    let owner = cluster.owner(&first.join("f0")).unwrap();
    let others = leave_alone(&mut cluster, owner);
    for node in &others {
        let store = cluster.dir().join(format!("node-{node}/store"));
        fs::remove_dir_all(store).unwrap();
    }
    let files = backing(&cluster, owner);
    let rotten = files
        .values()
        .find(|path| fs::metadata(path).unwrap().size() == len(0))
        .unwrap();
    disk::flip(rotten, 5_000).unwrap();

    cluster.up().unwrap();
    cluster.settle().unwrap();
    assert_eq!(cluster.chains().unwrap()[0].len(), 3);
    let mounts: Vec<PathBuf> = [1, 2, 3].map(|node| cluster.mount(node).unwrap()).into();
    let eio = Some(rustix::io::Errno::IO.raw_os_error());
    for mount in &mounts {
        assert!(fs::read(mount.join("f1")).unwrap() == content(1, len(1)));
        let read = fs::read(mount.join("f0")).unwrap_err();
        assert_eq!(read.raw_os_error(), eio, "{}", mount.display());
        // All but the block.
        let good = content(0, len(0));
        let file = File::open(mount.join("f0")).unwrap();
        let mut rest = vec![0; good.len() - 8_192];
        file.read_exact_at(&mut rest, 8_192).unwrap();
        assert!(rest == good[8_192..], "{}", mount.display());
    }
    // Nor does it come to be the content when its owner is gone.
    cluster.kill(owner, Signal::KILL).unwrap();
    let mount = cluster.mount(others[0]).unwrap();
    let read = fs::read(mount.join("f0")).unwrap_err();
    assert_eq!(read.raw_os_error(), eio);
    // Who writes the block anew has a whole file again.
    let good = content(0, len(0));
    let file = File::options().write(true).open(mount.join("f0")).unwrap();
    file.write_all_at(&good[4_096..8_192], 4_096).unwrap();
    file.sync_all().unwrap();
    let other = cluster.mount(others[1]).unwrap();
    assert!(fs::read(other.join("f0")).unwrap() == good);
}

/// The same, where the others come back with what was there before the last write.
#[test]
fn older_content_does_not_pass_for_a_block_that_nobody_has() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let first = cluster.mount(1).unwrap();
    fs::write(first.join("f0"), content(0, len(0))).unwrap();
    File::open(first.join("f0")).unwrap().sync_all().unwrap();
    cluster.settle().unwrap();
    let owner = cluster.owner(&first.join("f0")).unwrap();
    let others = leave_alone(&mut cluster, owner);
    let mount = cluster.mount(owner).unwrap();
    let file = File::options().write(true).open(mount.join("f0")).unwrap();
    // So much that its record does not carry it, which the others get.
    file.write_all_at(&[7; 20_480], 4_096).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let files = backing(&cluster, owner);
    let rotten = files.values().next().unwrap();
    disk::flip(rotten, 5_000).unwrap();

    cluster.up().unwrap();
    cluster.settle().unwrap();
    assert_eq!(cluster.chains().unwrap()[0].len(), 3);
    cluster.kill(owner, Signal::KILL).unwrap();
    for &node in &others {
        let mount = cluster.mount(node).unwrap();
        let file = File::open(mount.join("f0")).unwrap();
        let mut block = [0; 4_096];
        let read = file.read_exact_at(&mut block, 4_096).unwrap_err();
        let eio = Some(rustix::io::Errno::IO.raw_os_error());
        assert_eq!(read.raw_os_error(), eio, "n{node}");
        file.read_exact_at(&mut block, 0).unwrap();
        assert!(block == content(0, len(0))[..4_096]);
    }
}

/// Turns bits over in every place of a file where `value` lies. Gives how many.
fn spoil(path: &Path, value: &[u8]) -> usize {
    let bytes = fs::read(path).unwrap();
    let found = bytes.windows(value.len()).enumerate();
    let places: Vec<usize> = found
        .filter(|(_, window)| *window == value)
        .map(|(at, _)| at)
        .collect();
    for at in &places {
        disk::flip(path, (at + value.len() / 2) as u64).unwrap();
    }
    places.len()
}

/// What the owner cannot read among its keys another member can: no program is told of it.
#[test]
fn a_node_whose_keys_rot_leaves_and_gets_another_copy() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let first = cluster.mount(1).unwrap();
    let target = "a target that nothing else among the keys looks like, 7c1f/".repeat(3);
    std::os::unix::fs::symlink(&target, first.join("link")).unwrap();
    fs::write(first.join("file"), "content").unwrap();
    File::open(&first).unwrap().sync_all().unwrap();
    cluster.settle().unwrap();

    let owner = cluster.chains().unwrap()[0][0];
    // After a crash the engine would find it at once, and the node not start: the keys rot while it is down.
    cluster.down().unwrap();
    let keys = cluster.dir().join(format!("node-{owner}/store/state.redb"));
    assert!(spoil(&keys, target.as_bytes()) > 0, "not among the keys");
    cluster.up().unwrap();
    let first = cluster.mount(1).unwrap();
    let seen = fs::read_link(first.join("link")).unwrap();
    assert_eq!(seen.to_str(), Some(&*target));
    assert_eq!(fs::read(first.join("file")).unwrap(), b"content");

    wait::until("all copies are there again", LIMIT, || {
        let chains = cluster.chains()?;
        Ok(chains.iter().all(|chain| chain.len() == 3).then_some(()))
    })
    .unwrap();
    cluster.settle().unwrap();
    // The copy that it has now is good for everything: the others are not asked any more.
    leave_alone(&mut cluster, owner);
    let mount = cluster.mount(owner).unwrap();
    let seen = fs::read_link(mount.join("link")).unwrap();
    assert_eq!(seen.to_str(), Some(&*target));
}
