//! The plain tree: names lead to nodes, and nothing else is known.

use perigee_meta::{Kind, RenameMode, TrashId};
use perigee_types::{Errno, InodeId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
pub struct Node {
    pub kind: Kind,
    pub nlink: u32,
    pub size: u64,
    pub entries: BTreeMap<Vec<u8>, InodeId>,
    pub parent: InodeId,
    /// It has no name and is kept; of a directory: what it was like.
    pub kept: Option<TrashId>,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Whether it stays though it has no name.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some() && !self.is_dir()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub nodes: BTreeMap<InodeId, Node>,
    /// Directories that were reaped, and what they were like is remembered.
    pub gone_directories: BTreeSet<TrashId>,
}

pub type Expected<T> = Result<T, Errno>;

impl Model {
    pub fn new() -> Self {
        let mut model = Self::default();
        model.insert(InodeId::ROOT, Kind::Directory, 0, InodeId::ROOT);
        model
    }

    pub fn insert(&mut self, inode: InodeId, kind: Kind, size: u64, parent: InodeId) {
        let nlink = if kind == Kind::Directory { 2 } else { 1 };
        let node = Node {
            kind,
            nlink,
            size,
            entries: BTreeMap::new(),
            parent,
            kept: None,
        };
        assert!(
            self.nodes.insert(inode, node).is_none(),
            "{inode} was used before"
        );
    }

    pub fn node(&self, inode: InodeId) -> Expected<&Node> {
        self.nodes.get(&inode).ok_or(Errno::ESTALE)
    }

    pub fn live_dir(&self, inode: InodeId) -> Expected<&Node> {
        let node = self.node(inode)?;
        if !node.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if node.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        Ok(node)
    }

    pub fn change(&mut self, inode: InodeId) -> &mut Node {
        self.nodes.get_mut(&inode).expect("the model knows it")
    }

    pub fn put_name(&mut self, dir: InodeId, name: &[u8], inode: InodeId) {
        if self.nodes[&inode].is_dir() {
            self.change(dir).nlink += 1;
            self.change(inode).parent = dir;
        }
        self.change(dir).entries.insert(name.to_vec(), inode);
    }

    pub fn take_name(&mut self, dir: InodeId, name: &[u8]) -> InodeId {
        let inode = self
            .change(dir)
            .entries
            .remove(name)
            .expect("checked before");
        if self.nodes[&inode].is_dir() {
            self.change(dir).nlink -= 1;
        }
        inode
    }

    pub fn drop_link(&mut self, inode: InodeId) {
        let node = self.change(inode);
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
    }

    pub fn make(
        &self,
        dir: InodeId,
        name: &[u8],
        kind: Kind,
        open: bool,
    ) -> Expected<Option<InodeId>> {
        let Some(&inode) = self.live_dir(dir)?.entries.get(name) else {
            return Ok(None);
        };
        match self.nodes[&inode].kind {
            _ if !open || kind != Kind::File => Err(Errno::EEXIST),
            Kind::File => Ok(Some(inode)),
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::ESTALE),
        }
    }

    pub fn unlink(&mut self, dir: InodeId, name: &[u8]) -> Expected<InodeId> {
        let inode = *self.live_dir(dir)?.entries.get(name).ok_or(Errno::ENOENT)?;
        if self.nodes[&inode].is_dir() {
            return Err(Errno::EISDIR);
        }
        self.take_name(dir, name);
        self.drop_link(inode);
        Ok(inode)
    }

    pub fn rmdir(&mut self, dir: InodeId, name: &[u8]) -> Expected<InodeId> {
        let inode = *self.live_dir(dir)?.entries.get(name).ok_or(Errno::ENOENT)?;
        if !self.nodes[&inode].is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if !self.nodes[&inode].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.take_name(dir, name);
        self.drop_link(inode);
        Ok(inode)
    }

    pub fn link(&mut self, inode: InodeId, dir: InodeId, name: &[u8]) -> Expected<()> {
        if self.live_dir(dir)?.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.node(inode)?;
        if node.is_dir() {
            return Err(Errno::EPERM);
        }
        if node.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.change(inode).nlink += 1;
        self.put_name(dir, name, inode);
        Ok(())
    }

    pub fn reap(&mut self, inode: InodeId) {
        let node = self.nodes.remove(&inode);
        self.gone_directories
            .extend(node.and_then(|node| node.kept));
    }

    pub fn undelete(&mut self, id: TrashId, dir: InodeId, name: &[u8]) -> Expected<()> {
        self.live_dir(dir)?;
        if self.gone_directories.contains(&id) {
            return Err(Errno::EISDIR);
        }
        let node = self.nodes.get(&id.inode);
        let kept = node.filter(|node| node.kept == Some(id));
        if kept.ok_or(Errno::ENOENT)?.is_dir() {
            return Err(Errno::EISDIR);
        }
        if self.nodes[&dir].entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.change(id.inode);
        node.nlink = 1;
        node.kept = None;
        self.put_name(dir, name, id.inode);
        Ok(())
    }

    pub fn purge(&mut self, id: TrashId) -> Vec<InodeId> {
        self.gone_directories.remove(&id);
        match self.nodes.get_mut(&id.inode) {
            Some(node) if node.kept == Some(id) => {
                node.kept = None;
                let orphan = (!node.is_dir()).then_some(id.inode);
                orphan.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    pub fn is_below(&self, mut at: InodeId, top: InodeId) -> bool {
        while at != top {
            if at == InodeId::ROOT {
                return false;
            }
            at = self.nodes[&at].parent;
        }
        true
    }

    pub fn rename(
        &mut self,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Expected<(InodeId, Option<InodeId>)> {
        self.live_dir(from.0)?;
        self.live_dir(to.0)?;
        let source = *self.nodes[&from.0]
            .entries
            .get(from.1)
            .ok_or(Errno::ENOENT)?;
        let target = self.nodes[&to.0].entries.get(to.1).copied();
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if mode == RenameMode::Exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if target == Some(source) {
            return Ok((source, None));
        }
        if self.nodes[&source].is_dir() && self.is_below(to.0, source) {
            return Err(Errno::EINVAL);
        }
        match (target, mode) {
            (Some(target), RenameMode::Exchange) => {
                if self.nodes[&target].is_dir() && self.is_below(from.0, target) {
                    return Err(Errno::EINVAL);
                }
                self.take_name(from.0, from.1);
                self.take_name(to.0, to.1);
                self.put_name(from.0, from.1, target);
                self.put_name(to.0, to.1, source);
                Ok((source, None))
            }
            (Some(target), _) => {
                match (self.nodes[&source].is_dir(), &self.nodes[&target]) {
                    (true, node) if !node.is_dir() => return Err(Errno::ENOTDIR),
                    (false, node) if node.is_dir() => return Err(Errno::EISDIR),
                    (true, node) if !node.entries.is_empty() => return Err(Errno::ENOTEMPTY),
                    _ => {}
                }
                self.take_name(to.0, to.1);
                self.drop_link(target);
                self.take_name(from.0, from.1);
                self.put_name(to.0, to.1, source);
                Ok((source, Some(target)))
            }
            (None, _) => {
                self.take_name(from.0, from.1);
                self.put_name(to.0, to.1, source);
                Ok((source, None))
            }
        }
    }
}
