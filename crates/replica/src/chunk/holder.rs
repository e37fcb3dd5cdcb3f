//! The side of the holder: what it may write without a word, what it has written, and what of that its owner has.

use super::claim::Claim;
use super::{Chunk, Hold, Terms};
use crate::chain::planted;
use crate::region::RegionMap;
use perigee_types::{ByteRange, InodeId, Seq, SessionId, Tick, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts what one holder sends of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct FlushNumber(pub u64);

/// Counts how often a holder has begun to send all that it had written of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Turn(u64);

/// The most that one flush has: a message takes no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Bytes, at least one.
    pub bytes: u64,
    /// Ranges, at least one.
    pub ranges: usize,
}

/// Whether a session may use this node's copy of a chunk as an owner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// It may.
    Yes,
    /// When the owner has answered: [`Holding::ask`].
    Ask,
    /// The chunk is not its own.
    No,
}

/// Where a flush stands among those of its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// More of the turn follows: it may be answered when its record is committed. The holder has the bytes in place, and so
    /// is a member to fetch them from, if the owner is lost before the others have them.
    More,
    /// The turn ends with it: it is answered when everything of the turn is on every member.
    Last,
}

/// Written ranges for the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// Of which chunk.
    pub chunk: Chunk,
    /// By which row.
    pub hold: Hold,
    /// Its number.
    pub number: FlushNumber,
    /// Whether its turn ends with it.
    pub part: Part,
    /// In order, disjoint.
    pub ranges: Vec<ByteRange>,
}

/// The holder's answer to a call, after what it had written then has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// It goes on writing.
    Writes,
    /// It has written nothing since, and writes nothing before it has asked once more.
    Rests {
        /// How often it has asked.
        asked: u64,
    },
    /// It writes no more.
    Stopped,
}

/// What a holder has in place, and no record covers: it is lost where its row is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent {
    /// Of which file.
    pub inode: InodeId,
    /// In order, disjoint.
    pub ranges: Vec<ByteRange>,
}

#[derive(Debug)]
struct Held {
    claim: Claim,
    /// Written since the last turn began. Versions mean nothing in these maps.
    dirty: RegionMap,
    /// Of this turn, and not sent yet. What failed goes with the next flush.
    queue: RegionMap,
    sent: Option<Sent>,
    /// The last number.
    last: FlushNumber,
    /// The last turn that began, and the last of which everything has arrived.
    turn: Turn,
    done: Turn,
    /// Taken by the owner in the record of this version, or an earlier one, which is not committed here yet.
    settling: Vec<(Version, RegionMap)>,
    /// Became an owner's own.
    merged: RegionMap,
}

#[derive(Debug)]
struct Sent {
    number: FlushNumber,
    ranges: RegionMap,
}

/// The chunks that one node holds, as far as it has heard. No I/O.
#[derive(Debug, Default)]
pub struct Holding {
    held: BTreeMap<Chunk, Held>,
    #[cfg(feature = "plant")]
    plant: Option<crate::Plant>,
}

impl Holding {
    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<crate::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// A record is committed here by which `hold` is the row of `chunk`, for a session of this process or somebody else; or
    /// by which it has none. What was held of it before is not any more: gives what is lost by that (H7).
    pub fn on_row(&mut self, chunk: Chunk, mine: Option<Hold>) -> Option<Unsent> {
        let before = self.held.remove(&chunk);
        if let Some(hold) = mine {
            self.held.insert(chunk, Held::new(hold));
        }
        before.and_then(|held| held.unrecorded(chunk))
    }

    /// This node has fallen out of the chain, or begins with another state: it holds nothing.
    pub fn forget_all(&mut self) -> Vec<Unsent> {
        let held = std::mem::take(&mut self.held).into_iter();
        held.filter_map(|(chunk, held)| held.unrecorded(chunk))
            .collect()
    }

