//! Putting what was written on the disks of all members: for fsync, and before another host is shown it.

use super::member::Rows;
use super::refusals::{Next, NoRoom};
use super::{Container, Elsewhere, Failed, File};
use bytes::Bytes;
use perigee_meta::Kind;
use perigee_proto::message::data::{SyncData, Until};
use perigee_store::StoreError;
use perigee_types::{ByteRange, Errno, InodeId, InodeIndex, NodeId, Seq, Span};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, warn};

/// What becomes of putting a file on this node's disk.
pub(super) type Syncing = tokio::sync::oneshot::Receiver<Result<(), StoreError>>;

/// For so long the members are waited for to say that they have the data of records that are gone from the log.
const EARLIER_WAIT: Span = Span::from_millis(10_000);

/// How a file's data is to be on every disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// In place, or in a record: no failure loses it.
    Safe,
    /// In place, where members' hosts read it.
    InPlace,
}

/// A member that refuses is asked again so often.
const ASKED_AGAIN: Duration = Duration::from_millis(100);
/// This node's own disk is tried again after so long.
const OWN_AGAIN: Duration = Duration::from_millis(500);
/// One that has not answered is asked again after so long.
const SILENT_AGAIN: Duration = Duration::from_millis(20);

/// While somebody waits for members' data, these hear so often what is committed.
const ANNOUNCED_EACH: Duration = Duration::from_millis(30);

