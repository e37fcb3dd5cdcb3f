//! One mount's session: whose it is, what it has open, and what its kernel must forget.

use crate::backend::{Backend, Found, Local, Purpose};
use crate::fs::{Caller, Done, Entry, KernelCache, OpenFlags, OpenMode, Opened, SetAttr, Stale};
use crate::handles::{Handle, Handles};
use crate::kept_locks::KeptLocks;
use crate::locks::Locks;
use crate::record_locks::{self, RecordLocks};
use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::{Credential, LockKind, Op, Reply, Touched, WaitId};
use perigee_types::{ByteRange, Errno, InodeId, SessionId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The bytes from the start to the end of any file.
const WHOLE: ByteRange = ByteRange {
    start: 0,
    end: u64::MAX,
};

/// A mount of this node.
pub struct Session {
    pub(crate) id: SessionId,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) locks: Locks,
    pub(crate) kept_locks: KeptLocks,
    pub(crate) record_locks: RecordLocks,
    pub(crate) handles: Handles,
    kernel: OnceLock<Arc<dyn KernelCache>>,
    keeps_names: AtomicBool,
    pub(crate) me: Weak<Session>,
}

pub(crate) fn credential(caller: Caller) -> Credential {
    Credential {
        uid: caller.uid,
        gid: caller.gid,
    }
}

/// A change, as a kernel may keep what was before.
const fn stale(touched: &Touched) -> Stale {
    match touched {
        Touched::Attr(inode) => Stale::Attributes(*inode),
        Touched::Data(inode) | Touched::Listing(inode) => Stale::Content(*inode),
        Touched::Name { name, .. } if name.is_empty() => Stale::AllNames,
        Touched::Name { dir, .. } => Stale::Names(*dir),
    }
}

/// An operation whose reply is of a kind that it never has: a defect, or a peer of another mind.
pub(crate) fn unexpected<T>() -> Result<T, Errno> {
    Err(Errno::EPROTO)
}

pub(crate) fn expect_attr(result: Result<(Reply, Duration), Errno>) -> Result<Entry, Errno> {
    match result? {
        (Reply::Attr(attr) | Reply::Entry(attr) | Reply::Created { attr, .. }, ttl) => {
            Ok(Entry { attr, ttl })
        }
        _ => unexpected(),
    }
}

