//! What is removed where a policy has it kept: it loses its name, and no more, until its time is over.
//!
//! An inode without a name is an orphan or kept, never both: orphans go when nobody has them open, what is kept becomes
//! an orphan when it is purged. Of a directory only what it was like is remembered, for what was in it; the
//! directory itself is an orphan as ever.

use crate::attr::Kind;
use crate::dentry::{self, Found};
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::remove::{drop_link, mark_orphan};
use crate::op::rename::{DEPTH_MAX, Place};
use crate::op::{Context, Credential, Reply, policy};
use crate::planted;
use crate::record::{self, InodeRecord, Kept, KeptAs};
use crate::view::View;
use perigee_types::{ContainerId, Errno, InodeId, WallTime};
use serde::{Deserialize, Serialize};

/// The most entries that one operation lists or purges: a record of the log has them all.
const ENTRIES_MAX: usize = 1_000;
/// Write and search permission in a class of a mode.
const MAY_ADD: u32 = 0o3;

/// Names what is kept of something that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TrashId {
    /// Until when it is kept, in milliseconds since 1970.
    pub until_ms: u64,
    /// What was removed.
    pub inode: InodeId,
}

impl TrashId {
    /// What is kept until this moment; a part of a millisecond counts as a whole one.
    #[must_use]
    pub fn new(until: WallTime, inode: InodeId) -> Self {
        let whole = u64::try_from(until.secs).unwrap_or(0).saturating_mul(1_000);
        let part = u64::from(until.nanos.div_ceil(1_000_000));
        Self {
            until_ms: whole.saturating_add(part),
            inode,
        }
    }

    /// Whether its time is over.
    #[must_use]
    pub fn is_due(self, now: WallTime) -> bool {
        self.until_ms <= Self::new(now, self.inode).until_ms
    }

    fn key(self) -> Vec<u8> {
        Key::Trash(self.until_ms, self.inode.index()).encode()
    }
}

/// Something that was removed and is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trashed {
    /// Names it.
    pub id: TrashId,
    /// Its last name.
    pub name: Vec<u8>,
    /// The directory that had it; it may be among what was removed.
    pub parent: InodeId,
    /// When it was removed.
    pub removed: WallTime,
    /// The user who removed it.
    pub by: u32,
    /// What it is. A directory cannot be brought back as it was: only what it was like is known.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
}

/// What the nearest directory above has of a setting, as far as one container knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nearest {
    /// This value.
    Is(String),
    /// No directory has it.
    Unset,
    /// This directory, of another container, has to say.
    Above(InodeId),
}

/// What is in force of one setting in a directory of a container, without a look at others.
pub fn nearest_setting(
    view: &mut dyn View,
    container: ContainerId,
    dir: InodeId,
    name: &str,
) -> Result<Nearest, Refusal> {
    let context = Context::default();
    let draft = &mut Draft::new(&context, view);
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at.container() != container {
            return Ok(Nearest::Above(at));
        }
        let directory = draft.find_inode(at)?;
        if directory.is_some_and(|directory| directory.policy) {
            let mut settings = policy::read(draft, at)?.into_iter();
            if let Some((_, value)) = settings.find(|(known, _)| known == name) {
                return Ok(Nearest::Is(value));
            }
        }
        match draft.parent(at)?.filter(|above| *above != at) {
            Some(above) => at = above,
            None => return Ok(Nearest::Unset),
        }
    }
    Err(Errno::ELOOP.into())
}

/// Keeps an inode that has just lost its last name, if that is wanted; says whether it is.
pub(crate) fn keep(draft: &mut Draft<'_>, place: Place<'_>, inode: InodeId, by: u32) -> bool {
    let kept = note(draft, place, inode, by, KeptAs::Inode);
    kept && !planted!(draft.context, KeptIsReaped)
}

/// Remembers what a directory is like that is about to be removed, if that is wanted.
pub(crate) fn keep_directory(
    draft: &mut Draft<'_>,
    place: Place<'_>,
    found: &Found,
    by: u32,
) -> Result<(), Refusal> {
    let InodeRecord { mode, uid, gid, .. } = draft.named_inode(place.dir, found.inode)?;
    let what = KeptAs::Directory { mode, uid, gid };
    note(draft, place, found.inode, by, what);
    Ok(())
}

fn note(draft: &mut Draft<'_>, place: Place<'_>, inode: InodeId, by: u32, what: KeptAs) -> bool {
    let Some(until) = draft.context.keep_until else {
        return false;
    };
    let kept = Kept {
        name: place.name.to_vec(),
        parent: place.dir,
        removed: draft.now(),
        by,
        what,
    };
    let key = TrashId::new(until, inode).key();
    draft.put(inode.container(), key, record::encode_kept(kept));
    true
}

/// Takes one name from what a rename replaces.
pub(crate) fn replaced(
    draft: &mut Draft<'_>,
    place: Place<'_>,
    found: &Found,
    by: u32,
) -> Result<(), Refusal> {
    let links = drop_link(draft, place, found, by)?;
    if links == 0
        && planted!(draft.context, ReplacedNotKept)
        && let Some(until) = draft.context.keep_until
    {
        let key = TrashId::new(until, found.inode).key();
        draft.delete(found.inode.container(), key);
        mark_orphan(draft, found.inode);
    }
    Ok(())
}

