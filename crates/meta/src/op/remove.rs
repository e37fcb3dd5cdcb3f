//! `unlink`, `rmdir`, and the end of inodes that have lost their last name.

use crate::attr::Kind;
use crate::dentry::{self, Found};
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::rename::Place;
use crate::op::{Reply, trash};
use crate::record;
use perigee_types::{Batch, ContainerId, DataCommand, Errno, InodeId, InodeIndex, Mutation};

/// Extended attributes that one scan of a reaping takes.
const XATTRS_PER_SCAN: usize = 1024;

pub(crate) fn unlink(
    draft: &mut Draft<'_>,
    parent: InodeId,
    name: &[u8],
    by: u32,
) -> Result<Reply, Refusal> {
    let found = existing(draft, parent, name)?;
    if found.kind == Kind::Directory {
        return Err(Errno::EISDIR.into());
    }
    dentry::remove(draft, parent, name, &found)?;
    let place = Place { dir: parent, name };
    let nlink = drop_link(draft, place, &found, by)?;
    Ok(removed(&found, nlink))
}

pub(crate) fn rmdir(
    draft: &mut Draft<'_>,
    parent: InodeId,
    name: &[u8],
    by: u32,
) -> Result<Reply, Refusal> {
    let found = existing(draft, parent, name)?;
    if found.kind != Kind::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    let place = Place { dir: parent, name };
    trash::keep_directory(draft, place, &found, by)?;
    drop_directory(draft, parent, &found)?;
    dentry::remove(draft, parent, name, &found)?;
    Ok(removed(&found, 0))
}

fn removed(found: &Found, nlink: u32) -> Reply {
    Reply::Removed {
        inode: found.inode,
        nlink,
        kind: found.kind,
    }
}

fn existing(draft: &mut Draft<'_>, parent: InodeId, name: &[u8]) -> Result<Found, Refusal> {
    dentry::check_name(name)?;
    draft.live_directory(parent)?;
    dentry::find(draft, parent, name)?.ok_or(Refusal::Errno(Errno::ENOENT))
}

/// Takes one name from an inode that is not a directory, and gives the links that are left. After the last one it is
/// an orphan, or kept.
pub(crate) fn drop_link(
    draft: &mut Draft<'_>,
    place: Place<'_>,
    found: &Found,
    by: u32,
) -> Result<u32, Refusal> {
    let inode = found.inode;
    let mut record = draft.named_inode(place.dir, inode)?;
    let Some(nlink) = record.nlink.checked_sub(1) else {
        return Err(record::corrupt(
            inode.container(),
            &Key::Inode(inode.index()).encode(),
            "an inode has more names than it counts",
        ));
    };
    record.nlink = nlink;
    record.ctime = draft.now();
    draft.set_inode(inode, record);
    if nlink == 0 && !trash::keep(draft, place, inode, by) {
        mark_orphan(draft, inode);
    }
    Ok(nlink)
}

/// Takes the name from a directory; ENOTEMPTY when it has entries.
pub(crate) fn drop_directory(
    draft: &mut Draft<'_>,
    parent: InodeId,
    found: &Found,
) -> Result<(), Refusal> {
    let inode = found.inode;
    let mut record = draft.named_inode(parent, inode)?;
    if record.entries != 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    record.nlink = 0;
    record.ctime = draft.now();
    draft.set_inode(inode, record);
    draft.delete(inode.container(), Key::Parent(inode.index()).encode());
    mark_orphan(draft, inode);
    Ok(())
}

/// Notes that an inode has no name, and goes when nobody has it open.
pub(crate) fn mark_orphan(draft: &mut Draft<'_>, inode: InodeId) {
    let key = Key::Orphan(inode.index()).encode();
    draft.put(inode.container(), key, Vec::new());
}

pub(crate) fn orphans(
    draft: &mut Draft<'_>,
    container: ContainerId,
    after: Option<InodeIndex>,
    limit: usize,
) -> Result<Reply, Refusal> {
    let mut inodes = Vec::new();
    for (key, _) in draft.scan(container, &key::orphans(after), limit)? {
        let Some(Key::Orphan(index)) = Key::decode(&key) else {
            return Err(record::corrupt(container, &key, "not the key of an orphan"));
        };
        inodes.push(InodeId::new(container, index));
    }
    Ok(Reply::Inodes(inodes))
}

pub(crate) fn reap(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    let (container, index) = (inode.container(), inode.index());
    let Some(record) = draft.find_inode(inode)? else {
        return Ok(Reply::Done);
    };
    if record.nlink != 0 {
        return Ok(Reply::Done);
    }
    // What has no name and is no orphan is kept.
    let orphan = Key::Orphan(index).encode();
    if draft.get(container, &orphan)?.is_none() {
        return Ok(Reply::Done);
    }
    // Its columns go first.
    if record.layout.has_columns() {
        return Ok(Reply::Done);
    }
    if record.xattrs != 0 {
        drop_xattrs(draft, inode)?;
    }
    match record.kind {
        Kind::File => draft.command(DataCommand::Removed { inode }),
        Kind::Symlink => draft.delete(container, Key::Symlink(index).encode()),
        Kind::Directory if record.policy => draft.delete(container, Key::Policy(index).encode()),
        Kind::Directory | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
    }
    draft.delete(container, Key::Locks(index).encode());
    draft.delete(container, orphan);
    draft.remove_inode(inode);
    Ok(Reply::Done)
}

/// Takes an inode away in the batch that takes its last name, as [`Op::Reap`] would in the next one: for an owner who knows
/// that nobody has it open. `locked`: it may have a row of locks. Gives whether it did; it changes nothing where more would
/// have to be removed than the batch tells of, or where the inode is kept.
///
/// [`Op::Reap`]: crate::Op::Reap
pub fn remove_with_name(batch: &mut Batch, inode: InodeId, locked: bool) -> Result<bool, Refusal> {
    let (container, index) = (inode.container(), inode.index());
    let (key, orphan) = (Key::Inode(index).encode(), Key::Orphan(index).encode());
    let row = |key: &[u8]| {
        let mut mutations = batch.mutations.iter();
        mutations.position(|mutation| mutation.key == key && mutation.value.is_some())
    };
    let (Some(at), Some(orphan)) = (row(&key), row(&orphan)) else {
        return Ok(false);
    };
    let Some(value) = &batch.mutations[at].value else {
        return Ok(false);
    };
    let record = record::decode_inode(container, &key, value)?;
    let alone = record.nlink == 0 && record.xattrs == 0 && !record.layout.has_columns();
    if !alone || record.policy {
        return Ok(false);
    }
    batch.mutations[at].value = None;
    // It was none before this record, and is none after it.
    batch.mutations.remove(orphan);
    let gone = |key: Key| Mutation {
        key: key.encode(),
        value: None,
    };
    match record.kind {
        Kind::File => batch.data.push(DataCommand::Removed { inode }),
        Kind::Symlink => batch.mutations.push(gone(Key::Symlink(index))),
        Kind::Directory | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
    }
    if locked {
        batch.mutations.push(gone(Key::Locks(index)));
    }
    Ok(true)
}

fn drop_xattrs(draft: &mut Draft<'_>, inode: InodeId) -> Result<(), Refusal> {
    let container = inode.container();
    let (mut from, to) = key::xattrs(inode.index());
    loop {
        let rows = draft.scan(container, &(from, to.clone()), XATTRS_PER_SCAN)?;
        let Some((last, _)) = rows.last() else {
            return Ok(());
        };
        from = last.to_vec();
        from.push(0);
        for (key, _) in rows {
            draft.delete(container, key.to_vec());
        }
    }
}
