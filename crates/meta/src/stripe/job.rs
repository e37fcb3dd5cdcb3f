//! What a host does to read, write and cut a striped file, as state machines: each says what is to be asked next, all at
//! once, and is told the answers.

use super::{Cuts, Faults, Layout, Striping, UNIT, faulty, pieces};
use crate::attr::{Attr, SetAttr};
use crate::op::{Allocate, Op, Reply, WriteAt};
use bytes::{Bytes, BytesMut};
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, StripeWidth};

/// How often one job begins anew because of cuts, at most.
const ROUNDS_MAX: u32 = 64;

/// What a host knows of a striped file: what its owner said in one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The file's own inode.
    pub inode: InodeId,
    /// How it is spread.
    pub striping: Striping,
    /// Its length.
    pub size: u64,
    /// The columns from number 1 on; none while they are not made.
    pub columns: Vec<InodeId>,
}

impl Known {
    /// As of an answer. `None`: it is of no striped file, or it lacks columns.
    #[must_use]
    pub fn of(attr: &Attr, columns: Vec<InodeId>) -> Option<Self> {
        let striping = attr.layout.striping()?;
        let others = match striping.made {
            true => usize::from(striping.width.get()) - 1,
            false => 0,
        };
        (columns.len() == others).then_some(Self {
            inode: attr.inode,
            striping,
            size: attr.size,
            columns,
        })
    }

    /// The inode of a column; `None`: it is not made.
    #[must_use]
    pub fn column(&self, number: usize) -> Option<InodeId> {
        match number {
            0 => Some(self.inode),
            number => self.columns.get(number - 1).copied(),
        }
    }
}

/// What is to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// To run an operation.
    Do(Op),
    /// To read a part of a column.
    Read {
        /// The column.
        inode: InodeId,
        /// The part.
        range: ByteRange,
        /// The last cut that is known here.
        cuts: Cuts,
    },
    /// To write a part of the job's bytes to a column.
    Write {
        /// The column.
        inode: InodeId,
        /// Where, in the file and in the column alike.
        range: ByteRange,
        /// The last cut that is known here.
        cuts: Cuts,
        /// Set-id bits go.
        kill_privileges: bool,
    },
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Of [`Ask::Do`].
    Reply(Result<Reply, Errno>),
    /// Of [`Ask::Read`]: fewer bytes than asked for only at the end of the column.
    Bytes(Result<Bytes, Errno>),
    /// Of [`Ask::Write`].
    Wrote(Result<(), Errno>),
}

/// How a job goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    /// All of these are to be asked, at once, and the job told of each.
    Ask(Vec<Ask>),
    /// It is over.
    Done(Result<T, Errno>),
}

/// The single answer to an operation.
fn reply(told: Vec<Told>) -> Result<Reply, Errno> {
    match told.into_iter().next() {
        Some(Told::Reply(result)) => result,
        _ => Err(Errno::EPROTO),
    }
}

fn known_of(reply: Reply) -> Result<Known, Errno> {
    match reply {
        Reply::Columns { attr, columns } => Known::of(&attr, columns).ok_or(Errno::EPROTO),
        _ => Err(Errno::EPROTO),
    }
}

/// Ends the cuts of a file that have not come to their end.
#[derive(Debug, Clone)]
struct Cut {
    inode: InodeId,
    phase: CutPhase,
    faults: Faults,
}

#[derive(Debug, Clone)]
enum CutPhase {
    Learn,
    Columns(Known, u64),
    End(Cuts),
    Done(Result<(), Errno>),
}

impl Cut {
    const fn of(inode: InodeId, faults: Faults) -> Self {
        Self {
            inode,
            phase: CutPhase::Learn,
            faults,
        }
    }

    fn step(&self) -> Step<()> {
        let inode = self.inode;
        match &self.phase {
            CutPhase::Learn => Step::Ask(vec![Ask::Do(Op::Columns { inode })]),
            CutPhase::Columns(known, size) => {
                let cuts = known.striping.cuts;
                let cut = |column: &InodeId| {
                    let (inode, size) = (*column, *size);
                    Ask::Do(Op::CutColumn { inode, cuts, size })
                };
                let mut asks: Vec<Ask> = known.columns.iter().map(cut).collect();
                if faulty!(self.faults, CutEndedEarly) {
                    asks.push(Ask::Do(Op::EndCut { inode, cuts }));
                }
                Step::Ask(asks)
            }
            CutPhase::End(cuts) => {
                let cuts = *cuts;
                Step::Ask(vec![Ask::Do(Op::EndCut { inode, cuts })])
            }
            CutPhase::Done(result) => Step::Done(*result),
        }
    }

