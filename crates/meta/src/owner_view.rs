//! What an operation sees at an owner: its own container's newest state, and copies of what it
//! needed of other containers.

use crate::overlay::Overlay;
use crate::tx::ReadSet;
use crate::view::{Missing, View};
use bytes::Bytes;
use perigee_types::{ContainerId, Seq};
use std::collections::BTreeMap;

/// A range of a container's keys that an operation reads: from, to (exclusive), limit.
pub type ScanKey = (Vec<u8>, Vec<u8>, usize);

/// Rows that were fetched from the owners of other containers, and rows that are wanted.
#[derive(Debug, Default)]
pub struct Foreign {
    /// Single rows that were fetched.
    pub gets: BTreeMap<(ContainerId, Vec<u8>), Option<Bytes>>,
    /// Ranges that were fetched.
    pub scans: BTreeMap<(ContainerId, ScanKey), Vec<(Bytes, Bytes)>>,
    /// What the last run lacked.
    pub wanted: BTreeMap<ContainerId, Wanted>,
}

/// What has to be fetched from one container.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Single keys.
    pub gets: Vec<Vec<u8>>,
    /// Ranges.
    pub scans: Vec<ScanKey>,
}

/// A key that was read, and what it held.
pub type Read = (Vec<u8>, Option<Bytes>);

/// A container's committed state, wherever the driver keeps it.
pub trait Base {
    /// Why it could not be read.
    type Error;
    /// The value of `key`, if it has one.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Self::Error>;
    /// Rows with `from <= key < to`, ascending, at most `limit`.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Self::Error>;
}

/// The view of one operation.
pub struct OwnerView<'a, B: Base> {
    id: ContainerId,
    overlay: &'a Overlay,
    base: B,
    foreign: &'a mut Foreign,
    /// The latest record that something it has read came from (law 3).
    pub latest: Seq,
    /// Keys of the own container that were read, with what they held; kept only for transactions.
    pub reads: Option<Vec<Read>>,
    /// The disk failed under a read: what came after it counts for nothing.
    pub failed: Option<B::Error>,
}

impl Foreign {
    /// Asks for the same rows once more.
    #[must_use]
    pub fn again(&self) -> Self {
        let mut again = Self::default();
        for (container, key) in self.gets.keys() {
            let wanted = again.wanted.entry(*container).or_default();
            wanted.gets.push(key.clone());
        }
        for (container, scan) in self.scans.keys() {
            let wanted = again.wanted.entry(*container).or_default();
            wanted.scans.push(scan.clone());
        }
        again
    }

    /// Whether rows that were read later are the same: then all of them were so at one moment in between, since no two
    /// states of an inode look alike.
    #[must_use]
    pub fn agrees(&self, later: &Self) -> bool {
        self.gets == later.gets && self.scans == later.scans
    }

    /// What was read of other containers, for the participants to check.
    #[must_use]
    pub fn read_set(&self) -> ReadSet {
        let mut reads = ReadSet::default();
        for ((container, key), value) in &self.gets {
            reads.note(*container, key, value.as_deref());
        }
        reads
    }
}

impl<'a, B: Base> OwnerView<'a, B> {
    /// Over `base`, the committed state, lies `overlay`.
    pub fn new(id: ContainerId, overlay: &'a Overlay, base: B, foreign: &'a mut Foreign) -> Self {
        Self {
            id,
            overlay,
            base,
            foreign,
            latest: Seq::ZERO,
            reads: None,
            failed: None,
        }
    }

    fn fail<T: Default>(&mut self, error: B::Error) -> T {
        self.failed.get_or_insert(error);
        T::default()
    }
}

impl<B: Base> View for OwnerView<'_, B> {
    fn get(&mut self, container: ContainerId, key: &[u8]) -> Result<Option<Bytes>, Missing> {
        if container != self.id {
            if let Some(value) = self.foreign.gets.get(&(container, key.to_vec())) {
                return Ok(value.clone());
            }
            self.foreign
                .wanted
                .entry(container)
                .or_default()
                .gets
                .push(key.to_vec());
            return Err(Missing);
        }
        let value = match self.overlay.get(key) {
            Some((value, seq)) => {
                self.latest = self.latest.max(seq);
                value
            }
            None => match self.overlay.recent(key) {
                Some(value) => Some(value),
                None => match self.base.get(key) {
                    Ok(value) => {
                        if let Some(value) = &value {
                            self.overlay.note_recent(key, value);
                        }
                        value
                    }
                    Err(error) => self.fail(error),
                },
            },
        };
        if let Some(reads) = &mut self.reads {
            reads.push((key.to_vec(), value.clone()));
        }
        Ok(value)
    }

    fn scan(
        &mut self,
        container: ContainerId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Missing> {
        if container != self.id {
            let key = (from.to_vec(), to.to_vec(), limit);
            if let Some(rows) = self.foreign.scans.get(&(container, key.clone())) {
                return Ok(rows.clone());
            }
            self.foreign
                .wanted
                .entry(container)
                .or_default()
                .scans
                .push(key);
            return Err(Missing);
        }
        let ask = limit.saturating_add(self.overlay.deletions(from, to));
        let below = match self.base.scan(from, to, ask) {
            Ok(rows) => rows,
            Err(error) => self.fail(error),
        };
        let (rows, latest) = self.overlay.merge(from, to, limit, below);
        self.latest = self.latest.max(latest);
        Ok(rows)
    }
}
