//! The side of a holder that keeps no copy: what its programs write is on its way to the owner when they hear that it is written
//! (write-behind). Whoever else wants the chunk is answered after all of it has arrived (H3), so nobody can tell.

use super::claim::Claim;
use super::holder::Report;
use super::{Chunk, Hold, Manner, Terms};
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId, SessionId, Tick};
use std::collections::{BTreeMap, BTreeSet};

/// Deliberate faults of this side and of the owner's, by name: for the simulator's own test.
#[cfg(feature = "plant")]
pub mod plant {
    perigee_types::plants! {
        WithoutRight = "a host answers its programs before the owner does when its right is over";
        Overtakes = "two writes of one host to the same bytes are on their way at once";
        Unheeding = "a host says that it has stopped, and goes on answering before the owner does";
        ReportsEarly = "a host answers a call before what its programs have written has arrived";
        Unfenced = "what a host has sent counts after its row was removed";
        Unasked = "a chunk is read without a word to who writes it behind";
        RowUncommitted = "a host hears of its row before that has its record";
        OldRowBelieved = "a late word of an earlier row replaces a later one";
        LeavesEarly = "a program hears that its writes are with the owner before they are";
        StaysOrdered = "a write that is sent to another owner counts as ordered by the one before";
        ToldUnordered = "an owner says that it has ordered a write that it refuses";
    }
}

macro_rules! planted {
    ($behind:expr, $name:ident) => {{
        #[cfg(feature = "plant")]
        {
            $behind.plant == Some(plant::Plant::$name)
        }
        #[cfg(not(feature = "plant"))]
        {
            false
        }
    }};
}

/// A chunk that was asked for is a session's now.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    /// By this row.
    pub hold: Hold,
    /// When it was asked for: its right begins then.
    pub asked_at: Tick,
    /// How long that lasts.
    pub terms: Terms,
}

/// What an owner's word says to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Something that it did not know.
    News,
    /// Nothing, or something about an owner that is not asked any more.
    Nothing,
}

/// Names a write that is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteNumber(u64);

/// What a program's write may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// It is sent with this row, and its program is answered at once; [`Behind::on_answered`] follows.
    Now(WriteNumber, Hold),
    /// When the owner has answered: [`Behind::ask`].
    Ask(Chunk),
    /// When the owner was asked for the chunk, which nothing is known of: [`Behind::on_wanted`] follows.
    Want(Chunk),
    /// When some of what is on its way to the same container has arrived.
    Wait,
    /// Its program waits for the owner, and it for what is on its way to the file.
    No,
}

/// Bytes that may be on their way.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// To one container, and not ordered by its owner.
    pub each: u64,
    /// To one container, ordered or not: an owner that is slow, or gone, takes no more of the room of others.
    pub kept: u64,
    /// To all of them, ordered or not.
    pub all: u64,
}

/// A write that is under way takes as much of what may be as this, however short it is.
const BYTES_MIN: u64 = 16 << 10;
/// Who writes so much at once is likely to go on: its chunk is asked for before the first of it. Smaller writes earn it
/// ([`super::Habit`]).
const WANTED_LEN: u64 = 512 << 10;
/// With more chunks than this those are forgotten that nothing begins in now; the next answer tells of a row again.
const CHUNKS_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    chunk: Chunk,
    hold: Hold,
    range: ByteRange,
    /// The owner that it was sent to last.
    to: Option<NodeId>,
    /// That owner has put it in place and ordered its record: it outlives this host, and until it is committed this host keeps
    /// it, so that it outlives the owner.
    ordered: bool,
}

impl UnderWay {
    fn bytes(&self) -> u64 {
        self.range.len().max(BYTES_MIN)
    }
}

/// Bytes on their way to one container.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Not ordered by its owner.
    unordered: u64,
    all: u64,
}

