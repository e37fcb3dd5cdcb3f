//! What sessions may keep: one lease per (inode, session), at the container's owner.
//!
//! A lease covers an inode's attributes, its content, and (of a directory) the names in it. It
//! ends by itself after its term (Gray and Cheriton, Leases, SOSP 1989) or when its session has
//! said that it forgot. Invariant: while a session's lease stands, no other session's change of
//! that inode has been acknowledged without this session having forgotten first.

use perigee_types::{InodeId, NodeId, SessionId, Span, Tick};
use std::collections::BTreeMap;

/// The longest time that a kernel keeps names and attributes without asking again. It bounds how
/// long a change can be held up by a host that has died.
pub(crate) const TERM: Span = Span::from_millis(2_000);

/// The same for a mount of the owner's own host: nothing changes there without this process, which
/// tells the kernel at once, also when the owner's own lease ends. It bounds how long a host keeps
/// old names when its daemon is stopped as a process and another node takes over meanwhile.
pub(crate) const TERM_AT_HOME: Span = Span::from_millis(30_000);

/// For how long nobody gets a lease on an inode that several sessions are changing: each change
/// would only pay for taking it back.
const CONTENTION: Span = Span::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct Grant {
    session: SessionId,
    until: Tick,
}

/// All leases of a container's inodes.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    grants: BTreeMap<InodeId, Vec<Grant>>,
    /// Sessions of other nodes that have read an inode's content, and whose kernels may hold pages
    /// of it for longer than any lease: a mapped page is never asked about again.
    readers: BTreeMap<InodeId, Vec<SessionId>>,
    contended: BTreeMap<InodeId, Tick>,
}

impl Leases {
    /// Lets `session` keep `inode` until `limit`, and says for how long; zero while the inode is
    /// contended.
    pub(crate) fn grant(
        &mut self,
        now: Tick,
        inode: InodeId,
        session: SessionId,
        limit: Tick,
    ) -> Span {
        if self.contended.get(&inode).is_some_and(|until| *until > now) {
            return Span::ZERO;
        }
        let until = limit;
        if until <= now {
            return Span::ZERO;
        }
        let grants = self.grants.entry(inode).or_default();
        match grants.iter_mut().find(|grant| grant.session == session) {
            Some(grant) => grant.until = grant.until.max(until),
            None => grants.push(Grant { session, until }),
        }
        until.since(now)
    }

    /// The other sessions that hold `inode`, and when the last of these leases ends by itself.
    pub(crate) fn others(
        &self,
        now: Tick,
        inode: InodeId,
        session: SessionId,
    ) -> impl Iterator<Item = (SessionId, Tick)> + '_ {
        self.grants
            .get(&inode)
            .into_iter()
            .flatten()
            .filter(move |grant| grant.session != session && grant.until > now)
            .map(|grant| (grant.session, grant.until))
    }

    /// Every session that may keep something of `inode`.
    pub(crate) fn holders(&self, now: Tick, inode: InodeId) -> Vec<SessionId> {
        let granted = self.grants.get(&inode).into_iter().flatten();
        let granted = granted.filter(|grant| grant.until > now);
        let readers = self.readers.get(&inode).into_iter().flatten();
        granted
            .map(|grant| grant.session)
            .chain(readers.copied())
            .collect()
    }

    /// `session` of another node is given content of `inode`.
    pub(crate) fn note_reader(&mut self, inode: InodeId, session: SessionId) {
        let readers = self.readers.entry(inode).or_default();
        if !readers.contains(&session) {
            readers.push(session);
        }
    }

    /// Takes the other sessions that may hold pages of `inode`: each is to be told of a change,
    /// once, since it asks again before it has new ones.
    pub(crate) fn take_readers(&mut self, inode: InodeId, session: SessionId) -> Vec<SessionId> {
        let Some(readers) = self.readers.get_mut(&inode) else {
            return Vec::new();
        };
        let others = readers
            .extract_if(.., |reader| *reader != session)
            .collect();
        if readers.is_empty() {
            self.readers.remove(&inode);
        }
        others
    }

    /// `session` has forgotten `inode`, because another one changed it.
    pub(crate) fn revoked(&mut self, now: Tick, inode: InodeId, session: SessionId) {
        if let Some(grants) = self.grants.get_mut(&inode) {
            grants.retain(|grant| grant.session != session);
            if grants.is_empty() {
                self.grants.remove(&inode);
            }
        }
        self.contended.insert(inode, now + CONTENTION);
    }

    /// The inodes that sessions of `node` may keep.
    pub(crate) fn held_by(&self, node: NodeId) -> Vec<InodeId> {
        let held = self
            .grants
            .iter()
            .filter(|(_, grants)| grants.iter().any(|grant| grant.session.node() == node));
        held.map(|(inode, _)| *inode).collect()
    }

    /// Drops what has ended by itself.
    pub(crate) fn sweep(&mut self, now: Tick) {
        self.grants.retain(|_, grants| {
            grants.retain(|grant| grant.until > now);
            !grants.is_empty()
        });
        self.contended.retain(|_, until| *until > now);
    }

    /// The container has another owner now: leases are its to give.
    pub(crate) fn clear(&mut self) {
        self.grants.clear();
        self.readers.clear();
        self.contended.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{ContainerId, InodeIndex, NodeId};

    fn inode() -> InodeId {
        InodeId::new(ContainerId(2), InodeIndex(9))
    }

    fn session(node: u32) -> SessionId {
        SessionId::new(NodeId(node), 1)
    }

    #[test]
    fn a_lease_counts_until_its_last_microsecond() {
        let mut leases = Leases::default();
        assert_eq!(
            leases.grant(Tick(0), inode(), session(1), Tick(TERM.0)),
            TERM
        );
        let held = |leases: &Leases, at| leases.others(Tick(at), inode(), session(2)).count();
        assert_eq!(held(&leases, TERM.0 - 1), 1);
        assert_eq!(held(&leases, TERM.0), 0);
        assert_eq!(
            leases.others(Tick(0), inode(), session(1)).count(),
            0,
            "its own is no obstacle"
        );
    }

    #[test]
    fn no_lease_outlives_the_owners_own() {
        let mut leases = Leases::default();
        assert_eq!(
            leases.grant(Tick(100), inode(), session(1), Tick(400)),
            Span(300)
        );
        assert_eq!(
            leases.grant(Tick(400), inode(), session(1), Tick(400)),
            Span::ZERO
        );
    }

    #[test]
    fn a_contended_inode_is_not_leased_for_a_while() {
        let mut leases = Leases::default();
        leases.grant(Tick(0), inode(), session(1), Tick(u64::MAX));
        leases.revoked(Tick(10), inode(), session(1));
        assert_eq!(
            leases.grant(Tick(11), inode(), session(1), Tick(u64::MAX)),
            Span::ZERO
        );
        let later = Tick(10) + CONTENTION;
        assert_eq!(leases.grant(later, inode(), session(1), later + TERM), TERM);
    }
}
