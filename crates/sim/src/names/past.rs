//! Checkpoints of containers in the histories that are meant for them: owners make them, keep what changes replace, and
//! remove those that are wanted no more, step by step.

use super::Mark;
use super::chain::Haste;
use super::host::Committed;
use super::world::{Event, Names};
use crate::world::{SECOND, host_of};
use perigee_meta::owner_view::Foreign;
use perigee_meta::past::{Checkpoint, Checkpoints, Fate, Left, keep_rows, leave_rows};
use perigee_meta::{Key, OwnerView, Plant};
use perigee_types::{Batch, CheckpointId, ContainerId, Mutation, SnapshotId, WallTime};

/// The shortest pause between two checkpoints of any container.
const PAUSE_US: u64 = 50_000;
/// Checkpoints of one container, at most.
const WANTED_MAX: usize = 4;
/// Kept rows that one step of a removal looks at.
const STEP_ROWS: usize = 4;
/// The pause between two steps.
const STEP_US: u64 = 20_000;

/// Whether there are checkpoints in a seed's history.
pub(super) const fn keeps(seed: u64) -> bool {
    seed % 4 == 2
}

/// How far an owner has come with the rows of a checkpoint that leaves.
#[derive(Debug, Clone, Default)]
pub struct Leaving {
    at: Option<CheckpointId>,
    after: Option<Vec<u8>>,
}

impl Names {
    /// The owner of some container makes a checkpoint, or gives one up.
    pub(super) fn keep_some(&mut self) {
        if self.calm {
            return;
        }
        let next = PAUSE_US + self.rng.below(SECOND);
        self.after(next, Event::Keep);
        let containers = self.containers();
        let container = containers[self.rng.below(containers.len() as u64) as usize];
        let Some(host) = self.owner_of(container) else {
            return;
        };
        let staying: Vec<(CheckpointId, Checkpoint)> = self
            .member(host, container)
            .checkpoints
            .iter()
            .filter(|(_, checkpoint)| checkpoint.fate == Fate::Stays)
            .map(|(at, checkpoint)| (at, *checkpoint))
            .collect();
        let gives_up = !staying.is_empty() && self.rng.chance(2, 5);
        if staying.len() >= WANTED_MAX || gives_up {
            let which = self.rng.below(staying.len() as u64) as usize;
            let (at, mut checkpoint) = staying[which];
            checkpoint.fate = Fate::Leaves;
            self.order_rows(host, container, vec![checkpoint.row(at)]);
            return self.after(STEP_US, Event::Leave { container });
        }
        let member = self.member(host, container);
        let at = CheckpointId(member.chain.last().seq.next().0);
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let (snapshot, taken) = (SnapshotId(at.0), WallTime::default());
        match Checkpoints::take(container, &mut view, snapshot, taken) {
            Ok(checkpoint) => {
                self.order_rows(host, container, vec![checkpoint.row(at)]);
                self.note(Mark::Checkpoint);
            }
            Err(refusal) => self.accuse("past", refusal.to_string()),
        }
    }

    fn owner_of(&mut self, container: ContainerId) -> Option<usize> {
        let owner = *self.stores[&container].view.chain.first()?;
        let host = host_of(owner);
        let runs = self.hosts[host].run.is_some();
        (runs && self.reign(host, container).is_some()).then_some(host)
    }

    fn order_rows(&mut self, host: usize, container: ContainerId, mutations: Vec<Mutation>) {
        let data = Vec::new();
        self.order(host, container, &Batch { mutations, data }, Haste::None);
    }

    /// The batch with what it has to keep for the newest checkpoint.
    pub(super) fn with_kept(
        &mut self,
        host: usize,
        container: ContainerId,
        batch: &Batch,
    ) -> Option<Batch> {
        let member = self.member(host, container);
        if member.checkpoints.is_empty() {
            return None;
        }
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        match keep_rows(&mut member.checkpoints, container, batch, &mut view) {
            Ok(kept) if kept.is_empty() => None,
            Ok(kept) => {
                let mut with = batch.clone();
                with.mutations.extend(kept);
                self.note(Mark::RowKept);
                Some(with)
            }
            Err(refusal) => {
                self.accuse("past", refusal.to_string());
                None
            }
        }
    }

    /// A record is ordered: which checkpoints there are may have changed.
    pub(super) fn note_checkpoints(&mut self, host: usize, container: ContainerId, batch: &Batch) {
        let noted = self
            .member(host, container)
            .checkpoints
            .on_batch(container, batch);
        if let Err(refusal) = noted {
            self.accuse("past", refusal.to_string());
        }
    }

    /// A new owner learns which checkpoints there are.
    pub(super) fn load_checkpoints(&mut self, host: usize, container: ContainerId) {
        let plant = self.plant;
        let forgets = self.planted(Plant::CheckpointsNotRestored);
        let member = self.member(host, container);
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let loaded = match Checkpoints::load(container, &mut view) {
            Ok(_) if forgets => Checkpoints::default(),
            Ok(loaded) => loaded,
            Err(refusal) => return self.accuse("past", refusal.to_string()),
        };
        let some = !loaded.is_empty();
        member.checkpoints = loaded.with_plant(plant);
        member.leaving = Leaving::default();
        if some {
            self.note(Mark::CheckpointRestored);
            self.after(STEP_US, Event::Leave { container });
        }
    }

    /// A step of the removal of a checkpoint that is wanted no more, at whoever owns now.
    pub(super) fn leave_some(&mut self, container: ContainerId) {
        let Some(host) = self.owner_of(container) else {
            return;
        };
        let member = self.member(host, container);
        let mut all = member.checkpoints.iter();
        let leaves = all.find(|(_, checkpoint)| checkpoint.fate == Fate::Leaves);
        let Some((at, _)) = leaves else { return };
        drop(all);
        let after = match &member.leaving {
            Leaving {
                at: Some(of),
                after,
            } if *of == at => after.clone(),
            _ => None,
        };
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let place = (container, at);
        let left = leave_rows(
            &member.checkpoints,
            place,
            &mut view,
            after.as_deref(),
            STEP_ROWS,
        );
        let Left {
            mut mutations,
            next,
        } = match left {
            Ok(left) => left,
            Err(refusal) => return self.accuse("past", refusal.to_string()),
        };
        if next.is_none() {
            let key = Key::Checkpoint(at).encode();
            mutations.push(Mutation { key, value: None });
        }
        member.leaving = Leaving {
            at: Some(at),
            after: next.clone(),
        };
        self.order_rows(host, container, mutations);
        if next.is_none() {
            self.note(Mark::CheckpointGone);
        }
        self.after(STEP_US, Event::Leave { container });
    }
}
