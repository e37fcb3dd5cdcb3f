//! Changes of names: where a new one goes, and what becomes of those that it hides.

use super::Mount;
use super::attributes::expect_stat;
use super::knowledge::Seen;
use super::names::{Need, is_directory};
use crate::path::RelPath;
use crate::wire::{BranchId, Done as Told, How, Op, Parent, Placing, Stat};
use futures_util::future::join_all;
use perigee_client::fs::{Entry, Kind, NewNode, OpenFlags, Opened, RenameMode};
use perigee_types::{Errno, InodeId};

/// Permission bits of a directory that a branch gets because it lacks one whose bits nobody knows.
const PARENT_MODE: u32 = 0o755;

impl Mount {
    /// The branch on which something new in a directory is made.
    async fn place(&self, directory: &RelPath) -> Result<BranchId, Errno> {
        let roster = self.union.roster();
        let of = |member| {
            let branches = roster.member(member).map(|member| &member.branches);
            branches.and_then(|branches| branches.first().copied())
        };
        let chosen = match &self.union.settings.placing {
            Placing::Here => of(self.union.me),
            Placing::Host(member) => of(*member),
            Placing::Space => {
                let spaces = self.spaces().await;
                let most = spaces.iter().max_by_key(|(_, space)| space.available);
                most.map(|(branch, _)| *branch)
            }
            Placing::Path => None,
        };
        if let Some(chosen) = chosen {
            return Ok(chosen);
        }
        // The nearest that is known to have the directory; if it is known of one at all, nobody is asked.
        if let Ok(node) = self.nodes.at(directory)
            && !roster.is_away(node.branch)
        {
            return Ok(node.branch);
        }
        let homes = self.homes(directory).await?;
        let there = homes.into_iter().find(|branch| !roster.is_away(*branch));
        there.ok_or(Errno::EIO)
    }

    /// The directories that a branch may lack above what is made on it.
    async fn parents(&self, directory: &RelPath, branch: BranchId) -> Vec<Parent> {
        let now = std::time::Instant::now();
        let known = self.knowledge.lock().homes(directory, now);
        let has = known.is_some_and(|(homes, _)| homes.contains(&branch));
        let nearest = self
            .nodes
            .at(directory)
            .is_ok_and(|node| node.branch == branch);
        if has || nearest {
            return Vec::new();
        }
        let line = directory.line().filter(|path| !path.is_root());
        line.map(|path| Parent {
            mode: self
                .nodes
                .at(&path)
                .map_or(PARENT_MODE, |node| node.stat.mode),
            path,
        })
        .collect()
    }

    /// Branches that have got directories.
    fn made_parents(&self, parents: &[Parent]) {
        let mut knowledge = self.knowledge.lock();
        for parent in parents {
            knowledge.spreads(&parent.path);
            // Its attributes there are not known.
            if let Some((above, name)) = parent.path.split() {
                knowledge.forget_name(&above, name);
            }
        }
    }

    pub(super) async fn create_file(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        let directory = self.path(parent)?;
        let path = directory.join(name)?;
        let (seen, ttl) = self.find(&directory, name, Need::First).await?;
        if let Some((branch, stat)) = seen.first() {
            if flags.exclusive {
                return Err(Errno::EEXIST);
            }
            if stat.kind != Kind::File {
                return Err(Errno::ESTALE);
            }
            let entry = self.entry(&path, branch, &stat, ttl);
            let opened = self.open_file(entry.attr.inode, flags).await?;
            return Ok((entry, opened));
        }
        let branch = self.place(&directory).await?;
        let parents = self.parents(&directory, branch).await;
        let how = How {
            read: flags.read,
            write: flags.write,
            truncate: flags.truncate,
            create: Some(mode),
            exclusive: flags.exclusive,
            expected: None,
        };
        let op = Op::Open {
            how,
            parents: parents.clone(),
            head: 0,
        };
        let Told::Opened { file, stat, .. } = self.change(branch, &path, op).await? else {
            return Err(Errno::EPROTO);
        };
        self.made_parents(&parents);
        self.learn(&directory, name, vec![(branch, stat)]);
        self.nodes.unname(&path);
        let entry = self.entry(&path, branch, &stat, self.fresh);
        let opened = self.opened((entry.attr.inode, branch), flags, Some(file), &stat, None);
        Ok((entry, opened))
    }

