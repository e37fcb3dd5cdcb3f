//! Daemon processes: start one apart from the terminal and wait until it is ready; stop one.

use crate::layout::LOG_FILE;
use crate::pid_file::{self, ProcessId};
use perigee_proto::admin::{Answer, Failure, Reply};
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a process may take to be ready. A start takes well under a second; replaying a long log
/// after a crash may take many.
const READY_TIME: Duration = Duration::from_secs(60);
/// Between two looks at a process that starts.
const POLL: Duration = Duration::from_millis(20);
/// A log of this many bytes is put aside at the next start; one old log is kept.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// The longest line that a starting process writes.
const READY_BYTES_MAX: u64 = 64 << 10;

/// A process that was started and is not yet known to be ready.
pub struct Starting {
    child: Child,
    dir: PathBuf,
}

/// Starts `perigee ARGUMENT --dir DIR --detached`, with its log in the directory.
pub fn start(argument: &str, dir: &Path) -> Result<Starting, Failure> {
    let what = || format!("cannot start the process of `{}`", dir.display());
    let fail = |error: std::io::Error| Failure::new(what(), error);
    let log = open_log(&dir.join(LOG_FILE)).map_err(fail)?;
    // the file may have been replaced by a newer one since this process began
    let program = std::env::current_exe().map_err(fail)?;
    let child = Command::new(program)
        .arg(argument)
        .arg("--dir")
        .arg(dir)
        .arg("--detached")
        // a daemon must not keep the directory busy that somebody happened to stand in
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(fail)?;
    Ok(Starting {
        child,
        dir: dir.to_path_buf(),
    })
}

impl Starting {
    /// Waits until the process says that it is ready.
    ///
    /// Errors: what the process says is wrong; or that it ended, or said nothing, in which case it is killed.
    pub fn wait(mut self) -> Result<(), Failure> {
        let what = format!("cannot start the process of `{}`", self.dir.display());
        let see_log = format!("see `{}`", self.dir.join(LOG_FILE).display());
        let Some(pipe) = self.child.stdout.take() else {
            return Err(Failure::new(what, "it has no way to say that it is ready"));
        };
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(pipe.take(READY_BYTES_MAX)).read_line(&mut line);
            // nobody listens when the time is over
            let _ = send.send(read.map(|_| line));
        });
        let line = match receive.recv_timeout(READY_TIME) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(Failure::new(what, error)),
            Err(_) => {
                // an error means that it has ended by itself
                let _ = self.child.kill();
                let _ = self.child.wait();
                let why = format!("it was not ready within {} s", READY_TIME.as_secs());
                return Err(Failure::new(what, why).hint(see_log));
            }
        };
        match serde_json::from_str(&line) {
            Ok(Reply::Ok(_)) => Ok(()),
            Ok(Reply::Error(failure)) => {
                // it ends by itself; collected so that its number is free
                let _ = self.child.wait();
                Err(failure)
            }
            Err(_) => {
                let ended = self
                    .child
                    .wait()
                    .map_or_else(|e| e.to_string(), |s| s.to_string());
                Err(
                    Failure::new(what, format!("it ended before it was ready ({ended})"))
                        .hint(see_log),
                )
            }
        }
    }
}

/// Has a process of `dir` that `serves`, whoever has started it: one that an earlier command left
/// half started is waited for, and replaced when it ends. Says whether this call started one.
///
/// Errors: it cannot be started, or does not serve in time.
pub fn ensure(argument: &str, dir: &Path, serves: impl Fn() -> bool) -> Result<Run, Failure> {
    let until = Instant::now() + READY_TIME;
    loop {
        if pid_file::running(dir).is_some() {
            if serves() {
                return Ok(Run::There);
            }
        } else {
            match start(argument, dir)?.wait() {
                Ok(()) => return Ok(Run::Started),
                // somebody else's process was faster
                Err(_) if pid_file::running(dir).is_some() => {}
                Err(failure) => return Err(failure),
            }
        }
        if Instant::now() >= until {
            let what = format!("cannot use the process of `{}`", dir.display());
            let why = format!("it was not ready within {} s", READY_TIME.as_secs());
            let log = dir.join(LOG_FILE);
            return Err(Failure::new(what, why).hint(format!("see `{}`", log.display())));
        }
        std::thread::sleep(POLL);
    }
}

/// Where a process that serves comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It ran already.
    There,
    /// This call started it.
    Started,
}

fn open_log(path: &Path) -> std::io::Result<File> {
    if path.metadata().is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
        std::fs::rename(path, path.with_extension("log.1"))?;
    }
    File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

/// The daemon's side: leaves the terminal's session, so that closing the terminal does not end it.
pub fn detach() -> std::io::Result<()> {
    rustix::process::setsid().map(drop).map_err(Into::into)
}

/// The daemon's side: tells the process that started it, and lets go of the pipe.
pub fn report_ready(result: Result<(), &Failure>) -> std::io::Result<()> {
    let reply = match result {
        Ok(()) => Reply::Ok(Answer::Done),
        Err(failure) => Reply::Error(failure.clone()),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    let told = {
        let mut out = std::io::stdout().lock();
        out.write_all(&line).and_then(|()| out.flush())
    };
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    told
}

/// How a process was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It did not run.
    WasDown,
    /// It ended as asked.
    Ended,
    /// It did not end in time and was killed.
    Killed,
}

/// Waits for the end of a process that was asked to stop, at most `patience`; then kills it.
pub fn wait_or_kill(process: &ProcessId, patience: Duration) -> Result<Stopped, Failure> {
    let fail =
        |error: std::io::Error| Failure::new(format!("cannot stop process {}", process.pid), error);
    if ends_within(process, patience) {
        return Ok(Stopped::Ended);
    }
    process.signal(Signal::KILL).map_err(fail)?;
    if ends_within(process, Duration::from_secs(10)) {
        return Ok(Stopped::Killed);
    }
    Err(Failure::new(
        format!("cannot stop process {}", process.pid),
        "it does not end even when killed: it waits inside the kernel",
    )
    .hint("a disk or mount that does not answer holds it; look at `dmesg`"))
}

/// Asks a process to stop by SIGTERM, waits, then kills it.
pub fn terminate(dir: &Path, patience: Duration) -> Result<Stopped, Failure> {
    let Some(process) = pid_file::running(dir) else {
        return Ok(Stopped::WasDown);
    };
    process
        .signal(Signal::TERM)
        .map_err(|error| Failure::new(format!("cannot stop process {}", process.pid), error))?;
    wait_or_kill(&process, patience)
}

/// Whether a process has ended, or does so in that time.
pub fn ends_within(process: &ProcessId, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while process.runs() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}
