//! Blocks that are not what was written: never shown, and fetched from another member (law 7).

use super::{Container, Elsewhere, Failed, State};
use perigee_replica::{Fetch, RegionMap, Role};
use perigee_store::StoreError;
use perigee_types::{ByteRange, Errno, InodeId, Seq, Version};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use tracing::{error, warn};

/// How it stands with a file whose bytes here were found corrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Other members are being asked.
    Healing,
    /// No member has what is missing.
    Lost,
}

impl Container {
    /// What a failed read of this node's copy means to whoever asked.
    pub(super) fn read_failed(&self, inode: InodeId, failed: &StoreError) -> Failed {
        match failed {
            StoreError::Corrupt { ranges, .. } => {
                warn!(container = %self.id, %inode, %failed, "corrupt blocks: fetching good ones");
                self.mark_corrupt(inode, ranges)
            }
            StoreError::Invalid { ranges, .. } => self.wanted(inode, ranges),
            StoreError::Removed { .. } => Errno::ESTALE.into(),
            StoreError::NoSpace => Errno::ENOSPC.into(),
            other => {
                error!(container = %self.id, %inode, error = %other, "read failed");
                self.store_refused(other).into()
            }
        }
    }

    /// The error for a program when this node's own store refused something. If that is the device's doing, this node leaves
    /// the container, and [`Self::or_elsewhere`] has whoever asked go to the others.
    pub(super) fn store_refused(&self, failed: &StoreError) -> Errno {
        const HOPELESS: [i32; 4] = [libc::EIO, libc::EROFS, libc::ENODEV, libc::ENXIO];
        match failed {
            StoreError::NoSpace => return Errno::ENOSPC,
            StoreError::ReadOnly { .. } => {
                self.disk_fails(failed);
                return Errno::EROFS;
            }
            StoreError::Failed { .. } => self.disk_fails(failed),
            StoreError::Io { code, .. } if HOPELESS.contains(code) => self.disk_fails(failed),
            _ => {}
        }
        Errno::EIO
    }

