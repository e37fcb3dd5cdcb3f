//! What fsync acknowledged stays, byte for byte, when a node is killed in the middle of a write.
//!
//! A writer process fills a file with content that follows from (seed, offset), calls fsync after
//! every few MiB and tells the checker each call's end over a pipe. At a chosen moment a nemesis strikes.
//! At once, while the writer goes on, the checker reads through another host what was durable at that
//! moment; at the end it reads the whole file. The writer must see no error and goes to the end.

use super::latency::percentile;
use crate::error::{Call, CheckError, Checked};
use crate::side::{Heard, Side, say};
use crate::{ensure, pattern};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The bytes that one write call gives.
const CALL: usize = 1 << 20;
/// No single call may take longer: the lease expires and a new owner serves within 5 s, and this
/// machine's disk may be busy besides.
const HANG: Duration = Duration::from_secs(90);

/// One run of the check.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The testbed's binary, which runs the writer.
    pub program: PathBuf,
    /// The file on the writer's host.
    pub written: PathBuf,
    /// The same file on another host.
    pub read: PathBuf,
    /// Bytes to write.
    pub size: u64,
    /// What the content follows from.
    pub seed: u64,
    /// Bytes between two fsyncs; 0 for none, which the check must notice.
    pub sync_every: u64,
    /// The nemesis strikes when this offset is written,
    pub strike_at: u64,
    /// and this much later.
    pub strike_delay: Duration,
}

/// What one run showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Bytes that fsync had acknowledged when the nemesis had struck.
    pub durable_at_strike: u64,
    /// Longest call that ended before the strike.
    pub calm: Duration,
    /// Longest call that ended after it began.
    pub pause: Duration,
}

/// What the writer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Wrote { end: u64, took: Duration },
    Durable { end: u64, took: Duration },
    Done,
}

impl Told {
    fn parse(line: &str) -> Checked<Self> {
        let unknown = || CheckError::violated(format!("the writer says: {line}"));
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().map_err(|_| unknown());
        match *words {
            ["wrote", end, took] => Ok(Self::Wrote {
                end: number(end)?,
                took: Duration::from_micros(number(took)?),
            }),
            ["durable", end, took] => Ok(Self::Durable {
                end: number(end)?,
                took: Duration::from_micros(number(took)?),
            }),
            ["done"] => Ok(Self::Done),
            _ => Err(unknown()),
        }
    }
}

/// Follows the writer and keeps the watermark.
struct Watch {
    side: Side,
    written: u64,
    durable: u64,
    longest: Duration,
    done: bool,
}

impl Watch {
    fn start(plan: &Plan) -> Checked<Self> {
        let [size, seed, sync] = [plan.size, plan.seed, plan.sync_every].map(|n| n.to_string());
        let path = plan.written.to_string_lossy();
        let side = Side::spawn(&plan.program, &["writer", &path, &size, &seed, &sync])?;
        Ok(Self {
            side,
            written: 0,
            durable: 0,
            longest: Duration::ZERO,
            done: false,
        })
    }

    fn note(&mut self, line: &str) -> Checked {
        match Told::parse(line)? {
            Told::Wrote { end, took } => {
                self.written = end;
                self.longest = self.longest.max(took);
            }
            Told::Durable { end, took } => {
                self.durable = end;
                self.longest = self.longest.max(took);
            }
            Told::Done => self.done = true,
        }
        Ok(())
    }

    /// Hears one line of the writer.
    fn step(&mut self) -> Checked {
        let line = self.side.answer("the writer goes on", HANG)?;
        self.note(&line)
    }

    /// Hears what the writer has said up to now, without waiting.
    fn catch_up(&mut self) -> Checked {
        while let Heard::Line(line) = self.side.hear(Duration::ZERO) {
            self.note(&line)?;
        }
        Ok(())
    }
}

/// Runs the writer, strikes, and verifies.
///
/// Errors: `Violated` for a wrong byte, a short file or an error that the writer saw; `Vacuous` when
/// nothing was durable before the strike, or the writer ended before it.
pub fn run(plan: &Plan, strike: &mut dyn FnMut() -> Checked) -> Checked<Round> {
    let mut watch = Watch::start(plan)?;
    while !watch.done && watch.written < plan.strike_at {
        watch.step()?;
    }
    std::thread::sleep(plan.strike_delay);
    watch.catch_up()?;
    let calm = std::mem::take(&mut watch.longest);
    if watch.done {
        return Err(CheckError::Vacuous {
            what: "the writer ended before the strike".to_owned(),
        });
    }
    strike()?;
    watch.catch_up()?;
    let durable = watch.durable;
    verify(&plan.read, plan.seed, durable).map_err(|e| e.during("right after the strike"))?;
    while !watch.done {
        watch.step()?;
    }
    ensure!(
        watch.written == plan.size,
        "{} of {} bytes written",
        watch.written,
        plan.size
    );
    verify(&plan.read, plan.seed, watch.durable).map_err(|e| e.during("at the end"))?;
    verify_size(&plan.read, plan.size)?;
    Ok(Round {
        durable_at_strike: durable,
        calm,
        pause: watch.longest,
    })
}