    pub(super) async fn make_node(
        &self,
        parent: InodeId,
        name: &[u8],
        node: NewNode,
        mode: u32,
    ) -> Result<Entry, Errno> {
        let directory = self.path(parent)?;
        let path = directory.join(name)?;
        let (seen, _) = self.find(&directory, name, Need::First).await?;
        if seen.first().is_some() {
            return Err(Errno::EEXIST);
        }
        let branch = self.place(&directory).await?;
        let parents = self.parents(&directory, branch).await;
        let op = Op::Make {
            node,
            mode,
            parents: parents.clone(),
        };
        let done = self.change(branch, &path, op).await?;
        let stat = expect_stat(&done)?;
        self.made_parents(&parents);
        if stat.kind == Kind::Directory {
            self.knowledge.lock().forget_below(&path);
        }
        self.learn(&directory, name, vec![(branch, stat)]);
        self.nodes.unname(&path);
        Ok(self.entry(&path, branch, &stat, self.fresh))
    }

    pub(super) async fn link_file(
        &self,
        inode: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let (node, directory) = (self.node(inode)?, self.path(parent)?);
        let path = directory.join(name)?;
        let (seen, _) = self.find(&directory, name, Need::First).await?;
        if seen.first().is_some() {
            return Err(Errno::EEXIST);
        }
        let parents = self.parents(&directory, node.branch).await;
        let op = Op::Link {
            to: path.clone(),
            parents: parents.clone(),
        };
        let (_, done, _) = self.by_any_name(inode, op).await?;
        let stat = expect_stat(&done)?;
        self.made_parents(&parents);
        self.learn_stat(inode, node.branch, &stat);
        self.learn(&directory, name, vec![(node.branch, stat)]);
        // It is the same file, though its number of names has changed.
        self.nodes.update(inode, &stat);
        self.nodes.linked(inode, &path);
        Ok(self.entry(&path, node.branch, &stat, self.fresh))
    }

    pub(super) async fn remove_file(&self, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.path(parent)?;
        let path = directory.join(name)?;
        let (seen, _) = self.find(&directory, name, Need::All).await?;
        match seen.first() {
            None => return Err(Errno::ENOENT),
            Some((_, stat)) if stat.kind == Kind::Directory => return Err(Errno::EISDIR),
            Some(_) => {}
        }
        // With what is hidden by it: else that would come to light.
        let files = seen
            .copies
            .iter()
            .filter(|(_, stat)| stat.kind != Kind::Directory);
        let files: Vec<BranchId> = files.map(|(branch, _)| *branch).collect();
        self.hold(&path).await;
        let gone = self.remove(&path, &files, &Op::Unlink).await;
        match gone {
            Ok(()) => {
                self.nodes.removed(&path);
                let left = seen
                    .copies
                    .into_iter()
                    .filter(|(_, stat)| stat.kind == Kind::Directory);
                self.learn(&directory, name, left.collect());
            }
            Err(_) => self.knowledge.lock().forget_name(&directory, name),
        }
        gone
    }

