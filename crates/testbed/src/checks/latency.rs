//! How long the calls of a program take that does small things all the time.

use crate::error::{Call, Checked};
use perigee_types::Rng;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of one write and of one read.
const PIECE: usize = 4_096;
/// Pieces of the file.
const PIECES: u64 = 1_024;
/// Writes between two fsyncs.
const SYNC_EVERY: u64 = 8;

/// What a program felt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Felt {
    /// How many calls it made.
    pub calls: usize,
    /// Half of them took no longer.
    pub median: Duration,
    /// Of a hundred, one took longer.
    pub p99: Duration,
    /// None took longer.
    pub worst: Duration,
}

impl Felt {
    /// Of calls that took so long each.
    #[must_use]
    pub fn of(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        Self {
            calls: took.len(),
            median: percentile(&took, 50),
            p99: percentile(&took, 99),
            worst: took.last().copied().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Felt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            calls,
            median,
            p99,
            worst,
        } = self;
        write!(
            f,
            "{calls} calls, median {median:.1?}, p99 {p99:.1?}, worst {worst:.1?}"
        )
    }
}

/// Of durations, the one than which a share of `percent` is no longer; zero of none.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Writes, syncs, reads and looks in `dir` until `over` says so.
///
/// Errors: a call fails, or reads what it has not written.
pub fn feel(dir: &Path, seed: u64, mut over: impl FnMut() -> bool) -> Checked<Felt> {
    let path = dir.join(format!("felt-{seed}"));
    let make = || {
        let file = OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path)?;
        file.set_len(PIECES * PIECE as u64)?;
        Ok::<File, std::io::Error>(file)
    };
    let file = make().call(|| format!("make {}", path.display()))?;
    let mut rng = Rng::new(seed);
    let mut took = Vec::new();
    let mut time = |what: &'static str, call: &mut dyn FnMut() -> std::io::Result<()>| {
        let began = Instant::now();
        call().call(|| what.to_owned())?;
        took.push(began.elapsed());
        Ok::<(), crate::error::CheckError>(())
    };
    let mut writes = 0_u64;
    while !over() {
        let at = rng.below(PIECES) * PIECE as u64;
        let piece = [rng.next_u64() as u8; PIECE];
        time("write", &mut || file.write_all_at(&piece, at))?;
        writes += 1;
        if writes.is_multiple_of(SYNC_EVERY) {
            time("fsync", &mut || file.sync_all())?;
        }
        let mut found = [0; PIECE];
        time("read", &mut || file.read_exact_at(&mut found, at))?;
        crate::ensure!(found == piece, "{} has other bytes at {at}", path.display());
        time("stat", &mut || fs::metadata(&path).map(drop))?;
    }
    Ok(Felt::of(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_there_is() {
        let all: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&all, 50), Duration::from_millis(100));
        assert_eq!(percentile(&all, 99), Duration::from_millis(198));
        assert_eq!(percentile(&all[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn a_program_feels_a_local_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut left = 100;
        let felt = feel(dir.path(), 1, || {
            left -= 1;
            left == 0
        });
        let felt = felt.unwrap();
        assert_eq!(felt.calls, 99 * 3 + 12);
        assert!(felt.median <= felt.p99 && felt.p99 <= felt.worst);
    }
}
