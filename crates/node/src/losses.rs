//! Work of programs on this node that went with an ownership, until they have been told.
//!
//! A host that is cut off, or sleeps, may lose a container to another one, and with it what its own programs did since
//! and nobody else had. An fsync that comes later finds nothing left to do: it has to say so. As with Linux's own
//! errors of writing back, every descriptor that was open at the loss hears of it once, and a later one does if nobody
//! has. What a close is told nobody may have looked at: it does not count.

use parking_lot::Mutex;
use perigee_client::backend::Hears;
use perigee_types::{Errno, InodeId};
use std::collections::BTreeMap;

/// So many inodes are remembered one by one; beyond that, every descriptor hears of the loss.
const INODES_MAX: usize = 65_536;

/// What was lost here.
#[derive(Debug, Default)]
pub(crate) struct Losses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Losses so far.
    count: u64,
    of: BTreeMap<InodeId, Loss>,
    /// Everything up to this loss may concern any inode.
    any: u64,
}

#[derive(Debug, Clone, Copy)]
struct Loss {
    number: u64,
    told: bool,
    errno: Errno,
}

/// What a descriptor hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Of how many losses it knows then.
    pub(crate) count: u64,
    /// Why.
    pub(crate) errno: Errno,
}

impl Losses {
    /// What was done to these inodes and not yet replicated may be lost.
    pub(crate) fn note(&self, inodes: impl IntoIterator<Item = InodeId>) {
        self.note_why(inodes, Errno::EIO);
    }

    /// The same, for a reason.
    pub(crate) fn note_why(&self, inodes: impl IntoIterator<Item = InodeId>, errno: Errno) {
        let mut state = self.0.lock();
        let number = state.count + 1;
        for inode in inodes {
            state.count = number;
            let told = false;
            let loss = Loss {
                number,
                told,
                errno,
            };
            state.of.insert(inode, loss);
        }
        if state.of.len() > INODES_MAX {
            state.of.clear();
            state.any = number;
        }
    }

    /// How many there were: what a descriptor that is opened now need not hear of.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// What a descriptor that knows of `since` losses must hear of work on `inode` that was lost.
    pub(crate) fn tell(&self, inode: InodeId, since: u64, hears: Hears) -> Option<Told> {
        let mut state = self.0.lock();
        let (count, any) = (state.count, state.any);
        let errno = match state.of.get_mut(&inode) {
            Some(loss) if loss.number > since || !loss.told => {
                loss.told |= hears == Hears::ByFsync;
                Some(loss.errno)
            }
            _ => (any > since).then_some(Errno::EIO),
        };
        errno.map(|errno| Told { count, errno })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    fn inode(number: u64) -> InodeId {
        InodeId(number)
    }

    #[test]
    fn every_open_descriptor_hears_of_a_loss_once() {
        let losses = Losses::default();
        let (first, second) = (losses.count(), losses.count());
        assert_eq!(losses.tell(inode(1), first, Hears::ByFsync), None);
        losses.note([inode(1), inode(2)]);
        let first = losses.tell(inode(1), first, Hears::ByFsync).unwrap().count;
        assert_eq!(losses.tell(inode(1), first, Hears::ByFsync), None);
        let second = losses.tell(inode(1), second, Hears::ByFsync).unwrap().count;
        assert_eq!(losses.tell(inode(1), second, Hears::ByFsync), None);
        assert_eq!(
            losses.tell(inode(3), 0, Hears::ByFsync),
            None,
            "nothing of it was lost"
        );
        losses.note([inode(1)]);
        assert!(losses.tell(inode(1), second, Hears::ByFsync).is_some());
    }

    #[test]
    fn a_later_descriptor_hears_of_what_nobody_has() {
        let losses = Losses::default();
        losses.note([inode(1)]);
        let later = losses.count();
        let told = losses.tell(inode(1), later, Hears::ByFsync).unwrap().count;
        assert_eq!(losses.tell(inode(1), told, Hears::ByFsync), None);
        assert_eq!(losses.tell(inode(1), losses.count(), Hears::ByFsync), None);
    }

    #[test]
    fn of_very_many_nobody_is_forgotten() {
        let losses = Losses::default();
        let open = losses.count();
        losses.note((0..=INODES_MAX as u64).map(inode));
        assert!(losses.tell(inode(7), open, Hears::ByFsync).is_some());
        assert_eq!(losses.tell(inode(7), losses.count(), Hears::ByFsync), None);
    }

    #[test]
    fn what_a_close_was_told_the_next_fsync_says_again() {
        let losses = Losses::default();
        let open = losses.count();
        losses.note_why([inode(1)], Errno::ENOSPC);
        let closed = losses.tell(inode(1), open, Hears::ByClose).unwrap();
        assert_eq!(closed.errno, Errno::ENOSPC);
        let later = losses.count();
        let told = losses.tell(inode(1), later, Hears::ByFsync).unwrap();
        assert_eq!(told.errno, Errno::ENOSPC);
        assert_eq!(losses.tell(inode(1), later, Hears::ByFsync), None);
    }
}
