//! Parts of the same pages that several mounts write: each write waits for its turn, and none for ever.
//!
//! A kernel keeps a page that it does not know under lock while a part of it is written, and whoever is told to drop that
//! page waits for the write.

use super::latency::Felt;
use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use perigee_types::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Parts of the file; each has one writer.
const PARTS: u64 = 64;
/// Bytes of each, a part of a page.
const PART: u64 = 512;
/// What the programs get beyond their time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes and reads one file through all mounts, two programs on each, for as long as `time`.
///
/// Errors: a call failed, a program read a part of its own and found something else, or something still waits at the end.
pub fn run(mounts: &[PathBuf], seed: u64, time: Duration) -> Checked<Felt> {
    let name = format!("pages-{seed}");
    let first = mounts
        .first()
        .ok_or_else(|| CheckError::violated("no mount to write through"))?;
    std::fs::write(first.join(&name), vec![0; (PARTS * PART) as usize])
        .call(|| format!("write {name}"))?;
    let until = Instant::now() + time;
    let programs = 2 * mounts.len() as u64;
    let (sender, done) = channel();
    for program in 0..programs {
        let path = mounts[(program / 2) as usize].join(&name);
        let sender = sender.clone();
        // One that hangs in a call is left behind, and ends with the mount.
        thread::spawn(move || {
            let rng = Rng::new(seed ^ (program + 1) << 32);
            // Fails when the check has ended without it.
            _ = sender.send(work(&path, program, programs, rng, until));
        });
    }
    drop(sender);
    let mut took = Vec::new();
    loop {
        let left = (until + PATIENCE).saturating_duration_since(Instant::now());
        match done.recv_timeout(left) {
            Ok(of_one) => took.extend(of_one?),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                return Err(CheckError::Deadline {
                    what: "writes to parts of the same pages".to_owned(),
                    waited: PATIENCE,
                });
            }
        }
    }
    Ok(Felt::of(took))
}

fn work(
    path: &Path,
    program: u64,
    programs: u64,
    mut rng: Rng,
    until: Instant,
) -> Checked<Vec<Duration>> {
    let open = || OpenOptions::new().read(true).write(true).open(path);
    let file: File = open().call(|| format!("open {}", path.display()))?;
    let mut took = Vec::new();
    let mut written = vec![0_u8; PARTS as usize];
    while Instant::now() < until {
        let part = rng.below(PARTS / programs) * programs + program;
        let value = &mut written[part as usize];
        *value = value.wrapping_add(1);
        let began = Instant::now();
        let wrote = file.write_all_at(&[*value; PART as usize], part * PART);
        wrote.call(|| format!("write part {part}"))?;
        took.push(began.elapsed());
        let part = rng.below(PARTS / programs) * programs + program;
        let mut found = [0; PART as usize];
        let read = file.read_exact_at(&mut found, part * PART);
        read.call(|| format!("read part {part}"))?;
        let value = written[part as usize];
        ensure!(
            found.iter().all(|byte| *byte == value),
            "part {part} holds {} where {value} was written",
            found[0]
        );
    }
    Ok(took)
}