/// Reads `durable` bytes through another host and compares every one.
///
/// Errors: `Vacuous` for 0 bytes; `Violated` names the first wrong or missing byte.
pub fn verify(path: &Path, seed: u64, durable: u64) -> Checked {
    if durable == 0 {
        return Err(CheckError::Vacuous {
            what: "fsync had acknowledged no byte".to_owned(),
        });
    }
    let file = File::open(path).call(|| format!("open {}", path.display()))?;
    let mut buffer = vec![0; CALL];
    let mut at = 0;
    while at < durable {
        let want = buffer
            .len()
            .min(usize::try_from(durable - at).unwrap_or(usize::MAX));
        let got = file
            .read_at(&mut buffer[..want], at)
            .call(|| format!("read at {at}"))?;
        ensure!(
            got > 0,
            "the file ends at {at}, but fsync had acknowledged {durable} bytes"
        );
        let wrong = pattern::first_difference(seed, at, &buffer[..got]);
        ensure!(
            wrong.is_none(),
            "byte {wrong:?} of {durable} fsynced ones is wrong"
        );
        at += got as u64;
    }
    Ok(())
}

fn verify_size(path: &Path, size: u64) -> Checked {
    let seen = std::fs::metadata(path)
        .call(|| format!("stat {}", path.display()))?
        .len();
    ensure!(seen == size, "the file has {seen} bytes instead of {size}");
    Ok(())
}

/// The writer's side: `writer PATH SIZE SEED SYNC_EVERY`.
///
/// Errors: those of its calls; they are told to the checker as well.
pub fn writing_side(path: &Path, size: u64, seed: u64, sync_every: u64) -> Checked {
    let outcome = write_all(path, size, seed, sync_every);
    if let Err(error) = &outcome {
        say(&format!("error {error}"))?;
    }
    outcome
}

fn write_all(path: &Path, size: u64, seed: u64, sync_every: u64) -> Checked {
    let micros = |start: Instant| start.elapsed().as_micros();
    let start = Instant::now();
    let file = File::create(path).call(|| format!("create {}", path.display()))?;
    say(&format!("wrote 0 {}", micros(start)))?;
    let mut buffer = vec![0; CALL];
    let (mut at, mut synced) = (0, 0);
    while at < size {
        let length = buffer
            .len()
            .min(usize::try_from(size - at).unwrap_or(usize::MAX));
        pattern::fill(seed, at, &mut buffer[..length]);
        let start = Instant::now();
        file.write_all_at(&buffer[..length], at)
            .call(|| format!("write at {at}"))?;
        at += length as u64;
        say(&format!("wrote {at} {}", micros(start)))?;
        let due = at - synced >= sync_every || at == size;
        if sync_every > 0 && due {
            let start = Instant::now();
            file.sync_all().call(|| format!("fsync at {at}"))?;
            synced = at;
            say(&format!("durable {at} {}", micros(start)))?;
        }
    }
    say("done")
}

/// The pauses of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// Half of them were no longer.
    pub median: Duration,
    /// Of a hundred, one was longer.
    pub p99: Duration,
    /// None was longer.
    pub worst: Duration,
}

/// The pauses of several rounds; `None` of none.
#[must_use]
pub fn pauses(rounds: &[Round]) -> Option<Pauses> {
    let mut pauses: Vec<Duration> = rounds.iter().map(|round| round.pause).collect();
    pauses.sort_unstable();
    Some(Pauses {
        median: *pauses.get(pauses.len() / 2)?,
        p99: percentile(&pauses, 99),
        worst: *pauses.last()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writers_words_are_understood_and_its_errors_end_the_check() {
        let took = Duration::from_micros(7);
        assert_eq!(
            Told::parse("wrote 5 7").unwrap(),
            Told::Wrote { end: 5, took }
        );
        assert_eq!(
            Told::parse("durable 5 7").unwrap(),
            Told::Durable { end: 5, took }
        );
        assert!(Told::parse("error write at 3: No space left").is_err());
        assert!(Told::parse("wrote x 7").is_err());
    }

    #[test]
    fn median_and_worst_pause() {
        let round = |ms| Round {
            durable_at_strike: 1,
            calm: Duration::ZERO,
            pause: Duration::from_millis(ms),
        };
        let rounds = [round(5), round(900), round(7)];
        let expected = Pauses {
            median: Duration::from_millis(7),
            p99: Duration::from_millis(900),
            worst: Duration::from_millis(900),
        };
        assert_eq!(pauses(&rounds), Some(expected));
        assert_eq!(pauses(&[]), None);
    }
}
