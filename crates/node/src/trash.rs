//! What was removed and is kept, for people: listed with the paths that it had, brought back, purged.

use crate::node::Node;
pub use perigee_meta::Credential;
use perigee_meta::{Attr, Kind, NewNode, Op, Reply, SetAttr, TrashId, Trashed};
use perigee_proto::admin::{AdminPath, Bring, Brought, TrashKind, TrashName, TrashRow};
use perigee_types::{ContainerId, Errno, InodeId, WallTime};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Entries that one question asks for, of the trash and of a directory.
const PAGE: usize = 1_000;
/// What one question purges.
const PURGE_MAX: usize = 500;
/// Directories above something that are walked; hundreds of times what a path can name.
const DEPTH_MAX: usize = 1 << 14;

/// Paths of directories by their inodes: of those that are there by their names now, of those that were removed by what is
/// kept of them.
struct Paths<'a> {
    node: &'a Node,
    removed: HashMap<InodeId, (InodeId, Vec<u8>)>,
    known: HashMap<InodeId, Option<Vec<u8>>>,
    /// Directories in a directory.
    names: HashMap<InodeId, HashMap<InodeId, Vec<u8>>>,
}

impl Paths<'_> {
    /// The path of a directory, without a slash at its end; `None` where one above it is not known any more.
    async fn of(&mut self, directory: InodeId) -> Result<Option<Vec<u8>>, Errno> {
        let mut below = Vec::new();
        let mut at = directory;
        let mut path = loop {
            if at == InodeId::ROOT {
                break Some(Vec::new());
            }
            if let Some(known) = self.known.get(&at) {
                break known.clone();
            }
            let above = self.above(at).await?;
            let Some((parent, name)) = above.filter(|_| below.len() < DEPTH_MAX) else {
                self.known.insert(at, None);
                break None;
            };
            below.push((at, name));
            at = parent;
        };
        for (inode, name) in below.into_iter().rev() {
            if let Some(path) = &mut path {
                path.push(b'/');
                path.extend_from_slice(&name);
            }
            self.known.insert(inode, path.clone());
        }
        Ok(path)
    }

    /// The directory above a directory, and the name there.
    async fn above(&mut self, directory: InodeId) -> Result<Option<(InodeId, Vec<u8>)>, Errno> {
        if let Some(removed) = self.removed.get(&directory) {
            return Ok(Some(removed.clone()));
        }
        let up = Op::Lookup {
            parent: directory,
            name: b"..".to_vec(),
        };
        let parent = match self.node.ask(up).await {
            Ok(Reply::Entry(attr)) => attr.inode,
            Ok(Reply::Leads(inode)) => inode,
            Ok(_) | Err(Errno::ESTALE | Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if !self.names.contains_key(&parent) {
            let names = self.node.directories_in(parent).await?;
            self.names.insert(parent, names);
        }
        let name = self
            .names
            .get(&parent)
            .and_then(|names| names.get(&directory));
        Ok(name.map(|name| (parent, name.clone())))
    }
}

impl Node {
    /// What was removed and is kept, that had this path or one below it, and directories above that, the latest first. Others
    /// than root see what is theirs.
    ///
    /// # Errors
    /// EIO and so on, when an owner does not answer.
    pub async fn trash(&self, path: &AdminPath, cred: Credential) -> Result<Vec<TrashRow>, Errno> {
        let containers: Vec<ContainerId> = {
            let directory = self.env.directory.read();
            directory.containers.keys().copied().collect()
        };
        let mut kept = Vec::new();
        for container in containers {
            kept.extend(self.kept_in(container).await?);
        }
        // To the nanosecond: a program can replace a file twice in a millisecond.
        kept.sort_by_key(|row| Reverse((row.removed, row.id)));
        let directories = kept.iter().filter(|row| row.kind == Kind::Directory);
        let mut paths = Paths {
            node: self,
            removed: directories
                .map(|row| (row.id.inode, (row.parent, row.name.clone())))
                .collect(),
            known: HashMap::new(),
            names: HashMap::new(),
        };
        let wanted = normal(path);
        let mut rows = Vec::new();
        for row in kept {
            if cred.uid != 0 && cred.uid != row.uid {
                continue;
            }
            let path = paths.of(row.parent).await?.map(|mut path| {
                path.push(b'/');
                path.extend_from_slice(&row.name);
                path
            });
            let above = path.as_deref().filter(|_| row.kind == Kind::Directory);
            let leads_there = above.is_some_and(|path| is_below(Some(&wanted), path));
            if leads_there || is_below(path.as_deref(), &wanted) {
                rows.push(shown(row, path));
            }
        }
        Ok(rows)
    }

    async fn kept_in(&self, container: ContainerId) -> Result<Vec<Trashed>, Errno> {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let op = Op::Trash {
                container,
                after,
                limit: PAGE,
            };
            let Reply::Trash(page) = self.ask(op).await? else {
                return Err(Errno::EPROTO);
            };
            let Some(last) = page.last() else {
                return Ok(rows);
            };
            after = Some(last.id);
            rows.extend(page);
        }
    }

    async fn directories_in(&self, directory: InodeId) -> Result<HashMap<InodeId, Vec<u8>>, Errno> {
        let (mut found, mut cookie) = (HashMap::new(), 0);
        loop {
            let op = Op::ReadDir {
                inode: directory,
                cookie,
                limit: PAGE,
            };
            let page = match self.ask(op).await {
                Ok(Reply::Listing(page)) => page,
                Ok(_) => return Err(Errno::EPROTO),
                // Removed meanwhile.
                Err(Errno::ESTALE) => return Ok(found),
                Err(errno) => return Err(errno),
            };
            let Some(last) = page.last() else {
                return Ok(found);
            };
            cookie = last.cookie;
            let directories = page.into_iter().filter(|row| row.kind == Kind::Directory);
            found.extend(directories.map(|row| (row.inode, row.name)));
        }
    }

    /// Brings things back, one after the other; says what came of each.
    pub async fn bring_back(&self, entries: Vec<Bring>, cred: Credential) -> Vec<Brought> {
        let mut known = HashMap::new();
        let mut came = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = match &entry {
                Bring::Directory { path, .. } => path,
                Bring::Kept { to, .. } => to,
            };
            let result = match self.place(path, &mut known).await {
                Ok(place) => self.bring_one(&entry, place, cred).await,
                Err(errno) => Err(errno),
            };
            came.push(match result {
                Ok(()) => Brought::Done,
                Err(Errno::EEXIST) => Brought::Occupied,
                Err(Errno::ENOENT) => Brought::Gone,
                Err(Errno::EPERM | Errno::EACCES) => Brought::Denied,
                Err(errno) => Brought::Failed(errno.to_string()),
            });
        }
        came
    }

    /// The directory of a path, and the last name.
    async fn place(
        &self,
        path: &AdminPath,
        known: &mut HashMap<Vec<u8>, Attr>,
    ) -> Result<(Attr, Vec<u8>), Errno> {
        let path = normal(path);
        let cut = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = path.split_at(cut.ok_or(Errno::EINVAL)?);
        let name = name.get(1..).unwrap_or_default().to_vec();
        if let Some(attr) = known.get(above) {
            return Ok((*attr, name));
        }
        let attr = self.find(&AdminPath(above.to_vec())).await;
        let attr = attr.map_err(|errno| match errno {
            // Not to be taken for something that is not kept any more.
            Errno::ENOENT => Errno::ENOTDIR,
            errno => errno,
        })?;
        known.insert(above.to_vec(), attr);
        Ok((attr, name))
    }

    async fn bring_one(
        &self,
        entry: &Bring,
        (parent, name): (Attr, Vec<u8>),
        cred: Credential,
    ) -> Result<(), Errno> {
        match *entry {
            Bring::Kept { name: kept, .. } => {
                let op = Op::Undelete {
                    id: TrashId {
                        until_ms: kept.until_ms,
                        inode: kept.inode,
                    },
                    new_parent: parent.inode,
                    new_name: name,
                    cred,
                };
                self.ask(op).await.map(|_| ())
            }
            Bring::Directory { mode, uid, gid, .. } => {
                let found = Op::Lookup {
                    parent: parent.inode,
                    name: name.clone(),
                };
                if !matches!(self.ask(found).await?, Reply::Absent) {
                    return Err(Errno::EEXIST);
                }
                let owner = Credential { uid, gid };
                self.make_again((parent, name), mode, owner, cred).await
            }
        }
    }

    /// Makes a directory that was removed. Others than root make their own ones in their own ones: no kernel has looked
    /// at their rights.
    async fn make_again(
        &self,
        (parent, name): (Attr, Vec<u8>),
        mode: u32,
        owner: Credential,
        cred: Credential,
    ) -> Result<(), Errno> {
        let mine = cred.uid == owner.uid && cred.uid == parent.uid && parent.mode & 0o300 == 0o300;
        if cred.uid != 0 && !mine {
            return Err(Errno::EACCES);
        }
        let make = Op::Make {
            parent: parent.inode,
            name,
            node: NewNode::Directory,
            mode,
            umask: 0,
            cred: owner,
            open_existing: false,
        };
        let Reply::Created { attr, .. } = self.ask(make).await? else {
            return Err(Errno::EPROTO);
        };
        // Where it is made may have set another group, or a default ACL another mode.
        if (attr.mode, attr.uid, attr.gid) == (mode, owner.uid, owner.gid) {
            return Ok(());
        }
        let set = SetAttr {
            mode: Some(mode),
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            ..SetAttr::default()
        };
        let inode = attr.inode;
        self.ask(Op::SetAttr { inode, set, cred }).await.map(|_| ())
    }

    /// Keeps no more what was removed; says how many it was.
    ///
    /// # Errors
    /// EIO and so on, when an owner does not answer: a part may be purged.
    pub async fn purge(&self, names: &[TrashName], cred: Credential) -> Result<u64, Errno> {
        let mut by_container: BTreeMap<ContainerId, Vec<TrashId>> = BTreeMap::new();
        for name in names {
            let id = TrashId {
                until_ms: name.until_ms,
                inode: name.inode,
            };
            by_container
                .entry(id.inode.container())
                .or_default()
                .push(id);
        }
        let mut purged = 0;
        for (container, ids) in by_container {
            for entries in ids.chunks(PURGE_MAX) {
                let op = Op::Purge {
                    container,
                    entries: entries.to_vec(),
                    cred,
                };
                match self.ask(op).await? {
                    Reply::Inodes(inodes) => purged += inodes.len() as u64,
                    _ => return Err(Errno::EPROTO),
                }
            }
        }
        Ok(purged)
    }
}

