//! Programs of a host without a copy write files of others: they do not wait for the owner, and nobody can tell (law 1).
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::delay::Wire;
use perigee_testbed::{Cluster, closing, disk, links, pattern, program, wait};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(30);
const SEED: u64 = 20_261_129;
const PIECE: usize = 256 << 10;
/// Pieces after which a host that writes alone does not wait any more.
const FIRST: u64 = 16;
/// Pieces of a part of a file that has one owner.
const CHUNK: u64 = (64 << 20) / PIECE as u64;
/// A user without rights.
const NOBODY: u32 = 65_534;
/// The host that writes, and has no copy.
const WRITER: u32 = 3;

/// A directory whose files are on other hosts than [`WRITER`], as each of the hosts sees it.
struct Stage {
    cluster: Cluster,
    mounts: Vec<PathBuf>,
}

impl Stage {
    fn set(cluster: Cluster, nodes: u32, copies: u32) -> Self {
        Self::set_at(cluster, nodes, copies, 1)
    }

    /// The same at this owner.
    fn set_at(mut cluster: Cluster, nodes: u32, copies: u32, owner: u32) -> Self {
        let roots: Vec<PathBuf> = (1..=nodes)
            .map(|node| cluster.mount(node).unwrap())
            .collect();
        let directory = roots[owner as usize - 1].join("d");
        fs::create_dir(&directory).unwrap();
        let place = directory.to_string_lossy().into_owned();
        let copies = format!("copies={copies}");
        let set = cluster
            .command(&["policy", "set", &place, &copies, "migration=off"])
            .unwrap();
        assert!(set.status.success(), "{}", set.stderr);
        cluster.settle().unwrap();
        assert_eq!(cluster.owner(&directory).unwrap(), owner);
        let mounts = roots.iter().map(|root| root.join("d")).collect();
        Self { cluster, mounts }
    }

    fn path(&self, host: u32, name: &str) -> PathBuf {
        self.mounts[host as usize - 1].join(name)
    }

    /// A file that the writer writes without waiting, from a piece on; the first [`FIRST`] are there.
    fn behind(&self, name: &str, from: u64) -> File {
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        let file = options.open(self.path(WRITER, name)).unwrap();
        // The owner looks at who writes before it lets its programs go on.
        for at in from..from + FIRST {
            write(&file, at);
        }
        file
    }
}

fn write(file: &File, at: u64) {
    try_write(file, at).unwrap();
}

fn try_write(file: &File, at: u64) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    let offset = at * PIECE as u64;
    pattern::fill(SEED, offset, &mut bytes);
    file.write_all_at(&bytes, offset)
}

/// Whether a file has what was written, in these pieces.
fn assert_content(path: &Path, pieces: Range<u64>) {
    let from = pieces.start * PIECE as u64;
    let content = fs::read(path).unwrap();
    assert_eq!(content.len() as u64, pieces.end * PIECE as u64);
    let written = &content[from as usize..];
    assert_eq!(pattern::first_difference(SEED, from, written), None);
}

#[test]
fn a_stream_of_writes_does_not_wait_for_a_link_that_takes_its_time() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let round_trip = Duration::from_millis(40);
    let cluster = Cluster::start_far_apart(3, LIMIT, Wire::of_round_trip(round_trip)).unwrap();
    let stage = Stage::set(cluster, 3, 1);
    // The stream goes on into the next chunk.
    let from = CHUNK - FIRST - 32;
    let file = stage.behind("stream", from);
    file.sync_all().unwrap();
    let (first, end) = (from + FIRST, from + FIRST + 64);
    let began = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // The kernel has what such a user writes take set-id bits away.
            let user = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            for at in first..end {
                write(&file, at);
            }
        });
    });
    let took = began.elapsed();
    // Each of 64 that waited would take a round trip.
    assert!(took < round_trip * 32, "{took:?}");
    // Of this host, and of the others.
    assert_eq!(file.metadata().unwrap().len(), end * PIECE as u64);
    assert_content(&stage.path(WRITER, "stream"), from..end);
    for at in end..end + 16 {
        write(&file, at);
    }
    assert_content(&stage.path(2, "stream"), from..end + 16);
    drop(file);
    assert_content(&stage.path(1, "stream"), from..end + 16);
}

