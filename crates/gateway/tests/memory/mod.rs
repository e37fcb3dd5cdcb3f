//! A file system in memory: what the mount is tested with, and the "does nothing" daemon that
//! benchmarks compare with. Everything is answered on the calling thread, unless a test holds it.

mod locks;
mod tree;

use bytes::Bytes;
use locks::Locks;
use parking_lot::Mutex;
use perigee_client::fs::{
    Allocate, Caller, DirEntry, Done, Entry, FileLock, FileSystem, LockKind, Moved, NewNode,
    OpenFlags, OpenMode, Opened, RenameMode, Seek, SetAttr, Space, Token,
};
use perigee_types::{ByteRange, Errno, InodeId, WallTime};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tree::Tree;

/// How files are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "the example opens one way only")]
pub enum Rung {
    Cached,
    Direct,
    /// Readers pass the daemon by.
    Passthrough,
    /// The daemon sees reads and writes.
    Beside,
}

/// How often an operation came.
#[derive(Debug, Default)]
pub struct Seen {
    pub lookups: AtomicU64,
    pub getattrs: AtomicU64,
    pub statfss: AtomicU64,
    pub reads: AtomicU64,
    pub fsyncs: AtomicU64,
    pub writes: AtomicU64,
    pub killing_writes: AtomicU64,
    pub readdirs: AtomicU64,
    pub largest_read: AtomicU64,
    pub released: AtomicU64,
    pub interrupts: AtomicU64,
}

/// Waits until somebody lets it go.
type Held = Box<dyn FnOnce(&MemoryFs) + Send>;

pub struct MemoryFs {
    tree: Mutex<Tree>,
    locks: Locks,
    ttl_ms: AtomicU64,
    rung: Mutex<Rung>,
    /// Whether new files have a file of the local file system behind them.
    backed: AtomicBool,
    hold: Mutex<Option<&'static str>>,
    held: Mutex<Vec<Held>>,
    /// `statfs` waits for it, and with it the thread that answers.
    pub gate: Mutex<()>,
    pub seen: Seen,
}

impl Default for MemoryFs {
    fn default() -> Self {
        Self {
            tree: Mutex::new(Tree::new(now())),
            locks: Locks::default(),
            ttl_ms: AtomicU64::new(60_000),
            rung: Mutex::new(Rung::Cached),
            backed: AtomicBool::new(false),
            hold: Mutex::new(None),
            held: Mutex::default(),
            gate: Mutex::default(),
            seen: Seen::default(),
        }
    }
}

fn now() -> WallTime {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    WallTime {
        secs: since.as_secs() as i64,
        nanos: since.subsec_nanos(),
    }
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

#[allow(dead_code, reason = "the example uses none of these, and no test all")]
impl MemoryFs {
    pub fn set_ttl(&self, ttl: Duration) {
        self.ttl_ms.store(ttl.as_millis() as u64, Ordering::SeqCst);
    }

    pub fn set_rung(&self, rung: Rung) {
        *self.rung.lock() = rung;
    }

    /// New files have a file of the local file system behind them from now on.
    pub fn back_new_files(&self) {
        self.backed.store(true, Ordering::SeqCst);
    }

    /// Answers to `what` ("lookup", "create", "readdir" or "read") are held until [`MemoryFs::let_go`].
    pub fn hold(&self, what: &'static str) {
        *self.hold.lock() = Some(what);
    }

    pub fn let_go(&self) {
        *self.hold.lock() = None;
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|answer| answer(self));
    }

    /// The one that was asked for first; all others are held on.
    pub fn let_one_go(&self) {
        let first = self.held.lock().remove(0);
        first(self);
    }

    pub fn held(&self) -> usize {
        self.held.lock().len()
    }

    /// Changes the tree as another host would: the kernel is not told.
    pub fn change_elsewhere<T>(&self, change: impl FnOnce(&mut Tree) -> T) -> T {
        change(&mut self.tree.lock())
    }

    pub fn inode(&self, path: &str) -> InodeId {
        self.tree.lock().resolve(path)
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.load(Ordering::SeqCst))
    }

    fn answer<T: Send + 'static>(&self, what: &str, done: Done<T>, result: Result<T, Errno>) {
        if *self.hold.lock() == Some(what) {
            self.held.lock().push(Box::new(move |_| done(result)));
        } else {
            done(result);
        }
    }

    /// An entry that the kernel is about to hold.
    fn entry(&self, tree: &mut Tree, inode: InodeId) -> Result<Entry, Errno> {
        let attr = tree.attr(inode)?;
        tree.node(inode)?.lookups += 1;
        Ok(Entry {
            attr,
            ttl: self.ttl(),
        })
    }

    fn mode(&self, tree: &mut Tree, inode: InodeId) -> Result<OpenMode, Errno> {
        let backing = tree.node(inode)?.backing();
        Ok(match (*self.rung.lock(), backing) {
            (Rung::Passthrough, Some(file)) => OpenMode::Passthrough(file),
            (Rung::Beside, Some(file)) => OpenMode::DirectBeside(file),
            (Rung::Direct, _) => OpenMode::Direct,
            _ => OpenMode::Cached { keep: true },
        })
    }

    fn opened(&self, tree: &mut Tree, inode: InodeId, flags: OpenFlags) -> Result<Opened, Errno> {
        if flags.truncate {
            tree.resize(inode, 0, now())?;
        }
        let mode = self.mode(tree, inode)?;
        Ok(Opened {
            handle: tree.open(inode, flags.append)?,
            mode,
        })
    }
}

