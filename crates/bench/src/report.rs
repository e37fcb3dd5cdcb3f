//! The table for people, and one file of results for each row.

use crate::peers::{Best, Peers};
use crate::round::{Median, Series, median};
use crate::{BenchError, Figure, Row};
use perigee_testbed::leftover::Workspace;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// A row of both targets.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// Which.
    pub row: Row,
    /// The mount.
    pub mount: Median,
    /// The local directory.
    pub native: Median,
    /// Speed of the mount over that of the local directory.
    pub ratio: f64,
    /// The best peer's ratio.
    pub goal: f64,
    /// The best peer.
    pub peer: &'a str,
    /// The best of the peers that lose nothing with a disk.
    pub redundant: Option<Best<'a>>,
    mount_values: Vec<f64>,
    native_values: Vec<f64>,
}

/// One file of `bench/results`.
#[derive(Debug, Serialize)]
struct Stored<'a> {
    name: String,
    value: f64,
    unit: &'static str,
    goal: f64,
    command: &'a str,
    what: &'static str,
    best_peer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal_redundant: Option<f64>,
    measured: Side,
    native: Side,
    machine: &'a str,
}

#[derive(Debug, Serialize)]
struct Side {
    median: f64,
    unit: &'static str,
    rounds: Vec<f64>,
    cpu_us_per_operation: f64,
}

/// Puts the two series and the goals side by side, in the order of the table.
#[must_use]
pub fn compare<'a>(mount: &Series, native: &Series, peers: &'a Peers) -> Vec<Compared<'a>> {
    let values = |figures: &[Figure]| figures.iter().map(|figure| round(figure.value)).collect();
    Row::ALL
        .into_iter()
        .filter_map(|row| {
            let (ours, theirs) = (mount.get(&row)?, native.get(&row)?);
            let (mount, native) = (median(ours)?, median(theirs)?);
            let best = peers.best(row)?;
            Some(Compared {
                row,
                mount,
                native,
                ratio: row.speed(mount.value, native.value),
                goal: best.ratio,
                peer: best.name,
                redundant: peers.best_redundant(row),
                mount_values: values(ours),
                native_values: values(theirs),
            })
        })
        .collect()
}

/// The table.
#[must_use]
pub fn table(rows: &[Compared<'_>], label: &str) -> String {
    let mut text = format!(
        "{:32} {:>8} {:>11} {:>11} {:>7} {:>7} {:>9}  {:>9} {:>9}  {}\n",
        "", "", label, "native", "ratio", "goal", "redundant", "CPU/op", "native", "best peer"
    );
    for row in rows {
        let mark = if row.ratio > row.goal { ' ' } else { '<' };
        let redundant = row
            .redundant
            .map_or_else(|| "-".to_owned(), |best| format!("{:.3}", best.ratio));
        // Writing to a string cannot fail.
        _ = writeln!(
            text,
            "{:32} {:>8} {:>11} {:>11} {:>6.3}{mark} {:>7.3} {:>9}  {:>9} {:>9}  {}",
            row.row.title(),
            row.row.unit(),
            number(row.mount.value),
            number(row.native.value),
            row.ratio,
            row.goal,
            redundant,
            micros(row.mount.cpu),
            micros(row.native.cpu),
            row.peer
        );
    }
    let below = rows.iter().filter(|row| row.ratio <= row.goal).count();
    let redundant: Vec<bool> = rows
        .iter()
        .filter_map(|row| Some(row.ratio > row.redundant?.ratio))
        .collect();
    let above = redundant.iter().filter(|above| **above).count();
    _ = writeln!(
        text,
        "ratio: speed over native; goal: the best peer's, and the best one's that loses nothing with a disk\n\
         {} of {} rows are better than every peer; {above} of the {} that a redundant peer has, than every such peer",
        rows.len() - below,
        rows.len(),
        redundant.len()
    );
    text
}

fn micros(cpu: Duration) -> String {
    format!("{} us", number(cpu.as_secs_f64() * 1e6))
}

/// Three digits that count, without an exponent.
pub(crate) fn number(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        3
    };
    format!("{value:.digits$}")
}

/// Four digits that count: more are noise, and make every new run another file.
pub(crate) fn round(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Writes `PREFIX_ROW.json` for each row.
///
/// Errors: `Results`.
pub fn store(
    rows: &[Compared<'_>],
    prefix: &str,
    folder: &Path,
    command: &str,
) -> Result<(), BenchError> {
    let machine = machine();
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    for row in rows {
        let side = |median: Median, rounds: &[f64]| Side {
            median: round(median.value),
            unit: row.row.unit(),
            rounds: rounds.to_vec(),
            cpu_us_per_operation: round(median.cpu.as_secs_f64() * 1e6),
        };
        let stored = Stored {
            name: format!("{prefix}_{}", row.row.key()),
            value: round(row.ratio),
            unit: "times native",
            goal: row.goal,
            command,
            what: row.row.title(),
            best_peer: row.peer,
            goal_redundant: row.redundant.map(|best| best.ratio),
            measured: side(row.mount, &row.mount_values),
            native: side(row.native, &row.native_values),
            machine: &machine,
        };
        write_file(folder, &stored.name, &stored)?;
    }
    Ok(())
}

/// Writes `NAME.json` into a folder that is there.
pub(crate) fn write_file(
    folder: &Path,
    name: &str,
    stored: &impl Serialize,
) -> Result<(), BenchError> {
    let path = folder.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(stored).map_err(|error| failed(&path, &error))?;
    std::fs::write(&path, text + "\n").map_err(|error| failed(&path, &error))
}

pub(crate) fn failed(path: &Path, error: &dyn std::error::Error) -> BenchError {
    BenchError::Results {
        path: path.to_owned(),
        why: error.to_string(),
    }
}

/// Processors and kernel: what a figure without its machine lacks.
pub(crate) fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{cpus} x {model}, Linux {}", kernel.trim())
}

/// The folder of the native side: beside the cluster's, on the same file system.
///
/// Errors: those of making it.
pub fn beside(workspace: &Workspace) -> Result<std::path::PathBuf, BenchError> {
    let path = workspace.path().join("native");
    std::fs::create_dir_all(&path).map_err(|error| failed(&path, &error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(54_318.2), "54318");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(0.1234), "0.123");
        assert!((round(54_318.2) - 54_320.0).abs() < f64::EPSILON);
    }
}
