//! Writing behind: a program goes on while its bytes are on their way to a far host.
//!
//! Bytes of one file never overtake each other where they overlap. An error is told to everybody who has the file open: at the
//! next write, `fsync` or `close`.

use crate::member::Union;
use crate::wire::{BranchId, Done, FileId, FileOp, Stat};
use bytes::BytesMut;
use parking_lot::Mutex;
use perigee_net::begun::{Begun, begin};
use perigee_types::{ByteRange, Errno};
use std::sync::Arc;
use tokio::sync::Notify;

/// Bytes of one file that may be on their way.
const WINDOW: u64 = 16 << 20;
/// What is sent at once, at most.
const PIECE_MAX: usize = 1 << 20;

/// Bytes that are not sent yet.
#[derive(Debug)]
struct Gathered {
    start: u64,
    bytes: BytesMut,
    file: FileId,
    /// The first of the writes that they are of.
    first: u64,
}

impl Gathered {
    fn range(&self) -> ByteRange {
        ByteRange {
            start: self.start,
            end: self.start + self.bytes.len() as u64,
        }
    }
}

/// Bytes that are on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnWay {
    range: ByteRange,
    first: u64,
}

/// What writes behind have met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures {
    /// How many have failed.
    pub count: u64,
    /// The last one's error.
    pub last: Option<Errno>,
}

#[derive(Debug, Default)]
struct State {
    gathered: Option<Gathered>,
    on_way: Vec<OnWay>,
    bytes: u64,
    /// Writes so far.
    writes: u64,
    failures: Failures,
    last: Option<Stat>,
}

impl State {
    fn overlaps(&self, range: ByteRange) -> bool {
        let meets = |other: ByteRange| other.start < range.end && range.start < other.end;
        let gathered = self.gathered.as_ref().map(Gathered::range);
        self.on_way.iter().any(|one| meets(one.range)) || gathered.is_some_and(meets)
    }

    /// Whether all of the first `writes` have arrived.
    fn has_arrived(&self, writes: u64) -> bool {
        let gathered = self.gathered.as_ref().map(|gathered| gathered.first);
        let firsts = self.on_way.iter().map(|one| one.first).chain(gathered);
        firsts.min().is_none_or(|first| first > writes)
    }
}

/// What is written of one file, by all who have it open.
#[derive(Debug, Default)]
pub struct Writer {
    state: Mutex<State>,
    changed: Notify,
    telling: Mutex<()>,
}

impl Writer {
    /// Takes bytes; waits while too many are on their way.
    pub async fn write(
        self: &Arc<Self>,
        union: &Arc<Union>,
        (branch, file): (BranchId, FileId),
        offset: u64,
        data: &[u8],
    ) {
        let range = ByteRange {
            start: offset,
            end: offset + data.len() as u64,
        };
        loop {
            let changed = self.changed.notified();
            {
                let state = &mut *self.state.lock();
                let room = state.bytes == 0 || state.bytes + data.len() as u64 <= WINDOW;
                if room && !state.overlaps(range) {
                    return self.gather(state, union, (branch, file), offset, data);
                }
                // What is waited for has to be on its way.
                self.send(state, union, branch);
            }
            changed.await;
        }
    }

    fn gather(
        self: &Arc<Self>,
        state: &mut State,
        union: &Arc<Union>,
        (branch, file): (BranchId, FileId),
        offset: u64,
        data: &[u8],
    ) {
        state.bytes += data.len() as u64;
        state.writes += 1;
        if let Some(gathered) = &mut state.gathered
            && gathered.file == file
            && gathered.range().end == offset
            && gathered.bytes.len() + data.len() <= PIECE_MAX
        {
            gathered.bytes.extend_from_slice(data);
        } else {
            self.send(state, union, branch);
            state.gathered = Some(Gathered {
                start: offset,
                bytes: data.into(),
                file,
                first: state.writes,
            });
        }
        let full = state
            .gathered
            .as_ref()
            .is_some_and(|g| g.bytes.len() >= PIECE_MAX);
        // While some are on their way, more gather: small writes leave together, and the first one waits for nobody.
        if full || state.on_way.is_empty() {
            self.send(state, union, branch);
        }
    }

    fn send(self: &Arc<Self>, state: &mut State, union: &Arc<Union>, branch: BranchId) {
        let Some(gathered) = state.gathered.take() else {
            return;
        };
        let one = OnWay {
            range: gathered.range(),
            first: gathered.first,
        };
        state.on_way.push(one);
        let (me, to) = (Arc::clone(self), Arc::clone(union));
        let len = gathered.bytes.len() as u64;
        let write = async move {
            let op = FileOp::Write {
                offset: Some(one.range.start),
            };
            let bytes = gathered.bytes.freeze();
            let done = to.within(branch, gathered.file, op, bytes).await;
            (to, done)
        };
        // What goes to a disk of this host does so without the lock of whoever writes.
        let written = match union.own(branch) {
            Some(_) => Begun::Waits(Box::pin(write)),
            None => begin(&union.runtime, write),
        };
        union.runtime.spawn(async move {
            let (to, done) = written.end().await;
            let state = &mut *me.state.lock();
            state.bytes -= len;
            state.on_way.retain(|other| *other != one);
            let failed = match done {
                Ok((Done::Written { stat }, _)) => {
                    let newer = |last: &Stat| (stat.ctime, stat.size) >= (last.ctime, last.size);
                    if state.last.as_ref().is_none_or(newer) {
                        state.last = Some(stat);
                    }
                    None
                }
                Ok(_) => Some(Errno::EPROTO),
                Err(errno) => Some(errno),
            };
            if failed.is_some() {
                state.failures.count += 1;
                state.failures.last = failed;
            }
            if state.on_way.is_empty() {
                me.send(state, &to, branch);
            }
            me.changed.notify_waiters();
        });
    }

    /// Whether nothing is on its way, and nothing is to be told of what has arrived.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let state = self.state.lock();
        state.has_arrived(u64::MAX - 1) && state.last.is_none()
    }

    /// What writes have met so far.
    #[must_use]
    pub fn failures(&self) -> Failures {
        self.state.lock().failures
    }

    /// Waits until all that was written before has arrived, or has failed.
    pub async fn arrive(self: &Arc<Self>, union: &Arc<Union>, branch: BranchId) {
        let before = self.state.lock().writes;
        loop {
            let changed = self.changed.notified();
            {
                let state = &mut *self.state.lock();
                if state.has_arrived(before) {
                    return;
                }
                self.send(state, union, branch);
            }
            changed.await;
        }
    }

    /// Tells what the file was like after the last write, once; what came later is told later.
    pub fn tell_last(&self, tell: impl FnOnce(&Stat)) {
        let _in_turn = self.telling.lock();
        let last = self.state.lock().last.take();
        if let Some(stat) = last {
            tell(&stat);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever waits for what was written before does not wait for what is written since.
    #[test]
    fn what_was_written_before_has_arrived_when_nothing_as_old_is_on_its_way() {
        let range = |start| ByteRange {
            start,
            end: start + 1,
        };
        let mut state = State {
            on_way: vec![
                OnWay {
                    range: range(0),
                    first: 3,
                },
                OnWay {
                    range: range(9),
                    first: 1,
                },
            ],
            writes: 4,
            ..State::default()
        };
        assert!(!state.has_arrived(4) && !state.has_arrived(1));
        state.on_way.pop();
        assert!(state.has_arrived(2) && !state.has_arrived(3));
        assert!(state.overlaps(range(0)) && !state.overlaps(range(1)));
    }
}
