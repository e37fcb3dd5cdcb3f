//! Which inode numbers the kernel knows, and what they stand for.

use crate::path::RelPath;
use crate::wire::{BranchId, Stat};
use parking_lot::Mutex;
use perigee_client::fs::Kind;
use perigee_types::{Errno, InodeId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// An inode of a host.
type Key = (BranchId, u64, u64);

/// What a number stands for.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it is; a file with several names has one of them here, and one that is open may have none.
    path: Option<RelPath>,
    /// The nearest branch that has it.
    pub branch: BranchId,
    /// Its attributes, when last seen.
    pub stat: Stat,
    /// When that was.
    pub at: Instant,
    /// This mount has changed it since: its times are others now.
    pub changed: bool,
    /// Content that the kernel may still have: modified then, so long.
    pub paged: Option<Stat>,
}

impl Node {
    /// Where it is.
    ///
    /// # Errors
    /// ESTALE: it has no name any more.
    pub fn path(&self) -> Result<&RelPath, Errno> {
        self.path.as_ref().ok_or(Errno::ESTALE)
    }

    /// What tells it from another one that has its name now.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        let is_file = self.stat.kind != Kind::Directory;
        is_file.then_some((self.stat.device, self.stat.inode))
    }

    /// Whether what was seen under its path is the same file or directory.
    #[must_use]
    pub fn is(&self, branch: BranchId, stat: &Stat) -> bool {
        is((self.branch, &self.stat), (branch, stat))
    }
}

fn key(branch: BranchId, stat: &Stat) -> Key {
    (branch, stat.device, stat.inode)
}

fn is(known: (BranchId, &Stat), seen: (BranchId, &Stat)) -> bool {
    match (known.1.kind, seen.1.kind) {
        // It is where it is, on as many branches as there are.
        (Kind::Directory, Kind::Directory) => true,
        (a, b) => a == b && key(known.0, known.1) == key(seen.0, seen.1),
    }
}

/// How long an answer may be on its way and still be overtaken.
const OVERTAKES: Duration = Duration::from_secs(5);

/// A name in a directory.
type Name = (InodeId, Vec<u8>);

#[derive(Debug)]
struct Known {
    names: Vec<Name>,
    branch: BranchId,
    stat: Stat,
    changed: bool,
    /// This mount has removed it: what has its number on its host now is another one.
    gone: bool,
    paged: Option<Stat>,
    refs: u64,
    /// Rises with each change of its content by this mount: what was read before is old.
    content: u64,
    /// When its attributes were last seen.
    at: Instant,
}

impl Known {
    /// Takes attributes, unless they were overtaken on their way by later ones: those of one inode rise with each change.
    /// Not for long, since clocks may be put back.
    fn take(&mut self, branch: BranchId, stat: &Stat) -> bool {
        let same = key(self.branch, &self.stat) == key(branch, stat);
        let late = same && stat.ctime < self.stat.ctime && self.at.elapsed() < OVERTAKES;
        if !late {
            (self.branch, self.stat, self.at) = (branch, *stat, Instant::now());
        }
        !late
    }
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<InodeId, Known>,
    by_name: HashMap<Name, InodeId>,
}

/// The deepest path, in names.
const DEPTH_MAX: usize = 2_048;

impl Table {
    fn walk(&self, path: &RelPath) -> Option<InodeId> {
        let names = path.names();
        names.into_iter().try_fold(InodeId::ROOT, |at, name| {
            self.by_name.get(&(at, name.to_vec())).copied()
        })
    }

    /// The directory and the name of a path.
    fn name(&self, path: &RelPath) -> Option<Name> {
        let (above, name) = path.split()?;
        Some((self.walk(&above)?, name.to_vec()))
    }

