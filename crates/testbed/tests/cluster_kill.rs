//! Nodes die with SIGKILL: law 3 with real processes. `perigee-testbed kill` is the long form.

use perigee_testbed::campaign::{self, Kills, Victim};
use perigee_testbed::checks::kill_write;
use perigee_testbed::map::{Access, Shared};
use perigee_testbed::side::{Heard, Side};
use perigee_testbed::{Cluster, program, wait};
use perigee_types::Rng;
use rustix::fs::{Advice, fadvise};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for a dead owner's successor: its lease has ended within 5 s; the rest is for a busy
/// machine.
const SERVICE_GOES_ON: Duration = Duration::from_secs(20);

/// Longest wait until another node has a copy in place of one that is away: it is waited for 30 s.
const REPLACED: Duration = Duration::from_secs(60);

#[test]
fn no_fsynced_byte_is_lost_when_a_node_is_killed_during_a_write() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let kills = Kills {
        rounds: 3,
        size: 64 << 20,
        sync_every: 8 << 20,
        seed: 11,
        victim: Victim::Anyone,
    };
    let owners = Kills {
        rounds: 2,
        seed: 12,
        victim: Victim::Owner,
        ..kills
    };
    let mut rounds = Vec::new();
    for kills in [kills, owners] {
        let done = campaign::kill_rounds(&mut cluster, kills, |number, round| {
            eprintln!("round {number}: {round:?}");
        });
        rounds.extend(done.unwrap());
    }
    let pauses = kill_write::pauses(&rounds).unwrap();
    eprintln!("{pauses:?}");
    let worst = pauses.worst;
    assert!(worst < SERVICE_GOES_ON, "a call took {worst:?}");
}

#[test]
fn fsynced_names_survive_the_crash_of_all_nodes() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let kept = campaign::crash_all_names(&mut cluster, 5, 150).unwrap();
    assert!(kept >= 100, "only {kept} promises");
}

/// A stopped owner is replaced, and when it wakes up it neither serves old data nor undoes new data.
#[test]
fn a_node_that_slept_through_a_takeover_is_fenced() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::write(first.join("f"), "written by the first").unwrap();
    assert_eq!(
        fs::read_to_string(second.join("f")).unwrap(),
        "written by the first"
    );

    cluster.kill(1, Signal::STOP).unwrap();
    let start = Instant::now();
    fs::write(second.join("f"), "written while it slept").unwrap();
    assert!(
        start.elapsed() < SERVICE_GOES_ON,
        "took {:?}",
        start.elapsed()
    );
    fs::write(second.join("g"), "new").unwrap();
    cluster.kill(1, Signal::CONT).unwrap();

    // The first answer after its sleep already counts.
    assert_eq!(
        fs::read_to_string(first.join("f")).unwrap(),
        "written while it slept"
    );
    assert_eq!(fs::read_to_string(first.join("g")).unwrap(), "new");
    cluster.settle().unwrap();
    assert_eq!(
        fs::read_to_string(second.join("f")).unwrap(),
        "written while it slept"
    );
}

/// An owner that is back before it was replaced misses what it had in memory alone: the others have it.
#[test]
fn an_owner_that_comes_back_at_once_has_what_other_hosts_were_promised() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (second, third) = (cluster.mount(2).unwrap(), cluster.mount(3).unwrap());
    for round in 0..4 {
        let first = cluster.mount(1).unwrap();
        let write = |name: String, content: &str| fs::write(second.join(name), content).unwrap();
        (0..30).for_each(|number| write(format!("f{number}"), &format!("old {round}")));
        (0..30).for_each(|number| write(format!("f{number}"), &format!("new {round}")));
        // What its own programs did last, and nobody else has, must not take the rest along.
        let own = fs::File::create(first.join(format!("own {round}"))).unwrap();
        (0..400).for_each(|at| own.write_all_at(&[7; 40_000], at * 40_000).unwrap());
        cluster.kill(1, Signal::KILL).unwrap();
        cluster.up().unwrap();
        for number in 0..30 {
            let seen = fs::read_to_string(third.join(format!("f{number}"))).unwrap();
            assert_eq!(seen, format!("new {round}"), "f{number}");
        }
        cluster.settle().unwrap();
    }
}

