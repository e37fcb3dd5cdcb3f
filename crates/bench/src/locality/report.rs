//! The table for people, and one file of results for each comparison.

use super::case::{Aim, COMPARISONS, Comparison};
use super::{Case, Job, Moved, Outcome, Sample, Side};
use crate::BenchError;
use crate::report::{failed, machine, number, round, write_file};
use crate::round::middle;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// One file of `bench/results`.
#[derive(Debug, Serialize)]
struct Stored<'a> {
    name: String,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal_bytes_per_call: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paper: Option<f64>,
    command: &'a str,
    what: &'static str,
    ratios: Vec<f64>,
    measured: Measured,
    beside: Measured,
    network: &'a str,
    machine: &'a str,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Measured {
    what: &'static str,
    median: f64,
    unit: &'static str,
    rounds: Vec<f64>,
    calls: u64,
    messages_per_call: f64,
    bytes_per_call: f64,
    cpu_us_per_call: f64,
}

/// A comparison whose sides were both measured.
struct Compared {
    comparison: Comparison,
    of: Measured,
    over: Measured,
    ratios: Vec<f64>,
    /// The ratio that it should reach, if any.
    goal: Option<f64>,
}

impl Compared {
    fn new(comparison: Comparison, outcome: &Outcome) -> Option<Self> {
        let side = |side| {
            let samples = outcome.series.get(&comparison.case(side))?;
            let what = name(side, outcome.moves);
            Some((samples, measured(comparison.job, what, samples)))
        };
        let (of_samples, of) = side(comparison.of)?;
        let (over_samples, over) = side(comparison.over)?;
        let ratio = |(of, over): (&Sample, &Sample)| of.value / over.value.max(f64::MIN_POSITIVE);
        let ratios = |of: &[Sample]| of.iter().zip(over_samples).map(ratio).collect::<Vec<_>>();
        let goal = match comparison.aim {
            Aim::AtLeast(times) => Some(times),
            Aim::NotSlower => {
                let control = side(Side::Control).map(|(samples, _)| ratios(samples));
                Some(control.iter().flatten().copied().fold(1.0, f64::min))
            }
            Aim::NoBytes | Aim::Nothing => None,
        };
        Some(Self {
            ratios: ratios(of_samples),
            goal,
            comparison,
            of,
            over,
        })
    }

    /// The median of the ratios of each round: what made a round slow was there for both sides.
    fn ratio(&self) -> f64 {
        middle(&self.ratios)
    }

    /// Whether it is what it should be; none where it is shown for its own sake.
    fn reached(&self) -> Option<bool> {
        match self.comparison.aim {
            Aim::NoBytes => Some(self.of.bytes_per_call == 0.0 && self.of.median > 0.0),
            Aim::AtLeast(_) | Aim::NotSlower | Aim::Nothing => {
                self.goal.map(|goal| self.ratio() >= goal)
            }
        }
    }

    fn aim(&self) -> String {
        match (self.comparison.aim, self.goal) {
            (Aim::NoBytes, _) => "0 bytes".to_owned(),
            (_, Some(goal)) => format!("{goal:.2}"),
            (_, None) => "-".to_owned(),
        }
    }
}

/// The name of a side. Without a policy nobody can say that nothing moves.
const fn name(side: Side, policy: bool) -> &'static str {
    match (side, policy) {
        (Side::Off, false) => "as it is",
        _ => side.title(),
    }
}

fn measured(job: Job, what: &'static str, samples: &[Sample]) -> Measured {
    let of = |value: &dyn Fn(&Sample) -> f64| -> Vec<f64> { samples.iter().map(value).collect() };
    let per_call = |value: &dyn Fn(&Sample) -> f64| {
        let each = of(&|sample| value(sample) / sample.calls.max(1) as f64);
        round(middle(&each))
    };
    Measured {
        what,
        median: round(middle(&of(&|sample| sample.value))),
        unit: job.unit(),
        rounds: of(&|sample| round(sample.value)),
        calls: samples.iter().map(|sample| sample.calls).sum(),
        messages_per_call: per_call(&|sample| sample.messages as f64),
        bytes_per_call: per_call(&|sample| sample.traffic.bytes as f64),
        cpu_us_per_call: round(middle(&of(&|sample| sample.cpu.as_secs_f64() * 1e6))),
    }
}

fn compared(outcome: &Outcome) -> Vec<Compared> {
    let all = COMPARISONS.into_iter();
    all.filter_map(|comparison| Compared::new(comparison, outcome))
        .collect()
}

