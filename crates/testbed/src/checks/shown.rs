//! Small files that several hosts write and read: nobody is shown what is older than what another host was shown before.
//!
//! Programs of the writer's own host may see a write before it has returned, when nobody else need have it, or only then.

use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use perigee_types::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Files, each with one writer on one host. So many that each has rest enough between two writes for leases to be given.
const FILES: usize = 96;
/// Readers on each host.
const READERS: usize = 2;
/// Between two writes of one host.
const PAUSE: Duration = Duration::from_millis(15);

/// One number in a file, which only rises.
struct Number {
    name: String,
    /// The last whose write has returned.
    written: AtomicU64,
    /// The last that another host than the writer's was shown.
    shown: AtomicU64,
}

/// Writes and reads through all mounts for as long as `time`. Gives how many reads there were.
///
/// Errors: a call failed, or a read gave less than another one that had ended before it began.
pub fn run(mounts: &[PathBuf], seed: u64, time: Duration) -> Checked<u64> {
    let first = mounts
        .first()
        .ok_or_else(|| CheckError::violated("no mount to look at"))?;
    let mut numbers = Vec::new();
    for file in 0..FILES {
        let name = format!("shown-{file}");
        std::fs::write(first.join(&name), [0; 8]).call(|| format!("write {name}"))?;
        numbers.push(Number {
            name,
            written: AtomicU64::new(0),
            shown: AtomicU64::new(0),
        });
    }
    let until = Instant::now() + time;
    let numbers = &numbers;
    thread::scope(|scope| {
        let (mut programs, hosts) = (Vec::new(), mounts.len());
        for (host, mount) in mounts.iter().enumerate() {
            programs.push(scope.spawn(move || write(mount, numbers, host, hosts, until)));
            for reader in 0..READERS {
                let rng = Rng::new(seed ^ ((host * READERS + reader) as u64) << 32);
                let reader = Reader { mount, host, hosts };
                programs.push(scope.spawn(move || reader.read(numbers, rng, until)));
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

/// Writes the files whose turn it is on this host, of `hosts`.
fn write(
    mount: &Path,
    numbers: &[Number],
    host: usize,
    hosts: usize,
    until: Instant,
) -> Checked<u64> {
    let own: Vec<&Number> = numbers.iter().skip(host).step_by(hosts).collect();
    let files: Checked<Vec<File>> = own.iter().map(|number| open(mount, number)).collect();
    let files = files?;
    for value in 1.. {
        for (file, number) in files.iter().zip(&own) {
            if Instant::now() > until {
                return Ok(0);
            }
            let wrote = file.write_all_at(&u64::to_le_bytes(value), 0);
            wrote.call(|| format!("write {value} to {}", number.name))?;
            number.written.store(value, Ordering::SeqCst);
            thread::sleep(PAUSE);
        }
    }
    Ok(0)
}

/// A program that reads on one of `hosts`.
struct Reader<'a> {
    mount: &'a Path,
    host: usize,
    hosts: usize,
}

impl Reader<'_> {
    fn read(&self, numbers: &[Number], mut rng: Rng, until: Instant) -> Checked<u64> {
        let files = numbers.iter().map(|number| open(self.mount, number));
        let files = files.collect::<Checked<Vec<File>>>()?;
        let mut reads = 0;
        while Instant::now() < until {
            // Some more often than others.
            let most = rng.below(FILES as u64) + 1;
            let at = rng.below(most) as usize;
            let (file, number) = (&files[at], &numbers[at]);
            let at_home = at % self.hosts == self.host;
            let mut floor = number.written.load(Ordering::SeqCst);
            if !at_home {
                floor = floor.max(number.shown.load(Ordering::SeqCst));
            }
            let mut value = [0; 8];
            file.read_exact_at(&mut value, 0)
                .call(|| format!("read {}", number.name))?;
            let value = u64::from_le_bytes(value);
            ensure!(
                value >= floor,
                "{} holds {value} below {}, after {floor} was shown",
                number.name,
                self.mount.display()
            );
            if !at_home {
                number.shown.fetch_max(value, Ordering::SeqCst);
            }
            reads += 1;
        }
        Ok(reads)
    }
}

fn open(mount: &Path, number: &Number) -> Checked<File> {
    let path = mount.join(&number.name);
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.call(|| format!("open {}", path.display()))
}
