//! Files that programs of this host write past the daemon, while nobody else uses them (passthrough for writers).
//!
//! At the owner, a program that opens a whole file for writing may get the backing file, as readers do. The daemon sees none of
//! its writes. They are found as stores through maps are (`unseen`), since the kernel tells which pages change: before a sync, before
//! another session is shown the file, each second (each 20 ms where another host may have mapped it), when a member fetches a
//! part, and when the program has let go of it.
//!
//! When that begins, no other session has a lease on the file, or may hold pages of it, and none is changing it. While it
//! lasts, no other session gets a lease: each look of another one is answered after what was written is taken in, and
//! is on every member. Other sessions' writes go through the daemon to the same file. Looks of the session itself are
//! answered from the file: its length, and its time when that is later than at the last look.
//!
//! What other hosts map is told of a write only when it is found, which may be some 20 ms after it has returned.

use super::unseen::ThroughDaemon;
use super::{Container, File, State};
use perigee_client::backend::Local;
use perigee_meta::Attr;
use perigee_types::{ByteRange, Errno, InodeId, SessionId, Span, Tick, WallTime};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::debug;

/// Longer files are not handed to a writer while something of them is not on the disk: to write so many bytes back takes
/// a few milliseconds.
const UNSYNCED_MAX: u64 = 1 << 20;
/// How often a file is looked at that another host may have mapped.
const MAPPED_LOOK: Duration = Duration::from_millis(20);
/// The local file system's times are those of the kernel's last tick (`CLOCK_REALTIME_COARSE`), which the daemon's own are
/// ahead of by so much at most, with 100 ticks a second. So a change may seem to be older than one before it.
const COARSE: Span = Span::from_millis(20);

/// All such files of a container.
#[derive(Debug, Default)]
pub(super) struct Alone {
    files: BTreeMap<InodeId, Writer>,
}

#[derive(Debug, Clone, Copy)]
struct Writer {
    /// Whose programs write.
    session: SessionId,
    /// The backing file's time as of the last look, or of the daemon's last own change.
    looked: WallTime,
}

impl Alone {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether a file is among them.
    pub(super) fn has(&self, inode: InodeId) -> bool {
        self.files.contains_key(&inode)
    }

    /// Whether a session may keep what it is shown of a file.
    pub(super) fn may_keep(&self, inode: InodeId, session: SessionId) -> bool {
        let writer = self.files.get(&inode);
        writer.is_none_or(|writer| writer.session == session)
    }

    fn begin(&mut self, inode: InodeId, writer: Writer) {
        self.files.entry(inode).or_insert(writer);
    }

    /// Nobody writes the file past the daemon any more.
    pub(super) fn end(&mut self, inode: InodeId) {
        self.files.remove(&inode);
    }

    /// The time of a file's last change, if it is of one since the last look. `modified`: the backing file's time; `shown`: what
    /// is known as the file's, which the change is after.
    fn since_looked(
        &self,
        inode: InodeId,
        modified: WallTime,
        shown: WallTime,
    ) -> Option<WallTime> {
        let writer = self.files.get(&inode)?;
        let before = modified <= shown && shown.since(modified) <= COARSE;
        let at = if before { shown.next() } else { modified };
        (modified > writer.looked).then_some(at)
    }

    /// All of a file's changes up to `modified`, the backing file's time, are known.
    pub(super) fn looked(&mut self, inode: InodeId, modified: WallTime) {
        if let Some(writer) = self.files.get_mut(&inode) {
            writer.looked = modified;
        }
    }
}

/// Who wants to write a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct User {
    pub(super) session: SessionId,
    /// What the node asks for itself, which keeps nothing.
    pub(super) node: SessionId,
}

/// A file cannot be handed to a writer now.
#[derive(Debug)]
pub(super) struct NotAlone;

impl State {
    /// From here on a session writes a file past the daemon, unless others use it.
    pub(super) fn begin_alone(
        &mut self,
        now: Tick,
        user: User,
        inode: InodeId,
        modified: WallTime,
    ) -> Result<(), NotAlone> {
        self.check_alone(now, user, inode)?;
        let writer = Writer {
            session: user.session,
            looked: modified,
        };
        self.alone.begin(inode, writer);
        Ok(())
    }

    fn check_alone(&self, now: Tick, user: User, inode: InodeId) -> Result<(), NotAlone> {
        let User { session, node } = user;
        let mut holders = self.leases.holders(now, inode);
        let others = holders.any(|holder| holder != session && holder != node);
        let in_use = others || !self.alone.may_keep(inode, session);
        let kept_out = self.lock_queue.keeps_out(inode, session)
            || self.transactions.holds_inode(inode)
            || now < self.changes_from;
        if in_use || kept_out {
            return Err(NotAlone);
        }
        Ok(())
    }
}

