//! Programs of several hosts append records to one file, and read it: a record that is appended is in the file for whoever
//! looks after that, and no place is ever shown before its record is there.

use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use perigee_types::Rng;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a record: the writer, from 1, and its number, from 1.
const RECORD: usize = 16;
/// Readers on each host.
const READERS: usize = 2;
/// Between two records of one writer, at most, in microseconds.
const PAUSE_MAX: u64 = 4_000;
/// Bytes before the end that a reader looks at, at least.
const TAIL: u64 = 3_000;

/// Appends and reads through all mounts for as long as `time`; all but the second host write. Gives how many reads there were.
///
/// Errors: a call failed, or a read showed what cannot be.
pub fn run(mounts: &[PathBuf], seed: u64, time: Duration) -> Checked<u64> {
    let first = mounts
        .first()
        .ok_or_else(|| CheckError::violated("no mount to look at"))?;
    File::create(first.join("appends")).call(|| "make the file".to_owned())?;
    let appended: Vec<AtomicU64> = mounts.iter().map(|_| AtomicU64::new(0)).collect();
    let appended = &appended;
    let until = Instant::now() + time;
    thread::scope(|scope| {
        let mut programs = Vec::new();
        for (host, mount) in mounts.iter().enumerate() {
            let rng = |number: usize| Rng::new(seed ^ ((host * 8 + number) as u64) << 32);
            if host != 1 {
                let rng = rng(0);
                programs.push(scope.spawn(move || append(mount, host, appended, rng, until)));
            }
            for reader in 1..=READERS {
                let rng = rng(reader);
                programs.push(scope.spawn(move || read(mount, appended, rng, until)));
            }
        }
        let mut reads = 0;
        for program in programs {
            let ended = program.join();
            reads += ended.unwrap_or_else(|_| Err(CheckError::violated("a program panicked")))?;
        }
        Ok(reads)
    })
}

fn record(host: usize, number: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&(host as u64 + 1).to_le_bytes());
    record[8..].copy_from_slice(&number.to_le_bytes());
    record
}

fn append(
    mount: &Path,
    host: usize,
    appended: &[AtomicU64],
    mut rng: Rng,
    until: Instant,
) -> Checked<u64> {
    let what = || format!("append through {}", mount.display());
    let file = OpenOptions::new().append(true).open(mount.join("appends"));
    let mut file = file.call(what)?;
    for number in 1.. {
        if Instant::now() > until {
            break;
        }
        let wrote = file.write(&record(host, number)).call(what)?;
        ensure!(wrote == RECORD, "{wrote} bytes of a record were written");
        appended[host].store(number, Ordering::SeqCst);
        thread::sleep(Duration::from_micros(rng.below(PAUSE_MAX)));
    }
    Ok(0)
}

fn read(mount: &Path, appended: &[AtomicU64], mut rng: Rng, until: Instant) -> Checked<u64> {
    let what = || format!("read through {}", mount.display());
    let path = mount.join("appends");
    let kept = File::open(&path).call(what)?;
    let mut seen = vec![0; appended.len()];
    // Up to here each record was seen, and is what was seen.
    let mut checked = 0;
    let mut reads = 0;
    while Instant::now() < until {
        let floors: Vec<u64> = appended.iter().map(|n| n.load(Ordering::SeqCst)).collect();
        let fresh = rng.chance(1, 4).then(|| File::open(&path)).transpose();
        let fresh = fresh.call(what)?;
        let file = fresh.as_ref().unwrap_or(&kept);
        if rng.chance(1, 4) {
            file.metadata().call(what)?;
        }
        let from = checked - checked.min(rng.below(TAIL) / RECORD as u64 * RECORD as u64);
        let bytes = read_on(file, from).call(what)?;
        let new = bytes.get((checked - from) as usize..);
        let new = new.ok_or_else(|| {
            let found = from + bytes.len() as u64;
            CheckError::violated(format!(
                "{} has {found} bytes after {checked}",
                path.display()
            ))
        })?;
        for (at, found) in new.chunks(RECORD).enumerate() {
            let at = checked + (at * RECORD) as u64;
            let next = (0..seen.len()).find(|host| *found == record(*host, seen[*host] + 1));
            let Some(host) = next else {
                return Err(CheckError::violated(format!(
                    "{} shows {found:?} at {at} of {}, after {seen:?}",
                    path.display(),
                    from + bytes.len() as u64
                )));
            };
            seen[host] += 1;
        }
        checked = from + bytes.len() as u64;
        ensure!(
            floors.iter().zip(&seen).all(|(floor, seen)| floor <= seen),
            "{} shows {seen:?} records of each host, after {floors:?} were appended",
            path.display()
        );
        reads += 1;
    }
    Ok(reads)
}

/// All that there is from a place on.
fn read_on(file: &File, from: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read_at(&mut piece, from + bytes.len() as u64)? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
}
