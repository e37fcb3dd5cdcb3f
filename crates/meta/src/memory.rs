//! Container states in memory, for tests and the simulator.

use crate::view::{Missing, View};
use bytes::Bytes;
use perigee_types::{Batch, ContainerId};
use std::collections::{BTreeMap, BTreeSet};

/// States of some containers, all of whose effects are applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemView {
    /// The keys and values by container. A container that is not here is empty.
    pub states: BTreeMap<ContainerId, BTreeMap<Vec<u8>, Bytes>>,
    /// Containers of which nothing has been fetched: reading one is [`Missing`].
    pub hidden: BTreeSet<ContainerId>,
    /// What was missed: the container, and the key or the start of the range.
    pub noted: Vec<(ContainerId, Vec<u8>)>,
}

impl MemView {
    /// Without any container.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one container's effects. Its data commands have no place here.
    pub fn apply(&mut self, container: ContainerId, batch: &Batch) {
        let state = self.states.entry(container).or_default();
        for mutation in &batch.mutations {
            match &mutation.value {
                Some(value) => state.insert(mutation.key.clone(), Bytes::copy_from_slice(value)),
                None => state.remove(&mutation.key),
            };
        }
    }

    /// Applies the effects of an outcome.
    pub fn apply_all(&mut self, batches: &BTreeMap<ContainerId, Batch>) {
        for (container, batch) in batches {
            self.apply(*container, batch);
        }
    }

    fn check(&mut self, container: ContainerId, key: &[u8]) -> Result<(), Missing> {
        if self.hidden.contains(&container) {
            self.noted.push((container, key.to_vec()));
            return Err(Missing);
        }
        Ok(())
    }
}

impl View for MemView {
    fn get(&mut self, container: ContainerId, key: &[u8]) -> Result<Option<Bytes>, Missing> {
        self.check(container, key)?;
        let state = self.states.get(&container);
        Ok(state.and_then(|state| state.get(key)).cloned())
    }

    fn scan(
        &mut self,
        container: ContainerId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Missing> {
        self.check(container, from)?;
        let Some(state) = self.states.get(&container) else {
            return Ok(Vec::new());
        };
        if from >= to {
            return Ok(Vec::new());
        }
        Ok(state
            .range::<[u8], _>((
                std::ops::Bound::Included(from),
                std::ops::Bound::Excluded(to),
            ))
            .take(limit)
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect())
    }
}
