//! `perigee-bench-union`: the union beside `sshfs` and `mergerfs`, and as many clients meet it. See
//! `scripts/bench-union.sh`.

use clap::{Parser, ValueEnum};
use perigee_bench::union::{files, metadata};
use perigee_bench::{BenchError, ended, note};
use perigee_testbed::{Call, Checked};
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measure the union of directories of several hosts: files beside `sshfs` and `mergerfs`, and operations on names by many
/// clients at four sites.
///
/// Starts hosts of its own on this machine, and removes everything at the end. Needs root, sshd, sshfs and mergerfs.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// The one part to run
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Rounds; the figures are their medians [default: 5 of files, 3 of metadata]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// Files: microseconds from each host to each other one and back; one network after the other
    #[arg(long, value_delimiter = ',', default_values_t = [150, 20_000], value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rtt: Vec<u64>,
    /// Files: MiB of the large one
    #[arg(long, default_value_t = files::Settings::default().mib, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Files: small ones in each directory
    #[arg(long, default_value_t = files::Settings::default().files, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Files: those of each tree
    #[arg(long, default_value_t = files::Settings::default().tree, value_parser = clap::value_parser!(u32).range(40..=1_000_000))]
    tree: u32,
    /// Metadata: so many clients at once
    #[arg(long, value_delimiter = ',', default_values_t = metadata::Settings::default().clients, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    clients: Vec<u32>,
    /// Metadata: hundredths of the operations that are at a client's own site, with the most clients
    #[arg(long, value_delimiter = ',', default_values_t = metadata::Settings::default().localities, value_parser = clap::value_parser!(u32).range(0..=100))]
    locality: Vec<u32>,
    /// Metadata: operations of each kind by each client, all at its own site
    #[arg(long, default_value_t = metadata::Settings::default().operations, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    operations: u32,
    /// Metadata: the same where localities are compared
    #[arg(long, default_value_t = metadata::Settings::default().operations_far, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    operations_far: u32,
    /// Metadata: where new files go, as `perigee union` is told
    #[arg(long, value_name = "WHERE", default_value_t = metadata::Settings::default().create)]
    create: String,
    /// Write files of results there
    #[arg(long)]
    results: Option<PathBuf>,
    /// Draw what was measured of metadata there
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Be the clients of a host
    #[arg(long, hide = true)]
    work: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Files,
    Metadata,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    ended(if cli.work {
        metadata::serve().map_err(BenchError::from)
    } else {
        measure(&cli)
    })
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    if cli.only != Some(Part::Metadata) {
        measure_files(cli)?;
    }
    if cli.only != Some(Part::Files) {
        measure_metadata(cli)?;
    }
    Ok(())
}

fn measure_files(cli: &Cli) -> Result<(), BenchError> {
    let settings = files::Settings {
        round_trips: cli.rtt.iter().copied().map(Duration::from_micros).collect(),
        mib: cli.mib,
        files: cli.files,
        tree: cli.tree,
        rounds: cli.rounds.unwrap_or(files::Settings::default().rounds),
    };
    let distances = files::run(&settings, note)?;
    print(&files::table(&distances));
    if let Some(folder) = &cli.results {
        let command = format!(
            "scripts/bench-union.sh --only files --rtt {} --mib {} --files {} --tree {} --rounds {}",
            joined(&cli.rtt),
            settings.mib,
            settings.files,
            settings.tree,
            settings.rounds
        );
        files::store(&settings, &distances, folder, &command)?;
    }
    Ok(())
}

fn measure_metadata(cli: &Cli) -> Result<(), BenchError> {
    let settings = metadata::Settings {
        clients: cli.clients.clone(),
        localities: cli.locality.clone(),
        operations: cli.operations,
        operations_far: cli.operations_far,
        create: cli.create.clone(),
        rounds: cli.rounds.unwrap_or(metadata::Settings::default().rounds),
    };
    let outcome = metadata::run(&settings, &program()?, note)?;
    print(&metadata::table(&settings, &outcome));
    if let Some(folder) = &cli.results {
        let command = format!(
            "scripts/bench-union.sh --only metadata --clients {} --locality {} --operations {} --operations-far {} \
             --create {} --rounds {}",
            joined(&settings.clients),
            joined(&settings.localities),
            settings.operations,
            settings.operations_far,
            settings.create,
            settings.rounds
        );
        metadata::store(&settings, &outcome, folder, &command)?;
    }
    if let Some(file) = &cli.picture {
        write(file, &metadata::draw(&settings, &outcome))?;
    }
    Ok(())
}

fn program() -> Checked<PathBuf> {
    std::env::current_exe().call(|| "find this program".to_owned())
}

fn print(text: &str) {
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(text.as_bytes());
}

fn write(file: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(file, text).map_err(|error| BenchError::Results {
        path: file.to_owned(),
        why: error.to_string(),
    })
}

fn joined(values: &[impl Display]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    values.join(",")
}
