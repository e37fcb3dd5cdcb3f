//! An empty directory goes to another container: what is made in it from then on is kept there.
//!
//! Content stays where its inode was made, so only a directory that has none can go as a whole.

use crate::attr::Kind;
use crate::dentry;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key, Lane};
use crate::op::remove::drop_directory;
use crate::op::rename::Place;
use crate::op::{Reply, policy, trash};
use crate::record::{self, InodeRecord};
use crate::xattr;
use perigee_types::{ContainerId, Errno, InodeId};

/// Extended attributes that one scan takes.
const XATTRS_PER_SCAN: usize = 1024;

pub(crate) fn rehome(
    draft: &mut Draft<'_>,
    parent: InodeId,
    name: &[u8],
    container: ContainerId,
    settings: &[(String, String)],
) -> Result<Reply, Refusal> {
    dentry::check_name(name)?;
    draft.live_directory(parent)?;
    let found = dentry::find(draft, parent, name)?.ok_or(Errno::ENOENT)?;
    if found.kind != Kind::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    if found.inode.container() == container {
        return Err(Errno::EINVAL.into());
    }
    let old = draft.named_inode(parent, found.inode)?;
    // What was removed from it leads to this name still.
    let place = Place { dir: parent, name };
    trash::keep_directory(draft, place, &found, old.uid)?;
    // Refuses one that has entries.
    drop_directory(draft, parent, &found)?;
    let mut record = InodeRecord {
        atime: old.atime,
        mtime: old.mtime,
        policy: !settings.is_empty(),
        ..InodeRecord::new(Kind::Directory, old.mode, old.uid, old.gid, draft.now())
    };
    let lane = if container == parent.container() {
        Lane::Home
    } else {
        Lane::Away
    };
    let inode = draft.make_inode(container, lane, record)?;
    copy_xattrs(draft, found.inode, inode, &mut record)?;
    policy::write(draft, inode, settings)?;
    draft.set_parent(inode, parent);
    draft.fill_inode(inode, record);
    dentry::redirect(draft, parent, name, &found, inode, Kind::Directory)?;
    Ok(Reply::Renamed {
        moved: inode,
        replaced: Some(found.inode),
    })
}

fn copy_xattrs(
    draft: &mut Draft<'_>,
    from: InodeId,
    to: InodeId,
    record: &mut InodeRecord,
) -> Result<(), Refusal> {
    let container = from.container();
    let (mut start, end) = key::xattrs(from.index());
    loop {
        let rows = draft.scan(container, &(start, end.clone()), XATTRS_PER_SCAN)?;
        let Some((last, _)) = rows.last() else {
            return Ok(());
        };
        start = last.to_vec();
        start.push(0);
        for (key, value) in &rows {
            let Some(Key::Xattr(_, name)) = Key::decode(key) else {
                return Err(record::corrupt(
                    container,
                    key,
                    "not the key of an attribute",
                ));
            };
            xattr::write(draft, to, record, &name, value.to_vec())?;
        }
    }
}
