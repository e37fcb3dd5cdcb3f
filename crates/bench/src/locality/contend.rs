//! Two hosts that take turns in writing: what moving must not make slower.

use super::field::{Done, Field, Migration};
use super::random::Random;
use super::rewrite::write;
use super::{Samples, Settings, Side};
use perigee_testbed::{Call, Checked};
use std::fs::{File, OpenOptions};
use std::time::Instant;

const OWNER: u32 = 1;
/// All of it is one chunk.
const FILE_BYTES: u64 = 4 << 20;

/// Off and adaptive, in an order that changes: who comes first finds the machine as others left it.
pub(super) fn both(round: u32, moves: bool) -> Vec<(Side, Migration)> {
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
