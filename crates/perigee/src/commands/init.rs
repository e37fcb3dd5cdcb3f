//! `perigee init`: the first node of a cluster of several machines.

use super::{DirArg, JsonArg};
use crate::config::{NodeConfig, check_name};
use crate::layout::{Layout, make_private_dir};
use crate::output::Report;
use crate::{daemon, human};
use clap::Args;
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
  perigee init --dir /srv/perigee --listen 10.0.0.4:7400 --site north")]
pub struct Init {
    #[command(flatten)]
    dir: DirArg,
    /// Address and port for other nodes; the control store gets the port above
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Address and port of the control store, where the port above will not do
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen_control: Option<SocketAddr>,
    /// Name of the node [default: the host's name]
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Site of the node
    #[arg(long, default_value = "default", value_parser = parse_name)]
    site: String,
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
        let control = self.control_address()?;
        let name = match self.name {
            Some(name) => name,
            None => host_name()?,
        };
        make_private_dir(&layout.dir)?;
        let node = layout.node_dir(1);
        daemon::init_control(&layout.control(), control)?;
        let token = daemon::first_token(&layout.control())?;
        super::up::start_missing(&layout)?;
        let config = NodeConfig {
            name,
            listen: self.listen,
            control,
            site: self.site,
            storage: true,
            log: "info".to_owned(),
        };
        super::up::join_node(&node, &config, &token)?;
        let layout = Layout::open(&layout.dir)?;
        super::up::start_missing(&layout)?;
        let request = Request::Token {
            ttl_secs: TOKEN_TIME.as_secs(),
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

    fn control_address(&self) -> Result<SocketAddr, Failure> {
        if let Some(address) = self.listen_control {
            return Ok(address);
        }
        match self.listen.port() {
            0 | u16::MAX => Err(Failure::new(
                format!("cannot listen on `{}`", self.listen),
                "the port is a number from 1 to 65534",
            )),
            port => Ok(SocketAddr::new(self.listen.ip(), port + 1)),
        }
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
