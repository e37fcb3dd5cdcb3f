//! `perigee-bench`: measures a mount at home beside the local file system. See `scripts/bench.sh`.

use clap::Parser;
use perigee_bench::peers::Peers;
use perigee_bench::row::Group;
use perigee_bench::side_by_side::{self, Column, Part};
use perigee_bench::{BenchError, Settings, Target, ended, note, picture, report, round};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{Call, CheckError, Cluster};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What directories keep without a policy.
const COPIES: u32 = 3;
/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(7_200);

/// Measure Perigee at home beside the local file system, by turns.
///
/// Starts a cluster of its own, mounts its first node, and removes everything at the end.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Cli {
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = Settings::default().rounds, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// MiB of the large file
    #[arg(long, default_value_t = Settings::default().file_bytes >> 20, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    size: u64,
    /// Seconds of each random row
    #[arg(long, default_value_t = Settings::default().random.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// Small files
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Groups of rows to run: file, one-copy, small, small-four, tree, work
    #[arg(long, value_delimiter = ',', value_parser = parse_group)]
    only: Vec<Group>,
    /// Nodes of the cluster, each a process here; they keep three copies where there are three
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,
    /// Measure this directory instead of a cluster, under this label
    #[arg(long, num_args = 2, value_names = ["DIR", "LABEL"])]
    peer: Option<Vec<String>>,
    /// Processes that serve the directory of --peer: their CPU time counts
    #[arg(long, requires = "peer", value_delimiter = ',')]
    pid: Vec<i32>,
    /// Measure this directory, too: its label, how many copies of each byte it keeps (0 for a bound that is no peer),
    /// where it is, and the processes that serve it, with commas between
    #[arg(long, num_args = 4, value_names = ["LABEL", "COPIES", "DIR", "PIDS"], conflicts_with = "peer")]
    beside: Vec<String>,
    /// Draw what was measured beside each other
    #[arg(long, requires = "beside")]
    picture: Option<PathBuf>,
    /// The local directory to compare with [default: a fresh one in the temporary directory]
    #[arg(long)]
    native: Option<PathBuf>,
    /// Table of the peers' ratios
    #[arg(long, default_value = "bench/peers.json")]
    peers: PathBuf,
    /// Write one file for each row there
    #[arg(long)]
    results: Option<PathBuf>,
}

fn parse_group(text: &str) -> Result<Group, String> {
    match text {
        "file" => Ok(Group::File),
        "one-copy" => Ok(Group::OneCopy),
        "small" => Ok(Group::Small),
        "small-four" => Ok(Group::SmallFour),
        "tree" => Ok(Group::Tree),
        "work" => Ok(Group::Work),
        _ => Err("the groups are file, one-copy, small, small-four, tree and work".to_owned()),
    }
}

fn main() -> ExitCode {
    ended(measure(&Cli::parse()))
}

fn measure(cli: &Cli) -> Result<(), BenchError> {
    let peers = Peers::load(&cli.peers)?;
    let workspace = Workspace::new()?;
    let native = match &cli.native {
        Some(directory) => directory.clone(),
        None => report::beside(&workspace)?,
    };
    let mut cluster = None;
    let (target, prefix) = match cli.peer.as_deref() {
        Some([directory, label]) => {
            let directory = Path::new(directory).to_owned();
            let target = Target {
                label: label.clone(),
                directory,
                one_copy: None,
                daemons: cli.pid.clone(),
            };
            (
                target,
                label.replace(|c: char| !c.is_ascii_alphanumeric(), "_"),
            )
        }
        _ => {
            let started = cluster.insert(Cluster::start_within(cli.nodes, LIMIT)?);
            (home(started)?, "home".to_owned())
        }
    };
    let native = Target {
        label: "native".to_owned(),
        directory: native,
        one_copy: None,
        daemons: Vec::new(),
    };
    let settings = Settings {
        rounds: cli.rounds,
        file_bytes: cli.size << 20,
        random: Duration::from_secs(cli.secs),
        small_files: cli.files as usize,
        ..Settings::default()
    };
    let all = Group::ALL.into_iter();
    let groups = match &cli.only[..] {
        // Rows without a goal say something beside others alone.
        [] if cli.beside.is_empty() => all.filter(|group| group.is_published()).collect(),
        // One copy each is no comparison with peers that keep three.
        [] => all.filter(|group| *group != Group::OneCopy).collect(),
        some => some.to_vec(),
    };
    let label = target.label.clone();
    let beside = beside(&cli.beside)?;
    let mut targets = vec![target, native];
    targets.extend(beside.iter().map(|(target, _)| target.clone()));
    let series = round::run(&settings, &groups, &targets, |round, group, target| {
        note(&format!(
            "round {round} of {}: {group:?} on {}",
            settings.rounds, target.label
        ));
    })?;
    if beside.is_empty() {
        let [mount, native] = &series[..] else {
            return Err(CheckError::violated("two targets give two series").into());
        };
        let rows = report::compare(mount, native, &peers);
        say(&report::table(&rows, &label));
        if let Some(folder) = &cli.results {
            report::store(&rows, &prefix, folder, &command("scripts/bench.sh"))?;
        }
        return Ok(());
    }
    let parts = [Part::Ours, Part::Native].into_iter();
    let parts = parts.chain(beside.iter().map(|(_, part)| *part));
    let columns: Vec<Column> = targets
        .iter()
        .zip(parts)
        .zip(series)
        .map(|((target, part), series)| Column {
            label: target.label.clone(),
            part,
            series,
        })
        .collect();
    show(cli, &columns)
}