    fn told(&mut self, told: Vec<Told>) {
        let next = match &self.phase {
            CutPhase::Learn => {
                reply(told)
                    .and_then(known_of)
                    .map(|known| match known.striping.cutting {
                        Some(size) => CutPhase::Columns(known, size),
                        None => CutPhase::Done(Ok(())),
                    })
            }
            CutPhase::Columns(known, _) => {
                let failed = told.into_iter().find_map(|told| match told {
                    Told::Reply(result) => result.err(),
                    Told::Bytes(_) | Told::Wrote(_) => Some(Errno::EPROTO),
                });
                match failed {
                    Some(errno) => Err(errno),
                    None => Ok(CutPhase::End(known.striping.cuts)),
                }
            }
            // Another cut may have been begun since: whoever did that sees to it.
            CutPhase::End(_) => reply(told).map(|_| CutPhase::Done(Ok(()))),
            CutPhase::Done(_) => Err(Errno::EPROTO),
        };
        self.phase = next.unwrap_or_else(|errno| CutPhase::Done(Err(errno)));
    }
}

/// Writes bytes.
#[derive(Debug, Clone)]
pub struct Write {
    inode: InodeId,
    at: WriteAt,
    len: u64,
    kill_privileges: bool,
    known: Option<Known>,
    /// The owner is to be told in any case.
    claims: bool,
    claimed: Option<Claimed>,
    cut: Option<Cut>,
    rounds: u32,
    sent: Sent,
    over: Option<Result<Wrote, Errno>>,
    faults: Faults,
}

/// A claim that the owner has granted.
#[derive(Debug, Clone, Copy)]
struct Claimed {
    range: ByteRange,
    cuts: Cuts,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Nothing,
    Learn,
    Make,
    Place,
    Pieces { claim: bool, cuts: Cuts },
}

/// A write that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrote {
    /// Where.
    pub range: ByteRange,
    /// The file's owner knows of it.
    pub claimed: bool,
}

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

impl Write {
    /// With what is known of the file here.
    #[must_use]
    pub fn new(new: NewWrite, known: Option<Known>, faults: Faults) -> Self {
        Self {
            inode: new.inode,
            at: new.at,
            len: new.len,
            kill_privileges: new.kill_privileges,
            known,
            claims: new.claims,
            claimed: None,
            cut: None,
            rounds: 0,
            sent: Sent::Nothing,
            over: None,
            faults,
        }
    }

    /// What is known of the file now.
    #[must_use]
    pub fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    fn claim(&self) -> Ask {
        Ask::Do(Op::Claim {
            inode: self.inode,
            at: self.at,
            len: self.len,
            kill_privileges: self.kill_privileges,
        })
    }

    /// Where it goes, once that is known.
    fn range(&self) -> Option<ByteRange> {
        match self.at {
            WriteAt::Offset(offset) => Some(ByteRange::with_len(offset, self.len)),
            WriteAt::End => self.claimed.map(|claimed| claimed.range),
        }
    }

