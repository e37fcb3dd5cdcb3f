//! The transactions that are under way at the owner of one container, in one reign: what it leads, what it has
//! prepared for others, and which keys they hold.
//!
//! The driver asks ([`Transactions`]'s methods), orders the record of the [`Step`] that it gets, and says what the step
//! says when it may be said. All of one step happens before any other step of the container. When the container gets
//! another owner everything here is dropped; the new owner begins with [`Transactions::restore`].

use super::held::Held;
use super::lead::Led;
use super::{Decision, KeyLock, decisions, intents, locked_keys};
use crate::error::Refusal;
use crate::key::Key;
use crate::op::Outcome;
use crate::owner_view::{Foreign, Read};
#[cfg(feature = "plant")]
use crate::plant::Plant;
use crate::planted;
use crate::view::View;
use perigee_types::{Batch, ContainerId, Errno, InodeId, Span, Tick, TxId};
use std::collections::{BTreeMap, BTreeSet};

/// A transaction in doubt for longer asks its coordinator.
pub const DOUBT: Span = Span::from_millis(1_000);
/// A participant that has not confirmed for longer is told again.
pub const RETELL: Span = Span::from_millis(1_000);

/// When something may be said to another container, or to a program of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// When the record of the step is on the whole chain; where it has none, everything ordered so far.
    Replicated,
}

/// What an owner is to do: order the record, if there is one, then say something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<T> {
    /// To be ordered before anything else happens to the container.
    pub record: Option<Batch>,
    /// What saying it waits for.
    pub when: When,
    /// What is said.
    pub say: T,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Everyone does its part.
    Commit,
    /// Nobody does.
    Abort,
}

/// Participants that are to be told how a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tell {
    /// The transaction.
    pub tx: TxId,
    /// How it ended.
    pub verdict: Verdict,
    /// Whom to tell.
    pub participants: Vec<ContainerId>,
}

/// What one run of an operation at an owner comes to.
#[derive(Debug)]
pub enum Turn {
    /// The view has noted what it lacks of other containers: fetch it, and run the operation again.
    Fetch,
    /// A transaction holds what the operation needs: run it again later.
    Wait,
    /// Nothing changes.
    Answer(Result<Outcome, Errno>),
    /// This container alone changes: order its batch.
    Alone(Outcome),
    /// Other containers take part: [`Transactions::begin`].
    Spans(Outcome),
    /// The state holds what no operation writes; the program gets EIO.
    Corrupt(Refusal),
}

/// See the module.
#[derive(Debug)]
pub struct Transactions {
    pub(super) container: ContainerId,
    pub(super) held: Held,
    /// Prepared here for another container's transaction, and not ended: since when.
    pub(super) doubts: BTreeMap<TxId, Tick>,
    /// Coordinated here, and not decided.
    pub(super) led: BTreeMap<TxId, Led>,
    /// Committed by a record of this container, and not confirmed by all.
    pub(super) telling: BTreeMap<TxId, Telling>,
    /// How many transactions were numbered in this reign.
    pub(super) count: u64,
    #[cfg(feature = "plant")]
    pub(super) plant: Option<Plant>,
}

/// Who has not confirmed a commit, and when the last of them was told.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) left: BTreeSet<ContainerId>,
    pub(super) told: Tick,
}

impl Transactions {
    /// Of a container that has none.
    #[must_use]
    pub fn new(container: ContainerId) -> Self {
        Self {
            container,
            held: Held::default(),
            doubts: BTreeMap::new(),
            led: BTreeMap::new(),
            telling: BTreeMap::new(),
            count: 0,
            #[cfg(feature = "plant")]
            plant: None,
        }
    }

    /// Whose they are.
    #[must_use]
    pub fn container(&self) -> ContainerId {
        self.container
    }

    /// Switches a deliberate fault on.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// A reign begins: locks the keys of every intent that an earlier owner prepared, and remembers the decisions that it
    /// left. Both are due at once: see [`Self::doubts`] and [`Self::untold`].
    pub fn restore(mut self, view: &mut dyn View) -> Result<Self, Refusal> {
        for intent in intents(view, self.container)? {
            if planted!(self, IntentsForgotten) {
                continue;
            }
            if !planted!(self, LocksNotRestored) {
                self.held.hold(intent.tx, locked_keys(&intent));
            }
            self.doubts.insert(intent.tx, Tick(0));
        }
        for (tx, decision) in decisions(view, self.container)? {
            let left = match decision {
                Decision::Commit { participants } => participants.into_iter().collect(),
                Decision::Abort => BTreeSet::new(),
            };
            let told = Tick(0);
            self.telling.insert(tx, Telling { left, told });
        }
        Ok(self)
    }

    /// Whether no transaction holds any key.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether an inode's record is held, so that writes to it must not become a record now.
    #[must_use]
    pub fn holds_inode(&self, inode: InodeId) -> bool {
        !self.held.is_empty() && self.held.contains(&Key::Inode(inode.index()).encode())
    }

    /// Whether a transaction is about to change what was read.
    #[must_use]
    pub fn hides(&self, reads: &[Read]) -> bool {
        let hidden = self.held.hides(reads.iter().map(|(key, _)| key.as_slice()));
        hidden && !planted!(self, LockedIsShown)
    }

    /// What the run of an operation comes to. `reads`: what it has read of this container; may be empty while
    /// [`Self::is_idle`]. What it has read of others is for them to check, also when nothing changes there.
    #[must_use]
    pub fn judge(&self, reads: &[Read], foreign: &Foreign, ran: Result<Outcome, Refusal>) -> Turn {
        if matches!(ran, Err(Refusal::Missing(_))) {
            return Turn::Fetch;
        }
        if self.hides(reads) {
            return Turn::Wait;
        }
        let outcome = match ran {
            Ok(outcome) => outcome,
            Err(Refusal::Errno(errno)) => return Turn::Answer(Err(errno)),
            // Rows of other containers were read at several moments, and may not fit together.
            Err(_) if !foreign.gets.is_empty() => return Turn::Wait,
            Err(refusal) => return Turn::Corrupt(refusal),
        };
        let own = outcome.batches.get(&self.container);
        if own.is_some_and(|batch| self.held.forbids(batch)) {
            return Turn::Wait;
        }
        if outcome.batches.is_empty() {
            return Turn::Answer(Ok(outcome));
        }
        if own.is_none() || outcome.batches.len() > 1 || !foreign.gets.is_empty() {
            return Turn::Spans(outcome);
        }
        Turn::Alone(outcome)
    }

    /// Locks that a batch and its reads need.
    pub(super) fn locks(reads: &[Read], batch: &Batch) -> BTreeMap<Vec<u8>, KeyLock> {
        let shared = reads.iter().map(|(key, _)| (key.clone(), KeyLock::Shared));
        let mut locks: BTreeMap<_, _> = shared.collect();
        for mutation in &batch.mutations {
            locks.insert(mutation.key.clone(), KeyLock::Exclusive);
        }
        locks
    }

    pub(super) fn release(&mut self, tx: TxId) {
        self.held.release(tx);
        self.doubts.remove(&tx);
        self.led.remove(&tx);
    }
}
