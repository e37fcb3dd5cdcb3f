//! Chunks of files belong to the host that writes them: laws 1, 2 and 4.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::checks::rewrites;
use perigee_testbed::{Cluster, program, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SEED: u64 = 20_261_124;
const LIMIT: Duration = Duration::from_secs(30);
/// How long files are rewritten and read.
const REWRITES_FOR: Duration = Duration::from_secs(15);
/// Reads of each other host beside a holder that writes on, and what each may take at most.
const READS: usize = 20;
const READ_MAX: Duration = Duration::from_secs(10);
const BLOCK: usize = 4_096;
const BLOCKS: u64 = 512;
/// A file that is as long keeps its container where it is while programs there have it open.
const STAYS_LEN: usize = 128 << 10;

/// A cluster in which node 1 owns a file, and each node has a mount.
struct Stage {
    cluster: Cluster,
    mounts: [PathBuf; 3],
}

impl Stage {
    fn set() -> Self {
        let mut cluster = Cluster::start(3).unwrap();
        let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
        let path = mounts[0].join("file");
        fs::write(&path, vec![0; BLOCK * BLOCKS as usize]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        fs::write(mounts[0].join("stays"), vec![0; STAYS_LEN]).unwrap();
        assert_eq!(cluster.owner(&path).unwrap(), 1);
        Self { cluster, mounts }
    }

    fn file(&self, host: usize) -> PathBuf {
        self.mounts[host - 1].join("file")
    }

    fn open(&self, host: usize) -> File {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .open(self.file(host))
            .unwrap()
    }

    /// Has a host write the file until it holds the chunk.
    fn give(&mut self, host: usize, value: u8) -> File {
        // On a busy machine the holder may write on before it has heard that it is one, which takes the chunk back: after a few
        // of those the whole container would move.
        let _stays = File::open(self.mounts[0].join("stays")).unwrap();
        let file = self.open(host);
        let path = self.file(host);
        wait::until("the chunk belongs to who writes it", LIMIT, || {
            write_all(&file, value);
            Ok(holds(&mut self.cluster, &path, host).then_some(()))
        })
        .unwrap();
        write_all(&file, value);
        file
    }

    fn end(mut self) {
        for node in [1, 2, 3] {
            self.cluster.umount(node).unwrap();
        }
    }
}

fn holds(cluster: &mut Cluster, path: &Path, host: usize) -> bool {
    let path = path.to_string_lossy().into_owned();
    let told = cluster.command(&["where", "--json", &path]).unwrap();
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    let holders = told["held_by"].as_array().unwrap();
    holders
        .iter()
        .any(|holder| holder["node"] == host && holder["what"] == "chunks")
}

fn write_all(file: &File, value: u8) {
    for block in 0..BLOCKS {
        file.write_all_at(&[value; BLOCK], block * BLOCK as u64)
            .unwrap();
    }
}

/// The one value that all bytes have.
fn value(path: &Path) -> u8 {
    let content = fs::read(path).unwrap();
    assert_eq!(content.len(), BLOCK * BLOCKS as usize);
    let first = content[0];
    assert!(content.iter().all(|byte| *byte == first));
    first
}

#[test]
fn who_holds_a_chunk_writes_it_without_a_word_to_anybody() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let file = stage.give(2, 1);
    // Its right lasts for longer than that.
    for node in [1, 3] {
        stage.cluster.kill(node, Signal::STOP).unwrap();
    }
    let begun = Instant::now();
    write_all(&file, 2);
    let took = begun.elapsed();
    let mut content = [0; BLOCK];
    file.read_exact_at(&mut content, 0).unwrap();
    for node in [1, 3] {
        stage.cluster.kill(node, Signal::CONT).unwrap();
    }
    assert_eq!(content, [2; BLOCK]);
    assert!(took < Duration::from_millis(900), "{took:?}");
    // Everybody is shown what was written, and it comes back for that.
    for host in [3, 1, 2] {
        assert_eq!(value(&stage.file(host)), 2, "on host {host}");
    }
    let path = stage.file(1);
    assert!(!holds(&mut stage.cluster, &path, 2));
    drop(file);
    stage.end();
}

/// What the owner asks of a holder must not wait for the kernels of those who ask.
#[test]
fn reads_beside_a_holder_that_writes_on_end() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let file = stage.give(2, 1);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                write_all(&file, 2);
            }
        });
        for _ in 0..READS {
            for host in [1, 3] {
                let begun = Instant::now();
                let mut first = [0; BLOCK];
                let read = stage.open(host).read_exact_at(&mut first, 0);
                let took = begun.elapsed();
                over.store(took > READ_MAX, Ordering::Relaxed);
                read.unwrap();
                assert!(took < READ_MAX, "{took:?} on host {host}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(file);
    stage.end();
}

#[test]
fn what_a_holder_has_synced_survives_it_and_what_it_has_not_is_older() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let file = stage.give(2, 1);
    write_all(&file, 2);
    file.sync_all().unwrap();
    file.write_all_at(&[3; BLOCK], 0).unwrap();
    stage.cluster.kill(2, Signal::KILL).unwrap();
    drop(file);
    let begun = Instant::now();
    let content = fs::read(stage.file(3)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(content[BLOCK..].iter().all(|byte| *byte == 2));
    let first = content[0];
    assert!(first == 2 || first == 3, "{first}");
    assert!(content[..BLOCK].iter().all(|byte| *byte == first));
    assert_eq!(fs::read(stage.file(1)).unwrap(), content);
    stage.cluster.umount(2).unwrap();
    stage.cluster.up().unwrap();
    let again = stage.cluster.mount(2).unwrap();
    assert_eq!(fs::read(again.join("file")).unwrap(), content);
    stage.end();
}

#[test]
fn what_a_holder_has_written_survives_the_owner() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    let file = stage.give(2, 1);
    write_all(&file, 2);
    stage.cluster.kill(1, Signal::KILL).unwrap();
    write_all(&file, 3);
    file.sync_all().unwrap();
    for host in [3, 2] {
        assert_eq!(value(&stage.file(host)), 3, "on host {host}");
    }
    stage.cluster.umount(1).unwrap();
    stage.cluster.up().unwrap();
    let again = stage.cluster.mount(1).unwrap();
    assert_eq!(value(&again.join("file")), 3);
    drop(file);
    stage.end();
}

#[test]
fn nobody_is_shown_less_than_a_holder_has_written() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
    let reads = rewrites::run(&mounts, SEED, REWRITES_FOR).unwrap();
    assert!(reads > 0);
    let log = fs::read_to_string(cluster.dir().join("node-1/daemon.log")).unwrap();
    let moves = log.matches("chunk moves").count();
    println!("{moves} moves of chunks beside {reads} reads");
    assert!(moves > 0);
    for node in [1, 2, 3] {
        cluster.umount(node).unwrap();
    }
}

#[test]
fn times_of_a_file_never_go_back_at_the_host_that_holds_a_part_of_it() {
    let Some(_alone) = program::alone() else {
        return;
    };
    const HOLDER: usize = 2;
    let mut stage = Stage::set();
    let file = stage.give(HOLDER, 1);
    let direct = {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let mut options = File::options();
        options.read(true).custom_flags(flags);
        options.open(stage.file(HOLDER)).unwrap()
    };
    let mut last = file.metadata().unwrap().modified().unwrap();
    let mut block = vec![0; BLOCK];
    for round in 0..20 {
        file.write_all_at(&[round; BLOCK], 0).unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        assert!(written >= last, "round {round}: after a write");
        file.sync_all().unwrap();
        // The kernel asks for attributes after such a read.
        direct.read_exact_at(&mut block, 0).unwrap();
        let synced = file.metadata().unwrap().modified().unwrap();
        assert!(synced >= written, "round {round}: after an fsync");
        last = synced;
    }
    let elsewhere = fs::metadata(stage.file(3)).unwrap().modified().unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), elsewhere);
    drop((file, direct));
    stage.end();
}
