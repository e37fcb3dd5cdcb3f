//! Disks that are full: a member's, while the owner's is not; the one that has the only copy.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, disk, pattern, wait};
use rustix::fs::XattrFlags;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// The disk of node 3.
const SMALL: usize = 160;
const WATCHDOG: Duration = Duration::from_secs(300);
/// Nothing may take longer than this: a hang is no answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Longer than a file's attributes may not be kept after hosts have changed it.
const SETTLED: Duration = Duration::from_millis(700);

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

/// So many nodes, of which one has a small disk; none where this user may not mount one, which is said.
fn with_small_disk(count: u32, small: u32) -> Option<Cluster> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting a small disk needs root");
        return None;
    }
    let small_disk =
        |dir: &Path| disk::mount_small(&dir.join(format!("node-{small}")), SMALL as u64);
    Some(Cluster::start_prepared(count, WATCHDOG, small_disk).unwrap())
}

#[test]
fn a_member_without_room_is_an_error_in_time_and_harms_nothing() {
    let Some(mut cluster) = with_small_disk(3, 3) else {
        return;
    };
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

/// A file in `here` whose first 8 MiB, of seed 1, find no room at a node; and what fills that one's disk.
fn written_where_none_has_room(cluster: &mut Cluster, here: &Path, node: u32) -> (File, PathBuf) {
    // Nobody asks for room in a hole.
    let file = File::create(here.join("holes")).unwrap();
    file.set_len((20 * MIB) as u64).unwrap();
    file.sync_all().unwrap();
    cluster.settle().unwrap();
    let foreign = cluster.dir().join(format!("node-{node}/foreign"));
    disk::fill(&foreign).unwrap();
    assert_eq!(write(&file, 1, 8), 8);
    (file, foreign)
}

/// What a member has no room for is shown to nobody before it is on every disk: that member loses its place.
#[test]
fn who_reads_what_another_host_wrote_is_not_refused_for_want_of_room() {
    let Some(mut cluster) = with_small_disk(3, 3) else {
        return;
    };
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let (file, foreign) = written_where_none_has_room(&mut cluster, &here, 3);
    assert!(is_full(&file.sync_all().unwrap_err()), "the writer is told");
    let began = Instant::now();
    holds(&there.join("holes"), 1, 8);
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    file.sync_all().unwrap();

    fs::remove_file(&foreign).unwrap();
    cluster.settle().unwrap();
    holds(&cluster.mount(3).unwrap().join("holes"), 1, 8);
    all_are_up(&mut cluster);
}

/// The other one has to stay: then the reader is told, whose kernel asks as long as the owner works on it.
#[test]
fn where_only_two_have_a_file_its_reader_is_told_of_the_want_of_room_in_time() {
    let Some(mut cluster) = with_small_disk(2, 2) else {
        return;
    };
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let (file, foreign) = written_where_none_has_room(&mut cluster, &here, 2);
    for told_within in [Duration::from_secs(40), Duration::from_secs(10)] {
        let began = Instant::now();
        assert!(is_full(&fs::read(there.join("holes")).unwrap_err()));
        assert!(began.elapsed() < told_within, "{:?}", began.elapsed());
    }
    assert!(
        is_full(&file.sync_all().unwrap_err()),
        "it is a member still"
    );
    fs::remove_file(&foreign).unwrap();
    wait::until("the bytes are shown once there is room", LIMIT, || {
        Ok(fs::read(there.join("holes")).ok())
    })
    .unwrap();
    holds(&there.join("holes"), 1, 8);
    all_are_up(&mut cluster);
}

/// Names alone do not use up what is left for those who make room; nor do programs that write what is refused.
#[test]
fn the_only_copy_on_a_full_disk_takes_no_more_and_goes_on_once_there_is_room() {
    let Some(mut cluster) = with_small_disk(1, 1) else {
        return;
    };
    let here = cluster.mount(1).unwrap();
    let kept = File::create(here.join("kept")).unwrap();
    assert_eq!(write(&kept, 1, 20), 20);
    kept.sync_all().unwrap();
    let foreign = cluster.dir().join("node-1/foreign");
    disk::fill(&foreign).unwrap();
    let began = Instant::now();
    std::thread::scope(|threads| {
        for writer in 0..4 {
            let here = &here;
            threads.spawn(move || {
                let mut made = 0;
                loop {
                    let name = here.join(format!("{writer}-{made}"));
                    let wrote = File::create(name).and_then(|file| {
                        file.write_all_at(&[7; 100 << 10], 0)?;
                        file.sync_all()
                    });
                    match wrote {
                        Ok(()) => made += 1,
                        Err(error) => break assert!(is_full(&error), "{error}"),
                    }
                }
            });
        }
    });
    let mut made = 0;
    let refused = loop {
        match fs::create_dir(here.join(format!("name-{made}"))) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(began.elapsed() < LIMIT, "{made} names");
    };
    assert!(is_full(&refused), "{refused}");
    // What is there can be read, and changed; names can go.
    fs::rename(here.join("kept"), here.join("moved")).unwrap();
    kept.set_len(10 * MIB as u64).unwrap();
    for number in 0..made {
        fs::remove_dir(here.join(format!("name-{number}"))).unwrap();
    }
    holds(&here.join("moved"), 1, 10);

    fs::remove_file(&foreign).unwrap();
    let late = here.join("late");
    wait::until("names once there is room", LIMIT, || {
        Ok(fs::create_dir(&late).ok())
    })
    .unwrap();
    let file = File::create(late.join("file")).unwrap();
    wait::until("bytes once there is room", LIMIT, || {
        Ok((write(&file, 2, 20) == 20 && file.sync_all().is_ok()).then_some(()))
    })
    .unwrap();
    all_are_up(&mut cluster);
    drop((kept, file));
    cluster.kill(1, Signal::KILL).unwrap();
    cluster.umount(1).unwrap();
    cluster.up().unwrap();
    let again = cluster.mount(1).unwrap();
    holds(&again.join("late/file"), 2, 20);
    holds(&again.join("moved"), 1, 10);
}

/// With other copies the others go on without it; it needs no start to have one again.
#[test]
fn a_node_whose_disk_took_no_records_has_its_copy_again_once_there_is_room() {
    let Some(mut cluster) = with_small_disk(3, 3) else {
        return;
    };
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(3).unwrap());
    let kept = File::create(here.join("kept")).unwrap();
    assert_eq!(write(&kept, 1, 20), 20);
    kept.sync_all().unwrap();
    cluster.settle().unwrap();
    let foreign = cluster.dir().join("node-3/foreign");
    disk::fill(&foreign).unwrap();
    let mut made = 0;
    wait::until("the node leaves the chain", 2 * LIMIT, || {
        for _ in 0..100 {
            fs::create_dir(here.join(format!("name-{made}"))).unwrap();
            made += 1;
        }
        Ok((!cluster.chains()?[0].contains(&3)).then_some(()))
    })
    .unwrap();
    // What it has in place is not this.
    assert_eq!(write(&kept, 2, 10), 10);
    kept.sync_all().unwrap();

    fs::remove_file(&foreign).unwrap();
    cluster.settle().unwrap();
    assert!(cluster.chains().unwrap()[0].contains(&3));
    fs::write(here.join("late"), b"late").unwrap();
    File::open(here.join("late")).unwrap().sync_all().unwrap();
    kept.sync_all().unwrap();
    File::open(&here).unwrap().sync_all().unwrap();
    drop(kept);
    for node in [1, 2] {
        cluster.kill(node, Signal::KILL).unwrap();
    }
    wait::until("the copy that is left", 3 * LIMIT, || {
        Ok(fs::read(there.join("late")).ok())
    })
    .map(|late| assert_eq!(late, b"late"))
    .unwrap();
    let bytes = fs::read(there.join("kept")).unwrap();
    assert_eq!(pattern::first_difference(2, 0, &bytes[..10 * MIB]), None);
    let rest = &bytes[10 * MIB..20 * MIB];
    assert_eq!(pattern::first_difference(1, 10 * MIB as u64, rest), None);
    assert!(there.join(format!("name-{}", made - 1)).is_dir());
}

