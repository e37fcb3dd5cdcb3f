//! Time, hosts, the network, the chain's contract, and the loop that lets one thing happen after another.

use super::host::{Host, Session};
use super::owner::{Answer, Reign, Request, Sent};
use super::{Mark, Marks};
use crate::law;
use crate::network::Network;
use crate::numbered::{Detail, Happening, Kind, LeftOut, Numbered};
use crate::oracle::Violation;
use crate::queue::Queue;
use crate::strike::ControlStore;
use crate::world::{SECOND, print_line};
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::lock::plant::Plant;
use perigee_meta::memory::MemView;
use perigee_meta::{LockKind, NewNode, Op, Reply, Token, WaitId, format_container};
use perigee_types::{
    Batch, ContainerId, Epoch, InodeId, NodeId, OpId, Rng, SessionId, Tick, WallTime,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The container.
pub const HERE: ContainerId = ContainerId::ROOT;
/// Files that programs fight for.
pub const FILES: u64 = 3;
/// How long after the chaos everything must be well.
const CALM_US: u64 = 25 * SECOND;
/// A container whose owner cannot be reached has another one after this long.
const TAKEOVER_US: u64 = 2_500_000;
/// How long a sign of life counts.
const LIFE_US: u64 = 4 * SECOND;
/// How often owners look for sessions that are no more, and hosts show that they live.
const ROUND_US: u64 = SECOND;
/// A request that is on its way for longer than its caller waits is not executed.
const CALL_US: u64 = SECOND;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// A deliberate fault.
    pub plant: Option<Plant>,
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
    /// What was met.
    pub marks: Marks,
    /// Strikes and operations that took place, if they were asked for.
    pub happened: Vec<Happening>,
}

/// What an owner says unasked. It may get lost.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    /// A wait's turn has come.
    Turn(WaitId),
    /// A lock that the host keeps is wanted back. With a name, it is to say what becomes of it.
    Call(KeptId, Option<CallId>),
}

/// Names a call for locks, over all reigns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId {
    /// The owner's.
    pub epoch: Epoch,
    /// Rises.
    pub round: u64,
}

/// Something that happens. Those with a life happen to one process alone.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields are named as what they are")]
pub enum Event {
    Ask {
        from: usize,
        to: usize,
        life: u32,
        until: u64,
        request: Box<Request>,
    },
    Answer {
        to: usize,
        life: u32,
        asked: Sent,
        answer: Answer,
    },
    Word {
        to: usize,
        life: u32,
        word: Word,
    },
    Resend {
        host: usize,
        life: u32,
        op: OpId,
        round: u32,
    },
    AskAgain {
        host: usize,
        life: u32,
        wait: WaitId,
        round: u64,
    },
    Program {
        host: usize,
        life: u32,
        program: usize,
    },
    Commit {
        epoch: Epoch,
        seq: u64,
    },
    /// A host says what becomes of a lock that was called for.
    Fate {
        call: CallId,
        of: (SessionId, KeptId),
        fate: Fate,
    },
    Silence(CallId),
    Round,
    Life {
        host: usize,
    },
    Strike,
    Heal,
    Start {
        host: usize,
    },
    Calm,
    End,
}

/// The world.
pub struct Locks {
    pub(crate) now: u64,
    pub(super) rng: Rng,
    queue: Queue<Event>,
    pub(crate) hosts: Vec<Host>,
    pub(super) net: Network,
    /// What the chain keeps whatever happens.
    pub(super) committed: MemView,
    /// Records that may be lost with their owner.
    pub(super) uncommitted: VecDeque<Batch>,
    /// How many records are committed.
    pub(super) base: u64,
    pub(crate) reign: Reign,
    pub(crate) files: Vec<InodeId>,
    /// What programs of this history lock with.
    pub(crate) kind: LockKind,
    pub(super) plant: Option<Plant>,
    pub(super) calm: bool,
    pub(super) numbered: Numbered,
    /// The last grant.
    pub(crate) granted: Token,
    /// Grants that were ended without a word.
    pub(crate) ended: BTreeSet<Token>,
    pub(crate) violation: Option<Violation>,
    cut_since: Option<u64>,
    /// When the last request arrives that was sent from one host to another.
    last_request: BTreeMap<(usize, usize), u64>,
    sessions: u32,
    marks: Marks,
    hash: u64,
    events: u64,
}

