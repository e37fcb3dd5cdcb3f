//! Which fetches come next.

use super::{
    AHEAD_BYTES_MAX, AHEAD_FETCHES_MAX, FETCH_LEN_MAX, Fetch, FetchId, Object, Origin, Outstanding,
    Pending, Pull, Stage, When, touched,
};
use crate::chunk::Holding;
use crate::region::RegionMap;
use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, DataCommand, InodeId, Seq, Version};

impl Pull {
    /// What to fetch now: at most `budget_bytes`, with no more than `max_outstanding` under way in all.
    pub fn next_fetches(&mut self, budget_bytes: u64, max_outstanding: usize) -> Vec<Fetch> {
        let mut room = Room {
            bytes: budget_bytes,
            slots: max_outstanding.saturating_sub(self.outstanding.len() - self.ahead),
            looks_again: self.looks_again,
        };
        let mut fetches = Vec::new();
        for inode in std::mem::take(&mut self.wanted) {
            let wanted = match self.objects.get_mut(&inode) {
                Some(object) => std::mem::take(&mut object.wanted),
                None => continue,
            };
            let mut left = RegionMap::new();
            for (part, _) in wanted.iter() {
                self.plan(inode, part, &mut room, &mut fetches);
                if room.is_empty() {
                    left.invalidate(part, Version::default());
                }
            }
            if !left.is_empty()
                && let Some(object) = self.objects.get_mut(&inode)
            {
                object.wanted = left;
                self.wanted.insert(inode);
            }
        }
        let turn = self.turn;
        let mut order: Vec<InodeId> = Vec::new();
        if !room.is_empty() {
            let after = self.objects.range(turn..).skip_while(|(i, _)| **i == turn);
            let before = self.objects.range(..=turn);
            let incomplete = |(i, o): (&InodeId, &Object)| (!o.invalid.is_empty()).then_some(*i);
            order.extend(after.filter_map(incomplete));
            order.extend(before.filter_map(incomplete));
        }
        for inode in order {
            if room.is_empty() {
                break;
            }
            self.plan(inode, ByteRange::ALL, &mut room, &mut fetches);
            self.turn = inode;
        }
        self.looks_again = false;
        fetches
    }

    /// What to ask the owner for ahead: what was written by records that are in the log and not committed here, once of each, but
    /// for what they carry, and for what this node has as a [holder](crate::chunk). What is left of the last one for want of room
    /// is not asked for ahead. An answer that does not come is no failure: what is missing once the record is committed is asked
    /// for then.
    pub fn next_ahead(&mut self, holding: &Holding) -> Vec<Fetch> {
        let ahead = self.outstanding.values();
        let ahead = ahead.filter(|fetch| fetch.when == When::Ahead);
        let bytes = ahead.map(|fetch| fetch.range.len());
        let bytes = bytes.fold(0, u64::saturating_add);
        let mut room = Room {
            bytes: AHEAD_BYTES_MAX.saturating_sub(bytes),
            slots: AHEAD_FETCHES_MAX.saturating_sub(self.ahead),
            looks_again: false,
        };
        let mut fetches = Vec::new();
        if room.is_empty() {
            return fetches;
        }
        let asked = self.asked_through;
        let mut through = asked;
        for pending in self.logged_after(asked, room.slots) {
            let (version, (inode, range)) = (pending.version, touched(&pending.command));
            let mut free = holding.lacking(inode, range, version);
            for busy in self.under_way(inode, range).chain(pending.carried) {
                free.drop_range(busy);
            }
            let mut chosen = Vec::new();
            for (part, needed) in free.iter() {
                cut_up(part, needed, false, &mut room, &mut chosen);
            }
            for (range, needed) in chosen {
                self.ask(inode, range, needed, When::Ahead, &mut fetches);
            }
            // What there was no room for of this one comes when it is committed.
            through = version.seq;
            if room.is_empty() {
                break;
            }
        }
        self.asked_through = through;
        fetches
    }

    /// The writes of other nodes' records that are not committed here, and come after `asked`: so many at most.
    fn logged_after(&self, asked: Seq, most: usize) -> Vec<Pending> {
        let first = self
            .pending
            .partition_point(|pending| pending.version.seq <= asked);
        let new = self.pending.range(first..);
        let new = new.filter(|pending| {
            let written = matches!(pending.command, DataCommand::Written { .. });
            pending.origin == Origin::Remote && written
        });
        new.take(most).cloned().collect()
    }

