//! Open files and directories.

use super::Mount;
use super::ahead::Ahead;
use super::attributes::expect_stat;
use super::behind::{Failures, Writer};
use super::nodes::Node;
use crate::path::RelPath;
use crate::wire::{BranchId, Done as Told, FileId, FileOp, How, Op, Stat};
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use perigee_client::fs::{Allocate, DirEntry, Entry, OpenFlags, OpenMode, Opened, Seek};
use perigee_types::{ByteRange, Errno, InodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::OnceCell;

/// Content that comes with the answer to an open: what most files have, in one message.
pub(super) const HEAD: u32 = 64 << 10;

/// Below it are cookies of the gateway's own, for `.` and `..`.
const COOKIE_FIRST: u64 = 16;

/// An open file.
pub struct Handle {
    pub(super) inode: InodeId,
    pub(super) branch: BranchId,
    /// None yet: nothing was needed but its content, which was here before.
    pub(super) file: OnceCell<FileId>,
    append: bool,
    writes: bool,
    /// It is of this host.
    own: bool,
    /// All of it, as it was when it was opened, and which content that was.
    head: Option<(Bytes, u64)>,
    ahead: Mutex<Ahead>,
    /// How many failures of writes behind its program knows of.
    knows: AtomicU64,
    pub(super) opened: Instant,
    pub(super) closed: AtomicBool,
}

impl Handle {
    /// The file on its host, if it is open there.
    pub(super) fn file(&self) -> Option<FileId> {
        self.file.get().copied()
    }

    /// Whether nothing of it is open but its content.
    pub(super) fn is_early(&self) -> bool {
        self.file.get().is_none()
    }
}

/// An open directory: what it had when it was read from the start.
pub struct Listed {
    entries: Mutex<Option<Vec<Line>>>,
}

#[derive(Clone)]
struct Line {
    name: Bytes,
    branch: BranchId,
    stat: Stat,
    path: RelPath,
    until: Instant,
}

impl Mount {
    pub(super) fn handle(&self, handle: u64) -> Result<Arc<Handle>, Errno> {
        self.handles
            .lock()
            .get(&handle)
            .cloned()
            .ok_or(Errno::EBADF)
    }

    /// Files that are open of an inode.
    pub(super) fn open_of(&self, inode: InodeId) -> Vec<(BranchId, FileId)> {
        let handles = self.handles.lock();
        let open = handles.values().filter(|handle| handle.inode == inode);
        open.filter_map(|handle| Some((handle.branch, handle.file()?)))
            .collect()
    }

    fn writer(&self, inode: InodeId) -> Arc<Writer> {
        Arc::clone(self.writers.lock().entry(inode).or_default())
    }

    /// Whether what is told of an inode might be of a moment before the last write behind.
    pub(super) fn is_being_written(&self, inode: InodeId) -> bool {
        let writer = self.writers.lock().get(&inode).cloned();
        writer.is_some_and(|writer| !writer.is_quiet())
    }

    /// Waits until what was written behind has arrived; who wrote it is told of errors.
    pub(super) async fn settle_inode(&self, inode: InodeId, branch: BranchId) {
        let writer = self.writers.lock().get(&inode).cloned();
        let Some(writer) = writer else { return };
        writer.arrive(&self.union, branch).await;
        writer.tell_last(|stat| self.wrote(inode, stat));
    }

    /// What a write has made of a file.
    fn wrote(&self, inode: InodeId, stat: &Stat) {
        if let Ok(node) = self.node(inode) {
            self.nodes.update(inode, stat);
            self.learn_stat(inode, node.branch, stat);
            // The pages that the kernel has are of this.
            if node.paged.is_some() {
                self.nodes.page(inode, Some(*stat));
            }
        }
    }

    pub(super) async fn open_file(
        &self,
        inode: InodeId,
        flags: OpenFlags,
    ) -> Result<Opened, Errno> {
        let before = self.node(inode)?;
        let content = self.nodes.content(inode);
        self.settle_inode(inode, before.branch).await;
        if flags.write {
            self.early_is_old(&before);
        } else if flags.read
            && let Some(opened) = self.open_early((inode, &before), flags, content).await
        {
            return Ok(opened);
        }
        if flags.truncate {
            self.rewrites(inode);
        }
        let op = Op::Open {
            how: How {
                read: flags.read,
                write: flags.write,
                truncate: flags.truncate,
                create: None,
                exclusive: false,
                expected: before.identity(),
            },
            parents: Vec::new(),
            head: if flags.read { HEAD } else { 0 },
        };
        let (node, done, head) = self.by_any_name(inode, op).await?;
        if flags.write {
            // Also what was asked for since, and came to its host before this.
            self.early_is_old(&before);
        }
        let Told::Opened {
            file, stat, all, ..
        } = done
        else {
            return Err(Errno::EPROTO);
        };
        self.nodes.update(inode, &stat);
        self.learn_stat(inode, node.branch, &stat);
        let head = all.then_some((head, content));
        Ok(self.opened((inode, node.branch), flags, Some(file), &stat, head))
    }

    /// An operation on a file, under whichever of its names still leads to it; those that do not are forgotten.
    pub(super) async fn by_any_name(
        &self,
        inode: InodeId,
        op: Op,
    ) -> Result<(Node, Told, Bytes), Errno> {
        loop {
            let node = self.node(inode)?;
            let path = node.path()?.clone();
            match self.union.change(node.branch, &path, op.clone()).await {
                Ok((done, bytes, above)) => {
                    if let Op::Link { to, .. } = &op {
                        self.learn_above(node.branch, to, above.to);
                    }
                    return Ok((node, done, bytes));
                }
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ESTALE) => {
                    if let Some((above, name)) = path.split() {
                        self.knowledge.lock().forget_name(&above, name);
                    }
                    self.nodes.unname(&path);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Keeps an open file, and says what the kernel shall do with it.
    pub(super) fn opened(
        &self,
        (inode, branch): (InodeId, BranchId),
        flags: OpenFlags,
        file: Option<FileId>,
        stat: &Stat,
        head: Option<(Bytes, u64)>,
    ) -> Opened {
        let own = self.union.own(branch).is_some();
        let handle = Handle {
            inode,
            branch,
            file: OnceCell::new_with(file),
            append: flags.append,
            writes: flags.write,
            own,
            head: head.filter(|_| flags.read && !own),
            ahead: Mutex::default(),
            knows: AtomicU64::new(self.failures(inode).count),
            opened: Instant::now(),
            closed: AtomicBool::new(false),
        };
        let number = self.number();
        self.handles.lock().insert(number, Arc::new(handle));
        let before = self.nodes.page(inode, Some(*stat));
        let keep = before.is_some_and(|before| {
            (before.mtime, before.size, before.ctime) == (stat.mtime, stat.size, stat.ctime)
        });
        Opened {
            handle: number,
            mode: OpenMode::Cached { keep },
        }
    }

    fn failures(&self, inode: InodeId) -> Failures {
        let writers = self.writers.lock();
        writers
            .get(&inode)
            .map(|writer| writer.failures())
            .unwrap_or_default()
    }

    pub(super) async fn read_file(
        &self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        len: u32,
    ) -> Result<Bytes, Errno> {
        let open = self.handle(handle)?;
        if open.own {
            let file = self.file_of(&open).await?;
            let file = self.union.files.get(self.union.me, file)?;
            return file.read(offset, len);
        }
        // Before what was written is waited for: what comes then is new in any case.
        let content = self.nodes.content(inode);
        self.settle_inode(inode, open.branch).await;
        // As the kernel was told last: it asks for no more.
        let size = self.nodes.size(inode);
        if let Some((head, of)) = &open.head
            && *of == content
            && head.len() as u64 == size
        {
            let from = (offset as usize).min(head.len());
            let to = (offset as usize)
                .saturating_add(len as usize)
                .min(head.len());
            return Ok(head.slice(from..to));
        }
        let file = self.file_of(&open).await?;
        let fetch = |from: u64, len: u32| {
            let (union, branch) = (Arc::clone(&self.union), open.branch);
            let fetched = self.union.runtime.spawn(async move {
                let op = FileOp::Read { offset: from, len };
                let read = union.within(branch, file, op, Bytes::new()).await;
                read.map(|(_, bytes)| bytes)
            });
            async move { fetched.await.unwrap_or(Err(Errno::EIO)) }.boxed()
        };
        let plan = open
            .ahead
            .lock()
            .plan((offset, u64::from(len)), (size, content), fetch);
        if let Some(plan) = plan {
            let wanted = u64::from(len).min(size.saturating_sub(offset));
            match plan.bytes().await {
                Ok(bytes) if bytes.len() as u64 >= wanted => return Ok(bytes),
                // A piece that failed, or that was fetched while the file was shorter, is of no more use.
                Ok(_) | Err(_) => open.ahead.lock().drop_all(),
            }
        }
        let op = FileOp::Read { offset, len };
        let read = self.union.within(open.branch, file, op, Bytes::new()).await;
        read.map(|(_, bytes)| bytes)
    }

    /// Writes to a file of this host, without another thread.
    pub(super) fn write_here(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
    ) -> Option<Result<u32, Errno>> {
        let open = self
            .handle(handle)
            .ok()
            .filter(|open| open.own && open.writes)?;
        let at = self.place_of(&open, offset);
        let written = self
            .union
            .files
            .get(self.union.me, open.file()?)
            .and_then(|file| {
                file.write(at, data)?;
                file.stat()
            });
        Some(written.map(|stat| {
            self.wrote(open.inode, &stat);
            data.len() as u32
        }))
    }

    /// Where a write goes; none: to the end, wherever that is. Pages of a map that the kernel writes back by a file that
    /// appends lie before the end, and go where they are.
    fn place_of(&self, open: &Handle, offset: u64) -> Option<u64> {
        let at_end = open.append && offset >= self.nodes.size(open.inode);
        (!at_end).then_some(offset)
    }

    pub(super) async fn write_file(
        &self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        data: Bytes,
    ) -> Result<u32, Errno> {
        let open = self.handle(handle)?;
        if !open.writes {
            return Err(Errno::EBADF);
        }
        let writer = self.writer(inode);
        self.tell_failures(&open)?;
        self.rewrites(inode);
        let len = data.len() as u32;
        if open.append {
            self.settle_inode(inode, open.branch).await;
        }
        match self.place_of(&open, offset) {
            Some(offset) => {
                let to = (open.branch, self.file_of(&open).await?);
                writer.write(&self.union, to, offset, &data).await;
            }
            None => {
                let op = FileOp::Write { offset: None };
                let file = self.file_of(&open).await?;
                let (done, _) = self.union.within(open.branch, file, op, data).await?;
                self.wrote(inode, &expect_stat(&done)?);
            }
        }
        Ok(len)
    }

    /// Tells a program that writes behind have failed of which it does not know yet.
    fn tell_failures(&self, open: &Handle) -> Result<(), Errno> {
        let failures = self.failures(open.inode);
        if open.knows.swap(failures.count, Ordering::Relaxed) == failures.count {
            return Ok(());
        }
        Err(failures.last.unwrap_or(Errno::EIO))
    }

    pub(super) async fn settle(&self, inode: InodeId, handle: u64) -> Result<(), Errno> {
        let open = self.handle(handle)?;
        if open.own || !open.writes {
            return Ok(());
        }
        self.settle_inode(inode, open.branch).await;
        self.tell_failures(&open)
    }

    pub(super) async fn sync(&self, inode: InodeId, handle: u64) -> Result<(), Errno> {
        self.settle(inode, handle).await?;
        let open = self.handle(handle)?;
        let file = self.file_of(&open).await?;
        let synced = self
            .union
            .within(open.branch, file, FileOp::Sync, Bytes::new())
            .await;
        synced.map(drop)
    }

    pub(super) async fn close(&self, inode: InodeId, handle: u64) -> Result<(), Errno> {
        let open = self.handle(handle)?;
        if open.writes && !open.own {
            // By its number there the bytes go, and after this nothing stands for it.
            self.settle_inode(inode, open.branch).await;
        }
        self.handles.lock().remove(&handle);
        if self.open_of(inode).is_empty() {
            let mut writers = self.writers.lock();
            if writers.get(&inode).is_some_and(|writer| writer.is_quiet()) {
                writers.remove(&inode);
            }
        }
        open.closed.store(true, Ordering::SeqCst);
        if let Some(file) = open.file() {
            self.union.close(open.branch, file);
        }
        Ok(())
    }

    pub(super) async fn allocate_range(
        &self,
        inode: InodeId,
        handle: u64,
        range: ByteRange,
        how: Allocate,
    ) -> Result<(), Errno> {
        self.rewrites(inode);
        self.settle(inode, handle).await?;
        let open = self.handle(handle)?;
        let op = FileOp::Allocate(range, how);
        let file = self.file_of(&open).await?;
        let (done, _) = self
            .union
            .within(open.branch, file, op, Bytes::new())
            .await?;
        self.wrote(inode, &expect_stat(&done)?);
        Ok(())
    }

    pub(super) async fn seek_in(
        &self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        what: Seek,
    ) -> Result<u64, Errno> {
        let open = self.handle(handle)?;
        self.settle_inode(inode, open.branch).await;
        let op = FileOp::Seek {
            offset,
            data: what == Seek::Data,
        };
        let file = self.file_of(&open).await?;
        match self
            .union
            .within(open.branch, file, op, Bytes::new())
            .await?
        {
            (Told::At(at), _) => Ok(at),
            _ => Err(Errno::EPROTO),
        }
    }

    pub(super) async fn open_directory(&self, inode: InodeId) -> Result<Opened, Errno> {
        self.node(inode)?;
        let number = self.number();
        let listed = Listed {
            entries: Mutex::new(None),
        };
        self.listings.lock().insert(number, Arc::new(listed));
        Ok(Opened {
            handle: number,
            mode: OpenMode::Cached { keep: false },
        })
    }

    pub(super) async fn read_directory(
        &self,
        inode: InodeId,
        (handle, cookie): (u64, u64),
        limit: usize,
        plus: bool,
    ) -> Result<Vec<DirEntry>, Errno> {
        let listed = self
            .listings
            .lock()
            .get(&handle)
            .cloned()
            .ok_or(Errno::EBADF)?;
        let begun = cookie > 0 && listed.entries.lock().is_some();
        if !begun {
            let path = self.path(inode)?;
            let lines = self.lines(&path).await?;
            *listed.entries.lock() = Some(lines);
        }
        let entries = listed.entries.lock();
        let lines = entries.as_deref().unwrap_or_default();
        let from = cookie.saturating_sub(COOKIE_FIRST);
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(lines.len());
        let page = lines[from..].iter().take(limit).enumerate();
        let now = Instant::now();
        Ok(page
            .map(|(at, line)| {
                // Attributes that are no longer so the kernel is to ask for.
                let known = self.nodes.shown(&line.path, line.branch, &line.stat);
                let old = self.nodes.is_changed(&line.path) || self.is_being_written(known);
                let with = plus && !old;
                let (id, stat) = match with {
                    true => self.nodes.seen(&line.path, line.branch, &line.stat, 1),
                    false => (known, line.stat),
                };
                DirEntry {
                    name: line.name.clone(),
                    inode: id,
                    kind: line.stat.kind,
                    cookie: COOKIE_FIRST + (from + at) as u64 + 1,
                    entry: with.then(|| Entry {
                        attr: self.attr(id, &stat),
                        ttl: line.until.saturating_duration_since(now),
                    }),
                }
            })
            .collect())
    }

    async fn lines(&self, directory: &RelPath) -> Result<Vec<Line>, Errno> {
        let (listing, left) = self.list(directory).await?;
        let until = Instant::now() + left;
        let mut lines = Vec::with_capacity(listing.len());
        for (name, copies) in listing {
            let Some((branch, stat)) = copies.first().copied() else {
                continue;
            };
            // A name that is too long with its path cannot be reached, and so is not shown.
            let Ok(path) = directory.join(&name) else {
                continue;
            };
            lines.push(Line {
                name: name.into(),
                branch,
                stat,
                path,
                until,
            });
        }
        Ok(lines)
    }
}
