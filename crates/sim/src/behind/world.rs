//! Time, the network, what goes wrong, and the loop that lets one thing happen after another.

use super::host::Host;
use super::laws::Past;
use super::owner::{Reign, Sender, State, ToHost, ToOwner};
use super::{Mark, Marks};
use crate::clock::{Clock, Drift};
use crate::network::Network;
use crate::numbered::Detail;
use crate::oracle::Violation;
use crate::queue::Queue;
use crate::strike::Way;
use crate::world::{SECOND, print_line};
use perigee_replica::Timing;
use perigee_replica::chunk::behind_plant::Plant;
use perigee_replica::chunk::{Call, Terms};
use perigee_types::{Rng, SessionId};

/// Hosts with programs. The owner is elsewhere: the network's node of this number.
const HOSTS: usize = 3;
/// How long programs go on when nothing goes wrong any more.
const CALM_US: u64 = 2 * SECOND;
/// Within so long after that all that they have begun has ended.
const REST_US: u64 = 10 * SECOND;

/// Where a session's programs run.
pub(super) const fn host_of(session: SessionId) -> usize {
    session.node().0 as usize - 1
}

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// A deliberate fault.
    pub plant: Option<Plant>,
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
    /// What was met.
    pub marks: Marks,
}

/// Something that happens. Those with a life happen to one process alone.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields are named as what they are")]
pub enum Event {
    Program {
        host: usize,
        life: u32,
        program: usize,
    },
    ToOwner(Sender, ToOwner),
    /// Without a life it is for whatever process the host has.
    ToHost(usize, Option<u32>, ToHost),
    /// A request may have got lost.
    Again {
        host: usize,
        life: u32,
        id: u64,
        next: u64,
    },
    /// A question for a right is answered too late.
    Unanswered {
        host: usize,
        life: u32,
        id: u64,
    },
    /// A call may have got lost.
    Called {
        id: u64,
        call: u64,
        what: Call,
    },
    Commit(u64, u64),
    /// The next owner, and how many records of the last one it has.
    Reign(Clock, u64),
    Strike,
    StrikeOwner {
        dies: bool,
    },
    Heal(usize),
    Start(usize),
    Calm,
    Rest,
    Look,
    End,
}

/// The world.
pub struct World {
    pub(super) now: u64,
    /// Events so far.
    pub(super) step: u64,
    pub(super) rng: Rng,
    queue: Queue<Event>,
    net: Network,
    pub(super) timing: Timing,
    pub(super) hosts: Vec<Host>,
    pub(super) reign: Reign,
    /// What every member has.
    pub(super) committed: State,
    pub(super) past: Past,
    /// The last thing that was given a name.
    pub(super) names: u64,
    pub(super) plant: Option<Plant>,
    /// After so many writes of one session in a row it is given the chunk.
    pub(super) given_after: u64,
    /// In so many of ten reads whoever holds the chunk may keep it.
    pub(super) reads_along: u64,
    /// How much longer programs rest that do not write one block after another.
    pub(super) idleness: u64,
    /// So many hosts have programs that do.
    pub(super) writers: usize,
    /// How many blocks they write so, at most.
    pub(super) stretch: u64,
    /// Programs begin nothing any more.
    pub(super) resting: bool,
    calm: bool,
    marks: Marks,
    hash: u64,
    traced: bool,
    violation: Option<Violation>,
}

/// Simulates one history.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut world = World::new(options);
    world.begin_all();
    while world.violation.is_none()
        && let Some((at, event)) = world.queue.pop()
        && !matches!(event, Event::End)
    {
        world.now = at;
        world.step += 1;
        world.handle(event);
    }
    if world.violation.is_none() {
        world.same_everywhere();
        world.look_back();
    }
    Report {
        violation: world.violation,
        hash: world.hash,
        events: world.step,
        marks: world.marks,
    }
}

