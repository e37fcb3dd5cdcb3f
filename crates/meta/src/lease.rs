//! What sessions may keep: one lease per (inode, session), at the container's owner.
//!
//! A lease covers an inode's attributes, its content, and (of a directory) the names in it. It
//! ends by itself after its term (Gray and Cheriton, Leases, SOSP 1989) or when its session has
//! said that it forgot. Invariant: while a session's lease stands, no other session's change of
//! that inode has been ordered (of a file's content: acknowledged) without this session having forgotten
//! first. So a change that anybody has seen is seen by all.

use crate::op::Touched;
use perigee_types::{InodeId, NodeId, SessionId, Span, Tick};
use std::collections::{BTreeMap, BTreeSet};

/// The longest time that a kernel keeps names and attributes without asking again. It bounds how
/// long a change can be held up by a host that has died.
pub const TERM: Span = Span::from_millis(2_000);

/// The same for a mount of the owner's own host: nothing changes there without this process, which tells the kernel before
/// a change, and when the owner's own lease ends. It bounds how long a host keeps old names when its daemon is stopped as a
/// process and another node takes over meanwhile.
pub const TERM_AT_HOME: Span = Span::from_millis(30_000);

/// How much shorter than it is counted here a lease is told to another host, in per cent: clocks that run at their own
/// rates must not let it be kept there for longer than it stands in the way here.
const DRIFT_PERCENT: u64 = 12;

/// How long a change waits for the word of a session that may hold pages and has no lease: its node answers at once, or is
/// dead, and then nobody reads those pages.
pub const READER_WAIT: Span = Span::from_millis(2_000);

/// For how long nobody gets a lease on an inode that several sessions are changing: each change
/// would only pay for taking it back.
const CONTENTION: Span = Span::from_millis(500);

/// Tells a grant from all others that the same node has given in the same container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GrantNumber(u64);

#[derive(Debug, Clone, Copy)]
struct Grant {
    number: GrantNumber,
    session: SessionId,
    until: Tick,
    /// Changes that wait for the session to forget. Until all of them have its word nobody gets a new lease: the word
    /// about the old one could end the session's, and another's would be in the way of the change.
    recalls: u32,
    /// One of them has it: what the session was given is forgotten, and no further change needs to ask.
    forgotten: bool,
}

impl Grant {
    /// Whether a change of `session` has to wait for it.
    fn is_in_the_way(&self, now: Tick, session: SessionId) -> bool {
        self.until > now && !self.forgotten && self.session != session
    }
}

/// A session that must forget before a change is acknowledged, or another node orders changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Whose leases.
    pub session: SessionId,
    /// Its word is about these, and about no other lease that it is given meanwhile. None where it may hold pages alone.
    grants: Vec<(InodeId, GrantNumber)>,
    /// When the last of them has ended by itself, on the owner's clock.
    pub until: Tick,
}

impl Holder {
    /// On what it has a lease that must end.
    pub fn inodes(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.grants.iter().map(|(inode, _)| *inode)
    }
}

/// Holders, as they are found one inode after the other.
#[derive(Default)]
struct Recalled(BTreeMap<SessionId, Holder>);

impl Recalled {
    fn add(&mut self, inode: InodeId, grant: &mut Grant) {
        grant.recalls += 1;
        let holder = self.of(grant.session, grant.until);
        holder.grants.push((inode, grant.number));
    }

    fn of(&mut self, session: SessionId, until: Tick) -> &mut Holder {
        let holder = self.0.entry(session).or_insert_with(|| Holder {
            session,
            grants: Vec::new(),
            until,
        });
        holder.until = holder.until.max(until);
        holder
    }

    fn into_holders(self) -> Vec<Holder> {
        self.0.into_values().collect()
    }
}

/// The inode whose lease covers what was touched.
#[must_use]
pub fn leased_by(touched: &Touched) -> InodeId {
    match touched {
        Touched::Attr(inode) | Touched::Data(inode) | Touched::Listing(inode) => *inode,
        Touched::Name { dir, .. } => *dir,
    }
}