impl FileSystem for MemoryFs {
    fn lookup(&self, parent: InodeId, name: &[u8], done: Done<Result<Entry, Duration>>) {
        bump(&self.seen.lookups);
        let mut tree = self.tree.lock();
        let result = match tree.find(parent, name) {
            Ok(inode) => self.entry(&mut tree, inode).map(Ok),
            Err(Errno::ENOENT) => Ok(Err(self.ttl())),
            Err(error) => Err(error),
        };
        drop(tree);
        self.answer("lookup", done, result);
    }

    fn forget(&self, inode: InodeId, count: u64) {
        self.tree.lock().forget(inode, count);
    }

    fn getattr(&self, inode: InodeId, done: Done<Entry>) {
        bump(&self.seen.getattrs);
        let answer = move |fs: &Self| {
            let entry = fs.tree.lock().attr(inode).map(|attr| Entry {
                attr,
                ttl: fs.ttl(),
            });
            done(entry);
        };
        if *self.hold.lock() == Some("getattr") {
            self.held.lock().push(Box::new(answer));
        } else {
            answer(self);
        }
    }

    fn setattr(
        &self,
        caller: Caller,
        inode: InodeId,
        set: SetAttr,
        _handle: Option<u64>,
        done: Done<Entry>,
    ) {
        let mut tree = self.tree.lock();
        let attr = tree.set_attr(inode, &set, caller, now());
        drop(tree);
        done(attr.map(|attr| Entry {
            attr,
            ttl: self.ttl(),
        }));
    }

    fn readlink(&self, inode: InodeId, done: Done<Bytes>) {
        let target = self.tree.lock().target(inode);
        done(target);
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
        let mut tree = self.tree.lock();
        let made = tree.make(caller, parent, name, node, mode & !umask, now());
        let result = made.and_then(|inode| self.entry(&mut tree, inode));
        drop(tree);
        done(result);
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
        let mut tree = self.tree.lock();
        let found = match tree.find(parent, name) {
            Ok(_) if flags.exclusive => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {
                tree.backed = self.backed.load(Ordering::SeqCst);
                tree.make(caller, parent, name, NewNode::File, mode & !umask, now())
            }
            found => found,
        };
        let result = found.and_then(|inode| {
            let opened = self.opened(&mut tree, inode, flags)?;
            Ok((self.entry(&mut tree, inode)?, opened))
        });
        drop(tree);
        self.answer("create", done, result);
    }

    fn unlink(&self, _caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        let result = self.tree.lock().unlink(parent, name, now());
        done(result);
    }

    fn rmdir(&self, _caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        let result = self.tree.lock().rmdir(parent, name, now());
        done(result);
    }

    fn rename(
        &self,
        _caller: Caller,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
        done: Done<Moved>,
    ) {
        let moved = match parent == new_parent {
            true => Moved::Keep,
            false => Moved::Ask,
        };
        let result = self
            .tree
            .lock()
            .rename((parent, name), (new_parent, new_name), mode, now());
        done(result.map(|()| moved));
    }

    fn link(
        &self,
        _caller: Caller,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &[u8],
        done: Done<Entry>,
    ) {
        let mut tree = self.tree.lock();
        let linked = tree.link(inode, new_parent, new_name, now());
        let result = linked.and_then(|()| self.entry(&mut tree, inode));
        drop(tree);
        done(result);
    }

    fn open(&self, _caller: Caller, inode: InodeId, flags: OpenFlags, done: Done<Opened>) {
        let mut tree = self.tree.lock();
        let result = self.opened(&mut tree, inode, flags);
        drop(tree);
        done(result);
    }

    fn read(&self, inode: InodeId, _handle: u64, offset: u64, len: u32, done: Done<Bytes>) {
        bump(&self.seen.reads);
        self.seen
            .largest_read
            .fetch_max(u64::from(len), Ordering::SeqCst);
        let data = self.tree.lock().read(inode, offset, len as usize);
        self.answer("read", done, data);
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
        bump(&self.seen.writes);
        if kill_privileges {
            bump(&self.seen.killing_writes);
        }
        let data = data.to_vec();
        let write = move |fs: &Self| {
            let mut tree = fs.tree.lock();
            if kill_privileges {
                tree.kill_privileges(inode);
            }
            let result = tree.write(inode, handle, offset, &data, now());
            drop(tree);
            done(result);
        };
        // Held before it takes effect: what is on its way to an owner is like that.
        if *self.hold.lock() == Some("write") {
            self.held.lock().push(Box::new(write));
        } else {
            write(self);
        }
    }