/// Whatever it had in place when it left.
#[test]
fn an_owner_that_a_full_disk_had_leave_comes_back_with_what_the_others_have() {
    let Some(mut cluster) = with_small_disk(3, 3) else {
        return;
    };
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(3).unwrap());
    let home = there.join("home");
    fs::create_dir(&home).unwrap();
    let set = cluster.command(&["policy", "set", &home.to_string_lossy(), "copies=3"]);
    assert!(set.unwrap().status.success());
    let names: Vec<String> = (0..4).map(|number| format!("home/{number}")).collect();
    let overwrite = |round: u64| {
        for name in &names {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(there.join(name))
                .unwrap();
            assert_eq!(write(&file, round, 1), 1);
            if round == 0 {
                file.sync_all().unwrap();
            }
        }
    };
    overwrite(0);
    cluster.settle().unwrap();
    assert_eq!(cluster.chains().unwrap().pop().unwrap()[0], 3);

    overwrite(1);
    let foreign = cluster.dir().join("node-3/foreign");
    disk::fill(&foreign).unwrap();
    let names_of = ["home/0", "home/moved"].map(|name| there.join(name));
    let mut from = 0;
    wait::until("the owner leaves", 2 * LIMIT, || {
        // Names change also where there is no room.
        for _ in 0..500 {
            if fs::rename(&names_of[from], &names_of[1 - from]).is_ok() {
                from = 1 - from;
            }
        }
        let newest = cluster.chains()?.pop().unwrap_or_default();
        Ok((newest[0] != 3).then_some(()))
    })
    .unwrap();
    // A rename that failed as the owner left may have been done all the same.
    wait::until("the next owner", LIMIT, || {
        let [first, moved] = &names_of;
        Ok((fs::rename(moved, first).is_ok() || first.exists()).then_some(()))
    })
    .unwrap();
    fs::remove_file(&foreign).unwrap();
    cluster.settle().unwrap();
    assert!(cluster.chains().unwrap().pop().unwrap().contains(&3));
    let shown = |mount: &Path| -> io::Result<Vec<Vec<u8>>> {
        names
            .iter()
            .map(|name| fs::read(mount.join(name)))
            .collect()
    };
    let others = shown(&here).unwrap();
    for node in [1, 2] {
        cluster.kill(node, Signal::KILL).unwrap();
    }
    let own = wait::until(
        "the copy that is left",
        3 * LIMIT,
        || Ok(shown(&there).ok()),
    );
    assert!(
        own.unwrap() == others,
        "another content than the others had"
    );
}

