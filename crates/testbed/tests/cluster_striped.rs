//! Files that are spread over several containers are, for programs, like any other file.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::lock::{Mode, Patience, flock};
use perigee_testbed::map::{Access, Shared};
use perigee_testbed::{Cluster, program, wait};
use perigee_types::Rng;
use rustix::fs::{FallocateFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CHUNK: u64 = 64 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn must_set(cluster: &mut Cluster, path: &Path, pair: &str) {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["policy", "set", &path, pair]).unwrap();
    assert!(ended.status.success(), "{pair} of {path}: {}", ended.stderr);
}

fn placement(cluster: &mut Cluster, path: &Path) -> Value {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    serde_json::from_str(&ended.stdout).unwrap()
}

/// What a sparse file must be like.
#[derive(Default)]
struct Model {
    size: u64,
    bytes: BTreeMap<u64, u8>,
}

impl Model {
    fn write(&mut self, at: u64, data: &[u8]) {
        self.bytes.extend((at..).zip(data.iter().copied()));
        self.size = self.size.max(at + data.len() as u64);
    }

    fn resize(&mut self, size: u64) {
        self.bytes.split_off(&size);
        self.size = size;
    }

    fn punch(&mut self, from: u64, to: u64) {
        self.bytes.retain(|at, _| !(from..to).contains(at));
    }

    fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let end = (at + len).min(self.size);
        let byte = |at| self.bytes.get(&at).copied().unwrap_or(0);
        (at..end.max(at)).map(byte).collect()
    }
}

fn read(file: &File, at: u64, len: u64) -> Vec<u8> {
    let mut data = vec![0xee; len as usize];
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], at + done as u64).unwrap() {
            0 => break,
            n => done += n,
        }
    }
    data.truncate(done);
    data
}

/// Where the bytes of a read differ from what they must be.
fn difference(found: &[u8], wanted: &[u8]) -> String {
    let lengths = format!("{} of {} bytes", found.len(), wanted.len());
    let differ = |at: &usize| found[*at] != wanted[*at];
    let places: Vec<_> = (0..found.len().min(wanted.len())).filter(differ).collect();
    match (places.first(), places.last()) {
        (Some(&first), Some(&last)) => format!(
            "{lengths}; from {first} to {last}: {} where {} must be",
            found[first], wanted[first]
        ),
        _ => lengths,
    }
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(path).unwrap()
}

/// A place near the edge of a chunk, or at the beginning.
fn place(rng: &mut Rng) -> u64 {
    let chunk = rng.below(7);
    let near = rng.below(200);
    (chunk * CHUNK + near).saturating_sub(100)
}

fn punch(file: &File, from: u64, len: u64) {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, how, from, len).unwrap();
}

/// Programs on two hosts do one thing after the other to a file, and see what one file would show.
fn two_hosts_by_turns(here: &Path, there: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    let name = format!("turns-{seed}");
    let files = [open(&here.join(&name)), open(&there.join(&name))];
    let mut appends = Vec::new();
    for dir in [here, there] {
        appends.push(
            OpenOptions::new()
                .append(true)
                .open(dir.join(&name))
                .unwrap(),
        );
    }
    let mut model = Model::default();
    let mut places = BTreeSet::new();
    for step in 0..120_u64 {
        let file = &files[rng.below(2) as usize];
        let (at, len) = (place(&mut rng), 1 + rng.below(300));
        let data = vec![(step % 251) as u8 + 1; len as usize];
        places.insert(at);
        match rng.below(12) {
            0..=5 => {
                file.write_all_at(&data, at).unwrap();
                model.write(at, &data);
            }
            6 => {
                use std::io::Write;
                let mut file = &appends[rng.below(2) as usize];
                file.write_all(&data).unwrap();
                places.insert(model.size);
                model.write(model.size, &data);
            }
            7 | 8 => {
                file.set_len(at).unwrap();
                model.resize(at);
            }
            9 => {
                punch(file, at, len + CHUNK);
                model.punch(at, at + len + CHUNK);
            }
            10 => file.sync_all().unwrap(),
            _ => assert_eq!(file.metadata().unwrap().len(), model.size, "step {step}"),
        }
        let reader = &files[rng.below(2) as usize];
        for at in [at, model.size.saturating_sub(10)] {
            let (found, wanted) = (read(reader, at, 400), model.read(at, 400));
            assert!(
                found == wanted,
                "seed {seed}, step {step}, at {at}: {}",
                difference(&found, &wanted)
            );
        }
    }
    for file in &files {
        assert_eq!(file.metadata().unwrap().len(), model.size);
        for at in &places {
            let (found, wanted) = (read(file, *at, 400), model.read(*at, 400));
            assert!(
                found == wanted,
                "seed {seed}, at the end, at {at}: {}",
                difference(&found, &wanted)
            );
        }
    }
}

