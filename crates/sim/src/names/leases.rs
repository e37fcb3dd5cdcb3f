//! Leases on names: given with the answer to a lookup, called back before a change is ordered, or waited for.

use super::calls::{Origin, Request};
use super::host::{Packet, Then};
use super::session::{names_of, session_host};
use super::world::{Event, Names};
use crate::law;
use perigee_meta::lease::{Holder, TERM_AT_HOME};
use perigee_meta::tx::When;
use perigee_meta::{Op, Plant, RenameMode, Reply, Touched};
use perigee_types::{ContainerId, Errno, InodeId, Seq, SessionId, Span, Tick, Version};
use std::collections::BTreeMap;

/// How often a session is told again to forget.
const AGAIN_US: u64 = 300_000;

/// A name in a directory.
pub type Name = (InodeId, Vec<u8>);

/// A name that a session keeps.
#[derive(Debug, Clone)]
pub struct Kept {
    /// On the clock of the session's host.
    pub(crate) until: Tick,
    /// When it was looked up, among all operations.
    pub(crate) place: usize,
    /// What it was shown, and whether by its own host.
    shown: (Result<Reply, Errno>, bool),
}

/// What a session keeps.
#[derive(Debug, Default)]
pub struct Cache {
    pub(crate) names: BTreeMap<Name, Kept>,
    /// How often the session was told to forget: an answer that was asked for earlier may be older than that.
    pub(crate) revision: u64,
}

impl Kept {
    fn leads_somewhere(&self) -> bool {
        matches!(self.shown.0, Ok(Reply::Entry(_) | Reply::Leads(_)))
    }
}

impl Cache {
    pub(crate) fn forget_all(&mut self) {
        self.revision += 1;
        self.names.clear();
    }

    fn forget(&mut self, touched: &[Touched]) {
        self.revision += 1;
        // One lease covers all names of a directory; a mount that keeps one there forgets every name that it keeps.
        if touched.iter().any(|change| self.keeps(change)) {
            self.names.clear();
        }
    }

    fn keeps(&self, change: &Touched) -> bool {
        let Touched::Name { dir, name } = change else {
            return false;
        };
        let first = (*dir, Vec::new());
        let mut from = self.names.range(first..).map(|((of, _), _)| of);
        name.is_empty() || from.next() == Some(dir)
    }
}

/// What stands between a change that was ordered and what follows it.
#[derive(Debug)]
pub struct Debt {
    pub(super) container: ContainerId,
    pub(super) left: BTreeMap<SessionId, Holder>,
    pub(super) touched: Vec<Touched>,
    pub(super) when: When,
    pub(super) record: Version,
    pub(super) then: Then,
}

/// Holders by their sessions.
pub(super) fn by_session(holders: Vec<Holder>) -> BTreeMap<SessionId, Holder> {
    let keyed = holders.into_iter().map(|holder| (holder.session, holder));
    keyed.collect()
}

impl Debt {
    /// Whether it is of the same call.
    pub(super) fn is_of(&self, origin: Origin) -> bool {
        let same = |other: &Origin| (other.host, other.call) == (origin.host, origin.call);
        matches!(&self.then, Then::Answer(other, _) if same(other))
    }
}

impl Names {
    /// Gives a session a lease on the names of a directory that it has looked into, or moved a name to at home; says for
    /// how long.
    pub(super) fn grant(&mut self, host: usize, container: ContainerId, request: &Request) -> Span {
        let home = session_host(request.session) == host;
        let parent = match &request.operation {
            Op::Lookup { parent, .. } => parent,
            Op::Rename {
                parent, new_parent, ..
            } if home && parent != new_parent && new_parent.container() == container => new_parent,
            _ => return Span::ZERO,
        };
        let now = self.local(host);
        let member = self.member(host, container);
        let Some(until) = member.chain.lease_until(now) else {
            return Span::ZERO;
        };
        let limit = member.leases.limit(now, request.session, until);
        member.leases.grant(now, *parent, request.session, limit)
    }