/// What a new member fetches is as long as its disk is large many times over, and nearly all of it is holes. Beside that there is room
/// for writes to other containers of which it has copies.
#[test]
fn a_new_members_copies_have_the_holes_of_the_others() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: mounting a small disk needs root");
    }
    let small_disks = |dir: &Path| {
        (1..=4).try_for_each(|node| {
            disk::mount_small(&dir.join(format!("node-{node}")), 3 * SMALL as u64)
        })
    };
    let mut cluster = Cluster::start_prepared(4, WATCHDOG, small_disks).unwrap();
    let here = cluster.mount(1).unwrap();
    for number in 0..2 {
        let sparse = File::create(here.join(format!("sparse-{number}"))).unwrap();
        sparse.write_all_at(&[7; 20_000], 1 << 30).unwrap();
        sparse.sync_all().unwrap();
    }
    // Who comes gets a state, not the log from its beginning on.
    let mut value = vec![0; 32 << 10];
    for round in 0..(40 << 20) / value.len() {
        value.fill(round as u8);
        rustix::fs::setxattr(
            here.join("sparse-0"),
            "user.mark",
            &value,
            XattrFlags::empty(),
        )
        .unwrap();
    }
    // Somebody comes who has a copy of another container already, and its owner asks how much room is left there.
    let members = cluster.chains().unwrap()[0].clone();
    let comes = (1..=4).find(|node| !members.contains(node)).unwrap();
    let (asks, leaves) = (members[1], members[2]);
    let there = cluster.mount(asks).unwrap();
    let mut homes = (0..8).map(|number| there.join(format!("home-{number}")));
    let home = homes.find(|home| {
        fs::create_dir(home).unwrap();
        let path = home.to_string_lossy();
        let set = cluster.command(&["policy", "set", &path, "copies=3"]);
        assert!(set.unwrap().status.success());
        cluster.settle().unwrap();
        let newest = cluster.chains().unwrap().pop().unwrap();
        newest[0] == asks && newest.contains(&comes)
    });
    let home = home.unwrap();
    let growing = File::create(home.join("growing")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut wrote = 0;
            while !done.load(Ordering::Relaxed) {
                growing.write_all_at(&[3; 100], wrote * 100).unwrap();
                wrote += 1;
                if wrote % 100 == 0 {
                    growing.sync_all().unwrap();
                }
            }
            wrote
        });
        let drained = cluster.perigee(&["drain", &format!("node-{leaves}")]);
        done.store(true, Ordering::Relaxed);
        drained.unwrap();
        assert!(writer.join().unwrap() > 100);
    });
    let now = cluster.chains().unwrap().remove(0);
    assert!(now.contains(&comes) && !now.contains(&leaves), "{now:?}");
}

