//! Renames between directories of several owners, beside other calls in the same directories: each waits for its turn, and
//! for nothing else.
//!
//! Inodes come and go in every kernel all the time here, while other hosts change them and tell these kernels.

use super::latency::Felt;
use crate::error::{Call, CheckError, Checked};
use perigee_types::Rng;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Names that all hosts take from each other, in each directory.
const NAMES: u64 = 4;
/// Programs on each host.
const PROGRAMS: u64 = 4;

/// What a program does, after the directories that it does it in.
#[derive(Debug, Clone, Copy)]
enum Act {
    Rename,
    Link,
    Make,
    Remove,
    Look,
}

/// Makes a directory through each mount, and works in all of them through all mounts for as long as `time`.
///
/// Errors: a call failed with something else than what the others' work explains.
pub fn run(mounts: &[PathBuf], seed: u64, time: Duration) -> Checked<Felt> {
    for (mount, number) in mounts.iter().zip(0..) {
        let made = fs::create_dir(directory(mount, number));
        made.call(|| format!("mkdir {}", directory(mount, number).display()))?;
    }
    let until = Instant::now() + time;
    let directories = mounts.len() as u64;
    let took: Checked<Vec<Vec<Duration>>> = thread::scope(|scope| {
        let programs: Vec<_> = (0..directories * PROGRAMS)
            .map(|program| {
                let mount = &mounts[(program % directories) as usize];
                let rng = Rng::new(seed ^ (program + 1) << 32);
                scope.spawn(move || work(mount, directories, rng, until))
            })
            .collect();
        let ended = programs.into_iter().map(|program| {
            program
                .join()
                .unwrap_or_else(|_| Err(CheckError::violated("a program panicked")))
        });
        ended.collect()
    });
    Ok(Felt::of(took?.concat()))
}

fn work(mount: &Path, directories: u64, mut rng: Rng, until: Instant) -> Checked<Vec<Duration>> {
    let mut took = Vec::new();
    while Instant::now() < until {
        let mut place =
            || directory(mount, rng.below(directories)).join(rng.below(NAMES).to_string());
        let (from, to) = (place(), place());
        let act = match rng.below(8) {
            0..=2 => Act::Rename,
            3 => Act::Link,
            4 | 5 => Act::Make,
            6 => Act::Remove,
            _ => Act::Look,
        };
        let began = Instant::now();
        let done = match act {
            Act::Rename => fs::rename(&from, &to),
            Act::Link => fs::hard_link(&from, &to),
            Act::Make => File::create(&to).map(drop),
            Act::Remove => fs::remove_file(&to),
            Act::Look => fs::symlink_metadata(&to).map(drop),
        };
        took.push(began.elapsed());
        if let Err(error) = done
            && !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
            )
        {
            let what = format!("{act:?} of {} and {}", from.display(), to.display());
            return Err(error).call(|| what);
        }
    }
    Ok(took)
}

fn directory(mount: &Path, number: u64) -> PathBuf {
    mount.join(format!("renames-{number}"))
}