    /// This node is the container's owner now, and the last record of its log leaves these rows. Of each chunk that is still
    /// its own, what no record covers is an owner's write from now on, that has none yet; it has to have one before its
    /// row is removed. The rest is lost.
    pub fn on_reign(&mut self, stands: impl Fn(Chunk, Hold) -> bool) -> (Vec<Unsent>, Vec<Unsent>) {
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for (&chunk, held) in &mut self.held {
            let stands = stands(chunk, held.claim.hold);
            let gone = held.unrecorded(chunk);
            held.claim.stop();
            held.clear();
            if let Some(gone) = gone {
                let list = if stands { &mut kept } else { &mut lost };
                if stands {
                    held.merged = gone.ranges.iter().fold(RegionMap::new(), |mut map, range| {
                        map.invalidate(*range, Version::default());
                        map
                    });
                }
                list.push(gone);
            }
        }
        (kept, lost)
    }

    /// Whether `session` may write and read `range` of a file here.
    #[must_use]
    pub fn may(&self, now: Tick, session: SessionId, inode: InodeId, range: ByteRange) -> May {
        let mut may = May::Yes;
        let unheeded = planted!(self, CallUnheeded);
        for chunk in Chunk::touched(inode, range) {
            let held = self.held.get(&chunk);
            let goes_on = |held: &&Held| !held.claim.is_stopping() || unheeded;
            let held = held.filter(|held| held.claim.is_of(session));
            let Some(held) = held.filter(goes_on) else {
                return May::No;
            };
            if !held.claim.lasts_at(now) {
                may = May::Ask;
            }
        }
        may
    }

    /// The row and the number of one more question for the right to write a chunk.
    pub fn ask(&mut self, chunk: Chunk) -> Option<(Hold, u64)> {
        self.held.get_mut(&chunk)?.claim.ask()
    }

    /// The owner has granted what was asked: by the question of this number, at this time.
    pub fn on_right(&mut self, chunk: Chunk, hold: Hold, question: (u64, Tick), terms: Terms) {
        let lasts = match planted!(self, RightTooLong) {
            true => terms.waited + terms.held,
            false => terms.held,
        };
        if let Some(held) = self.held.get_mut(&chunk) {
            held.claim.on_right(hold, question, lasts);
        }
    }

    /// `range` is about to be written in place, by the right to.
    pub fn on_write(&mut self, inode: InodeId, range: ByteRange) {
        for chunk in Chunk::touched(inode, range) {
            if let (Some(held), Some(part)) =
                (self.held.get_mut(&chunk), range.intersect(chunk.range()))
            {
                held.dirty.invalidate(part, Version::default());
            }
        }
    }

    /// What is to be sent of a chunk now, at most `share`; `None` while there is nothing, or something is on its way.
    pub fn flush(&mut self, chunk: Chunk, share: Share) -> Option<Flush> {
        let held = self.held.get_mut(&chunk)?;
        if held.sent.is_some() || held.is_clean() {
            return None;
        }
        if held.queue.is_empty() {
            held.begin_turn();
        }
        held.last = FlushNumber(held.last.0 + 1);
        let ranges = held.take_share(share);
        let part = match held.queue.is_empty() {
            true => Part::Last,
            false => Part::More,
        };
        let flush = Flush {
            chunk,
            hold: held.claim.hold,
            number: held.last,
            part,
            ranges: ranges.iter().map(|(range, _)| range).collect(),
        };
        held.sent = Some(Sent {
            number: held.last,
            ranges,
        });
        Some(flush)
    }

    /// The row and the number of a change that the owner is to make to the chunk for its holder, which has nothing to send
    /// (H8); `None` while it has.
    pub fn number(&mut self, chunk: Chunk) -> Option<(Hold, FlushNumber)> {
        let held = self.held.get_mut(&chunk)?;
        if !held.is_clean() {
            return None;
        }
        held.last = FlushNumber(held.last.0 + 1);
        Some((held.claim.hold, held.last))
    }

    /// This node is no owner any more: what was its own without a record is not the content.
    pub fn on_step_down(&mut self) {
        for held in self.held.values_mut() {
            held.merged = RegionMap::new();
        }
    }

    /// Whether the owner has everything of a chunk.
    #[must_use]
    pub fn is_clean(&self, chunk: Chunk) -> bool {
        self.held.get(&chunk).is_none_or(Held::is_clean)
    }

