//! How a host writes.
//!
//! Each part of a write that lies in one column takes effect once, and by itself. A part that a column has taken is before
//! every cut that the column does not know of yet, so it is not written again after that. What goes past the end of the file is
//! claimed first: no column ever has bytes that lie beyond what the file's owner knows, and keeps, of its length. They would be in
//! the file when it grows, long after the host that wrote them has crashed.

use super::{Ask, Cut, Job, Known, ROUNDS_MAX, Step, Told, known_of, reply};
use crate::attr::Attr;
use crate::op::{Op, Reply, WriteAt};
use crate::stripe::{Cuts, Faults, Piece, UNIT, faulty, pieces};
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, StripeWidth};

/// What is to be written.
#[derive(Debug, Clone)]
pub struct NewWrite {
    /// The file.
    pub inode: InodeId,
    /// Where.
    pub at: WriteAt,
    /// How many bytes, at least one.
    pub len: u64,
    /// Set-id bits go.
    pub kill_privileges: bool,
    /// The file's owner is to be told, also where the file gets no longer.
    pub claims: bool,
}

/// A write that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrote {
    /// Where.
    pub range: ByteRange,
    /// The file's owner knows of it.
    pub claimed: bool,
}

/// Where an append goes.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u64,
    cuts: Cuts,
}

/// What is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sent {
    Nothing,
    Learn,
    Make,
    Place,
    Growth,
    /// These parts, and perhaps a claim.
    Parts(Vec<ByteRange>, Claim),
}

/// Whether a claim is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    No,
    Yes,
}

/// Writes bytes.
#[derive(Debug, Clone)]
pub struct Write {
    new: NewWrite,
    known: Option<Known>,
    place: Option<Place>,
    /// The ends of the parts that are where they belong.
    done: Vec<u64>,
    /// The owner has heard of it.
    claimed: bool,
    cut: Option<Cut>,
    rounds: u32,
    sent: Sent,
    over: Option<Result<Wrote, Errno>>,
    faults: Faults,
}

impl Job for Write {
    type Outcome = Wrote;

    fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    fn step(&mut self, within: &dyn Fn(StripeWidth) -> Vec<ContainerId>) -> Step<Wrote> {
        if let Some(over) = self.over {
            return Step::Done(over);
        }
        if let (Some(known), Some(range)) = (&self.known, self.range())
            && known.is_being_cut(range)
            && !faulty!(self.faults, CutIsNoBarrier)
            && let Err(errno) = self.again(Some(Cut::of(self.new.inode, self.faults)))
        {
            return Step::Done(Err(errno));
        }
        if let Some(cut) = &self.cut {
            match cut.next() {
                Step::Ask(asks) => return Step::Ask(asks),
                Step::Done(Err(errno)) => return Step::Done(Err(errno)),
                Step::Done(Ok(_)) => self.cut = None,
            }
        }
        let (inode, ask) = (self.new.inode, |op| Step::Ask(vec![Ask::Do(op)]));
        let Some(known) = &self.known else {
            self.sent = Sent::Learn;
            return ask(Op::Columns { inode });
        };
        let Some(range) = self.range() else {
            self.sent = Sent::Place;
            return ask(self.claim(WriteAt::End, self.new.len));
        };
        if range.end > UNIT && !known.striping.made {
            self.sent = Sent::Make;
            let within = within(known.striping.width);
            return ask(Op::MakeColumns { inode, within });
        }
        let left = self.left(known, range);
        if left.is_empty() {
            return self.last_step(range);
        }
        let growth = growth(known, &left);
        if let Some(end) = growth
            && !faulty!(self.faults, GrowthBesideBytes)
            && !faulty!(self.faults, GrowthLeftOut)
        {
            self.sent = Sent::Growth;
            return ask(self.claim(WriteAt::Offset(range.start), end - range.start));
        }
        let asks = self.parts(known.clone(), range, &left);
        asks.map_or_else(|errno| Step::Done(Err(errno)), Step::Ask)
    }

    fn told(&mut self, told: Vec<Told>) {
        if let Some(cut) = &mut self.cut {
            return cut.hear(told);
        }
        let went = match std::mem::replace(&mut self.sent, Sent::Nothing) {
            Sent::Nothing => Err(Errno::EPROTO),
            Sent::Learn | Sent::Make => {
                let known = reply(told).and_then(known_of);
                known.map(|known| self.learn(known))
            }
            Sent::Place | Sent::Growth => self.on_claim(reply(told)),
            Sent::Parts(parts, claim) => self.on_parts(told, &parts, claim),
        };
        if let Err(errno) = went {
            self.over = Some(Err(errno));
        }
    }
}

impl Write {
    /// With what is known of the file here.
    #[must_use]
    pub const fn new(new: NewWrite, known: Option<Known>, faults: Faults) -> Self {
        Self {
            new,
            known,
            place: None,
            done: Vec::new(),
            claimed: false,
            cut: None,
            rounds: 0,
            sent: Sent::Nothing,
            over: None,
            faults,
        }
    }

    /// What is written.
    #[must_use]
    pub const fn what(&self) -> &NewWrite {
        &self.new
    }

    /// Where it goes, once that is known.
    #[must_use]
    pub fn range(&self) -> Option<ByteRange> {
        let start = match self.new.at {
            WriteAt::Offset(offset) => Some(offset),
            WriteAt::End => self.place.map(|place| place.start),
        };
        start.map(|start| ByteRange::with_len(start, self.new.len))
    }

