//! The member's side of data: which bytes of the container's objects are valid here, and what to fetch next.
//!
//! The log orders data commands; the bytes follow when they can. Three rules keep a node from ever taking bytes
//! for what they are not (the third makes good for bytes that were here before their record was committed):
//!
//! - F1: a fetch is answered with bytes and a version `as_of` so that no byte is of a write whose record is later.
//!   A member answers only with valid bytes, as of its committed log.
//! - F2: fetched bytes are installed only when `as_of` is *committed* here ([`Chain::holds`](crate::Chain::holds)).
//!   Durable is not enough: bytes of a record that is truncated later would have overwritten older ones that an
//!   fsync acknowledged, on a node that may be the last to have them.
//! - F3: when records are truncated, the regions that this node itself wrote for them are invalid.
//! - F5: what a node has of a file is not replaced before it has what a checkpoint's file got of earlier records in the same place
//!   ([`Pull::with_kept`]): the owner copied that from there, and until the copy is here as well what is in place may be the last one.
//! - F4: a member tells only the owner of its own epoch that the bytes of a version are on its disk: in a later
//!   epoch it may have fallen back to older bytes ([`Nobody::Keep`]).
//!
//! A command of another node's write is applied to the map when it is committed, like the rest of the log. Its bytes may be
//! asked for as soon as it is in the log ([`Pull::next_ahead`]): by F2 they are held until then, and nobody waits for them
//! from there on. A small write's bytes may come in its record ([`Pull::on_command`]): they are as durable as that is, and put
//! in place once it is committed ([`Pull::take_carried`]).

use crate::chain::planted;
use crate::chunk::Holding;
use crate::message::Holds;
use crate::region::RegionMap;
use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, DataCommand, InodeId, InodeIndex, Seq, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

/// The most bytes of one fetch.
pub const FETCH_LEN_MAX: u64 = 1 << 20;

/// The most bytes that were asked for ahead and are on their way, or wait for their record, which may not be committed for long.
pub const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// As many fetches at most.
pub const AHEAD_FETCHES_MAX: usize = 256;

/// Names one fetch of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// A range to ask for: of the owner, or (by a new owner) of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Its number.
    pub id: FetchId,
    /// The object.
    pub inode: InodeId,
    /// The bytes; an end of `u64::MAX` means the end of the object. An answer may cover a first part only.
    pub range: ByteRange,
    /// An answer as of an earlier version is of no use.
    pub needed: Version,
}

/// What to do with fetched bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// Write these parts to the object, and nothing else of them; then call [`Pull::on_installed`], or
    /// [`Pull::on_fetch_failed`]. Until then they are invalid, and nobody else fetches them.
    Install {
        /// The object.
        inode: InodeId,
        /// In order; may be empty.
        parts: Vec<ByteRange>,
    },
    /// Keep the bytes; [`Pull::decidable`] names them when this can be asked again.
    Hold,
    /// Drop the bytes; the range will be fetched again.
    Drop,
}

/// Why a member gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotGiven {
    /// It lacks it, too.
    NotHere,
    /// It has no older content in place either: see [`Nobody::AskOlder`].
    NotEvenOlder,
    /// It has newer bytes, and cannot read them.
    Unreadable,
}

/// What becomes of a range that an owner lacks, and no member gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nobody {
    /// What is in place in these parts is the content from now on. The owner logs each of them, as it is, as written
    /// ([`Origin::Own`]): that makes it valid here, and invalid on a member that returns and may still have what was lost.
    ///
    /// Only bytes of writes that were never synced, and never shown to another host, can be lost by this.
    Keep(Vec<ByteRange>),
    /// The content of these parts is gone, and what is in place must not pass for it: it was never the content, or a
    /// member has newer bytes and cannot read them. They stay invalid, nobody waits for them, and they are asked for again
    /// now and then ([`Pull::look_again`]).
    Lost(Vec<ByteRange>),
    /// The range is fetched again, in smaller pieces.
    AskAgain,
    /// What is in place here of a part was never the content, as a start has found; the same as [`Nobody::Keep`] is to be
    /// done with what another member has in place, if it is older content ([`Pull::has_older`]). A joiner's may be older
    /// than what was synced. The owner asks for that: what it gets it puts into [`Pull::spoiled`] parts, as it would a
    /// program's write, and else this is asked again with [`NotGiven::NotEvenOlder`].
    ///
    /// Not of what this process has found corrupt: it may have acknowledged it to another host.
    AskOlder,
}

