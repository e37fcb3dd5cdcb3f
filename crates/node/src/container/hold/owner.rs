//! The side of the container's owner.

use super::super::dirty::{Effect, Taken};
use super::super::view::{Foreign, owner_view};
use super::super::write::WriteRequest;
use super::super::{Container, Failed, State};
use super::{Away, Passed, Shows, chunk_of, hold_of, row, shown};
use perigee_meta::{Op, Reply, View};
use perigee_proto::message::file::{self, HeldChunk};
use perigee_proto::message::hold::NoRight;
use perigee_replica::chunk::{Access, Holds, Manner, Need, Terms};
use perigee_replica::{Chunk, Hold, Timing};
use perigee_types::{Batch, ByteRange, DataCommand, InodeId, SessionId, Tick};
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::error;

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
