//! What goes in and out of a [`Chain`](crate::Chain): records, messages, disk writes, views, faults.

use bytes::Bytes;
use perigee_types::{Epoch, NodeId, Seq, Span, Tick, Version};
use serde::{Deserialize, Serialize};

/// One record of the log. An empty payload is the start of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place, and the epoch in which it was first ordered.
    pub version: Version,
    /// What the driver proposed.
    pub payload: Bytes,
}

/// What this node's disk holds of a container's log: everything that finished writes put there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardState {
    /// No message of an older epoch is answered. Zero: this storage never took part in the chain.
    pub promised: Epoch,
    /// Whether this storage ever held everything that a member must hold. One that a view lists, and that does not
    /// say so, was wiped: its node must not vote, promise or own.
    pub complete: bool,
    /// The newest view under which anything was written here: see [`crate::rebuild`].
    pub view: Option<ChainView>,
    /// Known to be committed: a lower bound, and at least every record that the disk has the effects of (in the
    /// applied state, or in the map of the objects), since those are committed ones only.
    pub committed: Seq,
    /// The last record that was trimmed: the applied state includes everything up to it.
    pub base: Version,
    /// The records after `base`.
    pub entries: Vec<Entry>,
}

/// Who holds a container, as the control store says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainView {
    /// Rises with every change.
    pub epoch: Epoch,
    /// The members; the first one owns.
    pub chain: Vec<NodeId>,
}

impl ChainView {
    /// The node that owns, if any.
    #[must_use]
    pub fn owner(&self) -> Option<NodeId> {
        self.chain.first().copied()
    }

    /// Whether `node` is a member.
    #[must_use]
    pub fn lists(&self, node: NodeId) -> bool {
        self.chain.contains(&node)
    }

    /// Whether `node` is the only member.
    #[must_use]
    pub fn is_alone(&self, node: NodeId) -> bool {
        self.chain == [node]
    }

    /// The view of the next epoch with these members.
    #[must_use]
    pub fn successor(&self, chain: Vec<NodeId>) -> Self {
        Self {
            epoch: self.epoch.next(),
            chain,
        }
    }
}

/// What nodes of one chain say to each other. Loss, repetition and reordering are allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The owner's records after `prev`; without records a heartbeat.
    Append {
        /// The sender's view, in which it owns: a receiver that has an older one learns it here.
        view: ChainView,
        /// The record before the first of `entries`; the receiver must hold it.
        prev: Version,
        /// Consecutive records.
        entries: Vec<Entry>,
        /// Everything up to here is committed.
        commit: Seq,
        /// To a joiner: it is awaited, and then listed, once it has records and data up to here, and has noted so.
        admit: Option<Seq>,
        /// The owner's clock; comes back in the answer.
        sent_at: Tick,
    },
    /// The receiver's disk holds the owner's log up to `durable`; grants a lease counted from `sent_at`.
    AppendAck {
        /// Of the owner that is answered.
        epoch: Epoch,
        /// Equal to the owner's log, and on disk, up to here.
        durable: Seq,
        /// It has the bytes of every data command up to here, on disk. A joiner says so of the place of its
        /// admission only when its storage is noted as complete.
        data: Seq,
        /// From the message that is answered.
        sent_at: Tick,
    },
    /// The records do not fit, or the sender does not own; grants nothing.
    AppendRefused {
        /// Of the owner that is answered.
        epoch: Epoch,
        /// Why.
        reason: Refusal,
        /// From the message that is answered.
        sent_at: Tick,
    },
    /// The owner's log does not reach back far enough for this receiver: it must fetch the state.
    StateNeeded {
        /// The sender's view, in which it owns.
        view: ChainView,
        /// Where the log ended that did not fit: this is not about one that ends elsewhere.
        last: Version,
        /// The owner's clock: what the receiver has answered since, it must not discard.
        sent_at: Tick,
    },
    /// The owner serves no more on the word of this receiver, which is to propose itself.
    Cede {
        /// The sender's view, in which it owned.
        view: ChainView,
        /// The last record, which every member has.
        last: Version,
        /// The owner's clock: not heeded by who has acknowledged anything that was sent later.
        sent_at: Tick,
    },
}

/// Why records were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The log ends before `prev`.
    Gap {
        /// The last record here.
        last: Version,
    },
    /// Another record stands in the place of `prev`.
    Mismatch {
        /// The place of `prev`.
        at: Seq,
        /// Up to here the logs are equal.
        committed: Seq,
        /// The last record here.
        last: Version,
    },
    /// A later epoch has begun.
    StaleEpoch {
        /// The epoch that the receiver knows.
        promised: Epoch,
    },
    /// The receiver is a listed member, but its storage is empty: it must be removed and join again.
    Lost,
    /// A state is on its way here.
    Installing,
}

