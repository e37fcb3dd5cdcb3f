//! `perigee token`: let one more machine in.

use super::{DirArg, JsonArg};
use crate::admin_client::{ask_any, unexpected};
use crate::human;
use crate::output::Report;
use clap::Args;
use perigee_cluster::Admits;
use perigee_proto::admin::{Answer, Failure, Request};
use std::time::Duration;

/// A person must be able to carry it to another machine; the control store takes no less.
const TTL_MIN: Duration = Duration::from_secs(60);
/// A token that lies about is a door left open; the control store takes no more.
const TTL_MAX: Duration = Duration::from_secs(30 * 86_400);

/// Print a single-use token with which one machine can join.
///
/// With --again it is for one node that was in the cluster and has no certificate that is good: `perigee rebuild` prints such
/// tokens, for a day. The node keeps its number and its data; a token for it that was printed before is void.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee token
  perigee token --ttl 1d
  perigee token --read-only
  perigee token --again node-2    after `perigee rebuild`; there: perigee join --again TOKEN")]
pub struct Token {
    #[command(flatten)]
    dir: DirArg,
    /// How long it is good for: 90s, 15m, 2h; from 1m to 30d
    #[arg(long, default_value = "1h", value_parser = parse_ttl)]
    ttl: Duration,
    /// Let in a machine that mounts for reading alone: it joins with --no-storage
    #[arg(long)]
    read_only: bool,
    /// Let in this node again, by its name or number
    #[arg(long, value_name = "NODE", conflicts_with = "read_only")]
    again: Option<String>,
    #[command(flatten)]
    json: JsonArg,
}

impl Token {
    /// Asks a node for a token.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let ttl_secs = self.ttl.as_secs();
        let request = match (self.again, self.read_only) {
            (Some(node), _) => Request::TokenAgain { node, ttl_secs },
            (None, true) => Request::Token {
                ttl_secs,
                admits: Admits::Readers,
            },
            (None, false) => Request::Token {
                ttl_secs,
                admits: Admits::Anybody,
            },
        };
        match ask_any(&layout.nodes, &request)? {
            Answer::Token(token) => Report::either(self.json.json, &token, || {
                // the token alone, so that a script can take it
                format!("{}\n", token.token)
            }),
            other => Err(unexpected(&other)),
        }
    }
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    match human::parse_time(text)? {
        ttl if ttl < TTL_MIN => Err("a token is good for 1m at least".to_owned()),
        ttl if ttl > TTL_MAX => Err("a token is good for 30d at most".to_owned()),
        ttl => Ok(ttl),
    }
}
