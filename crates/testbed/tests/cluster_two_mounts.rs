//! Two mounts of two nodes are one file system: laws 1, 3 and 4 as programs see them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::checks::{appends, cuts, model, pages, renames, shown, two_mounts};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{Checked, Cluster, program, wait};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The seed of the random operations; another one is given by `PERIGEE_TEST_SEED`.
const SEED: u64 = 20_261_121;

/// How long programs write to parts of the same pages, and what 99 of 100 of these writes may take at most: less than
/// the term of a lease.
const PAGES_FOR: Duration = Duration::from_secs(8);
const PAGES_LIMIT: Duration = Duration::from_millis(1_500);

/// How long programs write and read numbers that only rise.
const SHOWN_FOR: Duration = Duration::from_secs(20);

/// How long programs rename between directories of three owners, and what 99 of 100 of their calls may take at most: 0.2 s
/// here, and 2 s when changes wait for kernels for nothing.
const RENAMES_FOR: Duration = Duration::from_secs(20);
const RENAMES_LIMIT: Duration = Duration::from_millis(1_500);

#[test]
fn what_one_host_did_the_other_sees_at_once() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    cluster.mount_options = Some("passthrough=readers".to_owned());
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());

    let failures = two_mounts::run(&first, &second);
    assert!(failures.is_empty(), "{failures:#?}");

    random_operations_agree_with_a_local_directory(&first, &second);
    cluster.umount(2).unwrap();
    cluster.umount(1).unwrap();
}

#[test]
fn what_a_map_changes_unseen_the_other_host_sees_a_moment_later() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !changes_are_told() {
        return;
    }
    let mut cluster = Cluster::start(2).unwrap();
    let mounts = [1, 2].map(|node| cluster.mount(node).unwrap());
    let home = mounts[0].join("home");
    fs::create_dir(&home).unwrap();
    let place = home.to_string_lossy().into_owned();
    let words = ["policy", "set", &place, "migration=off"];
    assert!(cluster.command(&words).unwrap().status.success());
    assert_eq!(cluster.owner(&home).unwrap(), 1);
    let pair = two_mounts::Pair::new(&home, &mounts[1].join("home"));
    two_mounts::maps::unsynced_stores_show(&pair).unwrap();
    for node in [1, 2] {
        cluster.umount(node).unwrap();
    }
}

/// Says why not, if the kernel does not tell what programs change past the daemon where clusters of tests lie.
fn changes_are_told() -> bool {
    let log = match perigee_dirtylog::DirtyLog::open(4_096) {
        Ok(log) => log,
        Err(why) => {
            println!("skipped: {why}");
            return false;
        }
    };
    let file = tempfile::tempfile().unwrap();
    let told = log.tells_of(&file, |at| file.write_all_at(&[1], at));
    let told = told.unwrap();
    if !told {
        println!("skipped: the kernel tells nothing of the file system of temporary files");
    }
    told
}

#[test]
fn what_passes_the_daemon_the_other_host_sees_at_once() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !changes_are_told() {
        return;
    }
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    writes_pass_a_stopped_daemon_and_last(&mut cluster, &first, &second);
    let mut failures = two_mounts::run(&first, &second);
    // What another host maps shows such a write a moment later (docs/SEMANTICS.md).
    failures.retain(|(name, _)| !name.starts_with("mmap-both"));
    assert!(failures.is_empty(), "{failures:#?}");
    random_operations_agree_with_a_local_directory(&first, &second);
    cluster.umount(2).unwrap();
    cluster.umount(1).unwrap();
}