/// Names one write to disk. Writes finish in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PersistId(pub u64);

/// A change of [`HardState`], wholly done or not at all: first the truncation, then the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogWrite {
    /// Removes this record and all later ones.
    pub truncate_from: Option<Seq>,
    /// Records to add at the end.
    pub append: Vec<Entry>,
    /// The new promise, if it changes.
    pub promised: Option<Epoch>,
    /// The storage is complete from now on.
    pub complete: bool,
    /// The view under which this is written, if it is newer than that of the writes before.
    pub view: Option<ChainView>,
    /// The new lower bound of what is committed.
    pub committed: Seq,
    /// Records up to here may be dropped. The applied state up to here must be durable no later than this.
    pub trim_through: Option<Seq>,
}

impl LogWrite {
    /// Performs the write on a copy of the disk's state: what a driver's storage must do.
    pub fn apply(&self, state: &mut HardState) {
        if let Some(from) = self.truncate_from {
            state.entries.retain(|entry| entry.version.seq < from);
        }
        state.entries.extend(self.append.iter().cloned());
        if let Some(promised) = self.promised {
            state.promised = promised;
        }
        state.complete |= self.complete;
        if let Some(view) = &self.view {
            state.view = Some(view.clone());
        }
        state.committed = state.committed.max(self.committed);
        if let Some(through) = self.trim_through {
            let kept = state.entries.partition_point(|e| e.version.seq <= through);
            if let Some(last) = state.entries.drain(..kept).next_back() {
                state.base = last.version;
            }
        }
    }
}

/// The control store's answer to a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CasOutcome {
    /// The proposed view is the current one.
    Won,
    /// The current view has another epoch than expected.
    Lost(ChainView),
    /// It may have been done, or may yet be.
    Unknown,
    /// It was not done, and will not be.
    Unavailable,
}

/// An event for [`Chain::step`](crate::Chain::step).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The control store's view: at the start (read after this process started) and at every change.
    View(ChainView),
    /// Send and persist what was proposed.
    Flush,
    /// Tell the members now what is committed, not with the next heartbeat: their data waits for it.
    Announce,
    /// A message arrived.
    Receive {
        /// Its authenticated sender.
        from: NodeId,
        /// What it says.
        message: Message,
    },
    /// This write, and each earlier one, is on disk.
    Persisted(PersistId),
    /// A write failed: what the disk holds is unknown.
    PersistFailed,
    /// The answer to the last [`Output::ProposeView`]. Each proposal gets one answer.
    ViewDecided(CasOutcome),
    /// Time has passed.
    Tick,
    /// The transport says that nothing listens there (refused, reset).
    Unreachable(NodeId),
    /// A live node that is to join: the owner begins to bring it up.
    Candidate(NodeId),
    /// A member or candidate that is to leave: the owner proposes a chain without it.
    Dismiss(NodeId),
    /// This node is to leave, and orders nothing meanwhile: an owner whose members have everything proposes a chain
    /// without itself. Without effect while one of them lacks something; to be given again until the role changes.
    HandOver,
    /// The container is to belong to this member, and this node orders nothing meanwhile: an owner whose members have
    /// everything gives up its lease, and lets that one propose itself. Without effect while one of them lacks something,
    /// or was not heard lately. Who has given up its lease is [`Role::Suspended`] until it knows how that went.
    Cede {
        /// Which member.
        heir: NodeId,
        /// The last record with data that is not known to be on every disk.
        data: Seq,
    },
    /// The bytes of every data command up to here are on this node's disk. May go back; a truncation and an
    /// installed state set it to zero until this is given again.
    DataThrough(Seq),
    /// What the disk knows of the objects, as of this record, survives a crash: the bytes that are here, and the
    /// map of those that are not. Records after it are kept for a restart.
    Synced(Seq),
    /// The state that [`Output::NeedState`] asked for is on disk, in place of everything before; the log there is
    /// empty after `base`.
    StateInstalled {
        /// The last record that the state includes; committed.
        base: Version,
    },
    /// That state could not be fetched; nothing was changed.
    StateFailed,
}

