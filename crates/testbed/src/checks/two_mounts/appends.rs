//! O_APPEND from both hosts at once: every record is there, whole, and in its writer's order.

use super::{Case, Pair};
use crate::error::{Call, CheckError, Checked};
use crate::{ensure, pattern};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Barrier;

pub(super) const CASES: &[Case] = &[
    ("append-both", both),
    ("append-both-reopening", both_reopening),
];

/// Records of each host.
const RECORDS: u32 = 500;
/// A record's head: host (1 byte), number (4), body length (2).
const HEAD: usize = 7;

fn both(pair: &Pair) -> Checked {
    append_from_both(pair, Opening::Once)
}

fn both_reopening(pair: &Pair) -> Checked {
    append_from_both(pair, Opening::EachTime)
}

#[derive(Debug, Clone, Copy)]
enum Opening {
    Once,
    EachTime,
}

fn append_from_both(pair: &Pair, opening: Opening) -> Checked {
    pair.write("log", b"")?;
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| append(&pair.w("log"), 1, opening, &start));
        let two = scope.spawn(|| append(&pair.r("log"), 2, opening, &start));
        for side in [one, two] {
            side.join()
                .map_err(|_| CheckError::violated("an appending thread panicked"))??;
        }
        Ok(())
    })?;
    let seen = [pair.w("log"), pair.r("log")].map(fs::read);
    for content in seen {
        verify(&content.call(|| "read the log".to_owned())?)?;
    }
    pair.same_attributes("log")
}

fn append(path: &Path, host: u8, opening: Opening, start: &Barrier) -> Checked {
    let open = || {
        OpenOptions::new()
            .append(true)
            .open(path)
            .call(|| "open to append".to_owned())
    };
    let opened = open();
    // Also after a failed open, or the other thread would wait for ever.
    start.wait();
    let mut file = opened?;
    for number in 0..RECORDS {
        if matches!(opening, Opening::EachTime) {
            file = open()?;
        }
        let record = record(host, number);
        let written = file
            .write(&record)
            .call(|| format!("append record {number}"))?;
        ensure!(
            written == record.len(),
            "{written} of {} bytes appended",
            record.len()
        );
    }
    Ok(())
}

/// A record of an odd length between 9 bytes and some 9 KiB, over page limits as well.
fn record(host: u8, number: u32) -> Vec<u8> {
    let spread = if number.is_multiple_of(50) {
        9_000
    } else {
        700
    };
    let body = 1 + 2 * (number as usize * 7_919 % (spread / 2));
    let mut record = vec![host];
    record.extend(number.to_le_bytes());
    record.extend((body as u16).to_le_bytes());
    record.resize(HEAD + body, 0);
    pattern::fill(
        u64::from(number) << 8 | u64::from(host),
        0,
        &mut record[HEAD..],
    );
    record
}

/// Every record of both hosts, none torn, none twice, each host's in order.
fn verify(content: &[u8]) -> Checked {
    let mut next = [0_u32; 2];
    let mut rest = content;
    while !rest.is_empty() {
        let at = content.len() - rest.len();
        let host = rest[0];
        ensure!(host == 1 || host == 2, "no record begins at byte {at}");
        let number = &mut next[usize::from(host) - 1];
        ensure!(
            *number < RECORDS,
            "host {host} has more than {RECORDS} records"
        );
        let expected = record(host, *number);
        ensure!(
            rest.starts_with(&expected),
            "at byte {at}: record {number} of host {host} is torn, missing or out of order"
        );
        *number += 1;
        rest = &rest[expected.len()..];
    }
    ensure!(
        next == [RECORDS; 2],
        "{next:?} records of {RECORDS} each are there"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Vec<Vec<u8>> {
        (0..RECORDS)
            .flat_map(|number| [record(1, number), record(2, number)])
            .collect()
    }

    #[test]
    fn a_lost_a_torn_and_a_doubled_record_are_noticed() {
        verify(&whole().concat()).unwrap();
        let mut lost = whole();
        lost.remove(7);
        let mut torn = whole().concat();
        let middle = torn.len() / 2;
        torn.remove(middle);
        let mut doubled = whole();
        doubled.insert(10, doubled[10].clone());
        let mut zeros = whole();
        zeros[3].fill(0);
        for broken in [lost.concat(), torn, doubled.concat(), zeros.concat()] {
            assert!(verify(&broken).is_err());
        }
    }
}