/// With a slash before each name, and nowhere else; empty for the root.
fn normal(path: &AdminPath) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.0.len());
    for name in path.0.split(|byte| *byte == b'/') {
        if !name.is_empty() {
            out.push(b'/');
            out.extend_from_slice(name);
        }
    }
    out
}

/// Whether a path is this one or below it; one that is not known is below the root.
fn is_below(path: Option<&[u8]>, top: &[u8]) -> bool {
    if top.is_empty() {
        return true;
    }
    let rest = path.and_then(|path| path.strip_prefix(top));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn shown(row: Trashed, path: Option<Vec<u8>>) -> TrashRow {
    TrashRow {
        name: TrashName {
            inode: row.id.inode,
            until_ms: row.id.until_ms,
        },
        path: path.map(AdminPath),
        last: AdminPath(row.name),
        removed_ms: millis(row.removed),
        by: row.by,
        kind: match row.kind {
            Kind::File => TrashKind::File,
            Kind::Symlink => TrashKind::Symlink,
            Kind::Directory => TrashKind::Directory,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => TrashKind::Special,
        },
        mode: row.mode,
        uid: row.uid,
        gid: row.gid,
        size: row.size,
    }
}

fn millis(time: WallTime) -> u64 {
    let secs = u64::try_from(time.secs).unwrap_or(0);
    let part = u64::from(time.nanos / 1_000_000);
    secs.saturating_mul(1_000).saturating_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_itself_and_what_is_above_it_alone() {
        let is = |path: &str, top: &str| {
            let top = normal(&AdminPath::from(top));
            is_below(Some(path.as_bytes()), &top)
        };
        assert!(is("/a/b", "/a") && is("/a/b", "/a/b/") && is("/a", "/") && is("/a", ""));
        assert!(!is("/ab", "/a") && !is("/a", "/a/b"));
        assert!(is_below(None, b"") && !is_below(None, b"/a"));
    }
}
