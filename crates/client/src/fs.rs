//! The file system as a gateway sees it: one method per operation, answered by call-back.
//!
//! A method may answer on the calling thread (the usual case at home) or later from another one; it
//! never blocks on the network. Every operation is answered exactly once. Errors are the [`Errno`]
//! that a program shall see.

use bytes::Bytes;
use perigee_types::{ByteRange, Errno, InodeId, WallTime};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Takes the answer of one operation.
pub type Done<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// The local process that asks. Permission checks by mode and ACL are the kernel's
/// (`default_permissions`); the ids serve ownership of new inodes and the rules of set-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Process (thread group), shown by lock queries.
    pub pid: u32,
}

pub use perigee_meta::{
    Allocate, Attr, FileLock, Kind, LockKind, Mode, NewNode, RenameMode, SetAttr, Token,
};

/// An answer about an inode, and for how long the kernel may keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub attr: Attr,
    /// How long the kernel may use name and attributes without asking again; zero: not at all.
    pub ttl: Duration,
}

/// How the kernel shall treat an open file (the rungs of the ladder of speed).
#[derive(Debug, Clone)]
pub enum OpenMode {
    /// Through the daemon, with the kernel's page cache. `keep`: pages from before are still good.
    Cached {
        /// Pages that the kernel holds from earlier opens may be used.
        keep: bool,
    },
    /// Through the daemon, by a program that can only write: a page cache would be of no use to it.
    WriteOnly,
    /// Through the daemon, which must see each call as the program makes it.
    Direct,
    /// Reads, writes and maps go to this backing file; the daemon sees none of them.
    Passthrough(Arc<OwnedFd>),
    /// Reads and writes go to the daemon, maps to this backing file (next to live passthrough opens).
    DirectBeside(Arc<OwnedFd>),
}

/// An open file or directory.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Names it in later calls.
    pub handle: u64,
    /// What the kernel shall do with it.
    pub mode: OpenMode,
}

/// `open(2)` flags that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// `O_RDONLY` or `O_RDWR`, or opened for execution.
    pub read: bool,
    /// `O_WRONLY` or `O_RDWR`.
    pub write: bool,
    /// `O_APPEND`: each write goes to the end, whatever other hosts append.
    pub append: bool,
    /// `O_TRUNC` (the kernel sends it with open since `FUSE_ATOMIC_O_TRUNC` is on).
    pub truncate: bool,
    /// `O_DIRECT`.
    pub direct: bool,
    /// `O_EXCL` (create only).
    pub exclusive: bool,
    /// `O_SYNC` or `O_DSYNC`: a write that has returned is on every current replica's disk.
    pub sync: bool,
    /// The kernel can write to a backing file by itself, where the file system lets it.
    pub past_daemon: bool,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: Bytes,
    /// The inode that it names.
    pub inode: InodeId,
    /// Type of that inode.
    pub kind: Kind,
    /// Continues the listing after this entry.
    pub cookie: u64,
    /// Attributes, when they were asked for and are at hand.
    pub entry: Option<Entry>,
}

/// Space and inodes, for `statfs(2)`. Bytes are multiples of `block_len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Unit of the three block counts, bytes.
    pub block_len: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub free: u64,
    /// Blocks that ordinary users may take.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// What to look for from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is data.
    Data,
    /// The next hole, or the end of the file.
    Hole,
}

/// What a kernel may do with a name that it has moved. By itself it keeps the name for the time that it was given before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It may: the file system will say when the name changes where it is now.
    Keep,
    /// It has to ask before it uses the name.
    Ask,
}

