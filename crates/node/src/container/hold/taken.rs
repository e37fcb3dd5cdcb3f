//! What holders send to the owner.

use super::super::dirty::{Effect, Taken};
use super::super::refusals::NoRoom;
use super::super::{Container, Elsewhere, Failed, State};
use bytes::Bytes;
use perigee_proto::message::hold::{SendWritten, WrittenTaken};
use perigee_replica::chunk::{Part, Stale};
use perigee_types::{Errno, InodeId, Tick, Version, WallTime};
use std::sync::Arc;

/// Bytes of one message of a holder: each waits for its record, so few of them are best; below the limit of a message.
pub(super) const SHARE_BYTES: u64 = 12 << 20;
/// Ranges of one message of a holder.
pub(super) const SHARE_RANGES: usize = 1_024;

impl Container {
    /// Takes what a holder has written; answers when it is on every member, or when its record is where more of it follows: one
    /// wait for all disks ends a turn, however many messages it takes.
    pub(crate) async fn take_written(
        self: &Arc<Self>,
        sent: SendWritten,
        data: Bytes,
    ) -> Result<WrittenTaken, Failed> {
        let inode = sent.chunk.inode;
        let part = sent.part;
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
        match part {
            Part::More => self.announce(),
            Part::Last => {
                self.data_everywhere(inode, version.seq, NoRoom::Outlasted)
                    .await?;
            }
        }
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
        // Alone: what was sent later may come while this is on its way to the disk.
        let _alone = file.still.write();
        let reign = {
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
            st.reigns_from
        };
        let mut at = 0;
        for &range in &sent.ranges {
            let end = at + range.len() as usize;
            let Some(bytes) = data.get(at..end) else {
                self.distrust_sent(sent);
                return Err(Errno::EINVAL.into());
            };
            at = end;
            if let Err(failed) = self.keep_content(&file, inode, range) {
                self.distrust_sent(sent);
                return Err(failed);
            }
            let _under_way = self.intend(inode, range);
            if let Err(error) = file.object.write(range.start, bytes) {
                self.distrust_sent(sent);
                return Err(self.read_failed(inode, &error));
            }
        }
        self.record_written(sent, reign)
    }

    /// Bytes of a holder are in place, and get no record: nobody is shown them.
    fn distrust_sent(&self, sent: &SendWritten) {
        let mut st = self.state.lock();
        self.distrust_writes(&mut st, sent.chunk.inode, &sent.ranges);
        self.refill.notify_one();
    }

    /// The bytes are in place since the reign that began at `reign`: makes records of them.
    fn record_written(
        self: &Arc<Self>,
        sent: &SendWritten,
        reign: Tick,
    ) -> Result<Option<Version>, Failed> {
        let inode = sent.chunk.inode;
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        if let Err(elsewhere) = Self::same_reign(&st, now, reign) {
            self.distrust_writes(&mut st, inode, &sent.ranges);
            self.refill.notify_one();
            return Err(elsewhere.into());
        }
        let mtime = match self.later_than_before(&st, inode, sent.mtime) {
            Ok(mtime) => mtime,
            Err(errno) => {
                self.distrust_writes(&mut st, inode, &sent.ranges);
                self.refill.notify_one();
                return Err(errno.into());
            }
        };
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
        let seq = self.record_awaited_writes(&mut st, now, inode);
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
    use perigee_replica::chunk::{FlushNumber, Part};
    use perigee_replica::{Chunk, Hold};
    use perigee_types::{ByteRange, ContainerId, Epoch, InodeIndex, NodeId, SessionId};

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
                manner: perigee_replica::chunk::Manner::InPlace,
            },
            number: FlushNumber(1),
            part: Part::Last,
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
}
