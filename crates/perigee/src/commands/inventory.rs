//! `perigee inventory`: what this machine's nodes know, for a control store that is made anew elsewhere.

use super::{DirArg, JsonArg};
use crate::daemon;
use crate::output::Report;
use clap::Args;
use perigee_cluster::rebuild::{Inventory, encode_all};
use perigee_proto::admin::Failure;
use perigee_types::NodeId;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// Write down what the nodes of this machine know of the cluster.
///
/// For when the control store was lost: `perigee rebuild` makes a new one out of the inventories of all machines. The nodes
/// must not run. The file holds no secrets and no file content.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee down && perigee inventory south.inventory")]
pub struct TakeInventory {
    /// The file, which must not be there yet
    file: PathBuf,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Summary {
    file: PathBuf,
    nodes: Vec<NodeId>,
    containers: usize,
}

impl TakeInventory {
    /// Takes it.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let all: Result<Vec<Inventory>, Failure> =
            layout.nodes.iter().map(daemon::inventory).collect();
        let all = all?;
        let what = || format!("cannot write `{}`", self.file.display());
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.file)
            .and_then(|mut file| {
                file.write_all(&encode_all(&all))?;
                file.sync_all()
            });
        written.map_err(|error| Failure::new(what(), error))?;
        let summary = Summary {
            nodes: all.iter().map(|one| one.node).collect(),
            containers: all.iter().map(|one| one.held.len()).sum(),
            file: self.file,
        };
        Report::either(self.json.json, &summary, || {
            format!(
                "{} knows what {} of this machine know; on the machine of the new control store:\n  perigee rebuild --with {}\n",
                summary.file.display(),
                crate::human::plural(summary.nodes.len(), "node"),
                summary.file.display(),
            )
        })
    }
}