/// A striped file is longer before its new bytes have a place, and stays so where they find none: for its own host, too.
#[test]
fn a_file_whose_new_bytes_find_no_room_ends_at_one_place_for_all_hosts() {
    let Some(mut cluster) = with_small_disk(3, 3) else {
        return;
    };
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let wide = here.join("wide");
    fs::create_dir(&wide).unwrap();
    let path = wide.to_string_lossy();
    let set = cluster.command(&["policy", "set", &path, "stripes=2"]);
    assert!(set.unwrap().status.success());
    let content = vec![5; MIB];
    // In the second column.
    let end = 65 * MIB as u64;
    let names = ["write-here", "copy-here", "write-there", "copy-there"];
    for name in names {
        let file = File::create(wide.join(name)).unwrap();
        file.write_all_at(&content, end - MIB as u64).unwrap();
        file.sync_all().unwrap();
    }
    disk::fill(&cluster.dir().join("node-3/foreign")).unwrap();
    for name in names {
        let (own, other) = match name.ends_with("here") {
            true => (&here, &there),
            false => (&there, &here),
        };
        let path = own.join("wide").join(name);
        let began = Instant::now();
        let mut end = end;
        loop {
            // Its kernel keeps what it knows of the file, once nobody has changed that for a moment.
            let settled = Instant::now();
            while settled.elapsed() < SETTLED {
                let mut file = File::open(&path).unwrap();
                file.read_exact_at(&mut [0; MIB], end - MIB as u64).unwrap();
                file.sync_all().unwrap();
                assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), end);
            }
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let changed = match name.starts_with("copy") {
                true => copy(&file, end),
                false => file.write_all_at(&content, end),
            };
            match changed {
                Ok(()) => end += MIB as u64,
                Err(error) => break assert!(is_full(&error), "{error}"),
            }
            assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        }
        let shown = File::open(&path).unwrap().seek(SeekFrom::End(0)).unwrap();
        let others = fs::metadata(other.join("wide").join(name)).unwrap().len();
        assert_eq!(shown, others, "{name}");
        assert!(shown > end, "{name} is longer by now: {shown}");
    }
}

/// Copies the last MiB of a file behind it.
fn copy(file: &File, end: u64) -> io::Result<()> {
    let (mut from, mut to) = (end - MIB as u64, end);
    while from < end {
        let left = (end - from) as usize;
        let copied = rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), left)?;
        assert!(copied > 0);
    }
    Ok(())
}
