//! A host: its programs, and what it does for them as one that keeps no copy.

use super::laws::Written;
use super::owner::{Sender, ToHost, ToOwner};
use super::world::{Event, World};
use super::{BLOCK_LEN, BLOCKS, EACH, FILE, Mark, Run};
use crate::clock::Clock;
use crate::world::SECOND;
use perigee_replica::chunk::{
    Access, Begin, Behind, Call, Given, Report, Room, Terms, Word, WriteNumber,
};
use perigee_replica::{Chunk, Hold};
use perigee_types::{NodeId, SessionId, Tick, Version};
use std::collections::{BTreeMap, BTreeSet};

/// So much may be under way.
const ROOM: Room = Room {
    each: 3 * BLOCK_LEN,
    kept: 5 * BLOCK_LEN,
    all: 5 * BLOCK_LEN,
};
/// With a write of so many bytes a host asks for the chunk.
const WANTED_LEN: u64 = 2 * BLOCK_LEN;
/// Before a question for the right is asked again.
const ASK_US: u64 = 250_000;
/// Questions without an answer after which a write goes without a row.
const ASKS: u32 = 3;
/// Before something is sent again, at first and at most.
const AGAIN_US: [u64; 2] = [60_000, 600_000];

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Write,
    Read,
    /// It waits until what its host has under way has arrived.
    Wait,
    /// It waits until what its host has under way is with the owner.
    Close,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A write wants to begin.
    Try,
    /// It waits for the answer to this question.
    Right(u64),
    /// It waits for what is under way.
    Room,
    /// It waits for all that was under way by then.
    Drain(WriteNumber),
    /// It waits until the owner has ordered all that was.
    Leave(WriteNumber),
    /// It waits for the owner.
    Asked,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    what: What,
    id: u64,
    run: Run,
    began: u64,
    phase: Phase,
    asks: u32,
}

/// A program; where it writes on in a chunk, and for how long.
#[derive(Debug, Clone, Copy, Default)]
struct Program {
    job: Option<Job>,
    next: usize,
    left: u64,
}

/// What the owner has not answered.
#[derive(Debug)]
struct Asked {
    what: ToOwner,
    program: usize,
    behind: Option<(WriteNumber, Hold)>,
}

/// One host.
#[derive(Debug)]
pub struct Host {
    /// Rises with each crash.
    pub life: u32,
    /// Its process runs.
    pub up: bool,
    /// It does not reach the owner, or is not reached by it.
    pub cut: bool,
    /// Since when neither was otherwise.
    pub well_from: u64,
    clock: Clock,
    behind: Behind,
    programs: [Program; 2],
    asked: BTreeMap<u64, Asked>,
    /// Questions for a right: their numbers, and when they were asked.
    questions: BTreeMap<u64, (u64, Tick)>,
    /// Chunks that it has asked for.
    wants: BTreeMap<u64, Chunk>,
    /// Calls that it has not answered, and what was the last write when they came.
    calls: BTreeMap<u64, (u64, Call, WriteNumber)>,
    /// The last row that it has heard of, and those that it has given back.
    heard: BTreeMap<Chunk, Version>,
    given_back: BTreeSet<Version>,
}

impl Host {
    /// One that has not begun.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            life: 0,
            up: false,
            cut: false,
            well_from: 0,
            clock,
            behind: Behind::default(),
            programs: [Program::default(); 2],
            asked: BTreeMap::new(),
            questions: BTreeMap::new(),
            wants: BTreeMap::new(),
            calls: BTreeMap::new(),
            heard: BTreeMap::new(),
            given_back: BTreeSet::new(),
        }
    }

    /// What it is at.
    #[must_use]
    pub fn unsettled(&self) -> Option<String> {
        let job = self.programs.iter().find_map(|program| program.job);
        let asked = self.asked.values().next().map(|asked| asked.what);
        let job = job.map(|job| format!("{job:?}"));
        let busy = job.or(asked.map(|what| format!("{what:?}")));
        busy.or((!self.behind.is_idle()).then(|| "something under way".to_owned()))
    }

    fn session(&self, host: usize) -> SessionId {
        SessionId::new(NodeId(host as u32 + 1), self.life)
    }
}

