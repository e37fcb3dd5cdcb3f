//! The table for people, and one file of results for each row.

use super::{Between, Outcome, Row, Series, Settings};
use crate::BenchError;
use crate::report::{failed, machine, number, round, write_file};
use crate::round::{median, middle};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// A row beside the stream that goes the same way.
#[derive(Debug, Serialize)]
struct Measured {
    mib_per_second: f64,
    rounds: Vec<f64>,
    /// The median of each round's ratio.
    of_one_stream: f64,
    cpu_us_per_mib: f64,
}

fn measured(series: &Series, row: Row) -> Option<Measured> {
    let (own, beside) = (series.get(&row)?, series.get(&row.beside())?);
    let pairs = own.iter().zip(beside);
    let ratios: Vec<f64> = pairs
        .map(|(own, beside)| own.value / beside.value)
        .collect();
    let both = median(own)?;
    Some(Measured {
        mib_per_second: round(both.value),
        rounds: own.iter().map(|figure| round(figure.value)).collect(),
        of_one_stream: round(middle(&ratios)),
        cpu_us_per_mib: round(both.cpu.as_secs_f64() * 1e6),
    })
}

/// One line for each row, under what lay between.
#[must_use]
pub fn table(outcome: &Outcome) -> String {
    let mut text: String = outcome
        .iter()
        .map(|(between, series)| part(*between, series))
        .collect();
    text += "/stream: the median of each round's ratio to one TLS stream the same way.\n";
    text
}

fn part(between: Between, series: &Series) -> String {
    let mut text = format!(
        "{:30} {:>8} {:>9} {:>11}\n",
        between.title(),
        "MiB/s",
        "/stream",
        "CPU us/MiB"
    );
    for row in Row::ALL {
        if let Some(found) = measured(series, row) {
            // Writing to a string cannot fail.
            _ = writeln!(
                text,
                "{:30} {:>8} {:>9.2} {:>11}",
                row.title(),
                number(found.mib_per_second),
                found.of_one_stream,
                number(found.cpu_us_per_mib)
            );
        }
    }
    text
}

#[derive(Serialize)]
struct Stored<'a> {
    name: String,
    what: &'static str,
    between: String,
    #[serde(flatten)]
    measured: Measured,
    file_mib: u64,
    command: &'a str,
    machine: &'a str,
}

/// Writes `remote_LINK_ROW.json` for each row.
///
/// Errors: `Results`.
pub fn store(
    settings: &Settings,
    outcome: &Outcome,
    folder: &Path,
    command: &str,
) -> Result<(), BenchError> {
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let machine = machine();
    for (between, series) in outcome {
        for row in Row::ALL {
            let Some(measured) = measured(series, row) else {
                continue;
            };
            let stored = Stored {
                name: format!("remote_{}_{}", between.key(), row.key()),
                what: row.title(),
                between: between.title(),
                measured,
                file_mib: settings.mib,
                command,
                machine: &machine,
            };
            write_file(folder, &stored.name, &stored)?;
        }
    }
    Ok(())
}
