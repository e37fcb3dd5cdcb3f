//! `perigee inventory`: what this machine's nodes know, for a control store that is made anew elsewhere.

use super::{DirArg, JsonArg};
use crate::layout::{Layout, NodeDir};
use crate::output::Report;
use crate::{daemon, human};
use clap::Args;
use perigee_cluster::rebuild::{Inventory, encode_all};
use perigee_proto::admin::Failure;
use perigee_types::NodeId;
use serde::Serialize;
use std::fs::{OpenOptions, remove_file};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Write down what the nodes of this machine know of the cluster.
///
/// For when the control store was lost: `perigee rebuild` makes a new one out of the inventories of all machines. The nodes
/// must not run, and do not start from then on until `perigee join --again` has let them in: they would go on with an old
/// control store that answers still, and the others with the new one. The file holds no secrets and no file content.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee down && perigee inventory south.inventory
  perigee inventory --undo      no control store was made of it: the nodes may start again")]
pub struct TakeInventory {
    /// The file, which must not be there yet
    #[arg(required_unless_present = "undo", conflicts_with = "undo")]
    file: Option<PathBuf>,
    /// Take it back, where no control store was made of it, and none will be: the nodes may start as they were
    #[arg(long)]
    undo: bool,
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

#[derive(Debug, Serialize)]
struct TakenBack {
    nodes: Vec<String>,
}

impl TakeInventory {
    /// Takes it, or takes it back.
    pub fn run(self) -> Result<Report, Failure> {
        let alone = self.dir.open_alone()?;
        let layout = &alone.layout;
        match &self.file {
            Some(file) => take(layout, file, &self.json),
            None => take_back(layout, &self.json),
        }
    }
}

fn take(layout: &Layout, file: &Path, json: &JsonArg) -> Result<Report, Failure> {
    let what = || format!("cannot write `{}`", file.display());
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(file);
    // Before anything else: a file that cannot be made keeps no node from starting.
    let mut made = made.map_err(|error| Failure::new(what(), error))?;
    let written = give(layout).and_then(|all| {
        made.write_all(&encode_all(&all))
            .and_then(|()| made.sync_all())
            .map_err(|error| {
                Failure::new(what(), error).hint("`perigee inventory --undo`, or another file")
            })?;
        Ok(all)
    });
    if written.is_err() {
        // Half an inventory is none, and is refused where it stays.
        let _ = remove_file(file);
    }
    let all = written?;
    let summary = Summary {
        nodes: all.iter().map(|one| one.node).collect(),
        containers: all.iter().map(|one| one.held.len()).sum(),
        file: file.to_path_buf(),
    };
    Report::either(json.json, &summary, || {
        format!(
            "{} knows what {} of this machine know; on the machine of the new control store:\n  perigee rebuild --with {}\n\
             here nothing starts until the tokens are here that it prints:\n  perigee join --again TOKEN\n",
            summary.file.display(),
            human::plural(summary.nodes.len(), "node"),
            summary.file.display(),
        )
    })
}

fn give(layout: &Layout) -> Result<Vec<Inventory>, Failure> {
    layout.nodes.iter().map(daemon::give_inventory).collect()
}

fn take_back(layout: &Layout, json: &JsonArg) -> Result<Report, Failure> {
    let back = daemon::take_back_inventories(&layout.nodes)?;
    let summary = TakenBack {
        nodes: back.into_iter().map(NodeDir::name).collect(),
    };
    Report::either(json.json, &summary, || match summary.nodes.as_slice() {
        [] => "no inventory of a node of this machine was taken\n".to_owned(),
        nodes => format!(
            "{} may start again with `perigee up`; remove the inventory, nothing may be made of it any more\n",
            nodes.join(", ")
        ),
    })
}
