//! What an owner is asked: as `perigee_node` does it, without its locks and waiting.

use super::Mark;
use super::calls::{Answer, Asked, Fetched, For, Origin, Request};
use super::chain::Haste;
use super::history::Executed;
use super::host::{Committed, Member, Then};
use super::session::{changes, session_host};
use super::world::{Event, Names};
use crate::law;
use perigee_meta::owner_view::{Foreign, Read, Wanted};
use perigee_meta::tx::{Intent, Known, Turn, Verdict, Vote, When};
use perigee_meta::{Comes, Outcome, OwnerView, Plant, Refusal, Reply, Seen, View};
use perigee_types::{Batch, ContainerId, Errno, Seq, SessionId, Span, TxId, Version};

/// How long a reader waits before it looks again whether a key is free.
const LOCKED_US: u64 = 4_000;

/// The session of nobody: every session is to forget what a transaction of others changes.
const NOBODY: SessionId = SessionId(0);

/// What one run of an operation came to.
pub(super) struct Ran {
    pub(super) turn: Turn,
    /// What it read of its own container.
    pub(super) reads: Vec<Read>,
    /// The latest record that it depends on.
    pub(super) latest: Seq,
}

impl Names {
    /// An owner is asked something.
    pub(super) fn serve(
        &mut self,
        host: usize,
        origin: Origin,
        container: ContainerId,
        asked: Asked,
    ) {
        if self.reign(host, container).is_none() {
            return self.reply(host, origin, Answer::Elsewhere);
        }
        match asked {
            Asked::Execute(request) => self.execute(host, origin, container, request),
            Asked::Read(wanted) => self.read_rows(host, origin, container, wanted),
            Asked::Prepare(intent) => self.prepare(host, origin, container, &intent),
            Asked::End(tx, verdict) => {
                if self.end_part(host, container, (tx, verdict), Some(origin)) {
                    return;
                }
                self.reply(host, origin, Answer::Elsewhere);
            }
            Asked::Decision(tx) => self.decision(host, origin, container, tx),
        }
    }

    /// Whether leases that an earlier process gave may stand, so that nothing may change.
    pub(super) fn is_quiet(&mut self, host: usize, container: ContainerId) -> bool {
        let now = self.local(host);
        now < self.member(host, container).changes_from
    }

    /// Whether the session is of this host: it sees its own effects at once.
    pub(super) fn is_home(host: usize, request: &Request) -> bool {
        session_host(request.session) == host
    }

    /// The answer to an operation that was executed before, or comes too late.
    pub(super) fn repeated(
        &mut self,
        host: usize,
        container: ContainerId,
        request: &Request,
    ) -> Option<Answer> {
        if !changes(&request.operation) {
            return None;
        }
        let member = self.member(host, container);
        let through = request.answered_through;
        member.answers.hear(request.session, through);
        let seen = with_view(member, |answers, view| {
            answers.seen(view, container, request.session, request.op)
        });
        match seen {
            Ok(Seen::Never) => None,
            Ok(Seen::Running) => {
                self.note(Mark::Running);
                Some(Answer::Elsewhere)
            }
            Ok(Seen::TooLate) => Some(Answer::Executed(Err(Errno::EIO), Span::ZERO)),
            Ok(Seen::Refused(errno)) => Some(Answer::Executed(Err(errno), Span::ZERO)),
            Ok(Seen::Answered(bytes)) => {
                self.note(Mark::Repeated);
                let reply = postcard::from_bytes(&bytes).map_err(|_| Errno::EIO);
                Some(Answer::Executed(reply, Span::ZERO))
            }
            Err(_) => Some(Answer::Executed(Err(Errno::EIO), Span::ZERO)),
        }
    }

