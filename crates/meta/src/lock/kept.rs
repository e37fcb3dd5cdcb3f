//! Locks that a host keeps: used many times after one grant, and given back when they are called for.
//!
//! The owner of a container knows no difference between a lock that is used and one that is only kept. It calls back
//! whatever stands in the way of somebody else; the host answers by giving the lock back, at once or when its last
//! use ends. A call that is lost comes again when the waiter asks again. What is called for serves no new use: so a host
//! cannot keep others out for ever by using a lock again and again.
//!
//! A lock is kept from its second use in a row on, and later where it was called for (`habit`).

use super::habit::Habits;
use super::{LockKind, Mode, Token, planted};
use perigee_types::{ByteRange, InodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most locks that are kept without a use.
pub(super) const IDLE_MAX: usize = 1_024;

/// Names one lock that a host keeps: its owner, as the container's owner knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeptId {
    /// The file.
    pub inode: InodeId,
    /// Not [`LockKind::Posix`]: of those a host keeps a [`LockKind::Cover`] ([`super::cover`]).
    pub kind: LockKind,
    /// The name of the owner inside its session; of each grant another one.
    pub owner: u64,
}

/// What a host is granted, and what a use wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The file.
    pub inode: InodeId,
    /// As in [`KeptId::kind`].
    pub kind: LockKind,
    /// The bytes.
    pub range: ByteRange,
    /// For what.
    pub mode: Mode,
}

/// Whether this host's sign of life counts, by its own clock: else its locks may have been ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It does.
    Shown,
    /// It may not.
    Unsure,
}

/// What becomes of a lock whose use has ended, or that is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It is given back: the owner is to be told so.
    GivenBack,
    /// It stays: it is used, or kept.
    Stays,
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
    /// Counts its uses.
    begun: u64,
}

impl Lock {
    fn serves(&self, wanted: Wanted) -> bool {
        let range = self.wanted.range;
        self.call == Call::None
            && self.wanted.kind == wanted.kind
            && self.wanted.mode.covers(wanted.mode)
            && range.start <= wanted.range.start
            && wanted.range.end <= range.end
            && self.uses.iter().all(|other| go_together(*other, wanted))
    }
}