impl World {
    fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed ^ 0x6265_6869_6e64);
        let timing = Timing::default();
        let mut net = Network::healthy(HOSTS + 1);
        net.loss = [0, 10, 50][rng.below(3) as usize];
        net.repeat = [0, 20, 100][rng.below(3) as usize];
        net.tail = [0, 20, 80][rng.below(3) as usize];
        net.tail_us = [200_000, 3 * SECOND][rng.below(2) as usize];
        net.base_us = [400, 3_000, 10_000][rng.below(3) as usize];
        let mut clock = || Clock::new(&mut rng, &timing, Drift::Within);
        let hosts = (0..HOSTS).map(|_| Host::new(clock())).collect();
        let (clock, committed) = (clock(), State::default());
        let reign = Reign::new(1, clock, clock.at(0), &committed, Terms::from(&timing));
        Self {
            now: 0,
            step: 0,
            queue: Queue::default(),
            net,
            timing,
            hosts,
            reign,
            committed,
            past: Past::default(),
            names: 0,
            plant: options.plant,
            given_after: 2 + rng.below(3),
            reads_along: [0, 3, 8][rng.below(3) as usize],
            idleness: [1, 10, 200][rng.below(3) as usize],
            writers: 1 + rng.below(HOSTS as u64) as usize,
            stretch: [20, 200][rng.below(2) as usize],
            resting: false,
            calm: false,
            marks: Marks::default(),
            hash: options.seed,
            traced: options.detail == Detail::Traced,
            violation: None,
            rng,
        }
    }

    fn begin_all(&mut self) {
        for host in 0..HOSTS {
            self.at(1 + host as u64, Event::Start(host));
        }
        self.at(SECOND / 2, Event::Strike);
        let calm = (3 + self.rng.below(8)) * SECOND;
        self.at(calm, Event::Calm);
        self.at(calm + CALM_US, Event::Rest);
        self.at(calm + CALM_US + REST_US, Event::Look);
        self.at(calm + CALM_US + 2 * REST_US, Event::End);
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub(super) fn after(&mut self, span: u64, event: Event) {
        self.queue.push(self.now + span, event);
    }

    pub(super) fn delay(&mut self) -> u64 {
        self.net.delay(&mut self.rng)
    }

    pub(super) fn is(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    pub(super) fn accuse(&mut self, law: &'static str, what: String) {
        let at = self.now;
        self.violation.get_or_insert(Violation { law, what, at });
    }

    pub(super) fn note(&mut self, what: &dyn std::fmt::Debug) {
        let line = format!("{:>10.6} {what:?}", self.now as f64 / 1e6);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.traced {
            print_line(&line);
        }
    }

    pub(super) fn send_owner(&mut self, from: Sender, what: ToOwner) {
        let delays = self.net.deliveries(from.host, HOSTS, &mut self.rng);
        for delay in delays.into_iter().flatten() {
            self.after(delay, Event::ToOwner(from, what));
        }
    }

    pub(super) fn send_host(&mut self, host: usize, life: Option<u32>, what: ToHost) {
        let delays = self.net.deliveries(HOSTS, host, &mut self.rng);
        for delay in delays.into_iter().flatten() {
            self.after(delay, Event::ToHost(host, life, what.clone()));
        }
    }

    fn lives(&self, host: usize, life: u32) -> bool {
        self.hosts[host].up && self.hosts[host].life == life
    }

    fn handle(&mut self, event: Event) {
        self.note(&event);
        match event {
            Event::Program {
                host,
                life,
                program,
            } if self.lives(host, life) => self.begin_job(host, program),
            Event::ToOwner(from, what) => self.at_owner(from, what),
            Event::ToHost(host, life, what) => {
                let life = life.unwrap_or(self.hosts[host].life);
                if self.lives(host, life) {
                    self.at_host(host, what);
                }
            }
            Event::Again {
                host,
                life,
                id,
                next,
            } if self.lives(host, life) => self.send_again(host, id, next),
            Event::Unanswered { host, life, id } if self.lives(host, life) => {
                self.not_answered(host, id);
            }
            // Of an earlier process.
            Event::Program { .. } | Event::Again { .. } | Event::Unanswered { .. } => {}
            Event::Called { id, call, what } => self.called(id, call, what),
            Event::Commit(epoch, seq) => self.commit(epoch, seq),
            Event::Reign(clock, survive) => self.begin_reign(clock, survive),
            Event::Strike => self.strike(),
            Event::StrikeOwner { dies } => self.end_reign(dies),
            Event::Heal(host) => self.heal(host),
            Event::Start(host) => self.start(host),
            Event::Calm => self.calm(),
            Event::Rest => self.resting = true,
            Event::Look => {
                self.settled();
                (0..HOSTS).for_each(|host| self.look(host));
            }
            Event::End => {}
        }
    }

    /// Something goes wrong.
    fn strike(&mut self) {
        if self.calm {
            return;
        }
        let mut host = self.rng.below(HOSTS as u64) as usize;
        if self.rng.chance(2, 3)
            && let Some(hold) = self.committed.rows.values().next()
        {
            host = host_of(hold.holder);
        }
        match self.rng.below(10) {
            0..=4 => {
                let shortest = [0, 2 * SECOND][self.rng.below(2) as usize];
                let span = shortest + self.rng.below(shortest.max(SECOND / 2));
                self.cut_off(host, span);
            }
            5 | 6 if self.hosts[host].up => {
                self.crash(host);
                let longest = [SECOND / 20, 2 * SECOND][self.rng.below(2) as usize];
                let span = self.rng.below(longest);
                self.after(span, Event::Start(host));
            }
            5 | 6 => {}
            7 => self.end_reign(false),
            _ => self.end_reign(true),
        }
        let span = self.rng.below(2 * SECOND);
        self.after(span, Event::Strike);
    }

    fn cut_off(&mut self, host: usize, span: u64) {
        let way = [Way::Both, Way::In, Way::Out][self.rng.below(3) as usize];
        self.net.cut_pair(host, HOSTS, way);
        self.hosts[host].cut = true;
        self.after(span, Event::Heal(host));
    }

    /// In some cases a host is cut off that has just written behind, for longer than its right lasts.
    pub(super) fn strike_writer(&mut self, host: usize) {
        if !self.calm && self.rng.chance(1, 250) {
            let span = 3 * SECOND + self.rng.below(2 * SECOND);
            self.cut_off(host, span);
        }
    }

    /// In one of so many cases the owner comes to its end soon: it has just ordered something of a row.
    pub(super) fn strike_owner(&mut self, of: u64) {
        if !self.calm && self.rng.chance(1, of) {
            let delay = self.rng.below(2 * self.net.base_us);
            let dies = self.rng.chance(1, 2);
            self.after(delay, Event::StrikeOwner { dies });
        }
    }

    fn heal(&mut self, host: usize) {
        self.net.cut[host][HOSTS] = false;
        self.net.cut[HOSTS][host] = false;
        if self.hosts[host].cut {
            self.hosts[host].cut = false;
            self.hosts[host].well_from = self.now;
        }
    }

    /// Nothing goes wrong any more.
    fn calm(&mut self) {
        self.calm = true;
        (self.net.loss, self.net.repeat, self.net.tail) = (0, 0, 0);
        for host in 0..HOSTS {
            self.heal(host);
            self.start(host);
        }
    }
}
