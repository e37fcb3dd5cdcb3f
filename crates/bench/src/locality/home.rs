//! What a write at home needs of the network: nothing, as shown by writes that return while every link of their host is cut.

use super::field::{Done, Field, Migration, Sample};
use super::random::Random;
use super::rewrite::{joined, write};
use super::{Samples, Settings, Side};
use perigee_testbed::delay::Traffic;
use perigee_testbed::{Call, Checked};
use std::fs::{File, OpenOptions};
use std::thread;
use std::time::{Duration, Instant};

const WRITER: u32 = 2;
const BLOCK: usize = 4 << 10;

const OWNER: u32 = 1;
const FILE_BYTES: u64 = 16 << 20;
/// Much longer than any message takes, and short beside the leases of an owner and of whoever a chunk has moved to.
const WINDOW: Duration = Duration::from_millis(300);

/// At the owner's host, whose file nothing moves away from.
pub(super) fn run(field: &mut Field) -> Checked<Samples> {
    let file = made(field)?;
    both(field, OWNER, &file)
}

/// At another host, once it has written there for a while; nothing where this version moves nothing.
pub(super) fn run_moved(field: &mut Field, settings: &Settings) -> Checked<Samples> {
    if !field.moves() {
        return Ok(Samples::new());
    }
    let file = made(field)?;
    field.set(&file.directory, Migration::Adaptive)?;
    let what = || "write until it has moved".to_owned();
    let open = OpenOptions::new()
        .write(true)
        .open(field.on(WRITER, &file.name))
        .call(what)?;
    let (mut random, start) = (Random::new(FILE_BYTES, BLOCK), Instant::now());
    for number in 0.. {
        random.write_one(&open, number).call(what)?;
        if start.elapsed() > settings.time {
            break;
        }
    }
    both(field, WRITER, &file)
}

struct Made {
    directory: String,
    name: String,
}

fn made(field: &mut Field) -> Checked<Made> {
    let directory = field.directory(OWNER)?;
    field.set(&directory, Migration::Off)?;
    let name = format!("{directory}/f");
    write(&field.on(OWNER, &name), FILE_BYTES, 7)?;
    Ok(Made { directory, name })
}

fn both(field: &mut Field, host: u32, file: &Made) -> Checked<Samples> {
    let mut samples = Samples::new();
    let mut random = Random::new(FILE_BYTES, BLOCK);
    for (side, cut) in [(Side::Linked, false), (Side::Cut, true)] {
        samples.push((side, writes(field, host, &file.name, &mut random, cut)?));
    }
    // Not in between: who has read a file is told of the next write to it.
    random.verify(&field.on(3, &file.name))?;
    field.remove(&file.directory)?;
    Ok(samples)
}

/// Writes at a host for a moment, and counts what arrived from it and at it in that time alone.
fn writes(
    field: &mut Field,
    host: u32,
    file: &str,
    random: &mut Random,
    cut: bool,
) -> Checked<Sample> {
    let what = || format!("write {file}");
    let path = field.on(host, file);
    let open = OpenOptions::new().write(true).open(path).call(what)?;
    let mut arrived = Traffic::default();
    let sample = field.measure(|field| {
        // What stands in the way of a first write is no part of those that follow.
        random.write_one(&open, 0).call(what)?;
        let cut_off = if cut {
            Some(field.cut_off(host)?)
        } else {
            None
        };
        let before = field.traffic_around(host)?;
        let calls = thread::scope(|scope| {
            let writer = scope.spawn(|| write_for(random, &open).call(what));
            thread::sleep(WINDOW);
            arrived = field.traffic_around(host)? - before;
            // A write that waits for the network goes on, and does not count.
            drop(cut_off);
            joined(writer)
        })?;
        open.sync_all().call(what)?;
        Ok(Done {
            calls,
            amount: calls as f64,
        })
    })?;
    // By the window, not by the whole time: the rest may have to wait for the links.
    Ok(Sample {
        traffic: arrived,
        value: sample.calls as f64 / WINDOW.as_secs_f64(),
        ..sample
    })
}

/// Writes until the window is over, and tells how many writes returned in it.
fn write_for(random: &mut Random, file: &File) -> std::io::Result<u64> {
    let start = Instant::now();
    for number in 0.. {
        random.write_one(file, number)?;
        if start.elapsed() >= WINDOW {
            return Ok(number);
        }
    }
    Ok(0)
}