    fn path(&self, id: InodeId) -> Option<RelPath> {
        let (mut at, mut names) = (id, Vec::new());
        while at != InodeId::ROOT {
            let (above, name) = self.by_id.get(&at)?.names.first()?;
            names.push(name);
            at = *above;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        let join = |path: RelPath, name: &&Vec<u8>| path.join(name);
        names.iter().rev().try_fold(RelPath::ROOT, join).ok()
    }

    fn node(&self, id: InodeId) -> Option<Node> {
        let known = self.by_id.get(&id)?;
        Some(Node {
            path: self.path(id),
            branch: known.branch,
            stat: known.stat,
            at: known.at,
            changed: known.changed,
            paged: known.paged,
        })
    }

    /// Gives a name to something else; what had it loses it.
    fn bind(&mut self, name: Name, id: InodeId) {
        let before = self.by_name.insert(name.clone(), id);
        if let Some(before) = before.filter(|before| *before != id) {
            self.lose(before, &name);
        }
        let Some(known) = self.by_id.get_mut(&id) else {
            return;
        };
        // What was just seen is so; older names may have been taken away on its host. A directory has one alone.
        known.names.retain(|other| *other != name);
        let old = match known.stat.kind {
            Kind::Directory => std::mem::take(&mut known.names),
            _ => Vec::new(),
        };
        known.names.insert(0, name);
        for name in old {
            self.by_name.remove(&name);
        }
    }

    fn unbind(&mut self, name: &Name) -> Option<InodeId> {
        let id = self.by_name.remove(name)?;
        self.lose(id, name);
        Some(id)
    }

    fn has_changed(&mut self, id: InodeId) {
        if let Some(known) = self.by_id.get_mut(&id) {
            known.changed = true;
        }
    }

    fn lose(&mut self, id: InodeId, name: &Name) {
        if let Some(known) = self.by_id.get_mut(&id) {
            known.names.retain(|other| other != name);
        }
    }
}

/// The first number that is tried for an inode of a host: the same whenever it is seen, as programs expect that compare
/// numbers. Two that agree by chance get others.
fn number(key: Key) -> InodeId {
    use siphasher::sip::SipHasher13;
    use std::hash::{Hash, Hasher};
    let mut hasher = SipHasher13::new();
    key.hash(&mut hasher);
    // Above every number that a root can have.
    InodeId((hasher.finish() >> 1) | (1 << 62))
}

/// The numbers of one mount.
#[derive(Debug)]
pub struct Nodes {
    table: Mutex<Table>,
}

impl Nodes {
    /// The root alone.
    #[must_use]
    pub fn new(branch: BranchId, root: Stat) -> Self {
        let mut table = Table::default();
        let known = Known {
            names: Vec::new(),
            branch,
            stat: root,
            changed: false,
            gone: false,
            paged: None,
            refs: u64::MAX / 2,
            content: 0,
            at: Instant::now(),
        };
        table.by_id.insert(InodeId::ROOT, known);
        Self {
            table: Mutex::new(table),
        }
    }

    /// What a number stands for.
    ///
    /// # Errors
    /// ESTALE: nothing that the kernel was told of.
    pub fn get(&self, inode: InodeId) -> Result<Node, Errno> {
        self.table.lock().node(inode).ok_or(Errno::ESTALE)
    }

    /// All paths by which it is known.
    #[must_use]
    pub fn paths(&self, inode: InodeId) -> Vec<RelPath> {
        let table = self.table.lock();
        let names = table
            .by_id
            .get(&inode)
            .map_or(&[][..], |known| &known.names);
        let path = |(above, name): &Name| table.path(*above)?.join(name).ok();
        names.iter().filter_map(path).collect()
    }

    /// What is known to be at a path.
    ///
    /// # Errors
    /// ENOENT: nothing is known.
    pub fn at(&self, path: &RelPath) -> Result<Node, Errno> {
        let table = self.table.lock();
        let node = table.walk(path).and_then(|id| table.node(id));
        node.ok_or(Errno::ENOENT)
    }

    /// The number of what is known to be at a path.
    #[must_use]
    pub fn id(&self, path: &RelPath) -> Option<InodeId> {
        self.table.lock().walk(path)
    }

    /// The number that a listing shows for what is at a path.
    #[must_use]
    pub fn shown(&self, path: &RelPath, branch: BranchId, stat: &Stat) -> InodeId {
        let known = self.table.lock().walk(path);
        known.unwrap_or_else(|| number(key(branch, stat)))
    }

