//! The tree of the file system in memory.

use bytes::Bytes;
use perigee_client::fs::{Allocate, Attr, Caller, Kind, NewNode, RenameMode, Seek, SetAttr};
use perigee_meta::SetTime;
use perigee_meta::stripe::Layout;
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, InodeIndex, WallTime};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The first cookie: 1 and 2 are the gateway's.
const COOKIE_FIRST: u64 = 3;
const SET_ID: u32 = 0o6000;

pub struct Tree {
    nodes: HashMap<InodeId, Node>,
    /// By handle: whether it appends.
    handles: HashMap<u64, bool>,
    next_index: u64,
    next_handle: u64,
    next_cookie: u64,
    pub backed: bool,
    /// What the mount did that no mount may do.
    pub faults: Vec<String>,
}

pub struct Node {
    attr: Attr,
    content: Content,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    /// How often the kernel holds it.
    pub lookups: u64,
    opens: u64,
}

enum Content {
    Memory(Vec<u8>),
    Backed(Arc<OwnedFd>),
    Directory(Directory),
    Symlink(Bytes),
    Special,
}

#[derive(Default)]
struct Directory {
    names: HashMap<Vec<u8>, (InodeId, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
}

/// Name, inode, kind and cookie.
type Listed = (Bytes, InodeId, Kind, u64);

impl Node {
    pub fn backing(&self) -> Option<Arc<OwnedFd>> {
        match &self.content {
            Content::Backed(file) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    fn directory(&mut self) -> Result<&mut Directory, Errno> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }
}

fn system(error: rustix::io::Errno) -> Errno {
    Errno::from_code(error.raw_os_error())
}

impl Tree {
    pub fn new(now: WallTime) -> Self {
        let mut tree = Self {
            nodes: HashMap::new(),
            handles: HashMap::new(),
            next_index: 1,
            next_handle: 1,
            next_cookie: COOKIE_FIRST,
            backed: false,
            faults: Vec::new(),
        };
        let root = tree.insert(Kind::Directory, 0o755, (0, 0), now);
        assert_eq!(root, InodeId::ROOT);
        tree
    }

    fn insert(&mut self, kind: Kind, mode: u32, owner: (u32, u32), now: WallTime) -> InodeId {
        let inode = InodeId::new(ContainerId::ROOT, InodeIndex(self.next_index));
        self.next_index += 1;
        let attr = Attr {
            inode,
            kind,
            mode: mode & 0o7777,
            uid: owner.0,
            gid: owner.1,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            size: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            blocks: 0,
            layout: Layout::Whole,
        };
        let content = match kind {
            Kind::Directory => Content::Directory(Directory::default()),
            Kind::File => Content::Memory(Vec::new()),
            _ => Content::Special,
        };
        let node = Node {
            attr,
            content,
            xattrs: BTreeMap::new(),
            lookups: 0,
            opens: 0,
        };
        self.nodes.insert(inode, node);
        inode
    }

    pub fn node(&mut self, inode: InodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::ESTALE)
    }

    /// Handles that are open, and inodes that the kernel holds but the root.
    #[allow(dead_code, reason = "not for the example")]
    pub fn in_use(&self) -> (usize, usize) {
        (
            self.handles.len(),
            self.nodes.values().filter(|node| node.lookups > 0).count(),
        )
    }

    /// Panics when there is no such path: for tests.
    #[allow(dead_code, reason = "not for the example")]
    pub fn resolve(&mut self, path: &str) -> InodeId {
        path.split('/')
            .filter(|name| !name.is_empty())
            .fold(InodeId::ROOT, |parent, name| {
                self.find(parent, name.as_bytes())
                    .unwrap_or_else(|error| panic!("{path}: {error}"))
            })
    }

    pub fn find(&mut self, parent: InodeId, name: &[u8]) -> Result<InodeId, Errno> {
        let found = self.node(parent)?.directory()?.names.get(name);
        found.map(|(inode, _)| *inode).ok_or(Errno::ENOENT)
    }

    pub fn attr(&mut self, inode: InodeId) -> Result<Attr, Errno> {
        let node = self.node(inode)?;
        if let Content::Backed(file) = &node.content {
            let stat = rustix::fs::fstat(file).map_err(system)?;
            node.attr.size = stat.st_size as u64;
        }
        node.attr.blocks = node.attr.size.div_ceil(512);
        Ok(node.attr)
    }