impl World {
    fn sender(&self, host: usize) -> Sender {
        let life = self.hosts[host].life;
        let session = self.hosts[host].session(host);
        Sender {
            host,
            life,
            session,
        }
    }

    /// A host's process begins.
    pub(super) fn start(&mut self, host: usize) {
        let (now, plant) = (self.now, self.plant);
        let this = &mut self.hosts[host];
        if this.up {
            return;
        }
        (this.up, this.well_from) = (true, now);
        let clock = this.clock;
        *this = Host {
            life: this.life,
            up: true,
            cut: this.cut,
            well_from: now,
            behind: Behind::default()
                .with_wanted_len(WANTED_LEN)
                .with_plant(plant),
            ..Host::new(clock)
        };
        for program in 0..this.programs.len() {
            self.think(host, program, 20_000);
        }
    }

    /// A host's process ends. What it has sent may arrive, and late.
    pub(super) fn crash(&mut self, host: usize) {
        let from = self.sender(host);
        let this = &mut self.hosts[host];
        (this.up, this.life) = (false, this.life + 1);
        let clock = this.clock;
        let asked = std::mem::take(&mut this.asked);
        (this.programs, this.behind) = (Host::new(clock).programs, Behind::default());
        let behind = asked.iter().filter(|(_, asked)| asked.behind.is_some());
        let mut lost = false;
        for (id, asked) in behind {
            if self.outlives_host(*id) {
                continue;
            }
            lost = true;
            if self.rng.chance(1, 3) {
                let delay = self.rng.below(4 * SECOND);
                self.after(delay, Event::ToOwner(from, asked.what));
            }
            if let Some(write) = self.past.writes.get_mut(id) {
                write.lost = true;
            }
        }
        if lost {
            self.mark(Mark::CrashedUnderWay);
        }
    }

    fn think(&mut self, host: usize, program: usize, most: u64) {
        let life = self.hosts[host].life;
        let delay = 200 + self.rng.below(most);
        let event = Event::Program {
            host,
            life,
            program,
        };
        self.after(delay, event);
    }

    /// A program without a job begins one.
    pub(super) fn begin_job(&mut self, host: usize, program: usize) {
        if self.resting || self.hosts[host].programs[program].job.is_some() {
            return;
        }
        let mut entry = self.hosts[host].programs[program];
        let blocks = BLOCKS as u64;
        let what = if entry.left > 0 {
            entry.left -= 1;
            What::Write
        } else {
            match self.rng.below(20) {
                0..=4 if host < self.writers => {
                    entry.left = 4 + self.rng.below(self.stretch);
                    entry.next = EACH * self.rng.below(2) as usize;
                    What::Write
                }
                5..=9 => What::Write,
                0..=16 => What::Read,
                17 | 18 => What::Close,
                _ => What::Wait,
            }
        };
        let run = if entry.left > 0 {
            let (chunk, at) = (entry.next / EACH, entry.next % EACH);
            let len = (1 + self.rng.below(2) as usize).min(EACH - at);
            entry.next = chunk * EACH + (at + len) % EACH;
            let first = chunk * EACH + at;
            Run { first, len }
        } else {
            let first = self.rng.below(blocks) as usize;
            let len = 1 + self.rng.below(3.min(blocks - first as u64)) as usize;
            Run { first, len }
        };
        self.hosts[host].programs[program] = entry;
        self.start_job(host, program, what, run);
    }

    /// A program reads everything.
    pub(super) fn look(&mut self, host: usize) {
        let (first, len) = (0, BLOCKS);
        self.start_job(host, 0, What::Read, Run { first, len });
    }

    fn start_job(&mut self, host: usize, program: usize, what: What, run: Run) {
        self.names += 1;
        let (id, began) = (self.names, self.step);
        self.note(&("begin", host, program, id, what, run));
        let this = &mut self.hosts[host];
        let phase = match what {
            What::Write => Phase::Try,
            What::Read | What::Wait => Phase::Drain(this.behind.last()),
            What::Close => Phase::Leave(this.behind.last()),
        };
        let asks = 0;
        this.programs[program].job = Some(Job {
            what,
            id,
            run,
            began,
            phase,
            asks,
        });
        if what == What::Write {
            let write = Written {
                by: (host, this.life),
                run,
                began,
                reign: self.reign.epoch,
                answered: None,
                sent: 0,
                ordered: None,
                left: None,
                refused: false,
                lost: false,
            };
            self.past.writes.insert(id, write);
            if run.chunks().count() > 1 {
                self.mark(Mark::OverBoth);
            }
        }
        self.advance(host, program);
    }

