//! The side of the holder: it writes in place, sends what it wrote, and answers calls.

use super::super::dirty::{QUIET_WAIT, REPLACED_WAIT};
use super::super::write::WriteRequest;
use super::super::{Container, Elsewhere, Failed, State};
use super::taken::{SHARE_BYTES, SHARE_RANGES};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use perigee_meta::{Attr, Reply, Touched};
use perigee_proto::message::file::At;
use perigee_proto::message::hold::{AskRight, CallHolder, SendWritten, WrittenTaken};
use perigee_replica::chunk::{Access, Flush, May, Report, Share, Terms, Turn, Unsent as Lost};
use perigee_replica::{Chunk, Hold, Holding, Role, Timing};
use perigee_store::StoreError;
use perigee_types::{ByteRange, InodeId, NodeId, Seq, SessionId, Tick, Version, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};

/// How long the owner may take to say whether this node may write.
const CALL: Duration = Duration::from_secs(10);
/// How long what is sent may take until it is on every member: longer than a slow disk needs, since it is begun anew then.
const SEND: Duration = Duration::from_secs(60);
/// Chunks that are sent at a time.
const TOGETHER: usize = 4;
/// Before what did not arrive is sent once more.
const PAUSE: Duration = Duration::from_millis(20);
/// What one message takes.
const SHARE: Share = Share {
    bytes: SHARE_BYTES,
    ranges: SHARE_RANGES,
};

/// The chunks that this node holds, and when its programs wrote to them.
#[derive(Default)]
pub(in super::super) struct Unsent {
    holding: Holding,
    times: BTreeMap<Chunk, Times>,
    /// Files with notes on the disk about what is held.
    noted: BTreeSet<InodeId>,
}

/// The writes to one chunk.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// The first and the last that no turn has.
    since: Tick,
    last: Tick,
    /// The last of all.
    mtime: WallTime,
    /// That the owner has not been told of.
    writes: u64,
}

impl Times {
    fn due(&self) -> Tick {
        (self.since + REPLACED_WAIT).min(self.last + QUIET_WAIT)
    }
}

/// What came of a program's wish to use what this node holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AsHolder<T> {
    /// It was done here, or failed here.
    Done(T),
    /// The owner has to be asked for the right first.
    Ask,
    /// It is the owner's affair.
    No,
}

impl Unsent {
    /// Whether this node holds nothing.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.holding.is_empty()
    }

    /// What it holds.
    pub(in super::super) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Whether bytes of a file are this node's alone.
    pub(in super::super) fn keeps(&self, inode: InodeId) -> bool {
        self.holding.keeps(inode, ByteRange::ALL)
    }

    pub(super) fn on_row(&mut self, chunk: Chunk, mine: Option<Hold>) -> Option<Lost> {
        self.times.remove(&chunk);
        self.holding.on_row(chunk, mine)
    }

    /// What becomes an owner's own write, with its time; and what is lost.
    pub(super) fn on_reign(
        &mut self,
        stands: impl Fn(Chunk, Hold) -> bool,
    ) -> (Vec<(Lost, WallTime)>, Vec<Lost>) {
        let (kept, lost) = self.holding.on_reign(stands);
        let timed = kept.into_iter().map(|unsent| {
            let mtime = self.last_write(unsent.inode).unwrap_or_default();
            (unsent, mtime)
        });
        let timed = timed.collect();
        self.times.clear();
        (timed, lost)
    }

    /// When the last write to a file was made here.
    fn last_write(&self, inode: InodeId) -> Option<WallTime> {
        let times = self.times.range(Chunk::all_of(inode));
        times.map(|(_, times)| times.mtime).max()
    }

    /// The same of what the owner has not heard of: what it has, others may have set another time of since.
    fn mtime(&self, inode: InodeId) -> Option<WallTime> {
        let times = self.times.range(Chunk::all_of(inode));
        let unheard = times.filter(|(chunk, _)| !self.holding.is_clean(**chunk));
        unheard.map(|(_, times)| times.mtime).max()
    }

    /// A write to `range` is in place.
    fn note_time(&mut self, inode: InodeId, range: ByteRange, now: Tick, wall: WallTime) {
        for chunk in Chunk::touched(inode, range) {
            let times = self.times.entry(chunk).or_insert(Times {
                since: now,
                last: now,
                mtime: wall,
                writes: 0,
            });
            if times.writes == 0 {
                times.since = now;
            }
            times.last = now;
            times.mtime = times.mtime.max(wall);
            times.writes += 1;
        }
    }
}

