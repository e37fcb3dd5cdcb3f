//! `perigee join`: this machine becomes a node of a cluster.

use super::init::{host_name, parse_name};
use super::{DirArg, JsonArg};
use crate::config::NodeConfig;
use crate::daemon;
use crate::layout::Layout;
use crate::output::Report;
use clap::Args;
use perigee_net::Merging;
use perigee_proto::admin::Failure;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Join this machine to a cluster, and start its node.
///
/// The token comes from `perigee token` or `perigee init` on a machine of the cluster; it lets one
/// node in, once, for a limited time. On the command line other users of this machine can see it
/// while the command runs; `-` and --token-file keep it from them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee join TOKEN --listen 10.0.0.5:7400
  perigee join - --listen 10.0.0.5:7400 < token
  perigee join TOKEN --listen 10.0.0.9:7400 --site south --no-storage
  perigee join --again TOKEN")]
pub struct Join {
    /// The token; `-` reads it from standard input
    #[arg(required_unless_present = "token_file")]
    token: Option<String>,
    /// A file with the token, which nobody else may read
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
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
    /// Site of the node, instead of what round trips say about which nodes are near to each other
    #[arg(long, value_parser = parse_name)]
    site: Option<String>,
    /// Only mount here; store nothing
    #[arg(long)]
    no_storage: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// Longer than any token.
const TOKEN_BYTES_MAX: u64 = 4 << 10;

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
        let token = self.token()?;
        let control = daemon::control_address(&token)?;
        let name = match self.name {
            Some(name) => name,
            None => host_name()?,
        };
        let config = NodeConfig {
            name,
            listen: crate::local_port::check_address(self.listen.ok_or_else(no_address)?)?,
            control,
            site: self.site,
            storage: !self.no_storage,
            log: "info".to_owned(),
            merging: Merging::default(),
        };
        daemon::join(&layout.node_dir(1).path, &config, &token)?;
        let layout = Layout::open(&layout.dir)?;
        super::up::start_missing(&layout)?;
        let summary = Summary {
            dir: layout.dir,
            name: config.name,
            listen: config.listen,
        };
        summary.report(self.json.json, "joined")
    }

    /// The token, from where it is.
    fn token(&self) -> Result<String, Failure> {
        match (&self.token, &self.token_file) {
            (_, Some(file)) => from_file(file),
            (Some(token), None) if token != "-" => Ok(token.clone()),
            _ => from(stdin().lock(), "standard input"),
        }
    }

    /// A node of this machine comes back to a cluster whose control store was made anew.
    fn come_back(self) -> Result<Report, Failure> {
        let token = self.token()?;
        let layout = self.dir.open()?;
        let nodes = layout.chosen(self.node)?;
        let [node] = nodes.as_slice() else {
            let what = "cannot tell which node comes back";
            return Err(Failure::new(what, "several are here").hint("name it with --node N"));
        };
        let config = {
            let _only = super::up::lock(&layout.dir)?;
            // A token that is refused leaves the node as it is, also if it runs.
            daemon::join_again(&node.path, &token, || super::down::stop_one(node).map(drop))?
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

/// A token from a file, refused when others may read it.
fn from_file(path: &Path) -> Result<String, Failure> {
    let shown = format!("`{}`", path.display());
    let fail = |error: std::io::Error| Failure::new(cannot_read(&shown), error);
    let file = File::open(path).map_err(fail)?;
    // of the open file, so that it cannot be exchanged between the check and the reading
    let mode = file.metadata().map_err(fail)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let why = format!("it has mode {mode:04o}: others may read the token");
        return Err(Failure::new(cannot_read(&shown), why).hint("set it to 0600"));
    }
    from(file, &shown)
}

fn from(source: impl Read, shown: &str) -> Result<String, Failure> {
    let mut text = String::new();
    // one line: somebody may type it
    let read = BufReader::new(source.take(TOKEN_BYTES_MAX)).read_line(&mut text);
    read.map_err(|error| Failure::new(cannot_read(shown), error))?;
    Ok(text.trim().to_owned())
}

fn cannot_read(shown: &str) -> String {
    format!("cannot read the token from {shown}")
}
