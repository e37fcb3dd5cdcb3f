//! Attributes, extended attributes and space.

use super::Mount;
use super::names::Need;
use super::nodes::Node;
use crate::branch::OWN;
use crate::path::RelPath;
use crate::wire::{BranchId, Done as Told, FileOp, Op, Space as BranchSpace, Stat};
use bytes::Bytes;
use futures_util::future::join_all;
use perigee_client::fs::{Entry, Kind, SetAttr, Space};
use perigee_types::{Errno, InodeId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The unit of space in which a union is counted, bytes.
const BLOCK_LEN: u64 = 4_096;

impl Mount {
    pub(super) async fn attributes(&self, inode: InodeId) -> Result<Entry, Errno> {
        let before = self.node(inode)?;
        self.settle_inode(inode, before.branch).await;
        // With what a write behind has made of it.
        let node = self.node(inode)?;
        let root = node.path().is_ok_and(RelPath::is_root) && !node.changed;
        let left = self.knowledge.lock().left(node.at, Instant::now());
        if let Some(left) = left.filter(|_| root) {
            return Ok(self.told(inode, &node.stat, left));
        }
        if let Ok(path) = node.path()
            && let Some((above, name)) = path.split()
            && !node.changed
        {
            let now = Instant::now();
            let known = self.knowledge.lock().name(&above, name, now);
            if let Some((seen, asked)) = known
                && let Some((branch, stat)) = seen.first()
                && node.is(branch, &stat)
            {
                // An answer that was overtaken by a change of this mount is remembered, too.
                let later = branch == node.branch && node.stat.ctime > stat.ctime;
                let stat = if later { node.stat } else { stat };
                self.nodes.update(inode, &stat);
                let left = self.knowledge.lock().left(asked, now).unwrap_or_default();
                return Ok(self.told(inode, &stat, left));
            }
        }
        let stat = match self.stat_now(inode, &node).await {
            Err(Errno::ENOENT | Errno::ESTALE) if self.is_open_early(inode) => node.stat,
            Err(Errno::ENOENT) => return Err(Errno::ESTALE),
            found => found?,
        };
        self.nodes.update(inode, &stat);
        self.learn_stat(inode, node.branch, &stat);
        let latest = self.node(inode)?.stat;
        Ok(self.told(inode, &latest, self.fresh))
    }

    fn told(&self, inode: InodeId, stat: &Stat, ttl: Duration) -> Entry {
        Entry {
            attr: self.attr(inode, stat),
            ttl,
        }
    }

    async fn stat_now(&self, inode: InodeId, node: &Node) -> Result<Stat, Errno> {
        // A file that is open may have lost its name.
        for (branch, file) in self.open_of(inode) {
            let asked = self
                .union
                .within(branch, file, FileOp::Stat, Bytes::new())
                .await;
            if let Ok((done, _)) = asked {
                return expect_stat(&done);
            }
        }
        let path = node.path()?;
        let found = self.union.on(node.branch, path, Op::Stat).await;
        if let Ok((done, _)) = found {
            let stat = expect_stat(&done)?;
            if node.is(node.branch, &stat) {
                return Ok(stat);
            }
        }
        // It is elsewhere now, or nowhere: the directory says.
        let Some((above, name)) = path.split() else {
            return self.root_now().await;
        };
        self.knowledge.lock().forget_name(&above, name);
        let (seen, _) = self.find(&above, name, Need::First).await?;
        match seen.first() {
            Some((branch, stat)) if node.is(branch, &stat) => Ok(stat),
            _ => Err(Errno::ESTALE),
        }
    }

    /// The root of the nearest branch that answers.
    async fn root_now(&self) -> Result<Stat, Errno> {
        if !self.union.settings.partial {
            return Err(Errno::EIO);
        }
        let roster = self.union.roster();
        for branch in roster.order() {
            let root = RelPath::ROOT;
            if let Ok((done, _)) = self.union.on(*branch, &root, Op::Stat).await {
                return expect_stat(&done);
            }
        }
        Err(Errno::EIO)
    }

    pub(super) async fn set_attributes(
        &self,
        inode: InodeId,
        set: SetAttr,
        handle: Option<u64>,
    ) -> Result<Entry, Errno> {
        let node = self.node(inode)?;
        let shown = |id: u32, own: u32| if id == own { OWN } else { id };
        let mut set = SetAttr {
            uid: set.uid.map(|id| shown(id, self.uid)),
            gid: set.gid.map(|id| shown(id, self.gid)),
            ..set
        };
        if set.kill_privileges && set.mode.is_none() {
            let bits = if node.stat.mode & 0o010 == 0 {
                0o4000
            } else {
                0o6000
            };
            set.mode = (node.stat.mode & bits != 0).then_some(node.stat.mode & !bits);
        }
        set.kill_privileges = false;
        if set.size.is_some() {
            self.rewrites(inode);
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.hold_inode(inode).await;
        }
        self.settle_inode(inode, node.branch).await;
        let open = handle.and_then(|handle| self.handle(handle).ok());
        let open = open.and_then(|open| Some((open.branch, open.file()?)));
        let stat = match open {
            Some((branch, file)) => {
                let op = FileOp::SetAttr(set);
                let (done, _) = self.union.within(branch, file, op, Bytes::new()).await?;
                expect_stat(&done)?
            }
            None => self.set_by_name(inode, &node, set).await?,
        };
        self.nodes.update(inode, &stat);
        self.learn_stat(inode, node.branch, &stat);
        Ok(self.told(inode, &stat, self.fresh))
    }

    /// A directory is changed wherever it is.
    async fn set_by_name(&self, inode: InodeId, node: &Node, set: SetAttr) -> Result<Stat, Errno> {
        let op = Op::SetAttr {
            set,
            expected: node.identity(),
        };
        if node.stat.kind != Kind::Directory {
            let (_, done, _) = self.by_any_name(inode, op).await?;
            return expect_stat(&done);
        }
        let path = node.path()?;
        let homes = self.homes(path).await?;
        let all = homes
            .iter()
            .map(|branch| self.union.on(*branch, path, op.clone()));
        let mut first = None;
        for done in join_all(all).await {
            let (done, _) = done?;
            let stat = expect_stat(&done)?;
            first.get_or_insert(stat);
        }
        first.ok_or(Errno::ESTALE)
    }

    /// New attributes, which are so from now on, under all names.
    pub(super) fn learn_stat(&self, inode: InodeId, branch: BranchId, stat: &Stat) {
        let now = Instant::now();
        for path in self.nodes.paths(inode) {
            let Some((above, name)) = path.split() else {
                continue;
            };
            let mut knowledge = self.knowledge.lock();
            let Some((mut seen, _)) = knowledge.name(&above, name, now) else {
                continue;
            };
            let here = seen
                .copies
                .iter_mut()
                .find(|(known, _)| *known == branch)
                .filter(|(_, known)| (known.kind, known.inode) == (stat.kind, stat.inode));
            match here {
                Some((_, known)) => {
                    *known = *stat;
                    knowledge.learn(&above, name, seen, now);
                }
                None => knowledge.forget_name(&above, name),
            }
        }
    }

    pub(super) async fn xattr(&self, inode: InodeId, name: Vec<u8>) -> Result<Bytes, Errno> {
        // The kernel asks for capabilities before each write; those of other hosts mean nothing here.
        // Access control lists name users by the numbers of their own host.
        if name.starts_with(b"security.") || name.starts_with(b"system.") {
            return Err(Errno::ENODATA);
        }
        let node = self.node(inode)?;
        let (_, value) = self
            .union
            .on(node.branch, node.path()?, Op::GetXattr(name))
            .await?;
        Ok(value)
    }

    pub(super) async fn xattrs(&self, inode: InodeId) -> Result<Vec<Bytes>, Errno> {
        let node = self.node(inode)?;
        let (_, names) = self
            .union
            .on(node.branch, node.path()?, Op::ListXattr)
            .await?;
        let names = names
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty());
        let shown = |name: &&[u8]| !name.starts_with(b"security.") && !name.starts_with(b"system.");
        Ok(names.filter(shown).map(Bytes::copy_from_slice).collect())
    }

    pub(super) async fn set_xattr(
        &self,
        inode: InodeId,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
    ) -> Result<(), Errno> {
        if name.starts_with(b"security.") || name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.node(inode)?;
        let op = Op::SetXattr { name, value, flags };
        self.union.on(node.branch, node.path()?, op).await?;
        self.nodes.changed(node.path()?);
        Ok(())
    }

    pub(super) async fn remove_xattr(&self, inode: InodeId, name: Vec<u8>) -> Result<(), Errno> {
        let node = self.node(inode)?;
        self.union
            .on(node.branch, node.path()?, Op::RemoveXattr(name))
            .await?;
        self.nodes.changed(node.path()?);
        Ok(())
    }

    /// Space of the file systems of all branches that answer.
    pub(super) async fn spaces(&self) -> Vec<(BranchId, BranchSpace)> {
        if let Some((known, at)) = self.space.lock().as_ref()
            && at.elapsed() < super::SPACE_KEPT
        {
            return known.clone();
        }
        let roster = self.union.roster();
        let all = roster.order().iter().map(|branch| async move {
            let root = RelPath::ROOT;
            match self.union.on(*branch, &root, Op::Space).await {
                Ok((Told::Space(space), _)) => Some((*branch, space)),
                _ => None,
            }
        });
        let all: Vec<_> = join_all(all).await.into_iter().flatten().collect();
        *self.space.lock() = Some((all.clone(), Instant::now()));
        all
    }

    pub(super) async fn space_of_all(&self) -> Result<Space, Errno> {
        let roster = self.union.roster();
        let (mut seen, mut sum) = (BTreeSet::new(), BranchSpace::default());
        for (branch, space) in self.spaces().await {
            // Branches of one file system have its space once.
            if !seen.insert((roster.holder(branch), space.device)) {
                continue;
            }
            sum.total = sum.total.saturating_add(space.total);
            sum.free = sum.free.saturating_add(space.free);
            sum.available = sum.available.saturating_add(space.available);
            sum.inodes = sum.inodes.saturating_add(space.inodes);
            sum.inodes_free = sum.inodes_free.saturating_add(space.inodes_free);
        }
        Ok(Space {
            block_len: BLOCK_LEN as u32,
            blocks: sum.total / BLOCK_LEN,
            free: sum.free / BLOCK_LEN,
            available: sum.available / BLOCK_LEN,
            inodes: sum.inodes,
            inodes_free: sum.inodes_free,
        })
    }

    pub(super) async fn sync_directory(&self, inode: InodeId) -> Result<(), Errno> {
        let path = self.path(inode)?;
        let homes = self.homes(&path).await?;
        let all = homes
            .iter()
            .map(|branch| self.union.on(*branch, &path, Op::SyncDir));
        let all = join_all(all).await;
        all.into_iter().try_for_each(|done| done.map(drop))
    }
}

pub(super) fn expect_stat(done: &Told) -> Result<Stat, Errno> {
    match done {
        Told::Stat(stat) | Told::Written { stat } => Ok(*stat),
        _ => Err(Errno::EPROTO),
    }
}