impl Container {
    /// The file as a local one for a program of this host that opens it for writing: to write to as well, if nobody else
    /// uses it. `whole`: the caller has found that it is whole here. Blocks.
    pub(crate) fn local_for_writing(
        self: &Arc<Self>,
        session: SessionId,
        attr: &Attr,
        whole: Arc<OwnedFd>,
    ) -> Local {
        match self.lend(session, attr) {
            Ok(file) => {
                debug!(inode = %attr.inode, "the file is written past the daemon");
                Local::Write(file)
            }
            Err(through) => {
                debug!(inode = %attr.inode, %through, "the file is written through the daemon");
                self.beside_maps(attr.inode, whole)
            }
        }
    }

    fn lend(
        self: &Arc<Self>,
        session: SessionId,
        attr: &Attr,
    ) -> Result<Arc<OwnedFd>, ThroughDaemon> {
        let inode = attr.inode;
        self.may_lend(session, attr)?;
        self.writer_comes(session, inode)
            .map_err(|_| ThroughDaemon::Shared)?;
        // What the caller has found may have changed before that.
        let file = self
            .whole_file(attr)
            .and_then(|file| match self.tells_changes(inode) {
                true => Ok(file),
                false => Err(ThroughDaemon::ChangesUntold),
            });
        file.inspect_err(|_| self.map_writer_goes(inode))
    }

    /// How programs of the only mount on this node write a file: past the daemon, if the mount wants that, or not, and why.
    pub(crate) fn may_write_past(&self, attr: &Attr) -> Result<(), ThroughDaemon> {
        let session = match self.env.sessions.mounts()[..] {
            [] => return Err(ThroughDaemon::NotMounted),
            [session] => session,
            _ => return Err(ThroughDaemon::Shared),
        };
        self.whole_file(attr)?;
        self.may_lend(session, attr)?;
        let st = self.state.lock();
        let user = self.user(session);
        st.check_alone(self.env.clock.now(), user, attr.inode)
            .map_err(|NotAlone| ThroughDaemon::Shared)
    }

    pub(super) fn user(&self, session: SessionId) -> User {
        let node = self.env.sessions.own();
        User { session, node }
    }

    fn may_lend(&self, session: SessionId, attr: &Attr) -> Result<(), ThroughDaemon> {
        let inode = attr.inode;
        if !self.env.store.tells_changes() {
            return Err(ThroughDaemon::ChangesUntold);
        }
        if attr.mode & 0o6000 != 0 {
            return Err(ThroughDaemon::SetId);
        }
        if self.env.sessions.has_others(session) || self.abroad.has(inode) {
            return Err(ThroughDaemon::Shared);
        }
        {
            let st = self.state.lock();
            if self.must_keep(&st, inode) {
                return Err(ThroughDaemon::Kept);
            }
            let at_once = attr.size <= UNSYNCED_MAX || st.alone.has(inode);
            drop(st);
            if !at_once && self.file(inode).is_ok_and(|file| file.object.is_dirty()) {
                return Err(ThroughDaemon::Unsynced);
            }
        }
        // What it grows by nobody asks the members about: there has to be plenty.
        if self.find_room(ByteRange::new(0, attr.size)).is_err() {
            return Err(ThroughDaemon::NoRoom);
        }
        Ok(())
    }

    fn tells_changes(&self, inode: InodeId) -> bool {
        let file = self.file(inode);
        file.is_ok_and(|file| file.object.tells_changes())
    }

    /// How long a file is that is written past the daemon.
    pub(super) fn unseen_len(&self, inode: InodeId) -> Result<u64, Errno> {
        let len = self.file(inode).and_then(|file| file.object.len());
        len.map_err(|error| self.store_refused(&error))
    }

    /// Puts what a session has written past the daemon into the attributes that it is shown.
    pub(super) fn freshen_unseen(&self, st: &State, session: SessionId, attr: &mut Attr) {
        let inode = attr.inode;
        if !st.alone.has(inode) || !st.alone.may_keep(inode, session) {
            return;
        }
        let Ok(file) = self.file(inode) else {
            return;
        };
        if let Ok(len) = file.object.len() {
            attr.size = attr.size.max(len);
        }
        let modified = file.object.modified().ok().flatten();
        let changed = modified.and_then(|at| st.alone.since_looked(inode, at, attr.mtime));
        if let Some(changed) = changed {
            attr.mtime = changed;
            attr.ctime = attr.ctime.max(changed);
        }
    }

