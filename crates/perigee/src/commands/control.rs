//! `perigee control`: where the cluster's record is kept.

use super::up::{Undo, lock, start_control};
use super::{DirArg, JsonArg};
use crate::layout::Layout;
use crate::local_port::check_address;
use crate::output::Report;
use crate::{daemon, human, process};
use clap::{Args, Subcommand};
use perigee_control::{EtcdChoice, MoveNeeded};
use perigee_etcd::place::Secrecy;
use perigee_etcd::{Credentials, Place};
use perigee_proto::admin::Failure;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the control store may take to stop.
const STOP_TIME: Duration = Duration::from_secs(10);

/// Change where the cluster's record is kept.
#[derive(Debug, Subcommand)]
pub enum Control {
    Move(Move),
    Export(Export),
    Import(Import),
}

/// The certificates for an etcd over TLS.
#[derive(Debug, Clone, Args)]
pub struct EtcdArgs {
    /// Over TLS: the authority of etcd's certificates, a PEM file
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Over TLS: the certificate to show to etcd, a PEM file
    #[arg(long, value_name = "FILE")]
    etcd_cert: Option<PathBuf>,
    /// Over TLS: its key, a PEM file
    #[arg(long, value_name = "FILE")]
    etcd_key: Option<PathBuf>,
}

impl EtcdArgs {
    /// The etcd in `place`, with the certificates that it takes.
    pub fn choice(self, place: Place) -> Result<EtcdChoice, Failure> {
        let given = self.etcd_ca.zip(self.etcd_cert).zip(self.etcd_key);
        let credentials = given.map(|((authority, certificate), key)| Credentials {
            authority,
            certificate,
            key,
        });
        if place.secrecy() == Secrecy::Tls && credentials.is_none() {
            return Err(Failure::new(
                format!("cannot use `{place}`"),
                "TLS takes a certificate on both sides",
            )
            .hint("give --etcd-ca, --etcd-cert and --etcd-key, as PEM files"));
        }
        Ok(EtcdChoice { place, credentials })
    }
}

/// Move the record from the control store of this machine to an etcd, while the cluster runs.
///
/// Reads and writes go on. The control store stops for the time of the copy, about a second, so that nothing changes beside
/// it; then it serves the same record from etcd, where it was. A move that is cut off has not happened, or is complete:
/// give the command again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee control move etcd://127.0.0.1:2379
  perigee control move etcds://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 \\
    --etcd-ca ca.pem --etcd-cert perigee.pem --etcd-key perigee.key")]
pub struct Move {
    /// The etcd: etcds://HOST:PORT,... for TLS, or etcd://HOST:PORT,... on this machine
    #[arg(value_name = "ETCD")]
    to: Place,
    #[command(flatten)]
    credentials: EtcdArgs,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

/// Write down what a further machine needs to serve the record.
///
/// For a record in etcd, which several machines can serve: each of them will do. The file holds the key of the cluster's
/// authority: whoever has it decides who is in the cluster. Remove it when it was used.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  perigee control export north.control     there: perigee control import north.control --listen 10.0.0.5:7401")]
pub struct Export {
    /// The file, which must not be there yet
    file: PathBuf,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

/// Serve the record on this machine, too, and start with that.
///
/// For a record in etcd, from the file that `perigee control export` wrote on a machine that serves it. Nodes learn of the
/// address by themselves.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  perigee control import north.control --listen 10.0.0.5:7401")]
pub struct Import {
    /// What `perigee control export` wrote
    file: PathBuf,
    /// Address and port for nodes
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

/// What `control export` has done.
#[derive(Debug, Serialize)]
struct Exported {
    file: PathBuf,
}

/// What `control import` has done.
#[derive(Debug, Serialize)]
struct Imported {
    address: SocketAddr,
}

/// What `control move` has done.
#[derive(Debug, Serialize)]
struct Summary {
    control: Place,
    keys: usize,
    /// For how long there was no control store.
    away_ms: u64,
}

impl Control {
    /// Does it.
    pub fn run(self) -> Result<Report, Failure> {
        match self {
            Self::Move(command) => command.run(),
            Self::Export(command) => command.run(),
            Self::Import(command) => command.run(),
        }
    }
}

impl Move {
    fn run(self) -> Result<Report, Failure> {
        let layout = Layout::look(&self.dir.path())?;
        let what = format!("cannot move the control store to `{}`", self.to);
        if !daemon::is_control(&layout.control()) {
            let why = format!("it is not in `{}`", layout.dir.display());
            return Err(Failure::new(what, why)
                .hint("give the command on the machine of `perigee init`, with its --dir"));
        }
        let choice = self.credentials.choice(self.to)?;
        let _only = lock(&layout.dir)?;
        let begun = Instant::now();
        if daemon::check_etcd(&layout.dir, &choice)? == MoveNeeded::No {
            start_control(&layout, &mut Undo::default())?;
            let summary = Summary {
                control: choice.place,
                keys: 0,
                away_ms: 0,
            };
            return Report::either(self.json.json, &summary, || summary.text());
        }
        process::terminate(&layout.control(), STOP_TIME)?;
        let moved = daemon::move_control(&layout.dir, &choice);
        // Moved or not: there is a control store again.
        start_control(&layout, &mut Undo::default())?;
        let moved = moved?;
        let summary = Summary {
            control: moved.place,
            keys: moved.keys,
            away_ms: begun.elapsed().as_millis() as u64,
        };
        Report::either(self.json.json, &summary, || summary.text())
    }
}

impl Export {
    fn run(self) -> Result<Report, Failure> {
        let what = || format!("cannot write `{}`", self.file.display());
        let bundle = daemon::export_control(&Layout::look(&self.dir.path())?.dir)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let made = options.open(&self.file);
        made.and_then(|mut file| file.write_all(&bundle).and_then(|()| file.sync_all()))
            .map_err(|error| Failure::new(what(), error))?;
        let exported = Exported { file: self.file };
        Report::either(self.json.json, &exported, || {
            let file = exported.file.display();
            format!(
                "{file} lets a machine serve the record, and is a secret; on that machine, where a node is:\n  \
                 perigee control import {file} --listen ADDRESS:PORT\n"
            )
        })
    }
}

impl Import {
    fn run(self) -> Result<Report, Failure> {
        let alone = self.dir.open_alone()?;
        let layout = &alone.layout;
        let what = || format!("cannot read `{}`", self.file.display());
        let bundle = std::fs::read(&self.file).map_err(|error| Failure::new(what(), error))?;
        let listen = check_address(self.listen)?;
        let address = daemon::import_control(&layout.dir, listen, &bundle)?;
        start_control(layout, &mut Undo::default())?;
        Report::either(self.json.json, &Imported { address }, || {
            format!("the record is served at {address}, too; nodes learn of it by themselves\n")
        })
    }
}

impl Summary {
    fn text(&self) -> String {
        match self.keys {
            0 => format!("the record is in {} already\n", self.control),
            keys => format!(
                "{} moved to {}; the control store was away for {}\n",
                human::plural(keys, "key"),
                self.control,
                human::time(Duration::from_millis(self.away_ms))
            ),
        }
    }
}
