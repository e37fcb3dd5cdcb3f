//! Files that are rewritten where they lie, each by one host in bursts, and read by all: whoever reads is shown no less than
//! what was written or shown before.
//!
//! Files are opened for each burst and each read, so that chunks of them may belong to the host that writes.

use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use perigee_types::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Files of each host.
const FILES: usize = 2;
/// Blocks of each file.
const BLOCKS: usize = 256;
const BLOCK: usize = 4_096;
/// The longest burst, in writes.
const BURST: u64 = 40;
/// Between two reads of one host, at most: most bursts meet none of their file.
const REST: u64 = 60;

/// A file, and what is known of its blocks: numbers that only rise.
struct Rewritten {
    name: String,
    /// The host that writes it.
    host: usize,
    blocks: Vec<Known>,
}

#[derive(Default)]
struct Known {
    /// The last that was written, and whose write has returned.
    written: AtomicU64,
    /// The last that a host was shown that does not write it.
    shown: AtomicU64,
}

/// Writes and reads through all mounts for as long as `time`. Gives how many reads there were.
///
/// Errors: a call failed, a read gave less than it had to, or in the end a host does not have what was written last.
pub fn run(mounts: &[PathBuf], seed: u64, time: Duration) -> Checked<u64> {
    let first = mounts
        .first()
        .ok_or_else(|| CheckError::violated("no mount to look at"))?;
    let mut files = Vec::new();
    for number in 0..FILES * mounts.len() {
        let name = format!("rewritten-{number}");
        std::fs::write(first.join(&name), vec![0; BLOCKS * BLOCK])
            .call(|| format!("write {name}"))?;
        files.push(Rewritten {
            name,
            host: number % mounts.len(),
            blocks: (0..BLOCKS).map(|_| Known::default()).collect(),
        });
    }
    let (files, until) = (&files, Instant::now() + time);
    let reads = thread::scope(|scope| {
        let mut programs = Vec::new();
        for (host, mount) in mounts.iter().enumerate() {
            let rng = |kind: u64| Rng::new(seed ^ ((host as u64) << 32 | kind));
            let (writes, looks) = (rng(1), rng(2));
            programs.push(scope.spawn(move || write(mount, files, host, writes, until)));
            programs.push(scope.spawn(move || read(mount, files, host, looks, until)));
        }
        let mut reads = 0;
        for program in programs {
            let ended = program.join();
            reads += ended.unwrap_or_else(|_| Err(CheckError::violated("a program panicked")))?;
        }
        Ok(reads)
    })?;
    for mount in mounts {
        for file in files {
            for block in 0..BLOCKS {
                let value = look(mount, file, block)?;
                let written = file.blocks[block].written.load(Ordering::SeqCst);
                ensure!(
                    value == written,
                    "block {block} of {} holds {value} below {} in the end, and {written} was written last",
                    file.name,
                    mount.display()
                );
            }
        }
    }
    Ok(reads)
}

/// Rewrites blocks of this host's files, a burst at a time.
fn write(
    mount: &Path,
    files: &[Rewritten],
    host: usize,
    mut rng: Rng,
    until: Instant,
) -> Checked<u64> {
    let own: Vec<&Rewritten> = files.iter().filter(|file| file.host == host).collect();
    let mut value = 0_u64;
    while Instant::now() < until {
        let file = own[rng.below(own.len() as u64) as usize];
        let open = open(mount, file)?;
        for _ in 0..=rng.below(BURST) {
            let block = rng.below(BLOCKS as u64) as usize;
            value += 1;
            let mut content = [0; BLOCK];
            content[..8].copy_from_slice(&value.to_le_bytes());
            let wrote = open.write_all_at(&content, (block * BLOCK) as u64);
            wrote.call(|| format!("write {value} to {}", file.name))?;
            file.blocks[block].written.store(value, Ordering::SeqCst);
        }
        if rng.chance(1, 4) {
            open.sync_all().call(|| format!("fsync {}", file.name))?;
        }
        thread::sleep(Duration::from_millis(rng.below(10)));
    }
    Ok(0)
}

fn read(
    mount: &Path,
    files: &[Rewritten],
    host: usize,
    mut rng: Rng,
    until: Instant,
) -> Checked<u64> {
    let mut reads = 0;
    while Instant::now() < until {
        let file = &files[rng.below(files.len() as u64) as usize];
        let block = rng.below(BLOCKS as u64) as usize;
        let known = &file.blocks[block];
        let mut floor = known.written.load(Ordering::SeqCst);
        if file.host != host {
            floor = floor.max(known.shown.load(Ordering::SeqCst));
        }
        let value = look(mount, file, block)?;
        ensure!(
            value >= floor,
            "block {block} of {} holds {value} below {}, after {floor} was shown",
            file.name,
            mount.display()
        );
        if file.host != host {
            known.shown.fetch_max(value, Ordering::SeqCst);
        }
        reads += 1;
        thread::sleep(Duration::from_millis(rng.below(REST)));
    }
    Ok(reads)
}

/// What a block holds, as a host is shown it.
fn look(mount: &Path, file: &Rewritten, block: usize) -> Checked<u64> {
    let mut value = [0; 8];
    open(mount, file)?
        .read_exact_at(&mut value, (block * BLOCK) as u64)
        .call(|| format!("read {}", file.name))?;
    Ok(u64::from_le_bytes(value))
}

fn open(mount: &Path, file: &Rewritten) -> Checked<File> {
    let path = mount.join(&file.name);
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.call(|| format!("open {}", path.display()))
}