/// What the driver is to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this; it may be lost.
    Send {
        /// Receiver.
        to: NodeId,
        /// What to say.
        message: Message,
    },
    /// Write this, then give [`Input::Persisted`] with its number.
    Persist {
        /// Its number.
        id: PersistId,
        /// What to write.
        write: LogWrite,
    },
    /// Everything up to here is committed: apply it, reading `chain.entries(..)` before the next step.
    Committed {
        /// The last one.
        through: Seq,
    },
    /// These records will be gone from the log with the next write. Regions that they changed are invalid (F3),
    /// and must be so on disk no later than that write.
    Truncated {
        /// In order.
        entries: Vec<Entry>,
        /// What content those regions need: later than all that this log still holds.
        needed: Version,
    },
    /// Compare-and-set in the control store: the view becomes `view` if its epoch is `expect`.
    ProposeView {
        /// The epoch that must be current.
        expect: Epoch,
        /// The new view.
        view: ChainView,
    },
    /// Read the view from the control store, and give it as [`Input::View`].
    ReadView,
    /// This node's part has changed.
    Role(Role),
    /// Fetch the state from this node, unless that is under way. Install it if
    /// [`Chain::accepts_state`](crate::Chain::accepts_state) says so, in turn with the writes of the log; then give
    /// [`Input::StateInstalled`], or else [`Input::StateFailed`]. Until then the log is left alone.
    NeedState {
        /// The owner.
        from: NodeId,
    },
    /// Something that must not happen did. After a fatal one the chain does nothing more.
    Fault(Fault),
}

/// This node's part in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// No part.
    Outside,
    /// Follows the owner.
    Replica {
        /// Who owns.
        owner: NodeId,
        /// Since.
        epoch: Epoch,
    },
    /// Won this epoch; the members' logs are being made equal.
    Reconciling {
        /// The epoch.
        epoch: Epoch,
    },
    /// Owns, and holds the members' leases.
    Owner {
        /// The epoch.
        epoch: Epoch,
    },
    /// Not listed, but the owner sends to it.
    Joining {
        /// Who owns.
        owner: NodeId,
    },
    /// Won this epoch and served in it, but has no leases now.
    Suspended {
        /// The epoch.
        epoch: Epoch,
    },
    /// First in the chain, in an epoch that this process did not win: it will propose the next one.
    Returning,
}

impl Role {
    /// Whether what this node's own programs keep unasked holds: only while this node has the members' leases. One that
    /// reconciles has none of its new epoch, may never get them, and nobody says when those of the old one end.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Owner { .. })
    }
}

/// A broken promise of the disk, of the control store, or of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Fatal: the owner wants to replace a record that is committed here.
    #[error("record `{held}` is committed, and the owner of {epoch} has another one in its place")]
    CommittedConflict {
        /// What is here.
        held: Version,
        /// Who wants to replace it.
        epoch: Epoch,
    },
    /// Fatal: a write of the log failed.
    #[error("a write of the replication log failed")]
    PersistFailed,
    /// Fatal: an installed state is older than what is committed, or was acknowledged, here.
    #[error("installed state ends at `{base}`, but `{committed}` was acknowledged here")]
    StateTooOld {
        /// Where the state ends.
        base: Version,
        /// What must not be lost.
        committed: Seq,
    },
    /// The control store's view is older than one seen before: restored from a backup?
    #[error("control store went back to {got}; this node knows {held}")]
    ViewWentBack {
        /// The highest epoch known here.
        held: Epoch,
        /// The epoch that the store gave.
        got: Epoch,
    },
}

impl Fault {
    /// Whether the chain stops.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        !matches!(self, Self::ViewWentBack { .. })
    }
}

/// A proposal was refused: this node is not an owner with leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node does not own the container now")]
pub struct NotOwner;

/// How far a member or joiner is, as its owner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberProgress {
    /// The node.
    pub node: NodeId,
    /// Listed, or on its way.
    pub standing: Standing,
    /// Its log is durable up to here.
    pub durable: Seq,
    /// Its data is on disk up to here.
    pub data: Seq,
    /// How long nothing was heard from it.
    pub silent_for: Span,
}

/// Where a node stands on its way into the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Listed.
    Member,
    /// Receives the log; nothing waits for it.
    CatchingUp,
    /// Has the log, and fetches the data up to `frontier`; nothing waits for it yet. What was written meanwhile is the
    /// next round's.
    Filling {
        /// The last record when the round began.
        frontier: Seq,
        /// When that was.
        since: Tick,
        /// How long the round before this one took.
        before: Option<Span>,
    },
    /// Commits wait for it too; it is listed once it has the data up to `frontier`.
    Admitting {
        /// The last record when commits began to wait for it.
        frontier: Seq,
    },
}

/// Whether a version is in this node's committed log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// It is, and stays.
    Yes,
    /// It may come to be.
    NotYet,
    /// Another history has its place.
    Never,
}
