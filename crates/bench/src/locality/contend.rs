//! Two hosts that take turns in writing: what moving must not make slower.

use super::field::{Done, Field, Migration, Sample};
use super::random::Random;
use super::rewrite::write;
use super::{Samples, Settings, Side};
use perigee_testbed::{Call, Checked};
use std::fs::{File, OpenOptions};
use std::time::{Duration, Instant};

const OWNER: u32 = 1;
/// All of it is one chunk.
const FILE_BYTES: u64 = 4 << 20;
/// Parts of one sample. Off and adaptive should come to much the same: what slows the machine down for some seconds must
/// not decide between them. A multiple of the number of sides, each of which comes first, second and last equally often.
const SLICES: u32 = 4 * SIDES;
const SIDES: u32 = 3;

/// How long each part runs: all together three times as long as another sample.
pub(super) fn slice_time(settings: &Settings) -> Duration {
    settings.time * 3 / SLICES
}

/// One side of a pair: a directory of its own, and what is remembered of it.
struct Contest<T> {
    side: Side,
    directory: String,
    memory: T,
    slices: Vec<Sample>,
}

/// Measures adaptive, off, and off once more as a control in slices by turns, and in an order that changes, that in which
/// their directories are made, too: who comes first finds the machine as others left it. Whatever moves, moves in the time
/// that is measured. What a slice leaves to the background the next one has, whichever side it is of: a rest between them would
/// be longer than they are.
pub(super) fn paired<T>(
    field: &mut Field,
    round: u32,
    mut begin: impl FnMut(&Field, &str) -> Checked<T>,
    mut slice: impl FnMut(&mut Field, &str, &mut T) -> Checked<Sample>,
) -> Checked<Samples> {
    let mut sides = [
        (Side::Adaptive, Migration::Adaptive),
        (Side::Off, Migration::Off),
        (Side::Control, Migration::Off),
    ];
    let first = round as usize % sides.len();
    sides.rotate_left(first);
    let mut contests = Vec::new();
    for (side, migration) in sides {
        if migration != Migration::Off && !field.moves() {
            continue;
        }
        let directory = field.directory(OWNER)?;
        field.set(&directory, migration)?;
        contests.push(Contest {
            side,
            memory: begin(field, &directory)?,
            directory,
            slices: Vec::new(),
        });
    }
    field.settle();
    for number in 0..SLICES {
        contests.rotate_left(1);
        if number.is_multiple_of(SIDES) {
            contests.reverse();
        }
        for contest in &mut contests {
            let sample = slice(field, &contest.directory, &mut contest.memory)?;
            contest.slices.push(sample);
        }
    }
    let mut samples = Samples::new();
    for contest in contests {
        field.remove(&contest.directory)?;
        samples.push((contest.side, Sample::whole(&contest.slices)));
    }
    Ok(samples)
}

/// Two hosts write 4 KiB each, by turns, into one chunk that the first node made.
pub(super) fn alternate(
    field: &mut Field,
    settings: &Settings,
    hosts: [u32; 2],
    round: u32,
) -> Checked<Samples> {
    let begin = |field: &Field, directory: &str| {
        write(&field.on(OWNER, &format!("{directory}/f")), FILE_BYTES, 7)?;
        Ok(Random::new(FILE_BYTES, 4 << 10))
    };
    let time = slice_time(settings);
    let slice = |field: &mut Field, directory: &str, random: &mut Random| {
        let file = format!("{directory}/f");
        let sample = field.measure_at_once(|field| {
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
            while start.elapsed() < time {
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
        Ok(sample)
    };
    paired(field, round, begin, slice)
}
