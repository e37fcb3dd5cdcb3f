//! The side of a holder that keeps no copy: what its programs write is on its way to the owner when they hear that it is written
//! (write-behind). Whoever else wants the chunk is answered after all of it has arrived (H3), so nobody can tell.

use super::claim::Claim;
use super::holder::Report;
use super::{Chunk, Hold, Manner, Terms};
use perigee_types::{ByteRange, ContainerId, InodeId, SessionId, Tick};
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
    /// When some of what is on its way to the same container has arrived.
    Wait,
    /// Its program waits for the owner, and it for what is on its way to the file.
    No,
}

/// Bytes that may be on their way.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// To one container: an owner that is slow, or gone, takes no more of the room of others.
    pub each: u64,
    /// To all of them.
    pub all: u64,
}

/// A write that is under way takes as much of what may be as this, however short it is.
const BYTES_MIN: u64 = 16 << 10;
/// With more chunks than this those are forgotten that nothing begins in now; the next answer tells of a row again.
const CHUNKS_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    chunk: Chunk,
    hold: Hold,
    range: ByteRange,
}

/// The chunks that one node's programs write behind, as far as it has heard, and what is on its way. No I/O.
#[derive(Debug, Default)]
pub struct Behind {
    held: BTreeMap<Chunk, Claim>,
    under_way: BTreeMap<WriteNumber, UnderWay>,
    last: u64,
    /// On their way, to each container.
    bytes: BTreeMap<ContainerId, u64>,
    #[cfg(feature = "plant")]
    plant: Option<plant::Plant>,
}

impl Behind {
    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<plant::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// The owner has told, with the answer to a write, that the record by which `hold` is the row of `chunk` is committed.
    pub fn on_row(&mut self, chunk: Chunk, hold: Hold) {
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
            let goes_on = |held: &Claim| !held.is_stopping() && held.has_right();
            self.held
                .retain(|at, held| *at == chunk || goes_on(held) || busy.contains(at));
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
        let bytes = range.len().max(BYTES_MIN);
        let to_it = self.bytes.get(&inode.container()).copied().unwrap_or(0);
        let all = self.bytes.values().sum::<u64>();
        if would_overtake || (to_it > 0 && to_it.saturating_add(bytes) > room.each) {
            return Begin::Wait;
        }
        if all > 0 && all.saturating_add(bytes) > room.all {
            return match to_it {
                0 => Begin::No,
                _ => Begin::Wait,
            };
        }
        let hold = held.hold;
        self.last += 1;
        let number = WriteNumber(self.last);
        *self.bytes.entry(inode.container()).or_default() += bytes;
        self.under_way
            .insert(number, UnderWay { chunk, hold, range });
        Begin::Now(number, hold)
    }

    /// The owner has answered for a write, or nobody waits for it any more.
    pub fn on_answered(&mut self, number: WriteNumber) {
        if let Some(way) = self.under_way.remove(&number) {
            let container = way.chunk.inode.container();
            let left = self.bytes.get(&container).copied().unwrap_or(0);
            match left.saturating_sub(way.range.len().max(BYTES_MIN)) {
                0 => self.bytes.remove(&container),
                left => self.bytes.insert(container, left),
            };
        }
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
    }
}