impl Container {
    /// Sees to it that the file's writes have a record; a transaction may hold that up.
    async fn recorded(self: &Arc<Self>, inode: InodeId) -> Result<(), Elsewhere> {
        loop {
            let held = {
                let mut st = self.state.lock();
                let now = self.env.clock.now();
                Self::reign(&st, now)?;
                self.record_awaited_writes(&mut st, now, inode);
                st.dirty.get(inode).is_some()
            };
            if !held {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether every write to the file is known to be as it is to be on every member. Whoever does not own knows nothing of that.
    pub(super) fn is_settled(&self, inode: InodeId, to_be: Settled) -> Result<bool, Elsewhere> {
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        let waits = match to_be {
            Settled::Safe => {
                let last = st
                    .data
                    .last(inode)
                    .filter(|seq| *seq > st.chain.committed());
                last.or(st.data.lacking(inode))
            }
            Settled::InPlace => st.data.last(inode),
        };
        Ok(st.dirty.get(inode).is_none() && waits.is_none())
    }

    /// Waits until every write to the file that was acknowledged so far is so, for who is to be shown it.
    pub(super) async fn settle_writes(
        self: &Arc<Self>,
        inode: InodeId,
        to_be: Settled,
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        self.take_in_unseen(inode).await?;
        self.recorded(inode).await?;
        let waits = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            let last = st.data.last(inode);
            last.map(|seq| st.chain.version_at(seq))
        };
        if let Some(record) = waits {
            self.committed(record).await?;
            self.data_everywhere(inode, record.seq, no_room).await?;
            if to_be == Settled::InPlace && !self.is_settled(inode, to_be)? {
                let file = [(inode, record.seq)];
                self.files_everywhere(&file, no_room).await?;
            }
        }
        Ok(())
    }

    /// Waits until every member, and this owner, has a file's bytes up to `seq` on its disk: if all of them have lost what
    /// comes later, what this owner starts again with must not be older than what was shown. The record at `seq` is committed
    /// then.
    ///
    /// What was kept for a checkpoint before the file was written to goes with it.
    pub(super) async fn data_everywhere(
        self: &Arc<Self>,
        inode: InodeId,
        seq: Seq,
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        let kept = self.state.lock().kept_beside(inode);
        let kept = async {
            match kept {
                Some((file, seq)) => self.file_everywhere(file, seq, no_room).await,
                None => Ok(()),
            }
        };
        let (kept, there) = tokio::join!(kept, self.file_everywhere(inode, seq, no_room));
        kept.and(there)
    }

    async fn file_everywhere(
        self: &Arc<Self>,
        inode: InodeId,
        seq: Seq,
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        let lacks = {
            let st = self.state.lock();
            // Who owns no more knows nothing of that.
            Self::reign(&st, self.env.clock.now())?;
            st.data.lacking(inode).is_some()
        };
        match lacks {
            true => self.files_everywhere(&[(inode, seq)], no_room).await,
            false => Ok(()),
        }
    }

    /// Waits until all content that has a record, or can have one now, is on every disk.
    pub(super) async fn all_everywhere(self: &Arc<Self>) -> Result<(), Failed> {
        let (last, files) = {
            let mut st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            self.record_all_writes(&mut st);
            self.forget_settled(&mut st);
            let files: Vec<(InodeId, Seq)> = st.data.iter().collect();
            (st.chain.last(), files)
        };
        self.announce();
        self.committed(last).await?;
        for some in files.chunks(SyncData::FILES_MAX) {
            self.files_everywhere(some, NoRoom::Told).await?;
        }
        self.earlier_everywhere().await
    }

    /// Waits for the data of records that were ordered before this reign, and that its log has no more: the members say, and
    /// this node's disk, when they have all of it.
    async fn earlier_everywhere(&self) -> Result<(), Failed> {
        let until = self.env.clock.now() + EARLIER_WAIT;
        loop {
            {
                let mut st = self.state.lock();
                Self::reign(&st, self.env.clock.now())?;
                self.forget_settled(&mut st);
                if st.data.before().is_none() {
                    return Ok(());
                }
            }
            if self.env.clock.now() >= until {
                return Err(Elsewhere::NotReady.into());
            }
            tokio::time::sleep(ANNOUNCED_EACH).await;
        }
    }

    /// The same of some files, each up to a record of its own, with one request to each member. What is removed is nowhere.
    async fn files_everywhere(
        self: &Arc<Self>,
        files: &[(InodeId, Seq)],
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        let Some(through) = files.iter().map(|(_, seq)| *seq).max() else {
            return Ok(());
        };
        self.announce();
        let inodes = files.iter().map(|(inode, _)| *inode).collect();
        let there = self.sync_members(&inodes, through, no_room);
        tokio::try_join!(self.settled_here(&inodes, through, no_room), there)?;
        for (inode, seq) in files {
            self.settled(*inode, *seq);
        }
        Ok(())
    }

    /// The same of this owner's own disk.
    async fn settled_here(
        self: &Arc<Self>,
        inodes: &BTreeSet<InodeId>,
        through: Seq,
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        loop {
            let settled = async {
                self.bytes_here(inodes, through).await?;
                let settled = self.settle_all(inodes).await;
                settled.map_err(|unsynced| unsynced.why)
            };
            match settled.await {
                Err(Failed::Errno(Errno::ENOSPC)) if no_room == NoRoom::Outlasted => {
                    // Its place it keeps: its programs are told of the want of room, and leave it some.
                    if self.heard_refusal(self.env.me, inodes) == Next::Tell {
                        return Err(Errno::ENOSPC.into());
                    }
                    tokio::time::sleep(OWN_AGAIN).await;
                }
                settled => return settled,
            }
        }
    }

    /// Waits until this owner has the bytes of some files up to `through` itself, but for those that nobody has: they may be on
    /// their way from others, or from its log.
    async fn bytes_here(&self, inodes: &BTreeSet<InodeId>, through: Seq) -> Result<(), Failed> {
        loop {
            let progress = self.progress.notified();
            {
                let mut st = self.state.lock();
                Self::reign(&st, self.env.clock.now())?;
                let pull = &st.pull;
                let lacking = |inode: &&InodeId| !pull.has_through(**inode, through);
                let Some(lacking) = inodes.iter().find(lacking).copied() else {
                    return Ok(());
                };
                if st.is_full(self.env.clock.now()) {
                    return Err(Errno::ENOSPC.into());
                }
                st.pull.want(lacking, ByteRange::ALL);
            }
            self.refill.notify_one();
            // This only bounds a missed word.
            _ = tokio::time::timeout(ANNOUNCED_EACH, progress).await;
        }
    }

    /// A file's bytes up to `seq` are on every disk.
    fn settled(&self, inode: InodeId, seq: Seq) {
        let mut st = self.state.lock();
        if seq <= st.chain.committed() {
            st.data.on_settled(inode, seq);
        }
    }

    /// Members hear at once what is committed, since somebody waits for their data.
    pub(super) fn announce(self: &Arc<Self>) {
        self.step(perigee_replica::Input::Announce);
    }

    /// The same, unless they have just heard it: many may wait at once.
    fn announce_again(self: &Arc<Self>) {
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if now.since(st.announced).as_duration() < ANNOUNCED_EACH / 2 {
                return;
            }
            st.announced = now;
        }
        self.announce();
    }

    /// fsync: returns when every current member has it on disk.
    pub(crate) async fn sync(self: &Arc<Self>, inode: InodeId) -> Result<(), Failed> {
        self.take_in_unseen(inode).await?;
        self.recorded(inode).await?;
        let (last, lacks, kept) = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            let is_file = self.attr(&st, inode)?.kind == Kind::File;
            // What its records carry is in the log, here and there.
            let lacks = is_file && st.data.lacking(inode).is_some();
            (st.chain.last(), lacks, st.kept_beside(inode))
        };
        let kept = async {
            match kept {
                Some((file, seq)) => self.file_everywhere(file, seq, NoRoom::Told).await,
                None => Ok(()),
            }
        };
        let here = async {
            if lacks {
                self.bytes_here(&BTreeSet::from([inode]), last.seq).await?;
                self.sync_here(inode).await
            } else {
                Ok(())
            }
        };
        let there = async {
            self.committed(last).await?;
            if lacks {
                self.announce();
                let files = BTreeSet::from([inode]);
                self.sync_members(&files, last.seq, NoRoom::Told).await
            } else {
                Ok(())
            }
        };
        tokio::try_join!(here, there, kept)?;
        if lacks {
            self.settled(inode, last.seq);
        }
        if self.state.lock().lost_unsynced.remove(&inode) {
            // Members do not wait for what nobody has: whoever asks first hears that it is gone.
            return Err(Errno::EIO.into());
        }
        Ok(())
    }

