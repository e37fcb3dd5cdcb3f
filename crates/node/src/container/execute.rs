//! Operations of the name space at the owner.

use super::hold::{Passed, Shows};
use super::locks::{Admitted, PAUSE, call_for_all};
use super::view::{Foreign, owner_view};
use super::{After, Answer, Container, Elsewhere, Failed, File, State};
use crate::sessions::Whom;
use parking_lot::MutexGuard;
use perigee_meta::lease::Holder;
use perigee_meta::near::directory_of;
use perigee_meta::near::names::names_in;
use perigee_meta::queue::Asked;
use perigee_meta::stripe::Layout;
use perigee_meta::tx::Turn;
use perigee_meta::{Attr, Comes, Context, Op, Outcome, Reply, RunId, Seen, Touched};
use perigee_proto::message::session::{CallLock, DirectoryAfter, Revoke};
use perigee_replica::work::Done;
use perigee_types::{
    Batch, ByteRange, ContainerId, Errno, InodeId, OpId, Seq, SessionId, Span, Tick, Version,
};
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, warn};

/// For so long an execution calls for locks of hosts that do not answer. They answer by then, or are gone, unless the owner
/// alone does not reach them: no answer to its client is right then.
const CALLS: Span = Span::from_millis(20_000);

/// One session's operation.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) session: SessionId,
    /// Names it for repeats.
    pub(crate) op: OpId,
    pub(crate) answered_through: OpId,
    pub(crate) new_directory_in: Option<ContainerId>,
    /// With how many names of a directory a change in it is answered, at most.
    pub(crate) names_max: u32,
    pub(crate) operation: Op,
    /// Whether it may come again.
    pub(crate) comes: Comes,
}

/// What a session is answered.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) reply: Reply,
    /// For how long the session may keep what the reply says.
    pub(crate) ttl: Span,
    /// The last record of the state that it is of.
    pub(crate) as_of: Version,
    /// The directory in which another host's session has changed a name, after that.
    pub(crate) directory: Option<DirectoryAfter>,
}

impl Told {
    /// Of which nothing may be kept.
    pub(super) const fn unkept(reply: Reply, as_of: Version) -> Self {
        Self {
            reply,
            ttl: Span::ZERO,
            as_of,
            directory: None,
        }
    }
}

/// What stands between an operation that was ordered and its answer.
#[derive(Default)]
pub(super) struct Owed {
    /// Leases of other sessions to take back: whose, what, and when the last ends by itself.
    pub(super) revoke: Vec<Holder>,
    /// Mounts of this node are to be told, all but this one.
    pub(super) tell_all_but: Option<SessionId>,
    pub(super) touched: Vec<Touched>,
    /// The record that must be on every member first.
    pub(super) commit: Option<Version>,
    /// The execution, where leases are to be taken back: a repeat waits for that, too.
    pub(super) run: Option<RunId>,
}

impl Owed {
    /// Until this is paid, a repeat of the operation is not answered from what is kept of it.
    pub(super) fn hold_repeats(&mut self, st: &mut State, session: SessionId, op: OpId) {
        if !self.revoke.is_empty() || self.tell_all_but.is_some() {
            self.run = Some(st.answers.begin(session, op));
        }
    }

    fn nothing(&self) -> bool {
        self.revoke.is_empty() && self.tell_all_but.is_none() && self.commit.is_none()
    }
}