/// The operations. Inode numbers are Perigee's own; a gateway translates the root.
#[allow(
    clippy::too_many_arguments,
    reason = "as wide as the system calls that they serve"
)]
pub trait FileSystem: Send + Sync {
    /// Finds `name` in `parent`. A missing name is `Ok(Err(ttl))`: the kernel may remember its
    /// absence for `ttl`.
    fn lookup(&self, parent: InodeId, name: &[u8], done: Done<Result<Entry, Duration>>);
    /// The kernel has dropped `count` references to `inode`.
    fn forget(&self, inode: InodeId, count: u64);
    /// Attributes.
    fn getattr(&self, inode: InodeId, done: Done<Entry>);
    /// Changes attributes. `handle`: the open file, for `ftruncate`.
    fn setattr(
        &self,
        caller: Caller,
        inode: InodeId,
        set: SetAttr,
        handle: Option<u64>,
        done: Done<Entry>,
    );
    /// The target of a symbolic link.
    fn readlink(&self, inode: InodeId, done: Done<Bytes>);
    /// Makes anything but an opened file. `mode` has the permission bits before `umask`.
    fn make(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        node: NewNode,
        mode: u32,
        umask: u32,
        done: Done<Entry>,
    );
    /// Makes and opens a regular file (an existing one is opened unless `flags.exclusive`).
    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
        done: Done<(Entry, Opened)>,
    );
    /// Removes a name that is not a directory's.
    fn unlink(&self, caller: Caller, parent: InodeId, name: &[u8], done: Done<()>);
    /// Removes an empty directory.
    fn rmdir(&self, caller: Caller, parent: InodeId, name: &[u8], done: Done<()>);
    /// Moves a name. What is given back is of both names where they change places.
    fn rename(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
        done: Done<Moved>,
    );
    /// Gives `inode` one more name.
    fn link(
        &self,
        caller: Caller,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &[u8],
        done: Done<Entry>,
    );

    /// Opens a file.
    fn open(&self, caller: Caller, inode: InodeId, flags: OpenFlags, done: Done<Opened>);
    /// Reads up to `len` bytes; fewer only at the end of the file.
    fn read(&self, inode: InodeId, handle: u64, offset: u64, len: u32, done: Done<Bytes>);
    /// Writes all of `data` (at the end of the file when the handle appends). `kill_privileges`:
    /// set-id bits shall be cleared.
    fn write(
        &self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        data: &[u8],
        kill_privileges: bool,
        done: Done<u32>,
    );
    /// One descriptor of an open file was closed; `owner` held the process's fcntl locks.
    fn flush(&self, inode: InodeId, handle: u64, owner: u64, done: Done<()>);
    /// An open file became one whose maps go to the backing file, next to live passthrough opens:
    /// until its release the file may change unseen. Called before the program has it.
    fn maps_unseen(&self, inode: InodeId, handle: u64) -> Result<(), Errno>;
    /// The last descriptor was closed: locks whose owner is the handle end with it ([`LockKind::Flock`],
    /// [`LockKind::Service`]).
    fn release(&self, inode: InodeId, handle: u64);
    /// Makes what was written durable on every current replica.
    fn fsync(&self, inode: InodeId, handle: u64, data_only: bool, done: Done<()>);
    /// `fallocate(2)`.
    fn allocate(
        &self,
        inode: InodeId,
        handle: u64,
        range: ByteRange,
        how: Allocate,
        done: Done<()>,
    );
    /// `lseek(2)` with `SEEK_DATA` or `SEEK_HOLE`; ENXIO past the last.
    fn seek(&self, inode: InodeId, handle: u64, offset: u64, what: Seek, done: Done<u64>);
    /// `copy_file_range(2)`: as many bytes as could be copied.
    fn copy_range(
        &self,
        source: (InodeId, u64, u64),
        target: (InodeId, u64, u64),
        len: u64,
        done: Done<u64>,
    );

    /// Opens a directory.
    fn opendir(&self, inode: InodeId, done: Done<Opened>);
    /// Lists from after `cookie` (0: from the start), about `limit` entries; empty at the end.
    /// `.` and `..` are not among them. `plus`: with attributes.
    fn readdir(
        &self,
        inode: InodeId,
        handle: u64,
        cookie: u64,
        limit: usize,
        plus: bool,
        done: Done<Vec<DirEntry>>,
    );
    /// Closes a directory.
    fn releasedir(&self, inode: InodeId, handle: u64);
    /// Makes a directory's entries durable on every current replica.
    fn fsyncdir(&self, inode: InodeId, handle: u64, done: Done<()>);
    /// Space of the file system.
    fn statfs(&self, done: Done<Space>);

    /// Value of an extended attribute; ENODATA when there is none.
    fn getxattr(&self, inode: InodeId, name: &[u8], done: Done<Bytes>);
    /// All names of extended attributes.
    fn listxattr(&self, inode: InodeId, done: Done<Vec<Bytes>>);
    /// Sets one. `flags`: `XATTR_CREATE` (1), `XATTR_REPLACE` (2) or 0.
    fn setxattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        done: Done<()>,
    );
    /// Removes one.
    fn removexattr(&self, caller: Caller, inode: InodeId, name: &[u8], done: Done<()>);

    /// The first lock that would stand in the way of `lock`.
    fn getlk(&self, inode: InodeId, lock: FileLock, done: Done<Option<FileLock>>);
    /// Takes or drops a lock. `wait`: until it can be had; the request can be interrupted by
    /// [`FileSystem::interrupt`] with the same `request`.
    fn setlk(&self, inode: InodeId, lock: FileLock, wait: bool, request: u64, done: Done<()>);
    /// The token of the lock of a kind that `owner` has.
    fn lock_token(&self, inode: InodeId, kind: LockKind, owner: u64) -> Option<Token>;
    /// The program no longer waits for `request`; it is answered with EINTR if it was waiting.
    fn interrupt(&self, request: u64);
    /// The current time, for ids made by the gateway itself.
    fn now(&self) -> WallTime;
}

/// What is not as it was any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    /// Attributes, and ACLs, of an inode.
    Attributes(InodeId),
    /// The content of a file, or the listing of a directory.
    Content(InodeId),
    /// Names in a directory, or that they are not there.
    Names(InodeId),
    /// All names.
    AllNames,
}

/// What the file system asks of a mounted kernel cache. None of these needs the kernel's directory locks.
pub trait KernelCache: Send + Sync {
    /// Something is stale from now on. Whether the kernel may have that, or may be about to have it: then it is to forget it.
    /// Where it may not, it need not be told. Waits for nothing.
    fn changed(&self, stale: Stale) -> bool;
    /// Forget attributes (and ACLs) of this inode. Waits for nothing.
    fn forget_attr(&self, inode: InodeId);
    /// Forget attributes and the cached content in `range` (of a directory: its cached listing). Waits for reads of it that
    /// this mount has under way, and for writes to pages that the kernel does not know: see [`KernelCache::is_writing`].
    fn forget_data(&self, inode: InodeId, range: ByteRange);
    /// Ask again for every name before it is used: the lock-free way to forget names.
    fn forget_names(&self);
    /// Whether programs of this mount are writing to the inode. Such a write may wait for other kernels to forget, and so
    /// none of them may wait for this one.
    fn is_writing(&self, inode: InodeId) -> bool;
}
