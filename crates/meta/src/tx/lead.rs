//! The coordinator's side of a transaction.
//!
//! Its own part is held in memory until the decision's record carries it: a crash before that record is an abort.

use super::owner::{RETELL, Step, Tell, Telling, Transactions, Verdict, When};
use super::{Decision, Intent, ReadSet, decide, decision, forget};
use crate::error::Refusal;
use crate::owner_view::Read;
use crate::planted;
use crate::view::View;
use perigee_types::{Batch, ContainerId, Epoch, Tick, TxId};
use std::collections::{BTreeMap, BTreeSet};

/// A transaction whose participants are to prepare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The transaction.
    pub tx: TxId,
    /// What each of the others is to prepare.
    pub intents: Vec<(ContainerId, Intent)>,
}

/// A participant's vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// Its intent is on every member of its chain.
    Yes,
    /// Something that was read has changed, or another transaction holds a key; or there was no answer.
    No,
}

/// How the votes stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Some are missing.
    Open,
    /// All said yes: [`Transactions::decide`].
    Unanimous,
    /// All are there, or there is no such transaction any more, and it is aborted: [`Transactions::abandon`].
    Refused,
}

/// What a coordinator knows of a transaction's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It has ended so, for good.
    Ended(Verdict),
    /// It is being decided: ask again.
    Open,
}

/// A transaction that is not decided.
#[derive(Debug)]
pub(super) struct Led {
    epoch: Epoch,
    /// What a commit does in the coordinator's container.
    own: Batch,
    participants: BTreeSet<ContainerId>,
    missing: BTreeSet<ContainerId>,
    refused: bool,
}

impl Transactions {
    /// Numbers a transaction, divides an outcome among its containers, and locks this one's keys.
    ///
    /// `reads`: what the operation has read here. `foreign`: what it has read elsewhere.
    pub fn begin(
        &mut self,
        epoch: Epoch,
        reads: &[Read],
        foreign: &ReadSet,
        mut batches: BTreeMap<ContainerId, Batch>,
    ) -> Plan {
        self.count += 1;
        let number_again = planted!(self, NumberUsedAgain);
        let tx = TxId {
            container: self.container,
            epoch: if number_again { Epoch(0) } else { epoch },
            count: self.count,
        };
        let own = batches.remove(&self.container).unwrap_or_default();
        let mut read_by = foreign.by_container();
        let others: BTreeSet<ContainerId> = read_by.keys().chain(batches.keys()).copied().collect();
        let mut participants: Vec<ContainerId> = others.iter().copied().collect();
        participants.push(self.container);
        let intents = others
            .iter()
            .map(|container| {
                let intent = Intent {
                    tx,
                    coordinator: self.container,
                    participants: participants.clone(),
                    batch: batches.remove(container).unwrap_or_default(),
                    reads: read_by.remove(container).unwrap_or_default(),
                };
                (*container, intent)
            })
            .collect();
        if !planted!(self, OwnPartNotLocked) {
            self.held.hold(tx, Self::locks(reads, &own));
        }
        let led = Led {
            epoch,
            own,
            missing: others.clone(),
            participants: others,
            refused: false,
        };
        self.led.insert(tx, led);
        Plan { tx, intents }
    }

    /// How the votes about a transaction stand.
    #[must_use]
    pub fn count(&self, tx: TxId) -> Count {
        match self.led.get(&tx) {
            None => Count::Refused,
            Some(led) if !led.missing.is_empty() => Count::Open,
            Some(led) if led.refused => Count::Refused,
            Some(_) => Count::Unanimous,
        }
    }

    /// A participant has voted, or has not answered, which counts as no.
    pub fn vote(&mut self, tx: TxId, from: ContainerId, vote: Vote) -> Count {
        let early = planted!(self, DecidedWithoutAll);
        if let Some(led) = self.led.get_mut(&tx) {
            led.missing.remove(&from);
            led.refused |= vote == Vote::No;
            if early && vote == Vote::Yes {
                led.missing.clear();
            }
        }
        self.count(tx)
    }