impl Container {
    /// Writes here by the right to, if there is one.
    pub(crate) fn write_as_holder(
        self: &Arc<Self>,
        request: &WriteRequest,
        data: &[u8],
    ) -> AsHolder<Result<ByteRange, Failed>> {
        let At::Offset(offset) = request.at else {
            return AsHolder::No;
        };
        if data.is_empty() || request.kill_privileges || self.state.lock().unsent.is_empty() {
            return AsHolder::No;
        }
        let (inode, range) = (
            request.inode,
            ByteRange::with_len(offset, data.len() as u64),
        );
        let Ok(file) = self.file(inode) else {
            return AsHolder::No;
        };
        let _still = file.still.read();
        // What a file grows by is the owner's affair.
        if file.object.len().map_or(true, |len| range.end > len) {
            return AsHolder::No;
        }
        let before = {
            let mut st = self.state.lock();
            let may = self.may_as_holder(&st, request.session, inode, range);
            if may != AsHolder::Done(()) {
                return may.without();
            }
            let st = &mut *st;
            st.unsent.holding.on_write(inode, range);
            st.unsent.noted.insert(inode);
            st.pull.on_own_write(inode, range);
            holds_of(st, inode, range)
        };
        let under_way = self.intend(inode, range);
        let written = file.object.write(offset, data);
        drop(under_way);
        let mut st = self.state.lock();
        let still_held = holds_of(&st, inode, range) == before;
        if !still_held || written.is_err() {
            self.distrust_writes(&mut st, inode, &[range]);
            drop(st);
            self.refill.notify_one();
            return match written {
                Err(error) => AsHolder::Done(Err(self.read_failed(inode, &error))),
                // The chunk was taken back meanwhile.
                Ok(()) => AsHolder::No,
            };
        }
        let (now, wall) = (self.env.clock.now(), self.env.clock.wall());
        st.unsent.note_time(inode, range, now, wall);
        drop(st);
        self.held.notify_one();
        AsHolder::Done(Ok(range))
    }

    fn may_as_holder(
        &self,
        st: &State,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
    ) -> AsHolder<()> {
        let now = self.env.clock.now();
        // A member whose disk is full may soon be none: what the owner has stays.
        if !matches!(st.role, Role::Replica { .. }) || st.is_full(now) {
            return AsHolder::No;
        }
        match st.unsent.holding.may(now, session, inode, range) {
            May::Yes => AsHolder::Done(()),
            May::Ask => AsHolder::Ask,
            May::No => AsHolder::No,
        }
    }

    /// Whether a session may read this node's own copy of a part of a file as its holder.
    pub(crate) fn may_read_as_holder(
        &self,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
    ) -> AsHolder<()> {
        let st = self.state.lock();
        if st.unsent.is_empty() || range.is_empty() {
            return AsHolder::No;
        }
        match self.may_as_holder(&st, session, inode, range) {
            AsHolder::Done(()) if !st.pull.is_valid(inode, range) => AsHolder::No,
            may => may,
        }
    }

    /// Asks the owner for the right to use what this node holds of `range`. Says whether it has it.
    pub(crate) async fn ask_right(self: &Arc<Self>, inode: InodeId, range: ByteRange) -> bool {
        for chunk in Chunk::touched(inode, range) {
            let (owner, hold, asked, at) = {
                let mut st = self.state.lock();
                let Some(owner) = owner_of(&st) else {
                    return false;
                };
                let Some((hold, asked)) = st.unsent.holding.ask(chunk) else {
                    return false;
                };
                (owner, hold, asked, self.env.clock.now())
            };
            let request = AskRight { chunk, hold, asked };
            match self.env.ask(owner, &request, Bytes::new(), CALL).await {
                Ok((answer, _)) if answer.granted.is_ok() => {}
                Ok(_) => return false,
                Err(error) => {
                    debug!(container = %self.id, %owner, %error, "no right to write");
                    return false;
                }
            }
            let terms = Terms::from(&Timing::default());
            let mut st = self.state.lock();
            st.unsent.holding.on_right(chunk, hold, (asked, at), terms);
        }
        true
    }

