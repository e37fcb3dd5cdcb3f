//! A replica's object: invalidated, filled, crashed, and never wrong where it says it is valid.

use super::{Bench, pattern, r, v};
use crate::{Adopt, StoreError, WriteBatch};
use proptest::prelude::*;

const LEN: u64 = 160_000;

#[derive(Debug, Clone)]
enum Step {
    /// The owner has new bytes; the log record that says so is durable here.
    Owner {
        at: u64,
        len: u64,
        seed: u64,
    },
    /// Bytes of now arrive.
    Fetch {
        at: u64,
        len: u64,
    },
    /// Bytes arrive that were read some writes ago, and not before this process asked for them: no answer outlives
    /// the process that asked.
    FetchOld {
        at: u64,
        len: u64,
        ago: usize,
    },
    Sync,
    PowerLoss(u64),
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..LEN, prop_oneof![1..12_000u64, Just(LEN)]);
    prop_oneof![
        4 => (place(), 0..200u64).prop_map(|((at, len), seed)| Step::Owner { at, len, seed }),
        5 => place().prop_map(|(at, len)| Step::Fetch { at, len }),
        2 => (place(), 1..4usize).prop_map(|((at, len), ago)| Step::FetchOld { at, len, ago }),
        2 => Just(Step::Sync),
        1 => (0..1000u64).prop_map(Step::PowerLoss),
        1 => Just(Step::Kill),
    ]
}

/// `asked_from`: the version of the owner's bytes when this process began.
fn run(bench: &mut Bench, owner: &mut Vec<Vec<u8>>, asked_from: &mut usize, step: Step) {
    let object = bench.object(1);
    let cut = |at: u64, len: u64| r(at, (at + len).min(LEN));
    match step {
        Step::Owner { at, len, seed } => {
            let range = cut(at, len);
            let mut bytes = owner.last().unwrap().clone();
            let data = match seed % 4 {
                // A copy may have a hole there.
                0 => vec![0; range.len() as usize],
                _ => pattern(seed, range.len() as usize),
            };
            bytes[range.start as usize..range.end as usize].copy_from_slice(&data);
            owner.push(bytes);
            let mut batch = WriteBatch::new();
            object
                .invalidate_in(&mut batch, range, v(owner.len() as u64))
                .unwrap();
            bench.store().commit(batch).unwrap();
        }
        Step::Fetch { at, len } => install(bench, owner, cut(at, len), owner.len()),
        Step::FetchOld { at, len, ago } => {
            let version = owner.len().saturating_sub(ago).max(*asked_from);
            install(bench, owner, cut(at, len), version);
        }
        Step::Sync => object.sync_wait().unwrap(),
        Step::PowerLoss(seed) => {
            drop(object);
            bench.lose_power(seed);
            bench.open_and_recover(Adopt::Distrust);
            *asked_from = owner.len();
        }
        Step::Kill => {
            drop(object);
            bench.kill();
            bench.open_and_recover(Adopt::Distrust);
            *asked_from = owner.len();
        }
    }
}

fn install(bench: &Bench, owner: &[Vec<u8>], range: perigee_types::ByteRange, version: usize) {
    let bytes = &owner[version - 1][range.start as usize..range.end as usize];
    let sums = crate::block_sums(bytes);
    bench
        .object(1)
        .install(range, bytes, v(version as u64), Some(&sums))
        .unwrap();
}

/// Every byte that reads is the owner's latest.
fn check(bench: &Bench, owner: &[Vec<u8>]) {
    let object = bench.object(1);
    let latest = owner.last().unwrap();
    assert_eq!(object.verify(), Ok(vec![]));
    for at in (0..LEN).step_by(500) {
        match object.read_bytes(at, 500) {
            Ok(got) => assert_eq!(got, latest[at as usize..at as usize + got.len()]),
            Err(StoreError::Invalid { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_bytes_are_the_owners_latest(
        small in prop::sample::select(vec![0, 10_000, LEN]),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut bench = Bench::with_small(small);
        let mut owner = vec![vec![0; LEN as usize]];
        let mut asked_from = 1;
        for step in steps {
            run(&mut bench, &mut owner, &mut asked_from, step);
            check(&bench, &owner);
        }
        let whole = r(0, LEN);
        install(&bench, &owner, whole, owner.len());
        prop_assert!(bench.object(1).is_whole());
        check(&bench, &owner);
    }
}
