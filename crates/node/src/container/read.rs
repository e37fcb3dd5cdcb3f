//! Reading files at their owner, and looking for their holes; and this node's own copy.

use super::refusals::NoRoom;
use super::sync::Settled;
use super::{Answer, Container, Elsewhere, Failed};
use bytes::Bytes;
use perigee_cluster::nearness::nearer_than_owner;
use perigee_meta::stripe::{Cuts, UNIT, admit_read, admit_unspread};
use perigee_net::begun::spawn_begun;
use perigee_proto::message::file::{CopyAt, Whence};
use perigee_replica::Role;
use perigee_replica::chunk::Access;
use perigee_replica::work::Done;
use perigee_store::StoreError;
use perigee_types::{ByteRange, Epoch, Errno, InodeId, SessionId, Span};
use std::sync::Arc;

/// How often a read is done again because of what came while its bytes were put on all members.
const READS_MAX: u32 = 2;

/// What the owner answers a reader.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) bytes: Bytes,
    /// For how long it may read another copy next; zero: not.
    pub(crate) ttl: Span,
    /// Which.
    pub(crate) copy: CopyAt,
}

impl Read {
    /// The reader asks again.
    fn of(bytes: Bytes) -> Self {
        Self {
            bytes,
            ttl: Span::ZERO,
            copy: CopyAt::Own,
        }
    }
}

impl Container {
    /// Reads at the owner. `grant`: the session would like to read a copy next that is nearer to it.
    pub(crate) fn read(
        self: &Arc<Self>,
        session: SessionId,
        inode: InodeId,
        offset: u64,
        len: u32,
        grant: bool,
        answer: Answer<Read>,
    ) {
        let local = session.node() == self.env.me;
        if local {
            let now = self.env.clock.now();
            let range = ByteRange::with_len(offset, u64::from(len));
            let held = {
                let mut st = self.state.lock();
                let reign = Self::reign(&st, now).map(|_| ());
                // Pages that this host's kernel takes up while the container goes to another owner nobody would tell it of.
                let closed = st.leases.is_closed().then_some(Elsewhere::NotReady);
                if let Some(elsewhere) = reign.err().or(closed) {
                    drop(st);
                    return answer(Err(elsewhere.into()));
                }
                let access = st.reading(inode, session);
                st.away.on_other(inode, range);
                st.is_held_up(inode, range, access, &[])
            };
            if !held {
                let bytes = self.read_object(inode, offset, len);
                // Asked after the read: a write that it may have met had begun before.
                if !self.abroad.has(inode) {
                    return answer(self.or_elsewhere(bytes.map(Read::of)));
                }
            }
        }
        let me = self.clone();
        let read = async move {
            let result = me.read_for_other(session, inode, offset, len, grant).await;
            answer(me.or_elsewhere(result));
        };
        spawn_begun(&self.env.runtime, read);
    }

    /// What another host is shown is on every member first (law 3).
    async fn read_for_other(
        self: &Arc<Self>,
        session: SessionId,
        inode: InodeId,
        offset: u64,
        len: u32,
        grant: bool,
    ) -> Result<Read, Failed> {
        let range = ByteRange::with_len(offset, u64::from(len));
        let (access, own) = {
            let mut st = self.state.lock();
            // Whoever cedes has called back all who may hold pages.
            if st.leases.is_closed() {
                return Err(Elsewhere::NotReady.into());
            }
            let now = self.env.clock.now();
            self.note_work(&mut st, now, session, (Done::Read, inode));
            st.leases.note_reader(inode, session);
            if st.alone.has(inode) {
                self.look_often();
            }
            st.away.on_read(session, inode, range);
            (st.reading(inode, session), st.own_behind(inode, session))
        };
        if !range.is_empty() {
            self.pass_holders(inode, range, access, own).await?;
        }
        self.take_in_unseen(inode).await?;
        let mut read = self.read_past_changes(inode, offset, len).await?;
        // A copy that is read under a lease has it in place.
        let to_be = match grant {
            true => Settled::InPlace,
            false => Settled::Safe,
        };
        // What it has met may not be on every member yet. What comes while that is settled is shown too, if it can be: an
        // answer that is older than the file's known length would end in zeros.
        for round in 1.. {
            if self.is_settled(inode, to_be)? {
                break;
            }
            self.settle_writes(inode, to_be, NoRoom::Outlasted).await?;
            if round == READS_MAX {
                break;
            }
            let again = self.read_past_changes(inode, offset, len).await?;
            let same = again == read;
            read = again;
            if same {
                break;
            }
        }
        let mut read = Read::of(read);
        let copy = grant.then(|| self.copy_for(session)).flatten();
        if let Some((copy, of)) = copy {
            let now = self.env.clock.now();
            let mut st = self.state.lock();
            st.visitors.came();
            let (_, until) = Self::reign(&st, now)?;
            let same = st.chain.view().is_some_and(|view| view.epoch == of);
            // A write since then would have found no lease to take back.
            if st.dirty.get(inode).is_none()
                && st.data.last(inode).is_none()
                && !self.unseen.has(inode)
                && st.may_keep(inode, session)
                && same
            {
                let limit = st.leases.limit(now, session, until);
                read.ttl = st.leases.grant(now, inode, session, limit);
                read.copy = copy;
            }
        }
        Ok(read)
    }