/// What other hosts were shown of small files is on the disk of the owner that wrote them, too: when nobody has what came
/// last, it goes on with what it has.
#[test]
fn an_owner_that_comes_back_at_once_shows_what_it_had_shown() {
    const FILES: usize = 8;
    /// How often each file is read before the owner dies.
    const READS: u64 = 5;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (second, third) = (cluster.mount(2).unwrap(), cluster.mount(3).unwrap());
    let names: Vec<String> = (0..FILES).map(|file| format!("f{file}")).collect();
    for round in 0..6 {
        let first = cluster.mount(1).unwrap();
        let written: Vec<fs::File> = names
            .iter()
            .map(|name| {
                fs::write(first.join(name), [0; 8]).unwrap();
                fs::File::options()
                    .write(true)
                    .open(first.join(name))
                    .unwrap()
            })
            .collect();
        let shown: Vec<AtomicU64> = names.iter().map(|_| AtomicU64::new(0)).collect();
        let (reads, dead) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut values = (1_u64..).flat_map(|value| [value; FILES]);
                let mut files = written.iter().cycle();
                while !dead.load(Ordering::SeqCst)
                    && let (Some(file), Some(value)) = (files.next(), values.next())
                {
                    // The last one meets the end of its daemon.
                    _ = file.write_all_at(&value.to_le_bytes(), 0);
                }
            });
            scope.spawn(|| {
                while !dead.load(Ordering::SeqCst) {
                    for (name, shown) in names.iter().zip(&shown) {
                        shown.fetch_max(number(&second.join(name)), Ordering::SeqCst);
                    }
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            });
            let read = wait::until("the files are read", SERVICE_GOES_ON, || {
                Ok((reads.load(Ordering::SeqCst) >= READS).then_some(()))
            });
            let killed = cluster.kill(1, Signal::KILL);
            dead.store(true, Ordering::SeqCst);
            read.unwrap();
            killed.unwrap();
            cluster.up().unwrap();
        });
        for (name, shown) in names.iter().zip(&shown) {
            let (now, shown) = (number(&third.join(name)), shown.load(Ordering::SeqCst));
            assert!(
                now >= shown,
                "{name} holds {now} after {shown} was shown, in round {round}"
            );
        }
        cluster.settle().unwrap();
    }
}

/// What a file of eight bytes holds.
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
fn number(path: &Path) -> u64 {
    let content = fs::read(path).unwrap();
    u64::from_le_bytes(content.try_into().unwrap())
}

/// Writes that replaced bytes, got to their own host's disk and had no record yet when its daemon died: the files are
/// the same on every host afterwards, with them or without.
#[test]
fn an_owner_that_comes_back_at_once_shows_what_the_others_show() {
    const BLOCK: usize = 4_096;
    const BLOCKS: u64 = 1_024;
    /// Between two blocks. Each is written once: one that is written again after a sync would not look valid.
    const PACE: Duration = Duration::from_millis(10);
    /// What a file grows by is recorded at once, and within 3 s the owner syncs it. A sync right after the record finds
    /// nothing that has none, but it cannot come right after both of these.
    const GROWN_AT: [u64; 2] = [0, 150];
    /// Until after these syncs.
    const WRITTEN: u64 = 700;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, third) = (cluster.mount(1).unwrap(), cluster.mount(3).unwrap());
    let names = ["f", "g"];
    let files = names.map(|name| {
        let path = first.join(name);
        fs::write(&path, vec![b'0'; BLOCK * BLOCKS as usize]).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.sync_all().unwrap();
        file
    });
    let began = Instant::now();
    for block in 0..WRITTEN {
        for (file, grown_at) in files.iter().zip(GROWN_AT) {
            if block == grown_at {
                file.write_all_at(b"grown", BLOCKS * BLOCK as u64).unwrap();
            }
            file.write_all_at(&[b'1'; BLOCK], block * BLOCK as u64)
                .unwrap();
        }
        std::thread::sleep((PACE * block as u32).saturating_sub(began.elapsed()));
    }
    cluster.kill(1, Signal::KILL).unwrap();
    cluster.up().unwrap();
    let first = cluster.mount(1).unwrap();
    for name in names {
        let (here, there) = (fs::read(first.join(name)), fs::read(third.join(name)));
        let (here, there) = (here.unwrap(), there.unwrap());
        assert_eq!(here.len(), there.len());
        let differ = here.chunks(BLOCK).zip(there.chunks(BLOCK));
        let differ = differ.filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "blocks of {name} differ");
    }
}