    /// All bytes are where they belong.
    fn last_step(&mut self, range: ByteRange) -> Step<Wrote> {
        if self.new.kill_privileges && !self.claimed {
            self.sent = Sent::Parts(Vec::new(), Claim::Yes);
            let claim = self.claim(WriteAt::Offset(range.start), 0);
            return Step::Ask(vec![Ask::Do(claim)]);
        }
        let claimed = self.claimed;
        let over = Ok(Wrote { range, claimed });
        self.over = Some(over);
        Step::Done(over)
    }

    fn claim(&self, at: WriteAt, len: u64) -> Op {
        Op::Claim {
            inode: self.new.inode,
            at,
            len,
            kill_privileges: self.new.kill_privileges,
        }
    }

    /// The parts that are not where they belong yet.
    fn left(&self, known: &Known, range: ByteRange) -> Vec<Piece> {
        let all = pieces(known.striping.width, range);
        all.filter(|piece| !self.done.contains(&piece.range.end))
            .collect()
    }

    fn parts(&mut self, known: Known, range: ByteRange, left: &[Piece]) -> Result<Vec<Ask>, Errno> {
        let cuts = known.striping.cuts;
        let mut asks = Vec::with_capacity(left.len() + 1);
        for piece in left {
            asks.push(Ask::Write {
                inode: known.column(piece.column).ok_or(Errno::EPROTO)?,
                range: piece.range,
                cuts,
                kill_privileges: self.new.kill_privileges && piece.column == 0,
            });
        }
        // Column 0 is the file's own inode, whose owner sees what is written there.
        let unseen = left.iter().any(|piece| piece.column > 0);
        let due = self.new.claims || self.new.kill_privileges;
        let mut claim = None;
        if unseen && due && !self.claimed {
            claim = Some(self.claim(WriteAt::Offset(range.start), 0));
        }
        if faulty!(self.faults, GrowthBesideBytes)
            && let Some(end) = growth(&known, left)
        {
            claim = Some(self.claim(WriteAt::Offset(range.start), end - range.start));
        }
        let sent = left.iter().map(|piece| piece.range).collect();
        self.sent = match claim {
            Some(claim) => {
                asks.push(Ask::Do(claim));
                Sent::Parts(sent, Claim::Yes)
            }
            None => Sent::Parts(sent, Claim::No),
        };
        Ok(asks)
    }

    fn learn(&mut self, known: Known) {
        let before = |place: Place| known.striping.cuts.is_shorter_since(place.cuts);
        // Where nothing was written yet, it goes to the end of now.
        if self.place.is_some_and(before)
            && self.done.is_empty()
            && !faulty!(self.faults, PlaceOutlivesCut)
        {
            self.place = None;
        }
        self.known = Some(known);
    }

    /// What a claim was answered; without the columns, if they were made meanwhile: they are asked for.
    fn learn_attr(&mut self, attr: &Attr) {
        let columns = self.known.take().map(|known| known.columns);
        if let Some(known) = Known::of(attr, columns.unwrap_or_default()) {
            self.learn(known);
        }
    }

    /// Begins anew, after a cut has come to its end or is known here.
    fn again(&mut self, cut: Option<Cut>) -> Result<(), Errno> {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(Errno::EIO);
        }
        self.cut = cut;
        self.known = None;
        Ok(())
    }

    fn on_claim(&mut self, reply: Result<Reply, Errno>) -> Result<(), Errno> {
        match reply {
            Ok(Reply::Claimed { range, attr }) => {
                let striping = attr.layout.striping().ok_or(Errno::EPROTO)?;
                if self.range().is_none() {
                    self.place = Some(Place {
                        start: range.start,
                        cuts: striping.cuts,
                    });
                }
                self.claimed = true;
                self.learn_attr(&attr);
                Ok(())
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(Errno::EAGAIN) => self.again(Some(Cut::of(self.new.inode, self.faults))),
            Err(errno) => Err(errno),
        }
    }

    fn on_parts(
        &mut self,
        told: Vec<Told>,
        parts: &[ByteRange],
        claim: Claim,
    ) -> Result<(), Errno> {
        let (mut stale, mut cutting) = (false, false);
        let mut told = told.into_iter();
        for part in parts {
            match told.next() {
                Some(Told::Wrote(Ok(()))) => self.done.push(part.end),
                Some(Told::Wrote(Err(Errno::ESTALE))) => stale = true,
                Some(Told::Wrote(Err(Errno::EAGAIN))) => cutting = true,
                Some(Told::Wrote(Err(errno))) => return Err(errno),
                _ => return Err(Errno::EPROTO),
            }
        }
        if claim == Claim::Yes {
            match told.next() {
                Some(Told::Reply(Ok(Reply::Claimed { attr, .. }))) => {
                    self.claimed = true;
                    self.learn_attr(&attr);
                }
                Some(Told::Reply(Err(Errno::EAGAIN))) => cutting = true,
                Some(Told::Reply(Err(errno))) => return Err(errno),
                _ => return Err(Errno::EPROTO),
            }
        }
        match (cutting, stale) {
            (true, _) => self.again(Some(Cut::of(self.new.inode, self.faults))),
            (false, true) => self.again(None),
            (false, false) => Ok(()),
        }
    }
}

/// How long the file has to be for these parts, if it is shorter. Column 0 is the file's own inode, which grows with what is
/// written there.
fn growth(known: &Known, left: &[Piece]) -> Option<u64> {
    let elsewhere = left.iter().filter(|piece| piece.column > 0);
    let end = elsewhere.map(|piece| piece.range.end).max();
    end.filter(|end| *end > known.size)
}