/// The locks that a host keeps.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    locks: BTreeMap<KeptId, Lock>,
    /// Those that were asked for and may have been granted. The owner may call for one before its grant is here.
    asked: BTreeMap<KeptId, Call>,
    habits: Habits,
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
            begun: 1,
        };
        self.locks.insert(id, lock);
        self.habits.used(id.inode);
    }

    /// A use begins, if a lock that is kept here serves it; else the owner is to be asked.
    pub fn begin(&mut self, wanted: Wanted, life: Life) -> Option<(KeptId, Token)> {
        if life == Life::Unsure && !planted!(self, KeptBeyondLife) {
            return None;
        }
        let mut of_file = self.of_file(wanted.inode);
        let (id, lock) = of_file.find(|(_, lock)| lock.serves(wanted))?;
        lock.uses.push(wanted);
        lock.begun += 1;
        let served = (*id, lock.token);
        drop(of_file);
        self.habits.used(wanted.inode);
        Some(served)
    }

    /// Before the owner is asked: the locks that nobody uses and that would stand in the way are given back.
    pub fn make_way(&mut self, wanted: Wanted) -> Vec<KeptId> {
        let of_file = self.of_file(wanted.inode);
        let in_the_way = of_file.filter(|(id, lock)| {
            id.kind == wanted.kind && lock.uses.is_empty() && !go_together(lock.wanted, wanted)
        });
        let ids: Vec<KeptId> = in_the_way.map(|(id, _)| *id).collect();
        for id in &ids {
            self.locks.remove(id);
        }
        ids
    }

    /// A use is over.
    pub fn end(&mut self, id: KeptId, wanted: Wanted, life: Life) -> Fate {
        let Some(lock) = self.locks.get_mut(&id) else {
            return Fate::Stays;
        };
        if let Some(place) = lock.uses.iter().position(|other| *other == wanted) {
            lock.uses.swap_remove(place);
        }
        let kept = self.habits.pays(id.inode) && self.locks.len() <= IDLE_MAX;
        let kept = kept && life == Life::Shown;
        if !kept && let Some(lock) = self.locks.get_mut(&id) {
            // As if it were called for, where nobody uses it any more.
            if lock.uses.is_empty() {
                lock.call = Call::Heard;
            }
        }
        self.give_back(id)
    }

    /// The owner wants a lock back: it is given back now, or when its last use ends. Harmless to repeat, also when the lock
    /// is gone.
    pub fn called(&mut self, id: KeptId) -> Fate {
        self.habits.called(id.inode);
        self.call(id)
    }

    fn call(&mut self, id: KeptId) -> Fate {
        if let Some(asked) = self.asked.get_mut(&id)
            && !planted!(self, EarlyCallForgotten)
        {
            *asked = Call::Heard;
            return Fate::Stays;
        }
        match self.locks.get_mut(&id) {
            Some(lock) => {
                lock.call = Call::Heard;
                self.give_back(id)
            }
            None => Fate::GivenBack,
        }
    }

    /// This host has shown no sign of life for so long that its locks may have been ended: what is used is as good as
    /// called for, and what is not goes back now. Those are named. A grant that is on its way may have been ended, too.
    pub fn lapsed(&mut self) -> Vec<KeptId> {
        if !planted!(self, GrantOutlivesLapse) {
            self.asked
                .values_mut()
                .for_each(|asked| *asked = Call::Heard);
        }
        let ids: Vec<KeptId> = self.locks.keys().copied().collect();
        let goes = |id: &KeptId| self.call(*id) == Fate::GivenBack;
        ids.into_iter().filter(goes).collect()
    }

    /// How often a lock was used until now, while nobody uses it.
    #[must_use]
    pub fn rests_since(&self, id: KeptId) -> Option<u64> {
        let lock = self.locks.get(&id)?;
        lock.uses.is_empty().then_some(lock.begun)
    }

    /// Time has passed: a lock that nobody has used since is given back.
    pub fn rested(&mut self, id: KeptId, since: u64) -> Fate {
        match self.rests_since(id) == Some(since) {
            true => self.call(id),
            false => Fate::Stays,
        }
    }

    /// Whether a lock is kept here, used or not.
    #[must_use]
    pub fn keeps(&self, id: KeptId) -> bool {
        self.locks.contains_key(&id)
    }

    /// Of a lock that is kept here.
    #[must_use]
    pub fn token(&self, id: KeptId) -> Option<Token> {
        self.locks.get(&id).map(|lock| lock.token)
    }

    fn of_file(&mut self, inode: InodeId) -> impl Iterator<Item = (&KeptId, &mut Lock)> {
        let first = |inode| KeptId {
            inode,
            kind: LockKind::Posix,
            owner: 0,
        };
        let all = first(inode)..first(InodeId(inode.0.saturating_add(1)));
        self.locks.range_mut(all)
    }

    fn give_back(&mut self, id: KeptId) -> Fate {
        let idle = |lock: &Lock| lock.call == Call::Heard && lock.uses.is_empty();
        if planted!(self, KeptOverCall) || !self.locks.get(&id).is_some_and(idle) {
            return Fate::Stays;
        }
        self.locks.remove(&id);
        Fate::GivenBack
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
    const ID: KeptId = KeptId {
        inode: InodeId(9),
        kind: LockKind::Service,
        owner: 4,
    };

    fn wanted(start: u64, end: u64, mode: Mode) -> Wanted {
        Wanted {
            inode: ID.inode,
            kind: ID.kind,
            range: ByteRange::new(start, end),
            mode,
        }
    }

    /// One that is kept, since it was used twice.
    fn kept(mode: Mode) -> Kept {
        let mut kept = Kept::default();
        let use_of_it = wanted(0, 100, mode);
        kept.granted(ID, use_of_it, TOKEN);
        assert_eq!(end(&mut kept, ID, use_of_it), Fate::GivenBack, "used once");
        kept.granted(ID, use_of_it, TOKEN);
        assert_eq!(end(&mut kept, ID, use_of_it), Fate::Stays, "it is kept");
        kept
    }

    fn end(kept: &mut Kept, id: KeptId, wanted: Wanted) -> Fate {
        kept.end(id, wanted, Life::Shown)
    }

    fn begin(kept: &mut Kept, wanted: Wanted) -> Option<(KeptId, Token)> {
        kept.begin(wanted, Life::Shown)
    }

    #[test]
    fn a_kept_lock_serves_what_it_covers_and_what_goes_together() {
        let mut kept = kept(Mode::ProtectedWrite);
        let read = wanted(10, 20, Mode::ConcurrentRead);
        assert_eq!(kept.begin(read, Life::Unsure), None);
        assert_eq!(begin(&mut kept, read), Some((ID, TOKEN)));
        assert_eq!(begin(&mut kept, wanted(60, 101, Mode::ProtectedRead)), None);
        assert_eq!(begin(&mut kept, wanted(60, 70, Mode::Exclusive)), None);
        assert!(begin(&mut kept, wanted(0, 50, Mode::ProtectedWrite)).is_some());
        assert_eq!(begin(&mut kept, wanted(20, 50, Mode::ProtectedWrite)), None);
        let other = Wanted {
            kind: LockKind::Flock,
            ..read
        };
        assert_eq!(begin(&mut kept, other), None, "of another kind");
    }

    #[test]
    fn what_is_called_for_serves_nothing_new_and_goes_with_its_last_use() {
        let mut kept = kept(Mode::Exclusive);
        let one = wanted(0, 10, Mode::Exclusive);
        let two = wanted(20, 30, Mode::ProtectedRead);
        assert!(begin(&mut kept, one).is_some() && begin(&mut kept, two).is_some());
        assert_eq!(kept.called(ID), Fate::Stays);
        assert_eq!(begin(&mut kept, wanted(30, 40, Mode::ProtectedRead)), None);
        assert_eq!(end(&mut kept, ID, one), Fate::Stays);
        assert_eq!(end(&mut kept, ID, two), Fate::GivenBack);
        assert_eq!(
            kept.called(ID),
            Fate::GivenBack,
            "who has it no more says so again"
        );
    }

    #[test]
    fn a_call_that_comes_before_the_grant_is_heard() {
        let mut kept = kept(Mode::Exclusive);
        let id = KeptId { owner: 5, ..ID };
        kept.asks(id);
        assert_eq!(kept.called(id), Fate::Stays);
        let all = wanted(200, 300, Mode::Exclusive);
        kept.granted(id, all, TOKEN);
        assert_eq!(begin(&mut kept, all), None);
        assert_eq!(end(&mut kept, id, all), Fate::GivenBack);
    }

    #[test]
    fn who_is_called_often_keeps_seldom() {
        let mut kept = Kept::default();
        let all = wanted(0, 100, Mode::Exclusive);
        let mut uses = Vec::new();
        for _ in 0..8 {
            let mut count = 1;
            kept.granted(ID, all, TOKEN);
            while end(&mut kept, ID, all) == Fate::GivenBack {
                kept.granted(ID, all, TOKEN);
                count += 1;
            }
            assert_eq!(kept.called(ID), Fate::GivenBack);
            uses.push(count);
        }
        assert_eq!(uses, [2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn what_nobody_uses_makes_way_and_does_not_stay_for_ever() {
        let mut kept = kept(Mode::ProtectedRead);
        assert_eq!(kept.make_way(wanted(0, 9, Mode::ProtectedRead)), []);
        assert_eq!(kept.make_way(wanted(100, 109, Mode::Exclusive)), []);
        let since = kept.rests_since(ID).expect("it rests");
        let read = wanted(0, 9, Mode::ProtectedRead);
        assert!(begin(&mut kept, read).is_some());
        assert_eq!(
            kept.make_way(wanted(0, 9, Mode::Exclusive)),
            [],
            "it is used"
        );
        assert_eq!(end(&mut kept, ID, read), Fate::Stays);
        assert_eq!(kept.rested(ID, since), Fate::Stays, "it was used since");
        let since = kept.rests_since(ID).expect("it rests");
        assert_eq!(kept.clone().rested(ID, since), Fate::GivenBack);
        assert_eq!(kept.make_way(wanted(0, 9, Mode::Exclusive)), [ID]);
    }

    #[test]
    fn a_host_that_was_silent_for_too_long_keeps_nothing() {
        let mut kept = kept(Mode::ConcurrentWrite);
        let used = KeptId { owner: 5, ..ID };
        let write = wanted(0, 9, Mode::ConcurrentWrite);
        kept.granted(used, write, TOKEN);
        assert_eq!(kept.lapsed(), [ID]);
        assert!(kept.keeps(used) && begin(&mut kept, write).is_none());
        assert_eq!(end(&mut kept, used, write), Fate::GivenBack);
        let late = KeptId { owner: 6, ..ID };
        kept.asks(late);
        kept.lapsed();
        kept.granted(late, write, TOKEN);
        assert_eq!(begin(&mut kept, write), None);
    }
}
