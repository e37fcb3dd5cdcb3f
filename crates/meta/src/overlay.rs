//! The effects that an owner has ordered and that are not yet in the committed state.
//!
//! Reading through it gives the owner's newest state; dropping it gives the committed one. Each
//! row knows the record that it came from, so an answer can wait for what it depends on (law 3).
//!
//! It also keeps rows of the committed state that were written or read lately: most operations read what a
//! recent one has read or written, and the committed state is slower to ask.

#[cfg(feature = "plant")]
use crate::plant::Plant;
use crate::planted;
use bytes::Bytes;
use perigee_types::{Batch, Seq};
use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
struct Row {
    value: Option<Bytes>,
    seq: Seq,
}

/// Uncommitted rows over a container's state.
#[derive(Debug, Default)]
pub struct Overlay {
    rows: BTreeMap<Vec<u8>, Row>,
    records: VecDeque<(Seq, Vec<Vec<u8>>)>,
    last: Seq,
    recent: RefCell<Recent>,
    #[cfg(feature = "plant")]
    plant: Option<Plant>,
}

/// Rows of each generation of [`Recent`]: with keys and values as they are, up to 10 MiB.
const RECENT_MAX: usize = 1 << 15;

#[expect(
    clippy::disallowed_types,
    reason = "rows are asked for by their keys alone: in which order they lie decides nothing"
)]
type Rows = std::collections::HashMap<Vec<u8>, Bytes>;

/// Committed rows, in two generations: what is asked for moves to the young one, and the old one goes when that is full.
#[derive(Debug, Default)]
struct Recent {
    young: Rows,
    old: Rows,
}

impl Recent {
    fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.put(key, value.clone());
        Some(value)
    }

    fn put(&mut self, key: Vec<u8>, value: Bytes) {
        if self.young.len() >= RECENT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &[u8]) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

impl Overlay {
    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Adds the effects of record `seq`, which is later than every one before.
    pub fn apply(&mut self, seq: Seq, batch: &Batch) {
        let mut keys = Vec::with_capacity(batch.mutations.len());
        let recent = self.recent.get_mut();
        for mutation in &batch.mutations {
            let value = mutation
                .value
                .as_ref()
                .map(|value| Bytes::copy_from_slice(value));
            let before = self.rows.insert(mutation.key.clone(), Row { value, seq });
            // What has a row here is not among the recent ones.
            if before.is_none() && !planted!(self, RecentNotForgotten) {
                recent.remove(&mutation.key);
            }
            keys.push(mutation.key.clone());
        }
        self.records.push_back((seq, keys));
        self.last = seq;
    }

    /// The committed state has everything up to `seq` now. What it was last is kept to be read.
    pub fn drop_through(&mut self, seq: Seq) {
        for (key, value) in self.take_through(seq) {
            self.recent.get_mut().put(key, value);
        }
    }

    /// Takes out the rows whose last change was in a record up to `seq`; gives those with a value.
    fn take_through(&mut self, seq: Seq) -> Vec<(Vec<u8>, Bytes)> {
        let mut taken = Vec::new();
        while self.records.front().is_some_and(|(first, _)| *first <= seq) {
            let Some((record, keys)) = self.records.pop_front() else {
                break;
            };
            for key in keys {
                if let Entry::Occupied(row) = self.rows.entry(key)
                    && row.get().seq == record
                {
                    let (key, row) = row.remove_entry();
                    taken.extend(row.value.map(|value| (key, value)));
                }
            }
        }
        taken
    }

    /// Forgets everything; the committed state ends at `seq`.
    pub fn clear(&mut self, seq: Seq) {
        self.rows.clear();
        self.records.clear();
        self.last = seq;
        if !planted!(self, RecentOutlivesReign) {
            self.recent.take();
        }
    }

    /// The committed value of `key`, if it is kept here. Only for a key that has no row in the overlay.
    pub fn recent(&self, key: &[u8]) -> Option<Bytes> {
        self.recent.borrow_mut().get(key)
    }

    /// Keeps a value that was read of the committed state, for a key that has no row in the overlay.
    pub fn note_recent(&self, key: &[u8], value: &Bytes) {
        self.recent.borrow_mut().put(key.to_vec(), value.clone());
    }

