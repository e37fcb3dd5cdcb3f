//! Writing files at the owner.

use super::dirty::{Effect, Pending, Taken};
use super::execute::Owed;
use super::hold::Name;
use super::refusals::NoRoom;
use super::{Answer, Container, Elsewhere, Failed, State};
use crate::room::Verdict;
use bytes::Bytes;
use perigee_meta::stripe::{Cuts, admit_unspread_write, admit_write};
use perigee_meta::{Comes, Touched};
use perigee_proto::message::file::At;
use perigee_replica::Hold;
use perigee_replica::chunk::Access;
use perigee_replica::work::Done;
use perigee_store::StoreError;
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{ByteRange, Errno, InodeId, OpId, Seq, SessionId, Tick};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a write goes on taking back what other sessions keep.
const PATIENCE: Duration = Duration::from_secs(20);

/// One session's write.
#[derive(Clone, Copy)]
pub(crate) struct WriteRequest {
    pub(crate) session: SessionId,
    /// Names it for repeats, when it comes from another node.
    pub(crate) op: Option<OpId>,
    /// Its session knows the answers up to this one.
    pub(crate) answered_through: OpId,
    pub(crate) inode: InodeId,
    pub(crate) at: At,
    pub(crate) kill_privileges: bool,
    /// It is a part of one of a striped file, of which the writer knows so many cuts.
    pub(crate) cuts: Option<Cuts>,
    /// Its program was answered before, by the right to a chunk that this is the row of.
    pub(crate) behind: Option<Hold>,
    /// Whether it may come again.
    pub(crate) comes: Comes,
}

/// What a write brings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    /// Bytes that are to be put in place.
    Bytes(&'a [u8]),
    /// So many that are there: the object of a file that had none [took](super::taken) them.
    Taken(u64),
}

impl Content<'_> {
    pub(super) const fn len(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Taken(len) => len,
        }
    }
}

/// [`Content`] of a write that may wait.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// As [`Content::Bytes`].
    Bytes(Bytes),
    /// As [`Content::Taken`].
    Taken(u64),
}

impl Kept {
    fn content(&self) -> Content<'_> {
        match self {
            Self::Bytes(bytes) => Content::Bytes(bytes),
            Self::Taken(len) => Content::Taken(*len),
        }
    }
}

/// What a write changes for others.
pub(super) fn touched(request: &WriteRequest) -> Vec<Touched> {
    vec![Touched::Attr(request.inode), Touched::Data(request.inode)]
}

/// The part of the file that a write may change.
fn reach(request: &WriteRequest, len: u64) -> ByteRange {
    match request.at {
        At::Offset(offset) => ByteRange::with_len(offset, len),
        At::End => ByteRange::ALL,
    }
}

/// Bytes that are in the backing file, and no part of the file yet.
#[derive(Clone, Copy)]
struct Placed {
    range: ByteRange,
    effect: Effect,
    /// When the reign began in which the write was let in. In another one they are nothing: that owner has not kept what
    /// they replace for its checkpoints.
    reign: Tick,
}

/// A write that is in place for nobody or in part, until it is ordered or has failed.
struct Changing {
    container: Arc<Container>,
    inode: InodeId,
    session: SessionId,
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut st = self.container.state.lock();
        st.leases.changed(self.inode, self.session);
    }
}

impl State {
    /// Whether no other member has to have what is written here.
    fn is_only_copy(&self) -> bool {
        self.chain.counted().next().is_none()
    }

    /// A write is in place, and its record comes later; says whether that is due now.
    pub(super) fn take_write(&mut self, inode: InodeId, taken: &Taken) -> bool {
        self.pull.on_own_write(inode, taken.range);
        self.written += taken.range.len();
        self.dirty.add(inode, taken)
    }
}