/// All leases of a container's inodes, at its owner.
#[derive(Debug)]
pub struct Leases {
    me: NodeId,
    grants: BTreeMap<InodeId, Vec<Grant>>,
    /// Sessions of other nodes that have read an inode's content, and whose kernels may hold pages
    /// of it for longer than any lease: a mapped page is never asked about again.
    readers: BTreeMap<InodeId, Vec<SessionId>>,
    /// The hosts of all that are or were among them: who looks for hosts that are gone looks here first.
    readers_of: BTreeSet<NodeId>,
    contended: BTreeMap<InodeId, Tick>,
    /// Inodes whose content is about to change, and whose changes these are.
    changing: BTreeMap<InodeId, Vec<SessionId>>,
    /// Nobody gets a lease: the container is about to get another owner.
    closed: bool,
    /// How many grants there were.
    given: u64,
}

impl Leases {
    /// Of a container whose owner is `me`.
    #[must_use]
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            grants: BTreeMap::new(),
            readers: BTreeMap::new(),
            readers_of: BTreeSet::new(),
            contended: BTreeMap::new(),
            changing: BTreeMap::new(),
            closed: false,
            given: 0,
        }
    }

    /// Gives no leases from here on, until [`Self::open`].
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Gives leases again.
    pub fn open(&mut self) {
        self.closed = false;
    }

    /// Whether no leases are given.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whose leases must end before another node orders changes: each is to be told, and then [`Self::revoked`].
    pub fn recall_all(&mut self, now: Tick) -> Vec<Holder> {
        let mut all = Recalled::default();
        for (inode, grants) in &mut self.grants {
            let stands = |grant: &&mut Grant| grant.until > now && !grant.forgotten;
            for grant in grants.iter_mut().filter(stands) {
                all.add(*inode, grant);
            }
        }
        all.into_holders()
    }

    /// Whether nobody keeps anything under a lease, no change of content is under way, and none is known to hold pages.
    #[must_use]
    pub fn is_free(&self, now: Tick) -> bool {
        let stands = |grant: &Grant| grant.until > now && !grant.forgotten;
        let mut grants = self.grants.values().flatten();
        self.closed && self.changing.is_empty() && !grants.any(stands)
    }

    /// Takes all sessions of other nodes that may hold pages for longer than any lease, and of what.
    pub fn take_all_readers(&mut self) -> BTreeMap<SessionId, Vec<InodeId>> {
        let mut all: BTreeMap<SessionId, Vec<InodeId>> = BTreeMap::new();
        for (inode, readers) in std::mem::take(&mut self.readers) {
            for reader in readers {
                all.entry(reader).or_default().push(inode);
            }
        }
        all
    }

    /// A change of an inode's content that nobody is in the way of is going to the disk, and is not ordered yet: until
    /// [`Self::changed`] nobody gets a lease but `session`, if it is of the owner's host.
    pub fn changing(&mut self, inode: InodeId, session: SessionId) {
        self.changing.entry(inode).or_default().push(session);
    }

    /// Such a change is ordered, or has failed.
    pub fn changed(&mut self, inode: InodeId, session: SessionId) {
        if let Some(changes) = self.changing.get_mut(&inode) {
            if let Some(one) = changes.iter().position(|of| *of == session) {
                changes.swap_remove(one);
            }
            if changes.is_empty() {
                self.changing.remove(&inode);
            }
        }
    }

    /// Whether no such change of any inode is under way.
    #[must_use]
    pub fn has_no_changes(&self) -> bool {
        self.changing.is_empty()
    }

    /// Whether any such change is under way.
    #[must_use]
    pub fn has_changes(&self, inode: InodeId) -> bool {
        self.changing.contains_key(&inode)
    }

    /// Whether any file's content is about to change.
    #[must_use]
    pub fn has_any_changes(&self) -> bool {
        !self.changing.is_empty()
    }

    /// Whether a session has any such change under way.
    #[must_use]
    pub fn is_changed_by(&self, session: SessionId) -> bool {
        self.changing.values().any(|by| by.contains(&session))
    }

    /// Whether a lease for `session` would be in the way of a change that has looked for those in its way.
    fn is_changing(&self, inode: InodeId, session: SessionId) -> bool {
        let others = |changes: &Vec<SessionId>| changes.iter().any(|of| *of != session);
        let changes = self.changing.get(&inode);
        changes.is_some_and(|changes| session.node() != self.me || others(changes))
    }

    /// Until when a session may keep what it is shown now, on the owner's clock. `until`: the end of its own lease.
    #[must_use]
    pub fn limit(&self, now: Tick, session: SessionId, until: Tick) -> Tick {
        if session.node() == self.me {
            now + TERM_AT_HOME
        } else {
            until.min(now + TERM)
        }
    }

    /// For how long a session may keep, from the moment when it asked, what it has a lease on until `limit`.
    #[must_use]
    pub fn told(&self, now: Tick, session: SessionId, limit: Tick) -> Span {
        let left = limit.since(now);
        if session.node() == self.me {
            return left;
        }
        Span(left.0 - left.0 / 100 * DRIFT_PERCENT)
    }

    /// Whether another session may keep what a change of `session` is about to touch: [`Self::recall`].
    #[must_use]
    pub fn is_kept(&self, now: Tick, session: SessionId, touched: &[Touched]) -> bool {
        let granted = |change| self.grants.get(&leased_by(change)).into_iter().flatten();
        let mut granted = touched.iter().flat_map(granted);
        granted.any(|grant| grant.is_in_the_way(now, session))
    }

    /// Whose leases must end before a change of `session` is ordered: each is to be told, and then [`Self::revoked`]. Whoever
    /// sees a change then can rely on it that nobody is shown what was before.
    ///
    /// Who may hold pages without a lease is not among them: see [`Self::in_the_way`].
    pub fn recall(&mut self, now: Tick, session: SessionId, touched: &[Touched]) -> Vec<Holder> {
        self.recall_leases(now, session, touched).into_holders()
    }

    fn recall_leases(&mut self, now: Tick, session: SessionId, touched: &[Touched]) -> Recalled {
        let mut all = Recalled::default();
        let inodes: BTreeSet<InodeId> = touched.iter().map(leased_by).collect();
        for inode in inodes {
            let grants = self.grants.get_mut(&inode).into_iter().flatten();
            for grant in grants.filter(|grant| grant.is_in_the_way(now, session)) {
                all.add(inode, grant);
            }
        }
        all
    }

    /// Whose leases must end before a change of `session` is acknowledged, and who may hold pages of what it changes: each
    /// is to be told, and then [`Self::revoked`]. What mounts of the owner's own host hold without a lease is not known here.
    pub fn in_the_way(
        &mut self,
        now: Tick,
        session: SessionId,
        touched: &[Touched],
    ) -> Vec<Holder> {
        let mut all = self.recall_leases(now, session, touched);
        for change in touched {
            if let Touched::Data(inode) = change {
                let readers = self.take_readers(*inode, session).into_iter();
                for reader in readers.filter(|reader| reader.node() != self.me) {
                    all.of(reader, now + READER_WAIT);
                    self.contended.insert(*inode, now + CONTENTION);
                }
            }
        }
        all.into_holders()
    }

    /// Lets `session` keep `inode` until `limit`, and says for how long; zero while the inode is
    /// contended, or a change of it waits for leases or is on its way.
    pub fn grant(&mut self, now: Tick, inode: InodeId, session: SessionId, limit: Tick) -> Span {
        if self.closed || self.is_changing(inode, session) {
            return Span::ZERO;
        }
        if self.contended.get(&inode).is_some_and(|until| *until > now) {
            return Span::ZERO;
        }
        let until = limit;
        if until <= now {
            return Span::ZERO;
        }
        self.given += 1;
        let grants = self.grants.entry(inode).or_default();
        let stands = |grant: &Grant| grant.until > now || grant.session == session;
        if grants
            .iter()
            .any(|grant| grant.recalls > 0 && stands(grant))
        {
            return Span::ZERO;
        }
        match grants.iter_mut().find(|grant| grant.session == session) {
            Some(grant) => grant.until = grant.until.max(until),
            None => grants.push(Grant {
                number: GrantNumber(self.given),
                session,
                until,
                recalls: 0,
                forgotten: false,
            }),
        }
        self.told(now, session, until)
    }

    /// Every session that may keep something of `inode`.
    pub fn holders(&self, now: Tick, inode: InodeId) -> impl Iterator<Item = SessionId> + '_ {
        let granted = self.grants.get(&inode).into_iter().flatten();
        let granted = granted.filter(move |grant| grant.until > now);
        let readers = self.readers.get(&inode).into_iter().flatten();
        granted.map(|grant| grant.session).chain(readers.copied())
    }

    /// `session` of another node is given content of `inode`.
    pub fn note_reader(&mut self, inode: InodeId, session: SessionId) {
        self.readers_of.insert(session.node());
        let readers = self.readers.entry(inode).or_default();
        if !readers.contains(&session) {
            readers.push(session);
        }
    }

    /// Hosts that are gone hold nothing: nobody reads there, or whoever does asks for attributes first.
    pub fn hosts_are_gone(&mut self, gone: impl Fn(NodeId) -> bool) {
        let known = self.readers_of.len();
        self.readers_of.retain(|node| !gone(*node));
        if self.readers_of.len() == known {
            return;
        }
        self.readers.retain(|_, readers| {
            readers.retain(|reader| !gone(reader.node()));
            !readers.is_empty()
        });
    }

    /// A mount is gone, and keeps nothing.
    pub fn session_is_gone(&mut self, session: SessionId) {
        self.grants.retain(|_, grants| {
            grants.retain(|grant| grant.session != session);
            !grants.is_empty()
        });
        self.readers.retain(|_, readers| {
            readers.retain(|reader| *reader != session);
            !readers.is_empty()
        });
    }

    /// `inode` is no more.
    pub fn removed(&mut self, inode: InodeId) {
        self.readers.remove(&inode);
    }

    /// Takes the other sessions that may hold pages of `inode`: each is to be told of a change,
    /// once, since it asks again before it has new ones.
    fn take_readers(&mut self, inode: InodeId, session: SessionId) -> Vec<SessionId> {
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

    /// A session has forgotten what it was to forget, or its leases have ended: the word about one recall.
    pub fn revoked(&mut self, now: Tick, holder: &Holder) {
        for (inode, number) in &holder.grants {
            if let Some(grants) = self.grants.get_mut(inode) {
                grants.retain_mut(|grant| {
                    let recalled = grant.number == *number && grant.recalls > 0;
                    grant.recalls -= u32::from(recalled);
                    grant.forgotten |= recalled;
                    !(recalled && grant.recalls == 0)
                });
                if grants.is_empty() {
                    self.grants.remove(inode);
                }
            }
            self.contended.insert(*inode, now + CONTENTION);
        }
    }

    /// Nobody waits for a session's word any more: what was to be changed is not, and it keeps its leases.
    pub fn withdraw(&mut self, holder: &Holder) {
        for (inode, number) in &holder.grants {
            let Some(grants) = self.grants.get_mut(inode) else {
                continue;
            };
            grants.retain_mut(|grant| {
                if grant.number == *number {
                    grant.recalls = grant.recalls.saturating_sub(1);
                }
                // Of one that is forgotten only the recalls were left.
                !(grant.forgotten && grant.recalls == 0)
            });
            if grants.is_empty() {
                self.grants.remove(inode);
            }
        }
    }

    /// The inodes that sessions of `node` may keep.
    pub fn held_by(&self, node: NodeId) -> Vec<InodeId> {
        let held = self
            .grants
            .iter()
            .filter(|(_, grants)| grants.iter().any(|grant| grant.session.node() == node));
        held.map(|(inode, _)| *inode).collect()
    }

    /// Whether sessions of other nodes may keep anything under a lease.
    #[must_use]
    pub fn are_kept_elsewhere(&self, now: Tick) -> bool {
        let elsewhere = |grant: &Grant| grant.session.node() != self.me && grant.until > now;
        self.grants.values().flatten().any(elsewhere)
    }

    /// Drops what has ended by itself.
    pub fn sweep(&mut self, now: Tick) {
        self.grants.retain(|_, grants| {
            grants.retain(|grant| grant.until > now);
            !grants.is_empty()
        });
        self.contended.retain(|_, until| *until > now);
    }

    /// The container has another owner now: leases are its to give.
    pub fn clear(&mut self) {
        self.grants.clear();
        self.readers.clear();
        self.readers_of.clear();
        self.contended.clear();
        self.closed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{ContainerId, InodeIndex, NodeId};

    fn inode() -> InodeId {
        InodeId::new(ContainerId(2), InodeIndex(9))
    }

    /// What a session has a lease on.
    fn of(leases: &Leases, inode: InodeId, node: u32) -> Holder {
        let grants = leases.grants.get(&inode).into_iter().flatten();
        let mine = grants.filter(|grant| grant.session == session(node));
        Holder {
            session: session(node),
            grants: mine.map(|grant| (inode, grant.number)).collect(),
            until: Tick(u64::MAX),
        }
    }

    /// A session has forgotten an inode, as all wait for that have asked of it.
    fn forgets(leases: &mut Leases, now: Tick, inode: InodeId, node: u32) {
        let holder = of(leases, inode, node);
        leases.revoked(now, &holder);
    }

    fn session(node: u32) -> SessionId {
        SessionId::new(NodeId(node), 1)
    }

    /// Sessions of the owner's own host are of node 1.
    fn leases() -> Leases {
        Leases::new(NodeId(1))
    }

    fn in_the_way(leases: &mut Leases, at: u64, by: SessionId) -> Vec<SessionId> {
        let touched = [Touched::Attr(inode()), Touched::Listing(inode())];
        let holders = leases.in_the_way(Tick(at), by, &touched).into_iter();
        holders.map(|holder| holder.session).collect()
    }

    #[test]
    fn who_is_about_to_be_replaced_gives_no_leases_and_takes_all_back() {
        let mut leases = leases();
        let other = InodeId::new(ContainerId(2), InodeIndex(10));
        let limit = Tick(TERM.0);
        leases.grant(Tick(0), inode(), session(2), limit);
        leases.grant(Tick(0), other, session(2), limit);
        leases.grant(Tick(0), other, session(1), Tick(100));
        leases.close();
        assert_eq!(leases.grant(Tick(0), other, session(3), limit), Span::ZERO);
        let kept = leases.recall_all(Tick(200));
        assert_eq!(kept.len(), 1, "the lease of 1 is over");
        assert_eq!((kept[0].session, kept[0].until), (session(2), limit));
        assert!(kept[0].inodes().eq([inode(), other]));
        forgets(&mut leases, Tick(200), inode(), 2);
        assert!(!leases.is_free(Tick(200)));
        forgets(&mut leases, Tick(200), other, 2);
        assert!(leases.is_free(Tick(200)));
        leases.changing(other, session(1));
        assert!(!leases.is_free(Tick(200)), "a write is under way");
        leases.changed(other, session(1));
        leases.open();
        let later = Tick(200) + CONTENTION;
        assert!(leases.grant(later, other, session(3), limit) > Span::ZERO);
    }

    #[test]
    fn a_mount_that_is_gone_keeps_nothing() {
        let mut leases = leases();
        leases.grant(Tick(0), inode(), session(2), Tick(TERM.0));
        leases.grant(Tick(0), inode(), session(3), Tick(TERM.0));
        leases.note_reader(inode(), session(2));
        leases.session_is_gone(session(2));
        assert!(leases.holders(Tick(1), inode()).eq([session(3)]));
        assert_eq!(in_the_way(&mut leases, 1, session(4)), [session(3)]);
    }

    #[test]
    fn a_lease_counts_until_its_last_microsecond() {
        let mut leases = leases();
        leases.grant(Tick(0), inode(), session(2), Tick(TERM.0));
        let own = in_the_way(&mut leases, 0, session(2));
        assert_eq!(own, [], "its own is no obstacle");
        let held = in_the_way(&mut leases, TERM.0 - 1, session(3));
        assert_eq!(held, [session(2)]);
        assert_eq!(in_the_way(&mut leases, TERM.0, session(3)), []);
    }

    #[test]
    fn mounts_of_the_owners_host_keep_for_long_and_are_told_as_others_are() {
        let mut leases = leases();
        let limit = leases.limit(Tick(0), session(1), Tick(5));
        assert_eq!(limit, Tick(TERM_AT_HOME.0));
        let told = leases.grant(Tick(0), inode(), session(1), limit);
        assert_eq!(told, TERM_AT_HOME);
        assert_eq!(in_the_way(&mut leases, 1, session(2)), [session(1)]);
        assert_eq!(in_the_way(&mut leases, 1, session(1)), []);
    }

    #[test]
    fn no_lease_outlives_the_owners_own() {
        let mut leases = leases();
        let limit = leases.limit(Tick(100), session(2), Tick(400));
        assert_eq!(limit, Tick(400));
        assert!(leases.grant(Tick(100), inode(), session(2), limit) <= Span(300));
        let told = leases.grant(Tick(400), inode(), session(2), limit);
        assert_eq!(told, Span::ZERO);
    }

    #[test]
    fn another_host_is_told_less_than_stands_in_the_way() {
        let drift = 5;
        let told = leases().grant(Tick(0), inode(), session(2), Tick(TERM.0));
        // The slowest clock there, the fastest one here.
        assert!(told.0 * (100 + drift) < TERM.0 * (100 - drift));
    }

    #[test]
    fn a_session_gets_no_lease_before_all_its_words_about_the_last_one_are_here() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        leases.grant(Tick(0), inode(), session(2), far);
        in_the_way(&mut leases, 1, session(3));
        in_the_way(&mut leases, 2, session(3));
        forgets(&mut leases, Tick(3), inode(), 2);
        let later = Tick(3) + CONTENTION;
        let told = leases.grant(later, inode(), session(2), far);
        assert_eq!(told, Span::ZERO);
        forgets(&mut leases, later, inode(), 2);
        let later = later + CONTENTION;
        assert_ne!(leases.grant(later, inode(), session(2), far), Span::ZERO);
        forgets(&mut leases, later, inode(), 2);
        let held = in_the_way(&mut leases, later.0, session(3));
        assert_eq!(held, [session(2)], "nobody waited for that word");
    }

    #[test]
    fn nobody_gets_a_lease_while_a_change_waits_for_one() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        leases.grant(Tick(0), inode(), session(2), far);
        let touched = [Touched::Listing(inode())];
        assert!(leases.is_kept(Tick(1), session(3), &touched));
        assert!(!leases.is_kept(Tick(1), session(2), &touched), "its own");
        assert_eq!(leases.recall(Tick(1), session(3), &touched).len(), 1);
        let told = leases.grant(Tick(2), inode(), session(4), far);
        assert_eq!(told, Span::ZERO);
        forgets(&mut leases, Tick(3), inode(), 2);
        assert!(!leases.is_kept(Tick(3), session(3), &touched));
    }

    #[test]
    fn a_change_does_not_wait_for_the_word_about_another() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        leases.grant(Tick(0), inode(), session(2), far);
        let touched = [Touched::Listing(inode())];
        leases.recall(Tick(1), session(3), &touched);
        leases.recall(Tick(1), session(4), &touched);
        forgets(&mut leases, Tick(2), inode(), 2);
        assert!(!leases.is_kept(Tick(2), session(3), &touched));
        assert!(!leases.is_kept(Tick(2), session(4), &touched));
        assert_eq!(leases.recall(Tick(2), session(5), &touched), []);
        let later = Tick(2) + CONTENTION;
        let told = leases.grant(later, inode(), session(2), far);
        assert_eq!(told, Span::ZERO, "one word is under way");
    }

    #[test]
    fn nobody_gets_a_lease_on_what_is_about_to_change() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        leases.changing(inode(), session(3));
        leases.changing(inode(), session(3));
        leases.changed(inode(), session(3));
        assert_eq!(leases.grant(Tick(0), inode(), session(2), far), Span::ZERO);
        let at_home = leases.grant(Tick(0), inode(), session(1), far);
        assert_eq!(at_home, Span::ZERO, "nor a mount of the owner's own host");
        leases.changed(inode(), session(3));
        assert_ne!(leases.grant(Tick(0), inode(), session(2), far), Span::ZERO);
    }

    #[test]
    fn a_program_of_the_owners_host_keeps_what_it_changes_itself() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        let other = SessionId::new(NodeId(1), 2);
        leases.changing(inode(), session(1));
        assert_eq!(leases.grant(Tick(0), inode(), other, far), Span::ZERO);
        assert_ne!(leases.grant(Tick(0), inode(), session(1), far), Span::ZERO);
    }

    #[test]
    fn nobody_waits_for_hosts_that_are_gone_or_about_what_is_removed() {
        let mut leases = leases();
        let other = InodeId::new(ContainerId(2), InodeIndex(10));
        leases.note_reader(inode(), session(2));
        leases.note_reader(inode(), session(3));
        leases.note_reader(other, session(3));
        leases.hosts_are_gone(|node| node == NodeId(2));
        leases.removed(other);
        let told = |leases: &mut Leases, inode| {
            let touched = [Touched::Data(inode)];
            let holders = leases.in_the_way(Tick(0), session(4), &touched).into_iter();
            holders.map(|holder| holder.session).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut leases, inode()), [session(3)]);
        assert_eq!(told(&mut leases, other), []);
    }

    #[test]
    fn the_word_about_one_inode_is_none_about_a_lease_on_another_that_came_meanwhile() {
        let mut leases = leases();
        let other = InodeId::new(ContainerId(2), InodeIndex(10));
        let far = Tick(u64::MAX);
        leases.grant(Tick(0), inode(), session(2), far);
        let both = [Touched::Attr(inode()), Touched::Listing(other)];
        let first = leases.recall(Tick(1), session(3), &both);
        assert!(first[0].inodes().eq([inode()]));
        // It has forgotten both, and looks into the other one again before its word is here.
        assert_ne!(leases.grant(Tick(2), other, session(2), far), Span::ZERO);
        let touched = [Touched::Listing(other)];
        let second = leases.recall(Tick(3), session(4), &touched);
        assert!(second[0].inodes().eq([other]));
        leases.revoked(Tick(4), &first[0]);
        assert!(!leases.is_kept(Tick(4), session(3), &both[..1]));
        assert!(
            leases.is_kept(Tick(4), session(3), &both),
            "it is not asked twice"
        );
    }

    #[test]
    fn the_word_about_a_lease_that_ended_is_none_about_the_next_one() {
        let mut leases = leases();
        let (soon, far) = (Tick(100), Tick(u64::MAX));
        leases.grant(Tick(0), inode(), session(2), soon);
        let touched = [Touched::Listing(inode())];
        let first = leases.recall(Tick(1), session(3), &touched);
        leases.sweep(soon);
        assert_ne!(leases.grant(soon, inode(), session(2), far), Span::ZERO);
        let later = soon + Span(1);
        assert_eq!(leases.recall(later, session(4), &touched).len(), 1);
        leases.revoked(later, &first[0]);
        assert!(leases.is_kept(later, session(4), &touched));
    }

    #[test]
    fn who_is_not_waited_for_any_more_keeps_its_lease_and_gets_others() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        leases.grant(Tick(0), inode(), session(2), far);
        leases.close();
        let all = leases.recall_all(Tick(1));
        leases.open();
        assert_eq!(leases.grant(Tick(2), inode(), session(3), far), Span::ZERO);
        leases.withdraw(&all[0]);
        assert_ne!(leases.grant(Tick(2), inode(), session(3), far), Span::ZERO);
        assert!(leases.is_kept(Tick(2), session(3), &[Touched::Listing(inode())]));
    }

    #[test]
    fn a_lease_that_was_forgotten_while_a_withdrawn_recall_waited_is_a_new_one_when_it_is_given_again()
     {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        let touched = [Touched::Listing(inode())];
        leases.grant(Tick(0), inode(), session(2), far);
        let change = leases.recall(Tick(1), session(3), &touched);
        let all = leases.recall_all(Tick(1));
        leases.revoked(Tick(2), &change[0]);
        leases.withdraw(&all[0]);
        let later = Tick(2) + CONTENTION;
        assert_ne!(leases.grant(later, inode(), session(2), far), Span::ZERO);
        assert!(leases.is_kept(later, session(3), &touched));
    }

    #[test]
    fn a_contended_inode_is_not_leased_for_a_while() {
        let mut leases = leases();
        let far = Tick(u64::MAX);
        leases.grant(Tick(0), inode(), session(2), far);
        in_the_way(&mut leases, 10, session(3));
        forgets(&mut leases, Tick(10), inode(), 2);
        assert_eq!(leases.grant(Tick(11), inode(), session(4), far), Span::ZERO);
        let later = Tick(10) + CONTENTION;
        assert_ne!(leases.grant(later, inode(), session(4), far), Span::ZERO);
    }
}
