//! One operation over several containers, at its coordinator: reads what it lacks, has the others prepare, decides, and
//! tells them, as `perigee_node` does in one task.

use super::Mark;
use super::calls::{Answer, Asked, Fetched, For, Origin, Request};
use super::chain::Haste;
use super::host::Then;
use super::session::changes;
use super::world::{Event, Names};
use crate::law;
use perigee_meta::owner_view::{Foreign, Wanted};
use perigee_meta::tx::{Count, Plan, Tell, Turn, Verdict, Vote};
use perigee_meta::{Outcome, Plant, Reply, RunId};
use perigee_types::{ContainerId, Errno, Seq, Span, TxId, Version};

/// The first and the longest pause after a conflict.
const PAUSE_US: (u64, u64) = (2_000, 50_000);
/// How long an operation may try.
const PATIENCE_US: u64 = 9_000_000;

/// See the module.
pub struct Attempt {
    container: ContainerId,
    request: Request,
    /// Of a change.
    run: Option<RunId>,
    origin: Origin,
    foreign: Foreign,
    /// An answer that waits until what it has read elsewhere was read again.
    found: Option<Found>,
    /// Questions without an answer.
    missing: usize,
    plan: Option<(Plan, Outcome)>,
    /// What the program gets once the participants are told.
    reply: Option<Reply>,
    pause: u64,
    deadline: u64,
}

/// An answer that changes nothing, and what it depends on.
struct Found {
    result: Result<Reply, Errno>,
    foreign: Foreign,
    latest: Seq,
    depends: Version,
    place: usize,
}

impl Names {
    pub(super) fn attempt(
        &mut self,
        host: usize,
        origin: Origin,
        container: ContainerId,
        request: Request,
        foreign: Foreign,
    ) {
        let id = self.fresh_id();
        let answers = &mut self.member(host, container).answers;
        let run = changes(&request.operation);
        let run = run.then(|| answers.begin(request.session, request.op));
        let attempt = Attempt {
            container,
            request,
            run,
            origin,
            foreign,
            found: None,
            missing: 0,
            plan: None,
            reply: None,
            pause: PAUSE_US.0,
            deadline: self.now + PATIENCE_US,
        };
        self.process(host).attempts.insert(id, attempt);
        self.fetch(host, id);
    }

    /// Reads at other owners what the last run lacked, or runs the operation.
    fn fetch(&mut self, host: usize, id: u64) {
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        let wanted = std::mem::take(&mut attempt.foreign.wanted);
        attempt.missing = wanted.len();
        if wanted.is_empty() {
            return self.turn(host, id);
        }
        for (container, wanted) in wanted {
            self.ask(host, container, Asked::Read(wanted), For::Fetch(id));
        }
    }

    pub(super) fn fetched(
        &mut self,
        host: usize,
        id: u64,
        container: ContainerId,
        wanted: Wanted,
        rows: Fetched,
    ) {
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        for (key, value) in wanted.gets.into_iter().zip(rows.gets) {
            attempt.foreign.gets.insert((container, key), value);
        }
        for (scan, found) in wanted.scans.into_iter().zip(rows.scans) {
            attempt.foreign.scans.insert((container, scan), found);
        }
        attempt.missing -= 1;
        if attempt.missing == 0 {
            self.turn(host, id);
        }
    }

    /// Ends an attempt with an answer.
    fn finish(&mut self, host: usize, id: u64, answer: Answer) {
        if let Some(attempt) = self.close(host, id) {
            self.reply(host, attempt.origin, answer);
        }
    }

    /// An attempt goes no further.
    fn close(&mut self, host: usize, id: u64) -> Option<Attempt> {
        let attempt = self.process(host).attempts.remove(&id)?;
        if let Some(run) = attempt.run {
            self.member(host, attempt.container).answers.end(run);
        }
        Some(attempt)
    }

    /// An attempt takes too long.
    pub(super) fn give_up(&mut self, host: usize, id: u64) {
        self.finish(host, id, Answer::Executed(Err(Errno::EIO), Span::ZERO));
    }

    /// The owner is another one now.
    pub(super) fn lost(&mut self, host: usize, id: u64) {
        self.finish(host, id, Answer::Elsewhere);
    }

    fn again_later(&mut self, host: usize, id: u64) {
        let jitter = self.rng.below(1_000);
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        attempt.foreign = Foreign::default();
        attempt.plan = None;
        let pause = attempt.pause;
        attempt.pause = (pause * 2).min(PAUSE_US.1);
        let life = self.hosts[host].incarnation;
        let turn = Event::Turn {
            host,
            life,
            attempt: id,
        };
        self.after(pause + jitter, turn);
    }

