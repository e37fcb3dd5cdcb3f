//! Fetching the bytes that this node lacks, and saying how far it has come.

use super::drive::decode_batch;
use super::gentle::{self, Gentle, REQUESTS_MAX};
use super::in_place::Asked;
use super::install::Round;
use super::nobody::Without;
use super::payload::Payload;
use super::{Container, Elsewhere, Failed, State};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use perigee_proto::message::data::{Fetch as Ask, SyncData, Until};
use perigee_replica::{Entry, Fetch, Input, NotGiven, Origin, Role};
use perigee_store::StoreError;
use perigee_types::{ByteRange, DataCommand, Errno, InodeId, NodeId, Seq, Span, Tick, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, error};

/// Regions of one request.
const REGIONS_MAX: usize = 512;
/// Bytes of one region that is fetched; one to "the end of the file" is cut to this.
pub(super) const PIECE: u64 = perigee_replica::pull::FETCH_LEN_MAX;
/// Bytes asked for in one request.
const REQUEST_BYTES: u64 = 2 << 20;
/// Requests under way that bring nothing for so long do not keep others back.
const SLOW: Duration = Duration::from_millis(100);
/// Before what failed is asked for again; the second where this node's disk is full.
const PAUSE: Duration = Duration::from_millis(20);
pub(super) const PAUSE_FULL: Duration = Duration::from_millis(200);
/// For so long after bytes found no room there is none: while there are any to put, they are tried more often.
const FULL_FOR: Span = Span::from_millis(1_000);
/// What nobody has is asked for again so often: somebody may come back with it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Requests under way for what is asked for ahead.
const AHEAD_REQUESTS: usize = 2;
/// Regions asked for at a time.
const ROUND_FETCHES: usize = 1024;
/// From so many files on they are put on the disk together.
const SYNC_TOGETHER_MIN: usize = 32;
/// The most files that are put on the disk together.
const SYNC_TOGETHER_MAX: usize = 1024;
/// Every so often a member puts what it fetched on its disk, though nobody waits for it.
pub(super) const SETTLE: Span = Span::from_millis(1_000);
/// The same of an owner, for what its programs wrote.
pub(super) const SETTLE_OWNER: Span = Span::from_millis(3_000);

/// The bytes that a command concerns.
pub(super) fn touched(command: &DataCommand) -> (InodeId, ByteRange) {
    match command {
        DataCommand::Written { inode, range } | DataCommand::Punched { inode, range } => {
            (*inode, *range)
        }
        DataCommand::Resized { inode, size } => (*inode, ByteRange::new(*size, u64::MAX)),
        DataCommand::Removed { inode } => (*inode, ByteRange::ALL),
    }
}

/// Files that are not on this node's disk.
#[derive(Debug)]
pub(super) struct Unsynced {
    files: Vec<InodeId>,
    /// Why the first of them is not.
    pub(super) why: Failed,
}

/// Records of which everything is on this node's disk once so many removals are done.
struct Removing {
    through: Seq,
    asked: u64,
}

/// Whom to ask for what is missing here.
#[derive(Debug, Clone)]
enum Sources {
    /// Nobody.
    None,
    /// Each request one after the other, until everything is there.
    InOrder(Vec<NodeId>),
    /// The same, where each request begins with another one: a new copy is filled by all members together.
    ByTurns(Vec<NodeId>),
}

impl Sources {
    /// Whom the request of this number asks, one after the other.
    fn for_request(&self, number: usize) -> Vec<NodeId> {
        match self {
            Self::None => Vec::new(),
            Self::InOrder(members) => members.clone(),
            Self::ByTurns(members) => {
                let mut members = members.clone();
                let first = number % members.len().max(1);
                members.rotate_left(first);
                members
            }
        }
    }
}

impl State {
    /// Whether fetched bytes find no room on this node's disk.
    pub(super) fn is_full(&self, now: Tick) -> bool {
        self.full_at.is_some_and(|at| now < at + FULL_FOR)
    }

    /// Up to which record a restart needs none, once what is in place now is on the disk: bytes that a record carries, and that are
    /// not in place, are nowhere else.
    fn storable_through(&self) -> Seq {
        let before = |first: Seq| Seq(first.0.saturating_sub(1));
        let carried = self.pull.carried_from().map(before);
        carried.map_or(self.extracted, |seq| seq.min(self.extracted))
    }

