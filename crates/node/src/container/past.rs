//! What the owner keeps for checkpoints before it is replaced; what it shows of them: [`super::past_shown`].
//!
//! Rows are kept by [`perigee_meta::past::keep_rows`], in the record that replaces them. Content is copied, in whole
//! units, to a file of the checkpoint before the first byte of a unit is replaced; that file's record comes before the one
//! of the change, and which units it has goes with it. So whoever owns next finds both or neither.
//!
//! What is in place at a member may be the last copy of what was kept until that is there as well: bytes that replace it wait
//! (F5 of [`perigee_replica::pull`]), and so do an owner's own, where it has not what an earlier one kept; what members do at
//! once, cuts and holes, is ordered once it is on every disk ([`Container::keep_before_cut`]).
//!
//! Lock order: a file's `still`, then its `keeping`, then the container's state.

use super::dirty::{Effect, KEPT_WAIT, Taken};
use super::execute::lost_range;
use super::in_place::sha256;
use super::refusals::NoRoom;
use super::sync::Settled;
use super::view::{Foreign, owner_view};
use super::{Container, Elsewhere, Failed, File, State};
use bytes::BytesMut;
use perigee_meta::key::{self, is_checkpoint};
use perigee_meta::past::{
    Checkpoints, Due, Keeping, KeptNow, Sum, UNIT, begin_kept_file, keep_rows, kept_content,
    kept_file, units_of,
};
use perigee_meta::{Op, Refusal, Reply, View};
use perigee_store::Object;
use perigee_types::{
    Batch, ByteRange, CheckpointId, DataCommand, Errno, InodeId, InodeIndex, Mutation, Seq, Tick,
};
use std::ops::Range;
use std::sync::Arc;
use tracing::{error, warn};

/// Bytes that are copied at once.
const COPY_MAX: u64 = 1 << 20;
/// All rows of a file's units.
const ALL_CHUNKS: Range<u64> = 0..u64::MAX;

/// Units of a file that are to be kept.
struct ToKeep {
    at: CheckpointId,
    file: InodeId,
    size: u64,
    units: Vec<u64>,
    /// When the reign began in which this was found out.
    reign: Tick,
}

/// Content on its way into a checkpoint's file.
#[derive(Clone, Copy)]
struct Content<'a> {
    bytes: &'a [u8],
    /// Has the same at the same place: blocks of it are shared where the local file system can.
    shares: Option<&'a Object>,
}

impl State {
    /// The checkpoint's file that has content of a file and may not be on every disk yet, and its last record.
    pub(super) fn kept_beside(&self, inode: InodeId) -> Option<(InodeId, Seq)> {
        let file = self.keeping.of(inode)?.file?;
        let seq = self.data.last(file)?;
        Some((file, seq))
    }

    /// Reads the container's checkpoints: a reign begins.
    pub(super) fn forget_past(&mut self) {
        self.checkpoints = Checkpoints::default();
        self.keeping = Keeping::default();
        self.spared.clear();
        self.stopped = None;
    }
}

