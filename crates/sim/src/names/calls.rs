//! Questions to the owner of a container, wherever it is: asked again until one answers or patience ends, as the
//! daemon's router does.

use super::host::Packet;
use super::leases::Asking;
use super::world::{Event, Names};
use perigee_meta::owner_view::Wanted;
use perigee_meta::tx::{Intent, Known, Verdict, Vote};
use perigee_meta::{Context, Op, Reply};
use perigee_types::{ContainerId, Errno, OpId, SessionId, Span, TxId};

/// Names a question, everywhere and for good.
pub type CallId = u64;

/// How long one question waits for its answer before it is sent again.
const CALL_US: u64 = 1_500_000;
/// How often a question looks whether the owner is another one now.
const LOOK_US: u64 = 100_000;
/// The pause after a refusal.
const PAUSE_US: u64 = 20_000;
/// How long owners are asked.
const PATIENCE_US: u64 = 7_000_000;
/// How long a session asks.
const SESSION_PATIENCE_US: u64 = 10_000_000;

/// A session's operation.
#[derive(Debug, Clone)]
pub struct Request {
    pub(crate) session: SessionId,
    pub(crate) op: OpId,
    pub(crate) answered_through: OpId,
    pub(crate) context: Context,
    pub(crate) operation: Op,
    /// Whether another host was asked before.
    pub(crate) sent: bool,
}

/// What an owner is asked.
#[derive(Debug, Clone)]
pub enum Asked {
    /// To run a session's operation.
    Execute(Request),
    /// For rows.
    Read(Wanted),
    /// To prepare its part.
    Prepare(Intent),
    /// To end its part.
    End(TxId, Verdict),
    /// How a transaction ended.
    Decision(TxId),
}

/// What an owner answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Not the owner, or not now.
    Elsewhere,
    /// Of an operation, and for how long the session may keep it.
    Executed(Result<Reply, Errno>, Span),
    /// Rows, in the order of the question.
    Rows(Fetched),
    /// Of a part.
    Voted(Vote),
    /// The part has ended.
    Ended,
    /// Of a decision.
    Known(Known),
}

/// Rows of another container.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    pub(super) gets: Vec<Option<bytes::Bytes>>,
    pub(super) scans: Vec<Vec<(bytes::Bytes, bytes::Bytes)>>,
}

/// What the answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// An attempt lacked rows.
    Fetch(u64),
    /// An attempt wants a vote.
    Vote(u64, ContainerId),
    /// A participant was told; an attempt may wait for it.
    Told(TxId, Option<u64>),
    /// This container has a part in doubt.
    Doubt(ContainerId, TxId),
    /// The session of that number.
    Session(usize),
}

/// Who has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub(super) host: usize,
    pub(super) call: CallId,
    /// How often it was sent before: only the last one is still listened to.
    pub(super) round: u32,
}

/// A question that is not answered.
#[derive(Debug, Clone)]
pub struct Call {
    container: ContainerId,
    asked: Asked,
    reason: For,
    deadline: u64,
    /// Whom it was sent to last, and when.
    sent: Option<(usize, u64)>,
    round: u32,
    /// Of a session: when it was sent last.
    asking: Asking,
    /// It is not looked at before.
    due: u64,
}

impl Call {
    /// Whether its answer is for this.
    pub(super) fn is_for(&self, reason: For) -> bool {
        self.reason == reason
    }
}

impl Names {
    /// Asks a container's owner.
    pub(super) fn ask(&mut self, host: usize, container: ContainerId, asked: Asked, reason: For) {
        let call = self.fresh_id();
        let patience = match reason {
            For::Session(_) => SESSION_PATIENCE_US,
            _ => PATIENCE_US,
        };
        let pending = Call {
            container,
            asked,
            reason,
            deadline: self.now + patience,
            sent: None,
            round: 0,
            asking: self.asking(host, reason),
            due: self.now,
        };
        self.process(host).calls.insert(call, pending);
        self.look(host, call);
    }

