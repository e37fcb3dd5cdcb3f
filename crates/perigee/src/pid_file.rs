//! Which process serves a directory: a locked file with its number and the moment it began.
//!
//! Invariant: a process is signalled only through a handle (pidfd) whose start time was compared
//! after it was opened, so a number that the kernel has given to another process is never hit.

use perigee_proto::admin::Failure;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Name of the file in a process's directory.
pub const PID_FILE: &str = "pid";
/// How long a process that was killed may take to let go of its directory.
const LETS_GO: Duration = Duration::from_secs(10);

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from boot to its start, from /proc.
    start_ticks: u64,
    /// The boot that the ticks count from.
    boot: String,
}

impl ProcessId {
    /// This process.
    pub fn own() -> std::io::Result<Self> {
        let pid = std::process::id();
        let gone = || std::io::Error::other("/proc does not show this process");
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid).ok_or_else(gone)?,
            boot: boot_id()?,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let start_ticks = words.next()?.parse().ok()?;
        let boot = words.next()?.to_owned();
        words.next().is_none().then_some(Self {
            pid,
            start_ticks,
            boot,
        })
    }

    /// Whether it still runs. One that has ended but was not yet collected by its parent does not.
    pub fn runs(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot)
            && start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Sends a signal to it, and to no other process. False when it no longer runs.
    pub fn signal(&self, signal: Signal) -> std::io::Result<bool> {
        let Some(handle) = self.handle() else {
            return Ok(false);
        };
        match pidfd_send_signal(&handle, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn handle(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // compared after the handle was opened: now it cannot become another process's
        self.runs().then_some(handle)
    }
}

/// The claim of a process on its directory; given up when dropped.
#[derive(Debug)]
pub struct PidFile {
    file: File,
}

impl PidFile {
    /// Claims `dir` for this process.
    ///
    /// Errors: another process serves it.
    pub fn claim(dir: &Path) -> Result<Self, Failure> {
        let what = || format!("cannot serve `{}`", dir.display());
        let fail = |error: std::io::Error| Failure::new(what(), error);
        let mut file = File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .mode(0o644)
            .open(dir.join(PID_FILE))
            .map_err(fail)?;
        let began = Instant::now();
        let mut locked = file.try_lock();
        // The lock of a process that was killed goes with the last of its threads, which may wait for the disk.
        while matches!(locked, Err(TryLockError::WouldBlock))
            && read(dir).is_some_and(|holder| !holder.runs())
            && began.elapsed() < LETS_GO
        {
            std::thread::sleep(Duration::from_millis(10));
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let by = read(dir).map_or_else(String::new, |p| format!(" {}", p.pid));
                return Err(
                    Failure::new(what(), format!("process{by} serves it already"))
                        .hint("`perigee status` shows what runs; `perigee down` stops it"),
                );
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let own = ProcessId::own().map_err(fail)?;
        let line = format!("{} {} {}\n", own.pid, own.start_ticks, own.boot);
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(line.as_bytes()))
            .map_err(fail)?;
        Ok(Self { file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // an empty file names nobody; if it cannot be emptied, the start time unmasks it
        let _ = self.file.set_len(0);
    }
}

/// The process that serves `dir`, if one runs.
pub fn running(dir: &Path) -> Option<ProcessId> {
    read(dir).filter(ProcessId::runs)
}

fn read(dir: &Path) -> Option<ProcessId> {
    // longer than any pid file that we write
    let mut text = String::new();
    let file = File::open(dir.join(PID_FILE)).ok()?;
    file.take(256).read_to_string(&mut text).ok()?;
    ProcessId::parse(&text)
}

/// Field 22 of /proc/PID/stat; none when there is no such process or it has ended.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the name, in parentheses, may hold spaces and parentheses
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn boot_id() -> std::io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn write(dir: &Path, process: &ProcessId) {
        let line = format!("{} {} {}", process.pid, process.start_ticks, process.boot);
        std::fs::write(dir.join(PID_FILE), line).unwrap();
    }

    #[test]
    fn a_claim_names_this_process_and_keeps_others_out() {
        let temp = tempfile::tempdir().unwrap();
        let claim = PidFile::claim(temp.path()).unwrap();
        assert_eq!(running(temp.path()), Some(ProcessId::own().unwrap()));
        let refused = PidFile::claim(temp.path()).unwrap_err();
        assert!(refused.why.contains(&std::process::id().to_string()));
        drop(claim);
        assert_eq!(running(temp.path()), None);
        PidFile::claim(temp.path()).unwrap();
    }

    #[test]
    fn a_number_that_another_process_got_is_not_signalled() {
        let temp = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("30")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut other = ProcessId::own().unwrap();
        other.pid = child.id();
        other.start_ticks = start_ticks(child.id()).unwrap() - 1;
        write(temp.path(), &other);
        assert_eq!(running(temp.path()), None);
        assert!(!other.signal(Signal::KILL).unwrap());
        assert!(child.try_wait().unwrap().is_none());

        other.start_ticks += 1;
        assert!(other.signal(Signal::KILL).unwrap());
        child.wait().unwrap();
        assert!(!other.runs());
    }

    #[test]
    fn the_same_ticks_of_another_boot_are_another_process() {
        let mut earlier = ProcessId::own().unwrap();
        earlier.boot = "00000000-0000-0000-0000-000000000000".to_owned();
        assert!(!earlier.runs());
    }

    #[test]
    fn a_process_that_ended_uncollected_does_not_run() {
        let mut child = Command::new("true").spawn().unwrap();
        let mut id = ProcessId::own().unwrap();
        id.pid = child.id();
        let before = start_ticks(child.id());
        while start_ticks(child.id()).is_some() {
            std::thread::yield_now();
        }
        id.start_ticks = before.unwrap_or_default();
        assert!(!id.runs());
        child.wait().unwrap();
    }

    #[test]
    fn a_damaged_file_names_nobody() {
        let temp = tempfile::tempdir().unwrap();
        for text in ["", "12", "x y z", "1 2 boot extra", "\0\0\0"] {
            std::fs::write(temp.path().join(PID_FILE), text).unwrap();
            assert_eq!(running(temp.path()), None, "{text:?}");
        }
    }
}
