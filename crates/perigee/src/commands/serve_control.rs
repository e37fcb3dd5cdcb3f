//! `perigee serve-control`: the control store, in this process. `perigee up` starts it detached.

use super::serve::{Ready, Told, run_daemon, runtime};
use crate::output::Report;
use crate::pid_file::PidFile;
use crate::{daemon, logging};
use clap::Args;
use perigee_proto::admin::Failure;
use std::path::{Path, PathBuf};
use tracing::info;

/// Run the control store in this process, until SIGTERM.
#[derive(Debug, Args)]
pub struct ServeControl {
    /// Its directory
    #[arg(long)]
    dir: PathBuf,
    /// Leave the terminal, and report on standard output when ready
    #[arg(long)]
    detached: bool,
}

impl ServeControl {
    /// Runs until it is told to stop.
    pub fn run(self) -> Result<Report, Failure> {
        run_daemon(self.detached, |ready| serve(&self.dir, ready))
    }
}

fn serve(dir: &Path, ready: &mut Ready) -> Result<(), Failure> {
    logging::begin("info");
    let what = || format!("cannot serve the control store in `{}`", dir.display());
    let dir = dir
        .canonicalize()
        .map_err(|error| Failure::new(what(), error))?;
    let Some(cluster) = dir.parent().filter(|_| daemon::is_control(&dir)) else {
        return Err(Failure::new(what(), "there is none"));
    };
    let claim = PidFile::claim(&dir)?;
    runtime()?.block_on(async {
        let mut told = Told::new()?;
        daemon::run_control(cluster, || ready.report(), told.stop_signal()).await
    })?;
    info!("control store stopped");
    drop(claim);
    Ok(())
}