    /// A program's job goes on as far as it can.
    fn advance(&mut self, host: usize, program: usize) {
        while let Some(job) = self.hosts[host].programs[program].job {
            let next = match job.phase {
                Phase::Right(_) | Phase::Room | Phase::Asked => return,
                Phase::Try => match self.try_write(host, program, job) {
                    Some(phase) => phase,
                    None => return,
                },
                Phase::Drain(through)
                    if self.hosts[host].behind.has_arrived(|_, _| true, through) =>
                {
                    match self.drained(host, program, job) {
                        Some(phase) => phase,
                        None => return,
                    }
                }
                Phase::Leave(through)
                    if self.hosts[host].behind.is_ordered(|_, _| true, through) =>
                {
                    self.mark(Mark::Closed);
                    self.closed((host, self.hosts[host].life), job.began);
                    self.end_job(host, program, 50_000);
                    return;
                }
                Phase::Drain(_) | Phase::Leave(_) => return,
            };
            if let Some(job) = &mut self.hosts[host].programs[program].job {
                job.phase = next;
            }
        }
    }

    /// A write begins, if it may. None: it has ended for its program.
    fn try_write(&mut self, host: usize, program: usize, job: Job) -> Option<Phase> {
        let now = self.now;
        let this = &mut self.hosts[host];
        let (session, range) = (this.session(host), job.run.bytes());
        let now = this.clock.at(now);
        match this.behind.begin(now, session, FILE, range, ROOM) {
            Begin::Now(number, hold) => {
                self.mark(Mark::WrittenBehind);
                self.ask_owner(host, program, job, Some((number, hold)));
                self.strike_writer(host);
                self.end_job(host, program, 4_000);
                None
            }
            Begin::Wait => {
                let mut others = this.asked.values();
                let same = |asked: &Asked| match asked.what {
                    ToOwner::Write { run, .. } => run.bytes().overlaps(range),
                    _ => false,
                };
                let overlaps = others.any(|asked| asked.behind.is_some() && same(asked));
                self.mark(match overlaps {
                    true => Mark::Overlapping,
                    false => Mark::Full,
                });
                Some(Phase::Room)
            }
            Begin::Ask(chunk) if job.asks < ASKS => self.ask_right(host, program, chunk),
            Begin::Want(chunk) => {
                let id = self.question(host, program, 0);
                self.hosts[host].wants.insert(id, chunk);
                self.send_owner(self.sender(host), ToOwner::Want { id, chunk });
                Some(Phase::Right(id))
            }
            answer @ (Begin::Ask(_) | Begin::No) => {
                let through = this.behind.last();
                if answer != Begin::No {
                    self.mark(Mark::FellBack);
                }
                Some(Phase::Drain(through))
            }
        }
    }

    fn ask_right(&mut self, host: usize, program: usize, chunk: Chunk) -> Option<Phase> {
        let this = &mut self.hosts[host];
        let Some((hold, number)) = this.behind.ask(chunk) else {
            return Some(Phase::Drain(this.behind.last()));
        };
        let id = self.question(host, program, number);
        let of = (chunk, hold);
        self.send_owner(self.sender(host), ToOwner::Ask { id, of, number });
        Some(Phase::Right(id))
    }

    /// Names a question for a right, of this number for its row, and looks later whether it was answered.
    fn question(&mut self, host: usize, program: usize, number: u64) -> u64 {
        self.names += 1;
        let (id, now) = (self.names, self.now);
        let this = &mut self.hosts[host];
        let at = this.clock.at(now);
        this.questions.insert(id, (number, at));
        if let Some(job) = &mut this.programs[program].job {
            job.asks += 1;
        }
        let life = this.life;
        self.after(ASK_US, Event::Unanswered { host, life, id });
        id
    }