/// Simulates one history.
#[must_use]
pub fn run(options: Options) -> Report {
    let mut world = Locks::new(options);
    world.start();
    while world.violation.is_none() {
        let Some((at, event)) = world.queue.pop() else {
            break;
        };
        world.now = at;
        world.events += 1;
        if matches!(event, Event::End) {
            law::locks::at_the_end(&mut world);
            break;
        }
        world.handle(event);
    }
    Report {
        violation: world.violation,
        hash: world.hash,
        events: world.events,
        marks: world.marks,
        happened: world.numbered.into_happened(),
    }
}

/// The container's first rows: its root and the files.
fn first_rows() -> (MemView, Vec<InodeId>) {
    let mut view = MemView::new();
    let now = WallTime { secs: 0, nanos: 0 };
    view.apply(HERE, &format_container(HERE, now, Some((0, 0, 0o755))));
    let mut files = Vec::new();
    for number in 0..FILES {
        let make = Op::Make {
            parent: InodeId::ROOT,
            name: number.to_string().into_bytes(),
            node: NewNode::File,
            mode: 0o644,
            umask: 0,
            cred: perigee_meta::Credential::default(),
            open_existing: false,
        };
        let made = perigee_meta::execute(&make, &perigee_meta::Context::default(), &mut view);
        if let Ok(outcome) = made {
            view.apply_all(&outcome.batches);
            if let Reply::Created { attr, .. } = outcome.reply {
                files.push(attr.inode);
            }
        }
    }
    (view, files)
}

impl Locks {
    fn new(options: Options) -> Self {
        let mut rng = Rng::new(options.seed ^ 0x6c6f_636b_7365_7276);
        let count = [2, 3, 3][rng.below(3) as usize];
        let (committed, files) = first_rows();
        let mut net = Network::healthy(count);
        net.loss = [0, 10, 50][rng.below(3) as usize];
        net.tail = [0, 20, 80][rng.below(3) as usize];
        net.tail_us = [200_000, 2_000_000][rng.below(2) as usize];
        let kinds = [LockKind::Posix, LockKind::Service, LockKind::Flock];
        let kind = kinds[rng.below(3) as usize];
        let numbered = Numbered::new(options.seed, options.left_out, options.detail);
        Self {
            now: 0,
            queue: Queue::default(),
            hosts: (0..count).map(|_| Host::default()).collect(),
            net,
            reign: Reign::first(&committed, options.plant),
            committed,
            uncommitted: VecDeque::new(),
            base: 0,
            files,
            kind,
            plant: options.plant,
            calm: false,
            rng: numbered.weather(rng),
            numbered,
            granted: Token::default(),
            ended: BTreeSet::new(),
            violation: None,
            cut_since: None,
            last_request: BTreeMap::new(),
            sessions: 0,
            marks: Marks::default(),
            hash: options.seed,
            events: 0,
        }
    }

