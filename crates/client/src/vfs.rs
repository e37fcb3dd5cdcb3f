//! One mount's session: system calls turned into operations on names and bytes.

use crate::backend::{At, Backend, Found, MapWriter};
use crate::fs::{
    Allocate, Caller, DirEntry, Done, Entry, FileLock, FileSystem, KernelCache, LockKind, NewNode,
    OpenFlags, OpenMode, Opened, RenameMode, Seek, SetAttr, Space,
};
use crate::handles::{Handle, Handles};
use crate::locks::{self, Attempt, Locks};
use bytes::Bytes;
use perigee_meta::{Attr, Credential, Kind, Op, Patience, Reply, Touched, WaitId};
use perigee_types::limits::{FILE_LEN_MAX, IO_LEN_MAX};
use perigee_types::{ByteRange, Errno, InodeId, SessionId, WallTime};
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
    handles: Handles,
    kernel: OnceLock<Arc<dyn KernelCache>>,
    keeps_names: AtomicBool,
    me: Weak<Session>,
}

fn credential(caller: Caller) -> Credential {
    Credential {
        uid: caller.uid,
        gid: caller.gid,
    }
}

/// An operation whose reply is of a kind that it never has: a defect, or a peer of another mind.
fn unexpected<T>() -> Result<T, Errno> {
    Err(Errno::EPROTO)
}