    /// Runs the operation once on what is known.
    pub(super) fn turn(&mut self, host: usize, id: u64) {
        let now = self.now;
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        if now > attempt.deadline {
            return self.give_up(host, id);
        }
        let (container, request, run) = (attempt.container, attempt.request.clone(), attempt.run);
        let (found, mut foreign) = (attempt.found.take(), std::mem::take(&mut attempt.foreign));
        let Some(epoch) = self.reign(host, container) else {
            return self.lost(host, id);
        };
        let answers = &self.member(host, container).answers;
        if !run.is_none_or(|run| answers.is_running(run)) {
            return self.lost(host, id);
        }
        if let Some(found) = found {
            return self.was_so(host, id, &request, found, &foreign);
        }
        let ran = self.run_once(host, container, &request, &mut foreign);
        match ran.turn {
            Turn::Fetch => {
                self.put_back(host, id, foreign);
                self.fetch(host, id);
            }
            Turn::Wait => {
                self.note(Mark::Waited);
                self.again_later(host, id);
            }
            Turn::Corrupt(_) => self.give_up(host, id),
            Turn::Alone(_) | Turn::Spans(_) if self.is_quiet(host, container) => {
                self.again_later(host, id);
            }
            Turn::Answer(result) => {
                let found = Found {
                    result: result.map(|outcome| outcome.reply),
                    latest: ran.latest,
                    depends: self.depends(host, container, ran.latest),
                    place: self.history.executed.len(),
                    foreign,
                };
                self.read_again(host, id, found);
            }
            Turn::Alone(outcome) | Turn::Spans(outcome)
                if self.is_kept(host, container, request.session, &outcome.touched) =>
            {
                self.put_back(host, id, foreign);
                let (session, touched) = (request.session, outcome.touched);
                self.recall(host, container, session, touched, Then::Turn(id));
            }
            Turn::Alone(outcome) => {
                if let Some(attempt) = self.close(host, id) {
                    self.conclude(host, attempt.origin, container, &request, outcome);
                }
            }
            Turn::Spans(mut outcome) => {
                let batches = std::mem::take(&mut outcome.batches);
                let read_set = foreign.read_set();
                let transactions = &mut self.member(host, container).transactions;
                let plan = transactions.begin(epoch, &ran.reads, &read_set, batches);
                self.propose(host, id, plan, outcome);
            }
        }
    }

    /// What an answer has read elsewhere must have been so at the moment of its turn.
    fn read_again(&mut self, host: usize, id: u64, found: Found) {
        let trusting = self.planted(Plant::AnswerNotReadAgain);
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        attempt.foreign = found.foreign.again();
        if trusting {
            attempt.foreign.wanted.clear();
        }
        attempt.found = Some(found);
        self.fetch(host, id);
    }

    /// The rows were read again: answers, if they are the same.
    fn was_so(&mut self, host: usize, id: u64, request: &Request, found: Found, later: &Foreign) {
        if !found.foreign.agrees(later) && !self.planted(Plant::AnswerNotReadAgain) {
            self.note(Mark::Torn);
            return self.again_later(host, id);
        }
        let Some(attempt) = self.close(host, id) else {
            return;
        };
        let container = attempt.container;
        self.note_answer(
            container,
            request,
            &found.result,
            found.depends,
            found.place,
        );
        self.show(
            host,
            attempt.origin,
            container,
            request,
            (found.latest, Span::ZERO),
            found.result,
        );
    }

    fn put_back(&mut self, host: usize, id: u64, foreign: Foreign) {
        if let Some(attempt) = self.process(host).attempts.get_mut(&id) {
            attempt.foreign = foreign;
        }
    }

    /// Asks the participants to prepare.
    fn propose(&mut self, host: usize, id: u64, plan: Plan, outcome: Outcome) {
        self.log(32, host, || {
            let others: Vec<ContainerId> = plan.intents.iter().map(|(id, _)| *id).collect();
            format!("begins {} with {others:?}", plan.tx)
        });
        let intents = plan.intents.clone();
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        attempt.plan = Some((plan, outcome));
        if intents.is_empty() {
            return self.counted(host, id);
        }
        for (container, intent) in intents {
            let reason = For::Vote(id, container);
            self.ask(host, container, Asked::Prepare(intent), reason);
        }
    }

