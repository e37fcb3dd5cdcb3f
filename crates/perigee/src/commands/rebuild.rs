//! `perigee rebuild`: a control store in place of one that was lost.

use super::{DirArg, JsonArg};
use crate::config::NodeConfig;
use crate::layout::Layout;
use crate::output::{Outcome, Report};
use crate::{daemon, human};
use clap::Args;
use perigee_cluster::rebuild::{Inventory, Rebuilt};
use perigee_proto::admin::Failure;
use perigee_types::{ContainerId, NodeId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Make a lost control store anew, from what the nodes know.
///
/// Files lie on the nodes and are not touched; the control store says who the nodes are, and which of them hold what. All
/// nodes must be stopped, or a node that is left out could go on by itself. Each machine tells what its nodes know with
/// `perigee inventory`. The cluster gets a new certificate authority: nodes of other machines are let in again with the
/// tokens that this command prints.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee down && perigee rebuild && perigee up
  perigee rebuild --with north.inventory --with south.inventory --lost node-7")]
pub struct Rebuild {
    #[command(flatten)]
    dir: DirArg,
    /// The inventory of another machine; once for each
    #[arg(long = "with", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A node that is gone for good, by its name or number: what it alone held is given up
    #[arg(long, value_name = "NODE")]
    lost: Vec<String>,
    /// Address and port of the new control store [default: where the old one was]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Summary {
    dir: PathBuf,
    address: SocketAddr,
    nodes: usize,
    containers: usize,
    /// Containers that nobody holds who is left.
    unserved: Vec<ContainerId>,
    /// What lets the nodes of other machines in again.
    tokens: Vec<Readmission>,
}

#[derive(Debug, Serialize)]
struct Readmission {
    node: NodeId,
    name: String,
    token: String,
}

impl Rebuild {
    /// Makes it.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let _only = super::up::lock(&layout.dir)?;
        if layout.control().exists() {
            return Err(Failure::new(
                format!("cannot make a control store in `{}`", layout.dir.display()),
                "there is one",
            )
            .hint(format!(
                "if it cannot be used any more: mv {0} {0}.old",
                layout.control().display()
            )));
        }
        let mut inventories = Vec::new();
        let mut here = BTreeMap::new();
        for node in &layout.nodes {
            let inventory = daemon::inventory(node)?;
            here.insert(inventory.node, node.name());
            inventories.push(inventory);
        }
        for file in &self.files {
            inventories.extend(daemon::read_inventories(file)?);
        }
        let listen = self.listen_address(&layout)?;
        let lost = daemon::resolve(&self.lost, &inventories)?;
        let rebuilt = daemon::plan(&newest_of_each(inventories), &lost)?;
        let made = daemon::rebuild(&layout, listen, &rebuilt, &here)?;
        let tokens = made.tokens.iter().map(|(node, token)| Readmission {
            node: *node,
            name: name_of(&rebuilt, *node),
            token: token.to_string(),
        });
        let summary = Summary {
            dir: layout.dir,
            address: made.address,
            nodes: rebuilt.present().count(),
            containers: rebuilt.containers.len(),
            unserved: rebuilt.lost.clone(),
            tokens: tokens.collect(),
        };
        let outcome = if summary.unserved.is_empty() {
            Outcome::Done
        } else {
            Outcome::Degraded
        };
        Report::either(self.json.json, &summary, || summary.text())
            .map(|report| report.outcome(outcome))
    }

    fn listen_address(&self, layout: &Layout) -> Result<SocketAddr, Failure> {
        match self.listen {
            Some(address) => super::up::check_address(address),
            None => {
                let first = super::up::first_node(layout)?;
                let old = NodeConfig::load(&first.config())?.control;
                super::up::check_address(old).map_err(|failure| {
                    failure.hint("name an address of this machine with --listen")
                })
            }
        }
    }
}

/// A file may have been given twice, or of a node that is here.
fn newest_of_each(inventories: Vec<Inventory>) -> Vec<Inventory> {
    let mut newest: BTreeMap<NodeId, Inventory> = BTreeMap::new();
    for inventory in inventories {
        let known = newest.get(&inventory.node);
        if known.is_none_or(|known| known.copy.revision < inventory.copy.revision) {
            newest.insert(inventory.node, inventory);
        }
    }
    newest.into_values().collect()
}

fn name_of(rebuilt: &Rebuilt, id: NodeId) -> String {
    let node = rebuilt.nodes.iter().find(|node| node.id == id);
    node.map_or_else(|| id.to_string(), |node| node.name.clone())
}

impl Summary {
    fn text(&self) -> String {
        let mut text = format!(
            "the control store is there again, with {} and {}; start it with `perigee up`\n",
            human::plural(self.nodes, "node"),
            human::plural(self.containers, "container"),
        );
        if !self.unserved.is_empty() {
            let names: Vec<String> = self.unserved.iter().map(ToString::to_string).collect();
            text.push_str(&format!(
                "nobody who is left holds {}: what is in there comes back with a node that held it\n",
                names.join(", ")
            ));
        }
        for Readmission { name, token, .. } in &self.tokens {
            text.push_str(&format!(
                "on the machine of {name}, within a day:\n  perigee join --again {token}\n"
            ));
        }
        if !self.tokens.is_empty() {
            text.push_str("where a token is lost or too old: perigee token --again NODE\n");
        }
        text
    }
}
