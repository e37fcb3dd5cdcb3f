//! `perigee serve`: one node, in this process. `perigee up` starts it detached.

use crate::admin_server::AdminServer;
use crate::config::NodeConfig;
use crate::layout::NodeDir;
use crate::output::Report;
use crate::pid_file::PidFile;
use crate::{daemon, logging, process};
use clap::Args;
use perigee_proto::admin::Failure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::{info, warn};

/// Open files of a daemon, at most.
const OPEN_FILES: u64 = 65_536;

/// Run a node in this process, until SIGTERM.
#[derive(Debug, Args)]
pub struct Serve {
    /// The node's data directory
    #[arg(long)]
    dir: PathBuf,
    /// Leave the terminal, and report on standard output when ready
    #[arg(long)]
    detached: bool,
}

impl Serve {
    /// Runs until it is told to stop.
    pub fn run(self) -> Result<Report, Failure> {
        run_daemon(self.detached, |ready| serve(&self.dir, ready))
    }
}

/// Runs a daemon. A detached one reports its failure to the process that started it.
pub fn run_daemon(
    detached: bool,
    body: impl FnOnce(&mut Ready) -> Result<(), Failure>,
) -> Result<Report, Failure> {
    if detached {
        process::detach().map_err(|error| Failure::new("cannot leave the terminal", error))?;
    }
    die_whole();
    let mut ready = Ready {
        detached,
        reported: false,
    };
    let result = body(&mut ready);
    if let Err(failure) = &result
        && detached
        && !ready.reported
    {
        // the failure goes to the log below, too, where this does not reach anybody
        let _ = process::report_ready(Err(failure));
    }
    result.map(|()| Report::silent())
}

/// A daemon that has lost a thread to a defect must not go on with the others: its peers would take
/// it for alive. It ends, and they take over.
fn die_whole() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        tracing::error!(%panic, "a defect of this program: the daemon ends");
        // Not by a signal that dumps core: for that all threads would be waited for, also one that waits inside the
        // kernel until the watchdog of a mount hears of the end.
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::process::abort();
    }));
}

/// The word that a daemon serves.
pub struct Ready {
    detached: bool,
    reported: bool,
}

impl Ready {
    /// Says so, once. That nobody listens any more is no reason to end: the command that started this
    /// process was cut off, and the next one finds it serving.
    pub fn report(&mut self) -> Result<(), Failure> {
        self.reported = true;
        if !self.detached {
            return Ok(());
        }
        match process::report_ready(Ok(())) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::new("cannot say that it is ready", error))
            }
            _ => Ok(()),
        }
    }
}

fn serve(dir: &std::path::Path, ready: &mut Ready) -> Result<(), Failure> {
    // The allocator asks for huge pages; a daemon with many threads then clears megabytes to use kilobytes.
    // Where the kernel does not know the wish it has no such pages.
    _ = rustix::thread::disable_transparent_huge_pages(true);
    let what = || format!("cannot serve `{}`", dir.display());
    let path = dir
        .canonicalize()
        .map_err(|error| Failure::new(what(), error))?;
    let node = NodeDir { path };
    let config = NodeConfig::load(&node.config())?;
    logging::begin(&config.log);
    let claim = PidFile::claim(&node.path)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let running = Arc::new(daemon::start_node(&node.path, &config).await?);
        let stop = Arc::new(Notify::new());
        let admin =
            AdminServer::bind(&node.path, running.clone(), Arc::clone(&stop)).map_err(|error| {
                Failure::new(
                    what(),
                    format!("its admin socket cannot be opened: {error}"),
                )
            })?;
        let mut told = Told::new()?;
        ready.report()?;
        info!(name = config.name, listen = %config.listen, "node serves");
        tokio::select! {
            () = admin.run() => {}
            () = stop.notified() => info!("stop was asked for"),
            () = told.stop_signal() => info!("signal to stop"),
        }
        running.stop().await
    })?;
    info!("node stopped");
    drop(claim);
    Ok(())
}

/// A runtime for a daemon, which may have more files open than what a login gives it.
pub fn runtime() -> Result<Runtime, Failure> {
    raise_open_files();
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start the runtime", error))
}

/// Lets this process have as many files open as its user may, up to [`OPEN_FILES`].
fn raise_open_files() {
    let is = getrlimit(Resource::Nofile);
    let may = is.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    let wanted = Rlimit {
        current: Some(may),
        ..is
    };
    if is.current.is_some_and(|current| current < may)
        && let Err(error) = setrlimit(Resource::Nofile, wanted)
    {
        warn!(%error, "the limit of open files stays as it is");
    }
}

/// The signals that end a daemon.
pub struct Told {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Told {
    /// Listens from now on.
    pub fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::new("cannot listen for signals", error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Returns when one arrives.
    ///
    /// # Cancel safety
    /// No signal is lost: each is kept until the next call.
    pub async fn stop_signal(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
