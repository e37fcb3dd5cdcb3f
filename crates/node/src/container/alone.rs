//! Files that programs of this host write past the daemon, while nobody else uses them (passthrough for writers).
//!
//! At the owner, a program that opens a whole file for writing may get the backing file, as readers do. The daemon sees none of
//! its writes. They are found as stores through maps are (`unseen`), since the kernel tells which pages change: before a sync, before
//! another session is shown the file, each second, and when the program has let go of it.
//!
//! When that begins, no other session has a lease on the file, or may hold pages of it, and none is changing it. While it
//! lasts, no other session gets a lease: each look of another one is answered after what was written is taken in, and
//! is on every member. Other sessions' writes go through the daemon to the same file. Looks of the session itself are
//! answered from the file: its length, and its time when that is later than at the last look.
//!
//! What other hosts map is told of a write only when it is found, which may be after it has returned.

use super::unseen::ThroughDaemon;
use super::{Container, State};
use perigee_client::backend::Local;
use perigee_meta::Attr;
use perigee_types::{ByteRange, Errno, InodeId, SessionId, Tick, WallTime};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tracing::debug;

/// Longer files are not handed to a writer while something of them is not on the disk: to write so many bytes back takes
/// a few milliseconds.
const UNSYNCED_MAX: u64 = 1 << 20;

/// All such files of a container.
#[derive(Debug, Default)]
pub(super) struct Alone {
    files: BTreeMap<InodeId, Writer>,
}

#[derive(Debug, Clone, Copy)]
struct Writer {
    /// Whose programs write.
    session: SessionId,
    /// When the file was last changed, as of the last look.
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

    /// The time of a file's last change, if it is of one since the last look.
    fn since_looked(&self, inode: InodeId, modified: WallTime) -> Option<WallTime> {
        let writer = self.files.get(&inode)?;
        (modified > writer.looked).then_some(modified)
    }

    /// The file was looked at: gives the time of its last change, if it is of one since the look before.
    pub(super) fn look(&mut self, inode: InodeId, modified: Option<WallTime>) -> Option<WallTime> {
        let changed = self.since_looked(inode, modified?)?;
        if let Some(writer) = self.files.get_mut(&inode) {
            writer.looked = changed;
        }
        Some(changed)
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
        let holders = self.leases.holders(now, inode);
        let others = holders
            .iter()
            .any(|holder| *holder != session && *holder != node);
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
        if let Some(changed) = modified.and_then(|at| st.alone.since_looked(inode, at)) {
            attr.mtime = attr.mtime.max(changed);
            attr.ctime = attr.ctime.max(changed);
        }
    }
}
