//! A directory under measurement, with the processes that serve it.

use perigee_testbed::{Call, Checked, process};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A directory and its daemons.
#[derive(Debug, Clone)]
pub struct Target {
    /// What the table calls it.
    pub label: String,
    /// Where the files are made.
    pub directory: PathBuf,
    /// Processes whose CPU time counts, besides the benchmark's own.
    pub daemons: Vec<i32>,
}

/// One value of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// In the row's unit.
    pub value: f64,
    /// CPU time of an operation: the benchmark's own and the daemons'.
    pub cpu: Duration,
}

/// Time and CPU since a moment.
#[derive(Debug)]
pub struct Meter<'a> {
    target: &'a Target,
    cpu: Duration,
    start: Instant,
}

/// What a meter showed.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// By the clock.
    pub wall: Duration,
    /// By all processes.
    pub cpu: Duration,
}

impl Target {
    /// CPU time used up to now. A daemon that has died counts as nothing more.
    fn cpu(&self) -> Duration {
        let this = i32::try_from(std::process::id()).unwrap_or(0);
        let pids = self.daemons.iter().copied().chain([this]);
        pids.filter_map(|pid| process::cpu_time(pid).ok()).sum()
    }

    /// Starts measuring.
    #[must_use]
    pub fn meter(&self) -> Meter<'_> {
        Meter {
            target: self,
            cpu: self.cpu(),
            start: Instant::now(),
        }
    }
}

impl Meter<'_> {
    /// Ends measuring.
    #[must_use]
    pub fn stop(self) -> Spent {
        let wall = self.start.elapsed();
        Spent {
            wall,
            cpu: self.target.cpu().saturating_sub(self.cpu),
        }
    }
}

impl Spent {
    /// A rate of `amount` in the row's unit, made by `operations` calls.
    #[must_use]
    pub fn rate(self, amount: f64, operations: u64) -> Figure {
        Figure {
            value: amount / self.seconds(),
            cpu: self.each(operations),
        }
    }

    /// The time itself, of `operations` calls.
    #[must_use]
    pub fn time(self, operations: u64) -> Figure {
        Figure {
            value: self.seconds(),
            cpu: self.each(operations),
        }
    }

    fn seconds(self) -> f64 {
        self.wall.as_secs_f64().max(1e-9)
    }

    fn each(self, operations: u64) -> Duration {
        self.cpu.div_f64(operations.max(1) as f64)
    }
}

/// Waits until what was written is on disk, so that one row does not pay for the one before.
pub fn settle() {
    rustix::fs::sync();
}

/// Empties the kernel's caches.
///
/// Errors: needs root.
pub fn drop_caches() -> Checked {
    settle();
    let file = OpenOptions::new()
        .write(true)
        .open("/proc/sys/vm/drop_caches");
    file.and_then(|mut file| file.write_all(b"3"))
        .call(|| "drop the kernel's caches for a cold row (needs root)".to_owned())
}
