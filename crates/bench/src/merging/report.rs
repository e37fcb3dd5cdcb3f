//! The table for people, and one file of results for each row.

use super::{Job, Outcome, Parts, Sample, Settings};
use crate::BenchError;
use crate::report::{failed, machine, number, round, write_file};
use crate::round::middle;
use perigee_net::Merging;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

fn rates(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.rate).collect()
}

/// What a job reached in one way, and how.
#[derive(Debug, Clone, Serialize)]
struct Way {
    merging: String,
    files_per_second: f64,
    rounds: Vec<f64>,
    /// The median of the ratios of each round.
    times_off: f64,
    cpu_us_per_file: f64,
    messages_per_file: f64,
    messages_per_write: f64,
    merged_share: f64,
    /// How often so many waited: 1, 2 to 3, 4 to 7 and so on.
    queue_lengths: Vec<u64>,
    /// Where the time of a file went, as one thread sees it: medians.
    us_per_file: Parts,
}

fn parts(samples: &[Sample]) -> Parts {
    let median = |of: fn(&Parts) -> f64| {
        let all: Vec<f64> = samples.iter().map(|sample| of(&sample.parts)).collect();
        round(middle(&all))
    };
    Parts {
        host: median(|parts| parts.host),
        queued: median(|parts| parts.queued),
        served: median(|parts| parts.served),
        wire: median(|parts| parts.wire),
    }
}

fn ways(settings: &Settings, outcome: &Outcome, job: Job) -> Vec<Way> {
    let Some(of_job) = outcome.series.get(&job) else {
        return Vec::new();
    };
    let off = settings.ways.iter().position(|way| *way == Merging::Off);
    let off = off.and_then(|off| of_job.get(&off));
    let files = match job.is_alone() {
        true => settings.files / 10,
        false => settings.files,
    };
    let way = |(way, samples): (&usize, &Vec<Sample>)| {
        let all = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>() as f64;
        let (messages, writes) = (
            all(|sample| sample.sent.messages),
            all(|sample| sample.sent.writes),
        );
        let beside = off.into_iter().flatten().zip(samples);
        let ratios: Vec<f64> = beside.map(|(off, sample)| sample.rate / off.rate).collect();
        let cpus = samples.iter().map(|sample| sample.cpu.as_secs_f64() * 1e6);
        let mut queue: Vec<u64> = (0..12)
            .map(|class| samples.iter().map(|sample| sample.sent.queue[class]).sum())
            .collect();
        while queue.last() == Some(&0) {
            queue.pop();
        }
        Way {
            merging: settings.ways[*way].to_string(),
            files_per_second: round(middle(&rates(samples))),
            rounds: rates(samples).into_iter().map(round).collect(),
            times_off: round(middle(&ratios)),
            cpu_us_per_file: round(middle(&cpus.collect::<Vec<f64>>())),
            messages_per_file: round(messages / (files * samples.len()) as f64),
            messages_per_write: round(messages / writes.max(1.0)),
            merged_share: round(all(|sample| sample.sent.merged) / messages.max(1.0)),
            queue_lengths: queue,
            us_per_file: parts(samples),
        }
    };
    of_job.iter().map(way).collect()
}

/// One line for each job and way.
#[must_use]
pub fn table(settings: &Settings, outcome: &Outcome) -> String {
    let mut text = format!(
        "{:31} {:>8} {:>7} {:>5} {:>7} {:>8} {:>9} {:>6} {:>7} {:>7} {:>7} {:>7}\n",
        "",
        "merging",
        "files/s",
        "/off",
        "CPU us",
        "msg/file",
        "msg/write",
        "merged",
        "host us",
        "queue",
        "server",
        "wire"
    );
    for job in Job::ALL {
        for way in ways(settings, outcome, job) {
            // Writing to a string cannot fail.
            _ = writeln!(
                text,
                "{:31} {:>8} {:>7} {:>5.2} {:>7} {:>8.2} {:>9.2} {:>5.0}% {:>7} {:>7} {:>7} {:>7}",
                job.title(),
                way.merging,
                number(way.files_per_second),
                way.times_off,
                number(way.cpu_us_per_file),
                way.messages_per_file,
                way.messages_per_write,
                way.merged_share * 100.0,
                number(way.us_per_file.host),
                number(way.us_per_file.queued),
                number(way.us_per_file.served),
                number(way.us_per_file.wire)
            );
        }
    }
    _ = writeln!(
        text,
        "/off: the median of each round's ratio to nothing merged; messages and writes are those of the client's node.\n\
         host to wire: the parts of a file's time, as one thread sees it. The server's is also that for a second one.\n\
         Packets were late by {}.",
        outcome.late
    );
    text
}

#[derive(Serialize)]
struct Stored<'a> {
    name: String,
    what: &'static str,
    /// Adaptive over off, and over the best of the fixed watermarks.
    adaptive_over_off: Option<f64>,
    adaptive_over_best_fixed: Option<f64>,
    ways: Vec<Way>,
    command: &'a str,
    network: &'a str,
    machine: &'a str,
}

/// Writes `merging_JOB.json` for each job.
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
    let network = format!(
        "a client and two servers, {:?} from one to another and back; packets late by {}",
        settings.round_trip, outcome.late
    );
    for job in Job::ALL {
        let ways = ways(settings, outcome, job);
        let named = |name: &str| ways.iter().find(|way| way.merging == name);
        let adaptive = named("adaptive").map(|way| way.files_per_second);
        let fixed = ways
            .iter()
            .filter(|way| way.merging.parse::<usize>().is_ok());
        let best = fixed.map(|way| way.files_per_second).reduce(f64::max);
        let stored = Stored {
            name: format!("merging_{}", job.key()),
            what: job.title(),
            adaptive_over_off: named("adaptive").map(|way| way.times_off),
            adaptive_over_best_fixed: adaptive.zip(best).map(|(ours, best)| round(ours / best)),
            ways,
            command,
            network: &network,
            machine: &machine,
        };
        write_file(folder, &stored.name, &stored)?;
    }
    Ok(())
}
