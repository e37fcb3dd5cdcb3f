//! Checkpoints of a container: made for a snapshot, between two moments in which no container changes, and removed when no
//! snapshot has them any more.
//!
//! Whoever makes a snapshot stops all containers, has each make its checkpoint, and releases them: what happened before in
//! one and is followed by something in another is in both or in neither. An owner that is not released in time goes on by
//! itself, and makes no checkpoint for that stop any more.

use super::{Container, Elsewhere, Failed, State};
use futures_util::{TryStreamExt, stream};
use parking_lot::MutexGuard;
use perigee_meta::key::Key;
use perigee_meta::past::{
    Checkpoint, Checkpoints, Fate, KeptSum, Left, Outdated, UNIT, end_kept_file, kept_units,
    leave_rows, remove_sums, units_of,
};
use perigee_proto::message::past::{Part, PastUse, Step, StopId};
use perigee_replica::chunk::Access;
use perigee_types::{
    Batch, ByteRange, CheckpointId, Errno, InodeId, InodeIndex, Mutation, SnapshotId, Span, Tick,
    WallTime,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// How often a stopped owner looks whether all that was under way has ended.
const LOOK: Duration = Duration::from_millis(1);
/// Kept rows that one record of a removal looks at.
const ROWS_MAX: usize = 1_000;
/// For so long no chunk is given away after the holders were called for a snapshot.
const NONE_GIVEN: Span = Span::from_millis(10_000);
/// Files whose holders are called at a time.
const CALLED_TOGETHER: usize = 32;
/// A checkpoint that no snapshot has is removed after this time: until then its snapshot may be in the making.
const GRACE_SECS: i64 = 120;
/// How often content is tried to be brought there that a member could not put on its disk.
const SETTLES: u32 = 20;
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// The longest that changes wait for a snapshot that comes to nothing.
const STOP_MAX: Span = Span::from_millis(5_000);

/// No changes are taken: a checkpoint is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped {
    stop: StopId,
    snapshot: SnapshotId,
    until: Tick,
}

impl Container {
    /// One step of this container's part of a snapshot.
    pub(crate) async fn do_part(
        self: &Arc<Self>,
        snapshot: SnapshotId,
        step: Step,
    ) -> Result<Part, Failed> {
        match step {
            Step::Stop { for_us } => {
                let span = Span(for_us).min(STOP_MAX);
                self.stop_for(snapshot, span).await.map(Part::Stopped)
            }
            Step::Take { stop } => self.take_checkpoint(snapshot, stop).await.map(Part::Taken),
            Step::Release => {
                self.release(snapshot);
                Ok(Part::Done)
            }
            Step::Settle => self.settle_past().await.map(|()| Part::Done),
            Step::Forget => {
                self.state.lock().unlisted.insert(snapshot);
                Ok(Part::Done)
            }
        }
    }

