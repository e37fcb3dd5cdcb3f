//! Whole local files in the kernel's hands: which may be, and what their maps changed unseen.
//!
//! At the owner, a reader may read the backing file without the daemon (passthrough): every write
//! goes to that file first. A program that opens the file for writing beside such readers writes
//! through the daemon, but its maps go to the backing file too. What they changed is found by what the kernel tells, or by
//! comparing the whole file with its checksums: before a sync, before another host is shown the file, with each part that a
//! member fetches, at a close, and, where the kernel tells, each second. A map outlives the descriptor, and the kernel tells
//! nobody when it goes: once all have closed the file, it is asked each second whether anybody can still write to it.

use super::dirty::{Effect, Taken};
use super::intents::UnderWay;
use super::{Container, Elsewhere, Failed, File, State, alone};
use crate::sessions::Whom;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use perigee_client::backend::Local;
use perigee_meta::stripe::Layout;
use perigee_meta::{Attr, Kind, Touched};
use perigee_store::StoreError;
use perigee_types::{ByteRange, Errno, InodeId, SessionId, WallTime};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use tracing::{debug, error, warn};

/// Shorter files are read through the daemon: one request brings all of it, and the kernel keeps it.
pub(super) const PASSTHROUGH_LEN_MIN: u64 = 128 << 10;

/// For so long a new owner's program waits for what is kept of the file that it opens, and was fetched by nobody yet.
const KEPT_PATIENCE: Duration = Duration::from_secs(10);
/// How often that is looked for.
const KEPT_PAUSE: Duration = Duration::from_millis(10);

/// A file that maps may change unseen.
struct Unseen {
    file: Arc<File>,
    writers: Mutex<Writers>,
}

struct Writers {
    /// Open files whose maps may do so.
    open: u32,
    /// Whether maps may have outlived one: the kernel tells of the last descriptor's end alone.
    maps: bool,
    /// The last one's session.
    session: SessionId,
}

impl Writers {
    fn is_none(&self) -> bool {
        self.open == 0 && !self.maps
    }
}

/// What was found of a file.
struct Found {
    changed: Vec<ByteRange>,
    /// How long the file is.
    len: u64,
    /// When it was last changed, as of before the search.
    modified: Option<WallTime>,
}

/// All such files of a container. Whoever has a file's writers locked does not lock the table.
#[derive(Default)]
pub(super) struct UnseenWrites {
    files: Mutex<HashMap<InodeId, Arc<Unseen>>>,
}

impl UnseenWrites {
    fn get(&self, inode: InodeId) -> Option<Arc<Unseen>> {
        self.files.lock().get(&inode).cloned()
    }

    /// Whether maps may change a file unseen: nobody is told before, so no other host may keep what it reads.
    pub(super) fn has(&self, inode: InodeId) -> bool {
        self.files.lock().contains_key(&inode)
    }

    /// Whether maps may change any file unseen.
    pub(super) fn has_any(&self) -> bool {
        !self.files.lock().is_empty()
    }

    /// The files that maps may change.
    pub(super) fn inodes(&self) -> Vec<InodeId> {
        self.files.lock().keys().copied().collect()
    }

    /// Forgets a file that nobody uses.
    fn tidy(&self, inode: InodeId) {
        let mut files = self.files.lock();
        let unused =
            |entry: &Arc<Unseen>| Arc::strong_count(entry) == 1 && entry.writers.lock().is_none();
        if files.get(&inode).is_some_and(unused) {
            files.remove(&inode);
        }
    }
}

/// Why programs use a file through the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ThroughDaemon {
    #[error("it is no regular file")]
    NoFile,
    #[error("it is shorter than {} KiB", PASSTHROUGH_LEN_MIN >> 10)]
    Short,
    #[error("it is striped")]
    Striped,
    #[error("this node does not own it")]
    NotOwned,
    #[error("another host holds chunks of it")]
    Chunks,
    #[error("not all of it is valid here")]
    NotWhole,
    /// Whoever is not told what has changed would read the whole file for it.
    #[error("the kernel does not tell what it changes")]
    ChangesUntold,
    /// Set-id bits go with a write that the daemon sees.
    #[error("it has set-id bits")]
    SetId,
    #[error("others use it, or may keep something of it")]
    Shared,
    /// What a checkpoint has of it would have to be copied whole.
    #[error("a snapshot has its content")]
    Kept,
    /// Before it is handed out it would have to be written back, and the program would wait for that.
    #[error("it was written lately, and not synced")]
    Unsynced,
    #[error("its copies have little room")]
    NoRoom,
    #[error("it is not mounted on this node")]
    NotMounted,
}

