//! How a host reads.

use super::{Ask, Cut, Job, Known, ROUNDS_MAX, Step, Told, known_of, reply};
use crate::op::Op;
use crate::stripe::{Faults, UNIT, faulty, pieces};
use bytes::{Bytes, BytesMut};
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, StripeWidth};

/// Reads bytes.
#[derive(Debug, Clone)]
pub struct Read {
    inode: InodeId,
    range: ByteRange,
    known: Option<Known>,
    /// As the owner said for this job.
    fresh: bool,
    cut: Option<Cut>,
    rounds: u32,
    sent: Option<ByteRange>,
    over: Option<Result<Bytes, Errno>>,
    faults: Faults,
}

impl Read {
    /// With what is known of the file here.
    #[must_use]
    pub const fn new(
        inode: InodeId,
        range: ByteRange,
        known: Option<Known>,
        faults: Faults,
    ) -> Self {
        Self {
            inode,
            range,
            known,
            fresh: false,
            cut: None,
            rounds: 0,
            sent: None,
            over: None,
            faults,
        }
    }

    /// What there is of what is asked for.
    fn reach(&self, known: &Known) -> ByteRange {
        let end = self.range.end.min(known.size);
        ByteRange::new(self.range.start.min(end), end)
    }
}

impl Job for Read {
    type Outcome = Bytes;

    fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    fn step(&mut self, _: &dyn Fn(StripeWidth) -> Vec<ContainerId>) -> Step<Bytes> {
        if let Some(over) = self.over.take() {
            return Step::Done(over);
        }
        let inode = self.inode;
        let known = self.known.as_ref();
        let cut = known.is_some_and(|known| known.is_being_cut(self.reach(known)));
        if cut && !faulty!(self.faults, ReadBeyondCut) {
            self.rounds += 1;
            self.known = None;
            self.cut = Some(Cut::of(inode, self.faults));
        }
        if let Some(cut) = &self.cut {
            match cut.next() {
                Step::Ask(asks) => return Step::Ask(asks),
                // Who may not end it waits for others to do so.
                Step::Done(Err(Errno::EROFS) | Ok(_)) => self.cut = None,
                Step::Done(Err(errno)) => return Step::Done(Err(errno)),
            }
        }
        if self.rounds > ROUNDS_MAX {
            return Step::Done(Err(Errno::EIO));
        }
        // That there is no column yet nobody is told who relies on it.
        let stays = |known: &Known| known.striping.made || self.range.end <= UNIT;
        let far = |known: &&Known| self.fresh || (self.range.end <= known.size && stays(known));
        let Some(known) = self.known.as_ref().filter(far) else {
            self.sent = None;
            return Step::Ask(vec![Ask::Do(Op::Columns { inode })]);
        };
        let range = self.reach(known);
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

    fn told(&mut self, told: Vec<Told>) {
        if let Some(cut) = &mut self.cut {
            return cut.hear(told);
        }
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
}

impl Read {
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
                    return Ok(());
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