fn mount_two(cluster: &mut Cluster) -> (PathBuf, PathBuf) {
    let here = cluster.mount(1).unwrap();
    let there = cluster.mount(2).unwrap();
    (here, there)
}

/// A directory for files of three columns, as nodes 1 and 2 have it. The containers stay with their nodes.
fn wide(cluster: &mut Cluster) -> (PathBuf, PathBuf) {
    let (here, there) = mount_two(cluster);
    // Who works in a home for other reasons may become its owner.
    must_set(cluster, &here, "migration=off");
    let wide = here.join("wide");
    fs::create_dir(&wide).unwrap();
    must_set(cluster, &wide, "stripes=3");
    (wide, there.join("wide"))
}

#[test]
fn a_striped_file_is_like_any_other_for_programs_of_two_hosts() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = wide(&mut cluster);
    for seed in 1..=3 {
        two_hosts_by_turns(&here, &there, seed);
    }
    let found = placement(&mut cluster, &here.join("turns-1"));
    let columns = found["columns"].as_array().unwrap();
    let owners: BTreeSet<u64> = columns
        .iter()
        .map(|column| column["owner"].as_u64().unwrap())
        .collect();
    assert_eq!((columns.len(), owners.len()), (3, 3), "{found:#}");
}

/// A hole that was read before there were columns is one of the file, which another host's first write past chunk 0 fills.
#[test]
fn a_map_shows_what_another_host_writes_where_there_was_a_hole() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = wide(&mut cluster);
    for (name, reader, writer) in [("one", &here, &there), ("two", &there, &here)] {
        let place = CHUNK + 5;
        open(&here.join(name)).set_len(3 * CHUNK).unwrap();
        let file = open(&reader.join(name));
        let map = Shared::new(&file, 3 * CHUNK as usize, Access::Read).unwrap();
        let shows = |map: &Shared| map.load(place as usize, 3).unwrap();
        assert_eq!(shows(&map), [0; 3]);
        for new in [b"one", b"two"] {
            open(&writer.join(name)).write_all_at(new, place).unwrap();
            wait::until("the map shows the write", LIMIT, || {
                Ok((shows(&map) == new).then_some(()))
            })
            .unwrap();
        }
    }
}

#[test]
fn snapshots_copies_and_removal_of_striped_files_are_as_of_others() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = mount_two(&mut cluster);
    let wide = here.join("wide");
    fs::create_dir(&wide).unwrap();
    must_set(&mut cluster, &wide, "copies=1");
    must_set(&mut cluster, &wide, "stripes=3");
    let file = open(&wide.join("file"));
    let at = [5, CHUNK + 5, 2 * CHUNK + 5, 3 * CHUNK - 3];
    for at in at {
        file.write_all_at(b"before", at).unwrap();
    }
    file.sync_all().unwrap();
    let found = placement(&mut cluster, &wide.join("file"));
    for column in found["columns"].as_array().unwrap() {
        assert_eq!(column["copies"].as_array().unwrap().len(), 1, "{found:#}");
    }
    let path = wide.to_string_lossy().into_owned();
    let made = cluster
        .command(&["snapshot", "create", &path, "one"])
        .unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    for at in at {
        file.write_all_at(b"later!", at).unwrap();
    }
    file.set_len(CHUNK).unwrap();
    let past = File::open(there.join("wide/.snapshots/one/file")).unwrap();
    for at in at {
        assert_eq!(read(&past, at, 6), b"before", "at {at}");
    }
    assert_eq!(past.metadata().unwrap().len(), 3 * CHUNK + 3);
    drop(past);
    let gone = cluster
        .command(&["snapshot", "delete", &path, "one"])
        .unwrap();
    assert!(gone.status.success(), "{}", gone.stderr);
    let large = vec![7; 4 << 20];
    for at in [CHUNK, 2 * CHUNK] {
        file.write_all_at(&large, at).unwrap();
    }
    file.sync_all().unwrap();
    let used = |cluster: &mut Cluster| -> u64 {
        let status = cluster
            .on_this(&["status", "--json", "--node", "1"])
            .unwrap();
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let containers = status["containers"].as_array().unwrap().clone();
        let sizes = containers
            .iter()
            .filter_map(|container| container["size_bytes"].as_u64());
        sizes.sum()
    };
    wait::until("what was written counts", LIMIT, || {
        Ok((used(&mut cluster) >= 8 << 20).then_some(()))
    })
    .unwrap();
    drop(file);
    fs::remove_file(wide.join("file")).unwrap();
    wait::until("its columns are freed", LIMIT, || {
        Ok((used(&mut cluster) < 4 << 20).then_some(()))
    })
    .unwrap();
}

