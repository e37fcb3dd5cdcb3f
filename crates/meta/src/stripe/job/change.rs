//! How a host changes a file's length, frees a part of it, or locks it.

use super::{Ask, Cut, Job, Known, ROUNDS_MAX, Step, Told, all_done, known_of, reply};
use crate::attr::SetAttr;
use crate::op::{Allocate, Op, Reply};
use crate::stripe::{Cuts, Faults, faulty};
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, StripeWidth};

/// Changes a file's length or frees a part of it (`truncate` and `fallocate`), or takes a lock, before which a cut has to come to its
/// end.
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
    /// The file's owner knows to which length it is to be cut, by this cut.
    Cut(Cut, Cuts),
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

/// Frees what there is of a range. What lies past the end is of writes that have not come to theirs.
fn punch(known: Known, range: ByteRange, done: Reply) -> ChangePhase {
    match range.intersect(ByteRange::new(0, known.size)) {
        Some(range) if known.striping.made => ChangePhase::Punch(known, range, done),
        _ => ChangePhase::Done(Ok(done)),
    }
}

impl Job for Change {
    type Outcome = Reply;

    fn step(&mut self, _: &dyn Fn(StripeWidth) -> Vec<ContainerId>) -> Step<Reply> {
        let inode = self.inode;
        loop {
            match &self.phase {
                ChangePhase::Own => return Step::Ask(vec![Ask::Do(self.op.clone())]),
                ChangePhase::Before(cut) => match cut.next() {
                    Step::Ask(asks) => return Step::Ask(asks),
                    Step::Done(Err(errno)) => return Step::Done(Err(errno)),
                    Step::Done(Ok(_)) => self.phase = ChangePhase::Own,
                },
                ChangePhase::Cut(cut, _) => {
                    return match cut.next() {
                        Step::Ask(asks) => Step::Ask(asks),
                        Step::Done(done) => Step::Done(done.map(Reply::Attr)),
                    };
                }
                ChangePhase::Learn(..) => {
                    return Step::Ask(vec![Ask::Do(Op::Columns { inode })]);
                }
                ChangePhase::Punch(known, range, _) => {
                    let punch = |column: &InodeId| {
                        Ask::Do(Op::PunchColumn {
                            inode: *column,
                            cuts: known.striping.cuts,
                            range: *range,
                        })
                    };
                    return Step::Ask(known.columns.iter().map(punch).collect());
                }
                ChangePhase::Done(result) => return Step::Done(result.clone()),
            }
        }
    }

    fn told(&mut self, told: Vec<Told>) {
        let next = match &mut self.phase {
            ChangePhase::Before(cut) | ChangePhase::Cut(cut, _) => return cut.hear(told),
            ChangePhase::Own => {
                let reply = reply(told);
                self.on_own(reply)
            }
            ChangePhase::Learn(range, done) => {
                let (range, done) = (*range, done.clone());
                let known = reply(told).and_then(known_of);
                known.map(|known| punch(known, range, done))
            }
            ChangePhase::Punch(_, range, done) => {
                let (range, done) = (*range, done.clone());
                match all_done(told) {
                    Ok(()) => Ok(ChangePhase::Done(Ok(done))),
                    // It was cut since: what is left of the range is there still.
                    Err(Errno::ESTALE) if self.rounds < ROUNDS_MAX => {
                        self.rounds += 1;
                        Ok(ChangePhase::Learn(range, done))
                    }
                    Err(Errno::ESTALE) => Err(Errno::EIO),
                    Err(errno) => Err(errno),
                }
            }
            ChangePhase::Done(_) => Err(Errno::EPROTO),
        };
        self.phase = next.unwrap_or_else(|errno| ChangePhase::Done(Err(errno)));
    }

    fn own_cut(&self) -> Option<Cuts> {
        match &self.phase {
            ChangePhase::Cut(_, cuts) => Some(*cuts),
            _ => None,
        }
    }
}

