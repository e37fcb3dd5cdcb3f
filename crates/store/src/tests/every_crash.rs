//! Every sequence of up to two operations on an object, with the power lost before every change of the disk: what comes
//! back is what was there at some moment since the last sync that was acknowledged, block by block.

use super::{Bench, pattern, r};
use crate::{Adopt, StoreError};

/// One change of an object; numbers are bytes.
#[derive(Debug, Clone, Copy)]
enum Change {
    Write(usize, usize),
    Resize(usize),
    Punch(usize, usize),
    Allocate(usize, usize),
    Sync,
}

use Change::{Allocate, Punch, Resize, Sync, Write};

/// Whole blocks, parts of blocks, growth, gaps, cuts inside a block, and syncs.
const CHANGES: [Change; 11] = [
    Write(4_096, 8_192),
    Write(5_000, 3_000),
    Write(19_000, 9_000),
    Write(40_000, 5_000),
    Resize(6_000),
    Resize(0),
    Resize(50_000),
    Punch(2_000, 13_000),
    Punch(4_096, 8_192),
    Allocate(16_000, 14_000),
    Sync,
];

/// What the object holds before, synced: with a file, and without one.
const KINDS: [(usize, u64); 2] = [(20_000, 0), (6_000, 16_128)];
const BLOCK: usize = 4_096;

impl Change {
    fn apply(self, object: &std::sync::Arc<crate::Object>, seed: u64) -> Result<(), StoreError> {
        let range = |at: usize, len: usize| r(at as u64, (at + len) as u64);
        match self {
            Write(at, len) => object.write(at as u64, &pattern(seed, len)),
            Resize(size) => object.resize(size as u64),
            Punch(at, len) => object.punch(range(at, len)),
            Allocate(at, len) => object.allocate(range(at, len)),
            Sync => object.sync_wait(),
        }
    }

    fn model(self, bytes: &mut Vec<u8>, seed: u64) {
        match self {
            Write(at, len) => {
                let size = bytes.len().max(at + len);
                bytes.resize(size, 0);
                bytes[at..at + len].copy_from_slice(&pattern(seed, len));
            }
            Resize(size) => bytes.resize(size, 0),
            Punch(at, len) => {
                let end = (at + len).min(bytes.len());
                bytes[at.min(end)..end].fill(0);
            }
            Allocate(..) | Sync => {}
        }
    }
}

/// What the object held at each moment since the last acknowledged sync; a change that failed half-way is one, too.
struct History(Vec<Vec<u8>>);

impl History {
    /// Whether `seen` is what some moment had in that block; beyond the end of a moment's object lie zeros.
    fn has(&self, block: usize, seen: &[u8]) -> bool {
        self.0.iter().any(|bytes| {
            let there = bytes.get(block * BLOCK..).unwrap_or_default();
            let (there, gone) = seen.split_at(there.len().min(seen.len()).min(BLOCK));
            bytes[(block * BLOCK).min(bytes.len())..].starts_with(there)
                && gone.iter().all(|byte| *byte == 0)
        })
    }

    /// Whether all moments agree on a block.
    fn is_sure(&self, block: usize) -> bool {
        let part = |bytes: &Vec<u8>| {
            let end = bytes.len().min((block + 1) * BLOCK);
            bytes.get(block * BLOCK..end).unwrap_or_default().to_vec()
        };
        let first = part(&self.0[0]);
        self.0.iter().all(|bytes| part(bytes) == first)
    }
}

/// Runs `changes` until the power goes before the disk's change number `calls`; gives what may be there then, and whether
/// it went.
fn run(bench: &Bench, before: usize, changes: &[Change], calls: u32) -> (History, bool) {
    let mut bytes = pattern(1, before);
    let object = bench.object(1);
    object.write(0, &bytes).unwrap();
    object.sync_wait().unwrap();
    bench.disk.set(|faults| faults.calls_left = Some(calls));
    let mut moments = vec![bytes.clone()];
    for (change, seed) in changes.iter().zip(2..) {
        let done = change.apply(&object, seed);
        assert!(
            done.is_ok() || bench.disk.is_frozen(),
            "{change:?}: {done:?}"
        );
        change.model(&mut bytes, seed);
        moments.push(bytes.clone());
        if done.is_err() {
            return (History(moments), true);
        }
        if matches!(change, Sync) {
            moments = vec![bytes.clone()];
        }
    }
    (History(moments), bench.disk.is_frozen())
}

fn check(bench: &Bench, history: &History, adopt: Adopt, case: &str) {
    let object = bench.object(1);
    assert_eq!(object.verify(), Ok(vec![]), "{case}");
    let len = object.len().unwrap() as usize;
    let longest = history.0.iter().map(Vec::len).max().unwrap_or(0);
    let shortest = history.0.iter().map(Vec::len).min().unwrap_or(0);
    assert!((shortest..=longest).contains(&len), "{case}: length {len}");
    for block in 0..len.div_ceil(BLOCK) {
        let end = ((block + 1) * BLOCK).min(len);
        let at = block * BLOCK;
        match object.read_bytes(at as u64, end - at) {
            Ok(seen) => assert!(
                history.has(block, &seen),
                "{case}: block {block} is of no moment"
            ),
            Err(StoreError::Invalid { .. }) if adopt == Adopt::Distrust => {
                assert!(!history.is_sure(block), "{case}: block {block} was synced");
            }
            Err(error) => panic!("{case}: block {block}: {error}"),
        }
    }
    // It goes on.
    object.resize(0).unwrap();
    object.write(100, &pattern(9, 9_000)).unwrap();
    assert_eq!(object.read_bytes(0, 100).unwrap(), vec![0; 100], "{case}");
    object.sync_wait().unwrap();
}

/// Every crash of these changes. Gives how many there were.
fn crash_everywhere(changes: &[Change], (before, small_len_max): (usize, u64)) -> u32 {
    for calls in 0.. {
        for (seed, adopt) in [(calls, Adopt::Adopt), (calls + 1_000, Adopt::Distrust)] {
            let case = format!("{changes:?} of {before} bytes, {calls} calls, {adopt:?}");
            let mut bench = Bench::with_small(small_len_max);
            let (history, gone) = run(&bench, before, changes, calls);
            bench.lose_power(seed.into());
            bench.open_and_recover(adopt);
            check(&bench, &history, adopt, &case);
            bench.close();
            bench.open();
            assert_eq!(bench.store().unrecovered(), [], "{case}");
            assert_eq!(bench.object(1).len().unwrap(), 9_100, "{case}");
            if !gone && adopt == Adopt::Distrust {
                return calls;
            }
        }
    }
    unreachable!("changes end")
}

#[test]
fn every_crash_of_up_to_two_changes_leaves_what_some_moment_had() {
    // Each waits for the disk most of the time.
    let crashes: u32 = std::thread::scope(|scope| {
        let all = CHANGES.map(|first| {
            scope.spawn(move || {
                let crashes = KINDS.iter().map(|kind| {
                    let pairs = CHANGES.map(|second| crash_everywhere(&[first, second], *kind));
                    crash_everywhere(&[first], *kind) + pairs.iter().sum::<u32>()
                });
                crashes.sum::<u32>()
            })
        });
        all.map(|one| one.join().unwrap()).iter().sum()
    });
    eprintln!("{crashes} crashes of each policy");
    assert!(crashes > 300, "only {crashes}");
}
