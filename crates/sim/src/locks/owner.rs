//! What an owner is asked: as `perigee_node` does it, without its locks and waiting.

use super::Mark;
use super::world::{CallId, Event, HERE, Locks, Word};
use crate::law;
use crate::world::host_of;
use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::lock::plant::Plant;
use perigee_meta::lock::{Presence, SessionEnd, lost};
use perigee_meta::memory::MemView;
use perigee_meta::queue::{Admission, Asked, LockQueue};
use perigee_meta::{
    Answers, Context, FileLock, Leftovers, LockOwner, LockSessions, Op, Refusal, Reply, RunId,
    Seen, held_locks, lock_sessions,
};
use perigee_types::{Batch, Epoch, Errno, InodeId, OpId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// What a session asks.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// An operation on locks.
    Locks(Op),
    /// To write, as it believes under this lock.
    Write(InodeId, FileLock),
}

/// One sending of an operation: the answers to earlier ones are not listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The operation.
    pub op: OpId,
    /// How often it was sent by then.
    pub round: u32,
}

/// Asked at most once by (session, op).
#[derive(Debug, Clone)]
pub struct Request {
    /// Whose it is.
    pub session: SessionId,
    /// Names it for repeats.
    pub op: OpId,
    /// The session has its answers up to here.
    pub answered_through: OpId,
    /// How often it was sent.
    pub round: u32,
    /// What is asked.
    pub what: What,
}

impl Request {
    const fn sent(&self) -> Sent {
        Sent {
            op: self.op,
            round: self.round,
        }
    }
}

/// What it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What came of it.
    Done(Result<Reply, Errno>),
    /// Another host is the owner.
    Elsewhere,
}

/// Where an answer goes.
type Caller = (usize, u32);

/// How long who is called may take to answer.
const ANSWER_US: u64 = 1_000_000;
/// For so long those are called who do not answer: as `perigee_node` does it.
const CALLS_US: u64 = 20_000_000;

/// A request that waits for those who were called.
#[derive(Debug)]
pub(super) struct Calling {
    name: CallId,
    caller: Caller,
    request: Box<Request>,
    run: RunId,
    /// Who has not answered.
    awaited: BTreeSet<(SessionId, KeptId)>,
    /// Who has said that a program uses it.
    users: BTreeSet<LockOwner>,
    /// When the first were called.
    since: u64,
}

/// What was done for a request before.
#[derive(Debug, Clone)]
struct Before {
    asked: Asked,
    /// When it came, or the first were called for it.
    since: u64,
}

/// The locks of these owners, as their hosts know them.
pub(crate) fn kept_by(operation: &Op, owners: &[LockOwner]) -> Vec<(SessionId, KeptId)> {
    let Op::SetLock { inode, lock, .. } = operation else {
        return Vec::new();
    };
    let Some(kind) = lock.kind.kept_as() else {
        return Vec::new();
    };
    let kept = |owner: &LockOwner| {
        let id = KeptId {
            inode: *inode,
            kind,
            owner: owner.owner,
        };
        (owner.session, id)
    };
    owners.iter().map(kept).collect()
}

/// One owner's time.
#[derive(Debug)]
pub struct Reign {
    /// The host.
    pub owner: usize,
    /// Its process.
    pub life: u32,
    /// Fences every older owner.
    pub epoch: Epoch,
    /// Every record, committed or not.
    pub view: MemView,
    pub(crate) queue: LockQueue,
    pub(super) answers: Answers,
    /// The last record.
    pub(super) last: u64,
    /// Answers that wait for records.
    owed: Vec<(u64, Caller, Sent, Answer)>,
    /// Requests that wait for those who were called.
    calling: Vec<Calling>,
    /// Names those.
    rounds: u64,
    /// Who waited for whom when it was last looked, here and on other hosts.
    pub(super) waits: Vec<Wait>,
    /// Who waits, in the order in which they came: what the law of fairness knows.
    pub(crate) arrivals: Vec<law::locks::Arrival>,
}

impl Reign {
    /// The first owner's.
    #[must_use]
    pub fn first(committed: &MemView, plant: Option<Plant>) -> Self {
        Self {
            owner: 0,
            life: 1,
            epoch: Epoch(1),
            view: committed.clone(),
            queue: LockQueue::default().with_plant(plant),
            answers: Answers::default(),
            last: 0,
            owed: Vec::new(),
            calling: Vec::new(),
            rounds: 0,
            waits: Vec::new(),
            arrivals: Vec::new(),
        }
    }
}

