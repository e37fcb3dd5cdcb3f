//! `perigee mount-watchdog`: started by a daemon beside each of its mounts.

use crate::output::Report;
use clap::Args;
use perigee_gateway::fuse;
use perigee_proto::admin::Failure;

/// End the requests of the mount whose `abort` file is the standard input, when the daemon is killed.
#[derive(Debug, Args)]
pub struct MountWatchdog {}

impl MountWatchdog {
    /// Waits for the daemon's end, or to be killed.
    pub fn run(self) -> Result<Report, Failure> {
        fuse::watch().map_err(|error| Failure::new("cannot watch over a mount", error))?;
        Ok(Report::silent())
    }
}
