//! `perigee-bench-workflow`: some hundred tasks over a union, on their data or by turns. See `scripts/bench-workflow.sh`.

use clap::Parser;
use perigee_bench::workflow::{self, Settings};
use perigee_bench::{BenchError, ended, note};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure a workflow over a union of four hosts, with its tasks on their data and by turns.
///
/// Needs root, an SSH server, and snakemake; removes everything at the end.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// Tiles along each side of the mosaic
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(4..=40))]
    side: u32,
    /// Points along each side of a tile
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4_096))]
    points: u32,
    /// Round trip between the hosts, milliseconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    apart: u64,
    /// Tasks at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    cores: u32,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The workflow
    #[arg(long, default_value = "examples/mosaic")]
    example: PathBuf,
    /// Write one file for each way there
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    ended(measure(&Cli::parse()))
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let settings = Settings {
        side: cli.side,
        points: cli.points,
        apart: Duration::from_millis(cli.apart),
        cores: cli.cores,
        rounds: cli.rounds,
        example: std::path::absolute(&cli.example).unwrap_or_else(|_| cli.example.clone()),
    };
    let outcome = workflow::run(&settings, note)?;
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(workflow::table(&outcome).as_bytes());
    if let Some(folder) = &cli.results {
        let command = format!(
            "make bench-workflow ARGS=\"--side {} --points {} --apart {} --cores {} --rounds {}\"",
            cli.side, cli.points, cli.apart, cli.cores, cli.rounds
        );
        workflow::store(folder, &outcome, &command)?;
    }
    Ok(())
}