pub(crate) fn list(
    draft: &mut Draft<'_>,
    container: ContainerId,
    after: Option<TrashId>,
    limit: usize,
) -> Result<Reply, Refusal> {
    let from = after.map_or_else(Vec::new, |after| {
        let mut from = after.key();
        from.push(0);
        from
    });
    let rows = draft.scan(container, &key::trash(from), limit.min(ENTRIES_MAX))?;
    let mut found = Vec::with_capacity(rows.len());
    for (key, value) in rows {
        let Some(Key::Trash(until_ms, index)) = Key::decode(&key) else {
            return Err(record::corrupt(container, &key, "not a key of the trash"));
        };
        let inode = InodeId::new(container, index);
        let kept = record::decode_kept(container, &key, &value)?;
        found.push(shown(draft, TrashId { until_ms, inode }, kept)?);
    }
    Ok(Reply::Trash(found))
}

fn shown(draft: &mut Draft<'_>, id: TrashId, kept: Kept) -> Result<Trashed, Refusal> {
    let (kind, mode, uid, gid, size) = match kept.what {
        KeptAs::Inode => {
            let record = kept_inode(draft, id)?;
            (
                record.kind,
                record.mode,
                record.uid,
                record.gid,
                record.size,
            )
        }
        KeptAs::Directory { mode, uid, gid } => (Kind::Directory, mode, uid, gid, 0),
    };
    Ok(Trashed {
        id,
        name: kept.name,
        parent: kept.parent,
        removed: kept.removed,
        by: kept.by,
        kind,
        mode,
        uid,
        gid,
        size,
    })
}

/// The row of what is kept, if it is.
fn find(draft: &mut Draft<'_>, id: TrashId) -> Result<Option<Kept>, Refusal> {
    let (container, key) = (id.inode.container(), id.key());
    match draft.get(container, &key)? {
        Some(value) => Ok(Some(record::decode_kept(container, &key, &value)?)),
        None => Ok(None),
    }
}

/// The record of what is kept: it has no name.
fn kept_inode(draft: &mut Draft<'_>, id: TrashId) -> Result<InodeRecord, Refusal> {
    match draft.find_inode(id.inode)? {
        Some(record) if record.nlink == 0 => Ok(record),
        Some(_) | None => Err(record::corrupt(
            id.inode.container(),
            &id.key(),
            "what is kept has a name, or is not there",
        )),
    }
}

pub(crate) fn undelete(
    draft: &mut Draft<'_>,
    id: TrashId,
    place: Place<'_>,
    cred: Credential,
) -> Result<Reply, Refusal> {
    dentry::check_name(place.name)?;
    let directory = draft.live_directory(place.dir)?;
    let kept = find(draft, id)?.ok_or(Errno::ENOENT)?;
    if kept.what != KeptAs::Inode {
        return Err(Errno::EISDIR.into());
    }
    let mut record = kept_inode(draft, id)?;
    if cred.uid != 0 && cred.uid != record.uid {
        return Err(Errno::EPERM.into());
    }
    if !may_add(&directory, cred) {
        return Err(Errno::EACCES.into());
    }
    let vacancy = dentry::vacancy(draft, place.dir, place.name)?;
    record.nlink = 1;
    record.ctime = draft.now();
    record.parent = Some(place.dir);
    draft.set_inode(id.inode, record);
    if !planted!(draft.context, BroughtBackStays) {
        draft.delete(id.inode.container(), id.key());
    }
    let (inode, kind) = (id.inode, record.kind);
    dentry::add(draft, place.dir, place.name, vacancy, inode, kind)?;
    Ok(Reply::Entry(record.attr(id.inode)))
}

/// Whether somebody may make names in a directory. No kernel has looked: of a directory with an ACL only its owner is sure to
/// be let in, since the list is not consulted.
fn may_add(directory: &InodeRecord, cred: Credential) -> bool {
    let class = if cred.uid == 0 {
        return true;
    } else if cred.uid == directory.uid {
        directory.mode >> 6
    } else if directory.access_acl {
        return false;
    } else if cred.gid == directory.gid {
        directory.mode >> 3
    } else {
        directory.mode
    };
    class & MAY_ADD == MAY_ADD
}

pub(crate) fn purge(
    draft: &mut Draft<'_>,
    container: ContainerId,
    entries: &[TrashId],
    cred: Credential,
) -> Result<Reply, Refusal> {
    let mine = |id: &TrashId| id.inode.container() == container;
    if entries.len() > ENTRIES_MAX || !entries.iter().all(mine) {
        return Err(Errno::EINVAL.into());
    }
    let mut orphans = Vec::new();
    for &id in entries {
        let Some(kept) = find(draft, id)? else {
            continue;
        };
        let owner = match kept.what {
            KeptAs::Inode => kept_inode(draft, id)?.uid,
            KeptAs::Directory { uid, .. } => uid,
        };
        if cred.uid != 0 && cred.uid != owner {
            continue;
        }
        draft.delete(container, id.key());
        if kept.what == KeptAs::Inode {
            mark_orphan(draft, id.inode);
            orphans.push(id.inode);
        }
    }
    Ok(Reply::Inodes(orphans))
}