#[test]
fn nobody_is_shown_less_than_the_writer_was_answered_for() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let wire = Wire::of_round_trip(Duration::from_millis(10));
    let stage = Stage::set(Cluster::start_far_apart(3, LIMIT, wire).unwrap(), 3, 1);
    let file = stage.behind("shown", 0);
    let (answered, over) = (AtomicU64::new(FIRST), AtomicBool::new(false));
    std::thread::scope(|threads| {
        for host in [1, 2] {
            let (path, answered, over) = (stage.path(host, "shown"), &answered, &over);
            threads.spawn(move || {
                let file = File::open(&path).unwrap();
                let mut bytes = vec![0; PIECE];
                while !over.load(Ordering::SeqCst) {
                    let pieces = answered.load(Ordering::SeqCst);
                    assert!(fs::metadata(&path).unwrap().len() >= pieces * PIECE as u64);
                    let offset = (pieces - 1) * PIECE as u64;
                    file.read_exact_at(&mut bytes, offset).unwrap();
                    assert_eq!(pattern::first_difference(SEED, offset, &bytes), None);
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
        for at in FIRST..160 {
            write(&file, at);
            answered.store(at + 1, Ordering::SeqCst);
        }
        over.store(true, Ordering::SeqCst);
    });
    drop(file);
    assert_content(&stage.path(2, "shown"), 0..160);
}

#[test]
fn a_stream_goes_on_at_the_next_owner() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let stage = Stage::set(Cluster::start(3).unwrap(), 3, 2);
    let file = stage.behind("goes-on", 0);
    for at in FIRST..400 {
        if at == 200 {
            stage.cluster.kill(1, Signal::KILL).unwrap();
        }
        write(&file, at);
    }
    file.sync_all().unwrap();
    drop(file);
    assert_content(&stage.path(WRITER, "goes-on"), 0..400);
    assert_content(&stage.path(2, "goes-on"), 0..400);
}

#[test]
fn a_writer_that_was_cut_off_hears_of_what_was_lost_and_overwrites_nothing() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let stage = Stage::set(Cluster::start_apart(3, LIMIT, |_| Ok(())).unwrap(), 3, 1);
    let links = stage.cluster.links().unwrap();
    let file = stage.behind("cut", 0);
    let apart: Vec<_> = [1, 2]
        .iter()
        .flat_map(|host| links::both(*host, WRITER))
        .collect();
    for direction in &apart {
        links.cut(*direction).unwrap();
    }
    // By its right, for as long as that lasts.
    write(&file, FIRST);
    let mine = vec![7; PIECE];
    let other = File::options()
        .write(true)
        .open(stage.path(2, "cut"))
        .unwrap();
    let offset = FIRST * PIECE as u64;
    wait::until("another host writes when the right is over", SOON, || {
        Ok(other.write_all_at(&mine, offset).ok())
    })
    .unwrap();
    for direction in &apart {
        links.mend(*direction).unwrap();
    }
    assert!(file.sync_all().is_err(), "what was lost is told");
    other.sync_all().unwrap();
    for host in [1, 2, WRITER] {
        let mut content = vec![0; PIECE];
        let file = File::open(stage.path(host, "cut")).unwrap();
        file.read_exact_at(&mut content, offset).unwrap();
        assert_eq!(content, mine, "on host {host}");
    }
    // And it goes on.
    write(&file, FIRST + 1);
    file.sync_all().unwrap();
}

#[test]
fn a_stream_that_fills_the_disk_hears_of_it_and_has_what_was_synced() {
    let Some(_alone) = program::alone() else {
        return;
    };
    const OWNER: u32 = 2;
    /// Full amid a chunk.
    const SMALL_MIB: u64 = 140;
    /// What may be under way.
    const AHEAD_MIB: u64 = 33;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: mounting a small disk needs root");
    }
    let small = |dir: &Path| disk::mount_small(&dir.join("node-2"), SMALL_MIB);
    let cluster = Cluster::start_prepared(3, LIMIT, small).unwrap();
    let stage = Stage::set_at(cluster, 3, 1, OWNER);
    let file = stage.behind("fills", 0);
    file.sync_all().unwrap();
    let end = 2 * SMALL_MIB * (1 << 20) / PIECE as u64;
    let refused = (FIRST..end).find_map(|at| try_write(&file, at).err().map(|error| (at, error)));
    // Not by an `fsync` alone: a program that writes more than there is room for is not to go on to its end.
    let (at, error) = refused.expect("a write is refused");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "piece {at}: {error}");
    let written = at * PIECE as u64 / (1 << 20);
    assert!(written <= SMALL_MIB + AHEAD_MIB, "{written} MiB");
    // Whoever closes may not look at what that is told.
    drop(file);
    let mut options = File::options();
    let options = options.read(true).write(true);
    let file = options.open(stage.path(WRITER, "fills")).unwrap();
    let synced = file.sync_all().unwrap_err();
    assert_eq!(synced.kind(), ErrorKind::StorageFull, "{synced}");
    let mut first = vec![0; FIRST as usize * PIECE];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(pattern::first_difference(SEED, 0, &first), None);
    drop(file);
    fs::remove_file(stage.path(WRITER, "fills")).unwrap();
    wait::until("room again", SOON, || {
        let name = stage.path(WRITER, "next");
        let written =
            fs::write(&name, vec![1; 64 << 20]).and_then(|()| File::open(&name)?.sync_all());
        Ok(written.ok())
    })
    .unwrap();
}