/// Writes without a record, of an owner that was left alone and died: a member that comes back after it shows the same.
#[test]
fn an_owner_that_dies_alone_shows_what_a_returning_member_shows() {
    const LEN: usize = 1 << 20;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let first = cluster.mount(1).unwrap();
    let path = first.join("f");
    fs::write(&path, vec![b'0'; LEN]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    cluster.settle().unwrap();
    // The member's disk has to know that it has all of `f`, or it would fetch that anew: it says so with later records,
    // some seconds after.
    for name in ["g", "h", "i"] {
        std::thread::sleep(Duration::from_secs(4));
        fs::write(first.join(name), b"more").unwrap();
    }
    cluster.kill(2, Signal::KILL).unwrap();
    wait::until("the owner goes on alone", SERVICE_GOES_ON, || {
        let chains = cluster.chains()?;
        Ok((chains[0] == [1]).then_some(()))
    })
    .unwrap();
    // Replaces bytes: no record is due for two seconds.
    file.write_all_at(&[b'1'; 8_192], 100_000).unwrap();
    cluster.kill(1, Signal::KILL).unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let here = fs::read(first.join("f")).unwrap();
    // The first time the owner answers, and allows this host to read its own copy from then on.
    for round in 0..3 {
        let there = fs::File::open(second.join("f")).unwrap();
        fadvise(&there, 0, None, Advice::DontNeed).unwrap();
        let there = fs::read(second.join("f")).unwrap();
        assert!(here == there, "two hosts read two contents, round {round}");
    }
}

/// The host whose append lost its owner on the way becomes the owner itself, and carries it out once.
#[test]
fn an_append_that_meets_the_owners_death_is_there_once() {
    const AFTER: u64 = 20;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    for round in 0..3 {
        let [owner, next] = cluster.chains().unwrap()[0][..2] else {
            panic!("no chain of two");
        };
        let path = cluster.mount(next).unwrap().join(format!("log {round}"));
        fs::write(&path, "").unwrap();
        let (appended, killed) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
                for number in 0_u64.. {
                    log.write_all(&number.to_le_bytes()).unwrap();
                    appended.store(number, Ordering::SeqCst);
                    if killed.load(Ordering::SeqCst).saturating_add(AFTER) < number {
                        break;
                    }
                }
            });
            wait::until("the appends are under way", SERVICE_GOES_ON, || {
                Ok((appended.load(Ordering::SeqCst) > 50).then_some(()))
            })
            .unwrap();
            cluster.kill(owner, Signal::KILL).unwrap();
            killed.store(appended.load(Ordering::SeqCst), Ordering::SeqCst);
        });
        let seen = fs::read(&path).unwrap();
        let numbers = seen
            .chunks(8)
            .map(|number| u64::from_le_bytes(number.try_into().unwrap()));
        let count = appended.load(Ordering::SeqCst) + 1;
        assert!(
            numbers.eq(0..count),
            "not every number once, in round {round}"
        );
        cluster.up().unwrap();
        cluster.settle().unwrap();
    }
}