    /// Where its first byte goes, once that is known.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.range().map(|range| range.start)
    }

    /// How it goes on. `within`: containers for columns, if they have to be made, of a file of such a width.
    pub fn step(&mut self, within: impl FnOnce(StripeWidth) -> Vec<ContainerId>) -> Step<Wrote> {
        if let Some(over) = self.over {
            return Step::Done(over);
        }
        if let Some(cut) = &self.cut {
            match cut.step() {
                Step::Ask(asks) => return Step::Ask(asks),
                Step::Done(Err(errno)) => return Step::Done(Err(errno)),
                Step::Done(Ok(())) => {
                    self.cut = None;
                    self.known = None;
                }
            }
        }
        let (inode, ask) = (self.inode, |op| Step::Ask(vec![Ask::Do(op)]));
        let Some(known) = &self.known else {
            self.sent = Sent::Learn;
            return ask(Op::Columns { inode });
        };
        let Some(range) = self.range() else {
            self.sent = Sent::Place;
            return Step::Ask(vec![self.claim()]);
        };
        if range.end > UNIT && !known.striping.made {
            self.sent = Sent::Make;
            let within = within(known.striping.width);
            return ask(Op::MakeColumns { inode, within });
        }
        let cuts = known.striping.cuts;
        let parts: Vec<_> = pieces(known.striping.width, range).collect();
        let elsewhere = parts.iter().any(|piece| piece.column > 0);
        let claimed = self.claimed.is_some_and(|claimed| claimed.cuts == cuts);
        let due = self.claims || self.kill_privileges || range.end > known.size;
        let claim = elsewhere && due && !claimed && !faulty!(self.faults, ClaimLeftOut);
        let mut asks = Vec::with_capacity(parts.len() + 1);
        for piece in parts {
            let Some(inode) = known.column(piece.column) else {
                return Step::Done(Err(Errno::EPROTO));
            };
            asks.push(Ask::Write {
                inode,
                range: piece.range,
                cuts,
                kill_privileges: self.kill_privileges && piece.column == 0,
            });
        }
        if claim {
            asks.push(self.claim());
        }
        self.sent = Sent::Pieces { claim, cuts };
        Step::Ask(asks)
    }

    /// The answers to what [`Write::step`] asked, in that order.
    pub fn told(&mut self, told: Vec<Told>) {
        if let Some(cut) = &mut self.cut {
            return cut.told(told);
        }
        let went = match self.sent {
            Sent::Nothing => Err(Errno::EPROTO),
            Sent::Learn | Sent::Make => {
                let known = reply(told).and_then(known_of);
                known.map(|known| self.learn(known))
            }
            Sent::Place => self.on_claim(reply(told)),
            Sent::Pieces { claim, cuts } => self.on_pieces(told, claim, cuts),
        };
        self.sent = Sent::Nothing;
        if let Err(errno) = went {
            self.over = Some(Err(errno));
        }
    }

    /// A place at the end that was given before a cut is none any more.
    fn learn(&mut self, known: Known) {
        let before = |claimed: Claimed| claimed.cuts != known.striping.cuts;
        if self.claimed.is_some_and(before) && !faulty!(self.faults, PlaceOutlivesCut) {
            self.claimed = None;
        }
        self.known = Some(known);
    }

    /// Begins anew, after a cut has come to its end or is known here.
    fn again(&mut self, cut: Option<Cut>) -> Result<(), Errno> {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            return Err(Errno::EIO);
        }
        self.cut = cut;
        self.claimed = None;
        self.known = None;
        Ok(())
    }

    fn on_claim(&mut self, reply: Result<Reply, Errno>) -> Result<(), Errno> {
        match reply {
            Ok(Reply::Claimed { range, attr }) => {
                let striping = attr.layout.striping().ok_or(Errno::EPROTO)?;
                self.claimed = Some(Claimed {
                    range,
                    cuts: striping.cuts,
                });
                let columns = self.known.take().map(|known| known.columns);
                // Without the columns, if they were made meanwhile: they are asked for.
                self.known = Known::of(&attr, columns.unwrap_or_default());
                Ok(())
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(Errno::EAGAIN) => self.again(Some(Cut::of(self.inode, self.faults))),
            Err(errno) => Err(errno),
        }
    }

    fn on_pieces(&mut self, told: Vec<Told>, claim: bool, sent: Cuts) -> Result<(), Errno> {
        let (mut stale, mut cutting) = (false, false);
        let mut replied = None;
        for told in told {
            match told {
                Told::Wrote(Ok(())) => {}
                Told::Wrote(Err(Errno::ESTALE)) => stale = true,
                Told::Wrote(Err(Errno::EAGAIN)) => cutting = true,
                Told::Wrote(Err(errno)) => return Err(errno),
                Told::Reply(reply) => replied = Some(reply),
                Told::Bytes(_) => return Err(Errno::EPROTO),
            }
        }
        if claim {
            match replied.ok_or(Errno::EPROTO)? {
                Err(Errno::EAGAIN) => cutting = true,
                reply => self.on_claim(reply)?,
            }
        }
        if cutting {
            return self.again(Some(Cut::of(self.inode, self.faults)));
        }
        if stale {
            return self.again(None);
        }
        // The columns had the bytes before, and the claim may have come after, a cut.
        let same = self.claimed.is_none_or(|claimed| claimed.cuts == sent);
        if !same && !faulty!(self.faults, ClaimAfterCut) {
            return self.again(None);
        }
        let range = self.range().ok_or(Errno::EPROTO)?;
        let claimed = self.claimed.is_some();
        self.over = Some(Ok(Wrote { range, claimed }));
        Ok(())
    }
}

