//! Locks of the service that a host keeps: used many times after one grant, and given back when they are called for.
//!
//! The owner of a container knows no difference between a lock that is used and one that is only kept. It calls back
//! whatever stands in the way of somebody who waits; the host answers by giving the lock back, at once or when its last
//! use ends. A call that is lost comes again when the waiter asks again. What is called for serves no new use: so a host
//! cannot keep others out for ever by using a lock again and again.

use super::{Mode, Token, planted};
use perigee_types::{ByteRange, InodeId};
use std::collections::BTreeMap;

/// Names one lock that a host keeps: its owner, as the container's owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptId {
    /// The file.
    pub inode: InodeId,
    /// The name of the owner inside its session; of each grant another one.
    pub owner: u64,
}

/// What a host is granted, and what a use wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The file.
    pub inode: InodeId,
    /// The bytes.
    pub range: ByteRange,
    /// For what.
    pub mode: Mode,
}

/// Whether the owner wants a lock back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// It has not said so.
    None,
    /// It has: no new use.
    Heard,
}

#[derive(Debug, Clone)]
struct Lock {
    wanted: Wanted,
    token: Token,
    call: Call,
    /// What it is used for at present.
    uses: Vec<Wanted>,
}

/// The locks that a host keeps.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    locks: BTreeMap<KeptId, Lock>,
    /// Those that were asked for and may have been granted. The owner may call for one before its grant is here.
    asked: BTreeMap<KeptId, Call>,
    #[cfg(feature = "plant")]
    plant: Option<super::plant::Plant>,
}

impl Kept {
    /// Switches a deliberate fault on.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<super::plant::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// The owner is about to be asked for a lock.
    pub fn asks(&mut self, id: KeptId) {
        self.asked.entry(id).or_insert(Call::None);
    }

    /// The lock was not had, and is not asked for any more.
    pub fn gives_up(&mut self, id: KeptId) {
        self.asked.remove(&id);
    }

    /// The owner has granted a lock, and its first use begins.
    pub fn granted(&mut self, id: KeptId, wanted: Wanted, token: Token) {
        let lock = Lock {
            wanted,
            token,
            call: self.asked.remove(&id).unwrap_or(Call::None),
            uses: vec![wanted],
        };
        self.locks.insert(id, lock);
    }

    /// A use begins, if a lock that is kept here serves it; else the owner is to be asked.
    pub fn begin(&mut self, wanted: Wanted) -> Option<(KeptId, Token)> {
        let serves = |(id, lock): &(&KeptId, &mut Lock)| {
            id.inode == wanted.inode
                && lock.call == Call::None
                && lock.wanted.mode.covers(wanted.mode)
                && lock.wanted.range.start <= wanted.range.start
                && wanted.range.end <= lock.wanted.range.end
                && lock.uses.iter().all(|other| go_together(*other, wanted))
        };
        let (id, lock) = self.locks.iter_mut().find(serves)?;
        lock.uses.push(wanted);
        Some((*id, lock.token))
    }

    /// A use is over. True: the lock is given back now.
    pub fn end(&mut self, id: KeptId, wanted: Wanted) -> bool {
        let Some(lock) = self.locks.get_mut(&id) else {
            return false;
        };
        if let Some(place) = lock.uses.iter().position(|other| *other == wanted) {
            lock.uses.swap_remove(place);
        }
        self.give_back(id)
    }

    /// The owner wants a lock back. True: it is given back now; else when its last use ends. Harmless to repeat, also when
    /// the lock is gone.
    pub fn called(&mut self, id: KeptId) -> bool {
        if let Some(asked) = self.asked.get_mut(&id)
            && !planted!(self, EarlyCallForgotten)
        {
            *asked = Call::Heard;
            return false;
        }
        match self.locks.get_mut(&id) {
            Some(lock) => {
                lock.call = Call::Heard;
                self.give_back(id)
            }
            None => true,
        }
    }

