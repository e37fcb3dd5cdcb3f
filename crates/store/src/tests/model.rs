//! An object against a vector of bytes, with kills, closes and power losses.

use super::{Bench, pattern, r, v};
use crate::Adopt;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
enum Step {
    Write { at: usize, len: usize, seed: u64 },
    Resize(usize),
    Punch { at: usize, len: usize },
    Read { at: usize, len: usize },
    Sync,
    Verify,
    Close,
    Kill,
    PowerLoss(u64),
}

/// Offsets near block and group borders are the interesting ones.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..20_000usize,
        (0..6usize, 0..5usize).prop_map(|(block, by)| (block * 4096 + by).saturating_sub(2)),
        (1..4usize, 0..9usize).prop_map(|(group, by)| group * (256 << 10) + by - 4),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (place(), 1..9000usize, 0..200u64).prop_map(|(at, len, seed)| Step::Write { at, len, seed }),
        1 => (place(), 200_000..600_000usize, 0..200u64).prop_map(|(at, len, seed)| Step::Write { at, len, seed }),
        3 => place().prop_map(Step::Resize),
        3 => (place(), 1..300_000usize).prop_map(|(at, len)| Step::Punch { at, len }),
        6 => (place(), 1..20_000usize).prop_map(|(at, len)| Step::Read { at, len }),
        3 => Just(Step::Sync),
        1 => Just(Step::Verify),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
        1 => (0..1000u64).prop_map(Step::PowerLoss),
    ]
}

/// The bytes, and the 4 KiB pages that a power loss may change.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    loose: BTreeSet<usize>,
    loose_len: bool,
}

impl Model {
    fn touch(&mut self, from: usize, to: usize) {
        self.loose.extend(from / 4096..to.div_ceil(4096));
    }

    fn resize(&mut self, size: usize) {
        let (low, high) = (size.min(self.bytes.len()), size.max(self.bytes.len()));
        self.touch(low, high);
        self.loose_len |= low != high;
        self.bytes.resize(size, 0);
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        if self.bytes.len() < at + data.len() {
            self.resize(at + data.len());
        }
        self.bytes[at..at + data.len()].copy_from_slice(data);
        self.touch(at, at + data.len());
    }

    fn synced(&mut self) {
        self.loose.clear();
        self.loose_len = false;
    }

    /// After a power loss: what was synced must be there; the rest is taken over.
    fn adopt(&mut self, found: Vec<u8>) {
        assert!(self.loose_len || found.len() == self.bytes.len());
        let both = found.len().min(self.bytes.len());
        for (page, (was, is)) in self.bytes[..both]
            .chunks(4096)
            .zip(found[..both].chunks(4096))
            .enumerate()
        {
            assert!(
                self.loose.contains(&page) || was == is,
                "synced page {page} changed"
            );
        }
        self.bytes = found;
        self.synced();
    }
}