    /// A lookup is answered: the session keeps what it was shown.
    pub(super) fn keep_name(
        &mut self,
        host: usize,
        session: usize,
        request: &Request,
        asked: Asking,
        (ttl, result): (Span, &Result<Reply, Errno>),
    ) {
        let Op::Lookup { parent, name } = &request.operation else {
            return;
        };
        let now = self.local(host);
        let since = if self.planted(Plant::LeaseFromAnswer) {
            now
        } else {
            asked.at
        };
        let until = since + ttl;
        let place = self.history.place_of(request.session, request.op);
        let careless = self.planted(Plant::RevocationOvertaken);
        let cache = &mut self.process(host).sessions[session].cache;
        if until <= now || (cache.revision != asked.revision && !careless) {
            return;
        }
        let Some(place) = place else { return };
        let kept = Kept {
            until,
            place,
            shown: (result.clone(), asked.owner == Some(host)),
        };
        cache.names.insert((*parent, name.clone()), kept);
        law::cached::on_kept(self, request.session, (*parent, name.clone()), place);
    }

    /// A session is told how its own change went: its kernel has that in place of what it kept of the names, or looks them
    /// up again. What it keeps of a name that was moved it keeps as long as before.
    pub(super) fn own_change(
        &mut self,
        host: usize,
        session: usize,
        request: &Request,
        asked: Asking,
        (ttl, result): (Span, &Result<Reply, Errno>),
    ) {
        let place = self.history.place_of(request.session, request.op);
        let careless = self.planted(Plant::MovedNameKept);
        let cache = &mut self.process(host).sessions[session].cache;
        let names = names_of(&request.operation);
        let mut kept = names.iter().map(|name| cache.names.remove(name));
        let (left, replaced) = (kept.next().flatten(), kept.next().flatten());
        let (Op::Rename { mode, .. }, [from, to], Some(place), Ok(_)) =
            (&request.operation, &names[..], place, result)
        else {
            return;
        };
        let back = replaced.filter(|_| matches!(mode, RenameMode::Exchange));
        for (name, kept) in [(to, left), (from, back)] {
            let Some(mut kept) = kept.filter(Kept::leads_somewhere) else {
                continue;
            };
            kept.place = place;
            kept.shown.1 |= asked.owner == Some(host);
            cache.names.insert(name.clone(), kept);
        }
        // The lease is on the directory that it was looked up in, unless it got one that covers it.
        if from.0 != to.0 && ttl < TERM_AT_HOME && !careless {
            cache.forget_all();
        }
    }

    /// Whether other sessions keep what a change is about to touch.
    pub(super) fn is_kept(
        &mut self,
        host: usize,
        container: ContainerId,
        session: SessionId,
        touched: &[Touched],
    ) -> bool {
        let careless =
            self.planted(Plant::SeenBeforeRevoked) || self.planted(Plant::AnswerBeforeRevoked);
        let now = self.local(host);
        let leases = &self.member(host, container).leases;
        !careless && leases.is_kept(now, session, touched)
    }

    /// Goes on when no other host keeps what a change is about to touch.
    pub(super) fn recall(
        &mut self,
        host: usize,
        container: ContainerId,
        session: SessionId,
        touched: Vec<Touched>,
        then: Then,
    ) {
        let now = self.local(host);
        let leases = &mut self.member(host, container).leases;
        let holders = leases.recall(now, session, &touched);
        let left = by_session(holders);
        let id = self.fresh_id();
        let debt = Debt {
            container,
            left,
            touched,
            when: When::Now,
            record: Version::default(),
            then,
        };
        self.note(super::Mark::Revoked);
        self.process(host).debts.insert(id, debt);
        self.collect(host, id);
    }

    /// What a session finds without asking, and whether its own host has shown it.
    pub(super) fn kept_name(
        &mut self,
        host: usize,
        session: usize,
        operation: &Op,
    ) -> Option<(Result<Reply, Errno>, bool)> {
        let Op::Lookup { parent, name } = operation else {
            return None;
        };
        let now = self.local(host);
        let names = &self.process(host).sessions[session].cache.names;
        let kept = names.get(&(*parent, name.clone()))?;
        (kept.until > now).then(|| kept.shown.clone())
    }