#[test]
fn snapshots_beside_two_streams_have_all_that_their_writers_were_answered_for() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let wire = Wire::of_round_trip(Duration::from_millis(10));
    let mut stage = Stage::set(Cluster::start_far_apart(3, LIMIT, wire).unwrap(), 3, 1);
    let files = [stage.behind("one", 0), stage.behind("two", 0)];
    let (answered, over) = (
        [AtomicU64::new(FIRST), AtomicU64::new(FIRST)],
        AtomicBool::new(false),
    );
    std::thread::scope(|threads| {
        for (file, answered) in files.iter().zip(&answered) {
            let over = &over;
            threads.spawn(move || {
                for at in FIRST..2_000 {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    write(file, at);
                    answered.store(at + 1, Ordering::SeqCst);
                }
            });
        }
        let stop = Stop(&over);
        for name in ["first", "second", "third"] {
            let before: Vec<u64> = answered
                .iter()
                .map(|one| one.load(Ordering::SeqCst))
                .collect();
            let directory = stage.mounts[0].to_string_lossy().into_owned();
            let made = stage
                .cluster
                .command(&["snapshot", "create", &directory, name])
                .unwrap();
            assert!(made.status.success(), "{}", made.stderr);
            for (of, before) in ["one", "two"].iter().zip(before) {
                let kept =
                    fs::read(stage.mounts[0].join(".snapshots").join(name).join(of)).unwrap();
                assert!(kept.len() as u64 >= before * PIECE as u64, "{name}/{of}");
                assert_eq!(
                    pattern::first_difference(SEED, 0, &kept),
                    None,
                    "{name}/{of}"
                );
            }
        }
        drop(stop);
    });
}

/// What [`Stage`] has where the owner is near to the writer, and the other member is far from both.
struct Far {
    stage: Stage,
    /// The member that is far.
    member: u32,
}

/// To the far member and back.
const LONG: Duration = Duration::from_millis(600);
const OWNER: u32 = 1;

impl Far {
    fn set() -> Self {
        let near = Wire::of_round_trip(Duration::from_millis(1));
        let cluster = Cluster::start_far_apart_with(3, LIMIT, near, &[WRITER]).unwrap();
        let stage = Stage::set(cluster, 3, 2);
        let member = 2;
        for host in [OWNER, WRITER] {
            let wire = Wire::of_round_trip(LONG);
            stage
                .cluster
                .links()
                .unwrap()
                .reroute(host, member, wire)
                .unwrap();
        }
        Self { stage, member }
    }

    /// Whether a part of a file belongs to another host than its owner.
    fn is_held(&mut self, name: &str) -> bool {
        let path = self.stage.path(OWNER, name).to_string_lossy().into_owned();
        let told = self.stage.cluster.command(&["where", "--json", &path]);
        let told: serde_json::Value = serde_json::from_str(&told.unwrap().stdout).unwrap();
        let mut holders = told["held_by"].as_array().unwrap().iter();
        holders.any(|holder| holder["what"] == "chunks")
    }

    /// Writes a new file and closes it, all of which the far member is too far for.
    fn written(&self, name: &str) {
        let mut options = File::options();
        let options = options.write(true).create_new(true);
        let file = options.open(self.stage.path(WRITER, name)).unwrap();
        let bytes = |at: u64| {
            let mut bytes = vec![0; 4 * PIECE];
            pattern::fill(SEED, at * PIECE as u64, &mut bytes);
            bytes
        };
        // Before the first of it the owner gives the file to its writer, which the far member has to know.
        file.write_all_at(&bytes(0), 0).unwrap();
        let began = Instant::now();
        for at in (4..FIRST).step_by(4) {
            file.write_all_at(&bytes(at), at * PIECE as u64).unwrap();
        }
        closing::close(file).unwrap();
        let took = began.elapsed();
        assert!(took < LONG * 3 / 4, "{took:?}");
    }
}

/// Who is killed right after a close, and who is left besides the far member.
fn outlives(killed: u32, left: u32) {
    let Some(_alone) = program::alone() else {
        return;
    };
    let far = Far::set();
    far.written("closed");
    far.stage.cluster.kill(killed, Signal::KILL).unwrap();
    for host in [left, far.member] {
        assert_content(&far.stage.path(host, "closed"), 0..FIRST);
    }
}

#[test]
fn what_was_closed_outlives_its_host_though_a_member_is_far() {
    outlives(WRITER, OWNER);
}

#[test]
fn what_was_closed_outlives_its_owner_though_a_member_is_far() {
    outlives(OWNER, WRITER);
}

#[test]
fn what_a_host_wrote_that_has_gone_in_order_nobody_waits_for() {
    let Some(_alone) = program::alone() else {
        return;
    };
    const FILES: usize = 4;
    let mut far = Far::set();
    let names: Vec<String> = (0..FILES).map(|number| format!("left-{number}")).collect();
    for name in &names {
        far.written(name);
    }
    assert!(names.iter().any(|name| far.is_held(name)));
    far.stage.cluster.umount(WRITER).unwrap();
    far.stage.cluster.kill(WRITER, Signal::TERM).unwrap();
    // One after the other goes, each with a record that the far member has; those of a host that is silent stay for minutes.
    wait::until("nothing is held any more", SOON, || {
        Ok((!names.iter().any(|name| far.is_held(name))).then_some(()))
    })
    .unwrap();
    let began = Instant::now();
    for name in &names {
        assert_content(&far.stage.path(OWNER, name), 0..FIRST);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Ends what runs beside a test, also when that fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
