//! `perigee-bench-remote`: a large file on another host, beside one TLS stream. See `scripts/bench-remote.sh`.

use clap::Parser;
use perigee_bench::remote::{self, Settings};
use perigee_bench::{BenchError, ended, note};
use perigee_testbed::{Call, Checked};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure reads and writes of a large file that lies on another host, beside one TLS stream over the same link.
///
/// Starts a cluster of its own on this machine, and removes everything at the end. Needs root.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// MiB of the file
    #[arg(long, default_value_t = Settings::default().mib, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = Settings::default().rounds, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Write one file for each row there
    #[arg(long)]
    results: Option<PathBuf>,
    /// Be the other end of the stream, with the identity there
    #[arg(long, hide = true)]
    serve_stream: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    ended(match &cli.serve_stream {
        Some(identity) => remote::serve(identity).map_err(BenchError::from),
        None => measure(&cli),
    })
}

fn program() -> Checked<PathBuf> {
    std::env::current_exe().call(|| "find this program".to_owned())
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let settings = Settings {
        mib: cli.mib,
        rounds: cli.rounds,
    };
    let series = remote::run(&settings, &program()?, note)?;
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(remote::table(&series).as_bytes());
    if let Some(folder) = &cli.results {
        let command = format!(
            "scripts/bench-remote.sh --mib {} --rounds {}",
            cli.mib, cli.rounds
        );
        remote::store(&settings, &series, folder, &command)?;
    }
    Ok(())
}