/// What the paper's Table 7 has for the smallest of its clusters, of 8 nodes; in those of 36 it was 2.1 %.
const PAPER_CHANGED: f64 = 0.17;

/// The table of the chunks.
fn chunks(moved: &[Moved]) -> String {
    let mut text = String::new();
    for one in moved {
        // Writing to a string cannot fail.
        _ = writeln!(
            text,
            "random write 1 MiB of the neighbour's file, {} nodes, {:?}: {} of {} chunks belong to who writes them \
             ({:.1} %; paper 2.1 to 17 %), {} MiB/s, {} msgs and {} bytes a write",
            one.nodes,
            one.time,
            one.changed,
            one.chunks,
            100.0 * share(one),
            number(one.rate),
            number(one.messages_per_call),
            number(one.bytes_per_call),
        );
    }
    text
}

fn share(moved: &Moved) -> f64 {
    moved.changed as f64 / moved.chunks.max(1) as f64
}

/// One size of cluster in a file of `bench/results`.
#[derive(Debug, Serialize)]
struct StoredChunks<'a> {
    name: String,
    value: f64,
    unit: &'static str,
    paper: f64,
    command: &'a str,
    what: &'static str,
    nodes: u32,
    seconds: f64,
    chunks: u64,
    changed: u64,
    mib_per_second: f64,
    messages_per_call: f64,
    bytes_per_call: f64,
    network: &'a str,
    machine: &'a str,
}

/// What has nothing beside it, since the version under test lacks it.
fn alone(outcome: &Outcome) -> String {
    let series = &outcome.series;
    let mut text = String::new();
    let is_shown = |case: &Case| {
        let mut rows = COMPARISONS.iter().filter(|row| row.job == case.job);
        rows.any(|row| {
            series.contains_key(&row.case(row.of)) && series.contains_key(&row.case(row.over))
        })
    };
    for (case, samples) in series.iter().filter(|(case, _)| !is_shown(case)) {
        let all = measured(case.job, name(case.side, outcome.moves), samples);
        // Writing to a string cannot fail.
        _ = writeln!(
            text,
            "{:38} {:16} {:>8} {:>29} alone {:>24} {:>16}",
            case.job.title(),
            all.what,
            number(all.median),
            all.unit,
            number(all.messages_per_call),
            number(all.bytes_per_call)
        );
    }
    text
}

/// The table.
#[must_use]
pub fn table(outcome: &Outcome) -> String {
    let rows = compared(outcome);
    let mut text = format!(
        "{:38} {:16} {:>8} {:13} {:>8} {:>6} {:>7} {:>8} {:>6} {:>7} {:>6} {:>9} {:>9}\n",
        "", "", "", "beside", "", "", "ratio", "goal", "paper", "msgs", "beside", "bytes", "beside"
    );
    for row in &rows {
        let mark = if row.reached() == Some(false) {
            '<'
        } else {
            ' '
        };
        let paper = row.comparison.paper;
        let paper = paper.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let job = row.comparison.job;
        // Writing to a string cannot fail.
        _ = writeln!(
            text,
            "{:38} {:16} {:>8} {:13} {:>8} {:>6} {:>6.2}{mark} {:>8} {:>6} {:>7} {:>6} {:>9} {:>9}",
            job.title(),
            row.of.what,
            number(row.of.median),
            row.over.what,
            number(row.over.median),
            job.unit(),
            row.ratio(),
            row.aim(),
            paper,
            number(row.of.messages_per_call),
            number(row.over.messages_per_call),
            number(row.of.bytes_per_call),
            number(row.over.bytes_per_call),
        );
    }
    text.push_str(&alone(outcome));
    text.push_str(&chunks(&outcome.moved));
    let reached: Vec<bool> = rows.iter().filter_map(Compared::reached).collect();
    _ = writeln!(
        text,
        "ratio: median of those of each round; msgs: messages that nodes sent each other, by their own count, and bytes: what \
         arrived\nover the network, by the wires' count, both for each call and with the fsync at the end. Packets were late by \
         {:?}\non the average, {:?} at worst. Goal of what should not be slower than off: 1, or the lowest round of off beside \
         itself.\n{} of {} goals are reached",
        outcome.late.mean,
        outcome.late.worst,
        reached.iter().filter(|reached| **reached).count(),
        reached.len()
    );
    if !outcome.moves {
        text.push_str(
            "This version has no policy `migration`: the rows that compare with it are left out\n",
        );
    }
    text
}

