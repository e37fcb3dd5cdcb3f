//! One container's replication on one node: a state machine without I/O.
//!
//! The protocol is PacificA's (Lin et al., 2008): the chain and its epoch lie in the control store and change
//! only by compare-and-set; a record is committed when every member has it on disk; the owner's lease comes
//! from the members' answers, not from the control store. Log matching is Raft's. What keeps it safe:
//!
//! - Nothing is answered before what the answer promises is on disk (`follow`).
//! - A member that has proposed itself grants nothing until its proposal is decided, and proposes only when
//!   every lease that it granted has run out (`change`).
//! - A node acts as owner only in an epoch that it won in this process lifetime (`lead`).
//! - From the moment when a joiner may be listed, commits and leases wait for it too (`join`).
//!
//! Reading order: this file, `follow`, `lead`, `change`, `join`, `cede`.

mod cede;
mod change;
mod disk;
mod follow;
mod join;
mod lead;
#[cfg(test)]
mod tests;

use crate::log::Log;
use crate::message::{
    ChainView, Entry, Fault, HardState, Holds, Input, MemberProgress, Message, NotOwner, Output,
    PersistId, Role,
};
#[cfg(feature = "plant")]
use crate::plant::Plant;
use crate::timing::Timing;
use bytes::Bytes;
use change::Proposals;
use follow::Follow;
use lead::Reign;
use perigee_types::{Epoch, NodeId, Seq, Tick, Version};
use std::collections::VecDeque;

/// True when this deliberate fault is switched on; a constant `false` in a product build.
macro_rules! planted {
    ($chain:expr, $name:ident) => {{
        #[cfg(feature = "plant")]
        {
            $chain.plant == Some(crate::plant::Plant::$name)
        }
        #[cfg(not(feature = "plant"))]
        {
            false
        }
    }};
}
pub(crate) use planted;

/// The epoch of the view with which a container is made. Nobody owns in it: its first member wins the next one.
pub const FIRST_EPOCH: Epoch = Epoch(1);

/// Bounds of one chain's memory and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Committed records beyond this many bytes are trimmed: how far back a returning node can catch up.
    pub retain_bytes: u64,
    /// Trimming waits for joiners up to this many bytes.
    pub retain_for_joiners_bytes: u64,
    /// The most payload of one message (one larger record still travels, alone).
    pub append_bytes: u64,
    /// The most bytes sent to one member and not acknowledged.
    pub window_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retain_bytes: 32 << 20,
            retain_for_joiners_bytes: 64 << 20,
            append_bytes: 1 << 20,
            window_bytes: 8 << 20,
        }
    }
}

/// What a chain is made with.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// Times; the same on all nodes.
    pub timing: Timing,
    /// Bounds.
    pub limits: Limits,
}

/// Whether this node's disk has what its place in the chain says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// It had everything once, and kept it.
    Complete,
    /// A write that says so is under way.
    Completing,
    /// It never had everything: no member's. A view that lists this node is about another storage, which was lost.
    Partial,
}

/// What this process is doing.
#[derive(Debug)]
enum Part {
    Follow(Follow),
    Reign(Reign),
}

/// A write that is not known to be on disk.
#[derive(Debug)]
struct Write {
    id: PersistId,
    /// The log is on disk up to here once it is done.
    through: Seq,
    promised: Epoch,
    completes: bool,
    /// Whom to answer then.
    answer: Option<Answer>,
}

/// An acknowledgement that waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    to: NodeId,
    epoch: Epoch,
    sent_at: Tick,
}

