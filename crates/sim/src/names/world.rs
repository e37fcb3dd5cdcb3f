//! Time, hosts, network, control store, and the loop that lets one thing happen after another.

use super::calls::{Asked, CallId, Origin};
use super::chaos::Chaos;
use super::history::History;
use super::host::{Disk, Host, Kept, Packet, Process, Rows, Then, apply};
use super::trash::Trash;
use super::{Mark, Marks};
use crate::clock::{Clock, Drift};
use crate::control::{Store, StoreReply, StoreRequest};
use crate::law::{self, Laws};
use crate::network::Network;
use crate::numbered::{Detail, Happening, LeftOut, Numbered};
use crate::oracle::Violation;
use crate::queue::Queue;
use crate::world::{SECOND, print_line};
use perigee_meta::{Plant, format_container};
use perigee_replica::{ChainView, FIRST_EPOCH, HardState, Input, Limits, Timing};
use perigee_types::{ContainerId, InodeId, NodeId, Rng, SessionId, WallTime};
use std::collections::{BTreeMap, BTreeSet};

/// How long after the chaos everything must be well.
const CALM_US: u64 = 20 * SECOND;
/// How long before the end sessions try whether they are served.
const PROBE_US: u64 = 5 * SECOND;

/// One of so many histories is looked at for an order of its answers, which takes as long as the rest of it.
const EXPLAINED_SHARE: u64 = 4;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// A deliberate fault.
    pub plant: Option<Plant>,
    /// How wrong the clocks are.
    pub drift: Drift,
    /// What does not take place.
    pub left_out: LeftOut,
    /// What is told of it.
    pub detail: Detail,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The first broken law.
    pub violation: Option<Violation>,
    /// Of every event: the same seed gives the same.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Operations that sessions were answered.
    pub answered: u64,
    /// What was met.
    pub marks: Marks,
    /// Strikes and operations that took place, if they were asked for.
    pub happened: Vec<Happening>,
}

/// Something that happens. Those with a life happen to one process alone.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "deliveries are most of all events"
)]
#[allow(missing_docs, reason = "fields are named as what they are")]
pub enum Event {
    Deliver {
        from: usize,
        to: usize,
        /// The process that it is for, when no other one may have it.
        life: Option<u32>,
        packet: Packet,
    },
    Disk {
        host: usize,
        life: u32,
    },
    Wake {
        host: usize,
        life: u32,
        container: ContainerId,
    },
    Flush {
        host: usize,
        life: u32,
        container: ContainerId,
    },
    Resume {
        host: usize,
        life: u32,
        container: ContainerId,
        then: Box<Then>,
    },
    Settle {
        host: usize,
        life: u32,
        container: ContainerId,
    },
    Serve {
        host: usize,
        life: u32,
        origin: Origin,
        container: ContainerId,
        asked: Box<Asked>,
    },
    Look {
        host: usize,
        life: u32,
        call: CallId,
    },
    Turn {
        host: usize,
        life: u32,
        attempt: u64,
    },
    Session {
        host: usize,
        life: u32,
        session: usize,
    },
    Collect {
        host: usize,
        life: u32,
        id: u64,
    },
    Duty {
        host: usize,
        life: u32,
    },
    StoreArrive {
        host: usize,
        life: u32,
        container: ContainerId,
        request: StoreRequest,
    },
    StoreAnswer {
        host: usize,
        life: u32,
        container: ContainerId,
        reply: StoreReply,
    },
    StoreTimeout {
        host: usize,
        life: u32,
        container: ContainerId,
        id: Option<u64>,
    },
    Start {
        host: usize,
        life: u32,
    },
    Kill {
        host: usize,
        life: u32,
    },
    Move,
    Keep,
    Leave {
        container: ContainerId,
    },
    Chaos,
    Calm,
    Probe,
    End,
}

/// The world.
pub struct Names {
    pub(crate) now: u64,
    pub(super) rng: Rng,
    pub(super) queue: Queue<Event>,
    pub(crate) hosts: Vec<Host>,
    pub(super) net: Network,
    pub(crate) stores: BTreeMap<ContainerId, Store>,
    pub(crate) history: History,
    pub(super) marks: Marks,
    pub(super) chaos: Chaos,
    pub(super) plant: Option<Plant>,
    pub(crate) drift: Drift,
    pub(super) timing: Timing,
    pub(super) limits: Limits,
    pub(super) calm: bool,
    pub(super) sessions: u32,
    /// Inodes that sessions were shown.
    pub(super) directories: Vec<InodeId>,
    pub(super) files: Vec<InodeId>,
    /// Names that sessions have made.
    pub(super) places: Vec<(InodeId, Vec<u8>)>,
    /// What sessions know to be kept.
    pub(super) trash: Trash,
    /// What each container held before its first record.
    pub(crate) first_rows: BTreeMap<ContainerId, Rows>,
    /// Sessions whose operation of the end has no answer.
    pub(crate) probed: BTreeSet<SessionId>,
    /// When the last operation that was sent arrives.
    last_operation: BTreeMap<(usize, usize), u64>,
    next_id: u64,
    pub(super) numbered: Numbered,
    /// Ownership moves.
    pub(super) moves: bool,
    /// There are checkpoints.
    pub(super) keeps: bool,
    hash: u64,
    events: u64,
}