/// The chunks that one node's programs write behind, as far as it has heard, and what is on its way. No I/O.
#[derive(Debug)]
pub struct Behind {
    held: BTreeMap<Chunk, Claim>,
    under_way: BTreeMap<WriteNumber, UnderWay>,
    last: u64,
    /// On their way, to each container.
    loads: BTreeMap<ContainerId, Load>,
    /// What was asked for, once by each session.
    wanted: BTreeSet<(SessionId, Chunk)>,
    /// What is being asked for: what is known of these is not forgotten.
    wanting: BTreeSet<(SessionId, Chunk)>,
    /// Files of which writes have failed: their programs hear of the next ones by themselves.
    failed: BTreeSet<(SessionId, InodeId)>,
    wanted_len: u64,
    #[cfg(feature = "plant")]
    plant: Option<plant::Plant>,
}

impl Default for Behind {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            under_way: BTreeMap::new(),
            last: 0,
            loads: BTreeMap::new(),
            wanted: BTreeSet::new(),
            wanting: BTreeSet::new(),
            failed: BTreeSet::new(),
            wanted_len: WANTED_LEN,
            #[cfg(feature = "plant")]
            plant: None,
        }
    }
}

impl Behind {
    /// With writes of so many bytes a chunk is asked for.
    #[must_use]
    pub const fn with_wanted_len(mut self, len: u64) -> Self {
        self.wanted_len = len;
        self
    }

    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<plant::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// The owner has told, with the answer to a write, that the record by which `hold` is the row of `chunk` is committed.
    pub fn on_row(&mut self, now: Tick, chunk: Chunk, hold: Hold) {
        if hold.manner != Manner::WriteBehind {
            return;
        }
        let known = self.held.get(&chunk).map(|held| held.hold.token);
        // Answers overtake each other.
        if known.is_none_or(|known| known < hold.token) || planted!(self, OldRowBelieved) {
            self.held.insert(chunk, Claim::new(hold));
        }
        if self.held.len() > CHUNKS_MAX {
            let busy: BTreeSet<Chunk> = self.under_way.values().map(|way| way.chunk).collect();
            let wanted: BTreeSet<Chunk> = self.wanting.iter().map(|(_, chunk)| *chunk).collect();
            let goes_on = |held: &Claim| !held.is_stopping() && held.lasted_lately(now);
            let needed = |at: &Chunk| *at == chunk || busy.contains(at) || wanted.contains(at);
            self.held.retain(|at, held| needed(at) || goes_on(held));
        }
    }

    /// A program of `session` wants to write `range`, which is not empty.
    pub fn begin(
        &mut self,
        now: Tick,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
        room: Room,
    ) -> Begin {
        let Some(chunk) = Chunk::around(inode, range) else {
            return Begin::No;
        };
        if !self.held.contains_key(&chunk) && self.wants(session, chunk, range) {
            return Begin::Want(chunk);
        }
        let held = self.held.get(&chunk);
        let goes_on = |held: &&Claim| !held.is_stopping() || planted!(self, Unheeding);
        let held = held.filter(|held| held.is_of(session));
        let Some(held) = held.filter(goes_on) else {
            return Begin::No;
        };
        if !held.lasts_at(now) && !planted!(self, WithoutRight) {
            return Begin::Ask(chunk);
        }
        let overtakes = |way: &UnderWay| way.chunk.inode == inode && way.range.overlaps(range);
        let would_overtake = self.under_way.values().any(overtakes) && !planted!(self, Overtakes);
        let way = UnderWay {
            chunk,
            hold: held.hold,
            range,
            to: None,
            ordered: false,
        };
        let load = self.loads.get(&inode.container());
        let to_it = load.copied().unwrap_or_default();
        let all = self.loads.values().map(|load| load.all).sum::<u64>();
        let fits = |load: u64, room: u64| load == 0 || load.saturating_add(way.bytes()) <= room;
        if would_overtake || !fits(to_it.unordered, room.each) || !fits(to_it.all, room.kept) {
            return Begin::Wait;
        }
        if !fits(all, room.all) {
            return match to_it.all {
                0 => Begin::No,
                _ => Begin::Wait,
            };
        }
        self.last += 1;
        let number = WriteNumber(self.last);
        let load = self.loads.entry(inode.container()).or_default();
        load.unordered += way.bytes();
        load.all += way.bytes();
        self.under_way.insert(number, way);
        Begin::Now(number, way.hold)
    }

