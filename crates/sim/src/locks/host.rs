//! A host: its session, the calls that it has under way, and the locks that it keeps.

use super::Mark;
use super::owner::{Answer, Request, Sent, What};
use super::program::{Program, State};
use super::world::{CallId, Event, Locks, Word};
use perigee_meta::lock::cover::{Covers, Request as Wish};
use perigee_meta::lock::kept::{Fate, Kept, KeptId, Life};
use perigee_meta::lock::plant::Plant;
use perigee_meta::{FileLock, LockKind, Op, Patience, WaitId};
use perigee_types::{ByteRange, OpId, SessionId};
use std::collections::BTreeMap;

/// Programs of each host.
pub const PROGRAMS: usize = 2;
/// A call without an answer is sent again after this long.
const RESEND_US: u64 = 400_000;
/// The same, when who was asked is not the owner.
const ELSEWHERE_US: u64 = 60_000;

/// A machine.
#[derive(Debug, Default)]
pub struct Host {
    /// Counts its processes.
    pub life: u32,
    /// Until when its sign of life counts.
    pub lives_until: u64,
    /// Of the process that runs.
    pub session: Option<Session>,
    /// Whom it believes to be the owner.
    pub owner: usize,
}

/// Whom an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// A program, by its place.
    Program(usize),
    /// The host, of a cover.
    Cover(KeptId),
    /// Nobody.
    Nobody,
}

/// A mount.
#[derive(Debug)]
pub struct Session {
    /// Names it.
    pub id: SessionId,
    /// The next operation, wait, or lock to keep.
    next: u64,
    /// Who runs here.
    pub programs: Vec<Program>,
    /// Locks that it keeps.
    pub kept: Kept,
    /// What it decides about by itself.
    pub covers: Covers,
    /// What programs ask for that nobody can decide about yet.
    pub later: Vec<(usize, Wish)>,
    /// Who is to be told of covers that he has called for.
    pub callers: Vec<(KeptId, CallId)>,
    /// Since when nobody uses them.
    pub idle_since: BTreeMap<KeptId, u64>,
    calls: BTreeMap<OpId, Call>,
}

/// A request without an answer.
#[derive(Debug)]
struct Call {
    what: What,
    whom: For,
    /// How often it was sent.
    round: u32,
}

impl Session {
    /// A session without locks.
    #[must_use]
    pub fn new(id: SessionId, plant: Option<Plant>) -> Self {
        let programs = (0..PROGRAMS).map(|place| Program::new(place as u64 + 1));
        Self {
            id,
            next: 1,
            programs: programs.collect(),
            kept: Kept::default().with_plant(plant),
            covers: Covers::new(id).with_plant(plant),
            later: Vec::new(),
            callers: Vec::new(),
            idle_since: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    /// A number that was not used before.
    pub fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn request(&self, op: OpId) -> Option<Request> {
        let call = self.calls.get(&op)?;
        let oldest = self.calls.keys().next().copied().unwrap_or(op);
        Some(Request {
            session: self.id,
            op,
            answered_through: OpId(oldest.0 - 1),
            round: call.round,
            what: call.what.clone(),
        })
    }
}

impl Locks {
    /// Asks the owner something, until it answers.
    pub(super) fn call(&mut self, host: usize, life: u32, what: What, whom: For) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let op = OpId(session.fresh());
        let round = 0;
        session.calls.insert(op, Call { what, whom, round });
        self.resend(host, life, op, round);
    }

    /// Sends a call again that has been sent so many times.
    pub(super) fn resend(&mut self, host: usize, life: u32, op: OpId, round: u32) {
        // Who can be reached tells who owns.
        let owner = self.reign.owner;
        if self.reach(host, owner) {
            self.hosts[host].owner = owner;
        }
        let to = self.hosts[host].owner;
        let Some(session) = self.session(host, life) else {
            return;
        };
        match session.calls.get_mut(&op) {
            Some(call) if call.round == round => call.round += 1,
            _ => return,
        }
        let Some(request) = session.request(op) else {
            return;
        };
        self.send(host, to, request);
        self.look_later(host, life, op, RESEND_US);
    }

    fn look_later(&mut self, host: usize, life: u32, op: OpId, span: u64) {
        let call = self
            .session(host, life)
            .and_then(|this| this.calls.get(&op));
        if let Some(round) = call.map(|call| call.round) {
            let again = Event::Resend {
                host,
                life,
                op,
                round,
            };
            self.after(span, again);
        }
    }

    pub(super) fn answered(&mut self, host: usize, life: u32, asked: Sent, answer: Answer) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let Sent { op, round } = asked;
        if session
            .calls
            .get(&op)
            .is_none_or(|call| call.round != round)
        {
            return;
        }
        if answer == Answer::Elsewhere {
            return self.look_later(host, life, op, ELSEWHERE_US);
        }
        let Some(call) = session.calls.remove(&op) else {
            return;
        };
        match call.whom {
            For::Program(program) => {
                self.owner_decided(host, life, &call.what, &answer);
                self.program_answered(host, life, program, &call.what, answer);
            }
            For::Cover(id) => self.cover_told(host, life, (id, &call.what), &answer),
            For::Nobody => {}
        }
    }

    pub(super) fn heard(&mut self, host: usize, life: u32, word: Word) {
        match word {
            Word::Turn(wait) => self.ask_again(host, life, wait, None),
            Word::Call(id, call) if id.kind == LockKind::Cover => {
                self.cover_called(host, life, id, call);
            }
            Word::Call(id, call) => {
                let Some(session) = self.session(host, life) else {
                    return;
                };
                let (fate, of) = (session.kept.called(id), (session.id, id));
                if fate == Fate::GivenBack {
                    self.give_back(host, life, id);
                }
                if let Some(call) = call {
                    self.tell_fate(host, call, of, fate);
                }
            }
        }
    }

    /// Whether a host's sign of life counts, as it knows.
    pub(super) fn life_of(&self, host: usize) -> Life {
        match self.lives(host) {
            true => Life::Shown,
            false => Life::Unsure,
        }
    }

    /// A lock that was kept goes back to the owner.
    pub(super) fn give_back(&mut self, host: usize, life: u32, id: KeptId) {
        self.note(Mark::Called);
        let Some(session) = self.session(host, life) else {
            return;
        };
        let unlock = Op::SetLock {
            inode: id.inode,
            session: session.id,
            lock: FileLock {
                kind: id.kind,
                owner: id.owner,
                range: ByteRange::ALL,
                mode: None,
                pid: 0,
            },
            patience: Patience::Refuse,
        };
        self.call(host, life, What::Locks(unlock), For::Nobody);
    }

    /// A program that waits asks once more: at the word of the owner, or when nothing has come since `round`.
    pub(super) fn ask_again(&mut self, host: usize, life: u32, wait: WaitId, round: Option<u64>) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let sleeps = |program: &Program| match &program.state {
            State::Sleeping(asked) => {
                asked.wait == Some(wait) && round.is_none_or(|round| round == asked.round)
            }
            _ => false,
        };
        let Some(place) = session.programs.iter().position(sleeps) else {
            return;
        };
        self.ask(host, life, place);
    }
}