/// The owner of a file tells columns of a cut only when the next owner will know of it.
#[test]
fn a_cut_that_was_told_to_columns_outlives_the_owner_of_the_file() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = wide(&mut cluster);
    let file = open(&here.join("file"));
    let at = [5, CHUNK + 5, 2 * CHUNK + 5];
    for at in at {
        file.write_all_at(b"before", at).unwrap();
    }
    file.sync_all().unwrap();
    file.set_len(CHUNK + 8).unwrap();
    cluster.kill(1, Signal::KILL).unwrap();
    drop(file);
    let path = there.join("file");
    wait::until("another owner answers", LIMIT, || {
        Ok(fs::metadata(&path).ok().map(|_| ()))
    })
    .unwrap();
    let file = open(&path);
    let size = file.metadata().unwrap().len();
    // What nobody had synced may be lost; it is one of both everywhere.
    assert!([CHUNK + 8, 2 * CHUNK + 11].contains(&size), "{size}");
    assert_eq!(read(&file, 5, 6), b"before");
    // Whoever reads past a cut that was broken off ends it.
    let found = read(&file, CHUNK + 5, 6);
    let end = file.metadata().unwrap().len();
    let cut = end == CHUNK + 8 && found == b"bef";
    let lost = end == 2 * CHUNK + 11 && found == b"before";
    assert!(cut || lost, "{end}: {found:?}");
    file.set_len(CHUNK + 6).unwrap();
    file.set_len(3 * CHUNK).unwrap();
    assert_eq!(read(&file, CHUNK + 5, 6), b"b\0\0\0\0\0");
    assert_eq!(read(&file, 2 * CHUNK + 5, 6), [0; 6]);
    file.write_all_at(b"after", 2 * CHUNK + 5).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(&file, 2 * CHUNK + 5, 6), b"after\0");
}

/// A host sleeps with a lock until another one is granted it: what its programs write when it wakes is refused by every column.
#[test]
fn who_has_lost_a_lock_of_a_striped_file_writes_to_no_column_of_it() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = wide(&mut cluster);
    let third = cluster.mount(3).unwrap().join("wide/file");
    let at = [5, CHUNK + 5, 2 * CHUNK + 5];
    let file = open(&here.join("file"));
    for at in at {
        file.write_all_at(b"before", at).unwrap();
    }
    drop(file);
    let (sleeper, other) = (open(&there.join("file")), open(&third));
    flock(&sleeper, Mode::Exclusive, Patience::Refuse).unwrap();
    for at in at {
        sleeper.write_all_at(b"locked", at).unwrap();
    }
    sleeper.sync_all().unwrap();
    cluster.kill(2, Signal::STOP).unwrap();
    flock(&other, Mode::Exclusive, Patience::Wait).unwrap();
    for at in at {
        assert_eq!(read(&other, at, 6), b"locked");
        other.write_all_at(b"others", at).unwrap();
    }
    cluster.kill(2, Signal::CONT).unwrap();
    for at in at {
        let late = sleeper.write_all_at(b"late", at);
        let errno = late.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno, Some(Errno::IO.raw_os_error()), "at {at}");
        assert_eq!(read(&other, at, 6), b"others");
    }
    // It learns of that by letting go, and is like any other then.
    flock(&sleeper, Mode::Free, Patience::Wait).unwrap();
    flock(&other, Mode::Free, Patience::Wait).unwrap();
    flock(&sleeper, Mode::Exclusive, Patience::Wait).unwrap();
    for at in at {
        sleeper.write_all_at(b"again!", at).unwrap();
        assert_eq!(read(&other, at, 6), b"again!");
    }
}

/// `cp -p`, `setcap` and their like set times and capabilities after the last write, and `fsync` changes nothing of that.
#[test]
fn what_is_set_after_the_last_write_outlives_a_sync() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = wide(&mut cluster);
    // Revision 2, effective: may bind low ports.
    let capability: Vec<u8> = [0x0200_0001_u32, 1 << 10, 0, 0, 0]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let name = "security.capability";
    for (dir, other) in [(&here, &there), (&there, &here)] {
        let path = dir.join("set");
        let file = open(&path);
        file.set_len(2 * CHUNK).unwrap();
        // Of the second one its owner has not heard when it is done.
        for at in [CHUNK + 5, CHUNK + 50] {
            file.write_all_at(b"content", at).unwrap();
        }
        let then = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(then).unwrap();
        file.sync_all().unwrap();
        for dir in [dir, other] {
            let found = fs::metadata(dir.join("set")).unwrap();
            assert_eq!(found.modified().unwrap(), then);
        }
        file.write_all_at(b"content", CHUNK + 500).unwrap();
        file.write_all_at(b"content", CHUNK + 5_000).unwrap();
        rustix::fs::setxattr(&path, name, &capability, XattrFlags::empty()).unwrap();
        file.sync_all().unwrap();
        let mut found = vec![0; 64];
        let len = rustix::fs::getxattr(other.join("set"), name, &mut found).unwrap();
        assert_eq!(found[..len], capability);
        fs::remove_file(path).unwrap();
    }
}
