//! The table for people, and one file of results for each row and distance.

use super::{Distance, Row, Settings, System};
use crate::BenchError;
use crate::report::{failed, machine, number, round, write_file};
use crate::round::middle;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// What the union is put beside.
const OTHERS: [System; 2] = [System::Sshfs, System::Mergerfs];

fn values(distance: &Distance, row: Row, system: System) -> Option<&[f64]> {
    let found = distance.series.get(&(row, system))?;
    Some(found.as_slice())
}

fn median(distance: &Distance, row: Row, system: System) -> Option<f64> {
    values(distance, row, system).map(middle)
}

/// How many times as fast the union is.
fn ratio(distance: &Distance, row: Row, other: System) -> Option<f64> {
    let own = median(distance, row, System::Union)?;
    Some(row.speed(own, median(distance, row, other)?))
}

/// One line for each row, under each distance.
#[must_use]
pub fn table(distances: &[Distance]) -> String {
    let mut text: String = distances.iter().map(part).collect();
    text += "Medians; /sshfs, /mergerfs: how many times as fast the union is. sshfs has one host alone, mergerfs lies over sshfs of all.\n";
    text
}

fn part(distance: &Distance) -> String {
    let mut text = format!("{:<36} {:>6}", title(distance.round_trip), "");
    let systems = System::ALL.map(|system| system.title().to_owned());
    let ratios = OTHERS.map(|other| format!("/{}", other.title()));
    for word in systems.iter().chain(&ratios) {
        // Writing to a string cannot fail.
        _ = write!(text, " {word:>10}");
    }
    text.push('\n');
    for row in Row::ALL {
        _ = write!(text, "{:<36} {:>6}", row.title(), row.unit());
        let medians = System::ALL.map(|system| median(distance, row, system).map(number));
        let ratios = OTHERS.map(|other| {
            let ratio = ratio(distance, row, other)?;
            Some(format!("{ratio:.2}"))
        });
        for cell in medians.iter().chain(&ratios) {
            _ = write!(text, " {:>10}", cell.as_deref().unwrap_or("-"));
        }
        text.push('\n');
    }
    text
}

fn title(round_trip: Duration) -> String {
    format!("round trips of {round_trip:?}")
}

#[derive(Debug, Serialize)]
struct Measured {
    median: f64,
    rounds: Vec<f64>,
}

#[derive(Serialize)]
struct Stored<'a> {
    name: String,
    what: String,
    unit: &'static str,
    round_trip_ms: f64,
    measured: BTreeMap<&'static str, Measured>,
    /// How many times as fast the union is.
    union_over: BTreeMap<&'static str, f64>,
    file_mib: u64,
    small_files: u32,
    tree_files: u32,
    network: String,
    command: &'a str,
    machine: &'a str,
}

fn stored<'a>(
    settings: &Settings,
    distance: &Distance,
    row: Row,
    (command, machine): (&'a str, &'a str),
) -> Stored<'a> {
    let measured = System::ALL.into_iter().filter_map(|system| {
        let values = values(distance, row, system)?;
        let measured = Measured {
            median: round(middle(values)),
            rounds: values.iter().copied().map(round).collect(),
        };
        Some((system.title(), measured))
    });
    let ratios = OTHERS.into_iter();
    let ratios =
        ratios.filter_map(|other| Some((other.title(), round(ratio(distance, row, other)?))));
    let (late, micros) = (distance.late, distance.round_trip.as_micros());
    Stored {
        name: format!("union_{micros}us_{}", row.key()),
        what: row.title(),
        unit: row.unit(),
        round_trip_ms: distance.round_trip.as_secs_f64() * 1e3,
        measured: measured.collect(),
        union_over: ratios.collect(),
        file_mib: settings.mib,
        small_files: settings.files,
        tree_files: settings.tree,
        network: format!(
            "delayed by the testbed; packets late by {:?} on the average, {:?} at worst",
            late.mean, late.worst
        ),
        command,
        machine,
    }
}

/// Writes `union_DISTANCE_ROW.json` for each row.
///
/// Errors: `Results`.
pub fn store(
    settings: &Settings,
    distances: &[Distance],
    folder: &Path,
    command: &str,
) -> Result<(), BenchError> {
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let machine = machine();
    for distance in distances {
        for row in Row::ALL {
            let stored = stored(settings, distance, row, (command, &machine));
            write_file(folder, &stored.name, &stored)?;
        }
    }
    Ok(())
}
