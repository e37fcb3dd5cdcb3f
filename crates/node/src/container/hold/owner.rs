//! The side of the container's owner.

use super::super::dirty::{Effect, Taken};
use super::super::view::{Foreign, owner_view};
use super::super::write::WriteRequest;
use super::super::{Container, Elsewhere, Failed, State};
use super::{Away, Passed, Shows, chunk_of, hold_of, row, shown};
use crate::env::AskError;
use bytes::Bytes;
use perigee_meta::{Op, Reply, View};
use perigee_proto::message::file::{self, HeldChunk};
use perigee_proto::message::hold::{CallHolder, NoRight};
use perigee_replica::chunk::{Access, Call, Holds, Manner, Need, Report, Silence, Terms};
use perigee_replica::{Chunk, Hold, Timing};
use perigee_types::{
    Batch, ByteRange, DataCommand, Errno, InodeId, NodeId, SessionId, Span, Tick, Version,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info, warn};

/// How long one call to a holder may take; it says that it is at it before that.
const CALL: Duration = Duration::from_millis(500);
/// The same of one that writes behind, which may do that over a long link: its chunk is not taken back before its right is
/// over.
const CALL_FAR: Duration = Duration::from_millis(1_500);
/// For so long after its right is over a host that writes behind is not asked whether it goes on: its row goes.
const IDLE: Span = Span::from_millis(10_000);
/// Rows that go in one turn.
const IDLE_TOGETHER: usize = 64;
/// How long a holder whose right is over may say that it is at it.
const WORK_MAX: Span = Span::from_millis(60_000);
/// Before a holder that does not answer is called again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a holder says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// What it has written has arrived.
    Report(Report),
    /// It is at it.
    Working,
    /// Nothing.
    Nothing,
}

impl State {
    /// Whether a chunk that belongs to somebody else stands in the way of a session's access.
    pub(in super::super) fn is_held_up(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        access: Access,
        passed: &[Chunk],
    ) -> bool {
        let away = &mut self.away;
        !away.holds.is_empty()
            && (away.goes(inode, range).is_some()
                || away.holds.need(inode, range, access, passed) != Need::Nothing)
    }

    /// The chunks beside whose rows a write may be carried out: that of the row it came with, or all that its session holds.
    pub(in super::super) fn admitted(
        &self,
        request: &WriteRequest,
        range: ByteRange,
    ) -> Vec<Chunk> {
        let inode = request.inode;
        match request.behind {
            Some(hold) => {
                let admits = |chunk: &Chunk| {
                    let goes = self.away.removing.contains_key(chunk);
                    !goes && self.away.holds.admits(*chunk, hold)
                };
                Chunk::around(inode, range)
                    .filter(admits)
                    .into_iter()
                    .collect()
            }
            // A session's writes without a row were sent when all others had arrived.
            None if request.op.is_some() => {
                let mut own = self.own_behind(inode, request.session);
                own.retain(|chunk| chunk.range().overlaps(range));
                own
            }
            None => Vec::new(),
        }
    }

    /// Something came from a session.
    pub(in super::super) fn note_heard(&mut self, session: SessionId, now: Tick) {
        if !self.away.holds.is_empty() {
            self.away.silent.on_heard(session, now);
        }
    }

    /// A session that holds a part of a file has written to it.
    pub(in super::super) fn note_stay(&mut self, inode: InodeId, range: ByteRange) {
        if let Some(chunk) = Chunk::around(inode, range) {
            *self.away.stays.entry(chunk).or_default() += 1;
        }
    }

    /// The chunks of a file that a session writes behind: what it has written itself arrived before it asked.
    pub(in super::super) fn own_behind(&self, inode: InodeId, session: SessionId) -> Vec<Chunk> {
        let its = self.away.holds.of(inode).map(|(chunk, _)| chunk);
        its.filter(|chunk| self.away.is_written_behind_by(*chunk, session))
            .collect()
    }

    /// What a read of content means for those who hold parts of the file: what others are shown may stay in their pages, and
    /// nobody tells these of later writes of the holder. So the chunk comes back.
    pub(in super::super) fn reading(&self, inode: InodeId, session: SessionId) -> Access {
        match self.may_keep(inode, session) {
            true => Access::Read,
            false => Access::Change,
        }
    }

