//! Operations over several containers: this node as coordinator and as participant.
//!
//! [`perigee_meta::tx::Transactions`] decides; this asks the other owners, orders the records, and says what may be said.

use super::execute::{Owed, Request, Told, changes, is_relied_on, takes_room};
use super::hold::{Passed, Shows};
use super::in_force::Unsaid;
use super::view::{Foreign, owner_view};
use super::{After, Answer, Container, Elsewhere, Failed, State};
use bytes::Bytes;
use perigee_meta::tx::{
    Count, Intent, Known, Plan, Step, Tell, Transactions, Turn, Verdict, Vote, When,
};
use perigee_meta::{Answers, Outcome, Refusal, Reply, RunId, Touched, View};
use perigee_proto::message::tx::{
    AskDecision, Decided, Keys, Prepare, Prepared, ReadKeys, Resolve,
};
use perigee_replica::chunk::Access;
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, SessionId, Tick, TxId, Version};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, error, warn};

/// How long an operation over several containers may try.
const PATIENCE: Duration = Duration::from_secs(20);
/// The first and the longest pause after a conflict.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The session of nobody: what a transaction touches is forgotten by every mount.
const NOBODY: SessionId = SessionId(0);

/// What one run of an operation came to.
enum Next {
    /// More has to be read at other containers.
    Fetch,
    /// Another transaction is in the way.
    Wait,
    /// Other sessions keep what is to be changed.
    Recall(Owed),
    /// The policies of this directory are another container's to tell.
    Policy(InodeId),
    /// Parts of these files belong to other members.
    Call(Vec<(InodeId, Access)>),
    Answer(Box<Result<Told, Errno>>, Owed),
    Prepare(Box<(Plan, Outcome)>),
}

/// How far a part of another's transaction came.
enum Preparing {
    /// Other sessions keep what is to be changed.
    Recall(Owed),
    /// It is voted on: the last record that the vote depends on, and what else stands before it.
    Done(Step<Vote>, Version, Owed),
}

impl State {
    /// Takes back, before a change of `session` is ordered, what other sessions keep of what it touches.
    pub(super) fn recall(&mut self, now: Tick, session: SessionId, touched: Vec<Touched>) -> Owed {
        Owed {
            revoke: self.leases.recall(now, session, &touched),
            touched,
            ..Owed::default()
        }
    }
}

