#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::*;
use crate::key::{Key, Lane};
use crate::memory::MemView;
use crate::record::{encode_count, encode_inode_id};
use crate::view::View;
use perigee_types::{
    Batch, ByteRange, CheckpointId, ContainerId, InodeId, InodeIndex, Mutation, SnapshotId,
    WallTime,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const ROOT: ContainerId = ContainerId::ROOT;

/// What happens to a container.
#[derive(Debug, Clone)]
enum Event {
    /// Rows of these (inode, row) change to these values.
    Change(Vec<(u8, u8, Option<u8>)>),
    /// An inode more is made.
    Make,
    Take,
    /// The n-th checkpoint that is wanted is wanted no more.
    Drop(u8),
    /// A step of removing what is not wanted.
    Step,
    /// The owner is another one.
    TakeOver,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let change = prop::collection::vec((0..8u8, 0..6u8, any::<Option<u8>>()), 1..4);
    let event = prop_oneof![
        8 => change.prop_map(Event::Change),
        1 => Just(Event::Make),
        3 => Just(Event::Take),
        2 => any::<u8>().prop_map(Event::Drop),
        3 => Just(Event::Step),
        1 => Just(Event::TakeOver),
    ];
    prop::collection::vec(event, 1..60)
}

fn key_of(index: u64, row: u8) -> Key {
    let index = InodeIndex(index);
    match row {
        0 => Key::Inode(index),
        1 => Key::Parent(index),
        2 => Key::Xattr(index, b"a".to_vec()),
        3 => Key::Xattr(index, b"ab".to_vec()),
        row => Key::Dentry(index, u64::from(row)),
    }
}

struct World {
    view: MemView,
    checkpoints: Checkpoints,
    next: u64,
    seq: u64,
    /// What each wanted checkpoint must show.
    expected: BTreeMap<CheckpointId, BTreeMap<Vec<u8>, Vec<u8>>>,
    stepped: Option<Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            view: MemView::new(),
            checkpoints: Checkpoints::default(),
            next: 2,
            seq: 0,
            expected: BTreeMap::new(),
            stepped: None,
        };
        world.make();
        world
    }

    fn order(&mut self, mutations: Vec<Mutation>) {
        self.seq += 1;
        let data = Vec::new();
        let mut batch = Batch { mutations, data };
        let kept = keep_rows(&mut self.checkpoints, ROOT, &batch, &mut self.view).unwrap();
        batch.mutations.extend(kept);
        self.checkpoints.on_batch(ROOT, &batch).unwrap();
        self.view.apply(ROOT, &batch);
    }

    fn make(&mut self) {
        self.next += 1;
        self.order(vec![Mutation {
            key: Key::NextIndex(Lane::Home).encode(),
            value: Some(encode_count(self.next)),
        }]);
    }

    fn change(&mut self, changes: &[(u8, u8, Option<u8>)]) {
        let mutations = changes.iter().map(|(inode, row, value)| Mutation {
            key: key_of(2 + u64::from(*inode) % (self.next - 2), *row).encode(),
            value: value.map(|value| encode_inode_id(InodeId(u64::from(value)))),
        });
        let mutations = mutations.collect();
        self.order(mutations);
    }

    fn now(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let rows = self.view.states.get(&ROOT).into_iter().flatten();
        let of_past = rows.filter(|(key, _)| Key::decode(key).is_some_and(|key| key.is_of_past()));
        of_past
            .map(|(key, value)| (key.clone(), value.to_vec()))
            .collect()
    }

    fn take(&mut self) {
        let (snapshot, now) = (SnapshotId(1), WallTime::default());
        let checkpoint = Checkpoints::take(ROOT, &mut self.view, snapshot, now).unwrap();
        let at = CheckpointId(self.seq + 1);
        self.expected.insert(at, self.now());
        self.order(vec![checkpoint.row(at)]);
    }

    fn drop(&mut self, which: u8) {
        let staying: Vec<CheckpointId> = self.expected.keys().copied().collect();
        let Some(at) = staying.get(usize::from(which) % staying.len().max(1)) else {
            return;
        };
        let mut checkpoint = *self.checkpoints.get(*at).unwrap();
        checkpoint.fate = Fate::Leaves;
        self.expected.remove(at);
        self.order(vec![checkpoint.row(*at)]);
    }

    fn leaving(&self) -> Option<CheckpointId> {
        let mut all = self.checkpoints.iter();
        let leaves = all.find(|(_, checkpoint)| checkpoint.fate == Fate::Leaves);
        leaves.map(|(at, _)| at)
    }

    fn step(&mut self) {
        let Some(leaving) = self.leaving() else {
            return;
        };
        let place = (ROOT, leaving);
        let after = self.stepped.take();
        let left = leave_rows(
            &self.checkpoints,
            place,
            &mut self.view,
            after.as_deref(),
            3,
        );
        let mut left = left.unwrap();
        // Another checkpoint may have begun to leave between two steps: each begins anew here.
        if left.next.is_none() {
            let key = Key::Checkpoint(leaving).encode();
            left.mutations.push(Mutation { key, value: None });
        }
        self.stepped = left.next;
        self.order(left.mutations);
    }

    fn check(&mut self) {
        for (at, rows) in &self.expected {
            let checkpoint = *self.checkpoints.get(*at).unwrap();
            let mut past = PastView::new(ROOT, *at, &mut self.view);
            for index in 2..self.next {
                if !checkpoint.has(InodeIndex(index)) {
                    continue;
                }
                for row in 0..6 {
                    let key = key_of(index, row).encode();
                    let seen = past.get(ROOT, &key).unwrap().map(|value| value.to_vec());
                    assert_eq!(seen.as_ref(), rows.get(&key), "{key:02x?} at {at}");
                }
                let (from, to) = crate::key::dentries(InodeIndex(index), 0, u64::MAX);
                for limit in [1, 2, 100] {
                    let seen = past.scan(ROOT, &from, &to, limit).unwrap();
                    let there = rows.range(from.clone()..to.clone()).take(limit);
                    let there: Vec<_> = there.map(|(k, v)| (k.clone(), v.clone())).collect();
                    let seen = seen.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
                    assert_eq!(
                        seen.collect::<Vec<_>>(),
                        there,
                        "listing of {index} at {at}"
                    );
                }
            }
            assert_eq!(past.refused, None);
        }
    }
}

