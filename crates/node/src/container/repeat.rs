//! Writes of other hosts that come again, since their answer did not.
//!
//! The record of such a write holds its answer, and is on every member before its bytes are, unless it carries them. If the owner
//! dies in between, its successor finds the answer, and bytes that nobody has: the repeat brings them again.

use super::dirty::{Effect, Pending, Taken};
use super::drive::decode_batch;
use super::execute::Owed;
use super::write::{Content, WriteRequest, touched};
use super::{Container, Elsewhere, Failed, File, State};
use perigee_meta::{Comes, Reply, Seen};
use perigee_replica::RegionMap;
use perigee_types::{
    Batch, ByteRange, DataCommand, Errno, InodeId, OpId, Seq, SessionId, Tick, Version,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tracing::{error, info};

/// Something that may come again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeatable {
    pub(crate) session: SessionId,
    pub(crate) op: OpId,
    pub(crate) answered_through: OpId,
    pub(crate) comes: Comes,
}

/// What a program is told of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word<'a> {
    /// It was done.
    Done(&'a Reply),
    /// It was not.
    Refused(Errno),
    /// It is a write, and was not done; one that was done has its record.
    NotWritten(Errno),
}

/// What is kept of a write, for its repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WroteBefore {
    /// Where it went.
    range: ByteRange,
    /// Of its record.
    version: Version,
}

impl Container {
    /// What is kept of a write that was carried out before.
    pub(super) fn repeated_write(
        &self,
        st: &State,
        request: &WriteRequest,
    ) -> Result<Option<WroteBefore>, Failed> {
        let Some(op) = request.op else {
            return Ok(None);
        };
        if st.dirty.has(request.inode, request.session, op) {
            // It is in place, and waits for its record.
            return Err(Elsewhere::NotReady.into());
        }
        match self.seen(st, request.session, op)? {
            Seen::Never => Ok(None),
            Seen::Running => Err(Elsewhere::NotReady.into()),
            Seen::TooLate => Err(Errno::EIO.into()),
            Seen::Refused(errno) => Err(errno.into()),
            Seen::Answered(answer) => {
                perigee_proto::decode(&answer)
                    .map(Some)
                    .map_err(|malformed| {
                        error!(container = %self.id, %malformed, "kept answer unreadable");
                        Errno::EIO.into()
                    })
            }
        }
    }