    /// Whether there is more to send in a turn that has begun.
    #[must_use]
    pub fn is_sending(&self, chunk: Chunk) -> bool {
        let held = self.held.get(&chunk);
        held.is_some_and(|held| !held.queue.is_empty())
    }

    /// Whether nothing is held here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether there is nothing more to be waited for of what was written before `through`, by this row.
    #[must_use]
    pub fn has_arrived(&self, chunk: Chunk, hold: Hold, through: Turn) -> bool {
        let held = self.held.get(&chunk).filter(|held| held.claim.hold == hold);
        held.is_none_or(|held| held.is_clean() || held.done >= through && !held.claim.is_stopping())
    }

    /// Who holds a chunk here.
    #[must_use]
    pub fn hold(&self, chunk: Chunk) -> Option<Hold> {
        self.held.get(&chunk).map(|held| held.claim.hold)
    }

    /// The chunks with something to send.
    pub fn dirty(&self) -> impl Iterator<Item = Chunk> + '_ {
        let held = self.held.iter();
        let dirty = held.filter(|(_, held)| held.sent.is_none() && !held.is_clean());
        dirty.map(|(chunk, _)| *chunk)
    }

    /// What was sent is answered for, as its [`Part`] asks, with the record of `version` or an earlier one. `committed` is the
    /// chain's here.
    pub fn on_flushed(
        &mut self,
        chunk: Chunk,
        hold: Hold,
        number: FlushNumber,
        (version, committed): (Version, Seq),
    ) {
        let early = planted!(self, FirstPartReported);
        if let Some(held) = self
            .held
            .get_mut(&chunk)
            .filter(|held| held.claim.hold == hold)
            && let Some(sent) = held.sent.take_if(|sent| sent.number == number)
        {
            if held.queue.is_empty() || early {
                held.done = held.turn;
            }
            if version.seq > committed {
                held.settling.push((version, sent.ranges));
            }
        }
    }

    /// What was sent may not have arrived: it will be sent once more.
    pub fn on_flush_failed(&mut self, chunk: Chunk, hold: Hold, number: FlushNumber) {
        if let Some(held) = self
            .held
            .get_mut(&chunk)
            .filter(|held| held.claim.hold == hold)
            && let Some(sent) = held.sent.take_if(|sent| sent.number == number)
        {
            for (range, version) in sent.ranges.iter() {
                held.queue.invalidate(range, version);
            }
            held.begin_turn();
        }
    }

    /// The owner that things were sent to is not the owner any more.
    pub fn on_source_changed(&mut self) {
        let sent = self.held.iter().filter_map(|(chunk, held)| {
            let sent = held.sent.as_ref()?;
            Some((*chunk, held.claim.hold, sent.number))
        });
        for (chunk, hold, number) in sent.collect::<Vec<_>>() {
            self.on_flush_failed(chunk, hold, number);
        }
    }

    /// Everything up to `through` is committed here.
    pub fn on_committed(&mut self, through: Seq) {
        for held in self.held.values_mut() {
            held.settling.retain(|(version, _)| version.seq > through);
        }
    }

    /// Whether bytes of `range` are this node's alone: others get none of it here (H5).
    #[must_use]
    pub fn keeps(&self, inode: InodeId, range: ByteRange) -> bool {
        self.of(inode).any(|held| held.keeps(range))
    }

    /// The parts of `range`, which the record of `version` replaces, whose bytes are not in place here (H6).
    #[must_use]
    pub fn lacking(&self, inode: InodeId, range: ByteRange, version: Version) -> RegionMap {
        let mut lacking = RegionMap::new();
        lacking.invalidate(range, version);
        for held in self.of(inode) {
            for kept in held.kept_since(version).chain([&held.merged]) {
                for (own, _) in kept.overlapping(range) {
                    lacking.drop_range(own);
                }
            }
        }
        lacking
    }

    /// The owner calls. From now on this node does not write where it is to stop. The call is answered by
    /// [`Holding::report`], when that gives something; what is dirty is to be sent before.
    pub fn on_call(&mut self, chunk: Chunk, hold: Hold, stop: bool) {
        let unheeded = planted!(self, CallUnheeded);
        if let Some(held) = self
            .held
            .get_mut(&chunk)
            .filter(|held| held.claim.hold == hold)
            && stop
        {
            match unheeded {
                true => held.claim.only_say_stop(),
                false => held.claim.stop(),
            }
        }
    }

    /// What a call is answered with, which came when `through` was [`Holding::last_written`]; `None` while some of what was
    /// written before is on its way, or is to be sent.
    pub fn report(&mut self, chunk: Chunk, hold: Hold, through: Turn) -> Option<Report> {
        let Some(held) = self
            .held
            .get_mut(&chunk)
            .filter(|held| held.claim.hold == hold)
        else {
            // Nothing of it is here, and nothing will be.
            return Some(Report::Stopped);
        };
        let clean = held.is_clean();
        if !clean && (held.claim.is_stopping() || held.done < through) {
            return None;
        }
        if held.claim.is_stopping() {
            return Some(Report::Stopped);
        }
        if !clean {
            return Some(Report::Writes);
        }
        Some(held.claim.rest())
    }

    /// The turn with which all that is written now will have been sent.
    #[must_use]
    pub fn last_written(&self, chunk: Chunk) -> Turn {
        let held = self.held.get(&chunk);
        held.map_or(Turn::default(), |held| {
            let next = u64::from(!held.dirty.is_empty());
            Turn(held.turn.0 + next)
        })
    }

    fn of(&self, inode: InodeId) -> impl Iterator<Item = &Held> {
        let held = self.held.range(Chunk::all_of(inode));
        held.map(|(_, held)| held)
    }
}