/// Reads bytes.
#[derive(Debug, Clone)]
pub struct Read {
    inode: InodeId,
    range: ByteRange,
    known: Option<Known>,
    /// As the owner said for this job.
    fresh: bool,
    rounds: u32,
    sent: Option<ByteRange>,
    over: Option<Result<Bytes, Errno>>,
}

impl Read {
    /// With what is known of the file here.
    #[must_use]
    pub const fn new(inode: InodeId, range: ByteRange, known: Option<Known>) -> Self {
        Self {
            inode,
            range,
            known,
            fresh: false,
            rounds: 0,
            sent: None,
            over: None,
        }
    }

    /// What is known of the file now.
    #[must_use]
    pub fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// How it goes on.
    pub fn step(&mut self) -> Step<Bytes> {
        if let Some(over) = self.over.take() {
            return Step::Done(over);
        }
        let inode = self.inode;
        let far = |known: &&Known| self.fresh || self.range.end <= known.size;
        let Some(known) = self.known.as_ref().filter(far) else {
            self.sent = None;
            return Step::Ask(vec![Ask::Do(Op::Columns { inode })]);
        };
        let end = self.range.end.min(known.size);
        let range = ByteRange::new(self.range.start.min(end), end);
        let cuts = known.striping.cuts;
        let parts = pieces(known.striping.width, range);
        let asks = parts.filter_map(|piece| {
            known.column(piece.column).map(|inode| Ask::Read {
                inode,
                range: piece.range,
                cuts,
            })
        });
        let asks: Vec<Ask> = asks.collect();
        if asks.is_empty() {
            return Step::Done(Ok(zeros(range.len())));
        }
        self.sent = Some(range);
        Step::Ask(asks)
    }

    /// The answers to what [`Read::step`] asked, in that order.
    pub fn told(&mut self, told: Vec<Told>) {
        let went = match self.sent {
            None => reply(told).and_then(known_of).map(|known| {
                self.known = Some(known);
                self.fresh = true;
            }),
            Some(range) => self.on_bytes(range, told),
        };
        if let Err(errno) = went {
            self.over = Some(Err(errno));
        }
    }

    fn on_bytes(&mut self, range: ByteRange, told: Vec<Told>) -> Result<(), Errno> {
        let known = self.known.as_ref().ok_or(Errno::EPROTO)?;
        let mut told = told.into_iter();
        let mut all = BytesMut::with_capacity(range.len() as usize);
        for piece in pieces(known.striping.width, range) {
            let made = known.column(piece.column).is_some();
            let read = match made.then(|| told.next()) {
                None => Bytes::new(),
                Some(Some(Told::Bytes(Ok(bytes)))) => bytes,
                Some(Some(Told::Bytes(Err(Errno::ESTALE)))) if piece.column > 0 => {
                    self.rounds += 1;
                    self.known = None;
                    return match self.rounds > ROUNDS_MAX {
                        true => Err(Errno::EIO),
                        false => Ok(()),
                    };
                }
                Some(Some(Told::Bytes(Err(errno)))) => return Err(errno),
                Some(_) => return Err(Errno::EPROTO),
            };
            let lacks = piece.range.len().saturating_sub(read.len() as u64);
            all.extend_from_slice(&read);
            if piece.column == 0 && lacks > 0 {
                // The file's own inode knows its end.
                break;
            }
            all.resize(all.len() + lacks as usize, 0);
        }
        self.over = Some(Ok(all.freeze()));
        Ok(())
    }
}

fn zeros(len: u64) -> Bytes {
    BytesMut::zeroed(len as usize).freeze()
}

/// Changes a file's length or frees a part of it: `truncate` and `fallocate`.
#[derive(Debug, Clone)]
pub struct Change {
    inode: InodeId,
    op: Op,
    phase: ChangePhase,
    rounds: u32,
    faults: Faults,
}

#[derive(Debug, Clone)]
enum ChangePhase {
    Own,
    /// A cut is in the way of what is to be done.
    Before(Cut),
    /// It is done at the file's owner.
    Cut(Cut, Reply),
    Learn(ByteRange, Reply),
    Punch(Known, ByteRange, Reply),
    Done(Result<Reply, Errno>),
}

/// The part of a file that an operation makes zeros.
fn zeroed(op: &Op) -> Option<ByteRange> {
    match op {
        Op::Allocate { range, how, .. } => match how {
            Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroRangeKeepSize => Some(*range),
            Allocate::Extend | Allocate::KeepSize => None,
        },
        _ => None,
    }
}