    /// Removes a name from branches, the nearest last: so what could not be removed stays hidden if anything fails.
    async fn remove(&self, path: &RelPath, branches: &[BranchId], op: &Op) -> Result<(), Errno> {
        let Some((first, hidden)) = branches.split_first() else {
            return Ok(());
        };
        let all = hidden
            .iter()
            .map(|branch| self.change(*branch, path, op.clone()));
        for done in join_all(all).await {
            match done {
                // Somebody else was faster.
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.change(*first, path, op.clone()).await.map(drop)
    }

    pub(super) async fn remove_directory(&self, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.path(parent)?;
        let path = directory.join(name)?;
        let (seen, _) = self.find(&directory, name, Need::All).await?;
        let Some((_, stat)) = seen.first() else {
            return Err(Errno::ENOENT);
        };
        if stat.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let branches: Vec<BranchId> = seen.directories().collect();
        let removed = self.remove_whole(&path, &branches, stat).await;
        let mut knowledge = self.knowledge.lock();
        knowledge.forget_below(&path);
        match removed {
            Ok(()) => {
                let left = seen
                    .copies
                    .into_iter()
                    .filter(|(_, stat)| stat.kind != Kind::Directory);
                let seen = Seen {
                    copies: left.collect(),
                    complete: true,
                };
                knowledge.learn(&directory, name, seen, std::time::Instant::now());
                drop(knowledge);
                self.nodes.removed(&path);
            }
            Err(_) => knowledge.forget_name(&directory, name),
        }
        removed
    }

    /// Removes an empty directory wherever it is; one that is not is whole again.
    async fn remove_whole(
        &self,
        path: &RelPath,
        branches: &[BranchId],
        stat: Stat,
    ) -> Result<(), Errno> {
        if branches.len() > 1 && !self.is_empty(path, branches).await? {
            return Err(Errno::ENOTEMPTY);
        }
        let all = branches
            .iter()
            .map(|branch| async move { (*branch, self.change(*branch, path, Op::Rmdir).await) });
        let (mut failed, mut gone) = (None, Vec::new());
        for (branch, done) in join_all(all).await {
            match done {
                Ok(_) => gone.push(branch),
                Err(Errno::ENOENT) => {}
                Err(errno) => failed = Some(errno),
            }
        }
        let Some(errno) = failed else { return Ok(()) };
        let again = Op::Make {
            node: NewNode::Directory,
            mode: stat.mode,
            parents: Vec::new(),
        };
        join_all(
            gone.iter()
                .map(|branch| self.change(*branch, path, again.clone())),
        )
        .await;
        Err(errno)
    }

    pub(super) async fn move_name(
        &self,
        (parent, name): (InodeId, &[u8]),
        (new_parent, new_name): (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (from_dir, to_dir) = (self.path(parent)?, self.path(new_parent)?);
        let (from, to) = (from_dir.join(name)?, to_dir.join(new_name)?);
        let (source, target) = tokio::join!(
            self.find(&from_dir, name, Need::All),
            self.find(&to_dir, new_name, Need::All)
        );
        let ((source, _), (target, _)) = (source?, target?);
        if source.first().is_none() {
            return Err(Errno::ENOENT);
        }
        let keeps = self.check_target(&source, (&to, &target), mode).await?;
        self.hold(&to).await;
        let moved = self
            .move_on_branches((&from, &source), (&to_dir, &to, &target), mode)
            .await;
        let mut knowledge = self.knowledge.lock();
        let now = std::time::Instant::now();
        let whole = |copies: Vec<(BranchId, Stat)>| Seen {
            copies,
            complete: true,
        };
        let left = if keeps { target.copies } else { Vec::new() };
        let names = [
            (&from, &from_dir, name, left),
            (&to, &to_dir, new_name, source.copies),
        ];
        for (path, directory, name, copies) in names {
            knowledge.forget_below(path);
            match moved {
                Ok(()) => knowledge.learn(directory, name, whole(copies), now),
                Err(_) => knowledge.forget_name(directory, name),
            }
        }
        drop(knowledge);
        match (&moved, mode) {
            (Ok(()), RenameMode::Exchange) => self.nodes.exchanged(&from, &to),
            (Ok(()), _) => self.nodes.moved(&from, &to),
            (Err(_), _) => {}
        }
        moved
    }

    /// Whether a target may be replaced; true: both names are there afterwards.
    async fn check_target(
        &self,
        source: &Seen,
        (to, target): (&RelPath, &Seen),
        mode: RenameMode,
    ) -> Result<bool, Errno> {
        let there = target.first().is_some();
        match mode {
            RenameMode::NoReplace if there => return Err(Errno::EEXIST),
            RenameMode::Exchange if !there => return Err(Errno::ENOENT),
            RenameMode::Exchange => {
                let branches = |seen: &Seen| -> Vec<BranchId> {
                    seen.copies.iter().map(|(branch, _)| *branch).collect()
                };
                // Two hosts cannot change two names at one moment.
                let one = source.copies.len() == 1 && branches(source) == branches(target);
                return if one { Ok(true) } else { Err(Errno::EINVAL) };
            }
            RenameMode::NoReplace | RenameMode::Replace => {}
        }
        match (is_directory(source), is_directory(target)) {
            _ if !there => {}
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) => {
                let homes: Vec<BranchId> = target.directories().collect();
                if !self.is_empty(to, &homes).await? {
                    return Err(Errno::ENOTEMPTY);
                }
            }
            (false, false) => {}
        }
        Ok(false)
    }

    /// All or nothing, as far as hosts answer: what is replaced on a branch is kept aside until all have moved, where there are
    /// several, and what the new name has hidden elsewhere goes last.
    async fn move_on_branches(
        &self,
        (from, source): (&RelPath, &Seen),
        (to_dir, to, target): (&RelPath, &RelPath, &Seen),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let sources: Vec<BranchId> = source.copies.iter().map(|(branch, _)| *branch).collect();
        let (replaced, hidden): (Vec<_>, Vec<_>) = target
            .copies
            .iter()
            .copied()
            .filter(|_| mode != RenameMode::Exchange)
            .partition(|(branch, _)| sources.contains(branch));
        let aside = match sources.len() > 1 && !replaced.is_empty() {
            true => Some(to_dir.join(format!(".replaced-{:x}", self.number()).as_bytes())?),
            false => None,
        };
        let mut done: Vec<(BranchId, RelPath, RelPath)> = Vec::new();
        let mut failed = None;
        if let Some(aside) = &aside {
            for (branch, _) in &replaced {
                let kept = self
                    .rename_there(*branch, (to, aside), RenameMode::NoReplace)
                    .await;
                match kept {
                    Ok(()) => done.push((*branch, to.clone(), aside.clone())),
                    Err(errno) => failed = failed.or(Some(errno)),
                }
            }
        }
        for branch in sources {
            if failed.is_some() {
                break;
            }
            match self.rename_there(branch, (from, to), mode).await {
                Ok(()) => done.push((branch, from.clone(), to.clone())),
                Err(errno) => failed = Some(errno),
            }
        }
        if let Some(errno) = failed {
            for (branch, was, is) in done.into_iter().rev() {
                let back = self
                    .rename_there(branch, (&is, &was), RenameMode::NoReplace)
                    .await;
                if let Err(errno) = back {
                    tracing::warn!(%was, %is, %errno, "a rename that failed could not be taken back");
                }
            }
            return Err(errno);
        }
        let mut goes: Vec<(RelPath, BranchId, Kind)> = Vec::new();
        if let Some(aside) = &aside {
            goes.extend(
                replaced
                    .iter()
                    .map(|(branch, stat)| (aside.clone(), *branch, stat.kind)),
            );
        }
        // The nearest last: what could not be removed stays hidden if anything fails.
        goes.extend(
            hidden
                .iter()
                .rev()
                .map(|(branch, stat)| (to.clone(), *branch, stat.kind)),
        );
        for (path, branch, kind) in goes {
            let op = match kind {
                Kind::Directory => Op::Rmdir,
                _ => Op::Unlink,
            };
            match self.change(branch, &path, op).await {
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    async fn rename_there(
        &self,
        branch: BranchId,
        (from, to): (&RelPath, &RelPath),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let parents = match to.split() {
            Some((above, _)) => self.parents(&above, branch).await,
            None => Vec::new(),
        };
        let op = Op::Rename {
            to: to.clone(),
            mode,
            parents: parents.clone(),
        };
        self.change(branch, from, op).await?;
        self.made_parents(&parents);
        Ok(())
    }
}
