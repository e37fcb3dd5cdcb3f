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
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee token
  perigee token --ttl 1d
  perigee token --read-only")]
pub struct Token {
    #[command(flatten)]
    dir: DirArg,
    /// How long it is good for: 90s, 15m, 2h; from 1m to 30d
    #[arg(long, default_value = "1h", value_parser = parse_ttl)]
    ttl: Duration,
    /// Let in a machine that mounts for reading alone: it joins with --no-storage
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    json: JsonArg,
}

impl Token {
    /// Asks a node for a token.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let request = Request::Token {
            ttl_secs: self.ttl.as_secs(),
            admits: match self.read_only {
                true => Admits::Readers,
                false => Admits::Anybody,
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
