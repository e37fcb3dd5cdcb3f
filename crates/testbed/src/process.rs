//! Processes by id: whether they live, signals, and the CPU time they used.
//!
//! A pid alone can be reused, so whoever keeps one keeps its start time beside it ([`Identity`]).
#![expect(
    unsafe_code,
    reason = "the CPU clock of another process has no safe wrapper"
)]

use crate::mounts;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::Path;
use std::time::Duration;

/// One process, safe against reuse of its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot, from `/proc/PID/stat`.
    pub started: u64,
}

impl Identity {
    /// The process that has `pid` now, if it lives (a zombie does not).
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command may hold blanks and brackets; the fields begin after the last bracket.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Self {
            pid,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether exactly this process still runs (stopped counts as running).
    #[must_use]
    pub fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Its threads that the kernel still has, also of one that was killed and is no more than a zombie.
    #[must_use]
    pub fn threads(self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.pid)).map_or(0, Iterator::count)
    }

    /// Sends `signal` to this process; one that has ended is left alone.
    ///
    /// Errors: what kill(2) says, except that the process has just ended.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) else {
            return Ok(());
        };
        match kill_process(pid, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            outcome => Ok(outcome?),
        }
    }
}

/// Where the threads of this process, and of Perigee's that name `word`, are in the kernel, but for those that wait for
/// work: for whoever has to explain a call that hangs. Empty where the kernel does not say.
#[must_use]
pub fn whereabouts(word: &str) -> String {
    const IDLE: [&str; 5] = [
        "futex",
        "ep_poll",
        "nanosleep",
        "fuse_dev_do_read",
        "pipe_read",
    ];
    let this = Identity::of(i32::try_from(std::process::id()).unwrap_or(0));
    let busy = |stack: &str| !IDLE.iter().any(|idle| stack.contains(idle));
    let all = mentioning(word).into_iter().chain(this);
    all.map(|process| threads(process.pid, busy)).collect()
}

/// Where the threads of a process are in the kernel, of those whose place is `wanted`.
fn threads(pid: i32, wanted: impl Fn(&str) -> bool) -> String {
    let mut all = String::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name));
        let (Ok(stack), Ok(name)) = (read("stack"), read("comm")) else {
            continue;
        };
        if !stack.is_empty() && wanted(&stack) {
            let place = task.path();
            all += &format!("{} {}{stack}", place.display(), name);
        }
    }
    all
}

/// Perigee's processes, and those of etcd, whose command line names `word`, this one left out.
///
/// Only executables with `perigee` in their names, and etcd, count, so that an editor or a pager which looks at
/// the same files is never touched.
#[must_use]
pub fn mentioning(word: &str) -> Vec<Identity> {
    others()
        .filter(|pid| is_perigee(*pid))
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.windows(word.len()).any(|part| part == word.as_bytes()))
        })
        .filter_map(Identity::of)
        .collect()
}

/// All processes but this one.
fn others() -> impl Iterator<Item = i32> {
    let this = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(move |pid| *pid != this)
}

fn is_perigee(pid: i32) -> bool {
    program_of(pid)
        .is_some_and(|name| name.contains("perigee") || name.as_str() == crate::etcd::PROGRAM)
}

/// The name of the file that a process runs.
pub(crate) fn program_of(pid: i32) -> Option<String> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(exe.file_name()?.to_string_lossy().into_owned())
}

/// A process's command line, with blanks between its words; of one that is ending, its name and what it waits for.
pub(crate) fn command_line(pid: i32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if words.is_empty() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let told: Vec<&str> = status.lines().take(8).collect();
        return format!("[{}] {}", told.join(", "), threads(pid, |_| true));
    }
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    text.trim_end().to_owned()
}

/// The processes whose network is the one of that namespace, this one left out.
///
/// Errors: there is no such namespace, or no right to look at it; or it is this process's own, whose others nobody wants to
/// list, let alone to end.
pub fn in_network(namespace: &Path) -> io::Result<Vec<Identity>> {
    let wanted = std::fs::read_link(namespace)?;
    if wanted == std::fs::read_link("/proc/self/ns/net")? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let there = others().filter(|pid| {
        std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|network| network == wanted)
    });
    Ok(there.filter_map(Identity::of).collect())
}

/// CPU time that process `pid` has used, all its threads and modes, ended threads included.
///
/// This is the sum that `/proc/PID/stat` shows, in nanoseconds instead of 10 ms ticks: rows of some
/// thousand quick calls are shorter than a tick per call.
///
/// Errors: `ESRCH`/`EINVAL` where there is no such process.
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a valid place for the result.
    let code = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Ok(Duration::new(seconds, nanos))
}

/// CPU time of the programs that this process has started, and that have ended.
#[must_use]
pub fn cpu_time_of_children() -> Duration {
    // SAFETY: all zeros are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place for the result.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return Duration::ZERO;
    }
    let time = |at: libc::timeval| {
        let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(at.tv_usec).unwrap_or(0))
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// The processes in whose mount namespace something is mounted right below `folder`, where that is not this process's.
pub(crate) fn with_mounts_in(folder: &Path) -> Vec<Identity> {
    let look = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = look("self");
    let elsewhere = others().filter(|pid| {
        let theirs = look(&pid.to_string());
        theirs.is_some() && theirs != own
    });
    let with = elsewhere.filter(|pid| {
        mounts::of(&pid.to_string()).is_ok_and(|points| {
            let mut parents = points.iter().map(|point| point.parent());
            parents.any(|parent| parent == Some(folder))
        })
    });
    with.filter_map(Identity::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_process_does_not_live_and_takes_no_signal() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let identity = Identity::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(identity.lives());
        identity.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!identity.lives());
        identity.signal(Signal::KILL).unwrap();
    }

    #[test]
    fn a_reused_pid_is_another_identity() {
        let this = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let earlier = Identity {
            started: this.started - 1,
            ..this
        };
        assert!(this.lives() && !earlier.lives());
    }

    #[test]
    fn the_processes_of_this_network_are_not_listed() {
        assert!(in_network(Path::new("/proc/self/ns/net")).is_err());
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let before = cpu_time(pid).unwrap();
        let mut sum = 0_u64;
        while cpu_time(pid).unwrap() - before < Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
    }
}