impl Container {
    /// Has something decided on the newest state.
    pub(super) fn with_state<T>(
        &self,
        st: &State,
        decide: impl FnOnce(&mut dyn View) -> Result<T, Refusal>,
    ) -> Result<T, Failed> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let decided = decide(&mut view);
        if let Some(failed) = view.failed {
            return Err(self.store_refused(&failed).into());
        }
        decided.map_err(|refusal| match refusal {
            Refusal::Errno(errno) => errno.into(),
            refusal => {
                error!(container = %self.id, %refusal, "state of a checkpoint unreadable");
                Errno::EIO.into()
            }
        })
    }

    /// A new owner learns which checkpoints there are.
    pub(super) fn load_checkpoints(&self, st: &mut State) {
        st.forget_past();
        match self.with_state(st, |view| Checkpoints::load(self.id, view)) {
            Ok(checkpoints) => st.checkpoints = checkpoints,
            Err(failed) => {
                // Whoever changed anything now would spoil checkpoints that it does not know.
                error!(container = %self.id, ?failed, "checkpoints cannot be read: no changes are taken");
                st.changes_from = Tick(u64::MAX);
            }
        }
    }

    /// The batch with what it has to keep, where it has to.
    pub(super) fn with_past_kept(
        &self,
        st: &mut State,
        now: Tick,
        batch: &Batch,
    ) -> Result<Option<Batch>, Elsewhere> {
        if st.checkpoints.is_empty() {
            return Ok(None);
        }
        let mut checkpoints = std::mem::take(&mut st.checkpoints);
        let kept = self.with_state(st, |view| keep_rows(&mut checkpoints, self.id, batch, view));
        st.checkpoints = checkpoints;
        let mut mutations = kept.map_err(|failed| {
            st.checkpoints.forget_known();
            error!(container = %self.id, ?failed, "what a checkpoint has cannot be kept");
            Elsewhere::NotReady
        })?;
        let changed = batch.data.iter().map(DataCommand::inode);
        let mut due: Vec<(InodeId, InodeId)> = changed
            .filter_map(|inode| Some((inode, st.keeping.is_due(inode)?)))
            .collect();
        due.dedup();
        for (inode, file) in due {
            match self.due_rows(st, now, inode, file) {
                Ok(rows) => mutations.extend(rows),
                Err(elsewhere) => {
                    st.checkpoints.forget_known();
                    return Err(elsewhere);
                }
            }
        }
        if mutations.is_empty() {
            return Ok(None);
        }
        let mut with = batch.clone();
        with.mutations.extend(mutations);
        Ok(Some(with))
    }

    /// The rows of units of a file that no record tells of yet; the record of their content is ordered before.
    fn due_rows(
        &self,
        st: &mut State,
        now: Tick,
        inode: InodeId,
        file: InodeId,
    ) -> Result<Vec<Mutation>, Elsewhere> {
        self.record_writes(st, now, file);
        if st.dirty.get(file).is_some() {
            return Err(Elsewhere::NotReady);
        }
        let due = st.keeping.take_due(inode);
        Ok(st.keeping.rows(inode, &due))
    }

    /// Makes records of all units that none tells of yet, whether or not what they were kept for has happened.
    pub(super) fn record_kept(&self, st: &mut State, now: Tick) -> Result<(), Elsewhere> {
        for (inode, file) in st.keeping.all_due() {
            let mutations = self.due_rows(st, now, inode, file)?;
            self.order_rows(st, now, mutations)?;
        }
        Ok(())
    }

    /// A record is ordered: which checkpoints there are may have changed.
    pub(super) fn note_checkpoints(&self, st: &mut State, batch: &Batch) {
        let mut keys = batch.mutations.iter().map(|mutation| &mutation.key);
        let changes = keys.any(|key| is_checkpoint(key));
        if !changes && st.checkpoints.is_empty() {
            return;
        }
        if let Err(refusal) = st.checkpoints.on_batch(self.id, batch) {
            error!(container = %self.id, %refusal, "checkpoint unreadable");
        }
        if changes {
            st.keeping.begin(st.checkpoints.newest().map(|(at, _)| at));
            let spared = std::mem::take(&mut st.spared);
            st.orphans.extend(spared);
        }
    }

    /// Whether the newest checkpoint has a file.
    pub(super) fn must_keep(&self, st: &State, inode: InodeId) -> bool {
        st.checkpoints.keeps(inode.index()).is_some()
    }

    /// Whether all of a range has been kept, so that somebody else may replace it.
    pub(super) fn has_kept(
        &self,
        st: &mut State,
        inode: InodeId,
        range: ByteRange,
    ) -> Result<bool, Failed> {
        let Some(at) = st.checkpoints.keeps(inode.index()) else {
            return Ok(true);
        };
        self.know_kept(st, inode, at)?;
        Ok(st.keeping.missing(inode, range).is_empty() && self.kept_is_here(st, inode, range))
    }

    /// Whether what checkpoints have of these units and is kept is here; else it is fetched now.
    pub(super) fn kept_is_here(&self, st: &mut State, inode: InodeId, range: ByteRange) -> bool {
        let units = units_of(range);
        let whole = ByteRange::new(
            units.start.saturating_mul(UNIT),
            units.end.saturating_mul(UNIT),
        );
        let awaited = st.pull.kept_awaited(inode, whole);
        for kept in &awaited {
            st.pull.want(*kept, whole);
        }
        if !awaited.is_empty() {
            self.refill.notify_one();
        }
        awaited.is_empty()
    }

    /// A record tells which file a checkpoint has for the content of another one.
    pub(super) fn note_kept_files(&self, st: &mut State, batch: &Batch) {
        for row in &batch.mutations {
            if let (Some(of), Some(value)) = (key::is_kept_file(&row.key), &row.value)
                && let Ok(kept) = kept_file(self.id, &row.key, value)
            {
                let id = |index| InodeId::new(self.id, index);
                st.pull.on_kept_file(id(kept.file), id(of));
            }
        }
    }

    /// Whether what an operation takes away of a file has to be kept on every disk first, and is not.
    pub(super) fn cut_waits(&self, op: &Op) -> Option<(InodeId, ByteRange)> {
        let (inode, range) = lost_range(op)?;
        let mut st = self.state.lock();
        let at = st.checkpoints.keeps(inode.index())?;
        self.know_kept(&mut st, inode, at).ok()?;
        // What lies beyond the end that the file had is in no checkpoint.
        let size = st.keeping.of(inode)?.size;
        let kept = range.start >= size
            || self.has_kept(&mut st, inode, range).ok()? && st.kept_beside(inode).is_none();
        (!kept).then_some((inode, range))
    }

    /// Keeps what a cut, or a hole, takes away of a file, on every disk.
    pub(super) async fn keep_before_cut(
        self: &Arc<Self>,
        inode: InodeId,
        range: ByteRange,
    ) -> Result<(), Failed> {
        let me = self.clone();
        let kept = self.env.runtime.spawn_blocking(move || {
            let file = me.file(inode).map_err(|error| me.store_refused(&error))?;
            let _still = file.still.write();
            me.keep_content(&file, inode, range)
        });
        kept.await.map_err(|_| Errno::EIO)??;
        let beside = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            self.record_kept(&mut st, now)?;
            st.kept_beside(inode)
        };
        if let Some((file, _)) = beside {
            let settled = self.settle_writes(file, Settled::Safe, NoRoom::Told).await;
            match settled {
                Ok(()) => {}
                // A member without room for it, say, keeps nobody from making some.
                Err(Failed::Errno(errno)) => {
                    warn!(container = %self.id, %inode, %errno, "what a cut takes away is not kept on every disk");
                }
                Err(elsewhere) => return Err(elsewhere),
            }
        }
        Ok(())
    }

    /// Copies what `range` of a file is about to lose, if the newest checkpoint has it and it is not kept yet. The caller has
    /// the file's `still`. Blocks on the disk.
    ///
    /// Errors: what cannot be read cannot be kept, and is not replaced.
    pub(super) fn keep_content(
        &self,
        file: &File,
        inode: InodeId,
        range: ByteRange,
    ) -> Result<(), Failed> {
        if range.is_empty() {
            return Ok(());
        }
        {
            let st = self.state.lock();
            // Who does not own knows no checkpoints.
            Self::reign(&st, self.env.clock.now())?;
            if !self.must_keep(&st, inode) {
                return Ok(());
            }
        }
        let _one = file.keeping.lock();
        loop {
            let wanted = {
                let mut st = self.state.lock();
                let wanted = self.to_keep(&mut st, inode, range)?;
                if !self.kept_is_here(&mut st, inode, range) {
                    return Err(Elsewhere::NotReady.into());
                }
                wanted
            };
            let Some(wanted) = wanted else { return Ok(()) };
            if self.copy_units(file, inode, &wanted)? {
                return Ok(());
            }
        }
    }

    /// Which units of a range are to be kept, and where; begins the checkpoint's file if this is the first.
    fn to_keep(
        &self,
        st: &mut State,
        inode: InodeId,
        range: ByteRange,
    ) -> Result<Option<ToKeep>, Failed> {
        let now = self.env.clock.now();
        Self::reign(st, now)?;
        let Some(at) = st.checkpoints.keeps(inode.index()) else {
            return Ok(None);
        };
        self.know_kept(st, inode, at)?;
        let units = st.keeping.missing(inode, range);
        if units.is_empty() {
            return Ok(None);
        }
        let (size, file) = match st.keeping.of(inode) {
            Some(now) => (now.size, now.file),
            None => return Ok(None),
        };
        let file = match file {
            Some(file) => file,
            None => self.begin_file(st, now, inode, at)?,
        };
        Ok(Some(ToKeep {
            at,
            file,
            size,
            units,
            reign: st.reigns_from,
        }))
    }

    fn begin_file(
        &self,
        st: &mut State,
        now: Tick,
        inode: InodeId,
        at: CheckpointId,
    ) -> Result<InodeId, Failed> {
        let wall = self.env.clock.wall();
        let begun = self.with_state(st, |view| {
            begin_kept_file(self.id, view, (inode.index(), at), wall)
        })?;
        let Some((kept, batch)) = begun else {
            return Err(Errno::EIO.into());
        };
        self.carry_out(st, &batch)
            .map_err(|error| self.store_refused(&error))?;
        self.order(st, now, batch, false)?;
        let file = InodeId::new(self.id, kept.file);
        st.keeping.begun(inode, file);
        Ok(file)
    }

    /// Reads what the rows tell of a file's kept content, unless it is known.
    fn know_kept(&self, st: &mut State, inode: InodeId, at: CheckpointId) -> Result<(), Failed> {
        if st.keeping.knows(inode, at) {
            return Ok(());
        }
        let index = inode.index();
        let all = self.with_state(st, |view| {
            kept_content(self.id, view, (index, at), ALL_CHUNKS)
        })?;
        let mut known = KeptNow {
            size: self.past_size(st, inode, at)?,
            ..KeptNow::default()
        };
        for content in all {
            for unit in content.units.iter() {
                known.units.add(unit);
            }
            if content.at == at {
                known.file = Some(InodeId::new(self.id, content.kept.file));
                known.mine = content.units;
            }
        }
        st.keeping.know(inode, known);
        Ok(())
    }

    /// How long a file was; 0 for what was none.
    pub(super) fn past_size(
        &self,
        st: &State,
        inode: InodeId,
        at: CheckpointId,
    ) -> Result<u64, Failed> {
        match self.run_past(st, at, &Op::GetAttr { inode }) {
            Ok(Reply::Attr(attr)) if attr.kind == perigee_meta::Kind::File => Ok(attr.size),
            Ok(_) | Err(Failed::Errno(Errno::ESTALE)) => Ok(0),
            Err(failed) => Err(failed),
        }
    }

    /// Writes content of a checkpoint to its file. Blocks on the disk.
    pub(super) fn put_in_past(
        &self,
        target: InodeId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Failed> {
        let file = self
            .file(target)
            .map_err(|error| self.store_refused(&error))?;
        let _still = file.still.read();
        let range = ByteRange::with_len(offset, bytes.len() as u64);
        let reign = self.state.lock().reigns_from;
        let shares = None;
        self.write_past(&file, target, range, Content { bytes, shares })?;
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        if let Err(elsewhere) = Self::same_reign(&st, now, reign) {
            self.distrust_writes(&mut st, target, &[range]);
            self.refill.notify_one();
            return Err(elsewhere.into());
        }
        self.take_past(&mut st, now, target, range);
        Ok(())
    }

    fn write_past(
        &self,
        file: &File,
        target: InodeId,
        range: ByteRange,
        content: Content<'_>,
    ) -> Result<(), Failed> {
        let there = file
            .object
            .len()
            .map_err(|error| self.store_refused(&error))?;
        let replaced = ByteRange::new(range.start.min(there), range.end.min(there));
        let _under_way = self.intend(target, replaced);
        let Content { bytes, shares } = content;
        let wrote = match shares {
            Some(source) => file.object.write_copy(range.start, bytes, source),
            None => file.object.write(range.start, bytes),
        };
        wrote.map_err(|error| self.store_refused(&error).into())
    }

    fn take_past(&self, st: &mut State, now: Tick, target: InodeId, range: ByteRange) {
        let taken = Taken {
            answer: None,
            range,
            effect: Effect::Kept,
            mtime: self.env.clock.wall(),
            now,
            kill_privileges: false,
        };
        st.take_write(target, &taken);
        st.gathering.begin_until(now, now + KEPT_WAIT);
        self.look_in_time(st);
    }

    /// Copies units; says whether they are kept now: the checkpoint may be the newest no more.
    fn copy_units(&self, file: &File, inode: InodeId, wanted: &ToKeep) -> Result<bool, Failed> {
        let target = self
            .file(wanted.file)
            .map_err(|error| self.store_refused(&error))?;
        let _still = target.still.read();
        for run in runs(&wanted.units) {
            let range = ByteRange::new(run.start * UNIT, (run.end * UNIT).min(wanted.size));
            let len = range.len() as usize;
            let mut bytes = BytesMut::zeroed(len);
            let read = file.object.read_bytes(range.start, len);
            let read = read.map_err(|error| self.read_failed(inode, &error))?;
            bytes[..read.len()].copy_from_slice(&read);
            let content = Content {
                bytes: &bytes,
                shares: Some(&file.object),
            };
            let sums = bytes.chunks(UNIT as usize).map(sum_of);
            let kept = run.zip(sums).map(|(unit, sum)| Due {
                unit,
                sum: Some(sum),
            });
            let kept: Vec<Due> = kept.collect();
            self.write_past(&target, wanted.file, range, content)?;
            if !self.note_kept(inode, wanted, &kept, range)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is in place of a file becomes its content, though nobody knows what it was before: what checkpoints have of these
    /// ranges, and was not kept, is lost.
    pub(super) fn lose_in_past(
        &self,
        st: &mut State,
        inode: InodeId,
        replaced: &[ByteRange],
    ) -> Result<(), Failed> {
        for range in replaced {
            if !self.must_keep(st, inode) {
                return Ok(());
            }
            let Some(wanted) = self.to_keep(st, inode, *range)? else {
                continue;
            };
            let now = self.env.clock.now();
            error!(container = %self.id, %inode, units = wanted.units.len(), "what a checkpoint has of a file is lost");
            for run in runs(&wanted.units) {
                let range = ByteRange::new(run.start * UNIT, (run.end * UNIT).min(wanted.size));
                let data = vec![DataCommand::Written {
                    inode: wanted.file,
                    range,
                }];
                let mutations = Vec::new();
                self.order(st, now, Batch { mutations, data }, true)?;
                // A member that does not know of this record yet would answer with the hole that was there before.
                let since = st.chain.last();
                st.pull.on_ordered_lost(since);
                self.mark_overwritten(st, wanted.file, range, since);
                for unit in run {
                    st.keeping.kept(inode, Due { unit, sum: None });
                }
            }
            self.refill.notify_one();
        }
        Ok(())
    }

    fn note_kept(
        &self,
        inode: InodeId,
        wanted: &ToKeep,
        kept: &[Due],
        range: ByteRange,
    ) -> Result<bool, Failed> {
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        let ours = st.keeping.is_as_of(inode, wanted.at);
        let reign = Self::same_reign(&st, now, wanted.reign);
        if reign.is_err() || !ours {
            self.distrust_writes(&mut st, wanted.file, &[range]);
            self.refill.notify_one();
            reign?;
            return Ok(false);
        }
        self.take_past(&mut st, now, wanted.file, range);
        for due in kept {
            st.keeping.kept(inode, *due);
        }
        Ok(true)
    }

    /// Whether a checkpoint shows an inode that has lost its last name: then it stays.
    pub(super) fn is_spared(&self, st: &State, index: InodeIndex) -> Result<bool, Failed> {
        if st.checkpoints.is_empty() {
            return Ok(false);
        }
        self.with_state(st, |view| st.checkpoints.need(self.id, view, index))
    }
}

/// What a unit is known by.
pub(super) fn sum_of(unit: &[u8]) -> Sum {
    Sum(sha256([unit]))
}

/// Units that follow each other, in pieces that are copied at once.
fn runs(units: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for unit in units {
        match runs.last_mut() {
            Some(run) if run.end == *unit && (run.end - run.start) * UNIT < COPY_MAX => {
                run.end += 1;
            }
            _ => runs.push(*unit..unit + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_in_a_row_are_copied_together_up_to_a_limit() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[1, 2, 5]), [1..3, 5..6]);
        let many: Vec<u64> = (0..40).collect();
        assert_eq!(runs(&many), [0..16, 16..32, 32..40]);
    }
}