    /// This host has shown no sign of life for so long that its locks may have been ended: what is used is as good as
    /// called for, and what is not goes back now. Those are named.
    pub fn lapsed(&mut self) -> Vec<KeptId> {
        let ids: Vec<KeptId> = self.locks.keys().copied().collect();
        ids.into_iter().filter(|id| self.called(*id)).collect()
    }

    /// Whether a lock is kept here, used or not.
    #[must_use]
    pub fn keeps(&self, id: KeptId) -> bool {
        self.locks.contains_key(&id)
    }

    /// The session's locks were ended: it keeps nothing, and tells the owner so of each. Only when no change is under way
    /// that counts on one of them: from then on the owner takes changes again.
    pub fn ended(&mut self) -> Vec<KeptId> {
        let locks = std::mem::take(&mut self.locks);
        locks.into_keys().collect()
    }

    fn give_back(&mut self, id: KeptId) -> bool {
        let idle = |lock: &Lock| lock.call == Call::Heard && lock.uses.is_empty();
        if planted!(self, KeptOverCall) || !self.locks.get(&id).is_some_and(idle) {
            return false;
        }
        self.locks.remove(&id);
        true
    }
}

fn go_together(one: Wanted, two: Wanted) -> bool {
    one.mode.is_compatible_with(two.mode) || !one.range.overlaps(two.range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::Epoch;

    const TOKEN: Token = Token {
        epoch: Epoch(3),
        number: 8,
    };

    fn wanted(start: u64, end: u64, mode: Mode) -> Wanted {
        Wanted {
            inode: InodeId(9),
            range: ByteRange::new(start, end),
            mode,
        }
    }

    fn kept(mode: Mode) -> (Kept, KeptId) {
        let id = KeptId {
            inode: InodeId(9),
            owner: 1,
        };
        let mut kept = Kept::default();
        kept.granted(id, wanted(0, 100, mode), TOKEN);
        assert!(!kept.end(id, wanted(0, 100, mode)), "it is kept");
        (kept, id)
    }

    #[test]
    fn a_lock_serves_what_it_covers_and_nothing_else() {
        let (mut kept, id) = kept(Mode::ProtectedWrite);
        let read = wanted(10, 20, Mode::ProtectedRead);
        assert_eq!(kept.begin(read), Some((id, TOKEN)));
        assert_eq!(kept.begin(wanted(0, 50, Mode::ProtectedWrite)), None);
        assert!(kept.begin(wanted(20, 50, Mode::ProtectedWrite)).is_some());
        assert_eq!(kept.begin(wanted(60, 101, Mode::ProtectedRead)), None);
        assert_eq!(kept.begin(wanted(60, 70, Mode::Exclusive)), None);
    }

    #[test]
    fn what_is_called_for_goes_with_its_last_use_and_serves_no_new_one() {
        let (mut kept, id) = kept(Mode::Exclusive);
        let one = wanted(0, 10, Mode::Exclusive);
        let two = wanted(10, 20, Mode::ProtectedRead);
        assert!(kept.begin(one).is_some() && kept.begin(two).is_some());
        assert!(!kept.called(id));
        assert_eq!(kept.begin(wanted(30, 40, Mode::ProtectedRead)), None);
        assert!(!kept.end(id, one));
        assert!(kept.end(id, two));
        assert!(kept.called(id), "who has it no more says so again");
    }

    #[test]
    fn a_call_that_comes_before_the_grant_is_heeded_when_its_use_ends() {
        let id = KeptId {
            inode: InodeId(9),
            owner: 1,
        };
        let mut kept = Kept::default();
        kept.asks(id);
        assert!(!kept.called(id));
        let wanted = wanted(0, 10, Mode::Exclusive);
        kept.granted(id, wanted, TOKEN);
        assert_eq!(kept.begin(wanted), None);
        assert!(kept.end(id, wanted));
    }

    #[test]
    fn what_nobody_uses_is_given_back_at_once() {
        let (mut kept, id) = kept(Mode::ConcurrentWrite);
        assert!(kept.called(id));
        assert_eq!(kept.begin(wanted(0, 1, Mode::ConcurrentRead)), None);
    }
}
