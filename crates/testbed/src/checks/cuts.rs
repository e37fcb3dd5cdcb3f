//! Reads beside truncations and writes of other hosts: nobody waits for ever.
//!
//! A host that is told to forget a page waits for the reads of it that are under way; those wait for their owner. Where the
//! two meet in one daemon, neither may hold what the other needs.

use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use crate::pattern;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Files, all of which every host reads and changes.
const FILES: u64 = 4;
/// Their greatest length.
const LEN: u64 = 1 << 20;
/// What one read takes.
const READ: usize = 128 << 10;
/// Readers on the host that the files were made on (each other host has one), and changers on each other host.
const READERS: u64 = 4;
const CHANGERS: u64 = 3;
/// Changes by each changer.
const CHANGES: u64 = 60;
/// Within this all of them must be done.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads files on `home`, and cuts and writes them on the `others`.
///
/// Errors: a call failed, a byte was read that nobody wrote, or something still waits at the end of the time.
pub fn run(home: &Path, others: &[PathBuf], seed: u64) -> Checked {
    fs::create_dir(home.join("cuts")).call(|| "mkdir cuts".to_owned())?;
    for file in 0..FILES {
        let mut content = vec![0; LEN as usize];
        content.fill(letter(file));
        fs::write(name(home, file), content).call(|| format!("write file {file}"))?;
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = vec![start(READERS, |reader| {
        let (mount, over) = (home.to_owned(), over.clone());
        move || read(&mount, reader % FILES, &over)
    })];
    readers.extend(others.iter().map(|mount| {
        start(1, |_| {
            let (mount, over) = (mount.clone(), over.clone());
            move || read(&mount, 0, &over)
        })
    }));
    let changers: Vec<_> = others
        .iter()
        .zip(1_u64..)
        .map(|(mount, host)| {
            start(CHANGERS, |changer| {
                let (mount, seed) = (mount.clone(), seed ^ (host << 32 | changer));
                move || change(&mount, seed)
            })
        })
        .collect();
    let until = Instant::now() + PATIENCE;
    let changed = changers
        .iter()
        .try_for_each(|changers| all(changers, "cuts and writes beside reads", until));
    over.store(true, Ordering::Relaxed);
    changed?;
    readers
        .iter()
        .try_for_each(|readers| all(readers, "reads beside cuts and writes", until))
}

/// Threads of their own: one that hangs in a call is left behind, and ends with the mount.
fn start<Work>(count: u64, work: impl Fn(u64) -> Work) -> Receiver<Checked>
where
    Work: FnOnce() -> Checked + Send + 'static,
{
    let (sender, done) = channel();
    for number in 0..count {
        let (work, sender) = (work(number), sender.clone());
        std::thread::spawn(move || {
            // Fails when the check has ended without it.
            _ = sender.send(work());
        });
    }
    done
}

fn all(done: &Receiver<Checked>, what: &str, until: Instant) -> Checked {
    loop {
        match done.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(outcome) => outcome?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(CheckError::Deadline {
                    what: what.to_owned(),
                    waited: PATIENCE,
                });
            }
        }
    }
}

fn read(mount: &Path, file: u64, over: &AtomicBool) -> Checked {
    let open = open(mount, file)?;
    let mut buffer = vec![0; READ];
    while !over.load(Ordering::Relaxed) {
        for at in (0..LEN).step_by(READ) {
            let len = open
                .read_at(&mut buffer, at)
                .call(|| format!("read file {file}"))?;
            let strange = buffer[..len]
                .iter()
                .find(|byte| **byte != 0 && **byte != letter(file));
            ensure!(
                strange.is_none(),
                "a byte in file {file} near {at} that nobody wrote: {strange:?}"
            );
        }
    }
    Ok(())
}

fn change(mount: &Path, seed: u64) -> Checked {
    for change in 0..CHANGES {
        let mut dice = [0; 16];
        pattern::fill(seed, change * 16, &mut dice);
        let (file, kind) = (u64::from(dice[0]) % FILES, dice[1] % 3);
        let at = u64::from(u16::from_le_bytes([dice[2], dice[3]])) * ((LEN / 2) >> 16);
        let open = open(mount, file)?;
        let done = match kind {
            0 => open.set_len(LEN / 2 + at),
            1 => open.write_all_at(&[letter(file); 4 << 10], at),
            _ => open.write_all_at(&[letter(file); 64 << 10], LEN / 2 + at),
        };
        done.call(|| format!("change {change} of file {file}"))?;
    }
    Ok(())
}

/// For reading and writing: what is open for reading alone may be read past the daemon.
fn open(mount: &Path, file: u64) -> Checked<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(name(mount, file))
        .call(|| format!("open file {file}"))
}

fn name(mount: &Path, file: u64) -> PathBuf {
    mount.join("cuts").join(file.to_string())
}

fn letter(file: u64) -> u8 {
    b"abcdefgh"[file as usize % 8]
}
