//! The union as a mount shows it.
//!
//! Where a name is on several branches, programs see the nearest: this host's own, then by distance. Directories of one name
//! are one directory. What other hosts change is seen after the union's freshness at the latest, and the content of a file when
//! it is opened after it was closed there; what programs of this mount do, all of them see at once.

mod ahead;
mod attributes;
mod behind;
mod change;
mod data;
mod early;
mod knowledge;
mod lazy;
mod locate;
mod names;
mod nodes;

use crate::branch::OWN;
use crate::member::Union;
use crate::path::RelPath;
use crate::wire::{BranchId, Done as Told, Op, Space as BranchSpace, Stat};
pub use locate::Located;

use behind::Writer;
use bytes::Bytes;
use data::{Handle, Listed};
use early::Early;
use knowledge::{Knowledge, Seen};
use names::{Batches, Need};
use nodes::{Node, Nodes};
use parking_lot::Mutex;
use perigee_client::fs::{
    Allocate, Attr, Caller, DirEntry, Done, Entry, FileLock, FileSystem, Kind, LockKind, Moved,
    NewNode, OpenFlags, Opened, RenameMode, Seek, SetAttr, Space, Token,
};
use perigee_meta::stripe::Layout;
use perigee_net::begun::spawn_begun;
use perigee_types::{ByteRange, Errno, InodeId, WallTime};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long what file systems say of their space is kept.
const SPACE_KEPT: Duration = Duration::from_secs(2);

/// What file systems said of their space, and when.
type Spaces = (Vec<(BranchId, BranchSpace)>, Instant);

/// A mount of the union on this host.
pub struct Mount {
    me: Weak<Self>,
    union: Arc<Union>,
    fresh: Duration,
    /// Who mounts, in whose name far users' own files are shown.
    uid: u32,
    gid: u32,
    nodes: Nodes,
    knowledge: Mutex<Knowledge>,
    batches: Mutex<Batches>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    listings: Mutex<HashMap<u64, Arc<Listed>>>,
    writers: Mutex<HashMap<InodeId, Arc<Writer>>>,
    early: Early,
    /// Somebody sees to files of which nothing is open but their content.
    watches_early: AtomicBool,
    next: AtomicU64,
    space: Mutex<Option<Spaces>>,
}

impl Mount {
    /// Makes the file system of a mount. Its root is the nearest branch's.
    ///
    /// # Errors
    /// No branch can be looked at.
    pub async fn new(union: Arc<Union>) -> Result<Arc<Self>, Errno> {
        let fresh = Duration::from_millis(u64::from(union.settings.fresh_ms));
        let mut root = Err(Errno::EIO);
        for branch in union.roster().order() {
            if let Ok((Told::Stat(stat), _)) = union.on(*branch, &RelPath::ROOT, Op::Stat).await {
                root = Ok((*branch, stat));
                break;
            }
        }
        let (branch, stat) = root?;
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            fresh,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            nodes: Nodes::new(branch, stat),
            knowledge: Mutex::new(Knowledge::new(fresh)),
            batches: Mutex::default(),
            handles: Mutex::default(),
            listings: Mutex::default(),
            writers: Mutex::default(),
            early: Early::default(),
            watches_early: AtomicBool::new(false),
            next: AtomicU64::new(1),
            space: Mutex::new(None),
            union,
        }))
    }

    /// Runs an operation: on the calling thread as long as it waits for nobody, and then elsewhere.
    fn run<T: Send + 'static, F>(&self, done: Done<T>, operation: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = Result<T, Errno>> + Send + 'static,
    {
        let Some(me) = self.me.upgrade() else {
            return done(Err(Errno::EIO));
        };
        let operation = {
            let _entered = self.union.runtime.enter();
            operation(me)
        };
        spawn_begun(&self.union.runtime, async move { done(operation.await) });
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn node(&self, inode: InodeId) -> Result<Node, Errno> {
        self.nodes.get(inode)
    }

    /// Where a directory is.
    fn path(&self, inode: InodeId) -> Result<RelPath, Errno> {
        self.node(inode)?.path().cloned()
    }

    /// A name as the kernel is told of it, with one more reference.
    fn entry(&self, path: &RelPath, branch: BranchId, stat: &Stat, ttl: Duration) -> Entry {
        let (inode, stat) = self.nodes.seen(path, branch, stat, 1);
        Entry {
            attr: self.attr(inode, &stat),
            ttl,
        }
    }

    fn attr(&self, inode: InodeId, stat: &Stat) -> Attr {
        let shown = |id: u32, own: u32| if id == OWN { own } else { id };
        Attr {
            inode,
            kind: stat.kind,
            mode: stat.mode,
            uid: shown(stat.uid, self.uid),
            gid: shown(stat.gid, self.gid),
            nlink: self.nlink(inode, stat),
            size: stat.size,
            rdev: stat.rdev,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            btime: stat.ctime,
            blocks: stat.blocks,
            layout: Layout::Whole,
        }
    }

    /// Of a directory that several branches have, one says that nothing follows from it about the number of subdirectories.
    fn nlink(&self, inode: InodeId, stat: &Stat) -> u32 {
        if stat.kind != Kind::Directory {
            return stat.nlink;
        }
        let node = self.nodes.get(inode);
        let homes = node.ok().and_then(|node| {
            let path = node.path().ok()?;
            let knowledge = self.knowledge.lock();
            knowledge.homes(path, Instant::now())
        });
        match homes {
            Some((homes, _)) if homes.len() == 1 => stat.nlink,
            _ => 1,
        }
    }

    /// Changes names on a branch, and takes what that has made of the directories around.
    async fn change(&self, branch: BranchId, path: &RelPath, op: Op) -> Result<Told, Errno> {
        let to = match &op {
            Op::Rename { to, .. } | Op::Link { to, .. } => Some(to.clone()),
            _ => None,
        };
        let changed = self.union.change(branch, path, op).await;
        let above = changed
            .as_ref()
            .map(|(.., above)| *above)
            .unwrap_or_default();
        self.learn_above(branch, path, above.of);
        if let Some(to) = to {
            self.learn_above(branch, &to, above.to);
        }
        changed.map(|(done, ..)| done)
    }

    /// The directory of a path has changed on a branch. Its attributes are those of the nearest one that has it.
    fn learn_above(&self, branch: BranchId, path: &RelPath, stat: Option<Stat>) {
        let Some((above, _)) = path.split() else {
            return;
        };
        let Some(inode) = self.nodes.id(&above) else {
            return;
        };
        if !self.node(inode).is_ok_and(|node| node.branch == branch) {
            return;
        }
        match stat {
            Some(stat) => {
                self.nodes.update(inode, &stat);
                self.learn_stat(inode, branch, &stat);
            }
            None => self.nodes.changed(&above),
        }
    }

    /// What this mount has made of a name, which is so from now on.
    fn learn(&self, directory: &RelPath, name: &[u8], copies: Vec<(BranchId, Stat)>) {
        let seen = Seen {
            copies,
            complete: true,
        };
        self.knowledge
            .lock()
            .learn(directory, name, seen, Instant::now());
    }
}

