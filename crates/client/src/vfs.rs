//! System calls turned into operations on names and bytes.

use crate::backend::{At, Found, Hears, Local, MapWriter};
use crate::copy::Copy;
use crate::fs::{
    Allocate, Caller, DirEntry, Done, Entry, FileLock, FileSystem, LockKind, Moved, NewNode,
    OpenFlags, OpenMode, Opened, RenameMode, Seek, SetAttr, Space, Token,
};
use crate::kept_locks;
use crate::locks::{self, Attempt};
use crate::session::{Session, credential, expect_attr, unexpected};
use bytes::Bytes;
use perigee_meta::lease::TERM_AT_HOME;
use perigee_meta::{Attr, Kind, Op, Patience, Reply, Touched, WaitId};
use perigee_types::limits::{FILE_LEN_MAX, IO_LEN_MAX};
use perigee_types::{ByteRange, Errno, InodeId, WallTime};
use std::time::Duration;

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
        let done = self.asked_again(inode, done);
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
                    local: Local::None,
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
        done: Done<Moved>,
    ) {
        let op = Op::Rename {
            parent,
            name: name.to_vec(),
            new_parent,
            new_name: new_name.to_vec(),
            mode,
            cred: credential(caller),
        };
        let within = parent == new_parent;
        let told = move |result: Result<(Reply, Duration), Errno>| {
            // No name is kept longer than that under the lease on a directory.
            let leased = |ttl: Duration| ttl >= TERM_AT_HOME.as_duration();
            done(result.map(|(_, ttl)| match within || leased(ttl) {
                true => Moved::Keep,
                false => Moved::Ask,
            }));
        };
        self.execute(op, Box::new(told));
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
                // It went elsewhere than the kernel takes it to have gone; one that failed may have made the file longer.
                let unknown = result.as_ref().map_or(true, |range| range.start != offset);
                if unknown && let Some(me) = me.upgrade() {
                    me.revoke_attributes(&[Touched::Attr(inode)]);
                }
                done(result.map(|_| len));
            }),
        );
    }

    fn flush(&self, inode: InodeId, handle: u64, owner: u64, done: Done<()>) {
        let Some(session) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        let writer = self.handle(handle).ok().filter(|handle| handle.flags.write);
        let backend = self.backend.clone();
        // Locks go when what was written under them is with the owner, which shows it to whoever comes next.
        let handed_over = move |handed_over: Result<(), Errno>| {
            let released = move |released: Result<(), Errno>| {
                // A process that was made by this one closes, too, and nobody looks at what that is told: an fsync says it again.
                let lost =
                    writer.and_then(|writer| backend.lost(inode, writer.losses(), Hears::ByClose));
                let lost = lost.map_or(Ok(()), |loss| Err(loss.errno));
                done(handed_over.and(lost).and(released));
            };
            locks::release(&session, inode, owner, Box::new(released));
        };
        self.backend.hand_over(inode, Box::new(handed_over));
    }

    fn maps_unseen(&self, inode: InodeId, handle: u64) -> Result<(), Errno> {
        let handle = self.handle(handle)?;
        // A shared map that can be written to needs both.
        if handle.flags.read && handle.flags.write && handle.begin_unseen() {
            let comes = self.backend.map_writer(self.id, inode, MapWriter::Comes);
            return comes.inspect_err(|_| handle.end_unseen());
        }
        Ok(())
    }

    fn release(&self, inode: InodeId, handle: u64) {
        let closed = self.handles.remove(handle);
        if closed.is_some_and(|handle| handle.is_unseen())
            && let Err(errno) = self.backend.map_writer(self.id, inode, MapWriter::Goes)
        {
            tracing::error!(%inode, %errno, "stores through a map cannot be taken in");
        }
        // The descriptor is gone: nobody is left to hear of an error, and the locks of a session end with it in any case.
        if let Some(session) = self.me.upgrade() {
            kept_locks::released(&session, inode, handle);
        }
    }

    fn fsync(&self, inode: InodeId, handle: u64, _data_only: bool, done: Done<()>) {
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(errno) => return done(Err(errno)),
        };
        let backend = self.backend.clone();
        let told = move |result: Result<(), Errno>| match result {
            Ok(()) => match backend.lost(inode, handle.losses(), Hears::ByFsync) {
                Some(loss) => {
                    handle.knows_losses(loss.count);
                    done(Err(loss.errno));
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
            Ok(_) => {
                let done = self.asked_again(inode, done);
                self.execute_done(Op::Allocate { inode, range, how }, done);
            }
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
        let done = self.asked_again(target.0, done);
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
        let Some(session) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        locks::look(&session, inode, lock, done);
    }

    fn setlk(&self, inode: InodeId, lock: FileLock, wait: bool, request: u64, done: Done<()>) {
        let Some(session) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        let patience = if wait && lock.mode.is_some() {
            Patience::Wait(WaitId(request))
        } else {
            Patience::Refuse
        };
        match lock.kind {
            LockKind::Posix => Attempt::start(session, inode, lock, patience, done),
            LockKind::Flock | LockKind::Service => {
                kept_locks::set(session, inode, lock, patience, done);
            }
            // No program has one.
            LockKind::Cover => done(Err(Errno::EINVAL)),
        }
    }

    fn lock_token(&self, inode: InodeId, kind: LockKind, owner: u64) -> Option<Token> {
        match kind {
            LockKind::Posix => self.locks.token(inode, kind, owner),
            LockKind::Flock | LockKind::Service => self.kept_locks.token(inode, kind, owner),
            LockKind::Cover => None,
        }
    }

    fn interrupt(&self, request: u64) {
        self.locks.interrupt(WaitId(request));
    }

    fn now(&self) -> WallTime {
        self.backend.now()
    }
}