    fn flush(&self, inode: InodeId, _handle: u64, owner: u64, done: Done<()>) {
        self.locks.drop_posix(inode, owner);
        done(Ok(()));
    }

    fn maps_unseen(&self, _inode: InodeId, _handle: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn release(&self, inode: InodeId, handle: u64) {
        self.locks.drop_flock(inode, handle);
        self.tree.lock().release(inode, handle);
        bump(&self.seen.released);
    }

    fn fsync(&self, _inode: InodeId, _handle: u64, _data_only: bool, done: Done<()>) {
        bump(&self.seen.fsyncs);
        done(Ok(()));
    }

    fn allocate(
        &self,
        inode: InodeId,
        _handle: u64,
        range: ByteRange,
        how: Allocate,
        done: Done<()>,
    ) {
        let result = self.tree.lock().allocate(inode, range, how, now());
        done(result);
    }

    fn seek(&self, inode: InodeId, _handle: u64, offset: u64, what: Seek, done: Done<u64>) {
        let result = self.tree.lock().seek(inode, offset, what);
        done(result);
    }

    fn copy_range(
        &self,
        source: (InodeId, u64, u64),
        target: (InodeId, u64, u64),
        len: u64,
        done: Done<u64>,
    ) {
        let mut tree = self.tree.lock();
        let copied = tree.read(source.0, source.2, len as usize);
        let result = copied
            .and_then(|data| tree.write(target.0, target.1, target.2, &data, now()))
            .map(u64::from);
        drop(tree);
        done(result);
    }

    fn opendir(&self, inode: InodeId, done: Done<Opened>) {
        let mut tree = self.tree.lock();
        let handle = tree.open(inode, false);
        drop(tree);
        done(handle.map(|handle| Opened {
            handle,
            mode: OpenMode::Cached { keep: true },
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
        bump(&self.seen.readdirs);
        let mut tree = self.tree.lock();
        let result = tree.list(inode, cookie, limit).map(|listed| {
            let mut entries = Vec::with_capacity(listed.len());
            for (name, inode, kind, cookie) in listed {
                let entry = plus.then(|| self.entry(&mut tree, inode).ok()).flatten();
                entries.push(DirEntry {
                    name,
                    inode,
                    kind,
                    cookie,
                    entry,
                });
            }
            entries
        });
        drop(tree);
        self.answer("readdir", done, result);
    }

    fn releasedir(&self, inode: InodeId, handle: u64) {
        self.tree.lock().release(inode, handle);
    }

    fn fsyncdir(&self, _inode: InodeId, _handle: u64, done: Done<()>) {
        done(Ok(()));
    }

    fn statfs(&self, done: Done<Space>) {
        bump(&self.seen.statfss);
        drop(self.gate.lock());
        done(Ok(Space {
            block_len: 4096,
            blocks: 1 << 20,
            free: 1 << 19,
            available: 1 << 18,
            inodes: 1 << 20,
            inodes_free: 1 << 19,
        }));
    }

    fn getxattr(&self, inode: InodeId, name: &[u8], done: Done<Bytes>) {
        let result = self.tree.lock().get_xattr(inode, name);
        done(result);
    }

    fn listxattr(&self, inode: InodeId, done: Done<Vec<Bytes>>) {
        let result = self.tree.lock().list_xattr(inode);
        done(result);
    }

    fn setxattr(
        &self,
        _caller: Caller,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        done: Done<()>,
    ) {
        let result = self.tree.lock().set_xattr(inode, name, value, flags);
        done(result);
    }

    fn removexattr(&self, _caller: Caller, inode: InodeId, name: &[u8], done: Done<()>) {
        let result = self.tree.lock().remove_xattr(inode, name);
        done(result);
    }

    fn getlk(&self, inode: InodeId, lock: FileLock, done: Done<Option<FileLock>>) {
        done(Ok(self.locks.conflict(inode, &lock)));
    }

    fn setlk(&self, inode: InodeId, lock: FileLock, wait: bool, request: u64, done: Done<()>) {
        self.locks.set(inode, lock, wait, request, done);
    }

    fn lock_token(&self, _inode: InodeId, _kind: LockKind, _owner: u64) -> Option<Token> {
        None
    }

    fn interrupt(&self, request: u64) {
        bump(&self.seen.interrupts);
        self.locks.interrupt(request);
    }

    fn now(&self) -> WallTime {
        now()
    }
}
