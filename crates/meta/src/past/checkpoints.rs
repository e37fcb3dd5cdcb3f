//! The checkpoints of a container, and what a change has to keep for them.

use super::record::{decode_checkpoint, encode_checkpoint, encode_kept};
use super::view::PastView;
use crate::error::Refusal;
use crate::key::{self, Key, Lane};
use crate::planted;
use crate::record;
use crate::view::View;
use perigee_types::{Batch, CheckpointId, ContainerId, InodeIndex, Mutation, SnapshotId, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[cfg(feature = "plant")]
use crate::plant::Plant;

/// Keys that are known to have a kept row, at most: about 6 MiB.
const KNOWN_MAX: usize = 1 << 16;
/// Checkpoints of one container, at most.
pub(crate) const CHECKPOINTS_MAX: usize = 4_096;

/// Whether a checkpoint is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It can be read.
    Stays,
    /// What is kept for it alone is being removed.
    Leaves,
}

/// A checkpoint of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The snapshot that it is a part of.
    pub snapshot: SnapshotId,
    /// When it was made.
    pub taken: WallTime,
    /// The first index of the lane [`Lane::Home`] that no inode had had.
    pub next_home: InodeIndex,
    /// The same of [`Lane::Away`].
    pub next_away: InodeIndex,
    /// Whether it is wanted.
    pub fate: Fate,
}

impl Checkpoint {
    /// Whether an inode had been made by then.
    #[must_use]
    pub fn has(&self, index: InodeIndex) -> bool {
        match Lane::of(index) {
            Lane::Home => index < self.next_home,
            Lane::Away => index < self.next_away,
            // What is kept is never looked at but through a checkpoint.
            Lane::Past => false,
        }
    }

    /// The row that it is.
    #[must_use]
    pub fn row(&self, at: CheckpointId) -> Mutation {
        Mutation {
            key: Key::Checkpoint(at).encode(),
            value: Some(encode_checkpoint(self)),
        }
    }
}

/// All checkpoints of a container, as its newest state has them.
#[derive(Debug, Default)]
pub struct Checkpoints {
    all: BTreeMap<CheckpointId, Checkpoint>,
    /// Keys that have a kept row of the newest checkpoint or, before it was the newest, of a later one.
    known: BTreeSet<Vec<u8>>,
    #[cfg(feature = "plant")]
    pub(super) plant: Option<Plant>,
}

impl Checkpoints {
    /// Reads them.
    ///
    /// Errors: [`Refusal::Corrupt`], and what the view says.
    pub fn load(container: ContainerId, view: &mut dyn View) -> Result<Self, Refusal> {
        let mut loaded = Self::default();
        let (from, to) = key::checkpoints();
        for (key, value) in view.scan(container, &from, &to, CHECKPOINTS_MAX)? {
            let Some(Key::Checkpoint(at)) = Key::decode(&key) else {
                return Err(record::corrupt(
                    container,
                    &key,
                    "not the key of a checkpoint",
                ));
            };
            let checkpoint = decode_checkpoint(container, &key, &value)?;
            loaded.all.insert(at, checkpoint);
        }
        Ok(loaded)
    }

    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether no more can be made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.all.len() >= CHECKPOINTS_MAX
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (CheckpointId, &Checkpoint)> {
        self.all.iter().map(|(at, checkpoint)| (*at, checkpoint))
    }

    /// One that can be read.
    #[must_use]
    pub fn get(&self, at: CheckpointId) -> Option<&Checkpoint> {
        let found = self.all.get(&at);
        found.filter(|checkpoint| checkpoint.fate == Fate::Stays)
    }

    /// The newest that is wanted: what changes is kept for it.
    #[must_use]
    pub fn newest(&self) -> Option<(CheckpointId, &Checkpoint)> {
        let mut newest_first = self.all.iter().rev();
        let newest = newest_first.find(|(_, checkpoint)| checkpoint.fate == Fate::Stays);
        newest.map(|(at, checkpoint)| (*at, checkpoint))
    }

    /// The newest that is wanted and older than another one.
    #[must_use]
    pub fn before(&self, at: CheckpointId) -> Option<(CheckpointId, &Checkpoint)> {
        let older = self.all.range(..at).rev();
        let mut staying = older.filter(|(_, checkpoint)| checkpoint.fate == Fate::Stays);
        staying.next().map(|(at, checkpoint)| (*at, checkpoint))
    }