fn expect_attr(result: Result<(Reply, Duration), Errno>) -> Result<Entry, Errno> {
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
    fn name_ttl(&self, ttl: Duration) -> Duration {
        if self.keeps_names.load(Ordering::Relaxed) {
            ttl
        } else {
            Duration::ZERO
        }
    }

    /// Makes the kernel forget what has changed. May wait for reads of this mount that are under
    /// way, never for its changes of names.
    pub fn revoke(&self, touched: &[Touched]) {
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        let mut names = false;
        for change in touched {
            match change {
                Touched::Attr(inode) => kernel.forget_attr(*inode),
                Touched::Data(inode) | Touched::Listing(inode) => kernel.forget_data(*inode, WHOLE),
                Touched::Name { .. } => names = true,
            }
        }
        if names {
            kernel.forget_names();
        }
    }

    /// A container has another owner, who does not know what this session's kernel holds: it
    /// forgets the content of every open file there. Blocks as [`Session::revoke`].
    pub fn forget_content(&self, container: perigee_types::ContainerId) {
        let open = self.handles.open_inodes(container);
        let touched: Vec<Touched> = open.into_iter().map(Touched::Data).collect();
        self.revoke(&touched);
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

    /// The mount is gone: nobody waits for a lock any more.
    pub fn stop_waiting(&self) {
        self.locks.interrupt_all();
    }

    fn execute(&self, op: Op, done: Done<(Reply, Duration)>) {
        self.backend.execute(self.id, op, done);
    }

    fn execute_done(&self, op: Op, done: Done<()>) {
        self.execute(op, Box::new(move |result| done(result.map(|_| ()))));
    }

    fn handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        self.handles.get(number).ok_or(Errno::EBADF)
    }

    /// What the kernel shall do with a file that was found.
    fn opened(&self, found: &Found, flags: OpenFlags) -> Opened {
        let inode = found.attr.inode;
        let keep = self.handles.keep_pages(inode, found.home);
        let mode = match &found.local {
            _ if flags.append => OpenMode::Direct,
            _ if flags.write && !flags.read => OpenMode::WriteOnly,
            Some(file) if !flags.write && !flags.direct => {
                // Who maps the backing file changes it without a word to the page cache.
                self.handles.forget(inode);
                OpenMode::Passthrough(file.clone())
            }
            _ => OpenMode::Cached { keep },
        };
        Opened {
            handle: self.handles.insert(inode, flags, self.backend.losses()),
            mode,
        }
    }

    /// Opens an inode that exists, after emptying it where that is asked for.
    fn open_existing(&self, caller: Caller, inode: InodeId, flags: OpenFlags, done: Done<Opened>) {
        self.handles.begin(inode);
        let Some(me) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        let find = move |me: Arc<Session>, done: Done<Opened>| {
            let session = me.clone();
            me.backend.open(
                me.id,
                inode,
                flags.write,
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

/// A copy of a range of one file to another, a piece at a time.
struct Copy {
    session: Arc<Session>,
    source: (InodeId, u64),
    target: (InodeId, u64),
    left: u64,
    copied: u64,
}

impl Copy {
    fn step(mut self, done: Done<u64>) {
        if self.left == 0 {
            return done(Ok(self.copied));
        }
        let len = self.left.min(IO_LEN_MAX as u64) as u32;
        let session = self.session.clone();
        let (inode, offset) = self.source;
        session.backend.clone().read(
            session.id,
            inode,
            offset,
            len,
            Box::new(move |result| match result {
                Ok(bytes) if bytes.is_empty() => done(Ok(self.copied)),
                Ok(bytes) => {
                    let (target, at) = self.target;
                    let session = self.session.clone();
                    let len = bytes.len() as u64;
                    session.backend.clone().write(
                        session.id,
                        target,
                        At::Offset(at),
                        &bytes,
                        // The kernel has done what is due before it asked.
                        false,
                        Box::new(move |result| match result {
                            Ok(_) => {
                                self.source.1 += len;
                                self.target.1 += len;
                                self.left -= len;
                                self.copied += len;
                                self.step(done);
                            }
                            Err(errno) => self.stop(errno, done),
                        }),
                    );
                }
                Err(errno) => self.stop(errno, done),
            }),
        );
    }

    /// What was copied counts; only an error before the first byte is one.
    fn stop(self, errno: Errno, done: Done<u64>) {
        done(if self.copied > 0 {
            Ok(self.copied)
        } else {
            Err(errno)
        });
    }
}

impl FileSystem for Session {
    fn lookup(&self, parent: InodeId, name: &[u8], done: Done<Result<Entry, Duration>>) {
        let keep = self.name_ttl(Duration::MAX);
        self.execute(
            Op::Lookup {
                parent,
                name: name.to_vec(),
            },
            Box::new(move |result| {
                done(match result {
                    Ok((Reply::Entry(attr), ttl)) => Ok(Ok(Entry {
                        attr,
                        ttl: ttl.min(keep),
                    })),
                    Ok((Reply::Absent, ttl)) => Ok(Err(ttl.min(keep))),
                    Ok(_) => unexpected(),
                    Err(errno) => Err(errno),
                });
            }),
        );
    }

    fn forget(&self, inode: InodeId, _count: u64) {
        self.handles.forget(inode);
    }

    fn getattr(&self, inode: InodeId, done: Done<Entry>) {
        self.execute(
            Op::GetAttr { inode },
            Box::new(move |result| done(expect_attr(result))),
        );
    }

    fn setattr(
        &self,
        caller: Caller,
        inode: InodeId,
        set: SetAttr,
        _handle: Option<u64>,
        done: Done<Entry>,
    ) {
        if set.size.is_some_and(|size| size > FILE_LEN_MAX) {
            return done(Err(Errno::EFBIG));
        }
        let op = Op::SetAttr {
            inode,
            set,
            cred: credential(caller),
        };
        self.execute(op, Box::new(move |result| done(expect_attr(result))));
    }

    fn readlink(&self, inode: InodeId, done: Done<Bytes>) {
        self.execute(
            Op::ReadLink { inode },
            Box::new(move |result| {
                done(match result {
                    Ok((Reply::Bytes(target), _)) => Ok(target.into()),
                    Ok(_) => unexpected(),
                    Err(errno) => Err(errno),
                });
            }),
        );
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
        let op = Op::Make {
            parent,
            name: name.to_vec(),
            node,
            mode,
            umask,
            cred: credential(caller),
            open_existing: false,
        };
        self.execute(op, Box::new(move |result| done(expect_attr(result))));
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
        let op = Op::Make {
            parent,
            name: name.to_vec(),
            node: NewNode::File,
            mode,
            umask,
            cred: credential(caller),
            open_existing: !flags.exclusive,
        };
        let Some(me) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        self.execute(
            op,
            Box::new(move |result| {
                let (attr, existed, ttl) = match result {
                    Ok((Reply::Created { attr, existed }, ttl)) => (attr, existed, ttl),
                    Ok(_) => return done(unexpected()),
                    Err(errno) => return done(Err(errno)),
                };
                if attr.kind != Kind::File {
                    // Another host made something else of this name: let the kernel look again.
                    return done(Err(Errno::ESTALE));
                }
                let flags = OpenFlags {
                    truncate: flags.truncate && existed,
                    ..flags
                };
                if existed {
                    let entry = Entry {
                        attr,
                        ttl: Duration::ZERO,
                    };
                    return me.open_existing(
                        caller,
                        entry.attr.inode,
                        flags,
                        Box::new(move |result| done(result.map(|opened| (entry, opened)))),
                    );
                }
                me.handles.begin(attr.inode);
                let found = Found {
                    attr,
                    home: None,
                    local: None,
                };
                let opened = me.opened(&found, flags);
                done(Ok((Entry { attr, ttl }, opened)));
            }),
        );
    }

    fn unlink(&self, caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        let op = Op::Unlink {
            parent,
            name: name.to_vec(),
            cred: credential(caller),
        };
        self.execute_done(op, done);
    }

    fn rmdir(&self, caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        let op = Op::Rmdir {
            parent,
            name: name.to_vec(),
            cred: credential(caller),
        };
        self.execute_done(op, done);
    }

    fn rename(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
        done: Done<()>,
    ) {
        let op = Op::Rename {
            parent,
            name: name.to_vec(),
            new_parent,
            new_name: new_name.to_vec(),
            mode,
            cred: credential(caller),
        };
        self.execute_done(op, done);
    }

    fn link(
        &self,
        caller: Caller,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &[u8],
        done: Done<Entry>,
    ) {
        let op = Op::Link {
            inode,
            new_parent,
            new_name: new_name.to_vec(),
            cred: credential(caller),
        };
        self.execute(op, Box::new(move |result| done(expect_attr(result))));
    }

    fn open(&self, caller: Caller, inode: InodeId, flags: OpenFlags, done: Done<Opened>) {
        self.open_existing(caller, inode, flags, done);
    }

    fn read(&self, inode: InodeId, _handle: u64, offset: u64, len: u32, done: Done<Bytes>) {
        self.backend
            .read(self.id, inode, offset, len.min(IO_LEN_MAX as u32), done);
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
        let at = match self.handle(handle) {
            Ok(handle) if handle.flags.append => At::End,
            Ok(_) => At::Offset(offset),
            Err(errno) => return done(Err(errno)),
        };
        if offset.saturating_add(data.len() as u64) > FILE_LEN_MAX {
            return done(Err(Errno::EFBIG));
        }
        let len = data.len() as u32;
        let me = self.me.clone();
        self.backend.write(
            self.id,
            inode,
            at,
            data,
            kill_privileges,
            Box::new(move |result| {
                done(result.map(|range| {
                    if range.start != offset
                        && let Some(me) = me.upgrade()
                    {
                        me.revoke(&[Touched::Attr(inode)]);
                    }
                    len
                }));
            }),
        );
    }

    fn flush(&self, inode: InodeId, _handle: u64, owner: u64, done: Done<()>) {
        locks::release(self, inode, owner, LockKind::Posix, done);
    }

    fn maps_unseen(&self, inode: InodeId, handle: u64) -> Result<(), Errno> {
        let handle = self.handle(handle)?;
        // A shared map that can be written to needs both.
        if handle.flags.read && handle.flags.write && handle.begin_unseen() {
            self.backend.map_writer(self.id, inode, MapWriter::Comes)?;
        }
        Ok(())
    }

    fn release(&self, inode: InodeId, handle: u64, flock_owner: Option<u64>) {
        let closed = self.handles.remove(handle);
        if closed.is_some_and(|handle| handle.is_unseen())
            && let Err(errno) = self.backend.map_writer(self.id, inode, MapWriter::Goes)
        {
            tracing::error!(%inode, %errno, "stores through a map cannot be taken in");
        }
        if let Some(owner) = flock_owner {
            // The descriptor is gone: nobody is left to hear of an error, and the locks of a
            // session end with it in any case.
            locks::release(self, inode, owner, LockKind::Flock, Box::new(|_| ()));
        }
    }

    fn fsync(&self, inode: InodeId, handle: u64, _data_only: bool, done: Done<()>) {
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(errno) => return done(Err(errno)),
        };
        let backend = self.backend.clone();
        let told = move |result: Result<(), Errno>| match result {
            Ok(()) => match backend.lost(inode, handle.losses()) {
                Some(count) => {
                    handle.knows_losses(count);
                    done(Err(Errno::EIO));
                }
                None => done(Ok(())),
            },
            Err(errno) => done(Err(errno)),
        };
        self.backend.sync(inode, Box::new(told));
    }

    fn allocate(
        &self,
        inode: InodeId,
        handle: u64,
        range: ByteRange,
        how: Allocate,
        done: Done<()>,
    ) {
        if range.end > FILE_LEN_MAX {
            return done(Err(Errno::EFBIG));
        }
        match self.handle(handle) {
            Ok(handle) if !handle.flags.write => done(Err(Errno::EBADF)),
            Ok(_) => self.execute_done(Op::Allocate { inode, range, how }, done),
            Err(errno) => done(Err(errno)),
        }
    }

    fn seek(&self, inode: InodeId, _handle: u64, offset: u64, what: Seek, done: Done<u64>) {
        self.backend.seek(inode, offset, what, done);
    }

    fn copy_range(
        &self,
        source: (InodeId, u64, u64),
        target: (InodeId, u64, u64),
        len: u64,
        done: Done<u64>,
    ) {
        let Some(session) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        if target.2.saturating_add(len) > FILE_LEN_MAX {
            return done(Err(Errno::EFBIG));
        }
        // Bounded, so that no single call takes long; the program asks again for the rest.
        let left = len.min(64 << 20);
        Copy {
            session,
            source: (source.0, source.2),
            target: (target.0, target.2),
            left,
            copied: 0,
        }
        .step(done);
    }

    fn opendir(&self, inode: InodeId, done: Done<Opened>) {
        self.handles.begin(inode);
        let handle = self.handles.insert(
            inode,
            OpenFlags {
                read: true,
                ..OpenFlags::default()
            },
            self.backend.losses(),
        );
        done(Ok(Opened {
            handle,
            mode: OpenMode::Cached { keep: false },
        }));
    }

    fn readdir(
        &self,
        inode: InodeId,
        _handle: u64,
        cookie: u64,
        limit: usize,
        plus: bool,
        done: Done<Vec<DirEntry>>,
    ) {
        self.execute(
            Op::ReadDir {
                inode,
                cookie,
                limit,
            },
            Box::new(move |result| {
                let (rows, ttl) = match result {
                    Ok((Reply::Listing(rows), ttl)) => (rows, ttl),
                    Ok(_) => return done(unexpected()),
                    Err(errno) => return done(Err(errno)),
                };
                let entry = |attr: Option<Attr>| attr.map(|attr| Entry { attr, ttl });
                done(Ok(rows
                    .into_iter()
                    .map(|row| DirEntry {
                        name: row.name.into(),
                        inode: row.inode,
                        kind: row.kind,
                        cookie: row.cookie,
                        entry: if plus { entry(row.attr) } else { None },
                    })
                    .collect()));
            }),
        );
    }

    fn releasedir(&self, _inode: InodeId, handle: u64) {
        self.handles.remove(handle);
    }

    fn fsyncdir(&self, inode: InodeId, handle: u64, done: Done<()>) {
        self.fsync(inode, handle, false, done);
    }

    fn statfs(&self, done: Done<Space>) {
        self.backend.space(done);
    }

    fn getxattr(&self, inode: InodeId, name: &[u8], done: Done<Bytes>) {
        self.execute(
            Op::GetXattr {
                inode,
                name: name.to_vec(),
            },
            Box::new(move |result| {
                done(match result {
                    Ok((Reply::Bytes(value), _)) => Ok(value.into()),
                    Ok(_) => unexpected(),
                    Err(errno) => Err(errno),
                });
            }),
        );
    }

    fn listxattr(&self, inode: InodeId, done: Done<Vec<Bytes>>) {
        self.execute(
            Op::ListXattr { inode },
            Box::new(move |result| {
                done(match result {
                    Ok((Reply::Names(names), _)) => {
                        Ok(names.into_iter().map(Bytes::from).collect())
                    }
                    Ok(_) => unexpected(),
                    Err(errno) => Err(errno),
                });
            }),
        );
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
        let op = Op::SetXattr {
            inode,
            name: name.to_vec(),
            value: value.to_vec(),
            flags,
            cred: credential(caller),
        };
        self.execute_done(op, done);
    }

    fn removexattr(&self, caller: Caller, inode: InodeId, name: &[u8], done: Done<()>) {
        let op = Op::RemoveXattr {
            inode,
            name: name.to_vec(),
            cred: credential(caller),
        };
        self.execute_done(op, done);
    }

    fn getlk(&self, inode: InodeId, lock: FileLock, done: Done<Option<FileLock>>) {
        self.execute(
            Op::GetLock {
                inode,
                session: self.id,
                lock,
            },
            Box::new(move |result| {
                done(match result {
                    Ok((Reply::Lock(found), _)) => Ok(found),
                    Ok(_) => unexpected(),
                    Err(errno) => Err(errno),
                });
            }),
        );
    }

    fn setlk(&self, inode: InodeId, lock: FileLock, wait: bool, request: u64, done: Done<()>) {
        let Some(session) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        let patience = if wait && lock.exclusive.is_some() {
            Patience::Wait(WaitId(request))
        } else {
            Patience::Refuse
        };
        Attempt::start(session, inode, lock, patience, done);
    }

    fn interrupt(&self, request: u64) {
        self.locks.interrupt(WaitId(request));
    }

    fn now(&self) -> WallTime {
        self.backend.now()
    }
}