    /// How a record's data came to this node.
    fn origin(&self, version: Version) -> Origin {
        if self.own.contains(&version.epoch) {
            Origin::Own
        } else if version.seq <= self.distrusted_through {
            Origin::Unsynced
        } else {
            Origin::Remote
        }
    }
}

/// A committed command that this node could not carry out.
pub(super) struct Undone {
    version: Version,
    command: DataCommand,
    error: StoreError,
}

impl Container {
    /// Records came into the log: their data commands wait for the commit, and a member asks for their bytes already.
    pub(super) fn note_logged(&self, st: &mut State, entries: &[Entry]) {
        for entry in entries {
            let origin = st.origin(entry.version);
            if origin == Origin::Own || entry.payload.is_empty() {
                continue;
            }
            match Payload::decode(&entry.payload) {
                Ok(Payload { batch, carried }) => {
                    if !batch.data.is_empty() {
                        self.refill.notify_one();
                    }
                    self.note_kept_files(st, &batch);
                    for command in &batch.data {
                        let carried = carried.by(command);
                        st.pull.on_command(entry.version, command, origin, carried);
                    }
                    st.logged.push(entry.version, batch);
                }
                Err(error) => {
                    error!(container = %self.id, version = %entry.version, %error, "record unreadable");
                }
            }
        }
    }

    /// Carries out what a committed record does to the data here. Gives what could not be done, for [`Self::make_up`].
    pub(super) fn obey(
        &self,
        st: &mut State,
        version: Version,
        commands: &[DataCommand],
    ) -> Vec<Undone> {
        let origin = st.origin(version);
        let mut undone = Vec::new();
        for command in commands {
            if origin == Origin::Own {
                match command {
                    DataCommand::Removed { inode } => self.remove(*inode),
                    _ => _ = st.unsettled.insert(command.inode()),
                }
                continue;
            }
            if let Err(error) = self.obey_one(st, version, command, origin) {
                error!(container = %self.id, %version, ?command, %error, "data command failed");
                undone.push(Undone {
                    version,
                    command: command.clone(),
                    error,
                });
            }
        }
        undone
    }

    /// A file is gone on every member: its content can go.
    fn remove(&self, inode: InodeId) {
        self.forget_file(inode);
        self.env.remove_later(inode);
    }

    /// What records should have done to the data here, and did not, is another member's to give. They are committed.
    pub(super) fn make_up(&self, st: &mut State, undone: Vec<Undone>) {
        for Undone {
            version,
            command,
            error,
        } in undone
        {
            let (inode, range) = touched(&command);
            if !matches!(command, DataCommand::Removed { .. }) {
                let len = self.file(inode).and_then(|file| file.object.len());
                let end = len.map_or(range.end, |len| range.end.min(len));
                let range = ByteRange::new(range.start.min(end), end);
                self.distrust_range(st, inode, range, version);
            }
            self.store_refused(&error);
        }
    }

    fn obey_one(
        &self,
        st: &mut State,
        version: Version,
        command: &DataCommand,
        origin: Origin,
    ) -> Result<(), StoreError> {
        let (inode, mut range) = touched(command);
        if let DataCommand::Removed { .. } = command {
            self.remove(inode);
            return Ok(());
        }
        let file = self.file(inode)?;
        let _installing = super::install::hold_off(&file);
        let sure = origin == Origin::Remote;
        match command {
            DataCommand::Written { .. } => {}
            DataCommand::Resized { size, .. } if sure => {
                file.object.resize(*size)?;
                range.end = *size;
            }
            DataCommand::Resized { size, .. } => {
                let kept = st.uncertain.kept(inode, version.seq, *size);
                let len = file.object.len()?.clamp(*size, kept);
                file.object.resize(len)?;
                range.end = len;
            }
            DataCommand::Punched { .. } if sure => {
                Self::punch_beside(st, &file, inode, range, version)?;
            }
            DataCommand::Punched { .. } | DataCommand::Removed { .. } => {}
        }
        let invalid = match command {
            DataCommand::Written { .. } => true,
            _ => !sure && !range.is_empty(),
        };
        if invalid {
            let lacking = st.unsent.holding().lacking(inode, range, version);
            for (part, _) in lacking.iter() {
                file.object.invalidate_in(&mut st.marks, part, version)?;
            }
        }
        st.unsettled.insert(inode);
        Ok(())
    }