/// One program has a whole file for itself, on the owner's host.
fn writes_pass_a_stopped_daemon_and_last(cluster: &mut Cluster, first: &Path, second: &Path) {
    const LEN: usize = 1 << 20;
    let (here, there) = (first.join("alone"), second.join("alone"));
    fs::write(&here, vec![1; LEN]).unwrap();
    let file = File::options().read(true).write(true).open(&here).unwrap();
    let before = fs::metadata(&there).unwrap().modified().unwrap();
    let explain = |cluster: &mut Cluster, path: &Path| {
        let told = cluster.command(&["explain", &path.to_string_lossy()]);
        told.unwrap()
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let past = "programs on node-1 that open it for writing use the local file itself";
    let told = explain(cluster, &here);
    assert!(told.contains(past), "{told}");
    let told = explain(cluster, &there);
    let through = "programs on node-2 write it through the daemon: this node does not own it";
    assert!(told.contains(through), "{told}");
    // With the first write the kernel asks whether the file is a program with privileges.
    file.write_all_at(&[1], 0).unwrap();
    cluster.kill(1, Signal::STOP).unwrap();
    let (sender, written) = channel();
    let writer = {
        let file = file.try_clone().unwrap();
        std::thread::spawn(move || {
            file.write_all_at(b"inside", 70_000).unwrap();
            file.write_all_at(b"beyond", LEN as u64 + 9_000).unwrap();
            _ = sender.send(());
        })
    };
    let passed = written.recv_timeout(Duration::from_secs(1)).is_ok();
    cluster.kill(1, Signal::CONT).unwrap();
    writer.join().unwrap();
    assert!(passed, "writes waited for the daemon");
    let len = LEN as u64 + 9_006;
    let look = fs::metadata(&there).unwrap();
    assert_eq!(look.len(), len);
    assert!(look.modified().unwrap() > before);
    let expect = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len() as u64, len);
        assert_eq!(&bytes[70_000..70_006], b"inside");
        assert_eq!(&bytes[LEN + 9_000..], b"beyond");
        assert_eq!((bytes[69_999], bytes[LEN + 8_999]), (1, 0));
    };
    expect(&there);
    assert_eq!(file.metadata().unwrap().len(), len);
    // What is the same again has a time, too.
    let looked = fs::metadata(&there).unwrap().modified().unwrap();
    file.write_all_at(b"inside", 70_000).unwrap();
    assert!(fs::metadata(&there).unwrap().modified().unwrap() > looked);
    file.set_modified(before).unwrap();
    assert_eq!(fs::metadata(&there).unwrap().modified().unwrap(), before);
    assert_eq!(fs::metadata(&here).unwrap().modified().unwrap(), before);
    // Another host's write, and a cut of the writer's own.
    let other = File::options().write(true).open(&there).unwrap();
    other.write_all_at(b"other", 70_010).unwrap();
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 70_000).unwrap();
    assert_eq!(&bytes, b"inside\x01\x01\x01\x01other\x01");
    file.write_all_at(b"end", len + 50_000).unwrap();
    file.set_len(len).unwrap();
    assert_eq!(fs::metadata(&there).unwrap().len(), len);
    let mut appending = File::options().append(true).open(&there).unwrap();
    file.write_all_at(b"grown", len).unwrap();
    std::io::Write::write_all(&mut appending, b"appended").unwrap();
    let tail = fs::read(&here).unwrap().split_off(len as usize);
    assert_eq!(tail, b"grownappended");
    file.sync_all().unwrap();
    let bytes = fs::read(&there).unwrap();
    assert_eq!(bytes, fs::read(&here).unwrap());
    // Zeros that look like a hole make it longer, too.
    let len = bytes.len() as u64;
    file.write_all_at(&[0; 8_192], len).unwrap();
    assert_eq!(fs::metadata(&there).unwrap().len(), len + 8_192);
    assert_eq!(fs::read(&there).unwrap().len() as u64, len + 8_192);
    // A cut has a time, and leaves nothing.
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(&there).unwrap().len(), 0);
    drop(file);
    assert!(fs::read(&there).unwrap().is_empty());
}

#[test]
fn no_read_waits_for_ever_beside_the_cuts_of_other_hosts() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
    let [home, others @ ..] = &mounts;
    cuts::run(home, others, SEED).unwrap();
    for node in [1, 2, 3] {
        cluster.umount(node).unwrap();
    }
}

#[test]
fn no_change_waits_for_a_kernel_that_has_forgotten_what_changes() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
    let felt = renames::run(&mounts, SEED, RENAMES_FOR).unwrap();
    println!("calls beside renames between owners: {felt}");
    assert!(felt.p99 < RENAMES_LIMIT, "{felt}");
    for node in [1, 2, 3] {
        cluster.umount(node).unwrap();
    }
}