    /// [`Self::sync`] of many files, with one commit and one question to each member; of none of them is known which one it was
    /// that failed.
    pub(crate) async fn sync_together(
        self: &Arc<Self>,
        inodes: &BTreeSet<InodeId>,
    ) -> Result<(), Failed> {
        for inode in inodes {
            self.take_in_unseen(*inode).await?;
            self.recorded(*inode).await?;
        }
        let last = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            st.chain.last()
        };
        self.bytes_here(inodes, last.seq).await?;
        let files: Result<Vec<_>, Failed> = inodes
            .iter()
            .map(|inode| self.file_to_sync(*inode))
            .collect();
        let objects = files?.iter().map(|file| file.object.clone()).collect();
        let here = async {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let synced = self.env.runtime.spawn_blocking(move || {
                // The receiver may have gone: then nobody wants to know.
                let done = move |result| _ = sender.send(result);
                perigee_store::Object::sync_together(objects, Box::new(done));
            });
            synced.await.map_err(|_| Errno::EIO)?;
            let synced = receiver.await.map_err(|_| Errno::EIO)?;
            synced.map_err(|error| self.sync_failed(&error))
        };
        let there = async {
            self.committed(last).await?;
            self.announce();
            self.sync_members(inodes, last.seq, NoRoom::Told).await
        };
        let (here, there) = tokio::join!(here, there);
        here.and(there)?;
        let mut lost = false;
        for inode in inodes {
            self.settled(*inode, last.seq);
            lost |= self.state.lock().lost_unsynced.contains(inode);
        }
        match lost {
            // Who asks for it alone hears that it is gone.
            true => Err(Errno::EIO.into()),
            false => Ok(()),
        }
    }

    /// Puts this node's copy on its disk.
    pub(super) async fn sync_here(self: &Arc<Self>, inode: InodeId) -> Result<(), Failed> {
        let file = self.file_to_sync(inode)?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let synced = self.env.runtime.spawn_blocking(move || {
            // The receiver may have gone: then nobody wants to know.
            file.object
                .sync(Box::new(move |result| _ = sender.send(result)));
        });
        synced.await.map_err(|_| Errno::EIO)?;
        self.synced_here(inode, receiver).await
    }

    /// Flushes this node's copy to its disk, on this thread. The rest of [`Self::sync_here`] goes with the record that the
    /// caller asks for next: its end is awaited by [`Self::synced_here`].
    pub(super) fn flush_before_record(&self, inode: InodeId) -> Result<Syncing, Failed> {
        let file = self.file_to_sync(inode)?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The receiver may have gone: then nobody wants to know.
        let done = move |result| _ = sender.send(result);
        file.object.sync_in_company(Box::new(done));
        Ok(receiver)
    }

    fn file_to_sync(&self, inode: InodeId) -> Result<Arc<File>, Failed> {
        self.file(inode).map_err(|error| match error {
            StoreError::Removed { .. } => Errno::ESTALE.into(),
            error => self.store_refused(&error).into(),
        })
    }

    pub(super) async fn synced_here(&self, inode: InodeId, syncing: Syncing) -> Result<(), Failed> {
        match syncing.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                error!(%inode, %error, "sync failed");
                Err(self.sync_failed(&error))
            }
            Err(_) => Err(Errno::EIO.into()),
        }
    }

    /// What the store could not put on this node's disk.
    pub(super) fn sync_failed(&self, error: &StoreError) -> Failed {
        if let StoreError::NoSpace = error {
            self.state.lock().full_at = Some(self.env.clock.now());
            self.held.notify_one();
        }
        self.store_refused(error).into()
    }

    /// What members fetch meanwhile may be of records that wait for company, or that they do not know to be committed.
    async fn while_announcing<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(ANNOUNCED_EACH, &mut work).await {
                Ok(done) => return done,
                Err(_) => self.announce_again(),
            }
        }
    }

    /// Waits until a file's bytes up to `seq` are in place at the writer's own node, if that is a member: its programs, and its
    /// kernel, may read its copy as soon as they are answered.
    pub(super) async fn in_place_at(
        self: &Arc<Self>,
        writer: NodeId,
        inode: InodeId,
        seq: Seq,
    ) -> Result<(), Failed> {
        let waits = {
            let st = self.state.lock();
            st.data.last(inode).is_some() && self.others(&st).contains(&writer)
        };
        if !waits {
            return Ok(());
        }
        self.announce();
        let whom = |node: &NodeId| *node == writer;
        let files = BTreeSet::from([inode]);
        self.ask_members(whom, &files, (seq, Until::InPlace), NoRoom::Told)
            .await
    }

    /// Has the other members put theirs on their disks.
    async fn sync_members(
        self: &Arc<Self>,
        inodes: &BTreeSet<InodeId>,
        through: Seq,
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        self.ask_members(|_| true, inodes, (through, Until::OnDisk), no_room)
            .await
    }

    /// A member has no room for data that somebody waits for.
    fn next_of_refused(self: &Arc<Self>, node: NodeId, inodes: &BTreeSet<InodeId>) -> Next {
        let next = self.heard_refusal(node, inodes);
        match next {
            Next::Wait => {}
            Next::Dismiss => self.dismiss_full(node, Rows::ComeBack),
            Next::Tell => self.dismiss_full(node, Rows::GivenUp),
        }
        next
    }

    /// The same, or this node has none. Who waits for room waits for one file.
    fn heard_refusal(&self, node: NodeId, inodes: &BTreeSet<InodeId>) -> Next {
        let now = self.env.clock.now();
        let mut st = self.state.lock();
        let mut next = Next::Tell;
        for inode in inodes {
            next = st.refusals.heard(node, *inode, now);
        }
        next
    }

    fn has_room(&self, node: NodeId, inodes: &BTreeSet<InodeId>) {
        let mut st = self.state.lock();
        for inode in inodes {
            st.refusals.has_room(node, *inode);
        }
    }

    /// Asks other members for data of some files. One that does not answer is waited for until it does, or is no member any more.
    async fn ask_members(
        self: &Arc<Self>,
        whom: impl Fn(&NodeId) -> bool,
        inodes: &BTreeSet<InodeId>,
        (through, until): (Seq, Until),
        no_room: NoRoom,
    ) -> Result<(), Failed> {
        let files: Vec<InodeIndex> = inodes.iter().map(|inode| inode.index()).collect();
        let mut done: Vec<NodeId> = Vec::new();
        loop {
            let (epoch, left): (_, Vec<NodeId>) = {
                let st = self.state.lock();
                let (epoch, _) = Self::reign(&st, self.env.clock.now())?;
                let left = self
                    .others(&st)
                    .into_iter()
                    .filter(|node| whom(node) && !done.contains(node))
                    .collect();
                (epoch, left)
            };
            if left.is_empty() {
                return Ok(());
            }
            let request = SyncData {
                container: self.id,
                files: files.clone(),
                through,
                until,
                epoch,
            };
            let request = &request;
            let asks = left.into_iter().map(|node| async move {
                let deadline = Duration::from_secs(2);
                (
                    node,
                    self.env.ask(node, request, Bytes::new(), deadline).await,
                )
            });
            let mut failed = None;
            let asked = futures_util::future::join_all(asks);
            for (node, result) in self.while_announcing(asked).await {
                match result.map(|(synced, _)| synced.result) {
                    Ok(Ok(())) => {
                        done.push(node);
                        if no_room == NoRoom::Outlasted {
                            self.has_room(node, inodes);
                        }
                    }
                    Ok(Err(errno)) => {
                        let outlasted = no_room == NoRoom::Outlasted && errno == Errno::ENOSPC;
                        if !outlasted || self.next_of_refused(node, inodes) == Next::Tell {
                            warn!(container = %self.id, files = files.len(), %node, %errno, "member cannot sync");
                            return Err(errno.into());
                        }
                        failed = failed.max(Some(ASKED_AGAIN));
                    }
                    Err(error) => {
                        debug!(container = %self.id, files = files.len(), %node, %error, "member has not synced yet");
                        failed = failed.max(Some(SILENT_AGAIN));
                    }
                }
            }
            if let Some(pause) = failed {
                tokio::time::sleep(pause).await;
            }
        }
    }
}