impl Container {
    /// Writes at the owner, for a session of this node or of another. Gives `answer` back when this node is not the one to
    /// ask now, or other sessions keep what is to be replaced ([`Self::write_in_turn`]); nothing has happened then.
    pub(crate) fn write(
        self: &Arc<Self>,
        request: WriteRequest,
        content: Content<'_>,
        answer: Answer<ByteRange>,
    ) -> Result<(), Answer<ByteRange>> {
        let local = request.session.node() == self.env.me;
        let under_way = (!local).then(|| self.abroad.begin(request.inode));
        match self.or_elsewhere(self.write_now(&request, content, local)) {
            Err(Failed::Elsewhere(_)) => return Err(answer),
            Err(failed) => answer(Err(failed)),
            Ok((range, owed, None)) => self.settle(owed, Ok(range), answer),
            Ok((range, owed, Some(seq))) => {
                // Members fetch as soon as there is a record; without any it goes to the disk together with the checksums.
                let (alone, lacks) = {
                    let st = self.state.lock();
                    let lacks = st.data.lacking(request.inode).is_some();
                    (st.is_only_copy(), lacks)
                };
                let flushed = (alone && lacks).then(|| self.flush_before_record(request.inode));
                let me = self.clone();
                let session = request.session;
                let answered = request.behind.and(request.op);
                let name = answered.map(|op| Name { session, op });
                self.env.runtime.spawn(async move {
                    let record = owed.commit;
                    let here = async {
                        match flushed {
                            Some(syncing) => me.synced_here(request.inode, syncing?).await,
                            None if lacks => me.sync_here(request.inode).await,
                            // Its record has the bytes.
                            None => Ok(()),
                        }
                    };
                    let recorded = async {
                        match record {
                            Some(record) => me.committed(record).await,
                            None => Ok(()),
                        }
                    };
                    // At once: members install what they fetch when they hear of the commit, and a kernel that is to
                    // forget may wait for a read that waits for them.
                    let everywhere = async {
                        // What fails here is begun again below, and told of there.
                        tokio::pin!(here, recorded);
                        let first = tokio::select! {
                            biased;
                            _ = &mut here => None,
                            recorded = &mut recorded => Some(recorded),
                        };
                        match first {
                            None => recorded.await?,
                            Some(recorded) => {
                                // The record has left with another one: no company comes any more.
                                me.env.store.hasten();
                                _ = here.await;
                                recorded?;
                            }
                        }
                        me.data_everywhere(request.inode, seq, NoRoom::Told).await?;
                        me.in_place_at(session.node(), request.inode, seq).await
                    };
                    let done = async { tokio::join!(me.pay(owed), everywhere) };
                    let (paid, everywhere) = me.told_meanwhile(name, done).await;
                    drop(under_way);
                    if request.behind.is_none() && everywhere.is_ok() {
                        me.tell_of_row(session, request.inode, range, seq).await;
                    }
                    let done = paid.map_err(Failed::from).and(everywhere);
                    answer(done.map(|()| range));
                });
            }
        }
        Ok(())
    }

