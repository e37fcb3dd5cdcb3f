//! `perigee join`: this machine becomes a node of a cluster.

use super::init::{host_name, parse_name};
use super::{DirArg, JsonArg};
use crate::config::NodeConfig;
use crate::daemon;
use crate::layout::Layout;
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::Failure;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Join this machine to a cluster, and start its node.
///
/// The token comes from `perigee token` or `perigee init` on a machine of the cluster; it lets one
/// node in, once, for a limited time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee join TOKEN --listen 10.0.0.5:7400
  perigee join TOKEN --listen 10.0.0.9:7400 --site south --no-storage
  perigee join --again TOKEN")]
pub struct Join {
    /// The token
    token: String,
    #[command(flatten)]
    dir: DirArg,
    /// Address and port for other nodes
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "again")]
    listen: Option<SocketAddr>,
    /// A node that was in the cluster comes back, with its data, after `perigee rebuild`
    #[arg(long, conflicts_with_all = ["listen", "name", "no_storage"])]
    again: bool,
    /// The node that comes back, by the number in its directory's name, where there are several
    #[arg(long, value_name = "N", requires = "again")]
    node: Option<u32>,
    /// Name of the node [default: the host's name]
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Site of the node: those that are a short round trip apart share one
    #[arg(long, default_value = "default", value_parser = parse_name)]
    site: String,
    /// Only mount here; store nothing
    #[arg(long)]
    no_storage: bool,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Summary {
    dir: PathBuf,
    name: String,
    listen: SocketAddr,
}

impl Join {
    /// Joins and starts the node.
    pub fn run(self) -> Result<Report, Failure> {
        if self.again {
            return self.come_back();
        }
        let layout = Layout::look(&self.dir.path())?;
        if !layout.nodes.is_empty() {
            return Err(Failure::new(
                format!("cannot join with `{}`", layout.dir.display()),
                "it belongs to a cluster already",
            )
            .hint("`perigee up` starts its node; to join another cluster give another --dir"));
        }
        let control = daemon::control_address(&self.token)?;
        let name = match self.name {
            Some(name) => name,
            None => host_name()?,
        };
        let config = NodeConfig {
            name,
            listen: super::up::check_address(self.listen.ok_or_else(no_address)?)?,
            control,
            site: self.site,
            storage: !self.no_storage,
            log: "info".to_owned(),
        };
        daemon::join(&layout.node_dir(1).path, &config, &self.token)?;
        let layout = Layout::open(&layout.dir)?;
        super::up::start_missing(&layout)?;
        let summary = Summary {
            dir: layout.dir,
            name: config.name,
            listen: config.listen,
        };
        summary.report(self.json.json, "joined")
    }

    /// A node of this machine comes back to a cluster whose control store was made anew.
    fn come_back(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let nodes = layout.chosen(self.node)?;
        let [node] = nodes.as_slice() else {
            let what = "cannot tell which node comes back";
            return Err(Failure::new(what, "several are here").hint("name it with --node N"));
        };
        let config = {
            let _only = super::up::lock(&layout.dir)?;
            super::down::stop_one(node)?;
            daemon::join_again(&node.path, &self.token)?
        };
        super::up::start_node(&layout, node)?;
        let summary = Summary {
            dir: layout.dir,
            name: config.name,
            listen: config.listen,
        };
        summary.report(self.json.json, "is back")
    }
}

fn no_address() -> Failure {
    Failure::new("cannot join the cluster", "--listen is missing")
}

impl Summary {
    fn report(&self, json: bool, done: &str) -> Result<Report, Failure> {
        Report::either(json, self, || {
            format!(
                "{} {done} and runs, with its data in {}\nto use it here: perigee mount DIR\n",
                self.name,
                self.dir.display()
            )
        })
    }
}