    /// The copy that a session had better read than this one, and of which epoch: its own node's, if that is a member, since
    /// another one is not told what its copy lacks; or that of a member which is nearer to it.
    fn copy_for(&self, session: SessionId) -> Option<(CopyAt, Epoch)> {
        let view = self.state.lock().chain.view().cloned()?;
        let epoch = view.epoch;
        if view.lists(session.node()) {
            return Some((CopyAt::Own, epoch));
        }
        let directory = self.env.directory.read();
        let node = nearer_than_owner(&directory, &view.chain, session.node())?;
        Some((CopyAt::Member { node, epoch }, epoch))
    }

    /// This node's copy, after every write that the read may have met has failed, or waits for its record.
    async fn read_past_changes(
        self: &Arc<Self>,
        inode: InodeId,
        offset: u64,
        len: u32,
    ) -> Result<Bytes, Failed> {
        if let Some(read) = self.read_at_hand(inode, offset, len) {
            return read;
        }
        let me = self.clone();
        let range = ByteRange::with_len(offset, u64::from(len));
        let read = move || {
            me.beside_writers(inode, |writer| match writer {
                Some(writer) => {
                    let refused = |error: StoreError| me.read_failed(inode, &error);
                    let file = me.file(inode).map_err(refused)?;
                    let _still = file.still.write();
                    me.read_unseen(&file, range, writer).map_err(refused)
                }
                None => me.read_object(inode, offset, len),
            })
        };
        self.look_past_changes(inode, read).await
    }

    /// The same of bytes for which no file is read, and that no write has met: of a small file. Waits for the key-value store at most,
    /// as operations on names do.
    fn read_at_hand(
        self: &Arc<Self>,
        inode: InodeId,
        offset: u64,
        len: u32,
    ) -> Option<Result<Bytes, Failed>> {
        let file = self.file(inode).ok()?;
        if self.unseen.has(inode) || !file.object.is_at_hand() {
            return None;
        }
        let read = self.read_object(inode, offset, len);
        // Asked after the read: a write that it may have met had begun before.
        let met = self.unseen.has(inode) || self.state.lock().leases.has_changes(inode);
        (!met).then_some(read)
    }

    /// What is seen of a file, after every write that the look may have met has failed, or waits for its record.
    async fn look_past_changes<T: Send + 'static>(
        self: &Arc<Self>,
        inode: InodeId,
        look: impl FnOnce() -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Failed> {
        let me = self.clone();
        let seen = self.env.runtime.spawn_blocking(move || {
            let seen = look();
            me.pass_changes(inode)?;
            seen
        });
        seen.await.map_err(|_| Errno::EIO)?
    }

    /// Waits until the writes that are on their way into the file have failed, or wait for their record. Blocks.
    fn pass_changes(&self, inode: InodeId) -> Result<(), Failed> {
        if self.state.lock().leases.has_changes(inode) {
            let file = self
                .file(inode)
                .map_err(|error| self.store_refused(&error))?;
            drop(file.still.write());
        }
        Ok(())
    }