impl Change {
    /// The file.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        self.inode
    }

    /// The operation.
    #[must_use]
    pub const fn op(&self) -> &Op {
        &self.op
    }

    /// Of a striped file, by an operation on its inode. `None`: such an operation concerns the file's own inode alone.
    #[must_use]
    pub fn by(op: Op, faults: Faults) -> Option<Self> {
        let inode = match &op {
            Op::SetAttr {
                inode,
                set: SetAttr { size: Some(_), .. },
                ..
            }
            | Op::Allocate { inode, .. }
            | Op::SetLock { inode, .. } => *inode,
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

    fn on_own(&mut self, reply: Result<Reply, Errno>) -> Result<ChangePhase, Errno> {
        let reply = match reply {
            Err(Errno::EAGAIN) if self.rounds < ROUNDS_MAX => {
                self.rounds += 1;
                return Ok(ChangePhase::Before(Cut::of(self.inode, self.faults)));
            }
            Err(Errno::EAGAIN) => return Err(Errno::EIO),
            reply => reply?,
        };
        if matches!(self.op, Op::SetLock { .. }) {
            return Ok(ChangePhase::Done(Ok(reply)));
        }
        let Reply::Attr(attr) = &reply else {
            return Err(Errno::EPROTO);
        };
        let cuts = matches!(self.op, Op::SetAttr { .. });
        let striping = attr.layout.striping().filter(|_| cuts);
        if let Some(striping) = striping.filter(|striping| striping.cutting.is_some())
            && !faulty!(self.faults, CutAnsweredEarly)
        {
            let cut = Cut::of(self.inode, self.faults);
            return Ok(ChangePhase::Cut(cut, striping.cuts));
        }
        Ok(match zeroed(&self.op) {
            Some(range) if attr.layout.has_columns() => ChangePhase::Learn(range, reply),
            _ => ChangePhase::Done(Ok(reply)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{Attr, Kind};
    use crate::op::Credential;
    use crate::stripe::{Layout, Striping};
    use perigee_types::{InodeIndex, WallTime};

    const FILE: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(7));

    fn attr(cuts: Cuts, cutting: Option<u64>) -> Attr {
        let now = WallTime::default();
        let striping = Striping {
            width: StripeWidth::of(3).expect("in range"),
            made: true,
            cuts,
            cutting,
        };
        Attr {
            inode: FILE,
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 50,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            blocks: 1,
            layout: Layout::Striped(striping),
        }
    }

    fn asks(change: &mut Change) -> Vec<Ask> {
        match change.step(&|_| Vec::new()) {
            Step::Ask(asks) => asks,
            Step::Done(result) => panic!("it is over: {result:?}"),
        }
    }

    /// The cuts that the next questions bring on their way.
    fn cuts_asked(change: &mut Change) -> Vec<Cuts> {
        let cuts = |ask| match ask {
            Ask::Do(Op::CutColumn { cuts, .. } | Op::EndCut { cuts, .. }) => Some(cuts),
            _ => None,
        };
        asks(change).into_iter().filter_map(cuts).collect()
    }

    #[test]
    fn a_cut_is_the_hosts_own_and_one_that_was_in_its_way_is_not() {
        let set = SetAttr {
            size: Some(50),
            ..SetAttr::default()
        };
        let cred = Credential::default();
        let op = Op::SetAttr {
            inode: FILE,
            set,
            cred,
        };
        let mut change = Change::by(op, Faults::default()).expect("it concerns columns");
        let (before, own) = (Cuts::default().next(), Cuts::default().next().next());
        let columns = |attr| {
            let column = |number| InodeId::new(ContainerId(number), InodeIndex(1));
            let columns = vec![column(2), column(3)];
            Told::Reply(Ok(Reply::Columns { attr, columns }))
        };
        asks(&mut change);
        change.told(vec![Told::Reply(Err(Errno::EAGAIN))]);
        asks(&mut change);
        change.told(vec![columns(attr(before, Some(80)))]);
        assert_eq!(cuts_asked(&mut change), [before, before]);
        assert_eq!(change.own_cut(), None);
        let done = || Told::Reply(Ok(Reply::Done));
        change.told(vec![done(), done()]);
        assert_eq!(cuts_asked(&mut change), [before]);
        change.told(vec![Told::Reply(Ok(Reply::Attr(attr(before, None))))]);
        asks(&mut change);
        change.told(vec![Told::Reply(Ok(Reply::Attr(attr(own, Some(50)))))]);
        asks(&mut change);
        change.told(vec![columns(attr(own, Some(50)))]);
        assert_eq!(cuts_asked(&mut change), [own, own]);
        assert_eq!(change.own_cut(), Some(own));
    }
}