/// The sessions that the tables name.
fn known(view: &mut MemView) -> LockSessions {
    lock_sessions(view, HERE).unwrap_or_default()
}

impl Locks {
    pub(super) fn serve(&mut self, host: usize, caller: Caller, request: Request) {
        let (op, sent) = (request.op, request.sent());
        if (host, self.life(host)) != (self.reign.owner, self.reign.life) {
            return self.reply_from(host, caller, sent, Answer::Elsewhere);
        }
        let reign = &mut self.reign;
        let seen = reign
            .answers
            .seen(&mut reign.view, HERE, request.session, op);
        match seen {
            Ok(Seen::Answered(bytes)) => {
                self.note(Mark::Repeated);
                let result = postcard::from_bytes(&bytes).unwrap_or(Err(Errno::EIO));
                return self.owe(caller, sent, Answer::Done(result));
            }
            Ok(Seen::Never) => {}
            // Nobody waits for it.
            Ok(Seen::Running | Seen::TooLate | Seen::Refused(_)) | Err(_) => return,
        }
        match &request.what {
            What::Locks(operation) => {
                let before = Before {
                    asked: Asked::First,
                    since: self.now,
                };
                self.lock(caller, &request, operation, &before);
            }
            What::Write(inode, lock) => self.write(caller, &request, *inode, *lock),
        }
    }

    fn write(&mut self, caller: Caller, request: &Request, inode: InodeId, lock: FileLock) {
        let session = request.session;
        if self.reign.queue.keeps_out(inode, session) {
            self.note(Mark::Fenced);
            return self.owe(caller, request.sent(), Answer::Done(Err(Errno::EIO)));
        }
        law::locks::on_write(self, session, inode, &lock);
        self.note(Mark::Wrote);
        self.order(Batch::default(), Some((request, Ok(Reply::Done))));
        self.owe(caller, request.sent(), Answer::Done(Ok(Reply::Done)));
    }

    fn lock(&mut self, caller: Caller, request: &Request, operation: &Op, before: &Before) {
        let (now, session) = (self.tick(), request.session);
        let reign = &mut self.reign;
        let view = &mut reign.view;
        let admitted = reign
            .queue
            .admit(now, session, (operation, &before.asked), |inode| {
                held_locks(view, inode)
            });
        self.log(6, self.reign.owner, || {
            format!("{session} {}: {operation:?}: {admitted:?}", request.op)
        });
        law::locks::on_asked(self, session, operation, &admitted);
        law::locks::on_waits(self, session, operation);
        let result = match admitted {
            Ok(Admission::Run) => return self.run(caller, request, operation, before.since),
            Ok(Admission::RunAndCall(owners)) => {
                for (session, id) in kept_by(operation, &owners) {
                    self.call_for(session, id, None);
                }
                return self.run(caller, request, operation, before.since);
            }
            Ok(Admission::CallFirst(owners)) => {
                return self.call_first(caller, request, &owners, before.since);
            }
            Ok(Admission::Answered(result)) => {
                self.note(Mark::Behind);
                result
            }
            Ok(Admission::Gone(errno)) => {
                self.note(Mark::Deadlock);
                self.look(operation, &Reply::Done);
                Err(errno)
            }
            Err(refusal) => return self.accuse("locks", refusal.to_string()),
        };
        self.owe(caller, request.sent(), Answer::Done(result));
    }

    /// Asks hosts for locks that they may only keep, before somebody who does not wait is answered.
    fn call_first(&mut self, caller: Caller, request: &Request, owners: &[LockOwner], since: u64) {
        let What::Locks(operation) = &request.what else {
            return;
        };
        if self.now > since + CALLS_US {
            return self.reply(caller, request.sent(), Answer::Elsewhere);
        }
        let calls = kept_by(operation, owners);
        let reign = &mut self.reign;
        reign.rounds += 1;
        let name = CallId {
            epoch: reign.epoch,
            round: reign.rounds,
        };
        reign.calling.push(Calling {
            name,
            caller,
            request: Box::new(request.clone()),
            run: reign.answers.begin(request.session, request.op),
            awaited: calls.iter().copied().collect(),
            users: BTreeSet::new(),
            since,
        });
        for (session, id) in calls {
            self.call_for(session, id, Some(name));
        }
        self.after(ANSWER_US, Event::Silence(name));
    }

    fn call_for(&mut self, session: SessionId, id: KeptId, name: Option<CallId>) {
        self.tell(self.reign.owner, session, Word::Call(id, name));
    }

    fn serves(&self, epoch: Epoch) -> bool {
        let owner = self.reign.owner;
        epoch == self.reign.epoch && self.is_up(owner) && self.life(owner) == self.reign.life
    }