    /// What a program of this host is told of something that an earlier owner was sent, too, is so for good, also where it
    /// changed nothing or was refused: it returns when every later owner knows that.
    pub(crate) async fn told_for_good(
        self: &Arc<Self>,
        named: Repeatable,
        word: Word<'_>,
    ) -> Result<(), Failed> {
        match word {
            _ if named.comes != Comes::HomeAgain => return Ok(()),
            // It may have been done, or be done later: so much that says. Where this disk fails, the next owner is asked.
            Word::Refused(Errno::EIO | Errno::EROFS)
            | Word::NotWritten(Errno::EIO | Errno::EROFS) => {
                return Ok(());
            }
            _ => {}
        }
        let record = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            match (self.seen(&st, named.session, named.op)?, word) {
                (Seen::Never, _) => self.order_word(&mut st, now, named, word)?,
                // It was carried out before, and its bytes find no room here: what is kept of it stays.
                (Seen::Answered(_), Word::NotWritten(_)) => return Ok(()),
                // The record may still be under way.
                (Seen::Answered(_), Word::Done(_)) => st.chain.last(),
                (Seen::Refused(before), Word::Refused(errno) | Word::NotWritten(errno))
                    if before == errno =>
                {
                    st.chain.last()
                }
                // Another owner has told it otherwise since: that counts.
                _ => return Err(Elsewhere::NotReady.into()),
            }
        };
        Ok(self.committed(record).await?)
    }

    fn order_word(
        &self,
        st: &mut State,
        now: Tick,
        named: Repeatable,
        word: Word<'_>,
    ) -> Result<Version, Elsewhere> {
        let Repeatable {
            session,
            op,
            answered_through,
            ..
        } = named;
        let mut batch = Batch::default();
        let answers = &mut st.answers;
        match word {
            Word::Done(reply) => {
                let answer = perigee_proto::encode(reply);
                answers.keep(session, op, answered_through, &answer, &mut batch);
            }
            Word::Refused(errno) | Word::NotWritten(errno) => {
                answers.keep_refusal(session, op, answered_through, errno, &mut batch);
            }
        }
        let seq = self.order(st, now, batch, true)?;
        Ok(st.chain.version_at(seq))
    }

    /// Keeps a write's answer with its record.
    pub(super) fn remember_write(
        st: &mut State,
        write: &Pending,
        version: Version,
        batch: &mut Batch,
    ) {
        let range = write.range;
        let answer = perigee_proto::encode(&WroteBefore { range, version });
        let through = write.answered_through;
        st.answers
            .keep(write.session, write.op, through, &answer, batch);
    }

    /// The answer to a repeat. Bytes that may have gone with an earlier owner are written again, but for those that a
    /// later write has replaced. They are put in place under the container's lock, or another write could come between
    /// the look at the log and its own bytes; no more than one request's, and seldom.
    pub(super) fn write_again(
        &self,
        st: &mut State,
        request: &WriteRequest,
        file: &File,
        before: &WroteBefore,
        content: Content<'_>,
    ) -> Result<(ByteRange, Owed, Option<Seq>), Failed> {
        let WroteBefore { range, version } = *before;
        let Content::Bytes(data) = content else {
            // Nobody asks for that from another node.
            return Err(Errno::EPROTO.into());
        };
        if range.len() != data.len() as u64 {
            return Err(Errno::EPROTO.into());
        }
        let now = self.env.clock.now();
        Self::reign(st, now)?;
        let parts = if st.own.contains(&version.epoch) {
            Vec::new()
        } else {
            // A write of this reign may be there in its place, and have no record yet.
            self.record_writes(st, now, request.inode);
            let held = st.transactions.holds_inode(request.inode);
            if held || st.dirty.get(request.inode).is_some() {
                return Err(Elsewhere::NotReady.into());
            }
            self.unproven(st, request.inode, before)?
        };
        // Others have gone on without these bytes where the chunk is its host's no more.
        if !parts.is_empty() && request.behind.is_some() && st.admitted(request, range).is_empty() {
            return match st.away.goes(request.inode, range) {
                Some(_) => Err(Elsewhere::NotReady.into()),
                None => Err(Errno::EIO.into()),
            };
        }
        // Others may have gone on without these bytes since, under a lock that this session has lost.
        if !parts.is_empty() {
            if st.lock_queue.keeps_out(request.inode, request.session) {
                return Err(Errno::EIO.into());
            }
            match request
                .cuts
                .map(|_| self.admit_striped(st, request, range.len()))
            {
                None | Some(Ok(())) => {}
                Some(Err(Failed::Errno(Errno::ESTALE))) => return Err(Errno::EIO.into()),
                Some(Err(_)) => return Err(Elsewhere::NotReady.into()),
            }
        }
        let touched = touched(request);
        if !parts.is_empty() && st.leases.is_kept(now, request.session, &touched) {
            return Err(Elsewhere::NotReady.into());
        }
        for &part in &parts {
            info!(container = %self.id, inode = %request.inode, %part, "a repeat brings the bytes of a write again");
            let from = (part.start - range.start) as usize;
            let bytes = &data[from..from + part.len() as usize];
            self.note(st, request.inode, part);
            file.object
                .write(part.start, bytes)
                .map_err(|error| self.write_failed(st, request.inode, &error))?;
            let taken = Taken {
                answer: Self::pending(st, request, range),
                range: part,
                effect: Effect::Replaced,
                mtime: self.env.clock.wall(),
                now,
                kill_privileges: request.kill_privileges,
            };
            st.take_write(request.inode, &taken);
        }
        let seq = if parts.is_empty() {
            st.chain.last().seq
        } else {
            self.record_awaited_writes(st, now, request.inode)
                .ok_or(Errno::ESTALE)?
        };
        self.hurry(st);
        let mut owed = Owed {
            commit: Some(st.chain.version_at(seq)),
            ..Owed::default()
        };
        if !parts.is_empty() {
            self.owe_leases(st, now, request.session, touched, &mut owed);
        }
        Ok((range, owed, Some(seq)))
    }

    /// The parts of an earlier owner's write that no later one has replaced.
    fn unproven(
        &self,
        st: &State,
        inode: InodeId,
        before: &WroteBefore,
    ) -> Result<Vec<ByteRange>, Failed> {
        let (from, to) = (before.version.seq.next(), st.chain.last().seq);
        let mut later = Vec::new();
        let mut expected = from;
        for entry in st.chain.entries(from, to) {
            if entry.version.seq != expected {
                break;
            }
            expected = expected.next();
            later.push(decode_batch(&entry.payload).map_err(|malformed| {
                error!(container = %self.id, version = %entry.version, %malformed, "record unreadable");
                Errno::EIO
            })?);
        }
        if expected != to.next() {
            // So many records later nobody waits for an answer; what became of the bytes cannot be known any more.
            return Err(Errno::EIO.into());
        }
        Ok(not_replaced(inode, before.range, &later))
    }

    fn write_failed(
        &self,
        st: &State,
        inode: InodeId,
        failed: &perigee_store::StoreError,
    ) -> Failed {
        error!(container = %self.id, %inode, error = %failed, "a repeat's bytes cannot be written");
        match failed {
            perigee_store::StoreError::Corrupt { .. } if !st.damaged.contains_key(&inode) => {
                Elsewhere::NotReady.into()
            }
            failed => self.store_refused(failed).into(),
        }
    }
}

