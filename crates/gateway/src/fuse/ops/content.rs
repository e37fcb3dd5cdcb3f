//! Open files and their bytes.

use super::Call;
use crate::fuse::crossing::{Asked, Word};
use crate::fuse::device::Delivery;
use crate::fuse::notify::{ReadingShort, Writing, node_of};
use crate::fuse::open_modes::Mode;
use crate::fuse::options::Locks;
use crate::fuse::pages::{Request, Way};
use crate::fuse::reply::Reply;
use crate::fuse::session::Session;
use crate::fuse::wire::{self, Body, OpenReply, fopen};
use bytes::Bytes;
use perigee_client::fs::{Allocate, Entry, OpenFlags, Opened, Seek};
use perigee_types::{ByteRange, Errno, InodeId};
use std::sync::Arc;

/// What a write asks for beside its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Those of the protocol.
    pub(super) flags: u32,
    /// As of open(2), with what the call itself asks for.
    pub(super) open_flags: i32,
}

impl How {
    /// Whether it goes through the kernel's pages. `cached`: what goes through the open file does, unless it asks to pass them by.
    fn is_cached(self, cached: impl FnOnce() -> bool) -> bool {
        self.open_flags & libc::O_DIRECT == 0 && cached()
    }

    /// Whether it is to be on every current replica's disk when it returns, and the kernel does not see to that: it syncs what
    /// goes through its page cache alone.
    const fn is_ours_to_sync(self, cached: bool) -> bool {
        self.open_flags & libc::O_DSYNC != 0 && !cached
    }
}