impl Container {
    /// The whole file as a local one that the kernel may read by itself, if this node owns it and
    /// lacks nothing of it.
    pub(crate) fn whole_file(&self, attr: &Attr) -> Result<Arc<OwnedFd>, ThroughDaemon> {
        if attr.kind != Kind::File {
            return Err(ThroughDaemon::NoFile);
        }
        if attr.layout != Layout::Whole {
            return Err(ThroughDaemon::Striped);
        }
        if attr.size < PASSTHROUGH_LEN_MIN {
            return Err(ThroughDaemon::Short);
        }
        let inode = attr.inode;
        {
            let st = self.state.lock();
            Self::reign(&st, self.env.clock.now()).map_err(|_| ThroughDaemon::NotOwned)?;
            // Who cedes has looked for files in the kernel's hands.
            if st.leases.is_closed() {
                return Err(ThroughDaemon::NotOwned);
            }
            if Self::is_partly_away(&st, inode) {
                return Err(ThroughDaemon::Chunks);
            }
            if st.pull.invalid(inode).is_some() || st.damaged.contains_key(&inode) {
                return Err(ThroughDaemon::NotWhole);
            }
        }
        let file = self.file(inode).map_err(|_| ThroughDaemon::NotWhole)?;
        let object = &file.object;
        if !object.is_whole() || object.len() != Ok(attr.size) {
            return Err(ThroughDaemon::NotWhole);
        }
        object.backing_fd().map_err(|error| {
            debug!(%inode, %error, "no backing file to hand out");
            ThroughDaemon::NotWhole
        })
    }

    /// A program may have a shared map of the backing file from now on.
    pub(crate) fn map_writer_comes(&self, session: SessionId, inode: InodeId) -> Result<(), Errno> {
        self.comes(session, inode, |_| Ok(()))
    }

    /// A program may write to the backing file from now on, if no other session uses it.
    pub(super) fn writer_comes(&self, session: SessionId, inode: InodeId) -> Result<(), Errno> {
        self.comes(session, inode, |file| {
            let modified = file.object.modified();
            let modified = modified.map_err(|error| self.store_refused(&error))?;
            let modified = modified.ok_or(Errno::EINVAL)?;
            let now = self.env.clock.now();
            let mut st = self.state.lock();
            st.begin_alone(now, self.user(session), inode, modified)
                .map_err(|alone::NotAlone| Errno::EBUSY)
        })
    }

    /// Somebody may change the file unseen from now on, if `admit` lets them; nobody goes meanwhile.
    fn comes(
        &self,
        session: SessionId,
        inode: InodeId,
        admit: impl FnOnce(&File) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let entry = {
            let mut files = self.unseen.files.lock();
            let entry = files.entry(inode).or_insert_with(|| {
                let none = Writers {
                    open: 0,
                    maps: false,
                    session,
                };
                Arc::new(Unseen {
                    file,
                    writers: Mutex::new(none),
                })
            });
            entry.clone()
        };
        // What maps change nobody is told of before.
        if let Err(failed) = self.keep_all(&entry.file, inode) {
            drop(entry);
            self.unseen.tidy(inode);
            return Err(match failed {
                Failed::Errno(errno) => errno,
                Failed::Elsewhere(_) => Errno::EIO,
            });
        }
        let begun = {
            let mut writers = entry.writers.lock();
            let begun = admit(&entry.file).and_then(|()| {
                let begun = entry.file.object.set_externally_writable(true);
                begun.map_err(|error| self.store_refused(&error))
            });
            match begun {
                Ok(()) => {
                    writers.session = session;
                    writers.open += 1;
                }
                Err(_) if writers.is_none() => self.state.lock().alone.end(inode),
                Err(_) => {}
            }
            begun
        };
        drop(entry);
        begun.inspect_err(|_| self.unseen.tidy(inode))
    }

