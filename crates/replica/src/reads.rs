//! The owner's word that sessions of this host may read another copy than its own: this host's, or that of a member that is
//! nearer (law 5). While it stands, nothing of the file changes before this host has heard of it.
//!
//! A word counts from the moment when it was asked for: not when it has crossed a revocation since then, nor a change of this
//! host's own, which the owner may have answered for, and which the copy may not have yet.

use crate::chain::planted;
use perigee_types::{ContainerId, InodeId, SessionId, Tick};
use std::collections::BTreeMap;

/// So many words are remembered; each is asked for again when it is forgotten.
const READS_MAX: usize = 65_536;

/// The word that a session may read a copy, which is at `At`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLease<At> {
    /// Not from here on, on the clock of the session's host.
    pub until: Tick,
    /// Which copy.
    pub copy: At,
    /// No other lease has it, but those that went on from this one before it ended.
    number: u64,
    /// It is being asked for anew.
    renewing: bool,
}

/// When a word was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedToRead {
    revision: u64,
    changes: u64,
}

/// What the sessions of one host may read.
#[derive(Debug)]
pub struct Reads<At> {
    leases: BTreeMap<(SessionId, InodeId), ReadLease<At>>,
    /// Numbers them.
    given: u64,
    /// Counts revocations.
    revision: u64,
    own: OwnChanges,
    #[cfg(feature = "plant")]
    plant: Option<crate::Plant>,
}

/// Counts this host's changes of files that other nodes own.
#[derive(Debug, Default)]
struct OwnChanges {
    count: u64,
    /// The last one of each file.
    last: BTreeMap<InodeId, u64>,
    /// That of files which are not among these.
    others: u64,
}

impl OwnChanges {
    fn note(&mut self, inode: InodeId) {
        if self.last.len() >= READS_MAX {
            self.last.clear();
            self.others = self.count;
        }
        self.count += 1;
        self.last.insert(inode, self.count);
    }

    fn of(&self, inode: InodeId) -> u64 {
        self.last.get(&inode).copied().unwrap_or(self.others)
    }
}

impl<At> Default for Reads<At> {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            given: 0,
            revision: 0,
            own: OwnChanges::default(),
            #[cfg(feature = "plant")]
            plant: None,
        }
    }
}

impl<At: Copy + PartialEq> Reads<At> {
    /// The same with a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<crate::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// A session is about to ask for the word about a file: for [`Self::given`].
    #[must_use]
    pub fn asks(&self, inode: InodeId) -> AskedToRead {
        AskedToRead {
            revision: self.revision,
            changes: self.own.of(inode),
        }
    }

    /// The owner lets a session read a copy until a moment. It is `now`.
    pub fn given(
        &mut self,
        (session, inode, copy): (SessionId, InodeId, At),
        (now, until): (Tick, Tick),
        asked: AskedToRead,
    ) {
        let since = self.asks(inode);
        let revoked = since.revision != asked.revision && !planted!(self, ReadsCrossRevocation);
        let changed = since.changes != asked.changes;
        if revoked || changed {
            return;
        }
        if self.leases.len() >= READS_MAX {
            self.leases.clear();
        }
        let before = self.leases.get(&(session, inode));
        let same = before.filter(|before| before.copy == copy && now < before.until);
        let number = match same {
            Some(before) => before.number,
            None => {
                self.given += 1;
                self.given
            }
        };
        let lease = ReadLease {
            until,
            copy,
            number,
            renewing: false,
        };
        self.leases.insert((session, inode), lease);
    }

    /// What copy a session may read, or might until the lease ended.
    #[must_use]
    pub fn lease(&self, session: SessionId, inode: InodeId) -> Option<ReadLease<At>> {
        self.leases.get(&(session, inode)).copied()
    }

    /// Whether a lease has stood without a break since it was looked at.
    #[must_use]
    pub fn stands(
        &self,
        session: SessionId,
        inode: InodeId,
        lease: ReadLease<At>,
        now: Tick,
    ) -> bool {
        let current = self.lease(session, inode);
        current.is_some_and(|current| current.number == lease.number && now < current.until)
    }

    /// The lease after the owner was asked to renew it; where it did not, that is forgotten.
    pub fn renewed(
        &mut self,
        session: SessionId,
        inode: InodeId,
        now: Tick,
    ) -> Option<ReadLease<At>> {
        let lease = self.lease(session, inode)?;
        if now < lease.until {
            return Some(lease);
        }
        self.forget(session, inode);
        None
    }

    /// Whether the caller is to ask for a lease anew: nobody else does so already.
    pub fn renews(&mut self, session: SessionId, inode: InodeId, copy: At) -> bool {
        let lease = self.leases.get_mut(&(session, inode));
        let lease = lease.filter(|lease| lease.copy == copy && !lease.renewing);
        lease.map(|lease| lease.renewing = true).is_some()
    }

    /// A copy was not as the lease had said.
    pub fn forget(&mut self, session: SessionId, inode: InodeId) {
        self.leases.remove(&(session, inode));
    }

