//! The side of the container's owner: which chunks it has given away, and what stands between others and them.

use super::holder::{FlushNumber, Report};
use super::{Chunk, Hold, Manner, Terms};
use crate::chain::planted;
use perigee_types::{ByteRange, InodeId, NodeId, Span, Tick};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What somebody wants of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Its content, its times, or where its holes are.
    Read,
    /// To change it.
    Change,
}

/// What has to happen before an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// The holder is to be called; the access waits for [`Holds::on_report`] or [`Holds::on_silence`].
    Call(Call),
    /// A record that removes this row is to be ordered, after the records of what its holder has sent; then
    /// [`Holds::removed`].
    Remove(Chunk),
}

/// What there is to do about a holder that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// It may write until then: it is called again.
    Lasts(Tick),
    /// Its row is to be removed, whatever it has not sent.
    Over,
    /// It holds the chunk no more.
    Gone,
}

/// What a holder is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Of which chunk.
    pub chunk: Chunk,
    /// By which row.
    pub hold: Hold,
    /// To stop, and send what it has; or only to send it.
    pub access: Access,
}

/// What a holder sent does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// The row by which it was sent is not the chunk's, or its holder has said that nothing more comes.
    #[error("the chunk belongs to somebody else")]
    Row,
    /// Something that was sent later came before.
    #[error("something newer has come before")]
    Overtaken,
    /// The holder is to stop.
    #[error("the chunk is taken back")]
    Recalled,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    hold: Hold,
    right: Right,
    recalled: bool,
    /// The last of its holder's flushes that was taken.
    flushed: FlushNumber,
    /// How often its holder has asked.
    asked: u64,
    /// When the last right that it was granted ends, or when it was given the chunk.
    granted: Tick,
}

/// What a holder may still do without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// Nothing before it asks: it has sent everything.
    None,
    /// Write until then, by this owner's clock; what it wrote may lie there longer.
    Until(Tick),
    /// Nothing ever, by this row.
    Over,
}

/// The chunks that one owner has given away, in one reign. No I/O.
#[derive(Debug, Default)]
pub struct Holds {
    rows: BTreeMap<Chunk, Row>,
    #[cfg(feature = "plant")]
    plant: Option<crate::Plant>,
}