    /// Adds fetches for what is invalid inside `range`, and not under way.
    fn plan(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        room: &mut Room,
        fetches: &mut Vec<Fetch>,
    ) {
        let turn = self.objects.get(&inode).map_or(0, |object| object.turn);
        let turn = turn.clamp(range.start, range.end);
        for range in [
            ByteRange::new(turn, range.end),
            ByteRange::new(range.start, turn),
        ] {
            let planned = self.choose(inode, range, room);
            for (range, needed) in planned {
                self.ask(inode, range, needed, When::Missing, fetches);
            }
        }
    }

    /// What is invalid inside `range`, and not under way, as far as there is room: in pieces of one fetch each.
    fn choose(
        &self,
        inode: InodeId,
        range: ByteRange,
        room: &mut Room,
    ) -> Vec<(ByteRange, Version)> {
        let mut chosen = Vec::new();
        let Some(object) = self.objects.get(&inode) else {
            return chosen;
        };
        let mut own = RegionMap::new();
        if self.own > 0 {
            for (_, range) in self.own_writes().filter(|(other, _)| *other == inode) {
                own.invalidate(range, Version::default());
            }
        }
        let looks_again = room.looks_again;
        let lost = object.invalid.lost(range).filter(|_| looks_again);
        for (part, needed) in object.invalid.awaited(range).chain(lost) {
            if room.is_empty() {
                break;
            }
            if self.waits_for_kept(inode, part, needed) {
                continue;
            }
            let mut free = RegionMap::new();
            free.invalidate(part, needed);
            for (busy, _) in own.overlapping(part) {
                free.drop_range(busy);
            }
            for busy in self.under_way(inode, part) {
                free.drop_range(busy);
            }
            for carried in self.carried_here(inode, part) {
                free.drop_range(carried);
            }
            for (part, needed) in free.iter() {
                cut_up(part, needed, object.corrupt, room, &mut chosen);
            }
        }
        chosen
    }

    /// The outstanding fetches that overlap `range`.
    fn under_way(&self, inode: InodeId, range: ByteRange) -> impl Iterator<Item = ByteRange> + '_ {
        let mut before = self.under_way.range((inode, 0)..=(inode, range.start));
        let first = before
            .next_back()
            .map_or(range.start, |((_, start), _)| *start);
        let near = self
            .under_way
            .range((inode, first)..(inode, range.end.max(first)));
        near.map(|((_, start), end)| ByteRange::new(*start, *end))
    }

    fn ask(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        needed: Version,
        when: When,
        fetches: &mut Vec<Fetch>,
    ) {
        self.last_fetch += 1;
        let id = FetchId(self.last_fetch);
        let stage = Stage::Asked;
        let outstanding = Outstanding {
            inode,
            range,
            when,
            stage,
        };
        self.outstanding.insert(id, outstanding);
        self.under_way.insert((inode, range.start), range.end);
        self.ahead += usize::from(when == When::Ahead);
        if when == When::Missing
            && let Some(object) = self.objects.get_mut(&inode)
        {
            object.turn = range.end;
        }
        fetches.push(Fetch {
            id,
            inode,
            range,
            needed,
        });
    }
}

/// Divides a range into pieces of one fetch each, as far as there is room. `by_blocks`: each block of it may be lacking elsewhere.
fn cut_up(
    part: ByteRange,
    needed: Version,
    by_blocks: bool,
    room: &mut Room,
    chosen: &mut Vec<(ByteRange, Version)>,
) {
    let mut at = part.start;
    while at < part.end && !room.is_empty() {
        let whole = part.end == u64::MAX;
        let end = match by_blocks {
            // The first block by itself, and the rest to the end of the object.
            true if whole && at > part.start => u64::MAX,
            false if whole => u64::MAX,
            true => at - at % BLOCK_LEN + BLOCK_LEN,
            false => at.saturating_add(FETCH_LEN_MAX),
        };
        let piece = ByteRange::new(at, part.end.min(end));
        room.take(piece.len().min(FETCH_LEN_MAX));
        chosen.push((piece, needed));
        at = piece.end;
    }
}

/// What may still be asked for in this round.
struct Room {
    bytes: u64,
    slots: usize,
    /// Whether what nobody has is asked for, too.
    looks_again: bool,
}

impl Room {
    fn is_empty(&self) -> bool {
        self.bytes == 0 || self.slots == 0
    }

    fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.slots -= 1;
    }
}