/// Writes `locality_KEY.json` for each comparison.
///
/// Errors: `Results`.
pub fn store(
    outcome: &Outcome,
    folder: &Path,
    command: &str,
    network: &str,
) -> Result<(), BenchError> {
    let machine = machine();
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    for row in compared(outcome) {
        let comparison = row.comparison;
        let stored = Stored {
            name: format!("locality_{}", comparison.key),
            value: round(row.ratio()),
            unit: "times what is beside it",
            goal: row.goal.map(round),
            goal_bytes_per_call: (comparison.aim == Aim::NoBytes).then_some(0.0),
            paper: comparison.paper,
            command,
            what: comparison.job.title(),
            ratios: row.ratios.iter().copied().map(round).collect(),
            measured: row.of,
            beside: row.over,
            network,
            machine: &machine,
        };
        write_file(folder, &stored.name, &stored)?;
    }
    for one in &outcome.moved {
        let stored = StoredChunks {
            name: format!("locality_chunks_{}", one.nodes),
            value: round(share(one)),
            unit: "of all chunks belong to who writes them",
            paper: PAPER_CHANGED,
            command,
            what: "random write 1 MiB of the neighbour's file",
            nodes: one.nodes,
            seconds: one.time.as_secs_f64(),
            chunks: one.chunks,
            changed: one.changed,
            mib_per_second: round(one.rate),
            messages_per_call: round(one.messages_per_call),
            bytes_per_call: round(one.bytes_per_call),
            network,
            machine: &machine,
        };
        write_file(folder, &stored.name, &stored)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_testbed::delay::Lateness;
    use perigee_testbed::delay::Traffic;
    use std::time::Duration;

    fn samples(values: &[f64], bytes: u64) -> Vec<Sample> {
        let sample = |value: &f64| Sample {
            value: *value,
            calls: 10,
            cpu: Duration::from_micros(5),
            messages: 40,
            traffic: Traffic { segments: 1, bytes },
        };
        values.iter().map(sample).collect()
    }

    fn outcome(job: Job, of: (Side, &[f64], u64), over: (Side, &[f64], u64)) -> Outcome {
        let sides = [of, over].into_iter();
        let series =
            sides.map(|(side, values, bytes)| (Case { job, side }, samples(values, bytes)));
        Outcome {
            series: series.collect(),
            moves: true,
            late: Lateness::default(),
            moved: Vec::new(),
        }
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_and_not_of_the_sides() {
        let of = (Side::Again, &[10.0, 200.0, 60.0][..], 700);
        let mut outcome = outcome(Job::Random4k, of, (Side::Off, &[1.0, 100.0, 10.0], 700));
        let rows = compared(&outcome);
        let row = rows
            .iter()
            .find(|row| row.comparison.key == "random_4k_again")
            .unwrap();
        assert_eq!((row.ratio(), row.reached()), (6.0, Some(true)));
        assert_eq!(
            (row.of.messages_per_call, row.of.bytes_per_call),
            (4.0, 70.0)
        );
        // What was not measured is not shown.
        assert_eq!(rows.len(), 1);
        assert!(table(&outcome).contains("migration=off"));
        outcome.moves = false;
        assert!(table(&outcome).contains("as it is"));
    }

    #[test]
    fn slower_is_what_off_beside_itself_never_was() {
        for (adaptive, reached) in [(0.94, false), (0.96, true), (1.1, true)] {
            let of = (Side::Adaptive, &[adaptive; 3][..], 0);
            let mut outcome = outcome(Job::Create, of, (Side::Off, &[1.0; 3], 0));
            let reached_by = |outcome: &Outcome| compared(outcome)[0].reached();
            // Without a control it must be as fast.
            assert_eq!(reached_by(&outcome), Some(adaptive >= 1.0));
            let control = Case {
                job: Job::Create,
                side: Side::Control,
            };
            outcome
                .series
                .insert(control, samples(&[1.08, 0.95, 1.01], 0));
            assert_eq!(reached_by(&outcome), Some(reached));
        }
    }

    #[test]
    fn a_write_at_home_that_needs_a_byte_does_not_reach_its_aim() {
        for (rate, bytes, reached) in [(900.0, 0, true), (900.0, 1, false), (0.0, 0, false)] {
            let of = (Side::Cut, &[rate][..], bytes);
            let rows = compared(&outcome(Job::Home, of, (Side::Linked, &[1_000.0], 5_000)));
            assert_eq!(rows[0].reached(), Some(reached));
        }
    }
}
