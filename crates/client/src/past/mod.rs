//! Snapshots in a mount: `.snapshots` in each directory that has some, and below it the tree as it was, for reading.
//!
//! A [`Session`] knows nothing of them. [`WithPast`] stands before it, answers for what is below `.snapshots`, and hands
//! everything else on. The name is found when it is asked for and is in no listing, so that programs that walk a tree do
//! not walk its past.

mod reads;
mod table;

use crate::fs::{
    Allocate, Caller, DirEntry, Done, Entry, FileLock, FileSystem, LockKind, Moved, NewNode,
    OpenFlags, OpenMode, Opened, RenameMode, Seek, SetAttr, Space, Token,
};
use crate::session::Session;
use bytes::Bytes;
use perigee_types::{ByteRange, Errno, InodeId, WallTime};
use reads::Past;
use std::sync::Arc;
use std::time::Duration;
use table::is_past;

/// The name of a directory's list of snapshots.
pub const SNAPSHOT_DIRECTORY: &[u8] = b".snapshots";

/// A session's file system, with its past. See the module.
pub struct WithPast {
    now: Arc<Session>,
    past: Arc<Past>,
}

impl WithPast {
    /// Before a session.
    #[must_use]
    pub fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            past: Arc::new(Past::new(session.clone())),
            now: session,
        })
    }

    /// Whether a name may be given to something in a directory.
    fn check(parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        match (is_past(parent), name == SNAPSHOT_DIRECTORY) {
            (true, _) => Err(Errno::EROFS),
            (false, true) => Err(Errno::EPERM),
            (false, false) => Ok(()),
        }
    }
}

/// Answers with an error where there is one.
macro_rules! refuse {
    ($check:expr, $done:expr) => {
        if let Err(errno) = $check {
            return $done(Err(errno));
        }
    };
}

/// What changes is refused below `.snapshots`.
fn changes(inode: InodeId) -> Result<(), Errno> {
    if is_past(inode) {
        Err(Errno::EROFS)
    } else {
        Ok(())
    }
}

impl FileSystem for WithPast {
    fn lookup(&self, parent: InodeId, name: &[u8], done: Done<Result<Entry, Duration>>) {
        if is_past(parent) {
            return self.past.clone().lookup(parent, name, done);
        }
        if name == SNAPSHOT_DIRECTORY {
            return self.past.clone().find_list(parent, done);
        }
        self.now.lookup(parent, name, done);
    }

    fn forget(&self, inode: InodeId, count: u64) {
        if is_past(inode) {
            return self.past.forget(inode, count);
        }
        self.now.forget(inode, count);
    }

    fn getattr(&self, inode: InodeId, done: Done<Entry>) {
        if is_past(inode) {
            return self.past.clone().getattr(inode, done);
        }
        self.now.getattr(inode, done);
    }

    fn setattr(
        &self,
        caller: Caller,
        inode: InodeId,
        set: SetAttr,
        handle: Option<u64>,
        done: Done<Entry>,
    ) {
        refuse!(changes(inode), done);
        self.now.setattr(caller, inode, set, handle, done);
    }

    fn readlink(&self, inode: InodeId, done: Done<Bytes>) {
        if is_past(inode) {
            return self.past.clone().readlink(inode, done);
        }
        self.now.readlink(inode, done);
    }

    fn make(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        node: NewNode,
        mode: u32,
        umask: u32,
        done: Done<Entry>,
    ) {
        refuse!(Self::check(parent, name), done);
        self.now.make(caller, parent, name, node, mode, umask, done);
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
        done: Done<(Entry, Opened)>,
    ) {
        refuse!(Self::check(parent, name), done);
        self.now
            .create(caller, parent, name, mode, umask, flags, done);
    }

    fn unlink(&self, caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        refuse!(Self::check(parent, name), done);
        self.now.unlink(caller, parent, name, done);
    }

    fn rmdir(&self, caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        refuse!(Self::check(parent, name), done);
        self.now.rmdir(caller, parent, name, done);
    }

    fn rename(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
        done: Done<Moved>,
    ) {
        refuse!(Self::check(parent, name), done);
        refuse!(Self::check(new_parent, new_name), done);
        self.now
            .rename(caller, parent, name, new_parent, new_name, mode, done);
    }

    fn link(
        &self,
        caller: Caller,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &[u8],
        done: Done<Entry>,
    ) {
        refuse!(changes(inode), done);
        refuse!(Self::check(new_parent, new_name), done);
        self.now.link(caller, inode, new_parent, new_name, done);
    }

    fn open(&self, caller: Caller, inode: InodeId, flags: OpenFlags, done: Done<Opened>) {
        if is_past(inode) {
            let may = if flags.write || flags.truncate {
                Err(Errno::EROFS)
            } else {
                Ok(Opened {
                    handle: 0,
                    mode: OpenMode::Cached { keep: true },
                })
            };
            return done(may);
        }
        self.now.open(caller, inode, flags, done);
    }