    /// The files with held parts, or with programs that write past the daemon, that stand in the way of an operation that
    /// came to this reply.
    pub(in super::super) fn held_up(
        &mut self,
        session: SessionId,
        op: &Op,
        reply: &Reply,
        passed: &Passed,
        shows: Shows,
    ) -> Vec<(InodeId, Access)> {
        if self.away.holds.is_empty() && self.alone.is_empty() {
            return Vec::new();
        }
        let mut accesses = Vec::new();
        if let Op::SetAttr { inode, .. } | Op::Allocate { inode, .. } = op {
            accesses.push((*inode, Access::Change));
        }
        let others = shown(reply).map(|attr| attr.inode);
        let unseen = |inode: &InodeId| shows == Shows::Recorded && self.alone.has(*inode);
        let others = others.filter(|inode| !self.may_keep(*inode, session) || unseen(inode));
        accesses.extend(others.map(|inode| (inode, Access::Read)));
        // A holder that goes on after it was called to send stands in the way of a change.
        accesses.retain(|(inode, access)| {
            let chunks = match access {
                Access::Read => passed.chunks.as_slice(),
                Access::Change => &[],
            };
            let unseen = self.alone.has(*inode) && !passed.files.contains(inode);
            unseen || self.is_held_up(*inode, ByteRange::ALL, *access, chunks)
        });
        accesses
    }
}

impl Container {
    /// A reign begins: what the last record of the log leaves of rows counts. What this node held itself, and nobody else
    /// has, becomes an owner's own write.
    pub(in super::super) fn take_over_rows(self: &Arc<Self>, st: &mut State) {
        let rows = self.rows(st);
        let now = self.env.clock.now();
        let terms = Terms::from(&Timing::default());
        st.away = Away::default();
        let given = rows.iter().map(|(chunk, hold)| (*chunk, *hold));
        st.away.holds = Holds::new(given, now, terms);
        let (kept, lost) = st
            .unsent
            .on_reign(|chunk, hold| rows.get(&chunk) == Some(&hold));
        for (unsent, mtime) in kept {
            for range in unsent.ranges {
                let taken = Taken {
                    answer: None,
                    range,
                    effect: Effect::Replaced,
                    mtime,
                    now,
                    kill_privileges: false,
                };
                st.take_write(unsent.inode, &taken);
            }
        }
        self.lose_held(st, lost);
        let mine: Vec<Chunk> = rows
            .iter()
            .filter(|(_, hold)| hold.holder.node() == self.env.me)
            .map(|(chunk, _)| *chunk)
            .collect();
        self.take_back_later(mine);
    }