    /// The number of what was seen at a path, for `refs` more references of the kernel.
    ///
    /// With it come the attributes that are the latest known: what was seen may have been overtaken on its way.
    pub fn seen(
        &self,
        path: &RelPath,
        branch: BranchId,
        stat: &Stat,
        refs: u64,
    ) -> (InodeId, Stat) {
        let table = &mut *self.table.lock();
        let same = table.walk(path).filter(|id| {
            let known = table.by_id.get(id);
            known.is_some_and(|known| is((known.branch, &known.stat), (branch, stat)))
        });
        let id = same.unwrap_or_else(|| {
            let mut id = number(key(branch, stat));
            let other = |known: &Known| {
                let same = key(known.branch, &known.stat) == key(branch, stat);
                known.gone || !same || known.stat.kind != stat.kind
            };
            while table.by_id.get(&id).is_some_and(other) {
                id = InodeId(id.0.wrapping_add(1) | (1 << 62));
            }
            id
        });
        let known = table.by_id.entry(id).or_insert_with(|| Known {
            names: Vec::new(),
            branch,
            stat: *stat,
            changed: false,
            gone: false,
            paged: None,
            refs: 0,
            content: 0,
            at: Instant::now(),
        });
        known.refs += refs;
        known.take(branch, stat);
        let latest = known.stat;
        if let Some(name) = table.name(path) {
            table.bind(name, id);
        }
        (id, latest)
    }

    /// Which content of it this mount has: what was read under another number is old.
    #[must_use]
    pub fn content(&self, inode: InodeId) -> u64 {
        let table = self.table.lock();
        table.by_id.get(&inode).map_or(0, |known| known.content)
    }

    /// This mount begins to change the content.
    pub fn rewrites(&self, inode: InodeId) {
        if let Some(known) = self.table.lock().by_id.get_mut(&inode) {
            known.content += 1;
        }
    }

    /// How long a file was when last seen, also one without a name.
    #[must_use]
    pub fn size(&self, inode: InodeId) -> u64 {
        let table = self.table.lock();
        table.by_id.get(&inode).map_or(0, |known| known.stat.size)
    }

    /// New attributes of one.
    pub fn update(&self, inode: InodeId, stat: &Stat) {
        if let Some(known) = self.table.lock().by_id.get_mut(&inode) {
            let branch = known.branch;
            known.changed &= !known.take(branch, stat);
        }
    }

    /// Something at a path was changed by this mount.
    pub fn changed(&self, path: &RelPath) {
        let table = &mut *self.table.lock();
        if let Some(id) = table.walk(path) {
            table.has_changed(id);
        }
    }

    /// Whether what is known of what is at a path is no longer so.
    #[must_use]
    pub fn is_changed(&self, path: &RelPath) -> bool {
        let table = self.table.lock();
        let known = table.walk(path).and_then(|id| table.by_id.get(&id));
        known.is_some_and(|known| known.changed)
    }

    /// Says of which content the kernel has pages, and gives what was said before.
    pub fn page(&self, inode: InodeId, stat: Option<Stat>) -> Option<Stat> {
        let mut table = self.table.lock();
        let known = table.by_id.get_mut(&inode)?;
        std::mem::replace(&mut known.paged, stat)
    }

    /// The kernel has dropped references.
    pub fn forget(&self, inode: InodeId, count: u64) {
        let table = &mut *self.table.lock();
        let Some(known) = table.by_id.get_mut(&inode) else {
            return;
        };
        known.refs = known.refs.saturating_sub(count);
        if known.refs == 0
            && let Some(known) = table.by_id.remove(&inode)
        {
            for name in known.names {
                table.by_name.remove(&name);
            }
        }
    }

    /// A file has one more name.
    pub fn linked(&self, inode: InodeId, path: &RelPath) {
        let table = &mut *self.table.lock();
        if let Some(name) = table.name(path) {
            table.bind(name, inode);
        }
    }

    /// A path leads nowhere any more, as far as can be seen.
    pub fn unname(&self, path: &RelPath) {
        let table = &mut *self.table.lock();
        if let Some(name) = table.name(path) {
            table.unbind(&name);
        }
    }

    /// This mount has removed a name.
    pub fn removed(&self, path: &RelPath) {
        let table = &mut *self.table.lock();
        let unbound = table.name(path).and_then(|name| table.unbind(&name));
        if let Some(known) = unbound.and_then(|id| table.by_id.get_mut(&id)) {
            let last = known.stat.nlink <= 1 || known.stat.kind == Kind::Directory;
            known.gone |= last && known.names.is_empty();
            known.changed = true;
        }
    }

