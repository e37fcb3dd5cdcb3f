//! A member whose disk is full, while the owner's is not.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, disk, pattern, wait};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// The disk of node 3.
const SMALL: usize = 160;
const WATCHDOG: Duration = Duration::from_secs(300);
/// Nothing may take longer than this: a hang is no answer.
const LIMIT: Duration = Duration::from_secs(30);

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// Writes `count` MiB from the front; how many there was room for.
fn write(file: &File, seed: u64, count: usize) -> usize {
    let mut content = vec![0; MIB];
    for at in 0..count {
        let offset = (at * MIB) as u64;
        pattern::fill(seed, offset, &mut content);
        let wrote = file.write_all_at(&content, offset);
        if let Err(error) = wrote {
            assert!(is_full(&error), "{error}");
            return at;
        }
    }
    count
}

fn holds(path: &Path, seed: u64, count: usize) {
    let bytes = fs::read(path).unwrap();
    let content = bytes.get(..count * MIB).unwrap();
    assert_eq!(pattern::first_difference(seed, 0, content), None);
}

fn all_are_up(cluster: &mut Cluster) {
    let nodes = cluster.status().unwrap();
    assert!(nodes.iter().all(|node| node.state == "up"), "{nodes:?}");
}

#[test]
fn a_member_without_room_is_an_error_in_time_and_harms_nothing() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: mounting a small disk needs root");
    }
    let small_disk = |dir: &Path| disk::mount_small(&dir.join("node-3"), SMALL as u64);
    let mut cluster = Cluster::start_prepared(3, WATCHDOG, small_disk).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    wait::until("the least room of all copies shows", LIMIT, || {
        let shown = rustix::fs::statvfs(&here).unwrap();
        Ok((shown.f_bavail * shown.f_frsize < (SMALL * MIB) as u64).then_some(()))
    })
    .unwrap();

    // More than it can take.
    let began = Instant::now();
    let file = File::create(here.join("big")).unwrap();
    let took = write(&file, 1, 2 * SMALL);
    assert!((SMALL / 2..SMALL).contains(&took), "{took} MiB");
    file.sync_all().unwrap();
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    holds(&there.join("big"), 1, took);
    all_are_up(&mut cluster);

    // Room again.
    drop(file);
    fs::remove_file(here.join("big")).unwrap();
    let file = File::create(here.join("next")).unwrap();
    wait::until("the room of the removed file", LIMIT, || {
        Ok((write(&file, 2, 40) == 40).then_some(()))
    })
    .unwrap();
    file.sync_all().unwrap();

    // Somebody else takes it.
    let foreign = cluster.dir().join("node-3/foreign");
    disk::fill(&foreign).unwrap();
    let began = Instant::now();
    let late = File::create(here.join("late")).unwrap();
    let took = write(&late, 3, 20);
    let synced = late.sync_all();
    assert!(took < 20 || synced.is_err_and(|error| is_full(&error)));
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    holds(&there.join("next"), 2, 40);
    fs::remove_file(&foreign).unwrap();
    wait::until("fsync once there is room", LIMIT, || {
        Ok((write(&late, 3, 20) == 20 && late.sync_all().is_ok()).then_some(()))
    })
    .unwrap();
    holds(&there.join("late"), 3, 20);
    all_are_up(&mut cluster);
}