    fn place_of(&self, call: CallId) -> Option<usize> {
        let mut calling = self.reign.calling.iter();
        let place = calling.position(|calling| calling.name == call);
        place.filter(|_| self.serves(call.epoch))
    }

    /// A host says what becomes of a lock that was called for.
    pub(super) fn fate_told(&mut self, call: CallId, of: (SessionId, KeptId), fate: Fate) {
        let Some(place) = self.place_of(call) else {
            return;
        };
        let calling = &mut self.reign.calling[place];
        if calling.awaited.remove(&of) && fate == Fate::Stays {
            let (session, KeptId { owner, .. }) = of;
            calling.users.insert(LockOwner { session, owner });
        }
        if calling.awaited.is_empty() {
            self.go_on(place);
        }
    }

    /// Somebody who was called has not answered: what the others say counts.
    pub(super) fn silent(&mut self, call: CallId) {
        if let Some(place) = self.place_of(call) {
            self.note(Mark::Silent);
            self.go_on(place);
        }
    }

    fn go_on(&mut self, place: usize) {
        let Calling {
            caller,
            request,
            run,
            users,
            since,
            ..
        } = self.reign.calling.remove(place);
        self.reign.answers.end(run);
        let before = Before {
            asked: Asked::Called(users),
            since,
        };
        if let What::Locks(operation) = &request.what {
            self.lock(caller, &request, operation, &before);
        }
    }

    fn run(&mut self, caller: Caller, request: &Request, operation: &Op, since: u64) {
        let result = self.execute(operation, Some(request));
        law::locks::on_refused(self, (request.session, operation), &result, since);
        let ends = matches!(operation, Op::EndCover { .. });
        let early = match ends {
            true => self.planted(Plant::EndNotReplicated),
            false => self.planted(Plant::GrantNotReplicated),
        };
        let granted = ends || matches!(result, Ok(Reply::Granted(_)));
        let answer = Answer::Done(result);
        if early && granted {
            return self.reply(caller, request.sent(), answer);
        }
        self.owe(caller, request.sent(), answer);
    }

    fn execute(&mut self, operation: &Op, request: Option<&Request>) -> Result<Reply, Errno> {
        let epoch = match self.planted(Plant::TokenUsedAgain) {
            true => Epoch(1),
            false => self.reign.epoch,
        };
        let context = Context {
            grant: self.reign.queue.next_grant(epoch),
            ..Context::default()
        };
        let outcome = match perigee_meta::execute(operation, &context, &mut self.reign.view) {
            Ok(outcome) => outcome,
            Err(Refusal::Errno(errno)) => return Err(errno),
            Err(refusal) => {
                self.accuse("locks", refusal.to_string());
                return Err(Errno::EIO);
            }
        };
        let reply = outcome.reply;
        if let Reply::Granted(token) = reply {
            law::locks::on_granted(self, token);
        }
        if let Some(batch) = outcome.batches.get(&HERE) {
            let kept = request.map(|request| (request, Ok(reply.clone())));
            self.order(batch.clone(), kept);
        }
        self.look(operation, &reply);
        Ok(reply)
    }

    /// Tells those whose turn has come by an operation.
    fn look(&mut self, operation: &Op, reply: &Reply) {
        let now = self.tick();
        for inode in self.reign.queue.ran(operation, reply) {
            let Ok(held) = held_locks(&mut self.reign.view, inode) else {
                return;
            };
            for ticket in self.reign.queue.changed(now, inode, &held) {
                self.tell(self.reign.owner, ticket.session, Word::Turn(ticket.wait));
            }
        }
    }

    /// Puts a record into the log, with an answer that is kept.
    fn order(&mut self, mut batch: Batch, kept: Option<(&Request, Result<Reply, Errno>)>) {
        if let Some((request, result)) = kept {
            let bytes = postcard::to_stdvec(&result).unwrap_or_default();
            let (session, op) = (request.session, request.op);
            let answers = &mut self.reign.answers;
            answers.keep(session, op, request.answered_through, &bytes, &mut batch);
        }
        self.reign.view.apply(HERE, &batch);
        self.uncommitted.push_back(batch);
        self.reign.last += 1;
        let (epoch, seq) = (self.reign.epoch, self.reign.last);
        let most = [3_000, 3_000, 3_000, 300_000][self.rng.below(4) as usize];
        let soon = 500 + self.rng.below(most);
        self.after(soon, Event::Commit { epoch, seq });
    }