impl FileSystem for Mount {
    fn lookup(&self, parent: InodeId, name: &[u8], done: Done<Result<Entry, Duration>>) {
        let name = name.to_vec();
        self.run(done, move |me| async move {
            let directory = me.path(parent)?;
            let path = directory.join(&name)?;
            let (seen, ttl) = me.find(&directory, &name, Need::First).await?;
            Ok(match seen.first() {
                Some((branch, stat)) => {
                    let entry = me.entry(&path, branch, &stat, ttl);
                    let inode = entry.attr.inode;
                    let old = me.nodes.is_changed(&path) || me.is_being_written(inode);
                    match old {
                        true => Ok(me.attributes(inode).await.unwrap_or(entry)),
                        false => Ok(entry),
                    }
                }
                None => {
                    me.nodes.unname(&path);
                    Err(ttl)
                }
            })
        });
    }

    fn forget(&self, inode: InodeId, count: u64) {
        self.nodes.forget(inode, count);
    }

    fn getattr(&self, inode: InodeId, done: Done<Entry>) {
        self.run(done, move |me| async move { me.attributes(inode).await });
    }

    fn setattr(
        &self,
        _caller: Caller,
        inode: InodeId,
        set: SetAttr,
        handle: Option<u64>,
        done: Done<Entry>,
    ) {
        self.run(done, move |me| async move {
            me.set_attributes(inode, set, handle).await
        });
    }

    fn readlink(&self, inode: InodeId, done: Done<Bytes>) {
        self.run(done, move |me| async move {
            let (_, _, target) = me.by_any_name(inode, Op::ReadLink).await?;
            Ok(target)
        });
    }

    fn make(
        &self,
        _caller: Caller,
        parent: InodeId,
        name: &[u8],
        node: NewNode,
        mode: u32,
        umask: u32,
        done: Done<Entry>,
    ) {
        let name = name.to_vec();
        self.run(done, move |me| async move {
            me.make_node(parent, &name, node, mode & !umask).await
        });
    }

    fn create(
        &self,
        _caller: Caller,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
        done: Done<(Entry, Opened)>,
    ) {
        let name = name.to_vec();
        self.run(done, move |me| async move {
            me.create_file(parent, &name, mode & !umask, flags).await
        });
    }

    fn unlink(&self, _caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        let name = name.to_vec();
        self.run(done, move |me| async move {
            me.remove_file(parent, &name).await
        });
    }

    fn rmdir(&self, _caller: Caller, parent: InodeId, name: &[u8], done: Done<()>) {
        let name = name.to_vec();
        self.run(done, move |me| async move {
            me.remove_directory(parent, &name).await
        });
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
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        self.run(done, move |me| async move {
            me.move_name((parent, &name), (new_parent, &new_name), mode)
                .await?;
            Ok(Moved::Keep)
        });
    }

