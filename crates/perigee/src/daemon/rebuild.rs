//! A control store that was lost, made anew from what the nodes know.

use super::join::{Left, clear, identity_dir, settle};
use super::{block_on, failure};
use crate::config::NodeConfig;
use crate::layout::{Layout, NodeDir};
use crate::pid_file;
use perigee_cluster::Directory;
use perigee_cluster::rebuild::{Inventories, Inventory, RebuildError, Rebuilt};
use perigee_control::rebuild::{RECERTIFIED, RebuiltControl, rebuild_control};
use perigee_net::identity::Identity;
use perigee_node::inventory::{self, InventoryError};
use perigee_proto::admin::Failure;
use perigee_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// What the node of a data directory knows, for a control store on this machine. It must not run.
pub fn inventory(node: &NodeDir) -> Result<Inventory, Failure> {
    take(node, inventory::take)
}

/// The same for a control store on another machine: the node does not start from then on, until it is let in there.
pub fn give_inventory(node: &NodeDir) -> Result<Inventory, Failure> {
    // A join that is complete must not be completed later, as if it had come after this.
    settle(&node.path)?;
    take(node, inventory::give_away)
}

fn take(
    node: &NodeDir,
    take: impl FnOnce(&Path) -> Result<Inventory, InventoryError>,
) -> Result<Inventory, Failure> {
    let what = || format!("cannot take the inventory of `{}`", node.path.display());
    if pid_file::running(&node.path).is_some() {
        return Err(Failure::new(what(), "its node runs").hint("`perigee down` stops it"));
    }
    take(&node.path).map_err(|error| failure(what(), &error))
}

/// Lets nodes start again whose inventories were given away, where no control store was made of them. Gives those that
/// were kept from starting.
///
/// Errors: one of them has asked to be let in again, so there is such a control store; nothing has changed.
pub fn take_back_inventories(nodes: &[NodeDir]) -> Result<Vec<&NodeDir>, Failure> {
    let what = |node: &NodeDir| format!("cannot take back the inventory of `{}`", node.name());
    let given = |node: &&NodeDir| inventory::is_given_away(&node.path);
    let given: Vec<&NodeDir> = nodes.iter().filter(given).collect();
    for node in &given {
        // One that has its certificate may start, and does not need this.
        if settle(&node.path)? == Left::Open {
            let why = "it has asked to be let in again: a control store was made anew, and it would go on without it";
            return Err(Failure::new(what(node), why)
                .hint("repeat `perigee join --again`, with the same token or another"));
        }
    }
    for node in &given {
        inventory::let_start(&node.path).map_err(|error| failure(what(node), &error))?;
    }
    Ok(given)
}

/// Reads a file that `perigee inventory` wrote: the inventories of all nodes of a machine.
pub fn read_inventories(file: &Path) -> Result<Vec<Inventory>, Failure> {
    let what = || format!("cannot use the inventory `{}`", file.display());
    let bytes = fs::read(file).map_err(|error| Failure::new(what(), error))?;
    perigee_cluster::rebuild::decode_all(&bytes).map_err(|error| failure(what(), &error))
}

/// The numbers of nodes that people name or number, as the newest inventory knows them.
pub fn resolve(names: &[String], inventories: &Inventories) -> Result<BTreeSet<NodeId>, Failure> {
    let copy = inventories.newest().map(|newest| &newest.copy);
    let directory = copy.map(|copy| Directory::from_list(&copy.records, copy.revision));
    let directory = directory
        .transpose()
        .map_err(|error| Failure::new("cannot read the newest copy of the control store", error))?;
    let nodes = directory.unwrap_or_default().nodes;
    let find = |name: &String| {
        let mut all = nodes.values().map(|known| &known.record);
        let found = all.find(|node| node.name == *name || node.id.0.to_string() == *name);
        found.map(|node| node.id).ok_or_else(|| {
            let known: Vec<&str> = nodes.values().map(|k| k.record.name.as_str()).collect();
            Failure::new(
                format!("cannot give up `{name}`"),
                format!(
                    "there is no such node: the cluster has {}",
                    known.join(", ")
                ),
            )
        })
    };
    names.iter().map(find).collect()
}

/// The records of the new control store.
pub fn plan(inventories: &Inventories, lost: &BTreeSet<NodeId>) -> Result<Rebuilt, Failure> {
    let what = "cannot make the control store anew";
    perigee_node::inventory::rebuild(inventories, lost).map_err(|error| {
        let failure = failure(what, &error);
        match error {
            RebuildError::Missing { .. } => failure.hint(
                "stop that machine's nodes, run `perigee inventory FILE` there, and give the file with --with; a node that \
                 is gone for good is named with --lost",
            ),
            RebuildError::NotLost { .. } => failure.hint("leave out that --lost, or move its directory away"),
            RebuildError::Nothing
            | RebuildError::OtherCluster { .. }
            | RebuildError::Empty
            | RebuildError::Unsound { .. }
            | RebuildError::Unreadable(_) => failure,
        }
    })
}

/// Makes the control store in `layout`, and lets its nodes trust the new authority.
pub fn rebuild(
    layout: &Layout,
    listen: SocketAddr,
    rebuilt: &Rebuilt,
    here: &BTreeMap<NodeId, String>,
) -> Result<RebuiltControl, Failure> {
    let what = || format!("cannot make a control store in `{}`", layout.dir.display());
    let made = block_on(async {
        let made = rebuild_control(&layout.dir, listen, rebuilt, here).await;
        made.map_err(|error| failure(what(), &error))
    })?;
    put_identities(layout)?;
    Ok(made)
}

/// Puts new identities of this machine's nodes in place, where a control store that was made anew has left any. May be cut
/// off, and repeated.
pub fn put_identities(layout: &Layout) -> Result<(), Failure> {
    let from = layout.control().join(RECERTIFIED);
    if !from.exists() {
        return Ok(());
    }
    let address = super::control::address(&layout.control())?;
    for node in &layout.nodes {
        let new = from.join(node.name());
        if !new.exists() {
            continue;
        }
        let what = || format!("cannot give `{}` its new certificate", node.name());
        Identity::load(&new)
            .and_then(|identity| identity.save(&identity_dir(&node.path)))
            .map_err(|error| failure(what(), &error))?;
        let config = NodeConfig {
            control: address,
            ..NodeConfig::load(&node.config())?
        };
        config.save(&node.config())?;
        // It needs nobody to let it in, and may start, whatever it was taken for before.
        inventory::let_start(&node.path).map_err(|error| failure(what(), &error))?;
        clear(&node.path)?;
    }
    // Half of it must not be found by the next call.
    let done = from.with_extension("done");
    let what = || format!("cannot tidy up `{}`", from.display());
    fs::rename(&from, &done)
        .and_then(|()| fs::File::open(layout.control())?.sync_all())
        .and_then(|()| fs::remove_dir_all(&done))
        .map_err(|error| Failure::new(what(), error))
}
