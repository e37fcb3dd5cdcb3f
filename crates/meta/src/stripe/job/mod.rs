//! What a host does to read, write and cut a striped file, as state machines: each says what is to be asked next, all at
//! once, and is told the answers.

mod change;
mod read;
mod write;

pub use change::Change;
pub use read::Read;
pub use write::{NewWrite, Write, Wrote};

use super::{Cuts, Faults, Striping, faulty};
use crate::attr::Attr;
use crate::op::{Op, Reply};
use bytes::Bytes;
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

    /// Whether a range goes beyond the end of a cut that is not done.
    fn is_being_cut(&self, range: ByteRange) -> bool {
        self.striping.cutting.is_some_and(|cut| range.end > cut)
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

/// Something that a host does to a striped file.
pub trait Job {
    /// What comes of it.
    type Outcome;

    /// How it goes on. `within`: the containers for columns of a file of such a width, if they have to be made.
    fn step(&mut self, within: &dyn Fn(StripeWidth) -> Vec<ContainerId>) -> Step<Self::Outcome>;

    /// The answers to what [`Job::step`] asked, in that order.
    fn told(&mut self, told: Vec<Told>);

    /// What is known of the file now.
    fn known(&self) -> Option<&Known> {
        None
    }

    /// The cut that it makes itself, if it makes one: others that it brings to their end were made by somebody else.
    fn own_cut(&self) -> Option<Cuts> {
        None
    }
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

/// Whether several operations were all carried out.
fn all_done(told: Vec<Told>) -> Result<(), Errno> {
    told.into_iter().try_for_each(|told| match told {
        Told::Reply(result) => result.map(|_| ()),
        Told::Bytes(_) | Told::Wrote(_) => Err(Errno::EPROTO),
    })
}

fn known_of(reply: Reply) -> Result<Known, Errno> {
    match reply {
        Reply::Columns { attr, columns } => Known::of(&attr, columns).ok_or(Errno::EPROTO),
        _ => Err(Errno::EPROTO),
    }
}

/// Brings a cut of a file to its end that has not come to it.
#[derive(Debug, Clone)]
pub struct Cut {
    inode: InodeId,
    phase: CutPhase,
    rounds: u32,
    faults: Faults,
}

#[derive(Debug, Clone)]
enum CutPhase {
    Learn,
    Columns(Known, u64),
    End(Cuts, u64),
    Done(Result<Attr, Errno>),
}

impl Job for Cut {
    /// The file's attributes after the cut.
    type Outcome = Attr;

    fn step(&mut self, _: &dyn Fn(StripeWidth) -> Vec<ContainerId>) -> Step<Attr> {
        self.next()
    }

    fn told(&mut self, told: Vec<Told>) {
        self.hear(told);
    }
}

impl Cut {
    /// Of a file.
    #[must_use]
    pub const fn of(inode: InodeId, faults: Faults) -> Self {
        Self {
            inode,
            phase: CutPhase::Learn,
            rounds: 0,
            faults,
        }
    }

    fn next(&self) -> Step<Attr> {
        let inode = self.inode;
        let end = |cuts, size| Ask::Do(Op::EndCut { inode, cuts, size });
        match &self.phase {
            CutPhase::Learn => Step::Ask(vec![Ask::Do(Op::Columns { inode })]),
            CutPhase::Columns(known, size) => {
                let (cuts, size) = (known.striping.cuts, *size);
                let cut = |column: &InodeId| {
                    let inode = *column;
                    Ask::Do(Op::CutColumn { inode, cuts, size })
                };
                let mut asks: Vec<Ask> = known.columns.iter().map(cut).collect();
                if faulty!(self.faults, CutEndedEarly) {
                    asks.push(end(cuts, size));
                }
                Step::Ask(asks)
            }
            CutPhase::End(cuts, size) => Step::Ask(vec![end(*cuts, *size)]),
            CutPhase::Done(result) => Step::Done(*result),
        }
    }

    fn hear(&mut self, told: Vec<Told>) {
        let next = match &self.phase {
            CutPhase::Learn => reply(told).and_then(|reply| match reply {
                Reply::Columns { attr, columns } => {
                    let known = Known::of(&attr, columns).ok_or(Errno::EPROTO)?;
                    Ok(match known.striping.cutting {
                        Some(size) => CutPhase::Columns(known, size),
                        None => CutPhase::Done(Ok(attr)),
                    })
                }
                _ => Err(Errno::EPROTO),
            }),
            CutPhase::Columns(known, size) => {
                let cuts = known.striping.cuts;
                all_done(told).map(|()| CutPhase::End(cuts, *size))
            }
            CutPhase::End(..) => reply(told).and_then(|reply| match reply {
                Reply::Attr(attr) => self.after(attr),
                _ => Err(Errno::EPROTO),
            }),
            CutPhase::Done(_) => Err(Errno::EPROTO),
        };
        self.phase = next.unwrap_or_else(|errno| CutPhase::Done(Err(errno)));
    }

    /// The file's owner was told that the columns are cut. The cut may have begun anew, with another number.
    fn after(&mut self, attr: Attr) -> Result<CutPhase, Errno> {
        let striping = attr.layout.striping();
        match striping.and_then(|striping| striping.cutting) {
            None => Ok(CutPhase::Done(Ok(attr))),
            Some(_) if self.rounds >= ROUNDS_MAX => Err(Errno::EIO),
            Some(_) => {
                self.rounds += 1;
                Ok(CutPhase::Learn)
            }
        }
    }
}