    /// What was at a path, with all that is below it, is elsewhere, in place of what was there.
    pub fn moved(&self, from: &RelPath, to: &RelPath) {
        self.removed(to);
        let table = &mut *self.table.lock();
        let id = table.name(from).and_then(|name| table.unbind(&name));
        if let (Some(id), Some(to)) = (id, table.name(to)) {
            table.bind(to, id);
            table.has_changed(id);
        }
    }

    /// Two paths have changed places.
    pub fn exchanged(&self, a: &RelPath, b: &RelPath) {
        let table = &mut *self.table.lock();
        let (Some(a), Some(b)) = (table.name(a), table.name(b)) else {
            return;
        };
        let (at_a, at_b) = (table.unbind(&a), table.unbind(&b));
        for (name, id) in [(b, at_a), (a, at_b)] {
            if let Some(id) = id {
                table.bind(name, id);
                table.has_changed(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::try_from(text.as_bytes().to_vec()).expect("a path")
    }

    #[test]
    fn a_number_stands_for_one_file_under_all_its_names_and_wherever_it_goes() {
        let nodes = Nodes::new(BranchId(0), Stat::of(1, Kind::Directory, 2));
        let here = BranchId(0);
        let seen = |path: &RelPath, branch, stat: &Stat| nodes.seen(path, branch, stat, 1).0;
        for (number, directory) in [(2, "d"), (3, "x")] {
            seen(
                &path(directory),
                here,
                &Stat::of(number, Kind::Directory, 2),
            );
        }
        let first = seen(&path("d/a"), here, &Stat::of(7, Kind::File, 2));
        assert_eq!(seen(&path("b"), here, &Stat::of(7, Kind::File, 2)), first);
        let other = seen(&path("b"), BranchId(1), &Stat::of(7, Kind::File, 1));
        assert_ne!(other, first, "another host's file with the same number");
        let single = seen(&path("d/s"), here, &Stat::of(9, Kind::File, 1));
        nodes.moved(&path("d"), &path("e"));
        let at = |id| nodes.get(id).expect("known").path().cloned();
        assert_eq!(at(single), Ok(path("e/s")));
        assert_eq!(
            seen(&path("e/s"), here, &Stat::of(9, Kind::File, 1)),
            single
        );
        let anew = seen(&path("e/s"), here, &Stat::of(10, Kind::File, 1));
        assert_ne!(anew, single, "a new file of the same name");
        nodes.exchanged(&path("e"), &path("x"));
        assert_eq!(at(anew), Ok(path("x/s")));
        nodes.removed(&path("b"));
        assert_eq!(at(first), Ok(path("x/a")), "it has a name left");
        nodes.forget(single, 2);
        assert_eq!(nodes.get(single).map(drop), Err(Errno::ESTALE));
        assert!(nodes.get(anew).is_ok());
        assert_eq!(
            seen(&path("s"), here, &Stat::of(9, Kind::File, 1)),
            single,
            "as before"
        );
        nodes.removed(&path("s"));
        let reused = seen(&path("s"), here, &Stat::of(9, Kind::File, 1));
        assert_ne!(
            reused, single,
            "its host has given the number to another file"
        );
    }
    /// Somebody on another host has moved it, and made another one in its place.
    #[test]
    fn what_moved_on_its_host_is_where_it_was_seen_last() {
        let nodes = Nodes::new(BranchId(0), Stat::of(1, Kind::Directory, 2));
        let seen = |name: &str, inode, kind| {
            let (id, _) = nodes.seen(&path(name), BranchId(0), &Stat::of(inode, kind, 1), 1);
            id
        };
        let at = |id| nodes.get(id).expect("known").path().cloned();
        let logs = seen("logs", 5, Kind::Directory);
        assert_eq!(seen("archive", 5, Kind::Directory), logs);
        assert_eq!(at(logs), Ok(path("archive")));
        assert_ne!(seen("logs", 6, Kind::Directory), logs);
        assert_eq!(at(logs), Ok(path("archive")));
        let file = seen("f.tmp", 7, Kind::File);
        assert_eq!(seen("f", 7, Kind::File), file);
        assert_eq!(at(file), Ok(path("f")));
        // One that is open has no name left, and is known all the same.
        nodes.removed(&path("f"));
        nodes.removed(&path("f.tmp"));
        assert_eq!(at(file), Err(Errno::ESTALE));
        assert_eq!(nodes.size(file), 0);
    }
}
