//! Two hosts that take turns: what moving must not make slower.

use super::field::{Done, Field, Migration, Sample};
use super::random::Random;
use super::rewrite::{joined, write};
use super::{Samples, Settings, Side};
use perigee_testbed::{Call, Checked, ensure};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

const OWNER: u32 = 1;
/// All of it is one chunk.
const FILE_BYTES: u64 = 4 << 20;

/// Off and adaptive, in an order that changes: who comes first finds the machine as others left it.
fn both(round: u32, moves: bool) -> Vec<(Side, Migration)> {
    let off = (Side::Off, Migration::Off);
    let adaptive = (Side::Adaptive, Migration::Adaptive);
    match (moves, round % 2) {
        (false, _) => vec![off],
        (true, 0) => vec![adaptive, off],
        (true, _) => vec![off, adaptive],
    }
}

/// Two hosts write 4 KiB each, by turns, into one chunk that the first node made.
pub(super) fn alternate(
    field: &mut Field,
    settings: &Settings,
    hosts: [u32; 2],
    round: u32,
) -> Checked<Samples> {
    let mut samples = Samples::new();
    for (side, migration) in both(round, field.moves()) {
        let name = field.directory(OWNER)?;
        field.set(&name, migration)?;
        let file = format!("{name}/f");
        write(&field.on(OWNER, &file), FILE_BYTES, 7)?;
        let mut random = Random::new(FILE_BYTES, 4 << 10);
        let sample = field.measure(|field| {
            let what = || "write by turns".to_owned();
            let open = |host| {
                OpenOptions::new()
                    .write(true)
                    .open(field.on(host, &file))
                    .call(what)
            };
            let files = [open(hosts[0])?, open(hosts[1])?];
            let start = Instant::now();
            let mut calls = 0;
            while start.elapsed() < settings.time {
                random
                    .write_one(&files[(calls % 2) as usize], calls)
                    .call(what)?;
                calls += 1;
            }
            files.iter().try_for_each(File::sync_all).call(what)?;
            Ok(Done {
                calls,
                amount: calls as f64,
            })
        })?;
        for host in hosts {
            random.verify(&field.on(host, &file))?;
        }
        field.remove(&name)?;
        samples.push((side, sample));
    }
    Ok(samples)
}

/// Two hosts make empty files in one directory of the first node, at once.
pub(super) fn create(field: &mut Field, settings: &Settings, round: u32) -> Checked<Samples> {
    let mut samples = Samples::new();
    for (side, migration) in both(round, field.moves()) {
        let name = field.directory(OWNER)?;
        field.set(&name, migration)?;
        samples.push((side, create_by_two(field, settings, &name)?));
        field.remove(&name)?;
    }
    Ok(samples)
}

fn create_by_two(field: &mut Field, settings: &Settings, name: &str) -> Checked<Sample> {
    let hosts = [OWNER, 2];
    let sample = field.measure(|field| {
        let calls = std::thread::scope(|scope| {
            let threads = hosts.map(|host| {
                let directory = field.on(host, name);
                scope.spawn(move || create_for(&directory, host, settings.time))
            });
            threads.into_iter().map(joined).sum::<Checked<u64>>()
        })?;
        Ok(Done {
            calls,
            amount: calls as f64,
        })
    })?;
    for host in hosts {
        let listed = std::fs::read_dir(field.on(host, name)).call(|| "list".to_owned())?;
        let there = listed.count() as u64;
        ensure!(
            there == sample.calls,
            "{there} of {} files are there",
            sample.calls
        );
    }
    Ok(sample)
}

fn create_for(directory: &Path, host: u32, time: Duration) -> Checked<u64> {
    let what = || format!("create in {}", directory.display());
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < time {
        File::create_new(directory.join(format!("h{host}-{calls:06}"))).call(what)?;
        calls += 1;
    }
    File::open(directory)
        .and_then(|open| open.sync_all())
        .call(what)?;
    Ok(calls)
}