    /// The rows of all chunks, with what is ordered and not committed.
    fn rows(&self, st: &State) -> BTreeMap<Chunk, Hold> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let (from, to) = perigee_meta::key::holds();
        let rows = view.scan(self.id, &from, &to, usize::MAX);
        if let Some(failed) = view.failed {
            error!(container = %self.id, %failed, "rows of held chunks unreadable");
        }
        let rows = rows.unwrap_or_default().into_iter();
        rows.filter_map(|(key, value)| {
            let chunk = chunk_of(self.id, &key)?;
            Some((chunk, hold_of(chunk, &value)?))
        })
        .collect()
    }

    /// Takes chunks back as a duty, not because somebody waits for them.
    fn take_back_later(self: &Arc<Self>, chunks: Vec<Chunk>) {
        if chunks.is_empty() {
            return;
        }
        let me = self.clone();
        self.env.runtime.spawn(async move {
            for chunk in chunks {
                let back = me.pass_holders(chunk.inode, chunk.range(), Access::Change, Vec::new());
                if let Err(failed) = back.await {
                    debug!(container = %me.id, ?failed, "held chunk not taken back");
                }
            }
        });
    }

    /// Takes back chunks that nobody wants, some in one turn, and those after them in the next.
    fn tidy_later(self: &Arc<Self>, st: &mut State) {
        if st.away.tidying {
            return;
        }
        let now = self.env.clock.now();
        let after = st.away.tidied;
        let idle = st.away.holds.idle(now, IDLE);
        let idle = idle.filter(|(chunk, _)| after.is_none_or(|after| *chunk > after));
        let idle: Vec<(Chunk, Hold)> = idle.take(IDLE_TOGETHER).collect();
        st.away.tidied = idle.last().map(|(chunk, _)| *chunk);
        if idle.is_empty() {
            return;
        }
        st.away.tidying = true;
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let mut silent = BTreeSet::new();
            for (chunk, hold) in idle {
                if silent.contains(&hold.holder) {
                    continue;
                }
                match me.tidy(chunk).await {
                    Ok(Heard::Nothing) => _ = silent.insert(hold.holder),
                    Ok(Heard::Working | Heard::Report(_)) => {}
                    Err(failed) => {
                        debug!(container = %me.id, ?failed, "idle chunk not taken back");
                    }
                }
            }
            me.state.lock().away.tidying = false;
        });
    }

    /// Takes back a chunk that nobody wants. A holder that does not answer keeps it: what it has answered its programs for
    /// may be on its way.
    async fn tidy(self: &Arc<Self>, chunk: Chunk) -> Result<Heard, Failed> {
        let need = {
            let mut st = self.state.lock();
            let range = chunk.range();
            let access = Access::Change;
            st.away.holds.need(chunk.inode, range, access, &[])
        };
        let mut heard = Heard::Report(Report::Stopped);
        if let Need::Call(call) = need {
            heard = self.ask_holder(call, self.env.next_call()).await;
            if let Heard::Report(report) = heard {
                let mut st = self.state.lock();
                st.away.holds.on_report(call.chunk, call.hold, report);
            }
        }
        if need != Need::Nothing && heard == Heard::Report(Report::Stopped) {
            self.take_chunk_back(chunk).await?;
        }
        Ok(heard)
    }

    /// Takes back what belongs to nodes that are no members, and what belongs to `leaving`. Says whether that has any.
    pub(in super::super) fn look_after_rows(
        self: &Arc<Self>,
        st: &mut State,
        leaving: Option<NodeId>,
    ) -> bool {
        if st.away.holds.is_empty() {
            return false;
        }
        let listed = st.chain.view().map(|view| view.chain.clone());
        let listed = listed.unwrap_or_default();
        let (mut back, mut waits) = (Vec::new(), false);
        for (chunk, hold) in st.away.holds.iter() {
            let node = hold.holder.node();
            waits |= Some(node) == leaving;
            // What this node held before it owned is nobody's any more.
            let own = node == self.env.me;
            let nobodys = match hold.manner {
                Manner::InPlace => !listed.contains(&node),
                Manner::WriteBehind => self.has_left(node),
            };
            if own || Some(node) == leaving || nobodys {
                back.push((chunk, node));
            }
        }
        for (_, node) in &back {
            st.away.holds.recall_of(*node);
        }
        st.away.silent.retain(self.env.clock.now());
        self.tidy_later(st);
        self.take_back_later(back.into_iter().map(|(chunk, _)| chunk).collect());
        waits
    }

    /// Waits until no chunk that belongs to somebody else stands in the way of an access to a part of a file. Gives the chunks
    /// whose holders were asked, and go on, besides those of `passed`, which are in nobody's way.
    pub(in super::super) async fn pass_holders(
        self: &Arc<Self>,
        inode: InodeId,
        range: ByteRange,
        access: Access,
        mut passed: Vec<Chunk>,
    ) -> Result<Vec<Chunk>, Failed> {
        let number = self.env.next_call();
        loop {
            let need = {
                let mut st = self.state.lock();
                if st.away.holds.is_empty() {
                    return Ok(passed);
                }
                Self::reign(&st, self.env.clock.now())?;
                match st.away.goes(inode, range) {
                    Some(chunk) => Need::Remove(chunk),
                    None => st.away.holds.need(inode, range, access, &passed),
                }
            };
            match need {
                Need::Nothing => return Ok(passed),
                Need::Remove(chunk) => self.take_chunk_back(chunk).await?,
                Need::Call(call) => self.call(call, number, &mut passed).await?,
            }
        }
    }

    /// Calls a holder once; without an answer its right is waited for, and the chunk taken back.
    async fn call(
        self: &Arc<Self>,
        call: Call,
        number: u64,
        passed: &mut Vec<Chunk>,
    ) -> Result<(), Failed> {
        let Call {
            chunk,
            hold,
            access,
        } = call;
        let began = self.env.clock.now();
        if self.is_given_up(&mut self.state.lock(), began, call) {
            return self.take_back_silent(call).await;
        }
        match self.ask_holder(call, number).await {
            Heard::Report(report) => {
                let mut st = self.state.lock();
                st.away.holds.on_report(chunk, hold, report);
                if access == Access::Read && report != Report::Stopped {
                    passed.push(chunk);
                }
                return Ok(());
            }
            Heard::Working => return self.wait_for_work(call).await,
            Heard::Nothing => {}
        }
        let now = self.env.clock.now();
        let wait = {
            let mut st = self.state.lock();
            st.away.silent.on_unanswered(hold.holder, began, now);
            match (st.away.holds.on_silence(now, chunk, hold), hold.manner) {
                (Silence::Gone, _) => return Ok(()),
                (Silence::Lasts(until), manner) => {
                    if manner == Manner::WriteBehind {
                        st.away.holds.recall(chunk, hold);
                    }
                    Some(until.since(now).as_duration().min(PAUSE))
                }
                (Silence::Over, Manner::InPlace) => None,
                // One answer that was lost is no silence: writes of its programs may be on their way.
                (Silence::Over, Manner::WriteBehind) => Some(PAUSE),
            }
        };
        match wait {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => self.take_back_silent(call).await,
        }
    }

    /// Whether nothing is to be expected of a holder any more that writes behind.
    fn is_given_up(&self, st: &mut State, now: Tick, call: Call) -> bool {
        let (chunk, hold) = (call.chunk, call.hold);
        let waited = Terms::from(&Timing::default()).waited;
        hold.manner == Manner::WriteBehind
            && st.away.silent.is_silent(hold.holder, now, waited)
            && st.away.holds.on_silence(now, chunk, hold) == Silence::Over
    }

    async fn take_back_silent(self: &Arc<Self>, call: Call) -> Result<(), Failed> {
        let (chunk, node) = (call.chunk, call.hold.holder.node());
        info!(container = %self.id, %node, inode = %chunk.inode, "chunk of a silent holder taken back");
        self.take_chunk_back(chunk).await
    }

    /// Asks a holder once.
    async fn ask_holder(self: &Arc<Self>, call: Call, number: u64) -> Heard {
        let Call {
            chunk,
            hold,
            access,
        } = call;
        let node = hold.holder.node();
        let request = CallHolder {
            chunk,
            hold,
            access,
            number,
        };
        let behind = hold.manner == Manner::WriteBehind;
        let heard = if node == self.env.me {
            let me = self.env.me;
            match behind {
                true => Heard::Report(self.env.behind.answer_call(me, &request).await),
                false => match self.answer_call(me, &request).await {
                    Ok(report) => Heard::Report(report),
                    Err(_) => Heard::Nothing,
                },
            }
        } else {
            let limit = if behind { CALL_FAR } else { CALL };
            match self.env.ask(node, &request, Bytes::new(), limit).await {
                Ok((answer, _)) => Heard::Report(answer.report),
                Err(AskError::Working) => Heard::Working,
                Err(error) => {
                    debug!(container = %self.id, %node, %error, "holder does not answer");
                    Heard::Nothing
                }
            }
        };
        if heard != Heard::Nothing {
            let now = self.env.clock.now();
            let mut st = self.state.lock();
            st.away.silent.on_heard(hold.holder, now);
            if heard != Heard::Working {
                st.away.working.remove(&chunk);
            }
        }
        heard
    }

    /// A holder says that it is at it. One whose right is over has only what is on its way to wait for, which ends.
    async fn wait_for_work(self: &Arc<Self>, call: Call) -> Result<(), Failed> {
        let (chunk, hold) = (call.chunk, call.hold);
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            let behind = hold.manner == Manner::WriteBehind;
            if !behind || st.away.holds.on_silence(now, chunk, hold) != Silence::Over {
                return Ok(());
            }
            let since = *st.away.working.entry(chunk).or_insert(now);
            if now.since(since) < WORK_MAX {
                return Ok(());
            }
        }
        let node = hold.holder.node();
        warn!(container = %self.id, %node, inode = %chunk.inode, "chunk of a holder that comes to no end taken back");
        self.take_chunk_back(chunk).await
    }

    /// Removes a chunk's row, where its holder has stopped or its right is over.
    pub(in super::super) async fn take_chunk_back(
        self: &Arc<Self>,
        chunk: Chunk,
    ) -> Result<(), Failed> {
        let me = self.clone();
        let back = self
            .env
            .runtime
            .spawn_blocking(move || me.take_chunk_back_now(chunk));
        let Some(record) = back.await.map_err(|_| Errno::EIO)?? else {
            return Ok(());
        };
        self.committed(record).await?;
        let mut st = self.state.lock();
        if st.away.removing.get(&chunk) == Some(&record) {
            st.away.removing.remove(&chunk);
            st.away.holds.removed(chunk);
        }
        Ok(())
    }

    /// Gives the record to wait for, where the holder may go on.
    fn take_chunk_back_now(self: &Arc<Self>, chunk: Chunk) -> Result<Option<Version>, Failed> {
        let file = self
            .file(chunk.inode)
            .map_err(|error| self.store_refused(&error))?;
        let _alone = file.still.write();
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        let Some(hold) = st.away.holds.holder(chunk) else {
            return Ok(None);
        };
        if let Some(record) = st.away.removing.get(&chunk) {
            return Ok(Some(*record));
        }
        let range = chunk.range();
        let removable = matches!(
            st.away.holds.need(chunk.inode, range, Access::Change, &[]),
            Need::Remove(_)
        );
        let silent = st.away.holds.on_silence(now, chunk, hold) == Silence::Over;
        if !removable && !silent {
            return Ok(None);
        }
        self.record_writes(&mut st, now, chunk.inode);
        if st.dirty.get(chunk.inode).is_some() {
            return Err(Elsewhere::NotReady.into());
        }
        let batch = Batch {
            mutations: vec![row(chunk, None)],
            ..Batch::default()
        };
        let seq = self.order(&mut st, now, batch, true)?;
        let record = st.chain.version_at(seq);
        st.away.working.remove(&chunk);
        if removable {
            st.away.holds.removed(chunk);
        } else {
            st.away.removing.insert(chunk, record);
        }
        let writes = st.away.stays.remove(&chunk).unwrap_or(0);
        let habit = st.away.habits.entry(chunk).or_default();
        habit.on_return(writes);
        info!(container = %self.id, inode = %chunk.inode, chunk = chunk.index, from = %hold.holder, writes, "chunk comes back");
        Ok((!removable).then_some(record))
    }

    /// A holder asks for the right to write.
    pub(crate) fn grant_right(
        &self,
        chunk: Chunk,
        hold: Hold,
        asked: u64,
    ) -> Result<Result<(), NoRight>, Failed> {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        st.away.silent.on_heard(hold.holder, now);
        let node = hold.holder.node();
        let member = st.chain.view().is_some_and(|view| view.lists(node));
        let may = member || hold.manner == Manner::WriteBehind;
        let terms = Terms::from(&Timing::default());
        let asked = st.away.holds.on_asked(now, chunk, hold, asked, terms);
        let fenced = st.lock_queue.keeps_out(chunk.inode, hold.holder);
        if asked.is_err() || !may || fenced || st.away.giving.contains(&chunk) {
            return Ok(Err(NoRight));
        }
        // Its kernel keeps what its programs read by that.
        st.leases.note_reader(chunk.inode, hold.holder);
        Ok(Ok(()))
    }

    /// The row by which a session writes the chunk behind that its write went to, once that has its record; that of the next
    /// chunk, if it has one, where the write came with its own.
    pub(crate) fn row_after(&self, request: &file::Write, range: ByteRange) -> Option<HeldChunk> {
        let chunk = Chunk::around(request.inode, range)?;
        let st = self.state.lock();
        let told = |chunk| {
            let hold = st.away.holds.holder(chunk)?;
            let its = hold.holder == request.session && hold.manner == Manner::WriteBehind;
            // While it is given, kernels of others may keep something of it.
            let given = hold.token.seq <= st.chain.committed() && !st.away.giving.contains(&chunk);
            (its && given).then_some(HeldChunk { chunk, hold })
        };
        match request.behind {
            Some(_) => told(chunk.next()),
            None => told(chunk),
        }
    }

    /// Whether the rows of a file stand in the way of handing it to this host's kernel.
    pub(in super::super) fn is_partly_away(st: &State, inode: InodeId) -> bool {
        st.away.holds.of(inode).next().is_some()
    }

    /// The same record, where it removes files that others hold parts of: nobody does any more.
    pub(in super::super) fn with_rows_ended(st: &mut State, batch: &Batch) -> Option<Batch> {
        if st.away.holds.is_empty() {
            return None;
        }
        let removed = batch.data.iter().filter_map(|command| match command {
            DataCommand::Removed { inode } => Some(*inode),
            _ => None,
        });
        let of = |inode| st.away.holds.of(inode).map(|(chunk, _)| chunk);
        let chunks: Vec<Chunk> = removed.flat_map(of).collect();
        let mut ended = (!chunks.is_empty()).then(|| batch.clone())?;
        for chunk in chunks {
            ended.mutations.push(row(chunk, None));
            st.away.holds.removed(chunk);
            st.away.removing.remove(&chunk);
            st.away.working.remove(&chunk);
            st.away.stays.remove(&chunk);
        }
        Some(ended)
    }
}
