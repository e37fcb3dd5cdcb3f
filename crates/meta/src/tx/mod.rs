//! Transactions over several containers: what their logs record.
//!
//! Two-phase commit with presumed abort (Mohan, Lindsay and Obermarck, TODS 1986), between
//! containers rather than machines: each participant is a replicated log, so none is ever lost.
//!
//! 1. The driver executes an operation on a view that spans containers and keeps the [`ReadSet`].
//!    One container (the **coordinator**, usually the one that most keys are in) numbers the
//!    transaction: [`TxId`] = (coordinator, epoch of its owner, a count that is never used twice).
//! 2. Each other participant's owner gets its [`Intent`]; [`prepare`] validates what was read and
//!    that no other intent locks a key, and its batch records the intent. Once that record is on
//!    the whole chain the owner answers "prepared". From here on its [`locked_keys`] are locked: by
//!    whoever owns the container, until the intent is gone.
//! 3. When all have prepared, the coordinator validates its own part by [`prepare`] too, and logs
//!    [`decide`]`(Commit)` together with its own effects in one record (it needs no stored intent).
//!    **When that record is on the whole chain the transaction is committed**, and the program is
//!    answered. If any participant refuses, nothing is logged at the coordinator: no decision is
//!    the decision to abort; the participants are told, as a courtesy.
//! 4. Each participant logs [`commit`] (the stored batch, and the end of the intent) or [`abort`],
//!    and confirms once that is on its whole chain.
//! 5. When every participant has confirmed a commit, the coordinator's owner removes the decision
//!    ([`forget`]). It needs the list of participants for that: a [`Decision::Commit`] carries it.
//!
//! Recovery. A participant's owner that finds an intent (after a take-over, or because it heard
//! nothing for long) asks the coordinator's present owner. That one answers from [`decision`];
//! without one, "abort" if it has no such transaction under way in memory, else "wait". The answer
//! "abort" is final: a transaction of an earlier epoch cannot be decided any more because its owner
//! is fenced, and one of this epoch is not begun twice. A coordinator's owner that takes over sends
//! the commits of all stored decisions anew; [`commit`] does nothing when the intent is gone.
//!
//! [`Transactions`] decides all of this for one owner; the functions here are what the records say.

mod held;
mod lead;
mod owner;
mod part;

pub use lead::{Count, Known, Plan, Vote};
pub use owner::{DOUBT, RETELL, Step, Tell, Transactions, Turn, Verdict, When};

use crate::error::Refusal;
use crate::key::{self, Key};
use crate::record;
use crate::view::View;
use perigee_types::{Batch, ContainerId, Mutation, TxId};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use std::collections::BTreeMap;

/// The most intents and decisions that are looked at in one container.
const TRANSACTIONS_MAX: usize = 65_536;

/// A hash of a stored value, the same on every node and in every version.
#[must_use]
pub fn value_hash(value: &[u8]) -> u64 {
    SipHasher24::new_with_keys(0x7065_7269_6765_6520, 0x7265_6164_2073_6574).hash(value)
}

/// Keys of one container that were read, and the hash of each value, if there was one.
pub type Reads = Vec<(Vec<u8>, Option<u64>)>;

/// What an operation read: container, key, and hash of the value, if it had one.
///
/// Scans need no entry: every change of a directory's entries or of an inode's attributes also
/// changes the inode's record, which every operation that scans reads as well.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReadSet(pub Vec<(ContainerId, Vec<u8>, Option<u64>)>);

impl ReadSet {
    /// Notes that `key` was read, and had this value.
    pub fn note(&mut self, container: ContainerId, key: &[u8], value: Option<&[u8]>) {
        self.0
            .push((container, key.to_vec(), value.map(value_hash)));
    }

    /// The containers that were read, and what was read in each, without repetition.
    #[must_use]
    pub fn by_container(&self) -> BTreeMap<ContainerId, Reads> {
        let mut keys: BTreeMap<ContainerId, BTreeMap<Vec<u8>, Option<u64>>> = BTreeMap::new();
        for (container, key, hash) in &self.0 {
            keys.entry(*container)
                .or_default()
                .insert(key.clone(), *hash);
        }
        keys.into_iter()
            .map(|(container, keys)| (container, keys.into_iter().collect()))
            .collect()
    }
}

/// One container's part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The transaction.
    pub tx: TxId,
    /// Where the decision will be; the same as `tx.container`.
    pub coordinator: ContainerId,
    /// All containers with a part, the coordinator among them.
    pub participants: Vec<ContainerId>,
    /// What a commit does here. Empty for a container that was only read.
    pub batch: Batch,
    /// What was read here.
    pub reads: Reads,
}

/// How a key is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyLock {
    /// It was read: nobody may change it.
    Shared,
    /// It will change: nobody may change it, nor show its value.
    Exclusive,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// These containers shall do their part.
    Commit {
        /// All but the coordinator, whose part was done with the decision.
        participants: Vec<ContainerId>,
    },
    /// Nothing shall be done. Rarely stored: no decision means the same.
    Abort,
}