    /// Keeps all of a file for the newest checkpoint; what an earlier owner kept may be on its way to here.
    pub(super) fn keep_all(&self, file: &File, inode: InodeId) -> Result<(), Failed> {
        let until = Instant::now() + KEPT_PATIENCE;
        loop {
            let kept = {
                let _still = file.still.write();
                self.keep_content(file, inode, ByteRange::ALL)
            };
            match kept {
                Err(Failed::Elsewhere(Elsewhere::NotReady)) if Instant::now() < until => {
                    std::thread::sleep(KEPT_PAUSE);
                }
                kept => return kept,
            }
        }
    }

    /// One of those programs has closed the file; it may have maps still. Reads the whole file where changes are not told.
    pub(crate) fn map_writer_goes(self: &Arc<Self>, inode: InodeId) {
        let Some(entry) = self.unseen.get(inode) else {
            return;
        };
        {
            let mut writers = entry.writers.lock();
            match writers.open.checked_sub(1) {
                Some(open) => writers.open = open,
                None => {
                    error!(%inode, "a file that maps may change is closed more often than opened")
                }
            }
            writers.maps = true;
            let gone = self.maps_are_gone(inode, &entry.file, &writers);
            self.look_at_unseen(inode, &entry.file, &mut writers, gone);
        }
        drop(entry);
        self.unseen.tidy(inode);
    }

    /// Whether all have closed the file, and nobody has a map of it that can be stored to.
    fn maps_are_gone(&self, inode: InodeId, file: &File, writers: &Writers) -> bool {
        static UNTOLD: Once = Once::new();
        if writers.open > 0 {
            return false;
        }
        match file.object.others_may_write() {
            Ok(others) => !others,
            Err(StoreError::Removed { .. }) => true,
            Err(error) => {
                UNTOLD.call_once(|| {
                    warn!(%inode, %error, "nobody tells whether programs map a file here: each counts as mapped");
                });
                false
            }
        }
    }

    /// Finds what was changed unseen. If before that maps were `gone`, the file is this node's alone again: until then they may
    /// have stored something. What fails is tried again within a second.
    fn look_at_unseen(
        self: &Arc<Self>,
        inode: InodeId,
        file: &File,
        writers: &mut Writers,
        gone: bool,
    ) {
        if let Err(errno) = self.find_unseen(inode, file, writers.session) {
            return error!(container = %self.id, %inode, %errno, "what was written past the daemon is not found yet");
        }
        if !gone {
            return;
        }
        match file.object.set_externally_writable(false) {
            Ok(()) | Err(StoreError::Removed { .. }) => {
                debug!(%inode, "nobody changes the file unseen any more");
                writers.maps = false;
                self.state.lock().alone.end(inode);
            }
            Err(error) => error!(%inode, %error, "checksums of the file stay unused"),
        }
    }

    /// A file that is whole here, for a program that opens it for writing, and does so through the daemon: its maps are the same
    /// as those that others may have.
    pub(crate) fn beside_maps(&self, inode: InodeId, whole: Arc<OwnedFd>) -> Local {
        match self.unseen.has(inode) {
            true => Local::Maps(whole),
            false => Local::None,
        }
    }

    /// Finds what maps have changed of a file, and makes it part of the file. Costs nothing where
    /// no map may have; else it reads what the kernel tells, or the whole file.
    pub(crate) async fn take_in_unseen(self: &Arc<Self>, inode: InodeId) -> Result<(), Failed> {
        let Some(entry) = self.unseen.get(inode) else {
            return Ok(());
        };
        let me = self.clone();
        let taken = self.env.runtime.spawn_blocking(move || {
            let writers = entry.writers.lock();
            if writers.is_none() {
                return Ok(());
            }
            me.find_unseen(inode, &entry.file, writers.session)
        });
        Ok(taken.await.map_err(|_| Errno::EIO)??)
    }

