//! `perigee rebuild`: a control store in place of one that was lost.

use super::{DirArg, JsonArg};
use crate::config::NodeConfig;
use crate::daemon;
use crate::human::{self, Align, Table};
use crate::layout::Layout;
use crate::output::{Outcome, Report};
use clap::Args;
use perigee_cluster::Revision;
use perigee_cluster::rebuild::{Held, Inventories, Inventory, Place, Rebuilt, Seat, Unserved, Why};
use perigee_control::rebuild::RebuiltControl;
use perigee_net::JoinToken;
use perigee_proto::admin::Failure;
use perigee_types::NodeId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Make a lost control store anew, from what the nodes know.
///
/// Files lie on the nodes and are not touched; the control store says who the nodes are, and which of them hold what. All
/// nodes must be stopped, or a node that is left out could go on by itself. Each machine tells what its nodes know with
/// `perigee inventory`. The cluster gets a new certificate authority: nodes of other machines are let in again with the
/// tokens that this command prints.
///
/// The newest copy of the lost store counts, and of equally new ones that of the node with the lowest number.
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
    /// What it was made of; the first is that which counts.
    inventories: Vec<Source>,
    /// Nodes that are given up.
    lost: Vec<Lost>,
    /// Containers that nobody serves.
    unserved: Vec<Unserved>,
    /// What lets the nodes of other machines in again.
    tokens: Vec<Readmission>,
}

/// What one node said.
#[derive(Debug, Serialize)]
struct Source {
    node: NodeId,
    name: String,
    /// When its inventory was taken, in seconds since 1970 by the clock of its machine.
    taken_secs: Option<i64>,
    /// When it saw the last change of the lost store, likewise.
    changed_secs: Option<i64>,
    /// The revision of its copy of that.
    revision: Revision,
    /// What it has of containers.
    held: Vec<Held>,
}

/// A node that is given up.
#[derive(Debug, Serialize)]
struct Lost {
    node: NodeId,
    name: String,
    /// Containers in whose newest chain it was.
    containers: Vec<Seat>,
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
        let alone = self.dir.open_alone()?;
        let layout = &alone.layout;
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
        let listen = self.listen_address(layout)?;
        let inventories = Inventories::of(inventories);
        let lost = daemon::resolve(&self.lost, &inventories)?;
        let rebuilt = daemon::plan(&inventories, &lost)?;
        let made = daemon::rebuild(layout, listen, &rebuilt, &here)?;
        let summary = Summary::of(layout.dir.clone(), made, &rebuilt, &inventories);
        let outcome = if summary.unserved.is_empty() {
            Outcome::Done
        } else {
            Outcome::Degraded
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs() as i64);
        Report::either(self.json.json, &summary, || summary.text(now))
            .map(|report| report.outcome(outcome))
    }

    fn listen_address(&self, layout: &Layout) -> Result<SocketAddr, Failure> {
        match self.listen {
            Some(address) => crate::local_port::check_address(address),
            None => {
                let first = super::up::first_node(layout)?;
                let old = NodeConfig::load(&first.config())?.control;
                crate::local_port::check_address(old).map_err(|failure| {
                    failure.hint("name an address of this machine with --listen")
                })
            }
        }
    }
}

fn name_of(rebuilt: &Rebuilt, id: NodeId) -> String {
    let node = rebuilt.nodes.iter().find(|node| node.id == id);
    node.map_or_else(|| id.to_string(), |node| node.name.clone())
}

impl Summary {
    fn of(dir: PathBuf, made: RebuiltControl, rebuilt: &Rebuilt, all: &Inventories) -> Self {
        let source = |one: &Inventory| Source {
            node: one.node,
            name: name_of(rebuilt, one.node),
            taken_secs: one.taken.map(|time| time.secs),
            changed_secs: one.changed.map(|time| time.secs),
            revision: one.copy.revision,
            held: one.held.clone(),
        };
        let lost = |(node, seats): (&NodeId, &Vec<Seat>)| Lost {
            node: *node,
            name: name_of(rebuilt, *node),
            containers: seats.clone(),
        };
        let token = |(node, token): (NodeId, JoinToken)| Readmission {
            node,
            name: name_of(rebuilt, node),
            token: token.to_string(),
        };
        Self {
            dir,
            address: made.address,
            nodes: rebuilt.present().count(),
            containers: rebuilt.containers.len(),
            inventories: all.iter().map(source).collect(),
            lost: rebuilt.given_up.iter().map(lost).collect(),
            unserved: rebuilt.unserved.clone(),
            tokens: made.tokens.into_iter().map(token).collect(),
        }
    }