    /// The same; first takes back what other sessions keep of the file. Who is shown the write can rely on it that nobody is
    /// shown what was before.
    pub(crate) async fn write_in_turn(
        self: &Arc<Self>,
        request: WriteRequest,
        kept: Kept,
    ) -> Result<ByteRange, Failed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let range = reach(&request, kept.content().len());
            let (own, goes) = {
                let mut st = self.state.lock();
                st.note_heard(request.session, self.env.clock.now());
                let goes = st.away.goes(request.inode, range);
                (st.admitted(&request, range), goes)
            };
            if let Some(chunk) = goes {
                self.take_chunk_back(chunk).await?;
            } else if request.behind.is_none() {
                // A holder's own write comes beside its rows.
                self.pass_holders(request.inode, range, Access::Change, own)
                    .await?;
            }
            if let Some(owed) = self.recall_content(&request)? {
                self.pay(owed).await?;
            }
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let (me, kept) = (self.clone(), kept.clone());
            let begun = self.env.runtime.spawn_blocking(move || {
                // The receiver waits below.
                let answer: Answer<ByteRange> = Box::new(move |result| _ = sender.send(result));
                me.write(request, kept.content(), answer).is_ok()
            });
            if begun.await.map_err(|_| Errno::EIO)? {
                return receiver.await.unwrap_or(Err(Elsewhere::NotReady.into()));
            }
            if Instant::now() > deadline || !self.is_kept(&request, range) {
                return Err(Elsewhere::NotReady.into());
            }
        }
    }

    /// Whether others keep, or hold, what is to be replaced.
    fn is_kept(&self, request: &WriteRequest, range: ByteRange) -> bool {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        let beside = st.admitted(request, range);
        st.leases.is_kept(now, request.session, &touched(request))
            || st.is_held_up(request.inode, range, Access::Change, &beside)
    }

    fn recall_content(&self, request: &WriteRequest) -> Result<Option<Owed>, Elsewhere> {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        let (session, touched) = (request.session, touched(request));
        let kept = st.leases.is_kept(now, session, &touched);
        Ok(kept.then(|| st.recall(now, session, touched)))
    }

    /// Puts the bytes into the backing file, and notes or orders the write. The last part of the
    /// answer: the record whose data must be everywhere before another host is answered.
    fn write_now(
        self: &Arc<Self>,
        request: &WriteRequest,
        content: Content<'_>,
        local: bool,
    ) -> Result<(ByteRange, Owed, Option<Seq>), Failed> {
        let inode = request.inode;
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let _appending = matches!(request.at, At::End).then(|| file.append.lock());
        let _still = file.still.read();
        let (offset, reign, _changing) = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            if now < st.changes_from {
                return Err(Elsewhere::NotReady.into());
            }
            if !local {
                st.visitors.came();
                st.answers.hear(request.session, request.answered_through);
                if st.transactions.holds_inode(inode) {
                    return Err(Elsewhere::NotReady.into());
                }
            }
            // Also one of this node: the owner that it went to first may have carried it out.
            if let Some(before) = self.repeated_write(&st, request)? {
                return self.write_again(&mut st, request, &file, &before, content);
            }
            if st.lock_queue.keeps_out(inode, request.session) {
                return Err(Errno::EIO.into());
            }
            self.admit_striped(&st, request, content.len())?;
            let kept = st.leases.is_kept(now, request.session, &touched(request));
            let range = reach(request, content.len());
            let beside = st.admitted(request, range);
            if request.behind.is_some() && beside.is_empty() {
                // Where the record that takes the chunk back is lost, the write counts after all.
                if st.away.removing.keys().any(|chunk| chunk.inode == inode) {
                    return Err(Elsewhere::NotReady.into());
                }
                // Others have been shown what was before it, since its host was silent for too long.
                return Err(Errno::EIO.into());
            }
            let held = st.is_held_up(inode, range, Access::Change, &beside);
            if kept || held || self.is_backed_up(&st) {
                return Err(Elsewhere::NotReady.into());
            }
            (
                self.offset(&st, request)?,
                st.reigns_from,
                self.begin_change(&mut st, request),
            )
        };
        let range = ByteRange::with_len(offset, content.len());
        if range.end > FILE_LEN_MAX {
            return Err(Errno::EFBIG.into());
        }
        let data = match content {
            Content::Bytes(data) => data,
            Content::Taken(len) => {
                let object = &file.object;
                let there = object.len().and_then(|there| {
                    // Holes take no room at the others either.
                    let taken = object.allocated_blocks()?.saturating_mul(512);
                    Ok((there, taken.min(len)))
                });
                let (there, taken) = there.map_err(|error| self.store_refused(&error))?;
                if there < len {
                    return Err(Errno::EIO.into());
                }
                self.find_room(ByteRange::new(0, taken))?;
                let placed = Placed {
                    range,
                    effect: Effect::Grew,
                    reign,
                };
                return self.note_write(request, placed);
            }
        };
        let len = file
            .object
            .len()
            .map_err(|error| self.store_refused(&error))?;
        let effect = if range.end > len {
            Effect::Grew
        } else {
            Effect::Replaced
        };
        if effect == Effect::Grew {
            self.find_room(ByteRange::new(len.max(offset), range.end))?;
        }
        // Only what a record made part of the file can be read: growth needs no note.
        let replaced = ByteRange::new(offset.min(len), range.end.min(len));
        self.keep_content(&file, inode, replaced)?;
        let _under_way = self.intend(inode, replaced);
        if let Err(error) = file.object.write(offset, data) {
            if matches!(error, StoreError::NoSpace) && !replaced.is_empty() {
                let placed = Placed {
                    range: replaced,
                    effect: Effect::Replaced,
                    reign,
                };
                self.note_torn(request, placed);
            }
            return Err(self.read_failed(inode, &error));
        }
        let placed = Placed {
            range,
            effect,
            reign,
        };
        self.note_write(request, placed)
    }

    /// Until the end of what is given back no other session gets a lease on the file.
    fn begin_change(self: &Arc<Self>, st: &mut State, request: &WriteRequest) -> Changing {
        let WriteRequest { session, inode, .. } = *request;
        st.leases.changing(inode, session);
        Changing {
            container: self.clone(),
            inode,
            session,
        }
    }

    /// Sees to it that the members can take what a file grows by.
    pub(super) fn find_room(&self, added: ByteRange) -> Result<(), Failed> {
        let others = self.others(&self.state.lock());
        match self
            .env
            .rooms
            .take(&others, added.len(), self.env.clock.now())
        {
            Verdict::Room => Ok(()),
            Verdict::Unsure => Err(Elsewhere::NotReady.into()),
            Verdict::Full => Err(Errno::ENOSPC.into()),
        }
    }

    /// Where a write goes. An append needs the size of this moment; a plain write needs nothing.
    fn offset(&self, st: &State, request: &WriteRequest) -> Result<u64, Errno> {
        match request.at {
            At::Offset(offset) => Ok(offset),
            At::End => {
                let size = self.attr(st, request.inode)?.size;
                match st.alone.has(request.inode) {
                    true => Ok(size.max(self.unseen_len(request.inode)?)),
                    false => Ok(size),
                }
            }
        }
    }

    /// The bytes are in the backing file: makes them part of the file.
    fn note_write(
        self: &Arc<Self>,
        request: &WriteRequest,
        placed: Placed,
    ) -> Result<(ByteRange, Owed, Option<Seq>), Failed> {
        let Placed { range, effect, .. } = placed;
        let inode = request.inode;
        let local = request.session.node() == self.env.me;
        let mut st = self.state.lock();
        // One moment for the right to order and for all that follows from it.
        let now = self.env.clock.now();
        let full = self.take(&mut st, now, request, placed)?;
        if st.alone.has(inode)
            && let Ok(file) = self.file(inode)
        {
            self.note_own_change(&mut st, &file);
        }
        self.follow_writes(&mut st, now, inode);
        let mut owed = Owed::default();
        let mut seq = None;
        if !local {
            seq = self.record_awaited_writes(&mut st, now, inode);
            if seq.is_none() {
                return Err(self.unrecorded(&mut st, now, request));
            }
            owed.commit = seq.map(|seq| st.chain.version_at(seq));
            if !st.is_only_copy() {
                self.hurry(&mut st);
            }
        } else if full {
            self.record_writes(&mut st, now, inode);
        }
        if request.behind.is_none() {
            // Else nobody was shown any of it since the chunk was given away that he could keep, and a kernel that was told may wait
            // for a read that waits for this.
            self.owe_written(&mut st, now, request, &mut owed);
        }
        if request.cuts.is_none() {
            // Chunks that are spread over several owners on purpose are lent to nobody.
            self.note_habit(&mut st, request, range, effect);
        }
        if request.behind.is_some() {
            st.note_stay(inode, range);
        }
        self.note_work(&mut st, now, request.session, (Done::Change, inode));
        if !local {
            // Its own kernel keeps what it has written.
            st.leases.note_reader(inode, request.session);
        }
        Ok((range, owed, seq))
    }

    /// Sees to it that what was written to a file gets its record in time.
    pub(super) fn follow_writes(&self, st: &mut State, now: Tick, inode: InodeId) {
        let Some(file) = st.dirty.get(inode) else {
            return;
        };
        let (due, is_much) = (file.due(), file.is_much());
        if due > now {
            return self.look_by(st, due);
        }
        st.gathering.begin(now);
        if is_much {
            st.gathering.hurry();
        }
        self.look_in_time(st);
    }

    /// A write of another host is in place and got no record: it waits for one as this host's own do, and is asked for again
    /// where there is still a file.
    fn unrecorded(self: &Arc<Self>, st: &mut State, now: Tick, request: &WriteRequest) -> Failed {
        if st.dirty.get(request.inode).is_none() && Self::reign(st, now).is_ok() {
            return Errno::ESTALE.into();
        }
        let mut owed = Owed::default();
        self.owe_leases(st, now, request.session, touched(request), &mut owed);
        let me = self.clone();
        // Leases end by themselves, too; the repeat has others to take back.
        self.env
            .runtime
            .spawn(async move { _ = me.pay(owed).await });
        Elsewhere::NotReady.into()
    }

    /// A write found no room half way: what fitted is the file's content now, and the other members' has to follow.
    fn note_torn(self: &Arc<Self>, request: &WriteRequest, placed: Placed) {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        // Its repeat is no write that was carried out.
        let request = &WriteRequest {
            op: None,
            ..*request
        };
        // Who may not order has distrusted the bytes, and the program is told of the want of room.
        if self.take(&mut st, now, request, placed).is_ok() {
            self.record_writes(&mut st, now, request.inode);
            let mut owed = Owed::default();
            self.owe_written(&mut st, now, request, &mut owed);
            let me = self.clone();
            // The program is told of the want of room whatever becomes of this; leases end by themselves, too.
            self.env
                .runtime
                .spawn(async move { _ = me.pay(owed).await });
        }
    }

    /// What goes with the record of a write that went to `range`, if it may come again.
    pub(super) fn pending(st: &State, request: &WriteRequest, range: ByteRange) -> Option<Pending> {
        let op = request.op.filter(|_| st.answers.must_keep(request.comes));
        op.map(|op| Pending {
            session: request.session,
            op,
            answered_through: request.answered_through,
            range,
        })
    }

    /// Makes bytes that are in the backing file the file's content, where this node may order at `now`; distrusts them
    /// where it may not. Says whether the dirty ranges want to be recorded.
    fn take(
        &self,
        st: &mut State,
        now: Tick,
        request: &WriteRequest,
        placed: Placed,
    ) -> Result<bool, Elsewhere> {
        let inode = request.inode;
        let Placed { range, effect, .. } = placed;
        if let Err(elsewhere) = Self::same_reign(st, now, placed.reign) {
            self.distrust_writes(st, inode, &[range]);
            self.refill.notify_one();
            return Err(elsewhere);
        }
        let taken = Taken {
            answer: Self::pending(st, request, range),
            range,
            effect,
            mtime: self.env.clock.wall(),
            now,
            kill_privileges: request.kill_privileges,
        };
        Ok(st.take_write(inode, &taken))
    }

    /// Other sessions' leases on what a write has changed.
    fn owe_written(
        self: &Arc<Self>,
        st: &mut State,
        now: Tick,
        request: &WriteRequest,
        owed: &mut Owed,
    ) {
        self.owe_leases(st, now, request.session, touched(request), owed);
        if let Some(op) = request.op {
            owed.hold_repeats(st, request.session, op);
        }
    }

    /// Whether a write to a file that may be striped, or to a column, goes where its writer takes it to go.
    pub(super) fn admit_striped(
        &self,
        st: &State,
        request: &WriteRequest,
        len: u64,
    ) -> Result<(), Failed> {
        if request.cuts.is_none() && !self.env.directory.read().stripes_files() {
            return Ok(());
        }
        let attr = self.attr(st, request.inode)?;
        let start = match request.at {
            At::Offset(offset) => offset,
            At::End => attr.size,
        };
        let end = start.saturating_add(len);
        match request.cuts {
            Some(cuts) => Ok(admit_write(attr.layout, end, cuts)?),
            // Also in the first chunk: what goes beyond the end of a cut would go with it later.
            None => Ok(admit_unspread_write(attr.layout, end)?),
        }
    }
}
