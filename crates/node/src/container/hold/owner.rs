//! The side of the container's owner.

use super::super::dirty::{Effect, Taken};
use super::super::view::{Foreign, owner_view};
use super::super::{Container, Elsewhere, Failed, State};
use super::{ALL, Away, Passed, Shows, chunk_of, hold_of, row, shown};
use bytes::Bytes;
use perigee_meta::{Op, Reply, View};
use perigee_proto::message::hold::{CallHolder, NoRight};
use perigee_replica::chunk::{Access, Call, Holds, Need, Report, Silence, Terms};
use perigee_replica::{Chunk, Hold, Timing};
use perigee_types::{Batch, ByteRange, DataCommand, Errno, InodeId, NodeId, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info};

/// How long one call to a holder may take; it says that it is at it before that.
const CALL: Duration = Duration::from_millis(500);
/// Before a holder that does not answer is called again.
const PAUSE: Duration = Duration::from_millis(20);

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
            unseen || self.is_held_up(*inode, ALL, *access, chunks)
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
            // What this node held before it owned is nobody's any more.
            let own = node == self.env.me;
            if own || Some(node) == leaving || !listed.contains(&node) {
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
        self.order(&mut st, now, batch, true)?;
        st.away.holds.removed(chunk);
        let writes = st.away.stays.remove(&chunk).unwrap_or(0);
        let habit = st.away.habits.entry(chunk).or_default();
        habit.on_return(writes);
        info!(container = %self.id, inode = %chunk.inode, chunk = chunk.index, from = %hold.holder, writes, "chunk comes back");
        Ok(())
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
        let fenced = st.lock_queue.keeps_out(chunk.inode, hold.holder);
        if asked.is_err() || !member || fenced {
            return Ok(Err(NoRight));
        }
        // Its kernel keeps what its programs read by that.
        st.leases.note_reader(chunk.inode, hold.holder);
        Ok(Ok(()))
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