    pub(super) fn voted(&mut self, host: usize, id: u64, from: ContainerId, vote: Vote) {
        let Some(attempt) = self.process(host).attempts.get(&id) else {
            return;
        };
        let container = attempt.container;
        let Some(tx) = attempt.plan.as_ref().map(|(plan, _)| plan.tx) else {
            return;
        };
        let transactions = &mut self.member(host, container).transactions;
        if transactions.vote(tx, from, vote) != Count::Open {
            self.counted(host, id);
        }
    }

    /// All votes are there: decides, or has the operation run again.
    fn counted(&mut self, host: usize, id: u64) {
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        let container = attempt.container;
        let request = attempt.request.clone();
        let Some((plan, outcome)) = attempt.plan.take() else {
            return;
        };
        let unanimous =
            self.member(host, container).transactions.count(plan.tx) == Count::Unanimous;
        let epoch = self.reign(host, container);
        let transactions = &self.member(host, container).transactions;
        let decided = epoch.filter(|_| unanimous);
        let decided = decided.and_then(|epoch| transactions.decide(plan.tx, epoch));
        let Some(mut batch) = decided else {
            self.abandon(host, container, &plan);
            return if unanimous || epoch.is_none() {
                self.lost(host, id)
            } else {
                self.again_later(host, id)
            };
        };
        self.keep_answer(host, container, &request, &outcome.reply, &mut batch);
        let Some(version) = self.order(host, container, &batch, Haste::Urgent) else {
            self.abandon(host, container, &plan);
            return self.lost(host, id);
        };
        self.note_executed(container, &request, &outcome.reply, version);
        self.note_outcome(&plan, &request, &outcome);
        self.log(33, host, || format!("decides {}", plan.tx));
        let touched = outcome.touched.clone();
        let local = self.local(host);
        let step = self
            .member(host, container)
            .transactions
            .decided(local, plan.tx);
        if let Some(attempt) = self.process(host).attempts.get_mut(&id) {
            attempt.reply = Some(outcome.reply);
        }
        self.aim_at_transaction(host);
        let then = Then::Tell(step.say, Some(id));
        let due = (step.when, version.seq);
        self.pay(host, container, request.session, touched, due, then);
        law::cached::on_ordered(self);
    }

    fn abandon(&mut self, host: usize, container: ContainerId, plan: &Plan) {
        self.note(Mark::Abandoned);
        self.log(34, host, || format!("abandons {}", plan.tx));
        let tell = self.member(host, container).transactions.abandon(plan);
        self.tell(host, container, tell, None);
    }

    /// Tells the participants how a transaction ended.
    pub(super) fn tell(
        &mut self,
        host: usize,
        container: ContainerId,
        tell: Tell,
        attempt: Option<u64>,
    ) {
        if let Some(id) = attempt
            && let Some(attempt) = self.process(host).attempts.get_mut(&id)
        {
            attempt.missing = tell.participants.len();
        }
        if tell.participants.is_empty() {
            if tell.verdict == Verdict::Commit {
                self.confirmed(host, tell.tx, container);
            }
            if let Some(id) = attempt {
                self.answer(host, id);
            }
            return;
        }
        for participant in tell.participants {
            let end = Asked::End(tell.tx, tell.verdict);
            self.ask(host, participant, end, For::Told(tell.tx, attempt));
        }
    }

    /// A participant has ended its part, or cannot be reached.
    pub(super) fn told(&mut self, host: usize, attempt: Option<u64>) {
        let Some(id) = attempt else { return };
        let Some(attempt) = self.process(host).attempts.get_mut(&id) else {
            return;
        };
        attempt.missing -= 1;
        if attempt.missing == 0 {
            self.answer(host, id);
        }
    }

    fn answer(&mut self, host: usize, id: u64) {
        let attempt = self.process(host).attempts.get_mut(&id);
        let Some(reply) = attempt.and_then(|attempt| attempt.reply.take()) else {
            return;
        };
        self.finish(host, id, Answer::Executed(Ok(reply), Span::ZERO));
    }

    /// A participant has confirmed.
    pub(super) fn confirmed(&mut self, host: usize, tx: TxId, from: ContainerId) {
        let container = tx.container;
        if self.reign(host, container).is_none() {
            return;
        }
        let transactions = &mut self.member(host, container).transactions;
        if let Some(batch) = transactions.confirmed(tx, from) {
            self.order(host, container, &batch, Haste::None);
        }
    }
}