    /// Puts the times of writes that the owner has not heard of into what it says of files.
    pub(crate) fn freshen_held(&self, reply: &mut Reply) {
        let st = self.state.lock();
        if st.unsent.is_empty() {
            return;
        }
        let fresh = |attr: &mut Attr| {
            if let Some(mtime) = st.unsent.mtime(attr.inode) {
                attr.mtime = attr.mtime.max(mtime);
                attr.ctime = attr.ctime.max(mtime);
            }
        };
        match reply {
            Reply::Attr(attr) | Reply::Entry(attr) | Reply::Created { attr, .. } => fresh(attr),
            Reply::Listing(rows) => rows
                .iter_mut()
                .filter_map(|row| row.attr.as_mut())
                .for_each(fresh),
            _ => {}
        }
    }

    /// Sends what was written when it is due, until the node stops.
    pub(in super::super) async fn hold_loop(self: Arc<Self>) {
        loop {
            let now = self.env.clock.now();
            let (due, next) = {
                let st = self.state.lock();
                // Also what nobody sends on, since who began to waits no more.
                let unsent = |chunk: &Chunk| !st.unsent.holding.is_clean(*chunk);
                let waits = st.unsent.times.iter().filter(|(chunk, _)| unsent(chunk));
                let mut due = Vec::new();
                let mut next = now + REPLACED_WAIT;
                for (chunk, times) in waits {
                    if times.due() <= now || st.is_full(now) {
                        due.push(*chunk);
                    } else {
                        next = next.min(times.due());
                    }
                }
                (due, next)
            };
            if !due.is_empty() {
                self.send_chunks(due).await;
                continue;
            }
            let sleep = next.since(now).as_duration();
            tokio::select! {
                () = self.held.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Sends what was written to a file until now. Ends when the owner has it, or this node holds it no more.
    pub(crate) async fn send_file(self: &Arc<Self>, inode: InodeId) {
        let chunks: Vec<Chunk> = {
            let st = self.state.lock();
            let dirty = st.unsent.times.range(Chunk::all_of(inode));
            dirty.map(|(chunk, _)| *chunk).collect()
        };
        self.send_chunks(chunks).await;
    }

    /// The same of all files.
    pub(in super::super) async fn send_everything(self: &Arc<Self>) {
        let chunks: Vec<Chunk> = self.state.lock().unsent.times.keys().copied().collect();
        self.send_chunks(chunks).await;
    }

    async fn send_chunks(self: &Arc<Self>, chunks: Vec<Chunk>) {
        let sent = chunks.into_iter().map(|chunk| self.send_all(chunk));
        stream::iter(sent)
            .buffer_unordered(TOGETHER)
            .for_each(|()| std::future::ready(()))
            .await;
    }

    async fn send_all(self: &Arc<Self>, chunk: Chunk) {
        let (hold, through) = {
            let st = self.state.lock();
            let holding = &st.unsent.holding;
            let Some(hold) = holding.hold(chunk) else {
                return;
            };
            (hold, holding.last_written(chunk))
        };
        self.send_through(chunk, hold, through).await;
    }

    /// Sends a chunk's writes, turn by turn, until everything of `through` has arrived.
    async fn send_through(self: &Arc<Self>, chunk: Chunk, hold: Hold, through: Turn) {
        loop {
            let progress = self.progress.notified();
            let flush = {
                let mut st = self.state.lock();
                if st.unsent.holding.has_arrived(chunk, hold, through) {
                    return;
                }
                st.unsent.holding.flush(chunk, SHARE)
            };
            match flush {
                Some(flush) => {
                    // What is on its way is told of in any case, also where the one who asked for it waits no more.
                    let me = self.clone();
                    let sent = self.env.runtime.spawn(async move {
                        let arrived = me.send_part(flush).await;
                        me.progress.notify_waiters();
                        arrived
                    });
                    if !matches!(sent.await, Ok(true)) {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                // Somebody else sends.
                None => _ = tokio::time::timeout(PAUSE, progress).await,
            }
        }
    }

    /// Sends one part. Says whether the owner has taken it.
    async fn send_part(self: &Arc<Self>, flush: Flush) -> bool {
        let (chunk, hold, number) = (flush.chunk, flush.hold, flush.number);
        let me = self.clone();
        let read = self.env.runtime.spawn_blocking(move || {
            let read = me.read_written(&flush);
            (flush, read)
        });
        let taken = match read.await {
            // All of it is lost.
            Ok((_, (ranges, _))) if ranges.is_empty() => Some(WrittenTaken {
                version: Some(Version::default()),
            }),
            Ok((flush, (ranges, payload))) => self.tell_owner(flush, ranges, payload).await,
            Err(error) => {
                warn!(container = %self.id, %error, "what is held was not read");
                None
            }
        };
        // What is kept of the owner's word is from before that; from now on nothing of this host's own covers it.
        self.env.sessions.changed(chunk.inode);
        let mut st = self.state.lock();
        match taken.and_then(|taken| taken.version) {
            Some(version) => {
                let committed = st.chain.committed();
                let holding = &mut st.unsent.holding;
                holding.on_flushed(chunk, hold, number, (version, committed));
                self.settle_held(&mut st);
                true
            }
            None => {
                st.unsent.holding.on_flush_failed(chunk, hold, number);
                false
            }
        }
    }

    async fn tell_owner(
        self: &Arc<Self>,
        flush: Flush,
        ranges: Vec<ByteRange>,
        payload: Bytes,
    ) -> Option<WrittenTaken> {
        let chunk = flush.chunk;
        let (owner, sent) = {
            let mut st = self.state.lock();
            let owner = owner_of(&st)?;
            let epoch = st.chain.view()?.epoch;
            let times = st.unsent.times.get_mut(&chunk);
            let mtime = times.as_ref().map(|times| times.mtime).unwrap_or_default();
            let writes = times.map_or(0, |times| std::mem::take(&mut times.writes));
            let sent = SendWritten {
                chunk,
                hold: flush.hold,
                number: flush.number,
                part: flush.part,
                epoch,
                ranges,
                mtime,
                writes,
            };
            (owner, sent)
        };
        let changed = self.sources_changed.notified();
        let answer = tokio::select! {
            answer = self.env.ask(owner, &sent, payload, SEND) => answer,
            // The one who was asked may be dead.
            () = changed => return None,
        };
        match answer {
            Ok((taken, _)) => Some(taken),
            Err(error) => {
                debug!(container = %self.id, %owner, %error, "what was written has not arrived");
                None
            }
        }
    }

    /// The bytes of what is to be sent, while no write is half way. What cannot be read is lost.
    fn read_written(&self, flush: &Flush) -> (Vec<ByteRange>, Bytes) {
        let inode = flush.chunk.inode;
        let bytes: u64 = flush.ranges.iter().map(|range| range.len()).sum();
        let (mut payload, mut ranges) = (BytesMut::with_capacity(bytes as usize), Vec::new());
        let file = match self.file(inode) {
            Ok(file) => file,
            Err(error) => {
                warn!(container = %self.id, %inode, %error, "what a program has written is lost");
                self.env.losses.note([inode]);
                return (ranges, payload.freeze());
            }
        };
        let _still = file.still.write();
        for &range in &flush.ranges {
            let from = payload.len();
            payload.resize(from + range.len() as usize, 0);
            match file.object.read(range.start, &mut payload[from..]) {
                Ok(read) if read as u64 == range.len() => ranges.push(range),
                read => {
                    payload.truncate(from);
                    if let Err(error) = read {
                        warn!(container = %self.id, %inode, %range, %error, "what a program has written is lost");
                        self.read_failed(inode, &error);
                    }
                    self.env.losses.note([inode]);
                }
            }
        }
        (ranges, payload.freeze())
    }

    /// What the owner calls for is sent, and told of.
    pub(crate) async fn answer_call(
        self: &Arc<Self>,
        from: NodeId,
        call: &CallHolder,
    ) -> Result<Report, Failed> {
        let (chunk, hold) = (call.chunk, call.hold);
        let through = {
            let mut st = self.state.lock();
            if st.chain.view().and_then(|view| view.owner()) != Some(from) {
                return Err(Elsewhere::NotReady.into());
            }
            let through = st.unsent.holding.last_written(chunk);
            let stop = call.access == Access::Change;
            st.unsent.holding.on_call(chunk, hold, stop);
            through
        };
        self.send_through(chunk, hold, through).await;
        let report = self
            .state
            .lock()
            .unsent
            .holding
            .report(chunk, hold, through);
        report.ok_or(Elsewhere::NotReady.into())
    }

    /// Records up to `through` are applied here, before their rows.
    pub(in super::super) fn apply_held(&self, st: &mut State, through: Seq) {
        st.note_committed_to_pull();
        let State { pull, unsent, .. } = &mut *st;
        pull.on_committed_beside(through, &unsent.holding);
        unsent.holding.on_committed(through);
        self.settle_held(st);
    }

    /// What has its record here needs no note any more.
    fn settle_held(&self, st: &mut State) {
        let State { unsent, .. } = &*st;
        let gone = |inode: &InodeId| !unsent.keeps(*inode);
        let settled: Vec<InodeId> = unsent.noted.iter().copied().filter(gone).collect();
        let committed = st.chain.committed();
        for inode in settled {
            st.unsent.noted.remove(&inode);
            st.intents.on_recorded(committed, inode);
        }
    }

    /// What this host wrote as a holder and did not send in time is not the content: its programs hear of it.
    pub(in super::super) fn lose_held(&self, st: &mut State, lost: impl IntoIterator<Item = Lost>) {
        for Lost { inode, ranges } in lost {
            warn!(container = %self.id, %inode, ranges = ranges.len(), "unsynced writes to a chunk that this node held are lost");
            self.env.losses.note([inode]);
            self.distrust_writes(st, inode, &ranges);
            self.refill.notify_one();
            // Kernels of this host have the pages.
            let env = self.env.clone();
            self.env.runtime.spawn_blocking(move || {
                let gone = [Touched::Attr(inode), Touched::Data(inode)];
                env.sessions.revoke_all(&gone);
            });
        }
        self.settle_held(st);
    }

    /// This node is no member any more, or begins with another state.
    pub(in super::super) fn lose_all_held(&self, st: &mut State) {
        if st.unsent.is_empty() {
            return;
        }
        let lost = st.unsent.holding.forget_all();
        st.unsent.times.clear();
        self.lose_held(st, lost);
    }

    /// This node does not own any more, or hears of another owner.
    pub(in super::super) fn hold_elsewhere(&self, st: &mut State) {
        st.unsent.holding.on_step_down();
        st.unsent.holding.on_source_changed();
        self.held.notify_one();
    }

    /// Makes holes of the parts of a range that this node has not written since.
    pub(in super::super) fn punch_beside(
        st: &State,
        file: &super::super::File,
        inode: InodeId,
        range: ByteRange,
        version: Version,
    ) -> Result<(), StoreError> {
        for (part, _) in st.unsent.holding.lacking(inode, range, version).iter() {
            file.object.punch(part)?;
        }
        Ok(())
    }
}

impl AsHolder<()> {
    /// The same, of what was not done.
    fn without<T>(self) -> AsHolder<T> {
        match self {
            Self::Ask => AsHolder::Ask,
            Self::Done(()) | Self::No => AsHolder::No,
        }
    }
}

/// The rows by which this node holds a range.
fn holds_of(st: &State, inode: InodeId, range: ByteRange) -> Vec<Option<Hold>> {
    let chunks = Chunk::touched(inode, range);
    chunks.map(|chunk| st.unsent.holding.hold(chunk)).collect()
}

/// Whom to ask, where this node follows.
fn owner_of(st: &State) -> Option<NodeId> {
    match st.role {
        Role::Replica { owner, .. } => Some(owner),
        _ => None,
    }
}