    /// A change was ordered: goes on when no other session keeps what it touched, and the record is where it must be.
    pub(super) fn pay(
        &mut self,
        host: usize,
        container: ContainerId,
        session: SessionId,
        touched: Vec<Touched>,
        (when, seq): (When, Seq),
        then: Then,
    ) {
        let record = self.member(host, container).chain.version_at(seq);
        let now = self.local(host);
        self.log(61, host, || format!("{session} changes {touched:?}"));
        let leases = &mut self.member(host, container).leases;
        let holders: Vec<Holder> = leases.in_the_way(now, session, &touched);
        let left = by_session(holders);
        if left.is_empty() || self.planted(Plant::AnswerBeforeRevoked) {
            for holder in left.values() {
                let forget = Packet::Forget(0, holder.session, touched.clone());
                self.send(host, session_host(holder.session), forget);
            }
            return self.paid(host, container, (when, record), then);
        }
        let id = self.fresh_id();
        let debt = Debt {
            container,
            left,
            touched,
            when,
            record,
            then,
        };
        self.note(super::Mark::Revoked);
        self.process(host).debts.insert(id, debt);
        self.collect(host, id);
    }

    /// Asks those who have not forgotten; a lease that has ended by itself is none.
    pub(super) fn collect(&mut self, host: usize, id: u64) {
        let now = self.local(host);
        let Some(debt) = self.process(host).debts.get_mut(&id) else {
            return;
        };
        let all = std::mem::take(&mut debt.left).into_values();
        let (ended, left): (Vec<Holder>, Vec<Holder>) = all.partition(|holder| holder.until < now);
        debt.left = by_session(left);
        let container = debt.container;
        let (touched, left) = (debt.touched.clone(), debt.left.clone());
        for holder in ended {
            self.note(super::Mark::LeaseEnded);
            self.forgotten(host, container, &holder);
        }
        let Some(first) = left.values().map(|holder| holder.until).min() else {
            return self.settle_debt(host, id);
        };
        for session in left.keys() {
            let forget = Packet::Forget(id, *session, touched.clone());
            self.send(host, session_host(*session), forget);
        }
        let life = self.hosts[host].incarnation;
        let end = self.hosts[host].clock.when(first + Span(1_000));
        let at = end.min(self.now + AGAIN_US).max(self.now + 1);
        self.at(at, Event::Collect { host, life, id });
    }

    /// A session of this host is to forget.
    pub(super) fn forget(
        &mut self,
        host: usize,
        owner: usize,
        (id, session): (u64, SessionId),
        touched: &[Touched],
    ) {
        self.log(60, host, || format!("{session} forgets {touched:?}"));
        for here in &mut self.process(host).sessions {
            if here.id() == session {
                here.cache.forget(touched);
            }
        }
        self.send(host, owner, Packet::Forgotten(id, session));
    }

    /// A session has forgotten.
    pub(super) fn has_forgotten(&mut self, host: usize, id: u64, session: SessionId) {
        let Some(debt) = self.process(host).debts.get_mut(&id) else {
            return;
        };
        let (container, holder) = (debt.container, debt.left.remove(&session));
        let settled = debt.left.is_empty();
        if let Some(holder) = holder {
            self.forgotten(host, container, &holder);
        }
        if settled {
            self.settle_debt(host, id);
        }
    }

    fn forgotten(&mut self, host: usize, container: ContainerId, holder: &Holder) {
        let now = self.local(host);
        self.member(host, container).leases.revoked(now, holder);
    }

    fn settle_debt(&mut self, host: usize, id: u64) {
        if let Some(debt) = self.process(host).debts.remove(&id) {
            self.paid(host, debt.container, (debt.when, debt.record), debt.then);
        }
    }

    fn paid(
        &mut self,
        host: usize,
        container: ContainerId,
        (when, record): (When, Version),
        then: Then,
    ) {
        match when {
            When::Now => self.resume_soon(host, container, then),
            When::Replicated => self.when_there(host, container, record, then),
        }
    }
}

/// When a session has asked, and what it had been told by then.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    pub(crate) at: Tick,
    /// Whom it was sent to.
    pub(crate) owner: Option<usize>,
    pub(crate) revision: u64,
}
