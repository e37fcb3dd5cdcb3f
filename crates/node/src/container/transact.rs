//! Operations over several containers: this node as coordinator and as participant.
//!
//! The protocol is [`perigee_meta::tx`]'s. The coordinator's own part is held in memory until the
//! decision's record carries it: a crash before that record is an abort.

use super::execute::{Owed, Request, changes};
use super::view::{Foreign, OwnerView};
use super::{After, Answer, Container, Elsewhere, Failed, State, store_errno};
use bytes::Bytes;
use perigee_meta::tx::{self, Conflict, Decision, Intent, KeyLock, ReadSet};
use perigee_meta::{Context, Key, Op, Outcome, Refusal, Reply, Touched};
use perigee_proto::message::tx::{
    AskDecision, Decided, Keys, Prepare, Prepared, ReadKeys, Resolve,
};
use perigee_types::{Batch, ContainerId, Epoch, Errno, InodeId, Seq, SessionId, Span, Tick, TxId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, warn};

/// How long an operation over several containers may try.
const PATIENCE: Duration = Duration::from_secs(20);
/// The first and the longest pause after a conflict.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// A transaction in doubt for longer asks its coordinator.
const DOUBT: Span = Span::from_millis(1_000);

/// The session of nobody: what a transaction touches is forgotten by every mount.
const NOBODY: SessionId = SessionId(0);

/// Keys that transactions hold at an owner.
#[derive(Default)]
pub(super) struct Held {
    keys: BTreeMap<Vec<u8>, Vec<(TxId, KeyLock)>>,
    /// Prepared here for another container's transaction, since when.
    doubts: BTreeMap<TxId, Tick>,
    /// Coordinated here, not decided.
    coordinating: BTreeSet<TxId>,
    next: u64,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether an inode's record is held, so that writes to it must not become a record now.
    pub(super) fn holds_inode(&self, inode: InodeId) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(&Key::Inode(inode.index()).encode())
    }

    /// Whether reading `reads` or changing what `batch` changes must wait for a transaction.
    pub(super) fn blocks(&self, reads: &[(Vec<u8>, Option<Bytes>)], batch: Option<&Batch>) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let exclusive = |key: &[u8]| {
            self.keys
                .get(key)
                .is_some_and(|held| held.iter().any(|(_, lock)| *lock == KeyLock::Exclusive))
        };
        reads.iter().any(|(key, _)| exclusive(key))
            || batch.is_some_and(|batch| {
                batch
                    .mutations
                    .iter()
                    .any(|mutation| self.keys.contains_key(&mutation.key))
            })
    }

    fn conflicts(&self, tx: TxId, wanted: &BTreeMap<Vec<u8>, KeyLock>) -> bool {
        wanted.iter().any(|(key, lock)| {
            self.keys.get(key).is_some_and(|held| {
                held.iter().any(|(other, theirs)| {
                    *other != tx && (*lock == KeyLock::Exclusive || *theirs == KeyLock::Exclusive)
                })
            })
        })
    }

    fn hold(&mut self, tx: TxId, wanted: BTreeMap<Vec<u8>, KeyLock>) {
        for (key, lock) in wanted {
            let held = self.keys.entry(key).or_default();
            if !held.iter().any(|(other, _)| *other == tx) {
                held.push((tx, lock));
            }
        }
    }

    fn release(&mut self, tx: TxId) {
        self.keys.retain(|_, held| {
            held.retain(|(other, _)| *other != tx);
            !held.is_empty()
        });
        self.doubts.remove(&tx);
        self.coordinating.remove(&tx);
    }
}

/// A transaction that is ready to be prepared at its participants.
struct Plan {
    tx: TxId,
    epoch: Epoch,
    own: Batch,
    intents: Vec<(ContainerId, Intent)>,
    outcome: Outcome,
}

/// What one run of an operation came to.
enum Turn {
    /// More has to be read at other containers.
    Fetch,
    /// Another transaction is in the way.
    Wait,
    Answer(Result<Reply, Errno>, Owed),
    Prepare(Box<Plan>),
}

