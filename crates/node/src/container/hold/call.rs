//! What the owner asks of holders, and what it does where they do not answer.

use super::super::{Container, Elsewhere, Failed, State};
use super::row;
use crate::env::AskError;
use bytes::Bytes;
use perigee_proto::message::hold::CallHolder;
use perigee_replica::chunk::{Access, Call, Manner, Need, Report, Silence, Terms};
use perigee_replica::{Chunk, Timing};
use perigee_types::{Batch, ByteRange, Errno, InodeId, Span, Tick, Version};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// How long one call to a holder may take; it says that it is at it before that.
const CALL: Duration = Duration::from_millis(500);
/// The same of one that writes behind, which may do that over a long link: its chunk is not taken back before its right is
/// over.
const CALL_FAR: Duration = Duration::from_millis(1_500);
/// How long a holder whose right is over may say that it is at it.
const WORK_MAX: Span = Span::from_millis(60_000);
/// Before a holder that does not answer is called again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a holder says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// What it has written has arrived.
    Report(Report),
    /// It is at it.
    Working,
    /// Nothing.
    Nothing,
}

impl Container {
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
    pub(super) async fn ask_holder(self: &Arc<Self>, call: Call, number: u64) -> Heard {
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
}