impl Held {
    fn new(hold: Hold) -> Self {
        Self {
            claim: Claim::new(hold),
            dirty: RegionMap::new(),
            queue: RegionMap::new(),
            sent: None,
            last: FlushNumber(0),
            turn: Turn::default(),
            done: Turn::default(),
            settling: Vec::new(),
            merged: RegionMap::new(),
        }
    }

    /// Whether the owner has everything.
    fn is_clean(&self) -> bool {
        self.sent.is_none() && self.queue.is_empty() && self.dirty.is_empty()
    }

    /// What was written since is to be sent, too.
    fn begin_turn(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.is_empty() {
            return;
        }
        for (range, version) in dirty.iter() {
            self.queue.invalidate(range, version);
        }
        self.turn = Turn(self.turn.0 + 1);
    }

    /// The first part of what is to be sent in this turn.
    fn take_share(&mut self, share: Share) -> RegionMap {
        let (mut taken, mut left) = (RegionMap::new(), share.bytes);
        for (range, version) in self.queue.iter().take(share.ranges) {
            let len = range.len().min(left);
            taken.invalidate(ByteRange::with_len(range.start, len), version);
            left -= len;
            if left == 0 {
                break;
            }
        }
        for (range, _) in taken.iter() {
            self.queue.drop_range(range);
        }
        taken
    }

    /// What has no record here, or none before that of `version`.
    fn kept_since(&self, version: Version) -> impl Iterator<Item = &RegionMap> {
        let sent = self.sent.iter().map(|sent| &sent.ranges);
        let later = move |(taken, ranges)| (taken >= version).then_some(ranges);
        let settling = self.settling.iter().map(|(taken, ranges)| (*taken, ranges));
        let settling = settling.filter_map(later);
        let unsent = [&self.dirty, &self.queue].into_iter();
        unsent.chain(sent).chain(settling)
    }

    fn keeps(&self, range: ByteRange) -> bool {
        let mut kept = self.kept_since(Version::default());
        kept.any(|kept| !kept.is_valid(range))
    }

    fn clear(&mut self) {
        self.dirty = RegionMap::new();
        self.queue = RegionMap::new();
        self.sent = None;
        self.settling.clear();
    }

    /// What no record here covers.
    fn unrecorded(&self, chunk: Chunk) -> Option<Unsent> {
        let mut all = RegionMap::new();
        let kept = self.kept_since(Version::default());
        for (range, version) in kept.flat_map(RegionMap::iter) {
            all.invalidate(range, version);
        }
        let ranges: Vec<ByteRange> = all.iter().map(|(range, _)| range).collect();
        (!ranges.is_empty()).then_some(Unsent {
            inode: chunk.inode,
            ranges,
        })
    }
}
