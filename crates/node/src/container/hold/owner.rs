//! The side of the container's owner.

use super::super::dirty::{Effect, Taken};
use super::super::execute::Owed;
use super::super::io::WriteRequest;
use super::super::view::{Foreign, owner_view};
use super::super::{Container, Elsewhere, Failed, State};
use super::{ALL, chunk_of, hold_of, row, shown};
use bytes::Bytes;
use perigee_meta::{Op, Reply, Touched, View};
use perigee_proto::message::hold::{CallHolder, NoRight, SendWritten, WrittenTaken};
use perigee_replica::chunk::{Access, Call, Habit, Holds, Need, Report, Silence, Stale, Terms};
use perigee_replica::{Chunk, Hold, Timing};
use perigee_types::Migration;
use perigee_types::{
    Batch, ByteRange, DataCommand, Errno, InodeId, NodeId, SessionId, Version, WallTime,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info};

/// How long one call to a holder may take; it says that it is at it before that.
const CALL: Duration = Duration::from_millis(500);
/// Before a holder that does not answer is called again.
const PAUSE: Duration = Duration::from_millis(20);
/// Chunks whose writers are counted; with one more all are forgotten, and count from the beginning.
const HABITS_MAX: usize = 4_096;
/// Bytes of one message of a holder.
pub(super) const SHARE_BYTES: u64 = 4 << 20;
/// Ranges of one message of a holder.
pub(super) const SHARE_RANGES: usize = 1_024;

/// What an owner knows of the chunks that it has given away, and of those that it may give away.
#[derive(Default)]
pub(in super::super) struct Away {
    pub(in super::super) holds: Holds,
    habits: BTreeMap<Chunk, Habit>,
    /// How many writes holders have told of since they hold.
    stays: BTreeMap<Chunk, u64>,
    /// About to be given away.
    giving: BTreeSet<Chunk>,
}

/// Whether the move of a chunk that was written to a handful of times costs less than it saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pays {
    Yes,
    NotYet,
}

impl Away {
    /// A write of another host's session has replaced a part of a file. Says which chunk of it should belong to that where
    /// it always shall, and whether it pays.
    fn on_write(
        &mut self,
        by: SessionId,
        inode: InodeId,
        range: ByteRange,
    ) -> Option<(Chunk, Pays)> {
        let chunk = Chunk::around(inode, range)?;
        if self.habits.len() >= HABITS_MAX && !self.habits.contains_key(&chunk) {
            self.habits.clear();
        }
        let habit = self.habits.entry(chunk).or_default();
        let pays = match habit.on_write(by) {
            true => Pays::Yes,
            false if habit.has_handful() => Pays::NotYet,
            false => return None,
        };
        let free = self.holds.holder(chunk).is_none() && !self.giving.contains(&chunk);
        free.then_some((chunk, pays))
    }

    /// A session of another host reads a part of a file: one that writes there goes on as before.
    pub(in super::super) fn on_read(&mut self, by: SessionId, inode: InodeId, range: ByteRange) {
        let reads_its_own = |habit: &Habit| habit.writer() == Some(by);
        let chunk = Chunk::around(inode, range);
        let habit = chunk.and_then(|chunk| self.habits.get(&chunk));
        if !habit.is_some_and(reads_its_own) {
            self.on_other(inode, range);
        }
    }