impl Container {
    /// Runs an operation that needs other containers, or has to wait, until it succeeds, fails or takes too long.
    pub(super) async fn execute_spanning(
        self: Arc<Self>,
        request: Request,
        run: Option<RunId>,
        foreign: Foreign,
        answer: Answer<Told>,
    ) {
        let me = self.clone();
        let operation = request.operation.clone();
        // A transaction that has begun goes on when the program has stopped waiting: it holds keys.
        let attempt = self.env.runtime.spawn(async move {
            let result = me.attempt(&request, run, foreign).await;
            if let Some(run) = run {
                me.state.lock().answers.end(run);
            }
            result
        });
        let result = match tokio::time::timeout(PATIENCE, attempt).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Failed::Errno(Errno::EIO)),
        };
        if let Ok(told) = &result {
            self.locks_changed_apart(&operation, &told.reply);
        }
        answer(result);
    }

    async fn attempt(
        self: &Arc<Self>,
        request: &Request,
        run: Option<RunId>,
        mut foreign: Foreign,
    ) -> Result<Told, Failed> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = PAUSE.0;
        let mut passed = Passed::default();
        while Instant::now() < deadline {
            self.fetch(&mut foreign).await?;
            match self.turn(request, run, &mut foreign, &passed)? {
                Next::Fetch => continue,
                Next::Answer(result, owed) => {
                    // What was read elsewhere must have been so at the moment of the turn.
                    let mut later = foreign.again();
                    self.fetch(&mut later).await?;
                    if foreign.agrees(&later) {
                        self.pay(owed).await?;
                        return (*result).map_err(Failed::Errno);
                    }
                }
                Next::Prepare(prepared) => {
                    let (plan, outcome) = *prepared;
                    if let Some(reply) = self.transact(request, plan, outcome).await? {
                        let as_of = self.state.lock().chain.last();
                        return Ok(Told::unkept(reply, as_of));
                    }
                }
                Next::Recall(owed) => {
                    self.pay(owed).await?;
                    continue;
                }
                Next::Policy(directory) => {
                    crate::in_force::ask(&self.env, directory).await?;
                    continue;
                }
                Next::Call(held) => {
                    for (inode, access) in held {
                        let whole = ByteRange::ALL;
                        let chunks = self.pass_holders(inode, whole, access, Vec::new()).await?;
                        passed.chunks.extend(chunks);
                        self.take_in_unseen(inode).await?;
                        passed.files.push(inode);
                    }
                    continue;
                }
                Next::Wait => {}
            }
            foreign = Foreign::default();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        Err(Errno::EIO.into())
    }

    /// Reads at other owners what the last run lacked.
    async fn fetch(self: &Arc<Self>, foreign: &mut Foreign) -> Result<(), Failed> {
        for (container, wanted) in std::mem::take(&mut foreign.wanted) {
            let request = ReadKeys {
                container,
                gets: wanted.gets.clone(),
                scans: wanted
                    .scans
                    .iter()
                    .map(|(from, to, limit)| (from.clone(), to.clone(), *limit as u32))
                    .collect(),
            };
            let keys = crate::router::read_keys(&self.env, &request).await?;
            let gets = keys.gets.into_iter().map(|value| value.map(Bytes::from));
            for (key, value) in wanted.gets.into_iter().zip(gets) {
                foreign.gets.insert((container, key), value);
            }
            for (scan, rows) in wanted.scans.into_iter().zip(keys.scans) {
                let rows = rows
                    .into_iter()
                    .map(|(key, value)| (key.into(), value.into()));
                foreign.scans.insert((container, scan), rows.collect());
            }
        }
        Ok(())
    }

    /// Runs the operation once on what is known.
    fn turn(
        self: &Arc<Self>,
        request: &Request,
        run: Option<RunId>,
        foreign: &mut Foreign,
        passed: &Passed,
    ) -> Result<Next, Failed> {
        let mut after = After::default();
        let file = match request.operation.data_inode() {
            Some(inode) => Some(
                self.file(inode)
                    .map_err(|error| self.store_refused(&error))?,
            ),
            None => None,
        };
        let still = file.as_ref().map(|file| file.still.write());
        let next = {
            let mut st = self.lock_kept(file.as_deref(), &request.operation)?;
            self.turn_now(&mut st, request, run, foreign, passed, &mut after)
        };
        drop(still);
        after.run();
        next
    }

    fn turn_now(
        self: &Arc<Self>,
        st: &mut State,
        request: &Request,
        run: Option<RunId>,
        foreign: &mut Foreign,
        passed: &Passed,
        after: &mut After,
    ) -> Result<Next, Failed> {
        let local = request.session.node() == self.env.me;
        let now = self.env.clock.now();
        let (epoch, until) = Self::reign(st, now)?;
        // In a later reign, a repeat of it may have been executed.
        if !run.is_none_or(|run| st.answers.is_running(run)) {
            return Err(Elsewhere::NotReady.into());
        }
        if changes(&request.operation) && now < st.changes_from {
            return Ok(Next::Wait);
        }
        if let Some(errno) = Self::refused_for_locks(st, request) {
            return Ok(Next::Answer(Box::new(Err(errno)), Owed::default()));
        }
        self.record_all_writes(st);
        let context = match self.context(st, (epoch, now), request) {
            Ok(context) => context,
            Err(Unsaid(directory)) => return Ok(Next::Policy(directory)),
        };
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, foreign);
        view.reads = Some(Vec::new());
        let ran = perigee_meta::execute(&request.operation, &context, &mut view);
        let (latest, reads) = (view.latest, view.reads.take().unwrap_or_default());
        if let Some(failed) = view.failed.take() {
            return Err(self.store_refused(&failed).into());
        }
        let turn = st.transactions.judge(&reads, foreign, ran);
        let relied_on = match &turn {
            Turn::Answer(Ok(outcome)) => is_relied_on(&request.operation, &outcome.reply),
            _ => false,
        };
        let owed = Owed {
            commit: st.before_telling(local && !relied_on, latest),
            ..Owed::default()
        };
        if let Turn::Answer(Ok(outcome)) | Turn::Alone(outcome) | Turn::Spans(outcome) = &turn {
            let (session, op) = (request.session, &request.operation);
            let held = st.held_up(session, op, &outcome.reply, passed, Shows::Recorded);
            if !held.is_empty() {
                return Ok(Next::Call(held));
            }
        }
        Ok(match turn {
            Turn::Fetch => Next::Fetch,
            Turn::Wait => Next::Wait,
            Turn::Answer(result) => {
                if let Ok(outcome) = &result {
                    st.note_hole(request.session, &outcome.reply, local);
                }
                let last = st.chain.last();
                Next::Answer(
                    Box::new(result.map(|outcome| Told::unkept(outcome.reply, last))),
                    owed,
                )
            }
            Turn::Corrupt(corrupt) => {
                error!(container = %self.id, %corrupt, "state is corrupt");
                return Err(Errno::EIO.into());
            }
            Turn::Alone(outcome) | Turn::Spans(outcome)
                if st.leases.is_kept(now, request.session, &outcome.touched) =>
            {
                Next::Recall(st.recall(now, request.session, outcome.touched))
            }
            Turn::Alone(outcome) => {
                let local = local && !self.is_abroad(&outcome.reply);
                let done = self.conclude(st, now, until, request, local, latest, outcome, after);
                Next::Answer(Box::new(done.result), done.owed)
            }
            Turn::Spans(_) if takes_room(&request.operation) && !self.env.store.has_room() => {
                Next::Answer(Box::new(Err(Errno::ENOSPC)), owed)
            }
            Turn::Spans(mut outcome) => {
                let batches = std::mem::take(&mut outcome.batches);
                let read_set = foreign.read_set();
                let plan = st.transactions.begin(epoch, &reads, &read_set, batches);
                Next::Prepare(Box::new((plan, outcome)))
            }
        })
    }

    /// Prepares at the participants, decides, and has them do it. `None`: run the operation again.
    async fn transact(
        self: &Arc<Self>,
        request: &Request,
        plan: Plan,
        outcome: Outcome,
    ) -> Result<Option<Reply>, Failed> {
        let votes = plan.intents.iter().map(|(container, intent)| {
            let prepare = Prepare {
                container: *container,
                intent: intent.clone(),
            };
            async move {
                let vote = match crate::router::prepare(&self.env, &prepare).await {
                    Ok(Prepared::Yes) => Vote::Yes,
                    Ok(Prepared::Conflict) | Err(_) => Vote::No,
                };
                let mut st = self.state.lock();
                st.transactions.vote(plan.tx, *container, vote);
            }
        });
        futures_util::future::join_all(votes).await;
        let (step, decision, owed) = match self.decide(request, &plan, &outcome) {
            Ok(Some(decided)) => decided,
            refused => {
                let tell = self.state.lock().transactions.abandon(&plan);
                self.tell(&tell).await;
                return refused.map(|_| None);
            }
        };
        // From here on only the log knows how it ended.
        self.wait(step.when, decision).await?;
        self.pay(owed).await?;
        self.tell(&step.say).await;
        Ok(Some(outcome.reply))
    }

    /// Orders the decision together with this container's part, when all have voted for it.
    fn decide(
        self: &Arc<Self>,
        request: &Request,
        plan: &Plan,
        outcome: &Outcome,
    ) -> Result<Option<(Step<Tell>, Version, Owed)>, Failed> {
        let mut owed = Owed::default();
        let decided = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if st.transactions.count(plan.tx) != Count::Unanimous {
                return Ok(None);
            }
            let (epoch, _) = Self::reign(&st, now)?;
            let Some(mut batch) = st.transactions.decide(plan.tx, epoch) else {
                return Err(Elsewhere::NotReady.into());
            };
            Self::remember(&mut st, request, &outcome.reply, &mut batch);
            self.carry_out(&mut st, &batch)
                .map_err(|error| self.store_refused(&error))?;
            let seq = self.order(&mut st, now, batch, true)?;
            let step = st.transactions.decided(now, plan.tx);
            let touched = outcome.touched.clone();
            self.owe_leases(&mut st, now, request.session, touched, &mut owed);
            (step, st.chain.version_at(seq))
        };
        Ok(Some((decided.0, decided.1, owed)))
    }

    /// Waits until something may be said. `record`: the last one that it depends on.
    async fn wait(&self, when: When, record: Version) -> Result<(), Elsewhere> {
        match when {
            When::Now => Ok(()),
            When::Replicated => self.committed(record).await,
        }
    }

    /// Tells the participants how a transaction ended. A decision that all have confirmed is removed.
    async fn tell(self: &Arc<Self>, tell: &Tell) {
        let tells = tell.participants.iter().map(|container| {
            let resolve = Resolve {
                container: *container,
                tx: tell.tx,
                commit: tell.verdict == Verdict::Commit,
            };
            async move {
                match crate::router::resolve(&self.env, &resolve).await {
                    Ok(()) => self.confirmed(tell.tx, *container),
                    Err(failed) => debug!(tx = %tell.tx, ?failed, "participant has not confirmed"),
                }
            }
        });
        futures_util::future::join_all(tells).await;
        if tell.participants.is_empty() {
            self.confirmed(tell.tx, self.id);
        }
    }

    /// A participant has ended its part.
    fn confirmed(&self, tx: TxId, from: ContainerId) {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        if Self::reign(&st, now).is_ok()
            && let Some(batch) = st.transactions.confirmed(tx, from)
            && let Err(elsewhere) = self.order(&mut st, now, batch, false)
        {
            debug!(%tx, %elsewhere, "decision stays until the next owner removes it");
        }
    }

    /// Reads keys for another owner's operation; waits while a transaction holds one exclusively.
    pub(crate) async fn read_keys(self: &Arc<Self>, request: &ReadKeys) -> Result<Keys, Failed> {
        let deadline = tokio::time::Instant::now() + PATIENCE / 2;
        loop {
            if let Some((keys, latest)) = self.read_keys_now(request)? {
                self.committed(latest).await?;
                return Ok(keys);
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Elsewhere::NotReady.into());
            }
            tokio::time::sleep(PAUSE.0).await;
        }
    }

    fn read_keys_now(&self, request: &ReadKeys) -> Result<Option<(Keys, Version)>, Failed> {
        use perigee_meta::View;
        let mut st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        self.record_all_writes(&mut st);
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        view.reads = Some(Vec::new());
        let mut keys = Keys {
            gets: Vec::new(),
            scans: Vec::new(),
        };
        for key in &request.gets {
            let value = view.get(self.id, key).map_err(|_| Errno::EIO)?;
            keys.gets.push(value.map(|value| value.to_vec()));
        }
        for (from, to, limit) in &request.scans {
            let rows = view
                .scan(self.id, from, to, *limit as usize)
                .map_err(|_| Errno::EIO)?;
            keys.scans.push(
                rows.into_iter()
                    .map(|(key, value)| (key.to_vec(), value.to_vec()))
                    .collect(),
            );
        }
        let (latest, reads) = (view.latest, view.reads.take().unwrap_or_default());
        if let Some(failed) = view.failed.take() {
            return Err(self.store_refused(&failed).into());
        }
        if st.transactions.hides(&reads) {
            return Ok(None);
        }
        Ok(Some((keys, st.chain.version_at(latest))))
    }

    /// Prepares this container's part of another's transaction.
    pub(crate) async fn prepare(self: &Arc<Self>, intent: &Intent) -> Result<Prepared, Failed> {
        let deadline = Instant::now() + PATIENCE;
        let (step, record, owed) = loop {
            match self.prepare_now(intent)? {
                Preparing::Done(step, record, owed) => break (step, record, owed),
                // What is called back is waited for in any case: until then nobody gets a lease.
                Preparing::Recall(owed) => self.pay(owed).await?,
            }
            if Instant::now() > deadline {
                return Err(Elsewhere::NotReady.into());
            }
        };
        let (told, recorded) = tokio::join!(self.pay(owed), self.wait(step.when, record));
        told.and(recorded)?;
        Ok(match step.say {
            Vote::Yes => Prepared::Yes,
            Vote::No => Prepared::Conflict,
        })
    }

    /// Once this part is prepared the others may show theirs: nobody may keep what was before any more.
    fn prepare_now(self: &Arc<Self>, intent: &Intent) -> Result<Preparing, Failed> {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        if now < st.changes_from {
            return Err(Elsewhere::NotReady.into());
        }
        self.record_all_writes(&mut st);
        let touched = self.with_view(&mut st, |transactions, view| {
            transactions.touched(view, intent)
        })?;
        if st.leases.is_kept(now, NOBODY, &touched) {
            return Ok(Preparing::Recall(st.recall(now, NOBODY, touched)));
        }
        let step = self.with_view(&mut st, |transactions, view| {
            transactions.prepare(now, view, intent)
        })?;
        let mut owed = Owed::default();
        if let Some(record) = &step.record {
            self.order(&mut st, now, record.clone(), true)?;
            owed.tell_all_but = Some(NOBODY);
            owed.touched = touched;
        }
        Ok(Preparing::Done(step, st.chain.last(), owed))
    }

    /// Has the transactions decide something on what the container holds.
    fn with_view<T>(
        &self,
        st: &mut State,
        decide: impl FnOnce(&mut Transactions, &mut dyn View) -> Result<T, Refusal>,
    ) -> Result<T, Failed> {
        let mut foreign = Foreign::default();
        let State {
            transactions,
            overlay,
            ..
        } = st;
        let mut view = owner_view(self.id, overlay, &self.env.store, &mut foreign);
        let decided = decide(transactions, &mut view);
        if let Some(failed) = view.failed {
            return Err(self.store_refused(&failed).into());
        }
        decided.map_err(|refusal| {
            error!(container = %self.id, %refusal, "record of a transaction unreadable");
            Errno::EIO.into()
        })
    }

    /// Ends this container's part of a transaction.
    pub(crate) async fn resolve(self: &Arc<Self>, tx: TxId, commit: bool) -> Result<(), Failed> {
        let verdict = if commit {
            Verdict::Commit
        } else {
            Verdict::Abort
        };
        let (when, record) = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            let step = self.with_view(&mut st, |transactions, view| {
                transactions.end(view, tx, verdict)
            })?;
            let mut seq = st.chain.last().seq;
            if let Some(record) = &step.record {
                self.carry_out(&mut st, record)
                    .map_err(|error| self.store_refused(&error))?;
                seq = self.order(&mut st, now, record.clone(), true)?;
            }
            st.transactions.ended(tx);
            (step.when, st.chain.version_at(seq))
        };
        self.wait(when, record).await.map_err(Failed::from)
    }

    /// Answers a participant in doubt.
    pub(crate) async fn decision(self: &Arc<Self>, tx: TxId) -> Result<Decided, Failed> {
        let (step, last) = {
            let mut st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            let step = self.with_view(&mut st, |transactions, view| {
                transactions.decision(view, tx)
            })?;
            (step, st.chain.last())
        };
        self.wait(step.when, last).await?;
        let commit = match step.say {
            Known::Open => None,
            Known::Ended(verdict) => Some(verdict == Verdict::Commit),
        };
        Ok(Decided { commit })
    }

    /// A reign begins: finds the transactions and answers that earlier owners have left.
    pub(super) fn restore_transactions(&self, st: &mut State) {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let transactions = Transactions::new(self.id).restore(&mut view);
        let answers = std::mem::take(&mut st.answers).restore(&mut view, self.id);
        let failed = view.failed;
        st.transactions = transactions.unwrap_or_else(|refusal| {
            error!(container = %self.id, %refusal, "transactions unreadable");
            Transactions::new(self.id)
        });
        st.answers = answers.unwrap_or_else(|refusal| {
            error!(container = %self.id, %refusal, "kept answers unreadable");
            Answers::default()
        });
        if let Some(failed) = failed {
            error!(container = %self.id, %failed, "transactions unreadable");
        }
    }

    /// Asks about transactions that were prepared here and not ended for long, and tells participants again that have not
    /// confirmed.
    pub(crate) async fn settle_transactions(self: &Arc<Self>) {
        let (doubts, untold, last) = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if Self::reign(&st, now).is_err() {
                return;
            }
            let untold = st.transactions.untold(now);
            (st.transactions.doubts(now), untold, st.chain.last())
        };
        if !untold.say.is_empty() {
            let me = self.clone();
            self.env.runtime.spawn(async move {
                if me.wait(untold.when, last).await.is_ok() {
                    for tell in &untold.say {
                        me.tell(tell).await;
                    }
                }
            });
        }
        for tx in doubts {
            match crate::router::decision(&self.env, &AskDecision { tx }).await {
                Ok(Decided {
                    commit: Some(commit),
                }) => {
                    if let Err(failed) = self.resolve(tx, commit).await {
                        warn!(%tx, ?failed, "transaction in doubt not ended");
                    }
                }
                Ok(Decided { commit: None }) => {}
                Err(failed) => debug!(%tx, ?failed, "no decision yet"),
            }
        }
    }
}