/// One container's replication on one node. See the module's text.
#[derive(Debug)]
pub struct Chain {
    me: NodeId,
    timing: Timing,
    limits: Limits,
    #[cfg(feature = "plant")]
    plant: Option<Plant>,
    now: Tick,
    log: Log,
    /// Records above were proposed, and are not yet in any write or message.
    written: Seq,
    durable: Seq,
    promised: Epoch,
    promised_durable: Epoch,
    writes: VecDeque<Write>,
    last_write: PersistId,
    committed: Seq,
    /// What was committed before this step: the driver has read these records.
    handed: Seq,
    /// The data of every command up to here is on this node's disk.
    data: Seq,
    /// What is known of the objects up to here is on disk: older records may be trimmed.
    synced: Seq,
    view: Option<ChainView>,
    /// The epoch of the newest view that a write has.
    viewed: Epoch,
    storage: Storage,
    /// Whether the driver knows of nothing that is missing.
    known: bool,
    /// When this node last granted a lease, or may have; `None`: every lease that it granted has run out.
    granted: Option<Tick>,
    /// When this process began, if the one before may have granted a lease.
    born: Option<Tick>,
    /// Since when the present owner has had the chance to be heard.
    quiet_since: Tick,
    proposals: Proposals,
    part: Part,
    /// The most that this node has acknowledged as durable, and that was not truncated since. A view that does not list
    /// this node begins it anew: only what its owner is told counts.
    acknowledged: Seq,
    /// The end of the log that this process found, and that was not truncated since: the one before may have acknowledged
    /// all of it to the owner of that epoch.
    found: Version,
    /// A state transfer is under way: the log belongs to the driver until it ends.
    installing: bool,
    halted: bool,
    role: Role,
}

impl Chain {
    /// The chain of a node that starts, or starts again.
    ///
    /// `hard` is what its disk holds. `known` is false when the driver knows that it should hold more. That it was
    /// wiped the chain finds out itself: a view lists this node after [`FIRST_EPOCH`], and the storage was never
    /// complete. The first view must be read from the control store after this process started.
    #[must_use]
    pub fn new(config: Config, hard: HardState, known: bool, now: Tick) -> Self {
        let fresh = hard.promised == Epoch(0);
        let log = Log::new(hard.base, hard.entries);
        let last = log.last().seq;
        let committed = hard.committed.max(hard.base.seq).min(last);
        Self {
            me: config.me,
            timing: config.timing,
            limits: config.limits,
            #[cfg(feature = "plant")]
            plant: None,
            now,
            written: last,
            durable: last,
            promised: hard.promised,
            promised_durable: hard.promised,
            writes: VecDeque::new(),
            last_write: PersistId(0),
            committed,
            handed: committed,
            data: Seq::ZERO,
            synced: hard.base.seq,
            view: None,
            viewed: hard.view.as_ref().map_or(Epoch(0), |view| view.epoch),
            storage: if known && hard.complete {
                Storage::Complete
            } else {
                Storage::Partial
            },
            known,
            // A lease is granted only after a promise: without one there is none to wait for.
            granted: (!fresh || !known).then_some(now),
            born: (!fresh || !known).then_some(now),
            quiet_since: now,
            proposals: Proposals::default(),
            part: Part::Follow(Follow::new(committed)),
            acknowledged: Seq::ZERO,
            found: log.last(),
            installing: false,
            halted: false,
            role: Role::Outside,
            log,
        }
    }

    /// The same chain with one deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Takes one input at this node's time `now`; adds to `out` what the driver is to do, in order.
    pub fn step(&mut self, now: Tick, input: Input, out: &mut Vec<Output>) {
        if self.halted {
            return;
        }
        self.now = self.now.max(now);
        self.handed = self.committed;
        match input {
            Input::View(view) => self.on_view(view, out),
            Input::Flush => self.on_flush(out),
            Input::Announce => self.on_announce(out),
            Input::Receive { from, message } => self.on_message(from, message, out),
            Input::Persisted(id) => self.on_persisted(id, out),
            Input::PersistFailed => self.halt(Fault::PersistFailed, out),
            Input::ViewDecided(outcome) => self.on_decided(outcome, out),
            Input::Tick => {}
            Input::Unreachable(node) => self.on_unreachable(node),
            Input::Candidate(node) => self.on_candidate(node),
            Input::Dismiss(node) => self.on_dismiss(node),
            Input::HandOver => self.on_hand_over(out),
            Input::Cede { heir, data } => self.on_cede(heir, data, out),
            Input::DataThrough(seq) => self.on_data_through(seq, out),
            Input::Synced(seq) => self.synced = self.synced.max(seq.min(self.committed)),
            Input::StateInstalled { base } => self.on_installed(base, out),
            Input::StateFailed => self.installing = false,
        }
        if !self.halted {
            match self.part {
                Part::Follow(_) => self.follow_timers(out),
                Part::Reign(_) => self.reign_timers(out),
            }
        }
        self.note_role(out);
    }