    /// Takes no changes until it is released, for at most `span`; returns when all that was under way has ended.
    async fn stop_for(
        self: &Arc<Self>,
        snapshot: SnapshotId,
        span: Span,
    ) -> Result<StopId, Failed> {
        self.call_holders_in().await?;
        let (stop, until) = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            let (epoch, _) = Self::reign(&st, now)?;
            if now < st.changes_from || st.moving {
                return Err(Elsewhere::NotReady.into());
            }
            if st.checkpoints.is_full() {
                return Err(Errno::ENOSPC.into());
            }
            let until = now + span;
            st.changes_from = until;
            st.stops += 1;
            let number = st.stops;
            let stop = StopId { epoch, number };
            st.stopped = Some(Stopped {
                stop,
                snapshot,
                until,
            });
            (stop, until)
        };
        loop {
            let quiet = {
                let mut st = self.state.lock();
                let now = self.env.clock.now();
                Self::reign(&st, now)?;
                if now >= until || !st.is_stopped_by(stop) {
                    let (changing, idle) = (st.leases.has_any_changes(), st.transactions.is_idle());
                    let (held, dirty) = (!st.away.holds.is_empty(), st.dirty.inodes().len());
                    let missing = st.pull.iter().count();
                    info!(container = %self.id, changing, idle, held, dirty, missing, "did not come to rest");
                    return Err(Elsewhere::NotReady.into());
                }
                self.record_all_writes(&mut st);
                st.is_quiet()
            };
            if quiet {
                return Ok(stop);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Chunks that belong to other hosts come back, so that their owner has all of their content.
    async fn call_holders_in(self: &Arc<Self>) -> Result<(), Failed> {
        let whole = ByteRange::ALL;
        let held: BTreeSet<InodeId> = {
            let mut st = self.state.lock();
            st.away.none_before = self.env.clock.now() + NONE_GIVEN;
            st.away.holds.iter().map(|(chunk, _)| chunk.inode).collect()
        };
        let back = stream::iter(held.into_iter().map(Ok::<_, Failed>));
        back.try_for_each_concurrent(CALLED_TOGETHER, |inode| async move {
            self.pass_holders(inode, whole, Access::Change, Vec::new())
                .await?;
            Ok(())
        })
        .await
    }

    /// Makes the checkpoint that this owner was stopped for; it is on every member when this returns.
    async fn take_checkpoint(
        self: &Arc<Self>,
        snapshot: SnapshotId,
        stop: StopId,
    ) -> Result<CheckpointId, Failed> {
        let record = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            // That stop may have ended, and a repeat of the request for it have come since.
            let stopped = st.stopped.filter(|stopped| stopped.stop == stop);
            let in_time = stopped.is_some_and(|stopped| now < stopped.until);
            if !in_time || now >= st.changes_from {
                return Err(Errno::ETIMEDOUT.into());
            }
            self.record_all_writes(&mut st);
            if !st.is_quiet() {
                return Err(Elsewhere::NotReady.into());
            }
            let wall = self.env.clock.wall();
            let checkpoint =
                self.with_state(&st, |view| Checkpoints::take(self.id, view, snapshot, wall))?;
            let at = CheckpointId(st.chain.last().seq.next().0);
            let seq = self.order(&mut st, now, row(&checkpoint, at), true)?;
            debug_assert_eq!(seq.0, at.0, "nothing is ordered under the same lock");
            st.chain.version_at(seq)
        };
        self.committed(record).await?;
        Ok(CheckpointId(record.seq.0))
    }

    /// Changes go on.
    fn release(&self, snapshot: SnapshotId) {
        let mut st = self.state.lock();
        if let Some(stopped) = st.stopped.take_if(|stopped| stopped.snapshot == snapshot)
            && st.changes_from == stopped.until
        {
            st.changes_from = self.env.clock.now();
        }
    }

    /// Puts all content of now on every disk: what a checkpoint shows cannot be lost then. What programs may change without a
    /// word is kept whole.
    async fn settle_past(self: &Arc<Self>) -> Result<(), Failed> {
        self.keep_unseen().await?;
        for _ in 0..SETTLES {
            match self.all_everywhere().await {
                Ok(()) => return Ok(()),
                Err(failed) => {
                    debug!(container = %self.id, ?failed, "content is not on every disk yet")
                }
            }
            Self::reign(&self.state.lock(), self.env.clock.now())?;
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        self.all_everywhere().await
    }

    /// Removes what no snapshot has any more. `listed`: all snapshots that there are.
    pub(crate) async fn forget_checkpoints(
        self: &Arc<Self>,
        listed: &BTreeSet<SnapshotId>,
        now: WallTime,
    ) -> Result<(), Failed> {
        self.mark_unlisted(listed, now)?;
        loop {
            let leaving = {
                let st = self.state.lock();
                Self::reign(&st, self.env.clock.now())?;
                let mut all = st.checkpoints.iter();
                let leaves = all.find(|(_, checkpoint)| checkpoint.fate == Fate::Leaves);
                leaves.map(|(at, _)| at)
            };
            let Some(at) = leaving else { return Ok(()) };
            self.leave(at).await?;
        }
    }

    /// The directories of this container that have a setting, and what it is; none where another node owns.
    pub(crate) fn settings(&self, name: &str) -> Result<Vec<(InodeId, String)>, Failed> {
        let st = self.state.lock();
        if Self::reign(&st, self.env.clock.now()).is_err() {
            return Ok(Vec::new());
        }
        self.with_state(&st, |view| {
            perigee_meta::settings_named(self.id, view, name)
        })
    }

    /// Whether there is any checkpoint here.
    pub(crate) fn has_checkpoints(&self) -> bool {
        !self.state.lock().checkpoints.is_empty()
    }

    fn mark_unlisted(&self, listed: &BTreeSet<SnapshotId>, wall: WallTime) -> Result<(), Failed> {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        let unlisted: Vec<(CheckpointId, Checkpoint)> = st
            .checkpoints
            .iter()
            .filter(|(_, checkpoint)| {
                let old = wall.secs.saturating_sub(checkpoint.taken.secs) > GRACE_SECS;
                let deleted = st.unlisted.contains(&checkpoint.snapshot);
                checkpoint.fate == Fate::Stays
                    && !listed.contains(&checkpoint.snapshot)
                    && (old || deleted)
            })
            .map(|(at, checkpoint)| (at, *checkpoint))
            .collect();
        for (at, mut checkpoint) in unlisted {
            self.record_all_writes(&mut st);
            // Content that was kept for it without a record yet has one before it is the newest no more.
            if !st.dirty.inodes().is_empty() {
                return Err(Elsewhere::NotReady.into());
            }
            // A write may be between what it keeps and its record.
            self.record_kept(&mut st, now)?;
            checkpoint.fate = Fate::Leaves;
            info!(container = %self.id, checkpoint = %at, "no snapshot has the checkpoint");
            self.order(&mut st, now, row(&checkpoint, at), false)?;
        }
        Ok(())
    }

    async fn leave(self: &Arc<Self>, at: CheckpointId) -> Result<(), Failed> {
        let mut after = None;
        loop {
            let left = {
                let mut st = self.state.lock();
                let now = self.env.clock.now();
                Self::reign(&st, now)?;
                let checkpoints = &st.checkpoints;
                let Left { mutations, next } = self.with_state(&st, |view| {
                    leave_rows(checkpoints, (self.id, at), view, after.as_deref(), ROWS_MAX)
                })?;
                self.order_rows(&mut st, now, mutations)?;
                next
            };
            // Programs go first.
            tokio::time::sleep(LOOK).await;
            match left {
                None => break,
                next => after = next,
            }
        }
        let mut from = InodeIndex(0);
        while let Some(next) = self.leave_file(at, from).await? {
            from = next;
        }
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        let gone = Mutation {
            key: Key::Checkpoint(at).encode(),
            value: None,
        };
        self.order_rows(&mut st, now, vec![gone])?;
        info!(container = %self.id, checkpoint = %at, "checkpoint removed");
        Ok(())
    }

    pub(super) fn order_rows(
        &self,
        st: &mut State,
        now: Tick,
        mutations: Vec<Mutation>,
    ) -> Result<(), Elsewhere> {
        if mutations.is_empty() {
            return Ok(());
        }
        let data = Vec::new();
        self.order(st, now, Batch { mutations, data }, false)
            .map(|_| ())
    }

    /// Sees to the next file with content of a checkpoint that leaves; says whose it was.
    async fn leave_file(
        self: &Arc<Self>,
        leaving: CheckpointId,
        from: InodeIndex,
    ) -> Result<Option<InodeIndex>, Failed> {
        let next = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            let checkpoints = &st.checkpoints;
            self.with_state(&st, |view| {
                Outdated::next(checkpoints, (self.id, leaving), view, from)
            })?
        };
        match next {
            None => Ok(None),
            Some(Outdated::Goes { of, kept }) => {
                self.end_file(leaving, of, kept)?;
                Ok(Some(of))
            }
            Some(Outdated::Moves { of, rows }) => {
                let mut st = self.state.lock();
                let now = self.env.clock.now();
                Self::reign(&st, now)?;
                self.order_rows(&mut st, now, rows)?;
                st.keeping.forget(InodeId::new(self.id, of));
                Ok(Some(of))
            }
            Some(Outdated::Joins { of, kept, at, into }) => {
                let me = self.clone();
                let joins = self.env.runtime.spawn_blocking(move || {
                    me.join_files((of, at), (kept.file, leaving), into.file)?;
                    me.end_file(leaving, of, kept)
                });
                joins.await.map_err(|_| Errno::EIO)??;
                Ok(Some(of))
            }
        }
    }

    fn end_file(
        &self,
        at: CheckpointId,
        of: InodeIndex,
        kept: perigee_meta::past::KeptFile,
    ) -> Result<(), Failed> {
        let mut st = self.state.lock();
        let mut now = self.env.clock.now();
        Self::reign(&st, now)?;
        loop {
            let some =
                self.with_state(&st, |view| remove_sums(self.id, view, kept.file, ROWS_MAX))?;
            if some.is_empty() {
                break;
            }
            self.order_rows(&mut st, now, some)?;
            // Programs go first.
            MutexGuard::bump(&mut st);
            now = self.env.clock.now();
            Self::reign(&st, now)?;
        }
        let batch = self.with_state(&st, |view| end_kept_file(self.id, view, (of, at), kept))?;
        self.order(&mut st, now, batch, false)?;
        st.keeping.forget(InodeId::new(self.id, of));
        Ok(())
    }

    /// Copies units that one file of a checkpoint has to the one of another checkpoint that lacks them. Blocks on the disk.
    fn join_files(
        &self,
        (of, at): (InodeIndex, CheckpointId),
        (from, leaving): (InodeIndex, CheckpointId),
        into: InodeIndex,
    ) -> Result<(), Failed> {
        let (source, target) = (InodeId::new(self.id, from), InodeId::new(self.id, into));
        let whose = InodeId::new(self.id, of);
        let file = self
            .file(whose)
            .map_err(|error| self.store_refused(&error))?;
        // Nothing else is kept of that file meanwhile.
        let _one = file.keeping.lock();
        let missing = {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            let all = 0..u64::MAX;
            self.with_state(&st, |view| {
                let has = kept_units(self.id, view, from, all.clone())?;
                let kept = perigee_meta::past::kept_content(self.id, view, (of, at), all)?;
                // What later checkpoints have of a unit was replaced later.
                let between = kept.iter().filter(|content| content.at < leaving);
                let there: Vec<_> = between.map(|content| &content.units).collect();
                let lacks = |unit: &u64| !there.iter().any(|units| units.has(*unit));
                Ok(has.iter().filter(lacks).collect::<Vec<u64>>())
            })?
        };
        for unit in missing {
            let range = ByteRange::with_len(unit * UNIT, UNIT);
            let bytes = self.read_object(source, range.start, UNIT as u32)?;
            if !bytes.is_empty() {
                self.put_in_past(target, range.start, &bytes)?;
            }
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            self.record_writes(&mut st, now, target);
            if st.dirty.get(target).is_some() {
                return Err(Elsewhere::NotReady.into());
            }
            let rows = self.with_state(&st, |view| {
                let chunk = perigee_meta::past::chunk_row(unit);
                let mut units = kept_units(self.id, view, into, chunk..chunk + 1)?;
                units.add(unit);
                let sum = KeptSum::of_unit(self.id, view, (from, unit))?;
                let sum = sum.map(|sum| sum.row(into, unit));
                Ok(std::iter::once(units.row(into, unit)).chain(sum).collect())
            })?;
            self.order_rows(&mut st, now, rows)?;
            st.keeping.joined(whose, target, unit);
        }
        Ok(())
    }

    /// What content of checkpoints takes, by checkpoint.
    pub(crate) fn past_use(&self) -> Result<Vec<PastUse>, Failed> {
        let mut st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        // What is kept for writes without a record has none either.
        self.record_all_writes(&mut st);
        let mut found = Vec::new();
        for (at, checkpoint) in st.checkpoints.iter() {
            let files =
                self.with_state(&st, |view| perigee_meta::past::files_of(self.id, view, at))?;
            let mut bytes = 0;
            for kept in files {
                let len = ByteRange::new(0, kept.size);
                let units = self.with_state(&st, |view| {
                    kept_units(self.id, view, kept.file, 0..u64::MAX)
                })?;
                let last = units_of(len).end.saturating_sub(1);
                let lens = units.iter().map(|unit| match unit == last {
                    true => kept.size - unit * UNIT,
                    false => UNIT,
                });
                bytes += lens.sum::<u64>();
            }
            found.push(PastUse {
                checkpoint: at,
                snapshot: checkpoint.snapshot,
                bytes,
            });
        }
        Ok(found)
    }

    async fn keep_unseen(self: &Arc<Self>) -> Result<(), Failed> {
        for inode in self.unseen.inodes() {
            self.take_in_unseen(inode).await?;
            let me = self.clone();
            let kept = self.env.runtime.spawn_blocking(move || {
                let file = me.file(inode).map_err(|error| me.store_refused(&error))?;
                me.keep_all(&file, inode)
            });
            if let Err(failed) = kept.await.map_err(|_| Errno::EIO)? {
                warn!(container = %self.id, %inode, ?failed, "what maps change is not kept");
                return Err(failed);
            }
        }
        debug!(container = %self.id, "content of the checkpoint is settled");
        Ok(())
    }
}

impl State {
    fn is_stopped_by(&self, stop: StopId) -> bool {
        self.stopped.is_some_and(|stopped| stopped.stop == stop)
    }

    /// Whether nothing is half done: no write on its way to the file, no transaction, no chunk elsewhere, all recorded, and
    /// nothing missing here that may turn out to be lost.
    fn is_quiet(&self) -> bool {
        let mut missing = self.pull.iter();
        let all_there =
            missing.all(|(inode, range, _)| self.pull.lost(inode, range) == Some(range));
        !self.leases.has_any_changes()
            && self.transactions.is_idle()
            && self.away.holds.is_empty()
            && self.dirty.inodes().is_empty()
            && all_there
    }
}

fn row(checkpoint: &Checkpoint, at: CheckpointId) -> Batch {
    Batch {
        mutations: vec![checkpoint.row(at)],
        data: Vec::new(),
    }
}