impl Session {
    /// A new session of `backend`'s node. Its kernel cache is told by [`Session::attach`].
    #[must_use]
    pub fn new(id: SessionId, backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            id,
            backend,
            locks: Locks::default(),
            kept_locks: KeptLocks::default(),
            record_locks: RecordLocks::new(id),
            handles: Handles::default(),
            kernel: OnceLock::new(),
            keeps_names: AtomicBool::new(true),
            me: me.clone(),
        })
    }

    /// Names the session in the cluster.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The kernel cache that this session must keep true, and whether it can be told to forget
    /// names; where it cannot, it gets none to keep. A second call has no effect.
    pub fn attach(&self, kernel: Arc<dyn KernelCache>, forgets_names: bool) {
        // A mount has one kernel cache; the first stays.
        _ = self.kernel.set(kernel);
        self.keeps_names.store(forgets_names, Ordering::Relaxed);
    }

    /// For how long the kernel may keep a name and what it leads to.
    pub(crate) fn name_ttl(&self, ttl: Duration) -> Duration {
        if self.keeps_names.load(Ordering::Relaxed) {
            ttl
        } else {
            Duration::ZERO
        }
    }

    /// Makes the kernel forget what has changed: first [`Session::revoke_attributes`], then [`Session::revoke_pages`].
    pub fn revoke(&self, touched: &[Touched]) {
        self.revoke_attributes(touched);
        self.revoke_pages(touched);
    }

    /// Makes the kernel ask again for attributes and names that have changed, and so drop the pages of what has other
    /// times before it reads them again. Waits for none of its requests.
    pub fn revoke_attributes(&self, touched: &[Touched]) {
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        let mut names = false;
        for change in touched {
            match change {
                Touched::Attr(inode) => kernel.forget_attr(*inode),
                Touched::Data(_) | Touched::Listing(_) => {}
                Touched::Name { .. } => names = true,
            }
        }
        // It forgets all names at once.
        if names {
            kernel.forget_names();
        }
    }

    /// What of all that has changed the kernel may keep: that it is to forget, by [`Session::revoke`]. Nor does it keep of the rest
    /// what it has asked for before. Waits for nothing.
    #[must_use]
    pub fn kept_of(&self, touched: &[Touched]) -> Vec<Touched> {
        let Some(kernel) = self.kernel.get() else {
            return Vec::new();
        };
        let kept = |change: &&Touched| kernel.changed(stale(change));
        touched.iter().filter(kept).cloned().collect()
    }

    /// Makes the kernel drop content that has changed. Waits for reads and writes of it that this mount has under way.
    pub fn revoke_pages(&self, touched: &[Touched]) {
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        for change in touched {
            if let Touched::Data(inode) | Touched::Listing(inode) = change {
                kernel.forget_data(*inode, WHOLE);
            }
        }
    }

    /// Whether programs of this mount are writing to what [`Session::revoke_pages`] would drop.
    #[must_use]
    pub fn is_writing(&self, touched: &[Touched]) -> bool {
        let Some(kernel) = self.kernel.get() else {
            return false;
        };
        let written = |change: &Touched| match change {
            Touched::Data(inode) => kernel.is_writing(*inode),
            Touched::Attr(_) | Touched::Listing(_) | Touched::Name { .. } => false,
        };
        touched.iter().any(written)
    }

    /// A container has another owner, who does not know what this session's kernel holds: it
    /// forgets the content of every open file there. Blocks as [`Session::revoke`].
    pub fn forget_content(&self, container: perigee_types::ContainerId) {
        let open = self.handles.open_inodes(container);
        let touched: Vec<Touched> = open.into_iter().map(Touched::Data).collect();
        self.revoke(&touched);
    }

    /// The inodes of a container that this session has open, or is opening.
    #[must_use]
    pub fn open_in(&self, container: perigee_types::ContainerId) -> Vec<InodeId> {
        self.handles.open_inodes(container)
    }

    /// Which of `inodes` this session has open, or is opening.
    #[must_use]
    pub fn open_among(&self, inodes: &[InodeId]) -> Vec<InodeId> {
        inodes
            .iter()
            .copied()
            .filter(|inode| self.handles.is_open(*inode))
            .collect()
    }

    /// The owner of a file says that a wait for a lock may go on.
    pub fn lock_turn(&self, wait: WaitId) {
        self.locks.turn(wait);
    }

    /// A lock that this session has stands in somebody's way. `done` is told what becomes of it, once the owner has it back
    /// or could not be told.
    pub fn lock_called(self: &Arc<Self>, id: KeptId, done: Box<dyn FnOnce(Fate) + Send>) {
        match id.kind {
            LockKind::Cover => record_locks::called(self, id, done),
            LockKind::Posix | LockKind::Flock | LockKind::Service => {
                KeptLocks::called(self.clone(), id, done);
            }
        }
    }

    /// This node has shown no sign of life for so long that its locks may have been ended: it keeps none that nobody uses.
    pub fn locks_lapsed(self: &Arc<Self>) {
        KeptLocks::lapsed(self);
        record_locks::lapsed(self);
    }

    /// Who of this session's programs waits for whom, as far as the session decides.
    #[must_use]
    pub fn lock_waits(&self) -> Vec<Wait> {
        self.record_locks.waits()
    }

    /// The mount is gone: nobody waits for a lock any more.
    pub fn stop_waiting(&self) {
        self.kept_locks.end();
        self.record_locks.end();
        self.locks.interrupt_all();
    }

    pub(crate) fn execute(&self, op: Op, done: Done<(Reply, Duration)>) {
        self.backend.execute(self.id, op, done);
    }

    pub(crate) fn execute_done(&self, op: Op, done: Done<()>) {
        self.execute(op, Box::new(move |result| done(result.map(|_| ()))));
    }

    /// For a change of a file: where it fails, a part of it may be in effect, as the growth of a striped file whose new bytes
    /// found no room. What the kernel has of the file is then not what others see, and it asks again.
    pub(crate) fn asked_again<T: 'static>(&self, inode: InodeId, done: Done<T>) -> Done<T> {
        let me = self.me.clone();
        Box::new(move |result| {
            if result.is_err()
                && let Some(me) = me.upgrade()
            {
                me.revoke_attributes(&[Touched::Attr(inode)]);
            }
            done(result);
        })
    }

    pub(crate) fn handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        self.handles.get(number).ok_or(Errno::EBADF)
    }

    /// What the kernel shall do with a file that was found.
    pub(crate) fn opened(&self, found: &Found, flags: OpenFlags) -> Opened {
        let inode = found.attr.inode;
        let keep = self.handles.keep_pages(inode, found.home);
        let mode = match &found.local {
            Local::Write(file) => OpenMode::Passthrough(file.clone()),
            Local::Maps(file) if flags.read => OpenMode::DirectBeside(file.clone()),
            _ if flags.append => OpenMode::Direct,
            _ if flags.write && !flags.read => OpenMode::WriteOnly,
            Local::Read(file) if !flags.write && !flags.direct => {
                OpenMode::Passthrough(file.clone())
            }
            Local::Read(_) | Local::Maps(_) | Local::None => OpenMode::Cached { keep },
        };
        if matches!(mode, OpenMode::Passthrough(_)) {
            // Who writes or maps the backing file changes it without a word to the page cache.
            self.handles.forget(inode);
        }
        let number = self.handles.insert(inode, flags, self.backend.losses());
        if matches!(found.local, Local::Write(_))
            && let Some(handle) = self.handles.get(number)
        {
            // The node counts it among those that change the file unseen already.
            handle.begin_unseen();
        }
        Opened {
            handle: number,
            mode,
        }
    }

    /// Opens an inode that exists, after emptying it where that is asked for.
    pub(crate) fn open_existing(
        &self,
        caller: Caller,
        inode: InodeId,
        flags: OpenFlags,
        done: Done<Opened>,
    ) {
        self.handles.begin(inode);
        let Some(me) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        let find = move |me: Arc<Session>, done: Done<Opened>| {
            let session = me.clone();
            me.backend.open(
                me.id,
                inode,
                purpose(flags),
                Box::new(move |result| match result {
                    Ok(found) => done(Ok(session.opened(&found, flags))),
                    Err(errno) => {
                        session.handles.end(inode);
                        done(Err(errno));
                    }
                }),
            );
        };
        if !flags.truncate {
            return find(me, done);
        }
        let set = SetAttr {
            size: Some(0),
            kill_privileges: caller.uid != 0,
            ..SetAttr::default()
        };
        self.execute(
            Op::SetAttr {
                inode,
                set,
                cred: credential(caller),
            },
            Box::new(move |result| match result {
                Ok(_) => find(me, done),
                Err(errno) => {
                    me.handles.end(inode);
                    done(Err(errno));
                }
            }),
        );
    }
}

/// Appends, direct I/O and synchronous writes are the daemon's to see: those go to the end that all hosts know, the second past
/// what tells changes, and the last have to be on every replica when they return.
const fn purpose(flags: OpenFlags) -> Purpose {
    match flags {
        OpenFlags { write: false, .. } => Purpose::Read,
        OpenFlags {
            past_daemon: true,
            append: false,
            direct: false,
            sync: false,
            ..
        } => Purpose::WriteAlone,
        OpenFlags { .. } => Purpose::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_named_stands_for_all() {
        let dir = InodeId::ROOT;
        let name = b"f".to_vec();
        assert_eq!(stale(&Touched::Name { dir, name }), Stale::Names(dir));
        assert_eq!(stale(&Touched::names(dir)), Stale::AllNames);
    }
}