    /// Runs an operation once on what is known.
    pub(super) fn run_once(
        &mut self,
        host: usize,
        container: ContainerId,
        request: &Request,
        foreign: &mut Foreign,
    ) -> Ran {
        let member = self.member(host, container);
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, foreign);
        view.reads = Some(Vec::new());
        let ran = perigee_meta::execute(&request.operation, &request.context, &mut view);
        let (latest, reads) = (view.latest, view.reads.take().unwrap_or_default());
        let turn = member.transactions.judge(&reads, foreign, ran);
        if let Turn::Corrupt(refusal) = &turn {
            let what = format!("n{}: {refusal}", host + 1);
            self.accuse("namespace", what);
        }
        Ran {
            turn,
            reads,
            latest,
        }
    }

    fn execute(&mut self, host: usize, origin: Origin, container: ContainerId, request: Request) {
        if self
            .process(host)
            .debts
            .values()
            .any(|debt| debt.is_of(origin))
        {
            // A connection carries a call once, and whoever repeats it to the same process waits for the same answer.
            return self.reply(host, origin, Answer::Elsewhere);
        }
        if let Some(answer) = self.repeated(host, container, &request) {
            if self.planted(Plant::RepeatNotReplicated) {
                return self.reply(host, origin, answer);
            }
            let last = self.member(host, container).chain.last().seq;
            return self.when_committed(host, container, last, Then::Answer(origin, answer));
        }
        let mut foreign = Foreign::default();
        let ran = self.run_once(host, container, &request, &mut foreign);
        let quiet = self.is_quiet(host, container);
        match ran.turn {
            Turn::Alone(_) | Turn::Spans(_) if quiet => self.reply(host, origin, Answer::Elsewhere),
            Turn::Fetch | Turn::Wait | Turn::Spans(_) => {
                self.attempt(host, origin, container, request, foreign);
            }
            Turn::Corrupt(_) => {
                self.reply(host, origin, Answer::Executed(Err(Errno::EIO), Span::ZERO))
            }
            Turn::Answer(result) => {
                let result = result.map(|outcome| outcome.reply);
                let depends = self.depends(host, container, ran.latest);
                let place = self.history.executed.len();
                self.note_answer(container, &request, &result, depends, place);
                let ttl = self.grant(host, container, &request);
                self.show(host, origin, container, &request, (ran.latest, ttl), result);
            }
            Turn::Alone(outcome)
                if self.is_kept(host, container, request.session, &outcome.touched) =>
            {
                self.attempt(host, origin, container, request, foreign);
            }
            Turn::Alone(outcome) => self.conclude(host, origin, container, &request, outcome),
        }
    }

    /// Answers an operation that changed nothing, when what it saw may be seen.
    pub(super) fn show(
        &mut self,
        host: usize,
        origin: Origin,
        container: ContainerId,
        request: &Request,
        (latest, ttl): (Seq, Span),
        result: Result<Reply, Errno>,
    ) {
        let home = Self::is_home(host, request);
        let comes = Self::comes(home, request);
        let member = self.member(host, container);
        let again = comes == Comes::HomeAgain && member.answers.must_keep(comes);
        if again && changes(&request.operation) {
            // It is told so for good.
            let mut batch = Batch::default();
            match &result {
                Ok(reply) => self.keep_answer(host, container, request, reply, &mut batch),
                Err(errno) => {
                    let (session, op) = (request.session, request.op);
                    let through = request.answered_through;
                    let answers = &mut member.answers;
                    answers.keep_refusal(session, op, through, *errno, &mut batch);
                    self.note(Mark::RefusedForGood);
                }
            }
            let then = Then::Answer(origin, Answer::Executed(result, ttl));
            return match self.order(host, container, &batch, Haste::Urgent) {
                Some(version) => self.when_committed(host, container, version.seq, then),
                None => self.reply(host, origin, Answer::Elsewhere),
            };
        }
        let answer = Answer::Executed(result, ttl);
        if home {
            return self.reply(host, origin, answer);
        }
        self.when_committed(host, container, latest, Then::Answer(origin, answer));
    }

    /// Orders what this container alone carries, and answers.
    pub(super) fn conclude(
        &mut self,
        host: usize,
        origin: Origin,
        container: ContainerId,
        request: &Request,
        mut outcome: Outcome,
    ) {
        let home = Self::is_home(host, request);
        let mut batch = outcome.batches.remove(&container).unwrap_or_default();
        let comes = Self::comes(home, request);
        if self.member(host, container).answers.must_keep(comes) {
            self.keep_answer(host, container, request, &outcome.reply, &mut batch);
        }
        let haste = if home { Haste::None } else { Haste::Urgent };
        let Some(version) = self.order(host, container, &batch, haste) else {
            return self.reply(host, origin, Answer::Elsewhere);
        };
        self.note(Mark::Alone);
        self.note_executed(container, request, &outcome.reply, version);
        let ttl = self.grant(host, container, request);
        let answer = Answer::Executed(Ok(outcome.reply), ttl);
        let when = if home { When::Now } else { When::Replicated };
        if home {
            self.note(Mark::Home);
        }
        let then = Then::Answer(origin, answer);
        let due = (when, version.seq);
        self.pay(host, container, request.session, outcome.touched, due, then);
        law::cached::on_ordered(self);
    }

    fn comes(home: bool, request: &Request) -> Comes {
        match (home, request.sent) {
            (false, _) => Comes::Abroad,
            (true, false) => Comes::Home,
            (true, true) => Comes::HomeAgain,
        }
    }

    pub(super) fn keep_answer(
        &mut self,
        host: usize,
        container: ContainerId,
        request: &Request,
        reply: &Reply,
        batch: &mut Batch,
    ) {
        let bytes = postcard::to_stdvec(reply).unwrap_or_default();
        let answers = &mut self.member(host, container).answers;
        let (session, op) = (request.session, request.op);
        answers.keep(session, op, request.answered_through, &bytes, batch);
    }

    /// The history gets a change.
    pub(super) fn note_executed(
        &mut self,
        container: ContainerId,
        request: &Request,
        reply: &Reply,
        version: Version,
    ) {
        self.history.executed.push(Executed {
            container,
            session: request.session,
            op: request.op,
            operation: request.operation.clone(),
            context: request.context,
            result: Ok(reply.clone()),
            record: Some(version),
            depends: version,
            place: self.history.executed.len(),
        });
    }

    /// The latest record that an operation has seen.
    pub(super) fn depends(&mut self, host: usize, container: ContainerId, latest: Seq) -> Version {
        let member = self.member(host, container);
        let mut entries = member.chain.entries(latest, latest);
        entries.next().map_or(Version::default(), |e| e.version)
    }

    /// The history gets an answer that changes nothing.
    pub(super) fn note_answer(
        &mut self,
        container: ContainerId,
        request: &Request,
        result: &Result<Reply, Errno>,
        depends: Version,
        place: usize,
    ) {
        self.history.executed.push(Executed {
            container,
            session: request.session,
            op: request.op,
            operation: request.operation.clone(),
            context: request.context,
            result: result.clone(),
            record: None,
            depends,
            place,
        });
    }

    /// Rows for another owner's operation; waits while a transaction is about to change one.
    fn read_rows(&mut self, host: usize, origin: Origin, container: ContainerId, wanted: Wanted) {
        let member = self.member(host, container);
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        view.reads = Some(Vec::new());
        let mut rows = Fetched::default();
        for key in &wanted.gets {
            rows.gets.push(view.get(container, key).unwrap_or_default());
        }
        for (from, to, limit) in &wanted.scans {
            let found = view.scan(container, from, to, *limit);
            rows.scans.push(found.unwrap_or_default());
        }
        let (latest, reads) = (view.latest, view.reads.take().unwrap_or_default());
        if member.transactions.hides(&reads) {
            let life = self.hosts[host].incarnation;
            let asked = Asked::Read(wanted);
            let again = Event::Serve {
                host,
                life,
                origin,
                container,
                asked: Box::new(asked),
            };
            return self.after(LOCKED_US, again);
        }
        if self.planted(Plant::ForeignReadNotReplicated) {
            return self.reply(host, origin, Answer::Rows(rows));
        }
        let then = Then::Answer(origin, Answer::Rows(rows));
        self.when_committed(host, container, latest, then);
    }

    fn prepare(&mut self, host: usize, origin: Origin, container: ContainerId, intent: &Intent) {
        if self.is_quiet(host, container) {
            return self.reply(host, origin, Answer::Elsewhere);
        }
        let local = self.local(host);
        let member = self.member(host, container);
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let touched = match member.transactions.touched(&mut view, intent) {
            Ok(touched) => touched,
            Err(refusal) => return self.accuse("namespace", refusal.to_string()),
        };
        let leases = &self.member(host, container).leases;
        if leases.is_kept(local, NOBODY, &touched) {
            let again = Then::Serve(origin, Box::new(Asked::Prepare(intent.clone())));
            return self.recall(host, container, NOBODY, touched, again);
        }
        let member = self.member(host, container);
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let step = match member.transactions.prepare(local, &mut view, intent) {
            Ok(step) => step,
            Err(refusal) => return self.accuse("namespace", refusal.to_string()),
        };
        self.log(30, host, || {
            format!("{container} {}: {:?}", intent.tx, step.say)
        });
        if step.say == Vote::No {
            self.note(Mark::Conflict);
        } else {
            self.aim_at_transaction(host);
        }
        let answer = Answer::Voted(step.say);
        self.take(host, container, step.record, step.when, origin, answer);
    }

    /// Orders the record of a step, and answers when it may be said.
    fn take(
        &mut self,
        host: usize,
        container: ContainerId,
        record: Option<Batch>,
        when: When,
        origin: Origin,
        answer: Answer,
    ) {
        let mut last = self.member(host, container).chain.last().seq;
        if let Some(record) = record {
            match self.order(host, container, &record, Haste::Urgent) {
                Some(version) => last = version.seq,
                None => return self.reply(host, origin, Answer::Elsewhere),
            }
        }
        self.say(host, container, (when, last), origin, answer);
    }

    /// Answers when it may be said.
    fn say(
        &mut self,
        host: usize,
        container: ContainerId,
        (when, last): (When, Seq),
        origin: Origin,
        answer: Answer,
    ) {
        match when {
            When::Now => self.reply(host, origin, answer),
            When::Replicated => {
                self.when_committed(host, container, last, Then::Answer(origin, answer));
            }
        }
    }

    /// Ends this container's part of a transaction. Says whether it did.
    pub(super) fn end_part(
        &mut self,
        host: usize,
        container: ContainerId,
        (tx, verdict): (TxId, Verdict),
        origin: Option<Origin>,
    ) -> bool {
        let member = self.member(host, container);
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let step = match member.transactions.end(&mut view, tx, verdict) {
            Ok(step) => step,
            Err(refusal) => {
                self.accuse("namespace", refusal.to_string());
                return false;
            }
        };
        let mut last = member.chain.last().seq;
        if let Some(record) = &step.record {
            match self.order(host, container, record, Haste::Urgent) {
                Some(version) => last = version.seq,
                None => return false,
            }
            self.log(31, host, || {
                format!("{container} ends {}", super::host::word(tx, verdict))
            });
        }
        self.member(host, container).transactions.ended(tx);
        // Nobody waits for the end of a part in doubt.
        if let Some(origin) = origin {
            self.say(host, container, (step.when, last), origin, Answer::Ended);
        }
        true
    }

    fn decision(&mut self, host: usize, origin: Origin, container: ContainerId, tx: TxId) {
        let member = self.member(host, container);
        let mut foreign = Foreign::default();
        let base = Committed(&member.rows);
        let mut view = OwnerView::new(container, &member.overlay, base, &mut foreign);
        let step = match member.transactions.decision(&mut view, tx) {
            Ok(step) => step,
            Err(refusal) => return self.accuse("namespace", refusal.to_string()),
        };
        let answer = Answer::Known(step.say);
        self.take(host, container, None, step.when, origin, answer);
    }

    /// Asks about parts in doubt, and tells participants again that have not confirmed.
    pub(super) fn settle_transactions(&mut self, host: usize, container: ContainerId) {
        if self.reign(host, container).is_none() {
            return;
        }
        let local = self.local(host);
        let member = self.member(host, container);
        let doubts = member.transactions.doubts(local);
        let untold = member.transactions.untold(local);
        let last = member.chain.last().seq;
        for tell in untold.say {
            self.when_committed(host, container, last, Then::Tell(tell, None));
        }
        for tx in doubts {
            let reason = For::Doubt(container, tx);
            let calls = &self.process(host).calls;
            if calls.values().any(|call| call.is_for(reason)) {
                continue;
            }
            self.note(Mark::InDoubt);
            self.ask(host, tx.container, Asked::Decision(tx), reason);
        }
    }

    pub(super) fn doubt_answered(
        &mut self,
        host: usize,
        container: ContainerId,
        tx: TxId,
        known: Known,
    ) {
        let Known::Ended(verdict) = known else { return };
        self.note(match verdict {
            Verdict::Commit => Mark::DoubtCommitted,
            Verdict::Abort => Mark::DoubtAborted,
        });
        if self.reign(host, container).is_some() {
            self.end_part(host, container, (tx, verdict), None);
        }
    }
}

/// Looks at the answers that a member keeps.
fn with_view(
    member: &Member,
    look: impl FnOnce(&perigee_meta::Answers, &mut dyn View) -> Result<Seen, Refusal>,
) -> Result<Seen, Refusal> {
    let mut foreign = Foreign::default();
    let id = member.transactions.container();
    let mut view = OwnerView::new(id, &member.overlay, Committed(&member.rows), &mut foreign);
    look(&member.answers, &mut view)
}