/// How a command came to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From the owner, in the log: its bytes are not here.
    Remote,
    /// This node owns, and its bytes are in place already.
    Own,
    /// Found in the log after a restart: nobody knows what of it reached the disk.
    Unsynced,
}

#[derive(Debug, Clone)]
struct Pending {
    version: Version,
    command: DataCommand,
    origin: Origin,
    /// The parts of what it writes whose bytes are in the record.
    carried: Vec<ByteRange>,
}

#[derive(Debug, Clone, Default)]
struct Object {
    invalid: RegionMap,
    /// What is invalid and lies in a committed record of this log, with the version of that: no later one has changed it.
    carried: RegionMap,
    /// Where a reader or an fsync waits; versions mean nothing here.
    wanted: RegionMap,
    /// Some of it was found corrupt: blocks are asked for one by one, since each may be corrupt on other members.
    corrupt: bool,
    /// What a start found spoiled: this process never had its content, and has told nobody of it. Versions mean nothing
    /// here.
    found_spoiled: RegionMap,
    /// Where the last fetch ended, so that what changes all the time cannot starve the rest.
    turn: u64,
}

impl Object {
    fn spoil(&mut self, range: ByteRange, needed: Version) {
        self.invalid.spoil(range, needed);
        self.found_spoiled.drop_range(range);
    }

    fn was_spoiled(&self, range: ByteRange) -> bool {
        let mut other = RegionMap::new();
        other.invalidate(range, Version::default());
        for (known, _) in self.found_spoiled.iter() {
            other.drop_range(known);
        }
        other.is_empty()
    }
}

#[derive(Debug, Clone)]
struct Outstanding {
    inode: InodeId,
    range: ByteRange,
    when: When,
    stage: Stage,
}

/// When a fetch was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Its bytes were missing.
    Missing,
    /// Before their record was committed here.
    Ahead,
}

/// How far a fetch has come.
#[derive(Debug, Clone)]
enum Stage {
    Asked,
    /// Arrived, as of a version that is not committed here yet, or before what is kept of what it replaces.
    Held {
        as_of: Version,
        covered: ByteRange,
    },
    /// The driver writes these parts.
    Installing {
        parts: Vec<ByteRange>,
        as_of: Version,
    },
}

/// What one node knows of the bytes of one container's objects. No I/O.
#[derive(Debug, Clone, Default)]
pub struct Pull {
    objects: BTreeMap<InodeId, Object>,
    pending: VecDeque<Pending>,
    /// How many of them are [`Origin::Unsynced`].
    unsynced: usize,
    /// How many of them are [`Origin::Own`].
    own: usize,
    /// The bytes of records up to here were asked for when they came into the log.
    asked_through: Seq,
    outstanding: BTreeMap<FetchId, Outstanding>,
    /// How many of them were asked for ahead.
    ahead: usize,
    /// The ranges of all that is outstanding, which are disjoint: their ends, by inode and first byte.
    under_way: BTreeMap<(InodeId, u64), u64>,
    last_fetch: u64,
    /// What the driver has to put in place from its log.
    to_install: VecDeque<Carried>,
    /// The last record that is known to be committed, as the driver says.
    committed: Version,
    #[cfg(feature = "plant")]
    plant: Option<crate::Plant>,
    /// Where the last round of fetches ended, so that one object cannot starve the others.
    turn: InodeId,
    wanted: BTreeSet<InodeId>,
    /// The numbers of checkpoints' files.
    kept: Option<RangeInclusive<InodeIndex>>,
    /// What they have content of, as far as it is known.
    kept_of: BTreeMap<InodeId, InodeId>,
    /// Something may be missing that nobody has.
    has_lost: bool,
    /// It is asked for with the next fetches.
    looks_again: bool,
}