    /// Records are gone from the log: what this node itself wrote for them is not to be trusted
    /// (rule F3).
    pub(super) fn distrust(&self, st: &mut State, entries: &[Entry], needed: Version) {
        let Some(first) = entries.first() else { return };
        for entry in entries {
            if st.origin(entry.version) == Origin::Remote || entry.payload.is_empty() {
                continue;
            }
            match decode_batch(&entry.payload) {
                Ok(batch) => {
                    for command in &batch.data {
                        self.mark(st, command, needed);
                    }
                }
                Err(error) => {
                    error!(container = %self.id, version = %entry.version, %error, "record unreadable");
                }
            }
        }
        st.pull.on_truncated(Seq(first.version.seq.0 - 1), needed);
    }

    /// Writes that never became a record, of an owner that owns no more: what was committed before them is not here either.
    pub(super) fn distrust_writes(&self, st: &mut State, inode: InodeId, ranges: &[ByteRange]) {
        let committed = st.chain.committed_version();
        for &range in ranges.iter().filter(|range| !range.is_empty()) {
            st.pull.on_overwritten(inode, range, committed);
            self.mark_overwritten(st, inode, range, committed);
        }
    }

    /// On the disk, too: content as of `committed` is needed, and nothing that is older is here.
    pub(super) fn mark_overwritten(
        &self,
        st: &mut State,
        inode: InodeId,
        range: ByteRange,
        committed: Version,
    ) {
        let written = DataCommand::Written { inode, range };
        self.mark(st, &written, Version::default());
        self.mark(st, &written, committed);
    }

    /// What is here of `range` is not the file's content at `needed`.
    fn distrust_range(&self, st: &mut State, inode: InodeId, range: ByteRange, needed: Version) {
        if range.is_empty() {
            return;
        }
        st.pull.distrust(inode, range, needed);
        self.mark(st, &DataCommand::Written { inode, range }, needed);
    }

    pub(super) fn mark(&self, st: &mut State, command: &DataCommand, needed: Version) {
        let (inode, range) = touched(command);
        let marked = self.file(inode).and_then(|file| {
            let _installing = super::install::hold_off(&file);
            let end = if range.end == u64::MAX {
                // What is here may have been cut already; of what was removed it goes later.
                let committed = st.committed_len(&self.env.store, inode)?;
                file.object.len()?.max(committed)
            } else {
                range.end
            };
            let range = ByteRange::new(range.start, end);
            file.object.invalidate_in(&mut st.marks, range, needed)
        });
        if let Err(error) = marked {
            error!(container = %self.id, %inode, %range, %error, "region not marked invalid");
        }
    }