impl Call<'_> {
    pub(super) fn open(self, flags: i32) {
        let session = Arc::clone(self.session);
        let (inode, reply) = (self.inode, self.reply);
        self.session.fs.open(
            self.caller,
            inode,
            OpenFlags {
                past_daemon: self.session.past_daemon,
                ..open_flags(flags)
            },
            Box::new(move |result| match result {
                Ok(opened) => {
                    if flags & libc::O_TRUNC != 0 {
                        // The kernel takes it for empty with the answer.
                        session.kernel.tells_len(inode, 0, Word::OfLength);
                    }
                    session.give_open(reply, (inode, flags), &opened);
                }
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn create(self, name: &[u8], flags: i32, mode: u32, umask: u32) {
        let session = Arc::clone(self.session);
        let (reply, asked) = (self.reply, self.asked);
        let word = match flags & libc::O_TRUNC {
            0 => Word::OfOthers,
            _ => Word::OfLength,
        };
        session.kernel.names_in(self.inode);
        self.session.fs.create(
            self.caller,
            self.inode,
            name,
            mode & 0o7777,
            umask,
            open_flags(flags),
            Box::new(move |result| match result {
                Ok((entry, opened)) => session.give_created(reply, asked, word, &entry, &opened),
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn read(self, handle: u64, offset: u64, len: u32) {
        self.session.kernel.reads(Request {
            inode: self.inode,
            range: ByteRange::with_len(offset, u64::from(len)),
            unique: self.unique,
        });
        let read = Read {
            inode: self.inode,
            handle,
            offset,
            len,
            thread: self.caller.pid,
            short: None,
        };
        read.answer(self.session, self.reply, READS_MAX);
    }

    pub(super) fn write(self, handle: u64, offset: u64, how: How, data: &[u8]) {
        let (about, inode) = (self.about(), self.inode);
        let (reply, session) = (self.reply, Arc::clone(self.session));
        let cached = how.is_cached(|| session.files.is_cached(inode, handle));
        let sync = how.is_ours_to_sync(cached);
        let request = Request {
            inode,
            range: ByteRange::with_len(offset, data.len() as u64),
            unique: self.unique,
        };
        let way = match cached {
            true => Way::Cached,
            false => Way::Direct,
        };
        let under_way = Writing::begin(&session, request, way);
        self.session.fs.write(
            self.inode,
            handle,
            offset,
            data,
            how.flags & wire::WRITE_KILL_PRIVILEGES != 0,
            Box::new(move |result| {
                let mut about = about;
                if let Ok(written) = result {
                    let end = offset.saturating_add(u64::from(written));
                    session.kernel.grows(inode, end);
                    match way {
                        Way::Cached => session.kernel.has_page(inode, end),
                        Way::Direct => about.len = Some(end),
                    }
                }
                let fs = Arc::clone(&session.fs);
                let answer = move || match result {
                    Ok(written) if sync => {
                        let told = move |synced: Result<(), Errno>| {
                            reply.body_or_error(synced.map(|()| Body::count(written)));
                        };
                        fs.fsync(inode, handle, true, Box::new(told));
                    }
                    result => reply.body_or_error(result.map(Body::count)),
                };
                under_way.end(move || session.tell_growth(about, answer));
            }),
        );
    }

    pub(super) fn flush(self, handle: u64, owner: u64) {
        let (fs, inode) = (&self.session.fs, self.inode);
        self.session.lock_owners.flushed(inode, owner);
        fs.flush(inode, handle, owner, self.when_done());
    }

    /// Nobody waits for the answer but, sometimes, close(2): so it comes first.
    pub(super) fn release(self, handle: u64) {
        self.session.files.close(self.inode, handle);
        self.session.end_locks(self.inode, handle);
        self.session.fs.release(self.inode, handle);
        self.reply.ok();
    }

    pub(super) fn fsync(self, handle: u64, flags: u32) {
        let (fs, inode) = (&self.session.fs, self.inode);
        fs.fsync(
            inode,
            handle,
            flags & wire::FSYNC_DATA_ONLY != 0,
            self.when_done(),
        );
    }

    pub(super) fn fallocate(self, handle: u64, offset: u64, len: u64, mode: i32) {
        let Some(how) = allocate(mode) else {
            return self.reply.error(Errno::EOPNOTSUPP);
        };
        let Some(end) = offset.checked_add(len) else {
            return self.reply.error(Errno::EFBIG);
        };
        let (fs, inode) = (&self.session.fs, self.inode);
        fs.allocate(
            inode,
            handle,
            ByteRange::new(offset, end),
            how,
            self.when_done(),
        );
    }

    pub(super) fn lseek(self, handle: u64, offset: u64, whence: i32) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return self.reply.error(Errno::EINVAL),
        };
        let reply = self.reply;
        self.session.fs.seek(
            self.inode,
            handle,
            offset,
            what,
            Box::new(move |result| reply.body_or_error(result.map(Body::long))),
        );
    }

    /// `wide`: the kernel takes 64 bits of count, not 32.
    pub(super) fn copy_range(
        self,
        source: (InodeId, u64, u64),
        target: (InodeId, u64, u64),
        len: u64,
        wide: bool,
    ) {
        let reply = self.reply;
        let len = if wide {
            len
        } else {
            len.min(u64::from(u32::MAX))
        };
        let answer = move |count: u64| match wide {
            true => Body::long(count),
            false => Body::count(count.min(len) as u32),
        };
        self.session.fs.copy_range(
            source,
            target,
            len,
            Box::new(move |result| reply.body_or_error(result.map(answer))),
        );
    }
}

/// How often a read is done at most whose bytes end before the file does.
const READS_MAX: u32 = 4;

/// One request for bytes.
struct Read {
    inode: InodeId,
    handle: u64,
    offset: u64,
    len: u32,
    thread: u32,
    /// Set once it had fewer bytes than were asked for.
    short: Option<ReadingShort>,
}

impl Read {
    /// The kernel fills up with zeros what is missing to the length that it knows. When that has grown since the bytes were
    /// read, they are read again.
    fn answer(mut self, session: &Arc<Session>, reply: Reply, times: u32) {
        let (inode, handle, offset, len) = (self.inode, self.handle, self.offset, self.len);
        let again = Arc::clone(session);
        let done = move |result: Result<Bytes, Errno>| match result {
            Ok(data) => {
                let read = data.len() as u64;
                if read < u64::from(len) {
                    // First: who tells of a longer file from now on waits for this.
                    let end = offset.saturating_add(read);
                    let short = || again.kernel.reads_short(inode, self.thread, end);
                    self.short.get_or_insert_with(short);
                    if end < again.kernel.told_len(inode) && times > 1 {
                        return self.answer(&again, reply, times - 1);
                    }
                }
                reply.data(&data);
                drop(self);
            }
            Err(error) => reply.error(error),
        };
        let fs = &session.fs;
        fs.read(inode, handle, offset, len, Box::new(done));
    }
}

impl Session {
    fn give_open(&self, reply: Reply, (inode, flags): (InodeId, i32), opened: &Opened) {
        let mut open = match self.place(inode, opened) {
            Ok(open) => open,
            Err(error) => return reply.error(error),
        };
        // Nobody has to hear of the close of what wrote nothing, but who keeps locks.
        if self.locks == Locks::Kernel && flags & libc::O_ACCMODE == libc::O_RDONLY {
            open.flags |= fopen::NOFLUSH;
        }
        if reply.body(&Body::open(open)) == Delivery::Gone {
            self.take_back(inode, opened.handle);
        }
    }

    fn give_created(&self, reply: Reply, asked: Asked, word: Word, entry: &Entry, opened: &Opened) {
        let inode = entry.attr.inode;
        let open = match self.place(inode, opened) {
            Ok(open) => open,
            Err(error) => return reply.error(error),
        };
        let name_ttl = self.kernel.name_ttl(entry.ttl);
        let ttl = self.kernel.attr_ttl(&entry.attr, asked, entry.ttl);
        let attr = self.told(&entry.attr, word);
        let body = Body::create(node_of(inode), ttl, name_ttl, &attr, open);
        if reply.body(&body) == Delivery::Gone {
            self.take_back(inode, opened.handle);
            self.forget(inode, 1);
        }
    }

    /// Fits an opened file in beside the others of its inode, and tells the file system when maps
    /// of it pass the daemon by.
    fn place(&self, inode: InodeId, opened: &Opened) -> Result<OpenReply, Errno> {
        let placed = self.files.open(inode, opened);
        if placed.mode == Mode::Beside
            && let Err(error) = self.fs.maps_unseen(inode, opened.handle)
        {
            self.take_back(inode, opened.handle);
            return Err(error);
        }
        Ok(placed.reply)
    }

    /// The kernel no longer wanted the file that was opened for it, and will not release it.
    fn take_back(&self, inode: InodeId, handle: u64) {
        self.files.close(inode, handle);
        self.fs.release(inode, handle);
    }
}

fn open_flags(flags: i32) -> OpenFlags {
    let access = flags & libc::O_ACCMODE;
    let has = |flag| flags & flag != 0;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: has(libc::O_APPEND),
        truncate: has(libc::O_TRUNC),
        direct: has(libc::O_DIRECT),
        exclusive: has(libc::O_EXCL),
        sync: has(libc::O_DSYNC),
        past_daemon: false,
    }
}

fn allocate(mode: i32) -> Option<Allocate> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH_KEEP: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode {
        0 => Some(Allocate::Extend),
        KEEP => Some(Allocate::KeepSize),
        PUNCH_KEEP => Some(Allocate::PunchHole),
        ZERO => Some(Allocate::ZeroRange),
        ZERO_KEEP => Some(Allocate::ZeroRangeKeepSize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_of_open() {
        let of = |flags| {
            let flags = open_flags(flags);
            (flags.read, flags.write)
        };
        assert_eq!(of(libc::O_RDONLY), (true, false));
        assert_eq!(of(libc::O_WRONLY), (false, true));
        assert_eq!(of(libc::O_RDWR | libc::O_APPEND), (true, true));
    }

    #[test]
    fn only_modes_that_perigee_has_are_taken() {
        assert_eq!(allocate(0), Some(Allocate::Extend));
        assert_eq!(allocate(3), Some(Allocate::PunchHole));
        // A hole that cuts the file, or moves what follows it.
        assert_eq!(allocate(libc::FALLOC_FL_PUNCH_HOLE), None);
        assert_eq!(allocate(libc::FALLOC_FL_COLLAPSE_RANGE), None);
    }
}