    /// A disk that does not keep what it is given must hold nobody up: this node leaves the container, until it is started
    /// again, and another one takes its place.
    pub(super) fn disk_fails(&self, failed: &StoreError) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            error!(container = %self.id, %failed, "the disk here fails: this node leaves the container");
        }
        self.wake.notify_one();
        if let StoreError::Failed { .. } = failed
            && !self.env.engine_failed.swap(true, Ordering::Relaxed)
        {
            // All containers are in the one engine: one that nobody writes to must not count this node as a member either.
            let (env, failed) = (self.env.clone(), failed.clone());
            self.env.runtime.spawn(async move {
                for container in env.all_containers() {
                    container.disk_fails(&failed);
                }
            });
        }
    }

    /// What whoever asked is told: where this node's disk fails and others have the container, they go on with it, and are to
    /// be asked.
    pub(crate) fn or_elsewhere<T>(&self, result: Result<T, Failed>) -> Result<T, Failed> {
        result.map_err(|failed| match failed {
            Failed::Errno(Errno::EIO | Errno::EROFS) if self.leaves_to_others() => {
                Elsewhere::NotReady.into()
            }
            failed => failed,
        })
    }

    fn leaves_to_others(&self) -> bool {
        let failing = self.failing.load(Ordering::Relaxed);
        let st = self.state.lock();
        (failing || matches!(st.role, Role::Outside)) && !self.listed(&st).is_empty()
    }

    /// What the log says of the container cannot be read here any more: this node leaves, and when the others have gone on
    /// without it, it drops its copy and gets another one.
    pub(super) fn keys_rot(&self, failed: &StoreError) {
        self.env.spoiled.lock().insert(self.id);
        self.disk_fails(failed);
    }

    /// Whether another member can give what this one cannot read.
    pub(super) fn is_rot(&self, st: &State, failed: &StoreError) -> bool {
        matches!(failed, StoreError::Damaged { .. }) && !self.listed(st).is_empty()
    }

    /// Whether the disk says that it has far more room, for bytes and for files, than any write needs.
    pub(super) fn has_plenty_of_room(&self) -> bool {
        const BYTES: u64 = 128 << 20;
        const FILES: u64 = 1_024;
        let space = self.env.store.space();
        // Some file systems do not count files.
        let files = |free: u64, of: u64| of == 0 || free > FILES;
        space.is_ok_and(|space| space.available > BYTES && files(space.files_free, space.files))
    }

    /// Blocks that are not what was written were found, and nobody waits for them.
    pub(crate) fn found_corrupt(&self, inode: InodeId, ranges: &[ByteRange]) {
        // Whoever reads them is answered when they are here.
        _ = self.mark_corrupt(inode, ranges);
    }

    /// How it stands with a file that was found corrupt; none: it is whole.
    pub(crate) fn damage(&self, inode: InodeId) -> Option<Damage> {
        let st = self.state.lock();
        let damage = *st.damaged.get(&inode)?;
        // What was found last may be here again, beside what was lost before.
        let awaits = !st.pull.has_through(inode, Seq(u64::MAX));
        Some(if awaits { damage } else { Damage::Lost })
    }

    /// Whether what this node keeps of the container is part of it.
    pub(crate) fn holds_copy(&self) -> bool {
        let role = self.state.lock().role;
        matches!(role, Role::Owner { .. } | Role::Replica { .. })
    }

    /// Corrupt bytes are invalid from now on, until good ones are here.
    fn mark_corrupt(&self, inode: InodeId, ranges: &[ByteRange]) -> Failed {
        let mut st = self.state.lock();
        self.spoilt(&mut st, inode, ranges);
        self.refill.notify_one();
        Self::answer_for(&st, inode, ranges)
    }

    /// Of these ranges nothing here is content that was ever committed: in memory and on the disk.
    pub(super) fn spoilt(&self, st: &mut State, inode: InodeId, ranges: &[ByteRange]) {
        let committed = st.chain.committed_version();
        let written = st.dirty.get(inode).map(|written| written.ranges.clone());
        for &range in ranges.iter().filter(|range| !range.is_empty()) {
            self.mark_spoiled(st, inode, range, committed);
            if st.unsent.holding().keeps(inode, range) {
                // Older content comes in the place of what a program of this host has written to a chunk that it holds.
                self.env.losses.note([inode]);
            }
            // Of what was written since the last record no other member has anything: their older bytes must not come in its
            // place. When its record is committed, it is looked at again ([`Self::recheck_damaged`]).
            let mut recorded = RegionMap::new();
            recorded.invalidate(range, committed);
            for &unrecorded in written.iter().flatten() {
                recorded.drop_range(unrecorded);
            }
            for (part, _) in recorded.iter() {
                st.pull.on_corrupt(inode, part, committed);
            }
        }
        st.damaged.insert(inode, Damage::Healing);
    }

    /// On the disk, before this node says that it has everything else: nobody has what is missing here of `range`, and what
    /// is in place is not the content.
    pub(super) fn mark_lost(
        &self,
        st: &mut State,
        inode: InodeId,
        range: ByteRange,
        as_of: Version,
    ) {
        let marked = self.file(inode).and_then(|file| {
            let _installing = super::install::hold_off(&file);
            file.object.spoil_invalid_in(&mut st.marks, range, as_of)
        });
        if let Err(error) = marked {
            error!(container = %self.id, %inode, %range, %error, "region not marked lost");
        }
        st.unsettled.insert(inode);
    }

    /// On the disk: what is here of `range` never was the content, and never will be.
    fn mark_spoiled(&self, st: &mut State, inode: InodeId, range: ByteRange, committed: Version) {
        let marked = self.file(inode).and_then(|file| {
            let _installing = super::install::hold_off(&file);
            file.object.spoil_in(&mut st.marks, range, committed)
        });
        if let Err(error) = marked {
            error!(container = %self.id, %inode, %range, %error, "region not marked invalid");
        }
    }

    /// The owner says that nobody has a part of what was asked for: it is not waited for.
    pub(super) fn nobody_has(&self, fetch: &Fetch, part: ByteRange, as_of: Version) {
        let mut st = self.state.lock();
        for lost in st.pull.on_lost(fetch.id, part, as_of) {
            self.mark_lost(&mut st, fetch.inode, lost, as_of);
        }
        if let Some(damage) = st.damaged.get_mut(&fetch.inode) {
            *damage = Damage::Lost;
        }
        drop(st);
        self.progress.notify_waiters();
    }

    /// Records of this owner's writes are committed. What was found corrupt between a write and its record is missing still,
    /// and who has overwritten all that was corrupt has a whole file again.
    pub(super) fn recheck_damaged(&self, st: &mut State, written: &BTreeSet<InodeId>) {
        let committed = st.chain.committed_version();
        for &inode in written {
            match self.file(inode) {
                Ok(file) => {
                    let lacking = file.object.invalid();
                    let lacking = lacking.into_iter().map(|(range, _)| range);
                    st.pull.on_still_corrupt(inode, lacking, committed);
                    self.note_healed(st, inode);
                }
                Err(StoreError::Removed { .. }) => {
                    st.damaged.remove(&inode);
                    st.lost_unsynced.remove(&inode);
                }
                Err(error) => error!(container = %self.id, %inode, %error, "damage not looked at"),
            }
        }
    }

    /// Somebody waits for bytes that this node lacks.
    fn wanted(&self, inode: InodeId, ranges: &[ByteRange]) -> Failed {
        let mut st = self.state.lock();
        for range in ranges {
            st.pull.want(inode, *range);
        }
        self.refill.notify_one();
        Self::answer_for(&st, inode, ranges)
    }

    /// Asking again helps while other members are being asked.
    fn answer_for(st: &State, inode: InodeId, ranges: &[ByteRange]) -> Failed {
        let owns = matches!(st.role, Role::Owner { .. });
        let mut lost = ranges.iter().map(|range| st.pull.lost(inode, *range));
        if owns && lost.any(|lost| lost.is_some()) {
            return Errno::EIO.into();
        }
        Elsewhere::NotReady.into()
    }

    /// Everything that was missing of a file is here again.
    pub(super) fn note_healed(&self, st: &mut State, inode: InodeId) {
        let whole = || self.file(inode).is_ok_and(|file| file.object.is_whole());
        if st.damaged.contains_key(&inode) && st.pull.invalid(inode).is_none() && whole() {
            st.damaged.remove(&inode);
            st.lost_unsynced.remove(&inode);
            warn!(container = %self.id, %inode, "corrupt blocks were replaced");
        }
    }

    /// No member could give what is missing.
    pub(super) fn note_lost(&self, st: &mut State, inode: InodeId) {
        let before = st.damaged.insert(inode, Damage::Lost);
        if before != Some(Damage::Lost) {
            error!(container = %self.id, %inode, "no member has a good copy of corrupt blocks");
        }
        if before == Some(Damage::Healing) {
            st.lost_unsynced.insert(inode);
        }
    }

    /// The version as of which a member that does not own may give its valid bytes.
    pub(super) fn member_version(
        &self,
        st: &State,
        inode: InodeId,
        range: ByteRange,
    ) -> Option<Version> {
        let replica = matches!(st.role, Role::Replica { .. });
        (replica && st.pull.is_valid(inode, range)).then(|| st.chain.content_version())
    }
}