    /// Whether what was just read here of a file that may be striped, or of a column, is what its reader takes it for. No cut
    /// that was not known of then had come before the read.
    pub(crate) fn admit_read(
        &self,
        inode: InodeId,
        range: ByteRange,
        cuts: Option<Cuts>,
    ) -> Result<(), Failed> {
        let far = range.end > UNIT && self.env.directory.read().stripes_files();
        if cuts.is_none() && !far {
            return Ok(());
        }
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        let layout = self.attr(&st, inode)?.layout;
        match cuts {
            Some(cuts) => Ok(admit_read(layout, cuts)?),
            None => Ok(admit_unspread(layout, range.end)?),
        }
    }

    /// This member's copy for a session of another node that has the owner's word for it, given in `epoch`; none where this
    /// node is no member then, or not all of it is valid here and everybody's. Blocks.
    pub(crate) fn read_copy_for(
        &self,
        range: ByteRange,
        inode: InodeId,
        epoch: Epoch,
    ) -> Option<Bytes> {
        let file = self.file(inode).ok()?;
        // What was on its way into the file when this node's reign ended is taken out again, or has its record.
        let _still = file.still.write();
        let is_everybodys = || {
            let st = self.state.lock();
            let here = st.chain.view().is_some_and(|view| view.epoch == epoch);
            let member = matches!(st.role, Role::Replica { .. });
            // What has no record is nobody else's (H5), nor what programs here change unseen.
            let own = st.unsent.holding().keeps(inode, range) || self.unseen.has(inode);
            here && member && !own
        };
        let read = || self.read_copy(inode, range.start, range.len() as u32);
        is_everybodys().then(read)?.filter(|_| is_everybodys())
    }

    /// This node's copy, when all that is asked for is valid here.
    pub(crate) fn read_copy(&self, inode: InodeId, offset: u64, len: u32) -> Option<Bytes> {
        let file = self.file(inode).ok()?;
        match file.object.read_bytes(offset, len as usize) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                // The owner is asked instead; what is corrupt here is fetched meanwhile.
                self.read_failed(inode, &error);
                None
            }
        }
    }

    /// Reads this node's copy; bytes that are corrupt or missing here come from another member.
    pub(super) fn read_object(
        &self,
        inode: InodeId,
        offset: u64,
        len: u32,
    ) -> Result<Bytes, Failed> {
        let file = self
            .file(inode)
            .map_err(|error| self.read_failed(inode, &error))?;
        let read = file.object.read_bytes(offset, len as usize);
        read.map_err(|error| self.read_failed(inode, &error))
    }

    /// Finds data or a hole at the owner, for another host: what it is told is on every member.
    pub(crate) async fn seek_for_other(
        self: &Arc<Self>,
        inode: InodeId,
        offset: u64,
        whence: Whence,
    ) -> Result<u64, Failed> {
        self.pass_holders(inode, ByteRange::ALL, Access::Read, Vec::new())
            .await?;
        let me = self.clone();
        let seek = move || me.seek(inode, offset, whence);
        self.take_in_unseen(inode).await?;
        let found = self.look_past_changes(inode, seek).await;
        if self.unseen.has(inode) || !self.is_settled(inode, Settled::Safe)? {
            let no_room = NoRoom::Outlasted;
            self.settle_writes(inode, Settled::Safe, no_room).await?;
        }
        found
    }

    /// Finds data or a hole at the owner, for a program of this host.
    pub(crate) async fn seek_here(
        self: &Arc<Self>,
        inode: InodeId,
        offset: u64,
        whence: Whence,
    ) -> Result<u64, Failed> {
        self.pass_holders(inode, ByteRange::ALL, Access::Read, Vec::new())
            .await?;
        self.take_in_unseen(inode).await?;
        self.seek(inode, offset, whence)
    }

    /// Finds data or a hole at the owner.
    fn seek(&self, inode: InodeId, offset: u64, whence: Whence) -> Result<u64, Failed> {
        let size = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            self.attr(&st, inode)?.size
        };
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let found = match whence {
            Whence::Data => file.object.seek_data(offset),
            Whence::Hole => file.object.seek_hole(offset),
        };
        match found.map_err(|error| self.store_refused(&error))? {
            Some(at) if at < size => Ok(at),
            _ if whence == Whence::Hole => Ok(size),
            _ => Err(Errno::ENXIO.into()),
        }
    }
}