    /// What was under way has arrived.
    fn drained(&mut self, host: usize, program: usize, job: Job) -> Option<Phase> {
        if job.what == What::Wait {
            self.mark(Mark::Waited);
            self.waited((host, self.hosts[host].life), job.began);
            self.end_job(host, program, 50_000);
            return None;
        }
        self.ask_owner(host, program, job, None);
        Some(Phase::Asked)
    }

    /// Sends a job to the owner, until that has answered.
    fn ask_owner(
        &mut self,
        host: usize,
        program: usize,
        job: Job,
        behind: Option<(WriteNumber, Hold)>,
    ) {
        let Job { id, run, .. } = job;
        let row = behind.map(|(_, hold)| hold);
        let what = match job.what {
            What::Write => ToOwner::Write { id, run, row },
            What::Read | What::Wait | What::Close => ToOwner::Read { id, run },
        };
        let asked = Asked {
            what,
            program,
            behind,
        };
        self.hosts[host].asked.insert(id, asked);
        self.send_again(host, id, AGAIN_US[0]);
    }

    /// Sends what is not answered, and looks later whether it is.
    pub(super) fn send_again(&mut self, host: usize, id: u64, wait: u64) {
        let this = &mut self.hosts[host];
        let Some(asked) = this.asked.get(&id) else {
            return;
        };
        let what = asked.what;
        if let Some((number, _)) = asked.behind {
            // As far as is known where owners are looked for.
            let epoch = self.reign.epoch;
            this.behind.on_sent(number, Self::node_of(epoch));
            if let Some(write) = self.past.writes.get_mut(&id) {
                write.sent = epoch;
            }
        }
        self.send_owner(self.sender(host), what);
        let life = self.hosts[host].life;
        let next = (wait * 2).min(AGAIN_US[1]);
        let event = Event::Again {
            host,
            life,
            id,
            next,
        };
        self.after(wait, event);
    }

    /// Its program is answered.
    fn end_job(&mut self, host: usize, program: usize, think: u64) {
        if let Some(job) = self.hosts[host].programs[program].job.take()
            && let Some(write) = self.past.writes.get_mut(&job.id)
        {
            write.answered = Some(self.step);
        }
        let bursts = self.hosts[host].programs[program].left > 0;
        let most = think * if bursts { 1 } else { self.idleness };
        self.think(host, program, most);
    }

    /// What waited may go on.
    fn poll(&mut self, host: usize) {
        self.answer_calls(host);
        for program in 0..self.hosts[host].programs.len() {
            if let Some(job) = &mut self.hosts[host].programs[program].job
                && job.phase == Phase::Room
            {
                job.phase = Phase::Try;
            }
            self.advance(host, program);
        }
    }

    /// A question was not answered in time: a chunk that was asked for is not waited for any more.
    pub(super) fn not_answered(&mut self, host: usize, id: u64) {
        let now = self.now;
        let this = &mut self.hosts[host];
        if let Some(chunk) = this.wants.remove(&id) {
            this.questions.remove(&id);
            let (now, session) = (this.clock.at(now), this.session(host));
            this.behind.on_wanted(now, session, chunk, None);
        }
        self.asked_right(host, id);
    }

    /// A question is answered, or that has taken too long.
    pub(super) fn asked_right(&mut self, host: usize, id: u64) {
        let programs = &mut self.hosts[host].programs;
        for job in programs.iter_mut().filter_map(|entry| entry.job.as_mut()) {
            if job.phase == Phase::Right(id) {
                job.phase = Phase::Try;
            }
        }
        self.poll(host);
    }