/// Simulates one history.
#[must_use]
pub fn run(options: Options) -> Report {
    run_under(options, Laws::All)
}

/// The same under some of the laws.
#[must_use]
pub fn run_under(options: Options, laws: Laws) -> Report {
    let share = laws == Laws::OfAnswers || options.seed.is_multiple_of(EXPLAINED_SHARE);
    let mut world = Names::new(options);
    world.history.laws = laws;
    world.start();
    while world.history.violation.is_none() {
        let Some((at, event)) = world.queue.pop() else {
            break;
        };
        world.now = at;
        if matches!(event, Event::End) {
            law::check_names(&mut world);
            if share {
                law::explained_names::check(&mut world);
            }
            break;
        }
        world.handle(event);
    }
    Report {
        violation: world.history.violation.take(),
        hash: world.hash,
        events: world.events,
        answered: world.history.told.len() as u64,
        marks: world.marks,
        happened: world.numbered.into_happened(),
    }
}

impl Names {
    fn new(options: Options) -> Self {
        let mut rng = Rng::new(options.seed ^ 0x6e61_6d65_7370_6163);
        let count = [2, 3, 3, 3, 4][rng.below(5) as usize];
        let containers = [2, 2, 3][rng.below(3) as usize];
        let chaos = Chaos::new(&mut rng);
        let timing = Timing::default();
        let small = rng.chance(1, 2);
        let limits = Limits {
            retain_bytes: if small { 2_000 } else { 40_000 },
            retain_for_joiners_bytes: if small { 4_000 } else { 80_000 },
            append_bytes: if rng.chance(1, 2) { 1 } else { 4_000 },
            window_bytes: if rng.chance(1, 3) { 1_000 } else { 20_000 },
        };
        let (mut stores, mut first_rows) = (BTreeMap::new(), BTreeMap::new());
        for number in 1..=containers {
            let container = ContainerId(number);
            stores.insert(container, Self::store(&mut rng, count, number));
            let root = (container == ContainerId::ROOT).then_some((0, 0, 0o755));
            let mut rows = Rows::new();
            let first = WallTime { secs: 0, nanos: 0 };
            apply(&mut rows, &format_container(container, first, root));
            first_rows.insert(container, rows);
        }
        let hosts = (0..count).map(|_| {
            let clock = Clock::any(&mut rng, &timing, options.drift);
            Self::host(clock, &first_rows)
        });
        let hosts = hosts.collect();
        let mut net = Network::healthy(count);
        let mut numbered = Numbered::new(options.seed, options.left_out, options.detail);
        Chaos::spoil(&mut net, &mut rng, &mut numbered);
        Self {
            now: 0,
            queue: Queue::default(),
            hosts,
            net,
            stores,
            history: History {
                rows: first_rows.clone(),
                ..History::default()
            },
            marks: Marks::default(),
            chaos,
            plant: options.plant,
            drift: options.drift,
            timing,
            limits,
            calm: false,
            sessions: 0,
            directories: Vec::new(),
            files: Vec::new(),
            places: Vec::new(),
            trash: Trash::of(options.seed),
            first_rows,
            probed: BTreeSet::new(),
            last_operation: BTreeMap::new(),
            next_id: 0,
            rng: numbered.weather(rng),
            numbered,
            moves: super::moves::moves(options.seed),
            keeps: super::past::keeps(options.seed),
            hash: options.seed,
            events: 0,
        }
    }

    /// The first view of a container: its owner and some of the others.
    fn store(rng: &mut Rng, hosts: usize, number: u32) -> Store {
        let members = 1 + rng.below(hosts as u64) as usize;
        let first = number as usize - 1;
        let chain = (0..members).map(|place| NodeId(((first + place) % hosts) as u32 + 1));
        Store {
            view: ChainView {
                epoch: FIRST_EPOCH,
                chain: chain.collect(),
            },
            made: 0,
            away_until: 0,
        }
    }

