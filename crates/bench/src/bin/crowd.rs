//! `perigee-bench-crowd`: one directory of very many files. See `scripts/bench-crowd.sh`.

use clap::Parser;
use perigee_bench::crowd::{self, Other, Settings};
use perigee_bench::{BenchError, ended, note};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make, list, look at and remove very many files in one directory, and measure the memory of the daemons.
///
/// Starts a cluster of three nodes of its own and removes everything at the end, or works on another file system. Needs
/// root, to empty the kernel's caches.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// Files in the directory
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(10..=100_000_000))]
    files: u32,
    /// A directory of another file system, to be measured instead
    #[arg(long, requires = "label")]
    on: Option<PathBuf>,
    /// What it is called
    #[arg(long)]
    label: Option<String>,
    /// The processes that serve it
    #[arg(long, value_delimiter = ',', requires = "on")]
    daemons: Vec<i32>,
    /// Write a file of results there
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    ended(measure(&Cli::parse()))
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let other = cli.on.clone().zip(cli.label.clone());
    let settings = Settings {
        files: cli.files as usize,
        other: other.map(|(directory, label)| Other {
            label,
            directory,
            daemons: cli.daemons.clone(),
        }),
    };
    let outcome = crowd::run(&settings, note)?;
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(crowd::table(&settings, &outcome).as_bytes());
    if let Some(folder) = &cli.results {
        let command = format!("scripts/bench-crowd.sh --files {}", cli.files);
        crowd::store(&settings, &outcome, folder, &command)?;
    }
    Ok(())
}
