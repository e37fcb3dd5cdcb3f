//! Owners that cede to another member, often, in the histories that are meant for it.

use super::Mark;
use super::host::Then;
use super::leases::{Debt, by_session};
use super::world::{Event, Names};
use crate::world::{SECOND, host_of, id_of};
use perigee_meta::tx::When;
use perigee_meta::{Plant, Touched};
use perigee_replica::{Input, Role};
use perigee_types::{ContainerId, Seq, Span, Tick, Version};

/// The shortest pause between two moves.
const PAUSE_US: u64 = 100_000;
/// How long changes wait for a move that comes to nothing.
const STOP: Span = Span(400_000);
/// How often an owner that has stopped looks whether it may cede.
const LOOK_US: u64 = 3_000;

/// Whether ownership moves in a seed's history.
pub(super) const fn moves(seed: u64) -> bool {
    seed % 8 == 5
}

/// To whom an owner cedes, and until when it tries to.
#[derive(Debug, Clone, Copy)]
pub struct Heir {
    pub(super) host: usize,
    until: Tick,
}

impl Names {
    /// Some container is to belong to another member.
    pub(super) fn move_some(&mut self) {
        if self.calm {
            return;
        }
        let next = PAUSE_US + self.rng.below(2 * SECOND);
        self.after(next, Event::Move);
        let containers = self.containers();
        let container = containers[self.rng.below(containers.len() as u64) as usize];
        let chain = self.stores[&container].view.chain.clone();
        let Some((owner, others)) = chain.split_first() else {
            return;
        };
        let host = host_of(*owner);
        if others.is_empty() || self.hosts[host].run.is_none() {
            return;
        }
        let heir = host_of(others[self.rng.below(others.len() as u64) as usize]);
        self.stop_for(host, container, heir);
    }

    /// The owner takes no changes, and takes back what sessions may keep.
    fn stop_for(&mut self, host: usize, container: ContainerId, heir: usize) {
        let now = self.local(host);
        if self.reign(host, container).is_none() || self.is_quiet(host, container) {
            return;
        }
        self.log(70, host, || {
            format!("{container} is to belong to {}", id_of(heir))
        });
        let careless = self.planted(Plant::CededUnderLeases);
        let member = self.member(host, container);
        let until = now + STOP;
        member.changes_from = until;
        member.leases.close();
        let kept = match careless {
            true => Vec::new(),
            false => member.leases.recall_all(now),
        };
        let heir = Heir { host: heir, until };
        let left = by_session(kept);
        let all = left.values().flat_map(|kept| kept.inodes());
        let name = |dir| Touched::Name {
            dir,
            name: Vec::new(),
        };
        let touched = all.map(name).collect();
        let debt = Debt {
            container,
            left,
            touched,
            when: When::Now,
            record: Version::default(),
            then: Then::Cede(heir),
        };
        let id = self.fresh_id();
        self.process(host).debts.insert(id, debt);
        self.collect(host, id);
    }

    /// Cedes, or tries again a little later, or goes on as the owner.
    pub(super) fn cede(&mut self, host: usize, container: ContainerId, heir: Heir) {
        let now = self.local(host);
        let owns = self.reign(host, container).is_some();
        let careless = self.planted(Plant::CededUnderLeases);
        let member = self.member(host, container);
        let free = member.leases.is_free(now) || careless;
        let idle = member.transactions.is_idle();
        if owns && now < heir.until {
            if free && idle {
                self.step(host, container, Input::Announce);
                let (to, data) = (id_of(heir.host), Seq::ZERO);
                self.step(host, container, Input::Cede { heir: to, data });
            }
            let role = self.member(host, container).chain.role();
            if !matches!(role, Role::Suspended { .. }) {
                let life = self.hosts[host].incarnation;
                let again = Event::Resume {
                    host,
                    life,
                    container,
                    then: Box::new(Then::Cede(heir)),
                };
                return self.after(LOOK_US, again);
            }
            self.note(Mark::Ceded);
        }
        let member = self.member(host, container);
        member.leases.open();
        if member.changes_from == heir.until {
            member.changes_from = now;
        }
    }
}