    /// Somebody else has read a part of a file, or changed it.
    pub(in super::super) fn on_other(&mut self, inode: InodeId, range: ByteRange) {
        if self.habits.is_empty() || range.is_empty() {
            return;
        }
        for chunk in Chunk::touched(inode, range) {
            if let Some(habit) = self.habits.get_mut(&chunk) {
                habit.on_other();
            }
        }
    }
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
        let holds = &mut self.away.holds;
        !holds.is_empty() && holds.need(inode, range, access, passed) != Need::Nothing
    }

    /// What a read of content means for those who hold parts of the file: what others are shown may stay in their pages, and
    /// nobody tells these of later writes of the holder. So the chunk comes back.
    pub(in super::super) fn reading(&self, inode: InodeId, session: SessionId) -> Access {
        match self.may_keep(inode, session) {
            true => Access::Read,
            false => Access::Change,
        }
    }

    /// The files with held parts that stand in the way of an operation that came to this reply.
    pub(in super::super) fn held_up(
        &mut self,
        session: SessionId,
        op: &Op,
        reply: &Reply,
        passed: &[Chunk],
    ) -> Vec<(InodeId, Access)> {
        if self.away.holds.is_empty() {
            return Vec::new();
        }
        let mut accesses = Vec::new();
        if let Op::SetAttr { inode, .. } | Op::Allocate { inode, .. } = op {
            accesses.push((*inode, Access::Change));
        }
        let others = shown(reply).map(|attr| attr.inode);
        let others = others.filter(|inode| !self.may_keep(*inode, session));
        accesses.extend(others.map(|inode| (inode, Access::Read)));
        accesses.retain(|(inode, access)| self.is_held_up(*inode, ALL, *access, passed));
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
        st.away = Away {
            holds: Holds::new(rows.iter().map(|(chunk, hold)| (*chunk, *hold)), now, terms),
            ..Away::default()
        };
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
                let back = me.pass_holders(chunk.inode, chunk.range(), Access::Change);
                if let Err(failed) = back.await {
                    debug!(container = %me.id, ?failed, "held chunk not taken back");
                }
            }
        });
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
            if Some(node) == leaving || !listed.contains(&node) {
                back.push((chunk, node));
            }
        }
        for (_, node) in &back {
            st.away.holds.recall_of(*node);
        }
        self.take_back_later(back.into_iter().map(|(chunk, _)| chunk).collect());
        waits
    }

    /// Waits until no chunk that belongs to somebody else stands in the way of an access to a part of a file. Gives the chunks
    /// whose holders were asked, and go on.
    pub(in super::super) async fn pass_holders(
        self: &Arc<Self>,
        inode: InodeId,
        range: ByteRange,
        access: Access,
    ) -> Result<Vec<Chunk>, Failed> {
        let mut passed = Vec::new();
        loop {
            let need = {
                let mut st = self.state.lock();
                if st.away.holds.is_empty() {
                    return Ok(passed);
                }
                Self::reign(&st, self.env.clock.now())?;
                st.away.holds.need(inode, range, access, &passed)
            };
            match need {
                Need::Nothing => return Ok(passed),
                Need::Remove(chunk) => self.take_chunk_back(chunk).await?,
                Need::Call(call) => self.call(call, &mut passed).await?,
            }
        }
    }

    /// Calls a holder once; without an answer its right is waited for, and the chunk taken back.
    async fn call(self: &Arc<Self>, call: Call, passed: &mut Vec<Chunk>) -> Result<(), Failed> {
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
        };
        let report = if node == self.env.me {
            self.answer_call(self.env.me, &request).await.ok()
        } else {
            use crate::env::AskError;
            match self.env.ask(node, &request, Bytes::new(), CALL).await {
                Ok((answer, _)) => Some(answer.report),
                Err(AskError::Working) => return Ok(()),
                Err(error) => {
                    debug!(container = %self.id, %node, %error, "holder does not answer");
                    None
                }
            }
        };
        let now = self.env.clock.now();
        let wait = {
            let mut st = self.state.lock();
            if let Some(report) = report {
                st.away.holds.on_report(chunk, hold, report);
                if access == Access::Read && report != Report::Stopped {
                    passed.push(chunk);
                }
                return Ok(());
            }
            match st.away.holds.on_silence(now, chunk, hold) {
                Silence::Lasts(until) => Some(until.since(now).as_duration().min(PAUSE)),
                Silence::Gone => return Ok(()),
                Silence::Over => None,
            }
        };
        match wait {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => {
                info!(container = %self.id, %node, inode = %chunk.inode, "chunk of a silent holder taken back");
                self.take_chunk_back(chunk).await
            }
        }
    }

    /// Removes a chunk's row, where its holder has stopped or its right is over.
    async fn take_chunk_back(self: &Arc<Self>, chunk: Chunk) -> Result<(), Failed> {
        let me = self.clone();
        let back = self
            .env
            .runtime
            .spawn_blocking(move || me.take_chunk_back_now(chunk));
        back.await.map_err(|_| Errno::EIO)?
    }

    fn take_chunk_back_now(self: &Arc<Self>, chunk: Chunk) -> Result<(), Failed> {
        let file = self
            .file(chunk.inode)
            .map_err(|error| self.store_refused(&error))?;
        let _alone = file.still.write();
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        let Some(hold) = st.away.holds.holder(chunk) else {
            return Ok(());
        };
        let range = chunk.range();
        let removable = matches!(
            st.away.holds.need(chunk.inode, range, Access::Change, &[]),
            Need::Remove(_)
        );
        let silent = st.away.holds.on_silence(now, chunk, hold) == Silence::Over;
        if !removable && !silent {
            return Ok(());
        }
        self.record_writes(&mut st, now, chunk.inode);
        if st.dirty.get(chunk.inode).is_some() {
            return Err(Elsewhere::NotReady.into());
        }
        let batch = Batch {
            mutations: vec![row(chunk, None)],
            ..Batch::default()
        };
        self.order(&mut st, now, &batch, true)?;
        st.away.holds.removed(chunk);
        let writes = st.away.stays.remove(&chunk).unwrap_or(0);
        let habit = st.away.habits.entry(chunk).or_default();
        habit.on_return(writes);
        info!(container = %self.id, inode = %chunk.inode, chunk = chunk.index, from = %hold.holder, writes, "chunk comes back");
        Ok(())
    }

    /// A session's write is in place, and has its record or waits for one: counts it, and has the chunk moved when that
    /// pays.
    pub(in super::super) fn note_habit(
        self: &Arc<Self>,
        st: &mut State,
        request: &WriteRequest,
        range: ByteRange,
        effect: Effect,
    ) {
        let (by, inode) = (request.session, request.inode);
        if by.node() == self.env.me || effect == Effect::Grew {
            return st.away.on_other(inode, range);
        }
        let Some((chunk, pays)) = st.away.on_write(by, inode, range) else {
            return;
        };
        let moves = match self.env.migrations.of(&self.env, inode) {
            // It is being asked.
            None | Some(Migration::Off) => false,
            Some(Migration::Always) => true,
            Some(Migration::Adaptive) => pays == Pays::Yes,
        };
        if moves {
            st.away.giving.insert(chunk);
            let me = self.clone();
            self.env
                .runtime
                .spawn(async move { me.give(chunk, by).await });
        }
    }

    /// Gives a chunk to who writes to it, if nobody else keeps something of the file: each of its writes has taken that back
    /// so far.
    async fn give(self: &Arc<Self>, chunk: Chunk, by: SessionId) {
        let inode = chunk.inode;
        let me = self.clone();
        let given = self
            .env
            .runtime
            .spawn_blocking(move || me.give_now(chunk, by));
        let given = match given.await {
            Ok(Ok(given)) => given,
            Ok(Err(failed)) => {
                debug!(container = %self.id, %inode, ?failed, "chunk not given away");
                false
            }
            Err(error) => {
                error!(container = %self.id, %inode, %error, "chunk not given away");
                false
            }
        };
        let mut owed = Owed::default();
        {
            let mut st = self.state.lock();
            st.away.giving.remove(&chunk);
            if !given {
                // As one that came back at once.
                return st.away.habits.entry(chunk).or_default().on_return(0);
            }
            // Programs of this host may have read it since the last write.
            let now = self.env.clock.now();
            let touched = vec![Touched::Attr(inode), Touched::Data(inode)];
            self.owe_leases(&mut st, now, by, touched, &mut owed);
        }
        if let Err(elsewhere) = self.pay(owed).await {
            debug!(container = %self.id, %inode, %elsewhere, "the reign ended with the move of a chunk");
        }
    }

    fn give_now(self: &Arc<Self>, chunk: Chunk, by: SessionId) -> Result<bool, Failed> {
        let inode = chunk.inode;
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let _alone = file.still.write();
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        let (epoch, _) = Self::reign(&st, now)?;
        let member = st.chain.view().is_some_and(|view| view.lists(by.node()));
        let others = st.leases.holders(now, inode);
        let alone = others.iter().all(|session| *session == by);
        // A kernel of this host may read an open file by itself.
        let open = !self.env.sessions.open_among(&[inode]).is_empty();
        let busy = st.transactions.holds_inode(inode) || st.leases.has_changes(inode);
        let free = st.away.holds.holder(chunk).is_none();
        if !member || !alone || open || busy || !free || now < st.changes_from {
            debug!(container = %self.id, %inode, member, alone, open, busy, free, "chunk stays");
            return Ok(false);
        }
        self.record_writes(&mut st, now, inode);
        if st.dirty.get(inode).is_some() {
            return Err(Elsewhere::NotReady.into());
        }
        let token = Version {
            epoch,
            seq: st.chain.last().seq.next(),
        };
        let hold = Hold { holder: by, token };
        let batch = Batch {
            mutations: vec![row(chunk, Some(hold))],
            ..Batch::default()
        };
        let seq = self.order(&mut st, now, &batch, true)?;
        debug_assert_eq!(seq, token.seq, "nothing is ordered under the same lock");
        st.away.holds.given(chunk, hold);
        st.leases.note_reader(inode, by);
        info!(container = %self.id, %inode, chunk = chunk.index, to = %by, "chunk moves");
        Ok(true)
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
        let node = hold.holder.node();
        let member = st.chain.view().is_some_and(|view| view.lists(node));
        let terms = Terms::from(&Timing::default());
        let asked = st.away.holds.on_asked(now, chunk, hold, asked, terms);
        Ok(match asked {
            Ok(()) if member => Ok(()),
            _ => Err(NoRight),
        })
    }

    /// Takes what a holder has written; answers when it is on every member.
    pub(crate) async fn take_written(
        self: &Arc<Self>,
        sent: SendWritten,
        data: Bytes,
    ) -> Result<WrittenTaken, Failed> {
        let inode = sent.chunk.inode;
        let under_way = self.abroad.begin(inode);
        let me = self.clone();
        let taken = self
            .env
            .runtime
            .spawn_blocking(move || me.take_written_now(&sent, &data));
        let Some(version) = taken.await.map_err(|_| Errno::EIO)?? else {
            return Ok(WrittenTaken { version: None });
        };
        // Nobody has to be told: since the chunk was given away nobody else was shown any of it that he could keep. And a
        // kernel that was told may wait for a read that waits for this.
        self.committed(version).await?;
        self.data_everywhere(inode, version.seq).await?;
        drop(under_way);
        Ok(WrittenTaken {
            version: Some(version),
        })
    }

    fn take_written_now(
        self: &Arc<Self>,
        sent: &SendWritten,
        data: &Bytes,
    ) -> Result<Option<Version>, Failed> {
        let (chunk, hold) = (sent.chunk, sent.hold);
        let inode = chunk.inode;
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let _still = file.still.read();
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            let (epoch, _) = Self::reign(&st, now)?;
            if now < st.changes_from || st.transactions.holds_inode(inode) {
                return Err(Elsewhere::NotReady.into());
            }
            if epoch != sent.epoch {
                return Ok(None);
            }
            match st.away.holds.on_flush(chunk, hold, sent.number) {
                Ok(()) => {}
                Err(Stale::Row | Stale::Overtaken | Stale::Recalled) => return Ok(None),
            }
        }
        let mut at = 0;
        for &range in &sent.ranges {
            let end = at + range.len() as usize;
            let bytes = data.get(at..end).ok_or(Errno::EINVAL)?;
            at = end;
            let _under_way = self.intend(inode, range);
            if let Err(error) = file.object.write(range.start, bytes) {
                let mut st = self.state.lock();
                self.distrust_writes(&mut st, inode, &[range]);
                drop(st);
                return Err(self.read_failed(inode, &error));
            }
        }
        self.record_written(sent)
    }

    /// The bytes are in place: makes records of them.
    fn record_written(self: &Arc<Self>, sent: &SendWritten) -> Result<Option<Version>, Failed> {
        let inode = sent.chunk.inode;
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        if let Err(elsewhere) = Self::reign(&st, now) {
            self.distrust_writes(&mut st, inode, &sent.ranges);
            self.refill.notify_one();
            return Err(elsewhere.into());
        }
        let mtime = self.later_than_before(&st, inode, sent.mtime)?;
        for &range in &sent.ranges {
            let taken = Taken {
                answer: None,
                range,
                effect: Effect::Replaced,
                mtime,
                now,
                kill_privileges: false,
            };
            st.take_write(inode, &taken);
        }
        let seq = self.record_writes(&mut st, now, inode);
        let seq = seq.ok_or(Elsewhere::NotReady)?;
        *st.away.stays.entry(sent.chunk).or_default() += sent.writes;
        self.hurry(&mut st);
        st.leases.note_reader(inode, sent.hold.holder);
        Ok(Some(st.chain.version_at(seq)))
    }

    /// A holder's time of a write, by its own clock, as one that is later than the file's: kernels know new content by that.
    fn later_than_before(
        &self,
        st: &State,
        inode: InodeId,
        mtime: WallTime,
    ) -> Result<WallTime, Errno> {
        let before = self.attr(st, inode)?.mtime;
        Ok(mtime.max(before.next()))
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
            st.away.stays.remove(&chunk);
        }
        Some(ended)
    }
}

