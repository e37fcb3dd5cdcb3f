//! Starts and ends of a process, and of an owner's reign.

use super::Mark;
use super::calls::Answer;
use super::host::{Committed, Kept, Member, Process, Then, apply, decode};
use super::past::Leaving;
use super::session::Session;
use super::world::{Event, Names};
use crate::world::id_of;
use perigee_meta::lease::TERM;
use perigee_meta::owner_view::Foreign;
use perigee_meta::past::Checkpoints;
use perigee_meta::tx::{Transactions, decisions, intents};
use perigee_meta::{Answers, Leases, Overlay, OwnerView, Plant};
use perigee_replica::{Chain, Config, Input, Role};
use perigee_types::{ContainerId, Epoch, Seq, Tick};
use std::collections::BTreeMap;

/// How long after a start the driver first looks after its duties.
const FIRST_DUTY_US: u64 = 100_000;
/// Sessions of a host.
const SESSIONS: usize = 2;

impl Names {
    /// A process starts.
    pub(super) fn boot(&mut self, host: usize) {
        self.log(10, host, || "start".into());
        let mut process = Process::default();
        for container in self.containers() {
            let kept = self.hosts[host].disk.kept.get(&container);
            let kept = kept.cloned().unwrap_or_default();
            process
                .members
                .insert(container, self.open(host, container, kept));
        }
        for place in 0..SESSIONS {
            self.sessions += 1;
            let lives = u64::from(self.hosts[host].incarnation) << 32;
            let own = self
                .numbered
                .session(lives + (host * SESSIONS + place) as u64);
            let session = Session::new(id_of(host), self.sessions, own);
            process.sessions.push(session);
        }
        self.hosts[host].run = Some(process);
        let life = self.hosts[host].incarnation;
        self.after(FIRST_DUTY_US, Event::Duty { host, life });
        for session in 0..SESSIONS {
            let think = 100_000 + self.rng.below(500_000);
            let turn = Event::Session {
                host,
                life,
                session,
            };
            self.after(think, turn);
        }
        for container in self.containers() {
            self.read_view(host, container);
            self.step(host, container, Input::Tick);
        }
    }

    fn open(&mut self, host: usize, container: ContainerId, kept: Kept) -> Member {
        let config = Config {
            me: id_of(host),
            timing: self.timing,
            limits: self.limits,
        };
        let local = self.local(host);
        let fresh = kept.hard.promised == Epoch(0);
        let changes_from = if fresh { Tick(0) } else { local + TERM };
        let chain = Chain::new(config, kept.hard, true, local);
        let mut rows = kept.rows;
        let applied = chain.committed();
        for entry in chain.entries(Seq(1), applied) {
            apply(&mut rows, &decode(&entry.payload));
        }
        Member {
            chain,
            rows,
            applied,
            overlay: Overlay::default().with_plant(self.plant),
            transactions: Transactions::new(container),
            answers: Answers::default(),
            leases: Leases::new(id_of(host)),
            changes_from,
            reigning: false,
            waiters: BTreeMap::new(),
            cas: None,
            reading: false,
            installing: false,
            said_through: Seq::ZERO,
            armed: u64::MAX,
            checkpoints: Checkpoints::default(),
            leaving: Leaving::default(),
        }
    }

    /// A process ends at once, and starts again later.
    pub(super) fn kill(&mut self, host: usize) {
        if self.hosts[host].run.is_none() {
            return;
        }
        self.log(11, host, || "crash".into());
        self.note(Mark::Crash);
        let machine = &mut self.hosts[host];
        machine.incarnation += 1;
        machine.run = None;
        machine.paused_until = 0;
        machine.disk_free_at = 0;
        machine.disk.crash(&mut self.rng);
        let most = [50_000, 6_000_000][self.rng.below(2) as usize];
        let delay = 1_000 + self.rng.below(most);
        let life = self.hosts[host].incarnation;
        self.after(delay, Event::Start { host, life });
    }

