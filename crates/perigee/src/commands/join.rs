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
  perigee join TOKEN --listen 10.0.0.9:7400 --site south --no-storage")]
pub struct Join {
    /// The token
    token: String,
    #[command(flatten)]
    dir: DirArg,
    /// Address and port for other nodes
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
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
            listen: super::up::check_address(self.listen)?,
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
        Report::either(self.json.json, &summary, || {
            format!(
                "{} joined and runs, with its data in {}\nto use it here: perigee mount DIR\n",
                summary.name,
                summary.dir.display()
            )
        })
    }
}