impl Change {
    /// Of a striped file, by an operation on its inode. `None`: such an operation concerns the file's own inode alone.
    #[must_use]
    pub fn by(op: Op, faults: Faults) -> Option<Self> {
        let inode = match &op {
            Op::SetAttr {
                inode,
                set: SetAttr { size: Some(_), .. },
                ..
            }
            | Op::Allocate { inode, .. } => *inode,
            _ => return None,
        };
        Some(Self {
            inode,
            op,
            phase: ChangePhase::Own,
            rounds: 0,
            faults,
        })
    }

    /// How it goes on.
    pub fn step(&mut self) -> Step<Reply> {
        let inode = self.inode;
        loop {
            match &self.phase {
                ChangePhase::Own => return Step::Ask(vec![Ask::Do(self.op.clone())]),
                ChangePhase::Before(cut) | ChangePhase::Cut(cut, _) => match cut.step() {
                    Step::Ask(asks) => return Step::Ask(asks),
                    Step::Done(Err(errno)) => return Step::Done(Err(errno)),
                    Step::Done(Ok(())) => self.phase = self.after_cut(),
                },
                ChangePhase::Learn(..) => {
                    return Step::Ask(vec![Ask::Do(Op::Columns { inode })]);
                }
                ChangePhase::Punch(known, range, _) => {
                    let punch = |column: &InodeId| {
                        Ask::Do(Op::Allocate {
                            inode: *column,
                            range: *range,
                            how: Allocate::PunchHole,
                        })
                    };
                    return Step::Ask(known.columns.iter().map(punch).collect());
                }
                ChangePhase::Done(result) => return Step::Done(result.clone()),
            }
        }
    }

    fn after_cut(&self) -> ChangePhase {
        match &self.phase {
            ChangePhase::Cut(_, reply) => {
                let mut reply = reply.clone();
                if let Reply::Attr(attr) = &mut reply
                    && let Layout::Striped(striping) = &mut attr.layout
                {
                    striping.cutting = None;
                }
                ChangePhase::Done(Ok(reply))
            }
            _ => ChangePhase::Own,
        }
    }

    /// The answers to what [`Change::step`] asked, in that order.
    pub fn told(&mut self, told: Vec<Told>) {
        let next = match &mut self.phase {
            ChangePhase::Before(cut) | ChangePhase::Cut(cut, _) => return cut.told(told),
            ChangePhase::Own => {
                let reply = reply(told);
                self.on_own(reply)
            }
            ChangePhase::Learn(range, done) => {
                let (range, done) = (*range, done.clone());
                let known = reply(told).and_then(known_of);
                known.map(|known| ChangePhase::Punch(known, range, done))
            }
            ChangePhase::Punch(_, _, done) => {
                let done = done.clone();
                let failed = told.into_iter().find_map(|told| match told {
                    Told::Reply(result) => result.err(),
                    Told::Bytes(_) | Told::Wrote(_) => Some(Errno::EPROTO),
                });
                match failed {
                    Some(errno) => Err(errno),
                    None => Ok(ChangePhase::Done(Ok(done))),
                }
            }
            ChangePhase::Done(_) => Err(Errno::EPROTO),
        };
        self.phase = next.unwrap_or_else(|errno| ChangePhase::Done(Err(errno)));
    }

    fn on_own(&mut self, reply: Result<Reply, Errno>) -> Result<ChangePhase, Errno> {
        let reply = match reply {
            Err(Errno::EAGAIN) if self.rounds < ROUNDS_MAX => {
                self.rounds += 1;
                return Ok(ChangePhase::Before(Cut::of(self.inode, self.faults)));
            }
            reply => reply?,
        };
        let Reply::Attr(attr) = &reply else {
            return Err(Errno::EPROTO);
        };
        let striping = attr.layout.striping();
        if striping.is_some_and(|striping| striping.cutting.is_some())
            && !faulty!(self.faults, CutAnsweredEarly)
        {
            return Ok(ChangePhase::Cut(Cut::of(self.inode, self.faults), reply));
        }
        Ok(match zeroed(&self.op) {
            Some(range) if striping.is_some_and(|striping| striping.made) => {
                ChangePhase::Learn(range, reply)
            }
            _ => ChangePhase::Done(Ok(reply)),
        })
    }
}