    /// Answers when all that was ordered so far is committed.
    fn owe(&mut self, caller: Caller, asked: Sent, answer: Answer) {
        let last = self.reign.last;
        if last <= self.base {
            return self.reply(caller, asked, answer);
        }
        self.reign.owed.push((last, caller, asked, answer));
    }

    pub(super) fn commit(&mut self, epoch: Epoch, seq: u64) {
        let owner = self.reign.owner;
        let serves = self.is_up(owner) && self.life(owner) == self.reign.life;
        if epoch != self.reign.epoch || seq <= self.base || !serves {
            return;
        }
        let mut others = (0..self.hosts.len()).filter(|host| *host != owner && self.is_up(*host));
        if others.any(|other| !self.reach(owner, other)) {
            // It waits for a member, or is cut off itself.
            return self.after(50_000, Event::Commit { epoch, seq });
        }
        while self.base < seq {
            if let Some(batch) = self.uncommitted.pop_front() {
                self.committed.apply(HERE, &batch);
            }
            self.base += 1;
        }
        let owed = std::mem::take(&mut self.reign.owed);
        let (due, later) = owed.into_iter().partition(|(last, ..)| *last <= seq);
        self.reign.owed = later;
        let due: Vec<(u64, Caller, Sent, Answer)> = due;
        for (_, caller, asked, answer) in due {
            self.reply(caller, asked, answer);
        }
    }

    /// Another host becomes the owner, with what is committed and some of the rest.
    pub(super) fn take_over(&mut self, heir: usize) {
        self.note(Mark::Takeover);
        let survive = self.rng.below(self.uncommitted.len() as u64 + 1);
        for _ in 0..survive {
            if let Some(batch) = self.uncommitted.pop_front() {
                self.committed.apply(HERE, &batch);
            }
        }
        if !self.uncommitted.is_empty() {
            self.note(Mark::Truncated);
        }
        self.uncommitted.clear();
        if self.planted(Plant::LocksEndWithOwner) {
            let state = self.committed.states.entry(HERE).or_default();
            state.retain(|key, _| key.first() != Some(&b'l'));
        }
        let epoch = Epoch(self.reign.epoch.0 + 1);
        self.log(3, heir, || format!("owns in {epoch}"));
        self.base += survive;
        self.reign = Reign {
            owner: heir,
            life: self.life(heir),
            epoch,
            last: self.base,
            ..Reign::first(&self.committed, self.plant)
        };
        let reign = &mut self.reign;
        let answers = std::mem::take(&mut reign.answers);
        reign.answers = answers.restore(&mut reign.view, HERE).unwrap_or_default();
        let fences = match self.planted(Plant::FencesNotRestored) {
            true => LockSessions::default().fences,
            false => known(&mut self.reign.view).fences,
        };
        self.reign.queue.begin_reign(fences);
        law::locks::survive(self);
    }

    /// The owner asks hosts whose sessions are still there, and ends the locks of those that are not.
    pub(super) fn end_lost_sessions(&mut self) {
        let known = known(&mut self.reign.view);
        let mut by_host: BTreeMap<usize, Vec<SessionId>> = BTreeMap::new();
        for session in known.holders.union(&known.fences.sessions()) {
            let host = host_of(session.node());
            by_host.entry(host).or_default().push(*session);
        }
        for (host, sessions) in by_host {
            let presence = self.presence(host);
            for (session, end) in lost(&sessions, &known.holders, &presence) {
                self.end_session(session, end);
            }
        }
    }

    fn presence(&self, host: usize) -> Presence {
        let lives = self.lives(host) && !self.planted(Plant::SilentSessionEnds);
        match &self.hosts[host].session {
            Some(session) if self.reach(self.reign.owner, host) => {
                Presence::Answers(vec![session.id])
            }
            _ if lives => Presence::Silent,
            _ => Presence::Gone,
        }
    }

    fn end_session(&mut self, session: SessionId, end: SessionEnd) {
        let forgotten = self.planted(Plant::EndedLockForgotten);
        let container = HERE;
        law::locks::on_end(self, session, end);
        let operation = match end {
            SessionEnd::WithoutItsWord if !forgotten => {
                self.note(Mark::Expired);
                Op::ExpireSession { container, session }
            }
            SessionEnd::WithoutItsWord | SessionEnd::Over => {
                self.note(Mark::Released);
                Op::ReleaseSession {
                    container,
                    session,
                    leftovers: Leftovers::Perhaps,
                }
            }
        };
        self.log(4, self.reign.owner, || format!("{operation:?}"));
        // The next round tries again.
        _ = self.execute(&operation, None);
    }
}