    /// Adds a record to the log of an owner with leases. It is sent and persisted by the next [`Input::Flush`].
    ///
    /// `payload` is not empty. Errors: [`NotOwner`], and nothing was changed.
    pub fn propose(&mut self, now: Tick, payload: Bytes) -> Result<Version, NotOwner> {
        let now = self.now.max(now);
        if payload.is_empty() || self.lease_until(now).is_none() {
            return Err(NotOwner);
        }
        let Part::Reign(reign) = &self.part else {
            return Err(NotOwner);
        };
        let version = Version {
            epoch: reign.epoch(),
            seq: self.log.last().seq.next(),
        };
        self.log.push(Entry { version, payload });
        Ok(version)
    }

    /// Until when this node may act as owner; `None` when it may not at `now`. Alone in its chain it may
    /// for ever: `Tick(u64::MAX)`.
    #[must_use]
    pub fn lease_until(&self, now: Tick) -> Option<Tick> {
        let Part::Reign(reign) = &self.part else {
            return None;
        };
        if self.halted || !reign.is_active(self.committed) {
            return None;
        }
        let mut held = self.timing.lease_held();
        if planted!(self, LongLease) {
            held.0 *= 3;
        }
        let until = reign.lease_until(held, planted!(self, LeaseWithoutJoiner))?;
        (until > now).then_some(until)
    }

    /// Everything up to here is committed, as far as this node knows.
    #[must_use]
    pub const fn committed(&self) -> Seq {
        self.committed
    }

    /// The version of the last committed record.
    #[must_use]
    pub fn committed_version(&self) -> Version {
        self.log
            .version_at(self.committed)
            .unwrap_or(self.log.base())
    }

    /// The last record of the log, durable or not.
    #[must_use]
    pub fn last(&self) -> Version {
        self.log.last()
    }

    /// The log is on this node's disk up to here.
    #[must_use]
    pub const fn durable(&self) -> Seq {
        self.durable
    }

    /// The epoch below which this node answers no message.
    #[must_use]
    pub const fn promised(&self) -> Epoch {
        self.promised
    }

    /// The last trimmed record.
    #[must_use]
    pub fn base(&self) -> Version {
        self.log.base()
    }

    /// This node's part, as last reported by [`Output::Role`].
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The newest view that this node knows.
    #[must_use]
    pub const fn view(&self) -> Option<&ChainView> {
        self.view.as_ref()
    }

    /// What valid bytes on this node are as of (F1): an owner's include its last record, another node's the last
    /// committed one.
    #[must_use]
    pub fn content_version(&self) -> Version {
        match &self.part {
            Part::Reign(reign)
                if planted!(self, ContentTooOld) && !reign.has_begun(self.committed) =>
            {
                self.committed_version()
            }
            Part::Reign(reign) if reign.has_newest(self.committed) => self.log.last(),
            Part::Reign(_) | Part::Follow(_) => self.committed_version(),
        }
    }

    /// What valid bytes of one object on this node are as of, where `newest` is the last record of its log that changes the
    /// object (F1): who asked for them waits for the commit of no record of another one.
    #[must_use]
    pub fn content_version_of(&self, newest: Seq) -> Version {
        let all = self.content_version();
        let newest = if planted!(self, NewestNotCounted) {
            Seq::ZERO
        } else {
            newest
        };
        match newest.max(self.committed) {
            seq if seq < all.seq => self.version_at(seq),
            _ => all,
        }
    }

    /// The retained records from `from` to `to`, both included.
    pub fn entries(&self, from: Seq, to: Seq) -> impl Iterator<Item = &Entry> {
        self.log.range(from, to)
    }

    /// How many bytes the retained log takes. Grows while [`Input::Synced`] does not come.
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// How many bytes the log takes from a record on.
    #[must_use]
    pub fn bytes_from(&self, seq: Seq) -> u64 {
        let entries = self.log.range(seq, self.log.last().seq);
        entries.map(crate::log::cost).sum()
    }

    /// Whether `version` is in the committed log here. Bytes as of a version may be installed when it is (F2).
    #[must_use]
    pub fn holds(&self, version: Version) -> Holds {
        let through = if planted!(self, DurableIsEnough) {
            self.durable
        } else {
            self.committed
        };
        self.log.holds(version, through)
    }

    /// The record at a place of this log; of one that is retained no more, the last such.
    #[must_use]
    pub fn version_at(&self, seq: Seq) -> Version {
        self.log.version_at(seq).unwrap_or(self.log.base())
    }

