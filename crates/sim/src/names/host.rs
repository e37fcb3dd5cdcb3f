//! A host: its clock, its disk, and while it runs, a process with a member of every container's chain and two sessions.

use super::attempt::Attempt;
use super::calls::{Asked, Call, CallId, Origin};
use super::leases::Debt;
use super::past::Leaving;
use super::session::Session;
use crate::clock::Clock;
use bytes::Bytes;
use perigee_meta::owner_view::Base;
use perigee_meta::past::Checkpoints;
use perigee_meta::tx::{Transactions, Verdict};
use perigee_meta::{Answers, Leases, Overlay, Touched};
use perigee_replica::{Chain, HardState, LogWrite, PersistId};
use perigee_types::{Batch, ContainerId, Seq, SessionId, Tick, TxId, Version};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

/// A container's key-value state.
pub type Rows = BTreeMap<Vec<u8>, Bytes>;

/// A committed state, as an operation reads it.
pub struct Committed<'a>(pub &'a Rows);

impl Base for Committed<'_> {
    type Error = Infallible;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Infallible> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Infallible> {
        if from >= to {
            return Ok(Vec::new());
        }
        let bounds = (
            std::ops::Bound::Included(from),
            std::ops::Bound::Excluded(to),
        );
        let rows = self.0.range::<[u8], _>(bounds).take(limit);
        Ok(rows
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect())
    }
}

/// Applies a record's effects.
pub fn apply(rows: &mut Rows, batch: &Batch) {
    for mutation in &batch.mutations {
        match &mutation.value {
            Some(value) => rows.insert(mutation.key.clone(), Bytes::copy_from_slice(value)),
            None => rows.remove(&mutation.key),
        };
    }
}

/// A record's payload.
///
/// # Panics
/// Never: a batch is plain data.
#[must_use]
pub fn encode(batch: &Batch) -> Bytes {
    Bytes::from(postcard::to_stdvec(batch).expect("a batch is plain data"))
}

/// A payload's effects; an empty one begins an epoch, and has none.
#[must_use]
pub fn decode(payload: &Bytes) -> Batch {
    postcard::from_bytes(payload).unwrap_or_default()
}

/// What a disk holds of one container.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    pub(crate) hard: HardState,
    /// The state as of `hard.base`.
    pub(crate) rows: Rows,
}

/// A write on its way to the disk; they are done in order, each wholly or not at all.
#[derive(Debug, Clone)]
pub enum Work {
    /// A change of a log.
    Log(PersistId, LogWrite),
    /// A state from the owner replaces everything before.
    Install(Version, Rows),
}

/// A host's disk.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub(crate) kept: BTreeMap<ContainerId, Kept>,
    pub(crate) queue: VecDeque<(ContainerId, Work)>,
}

impl Disk {
    /// Performs the oldest write.
    pub fn perform_next(&mut self) -> Option<(ContainerId, Work)> {
        let (container, work) = self.queue.pop_front()?;
        let kept = self.kept.entry(container).or_default();
        match &work {
            Work::Log(_, write) => {
                if let Some(through) = write.trim_through {
                    for entry in &kept.hard.entries {
                        if entry.version.seq <= through {
                            apply(&mut kept.rows, &decode(&entry.payload));
                        }
                    }
                }
                write.apply(&mut kept.hard);
            }
            Work::Install(base, rows) => {
                kept.hard.base = *base;
                kept.hard.committed = base.seq;
                kept.hard.entries.clear();
                kept.rows = rows.clone();
            }
        }
        Some((container, work))
    }

    /// The power fails: writes on their way are done up to a random one.
    pub fn crash(&mut self, rng: &mut perigee_types::Rng) {
        for _ in 0..rng.below(self.queue.len() as u64 + 1) {
            self.perform_next();
        }
        self.queue.clear();
    }
}

/// What happens when a record is replicated.
#[derive(Debug)]
pub enum Then {
    /// Somebody is answered.
    Answer(Origin, super::calls::Answer),
    /// A transaction's participants are told. With an attempt, its program is answered afterwards.
    Tell(perigee_meta::tx::Tell, Option<u64>),
    /// The record will not be replicated here: an attempt has lost its owner.
    Lost(u64),
    /// Nobody keeps what an attempt is about to change.
    Turn(u64),
    /// The same of what somebody asks for.
    Serve(Origin, Box<super::calls::Asked>),
    /// Nobody keeps anything: an owner may cede.
    Cede(super::moves::Heir),
}

/// One container on a running host.
pub struct Member {
    pub(crate) chain: Chain,
    /// The committed state, up to `applied`.
    pub(crate) rows: Rows,
    pub(crate) applied: Seq,
    /// The owner's records that are not committed.
    pub(crate) overlay: Overlay,
    pub(crate) transactions: Transactions,
    pub(crate) answers: Answers,
    pub(crate) leases: Leases,
    /// No change is taken before this moment: leases that an earlier process gave may stand.
    pub(crate) changes_from: Tick,
    /// It has ordered records, and has been owner without a break since.
    pub(crate) reigning: bool,
    pub(crate) waiters: BTreeMap<Seq, Vec<Then>>,
    pub(crate) cas: Option<u64>,
    pub(crate) reading: bool,
    pub(crate) installing: bool,
    /// What the chain was told to be on disk of the data, of which there is none.
    pub(crate) said_through: Seq,
    pub(crate) armed: u64,
    /// What an owner keeps of the past.
    pub(crate) checkpoints: Checkpoints,
    /// How far it has come with removing some of that.
    pub(crate) leaving: Leaving,
}

/// A running process.
#[derive(Default)]
pub struct Process {
    pub(crate) members: BTreeMap<ContainerId, Member>,
    /// Operations over several containers that are under way here.
    pub(crate) attempts: BTreeMap<u64, Attempt>,
    /// Questions to owners that are not answered.
    pub(crate) calls: BTreeMap<CallId, Call>,
    /// Changes that wait for sessions to forget.
    pub(crate) debts: BTreeMap<u64, Debt>,
    pub(crate) sessions: Vec<Session>,
}

/// A host.
pub struct Host {
    pub(crate) clock: Clock,
    pub(crate) disk: Disk,
    pub(crate) incarnation: u32,
    pub(crate) run: Option<Process>,
    pub(crate) paused_until: u64,
    pub(crate) slow_disk_us: u64,
    pub(crate) fail_next_write: bool,
    pub(crate) disk_free_at: u64,
    /// How often its sessions might have begun something.
    pub(crate) turns: u64,
}

/// What travels between hosts.
#[derive(Debug, Clone)]
pub enum Packet {
    /// The chain's.
    Chain(ContainerId, perigee_replica::Message),
    /// Ask the owner for the state.
    State(ContainerId),
    /// The state.
    StateIs(ContainerId, Version, Rows),
    /// A question to an owner.
    Ask(Origin, ContainerId, Asked),
    /// A session is to forget; the number names the change that waits for it.
    Forget(u64, SessionId, Vec<Touched>),
    /// It has.
    Forgotten(u64, SessionId),
    /// An owner's answer.
    Answer(Origin, super::calls::Answer),
}

/// How a transaction ended, in one word.
#[must_use]
pub fn word(tx: TxId, verdict: Verdict) -> String {
    format!("{tx} {verdict:?}")
}
