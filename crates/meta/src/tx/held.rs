//! Keys that transactions hold at an owner.

use super::KeyLock;
use perigee_types::{Batch, TxId};
use std::collections::BTreeMap;

/// Who holds which keys. Invariant: a key that one transaction holds exclusively is held by no other.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<Vec<u8>, Vec<(TxId, KeyLock)>>);

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.0.contains_key(key)
    }

    /// Whether a transaction is about to change one of these keys.
    pub(super) fn hides<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        keys.any(|key| {
            self.0
                .get(key)
                .is_some_and(|held| held.iter().any(|(_, lock)| *lock == KeyLock::Exclusive))
        })
    }

    /// Whether a transaction holds what `batch` changes.
    pub(super) fn forbids(&self, batch: &Batch) -> bool {
        let mut keys = batch.mutations.iter().map(|mutation| &mutation.key);
        keys.any(|key| self.0.contains_key(key))
    }

    /// Whether another transaction is in the way of these locks.
    pub(super) fn conflicts(&self, tx: TxId, wanted: &BTreeMap<Vec<u8>, KeyLock>) -> bool {
        wanted.iter().any(|(key, lock)| {
            self.0.get(key).is_some_and(|held| {
                held.iter().any(|(other, theirs)| {
                    *other != tx && (*lock == KeyLock::Exclusive || *theirs == KeyLock::Exclusive)
                })
            })
        })
    }

    pub(super) fn hold(&mut self, tx: TxId, wanted: BTreeMap<Vec<u8>, KeyLock>) {
        for (key, lock) in wanted {
            let held = self.0.entry(key).or_default();
            if !held.iter().any(|(other, _)| *other == tx) {
                held.push((tx, lock));
            }
        }
    }

    pub(super) fn release(&mut self, tx: TxId) {
        self.0.retain(|_, held| {
            held.retain(|(other, _)| *other != tx);
            !held.is_empty()
        });
    }
}