    /// The file was looked at when it was of that time: says when programs changed it, if they did since the look before.
    pub(super) fn look_alone(
        &self,
        st: &mut State,
        inode: InodeId,
        modified: Option<WallTime>,
    ) -> Option<WallTime> {
        let modified = modified.filter(|_| st.alone.has(inode))?;
        let shown = self.attr(st, inode).ok()?.mtime;
        let changed = st.alone.since_looked(inode, modified, shown)?;
        st.alone.looked(inode, modified);
        Some(changed)
    }

    /// Looks often, from here on, at the files that other hosts may keep pages of: what they map is told of writes by that alone.
    pub(super) fn look_often(self: &Arc<Self>) {
        if self.looks_often.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.clone();
        self.env.runtime.spawn(async move {
            loop {
                tokio::time::sleep(MAPPED_LOOK).await;
                let watched = me.kept_by_others();
                if watched.is_empty() {
                    break;
                }
                let here = me.clone();
                let looked = me.env.runtime.spawn_blocking(move || {
                    watched
                        .into_iter()
                        .for_each(|inode| here.search_unseen_in(inode));
                });
                if looked.await.is_err() {
                    break;
                }
            }
            me.looks_often.store(false, Ordering::Release);
            // Who came between the last look and this.
            if !me.kept_by_others().is_empty() {
                me.look_often();
            }
        });
    }

    fn kept_by_others(&self) -> Vec<InodeId> {
        let st = self.state.lock();
        let now = self.env.clock.now();
        if Self::reign(&st, now).is_err() || self.env.stopping.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let kept = |(inode, writer): (&InodeId, &Writer)| {
            let mut holders = st.leases.holders(now, *inode);
            let others = holders.any(|holder| holder != writer.session);
            others.then_some(*inode)
        };
        st.alone.files.iter().filter_map(kept).collect()
    }

    /// Whether a file that is written past the daemon is to become longer.
    pub(super) fn grows_alone(&self, st: &State, inode: InodeId, size: u64) -> bool {
        let recorded = || self.attr(st, inode).map(|attr| attr.size);
        st.alone.has(inode) && recorded().is_ok_and(|recorded| recorded <= size)
    }

    /// Whether programs have changed a file since the last look.
    pub(super) fn is_later(&self, inode: InodeId, modified: WallTime) -> bool {
        let st = self.state.lock();
        st.alone.since_looked(inode, modified, modified).is_some()
    }

    /// The daemon has changed the file itself.
    pub(super) fn note_own_change(&self, st: &mut State, file: &File) {
        let inode = file.object.inode();
        if st.alone.has(inode)
            && let Ok(Some(modified)) = file.object.modified()
        {
            st.alone.looked(inode, modified);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{ContainerId, InodeIndex, NodeId};

    const BEGUN: WallTime = at(0);

    const fn at(millis: u32) -> WallTime {
        WallTime {
            secs: 1_000,
            nanos: millis * 1_000_000,
        }
    }

    fn file() -> (Alone, InodeId) {
        let inode = InodeId::new(ContainerId::ROOT, InodeIndex(7));
        let writer = Writer {
            session: SessionId(u64::from(NodeId(1).0)),
            looked: BEGUN,
        };
        let mut alone = Alone::default();
        alone.begin(inode, writer);
        (alone, inode)
    }

    #[test]
    fn each_write_moves_the_time_though_the_disk_has_a_coarser_clock() {
        let (mut alone, inode) = file();
        assert_eq!(alone.since_looked(inode, BEGUN, at(0)), None);
        assert_eq!(alone.since_looked(inode, at(8), at(4)), Some(at(8)));
        // The daemon has given the file a time of its own clock since the tick that the disk knows.
        let shown = at(11);
        let changed = alone.since_looked(inode, at(8), shown);
        assert_eq!(changed, Some(shown.next()));
        // Until that is recorded each look shows the same.
        assert_eq!(alone.since_looked(inode, at(8), shown), changed);
        alone.looked(inode, at(8));
        assert_eq!(alone.since_looked(inode, at(8), shown.next()), None);
    }

    #[test]
    fn a_write_replaces_a_time_that_somebody_set() {
        let (alone, inode) = file();
        let set = WallTime {
            secs: 9_000,
            nanos: 0,
        };
        assert_eq!(alone.since_looked(inode, at(8), set), Some(at(8)));
        let past = WallTime { secs: 5, nanos: 0 };
        assert_eq!(alone.since_looked(inode, at(8), past), Some(at(8)));
    }
}
