//! `perigee-testbed`: runs the checks by hand, and is the other side of those that need processes.

use perigee_testbed::chaos::nemesis::Kind;
use perigee_testbed::chaos::private;
use perigee_testbed::checks::kill_write::Pauses;
use perigee_testbed::checks::two_mounts::{self, Pair, exclusion};
use perigee_testbed::checks::{crash_names, kill_write, model, tree};
use perigee_testbed::{
    Call, CheckError, Checked, Cluster, campaign, chaos, program, tree as trees,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: perigee-testbed CHECK ...
  two-mounts A B                   coherence; A and B are one directory on two hosts (or twice the same)
  tree SOURCE A B                  copy SOURCE into A/tree, compare it in B/tree
  model A B LOCAL [SEED [COUNT]]   random operations on A and B against LOCAL (all empty)
  kill [ROUNDS [MIB [SEED [anyone]]]]   own cluster of three; the owner of a file that is being written, or any node,
                                   killed in each round (20, 1024, random)
  refill [MIB [SEED]]              own cluster of three; a program works while a wiped node is filled (512, random)
  crash-names [COUNT [SEED]]       own cluster of three; all killed while names are made (300, random)
  chaos [MINUTES [NODES [SEED [KIND...]]]]   own cluster, nodes struck under programs that check (10, 5, random);
                                   kinds: kill, kill-all, stop, full, wipe, cut, part, deafen, slow,
                                   fail, jump, swap (which takes another build: PERIGEE_OTHER_BIN),
                                   etcd (which has the record in one); disks in memory, or with
                                   PERIGEE_TEST_DISKS=images in files; PERIGEE_TEST_MOUNT_OPTIONS for mounts;
                                   PERIGEE_TEST_SITES=MS between two halves of the hosts";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            tell(USAGE);
            ExitCode::from(2)
        }
        Err(error) => {
            tell(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs what the words ask for; false where they ask for nothing known.
fn dispatch(words: &[&str]) -> Checked<bool> {
    match *words {
        ["child", ref rest @ ..] => return child(rest),
        ["two-mounts", a, b] => run_two_mounts(Path::new(a), Path::new(b))?,
        ["tree", source, a, b] => {
            let pair = Pair::new(&Path::new(a).join("tree"), &Path::new(b).join("tree"));
            let compared = tree::run(Path::new(source), &pair)?;
            tell(&format!(
                "{} names, {} bytes are the same",
                compared.names, compared.bytes
            ));
        }
        ["model", a, b, local, ref rest @ ..] => {
            let seed = number(rest.first(), random_seed())?;
            let hosts = vec![PathBuf::from(a), PathBuf::from(b)];
            let sides = model::Sides {
                hosts,
                model: PathBuf::from(local),
            };
            let count = number(rest.get(1), 10_000)?;
            tell(&format!("model: {count} operations, seed {seed}"));
            model::run(&sides, seed, count)?;
        }
        ["kill", ref rest @ ..] => run_kills(rest)?,
        ["chaos", ref rest @ ..] => run_chaos(rest)?,
        ["refill", ref rest @ ..] => run_refill(rest)?,
        ["crash-names", ref rest @ ..] => {
            let seed = number(rest.get(1), random_seed())?;
            let count = usize::try_from(number(rest.first(), 300)?).unwrap_or(usize::MAX);
            tell(&format!("crash-names: seed {seed}"));
            let kept = campaign::crash_all_names(&mut Cluster::start(3)?, seed, count)?;
            tell(&format!("{kept} promises kept"));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn child(words: &[&str]) -> Checked<bool> {
    match *words {
        ["locker", ref paths @ ..] => {
            let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
            exclusion::locking_side(&paths)?;
        }
        ["counter", kind, path, rounds] => {
            exclusion::counting_side(kind, Path::new(path), number(Some(&rounds), 0)?)?;
        }
        ["writer", path, size, seed, sync_every] => {
            let [size, seed, sync_every] = [size, seed, sync_every].map(|n| number(Some(&n), 0));
            kill_write::writing_side(Path::new(path), size?, seed?, sync_every?)?;
        }
        ["storer"] => private::storer_side()?,
        ["store", path, at, len, seed] => {
            let [at, len, seed] = [at, len, seed].map(|n| number(Some(&n), 0));
            private::storing_side(Path::new(path), at?, len?, seed?)?;
        }
        ["names", directory, seed] => {
            crash_names::making_side(Path::new(directory), number(Some(&seed), 0)?)?;
        }
        ["make-tree", directory, files] => {
            let files = usize::try_from(number(Some(&files), 0)?).unwrap_or(usize::MAX);
            trees::make(Path::new(directory), files, 1)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn run_two_mounts(a: &Path, b: &Path) -> Checked {
    let name = format!("two-mounts-{}", std::process::id());
    let (a, b) = (a.join(&name), b.join(&name));
    std::fs::create_dir(&a).call(|| format!("mkdir {}", a.display()))?;
    let failures = two_mounts::run(&a, &b);
    for (title, error) in &failures {
        tell(&format!("FAILED {title}: {error}"));
    }
    let cases = 2 * two_mounts::cases().len();
    tell(&format!(
        "{} of {cases} cases passed",
        cases - failures.len()
    ));
    if failures.is_empty() {
        return std::fs::remove_dir_all(&a).call(|| format!("remove {}", a.display()));
    }
    Err(CheckError::violated(format!(
        "{} cases failed",
        failures.len()
    )))
}

fn run_kills(words: &[&str]) -> Checked {
    let rounds = u32::try_from(number(words.first(), 20)?).unwrap_or(u32::MAX);
    let size = number(words.get(1), 1_024)? << 20;
    let seed = number(words.get(2), random_seed())?;
    let victim = match words.get(3) {
        None => campaign::Victim::Owner,
        Some(&"anyone") => campaign::Victim::Anyone,
        Some(other) => return Err(CheckError::violated(format!("kill: who is `{other}`?"))),
    };
    tell(&format!(
        "kill: {rounds} rounds of {size} bytes, seed {seed}"
    ));
    let kills = campaign::Kills {
        rounds,
        size,
        sync_every: 16 << 20,
        seed,
        victim,
    };
    let limit = Duration::from_secs(120) * rounds.max(1);
    let mut cluster = Cluster::start_within(3, limit)?;
    let done = campaign::kill_rounds(&mut cluster, kills, |number, round| {
        tell(&format!(
            "round {number}: {} MiB durable at the kill; longest call {:?} after it, {:?} before",
            round.durable_at_strike >> 20,
            round.pause,
            round.calm
        ));
    })?;
    if let Some(Pauses { median, p99, worst }) = kill_write::pauses(&done) {
        tell(&format!(
            "{rounds} kills, no wrong byte; pause median {median:?}, p99 {p99:?}, worst {worst:?}"
        ));
    }
    Ok(())
}

fn run_refill(words: &[&str]) -> Checked {
    let bytes = number(words.first(), 512)? << 20;
    let seed = number(words.get(1), random_seed())?;
    tell(&format!("refill: {bytes} bytes, seed {seed}"));
    let mut cluster = Cluster::start_within(3, Duration::from_secs(1_200))?;
    let refilled = campaign::refill(&mut cluster, bytes, seed)?;
    let speed = (bytes >> 20) as f64 / refilled.took.as_secs_f64();
    tell(&format!("before: {}", refilled.before));
    tell(&format!("meanwhile: {}", refilled.during));
    tell(&format!(
        "whole again after {:.1?}, {speed:.0} MiB/s with the node's start; every byte is there",
        refilled.took
    ));
    Ok(())
}

fn run_chaos(words: &[&str]) -> Checked {
    let settings = chaos::Settings {
        time: Duration::from_secs(60 * number(words.first(), 10)?),
        nodes: u32::try_from(number(words.get(1), 5)?).unwrap_or(u32::MAX),
        seed: number(words.get(2), random_seed())?,
        kinds: kinds(words.get(3..).unwrap_or_default())?,
        disks: disks()?,
        sites: sites()?,
    };
    tell(&format!(
        "chaos: {} nodes for {:?}, seed {}",
        settings.nodes, settings.time, settings.seed
    ));
    let outcome = chaos::run(&settings, tell)?;
    for (kind, struck) in &outcome.strikes {
        tell(&format!(
            "{}: {} times, longest call elsewhere {:.1?}",
            kind.name(),
            struck.count,
            struck.pause
        ));
    }
    tell(&format!(
        "{} kept through every node, nothing missing; {}",
        outcome.kept, outcome.looked
    ));
    Ok(())
}

/// As `PERIGEE_TEST_DISKS` says.
fn disks() -> Checked<chaos::Disks> {
    match std::env::var("PERIGEE_TEST_DISKS").as_deref() {
        Ok("memory") | Err(std::env::VarError::NotPresent) => Ok(chaos::Disks::Memory),
        Ok("images") => Ok(chaos::Disks::Images),
        _ => Err(CheckError::violated(
            "PERIGEE_TEST_DISKS is `memory` or `images`",
        )),
    }
}

/// As `PERIGEE_TEST_SITES` says, in milliseconds.
fn sites() -> Checked<Option<Duration>> {
    let Ok(text) = std::env::var("PERIGEE_TEST_SITES") else {
        return Ok(None);
    };
    let wrong = |_| CheckError::violated("PERIGEE_TEST_SITES is a number of milliseconds");
    text.parse()
        .map(|ms| Some(Duration::from_millis(ms)))
        .map_err(wrong)
}

/// The usual ones where none is named.
fn kinds(names: &[&str]) -> Checked<Vec<Kind>> {
    if names.is_empty() {
        let mut usual = Kind::USUAL.to_vec();
        if !rustix::process::geteuid().is_root() {
            tell("skipped: filling disks and cutting links, which takes root");
            usual.retain(|kind| !kind.takes_root());
        }
        return Ok(usual);
    }
    let unknown = |name: &str| CheckError::violated(format!("`{name}` is no kind of strike"));
    let named = names
        .iter()
        .map(|name| Kind::named(name).ok_or_else(|| unknown(name)));
    let mut named: Vec<Kind> = named.collect::<Checked<_>>()?;
    if named.contains(&Kind::Swap) && program::other_perigee().is_none() {
        tell("skipped: swap, which takes another build, named by PERIGEE_OTHER_BIN");
        named.retain(|kind| *kind != Kind::Swap);
    }
    if named.contains(&Kind::Etcd) && !perigee_testbed::etcd::is_here("etcd") {
        named.retain(|kind| *kind != Kind::Etcd);
    }
    Ok(named)
}

fn number(word: Option<&&str>, default: u64) -> Checked<u64> {
    let Some(word) = word else { return Ok(default) };
    word.parse()
        .map_err(|error| CheckError::violated(format!("`{word}`: {error}")))
}

/// A seed that differs from run to run; it is printed, so that the run can be replayed.
fn random_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_micros() as u64 % 1_000_000_000)
}

fn tell(line: &str) {
    // Whoever closed the output does not want to hear.
    _ = writeln!(std::io::stdout(), "{line}");
}
