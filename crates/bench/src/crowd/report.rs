//! The table for people, and the file of results.

use super::{Memory, Outcome, Settings};
use crate::BenchError;
use crate::report::{failed, machine, round, write_file};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

const MIB: f64 = (1 << 20) as f64;

#[derive(Debug, Serialize)]
struct Stored<'a> {
    name: String,
    command: &'a str,
    machine: &'a str,
    files: usize,
    idle_resident_mib: f64,
    idle_own_mib: f64,
    stored_bytes_per_file: f64,
    known_bytes_per_cached_inode: f64,
    create_per_second: Vec<f64>,
    list_per_second: f64,
    stat_per_second: f64,
    remove_per_second: Vec<f64>,
    create_last_over_first: f64,
    remove_last_over_first: f64,
}

fn per(now: Memory, before: Memory, count: u64) -> f64 {
    (now.own as f64 - before.own as f64) / count.max(1) as f64
}

fn last_over_first(rates: &[f64]) -> f64 {
    match (rates.first(), rates.last()) {
        (Some(first), Some(last)) => last / first,
        _ => f64::NAN,
    }
}

fn stored<'a>(
    settings: &Settings,
    outcome: &Outcome,
    command: &'a str,
    machine: &'a str,
) -> Stored<'a> {
    let files = settings.files as u64;
    let rounded = |rates: &[f64]| rates.iter().copied().map(round).collect();
    Stored {
        name: format!("crowd_{}", outcome.label),
        command,
        machine,
        files: settings.files,
        idle_resident_mib: round(outcome.idle.resident as f64 / MIB),
        idle_own_mib: round(outcome.idle.own as f64 / MIB),
        stored_bytes_per_file: round(per(outcome.stored, outcome.idle, files)),
        known_bytes_per_cached_inode: round(per(
            outcome.known,
            outcome.stored,
            outcome.cached.min(files),
        )),
        create_per_second: rounded(&outcome.create),
        list_per_second: round(outcome.list),
        stat_per_second: round(outcome.stat),
        remove_per_second: rounded(&outcome.remove),
        create_last_over_first: round(last_over_first(&outcome.create)),
        remove_last_over_first: round(last_over_first(&outcome.remove)),
    }
}

/// The table for people.
#[must_use]
pub fn table(settings: &Settings, outcome: &Outcome) -> String {
    let of = stored(settings, outcome, "", "");
    let mut text = String::new();
    let mut line = |what: &str, value: String| _ = writeln!(text, "{what:<44} {value:>12}");
    line(
        "daemons, mounted and idle, MiB resident",
        format!("{:.0}", of.idle_resident_mib),
    );
    line(
        "  of that their own, MiB",
        format!("{:.0}", of.idle_own_mib),
    );
    line(
        "own memory for a million files stored, MiB",
        million(of.stored_bytes_per_file),
    );
    line(
        "own memory for a million inodes cached, MiB",
        million(of.known_bytes_per_cached_inode),
    );
    let ends = |rates: &[f64]| {
        let end = |rate: Option<&f64>| rate.map_or(f64::NAN, |rate| *rate);
        format!("{:.0} to {:.0}", end(rates.first()), end(rates.last()))
    };
    line(
        "creates a second, first tenth to last",
        ends(&of.create_per_second),
    );
    line(
        "names listed a second, cold",
        format!("{:.0}", of.list_per_second),
    );
    line(
        "attributes asked for a second, cold",
        format!("{:.0}", of.stat_per_second),
    );
    line(
        "removals a second, first tenth to last",
        ends(&of.remove_per_second),
    );
    text
}

/// Of bytes for each.
fn million(bytes: f64) -> String {
    format!("{:.0}", bytes * 1e6 / MIB)
}

/// Writes the file of results.
///
/// Errors: it cannot be written.
pub fn store(
    settings: &Settings,
    outcome: &Outcome,
    folder: &Path,
    command: &str,
) -> Result<(), BenchError> {
    let machine = machine();
    let stored = stored(settings, outcome, command, &machine);
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    write_file(folder, &stored.name, &stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_for_each_file_and_rates_by_their_ends() {
        let at = |own| Memory {
            resident: 2 * own,
            own,
        };
        let settings = Settings {
            files: 1_000,
            other: None,
        };
        let outcome = Outcome {
            label: "perigee".to_owned(),
            idle: at(1 << 20),
            stored: at((1 << 20) + 500_000),
            known: at((1 << 20) + 600_000),
            cached: 100_000,
            create: vec![100.0, 300.0, 50.0],
            remove: vec![10.0, 20.0],
            ..Outcome::default()
        };
        let of = stored(&settings, &outcome, "", "");
        assert_eq!(of.stored_bytes_per_file, 500.0);
        assert_eq!(of.known_bytes_per_cached_inode, 100.0);
        assert_eq!(
            (of.create_last_over_first, of.remove_last_over_first),
            (0.5, 2.0)
        );
        assert!(table(&settings, &outcome).contains("100 to 50"));
    }
}
