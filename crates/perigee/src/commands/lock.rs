//! `perigee lock`: runs a command under a lock that all hosts know.

use crate::output::Report;
use clap::{Args, ValueEnum};
use perigee_client::fs::Mode as LockMode;
use perigee_client::lock_ioctl::{LockCall, Waits};
use perigee_gateway::lock_call;
use perigee_proto::admin::Failure;
use perigee_types::ByteRange;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// Where the command finds the token of its lock.
const TOKEN: &str = "PERIGEE_LOCK_TOKEN";

/// Run a command under a lock on a file that all hosts know.
///
/// The lock is had before the command begins, and ends a moment after the last process that the command leaves behind, also
/// where the host dies. The file is made if it is not there; its content does not matter. Locks of fcntl(2) and flock(2) are apart
/// from these.
///
/// The token in $PERIGEE_LOCK_TOKEN (epoch.number) is greater than those of all earlier holders whom this lock excludes: what
/// is done outside of the file system can carry it along, so that a later holder's work is told from what an earlier one left
/// on its way.
///
/// A host keeps a lock that it uses again and again, and takes it then without asking anybody, until another host wants it.
#[derive(Debug, Args)]
#[command(after_help = "\
Modes, and what others may have beside them:
  cr  concurrent read    all but ex
  cw  concurrent write   cr, cw
  pr  protected read     cr, pr
  pw  protected write    cr
  ex  exclusive          nothing

Examples:
  perigee lock /mnt/perigee/jobs.lock -- ./nightly
  perigee lock --mode pr --range 0:4096 /mnt/perigee/table -- ./report
  perigee lock --no-wait /mnt/perigee/jobs.lock -- ./only-one

Exit codes: those of the command; 1 where the lock was not had.")]
pub struct Lock {
    /// A file in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// What the lock is for
    #[arg(long, value_enum, default_value_t = Mode::Ex)]
    mode: Mode,
    /// The bytes that are locked: from START on, LEN of them or all to the end
    #[arg(long, value_name = "START[:LEN]", value_parser = parse_range, default_value = "0")]
    range: ByteRange,
    /// Fail where others have what excludes it
    #[arg(long)]
    no_wait: bool,
    /// Fail when it was not had after so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait")]
    timeout: Option<u64>,
    /// What to run, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A mode, as it is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// Concurrent read
    Cr,
    /// Concurrent write
    Cw,
    /// Protected read
    Pr,
    /// Protected write
    Pw,
    /// Exclusive
    Ex,
}

impl From<Mode> for LockMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Cr => Self::ConcurrentRead,
            Mode::Cw => Self::ConcurrentWrite,
            Mode::Pr => Self::ProtectedRead,
            Mode::Pw => Self::ProtectedWrite,
            Mode::Ex => Self::Exclusive,
        }
    }
}

fn parse_range(text: &str) -> Result<ByteRange, String> {
    let number = |text: &str| {
        let number: u64 = text.parse().map_err(|error| format!("`{text}`: {error}"))?;
        Ok::<u64, String>(number)
    };
    let Some((start, len)) = text.split_once(':') else {
        return Ok(ByteRange::new(number(text)?, u64::MAX));
    };
    let (start, len) = (number(start)?, number(len)?);
    match start.checked_add(len).filter(|_| len > 0) {
        Some(end) => Ok(ByteRange::new(start, end)),
        None => Err("it has no bytes, or more than a file".to_owned()),
    }
}

impl Lock {
    /// Becomes the command, once the lock is had.
    pub fn run(self) -> Result<Report, Failure> {
        let what = || format!("cannot lock `{}`", self.path.display());
        let file = open(&self.path).map_err(|error| Failure::new(what(), error))?;
        let call = LockCall {
            range: self.range,
            mode: Some(self.mode.into()),
            waits: match self.no_wait {
                true => Waits::No,
                false => Waits::Yes,
            },
            token: Default::default(),
        };
        let had = match self.timeout {
            None => lock_call::lock(&file, &call),
            Some(seconds) => within(&file, call, Duration::from_secs(seconds)),
        };
        let token = had.map_err(|error| refused(what(), &error))?.token;
        // The command holds the lock by the open file.
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())
            .map_err(|error| Failure::new(what(), io::Error::from(error)))?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::new(what(), "no command was given"));
        };
        let error = Command::new(program)
            .args(arguments)
            .env(TOKEN, format!("{}.{}", token.epoch.0, token.number))
            .exec();
        Err(Failure::new(
            format!("cannot run `{}`", program.to_string_lossy()),
            error,
        ))
    }
}

fn open(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.open(path)
        }
        opened => opened,
    }
}

/// Waits for a while. What still waits then ends with this process.
fn within(file: &File, call: LockCall, time: Duration) -> io::Result<LockCall> {
    let (sender, receiver) = mpsc::channel();
    let file = file.try_clone()?;
    std::thread::Builder::new().spawn(move || {
        // Nobody listens any more where the time is over.
        _ = sender.send(lock_call::lock(&file, &call));
    })?;
    receiver
        .recv_timeout(time)
        .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

fn refused(what: String, error: &io::Error) -> Failure {
    match (error.kind(), error.raw_os_error()) {
        (_, Some(libc::ENOTTY)) => Failure::new(what, "it is no file of a Perigee mount")
            .hint("`perigee status` lists the mounts"),
        (ErrorKind::WouldBlock, _) => Failure::new(what, "others have a lock that excludes it")
            .hint("`perigee where` names the hosts that have locks on it"),
        (ErrorKind::TimedOut, _) => Failure::new(
            what,
            "others have had a lock that excludes it for all that time",
        )
        .hint("`perigee where` names the hosts that have locks on it"),
        _ => Failure::new(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        assert_eq!(parse_range("0"), Ok(ByteRange::ALL));
        assert_eq!(parse_range("10:5"), Ok(ByteRange::new(10, 15)));
        for wrong in ["", "a", "1:", ":1", "1:0", "18446744073709551615:2"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }
}