/// Whether what a holder sent is what it may send: ranges of the chunk, in order, disjoint, as long as the payload.
pub(crate) fn is_well_formed(sent: &SendWritten, payload: u64) -> bool {
    let (mut end, mut bytes) = (sent.chunk.range().start, 0u64);
    for range in &sent.ranges {
        if range.is_empty() || range.start < end || range.end > sent.chunk.range().end {
            return false;
        }
        end = range.end;
        bytes = bytes.saturating_add(range.len());
    }
    sent.ranges.len() <= SHARE_RANGES && bytes <= SHARE_BYTES && bytes == payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_replica::chunk::FlushNumber;
    use perigee_types::{ContainerId, Epoch, InodeIndex};

    #[test]
    fn ranges_of_another_chunk_or_length_are_refused() {
        let chunk = Chunk {
            inode: InodeId::new(ContainerId::ROOT, InodeIndex(7)),
            index: 1,
        };
        let start = chunk.range().start;
        let sent = |ranges: &[(u64, u64)]| SendWritten {
            chunk,
            hold: Hold {
                holder: SessionId::new(NodeId(2), 1),
                token: Version::default(),
            },
            number: FlushNumber(1),
            epoch: Epoch(1),
            ranges: ranges
                .iter()
                .map(|(from, to)| ByteRange::new(start + from, start + to))
                .collect(),
            mtime: WallTime::default(),
            writes: 1,
        };
        let fits = |ranges: &[(u64, u64)], payload| is_well_formed(&sent(ranges), payload);
        assert!(fits(&[(0, 10), (20, 30)], 20));
        assert!(!fits(&[(0, 10), (20, 30)], 19));
        assert!(!fits(&[(20, 30), (0, 10)], 20));
        assert!(!fits(&[(0, 10), (9, 19)], 20));
        assert!(!fits(&[(0, SHARE_BYTES + 1)], SHARE_BYTES + 1));
        let mut before = sent(&[(0, 10)]);
        before.ranges = vec![ByteRange::new(start - 10, start)];
        assert!(!is_well_formed(&before, 10));
    }

    #[test]
    fn a_chunk_moves_after_some_writes_of_one_session_alone() {
        let inode = InodeId::new(ContainerId::ROOT, InodeIndex(7));
        let session = |node| SessionId::new(NodeId(node), 1);
        let mut away = Away::default();
        let block = ByteRange::new(0, 4_096);
        let write = |away: &mut Away, node| away.on_write(session(node), inode, block);
        for _ in 0..3 {
            assert_eq!(write(&mut away, 2), None);
        }
        away.on_read(session(2), inode, block);
        away.on_read(session(3), inode, block);
        for _ in 0..3 {
            assert_eq!(write(&mut away, 2), None);
        }
        let (chunk, pays) = write(&mut away, 2).unwrap();
        assert_eq!((chunk.inode, chunk.index), (inode, 0));
        assert_eq!(pays, Pays::Yes);
        away.giving.insert(chunk);
        assert_eq!(write(&mut away, 2), None, "it is on its way");
        let now = perigee_types::Tick(0);
        let hold = Hold {
            holder: session(2),
            token: Version::default(),
        };
        away.giving.clear();
        // As one that came back at once: where it always shall move it does, and else it waits.
        away.habits.entry(chunk).or_default().on_return(0);
        for _ in 0..3 {
            assert_eq!(write(&mut away, 2), None);
        }
        assert_eq!(write(&mut away, 2), Some((chunk, Pays::NotYet)));
        away.holds = Holds::new([(chunk, hold)], now, Terms::from(&Timing::default()));
        assert_eq!(write(&mut away, 2), None, "it has it");
    }
}