/// What a program wrote before its host slept through a takeover is lost: fsync must say so, once.
#[test]
fn fsync_tells_of_work_that_went_with_an_ownership() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let open = |name: &str| {
        let path = first.join(name);
        fs::write(&path, "old").unwrap();
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.sync_all().unwrap();
        file
    };
    let (mut changed, unchanged) = (open("changed"), open("unchanged"));
    let other = changed.try_clone().unwrap();
    let apart = fs::File::open(first.join("changed")).unwrap();
    // Bytes that replace others wait for seconds before anybody else hears of them.
    changed.write_all(b"new").unwrap();
    cluster.kill(1, Signal::STOP).unwrap();
    assert_eq!(fs::read_to_string(second.join("changed")).unwrap(), "old");
    cluster.kill(1, Signal::CONT).unwrap();

    let told = changed.sync_all().unwrap_err();
    assert_eq!(
        told.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    other.sync_all().expect("the same descriptor was told");
    assert!(apart.sync_all().is_err(), "another one was not");
    unchanged.sync_all().expect("nothing of it was lost");
    cluster.settle().unwrap();
    changed.write_all_at(b"new", 0).unwrap();
    changed.sync_all().unwrap();
    assert_eq!(fs::read_to_string(second.join("changed")).unwrap(), "new");
}

/// Who stops a cluster may lose a disk before it starts again: also what was not synced is on the others.
#[test]
fn a_clean_stop_leaves_everything_on_every_copy() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let owner = cluster.chains().unwrap()[0][0];
    let writer = cluster.mount(owner).unwrap();
    cluster.settle().unwrap();
    let content = |number: usize| vec![number as u8; 200 * number * number];
    for number in 1..60 {
        fs::write(writer.join(format!("f{number}")), content(number)).unwrap();
    }
    fs::write(writer.join("f59"), content(58)).unwrap();
    cluster.down().unwrap();
    let store = cluster.dir().join(format!("node-{owner}/store"));
    fs::remove_dir_all(store).unwrap();
    cluster.up().unwrap();
    let other = (1..=3).find(|node| *node != owner).unwrap();
    let reader = cluster.mount(other).unwrap();
    for number in 1..59 {
        let seen = fs::read(reader.join(format!("f{number}"))).unwrap();
        assert!(seen == content(number), "f{number}");
    }
    assert!(fs::read(reader.join("f59")).unwrap() == content(58));
}

/// One file after random changes, and what it has to hold.
fn change(path: &std::path::Path, rng: &mut Rng) -> std::io::Result<Vec<u8>> {
    const LEN_MAX: u64 = 200_000;
    let file = fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .open(path)?;
    let mut content: Vec<u8> = Vec::new();
    for _ in 0..1 + rng.below(8) {
        let at = rng.below(LEN_MAX / 2) as usize;
        let len = 1 + rng.below(LEN_MAX / 2) as usize;
        match rng.below(6) {
            0 | 1 => {
                let bytes = vec![rng.below(256) as u8; len];
                file.write_all_at(&bytes, at as u64)?;
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&bytes);
            }
            2 => {
                file.set_len(at as u64)?;
                content.resize(at, 0);
            }
            3 => {
                file.set_len(0)?;
                content.clear();
            }
            4 => {
                let end = (at + len).min(content.len());
                content[at.min(end)..end].fill(0);
                use rustix::fs::{FallocateFlags, fallocate};
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, punch, at as u64, len as u64)?;
            }
            _ => file.sync_all()?,
        }
    }
    file.sync_all()?;
    Ok(content)
}

