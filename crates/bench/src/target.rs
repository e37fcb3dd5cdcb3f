//! A directory under measurement, with the processes that serve it.

use crate::row::Group;
use perigee_testbed::{Call, Checked, process};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory and its daemons.
#[derive(Debug, Clone)]
pub struct Target {
    /// What the table calls it.
    pub label: String,
    /// Where the files are made.
    pub directory: PathBuf,
    /// Where files of one copy are made, where that is another place.
    pub one_copy: Option<PathBuf>,
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
    /// Where the files of a group are made.
    #[must_use]
    pub fn place_of(&self, group: Group) -> &Path {
        match (&self.one_copy, group) {
            (Some(place), Group::OneCopy) => place,
            _ => &self.directory,
        }
    }

    /// CPU time used up to now. A daemon that has died counts as nothing more.
    fn cpu(&self) -> Duration {
        let this = i32::try_from(std::process::id()).unwrap_or(0);
        self.cpu_of_daemons()
            + process::cpu_time(this).unwrap_or_default()
            + process::cpu_time_of_children()
    }

    fn cpu_of_daemons(&self) -> Duration {
        let times = self.daemons.iter().map(|pid| process::cpu_time(*pid));
        times.filter_map(Result::ok).sum()
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

/// Daemons that use less CPU time than this in a [`GLANCE`] are at rest: all together, and with what those of dozens of
/// containers tell each other anyway.
const AT_REST: Duration = Duration::from_millis(10);
const GLANCE: Duration = Duration::from_millis(100);
/// So often in a row.
const RESTS: u32 = 3;
/// Daemons that never rest are not waited for any longer.
const SETTLE_MAX: Duration = Duration::from_secs(30);

impl Target {
    /// Waits until what was written is on disk and the daemons have done what they do in the background, so that one
    /// row does not pay for the one before. As long without daemons: a hypervisor that takes free memory back does so
    /// while nothing happens, and its fresh pages are dear.
    pub fn settle(&self) {
        rustix::fs::sync();
        let began = Instant::now();
        let mut rests = 0;
        while rests < RESTS && began.elapsed() < SETTLE_MAX {
            let before = self.cpu_of_daemons();
            std::thread::sleep(GLANCE);
            let spent = self.cpu_of_daemons().saturating_sub(before);
            rests = if spent < AT_REST { rests + 1 } else { 0 };
        }
    }

    /// [`Target::settle`], then empties the kernel's caches, and rests until a hypervisor has taken back what they
    /// were in: a cold row begins without the pages of the row before, whichever side had kept more of them.
    ///
    /// Errors: needs root.
    pub fn drop_caches(&self, rest: Duration) -> Checked {
        self.settle();
        empty_caches()?;
        std::thread::sleep(rest);
        Ok(())
    }
}

fn empty_caches() -> Checked {
    let file = OpenOptions::new()
        .write(true)
        .open("/proc/sys/vm/drop_caches");
    file.and_then(|mut file| file.write_all(b"3"))
        .call(|| "drop the kernel's caches for a cold row (needs root)".to_owned())
}
