//! The table for people, and one file of results for each row.

use super::{Map, Row, Series, Settings};
use crate::BenchError;
use crate::report::{failed, machine, round, write_file};
use crate::round::{median, middle};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

#[derive(Debug, Serialize)]
struct Measured {
    seconds: f64,
    rounds: Vec<f64>,
    /// How much longer the same takes with the far store alone: the median of each round's ratio.
    far_over_it: f64,
    /// How much longer it takes than a TCP stream over the near link.
    over_near_stream: f64,
}

fn measured(series: &Series, row: Row) -> Option<Measured> {
    let own = series.get(&row)?;
    let ratio = |a: Row, b: Row| -> Option<f64> {
        let pairs = series.get(&a)?.iter().zip(series.get(&b)?);
        let ratios: Vec<f64> = pairs.map(|(a, b)| a.value / b.value).collect();
        Some(round(middle(&ratios)))
    };
    Some(Measured {
        seconds: round(median(own)?.value),
        rounds: own.iter().map(|figure| round(figure.value)).collect(),
        far_over_it: ratio(row.far(), row)?,
        over_near_stream: ratio(row, row.stream())?,
    })
}

/// One line for each row.
#[must_use]
pub fn table(series: &Series, map: Option<&Map>) -> String {
    let mut text = format!(
        "{:30} {:>9} {:>9} {:>12}\n",
        "", "seconds", "far/this", "/near stream"
    );
    for row in Row::ALL {
        if let Some(found) = measured(series, row) {
            // Writing to a string cannot fail.
            _ = writeln!(
                text,
                "{:30} {:>9.3} {:>9.2} {:>12.2}",
                row.title(),
                found.seconds,
                found.far_over_it,
                found.over_near_stream
            );
        }
    }
    let phases = map.map(|map| [("placed", map.placed), ("rerouted", map.rerouted)]);
    for (what, followed) in phases.into_iter().flatten() {
        _ = writeln!(
            text,
            "map, {what}: off by {:.1} % after a minute, right after {:.0} s",
            followed.median_error * 100.0,
            followed.right_after_seconds
        );
    }
    text
}

#[derive(Serialize)]
struct Stored<'a, T> {
    name: String,
    what: &'a str,
    #[serde(flatten)]
    measured: T,
    file_mib: u64,
    command: &'a str,
    machine: &'a str,
}

/// Writes `near_ROW.json` for each row that was measured, and `near_map.json` if the map was.
///
/// Errors: `Results`.
pub fn store(
    settings: &Settings,
    (series, map): (&Series, Option<&Map>),
    folder: &Path,
    command: &str,
) -> Result<(), BenchError> {
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let (machine, file_mib) = (machine(), settings.mib);
    for row in Row::ALL {
        let Some(measured) = measured(series, row) else {
            continue;
        };
        let stored = Stored {
            name: format!("near_{}", row.key()),
            what: row.title(),
            measured,
            file_mib,
            command,
            machine: &machine,
        };
        write_file(folder, &stored.name, &stored)?;
    }
    let Some(map) = map else {
        return Ok(());
    };
    let stored = Stored {
        name: "near_map".to_owned(),
        what: "the map of four sites, and after routes have changed",
        measured: map,
        file_mib: 0,
        command,
        machine: &machine,
    };
    write_file(folder, &stored.name, &stored)
}