    /// Whether a fetched state that ends at `base` may replace the log here: it was asked for, and nothing that this
    /// node has acknowledged to the present owner would be lost. If not, give [`Input::StateFailed`].
    #[must_use]
    pub fn accepts_state(&self, base: Version) -> bool {
        let mut kept = self.committed;
        if !planted!(self, StateDiscardsAcked) {
            kept = kept.max(self.acknowledged);
            if self.view.as_ref().map(|view| view.epoch) == Some(self.found.epoch) {
                kept = kept.max(self.found.seq);
            }
        }
        self.installing && base.seq >= kept
    }

    /// The nodes, without this one, that commits wait for: also an fsync must. Empty unless this node reigns.
    pub fn counted(&self) -> impl Iterator<Item = NodeId> + '_ {
        let reign = match &self.part {
            Part::Reign(reign) => Some(reign),
            Part::Follow(_) => None,
        };
        reign.into_iter().flat_map(Reign::counted)
    }

    /// How far each member and joiner is. Empty unless this node reigns.
    #[must_use]
    pub fn member_progress(&self) -> Vec<MemberProgress> {
        match &self.part {
            Part::Reign(reign) => reign.progress(self.now),
            Part::Follow(_) => Vec::new(),
        }
    }

    /// When to give [`Input::Tick`] if nothing else happens; `Tick(u64::MAX)`: no need.
    #[must_use]
    pub fn next_wakeup(&self) -> Tick {
        if self.halted {
            return Tick(u64::MAX);
        }
        match &self.part {
            Part::Follow(_) => self.follow_deadline(),
            Part::Reign(reign) => reign
                .heartbeat_at()
                .min(self.lease_until(self.now).unwrap_or(Tick(u64::MAX))),
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, out: &mut Vec<Output>) {
        match message {
            Message::Append {
                view,
                prev,
                entries,
                commit,
                admit,
                sent_at,
            } => {
                let run = follow::Run {
                    prev,
                    entries,
                    commit,
                    admit,
                };
                self.on_append(from, view, run, sent_at, out);
            }
            Message::StateNeeded {
                view,
                last,
                sent_at,
            } => {
                self.on_state_needed(from, view, (last, sent_at), out);
            }
            Message::Cede {
                view,
                last,
                sent_at,
            } => self.on_ceded(from, &view, (last, sent_at), out),
            Message::AppendAck {
                epoch,
                durable,
                data,
                sent_at,
            } => self.on_ack(from, epoch, (durable, data), sent_at, out),
            Message::AppendRefused {
                epoch,
                reason,
                sent_at,
            } => self.on_refused(from, epoch, reason, sent_at, out),
        }
    }

    fn commit_through(&mut self, through: Seq, out: &mut Vec<Output>) {
        if through > self.committed {
            self.committed = through;
            out.push(Output::Committed { through });
        }
    }

    fn halt(&mut self, fault: Fault, out: &mut Vec<Output>) {
        self.halted = true;
        self.part = Part::Follow(Follow::new(self.committed));
        out.push(Output::Fault(fault));
    }

    fn note_role(&mut self, out: &mut Vec<Output>) {
        let role = self.present_role();
        if role != self.role {
            self.role = role;
            out.push(Output::Role(role));
        }
    }

    fn present_role(&self) -> Role {
        if self.halted {
            return Role::Outside;
        }
        match &self.part {
            Part::Reign(reign) => {
                let epoch = reign.epoch();
                match self.lease_until(self.now) {
                    Some(_) => Role::Owner { epoch },
                    None if reign.has_begun(self.committed) => Role::Suspended { epoch },
                    None => Role::Reconciling { epoch },
                }
            }
            Part::Follow(follow) => self.following_role(follow),
        }
    }

    fn following_role(&self, follow: &Follow) -> Role {
        let Some(view) = &self.view else {
            return Role::Outside;
        };
        match view.owner() {
            Some(_) if view.lists(self.me) && self.storage != Storage::Complete => Role::Outside,
            Some(owner) if owner == self.me => Role::Returning,
            Some(owner) if view.lists(self.me) => Role::Replica {
                owner,
                epoch: view.epoch,
            },
            Some(owner) if follow.has_heard() => Role::Joining { owner },
            _ => Role::Outside,
        }
    }
}