    /// Something has come from the owner.
    pub(super) fn at_host(&mut self, host: usize, what: ToHost) {
        let terms = Terms::from(&self.timing);
        let this = &mut self.hosts[host];
        match what {
            ToHost::Wrote { id, done, rows } => {
                for (chunk, hold) in rows {
                    self.hear_row(host, chunk, hold);
                }
                self.wrote(host, id, done);
            }
            ToHost::Ordered { id, epoch } => {
                let asked = this.asked.get(&id).and_then(|asked| asked.behind);
                let from = Self::node_of(epoch);
                let word = asked.map(|(number, _)| this.behind.on_ordered(number, from));
                if word == Some(Word::News) {
                    self.mark(Mark::Ordered);
                    self.left(id, epoch);
                    self.poll(host);
                }
            }
            ToHost::Given { id, chunk, of } => {
                let Some(&question) = this.questions.get(&id) else {
                    return;
                };
                if let Some((chunk, hold)) = of {
                    self.mark(Mark::Wanted);
                    self.hear_row(host, chunk, hold);
                }
                let now = self.now;
                let this = &mut self.hosts[host];
                let asked_at = question.1;
                let given = of.map(|(_, hold)| Given {
                    hold,
                    asked_at,
                    terms,
                });
                this.wants.remove(&id);
                let session = this.session(host);
                let now = this.clock.at(now);
                this.behind.on_wanted(now, session, chunk, given);
                self.asked_right(host, id);
            }
            ToHost::Read { id, values } => {
                if let Some(asked) = this.asked.remove(&id)
                    && let Some(job) = this.programs[asked.program].job
                {
                    self.saw(host, job.run, job.began, values);
                    self.end_job(host, asked.program, 20_000);
                }
            }
            ToHost::Right { id, of, granted } => {
                let Some(&question) = this.questions.get(&id) else {
                    return;
                };
                if granted {
                    this.behind.on_right(of.0, of.1, question, terms);
                } else {
                    this.behind.on_refused(of.0, of.1);
                    this.given_back.insert(of.1.token);
                    self.mark(Mark::RightRefused);
                }
                self.asked_right(host, id);
            }
            ToHost::Call { epoch, call, what } => self.hear_call(host, epoch, call, what),
        }
    }

    fn wrote(&mut self, host: usize, id: u64, done: bool) {
        let this = &mut self.hosts[host];
        let Some(asked) = this.asked.remove(&id) else {
            return;
        };
        if let Some((number, hold)) = asked.behind {
            if !done {
                this.behind.on_failed(hold.holder, FILE);
            }
            this.behind.on_answered(number);
        }
        if !done {
            self.mark(Mark::Refused);
            let token = asked.behind.map(|(_, hold)| hold.token);
            self.heard_refusal(host, id, token);
        } else if asked.behind.is_none() {
            self.end_job(host, asked.program, 4_000);
        }
        self.poll(host);
    }

    fn hear_row(&mut self, host: usize, chunk: Chunk, hold: Hold) {
        let this = &mut self.hosts[host];
        this.behind.on_row(this.clock.at(self.now), chunk, hold);
        let before = this.heard.get(&chunk).copied().unwrap_or_default();
        this.heard.insert(chunk, before.max(hold.token));
        if before > hold.token {
            self.mark(Mark::OlderRow);
        } else if this.given_back.contains(&hold.token) {
            self.mark(Mark::RowLate);
        }
    }

    fn hear_call(&mut self, host: usize, epoch: u64, call: u64, what: Call) {
        let this = &mut self.hosts[host];
        if !this.calls.contains_key(&call) {
            let stop = what.access == Access::Change;
            this.behind.on_call(what.chunk, what.hold, stop);
            let through = this.behind.last();
            this.calls.insert(call, (epoch, what, through));
        }
        self.answer_calls(host);
        if self.hosts[host].calls.contains_key(&call) {
            self.mark(Mark::CalledUnderWay);
            self.report(host, (epoch, call), what, None);
        }
        self.poll(host);
    }

    fn answer_calls(&mut self, host: usize) {
        let calls = self.hosts[host].calls.clone();
        for (call, (epoch, what, through)) in calls {
            let this = &mut self.hosts[host];
            let report = this.behind.report(what.chunk, what.hold, through);
            let Some(report) = report else { continue };
            this.calls.remove(&call);
            if report == Report::Stopped {
                this.given_back.insert(what.hold.token);
            }
            self.report(host, (epoch, call), what, Some(report));
        }
    }

    fn report(
        &mut self,
        host: usize,
        (epoch, call): (u64, u64),
        what: Call,
        report: Option<Report>,
    ) {
        let of = (what.chunk, what.hold);
        let report = ToOwner::Report {
            epoch,
            call,
            of,
            report,
        };
        self.send_owner(self.sender(host), report);
    }
}