/// The power fails everywhere, and one disk does not come back: what fsync has promised is there all the same.
#[test]
fn synced_files_survive_the_crash_of_all_nodes_and_the_loss_of_a_disk() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mut rng = Rng::new(7);
    let mut wanted: std::collections::BTreeMap<String, Vec<u8>> = Default::default();
    for round in 0..4 {
        let writer = cluster.mount(1 + rng.below(3) as u32).unwrap();
        for number in 0..40 {
            // Half of them were there before.
            let name = format!("f{}", number + 20 * round);
            let content = change(&writer.join(&name), &mut rng).unwrap();
            wanted.insert(name, content);
        }
        fs::File::open(&writer).unwrap().sync_all().unwrap();
        (1..=3).for_each(|node| cluster.kill(node, Signal::KILL).unwrap());
        let lost = 1 + rng.below(3) as u32;
        if round > 0 {
            fs::remove_dir_all(cluster.dir().join(format!("node-{lost}/store"))).unwrap();
        }
        cluster.up().unwrap();
        let other = (1..=3).find(|node| *node != lost).unwrap();
        let reader = cluster.mount(other).unwrap();
        for (name, content) in &wanted {
            let seen = fs::read(reader.join(name)).unwrap();
            assert!(
                seen == *content,
                "{name} in round {round}, node {lost} lost"
            );
        }
        cluster.settle().unwrap();
    }
}

/// The bytes behind the cut are nowhere: there is nobody to ask for them, and nothing to put in their place.
#[test]
fn a_file_that_was_cut_by_an_owner_that_died_alone_can_be_used_at_once() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let writer = cluster.mount(1).unwrap();
    let file = fs::File::create(writer.join("f")).unwrap();
    file.write_all_at(&[7; 100_000], 0).unwrap();
    file.sync_all().unwrap();
    (2..=3).for_each(|node| cluster.kill(node, Signal::KILL).unwrap());
    wait::until("the owner is alone", SERVICE_GOES_ON, || {
        Ok((cluster.chains()?[0] == [1]).then_some(()))
    })
    .unwrap();
    file.set_len(30_000).unwrap();
    // With what is synced of another file the record of the cut is there for good, and the cut itself need not be.
    let other = fs::File::create(writer.join("g")).unwrap();
    other.sync_all().unwrap();
    drop((file, other));
    cluster.kill(1, Signal::KILL).unwrap();
    cluster.up().unwrap();
    let writer = cluster.mount(1).unwrap();
    let began = Instant::now();
    let file = fs::OpenOptions::new().write(true).open(writer.join("f"));
    let file = file.unwrap();
    file.write_all_at(b"after", 29_000).unwrap();
    file.sync_all().unwrap();
    assert!(began.elapsed() < SERVICE_GOES_ON, "{:?}", began.elapsed());
    cluster.settle().unwrap();
    let reader = cluster.mount(2).unwrap();
    let seen = fs::read(reader.join("f")).unwrap();
    assert_eq!(seen.len(), 30_000);
    assert_eq!(&seen[29_000..29_005], b"after");
}

/// A restart is no reason to copy everything to another node.
#[test]
fn a_member_that_is_away_for_a_moment_gets_its_place_back() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(4).unwrap();
    let writer = cluster.mount(1).unwrap();
    fs::write(writer.join("f"), vec![b'x'; 4 << 20]).unwrap();
    let before = cluster.chains().unwrap();
    for away in [before[0][2], before[0][0]] {
        let without = |chains: &[Vec<u32>]| chains.iter().all(|chain| !chain.contains(&away));
        cluster.kill(away, Signal::KILL).unwrap();
        wait::until("the others go on without it", SERVICE_GOES_ON, || {
            Ok(without(&cluster.chains()?).then_some(()))
        })
        .unwrap();
        cluster.up().unwrap();
        wait::until("it has its places back", SERVICE_GOES_ON, || {
            let mut chains = cluster.chains()?;
            let mut wanted = before.clone();
            for chain in chains.iter_mut().chain(&mut wanted) {
                chain.sort_unstable();
            }
            Ok((chains == wanted).then_some(()))
        })
        .unwrap();
    }
}