    /// Sends a question if it is due, or gives it up.
    pub(super) fn look(&mut self, host: usize, call: CallId) {
        let now = self.now;
        let Some(pending) = self.process(host).calls.get_mut(&call) else {
            return;
        };
        if now < pending.due {
            return;
        }
        if now > pending.deadline {
            let reason = pending.reason;
            self.process(host).calls.remove(&call);
            return self.unanswered(host, reason);
        }
        let (container, reason) = (pending.container, pending.reason);
        let sent = pending.sent;
        self.look_later(host, call, LOOK_US);
        let Some(owner) = self.known_owner(host, container) else {
            return;
        };
        let asking = self.asking(host, reason);
        // What runs on this host answers for sure.
        let waits = sent.is_some_and(|(to, at)| to == host || (to == owner && now < at + CALL_US));
        if waits {
            return;
        }
        let Some(pending) = self.process(host).calls.get_mut(&call) else {
            return;
        };
        pending.asking = Asking {
            owner: Some(owner),
            ..asking
        };
        pending.sent = Some((owner, now));
        pending.round += 1;
        let asked = pending.asked.clone();
        let round = pending.round;
        let origin = Origin { host, call, round };
        if let Asked::Execute(request) = &mut pending.asked {
            request.sent |= owner != host;
        }
        if owner == host {
            self.serve(host, origin, container, asked);
        } else {
            self.send(host, owner, Packet::Ask(origin, container, asked));
        }
    }

    /// When a session asks, and what it was told to forget by then.
    fn asking(&mut self, host: usize, reason: For) -> Asking {
        let at = self.local(host);
        let revision = match reason {
            For::Session(session) => self.process(host).sessions[session].cache.revision,
            _ => 0,
        };
        Asking {
            at,
            owner: None,
            revision,
        }
    }

    fn look_later(&mut self, host: usize, call: CallId, delay: u64) {
        let due = self.now + delay;
        if let Some(pending) = self.process(host).calls.get_mut(&call) {
            pending.due = due;
        }
        let life = self.hosts[host].incarnation;
        self.at(due, Event::Look { host, life, call });
    }

    /// Who owns a container, as a host knows.
    fn known_owner(&self, host: usize, container: ContainerId) -> Option<usize> {
        let process = self.hosts[host].run.as_ref()?;
        let member = process.members.get(&container)?;
        let owner = member.chain.view()?.owner()?;
        Some(crate::world::host_of(owner))
    }

    /// Answers a question.
    pub(super) fn reply(&mut self, host: usize, origin: Origin, answer: Answer) {
        if origin.host >= self.hosts.len() {
            return;
        }
        if origin.host == host {
            return self.answered(host, origin, answer);
        }
        let leased = matches!(answer, Answer::Executed(_, ttl) if ttl > Span::ZERO);
        self.send(host, origin.host, Packet::Answer(origin, answer));
        if leased {
            self.aim_at_lease(host, origin.host);
        }
    }

    /// An answer has come.
    pub(super) fn answered(&mut self, host: usize, origin: Origin, answer: Answer) {
        let call = origin.call;
        let process = self.process(host);
        let Some(pending) = process.calls.get_mut(&call) else {
            return;
        };
        if pending.round != origin.round {
            return;
        }
        if matches!(answer, Answer::Elsewhere) {
            pending.sent = None;
            return self.look_later(host, call, PAUSE_US);
        }
        let Some(done) = process.calls.remove(&call) else {
            return;
        };
        match (done.reason, answer) {
            (For::Fetch(attempt), Answer::Rows(rows)) => {
                if let Asked::Read(wanted) = done.asked {
                    self.fetched(host, attempt, done.container, wanted, rows);
                }
            }
            (For::Vote(attempt, container), Answer::Voted(vote)) => {
                self.voted(host, attempt, container, vote);
            }
            (For::Told(tx, attempt), Answer::Ended) => {
                self.confirmed(host, tx, done.container);
                self.told(host, attempt);
            }
            (For::Doubt(container, tx), Answer::Known(known)) => {
                self.doubt_answered(host, container, tx, known);
            }
            (For::Session(session), Answer::Executed(result, ttl)) => {
                self.session_answered(host, session, Some((result, done.asking, ttl)));
            }
            (reason, _) => self.unanswered(host, reason),
        }
    }

    /// Nobody has answered in time.
    fn unanswered(&mut self, host: usize, reason: For) {
        match reason {
            For::Fetch(attempt) => self.give_up(host, attempt),
            For::Vote(attempt, container) => self.voted(host, attempt, container, Vote::No),
            For::Told(_, attempt) => self.told(host, attempt),
            For::Doubt(..) => {}
            For::Session(session) => self.session_answered(host, session, None),
        }
    }
}