    pub fn forget(&mut self, inode: InodeId, count: u64) {
        // The root is held without having been looked up.
        if inode == InodeId::ROOT {
            return;
        }
        let held = self.nodes.get_mut(&inode).map(|node| &mut node.lookups);
        match held.filter(|held| **held >= count) {
            Some(held) => *held -= count,
            None => self
                .faults
                .push(format!("{inode} is not held {count} times")),
        }
        self.reap(inode);
    }

    fn reap(&mut self, inode: InodeId) {
        let gone = |node: &Node| node.attr.nlink == 0 && node.lookups == 0 && node.opens == 0;
        if self.nodes.get(&inode).is_some_and(gone) {
            self.nodes.remove(&inode);
        }
    }

    pub fn open(&mut self, inode: InodeId, append: bool) -> Result<u64, Errno> {
        self.node(inode)?.opens += 1;
        self.next_handle += 1;
        self.handles.insert(self.next_handle, append);
        Ok(self.next_handle)
    }

    pub fn release(&mut self, inode: InodeId, handle: u64) {
        if self.handles.remove(&handle).is_none() {
            self.faults.push(format!("{inode} has no handle {handle}"));
        }
        if let Ok(node) = self.node(inode) {
            node.opens -= 1;
        }
        self.reap(inode);
    }

    fn add_name(
        &mut self,
        parent: InodeId,
        name: &[u8],
        inode: InodeId,
        now: WallTime,
    ) -> Result<(), Errno> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let kind = self.node(inode)?.attr.kind;
        let node = self.node(parent)?;
        (node.attr.mtime, node.attr.ctime) = (now, now);
        node.attr.nlink += u32::from(kind == Kind::Directory);
        let directory = node.directory()?;
        directory.names.insert(name.to_vec(), (inode, cookie));
        directory.order.insert(cookie, name.to_vec());
        node.attr.size = directory.names.len() as u64;
        Ok(())
    }

    fn remove_name(
        &mut self,
        parent: InodeId,
        name: &[u8],
        now: WallTime,
    ) -> Result<InodeId, Errno> {
        let node = self.node(parent)?;
        let directory = node.directory()?;
        let (inode, cookie) = directory.names.remove(name).ok_or(Errno::ENOENT)?;
        directory.order.remove(&cookie);
        node.attr.size = directory.names.len() as u64;
        (node.attr.mtime, node.attr.ctime) = (now, now);
        let kind = self.node(inode)?.attr.kind;
        self.node(parent)?.attr.nlink -= u32::from(kind == Kind::Directory);
        Ok(inode)
    }

    pub fn make(
        &mut self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        new: NewNode,
        mode: u32,
        now: WallTime,
    ) -> Result<InodeId, Errno> {
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let kind = match &new {
            NewNode::File => Kind::File,
            NewNode::Directory => Kind::Directory,
            NewNode::Symlink(_) => Kind::Symlink,
            NewNode::Fifo => Kind::Fifo,
            NewNode::Socket => Kind::Socket,
            NewNode::CharDevice(_) => Kind::CharDevice,
            NewNode::BlockDevice(_) => Kind::BlockDevice,
        };
        let inode = self.insert(kind, mode, (caller.uid, caller.gid), now);
        let backed = self.backed;
        let node = self.node(inode)?;
        match new {
            NewNode::Symlink(target) => {
                node.attr.size = target.len() as u64;
                node.content = Content::Symlink(target.into());
            }
            NewNode::CharDevice(number) | NewNode::BlockDevice(number) => node.attr.rdev = number,
            NewNode::File if backed => node.content = Content::Backed(backing_file()?),
            _ => {}
        }
        self.add_name(parent, name, inode, now)?;
        Ok(inode)
    }

    pub fn link(
        &mut self,
        inode: InodeId,
        parent: InodeId,
        name: &[u8],
        now: WallTime,
    ) -> Result<(), Errno> {
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let node = self.node(inode)?;
        node.attr.nlink += 1;
        node.attr.ctime = now;
        self.add_name(parent, name, inode, now)
    }

