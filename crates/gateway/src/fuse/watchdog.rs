//! Who ends the requests of a mount when its daemon is killed.
//!
//! A thread of the daemon that tells the kernel to forget pages waits inside the kernel for reads of these pages
//! ([`Kernel::forget_data`](super::notify::Kernel)). When the daemon is killed then, nobody answers these reads, so
//! the thread cannot die; the dead process keeps the connection open, and whatever touches the mount hangs. The
//! kernel ends all requests of a connection when somebody asks for it in the `fusectl` file system: a process of its
//! own does, as soon as the kernel tells it that the thread that started it has died.

use super::point;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

/// How to start a process that calls [`watch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchdogCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// The line that a watchdog writes when it watches.
const ARMED: &str = "watching";

/// The watchdog's side: waits until the thread that started this process has died, and ends all requests of the
/// connection whose `abort` file is the standard input. Whoever starts it kills it when the mount has ended.
///
/// Says on the standard output when it is ready. Errors: nobody listens there; it could not wait; the kernel refused.
pub fn watch() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let mut parent_died = signal(SignalKind::user_defined1())?;
        // Who stops a whole service tells each of its processes; the daemon unmounts in peace.
        let _deaf = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
        // Who listens has not died before it was watched.
        let mut out = io::stdout().lock();
        write!(out, "\n{ARMED}\n")?;
        out.flush()?;
        drop(out);
        parent_died.recv().await;
        io::Result::Ok(())
    })?;
    // What is written does not matter.
    rustix::io::write(io::stdin(), b"1")?;
    Ok(())
}

/// A running watchdog. Dropped, it is gone, and ends nothing.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Arc<Mutex<Option<Pid>>>,
}

impl Watchdog {
    /// Starts the watchdog of the mount with this device number (`major:minor`).
    ///
    /// It watches when this returns. Errors: the kernel shows nobody how to end the mount's requests, or the process
    /// does not start.
    pub(crate) fn start(command: &WatchdogCommand, device: &str) -> io::Result<Self> {
        let abort = abort_file(device)?;
        let mut process = Command::new(&command.program);
        process
            .args(&command.arguments)
            .current_dir("/")
            // Signals that a terminal sends to a daemon in the foreground are not for it.
            .process_group(0)
            .stdin(Stdio::from(abort))
            .stdout(Stdio::piped());
        let watched = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&watched);
        let (started, start) = channel();
        // The kernel tells the child of the death of the thread that started it: this one lives as long as the mount.
        thread::Builder::new()
            .name("fuse-watchdog".to_owned())
            .spawn(move || attend(&mut process, &shared, &started))?;
        let ended = |_| io::Error::other("the thread that starts it ended");
        start.recv().map_err(ended)??;
        Ok(Self { process: watched })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        // Its number is its own until its thread, which takes it under this lock, has collected it.
        if let Some(pid) = process.take()
            && let Err(error) = rustix::process::kill_process(pid, Signal::KILL)
        {
            warn!(%error, "watchdog of a mount is left behind");
        }
    }
}

fn attend(process: &mut Command, watched: &Mutex<Option<Pid>>, started: &Sender<io::Result<()>>) {
    let mut child = match process.spawn() {
        Ok(child) => child,
        Err(error) => {
            _ = started.send(Err(error));
            return;
        }
    };
    let pid = Pid::from_child(&child);
    let said = listen(child.stdout.take());
    let is_armed = said.is_ok();
    if is_armed {
        *watched.lock() = Some(pid);
    } else {
        // It ends by itself, if it has not; nobody else would end it.
        _ = child.kill();
    }
    // Who asked for it waits for this word.
    _ = started.send(said);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(
        rustix::process::waitid(WaitId::Pid(pid), look),
        Err(Errno::INTR)
    ) {}
    let unasked = watched.lock().take().is_some() && is_armed;
    match child.wait() {
        Ok(status) if unasked => {
            warn!(%status, "watchdog of a mount ended: programs may hang there when this process is killed");
        }
        Ok(_) => {}
        Err(error) => warn!(%error, "watchdog of a mount is left behind"),
    }
}

/// Waits for the word that a watchdog watches.
fn listen(out: Option<ChildStdout>) -> io::Result<()> {
    for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
        if line? == ARMED {
            return Ok(());
        }
    }
    Err(io::Error::other("the watchdog ended before it watched"))
}

/// The file that ends all requests of a connection when it is written to.
fn abort_file(device: &str) -> io::Result<OwnedFd> {
    let Some(connection) = device.strip_prefix("0:") else {
        return Err(io::Error::other(format!("{device} is no FUSE device")));
    };
    let name = format!("{connection}/abort");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let place = format!("/sys/fs/fuse/connections/{name}");
    match rustix::fs::open(place, flags, Mode::empty()) {
        // Nobody has mounted it there, or not where this process can see it.
        Err(Errno::NOENT) if point::is_root() => {}
        result => return Ok(result?),
    }
    let control = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&control)?;
    let close = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(&control, close, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(root, name, flags, Mode::empty())?)
}