/// A member that slept until another node took its place has an old copy, of which nobody told it what it lacks.
#[test]
fn a_node_that_was_replaced_in_its_sleep_does_not_read_its_own_copy() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(4).unwrap();
    let writer = cluster.mount(1).unwrap();
    for number in 0..20 {
        fs::write(writer.join(format!("f{number}")), "old").unwrap();
    }
    // The root directory's container belongs to the first node from its beginning.
    let sleeper = cluster.chains().unwrap()[0][1];
    let reader = cluster.mount(sleeper).unwrap();
    assert_eq!(fs::read_to_string(reader.join("f0")).unwrap(), "old");

    cluster.kill(sleeper, Signal::STOP).unwrap();
    wait::until("the sleeper is replaced", REPLACED, || {
        let chain = &cluster.chains()?[0];
        Ok((chain.len() == 3 && !chain.contains(&sleeper)).then_some(()))
    })
    .unwrap();
    for number in 0..20 {
        fs::write(writer.join(format!("f{number}")), "new").unwrap();
    }
    cluster.kill(sleeper, Signal::CONT).unwrap();
    // The first read of each asks the owner; what that allows, the next ones do.
    for _ in 0..3 {
        for number in 0..20 {
            let seen = fs::read_to_string(reader.join(format!("f{number}"))).unwrap();
            assert_eq!(seen, "new", "f{number}");
        }
    }
}

/// A dead daemon's mount gives errors instead of hanging, and can be made anew.
#[test]
fn the_mount_of_a_dead_daemon_does_not_hang() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mount = cluster.mount(3).unwrap();
    fs::write(mount.join("f"), "content").unwrap();
    fs::File::open(mount.join("f")).unwrap().sync_all().unwrap();
    cluster.kill(3, Signal::KILL).unwrap();
    let start = Instant::now();
    assert!(fs::read_dir(&mount).is_err());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "took {:?}",
        start.elapsed()
    );
    cluster.up().unwrap();
    let mount = cluster.mount(3).unwrap();
    assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "content");
}

/// Locks end with the host of their holder: when it stays away, and when its daemon is made anew.
#[test]
fn the_locks_of_a_dead_host_end() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let here = cluster.mount(1).unwrap();
    fs::write(here.join("f"), "locked").unwrap();
    for comes_back_at_once in [false, true] {
        let there = cluster.mount(2).unwrap();
        let (mut holder, mut waiter) = (locker(&there), locker(&here));
        for take in ["flock exclusive refuse", "fcntl exclusive 0 0 refuse"] {
            assert_eq!(holder.ask(take, SERVICE_GOES_ON).unwrap(), "ok");
            assert_eq!(waiter.ask(take, SERVICE_GOES_ON).unwrap(), "refused");
        }
        cluster.kill(2, Signal::KILL).unwrap();
        if comes_back_at_once {
            cluster.up().unwrap();
        }
        for take in ["flock exclusive wait", "fcntl exclusive 0 0 wait"] {
            assert_eq!(waiter.ask(take, SERVICE_GOES_ON).unwrap(), "ok");
        }
        cluster.up().unwrap();
        cluster.settle().unwrap();
    }
    // A holder whose host lives keeps its lock, however long.
    let there = cluster.mount(2).unwrap();
    let (mut holder, mut waiter) = (locker(&there), locker(&here));
    assert_eq!(
        holder.ask("flock shared refuse", SERVICE_GOES_ON).unwrap(),
        "ok"
    );
    waiter.send("flock exclusive wait").unwrap();
    assert_eq!(waiter.hear(Duration::from_secs(8)), Heard::Silence);
    assert_eq!(
        holder.ask("flock free refuse", SERVICE_GOES_ON).unwrap(),
        "ok"
    );
    let granted = waiter.answer("the lock is granted", SERVICE_GOES_ON);
    assert_eq!(granted.unwrap(), "ok");
}