impl Pull {
    /// Of a node whose objects are all valid.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over what the disk knows of one object, at a start. Where it does not know what is needed, that is content
    /// as of `applied`, the last record whose rows this node has stored, or a later one: what comes after it is gone through again, and a
    /// member that has not heard of it would give older.
    /// What others have of such blocks may be bad, too: they are asked for one by one.
    pub fn restore(&mut self, inode: InodeId, mut invalid: RegionMap, applied: Version) {
        let unknown = invalid.need_where_unknown(applied);
        if !invalid.is_empty() {
            let all = ByteRange::ALL;
            self.has_lost |= invalid.lost(all).next().is_some();
            let object = self.objects.entry(inode).or_default();
            for (range, needed) in invalid.spoiled(all) {
                object.found_spoiled.invalidate(range, needed);
            }
            // What was given up once may be newer than what a member has, that has not heard of it yet.
            for (range, _) in invalid.lost(all) {
                object.found_spoiled.drop_range(range);
            }
            object.invalid = invalid;
            object.corrupt = unknown;
        }
    }

    /// What is here of `range` is not its content at `needed`, whatever was thought of it.
    pub fn distrust(&mut self, inode: InodeId, range: ByteRange, needed: Version) {
        let object = self.objects.entry(inode).or_default();
        object.invalid.invalidate(range, needed);
    }

    /// What is here of `range` is no content of it that was ever committed: older bytes are gone, too. A member that has not
    /// heard of the last commits would give older ones: only content as of `committed`, the last record that is committed
    /// here, will do.
    pub fn on_overwritten(&mut self, inode: InodeId, range: ByteRange, committed: Version) {
        let object = self.objects.entry(inode).or_default();
        object
            .invalid
            .invalidate_since(range, committed, Version::default());
    }

    /// This owner has written `range` in place, and its record comes later: nothing is missing there now, and what was
    /// asked for is not put over it.
    pub fn on_own_write(&mut self, inode: InodeId, range: ByteRange) {
        if let Some(object) = self.objects.get_mut(&inode) {
            object.invalid.drop_range(range);
        }
        self.forget_if_valid(inode);
    }

    /// What is here of `range` is nobody's content, as was found by a checksum: it never will be, and that of `committed`,
    /// the last record that is committed here, is needed.
    pub fn on_corrupt(&mut self, inode: InodeId, range: ByteRange, committed: Version) {
        let object = self.objects.entry(inode).or_default();
        object.spoil(range, committed);
        object.corrupt = true;
    }

    /// Of regions that were found corrupt and are so still, those that count as here nevertheless: an owner had written
    /// them before, and its record was committed since. Call after [`Pull::on_committed`], with what the disk says.
    pub fn on_still_corrupt(
        &mut self,
        inode: InodeId,
        lacking: impl IntoIterator<Item = ByteRange>,
        committed: Version,
    ) {
        for range in lacking {
            let mut unknown = RegionMap::new();
            unknown.invalidate(range, committed);
            for (known, _) in self.missing(inode, range).iter() {
                unknown.drop_range(known);
            }
            for (_, own) in self.own_writes().filter(|(other, _)| *other == inode) {
                unknown.drop_range(own);
            }
            for (part, _) in unknown.iter() {
                self.on_corrupt(inode, part, committed);
            }
        }
    }

    /// What is invalid of one object: for the disk.
    #[must_use]
    pub fn invalid(&self, inode: InodeId) -> Option<&RegionMap> {
        let object = self.objects.get(&inode);
        object
            .map(|object| &object.invalid)
            .filter(|invalid| !invalid.is_empty())
    }