    /// The checkpoint for which content of an inode is to be kept before it is replaced.
    #[must_use]
    pub fn keeps(&self, index: InodeIndex) -> Option<CheckpointId> {
        let (at, newest) = self.newest()?;
        newest.has(index).then_some(at)
    }

    /// The record of a checkpoint as of now.
    ///
    /// Errors: [`Refusal::Corrupt`], and what the view says.
    pub fn take(
        container: ContainerId,
        view: &mut dyn View,
        snapshot: SnapshotId,
        taken: WallTime,
    ) -> Result<Checkpoint, Refusal> {
        let mut next = |lane: Lane| -> Result<InodeIndex, Refusal> {
            let key = Key::NextIndex(lane).encode();
            Ok(match view.get(container, &key)? {
                Some(value) => InodeIndex(record::decode_count(container, &key, &value)?),
                None => lane.first(),
            })
        };
        Ok(Checkpoint {
            snapshot,
            taken,
            next_home: next(Lane::Home)?,
            next_away: next(Lane::Away)?,
            fate: Fate::Stays,
        })
    }

    /// Takes note of what a record changes about them.
    ///
    /// Errors: [`Refusal::Corrupt`].
    pub fn on_batch(&mut self, container: ContainerId, batch: &Batch) -> Result<(), Refusal> {
        for mutation in &batch.mutations {
            match Key::decode(&mutation.key) {
                Some(Key::Checkpoint(at)) => {
                    match &mutation.value {
                        Some(value) => {
                            let checkpoint = decode_checkpoint(container, &mutation.key, value)?;
                            self.all.insert(at, checkpoint);
                        }
                        None => _ = self.all.remove(&at),
                    }
                    self.known.clear();
                }
                Some(Key::Kept(key, at))
                    if mutation.value.is_some()
                        && self.newest().is_some_and(|(newest, _)| at >= newest) =>
                {
                    self.know(key.encode());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A record was not ordered: what it was to keep is not kept.
    pub fn forget_known(&mut self) {
        self.known.clear();
    }

    fn know(&mut self, key: Vec<u8>) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key);
    }

    /// Whether a checkpoint that is wanted shows an inode under a name.
    ///
    /// Errors: [`Refusal::Corrupt`], and what the view says.
    pub fn need(
        &self,
        container: ContainerId,
        view: &mut dyn View,
        index: InodeIndex,
    ) -> Result<bool, Refusal> {
        for (at, checkpoint) in &self.all {
            if checkpoint.fate == Fate::Leaves || !checkpoint.has(index) {
                continue;
            }
            let key = Key::Inode(index).encode();
            let mut past = PastView::new(container, *at, view);
            let row = past.get(container, &key)?;
            if let Some(refused) = past.refused {
                return Err(refused);
            }
            let Some(row) = row else { continue };
            if record::decode_inode(container, &key, &row)?.nlink > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What goes into the record of a batch so that the newest checkpoint stays what it is. The view has everything before the
/// batch.
///
/// Errors: [`Refusal::Corrupt`], and what the view says.
pub fn keep_rows(
    checkpoints: &mut Checkpoints,
    container: ContainerId,
    batch: &Batch,
    view: &mut dyn View,
) -> Result<Vec<Mutation>, Refusal> {
    let Some((at, newest)) = checkpoints.newest() else {
        return Ok(Vec::new());
    };
    let newest = *newest;
    let mut kept = Vec::new();
    for mutation in &batch.mutations {
        let Some(key) = Key::decode(&mutation.key).filter(Key::is_of_past) else {
            continue;
        };
        // What was made since, and what is about it, no checkpoint leads to.
        if key.inode().is_none_or(|index| !newest.has(index)) {
            continue;
        }
        if checkpoints.known.contains(&mutation.key) && !planted!(checkpoints, KeptAgain) {
            continue;
        }
        if planted!(checkpoints, RemovedRowNotKept) && mutation.value.is_none() {
            continue;
        }
        let since = match planted!(checkpoints, OlderCountsAsKept) {
            true => CheckpointId(0),
            false => at,
        };
        let (from, to) = key::kept_since(&mutation.key, since);
        let is_kept =
            !planted!(checkpoints, KeptAgain) && !view.scan(container, &from, &to, 1)?.is_empty();
        checkpoints.know(mutation.key.clone());
        if is_kept {
            continue;
        }
        let was = view.get(container, &mutation.key)?;
        let value = Some(encode_kept(was.as_deref()));
        let key = Key::Kept(Box::new(key), at).encode();
        kept.push(Mutation { key, value });
    }
    Ok(kept)
}
