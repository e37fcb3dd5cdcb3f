//! `perigee down`: unmount, stop the nodes, then the control store; the data stays.

use super::{DirArg, JsonArg};
use crate::admin_client::{ASK_TIME, ask};
use crate::layout::{Layout, NodeDir};
use crate::output::Report;
use crate::process::{self, Stopped};
use crate::{daemon, pid_file};
use clap::Args;
use perigee_proto::admin::{Failure, Request};
use serde::Serialize;
use std::time::Duration;

/// How long a node may take to make its data durable and end.
const STOP_TIME: Duration = Duration::from_secs(20);

/// Stop the cluster's processes on this machine; the data stays.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee down
  perigee down --dir /tmp/try")]
pub struct Down {
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Line {
    name: String,
    how: &'static str,
}

impl Down {
    /// Stops everything of the cluster that runs here.
    pub fn run(self) -> Result<Report, Failure> {
        let alone = self.dir.open_alone()?;
        let layout = &alone.layout;
        let lines = stop_all(layout)?;
        Report::either(self.json.json, &lines, || {
            lines
                .iter()
                .map(|line| format!("{}: {}\n", line.name, line.how))
                .collect()
        })
    }
}

fn stop_all(layout: &Layout) -> Result<Vec<Line>, Failure> {
    // what one has acknowledged the others must still be there to take
    for node in &layout.nodes {
        if pid_file::running(&node.path).is_some() {
            // one that does not answer is told to stop below, and says there what is wrong
            let _ = ask(&node.path, &Request::Quiesce, ASK_TIME);
        }
    }
    // all are asked first: a node that still runs should not take over from one that stops
    let asked: Vec<_> = layout
        .nodes
        .iter()
        .map(|node| (node, ask_to_stop(node)))
        .collect();
    let mut lines = Vec::new();
    let mut first_failure = None;
    for (node, process) in asked {
        let stopped = match process {
            None => Ok(Stopped::WasDown),
            Some(process) => process::wait_or_kill(&process, STOP_TIME),
        };
        match stopped {
            Ok(stopped) => lines.push(line(node.name(), stopped)),
            Err(failure) => first_failure = first_failure.or(Some(failure)),
        }
        super::umount::clear_dead_mounts(&node.path)?;
    }
    if daemon::is_control(&layout.control()) {
        let stopped = process::terminate(&layout.control(), STOP_TIME)?;
        lines.push(line("control".to_owned(), stopped));
    }
    match first_failure {
        None => Ok(lines),
        Some(failure) => Err(failure),
    }
}

/// Stops one node.
pub(super) fn stop_one(node: &NodeDir) -> Result<Stopped, Failure> {
    match ask_to_stop(node) {
        None => Ok(Stopped::WasDown),
        Some(process) => process::wait_or_kill(&process, STOP_TIME),
    }
}

fn ask_to_stop(node: &NodeDir) -> Option<pid_file::ProcessId> {
    let process = pid_file::running(&node.path)?;
    if ask(&node.path, &Request::Stop, ASK_TIME).is_err() {
        // its socket does not answer: a signal asks the same; if that fails too, the wait ends in a kill
        let _ = process.signal(rustix::process::Signal::TERM);
    }
    Some(process)
}

fn line(name: String, stopped: Stopped) -> Line {
    let how = match stopped {
        Stopped::WasDown => "was not running",
        Stopped::Ended => "stopped",
        Stopped::Killed => "killed: it did not stop in time",
    };
    Line { name, how }
}
