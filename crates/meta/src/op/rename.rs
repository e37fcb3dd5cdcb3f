//! `renameat2`: moving a name, over another one or in exchange with it.

use crate::attr::Kind;
use crate::dentry::{self, Entry, Found};
use crate::draft::Draft;
use crate::error::Refusal;
use crate::op::remove::drop_directory;
use crate::op::{RenameMode, Reply, trash};
use perigee_types::{Errno, InodeId};

/// The deepest tree whose ancestors are walked; hundreds of times what a path can name. Beyond, the
/// parents form a loop.
pub(crate) const DEPTH_MAX: usize = 1 << 17;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) dir: InodeId,
    pub(crate) name: &'a [u8],
}

pub(crate) fn rename(
    draft: &mut Draft<'_>,
    from: Place<'_>,
    to: Place<'_>,
    mode: RenameMode,
    by: u32,
) -> Result<Reply, Refusal> {
    dentry::check_name(from.name)?;
    dentry::check_name(to.name)?;
    draft.live_directory(from.dir)?;
    draft.live_directory(to.dir)?;
    let source = dentry::find(draft, from.dir, from.name)?.ok_or(Errno::ENOENT)?;
    let target = dentry::search(draft, to.dir, to.name)?;
    match (mode, target) {
        (RenameMode::NoReplace, Entry::There(_)) => Err(Errno::EEXIST.into()),
        (RenameMode::Exchange, Entry::Missing(_)) => Err(Errno::ENOENT.into()),
        // Two names of one inode: POSIX wants both to stay.
        (RenameMode::Replace | RenameMode::Exchange, Entry::There(target))
            if target.inode == source.inode =>
        {
            Ok(Reply::Renamed {
                moved: source.inode,
                replaced: None,
            })
        }
        (RenameMode::Exchange, Entry::There(target)) => exchange(draft, from, to, &source, &target),
        (RenameMode::Replace, Entry::There(target)) => {
            replace(draft, from, to, (&source, &target), by)
        }
        (RenameMode::Replace | RenameMode::NoReplace, Entry::Missing(vacancy)) => {
            refuse_loop(draft, &source, from.dir, to.dir)?;
            dentry::remove(draft, from.dir, from.name, &source)?;
            let (inode, kind) = (source.inode, source.kind);
            dentry::add(draft, to.dir, to.name, vacancy, inode, kind)?;
            moved(draft, &source, from.dir, to.dir)?;
            Ok(Reply::Renamed {
                moved: source.inode,
                replaced: None,
            })
        }
    }
}

fn replace(
    draft: &mut Draft<'_>,
    from: Place<'_>,
    to: Place<'_>,
    (source, target): (&Found, &Found),
    by: u32,
) -> Result<Reply, Refusal> {
    refuse_loop(draft, source, from.dir, to.dir)?;
    match (
        source.kind == Kind::Directory,
        target.kind == Kind::Directory,
    ) {
        (true, false) => return Err(Errno::ENOTDIR.into()),
        (false, true) => return Err(Errno::EISDIR.into()),
        (true, true) => {
            trash::keep_directory(draft, to, target, by)?;
            drop_directory(draft, to.dir, target)?;
        }
        (false, false) => {
            trash::replaced(draft, to, target, by)?;
        }
    }
    dentry::remove(draft, from.dir, from.name, source)?;
    dentry::redirect(draft, to.dir, to.name, target, source.inode, source.kind)?;
    moved(draft, source, from.dir, to.dir)?;
    Ok(Reply::Renamed {
        moved: source.inode,
        replaced: Some(target.inode),
    })
}

fn exchange(
    draft: &mut Draft<'_>,
    from: Place<'_>,
    to: Place<'_>,
    source: &Found,
    target: &Found,
) -> Result<Reply, Refusal> {
    refuse_loop(draft, source, from.dir, to.dir)?;
    refuse_loop(draft, target, to.dir, from.dir)?;
    dentry::redirect(
        draft,
        from.dir,
        from.name,
        source,
        target.inode,
        target.kind,
    )?;
    dentry::redirect(draft, to.dir, to.name, target, source.inode, source.kind)?;
    moved(draft, source, from.dir, to.dir)?;
    moved(draft, target, to.dir, from.dir)?;
    Ok(Reply::Renamed {
        moved: source.inode,
        replaced: None,
    })
}

/// Notes in an inode that its name has moved.
fn moved(
    draft: &mut Draft<'_>,
    found: &Found,
    old_dir: InodeId,
    new_dir: InodeId,
) -> Result<(), Refusal> {
    let mut record = draft.named_inode(old_dir, found.inode)?;
    record.ctime = draft.now();
    if found.kind != Kind::Directory {
        record.parent = Some(new_dir);
    }
    draft.set_inode(found.inode, record);
    if found.kind == Kind::Directory && old_dir != new_dir {
        draft.set_parent(found.inode, new_dir);
    }
    Ok(())
}

/// EINVAL when a directory would get below itself.
///
/// The parents that are walked become part of what a transaction has read, so no concurrent rename
/// of one of them can close a loop.
fn refuse_loop(
    draft: &mut Draft<'_>,
    found: &Found,
    old_dir: InodeId,
    new_dir: InodeId,
) -> Result<(), Refusal> {
    if found.kind != Kind::Directory || old_dir == new_dir {
        return Ok(());
    }
    let mut at = new_dir;
    for _ in 0..DEPTH_MAX {
        if at == found.inode {
            return Err(Errno::EINVAL.into());
        }
        match draft.parent(at)? {
            Some(above) if above != at => at = above,
            // The root, or a tree that was removed under way.
            Some(_) | None => return Ok(()),
        }
    }
    Err(Errno::ELOOP.into())
}
