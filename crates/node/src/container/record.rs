//! What the owner itself orders: records of writes that are in place, and what its operations do to data objects.

use super::dirty::RECORD_RANGES_MAX;
use super::payload::{Carry, Carrying};
use super::view::{Foreign, owner_view};
use super::{Container, State};
use bytes::Bytes;
use perigee_meta::past::is_kept_file;
use perigee_meta::{Attr, Context, Op, Refusal, Reply};
use perigee_replica::Role;
use perigee_store::StoreError;
use perigee_types::{Batch, ByteRange, DataCommand, Errno, InodeId, Seq, Tick, Version};
use tracing::{debug, error};

/// A record carries no more pieces than this for its own sake: each is put in place by itself.
const CARRIED_RANGES_MAX: usize = 32;

impl Container {
    /// Runs an operation that only this owner itself asks for.
    pub(super) fn run_own(&self, st: &State, op: &Op) -> Result<perigee_meta::Outcome, Errno> {
        let context = Context::new(self.env.clock.wall(), None);
        let mut foreign = Foreign::default();
        // Who does not own it keeps nothing over the rows on its disk, and is asked by few.
        let committed = (!st.reigning).then(|| st.committed_overlay());
        let overlay = committed.as_ref().unwrap_or(&st.overlay);
        let mut view = owner_view(self.id, overlay, &self.env.store, &mut foreign);
        let ran = perigee_meta::execute(op, &context, &mut view);
        if let Some(failed) = view.failed {
            error!(container = %self.id, %failed, "state cannot be read");
            return Err(self.store_refused(&failed));
        }
        ran.map_err(|refusal| match refusal {
            Refusal::Errno(errno) => errno,
            refusal => {
                error!(container = %self.id, %refusal, "operation refused");
                Errno::EIO
            }
        })
    }

