//! Many targets in one run: Perigee, the local disk, a FUSE file system that does nothing, and peers.

use crate::report::{failed, machine, number, round, write_file};
use crate::round::{Median, Series, median};
use crate::{BenchError, Figure, Row};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What a target is in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What is built here; there is one.
    Ours,
    /// The local file system; there is one.
    Native,
    /// Nobody's choice, but a bound: not among those to beat.
    Bound,
    /// A file system that a user could pick instead, with so many copies of each byte.
    Peer {
        /// At least one.
        copies: u32,
    },
}

/// One column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub label: String,
    /// What it is.
    pub part: Part,
    /// What was measured.
    pub series: Series,
}

/// One row of all columns.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// Which.
    pub row: Row,
    /// In the order of the columns; none where that was not measured.
    pub cells: Vec<Option<Cell<'a>>>,
}

/// One value.
#[derive(Debug, Clone, Copy)]
pub struct Cell<'a> {
    /// Whose.
    pub column: &'a Column,
    /// Of all rounds.
    pub median: Median,
    /// How many times as fast as the local file system.
    pub speed: f64,
}

/// All rows that the local file system and another one were measured in.
#[must_use]
pub fn lines(columns: &[Column]) -> Vec<Line<'_>> {
    let of = |column: &Column, row: &Row| median(column.series.get(row)?);
    let native = columns.iter().find(|column| column.part == Part::Native);
    let Some(native) = native else {
        return Vec::new();
    };
    let line = |row: Row| {
        let base = of(native, &row)?;
        let cell = |column| {
            let median = of(column, &row)?;
            Some(Cell {
                column,
                median,
                speed: row.speed(median.value, base.value),
            })
        };
        let cells = columns.iter().map(cell).collect();
        Some(Line { row, cells })
    };
    Row::ALL.into_iter().filter_map(line).collect()
}

impl Line<'_> {
    fn of(&self, part: impl Fn(Part) -> bool) -> impl Iterator<Item = &Cell<'_>> {
        let cells = self.cells.iter().flatten();
        cells.filter(move |cell| part(cell.column.part))
    }

    /// How many times as fast as the best peer with at least `copies` copies; `None` without one.
    #[must_use]
    pub fn over_best(&self, copies: u32) -> Option<f64> {
        let ours = self.of(|part| part == Part::Ours).next()?.speed;
        let counts = |part| matches!(part, Part::Peer { copies: has } if has >= copies);
        let peers = self.of(counts).map(|cell| cell.speed);
        Some(ours / peers.reduce(f64::max)?)
    }

    /// How many times as fast as the bound.
    #[must_use]
    pub fn over_bound(&self) -> Option<f64> {
        let ours = self.of(|part| part == Part::Ours).next()?.speed;
        Some(ours / self.of(|part| part == Part::Bound).next()?.speed)
    }
}

/// Two tables: what each reaches, and the CPU time of an operation.
#[must_use]
pub fn table(columns: &[Column], copies: u32) -> String {
    let lines = lines(columns);
    let mut text = format!("{:32} {:>8}", "", "");
    for column in columns {
        _ = write!(text, " {:>10}", cut(&column.label));
    }
    _ = writeln!(text, " {:>7} {:>7}", "/bare", "/peer");
    for line in &lines {
        _ = write!(text, "{:32} {:>8}", line.row.title(), line.row.unit());
        for cell in &line.cells {
            let value = cell.map_or_else(|| "-".to_owned(), |cell| number(cell.median.value));
            _ = write!(text, " {value:>10}");
        }
        let times = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), number);
        let (bound, best) = (line.over_bound(), line.over_best(copies));
        _ = writeln!(text, " {:>7} {:>7}", times(bound), times(best));
    }
    _ = writeln!(text, "\nCPU time of an operation, in microseconds");
    for line in &lines {
        _ = write!(text, "{:32} {:>8}", line.row.title(), "us");
        for cell in &line.cells {
            let micros = |cell: &Cell<'_>| number(cell.median.cpu.as_secs_f64() * 1e6);
            let value = cell.as_ref().map_or_else(|| "-".to_owned(), micros);
            _ = write!(text, " {value:>10}");
        }
        text.push('\n');
    }
    _ = writeln!(
        text,
        "\n/bare: speed over a FUSE file system that does nothing; /peer: over the best peer with {copies} copies"
    );
    text
}

fn cut(label: &str) -> String {
    label.chars().take(10).collect()
}

#[derive(Debug, Serialize)]
struct Stored<'a> {
    name: String,
    what: &'static str,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_best_peer: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_bare: Option<f64>,
    command: &'a str,
    machine: &'a str,
    measured: BTreeMap<&'a str, Side>,
}

#[derive(Debug, Serialize)]
struct Side {
    median: f64,
    times_native: f64,
    cpu_us_per_operation: f64,
    rounds: Vec<f64>,
}

/// Writes `peers_ROW.json` for each row.
///
/// Errors: `Results`.
pub fn store(
    columns: &[Column],
    copies: u32,
    folder: &Path,
    command: &str,
) -> Result<(), BenchError> {
    let machine = machine();
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    for line in lines(columns) {
        let side = |cell: &Cell<'_>| {
            let figures: &[Figure] = cell.column.series.get(&line.row).map_or(&[], Vec::as_slice);
            Side {
                median: round(cell.median.value),
                times_native: round(cell.speed),
                cpu_us_per_operation: round(cell.median.cpu.as_secs_f64() * 1e6),
                rounds: figures.iter().map(|figure| round(figure.value)).collect(),
            }
        };
        let cells = line.cells.iter().flatten();
        let measured = cells.map(|cell| (cell.column.label.as_str(), side(cell)));
        let stored = Stored {
            name: format!("peers_{}", line.row.key()),
            what: line.row.title(),
            unit: line.row.unit(),
            over_best_peer: line.over_best(copies).map(round),
            over_bare: line.over_bound().map(round),
            command,
            machine: &machine,
            measured: measured.collect(),
        };
        write_file(folder, &stored.name, &stored)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn column(label: &str, part: Part, value: f64) -> Column {
        let figure = Figure {
            value,
            cpu: Duration::from_micros(5),
        };
        Column {
            label: label.to_owned(),
            part,
            series: Series::from([(Row::Stat, vec![figure]), (Row::Untar, vec![figure])]),
        }
    }

    #[test]
    fn the_best_peer_is_one_with_as_many_copies_and_rates_and_times_both_count() {
        let columns = [
            column("ours", Part::Ours, 30.0),
            column("native", Part::Native, 100.0),
            column("bare", Part::Bound, 60.0),
            column("three", Part::Peer { copies: 3 }, 10.0),
            column("slow", Part::Peer { copies: 3 }, 5.0),
            column("one", Part::Peer { copies: 1 }, 90.0),
        ];
        let lines = lines(&columns);
        let near = |ratio: Option<f64>, expected: f64| {
            assert!((ratio.unwrap() - expected).abs() < 1e-9, "{ratio:?}");
        };
        let stat = lines.iter().find(|line| line.row == Row::Stat).unwrap();
        near(stat.over_best(3), 3.0);
        near(stat.over_best(1), 1.0 / 3.0);
        near(stat.over_bound(), 0.5);
        // Fewer seconds are better.
        let untar = lines.iter().find(|line| line.row == Row::Untar).unwrap();
        near(untar.over_best(3), 5.0 / 30.0);
        near(untar.over_bound(), 2.0);
        assert!(table(&columns, 3).contains("stat"));
    }
}
