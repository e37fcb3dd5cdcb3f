//! `perigee init`: the first node of a cluster of several machines.

use super::control::EtcdArgs;
use super::up::start_missing;
use super::{DirArg, JsonArg};
use crate::config::{NodeConfig, check_name};
use crate::layout::{Layout, make_private_dir};
use crate::local_port::check_address;
use crate::output::Report;
use crate::{daemon, human, process};
use clap::Args;
use perigee_cluster::Admits;
use perigee_control::EtcdChoice;
use perigee_etcd::Place;
use perigee_net::Merging;
use perigee_proto::admin::{Answer, Failure, Request};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long the printed token is good for.
const TOKEN_TIME: Duration = Duration::from_secs(3600);

/// Make a cluster of several machines: its control store and its first node.
///
/// Starts both, and prints the command with which the next machine joins. After a restart of the
/// machine, `perigee up` starts them again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee init --listen 10.0.0.4:7400
  perigee init --dir /srv/perigee --listen 10.0.0.4:7400 --site north
  perigee init --listen 10.0.0.4:7400 --control etcds://10.0.0.1:2379,10.0.0.2:2379 \\
    --etcd-ca ca.pem --etcd-cert perigee.pem --etcd-key perigee.key")]
pub struct Init {
    #[command(flatten)]
    dir: DirArg,
    /// Address and port for other nodes; the control store gets the port above
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Address and port of the control store, where the port above will not do
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen_control: Option<SocketAddr>,
    /// Keep the cluster's record in this etcd, instead of a store of its own: etcds://HOST:PORT,... for TLS, or
    /// etcd://HOST:PORT,... on this machine
    #[arg(long, value_name = "ETCD")]
    control: Option<Place>,
    #[command(flatten)]
    credentials: EtcdArgs,
    /// Name of the node [default: the host's name]
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Site of the node, instead of what round trips say about which nodes are near to each other
    #[arg(long, value_parser = parse_name)]
    site: Option<String>,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Summary {
    dir: PathBuf,
    join: String,
    ttl_secs: u64,
}

impl Init {
    /// Makes the cluster, starts it, and prints how to join.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = Layout::look(&self.dir.path())?;
        if !layout.nodes.is_empty() || layout.control().exists() {
            return Err(Failure::new(
                format!("cannot make a cluster in `{}`", layout.dir.display()),
                "one is there already",
            )
            .hint("`perigee up` starts it; for another cluster give another --dir"));
        }
        let listen = check_address(self.listen)?;
        let control = self.control_address(listen)?;
        let name = match self.name.clone() {
            Some(name) => name,
            None => host_name()?,
        };
        let etcd = match self.control {
            Some(place) => Some(self.credentials.choice(place)?),
            None => None,
        };
        make_private_dir(&layout.dir)?;
        let config = NodeConfig {
            name,
            listen,
            control,
            site: self.site.clone(),
            storage: true,
            log: "info".to_owned(),
            merging: Merging::default(),
        };
        let layout =
            make_cluster(&layout, &config, etcd.as_ref()).inspect_err(|_| unmake(&layout))?;
        let request = Request::Token {
            ttl_secs: TOKEN_TIME.as_secs(),
            admits: Admits::Anybody,
        };
        let token = match crate::admin_client::ask_any(&layout.nodes, &request)? {
            Answer::Token(token) => token,
            other => return Err(crate::admin_client::unexpected(&other)),
        };
        let summary = Summary {
            dir: layout.dir,
            join: format!("perigee join {}", token.token),
            ttl_secs: token.ttl_secs,
        };
        Report::either(self.json.json, &summary, || {
            format!(
                "the cluster runs, with its data in {}\n\
                 on the next machine, within {}:\n\n  {}\n\n\
                 for further machines: perigee token\n",
                summary.dir.display(),
                human::time(TOKEN_TIME),
                summary.join
            )
        })
    }

    fn control_address(&self, listen: SocketAddr) -> Result<SocketAddr, Failure> {
        if let Some(address) = self.listen_control {
            return check_address(address);
        }
        match listen.port().checked_add(1) {
            Some(port) => check_address(SocketAddr::new(listen.ip(), port)),
            None => Err(Failure::new(
                format!("cannot listen on `{listen}`"),
                "there is no port above it for the control store",
            )
            .hint("give one with --listen-control")),
        }
    }
}

fn make_cluster(
    layout: &Layout,
    config: &NodeConfig,
    etcd: Option<&EtcdChoice>,
) -> Result<Layout, Failure> {
    let token = daemon::init_control(&layout.dir, config.control, etcd)?;
    start_missing(layout)?;
    daemon::join(&layout.node_dir(1).path, config, &token)?;
    let layout = Layout::open(&layout.dir)?;
    start_missing(&layout)?;
    Ok(layout)
}

/// Takes back a cluster that did not come to be, so that the next attempt finds an empty place.
/// Neither directory was there before.
fn unmake(layout: &Layout) {
    for dir in [layout.node_dir(1).path, layout.control()] {
        // the failure that led here is the one to report; what stays is named by the next attempt
        let _ = process::terminate(&dir, Duration::from_secs(5));
        let _ = std::fs::remove_dir_all(&dir);
    }
}

/// The name of this machine, if it can be a node's.
pub fn host_name() -> Result<String, Failure> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    let short = name.split('.').next().unwrap_or_default();
    match check_name(short) {
        Ok(()) => Ok(short.to_owned()),
        Err(fault) => Err(Failure::new(
            format!("cannot use the host's name `{short}`"),
            format!("a node's name {fault}"),
        )
        .hint("give one with --name")),
    }
}

/// For clap.
pub fn parse_name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}
