//! `perigee policy`: what is wanted of a directory.

use super::JsonArg;
use crate::admin_client::{ASK_TIME, CHANGE_TIME, ask, unexpected};
use crate::human::{Align, Table};
use crate::mounts;
use crate::output::Report;
use clap::{Args, Subcommand};
use perigee_proto::admin::{Answer, Failure, PolicyValue, Request};
use std::path::PathBuf;

/// Show or set what is wanted of a directory.
#[derive(Debug, Subcommand)]
pub enum Policy {
    Get(Get),
    Set(Set),
}

/// Show the policies in force at a path, and where each comes from.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  perigee policy get /mnt/perigee/data")]
pub struct Get {
    /// A path in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

/// Set policies of a directory, for it and what is made below it; all or none.
///
/// `copies`: how many nodes keep it. A directory other than the root of the file system has to be empty
/// when it first gets a number of its own.
///
/// `migration`: whether the right to write moves to the host that writes. `adaptive`: when it pays; `always`: after a
/// handful of changes; `off`: never. It may be set at any time.
///
/// `snapshots`: when snapshots of the directory are made by themselves, and how many stay: `1h:24,1d:7` is one each hour, of
/// which there are 24, and one each day, of which there are 7. Snapshots that a person made stay.
///
/// `trash`: how long files are kept that are removed or replaced: `12h`, `7d`; `off`: not at all. It may be set at any
/// time, and counts for what is removed from then on. `perigee undelete` brings them back.
///
/// `container-size`: how much a container keeps before new directories start in another one, near who makes them. For the
/// root of the file system, and directories that have `copies` of their own.
///
/// `stripes`: over how many containers, each with an owner of its own, the chunks of 64 MiB of a file are spread: for files that
/// many hosts write at once, or that are larger than a disk. It counts for files that are made from then on; the kernel has none of
/// them by passthrough. A directory with `copies` of its own needs `stripes` of its own.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee policy set /mnt/perigee copies=2
  mkdir /mnt/perigee/scratch && perigee policy set /mnt/perigee/scratch copies=1
  perigee policy set /mnt/perigee/logs migration=off
  perigee policy set /mnt/perigee/data snapshots=1h:24,1d:7
  perigee policy set /mnt/perigee/home trash=7d
  perigee policy set /mnt/perigee container-size=256GiB
  perigee policy set /mnt/perigee/matrix stripes=4
  perigee policy set /mnt/perigee copies=    back to the inherited value")]
pub struct Set {
    /// A path in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Policies; an empty value goes back to the inherited one
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = parse_pair)]
    pairs: Vec<(String, String)>,
    #[command(flatten)]
    json: JsonArg,
}

impl Policy {
    /// Asks the node behind the mount.
    pub fn run(self) -> Result<Report, Failure> {
        let (path, json, pairs) = match self {
            Self::Get(get) => (get.path, get.json.json, None),
            Self::Set(set) => (set.path, set.json.json, Some(set.pairs)),
        };
        let place = mounts::resolve(&path)?;
        let (request, patience) = match pairs {
            None => (Request::PolicyGet { path: place.inside }, ASK_TIME),
            Some(pairs) => (
                Request::PolicySet {
                    path: place.inside,
                    pairs,
                },
                CHANGE_TIME,
            ),
        };
        match ask(&place.data_dir, &request, patience)? {
            Answer::Policy(values) => Report::either(json, &values, || text(&values)),
            other => Err(unexpected(&other)),
        }
    }
}

fn text(values: &[PolicyValue]) -> String {
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("VALUE", Align::Left),
        ("FROM", Align::Left),
    ]);
    for value in values {
        let from = value
            .from
            .as_ref()
            .map_or_else(|| "default".to_owned(), ToString::to_string);
        table.row(vec![value.key.clone(), value.value.clone(), from]);
    }
    table.render(0)
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, as in copies=2".to_owned()),
    }
}