/// A lock and the wait for it go on at the owner's successor.
#[test]
fn a_wait_for_a_lock_outlives_the_owner() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(2).unwrap(), cluster.mount(3).unwrap());
    fs::write(first.join("f"), "locked").unwrap();
    let (mut holder, mut waiter) = (locker(&first), locker(&second));
    let take = "fcntl exclusive 0 0 refuse";
    assert_eq!(holder.ask(take, SERVICE_GOES_ON).unwrap(), "ok");
    waiter.send("fcntl exclusive 0 0 wait").unwrap();
    assert_eq!(waiter.hear(Duration::from_millis(300)), Heard::Silence);
    // The root directory's container belongs to the first node from its beginning.
    cluster.kill(1, Signal::KILL).unwrap();
    assert_eq!(waiter.hear(Duration::from_secs(6)), Heard::Silence);
    let free = "fcntl free 0 0 refuse";
    assert_eq!(holder.ask(free, SERVICE_GOES_ON).unwrap(), "ok");
    let granted = waiter.answer("the lock is granted", SERVICE_GOES_ON);
    assert_eq!(granted.unwrap(), "ok");
    // The successor finds cycles, too.
    let ask = |side: &mut Side, what: &str| side.ask(what, SERVICE_GOES_ON).unwrap();
    assert_eq!(ask(&mut waiter, free), "ok");
    assert_eq!(ask(&mut holder, "fcntl exclusive 0 1 refuse"), "ok");
    assert_eq!(ask(&mut waiter, "fcntl exclusive 1 1 refuse"), "ok");
    holder.send("fcntl exclusive 1 1 wait").unwrap();
    assert_eq!(holder.hear(Duration::from_millis(300)), Heard::Silence);
    assert_eq!(ask(&mut waiter, "fcntl exclusive 0 1 wait"), "deadlock");
}

/// A host that slept for so long that its locks were given to others writes nothing under them until it lets go.
#[test]
fn who_lost_a_lock_in_its_sleep_writes_nothing_under_it() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::write(here.join("f"), "locked").unwrap();
    let (mut sleeper, mut waiter) = (locker(&there), locker(&here));
    let ask = |side: &mut Side, what: &str| side.ask(what, SERVICE_GOES_ON).unwrap();
    assert_eq!(ask(&mut sleeper, "fcntl exclusive 0 0 refuse"), "ok");
    assert_eq!(ask(&mut sleeper, "write"), "ok");
    cluster.kill(2, Signal::STOP).unwrap();
    assert_eq!(ask(&mut waiter, "fcntl exclusive 0 0 wait"), "ok");
    cluster.kill(2, Signal::CONT).unwrap();
    let written = ask(&mut sleeper, "write");
    assert!(
        written.starts_with("failed Input/output error"),
        "{written}"
    );
    assert_eq!(ask(&mut sleeper, "fcntl shared 0 1 refuse"), "refused");
    // Once it has let go it may have the lock again.
    assert_eq!(ask(&mut sleeper, "fcntl free 0 0 refuse"), "ok");
    assert_eq!(ask(&mut waiter, "fcntl free 0 0 refuse"), "ok");
    assert_eq!(ask(&mut sleeper, "fcntl exclusive 0 0 wait"), "ok");
    assert_eq!(ask(&mut sleeper, "write"), "ok");
}

/// A process that locks a file of `mount`.
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
fn locker(mount: &std::path::Path) -> Side {
    let path = mount.join("f").to_string_lossy().into_owned();
    let side = Side::spawn(&program::testbed().unwrap(), &["locker", &path]).unwrap();
    side.answer("a locker starts", SERVICE_GOES_ON).unwrap();
    side
}

/// Stores through a map pass the daemon by while another program reads the file past it: fsync finds
/// them all the same, and they are on the other members when it returns.
#[test]
fn an_fsynced_store_through_a_map_outlives_its_host() {
    const BYTES: usize = 1 << 20;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let path = first.join("f");
    let mut content = vec![7; BYTES];
    fs::write(&path, &content).unwrap();
    let reader = fs::File::open(&path).unwrap();
    reader.sync_all().unwrap();
    let writer = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut map = Shared::new(&writer, BYTES, Access::Write).unwrap();
    for at in [0, 4_090, 300_000, BYTES - 6] {
        assert!(map.store(at, b"stored"));
        content[at..at + 6].copy_from_slice(b"stored");
    }
    writer.sync_all().unwrap();

    cluster.kill(1, Signal::KILL).unwrap();
    assert!(
        fs::read(second.join("f")).unwrap() == content,
        "what fsync acknowledged is not what the next owner has"
    );
    drop((map, writer, reader));
}