    fn read(&self, inode: InodeId, handle: u64, offset: u64, len: u32, done: Done<Bytes>) {
        if is_past(inode) {
            return self.past.clone().read(inode, offset, len, done);
        }
        self.now.read(inode, handle, offset, len, done);
    }

    fn write(
        &self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
        done: Done<u32>,
    ) {
        refuse!(changes(inode), done);
        self.now
            .write(inode, handle, offset, data, kill_privileges, done);
    }

    fn flush(&self, inode: InodeId, handle: u64, owner: u64, done: Done<()>) {
        if is_past(inode) {
            return done(Ok(()));
        }
        self.now.flush(inode, handle, owner, done);
    }

    fn maps_unseen(&self, inode: InodeId, handle: u64) -> Result<(), Errno> {
        changes(inode)?;
        self.now.maps_unseen(inode, handle)
    }

    fn release(&self, inode: InodeId, handle: u64) {
        if !is_past(inode) {
            self.now.release(inode, handle);
        }
    }

    fn fsync(&self, inode: InodeId, handle: u64, data_only: bool, done: Done<()>) {
        if is_past(inode) {
            return done(Ok(()));
        }
        self.now.fsync(inode, handle, data_only, done);
    }

    fn allocate(
        &self,
        inode: InodeId,
        handle: u64,
        range: ByteRange,
        how: Allocate,
        done: Done<()>,
    ) {
        refuse!(changes(inode), done);
        self.now.allocate(inode, handle, range, how, done);
    }

    fn seek(&self, inode: InodeId, handle: u64, offset: u64, what: Seek, done: Done<u64>) {
        if is_past(inode) {
            return self.past.clone().seek(inode, offset, what, done);
        }
        self.now.seek(inode, handle, offset, what, done);
    }

    fn copy_range(
        &self,
        source: (InodeId, u64, u64),
        target: (InodeId, u64, u64),
        len: u64,
        done: Done<u64>,
    ) {
        refuse!(changes(target.0), done);
        if is_past(source.0) {
            return self.past.clone().copy_range(source, target, len, done);
        }
        self.now.copy_range(source, target, len, done);
    }

    fn opendir(&self, inode: InodeId, done: Done<Opened>) {
        if is_past(inode) {
            return done(Ok(Opened {
                handle: 0,
                mode: OpenMode::Cached { keep: false },
            }));
        }
        self.now.opendir(inode, done);
    }

    fn readdir(
        &self,
        inode: InodeId,
        handle: u64,
        cookie: u64,
        limit: usize,
        plus: bool,
        done: Done<Vec<DirEntry>>,
    ) {
        if is_past(inode) {
            return self.past.clone().readdir(inode, cookie, limit, plus, done);
        }
        self.now.readdir(inode, handle, cookie, limit, plus, done);
    }

    fn releasedir(&self, inode: InodeId, handle: u64) {
        if !is_past(inode) {
            self.now.releasedir(inode, handle);
        }
    }

    fn fsyncdir(&self, inode: InodeId, handle: u64, done: Done<()>) {
        if is_past(inode) {
            return done(Ok(()));
        }
        self.now.fsyncdir(inode, handle, done);
    }

    fn statfs(&self, done: Done<Space>) {
        self.now.statfs(done);
    }

    fn getxattr(&self, inode: InodeId, name: &[u8], done: Done<Bytes>) {
        if is_past(inode) {
            return self.past.clone().getxattr(inode, name, done);
        }
        self.now.getxattr(inode, name, done);
    }

    fn listxattr(&self, inode: InodeId, done: Done<Vec<Bytes>>) {
        if is_past(inode) {
            return self.past.clone().listxattr(inode, done);
        }
        self.now.listxattr(inode, done);
    }

    fn setxattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        done: Done<()>,
    ) {
        refuse!(changes(inode), done);
        self.now.setxattr(caller, inode, name, value, flags, done);
    }

    fn removexattr(&self, caller: Caller, inode: InodeId, name: &[u8], done: Done<()>) {
        refuse!(changes(inode), done);
        self.now.removexattr(caller, inode, name, done);
    }

    fn getlk(&self, inode: InodeId, lock: FileLock, done: Done<Option<FileLock>>) {
        if is_past(inode) {
            return done(Ok(None));
        }
        self.now.getlk(inode, lock, done);
    }

    fn setlk(&self, inode: InodeId, lock: FileLock, wait: bool, request: u64, done: Done<()>) {
        // Nothing changes there that a lock could hold up.
        if is_past(inode) {
            return done(Ok(()));
        }
        self.now.setlk(inode, lock, wait, request, done);
    }

    fn lock_token(&self, inode: InodeId, kind: LockKind, owner: u64) -> Option<Token> {
        self.now.lock_token(inode, kind, owner)
    }

    fn interrupt(&self, request: u64) {
        self.now.interrupt(request);
    }

    fn now(&self) -> WallTime {
        self.now.now()
    }
}