fn check(bench: &mut Bench, model: &mut Model, step: Step) {
    let object = bench.object(1);
    match step {
        Step::Write { at, len, seed } => {
            let data = pattern(seed, len);
            object.write(at as u64, &data).unwrap();
            model.write(at, &data);
        }
        Step::Resize(size) => {
            object.resize(size as u64).unwrap();
            model.resize(size);
        }
        Step::Punch { at, len } => {
            object.punch(r(at as u64, (at + len) as u64)).unwrap();
            let end = (at + len).min(model.bytes.len());
            if at < end {
                model.write(at, &vec![0; end - at]);
            }
        }
        Step::Read { at, len } => {
            let got = object.read_bytes(at as u64, len).unwrap();
            let from = at.min(model.bytes.len());
            let to = (at + len).min(model.bytes.len());
            assert_eq!(got, model.bytes[from..to]);
        }
        Step::Sync => {
            object.sync_wait().unwrap();
            model.synced();
        }
        Step::Verify => assert_eq!(object.verify(), Ok(vec![])),
        Step::Close => {
            drop(object);
            bench.close();
            bench.open();
            assert_eq!(bench.store().unrecovered(), []);
            model.synced();
        }
        Step::Kill => {
            drop(object);
            bench.kill();
            bench.open_and_recover(Adopt::Adopt);
            if bench.small_len_max > 0 {
                // What a small object had in memory alone is gone.
                let found = bench.object(1).read_bytes(0, 4 << 20).unwrap().to_vec();
                model.adopt(found);
            }
            model.synced();
        }
        Step::PowerLoss(seed) => {
            drop(object);
            bench.lose_power(seed);
            bench.open_and_recover(Adopt::Adopt);
            let found = bench.object(1).read_bytes(0, 4 << 20).unwrap().to_vec();
            model.adopt(found);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_vector_of_bytes(
        small in prop::sample::select(vec![0, 10_000, 1 << 20]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut bench = Bench::with_small(small);
        let mut model = Model::default();
        for step in steps {
            check(&mut bench, &mut model, step);
        }
        let object = bench.object(1);
        prop_assert_eq!(object.len().unwrap(), model.bytes.len() as u64);
        prop_assert_eq!(object.read_bytes(0, 4 << 20).unwrap(), model.bytes);
        prop_assert_eq!(object.verify(), Ok(vec![]));
    }
}

/// What a member of a chain does to an object.
#[derive(Debug, Clone)]
enum Taken {
    Own(Step),
    Invalidate { at: usize, len: usize },
    Install { at: usize, len: usize, seed: u64 },
}

fn taken() -> impl Strategy<Value = Taken> {
    prop_oneof![
        3 => step().prop_map(Taken::Own),
        1 => (place(), 1..20_000usize).prop_map(|(at, len)| Taken::Invalidate { at, len }),
        1 => (place(), 1..20_000usize, 0..200u64)
            .prop_map(|(at, len, seed)| Taken::Install { at, len, seed }),
    ]
}

fn carry_out(bench: &mut Bench, taken: Taken) {
    let object = bench.object(1);
    match taken {
        Taken::Invalidate { at, len } => {
            let range = r(at as u64, (at + len) as u64);
            object.invalidate(range, v(1)).unwrap();
        }
        Taken::Install { at, len, seed } => {
            let range = r(at as u64, (at + len) as u64);
            let data = pattern(seed, len);
            object.install(range, &data, v(1), None).unwrap();
        }
        Taken::Own(Step::Write { at, len, seed }) => {
            object.write(at as u64, &pattern(seed, len)).unwrap();
        }
        Taken::Own(Step::Resize(size)) => object.resize(size as u64).unwrap(),
        Taken::Own(Step::Punch { at, len }) => {
            object.punch(r(at as u64, (at + len) as u64)).unwrap();
        }
        Taken::Own(Step::Sync) => object.sync_wait().unwrap(),
        Taken::Own(Step::Read { .. } | Step::Verify) => assert_eq!(object.verify(), Ok(vec![])),
        Taken::Own(Step::Close) => {
            drop(object);
            bench.close();
            bench.open();
        }
        Taken::Own(Step::Kill) => {
            drop(object);
            bench.kill();
            bench.open_and_recover(Adopt::Distrust);
        }
        Taken::Own(Step::PowerLoss(seed)) => {
            drop(object);
            bench.lose_power(seed);
            bench.open_and_recover(Adopt::Distrust);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_in_place_can_be_taken_for_the_content_unless_it_rots(
        small in prop::sample::select(vec![0, 10_000]),
        steps in prop::collection::vec(taken(), 1..40),
    ) {
        let mut bench = Bench::with_small(small);
        for step in steps {
            carry_out(&mut bench, step);
        }
        let object = bench.object(1);
        prop_assert_eq!(object.accept(r(0, 4 << 20)), Ok(vec![]));
        prop_assert!(object.is_whole());
        prop_assert_eq!(object.verify(), Ok(vec![]));
    }
}