    /// The same for all files. What maps change from here on is dropped with the reign, and the next fsync says so.
    pub(super) async fn take_in_all_unseen(self: &Arc<Self>) {
        for inode in self.unseen.inodes() {
            if let Err(error) = self.take_in_unseen(inode).await {
                warn!(container = %self.id, %inode, ?error, "stores through a map are not taken in");
            }
        }
    }

    /// Whether the owner alone decides what a file's bytes and times are: no program changes it unseen, and no host holds
    /// parts of it.
    pub(crate) fn is_all_here(&self, inode: InodeId) -> bool {
        !self.unseen.has(inode) && self.state.lock().away.holds.of(inode).next().is_none()
    }

    /// Whether maps may change a file here unseen.
    pub(crate) fn maps_change_unseen(&self) -> bool {
        self.unseen.has_any()
    }

    /// Takes in what maps have changed lately, where that is told: hosts that read before the maps were there hear of it, and
    /// members get it. Where it is not told, whole files would have to be read. Looks for maps that have gone. Blocks.
    pub(crate) fn search_unseen(self: &Arc<Self>) {
        for inode in self.unseen.inodes() {
            self.search_unseen_in(inode);
        }
    }

    /// The same for one file.
    pub(super) fn search_unseen_in(self: &Arc<Self>, inode: InodeId) {
        // Whoever has it is looking, maybe at a long file.
        if let Some(entry) = self.unseen.get(inode)
            && let Some(mut writers) = entry.writers.try_lock()
        {
            let file = &entry.file;
            let gone = writers.maps && self.maps_are_gone(inode, file, &writers);
            if gone || (!writers.is_none() && file.object.tells_changes()) {
                self.look_at_unseen(inode, file, &mut writers, gone);
            }
        }
        // Whoever let go of the file meanwhile has found it in use here.
        self.unseen.tidy(inode);
    }

    fn find_unseen(
        self: &Arc<Self>,
        inode: InodeId,
        file: &File,
        session: SessionId,
    ) -> Result<(), Errno> {
        let _alone = file.still.write();
        let compared = file.object.len().and_then(|len| {
            // From the search on a sync stores the checksums of what was found.
            let under_way = self.intend(inode, ByteRange::new(0, len));
            // Before it: what is written meanwhile has a later time, and that is found next.
            let modified = file.object.modified()?;
            let mut changed = file.object.rescan()?;
            // If not by a direct write, by one that is just beginning.
            let later = modified.is_some_and(|at| self.is_later(inode, at));
            if changed.is_empty() && later && file.object.has_changed_untold() {
                changed = file.object.rescan()?;
            }
            let found = Found {
                changed,
                len: file.object.len()?,
                modified,
            };
            Ok((found, under_way))
        });
        match compared {
            Ok((found, under_way)) => {
                let Found {
                    mut changed,
                    len,
                    modified,
                } = found;
                let again = ByteRange::new(0, len.min(1));
                // What is looked at and what is noted of it change together: a look of the session itself is answered from
                // one of them.
                let mut st = self.state.lock();
                let changed_at = self.look_alone(&mut st, inode, modified);
                changed.extend(self.grown(&st, inode, len));
                // Something was written again as it was.
                if changed.is_empty() && changed_at.is_some() && !again.is_empty() {
                    changed.push(again);
                }
                debug!(%inode, ?changed, ?changed_at, "looked for what was changed unseen");
                if changed.is_empty() {
                    drop(st);
                    self.unchanged(inode, under_way);
                } else {
                    self.note_unseen(st, inode, session, &changed, changed_at);
                }
                Ok(())
            }
            Err(StoreError::Removed { .. }) => Ok(()),
            Err(error) => {
                error!(%inode, %error, "the file cannot be compared with its checksums");
                Err(self.store_refused(&error))
            }
        }
    }

    /// What programs have appended past the daemon, also if it is zeros alone.
    fn grown(&self, st: &State, inode: InodeId, len: u64) -> Option<ByteRange> {
        let attr = st.alone.has(inode).then(|| self.attr(st, inode).ok());
        let size = attr.flatten()?.size;
        (len > size).then(|| ByteRange::new(size, len))
    }

