//! What the simulator knows and no node does: the one committed history, what was acknowledged, and what happened.

use crate::law::Laws;
use crate::marks::marks;
use crate::model::{ALL_BLOCKS, Committed, Record};
use perigee_types::{Epoch, Seq, Version};
use std::collections::BTreeMap;

/// A broken law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub law: &'static str,
    /// What was seen.
    pub what: String,
    /// When, in microseconds of true time.
    pub at: u64,
}

/// The omniscient observer.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Every record that some node took for committed, from place 1.
    pub committed: Vec<Committed>,
    /// Everything up to here was shown to another host, or acknowledged by an fsync.
    pub acked: Seq,
    /// The content of each block that must not be lost, by the place of the write that made it.
    pub acked_block: [Seq; ALL_BLOCKS],
    /// The records that carried each token: what a holder is not sure to have sent it sends again.
    pub origin: BTreeMap<u64, Vec<Version>>,
    /// Blocks of which, at some moment, no member had a good copy: they may be lost.
    pub unkept: [bool; ALL_BLOCKS],
    /// The content of each block whose last copy was spoiled, by the place of the write that made it.
    pub gone: [Seq; ALL_BLOCKS],
    /// What a record of each token would have been when its bytes were put in place.
    pub in_place: BTreeMap<u64, Version>,
    /// What each token that a holder wrote was put over.
    pub over: BTreeMap<u64, u64>,
    /// When a holder wrote it.
    pub held_at: BTreeMap<u64, u64>,
    /// The checkpoint, once its record is committed.
    pub checkpoint: Option<crate::law::checkpoint::Seen>,
    /// Which process (node, incarnation) was active in each epoch.
    pub reigns: BTreeMap<Epoch, (usize, u32)>,
    /// The first broken law.
    pub violation: Option<Violation>,
    /// Which are looked at.
    pub laws: Laws,
}

impl Oracle {
    /// The committed record at `seq`.
    #[must_use]
    pub fn at(&self, seq: Seq) -> Option<&Committed> {
        let index = usize::try_from(seq.0.checked_sub(1)?).ok()?;
        self.committed.get(index)
    }

    /// Notes a broken law, if it is the first.
    pub fn accuse(&mut self, at: u64, law: &'static str, what: String) {
        if self.violation.is_none() && self.laws.include(law) {
            self.violation = Some(Violation { law, what, at });
        }
    }

    /// Notes where tokens come from.
    pub fn note_proposed(&mut self, version: Version, record: &Record) {
        for (_, token) in record.blocks().filter(|_| record.fallback.is_empty()) {
            self.origin.entry(token).or_default().push(version);
        }
    }

    /// A record is committed by which an owner fell back: what has no record of its own has this one.
    pub fn note_fallback(&mut self, version: Version, record: &Record) {
        for &(_, token) in &record.data {
            if self.committed_origin(token).is_none() {
                self.origin.insert(token, vec![version]);
            }
        }
    }

    /// The place of the committed write that made `token`: zero for a block that was never written, `None` for a
    /// write that is not in the committed history.
    #[must_use]
    pub fn committed_origin(&self, token: u64) -> Option<Seq> {
        if token == 0 {
            return Some(Seq::ZERO);
        }
        let mut versions = self.origin.get(&token)?.iter();
        let committed = |version: &&Version| {
            let found = self.at(version.seq);
            found.is_some_and(|found| found.version == **version)
        };
        versions.find(committed).map(|version| version.seq)
    }
}

marks! {
    Takeover = "a member became owner";
    HandOver = "an owner that was to leave proposed a chain without itself";
    Ceded = "an owner gave up its lease to a member";
    CededForGood = "an owner that had ceded was replaced";
    CededInVain = "an owner that had ceded went on in its epoch";
    Removal = "an owner removed a member";
    Admission = "a joiner was listed";
    OwnerRestart = "a restarted owner won the next epoch";
    StateTransfer = "a joiner installed a state";
    Truncation = "records were truncated";
    Revert = "a new owner fell back to older bytes";
    FilledByMember = "a new owner fetched bytes from a member";
    JoinerFilled = "a joiner fetched bytes from a member that does not own";
    AskedAhead = "a member asked for bytes whose record was not committed there";
    Carried = "a record carried bytes";
    CarriedInstalled = "bytes that a record carried were put in place";
    CarriedAwaited = "an operation waited for no bytes of a file, since its records carry them";
    Held = "fetched bytes waited for the log";
    HeldForNothing = "fetched bytes waited for a record that never was";
    UnknownCas = "a proposal's outcome was unknown";
    LateCas = "a proposal that was given up arrived later";
    Wipe = "a disk was wiped";
    LostMember = "a wiped member refused";
    FailedWrite = "a write of the log failed";
    Pause = "a node was paused";
    StoreAway = "the control store was away";
    StoreMadeAnew = "the control store was lost, and made anew";
    ClockJump = "a clock jumped";
    TwoLeases = "two nodes believed in their leases, of clocks beyond their bound";
    Crash = "a node crashed";
    Trim = "a log was trimmed";
    WordGiven = "an owner let a session read another copy";
    OwnCopyRead = "a host read its own copy by the owner's word";
    MembersCopyRead = "a host read a member's copy by the owner's word";
    CalledBack = "an owner called its word back";
    HomeOk = "an operation at home was done";
    RemoteOk = "an operation of another host was done";
    FsyncOk = "an fsync was acknowledged";
    UnknownOp = "an operation's outcome was unknown";
    Unrecorded = "a write at home waited for its record";
    GivenUp = "a restarted node gave up what was noted";
    HoldGiven = "a chunk was given to the host that writes";
    HoldRemoved = "a chunk was taken back";
    HolderWrote = "a holder wrote";
    HolderCalled = "a holder was called";
    Flushed = "an owner took what a holder had written";
    HoldWaitedOut = "the right of a holder that does not answer was waited out";
    HeldLost = "what a holder had written was lost";
    HolderReigns = "a holder with writes of its own became owner";
    Checkpoint = "a checkpoint was made, and all that it has was durable";
    Kept = "a block was kept for the checkpoint before it was replaced";
    KeptThere = "an owner had what was kept";
    Proven = "an owner knew again what was kept, though nobody had it for sure";
    KeptStill = "what was to be kept was still in the file itself";
    KeptLost = "something that was kept was lost with its only copy";
    KeptToTheEnd = "all of the checkpoint was there at the end";
    Rot = "a block rotted";
    Torn = "a crash tore a block";
    Misdirected = "a block was written to another one's place";
    Corrupt = "a block was not what its checksum says";
    TookOlder = "an owner whose own was spoiled took older content of a member, since nobody had newer";
    Unreadable = "a node that lacked a block asked one whose copy was corrupt";
    Lost = "an owner found that nobody has a block";
    LostElsewhere = "a node that lacked a block heard that nobody has it";
    Found = "somebody came back with a block that nobody had";
    Conflict = "a stale owner was refused";
}
