//! `perigee serve-union`: the processes of a union. `perigee union` starts the one of this host, and that one those of
//! other hosts over SSH.

use super::serve::{Told, run_daemon, runtime};
use crate::daemon::{self, UnionPlan};
use crate::logging;
use crate::output::Report;
use crate::pid_file::PidFile;
use crate::process;
use clap::Args;
use perigee_proto::admin::Failure;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the union is to be, in the directory of its process.
pub const PLAN_FILE: &str = "union.json";

/// How long what is under way may take at the end.
const ENDS: Duration = Duration::from_secs(1);

/// Serve a union until its mount, or its starter, is gone.
#[derive(Debug, Args)]
pub struct ServeUnion {
    /// The directory of a union that is to be started
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Remove this directory, which holds this program's file, at once
    #[arg(long, conflicts_with = "dir")]
    remove: Option<PathBuf>,
}

impl ServeUnion {
    /// Runs until it is told to stop.
    pub fn run(self) -> Result<Report, Failure> {
        if let Some(dir) = &self.dir {
            return run_daemon(false, |_| serve(dir));
        }
        if let Some(carried) = &self.remove {
            remove(carried);
        }
        run_daemon(false, |_| {
            // As for a node's daemon: most of a huge page would be of no use.
            _ = rustix::thread::disable_transparent_huge_pages(true);
            logging::begin("warn");
            let runtime = runtime()?;
            let served = runtime.block_on(daemon::serve_branches());
            // A read of standard input may go on for ever.
            runtime.shutdown_timeout(ENDS);
            served
        })
    }
}

/// Removes what was carried here; a program runs on without its file.
fn remove(carried: &Path) {
    let mine = std::env::current_exe().ok();
    if mine.is_some_and(|me| me.parent() == Some(carried)) {
        _ = std::fs::remove_file(carried.join("perigee"));
        _ = std::fs::remove_dir(carried);
    }
}

fn serve(dir: &Path) -> Result<(), Failure> {
    _ = rustix::thread::disable_transparent_huge_pages(true);
    logging::begin("info");
    let what = || format!("cannot read `{}`", dir.display());
    let text = std::fs::read(dir.join(PLAN_FILE)).map_err(|error| Failure::new(what(), error))?;
    let plan: UnionPlan =
        serde_json::from_slice(&text).map_err(|error| Failure::new(what(), error))?;
    let claim = PidFile::claim(dir)?;
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let mut told = Told::new()?;
        let line = |line| {
            if let Ok(mut text) = serde_json::to_vec(&line) {
                text.push(b'\n');
                // The command may have been broken off; then the pipe tells nobody.
                _ = std::io::stdout().write_all(&text);
            }
        };
        let ready = || {
            // The terminal was left to `ssh` for its questions until now.
            process::detach().map_err(|error| Failure::new("cannot leave the terminal", error))?;
            process::report_ready(Ok(()))
                .map_err(|error| Failure::new("nobody waits for the union", error))
        };
        daemon::serve_union(dir, plan, line, ready, told.stop_signal()).await
    });
    // A call that hangs on a disk of this host may go on for ever.
    runtime.shutdown_timeout(ENDS);
    if let Err(failure) = &served {
        _ = process::report_ready(Err(failure));
    }
    drop(claim);
    // What is in it was of use to this process alone.
    _ = std::fs::remove_dir_all(dir);
    served
}