    /// Some copies are not read any more.
    pub fn forget_copies(&mut self, gone: impl Fn(&At) -> bool) {
        self.leases.retain(|_, lease| !gone(&lease.copy));
    }

    /// This host has begun to change a file that another node owns, or has just been told that it did. `sessions`: all of this
    /// host. `lags`: whether a copy may have the change later than the owner's answer says. A lease on this host's own stays.
    pub fn own_change(
        &mut self,
        inode: InodeId,
        sessions: impl IntoIterator<Item = SessionId>,
        lags: impl Fn(&At) -> bool,
    ) {
        self.own.note(inode);
        if planted!(self, ReadsBesideOwnChange) {
            return;
        }
        for session in sessions {
            let lease = self.leases.get(&(session, inode));
            if lease.is_some_and(|lease| lags(&lease.copy)) {
                self.leases.remove(&(session, inode));
            }
        }
    }

    /// The owner takes back what a session may read of these, and whatever is on its way.
    pub fn revoked(&mut self, session: SessionId, inodes: impl IntoIterator<Item = InodeId>) {
        self.revision += 1;
        for inode in inodes {
            self.leases.remove(&(session, inode));
        }
    }

    /// A container has another owner, who has leases of its own.
    pub fn owner_changed(&mut self, container: ContainerId) {
        self.revision += 1;
        self.leases
            .retain(|(_, inode), _| inode.container() != container);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{InodeIndex, NodeId};

    const INODE: InodeId = InodeId::new(ContainerId(5), InodeIndex(7));
    const ME: SessionId = SessionId::new(NodeId(4), 9);

    /// This host's own copy, or a member's, of an epoch.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum At {
        Own,
        Member(u64),
    }

    fn lease(reads: &mut Reads<At>, copy: At, now: u64, until: u64) -> ReadLease<At> {
        let asked = reads.asks(INODE);
        reads.given((ME, INODE, copy), (Tick(now), Tick(until)), asked);
        reads.lease(ME, INODE).expect("nothing has crossed it")
    }

    #[test]
    fn an_answer_counts_only_under_the_lease_that_it_was_asked_for_under() {
        let mut reads = Reads::default();
        let near = At::Member(2);
        let first = lease(&mut reads, near, 10, 100);
        assert!(reads.stands(ME, INODE, first, Tick(99)));
        assert!(!reads.stands(ME, INODE, first, Tick(100)), "it has ended");
        lease(&mut reads, near, 90, 200);
        assert!(reads.stands(ME, INODE, first, Tick(150)), "it went on");
        // Something may have changed between the two.
        let second = lease(&mut reads, near, 200, 300);
        assert!(!reads.stands(ME, INODE, first, Tick(210)));
        reads.revoked(ME, [INODE]);
        assert!(!reads.stands(ME, INODE, second, Tick(210)));
        lease(&mut reads, near, 220, 300);
        assert!(!reads.stands(ME, INODE, second, Tick(230)), "another one");
        let third = lease(&mut reads, near, 230, 300);
        lease(&mut reads, At::Member(3), 240, 300);
        assert!(!reads.stands(ME, INODE, third, Tick(250)), "another chain");
    }

    #[test]
    fn a_word_that_has_crossed_another_one_does_not_count() {
        let mut reads = Reads::default();
        let term = (Tick(250), Tick(300));
        let asked = reads.asks(INODE);
        reads.revoked(ME, [INODE]);
        reads.given((ME, INODE, At::Member(2)), term, asked);
        assert_eq!(reads.lease(ME, INODE), None, "a revocation");
        let asked = reads.asks(INODE);
        reads.owner_changed(INODE.container());
        reads.given((ME, INODE, At::Own), term, asked);
        assert_eq!(reads.lease(ME, INODE), None, "another owner");
        let asked = reads.asks(INODE);
        let member = |copy: &At| *copy != At::Own;
        reads.own_change(INODE, [ME], member);
        reads.given((ME, INODE, At::Own), term, asked);
        assert_eq!(reads.lease(ME, INODE), None, "an own change");
        lease(&mut reads, At::Own, 250, 300);
        reads.own_change(INODE, [ME], member);
        assert!(reads.lease(ME, INODE).is_some(), "its own copy has it");
        lease(&mut reads, At::Member(2), 250, 300);
        reads.own_change(INODE, [ME], member);
        assert_eq!(reads.lease(ME, INODE), None);
    }

    #[test]
    fn one_asks_for_a_lease_anew_until_it_is_there() {
        let mut reads = Reads::default();
        lease(&mut reads, At::Own, 250, 300);
        assert!(reads.renews(ME, INODE, At::Own));
        assert!(!reads.renews(ME, INODE, At::Own));
        lease(&mut reads, At::Own, 260, 310);
        assert!(reads.renews(ME, INODE, At::Own));
        assert_eq!(reads.renewed(ME, INODE, Tick(311)), None);
        assert_eq!(reads.lease(ME, INODE), None, "it is asked for anew");
    }
}
