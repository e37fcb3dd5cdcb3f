//! `perigee-bench-remote`: a large file on another host, beside one TLS stream. See `scripts/bench-remote.sh`.

use clap::Parser;
use perigee_bench::remote::{self, Between, Settings};
use perigee_bench::{BenchError, ended, note};
use perigee_testbed::{Call, Checked};
use std::io::Write;
use std::net::Ipv4Addr;
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
    /// What lies between the hosts: `loopback`, or million bits a second and milliseconds there and back; may be given often
    #[arg(long, value_name = "loopback|MBIT:MS", default_values_t = Settings::default().between)]
    between: Vec<Between>,
    /// Write one file for each row there
    #[arg(long)]
    results: Option<PathBuf>,
    /// Be the other end of the stream, with the identity there
    #[arg(long, hide = true)]
    serve_stream: Option<PathBuf>,
    /// Where the other end listens
    #[arg(long, hide = true, default_value_t = Ipv4Addr::LOCALHOST)]
    serve_at: Ipv4Addr,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    ended(match &cli.serve_stream {
        Some(identity) => remote::serve(identity, cli.serve_at).map_err(BenchError::from),
        None => measure(&cli),
    })
}

fn program() -> Checked<PathBuf> {
    std::env::current_exe().call(|| "find this program".to_owned())
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let settings = Settings {
        between: cli.between.clone(),
        mib: cli.mib,
        rounds: cli.rounds,
    };
    let outcome = remote::run(&settings, &program()?, note)?;
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(remote::table(&outcome).as_bytes());
    if let Some(folder) = &cli.results {
        let links = cli.between.iter().map(|one| format!(" --between {one}"));
        let command = format!(
            "scripts/bench-remote.sh --mib {} --rounds {}{}",
            cli.mib,
            cli.rounds,
            links.collect::<String>()
        );
        remote::store(&settings, &outcome, folder, &command)?;
    }
    Ok(())
}