proptest! {
    #[test]
    fn each_checkpoint_shows_what_was_and_leaves_nothing(events in events()) {
        let mut world = World::new();
        for event in events {
            match event {
                Event::Change(changes) => world.change(&changes),
                Event::Make => world.make(),
                Event::Take => world.take(),
                Event::Drop(which) => {
                    world.drop(which);
                    world.stepped = None;
                }
                Event::Step => world.step(),
                Event::TakeOver => {
                    world.checkpoints = Checkpoints::load(ROOT, &mut world.view).unwrap();
                    world.stepped = None;
                }
            }
            world.check();
        }
        while !world.expected.is_empty() {
            world.drop(0);
        }
        world.stepped = None;
        for _ in 0..2_000 {
            world.step();
        }
        let (from, to) = crate::key::all_kept();
        prop_assert_eq!(world.view.scan(ROOT, &from, &to, 10).unwrap(), vec![]);
        prop_assert!(world.checkpoints.is_empty());
    }

    #[test]
    fn units_read_back_as_they_were_stored(units in prop::collection::btree_set(0..5_000u64, 0..40)) {
        let mut set = Units::default();
        for unit in &units {
            prop_assert!(set.add(*unit));
        }
        let mut read = Units::default();
        for unit in &units {
            let row = set.row(InodeIndex(7), *unit);
            read.add_row(ROOT, &row.key, &row.value.unwrap()).unwrap();
        }
        prop_assert_eq!(&read, &set);
        prop_assert_eq!(read.iter().collect::<Vec<_>>(), units.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(set.count(), units.len() as u64);
    }
}

#[test]
fn a_range_touches_the_units_that_it_is_in() {
    assert_eq!(units_of(ByteRange::new(0, 1)), 0..1);
    assert_eq!(units_of(ByteRange::new(UNIT - 1, UNIT + 1)), 0..2);
    assert_eq!(units_of(ByteRange::new(5, 5)), 0..0);
}