/// Whether an operation can change anything.
pub(crate) fn changes(op: &Op) -> bool {
    !matches!(
        op,
        Op::Lookup { .. }
            | Op::GetAttr { .. }
            | Op::ReadLink { .. }
            | Op::ReadDir { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::GetLock { .. }
            | Op::WithdrawLock { .. }
            | Op::Orphans { .. }
            | Op::GetPolicy { .. }
            | Op::Snapshots
            | Op::Trash { .. }
            | Op::Columns { .. }
    )
}

/// Whether an operation adds to what the disk holds, for as long as nobody takes it back. Changes of what is there pass: who
/// makes room on a full disk may need them.
pub(super) fn takes_room(op: &Op) -> bool {
    matches!(
        op,
        Op::Make { .. }
            | Op::Link { .. }
            | Op::SetXattr { .. }
            | Op::Rehome { .. }
            | Op::MakeColumns { .. }
    )
}

/// Whether another owner goes on from an answer, or may have heard of it: it waits for its record, also where the program is
/// of this host. A lock is one for all hosts, as is what a session says for the last time of locks that it has decided about
/// by itself; a cut that some columns know, and the file does not, would never end; and what is in columns past the end of their
/// file would be in it when it grows.
pub(super) fn is_relied_on(op: &Op, reply: &Reply) -> bool {
    match (op, reply) {
        (_, Reply::Granted(_) | Reply::Columns { .. })
        | (Op::EndCover { .. } | Op::CutColumn { .. }, _) => true,
        (Op::Claim { len, .. }, _) if *len > 0 => true,
        // It names a cut.
        (Op::SetAttr { .. }, Reply::Attr(attr))
        | (Op::Claim { .. }, Reply::Claimed { attr, .. }) => {
            let striping = attr.layout.striping();
            striping.is_some_and(|striping| striping.cutting.is_some())
        }
        _ => false,
    }
}

impl State {
    /// A session of another host is told that a file has no columns: it reads a hole where they will be, and only this owner can
    /// tell it that this is none any more.
    pub(super) fn note_hole(&mut self, session: SessionId, reply: &Reply, local: bool) {
        if let Reply::Columns { attr, columns } = reply
            && columns.is_empty()
            && !local
        {
            self.leases.note_reader(attr.inode, session);
        }
    }
}

/// The part of a file that an operation takes away.
pub(super) fn lost_range(op: &Op) -> Option<(InodeId, ByteRange)> {
    use perigee_meta::Allocate::{Extend, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
    match op {
        Op::SetAttr { inode, set, .. } => {
            let size = set.size?;
            Some((*inode, ByteRange::new(size, u64::MAX)))
        }
        Op::CutColumn { inode, size, .. } | Op::EndCut { inode, size, .. } => {
            Some((*inode, ByteRange::new(*size, u64::MAX)))
        }
        Op::PunchColumn { inode, range, .. } => Some((*inode, *range)),
        Op::Allocate { inode, range, how } => match how {
            PunchHole | ZeroRange | ZeroRangeKeepSize => Some((*inode, *range)),
            Extend | KeepSize => None,
        },
        _ => None,
    }
}

impl Container {
    /// Takes the lock, when what an operation takes away of a file is kept for the newest checkpoint. The caller has the
    /// file's `still` alone.
    pub(super) fn lock_kept(
        &self,
        file: Option<&File>,
        op: &Op,
    ) -> Result<MutexGuard<'_, State>, Failed> {
        let (Some(file), Some((inode, range))) = (file, lost_range(op)) else {
            return Ok(self.state.lock());
        };
        loop {
            let mut st = self.state.lock();
            if !self.must_keep(&st, inode) || self.has_kept(&mut st, inode, range)? {
                return Ok(st);
            }
            drop(st);
            self.keep_content(file, inode, range)?;
        }
    }

    /// The same, where that is done already: else a checkpoint was made since, and whoever asks again has it done.
    fn lock_where_kept(&self, op: &Op) -> Result<MutexGuard<'_, State>, Failed> {
        let mut st = self.state.lock();
        match lost_range(op) {
            Some((inode, range)) if !self.has_kept(&mut st, inode, range)? => {
                Err(Elsewhere::NotReady.into())
            }
            _ => Ok(st),
        }
    }

    /// Runs an operation of a session, of this node or another, and answers when what it shows and
    /// does is safe to tell that session.
    pub(crate) fn execute(self: &Arc<Self>, request: Request, answer: Answer<Told>) {
        let Some((inode, range)) = self.cut_waits(&request.operation) else {
            return self.execute_called(request, None, answer);
        };
        let me = self.clone();
        self.env.runtime.spawn(async move {
            match me.keep_before_cut(inode, range).await {
                Ok(()) => {
                    let runtime = me.env.runtime.clone();
                    runtime.spawn_blocking(move || me.execute_called(request, None, answer));
                }
                Err(failed) => answer(Err(failed)),
            }
        });
    }

    /// The same; `called`: an execution that has called for locks first.
    fn execute_called(
        self: &Arc<Self>,
        request: Request,
        called: Option<Called>,
        answer: Answer<Told>,
    ) {
        let local = request.session.node() == self.env.me;
        let mut after = After::default();
        let mut foreign = Foreign::default();
        // Changes of a file's length and content must not cross a write that is under way.
        let data = request.operation.data_inode();
        let answer = match data.filter(|_| !local) {
            Some(inode) => self.answer_abroad(inode, answer),
            None => answer,
        };
        let file = match data.map(|inode| self.file(inode)) {
            Some(Ok(file)) => Some(file),
            Some(Err(error)) => return answer(Err(self.store_refused(&error).into())),
            None => None,
        };
        let still = file.as_ref().map(|file| file.still.write());
        let ran = {
            let mut st = match self.lock_where_kept(&request.operation) {
                Ok(st) => st,
                Err(failed) => {
                    // It has not been executed: repeats are not to wait for it.
                    if let Some(called) = called {
                        self.state.lock().answers.end(called.run);
                    }
                    return answer(Err(failed));
                }
            };
            let asked = match &called {
                None => &Asked::First,
                Some(called) if st.answers.is_running(called.run) => {
                    // From here on it is executed, and repeats wait for it as for any.
                    st.answers.end(called.run);
                    &called.asked
                }
                // Its reign is over: whoever asks again asks the next.
                Some(_) => {
                    drop(st);
                    return answer(Err(Elsewhere::NotReady.into()));
                }
            };
            self.run(&mut st, (&request, asked), local, &mut foreign, &mut after)
        };
        drop(still);
        match ran {
            Ok(Ran::Done(result, owed)) => {
                after.run();
                self.settle(owed, result, answer);
            }
            Ok(Ran::Spans(run)) => {
                after.run();
                let me = self.clone();
                self.env.runtime.spawn(async move {
                    me.execute_spanning(request, run, foreign, answer).await;
                });
            }
            Ok(Ran::Calls(calls, run)) => {
                after.run();
                let now = self.env.clock.now();
                let again = called.is_some();
                let since = called.map_or(now, |called| called.since);
                if now.since(since) > CALLS {
                    self.state.lock().answers.end(run);
                    return answer(Err(Elsewhere::NotReady.into()));
                }
                let me = self.clone();
                self.env.runtime.spawn(async move {
                    if again {
                        tokio::time::sleep(PAUSE).await;
                    }
                    let asked = call_for_all(&me.env, calls).await;
                    let called = Called { run, asked, since };
                    me.execute_called(request, Some(called), answer);
                });
            }
            Err(elsewhere) => {
                after.run();
                answer(Err(elsewhere.into()));
            }
        }
    }

    /// Until the answer, programs of this host are shown the file's content as other hosts are.
    fn answer_abroad<T: 'static>(&self, inode: InodeId, answer: Answer<T>) -> Answer<T> {
        let under_way = self.abroad.begin(inode);
        Box::new(move |result| {
            drop(under_way);
            answer(result);
        })
    }

    /// Whether an answer says how long a file is that another host is writing to.
    pub(super) fn is_abroad(&self, reply: &Reply) -> bool {
        match reply {
            Reply::Attr(attr) | Reply::Entry(attr) | Reply::Columns { attr, .. } => {
                self.abroad.has(attr.inode)
            }
            _ => false,
        }
    }

    /// Runs an operation under the lock as far as this container alone can.
    fn run(
        self: &Arc<Self>,
        st: &mut State,
        (request, asked): (&Request, &Asked),
        local: bool,
        foreign: &mut Foreign,
        after: &mut After,
    ) -> Result<Ran, Elsewhere> {
        let now = self.env.clock.now();
        let (epoch, until) = Self::reign(st, now)?;
        if !local {
            st.visitors.came();
        }
        let mutates = changes(&request.operation);
        // Also of a repeat: leases of the reign in which it ran first may not be over.
        if mutates && now < st.changes_from {
            return Err(Elsewhere::NotReady);
        }
        if let Ok(inode) = crate::router::place_of(&request.operation) {
            let done = if mutates { Done::Change } else { Done::Read };
            self.note_work(st, now, request.session, (done, inode));
        }
        if let Op::ReleaseSession { session, .. } = &request.operation {
            st.leases.session_is_gone(*session);
            self.take_back_of(st, *session);
        }
        if !local && changes(&request.operation) {
            st.answers.hear(request.session, request.answered_through);
        }
        if let Some(result) = self.repeated(st, request)? {
            // The first run's record may still be under way.
            let owed = Owed {
                commit: Some(st.chain.last()),
                ..Owed::default()
            };
            let last = st.chain.last();
            return Ok(Ran::Done(
                result.map(|reply| Told::unkept(reply, last)),
                owed,
            ));
        }
        if mutates && self.is_backed_up(st) {
            return Err(Elsewhere::NotReady);
        }
        if mutates || !local {
            self.record_all_writes(st);
        }
        match self.admit(st, now, request.session, (&request.operation, asked), after) {
            Admitted::Run => {}
            Admitted::CallFirst(calls) => {
                let run = st.answers.begin(request.session, request.op);
                return Ok(Ran::Calls(calls, run));
            }
            Admitted::Answered(result, owed) => {
                let last = st.chain.last();
                return Ok(Ran::Done(
                    result.map(|reply| Told::unkept(reply, last)),
                    owed,
                ));
            }
        }
        let Ok(context) = self.context(st, (epoch, now), request) else {
            let run = mutates.then(|| st.answers.begin(request.session, request.op));
            return Ok(Ran::Spans(run));
        };
        let idle = st.transactions.is_idle();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, foreign);
        view.reads = (!idle).then(Vec::new);
        let ran = perigee_meta::execute(&request.operation, &context, &mut view);
        let (latest, failed) = (view.latest, view.failed.take());
        let reads = view.reads.take().unwrap_or_default();
        if let Some(failed) = failed {
            error!(container = %self.id, %failed, "state cannot be read");
            if self.is_rot(st, &failed) {
                // The next owner answers.
                let me = self.clone();
                after.push(move || me.keys_rot(&failed));
                return Err(Elsewhere::NotReady);
            }
            return Ok(Ran::Done(Err(self.store_refused(&failed)), Owed::default()));
        }
        let show = st.before_telling(local, latest);
        let outcome = match st.transactions.judge(&reads, foreign, ran) {
            Turn::Fetch | Turn::Wait | Turn::Spans(_) => {
                let run = mutates.then(|| st.answers.begin(request.session, request.op));
                return Ok(Ran::Spans(run));
            }
            Turn::Answer(Err(errno)) => {
                let owed = Owed {
                    commit: show,
                    ..Owed::default()
                };
                return Ok(Ran::Done(Err(errno), owed));
            }
            Turn::Corrupt(corrupt) => {
                error!(container = %self.id, %corrupt, "state is corrupt");
                return Ok(Ran::Done(Err(Errno::EIO), Owed::default()));
            }
            // What other sessions keep of it is taken back first: whoever sees the change is sure that all do.
            Turn::Alone(outcome) if st.leases.is_kept(now, request.session, &outcome.touched) => {
                let run = mutates.then(|| st.answers.begin(request.session, request.op));
                return Ok(Ran::Spans(run));
            }
            Turn::Answer(Ok(outcome)) | Turn::Alone(outcome) => outcome,
        };
        let (session, operation) = (request.session, &request.operation);
        let passed = Passed::default();
        let held = st.held_up(session, operation, &outcome.reply, &passed, Shows::Now);
        if !held.is_empty() {
            let run = mutates.then(|| st.answers.begin(request.session, request.op));
            return Ok(Ran::Spans(run));
        }
        let local = local && !self.is_abroad(&outcome.reply);
        let done = self.conclude(st, now, until, request, local, latest, outcome, after);
        Ok(Ran::Done(done.result, done.owed))
    }

    /// Orders an outcome that this container alone carries, and sums up what its answer waits for.
    #[allow(
        clippy::too_many_arguments,
        reason = "both callers have just found all of these"
    )]
    pub(super) fn conclude(
        self: &Arc<Self>,
        st: &mut State,
        now: Tick,
        until: Tick,
        request: &Request,
        local: bool,
        latest: Seq,
        mut outcome: Outcome,
        after: &mut After,
    ) -> Concluded {
        if let Some(errno) = Self::refused_for_locks(st, request) {
            return Concluded::failed(errno);
        }
        let relied_on = is_relied_on(&request.operation, &outcome.reply);
        let mut owed = Owed::default();
        let mut depends = latest;
        let changes = outcome.batches.contains_key(&self.id);
        if let Some(mut batch) = outcome.batches.remove(&self.id) {
            // What is left of a full disk is for those who make room.
            if takes_room(&request.operation) && !self.env.store.has_room() {
                return Concluded::failed(Errno::ENOSPC);
            }
            self.add_reap(st, local, &outcome.reply, &mut batch);
            // One of this node may wait for other hosts' leases, or for the members to know of a lock, and be asked for
            // again at the next owner meanwhile.
            let repeats = !local || st.answers.must_keep(request.comes);
            if repeats || relied_on || self.must_wait(st, now, &outcome.touched) {
                Self::remember(st, request, &outcome.reply, &mut batch);
            }
            if let Err(error) = self.carry_out(st, &batch) {
                return Concluded::failed(self.store_refused(&error));
            }
            match self.order(st, now, batch, !local) {
                Ok(seq) => depends = seq,
                Err(elsewhere) => {
                    warn!(container = %self.id, %elsewhere, "lost the container while ordering");
                    return Concluded::failed(Errno::EIO);
                }
            }
        }
        self.owe_leases(st, now, request.session, outcome.touched, &mut owed);
        owed.hold_repeats(st, request.session, request.op);
        st.note_hole(request.session, &outcome.reply, local);
        owed.commit = st.before_telling(local && !relied_on, depends);
        if owed.commit.is_some() {
            self.hurry(st);
        }
        let mut reply = outcome.reply;
        self.locks_changed(st, now, &request.operation, &reply, after);
        self.freshen(st, request.session, &mut reply);
        let ttl = self.grant(st, now, until, request, &reply);
        // The answer waits for the record of the change, and so for all that the directory shows then.
        let directory = match changes {
            true => self.directory_after(st, now, until, request),
            false => None,
        };
        let told = Told {
            reply,
            ttl,
            as_of: st.chain.last(),
            directory,
        };
        Concluded {
            result: Ok(told),
            owed,
        }
    }

    /// What the directory is like in which another host's session has changed a name: its kernel has forgotten that, and
    /// asks before the next step.
    fn directory_after(
        &self,
        st: &mut State,
        now: Tick,
        until: Tick,
        request: &Request,
    ) -> Option<DirectoryAfter> {
        let session = request.session;
        let inode = directory_of(&request.operation)?;
        if session.node() == self.env.me || inode.container() != self.id {
            return None;
        }
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let look = Op::GetAttr { inode };
        let looked = perigee_meta::execute(&look, &Context::default(), &mut view);
        let (
            Ok(Outcome {
                reply: Reply::Attr(attr),
                ..
            }),
            None,
        ) = (looked, &view.failed)
        else {
            // The change is done, and its answer needs no word of it: who wants to know asks, and hears of what is wrong.
            return None;
        };
        let ttl = match st.may_keep(inode, session) {
            true => {
                let limit = st.leases.limit(now, session, until);
                st.leases.grant(now, inode, session, limit)
            }
            false => Span::ZERO,
        };
        let names = match request.names_max {
            0 => None,
            _ if ttl == Span::ZERO => None,
            most => {
                let mut foreign = Foreign::default();
                let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
                let names = names_in(&mut view, inode, most as usize);
                // As above: of a disk that fails, and of what it misses, who looks the names up hears.
                names.unwrap_or(None).filter(|_| view.failed.is_none())
            }
        };
        Some(DirectoryAfter {
            attr,
            ttl_us: ttl.as_micros(),
            names,
        })
    }

    /// Whether other hosts may keep what is about to change.
    fn must_wait(&self, st: &State, now: Tick, touched: &[Touched]) -> bool {
        let inodes = touched.iter().map(perigee_meta::lease::leased_by);
        let mut holders = inodes.flat_map(|inode| st.leases.holders(now, inode));
        holders.any(|session| session.node() != self.env.me)
    }

    /// Finds whose leases must end before a change is acknowledged. The other mounts of this node are told then, also what they
    /// have no lease on.
    pub(super) fn owe_leases(
        &self,
        st: &mut State,
        now: Tick,
        session: SessionId,
        touched: Vec<Touched>,
        owed: &mut Owed,
    ) {
        if touched.is_empty() {
            return;
        }
        owed.revoke = st.leases.in_the_way(now, session, &touched);
        owed.tell_all_but = self.env.sessions.has_others(session).then_some(session);
        owed.touched = touched;
    }

    /// Answers when nothing stands in the way any more.
    pub(super) fn settle<T: Send + 'static>(
        self: &Arc<Self>,
        owed: Owed,
        result: Result<T, Errno>,
        answer: Answer<T>,
    ) {
        if owed.nothing() {
            return answer(result.map_err(Failed::Errno));
        }
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let paid = me.pay(owed).await;
            answer(match paid {
                Ok(()) => result.map_err(Failed::Errno),
                Err(elsewhere) => Err(elsewhere.into()),
            });
        });
    }

    /// Waits until leases are back, this node's mounts have forgotten, and the record is on every member.
    pub(super) async fn pay(self: &Arc<Self>, owed: Owed) -> Result<(), Elsewhere> {
        let told = self.tell_mounts(owed.tell_all_but, &owed.touched);
        let revoking = owed.revoke.into_iter().map(|holder| {
            let touched = owed.touched.clone();
            self.take_back(holder, touched)
        });
        let commit = async {
            match owed.commit {
                Some(record) => self.committed(record).await,
                None => Ok(()),
            }
        };
        let revoked = futures_util::future::join_all(revoking);
        let (_, (), committed) = tokio::join!(revoked, told, commit);
        if let Some(run) = owed.run {
            self.state.lock().answers.end(run);
        }
        committed
    }

    /// Makes this node's mounts forget.
    async fn tell_mounts(&self, all_but: Option<SessionId>, touched: &[Touched]) {
        let Some(except) = all_but else {
            return;
        };
        let whom = Whom::AllBut(except);
        if let Err(failed) = crate::revoke::revoke(&self.env, whom, touched.to_vec()).await {
            error!(container = %self.id, ?failed, "mounts were not told of a change");
        }
    }

    /// Ends a session's leases on what was touched: by its word, or by waiting for their end.
    async fn take_back(self: &Arc<Self>, holder: Holder, touched: Vec<Touched>) {
        let Holder { session, until, .. } = holder;
        let left = until.since(self.env.clock.now()).as_duration();
        let revoke = Revoke { session, touched };
        let told = async {
            if session.node() == self.env.me {
                let whom = Whom::One(session);
                let revoked = crate::revoke::revoke(&self.env, whom, revoke.touched);
                return revoked.await.is_ok();
            }
            let ask = self
                .env
                .ask(session.node(), &revoke, bytes::Bytes::new(), left);
            ask.await.is_ok()
        };
        if !tokio::time::timeout(left, told).await.unwrap_or(false) {
            // No word from it: its leases end by themselves.
            let left = until.since(self.env.clock.now());
            tokio::time::sleep(left.as_duration() + Duration::from_millis(1)).await;
        }
        let now = self.env.clock.now();
        self.state.lock().leases.revoked(now, &holder);
    }

    /// Gives the session leases on what the reply shows; says for how long.
    fn grant(
        &self,
        st: &mut State,
        now: Tick,
        until: Tick,
        request: &Request,
        reply: &Reply,
    ) -> Span {
        let session = request.session;
        let local = session.node() == self.env.me;
        let dir = match &request.operation {
            // Elsewhere a lease is too short to cover what a kernel keeps of the name.
            Op::Rename {
                parent, new_parent, ..
            } if local && parent != new_parent && new_parent.container() == self.id => {
                Some(*new_parent)
            }
            Op::Lookup { parent, .. } | Op::Make { parent, .. } => Some(*parent),
            Op::Link { new_parent, .. } => Some(*new_parent),
            Op::ReadDir { inode, .. } => Some(*inode),
            _ => None,
        };
        let limit = st.leases.limit(now, session, until);
        let mut ttl = st.leases.told(now, session, limit);
        let mut give = |st: &mut State, inode: InodeId| {
            if inode.container() == self.id && !st.may_keep(inode, session) {
                ttl = Span::ZERO;
            } else if inode.container() == self.id {
                ttl = ttl.min(st.leases.grant(now, inode, session, limit));
            }
        };
        match reply {
            Reply::Attr(attr) | Reply::Entry(attr) | Reply::Created { attr, .. } => {
                give(st, attr.inode);
            }
            Reply::Listing(rows) => {
                for row in rows {
                    give(st, row.inode);
                }
            }
            Reply::Absent | Reply::Leads(_) => {}
            Reply::Renamed { .. } if dir.is_some() => {}
            _ => return Span::ZERO,
        }
        if let Some(dir) = dir {
            give(st, dir);
        }
        ttl
    }

    /// Puts writes that have no record yet into the attributes of a reply, and those of its session that the daemon has not
    /// seen.
    fn freshen(&self, st: &State, session: SessionId, reply: &mut Reply) {
        let fresh = |attr: &mut Attr| {
            if attr.inode.container() != self.id {
                return;
            }
            if let Some(written) = st.dirty.get(attr.inode) {
                attr.size = attr.size.max(written.size_at_least);
                // Whatever set other times since has made a record of these writes first.
                attr.mtime = written.mtime;
                attr.ctime = attr.ctime.max(written.mtime);
                if written.kill_privileges {
                    attr.mode &= !0o6000;
                }
            }
            self.freshen_unseen(st, session, attr);
        };
        match reply {
            Reply::Attr(attr)
            | Reply::Entry(attr)
            | Reply::Created { attr, .. }
            | Reply::Columns { attr, .. } => {
                fresh(attr);
                let here = attr.inode.container() == self.id && attr.layout == Layout::Whole;
                if attr.kind == perigee_meta::Kind::File && here {
                    attr.blocks = self.blocks(attr);
                }
            }
            Reply::Listing(rows) => {
                for row in rows {
                    if let Some(attr) = &mut row.attr {
                        fresh(attr);
                    }
                }
            }
            _ => {}
        }
    }

    /// Space that a file takes here, in 512-byte units.
    fn blocks(&self, attr: &Attr) -> u64 {
        if let Some(blocks) = self.env.store.small_blocks(attr.size) {
            return blocks;
        }
        match self
            .file(attr.inode)
            .and_then(|file| file.object.allocated_blocks())
        {
            Ok(blocks) => blocks,
            Err(_) => attr.blocks,
        }
    }

    /// What is known of a session's operation.
    pub(super) fn seen(&self, st: &State, session: SessionId, op: OpId) -> Result<Seen, Errno> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let seen = st.answers.seen(&mut view, self.id, session, op);
        if let Some(failed) = view.failed {
            return Err(self.store_refused(&failed));
        }
        seen.map_err(|refusal| {
            error!(container = %self.id, %refusal, "kept answer unreadable");
            Errno::EIO
        })
    }

    /// The answer to an operation that was executed before, or that comes too late.
    fn repeated(
        &self,
        st: &State,
        request: &Request,
    ) -> Result<Option<Result<Reply, Errno>>, Elsewhere> {
        if !changes(&request.operation) {
            return Ok(None);
        }
        Ok(match self.seen(st, request.session, request.op) {
            Ok(Seen::Never) => None,
            Ok(Seen::Running) => return Err(Elsewhere::NotReady),
            Ok(Seen::TooLate) => Some(Err(Errno::EIO)),
            Ok(Seen::Refused(errno)) => Some(Err(errno)),
            Ok(Seen::Answered(answer)) => {
                Some(perigee_proto::decode(&answer).map_err(|_| Errno::EIO))
            }
            Err(errno) => Some(Err(errno)),
        })
    }

    /// Keeps the answer for repeats.
    pub(super) fn remember(st: &mut State, request: &Request, reply: &Reply, batch: &mut Batch) {
        let (session, op) = (request.session, request.op);
        let answer = perigee_proto::encode(reply);
        st.answers
            .keep(session, op, request.answered_through, &answer, batch);
    }
}

/// What an operation came to that one container alone carries.
pub(super) struct Concluded {
    pub(super) result: Result<Told, Errno>,
    /// What the answer waits for.
    pub(super) owed: Owed,
}

impl Concluded {
    fn failed(errno: Errno) -> Self {
        Self {
            result: Err(errno),
            owed: Owed::default(),
        }
    }
}

/// An execution that has called for locks.
struct Called {
    run: RunId,
    /// What came of it.
    asked: Asked,
    /// When it first did.
    since: Tick,
}

/// How far an operation came under the lock.
#[allow(
    clippy::large_enum_variant,
    reason = "moved once, and the large one is the common one"
)]
enum Ran {
    /// It is decided; the answer may owe something first.
    Done(Result<Told, Errno>, Owed),
    /// Other containers are part of it, or may be in its way, or leases are. Of a change: this execution's name.
    Spans(Option<RunId>),
    /// Locks are to be called for first, that hosts may only keep; and this execution's name.
    Calls(Vec<CallLock>, RunId),
}