    fn host(clock: Clock, first: &BTreeMap<ContainerId, Rows>) -> Host {
        let kept = first.iter().map(|(container, rows)| {
            let kept = Kept {
                hard: HardState::default(),
                rows: rows.clone(),
            };
            (*container, kept)
        });
        Host {
            clock,
            disk: Disk {
                kept: kept.collect(),
                ..Disk::default()
            },
            incarnation: 0,
            run: None,
            paused_until: 0,
            slow_disk_us: 0,
            fail_next_write: false,
            disk_free_at: 0,
            turns: 0,
        }
    }

    fn start(&mut self) {
        for host in 0..self.hosts.len() {
            let at = self.rng.below(100_000);
            self.at(at, Event::Start { host, life: 0 });
        }
        self.at(2 * SECOND, Event::Chaos);
        if self.moves {
            self.at(SECOND, Event::Move);
        }
        if self.keeps {
            self.at(SECOND, Event::Keep);
        }
        let end = self.numbered.chaos_length(self.chaos.length_us);
        self.at(end, Event::Calm);
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub(super) fn after(&mut self, span: u64, event: Event) {
        self.queue.push(self.now + span, event);
    }

    pub(super) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn planted(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    pub(crate) fn note(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    pub(super) fn containers(&self) -> Vec<ContainerId> {
        self.stores.keys().copied().collect()
    }

    pub(super) fn process(&mut self, host: usize) -> &mut Process {
        self.hosts[host]
            .run
            .as_mut()
            .expect("events of a process come while it runs")
    }

    /// Adds to the trace: its hash always, its text when asked for.
    pub(super) fn log(&mut self, what: u64, host: usize, text: impl FnOnce() -> String) {
        let mixed = (self.hash ^ what ^ ((host as u64) << 56) ^ self.now.rotate_left(20))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
        if self.numbered.is_traced() {
            let line = format!("{:>10.6} n{} {}", self.now as f64 / 1e6, host + 1, text());
            print_line(&line);
        }
    }

    /// Sends a packet through the network. Operations come in the order in which they were sent, once, and to the process
    /// that they were sent to or to none: so does one connection after the other carry them.
    pub(super) fn send(&mut self, from: usize, to: usize, packet: Packet) {
        let [first, second] = self.net.deliveries(from, to, &mut self.rng);
        let operation = matches!(packet, Packet::Ask(_, _, Asked::Execute(_)));
        let life = operation.then(|| self.hosts[to].incarnation);
        let deliver = |packet| Event::Deliver {
            from,
            to,
            life,
            packet,
        };
        if let Some(delay) = second.filter(|_| !operation) {
            self.after(delay, deliver(packet.clone()));
        }
        let Some(delay) = first else { return };
        let mut at = self.now + delay;
        if operation {
            let last = self.last_operation.entry((from, to)).or_default();
            at = at.max(*last + 1);
            *last = at;
        }
        self.at(at, deliver(packet));
    }

    fn handle(&mut self, event: Event) {
        self.events += 1;
        if let Some((host, life)) = event.process() {
            let machine = &self.hosts[host];
            if machine.incarnation != life || machine.run.is_none() {
                return;
            }
        }
        if let Some(host) = event.host()
            && self.hosts[host].paused_until > self.now
        {
            return self.at(self.hosts[host].paused_until, event);
        }
        match event {
            Event::Deliver {
                from,
                to,
                life,
                packet,
            } => {
                if life.is_none_or(|life| self.hosts[to].incarnation == life) {
                    self.deliver(from, to, packet);
                }
            }
            Event::Disk { host, .. } => self.disk_done(host),
            Event::Wake {
                host, container, ..
            } => self.wake(host, container),
            Event::Flush {
                host, container, ..
            } => self.step(host, container, Input::Flush),
            Event::Resume {
                host,
                container,
                then,
                ..
            } => self.resume(host, container, *then),
            Event::Settle {
                host, container, ..
            } => self.settle_transactions(host, container),
            Event::Serve {
                host,
                origin,
                container,
                asked,
                ..
            } => self.serve(host, origin, container, *asked),
            Event::Look { host, call, .. } => self.look(host, call),
            Event::Turn { host, attempt, .. } => self.turn(host, attempt),
            Event::Collect { host, id, .. } => self.collect(host, id),
            Event::Session { host, session, .. } => self.session_turn(host, session),
            Event::Duty { host, .. } => self.duty(host),
            Event::StoreArrive {
                host,
                life,
                container,
                request,
            } => self.store_arrive((host, life), container, request),
            Event::StoreAnswer {
                host,
                container,
                reply,
                ..
            } => self.store_answer(host, container, reply),
            Event::StoreTimeout {
                host,
                container,
                id,
                ..
            } => self.store_timeout(host, container, id),
            Event::Start { host, life } => {
                if self.hosts[host].incarnation == life && self.hosts[host].run.is_none() {
                    self.boot(host);
                }
            }
            Event::Kill { host, .. } => self.kill(host),
            Event::Chaos => self.wreak(),
            Event::Move => self.move_some(),
            Event::Keep => self.keep_some(),
            Event::Leave { container } => self.leave_some(container),
            Event::Calm => self.calm_down(),
            Event::Probe => self.probe(),
            Event::End => {}
        }
    }

    fn deliver(&mut self, from: usize, to: usize, packet: Packet) {
        if self.hosts[to].run.is_none() {
            return;
        }
        match packet {
            Packet::Chain(container, message) => {
                let from = crate::world::id_of(from);
                self.step(to, container, Input::Receive { from, message });
            }
            Packet::State(container) => {
                let member = self.member(to, container);
                if member.reigning {
                    let base = member.chain.committed_version();
                    let rows = member.rows.clone();
                    self.send(to, from, Packet::StateIs(container, base, rows));
                }
            }
            Packet::StateIs(container, base, rows) => self.install(to, container, base, rows),
            Packet::Ask(origin, container, asked) => self.serve(to, origin, container, asked),
            Packet::Forget(id, session, touched) => {
                self.forget(to, from, (id, session), &touched);
            }
            Packet::Forgotten(id, session) => self.has_forgotten(to, id, session),
            Packet::Answer(origin, answer) => self.answered(to, origin, answer),
        }
    }

    fn resume(&mut self, host: usize, container: ContainerId, then: Then) {
        match then {
            Then::Answer(origin, answer) => self.reply(host, origin, answer),
            Then::Tell(tell, attempt) => self.tell(host, container, tell, attempt),
            Then::Lost(attempt) => self.lost(host, attempt),
            Then::Turn(attempt) => self.turn(host, attempt),
            Then::Serve(origin, asked) => self.serve(host, origin, container, *asked),
            Then::Cede(heir) => self.cede(host, container, heir),
        }
    }

    fn calm_down(&mut self) {
        self.log(1, 0, || "-- calm --".into());
        self.calm = true;
        self.net = Network::healthy(self.hosts.len());
        for store in self.stores.values_mut() {
            store.away_until = 0;
        }
        for host in 0..self.hosts.len() {
            let machine = &mut self.hosts[host];
            machine.slow_disk_us = 0;
            machine.fail_next_write = false;
            if self.drift == Drift::Beyond {
                machine.clock.correct(self.now);
            }
            if machine.run.is_none() {
                let life = machine.incarnation;
                self.after(1, Event::Start { host, life });
            }
        }
        self.after(CALM_US - PROBE_US, Event::Probe);
        self.after(CALM_US, Event::End);
    }

    /// Every session is served again.
    fn probe(&mut self) {
        for host in 0..self.hosts.len() {
            let sessions = self.hosts[host].run.as_ref();
            let sessions = sessions.map_or(0, |process| process.sessions.len());
            for session in 0..sessions {
                let id = self.process(host).sessions[session].id();
                self.probed.insert(id);
                let mut rng = self.rng.fork();
                let next = self.any_operation(&mut rng);
                self.begin(host, session, next);
            }
        }
    }
}

impl Event {
    /// The process that it happens to.
    fn process(&self) -> Option<(usize, u32)> {
        match self {
            Self::Disk { host, life }
            | Self::Wake { host, life, .. }
            | Self::Flush { host, life, .. }
            | Self::Resume { host, life, .. }
            | Self::Settle { host, life, .. }
            | Self::Serve { host, life, .. }
            | Self::Look { host, life, .. }
            | Self::Turn { host, life, .. }
            | Self::Session { host, life, .. }
            | Self::Collect { host, life, .. }
            | Self::Duty { host, life }
            | Self::StoreAnswer { host, life, .. }
            | Self::StoreTimeout { host, life, .. }
            | Self::Kill { host, life } => Some((*host, *life)),
            Self::Deliver { .. }
            | Self::StoreArrive { .. }
            | Self::Start { .. }
            | Self::Chaos
            | Self::Move
            | Self::Keep
            | Self::Leave { .. }
            | Self::Calm
            | Self::Probe
            | Self::End => None,
        }
    }

    /// The host whose processor it needs.
    fn host(&self) -> Option<usize> {
        match self {
            Self::Deliver { to, .. } => Some(*to),
            Self::Kill { .. } => None,
            other => other.process().map(|(host, _)| host),
        }
    }
}
