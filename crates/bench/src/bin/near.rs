//! `perigee-bench-near`: two stores, of which one is near, and the map of four sites. See `scripts/bench-near.sh`.

use clap::{Parser, ValueEnum};
use perigee_bench::near::{self, Map, Series, Settings};
use perigee_bench::{BenchError, ended, note};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure which of two stores serves a host, and how right the map of the network is.
///
/// Starts clusters of its own on this machine, and removes everything at the end. Needs root.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// MiB of a file
    #[arg(long, default_value_t = Settings::default().mib, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = Settings::default().rounds, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Measure this alone
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Write one file for each row there
    #[arg(long)]
    results: Option<PathBuf>,
    /// Draw the map there
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Which of two stores serves a host
    Stores,
    /// How right the map of four sites is
    Map,
}

fn main() -> ExitCode {
    ended(measure(&Cli::parse()))
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let settings = Settings {
        mib: cli.mib,
        rounds: cli.rounds,
    };
    let map = match cli.only {
        Some(Part::Stores) => None,
        None | Some(Part::Map) => {
            note("the map of four sites, for two minutes");
            Some(Map::measure(cli.picture.as_deref())?)
        }
    };
    let series = match cli.only {
        Some(Part::Map) => Series::new(),
        None | Some(Part::Stores) => near::run(&settings, note)?,
    };
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(near::table(&series, map.as_ref()).as_bytes());
    if let Some(folder) = &cli.results {
        let (mib, rounds) = (cli.mib, cli.rounds);
        let command = format!("scripts/bench-near.sh --mib {mib} --rounds {rounds}");
        near::store(&settings, (&series, map.as_ref()), folder, &command)?;
    }
    Ok(())
}