    /// The row of `key`, if the overlay has one: its value (`None`: deleted) and its record.
    pub fn get(&self, key: &[u8]) -> Option<(Option<Bytes>, Seq)> {
        self.rows.get(key).map(|row| (row.value.clone(), row.seq))
    }

    /// Lays the overlay's rows in `from..to` over `below`, the first rows of the committed state
    /// there (all of them, if fewer than `limit`), and gives the first `limit` of the result with
    /// the latest record among them.
    pub fn merge(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
        below: Vec<(Bytes, Bytes)>,
    ) -> (Vec<(Bytes, Bytes)>, Seq) {
        let mut latest = Seq::ZERO;
        let mut over = self.rows.range::<[u8], _>((
            std::ops::Bound::Included(from),
            std::ops::Bound::Excluded(to),
        ));
        let mut over_next = over.next();
        let mut below = below.into_iter().peekable();
        let mut rows = Vec::new();
        while rows.len() < limit {
            let take_over = match (&over_next, below.peek()) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((key, _)), Some((other, _))) => key.as_slice() <= other.as_ref(),
            };
            if !take_over {
                rows.extend(below.next());
                continue;
            }
            let Some((key, row)) = over_next.take() else {
                break;
            };
            if below
                .peek()
                .is_some_and(|(other, _)| other.as_ref() == key.as_slice())
            {
                below.next();
            }
            latest = latest.max(row.seq);
            if let Some(value) = &row.value {
                rows.push((Bytes::copy_from_slice(key), value.clone()));
            }
            over_next = over.next();
        }
        (rows, latest)
    }

    /// How many rows deletions may hide in `from..to`: a scan below must ask for that many more.
    pub fn deletions(&self, from: &[u8], to: &[u8]) -> usize {
        self.rows
            .range::<[u8], _>((
                std::ops::Bound::Included(from),
                std::ops::Bound::Excluded(to),
            ))
            .filter(|(_, row)| row.value.is_none())
            .count()
    }

    /// The latest record in it, or that was in it.
    pub fn last(&self) -> Seq {
        self.last
    }

    /// How many records it holds.
    pub fn records(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::Mutation;

    fn put(key: &str, value: &str) -> Mutation {
        Mutation {
            key: key.into(),
            value: Some(value.into()),
        }
    }

    fn delete(key: &str) -> Mutation {
        Mutation {
            key: key.into(),
            value: None,
        }
    }

    fn rows(rows: &[(&str, &str)]) -> Vec<(Bytes, Bytes)> {
        let bytes = |s: &str| Bytes::copy_from_slice(s.as_bytes());
        rows.iter().map(|(k, v)| (bytes(k), bytes(v))).collect()
    }

    #[test]
    fn a_scan_sees_new_rows_in_order_and_no_deleted_ones() {
        let mut overlay = Overlay::default();
        let mutations = vec![put("b", "new"), delete("c"), put("e", "5")];
        overlay.apply(
            Seq(7),
            &Batch {
                mutations,
                data: vec![],
            },
        );
        let below = rows(&[("a", "1"), ("b", "old"), ("c", "3"), ("d", "4")]);
        let (merged, latest) = overlay.merge(b"a", b"z", 10, below.clone());
        assert_eq!(
            merged,
            rows(&[("a", "1"), ("b", "new"), ("d", "4"), ("e", "5")])
        );
        assert_eq!(latest, Seq(7));
        assert_eq!(overlay.deletions(b"a", b"z"), 1);
        let (merged, _) = overlay.merge(b"a", b"c", 10, rows(&[("a", "1"), ("b", "old")]));
        assert_eq!(merged, rows(&[("a", "1"), ("b", "new")]));
    }

    #[test]
    fn dropping_a_record_keeps_rows_that_a_later_one_wrote() {
        let mut overlay = Overlay::default();
        overlay.apply(
            Seq(1),
            &Batch {
                mutations: vec![put("a", "1"), put("b", "1")],
                data: vec![],
            },
        );
        overlay.apply(
            Seq(2),
            &Batch {
                mutations: vec![put("a", "2")],
                data: vec![],
            },
        );
        overlay.drop_through(Seq(1));
        assert_eq!(overlay.get(b"b"), None);
        assert_eq!(
            overlay.get(b"a"),
            Some((Some(Bytes::from_static(b"2")), Seq(2)))
        );
        overlay.drop_through(Seq(2));
        assert_eq!(overlay.get(b"a"), None);
    }
}