    /// Whose programs may be changing a file unseen, while `look` looks at it: they do not begin nor end meanwhile. It looks
    /// again where the first one came.
    pub(super) fn beside_writers<T>(
        &self,
        inode: InodeId,
        mut look: impl FnMut(Option<SessionId>) -> T,
    ) -> T {
        loop {
            if let Some(entry) = self.unseen.get(inode) {
                let writers = entry.writers.lock();
                let any = Some(writers.session).filter(|_| !writers.is_none());
                return look(any);
            }
            let looked = look(None);
            if !self.unseen.has(inode) {
                return looked;
            }
        }
    }

    /// Reads what a session's programs may be changing, and makes exactly that part of the file: what is given to a member must
    /// be what its version says (rule F1), and what another host is shown must be on every member. The caller keeps the
    /// file still, [beside its writers](Self::beside_writers).
    pub(super) fn read_unseen(
        self: &Arc<Self>,
        file: &File,
        range: ByteRange,
        session: SessionId,
    ) -> Result<Bytes, StoreError> {
        let object = &file.object;
        let inode = object.inode();
        let under_way = self.intend(inode, range);
        let modified = object.modified()?;
        let read = object.read_as_it_is(range)?;
        let mut st = self.state.lock();
        if read.changed.is_empty() {
            drop(st);
            self.unchanged(inode, under_way);
        } else {
            let changed_at = self.look_alone(&mut st, inode, modified);
            self.note_unseen(st, inode, session, &read.changed, changed_at);
        }
        Ok(read.bytes)
    }

    /// What was noted of a file before a look for changes goes with the next record: there were none.
    fn unchanged(&self, inode: InodeId, under_way: Option<UnderWay<'_>>) {
        drop(under_way);
        let mut st = self.state.lock();
        let last = st.chain.last().seq;
        st.intents.on_recorded(last, inode);
    }

    /// `changed_at`: when the file was last changed, if that is known.
    fn note_unseen(
        self: &Arc<Self>,
        mut st: MutexGuard<'_, State>,
        inode: InodeId,
        session: SessionId,
        changed: &[ByteRange],
        changed_at: Option<WallTime>,
    ) {
        let mut owed = super::execute::Owed::default();
        let now = self.env.clock.now();
        // While it goes from one epoch of its own to the next, or does not know whether it has a lease, it waits for its record as
        // what was written before does, and ends as that would.
        if !st.reigning {
            return self.drop_unseen(&mut st, inode, changed);
        }
        // A file that programs write waits as one that is written through the daemon does.
        let written = st.alone.has(inode);
        let size = match written {
            true => self.attr(&st, inode).map_or(0, |attr| attr.size),
            false => 0,
        };
        let mtime = changed_at.unwrap_or_else(|| self.env.clock.wall());
        let mut full = false;
        for range in changed {
            let effect = match range.end <= size {
                true => Effect::Replaced,
                false => Effect::Grew,
            };
            let taken = Taken {
                answer: None,
                range: *range,
                effect,
                mtime,
                now,
                // Set-id bits that were set while it was written.
                kill_privileges: written,
            };
            full |= st.take_write(inode, &taken);
        }
        if full {
            self.record_writes(&mut st, now, inode);
        }
        self.follow_writes(&mut st, now, inode);
        let touched = vec![Touched::Attr(inode), Touched::Data(inode)];
        self.owe_leases(&mut st, now, session, touched, &mut owed);
        drop(st);
        // Nobody waits for an answer.
        self.settle(owed, Ok(()), Box::new(|_: Result<(), Failed>| ()));
        // What a map stored its own kernel does not take for a change of the file.
        let (env, times) = (self.env.clone(), vec![Touched::Attr(inode)]);
        self.env.runtime.spawn(async move {
            if let Err(error) = crate::revoke::revoke(&env, Whom::One(session), times).await {
                debug!(%inode, ?error, "a kernel keeps the time from before a store through a map");
            }
        });
    }

    /// This node does not own the file any more: what its maps changed is not the file's content.
    fn drop_unseen(&self, st: &mut State, inode: InodeId, changed: &[ByteRange]) {
        warn!(
            container = %self.id, %inode,
            "stores through a map are dropped: another node owns the file now"
        );
        self.lose_writes(st, inode, changed);
    }
}