    /// A host has another part in a chain from here on.
    pub(super) fn enter(&mut self, host: usize, container: ContainerId, role: Role) {
        self.log(17, host, || format!("{container} {role:?}"));
        let begins = matches!(role, Role::Reconciling { .. });
        if begins && self.keeps_names(host, container) {
            self.aim_at_kept(host);
        }
        let kept = begins && self.planted(Plant::KeptOverEpoch);
        // Where ownership moves, what other hosts let sessions keep is theirs to take back.
        let me = id_of(host);
        let at_home = !self.moves || !self.member(host, container).leases.held_by(me).is_empty();
        if !role.serves() && !kept && at_home {
            // This host does not speak for the container now: its own sessions keep nothing unasked.
            for session in &mut self.process(host).sessions {
                session.cache.forget_all();
            }
        }
        match role {
            Role::Owner { .. } if !self.member(host, container).reigning => {
                self.begin_reign(host, container);
            }
            Role::Owner { .. } | Role::Reconciling { .. } | Role::Suspended { .. } => {}
            Role::Replica { .. } | Role::Joining { .. } | Role::Outside | Role::Returning => {
                self.end_reign(host, container);
            }
        }
    }

    /// Whether a session of a host keeps a name of a container.
    fn keeps_names(&mut self, host: usize, container: ContainerId) -> bool {
        let sessions = self.process(host).sessions.iter();
        let mut names = sessions.flat_map(|session| session.cache.names.keys());
        names.any(|(parent, _)| parent.container() == container)
    }

    /// Takes over what the log holds as the state that operations see, and what earlier owners have left.
    fn begin_reign(&mut self, host: usize, container: ContainerId) {
        let plant = self.plant;
        let member = self.member(host, container);
        member.reigning = true;
        member.leases.clear();
        member.overlay.clear(member.applied);
        let (from, to) = (member.applied.next(), member.chain.last().seq);
        for entry in member.chain.entries(from, to) {
            let batch = decode(&entry.payload);
            member.overlay.apply(entry.version.seq, &batch);
        }
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let prepared = intents(&mut view, container).is_ok_and(|found| !found.is_empty());
        let decided = decisions(&mut view, container).is_ok_and(|found| !found.is_empty());
        let transactions = Transactions::new(container)
            .with_plant(plant)
            .restore(&mut view);
        let answers = std::mem::take(&mut member.answers)
            .with_plant(plant)
            .restore(&mut view, container);
        match (transactions, answers) {
            (Ok(transactions), Ok(answers)) => {
                member.transactions = transactions;
                member.answers = answers;
            }
            (Err(refusal), _) | (_, Err(refusal)) => {
                return self.accuse("replicated", refusal.to_string());
            }
        }
        self.load_checkpoints(host, container);
        if prepared {
            self.note(Mark::IntentRestored);
        }
        if decided {
            self.note(Mark::DecisionRestored);
        }
        let life = self.hosts[host].incarnation;
        let settle = Event::Settle {
            host,
            life,
            container,
        };
        self.after(0, settle);
    }

    /// Another host orders now: what only this one knew counts no more.
    fn end_reign(&mut self, host: usize, container: ContainerId) {
        let member = self.member(host, container);
        member.reigning = false;
        let applied = member.applied;
        member.overlay.clear(applied);
        member.checkpoints = Checkpoints::default();
        let waiters = std::mem::take(&mut member.waiters);
        for then in waiters.into_values().flatten() {
            self.disappoint(host, container, then);
        }
    }

    /// What waits for a record here will not see it.
    pub(super) fn disappoint(&mut self, host: usize, container: ContainerId, then: Then) {
        let then = match then {
            Then::Answer(origin, _) => Then::Answer(origin, Answer::Elsewhere),
            Then::Tell(_, Some(attempt)) | Then::Lost(attempt) => Then::Lost(attempt),
            Then::Tell(_, None) => return,
            // They look at the reign by themselves.
            then @ (Then::Turn(_) | Then::Serve(..) | Then::Cede(_)) => then,
        };
        self.resume_soon(host, container, then);
    }
}
