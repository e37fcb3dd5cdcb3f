//! A node leaves while programs work: nothing is lost, and everything has as many copies as before.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Call, Cluster, program, wait};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

/// Longest wait of a program for an owner that leaves: the leases that it granted, and rest for a busy machine.
const SERVICE_GOES_ON: Duration = Duration::from_secs(20);

/// What a program did in its file.
struct Done {
    lines: u64,
    worst: Duration,
}

/// When a program has its file put on the disks.
#[derive(Clone, Copy)]
enum Sync {
    NowAndThen,
    AtTheEnd,
}

/// Appends numbers until told to stop; every call must succeed.
fn append(path: &Path, sync: Sync, stop: &AtomicBool) -> Done {
    let mut log = fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    let (mut lines, mut worst) = (0, Duration::ZERO);
    while !stop.load(Ordering::SeqCst) {
        let began = Instant::now();
        log.write_all(format!("{lines:09}\n").as_bytes()).unwrap();
        if matches!(sync, Sync::NowAndThen) && lines % 64 == 0 {
            log.sync_all().unwrap();
        }
        worst = worst.max(began.elapsed());
        lines += 1;
        yield_now();
    }
    log.sync_all().unwrap();
    Done { lines, worst }
}

fn expected(lines: u64) -> String {
    (0..lines).map(|number| format!("{number:09}\n")).collect()
}

/// What a command that is refused says.
fn refusal(cluster: &mut Cluster, arguments: &[&str]) -> String {
    let ended = cluster.on_this(arguments).unwrap();
    assert!(!ended.status.success(), "{arguments:?} was done");
    ended.stderr
}

#[test]
fn a_node_is_drained_under_load_and_removed() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(4).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::create_dir(second.join("there")).unwrap();
    let content = |number: u32| vec![number as u8; 100_000];
    (0..60)
        .for_each(|number| fs::write(first.join(format!("f{number}")), content(number)).unwrap());
    // What replaces bytes has no record for seconds: it must go along all the same.
    fs::write(first.join("replaced"), vec![b'0'; 1 << 20]).unwrap();

    let stop = AtomicBool::new(false);
    // Whatever the moment at which the owner leaves, the third has then written what no fsync has covered.
    let logs = [
        (first.join("log"), Sync::NowAndThen),
        (second.join("there/log"), Sync::NowAndThen),
        (first.join("unsynced"), Sync::AtTheEnd),
    ];
    let done = scope(|scope| {
        let writers = logs
            .each_ref()
            .map(|(path, sync)| scope.spawn(|| append(path, *sync, &stop)));
        fs::write(first.join("replaced"), vec![b'1'; 1 << 20]).unwrap();
        cluster.perigee(&["drain", "node-1"]).unwrap();
        stop.store(true, Ordering::SeqCst);
        writers.map(|writer| writer.join().unwrap())
    });
    for (Done { lines, worst }, name) in done.iter().zip(["log", "there/log", "unsynced"]) {
        eprintln!("{name}: {lines} lines, longest call {worst:?}");
        assert!(*worst < SERVICE_GOES_ON, "a call took {worst:?}");
        for mount in [&first, &second] {
            let seen = fs::read_to_string(mount.join(name)).unwrap();
            assert!(seen == expected(*lines), "{name} is not what was written");
        }
    }
    for chain in cluster.chains().unwrap() {
        assert!(chain.len() == 3 && !chain.contains(&1), "{chain:?}");
    }

    let objects = cluster.dir().join("node-1/store/objects");
    wait::until(
        "the drained node's copies are freed",
        SERVICE_GOES_ON,
        || {
            let left = fs::read_dir(&objects).call(|| format!("list {}", objects.display()))?;
            Ok((left.count() == 0).then_some(()))
        },
    )
    .unwrap();

    let refused = refusal(&mut cluster, &["remove", "node-1"]);
    assert!(refused.contains("is mounted through it"), "{refused}");
    cluster.umount(1).unwrap();
    cluster.perigee(&["remove", "node-1"]).unwrap();
    let ids: Vec<u32> = cluster.status().unwrap().iter().map(|n| n.id).collect();
    assert_eq!(ids, [2, 3, 4]);
    for number in 0..60 {
        let seen = fs::read(second.join(format!("f{number}"))).unwrap();
        assert!(seen == content(number), "f{number}");
    }
    assert!(fs::read(second.join("replaced")).unwrap() == vec![b'1'; 1 << 20]);

    let refused = refusal(&mut cluster, &["drain", "node-2"]);
    assert!(refused.contains("2 other nodes store data"), "{refused}");
    let drain = ["drain", "node-2", "--fewer-copies", "--no-wait"];
    cluster.perigee(&drain).unwrap();
    cluster.perigee(&["drain", "node-2", "--undo"]).unwrap();
    cluster
        .perigee(&["drain", "node-3", "--fewer-copies"])
        .unwrap();
    cluster.perigee(&["remove", "node-3"]).unwrap();
    for chain in cluster.chains().unwrap() {
        assert!(chain.len() <= 2 && !chain.contains(&3), "{chain:?}");
    }
    cluster
        .perigee(&["drain", "node-4", "--fewer-copies"])
        .unwrap();
    let refused = refusal(&mut cluster, &["drain", "node-2", "--fewer-copies"]);
    assert!(refused.contains("nobody can take"), "{refused}");
    assert!(fs::read(second.join("f7")).unwrap() == content(7));
}
