//! The table for people, and one file of results for each kind.

use super::{Case, Kind, Outcome, Settings, sites};
use crate::BenchError;
use crate::report::{failed, machine, number, round, write_file};
use crate::round::middle;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// The median rate.
pub(super) fn median(outcome: &Outcome, kind: Kind, case: Case) -> Option<f64> {
    outcome
        .series
        .get(&(kind, case))
        .map(|values| middle(values))
}

/// What is varied, with a heading for each value.
pub(super) fn by_clients(settings: &Settings) -> Vec<(String, Case)> {
    let all = settings.clients.iter();
    all.map(|count| (count.to_string(), Case::Clients(*count)))
        .collect()
}

pub(super) fn by_locality(settings: &Settings) -> Vec<(String, Case)> {
    let all = settings.localities.iter();
    all.map(|near| (format!("{near} %"), Case::Locality(*near)))
        .collect()
}

/// Operations a second by the number of clients, and by locality.
#[must_use]
pub fn table(settings: &Settings, outcome: &Outcome) -> String {
    let mut text = part(outcome, "op/s, by clients", &by_clients(settings));
    let title = format!("{} clients, by locality", settings.crowd());
    text += &part(outcome, &title, &by_locality(settings));
    text += "Medians, of all clients together. Locality: operations on hosts of the client's own site; 100 % where clients are compared.\n";
    text
}

fn part(outcome: &Outcome, title: &str, columns: &[(String, Case)]) -> String {
    let mut text = format!("{title:<26}");
    for (heading, _) in columns {
        // Writing to a string cannot fail.
        _ = write!(text, " {heading:>8}");
    }
    text.push('\n');
    for kind in Kind::ALL {
        _ = write!(text, "{:<26}", kind.title());
        for (_, case) in columns {
            let cell = median(outcome, kind, *case).map(number);
            _ = write!(text, " {:>8}", cell.as_deref().unwrap_or("-"));
        }
        text.push('\n');
    }
    text
}

#[derive(Debug, Serialize)]
struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<f64>,
    per_second: f64,
    rounds: Vec<f64>,
}

#[derive(Serialize)]
struct Stored<'a> {
    name: String,
    what: String,
    unit: &'static str,
    /// All operations at the own site.
    by_clients: Vec<Measured>,
    by_locality: Vec<Measured>,
    operations_by_each: u32,
    operations_by_each_where_localities_differ: u32,
    create: &'a str,
    hosts: u32,
    network: String,
    command: &'a str,
    machine: &'a str,
}

fn measured(outcome: &Outcome, kind: Kind, columns: &[(String, Case)]) -> Vec<Measured> {
    let one = |(_, case): &(String, Case)| {
        let values = outcome.series.get(&(kind, *case))?;
        let (clients, locality) = match case {
            Case::Clients(clients) => (Some(*clients), None),
            Case::Locality(near) => (None, Some(f64::from(*near) / 100.0)),
        };
        Some(Measured {
            clients,
            locality,
            per_second: round(middle(values)),
            rounds: values.iter().copied().map(round).collect(),
        })
    };
    columns.iter().filter_map(one).collect()
}

/// Writes `union_metadata_KIND.json` for each kind.
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
    for kind in Kind::ALL {
        let stored = Stored {
            name: format!("union_metadata_{}", kind.key()),
            what: format!(
                "{} by clients at four sites; localities are those of {} clients",
                kind.title(),
                settings.crowd()
            ),
            unit: "op/s of all clients together",
            by_clients: measured(outcome, kind, &by_clients(settings)),
            by_locality: measured(outcome, kind, &by_locality(settings)),
            operations_by_each: settings.operations,
            operations_by_each_where_localities_differ: settings.operations_far,
            create: &settings.create,
            hosts: sites::HOSTS,
            network: format!(
                "delayed by the testbed; packets late by {:?} on the average, {:?} at worst",
                outcome.late.mean, outcome.late.worst
            ),
            command,
            machine: &machine,
        };
        write_file(folder, &stored.name, &stored)?;
    }
    Ok(())
}