    /// Fetches what is missing here, until the node stops.
    pub(crate) async fn refill_loop(self: Arc<Self>) {
        let mut under_way = FuturesUnordered::new();
        // For what is asked for ahead nobody waits yet: it keeps nothing else waiting, and what fails is asked for again later.
        let mut ahead = FuturesUnordered::new();
        // Whether there was more to fetch than one request holds: then the next ones need not wait.
        let mut plenty = false;
        // Whether those under way keep others waiting for long: their source may be gone.
        let mut slow = false;
        let mut slow_at = Instant::now();
        let mut requests = 0;
        let mut gentle = Gentle::default();
        let mut rests_until = Instant::now();
        let mut looks_at = Instant::now() + LOOK_AGAIN;
        loop {
            let hurries = self.fetches_in_a_hurry();
            let most = if hurries {
                REQUESTS_MAX
            } else {
                gentle.requests()
            };
            let rests = !hurries && Instant::now() < rests_until;
            let may_ask =
                !rests && (under_way.is_empty() || (plenty || slow) && under_way.len() < most);
            let (sources, fetches) = match may_ask {
                true => self.next_fetches(most - under_way.len()),
                false => (Sources::None, Vec::new()),
            };
            if may_ask {
                plenty = bytes_of(&fetches) >= REQUEST_BYTES;
            }
            for part in divide(fetches) {
                if under_way.is_empty() {
                    slow_at = Instant::now() + SLOW;
                }
                requests += 1;
                let (me, sources) = (self.clone(), sources.for_request(requests));
                under_way.push(async move {
                    let cost = gentle::cost(part.len(), bytes_of(&part));
                    let began = Instant::now();
                    (me.fetch_part(&sources, part).await, began.elapsed(), cost)
                });
            }
            if ahead.len() < AHEAD_REQUESTS {
                let (owner, fetches) = self.next_ahead();
                for part in divide(fetches) {
                    let (me, owner) = (self.clone(), owner.clone());
                    ahead.push(async move { me.fetch_part(&owner, part).await });
                }
            }
            let takes_more = under_way.is_empty() || slow || ahead.len() < AHEAD_REQUESTS;
            tokio::select! {
                Some(_) = ahead.next() => self.progress.notify_waiters(),
                Some((fetched, took, cost)) = under_way.next() => {
                    slow = false;
                    slow_at = Instant::now() + SLOW;
                    self.progress.notify_waiters();
                    if fetched == Round::Failed {
                        let full = self.state.lock().is_full(self.env.clock.now());
                        let pause = if full { PAUSE_FULL } else { PAUSE };
                        tokio::time::sleep(pause).await;
                    } else {
                        gentle.answered(took, cost);
                        rests_until = Instant::now() + gentle.rest();
                    }
                }
                () = self.refill.notified(), if takes_more => {}
                () = tokio::time::sleep_until(looks_at) => {
                    self.state.lock().pull.look_again();
                    looks_at = Instant::now() + LOOK_AGAIN;
                }
                () = tokio::time::sleep_until(rests_until), if rests => {}
                () = tokio::time::sleep_until(slow_at), if !under_way.is_empty() && !slow => slow = true,
            }
        }
    }

    /// Whether somebody waits for what is missing here: a reader, an `fsync`, or everybody, where only one copy is left.
    fn fetches_in_a_hurry(&self) -> bool {
        let st = self.state.lock();
        !matches!(st.role, Role::Joining { .. })
            || st.pull.is_wanted()
            || self.listed(&st).len() < 2
    }

    /// What to ask for now, in at most `requests` requests, and whom.
    fn next_fetches(&self, requests: usize) -> (Sources, Vec<Fetch>) {
        let mut st = self.state.lock();
        let sources = match st.role {
            Role::Replica { owner, .. } => Sources::InOrder(vec![owner]),
            // A joiner gets its bytes from here: it has none that are missing, and must not be waited for.
            Role::Owner { .. } => Sources::InOrder(self.listed(&st)),
            Role::Joining { .. } => {
                let members = self.listed(&st);
                if members.is_empty() {
                    return (Sources::None, Vec::new());
                }
                Sources::ByTurns(members)
            }
            _ => return (Sources::None, Vec::new()),
        };
        let bytes = REQUEST_BYTES.saturating_mul(requests as u64);
        (sources, st.pull.next_fetches(bytes, ROUND_FETCHES))
    }