    /// Every invalid region, with the version that it needs.
    pub fn iter(&self) -> impl Iterator<Item = (InodeId, ByteRange, Version)> + '_ {
        self.objects.iter().flat_map(|(&inode, object)| {
            let regions = object.invalid.iter();
            regions.map(move |(range, needed)| (inode, range, needed))
        })
    }

    /// Bytes that are waited for. What was cut off behind a file's end has no bytes, where that is not sure either.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        let all = ByteRange::ALL;
        let objects = self.objects.values();
        let regions =
            objects.flat_map(|object| object.invalid.awaited(all).map(|(range, _)| range));
        let bytes = regions.filter(|range| range.end < u64::MAX);
        bytes.map(|range| range.len()).fold(0, u64::saturating_add)
    }

    /// A command came into the log here, after all others so far.
    ///
    /// An owner's own bytes are valid from now on. The map changes only when the record is committed: what a
    /// restart finds must not speak of a record that is lost.
    ///
    /// `carried` are the parts of what it writes whose bytes are in the record.
    pub fn on_command(
        &mut self,
        version: Version,
        command: &DataCommand,
        origin: Origin,
        carried: Vec<ByteRange>,
    ) {
        self.unsynced += usize::from(origin == Origin::Unsynced);
        self.own += usize::from(origin == Origin::Own);
        let forgets = origin == Origin::Unsynced && planted!(self, CarriedNotRedone);
        self.pending.push_back(Pending {
            version,
            command: command.clone(),
            origin,
            carried: if forgets { Vec::new() } else { carried },
        });
    }

    /// This owner has ordered a record, the last one, of whose bytes nobody has any: they are lost before they were there.
    /// What is in place of it here is no more its content than at a member.
    pub fn on_ordered_lost(&mut self, version: Version) {
        for pending in self.pending.iter_mut().rev() {
            if pending.version != version {
                break;
            }
            if pending.origin == Origin::Own {
                pending.origin = Origin::Remote;
                self.own -= 1;
                if let DataCommand::Written { inode, range } = pending.command {
                    let object = self.objects.entry(inode).or_default();
                    let never = Version::default();
                    object.invalid.invalidate_since(range, version, never);
                }
            }
        }
    }

    /// Everything up to `through` is committed, on a node that holds no chunk.
    pub fn on_committed(&mut self, through: Seq) {
        self.on_committed_beside(through, &Holding::default());
    }

    /// The same on a node that may hold chunks: what it keeps of them is here
    /// ([H6](crate::chunk)).
    pub fn on_committed_beside(&mut self, through: Seq, holding: &Holding) {
        while let Some(first) = self.pending.front()
            && first.version.seq <= through
        {
            let Some(pending) = self.pending.pop_front() else {
                return;
            };
            self.uncount(&pending);
            self.apply(&pending, holding);
        }
    }

    /// Records after `kept` were truncated (F3): the regions that this node wrote for them are invalid until
    /// content of `needed` is here. Nothing is left of what was there before.
    pub fn on_truncated(&mut self, kept: Seq, needed: Version) {
        self.asked_through = self.asked_through.min(kept);
        while let Some(last) = self.pending.back()
            && last.version.seq > kept
        {
            let Some(pending) = self.pending.pop_back() else {
                return;
            };
            self.uncount(&pending);
            if pending.origin != Origin::Remote {
                let (inode, range) = touched(&pending.command);
                let object = self.objects.entry(inode).or_default();
                object
                    .invalid
                    .invalidate_since(range, needed, Version::default());
            }
        }
    }

    fn uncount(&mut self, pending: &Pending) {
        self.unsynced -= usize::from(pending.origin == Origin::Unsynced);
        self.own -= usize::from(pending.origin == Origin::Own);
    }

    /// This node does not own any more: its own writes that are not committed are not to be trusted.
    pub fn on_stepped_down(&mut self) {
        for pending in &mut self.pending {
            if pending.origin == Origin::Own {
                pending.origin = Origin::Unsynced;
            }
        }
        self.unsynced += std::mem::take(&mut self.own);
    }

    /// A state up to `base` was installed in place of the log: the bytes of every object must be fetched as of it.
    /// `objects` are their numbers and lengths; the driver has made the files that long, and removed all others.
    pub fn on_state_installed(
        &mut self,
        base: Version,
        objects: impl IntoIterator<Item = (InodeId, u64)>,
    ) {
        self.objects.clear();
        self.pending.clear();
        self.unsynced = 0;
        self.own = 0;
        self.asked_through = base.seq;
        self.outstanding.clear();
        self.ahead = 0;
        self.under_way.clear();
        self.to_install.clear();
        self.wanted.clear();
        self.has_lost = false;
        self.looks_again = false;
        for (inode, len) in objects.into_iter().filter(|(_, len)| *len > 0) {
            let object = self.objects.entry(inode).or_default();
            object.invalid.spoil(ByteRange::new(0, len), base);
        }
    }

    /// Whether every byte of `range` here is the committed content (for an owner: its newest).
    #[must_use]
    pub fn is_valid(&self, inode: InodeId, range: ByteRange) -> bool {
        if self.lacks(inode, range) {
            return false;
        }
        self.unsynced == 0
            || !self.pending.iter().any(|pending| {
                let (other, dirty) = touched(&pending.command);
                pending.origin == Origin::Unsynced && other == inode && dirty.overlaps(range)
            })
    }

    /// Whether the bytes of every record up to `through`, which is committed here, are in place, but for those that nobody
    /// has.
    #[must_use]
    pub fn has_through(&self, inode: InodeId, through: Seq) -> bool {
        let object = self.objects.get(&inode);
        let oldest = object.and_then(|object| object.invalid.oldest());
        oldest.is_none_or(|since| since.seq > through)
    }

    /// Whether any byte of `range` is missing.
    fn lacks(&self, inode: InodeId, range: ByteRange) -> bool {
        let object = self.objects.get(&inode);
        object.is_some_and(|object| !object.invalid.is_valid(range))
            && (self.own == 0 || !self.missing(inode, range).is_empty())
    }

    /// Whether any byte of `range` is missing and waited for.
    #[must_use]
    pub fn awaits(&self, inode: InodeId, range: ByteRange) -> bool {
        self.missing(inode, range).awaited(range).next().is_some()
    }

    /// What is invalid in `range`, without what an owner has written since.
    fn missing(&self, inode: InodeId, range: ByteRange) -> RegionMap {
        let object = self.objects.get(&inode);
        let mut missing = object.map_or_else(RegionMap::new, |object| object.invalid.part(range));
        if self.own > 0 && !missing.is_empty() {
            for (_, own) in self.own_writes().filter(|(other, _)| *other == inode) {
                missing.drop_range(own);
            }
        }
        missing
    }

    fn own_writes(&self) -> impl Iterator<Item = (InodeId, ByteRange)> + '_ {
        let own = self.pending.iter().filter(|p| p.origin == Origin::Own);
        own.map(|pending| touched(&pending.command))
    }

    /// The bytes of every data command up to here are in place, but for those that nobody has. `committed` is the chain's.
    #[must_use]
    pub fn complete_through(&self, committed: Seq) -> Seq {
        let oldest = self
            .objects
            .values()
            .filter_map(|o| o.invalid.oldest())
            .min();
        let before = oldest.map(|version| Seq(version.seq.0.saturating_sub(1)));
        before.map_or(committed, |seq| seq.min(committed))
    }

    /// A reader or an fsync waits for `range`: it is fetched first.
    pub fn want(&mut self, inode: InodeId, range: ByteRange) {
        if self.lacks(inode, range)
            && let Some(object) = self.objects.get_mut(&inode)
        {
            object.wanted.invalidate(range, Version::default());
            self.wanted.insert(inode);
            // That comes first.
            for kept in self.kept_awaited(inode, range) {
                self.want(kept, range);
            }
        }
    }

    /// Whether somebody waits for anything that is missing.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// An answer: it covers `covered` (a part of what was asked), as of `as_of`, of which `holds` says whether the
    /// log here has it committed.
    pub fn on_fetched(
        &mut self,
        id: FetchId,
        covered: ByteRange,
        as_of: Version,
        holds: Holds,
    ) -> Fetched {
        let Some(outstanding) = self.outstanding.get_mut(&id) else {
            return Fetched::Drop;
        };
        if let Stage::Installing { .. } = outstanding.stage {
            return Fetched::Drop;
        }
        let (inode, asked) = (outstanding.inode, outstanding.range);
        let Some(covered) = covered.intersect(asked) else {
            self.end(id);
            return Fetched::Drop;
        };
        match holds {
            Holds::NotYet => {
                outstanding.stage = Stage::Held { as_of, covered };
                Fetched::Hold
            }
            Holds::Never => {
                self.end(id);
                Fetched::Drop
            }
            Holds::Yes => {
                let missing = self.missing(inode, covered);
                let useful = || missing.iter().filter(|(_, needed)| *needed <= as_of);
                if useful().any(|(part, needed)| self.waits_for_kept(inode, part, needed)) {
                    if let Some(outstanding) = self.outstanding.get_mut(&id) {
                        outstanding.stage = Stage::Held { as_of, covered };
                    }
                    return Fetched::Hold;
                }
                let parts: Vec<ByteRange> = useful().map(|(part, _)| part).collect();
                if let Some(outstanding) = self.outstanding.get_mut(&id) {
                    outstanding.stage = Stage::Installing {
                        parts: parts.clone(),
                        as_of,
                    };
                }
                Fetched::Install { inode, parts }
            }
        }
    }

    /// The parts of [`Fetched::Install`] are in place: they are valid, except where a later write has made them
    /// invalid in the meantime.
    pub fn on_installed(&mut self, id: FetchId) {
        let Some(outstanding) = self.end(id) else {
            return;
        };
        let Stage::Installing { parts, as_of } = outstanding.stage else {
            return;
        };
        self.fill(outstanding.inode, parts, as_of);
    }

    /// An owner has asked every member for `range`, and none gave it. `committed` is the last record that is committed here.
    #[must_use]
    pub fn on_nobody_has(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        why: NotGiven,
        committed: Version,
    ) -> Nobody {
        let mut missing = self.missing(inode, range);
        for part in self.carried_here(inode, range) {
            missing.drop_range(part);
        }
        let Some(object) = self.objects.get_mut(&inode) else {
            return Nobody::AskAgain;
        };
        if missing.is_empty() {
            return Nobody::AskAgain;
        }
        if range.len() > BLOCK_LEN && (!object.corrupt || why == NotGiven::Unreadable) {
            // Only a part of it may be missing elsewhere, or unreadable.
            object.corrupt = true;
            return Nobody::AskAgain;
        }
        let all = missing.iter().map(|(part, _)| part).collect();
        let spoiled: Vec<ByteRange> = missing.spoiled(range).map(|(part, _)| part).collect();
        let lost = match why {
            NotGiven::NotHere | NotGiven::NotEvenOlder if spoiled.is_empty() => {
                return Nobody::Keep(all);
            }
            NotGiven::NotHere if spoiled.iter().all(|part| object.was_spoiled(*part)) => {
                return Nobody::AskOlder;
            }
            NotGiven::Unreadable if spoiled.is_empty() => all,
            NotGiven::NotHere | NotGiven::NotEvenOlder | NotGiven::Unreadable => spoiled,
        };
        if lost.is_empty() {
            return Nobody::AskAgain;
        }
        for &part in &lost {
            object.invalid.spoil(part, committed);
            object.invalid.give_up(part, committed);
        }
        self.has_lost = true;
        Nobody::Lost(lost)
    }

    /// The owner's answer to a fetch: as of `as_of` nobody has `part` of what was asked for. What is in place here is older,
    /// and must not pass for it when this node owns. Returns the parts that this concerns: for the disk, before this node
    /// says that it has everything else.
    #[must_use]
    pub fn on_lost(&mut self, id: FetchId, part: ByteRange, as_of: Version) -> Vec<ByteRange> {
        let mut lost = Vec::new();
        if let Some(outstanding) = self.end(id)
            && let Some(part) = part.intersect(outstanding.range)
            && let Some(object) = self.objects.get_mut(&outstanding.inode)
        {
            // Of the rest the owner says nothing, and may have found it: it is asked for by itself.
            let asked = outstanding.range;
            let rest = [
                ByteRange::new(asked.start, part.start),
                ByteRange::new(part.end, asked.end),
            ];
            rest.into_iter()
                .for_each(|rest| object.invalid.await_again(rest));
            let missing = object.invalid.awaited(part);
            let old = missing.filter(|(_, needed)| *needed <= as_of);
            lost = old.map(|(part, _)| part).collect();
            for &part in &lost {
                object.spoil(part, as_of);
            }
            object.invalid.give_up(part, as_of);
            self.has_lost = true;
        }
        lost
    }

    /// A deliberate fault: what is in place may be the content, when this node owns.
    #[cfg(feature = "plant")]
    pub fn on_lost_keeping_older(&mut self, id: FetchId, part: ByteRange, as_of: Version) {
        if let Some(outstanding) = self.end(id)
            && let Some(object) = self.objects.get_mut(&outstanding.inode)
        {
            object.invalid.give_up(part, as_of);
            self.has_lost = true;
        }
    }

    /// Whether anything of what is missing in `range` may have been here, and was spoiled: for a member's answer to a fetch.
    #[must_use]
    pub fn is_unreadable(&self, inode: InodeId, range: ByteRange) -> bool {
        let missing = self.missing(inode, range);
        missing.unreadable(range).next().is_some()
    }

    /// The parts of `range` in whose place there is nothing that could be the content, in order.
    #[must_use]
    pub fn spoiled(&self, inode: InodeId, range: ByteRange) -> Vec<ByteRange> {
        let missing = self.missing(inode, range);
        missing.spoiled(range).map(|(part, _)| part).collect()
    }

    /// Whether what is in place of `range` is older content where it is missing: an owner may ask for that.
    #[must_use]
    pub fn has_older(&self, inode: InodeId, range: ByteRange) -> bool {
        let unsynced = |pending: &Pending| {
            let (other, dirty) = touched(&pending.command);
            pending.origin == Origin::Unsynced && other == inode && dirty.overlaps(range)
        };
        self.missing(inode, range).is_older(range) && !self.pending.iter().any(unsynced)
    }

    /// Whether nothing is missing, but for what nobody has.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let mut objects = self.objects.values();
        objects.all(|object| object.invalid.oldest().is_none())
    }

    /// The first part of `range` that nobody has: for an owner's answer to a fetch.
    #[must_use]
    pub fn lost(&self, inode: InodeId, range: ByteRange) -> Option<ByteRange> {
        let missing = self.missing(inode, range);
        missing.lost(range).next().map(|(part, _)| part)
    }

    /// What nobody has is asked for once more with the next fetches: somebody may have come back with it. Says whether
    /// there is anything.
    pub fn look_again(&mut self) -> bool {
        let all = ByteRange::ALL;
        let mut objects = self.objects.values();
        self.has_lost =
            self.has_lost && objects.any(|object| object.invalid.lost(all).next().is_some());
        self.looks_again = self.has_lost;
        self.looks_again
    }

    /// Content as of `as_of` is in place of these parts.
    fn fill(&mut self, inode: InodeId, parts: Vec<ByteRange>, as_of: Version) {
        if let Some(object) = self.objects.get_mut(&inode) {
            for part in parts {
                for filled in object.invalid.fill(part, as_of) {
                    object.carried.drop_range(filled);
                }
            }
        }
        self.forget_if_valid(inode);
    }

    /// A fetch came to nothing: its range will be fetched again.
    pub fn on_fetch_failed(&mut self, id: FetchId) {
        self.end(id);
    }

    fn end(&mut self, id: FetchId) -> Option<Outstanding> {
        let ended = self.outstanding.remove(&id)?;
        self.ahead -= usize::from(ended.when == When::Ahead);
        self.under_way.remove(&(ended.inode, ended.range.start));
        Some(ended)
    }

    /// Every fetch that has no answer came to nothing: the owner is another now. Held bytes stay held.
    pub fn on_source_changed(&mut self) {
        let asked = self
            .outstanding
            .iter()
            .filter(|(_, fetch)| matches!(fetch.stage, Stage::Asked));
        let asked: Vec<FetchId> = asked.map(|(id, _)| *id).collect();
        for id in asked {
            self.end(id);
        }
    }

    /// The fetches whose bytes are held and can be decided now: each is handed to [`Pull::on_fetched`] again.
    /// `holds` is [`Chain::holds`](crate::Chain::holds).
    #[must_use]
    pub fn decidable(&self, holds: impl Fn(Version) -> Holds) -> Vec<FetchId> {
        let decidable = |fetch: &Outstanding| match fetch.stage {
            Stage::Held { as_of, covered } => match holds(as_of) {
                Holds::NotYet => false,
                Holds::Never => true,
                Holds::Yes => {
                    let missing = self.missing(fetch.inode, covered);
                    let mut useful = missing.iter().filter(|(_, needed)| *needed <= as_of);
                    !useful.any(|(part, needed)| self.waits_for_kept(fetch.inode, part, needed))
                }
            },
            Stage::Asked | Stage::Installing { .. } => false,
        };
        let held = self.outstanding.iter();
        let held = held.filter(|(_, fetch)| decidable(fetch));
        held.map(|(id, _)| *id).collect()
    }

    /// A deliberate fault: what is here is valid.
    #[cfg(feature = "plant")]
    pub fn force_valid(&mut self, inode: InodeId, range: ByteRange) {
        if let Some(object) = self.objects.get_mut(&inode) {
            object.invalid.drop_range(range);
        }
        self.forget_if_valid(inode);
    }

    fn apply(&mut self, pending: &Pending, holding: &Holding) {
        let (inode, range) = touched(&pending.command);
        let version = pending.version;
        self.pass_carried(pending, range);
        match (pending.origin, &pending.command) {
            (
                Origin::Own,
                DataCommand::Written { .. }
                | DataCommand::Resized { .. }
                | DataCommand::Punched { .. },
            ) => {
                if let Some(object) = self.objects.get_mut(&inode) {
                    object.invalid.drop_range(range);
                }
            }
            // Bytes are installed once their record is committed here, so none of this one's are in place, but for a
            // holder's own.
            (Origin::Remote, DataCommand::Written { .. }) => {
                let object = self.objects.entry(inode).or_default();
                for (part, _) in holding.lacking(inode, range, version).iter() {
                    object.invalid.replace(part, version);
                }
            }
            (
                Origin::Unsynced,
                DataCommand::Written { .. }
                | DataCommand::Resized { .. }
                | DataCommand::Punched { .. },
            ) => {
                let object = self.objects.entry(inode).or_default();
                object.invalid.invalidate(range, version);
            }
            // The driver makes these bytes zeros, or the object shorter: nothing to fetch.
            (Origin::Remote, DataCommand::Resized { .. } | DataCommand::Punched { .. }) => {
                if let Some(object) = self.objects.get_mut(&inode) {
                    object.invalid.drop_range(range);
                }
            }
            (_, DataCommand::Removed { .. }) => {
                self.objects.remove(&inode);
                self.kept_of.remove(&inode);
            }
        }
        self.carry(pending);
        self.forget_if_valid(inode);
    }

    fn forget_if_valid(&mut self, inode: InodeId) {
        if self
            .objects
            .get(&inode)
            .is_some_and(|o| o.invalid.is_empty() && o.carried.is_empty())
        {
            self.objects.remove(&inode);
        }
    }
}

/// The object and the bytes that a command changes.
fn touched(command: &DataCommand) -> (InodeId, ByteRange) {
    match command {
        DataCommand::Written { inode, range } | DataCommand::Punched { inode, range } => {
            (*inode, *range)
        }
        DataCommand::Resized { inode, size } => (*inode, ByteRange::new(*size, u64::MAX)),
        DataCommand::Removed { inode } => (*inode, ByteRange::ALL),
    }
}

mod carry;
mod kept;
mod plan;
#[cfg(test)]
mod tests;

pub use carry::Carried;
