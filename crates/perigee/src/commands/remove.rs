//! `perigee remove`: a node that keeps nothing leaves for good.

use super::{DirArg, JsonArg, status};
use crate::admin_client::{ask_any, unexpected};
use crate::config::NodeConfig;
use crate::layout::{Layout, NodeDir};
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Request};
use perigee_types::NodeId;
use serde::Serialize;
use std::path::PathBuf;

/// Strike a node off the cluster, for good.
///
/// It must keep nothing: `perigee drain` sees to that. Its certificate is void from then on, and no node talks to it any
/// more. A node of this machine is stopped, and its directory gets `.removed` at the end of its name: nothing needs it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee drain node-2 && perigee remove node-2")]
pub struct Remove {
    /// The node's name, or its number
    #[arg(value_name = "NODE")]
    name: String,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Removed {
    node: NodeId,
    name: String,
    /// Where its directory is now, if it is on this machine.
    directory: Option<PathBuf>,
}

impl Remove {
    /// Strikes it off, and puts its directory aside.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let what = || format!("cannot remove `{}`", self.name);
        let status = status::fetch(&layout, None)?;
        let is_meant = |node: &&perigee_proto::admin::NodeStatus| {
            node.name == self.name || node.id.0.to_string() == self.name
        };
        if let Some(node) = status.nodes.iter().find(is_meant)
            && let Some(mount) = node.mounts.first()
        {
            return Err(
                Failure::new(what(), format!("`{mount}` is mounted through it"))
                    .hint(format!("`perigee umount {mount}` first")),
            );
        }
        // Another node is asked where there is one: this one's answer could be lost with its connections.
        let (own, mut others): (Vec<NodeDir>, Vec<NodeDir>) =
            layout.nodes.iter().cloned().partition(|dir| {
                NodeConfig::load(&dir.config()).is_ok_and(|config| {
                    let known = status.nodes.iter().find(|node| node.name == config.name);
                    known.as_ref().is_some_and(is_meant)
                })
            });
        others.extend(own.iter().cloned());
        let request = Request::Remove {
            node: self.name.clone(),
        };
        let node = match ask_any(&others, &request)? {
            Answer::Node(node) => node,
            other => return Err(unexpected(&other)),
        };
        let directory = own.first().map(|dir| put_aside(&layout, dir)).transpose()?;
        let removed = Removed {
            node,
            name: status::node_name(&status, node),
            directory,
        };
        Report::either(self.json.json, &removed, || text(&removed))
    }
}

fn text(removed: &Removed) -> String {
    let name = &removed.name;
    match &removed.directory {
        Some(directory) => format!(
            "{name} is removed; its directory is `{}` now, and can be deleted\n",
            directory.display()
        ),
        None => format!(
            "{name} is removed; stop it with `perigee down` on its machine, and delete its directory\n"
        ),
    }
}

/// Stops the node, and renames its directory so that `up` does not start it again.
fn put_aside(layout: &Layout, dir: &NodeDir) -> Result<PathBuf, Failure> {
    let what = || format!("cannot put `{}` aside", dir.path.display());
    let _only = super::up::lock(&layout.dir)?;
    super::down::stop_one(dir)?;
    let mut name = dir.path.clone().into_os_string();
    name.push(".removed");
    let aside = PathBuf::from(name);
    std::fs::rename(&dir.path, &aside).map_err(|error| Failure::new(what(), error))?;
    Ok(aside)
}
