//! Names: empty files that are made in a directory of the first node, by it and another one at once, and by another one alone.

use super::contend::{paired, slice_time};
use super::field::{Done, Field, Migration, Sample};
use super::rewrite::joined;
use super::{Samples, Settings, Side};
use perigee_testbed::{Call, Checked, ensure};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

const OWNER: u32 = 1;
const OTHER: u32 = 2;

/// Two hosts at once, in one directory.
pub(super) fn by_two(field: &mut Field, settings: &Settings, round: u32) -> Checked<Samples> {
    paired(
        field,
        round,
        |_, _| Ok(()),
        |field, name, ()| create(field, slice_time(settings), name, &[OWNER, OTHER]),
    )
}

/// A host that does not own the directory, alone: where nothing moves, where the directory may move, and once more.
pub(super) fn by_another(field: &mut Field, settings: &Settings) -> Checked<Samples> {
    let name = field.directory(OWNER)?;
    field.set(&name, Migration::Off)?;
    let mut samples = vec![(Side::Off, alone(field, settings, &name)?)];
    if field.moves() {
        field.set(&name, Migration::Adaptive)?;
        samples.push((Side::First, alone(field, settings, &name)?));
        samples.push((Side::Again, alone(field, settings, &name)?));
    }
    field.remove(&name)?;
    let own = field.directory(OTHER)?;
    field.set(&own, Migration::Off)?;
    samples.push((Side::Own, alone(field, settings, &own)?));
    field.remove(&own)?;
    Ok(samples)
}

/// [`create`] by another host than the owner, once the nodes are at rest.
fn alone(field: &mut Field, settings: &Settings, name: &str) -> Checked<Sample> {
    field.settle();
    create(field, settings.time, name, &[OTHER])
}

/// Each host makes files in the directory for a while, all at once, and syncs; then each must see them all.
fn create(field: &mut Field, time: Duration, name: &str, hosts: &[u32]) -> Checked<Sample> {
    let list = |field: &Field, host| -> Checked<u64> {
        let listed = std::fs::read_dir(field.on(host, name)).call(|| "list".to_owned())?;
        Ok(listed.count() as u64)
    };
    let before = list(field, OWNER)?;
    let sample = field.measure_at_once(|field| {
        let calls = std::thread::scope(|scope| {
            let make = |host: &u32| {
                let (directory, prefix) = (field.on(*host, name), format!("h{host}-{before}"));
                scope.spawn(move || create_for(&directory, &prefix, time))
            };
            let threads: Vec<_> = hosts.iter().map(make).collect();
            threads.into_iter().map(joined).sum::<Checked<u64>>()
        })?;
        Ok(Done {
            calls,
            amount: calls as f64,
        })
    })?;
    for host in [OWNER, OTHER] {
        let (made, there) = (sample.calls, list(field, host)? - before);
        ensure!(there == made, "node {host} sees {there} of {made} files");
    }
    Ok(sample)
}

fn create_for(directory: &Path, prefix: &str, time: Duration) -> Checked<u64> {
    let what = || format!("create in {}", directory.display());
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < time {
        File::create_new(directory.join(format!("{prefix}-{calls:06}"))).call(what)?;
        calls += 1;
    }
    let synced = File::open(directory).and_then(|open| open.sync_all());
    synced.call(what)?;
    Ok(calls)
}