#[test]
fn writes_to_the_same_pages_do_not_wait_for_each_other() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
    let twice = cluster.path().join("twice");
    fs::create_dir(&twice).unwrap();
    let words = twice.to_string_lossy().into_owned();
    cluster.perigee(&["mount", &words, "--node", "1"]).unwrap();
    for (what, mounts) in [
        ("two mounts of one host", vec![mounts[0].clone(), twice]),
        ("three hosts", mounts.to_vec()),
    ] {
        let felt = pages::run(&mounts, SEED + mounts.len() as u64, PAGES_FOR).unwrap();
        println!("writes to the same pages, {what}: {felt}");
        assert!(felt.p99 < PAGES_LIMIT, "{what}: {felt}");
    }
    cluster.command(&["umount", &words]).unwrap();
    for node in [1, 2, 3] {
        cluster.umount(node).unwrap();
    }
}

#[test]
fn nobody_is_shown_less_than_another_host_was_before() {
    on_three_hosts(|mounts| shown::run(mounts, SEED, SHOWN_FOR));
}

#[test]
fn what_hosts_append_others_see_at_once_and_never_a_place_without_its_record() {
    on_three_hosts(|mounts| appends::run(mounts, SEED, SHOWN_FOR));
}

/// A check on a cluster of its own, that counts what it has looked at.
fn on_three_hosts(check: impl FnOnce(&[PathBuf]) -> Checked<u64>) {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
    assert!(check(&mounts).unwrap() > 0);
    for node in [1, 2, 3] {
        cluster.umount(node).unwrap();
    }
}

#[test]
fn who_is_shown_a_write_knows_that_nobody_is_shown_what_was_before() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(4).unwrap();
    let mounts: BTreeMap<u32, PathBuf> = (1..=4)
        .map(|node| (node, cluster.mount(node).unwrap()))
        .collect();
    fs::write(mounts[&1].join("file"), "old").unwrap();
    let owner = cluster.owner(&mounts[&1].join("file")).unwrap();
    let chains = cluster.chains().unwrap();
    let chain = chains.into_iter().find(|chain| chain[0] == owner).unwrap();
    let outside = (1..=4).find(|node| !chain.contains(node)).unwrap();

    // Its kernel answers from what it keeps while nobody can tell it to forget.
    let kept = Arc::new(File::open(mounts[&outside].join("file")).unwrap());
    assert_eq!(content(&kept), "old");
    kept.metadata().unwrap();
    cluster.kill(outside, Signal::STOP).unwrap();
    let before = later(&kept).recv_timeout(Duration::from_millis(300));
    let file = mounts[&owner].join("file");
    let writer = later_do(move || {
        File::options()
            .write(true)
            .open(file)?
            .write_all_at(b"new", 0)
    });
    wait::until("another host is shown the write", LIMIT, || {
        let shown = fs::read(mounts[&chain[1]].join("file")).unwrap();
        Ok((shown == b"new").then_some(()))
    })
    .unwrap();
    let after = later(&kept);
    let at_once = after.recv_timeout(Duration::from_millis(300));
    cluster.kill(outside, Signal::CONT).unwrap();
    assert_eq!(before.unwrap(), "old", "it keeps the file");
    assert_ne!(at_once.as_deref(), Ok("old"));
    let at_last = at_once.or_else(|_| after.recv_timeout(LIMIT));
    assert_eq!(at_last.unwrap(), "new");
    writer.recv_timeout(LIMIT).unwrap().unwrap();
}

/// Longer than any lease, and than a change of a chain.
const LIMIT: Duration = Duration::from_secs(20);

fn content(file: &File) -> String {
    let mut content = [0; 3];
    file.read_exact_at(&mut content, 0).unwrap();
    String::from_utf8(content.to_vec()).unwrap()
}

/// What a file holds, when the read has ended.
fn later(file: &Arc<File>) -> Receiver<String> {
    let file = file.clone();
    later_do(move || content(&file))
}

/// The outcome of a call that may hang, on a thread of its own.
fn later_do<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(call()));
    receiver
}

fn random_operations_agree_with_a_local_directory(
    first: &std::path::Path,
    second: &std::path::Path,
) {
    let seed = std::env::var("PERIGEE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(SEED);
    let local = Workspace::new().unwrap();
    let model = local.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::create_dir(first.join("model")).unwrap();
    let hosts = vec![first.join("model"), second.join("model")];
    let sides = model::Sides { hosts, model };
    model::run(&sides, seed, 4_000).unwrap();
}