    pub fn unlink(&mut self, parent: InodeId, name: &[u8], now: WallTime) -> Result<(), Errno> {
        let inode = self.find(parent, name)?;
        if self.node(inode)?.attr.kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        self.remove_name(parent, name, now)?;
        self.node(inode)?.attr.nlink -= 1;
        self.reap(inode);
        Ok(())
    }

    pub fn rmdir(&mut self, parent: InodeId, name: &[u8], now: WallTime) -> Result<(), Errno> {
        let inode = self.find(parent, name)?;
        if !self.node(inode)?.directory()?.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove_name(parent, name, now)?;
        self.node(inode)?.attr.nlink = 0;
        self.reap(inode);
        Ok(())
    }

    pub fn rename(
        &mut self,
        (parent, name): (InodeId, &[u8]),
        (new_parent, new_name): (InodeId, &[u8]),
        mode: RenameMode,
        now: WallTime,
    ) -> Result<(), Errno> {
        let inode = self.find(parent, name)?;
        let target = self.find(new_parent, new_name).ok();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Exchange, Some(other)) => {
                self.remove_name(new_parent, new_name, now)?;
                self.remove_name(parent, name, now)?;
                self.add_name(parent, name, other, now)?;
            }
            (RenameMode::Replace, Some(other)) if other == inode => return Ok(()),
            (RenameMode::Replace, Some(other)) => {
                match self.node(other)?.attr.kind {
                    Kind::Directory => self.rmdir(new_parent, new_name, now)?,
                    _ => self.unlink(new_parent, new_name, now)?,
                }
                self.remove_name(parent, name, now)?;
            }
            (_, None) => drop(self.remove_name(parent, name, now)?),
        }
        self.add_name(new_parent, new_name, inode, now)
    }

    pub fn list(
        &mut self,
        inode: InodeId,
        cookie: u64,
        limit: usize,
    ) -> Result<Vec<Listed>, Errno> {
        let directory = self.node(inode)?.directory()?;
        let names: Vec<_> = directory
            .order
            .range(cookie + 1..)
            .take(limit)
            .map(|(cookie, name)| {
                (
                    Bytes::copy_from_slice(name),
                    directory.names[name].0,
                    *cookie,
                )
            })
            .collect();
        names
            .into_iter()
            .map(|(name, inode, cookie)| Ok((name, inode, self.node(inode)?.attr.kind, cookie)))
            .collect()
    }

    pub fn set_attr(
        &mut self,
        inode: InodeId,
        set: &SetAttr,
        _caller: Caller,
        now: WallTime,
    ) -> Result<Attr, Errno> {
        if let Some(size) = set.size {
            self.resize(inode, size, now)?;
        }
        if set.kill_privileges {
            self.kill_privileges(inode);
        }
        let attr = &mut self.node(inode)?.attr;
        attr.mode = set.mode.unwrap_or(attr.mode);
        if set.uid.is_some() || set.gid.is_some() {
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            if attr.kind == Kind::File {
                attr.mode &= !SET_ID;
            }
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now;
        self.attr(inode)
    }

    pub fn kill_privileges(&mut self, inode: InodeId) {
        if let Ok(node) = self.node(inode) {
            node.attr.mode &= !SET_ID;
        }
    }

    pub fn target(&mut self, inode: InodeId) -> Result<Bytes, Errno> {
        match &self.node(inode)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    pub fn resize(&mut self, inode: InodeId, size: u64, now: WallTime) -> Result<(), Errno> {
        let node = self.node(inode)?;
        match &mut node.content {
            Content::Memory(bytes) => bytes.resize(size as usize, 0),
            Content::Backed(file) => rustix::fs::ftruncate(file, size).map_err(system)?,
            _ => return Err(Errno::EISDIR),
        }
        node.attr.size = size;
        (node.attr.mtime, node.attr.ctime) = (now, now);
        Ok(())
    }

    pub fn read(&mut self, inode: InodeId, offset: u64, len: usize) -> Result<Bytes, Errno> {
        match &self.node(inode)?.content {
            Content::Memory(bytes) => {
                let start = (offset as usize).min(bytes.len());
                let end = start.saturating_add(len).min(bytes.len());
                Ok(Bytes::copy_from_slice(&bytes[start..end]))
            }
            Content::Backed(file) => {
                let mut bytes = vec![0; len];
                let got = rustix::io::pread(file, &mut bytes, offset).map_err(system)?;
                bytes.truncate(got);
                Ok(bytes.into())
            }
            _ => Err(Errno::EISDIR),
        }
    }

    pub fn write(
        &mut self,
        inode: InodeId,
        handle: u64,
        offset: u64,
        data: &[u8],
        now: WallTime,
    ) -> Result<u32, Errno> {
        let append = self.handles.get(&handle).copied().unwrap_or(false);
        let size = self.attr(inode)?.size;
        let offset = if append { size } else { offset };
        let end = offset + data.len() as u64;
        if end > size {
            self.resize(inode, end, now)?;
        }
        let node = self.node(inode)?;
        (node.attr.mtime, node.attr.ctime) = (now, now);
        match &mut node.content {
            Content::Memory(bytes) => {
                bytes[offset as usize..end as usize].copy_from_slice(data);
                Ok(data.len() as u32)
            }
            Content::Backed(file) => {
                let put = rustix::io::pwrite(file, data, offset).map_err(system)?;
                Ok(put as u32)
            }
            _ => Err(Errno::EISDIR),
        }
    }

    pub fn allocate(
        &mut self,
        inode: InodeId,
        range: ByteRange,
        how: Allocate,
        now: WallTime,
    ) -> Result<(), Errno> {
        let size = self.attr(inode)?.size;
        let grows = matches!(how, Allocate::Extend | Allocate::ZeroRange);
        if grows && range.end > size {
            self.resize(inode, range.end, now)?;
        }
        if matches!(how, Allocate::Extend | Allocate::KeepSize) {
            return Ok(());
        }
        let size = self.attr(inode)?.size;
        let zeros = vec![0; range.end.min(size).saturating_sub(range.start) as usize];
        self.write(inode, 0, range.start, &zeros, now).map(drop)
    }

    /// Blocks of zeros are holes.
    pub fn seek(&mut self, inode: InodeId, offset: u64, what: Seek) -> Result<u64, Errno> {
        const BLOCK: u64 = 4096;
        let size = self.attr(inode)?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let mut at = offset;
        while at < size {
            let data = self.read(inode, at / BLOCK * BLOCK, BLOCK as usize)?;
            if data.iter().any(|&byte| byte != 0) == (what == Seek::Data) {
                return Ok(at);
            }
            at = (at / BLOCK + 1) * BLOCK;
        }
        match what {
            Seek::Data => Err(Errno::ENXIO),
            Seek::Hole => Ok(size),
        }
    }

    pub fn get_xattr(&mut self, inode: InodeId, name: &[u8]) -> Result<Bytes, Errno> {
        self.node(inode)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or(Errno::ENODATA)
    }

    pub fn list_xattr(&mut self, inode: InodeId) -> Result<Vec<Bytes>, Errno> {
        Ok(self
            .node(inode)?
            .xattrs
            .keys()
            .map(|name| Bytes::copy_from_slice(name))
            .collect())
    }

    pub fn set_xattr(
        &mut self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let xattrs = &mut self.node(inode)?.xattrs;
        match (flags, xattrs.contains_key(name)) {
            (perigee_meta::xattr::XATTR_CREATE, true) => Err(Errno::EEXIST),
            (perigee_meta::xattr::XATTR_REPLACE, false) => Err(Errno::ENODATA),
            _ => {
                xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value));
                Ok(())
            }
        }
    }

    pub fn remove_xattr(&mut self, inode: InodeId, name: &[u8]) -> Result<(), Errno> {
        self.node(inode)?
            .xattrs
            .remove(name)
            .map(drop)
            .ok_or(Errno::ENODATA)
    }
}

/// A file without a name, on the local file system.
fn backing_file() -> Result<Arc<OwnedFd>, Errno> {
    let directory = std::env::current_dir().map_err(|_| Errno::EIO)?;
    let file = tempfile::tempfile_in(directory).map_err(|_| Errno::EIO)?;
    Ok(Arc::new(file.into()))
}
