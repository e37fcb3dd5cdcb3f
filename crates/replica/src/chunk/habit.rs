//! When it pays that a chunk moves.
//!
//! A move costs about as much as a few remote writes: two records, and what others ask of the holder. So a chunk moves when
//! one session has made so many of them with nobody else between. Whoever guessed wrong waits longer the next time: two
//! sessions that take turns soon have a fixed owner.

use perigee_types::SessionId;

/// Remote writes that cost as much as a move.
const PRICE: u32 = 4;
/// The dearest that a move becomes for a chunk that came back too early again and again.
const PRICE_MAX: u32 = 4_096;

/// What was seen of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habit {
    by: Option<SessionId>,
    writes: u32,
    price: u32,
}

impl Default for Habit {
    fn default() -> Self {
        Self::priced(PRICE)
    }
}

impl Habit {
    /// Of a chunk that nothing is known of, where a move costs as much as so many remote writes.
    #[must_use]
    pub const fn priced(price: u32) -> Self {
        Self {
            by: None,
            writes: 0,
            price,
        }
    }

    /// The owner has carried out a write of another host's session. Says whether the chunk should belong to that.
    pub fn on_write(&mut self, by: SessionId) -> bool {
        if self.by != Some(by) {
            self.by = Some(by);
            self.writes = 0;
        }
        self.writes = self.writes.saturating_add(1);
        self.writes >= self.price
    }

    /// A session's stream of writes comes near. Says whether the chunk should belong to that before the first of them, which
    /// one does that nothing speaks against.
    pub fn on_stream(&mut self, by: SessionId) -> bool {
        if self.by.is_none() {
            self.by = Some(by);
        }
        self.by == Some(by) && self.price <= PRICE
    }

    /// Whether one session has made a handful of writes with nobody else between, whatever came of the moves before.
    #[must_use]
    pub const fn has_handful(&self) -> bool {
        self.writes >= PRICE
    }

    /// Whose writes are counted.
    #[must_use]
    pub const fn writer(&self) -> Option<SessionId> {
        self.by
    }

    /// Somebody else has read or changed it.
    pub fn on_other(&mut self) {
        self.by = None;
    }

    /// It has come back, after its holder has made so many writes.
    pub fn on_return(&mut self, writes: u64) {
        self.price = match writes < u64::from(self.price) {
            true => (self.price * 2).min(PRICE_MAX),
            false => (self.price / 2).max(PRICE),
        };
        self.by = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::NodeId;

    fn session(node: u32) -> SessionId {
        SessionId::new(NodeId(node), 1)
    }

    /// Moves of a chunk that two sessions write to in turns of `turn` writes each.
    fn moves(turn: u32, turns: u32) -> u32 {
        let (mut habit, mut holder, mut moves, mut stayed) = (Habit::default(), None, 0, 0);
        for write in 0..turn * turns {
            let by = session(1 + write / turn % 2);
            if holder == Some(by) {
                stayed += 1;
                continue;
            }
            if holder.take().is_some() {
                habit.on_return(stayed);
            }
            if habit.on_write(by) {
                (holder, stayed) = (Some(by), 0);
                moves += 1;
            }
        }
        moves
    }

    #[test]
    fn a_stream_finds_its_next_chunk_its_own_where_nobody_else_works() {
        assert!(Habit::default().on_stream(session(1)));
        let mut busy = Habit::default();
        busy.on_write(session(2));
        assert!(!busy.on_stream(session(1)));
        let mut came_back = Habit::default();
        came_back.on_return(0);
        assert!(!came_back.on_stream(session(1)));
    }

    #[test]
    fn a_chunk_follows_long_turns_and_not_short_ones() {
        assert_eq!(moves(1, 10_000), 0);
        assert!(moves(6, 10_000) < 10);
        assert_eq!(moves(1_000, 100), 100);
    }
}