    /// Whether the owner is to be asked for a chunk before a write to it, and was not before.
    fn wants(&mut self, session: SessionId, chunk: Chunk, range: ByteRange) -> bool {
        if range.len() < self.wanted_len || self.failed.contains(&(session, chunk.inode)) {
            return false;
        }
        if self.wanted.len() >= CHUNKS_MAX {
            self.wanted.clear();
        }
        let first = self.wanted.insert((session, chunk));
        if first {
            self.wanting.insert((session, chunk));
        }
        first
    }

    /// The answer to a session's question for a chunk, or nobody waits for that any more.
    pub fn on_wanted(&mut self, now: Tick, session: SessionId, chunk: Chunk, given: Option<Given>) {
        if let Some(Given {
            hold,
            asked_at,
            terms,
        }) = given
        {
            self.on_row(now, chunk, hold);
            self.on_right(chunk, hold, (0, asked_at), terms);
        }
        self.wanting.remove(&(session, chunk));
    }

    /// The owner has answered for a write, or nobody waits for it any more.
    pub fn on_answered(&mut self, number: WriteNumber) {
        self.set_ordered(number, true);
        if let Some(way) = self.under_way.remove(&number) {
            let container = way.chunk.inode.container();
            if let Some(load) = self.loads.get_mut(&container) {
                load.all = load.all.saturating_sub(way.bytes());
                if load.all == 0 {
                    self.loads.remove(&container);
                }
            }
        }
    }

    /// An owner has put a write in place and ordered its record: the one that it was sent to last, else that means nothing.
    pub fn on_ordered(&mut self, number: WriteNumber, from: NodeId) -> Word {
        let way = self.under_way.get(&number);
        let asked = way.is_some_and(|way| way.to == Some(from));
        match (asked || planted!(self, StaysOrdered)) && self.set_ordered(number, true) {
            true => Word::News,
            false => Word::Nothing,
        }
    }

    /// A write is sent, and perhaps not for the first time: this owner has not said yet that it has ordered it.
    pub fn on_sent(&mut self, number: WriteNumber, to: NodeId) {
        if planted!(self, StaysOrdered) {
            return;
        }
        self.set_ordered(number, false);
        if let Some(way) = self.under_way.get_mut(&number) {
            way.to = Some(to);
        }
    }

    fn set_ordered(&mut self, number: WriteNumber, ordered: bool) -> bool {
        let way = self.under_way.get_mut(&number);
        let Some(way) = way.filter(|way| way.ordered != ordered) else {
            return false;
        };
        way.ordered = ordered;
        if let Some(load) = self.loads.get_mut(&way.chunk.inode.container()) {
            load.unordered = match ordered {
                true => load.unordered.saturating_sub(way.bytes()),
                false => load.unordered + way.bytes(),
            };
        }
        true
    }

    /// The row and the number of one more question for the right to write a chunk.
    pub fn ask(&mut self, chunk: Chunk) -> Option<(Hold, u64)> {
        self.held.get_mut(&chunk)?.ask()
    }

    /// The owner has granted what was asked: by the question of this number, at this time.
    pub fn on_right(&mut self, chunk: Chunk, hold: Hold, question: (u64, Tick), terms: Terms) {
        if let Some(held) = self.held.get_mut(&chunk) {
            held.on_right(hold, question, terms.held);
        }
    }

    /// The owner has refused it: the row is about to go, or has gone.
    pub fn on_refused(&mut self, chunk: Chunk, hold: Hold) {
        self.end(chunk, hold);
    }

    /// A write has failed that its program was answered for: none of its session begins in the file any more, by the rows that
    /// are known now.
    pub fn on_failed(&mut self, session: SessionId, inode: InodeId) {
        if self.failed.len() >= CHUNKS_MAX {
            self.failed.clear();
        }
        self.failed.insert((session, inode));
        let known = self.held.range_mut(Chunk::all_of(inode));
        for (_, held) in known.filter(|(_, held)| held.is_of(session)) {
            held.stop();
        }
    }