impl Holds {
    /// Of a reign that begins `now`, with the rows of the state. Its predecessor may have granted a moment ago.
    pub fn new(rows: impl IntoIterator<Item = (Chunk, Hold)>, now: Tick, terms: Terms) -> Self {
        let row = |(chunk, hold)| {
            let until = now + terms.waited;
            (chunk, Row::new(hold, Right::Until(until), until))
        };
        Self {
            rows: rows.into_iter().map(row).collect(),
            #[cfg(feature = "plant")]
            plant: None,
        }
    }

    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<crate::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Whether no chunk belongs to anybody else.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Every row.
    pub fn iter(&self) -> impl Iterator<Item = (Chunk, Hold)> + '_ {
        self.rows.iter().map(|(chunk, row)| (*chunk, row.hold))
    }

    /// Who holds a chunk.
    #[must_use]
    pub fn holder(&self, chunk: Chunk) -> Option<Hold> {
        self.rows.get(&chunk).map(|row| row.hold)
    }

    /// Every row of a file.
    pub fn of(&self, inode: InodeId) -> impl Iterator<Item = (Chunk, Hold)> + '_ {
        let rows = self.rows.range(Chunk::all_of(inode));
        rows.map(|(chunk, row)| (*chunk, row.hold))
    }

    /// A record that gives `chunk` away was ordered; it was nobody else's, and everything in it has a record (H2).
    pub fn given(&mut self, now: Tick, chunk: Chunk, hold: Hold) {
        self.rows.insert(chunk, Row::new(hold, Right::None, now));
    }

    /// A node has left the chain: its rights are not granted again.
    pub fn recall_of(&mut self, node: NodeId) {
        let rows = self.rows.values_mut();
        let its = rows.filter(|row| row.hold.holder.node() == node);
        its.for_each(|row| row.recalled = true);
    }

    /// Whoever writes a chunk behind is not granted the right again: a call that it did not answer may never reach it, and its
    /// questions would go on for ever.
    pub fn recall(&mut self, chunk: Chunk, hold: Hold) {
        if let Ok(row) = self.row(chunk, hold) {
            row.recalled = true;
        }
    }

    /// The chunks of nodes that have left the chain: they are to be taken back.
    pub fn recalled(&self) -> impl Iterator<Item = Chunk> + '_ {
        let rows = self.rows.iter().filter(|(_, row)| row.recalled);
        rows.map(|(chunk, _)| *chunk)
    }

    /// The chunks that hosts have written behind whose rights were over `since` ago, as far as this owner knows.
    pub fn idle(&self, now: Tick, since: Span) -> impl Iterator<Item = (Chunk, Hold)> + '_ {
        let rows = self.rows.iter();
        let idle = rows.filter(move |(_, row)| match row.right {
            Right::Until(until) => until + since <= now,
            Right::None => row.granted + since <= now,
            Right::Over => true,
        });
        let behind = idle.filter(|(_, row)| row.hold.manner == Manner::WriteBehind);
        behind.map(|(chunk, row)| (*chunk, row.hold))
    }

    /// A record that removes its row was ordered.
    pub fn removed(&mut self, chunk: Chunk) {
        self.rows.remove(&chunk);
    }

    /// The holder asks, for the `asked`th time by this row, for the right to write.
    ///
    /// # Errors
    /// It has none to expect by this row.
    pub fn on_asked(
        &mut self,
        now: Tick,
        chunk: Chunk,
        hold: Hold,
        asked: u64,
        terms: Terms,
    ) -> Result<(), Stale> {
        let row = self.row(chunk, hold)?;
        if row.recalled || row.right == Right::Over {
            return Err(Stale::Recalled);
        }
        row.right = Right::Until(now + terms.waited);
        row.granted = now + terms.waited;
        row.asked = row.asked.max(asked);
        Ok(())
    }

    /// What the holder has written arrives. Before its bytes are put in place, and so that no removal is ordered between.
    ///
    /// # Errors
    /// It does not count (H4).
    pub fn on_flush(&mut self, chunk: Chunk, hold: Hold, number: FlushNumber) -> Result<(), Stale> {
        if planted!(self, LateFlushTaken) {
            return Ok(());
        }
        let overtaken = !planted!(self, FlushesDisordered);
        let row = self.row(chunk, hold)?;
        if row.right == Right::Over {
            return Err(Stale::Row);
        }
        if overtaken && number <= row.flushed {
            return Err(Stale::Overtaken);
        }
        row.flushed = row.flushed.max(number);
        Ok(())
    }

    /// Whether a write that came with a row may be carried out beside it (H9).
    #[must_use]
    pub fn admits(&self, chunk: Chunk, hold: Hold) -> bool {
        let row = self.rows.get(&chunk);
        row.is_some_and(|row| row.hold == hold && row.right != Right::Over)
    }

    fn row(&mut self, chunk: Chunk, hold: Hold) -> Result<&mut Row, Stale> {
        let row = self.rows.get_mut(&chunk);
        row.filter(|row| row.hold == hold).ok_or(Stale::Row)
    }

    /// What has to happen before somebody may have his way with `range` of a file. The chunks of `passed` are not in his
    /// way any more: their holder was called since he asked to read, or the change is the holder's own, and its number was
    /// taken by [`Holds::on_flush`].
    pub fn need(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        access: Access,
        passed: &[Chunk],
    ) -> Need {
        let chunks = self.rows.range_mut(Chunk::all_of(inode));
        let others =
            chunks.filter(|(chunk, _)| chunk.range().overlaps(range) && !passed.contains(chunk));
        for (&chunk, row) in others {
            let call = Call {
                chunk,
                hold: row.hold,
                access,
            };
            match (access, row.right) {
                (Access::Read, Right::None | Right::Over) => {}
                (Access::Read, Right::Until(_)) if planted!(self, HolderNotAsked) => {}
                (Access::Read, Right::Until(_)) => return Need::Call(call),
                (Access::Change, Right::None | Right::Over) => return Need::Remove(chunk),
                (Access::Change, Right::Until(_)) => {
                    row.recalled = true;
                    return Need::Call(call);
                }
            }
        }
        Need::Nothing
    }

    /// The holder's answer to a call: everything that it had written then has arrived here before.
    pub fn on_report(&mut self, chunk: Chunk, hold: Hold, report: Report) {
        let Ok(row) = self.row(chunk, hold) else {
            return;
        };
        match report {
            Report::Writes => {}
            // It may have asked again meanwhile.
            Report::Rests { asked } if asked < row.asked => {}
            Report::Rests { .. } if row.right == Right::Over => {}
            Report::Rests { .. } => row.right = Right::None,
            Report::Stopped => row.right = Right::Over,
        }
    }

    /// The holder does not answer.
    #[must_use]
    pub fn on_silence(&self, now: Tick, chunk: Chunk, hold: Hold) -> Silence {
        let row = self.rows.get(&chunk).filter(|row| row.hold == hold);
        match row.map(|row| row.right) {
            None => Silence::Gone,
            Some(Right::Until(until)) if now < until && !planted!(self, RightNotAwaited) => {
                Silence::Lasts(until)
            }
            Some(Right::Until(_) | Right::None | Right::Over) => Silence::Over,
        }
    }
}

impl Row {
    const fn new(hold: Hold, right: Right, granted: Tick) -> Self {
        Self {
            hold,
            right,
            recalled: false,
            flushed: FlushNumber(0),
            asked: 0,
            granted,
        }
    }
}