    /// `now`: in seconds since 1970.
    fn text(&self, now: i64) -> String {
        let mut text = format!(
            "the control store is there again, with {} and {}; start it with `perigee up`\n",
            human::plural(self.nodes, "node"),
            human::plural(self.containers, "container"),
        );
        text.push_str("made of what these nodes knew of the lost one, the newest first:\n");
        text.push_str(&self.sources(now));
        for lost in &self.lost {
            text.push_str(&lost.text());
        }
        for container in &self.unserved {
            text.push_str(&self.why_unserved(container));
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

    fn sources(&self, now: i64) -> String {
        let mut table = Table::new(&[
            ("NODE", Align::Left),
            ("TAKEN", Align::Left),
            ("LAST CHANGE", Align::Left),
            ("REVISION", Align::Right),
            ("CONTAINERS", Align::Right),
        ]);
        for source in &self.inventories {
            table.row(vec![
                source.name.clone(),
                ago(now, source.taken_secs),
                ago(now, source.changed_secs),
                source.revision.0.to_string(),
                source.held.len().to_string(),
            ]);
        }
        table.render(2)
    }

    fn why_unserved(&self, unserved: &Unserved) -> String {
        let id = unserved.container;
        let names = |place: &Place| {
            let names = place.chain.iter().map(|node| self.name(*node));
            names.collect::<Vec<_>>().join(", ")
        };
        match &unserved.why {
            Why::NobodyLeft(place) => format!(
                "nobody who is left has {id} as of {}: it comes back with {}\n",
                place.epoch,
                names(place)
            ),
            Why::NobodyWhole(place) => format!(
                "nobody has all of {id} as of {}: it was last on {}\n",
                place.epoch,
                names(place)
            ),
            Why::NoChain => format!("nobody knows who had {id} last\n"),
        }
    }

    fn name(&self, id: NodeId) -> String {
        let told = self.inventories.iter().map(|one| (one.node, &one.name));
        let lost = self.lost.iter().map(|one| (one.node, &one.name));
        let mut known = told.chain(lost);
        let found = known.find(|(node, _)| *node == id);
        found.map_or_else(|| id.to_string(), |(_, name)| name.clone())
    }
}

impl Lost {
    fn text(&self) -> String {
        let seat = |seat: &Seat| format!("{} as of {}", seat.container, seat.epoch);
        let was = match self.containers.as_slice() {
            [] => "no container".to_owned(),
            some => some.iter().map(seat).collect::<Vec<_>>().join(", "),
        };
        format!("{} is given up; it was in {was}\n", self.name)
    }
}

/// How long before `now`, both in seconds since 1970, by clocks that may differ.
fn ago(now: i64, secs: Option<i64>) -> String {
    match secs.map(|secs| u64::try_from(now.saturating_sub(secs))) {
        None => "-".to_owned(),
        Some(Ok(0)) => "now".to_owned(),
        Some(Ok(secs)) => format!("{} ago", human::time(Duration::from_secs(secs))),
        Some(Err(_)) => "in the future".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{ContainerId, Epoch};

    #[test]
    fn how_old_everything_is_and_what_is_given_up_is_said_in_words() {
        let source = |node, name: &str, taken_secs, changed_secs, revision| Source {
            node: NodeId(node),
            name: name.to_owned(),
            taken_secs,
            changed_secs,
            revision: Revision(revision),
            held: Vec::new(),
        };
        let place = |members: &[u32]| Place {
            epoch: Epoch(6),
            chain: members.iter().copied().map(NodeId).collect(),
        };
        let unserved = |container, why| Unserved {
            container: ContainerId(container),
            why,
        };
        let summary = Summary {
            dir: PathBuf::from("/var/lib/perigee"),
            address: SocketAddr::from(([10, 0, 0, 4], 7401)),
            nodes: 3,
            containers: 4,
            inventories: vec![
                source(2, "south", Some(9_700), Some(4_000), 412),
                source(1, "north", Some(10_000), Some(10_009), 411),
                source(4, "old", None, None, 7),
            ],
            lost: vec![Lost {
                node: NodeId(3),
                name: "west".to_owned(),
                containers: vec![Seat {
                    container: ContainerId(5),
                    epoch: Epoch(6),
                }],
            }],
            unserved: vec![
                unserved(5, Why::NobodyLeft(place(&[3]))),
                unserved(6, Why::NobodyWhole(place(&[1, 3]))),
                unserved(7, Why::NoChain),
            ],
            tokens: Vec::new(),
        };
        let text = summary.text(10_000);
        let lines: Vec<&str> = text.lines().skip(3).map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "  south  5 min ago  1 h 40 min ago       412           0",
                "  north  now        in the future        411           0",
                "  old    -          -                      7           0",
                "west is given up; it was in c5 as of e6",
                "nobody who is left has c5 as of e6: it comes back with west",
                "nobody has all of c6 as of e6: it was last on north, west",
                "nobody knows who had c7 last",
            ]
        );
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["inventories"][0]["changed_secs"], 4_000);
        assert_eq!(json["inventories"][0]["revision"], 412);
        assert_eq!(json["lost"][0]["containers"][0]["epoch"], 6);
        assert_eq!(json["unserved"][0]["container"], 5);
        assert_eq!(json["unserved"][0]["why"], "nobody_left");
        assert_eq!(json["unserved"][0]["chain"][0], 3);
        assert_eq!(json["unserved"][2]["why"], "no_chain");
    }
}