    fn start(&mut self) {
        for host in 0..self.hosts.len() {
            self.at(1 + host as u64, Event::Start { host });
            self.at(2, Event::Life { host });
        }
        self.at(SECOND, Event::Strike);
        self.at(ROUND_US, Event::Round);
        let length = (8 + self.rng.below(14)) * SECOND;
        let end = self.numbered.chaos_length(length);
        self.at(end, Event::Calm);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    pub(super) fn after(&mut self, span: u64, event: Event) {
        self.queue.push(self.now + span, event);
    }

    pub(super) fn tick(&self) -> Tick {
        Tick(self.now)
    }

    pub(super) fn planted(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    pub(super) fn note(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    pub(crate) fn accuse(&mut self, law: &'static str, what: String) {
        let at = self.now;
        let violation = Violation { law, what, at };
        self.violation.get_or_insert(violation);
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

    /// The session of a host's process.
    pub(crate) fn session(&mut self, host: usize, life: u32) -> Option<&mut Session> {
        let host = &mut self.hosts[host];
        host.session.as_mut().filter(|_| host.life == life)
    }

    pub(super) fn life(&self, host: usize) -> u32 {
        self.hosts[host].life
    }

    pub(super) fn is_up(&self, host: usize) -> bool {
        self.hosts[host].session.is_some()
    }

    /// Whether two hosts can speak to each other.
    pub(crate) fn reach(&self, from: usize, to: usize) -> bool {
        from == to || !(self.net.cut[from][to] || self.net.cut[to][from])
    }

    /// Whether nobody has used a lock since before `from` that a host keeps.
    pub(crate) fn is_kept_in_vain(&self, (session, id): (SessionId, KeptId), from: u64) -> bool {
        let there = self.hosts[crate::world::host_of(session.node())]
            .session
            .as_ref();
        let there = there.filter(|there| there.id == session);
        there.is_some_and(|there| {
            let since = there.idle_since.get(&id).copied().unwrap_or(self.now);
            there.kept.rests_since(id).is_some() && since < from
        })
    }

    /// Whether a host shows signs of life.
    pub(crate) fn lives(&self, host: usize) -> bool {
        self.hosts[host].lives_until > self.now
    }

    /// Sends a request; requests come in the order in which they were sent, once, or not at all.
    pub(super) fn send(&mut self, from: usize, to: usize, request: Request) {
        let life = self.life(to);
        let mut at = self.now + 1;
        if from != to {
            let Some(delay) = self.net.deliveries(from, to, &mut self.rng)[0] else {
                return;
            };
            at = self.now + delay;
        }
        let last = self.last_request.entry((from, to)).or_default();
        at = at.max(*last + 1);
        *last = at;
        let until = self.now + CALL_US;
        let request = Box::new(request);
        self.at(
            at,
            Event::Ask {
                from,
                to,
                life,
                until,
                request,
            },
        );
    }

    /// Sends an answer to a host's process, perhaps twice.
    pub(super) fn reply(&mut self, (to, life): (usize, u32), asked: Sent, answer: Answer) {
        let from = self.reign.owner;
        self.reply_from(from, (to, life), asked, answer);
    }

    /// The same, also of one that is not the owner.
    pub(super) fn reply_from(
        &mut self,
        from: usize,
        (to, life): (usize, u32),
        asked: Sent,
        answer: Answer,
    ) {
        let answered = |answer| Event::Answer {
            to,
            life,
            asked,
            answer,
        };
        if from == to {
            return self.after(1, answered(answer));
        }
        let delays = self.net.deliveries(from, to, &mut self.rng);
        for delay in delays.into_iter().flatten() {
            self.after(delay, answered(answer.clone()));
        }
    }

    /// Tells a session something, if it is there: what is for one that is no more the next one does not hear.
    pub(super) fn tell(&mut self, from: usize, session: SessionId, word: Word) {
        let to = crate::world::host_of(session.node());
        let life = self.life(to);
        let there = self.hosts[to].session.as_ref();
        let there = there.is_some_and(|there| there.id == session);
        let delay = match from == to {
            true => Some(1),
            false => self.net.deliveries(from, to, &mut self.rng)[0],
        };
        if let Some(delay) = delay.filter(|_| there) {
            self.after(delay, Event::Word { to, life, word });
        }
    }

    /// A host answers a call for a lock.
    pub(super) fn tell_fate(
        &mut self,
        from: usize,
        call: CallId,
        of: (SessionId, KeptId),
        fate: Fate,
    ) {
        let to = self.reign.owner;
        let told = Event::Fate { call, of, fate };
        if from == to {
            return self.after(1, told);
        }
        if let [Some(delay), _] = self.net.deliveries(from, to, &mut self.rng) {
            self.after(delay, told);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ask {
                from,
                to,
                life,
                until,
                request,
            } => {
                if self.life(to) == life && self.is_up(to) && self.now <= until {
                    let caller = (from, self.life(from));
                    self.serve(to, caller, *request);
                }
            }
            Event::Answer {
                to,
                life,
                asked,
                answer,
            } => self.answered(to, life, asked, answer),
            Event::Word { to, life, word } => self.heard(to, life, word),
            Event::Resend {
                host,
                life,
                op,
                round,
            } => self.resend(host, life, op, round),
            Event::AskAgain {
                host,
                life,
                wait,
                round,
            } => self.ask_again(host, life, wait, Some(round)),
            Event::Program {
                host,
                life,
                program,
            } => self.program_turn(host, life, program),
            Event::Commit { epoch, seq } => self.commit(epoch, seq),
            Event::Fate { call, of, fate } => self.fate_told(call, of, fate),
            Event::Silence(call) => self.silent(call),
            Event::Round => self.round(),
            Event::Life { host } => self.show_life(host),
            Event::Strike => self.strike(),
            Event::Heal => self.net.heal(),
            Event::Start { host } => self.start_host(host),
            Event::Calm => self.calm_down(),
            Event::End => {}
        }
    }

    fn start_host(&mut self, host: usize) {
        if self.is_up(host) {
            return;
        }
        self.sessions += 1;
        let id = SessionId::new(NodeId(host as u32 + 1), self.sessions);
        self.hosts[host].life += 1;
        self.hosts[host].session = Some(Session::new(id, self.plant));
        self.log(1, host, || format!("starts, {id}"));
        let life = self.life(host);
        for program in 0..super::host::PROGRAMS {
            let wait = 1_000 + self.rng.below(50_000);
            self.after(
                wait,
                Event::Program {
                    host,
                    life,
                    program,
                },
            );
        }
    }

    /// A host shows the control store that it lives; one that could not for too long keeps no lock that it does not use.
    fn show_life(&mut self, host: usize) {
        if self.is_up(host) && !self.net.store_cut[host] {
            let life = self.life(host);
            let lapsed = !self.lives(host);
            let session = self.session(host, life).filter(|_| lapsed);
            for id in session.map_or_else(Vec::new, |session| session.kept.lapsed()) {
                self.give_back(host, life, id);
            }
            if lapsed {
                self.covers_lapsed(host, life);
            }
            self.hosts[host].lives_until = self.now + LIFE_US;
        }
        self.after(ROUND_US, Event::Life { host });
    }

    /// Whether the owner's members can reach it; another one takes over when they could not for long. Then the owner looks
    /// after sessions that are no more.
    fn round(&mut self) {
        self.after(ROUND_US / 4, Event::Round);
        let owner = self.reign.owner;
        let others = (0..self.hosts.len()).filter(|host| *host != owner && self.is_up(*host));
        let reached = others.clone().any(|other| self.reach(owner, other));
        let serves = self.is_up(owner) && self.life(owner) == self.reign.life;
        if serves && (reached || others.count() == 0) {
            self.cut_since = None;
            self.look_for_circles();
            return self.end_lost_sessions();
        }
        let since = *self.cut_since.get_or_insert(self.now);
        if self.now < since + TAKEOVER_US {
            return;
        }
        let heirs = 0..self.hosts.len();
        let heirs = heirs.filter(|host| self.is_up(*host) && !(serves && *host == owner));
        let heirs: Vec<usize> = heirs.filter(|host| !self.net.store_cut[*host]).collect();
        if !heirs.is_empty() {
            let heir = heirs[self.rng.below(heirs.len() as u64) as usize];
            self.cut_since = None;
            self.take_over(heir);
        }
    }

    fn strike(&mut self) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.by_clock();
        let pause = SECOND / 2 + dice.rng.below(4 * SECOND);
        self.after(pause, Event::Strike);
        let host = match dice.rng.chance(1, 2) {
            true => self.reign.owner,
            false => dice.rng.below(self.hosts.len() as u64) as usize,
        };
        let what = dice.rng.below(5);
        let long = SECOND / 4 + dice.rng.below(9 * SECOND);
        let name = (Kind::Strike, dice.number);
        let text = || format!("strike {what} at n{} for {long}", host + 1);
        if !self.numbered.takes_place(name, self.now, text) {
            return;
        }
        self.log(2, host, text);
        match what {
            0 | 1 => {
                self.note(Mark::Crash);
                self.hosts[host].session = None;
                self.after(long, Event::Start { host });
            }
            2 => {
                self.net.isolate(host, ControlStore::CutOff);
                self.after(long, Event::Heal);
            }
            3 => {
                self.net.isolate(host, ControlStore::Reached);
                self.after(long, Event::Heal);
            }
            _ => self.net.heal(),
        }
    }

    fn calm_down(&mut self) {
        self.calm = true;
        self.net = Network::healthy(self.hosts.len());
        for host in 0..self.hosts.len() {
            self.after(1, Event::Start { host });
        }
        self.after(CALM_US, Event::End);
    }
}
