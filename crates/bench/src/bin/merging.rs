//! `perigee-bench-merging`: what it brings that messages leave together. See `scripts/bench-merging.sh`.

use clap::Parser;
use perigee_bench::merging::{self, Settings};
use perigee_bench::{BenchError, ended, note};
use perigee_net::Merging;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure many small files over a network that takes its time, with messages merged in several ways.
///
/// Starts a cluster of its own, each node in a network namespace, and removes everything at the end. Needs root.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// Files of each row; a tenth of them where one thread works
    #[arg(long, default_value_t = Settings::default().files)]
    files: usize,
    /// Threads of the client
    #[arg(long, default_value_t = Settings::default().threads)]
    threads: usize,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = Settings::default().rounds, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Microseconds from one host to another and back
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    rtt: u64,
    /// The ways to merge: off, adaptive, or how many wait for each other
    #[arg(long, value_delimiter = ',', default_values_t = Settings::default().ways)]
    ways: Vec<Merging>,
    /// Write one file for each row there
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    ended(measure(&Cli::parse()))
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let settings = Settings {
        files: cli.files,
        threads: cli.threads.max(1),
        rounds: cli.rounds,
        round_trip: Duration::from_micros(cli.rtt),
        ways: cli.ways.clone(),
    };
    let outcome = merging::run(&settings, note)?;
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(merging::table(&settings, &outcome).as_bytes());
    if let Some(folder) = &cli.results {
        merging::store(&settings, &outcome, folder, &command(cli))?;
    }
    Ok(())
}

/// How a person repeats this run.
fn command(cli: &Cli) -> String {
    let ways: Vec<String> = cli.ways.iter().map(ToString::to_string).collect();
    format!(
        "scripts/bench-merging.sh --files {} --threads {} --rounds {} --rtt {} --ways {}",
        cli.files,
        cli.threads,
        cli.rounds,
        cli.rtt,
        ways.join(",")
    )
}
