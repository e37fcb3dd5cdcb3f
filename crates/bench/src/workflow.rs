//! A workflow of some hundred tasks over a union of four hosts, each task where its files are, or by turns.
//!
//! The workflow is `examples/mosaic`: tiles of an image become one mosaic, in the manner of Montage (GMount, section 3.4.2).
//! What is measured is the time that it takes, and what goes over the network between the hosts.

use crate::BenchError;
use crate::report::{machine, round, write_file};
use crate::round::middle;
use perigee_testbed::delay::Traffic;
use perigee_testbed::ssh_hosts::{Plan, SshHosts, User};
use perigee_testbed::{Call, Checked, ensure, program};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Hosts with tiles; the workflow is started from another one.
const HOSTS: u32 = 4;
/// Where every host has the mount.
const POINT: &str = "/tmp/u";
/// Which host each task was sent to; on host 0.
const TOLD: &str = "/tmp/told";

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Tiles along each side of the mosaic.
    pub side: u32,
    /// Points along each side of a tile.
    pub points: u32,
    /// Round trip between the hosts.
    pub apart: Duration,
    /// Tasks at once.
    pub cores: u32,
    /// Rounds; each runs the workflow in both ways.
    pub rounds: u32,
    /// Where the workflow is: `examples/mosaic`.
    pub example: PathBuf,
}

/// Where a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placed {
    /// On the host that has most bytes of its inputs, as `perigee locate --best` says.
    Data,
    /// On the hosts by turns.
    Turns,
}

impl Placed {
    /// Both ways.
    pub const ALL: [Self; 2] = [Self::Data, Self::Turns];

    const fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Turns => "turns",
        }
    }
}

/// What one run took.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ran {
    /// Seconds from the first task to the last.
    pub seconds: f64,
    /// Bytes between all hosts, with headers.
    pub bytes: u64,
    /// Tasks.
    pub tasks: u64,
}

/// All runs, by way.
pub type Outcome = BTreeMap<Placed, Vec<Ran>>;

/// Runs all.
///
/// Errors: what is missing on this machine; the first step that fails; mosaics that differ.
pub fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Checked<Outcome> {
    let half = settings.apart / 2;
    let hosts = Plan::of(HOSTS).one_way(|_, _| half).start()?;
    tell("making tiles");
    make_tiles(&hosts, settings)?;
    let mount = union(&hosts)?;
    let mut outcome = Outcome::new();
    let mut first: Option<Vec<u8>> = None;
    for number in 1..=settings.rounds {
        for placed in Placed::ALL {
            tell(&format!("round {number}, tasks by {}", placed.word()));
            let ran = workflow(&hosts, settings, placed)?;
            let made = hosts.path_of(0, &Path::new(POINT).join("mosaic/mosaic.raw"))?;
            let made = fs::read(&made).call(|| "read the mosaic".to_owned())?;
            let same = first.get_or_insert_with(|| made.clone());
            ensure!(*same == made, "the mosaics differ");
            outcome.entry(placed).or_default().push(ran);
            clean(&hosts)?;
        }
    }
    mount.umount()?;
    Ok(outcome)
}

fn make_tiles(hosts: &SshHosts, settings: &Settings) -> Checked {
    let example = settings.example.display();
    for host in 1..=HOSTS {
        let raw = hosts.directory(host)?.join("mosaic/raw");
        let raw = raw.display();
        let mut script = format!("set -e; mkdir -p {raw}\n");
        // Rows that lie together are on one host, as a survey would have them.
        let rows = (0..settings.side).filter(|row| row * HOSTS / settings.side == host - 1);
        for (row, column) in rows.flat_map(|row| (0..settings.side).map(move |c| (row, c))) {
            let (tile, points) = (format!("{row}-{column}"), settings.points);
            // Writing to a string cannot fail.
            _ = writeln!(
                script,
                "python3 {example}/mosaic.py make {raw}/{tile}.raw {points} {tile}"
            );
        }
        shell(hosts, host, &script)?;
    }
    Ok(())
}

fn shell(hosts: &SshHosts, host: u32, script: &str) -> Checked<String> {
    let mut command = hosts.command(host, User::Root, "sh")?;
    let ended = command
        .args(["-c", script])
        .output()
        .call(|| "start a shell".to_owned())?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.success(),
        "host {host}: {}: {said}",
        ended.status
    );
    Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned())
}

/// A union on all hosts.
struct Mount<'a> {
    hosts: &'a SshHosts,
    perigee: PathBuf,
}