    /// Nothing begins by this row any more, nor by an earlier one, whatever is still told of them.
    fn end(&mut self, chunk: Chunk, hold: Hold) {
        let unheeding = planted!(self, Unheeding);
        let held = self.held.entry(chunk).or_insert(Claim::new(hold));
        if held.hold.token < hold.token {
            *held = Claim::new(hold);
        }
        if held.hold == hold {
            match unheeding {
                true => held.only_say_stop(),
                false => held.stop(),
            }
        }
    }

    /// Whether a session may ask for the right to write a chunk, and has none after `until`.
    #[must_use]
    pub fn wants_right(&self, session: SessionId, chunk: Chunk, until: Tick) -> bool {
        let held = self.held.get(&chunk);
        let its = held.filter(|held| held.is_of(session) && !held.is_stopping());
        its.is_some_and(|held| !held.lasts_at(until))
    }

    /// Whether nothing is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The files with something on its way.
    pub fn unsettled(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.under_way.values().map(|way| way.chunk.inode)
    }

    /// Whether something is on its way to a file.
    #[must_use]
    pub fn concerns(&self, inode: InodeId) -> bool {
        self.under_way.values().any(|way| way.chunk.inode == inode)
    }

    /// The last write that has begun.
    #[must_use]
    pub fn last(&self) -> WriteNumber {
        WriteNumber(self.last)
    }

    /// Whether nothing is on its way, of `which` sessions to which files, of what had begun when [`Behind::last`] was `through`.
    pub fn has_arrived(
        &self,
        which: impl Fn(SessionId, InodeId) -> bool,
        through: WriteNumber,
    ) -> bool {
        let mut before = self.under_way.range(..=through);
        !before.any(|(_, way)| which(way.hold.holder, way.chunk.inode))
    }

    /// Whether all of that is with its owner, which has ordered it: it outlives this host, or its owner.
    pub fn is_ordered(
        &self,
        which: impl Fn(SessionId, InodeId) -> bool,
        through: WriteNumber,
    ) -> bool {
        let before = self.under_way.range(..=through);
        let mut unordered = before.filter(|(_, way)| !way.ordered);
        !unordered.any(|(_, way)| which(way.hold.holder, way.chunk.inode))
            || planted!(self, LeavesEarly)
    }

    /// The owner calls. From now on this node's programs wait for the owner where it is to stop. The call is answered by
    /// [`Behind::report`], when that gives something.
    pub fn on_call(&mut self, chunk: Chunk, hold: Hold, stop: bool) {
        let unheeding = planted!(self, Unheeding);
        if let Some(held) = self.held.get_mut(&chunk).filter(|held| held.hold == hold)
            && stop
        {
            match unheeding {
                true => held.only_say_stop(),
                false => held.stop(),
            }
        }
    }

    /// What a call is answered with, which came when `through` was [`Behind::last`]; `None` while some of what had begun
    /// before is on its way.
    pub fn report(&mut self, chunk: Chunk, hold: Hold, through: WriteNumber) -> Option<Report> {
        let of = |way: &UnderWay| way.chunk == chunk && way.hold == hold;
        let early = planted!(self, ReportsEarly);
        let mut before = self.under_way.range(..=through);
        if before.any(|(_, way)| of(way)) && !early {
            return None;
        }
        let quiet = !self.under_way.values().any(of);
        let held = self.held.get_mut(&chunk);
        let Some(held) = held.filter(|held| held.hold == hold && !held.is_stopping()) else {
            // More had begun by the row before another call, or a refusal, ended that.
            return (quiet || early).then(|| {
                self.end(chunk, hold);
                Report::Stopped
            });
        };
        if !quiet {
            return Some(Report::Writes);
        }
        Some(held.rest())
    }

    /// A session has ended: none of its programs writes any more.
    pub fn forget(&mut self, session: SessionId) {
        self.held.retain(|_, held| !held.is_of(session));
        self.wanted.retain(|(of, _)| *of != session);
        self.failed.retain(|(of, _)| *of != session);
    }
}