    /// What a member asks its owner for ahead.
    fn next_ahead(&self) -> (Vec<NodeId>, Vec<Fetch>) {
        let mut st = self.state.lock();
        let st = &mut *st;
        match st.role {
            Role::Replica { owner, .. } => (vec![owner], st.pull.next_ahead(st.unsent.holding())),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Asks one source after the other for some regions.
    async fn fetch_part(self: &Arc<Self>, sources: &[NodeId], part: Vec<Fetch>) -> Round {
        let mut left = self.look_in_place(part).await;
        let mut round = Round::Complete;
        let mut silent = false;
        let mut unreadable = BTreeSet::new();
        for source in sources {
            let request = Ask {
                container: self.id,
                regions: left.iter().map(Asked::wanted).collect(),
                older: false,
            };
            let ask = self
                .env
                .ask(*source, &request, Bytes::new(), Duration::from_secs(10));
            let answer = tokio::select! {
                answer = ask => answer,
                // They may be gone, and others are to be asked.
                () = self.sources_changed.notified() => {
                    let mut st = self.state.lock();
                    left.iter()
                        .for_each(|asked| st.pull.on_fetch_failed(asked.fetch.id));
                    return Round::Failed;
                }
            };
            match answer {
                Ok((got, payload)) => {
                    let taken = self.take_in(left, got, payload).await;
                    left = taken.left;
                    unreadable.extend(taken.unreadable);
                    if taken.round == Round::Failed {
                        round = Round::Failed;
                        silent = true;
                    }
                }
                Err(error) => {
                    debug!(container = %self.id, %source, %error, "fetch failed");
                    silent = true;
                }
            }
            if left.is_empty() {
                return round;
            }
        }
        let mut older = Vec::new();
        {
            let mut st = self.state.lock();
            // One that did not answer may have it: it answers later, or is no member any more.
            let owns = !silent && self.may_do_without(&st);
            for Asked { fetch, .. } in left {
                let why = match unreadable.contains(&fetch.id) {
                    true => NotGiven::Unreadable,
                    false => NotGiven::NotHere,
                };
                let without = match owns {
                    true => self.do_without(&mut st, &fetch, why),
                    false => Without::AskAgain,
                };
                match without {
                    Without::Done => {}
                    // After a pause.
                    Without::AskAgain => round = Round::Failed,
                    Without::AskOlder => {
                        older.push(fetch);
                        continue;
                    }
                }
                st.pull.on_fetch_failed(fetch.id);
            }
        }
        for fetch in older {
            if self.ask_older(sources, fetch).await == Round::Failed {
                round = Round::Failed;
            }
        }
        round
    }

    /// Which of the files of a request, from the one at `from` on, is the first that lacks something of what was committed up
    /// to `through`; what is lacking is fetched before other things.
    fn first_lacking(&self, request: &SyncData, from: usize) -> Result<Option<usize>, Failed> {
        let mut st = self.state.lock();
        let follows = match st.role {
            Role::Replica { epoch: now, .. } => now == request.epoch,
            Role::Joining { .. } => true,
            _ => false,
        };
        if !follows {
            return Err(Elsewhere::NotReady.into());
        }
        if st.chain.committed() < request.through {
            return Ok(Some(from));
        }
        let mut first = None;
        for (at, file) in request.files.iter().enumerate().skip(from) {
            let inode = InodeId::new(self.id, *file);
            if st.pull.has_through(inode, request.through) {
                continue;
            }
            if st.is_full(self.env.clock.now()) {
                return Err(Errno::ENOSPC.into());
            }
            st.pull.want(inode, ByteRange::ALL);
            first = first.or(Some(at));
            // The others were asked for when the request came.
            if from > 0 {
                break;
            }
        }
        if first.is_some() {
            self.refill.notify_one();
        }
        Ok(first)
    }

    /// Puts everything of some files up to `through` in place at this member, or on its disk, too.
    pub(crate) async fn sync_data(self: &Arc<Self>, request: &SyncData) -> Result<(), Failed> {
        if request.files.len() > SyncData::FILES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut from = 0;
        loop {
            let progress = self.progress.notified();
            match self.first_lacking(request, from)? {
                Some(at) => {
                    from = at;
                    // Whoever asks has a deadline of its own; this only bounds a missed word.
                    _ = tokio::time::timeout(Duration::from_millis(50), progress).await;
                }
                // What was there may have been found corrupt since.
                None if from > 0 => from = 0,
                None => break,
            }
        }
        if request.until == Until::InPlace {
            return Ok(());
        }
        let files = request.files.iter();
        let files = files.map(|file| InodeId::new(self.id, *file)).collect();
        let synced = self.settle_all(&files).await;
        synced.map_err(|unsynced| unsynced.why)
    }

    /// Puts what came in since the last time on the disk, and tells the chain how far the data is.
    pub(crate) async fn settle_loop(self: Arc<Self>) {
        let mut reported = Seq::ZERO;
        // Records whose removals are awaited: after a crash nobody else would take those files away.
        let mut removing: Option<Removing> = None;
        loop {
            let pause = {
                let st = self.state.lock();
                match st.role {
                    Role::Joining { .. } => Span::from_millis(50),
                    Role::Owner { .. } => SETTLE_OWNER,
                    _ => SETTLE,
                }
            };
            tokio::time::sleep(pause.as_duration()).await;
            let (through, inodes) = {
                let mut st = self.state.lock();
                let committed = st.chain.committed();
                let through = st.pull.complete_through(committed);
                let storable = st.storable_through();
                if through <= reported && storable <= st.data_done {
                    continue;
                }
                let asked = self.env.removals.asked();
                removing.get_or_insert(Removing {
                    through: storable,
                    asked,
                });
                (through, std::mem::take(&mut st.unsettled))
            };
            match self.settle_all(&inodes).await {
                Ok(()) => {
                    reported = through;
                    self.state.lock().synced = through;
                    self.step(Input::DataThrough(through));
                    let removed =
                        |removing: &mut Removing| self.env.removals.are_done(removing.asked);
                    if let Some(Removing { through, .. }) = removing.take_if(removed) {
                        let mut st = self.state.lock();
                        st.data_done = st.data_done.max(through);
                        drop(st);
                        self.step(Input::Synced(through));
                    }
                }
                Err(unsynced) => self.state.lock().unsettled.extend(unsynced.files),
            }
        }
    }

    /// Puts files on this node's disk; one that is removed has nothing to put there.
    pub(super) async fn settle_all(
        self: &Arc<Self>,
        inodes: &BTreeSet<InodeId>,
    ) -> Result<(), Unsynced> {
        let mut failed: Option<Unsynced> = None;
        let mut note = |files: &[InodeId], why: Failed| match &mut failed {
            Some(unsynced) => unsynced.files.extend_from_slice(files),
            None => {
                let files = files.to_vec();
                failed = Some(Unsynced { files, why });
            }
        };
        let inodes: Vec<InodeId> = inodes.iter().copied().collect();
        for group in inodes.chunks(SYNC_TOGETHER_MAX) {
            if group.len() >= SYNC_TOGETHER_MIN {
                if let Err(why) = self.sync_group(group).await {
                    debug!(container = %self.id, ?why, "not synced");
                    note(group, why);
                }
                continue;
            }
            let each = group.iter().map(|inode| self.sync_here(*inode));
            let each = futures_util::future::join_all(each).await;
            for (inode, synced) in group.iter().zip(each) {
                match synced {
                    Ok(()) | Err(Failed::Errno(Errno::ESTALE)) => {}
                    Err(why) => {
                        debug!(container = %self.id, %inode, ?why, "not synced");
                        note(std::slice::from_ref(inode), why);
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn sync_group(self: &Arc<Self>, inodes: &[InodeId]) -> Result<(), Failed> {
        let mut objects = Vec::with_capacity(inodes.len());
        for inode in inodes {
            match self.file(*inode) {
                Ok(file) => objects.push(file.object.clone()),
                Err(StoreError::Removed { .. }) => {}
                Err(error) => return Err(self.store_refused(&error).into()),
            }
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.env.runtime.spawn_blocking(move || {
            // The receiver may have gone: then nobody wants to know.
            let done = Box::new(move |result| _ = sender.send(result));
            perigee_store::Object::sync_together(objects, done);
        });
        let synced = receiver.await.unwrap_or(Err(StoreError::Closed));
        synced.map_err(|error| self.sync_failed(&error))
    }
}

/// What one request asks of a range.
pub(super) fn piece(range: ByteRange) -> ByteRange {
    ByteRange::new(
        range.start,
        range.end.min(range.start.saturating_add(PIECE)),
    )
}

/// What some fetches ask for.
fn bytes_of(fetches: &[Fetch]) -> u64 {
    fetches.iter().map(|fetch| piece(fetch.range).len()).sum()
}

/// Divides fetches into requests of bounded size.
fn divide(fetches: Vec<Fetch>) -> Vec<Vec<Fetch>> {
    let mut parts: Vec<Vec<Fetch>> = Vec::new();
    let mut bytes = u64::MAX;
    for fetch in fetches {
        let len = piece(fetch.range).len();
        let full = parts.last().is_none_or(|part| part.len() >= REGIONS_MAX);
        if full || bytes.saturating_add(len) > REQUEST_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        if let Some(part) = parts.last_mut() {
            part.push(fetch);
        }
    }
    parts
}