fn union(hosts: &SshHosts) -> Checked<Mount<'_>> {
    let perigee = program::perigee()?;
    let mut words = vec![format!(
        "mkdir -p {POINT}; {} union --everywhere",
        perigee.display()
    )];
    for host in 1..=HOSTS {
        words.push(format!(
            "{}:{}",
            hosts.name(host),
            hosts.directory(host)?.display()
        ));
    }
    words.push(POINT.to_owned());
    shell(hosts, 0, &words.join(" "))?;
    Ok(Mount { hosts, perigee })
}

impl Mount<'_> {
    fn umount(self) -> Checked {
        let command = format!("{} umount --lazy {POINT}", self.perigee.display());
        shell(self.hosts, 0, &command).map(drop)
    }
}

fn workflow(hosts: &SshHosts, settings: &Settings, placed: Placed) -> Checked<Ran> {
    let names: Vec<String> = (1..=HOSTS).map(|host| hosts.name(host)).collect();
    let links = hosts.links();
    let before: Traffic = links.traffic(&links.everywhere())?;
    let perigee = program::perigee()?;
    // One connection of SSH to each host serves all tasks.
    let run = "ssh -o ControlMaster=auto -o ControlPath=/tmp/to-%n -o ControlPersist=30";
    let script = format!(
        "cd {POINT}/mosaic && rm -f {TOLD} && PLACE={} HOSTS='{}' TOLD={TOLD} PERIGEE={} RUN='{run}' \
         XDG_CACHE_HOME=/tmp snakemake --quiet all --snakefile {}/Snakefile --cores {} --config side={}",
        placed.word(),
        names.join(" "),
        perigee.display(),
        settings.example.display(),
        settings.cores,
        settings.side
    );
    let began = Instant::now();
    shell(hosts, 0, &script)?;
    let seconds = began.elapsed().as_secs_f64();
    let tasks = shell(hosts, 0, &format!("wc -l < {TOLD}"))?;
    let after = links.traffic(&links.everywhere())?;
    Ok(Ran {
        seconds,
        bytes: after.bytes - before.bytes,
        tasks: tasks.parse().unwrap_or(0),
    })
}

/// Leaves the raw tiles alone.
fn clean(hosts: &SshHosts) -> Checked {
    let gone = "projected diffs corrected rows levels mosaic.raw .snakemake";
    for host in 1..=HOSTS {
        let at = hosts.directory(host)?.join("mosaic");
        shell(
            hosts,
            host,
            &format!("cd {} && rm -rf {gone}", at.display()),
        )?;
    }
    Ok(())
}

fn medians(runs: &[Ran]) -> (f64, f64) {
    let seconds: Vec<f64> = runs.iter().map(|ran| ran.seconds).collect();
    let mib: Vec<f64> = runs
        .iter()
        .map(|ran| ran.bytes as f64 / f64::from(1 << 20))
        .collect();
    (middle(&seconds), middle(&mib))
}

/// One line for each way.
#[must_use]
pub fn table(outcome: &Outcome) -> String {
    let mut text = format!(
        "{:28} {:>7} {:>9} {:>15}\n",
        "", "tasks", "seconds", "MiB over links"
    );
    for (placed, runs) in outcome {
        let title = match placed {
            Placed::Data => "tasks on their data",
            Placed::Turns => "tasks on hosts by turns",
        };
        let (seconds, mib) = medians(runs);
        let tasks = runs.first().map_or(0, |ran| ran.tasks);
        _ = writeln!(text, "{title:28} {tasks:>7} {seconds:>9.1} {mib:>15.1}");
    }
    text
}

#[derive(Serialize)]
struct Stored<'a> {
    name: String,
    tasks: u64,
    seconds: f64,
    mib_over_links: f64,
    runs: &'a [Ran],
    command: &'a str,
    machine: &'a str,
}

/// Writes `workflow_data.json` and `workflow_turns.json`.
///
/// # Errors
/// `Results`.
pub fn store(folder: &Path, outcome: &Outcome, command: &str) -> Result<(), BenchError> {
    let machine = machine();
    for (placed, runs) in outcome {
        let (seconds, mib) = medians(runs);
        let name = format!("workflow_{}", placed.word());
        let stored = Stored {
            tasks: runs.first().map_or(0, |ran| ran.tasks),
            seconds: round(seconds),
            mib_over_links: round(mib),
            runs,
            command,
            machine: &machine,
            name: name.clone(),
        };
        write_file(folder, &name, &stored)?;
    }
    Ok(())
}
