//! `perigee-bench-locality`: what it costs to write far from the owner, and what it brings that ownership moves. See
//! `scripts/bench-locality.sh`.

use clap::Parser;
use perigee_bench::locality::{self, Job, Settings};
use perigee_bench::{BenchError, ended, note};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure writes of several hosts beside each other, over a network that takes its time.
///
/// Starts a cluster of its own, each node in a network namespace, and removes everything at the end. Needs root.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// Nodes, each on a host of its own
    #[arg(long, default_value_t = Settings::default().nodes, value_parser = clap::value_parser!(u32).range(3..=16))]
    nodes: u32,
    /// Microseconds from one host to another and back
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    rtt: u64,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = Settings::default().rounds, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Rounds of the rows of two hosts that take turns
    #[arg(long, default_value_t = Settings::default().pairs, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: u32,
    /// MiB of each file, but of those that are rewritten whole
    #[arg(long, default_value_t = Settings::default().file_bytes >> 20, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    size: u64,
    /// MiB of each file that is rewritten whole
    #[arg(long, default_value_t = Settings::default().rewrite_bytes >> 20, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    rewrite_size: u64,
    /// Seconds of each row that has no end of its own
    #[arg(long, default_value_t = Settings::default().time.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// Jobs to run: rewrite, random-4k, random-128k, random-1m, alternate, alternate-strangers, create,
    /// create-far, home, home-moved, chunks
    #[arg(long, value_delimiter = ',', value_parser = parse_work)]
    only: Vec<Work>,
    /// Nodes of the clusters whose chunks are counted
    #[arg(long, value_delimiter = ',', default_values_t = [3, 5], value_parser = clap::value_parser!(u32).range(3..=16))]
    sizes: Vec<u32>,
    /// Write one file for each row there
    #[arg(long)]
    results: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Rows(Job),
    Chunks,
}

const CHUNKS: &str = "chunks";

impl Work {
    const fn key(self) -> &'static str {
        match self {
            Self::Rows(job) => job.key(),
            Self::Chunks => CHUNKS,
        }
    }

    fn all() -> Vec<Self> {
        let jobs = Job::ALL.into_iter().map(Self::Rows);
        jobs.chain([Self::Chunks]).collect()
    }
}

fn parse_work(text: &str) -> Result<Work, String> {
    let found = Work::all().into_iter().find(|work| work.key() == text);
    found.ok_or_else(|| {
        let names: Vec<_> = Work::all().into_iter().map(Work::key).collect();
        format!("the jobs are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    ended(measure(&Cli::parse()))
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let settings = Settings {
        nodes: cli.nodes,
        round_trip: Duration::from_micros(cli.rtt),
        rounds: cli.rounds,
        pairs: cli.pairs,
        file_bytes: cli.size << 20,
        rewrite_bytes: cli.rewrite_size << 20,
        time: Duration::from_secs(cli.secs),
    };
    let wanted = if cli.only.is_empty() {
        Work::all()
    } else {
        cli.only.clone()
    };
    let job = |work: &Work| match work {
        Work::Rows(job) => Some(*job),
        Work::Chunks => None,
    };
    let jobs: Vec<Job> = wanted.iter().filter_map(job).collect();
    let sizes = if wanted.contains(&Work::Chunks) {
        cli.sizes.as_slice()
    } else {
        &[]
    };
    let outcome = locality::run(&settings, &jobs, sizes, note)?;
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(locality::table(&outcome).as_bytes());
    if let Some(folder) = &cli.results {
        let network = format!(
            "{} hosts, {:?} from one to another and back, delayed by the testbed; packets late by {:?} on the average, {:?} at worst",
            cli.nodes, settings.round_trip, outcome.late.mean, outcome.late.worst
        );
        locality::store(&outcome, folder, &command(cli), &network)?;
    }
    Ok(())
}

/// How a person repeats this run.
fn command(cli: &Cli) -> String {
    let mut shown = format!(
        "scripts/bench-locality.sh --nodes {} --rtt {} --rounds {} --pairs {} --size {} --rewrite-size {} --secs {}",
        cli.nodes, cli.rtt, cli.rounds, cli.pairs, cli.size, cli.rewrite_size, cli.secs
    );
    if !cli.only.is_empty() {
        let names: Vec<&str> = cli.only.iter().map(|work| work.key()).collect();
        shown += &format!(" --only {}", names.join(","));
    }
    shown
}
