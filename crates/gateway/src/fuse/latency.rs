//! Keeps idle processors from sleeping while requests come briskly.
//!
//! A program that asks for one thing after another sleeps while it is answered. Its processor, with nothing else to
//! do, goes to sleep too, and waking it takes longer than the answer: microseconds where it only halts, tens of them in
//! a virtual machine, whose hypervisor must be left and entered again, hundreds in deep states of real hardware. The
//! kernel has a way to say so, the CPU latency QoS: a limit that holds while whoever asked for it keeps a file open.
//! The price is power, and on a shared machine time that its other guests could have; so it is asked for only in a run
//! of requests, and taken back at the first pause.

use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use tracing::debug;

/// Where the kernel takes requests; root only.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// Who puts idle processors to sleep.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// What a processor may take to wake, in microseconds: real ones halt within it, and do nothing deeper.
const HALT_US: i32 = 2;
/// Guests must not halt at all.
const NO_HALT_US: i32 = 0;
/// The kernel's word for no limit.
const NO_LIMIT: i32 = -1;
/// Requests in a row, each soon after the one before, that are a run: each change of the limit wakes every processor.
const RUN_MIN: u32 = 64;

/// A request to the kernel, in force during runs. One for a mount.
#[derive(Debug)]
pub(super) struct Latency {
    limit_us: i32,
    run: AtomicU32,
    asked: Mutex<Asked>,
}

#[derive(Debug)]
struct Asked {
    /// `None`: the kernel or the mount's user does not have it.
    device: Option<File>,
    in_force: bool,
}

impl Latency {
    /// Nothing is asked for yet.
    pub(super) fn new(wanted: Wanted) -> Self {
        let device = match wanted {
            Wanted::No => None,
            Wanted::Yes => open(Path::new(DEVICE))
                .inspect_err(|error| debug!(%error, "processors sleep as deeply as they do"))
                .ok(),
        };
        let driver = fs::read_to_string(DRIVER).unwrap_or_default();
        Self::of(device, limit_under(driver.trim()))
    }

    fn of(device: Option<File>, limit_us: i32) -> Self {
        Self {
            limit_us,
            run: AtomicU32::new(0),
            asked: Mutex::new(Asked {
                device,
                in_force: false,
            }),
        }
    }

    /// A request came soon after the one before.
    pub(super) fn goes_on(&self) {
        if self.run.load(Ordering::Relaxed) >= RUN_MIN
            || self.run.fetch_add(1, Ordering::AcqRel) + 1 < RUN_MIN
        {
            return;
        }
        let mut asked = self.asked.lock();
        // A pause that another thread has seen meanwhile counts.
        if self.run.load(Ordering::Acquire) >= RUN_MIN && !asked.in_force {
            asked.ask(self.limit_us);
            asked.in_force = true;
        }
    }

    /// There is a pause.
    pub(super) fn pauses(&self) {
        if self.run.swap(0, Ordering::AcqRel) < RUN_MIN {
            return;
        }
        let mut asked = self.asked.lock();
        if std::mem::take(&mut asked.in_force) {
            asked.ask(NO_LIMIT);
        }
    }
}

impl Asked {
    fn ask(&mut self, limit_us: i32) {
        let Some(device) = &mut self.device else {
            return;
        };
        if let Err(error) = device.write_all(&limit_us.to_ne_bytes()) {
            // Closing takes back what was asked for; without it everything goes on, only more slowly.
            debug!(%error, "the kernel takes no limit of latency");
            self.device = None;
        }
    }
}

/// Whether the mount's options ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Yes,
    No,
}

/// To be open asks for no limit yet.
fn open(device: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(device)
}

/// The driver that guests have is the only one whose halt leaves the processor to somebody else.
fn limit_under(driver: &str) -> i32 {
    if driver == "haltpoll" {
        NO_HALT_US
    } else {
        HALT_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(run: impl FnOnce(&Latency)) -> Vec<i32> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        fs::write(&path, []).unwrap();
        let latency = Latency::of(Some(open(&path).unwrap()), limit_under("haltpoll"));
        run(&latency);
        let bytes = fs::read(&path).unwrap();
        bytes
            .chunks_exact(4)
            .map(|word| i32::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn a_run_asks_once_and_its_end_takes_it_back() {
        let asked = recorded(|latency| {
            for _ in 0..2 {
                (0..10 * RUN_MIN).for_each(|_| latency.goes_on());
                latency.pauses();
                latency.pauses();
            }
        });
        assert_eq!(asked, [NO_HALT_US, NO_LIMIT, NO_HALT_US, NO_LIMIT]);
    }

    #[test]
    fn requests_with_pauses_ask_for_nothing() {
        let asked = recorded(|latency| {
            for _ in 0..100 {
                (1..RUN_MIN).for_each(|_| latency.goes_on());
                latency.pauses();
            }
        });
        assert!(asked.is_empty());
    }

    #[test]
    fn real_processors_may_halt() {
        assert_eq!(limit_under("intel_idle"), HALT_US);
        assert_eq!(limit_under(""), HALT_US);
    }
}
