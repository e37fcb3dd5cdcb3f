//! What an operation sees at an owner: its own container's newest state, and copies of what it
//! needed of other containers.

use super::overlay::Overlay;
use bytes::Bytes;
use perigee_meta::{Missing, View};
use perigee_store::{Space, Store, StoreError};
use perigee_types::{ContainerId, Seq};
use std::collections::BTreeMap;

/// A range of a container's keys that an operation reads: from, to (exclusive), limit.
pub(crate) type ScanKey = (Vec<u8>, Vec<u8>, usize);

/// Rows that were fetched from the owners of other containers, and rows that are wanted.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    pub(crate) gets: BTreeMap<(ContainerId, Vec<u8>), Option<Bytes>>,
    pub(crate) scans: BTreeMap<(ContainerId, ScanKey), Vec<(Bytes, Bytes)>>,
    pub(crate) wanted: BTreeMap<ContainerId, Wanted>,
}

/// What has to be fetched from one container.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) gets: Vec<Vec<u8>>,
    pub(crate) scans: Vec<ScanKey>,
}

/// The view of one operation.
pub(crate) struct OwnerView<'a> {
    id: ContainerId,
    overlay: &'a Overlay,
    store: &'a Store,
    foreign: &'a mut Foreign,
    /// The latest record that something it has read came from (law 3).
    pub(crate) latest: Seq,
    /// Keys of the own container that were read, with what they held; kept only for transactions.
    pub(crate) reads: Option<Vec<(Vec<u8>, Option<Bytes>)>>,
    /// The disk failed under a read: what came after it counts for nothing.
    pub(crate) failed: Option<StoreError>,
}

impl<'a> OwnerView<'a> {
    pub(crate) fn new(
        id: ContainerId,
        overlay: &'a Overlay,
        store: &'a Store,
        foreign: &'a mut Foreign,
    ) -> Self {
        Self {
            id,
            overlay,
            store,
            foreign,
            latest: Seq::ZERO,
            reads: None,
            failed: None,
        }
    }

    fn fail<T: Default>(&mut self, error: StoreError) -> T {
        self.failed.get_or_insert(error);
        T::default()
    }
}

impl View for OwnerView<'_> {
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
            None => match self.store.get(Space::State(self.id), key) {
                Ok(value) => value,
                Err(error) => self.fail(error),
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
        let below = match self.store.scan(Space::State(self.id), from, Some(to), ask) {
            Ok(rows) => rows,
            Err(error) => self.fail(error),
        };
        let (rows, latest) = self.overlay.merge(from, to, limit, below);
        self.latest = self.latest.max(latest);
        Ok(rows)
    }
}

/// A view with the effects of one more batch laid over it.
pub(crate) struct Stacked<'a, 'b> {
    pub(crate) id: ContainerId,
    pub(crate) over: &'a Overlay,
    pub(crate) below: OwnerView<'b>,
}

impl View for Stacked<'_, '_> {
    fn get(&mut self, container: ContainerId, key: &[u8]) -> Result<Option<Bytes>, Missing> {
        match self.over.get(key) {
            Some((value, _)) if container == self.id => Ok(value),
            _ => self.below.get(container, key),
        }
    }

    fn scan(
        &mut self,
        container: ContainerId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Missing> {
        if container != self.id {
            return self.below.scan(container, from, to, limit);
        }
        let ask = limit.saturating_add(self.over.deletions(from, to));
        let rows = self.below.scan(container, from, to, ask)?;
        Ok(self.over.merge(from, to, limit, rows).0)
    }
}