impl Container {
    /// Runs an operation that needs other containers, until it succeeds, fails or takes too long.
    pub(super) async fn execute_spanning(
        self: Arc<Self>,
        request: Request,
        mut foreign: Foreign,
        answer: Answer<(Reply, Span)>,
    ) {
        if let Some(reply) = self.foreign_name(&request, &foreign) {
            return answer(reply);
        }
        let attempt = async {
            let mut pause = PAUSE.0;
            loop {
                self.fetch(&mut foreign).await?;
                let turn = self.turn(&request, &mut foreign)?;
                match turn {
                    Turn::Fetch => {}
                    Turn::Answer(result, owed) => {
                        self.pay(request.session, owed).await?;
                        return result.map_err(Failed::Errno);
                    }
                    Turn::Prepare(plan) => {
                        if let Some(reply) = self.transact(&request, *plan).await? {
                            return Ok(reply);
                        }
                        foreign = Foreign::default();
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE.1);
                    }
                    Turn::Wait => {
                        foreign = Foreign::default();
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE.1);
                    }
                }
            }
        };
        let result = match tokio::time::timeout(PATIENCE, attempt).await {
            Ok(result) => result,
            Err(_) => Err(Failed::Errno(Errno::EIO)),
        };
        if let Ok(reply) = &result {
            self.locks_changed_apart(&request.operation, reply);
        }
        answer(result.map(|reply| (reply, Span::ZERO)));
    }

    /// A lookup whose name leads into another container is answered with the inode's number: its
    /// attributes, and the lease on them, are that container's to give.
    fn foreign_name(
        &self,
        request: &Request,
        foreign: &Foreign,
    ) -> Option<Result<(Reply, Span), Failed>> {
        let Op::Lookup { parent, .. } = &request.operation else {
            return None;
        };
        let (container, wanted) = foreign.wanted.first_key_value()?;
        let Some(Key::Inode(index)) = wanted.gets.first().and_then(|key| Key::decode(key)) else {
            return None;
        };
        let now = self.env.clock.now();
        let mut st = self.state.lock();
        let until = match Self::reign(&st, now) {
            Ok((_, until)) => until,
            Err(elsewhere) => return Some(Err(elsewhere.into())),
        };
        let local = request.session.node() == self.env.me;
        if !local && st.chain.last().seq > st.chain.committed() {
            // Another host sees only what is replicated: the slow way waits for that.
            return None;
        }
        let limit = self.lease_limit(now, request.session, until);
        let ttl = st.leases.grant(now, *parent, request.session, limit);
        Some(Ok((
            Reply::Inodes(vec![InodeId::new(*container, index)]),
            ttl,
        )))
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
    fn turn(self: &Arc<Self>, request: &Request, foreign: &mut Foreign) -> Result<Turn, Failed> {
        let local = request.session.node() == self.env.me;
        let now = self.env.clock.now();
        let mut after = After::default();
        let mut st = self.state.lock();
        let (epoch, _) = Self::reign(&st, now)?;
        if changes(&request.operation) && now < st.changes_from {
            return Ok(Turn::Wait);
        }
        self.record_all_writes(&mut st, &mut after);
        let context = Context {
            now: self.env.clock.wall(),
            new_directory_in: request.new_directory_in,
        };
        let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, foreign);
        view.reads = Some(Vec::new());
        let ran = perigee_meta::execute(&request.operation, &context, &mut view);
        let (latest, reads) = (view.latest, view.reads.take().unwrap_or_default());
        if let Some(failed) = view.failed.take() {
            return Err(store_errno(&failed).into());
        }
        let own_batch = |outcome: &Outcome| outcome.batches.get(&self.id).cloned();
        let outcome = match ran {
            Ok(outcome) => outcome,
            Err(Refusal::Missing(_)) => return Ok(Turn::Fetch),
            Err(Refusal::Errno(errno)) => {
                if st.transactions.blocks(&reads, None) {
                    return Ok(Turn::Wait);
                }
                let commit = (!local && latest > st.chain.committed()).then_some(latest);
                let owed = Owed {
                    commit,
                    ..Owed::default()
                };
                return Ok(Turn::Answer(Err(errno), owed));
            }
            Err(corrupt @ Refusal::Corrupt { .. }) => {
                error!(container = %self.id, %corrupt, "state is corrupt");
                return Err(Errno::EIO.into());
            }
        };
        foreign.wanted.clear();
        if st.transactions.blocks(&reads, own_batch(&outcome).as_ref()) {
            return Ok(Turn::Wait);
        }
        if !changes(&request.operation) {
            let commit = (!local && latest > st.chain.committed()).then_some(latest);
            return Ok(Turn::Answer(
                Ok(outcome.reply),
                Owed {
                    commit,
                    ..Owed::default()
                },
            ));
        }
        Ok(self.plan(&mut st, epoch, request, &reads, foreign, outcome))
    }

    /// Divides an outcome among the containers, and holds this one's keys.
    fn plan(
        &self,
        st: &mut State,
        epoch: Epoch,
        request: &Request,
        reads: &[(Vec<u8>, Option<Bytes>)],
        foreign: &Foreign,
        mut outcome: Outcome,
    ) -> Turn {
        st.transactions.next += 1;
        let tx = TxId {
            container: self.id,
            epoch,
            count: st.transactions.next,
        };
        let mut own = outcome.batches.remove(&self.id).unwrap_or_default();
        if request.session.node() != self.env.me {
            self.remember(st, request, &outcome.reply, &mut own);
        }
        let mut read_set = ReadSet::default();
        for ((container, key), value) in &foreign.gets {
            read_set.note(*container, key, value.as_deref());
        }
        let read_by = read_set.by_container();
        let others: BTreeSet<ContainerId> = read_by
            .keys()
            .chain(outcome.batches.keys())
            .copied()
            .collect();
        let mut participants: Vec<ContainerId> = others.iter().copied().collect();
        participants.push(self.id);
        let intents = others
            .iter()
            .map(|container| {
                let intent = Intent {
                    tx,
                    coordinator: self.id,
                    participants: participants.clone(),
                    batch: outcome.batches.get(container).cloned().unwrap_or_default(),
                    reads: read_by.get(container).cloned().unwrap_or_default(),
                };
                (*container, intent)
            })
            .collect();
        let mut hold: BTreeMap<Vec<u8>, KeyLock> = reads
            .iter()
            .map(|(key, _)| (key.clone(), KeyLock::Shared))
            .collect();
        for mutation in &own.mutations {
            hold.insert(mutation.key.clone(), KeyLock::Exclusive);
        }
        st.transactions.hold(tx, hold);
        st.transactions.coordinating.insert(tx);
        Turn::Prepare(Box::new(Plan {
            tx,
            epoch,
            own,
            intents,
            outcome,
        }))
    }

    /// Prepares at the participants, decides, and has them do it. `None`: run the operation again.
    async fn transact(
        self: &Arc<Self>,
        request: &Request,
        plan: Plan,
    ) -> Result<Option<Reply>, Failed> {
        let Plan {
            tx,
            epoch,
            own,
            intents,
            outcome,
        } = plan;
        let votes = intents.iter().map(|(container, intent)| {
            let prepare = Prepare {
                container: *container,
                intent: intent.clone(),
            };
            async move { crate::router::prepare(&self.env, &prepare).await }
        });
        let votes = futures_util::future::join_all(votes).await;
        let participants: Vec<ContainerId> = intents.iter().map(|(id, _)| *id).collect();
        if !votes.iter().all(|vote| matches!(vote, Ok(Prepared::Yes))) {
            self.state.lock().transactions.release(tx);
            self.tell(tx, false, &participants, &[]).await;
            return Ok(None);
        }
        let decided = self.decide(request.session, tx, epoch, own, &participants, &outcome);
        let (seq, owed) = match decided {
            Ok(decided) => decided,
            Err(failed) => {
                self.state.lock().transactions.release(tx);
                self.tell(tx, false, &participants, &[]).await;
                return Err(failed);
            }
        };
        // From here on only the log knows how it ended.
        self.committed(seq).await?;
        let told = self.tell(tx, true, &participants, &outcome.touched);
        let (all, paid) = tokio::join!(told, self.pay(request.session, owed));
        paid?;
        if all {
            self.forget_decision(tx);
        }
        Ok(Some(outcome.reply))
    }

    /// Orders the decision together with this container's part.
    fn decide(
        self: &Arc<Self>,
        session: SessionId,
        tx: TxId,
        epoch: Epoch,
        mut own: Batch,
        participants: &[ContainerId],
        outcome: &Outcome,
    ) -> Result<(Seq, Owed), Failed> {
        let mut after = After::default();
        let mut owed = Owed::default();
        let seq = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            let (current, _) = Self::reign(&st, now)?;
            if current != epoch || !st.transactions.coordinating.contains(&tx) {
                return Err(Elsewhere::NotReady.into());
            }
            let decision = Decision::Commit {
                participants: participants.to_vec(),
            };
            own.mutations.extend(tx::decide(tx, decision).mutations);
            self.carry_out(&own).map_err(|error| store_errno(&error))?;
            let seq = self.order(&mut st, now, &own, true)?;
            st.transactions.release(tx);
            let touched = outcome.touched.clone();
            self.owe_leases(&mut st, now, session, touched, &mut owed, &mut after);
            seq
        };
        after.run();
        Ok((seq, owed))
    }

    /// Tells the participants how a transaction ended; says whether all have confirmed.
    async fn tell(
        self: &Arc<Self>,
        tx: TxId,
        commit: bool,
        participants: &[ContainerId],
        touched: &[Touched],
    ) -> bool {
        let tells = participants.iter().map(|container| {
            let resolve = Resolve {
                container: *container,
                tx,
                commit,
                touched: touched.to_vec(),
            };
            async move { crate::router::resolve(&self.env, &resolve).await }
        });
        let results = futures_util::future::join_all(tells).await;
        results.iter().all(|result| match result {
            Ok(()) => true,
            Err(failed) => {
                debug!(%tx, ?failed, "participant has not confirmed");
                false
            }
        })
    }

    fn forget_decision(&self, tx: TxId) {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        if Self::reign(&st, now).is_ok()
            && let Err(elsewhere) = self.order(&mut st, now, &tx::forget(tx), false)
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

    fn read_keys_now(&self, request: &ReadKeys) -> Result<Option<(Keys, Seq)>, Failed> {
        use perigee_meta::View;
        let mut after = After::default();
        let mut st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        self.record_all_writes(&mut st, &mut after);
        let mut foreign = Foreign::default();
        let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
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
            return Err(store_errno(&failed).into());
        }
        if st.transactions.blocks(&reads, None) {
            return Ok(None);
        }
        Ok(Some((keys, latest)))
    }

    /// Prepares this container's part of another's transaction.
    pub(crate) async fn prepare(self: &Arc<Self>, intent: &Intent) -> Result<Prepared, Failed> {
        let seq = {
            let mut after = After::default();
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            if now < st.changes_from {
                return Err(Elsewhere::NotReady.into());
            }
            self.record_all_writes(&mut st, &mut after);
            let wanted = tx::locked_keys(intent);
            if st.transactions.conflicts(intent.tx, &wanted) {
                return Ok(Prepared::Conflict);
            }
            let mut foreign = Foreign::default();
            let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
            let prepared = tx::prepare(&mut view, self.id, intent);
            if let Some(failed) = view.failed {
                return Err(store_errno(&failed).into());
            }
            let batch = match prepared {
                Ok(batch) => batch,
                Err(Conflict::Refused(refusal)) => {
                    error!(container = %self.id, %refusal, "cannot prepare");
                    return Err(Errno::EIO.into());
                }
                Err(conflict) => {
                    debug!(container = %self.id, tx = %intent.tx, %conflict, "vote is no");
                    return Ok(Prepared::Conflict);
                }
            };
            let seq = self.order(&mut st, now, &batch, true)?;
            st.transactions.hold(intent.tx, wanted);
            st.transactions.doubts.insert(intent.tx, now);
            seq
        };
        self.committed(seq).await?;
        Ok(Prepared::Yes)
    }

    /// Ends this container's part of a transaction.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        tx: TxId,
        commit: bool,
        touched: &[Touched],
    ) -> Result<(), Failed> {
        let mut after = After::default();
        let mut owed = Owed::default();
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            let mut foreign = Foreign::default();
            let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
            let batch = if commit {
                tx::commit(&mut view, self.id, tx)
            } else {
                tx::abort(&mut view, self.id, tx)
            };
            if let Some(failed) = view.failed {
                return Err(store_errno(&failed).into());
            }
            let batch = batch.map_err(|refusal| {
                error!(container = %self.id, %tx, %refusal, "cannot end a transaction");
                Errno::EIO
            })?;
            owed.commit = Some(st.chain.last().seq);
            if !batch.is_empty() {
                self.carry_out(&batch)
                    .map_err(|error| store_errno(&error))?;
                owed.commit = Some(self.order(&mut st, now, &batch, true)?);
            }
            st.transactions.release(tx);
            let mine: Vec<Touched> = touched
                .iter()
                .filter(|touched| concerns(self.id, touched))
                .cloned()
                .collect();
            self.owe_leases(&mut st, now, NOBODY, mine, &mut owed, &mut after);
        }
        after.run();
        self.pay(NOBODY, owed).await.map_err(Failed::from)
    }

    /// Answers a participant in doubt.
    pub(crate) async fn decision(self: &Arc<Self>, tx: TxId) -> Result<Decided, Failed> {
        let (decided, latest) = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            if st.transactions.coordinating.contains(&tx) {
                return Ok(Decided { commit: None });
            }
            let mut foreign = Foreign::default();
            let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
            let decision = tx::decision(&mut view, tx);
            if let Some(failed) = view.failed {
                return Err(store_errno(&failed).into());
            }
            let commit = match decision {
                Ok(Some(Decision::Commit { .. })) => true,
                Ok(Some(Decision::Abort) | None) => false,
                Err(refusal) => {
                    error!(%tx, %refusal, "decision unreadable");
                    return Err(Errno::EIO.into());
                }
            };
            (commit, st.chain.last().seq)
        };
        self.committed(latest).await?;
        Ok(Decided {
            commit: Some(decided),
        })
    }

    /// Locks again the keys of intents that an earlier owner prepared.
    pub(super) fn hold_intents(&self, st: &mut State) {
        st.transactions = Held::default();
        let mut foreign = Foreign::default();
        let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
        let intents = tx::intents(&mut view, self.id);
        match intents {
            Ok(intents) => {
                for intent in intents {
                    st.transactions.hold(intent.tx, tx::locked_keys(&intent));
                    st.transactions.doubts.insert(intent.tx, Tick(0));
                }
            }
            Err(refusal) => error!(container = %self.id, %refusal, "intents unreadable"),
        }
    }

    /// Sends the commits of decisions that an earlier owner left.
    pub(super) async fn recover_transactions(self: &Arc<Self>) {
        let decisions = {
            let st = self.state.lock();
            let mut foreign = Foreign::default();
            let mut view = OwnerView::new(self.id, &st.overlay, &self.env.store, &mut foreign);
            tx::decisions(&mut view, self.id)
        };
        match decisions {
            Ok(decisions) => {
                for (tx, decision) in decisions {
                    let done = match decision {
                        Decision::Commit { participants } => {
                            self.tell(tx, true, &participants, &[]).await
                        }
                        Decision::Abort => true,
                    };
                    if done {
                        self.forget_decision(tx);
                    }
                }
            }
            Err(refusal) => error!(container = %self.id, %refusal, "decisions unreadable"),
        }
    }

    /// Asks about transactions that were prepared here and not ended for long.
    pub(crate) async fn settle_doubts(self: &Arc<Self>) {
        let doubts: Vec<TxId> = {
            let st = self.state.lock();
            let now = self.env.clock.now();
            if Self::reign(&st, now).is_err() {
                return;
            }
            let old = st
                .transactions
                .doubts
                .iter()
                .filter(|(_, since)| now.since(**since) > DOUBT);
            old.map(|(tx, _)| *tx).collect()
        };
        for tx in doubts {
            match crate::router::decision(&self.env, &AskDecision { tx }).await {
                Ok(Decided {
                    commit: Some(commit),
                }) => {
                    if let Err(failed) = self.resolve(tx, commit, &[]).await {
                        warn!(%tx, ?failed, "transaction in doubt not ended");
                    }
                }
                Ok(Decided { commit: None }) => {}
                Err(failed) => debug!(%tx, ?failed, "no decision yet"),
            }
        }
    }
}

/// Whether a lease on what was touched is this container's.
fn concerns(container: ContainerId, touched: &Touched) -> bool {
    let inode = match touched {
        Touched::Attr(inode) | Touched::Data(inode) | Touched::Listing(inode) => inode,
        Touched::Name { dir, .. } => dir,
    };
    inode.container() == container
}