/// Why a part cannot be prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A value is not what the operation read: run it again.
    #[error("key {key:02x?} has changed since it was read")]
    Changed {
        /// The key.
        key: Vec<u8>,
    },
    /// Another transaction has the key: try again when it has ended.
    #[error("key {key:02x?} is locked by {by}")]
    Locked {
        /// The key.
        key: Vec<u8>,
        /// Who has it.
        by: TxId,
    },
    /// The state could not be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<crate::view::Missing> for Conflict {
    fn from(missing: crate::view::Missing) -> Self {
        Self::Refused(missing.into())
    }
}

/// The keys that an intent locks, and how.
#[must_use]
pub fn locked_keys(intent: &Intent) -> BTreeMap<Vec<u8>, KeyLock> {
    let mut keys = BTreeMap::new();
    for (key, _) in &intent.reads {
        keys.insert(key.clone(), KeyLock::Shared);
    }
    for mutation in &intent.batch.mutations {
        keys.insert(mutation.key.clone(), KeyLock::Exclusive);
    }
    keys
}

/// Validates one container's part, and gives the batch that records it.
///
/// The same intent again gives the same batch again. Errors: see [`Conflict`].
pub fn prepare(
    view: &mut dyn View,
    container: ContainerId,
    intent: &Intent,
) -> Result<Batch, Conflict> {
    let wanted = locked_keys(intent);
    for other in intents(view, container)? {
        if other.tx == intent.tx {
            return Ok(recorded(intent));
        }
        for (key, held) in locked_keys(&other) {
            let Some(asked) = wanted.get(&key) else {
                continue;
            };
            if held == KeyLock::Exclusive || *asked == KeyLock::Exclusive {
                return Err(Conflict::Locked { key, by: other.tx });
            }
        }
    }
    for (key, hash) in &intent.reads {
        let value = view.get(container, key)?;
        if value.as_deref().map(value_hash) != *hash {
            return Err(Conflict::Changed { key: key.clone() });
        }
    }
    Ok(recorded(intent))
}

fn recorded(intent: &Intent) -> Batch {
    put(Key::Intent(intent.tx), record::encode_intent(intent))
}

fn put(key: Key, value: Vec<u8>) -> Batch {
    Batch {
        mutations: vec![Mutation {
            key: key.encode(),
            value: Some(value),
        }],
        data: Vec::new(),
    }
}

fn delete(key: Key) -> Mutation {
    Mutation {
        key: key.encode(),
        value: None,
    }
}

/// Does the part of a committed transaction, and ends the intent. Empty when it has ended before.
pub fn commit(view: &mut dyn View, container: ContainerId, tx: TxId) -> Result<Batch, Refusal> {
    let Some(intent) = intent(view, container, tx)? else {
        return Ok(Batch::default());
    };
    let mut batch = intent.batch;
    batch.mutations.push(delete(Key::Intent(tx)));
    Ok(batch)
}

/// Ends the intent of an aborted transaction. Empty when it has ended before.
pub fn abort(view: &mut dyn View, container: ContainerId, tx: TxId) -> Result<Batch, Refusal> {
    let mut batch = Batch::default();
    if intent(view, container, tx)?.is_some() {
        batch.mutations.push(delete(Key::Intent(tx)));
    }
    Ok(batch)
}

/// Records how a transaction ended; to be appended to the coordinator's own effects.
#[must_use]
pub fn decide(tx: TxId, decision: Decision) -> Batch {
    put(Key::Decision(tx), record::encode_decision(decision))
}

/// Removes a decision that nobody can ask for any more: every participant has confirmed it.
#[must_use]
pub fn forget(tx: TxId) -> Batch {
    Batch {
        mutations: vec![delete(Key::Decision(tx))],
        data: Vec::new(),
    }
}

/// The recorded decision about a transaction, from the state of `tx.container`.
pub fn decision(view: &mut dyn View, tx: TxId) -> Result<Option<Decision>, Refusal> {
    let key = Key::Decision(tx).encode();
    match view.get(tx.container, &key)? {
        Some(value) => Ok(Some(record::decode_decision(tx.container, &key, &value)?)),
        None => Ok(None),
    }
}

/// All decisions recorded in a container, for an owner that takes over.
pub fn decisions(
    view: &mut dyn View,
    container: ContainerId,
) -> Result<Vec<(TxId, Decision)>, Refusal> {
    let (from, to) = key::decisions();
    let mut found = Vec::new();
    for (key, value) in view.scan(container, &from, &to, TRANSACTIONS_MAX)? {
        let Some(Key::Decision(tx)) = Key::decode(&key) else {
            return Err(record::corrupt(
                container,
                &key,
                "not the key of a decision",
            ));
        };
        found.push((tx, record::decode_decision(container, &key, &value)?));
    }
    Ok(found)
}

/// The stored intent of a transaction.
pub fn intent(
    view: &mut dyn View,
    container: ContainerId,
    tx: TxId,
) -> Result<Option<Intent>, Refusal> {
    let key = Key::Intent(tx).encode();
    match view.get(container, &key)? {
        Some(value) => Ok(Some(record::decode_intent(container, &key, &value)?)),
        None => Ok(None),
    }
}

/// All intents stored in a container.
pub fn intents(view: &mut dyn View, container: ContainerId) -> Result<Vec<Intent>, Refusal> {
    let (from, to) = key::intents();
    view.scan(container, &from, &to, TRANSACTIONS_MAX)?
        .into_iter()
        .map(|(key, value)| record::decode_intent(container, &key, &value))
        .collect()
}
