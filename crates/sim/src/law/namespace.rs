//! The namespace is well formed over all containers: every entry names an inode that exists, an inode counts its names,
//! a directory has one name and knows its parent, and whatever has no name is noted as an orphan, or kept: one of the two.

use crate::names::world::Names;
use perigee_meta::memory::MemView;
use perigee_meta::{Attr, Context, Key, Kind, Op, Reply, execute};
use perigee_types::{ContainerId, InodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LAW: &str = "namespace";

/// More entries than a history makes.
const LISTING_MAX: usize = 10_000;

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    let mut view = MemView::new();
    for (container, rows) in &world.history.rows {
        view.states.insert(*container, rows.clone());
    }
    if let Err(what) = walk(&mut view) {
        world.accuse(LAW, what);
    }
}

/// Names found for an inode, and how many of them are of its subdirectories.
#[derive(Default)]
struct Found {
    names: u32,
    subdirectories: u32,
}

fn walk(view: &mut MemView) -> Result<(), String> {
    let mut found: BTreeMap<InodeId, Found> = BTreeMap::new();
    let mut left = VecDeque::from([InodeId::ROOT]);
    found.entry(InodeId::ROOT).or_default().names = 1;
    while let Some(dir) = left.pop_front() {
        for entry in list(view, dir)? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let what = format!("{dir}/{name}");
            let attr = attr(view, entry.inode).ok_or(format!("{what} names nothing"))?;
            let this = found.entry(entry.inode).or_default();
            this.names += 1;
            let first = this.names == 1;
            if entry.kind != attr.kind {
                return Err(format!(
                    "{what} is {:?}, and leads to {:?}",
                    entry.kind, attr.kind
                ));
            }
            if attr.kind != Kind::Directory {
                continue;
            }
            if !first {
                return Err(format!("{what} is a second name of a directory"));
            }
            if parent(view, entry.inode) != Some(dir) {
                return Err(format!("{what} has another parent"));
            }
            found.entry(dir).or_default().subdirectories += 1;
            left.push_back(entry.inode);
        }
    }
    count(view, &found)
}

/// Every inode counts its names, and those without any are noted.
fn count(view: &mut MemView, found: &BTreeMap<InodeId, Found>) -> Result<(), String> {
    let containers: Vec<ContainerId> = view.states.keys().copied().collect();
    for container in containers {
        let keys = |wanted: fn(Key) -> Option<InodeId>| -> BTreeSet<InodeId> {
            let keys = view.states[&container].keys();
            let indexes = keys.filter_map(|key| Key::decode(key).and_then(wanted));
            indexes
                .map(|inode| InodeId::new(container, inode.index()))
                .collect()
        };
        let inodes = keys(|key| match key {
            Key::Inode(index) => Some(InodeId::new(ContainerId::ROOT, index)),
            _ => None,
        });
        let orphans = keys(|key| match key {
            Key::Orphan(index) => Some(InodeId::new(ContainerId::ROOT, index)),
            _ => None,
        });
        let kept = keys(|key| match key {
            Key::Trash(_, index) => Some(InodeId::new(ContainerId::ROOT, index)),
            _ => None,
        });
        for inode in inodes {
            let attr = attr(view, inode).ok_or(format!("{inode} is unreadable"))?;
            let names = found.get(&inode);
            let expected = match (names, attr.kind) {
                (None, _) => 0,
                (Some(found), Kind::Directory) => 2 + found.subdirectories,
                (Some(found), _) => found.names,
            };
            if attr.nlink != expected {
                let kind = attr.kind;
                return Err(format!(
                    "{inode} ({kind:?}) counts {} links and has {expected}",
                    attr.nlink
                ));
            }
            // Of a directory what it was like is kept, and itself it is an orphan.
            let is_kept = kept.contains(&inode) && attr.kind != Kind::Directory;
            let is = [names.is_some(), orphans.contains(&inode), is_kept];
            if is.into_iter().filter(|so| *so).count() != 1 {
                return Err(format!(
                    "{inode} has a name, or is an orphan, or is kept: one of the three, and not {is:?}"
                ));
            }
        }
    }
    Ok(())
}

fn list(view: &mut MemView, inode: InodeId) -> Result<Vec<perigee_meta::ListEntry>, String> {
    let op = Op::ReadDir {
        inode,
        cookie: 0,
        limit: LISTING_MAX,
    };
    match execute(&op, &Context::default(), view).map(|outcome| outcome.reply) {
        Ok(Reply::Listing(rows)) => Ok(rows),
        other => Err(format!("{inode} cannot be listed: {other:?}")),
    }
}

fn attr(view: &mut MemView, inode: InodeId) -> Option<Attr> {
    match execute(&Op::GetAttr { inode }, &Context::default(), view).map(|found| found.reply) {
        Ok(Reply::Attr(attr)) => Some(attr),
        _ => None,
    }
}

fn parent(view: &mut MemView, inode: InodeId) -> Option<InodeId> {
    let op = Op::Lookup {
        parent: inode,
        name: b"..".to_vec(),
    };
    match execute(&op, &Context::default(), view).map(|found| found.reply) {
        Ok(Reply::Entry(attr)) => Some(attr.inode),
        Ok(Reply::Leads(inode)) => Some(inode),
        _ => None,
    }
}