/// What of `range` is as its own write left it, or was lost: no later record replaced it. A record that a new owner
/// makes of what is in place, since nobody has what is missing, changes no attributes, and replaces nothing.
fn not_replaced(inode: InodeId, range: ByteRange, later: &[Batch]) -> Vec<ByteRange> {
    let mut left = RegionMap::new();
    left.invalidate(range, Version::default());
    for batch in later.iter().filter(|batch| !batch.mutations.is_empty()) {
        for command in batch.data.iter().filter(|command| command.inode() == inode) {
            let replaced = match command {
                DataCommand::Written { range, .. } | DataCommand::Punched { range, .. } => *range,
                DataCommand::Resized { size, .. } => ByteRange::new(*size, u64::MAX),
                DataCommand::Removed { .. } => ByteRange::ALL,
            };
            left.drop_range(replaced);
        }
    }
    left.iter().map(|(part, _)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::Mutation;

    const FILE: InodeId = InodeId(7);

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    fn batch(data: DataCommand, changes_attributes: bool) -> Batch {
        let mut batch = Batch::default();
        batch.data.push(data);
        if changes_attributes {
            batch.mutations.push(Mutation {
                key: b"attributes".to_vec(),
                value: None,
            });
        }
        batch
    }

    fn written(inode: InodeId, start: u64, end: u64) -> DataCommand {
        let range = range(start, end);
        DataCommand::Written { inode, range }
    }

    #[test]
    fn a_repeat_does_not_undo_later_writes() {
        let whole = range(0, 100);
        assert_eq!(not_replaced(FILE, whole, &[]), [whole]);
        let later = [
            batch(written(FILE, 20, 30), true),
            batch(written(InodeId(8), 0, 100), true),
            batch(
                DataCommand::Resized {
                    inode: FILE,
                    size: 90,
                },
                true,
            ),
        ];
        assert_eq!(
            not_replaced(FILE, whole, &later),
            [range(0, 20), range(30, 90)]
        );
        let removed = batch(DataCommand::Removed { inode: FILE }, true);
        assert_eq!(not_replaced(FILE, whole, &[removed]), []);
    }

    #[test]
    fn older_bytes_that_a_new_owner_took_for_want_of_others_are_no_later_write() {
        let kept = batch(written(FILE, 0, 100), false);
        assert_eq!(not_replaced(FILE, range(0, 64), &[kept]), [range(0, 64)]);
    }
}