/// What was measured beside each other: as tables, as files, as a picture.
fn show(cli: &Cli, columns: &[Column]) -> Result<(), BenchError> {
    let copies = cli.nodes.min(COPIES);
    say(&side_by_side::table(columns, copies));
    let command = command("scripts/bench-peers.sh");
    if let Some(folder) = &cli.results {
        side_by_side::store(columns, copies, folder, &command)?;
    }
    if let Some(path) = &cli.picture {
        let title = "Speed beside the local disk, all in one run on one machine";
        std::fs::write(path, picture::draw(columns, title)).map_err(|error| {
            BenchError::Results {
                path: path.clone(),
                why: error.to_string(),
            }
        })?;
    }
    Ok(())
}

/// The targets of `--beside`, each four words.
fn beside(words: &[String]) -> Result<Vec<(Target, Part)>, BenchError> {
    let wrong = |what: String| BenchError::from(CheckError::violated(format!("--beside: {what}")));
    let mut all = Vec::new();
    for words in words.chunks_exact(4) {
        let [label, copies, directory, pids] = words else {
            continue;
        };
        let copies: u32 = copies
            .parse()
            .map_err(|_| wrong(format!("`{copies}` copies")))?;
        let pids = pids.split(',').filter(|pid| !pid.is_empty());
        let pids = pids.map(|pid| pid.parse().map_err(|_| wrong(format!("process `{pid}`"))));
        let part = if copies == 0 {
            Part::Bound
        } else {
            Part::Peer { copies }
        };
        let target = Target {
            label: label.clone(),
            directory: PathBuf::from(directory),
            one_copy: None,
            daemons: pids.collect::<Result<Vec<i32>, _>>()?,
        };
        all.push((target, part));
    }
    Ok(all)
}

/// The mount of the first node, which owns the root directory, and all processes of the cluster.
fn home(cluster: &mut Cluster) -> Result<Target, BenchError> {
    let first = cluster.ids().first().copied().unwrap_or(1);
    let directory = cluster.mount(first)?.join("bench");
    std::fs::create_dir(&directory).call(|| format!("mkdir {}", directory.display()))?;
    let one_copy = directory.join("one-copy");
    std::fs::create_dir(&one_copy).call(|| format!("mkdir {}", one_copy.display()))?;
    let set = cluster.command(&["policy", "set", &one_copy.to_string_lossy(), "copies=1"])?;
    if !set.status.success() {
        return Err(CheckError::violated(format!("policy: {}", set.stderr)).into());
    }
    let daemons = cluster.pids();
    Ok(Target {
        label: "perigee".to_owned(),
        directory,
        one_copy: Some(one_copy),
        daemons,
    })
}

/// How a person repeats this run.
fn command(script: &str) -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut shown = String::from(script);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // The scripts give these themselves.
        let own = match word.as_str() {
            "--results" | "--peers" | "--picture" | "--native" => 1,
            "--beside" => 4,
            _ => 0,
        };
        if own > 0 {
            words.by_ref().take(own).for_each(drop);
            continue;
        }
        shown.push(' ');
        shown.push_str(word);
    }
    shown
}

fn say(text: &str) {
    // Whoever closed the output does not want to hear.
    _ = std::io::stdout().write_all(text.as_bytes());
}