    /// The newest attributes, with writes that have no record yet.
    pub(super) fn attr(&self, st: &State, inode: InodeId) -> Result<Attr, Errno> {
        match self.run_own(st, &Op::GetAttr { inode })?.reply {
            Reply::Attr(mut attr) => {
                if let Some(written) = st.dirty.get(inode) {
                    attr.size = attr.size.max(written.size_at_least);
                    attr.mtime = written.mtime;
                }
                Ok(attr)
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Makes records of all writes that have none.
    pub(super) fn record_all_writes(&self, st: &mut State) {
        let now = self.env.clock.now();
        for inode in st.dirty.inodes() {
            self.record_writes(st, now, inode);
        }
    }

    /// Makes records of the writes that are due.
    pub(super) fn record_due_writes(&self, st: &mut State, now: Tick) {
        let due = st.dirty.due(now);
        if due.iter().any(|inode| is_kept_file(*inode))
            && let Err(elsewhere) = self.record_kept(st, now)
        {
            debug!(container = %self.id, %elsewhere, "what is kept for checkpoints has no record yet");
        }
        for inode in due {
            self.record_writes(st, now, inode);
        }
    }

    /// Makes records of an inode's writes, the last with the answers of other hosts' ones; gives back that one. Without the
    /// right to order at `now` the writes stay without a record: the lease may come back, and if it does not, the end of the
    /// reign sees to them.
    pub(super) fn record_writes(&self, st: &mut State, now: Tick, inode: InodeId) -> Option<Seq> {
        self.record_writes_carrying(st, now, inode, Carrying::WhatItMust)
    }

    /// The same, where somebody waits for the bytes to be safe: the record has them, if they are few.
    pub(super) fn record_awaited_writes(
        &self,
        st: &mut State,
        now: Tick,
        inode: InodeId,
    ) -> Option<Seq> {
        let written = st.dirty.get(inode)?;
        let few = written.ranges.len() <= CARRIED_RANGES_MAX;
        let carrying = match few && st.data.may_carry(inode, written.bytes()) {
            true => Carrying::All,
            false => Carrying::WhatItMust,
        };
        self.record_writes_carrying(st, now, inode, carrying)
    }

    fn record_writes_carrying(
        &self,
        st: &mut State,
        now: Tick,
        inode: InodeId,
        carrying: Carrying,
    ) -> Option<Seq> {
        if st.transactions.holds_inode(inode) || Self::reign(st, now).is_err() {
            return None;
        }
        let written = st.dirty.take(inode)?;
        let records = st.data.divide(inode, &written.ranges, RECORD_RANGES_MAX);
        let mut left = records.len();
        let mut last = None;
        for ranges in records {
            left -= 1;
            let op = Op::Wrote {
                inode,
                ranges,
                size_at_least: Some(written.size_at_least),
                mtime: written.mtime,
                kill_privileges: written.kill_privileges,
            };
            let outcome = match self.run_own(st, &op) {
                Ok(outcome) => outcome,
                Err(errno) if !matches!(errno, Errno::ESTALE | Errno::ENOENT) => {
                    error!(container = %self.id, %inode, %errno, "writes lost: no record can be made of them");
                    self.lose_writes(st, inode, &written.ranges);
                    return None;
                }
                Err(errno) => {
                    // The file is gone: so are its bytes.
                    debug!(container = %self.id, %inode, %errno, "writes of a removed file dropped");
                    let last = st.chain.last().seq;
                    st.intents.on_recorded(last, inode);
                    return None;
                }
            };
            let mut batch = outcome.batches.into_values().next().unwrap_or_default();
            if left == 0
                && let Role::Owner { epoch } = st.role
            {
                let seq = st.chain.last().seq.next();
                let version = Version { epoch, seq };
                for pending in &written.answers {
                    Self::remember_write(st, pending, version, &mut batch);
                }
            }
            match self.order_carrying(st, now, batch, carrying, false) {
                Ok(seq) => last = Some(seq),
                Err(elsewhere) => {
                    error!(container = %self.id, %inode, %elsewhere, "writes lost with the ownership");
                    self.lose_writes(st, inode, &written.ranges);
                    return None;
                }
            }
        }
        last
    }

    /// The bytes that a record is to have, as they are in place: what a write that is under way has put there already has a record
    /// of its own later, or is given up on every member alike. What cannot be read here is asked for as other bytes are.
    pub(super) fn to_carry(&self, st: &State, batch: &Batch, carrying: Carrying) -> Vec<Carry> {
        let mut carries = Vec::new();
        for command in &batch.data {
            let DataCommand::Written { inode, range } = command else {
                continue;
            };
            if is_kept_file(*inode) {
                continue;
            }
            let parts = match carrying {
                Carrying::WhatItMust => st.data.to_carry(*inode, *range),
                Carrying::All => vec![*range],
            };
            for range in parts {
                let len = range.len() as usize;
                let read = self
                    .file(*inode)
                    .and_then(|file| file.object.read_bytes(range.start, len));
                match read {
                    Ok(bytes) => carries.push(Carry {
                        inode: *inode,
                        range,
                        bytes: padded(bytes, len),
                    }),
                    Err(error) => {
                        debug!(container = %self.id, %inode, %range, %error, "a record goes without its bytes");
                    }
                }
            }
        }
        carries
    }

    /// Writes that are in place get no record: their programs hear of it, and other members' bytes replace theirs.
    pub(super) fn lose_writes(&self, st: &mut State, inode: InodeId, ranges: &[ByteRange]) {
        self.env.losses.note([inode]);
        self.distrust_writes(st, inode, ranges);
        self.refill.notify_one();
    }

    /// Carries out at the owner what an operation does to data objects, before it is ordered. What a removed file had stays until
    /// that is committed ([`Self::obey`]): a crash before may take the removal back.
    pub(super) fn carry_out(&self, st: &mut State, batch: &Batch) -> Result<(), StoreError> {
        for command in &batch.data {
            match command {
                DataCommand::Written { .. } => {}
                DataCommand::Resized { inode, size } => {
                    let file = self.file(*inode)?;
                    let object = &file.object;
                    let len = object.len()?;
                    // What was appended past the daemon since the look before is no part of what is cut.
                    if len < *size || !self.grows_alone(st, *inode, *size) {
                        self.note(st, *inode, ByteRange::new((*size).min(len), len));
                        object.resize(*size)?;
                    }
                    self.note_own_change(st, &file);
                }
                DataCommand::Punched { inode, range } => {
                    let file = self.file(*inode)?;
                    let object = &file.object;
                    let len = object.len()?;
                    let there = ByteRange::new(range.start.min(len), range.end.min(len));
                    self.note(st, *inode, there);
                    object.punch(*range)?;
                    self.note_own_change(st, &file);
                }
                DataCommand::Removed { inode } => st.leases.removed(*inode),
            }
        }
        Ok(())
    }
}

/// With the zeros of a file that was cut since.
fn padded(bytes: Bytes, len: usize) -> Bytes {
    if bytes.len() >= len {
        return bytes;
    }
    let mut padded = Vec::from(bytes);
    padded.resize(len, 0);
    padded.into()
}