    fn link(
        &self,
        _caller: Caller,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &[u8],
        done: Done<Entry>,
    ) {
        let name = new_name.to_vec();
        self.run(done, move |me| async move {
            me.link_file(inode, new_parent, &name).await
        });
    }

    fn open(&self, _caller: Caller, inode: InodeId, flags: OpenFlags, done: Done<Opened>) {
        self.run(
            done,
            move |me| async move { me.open_file(inode, flags).await },
        );
    }

    fn read(&self, inode: InodeId, handle: u64, offset: u64, len: u32, done: Done<Bytes>) {
        self.run(done, move |me| async move {
            me.read_file(inode, handle, offset, len).await
        });
    }

    fn write(
        &self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        data: &[u8],
        _kill_privileges: bool,
        done: Done<u32>,
    ) {
        if let Some(written) = self.write_here(handle, offset, data) {
            return done(written);
        }
        let data = Bytes::copy_from_slice(data);
        self.run(done, move |me| async move {
            me.write_file(inode, handle, offset, data).await
        });
    }

    fn flush(&self, inode: InodeId, handle: u64, _owner: u64, done: Done<()>) {
        self.run(
            done,
            move |me| async move { me.settle(inode, handle).await },
        );
    }

    fn maps_unseen(&self, _inode: InodeId, _handle: u64) -> Result<(), Errno> {
        // No file is handed to the kernel.
        Err(Errno::EOPNOTSUPP)
    }

    fn release(&self, inode: InodeId, handle: u64) {
        self.run(Box::new(|_| {}), move |me| async move {
            me.close(inode, handle).await
        });
    }

    fn fsync(&self, inode: InodeId, handle: u64, _data_only: bool, done: Done<()>) {
        self.run(done, move |me| async move { me.sync(inode, handle).await });
    }

    fn allocate(
        &self,
        inode: InodeId,
        handle: u64,
        range: ByteRange,
        how: Allocate,
        done: Done<()>,
    ) {
        self.run(done, move |me| async move {
            me.allocate_range(inode, handle, range, how).await
        });
    }

    fn seek(&self, inode: InodeId, handle: u64, offset: u64, what: Seek, done: Done<u64>) {
        self.run(done, move |me| async move {
            me.seek_in(inode, handle, offset, what).await
        });
    }

    fn copy_range(
        &self,
        _source: (InodeId, u64, u64),
        _target: (InodeId, u64, u64),
        _len: u64,
        done: Done<u64>,
    ) {
        // The kernel then reads and writes.
        done(Err(Errno::EOPNOTSUPP));
    }

    fn opendir(&self, inode: InodeId, done: Done<Opened>) {
        self.run(
            done,
            move |me| async move { me.open_directory(inode).await },
        );
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
        self.run(done, move |me| async move {
            me.read_directory(inode, (handle, cookie), limit, plus)
                .await
        });
    }

    fn releasedir(&self, _inode: InodeId, handle: u64) {
        self.listings.lock().remove(&handle);
    }

    fn fsyncdir(&self, inode: InodeId, _handle: u64, done: Done<()>) {
        self.run(
            done,
            move |me| async move { me.sync_directory(inode).await },
        );
    }

    fn statfs(&self, done: Done<Space>) {
        self.run(done, move |me| async move { me.space_of_all().await });
    }

    fn getxattr(&self, inode: InodeId, name: &[u8], done: Done<Bytes>) {
        let name = name.to_vec();
        self.run(done, move |me| async move { me.xattr(inode, name).await });
    }

    fn listxattr(&self, inode: InodeId, done: Done<Vec<Bytes>>) {
        self.run(done, move |me| async move { me.xattrs(inode).await });
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
        let (name, value) = (name.to_vec(), value.to_vec());
        self.run(done, move |me| async move {
            me.set_xattr(inode, name, value, flags).await
        });
    }

    fn removexattr(&self, _caller: Caller, inode: InodeId, name: &[u8], done: Done<()>) {
        let name = name.to_vec();
        self.run(
            done,
            move |me| async move { me.remove_xattr(inode, name).await },
        );
    }

    // The kernel keeps the locks of this host's programs itself; other hosts do not see them.

    fn getlk(&self, _inode: InodeId, _lock: FileLock, done: Done<Option<FileLock>>) {
        done(Err(Errno::EOPNOTSUPP));
    }

    fn setlk(&self, _inode: InodeId, _lock: FileLock, _wait: bool, _request: u64, done: Done<()>) {
        done(Err(Errno::EOPNOTSUPP));
    }

    fn lock_token(&self, _inode: InodeId, _kind: LockKind, _owner: u64) -> Option<Token> {
        None
    }

    fn interrupt(&self, _request: u64) {}

    fn now(&self) -> WallTime {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        WallTime {
            secs: now.as_secs() as i64,
            nanos: now.subsec_nanos(),
        }
    }
}