    /// The record that commits a transaction, this container's part included; `None` when it cannot be committed any
    /// more. The epoch in which it began must still be the owner's: an answer of a later one may have been "aborted".
    ///
    /// Once the record is ordered: [`Self::decided`]. Else: [`Self::abandon`].
    #[must_use]
    pub fn decide(&self, tx: TxId, epoch: Epoch) -> Option<Batch> {
        let led = self.led.get(&tx)?;
        if led.epoch != epoch {
            return None;
        }
        let mut batch = led.own.clone();
        let participants = led.participants.iter().copied().collect();
        let decision = decide(tx, Decision::Commit { participants });
        batch.mutations.extend(decision.mutations);
        Some(batch)
    }

    /// The record of [`Self::decide`] is ordered: what it changed can be seen by programs of this host. The program is
    /// answered, and the participants are told, when the step says so; then they are to confirm.
    pub fn decided(&mut self, now: Tick, tx: TxId) -> Step<Tell> {
        let led = self.led.remove(&tx);
        let left = led.map_or_else(BTreeSet::new, |led| led.participants);
        self.release(tx);
        let participants = left.iter().copied().collect();
        self.telling.insert(tx, Telling { left, told: now });
        let early = planted!(self, DecidedBeforeReplicated);
        Step {
            record: None,
            when: if early { When::Now } else { When::Replicated },
            say: Tell {
                tx,
                verdict: Verdict::Commit,
                participants,
            },
        }
    }

    /// Gives a transaction up. Telling the participants is a courtesy: who asks finds no decision.
    pub fn abandon(&mut self, plan: &Plan) -> Tell {
        self.release(plan.tx);
        Tell {
            tx: plan.tx,
            verdict: Verdict::Abort,
            participants: plan.intents.iter().map(|(id, _)| *id).collect(),
        }
    }

    /// A participant has ended its part of a committed transaction. When it was the last, nobody can ask any more: gives
    /// the record that removes the decision.
    pub fn confirmed(&mut self, tx: TxId, from: ContainerId) -> Option<Batch> {
        let telling = self.telling.get_mut(&tx)?;
        telling.left.remove(&from);
        if !telling.left.is_empty() && !planted!(self, DecisionForgotten) {
            return None;
        }
        self.telling.remove(&tx);
        Some(forget(tx))
    }

    /// Participants that have not confirmed a commit and were told long ago, or by an earlier owner: to be told again. A
    /// decision that has none left is confirmed by the coordinator itself.
    pub fn untold(&mut self, now: Tick) -> Step<Vec<Tell>> {
        let mut say = Vec::new();
        for (tx, telling) in &mut self.telling {
            if telling.told != Tick(0) && now.since(telling.told) <= RETELL {
                continue;
            }
            telling.told = now;
            say.push(Tell {
                tx: *tx,
                verdict: Verdict::Commit,
                participants: telling.left.iter().copied().collect(),
            });
        }
        Step {
            record: None,
            when: When::Replicated,
            say,
        }
    }

    /// Answers a participant in doubt. Without a decision the answer is "aborted": a transaction of an earlier epoch cannot
    /// be decided any more, because its owner is fenced, and one of this epoch is not begun twice.
    pub fn decision(&self, view: &mut dyn View, tx: TxId) -> Result<Step<Known>, Refusal> {
        if self.led.contains_key(&tx) && !planted!(self, UndecidedIsAborted) {
            return Ok(Step {
                record: None,
                when: When::Now,
                say: Known::Open,
            });
        }
        let verdict = match decision(view, tx)? {
            Some(Decision::Commit { .. }) => Verdict::Commit,
            Some(Decision::Abort) | None => Verdict::Abort,
        };
        Ok(Step {
            record: None,
            when: When::Replicated,
            say: Known::Ended(verdict),
        })
    }
}
