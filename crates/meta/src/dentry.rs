//! Entries of directories, found by the hash of their name.
//!
//! The cookie of an entry is its place in the directory for its whole life: 47 bits of the hash of
//! its name, then 15 bits that tell names of equal hash apart. So a lookup is a short scan, and a
//! listing that goes on after a cookie neither skips nor repeats an entry that stays.

use crate::attr::Kind;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::Touched;
use crate::record::{self, Dentry};
use perigee_types::limits::{LINK_MAX, NAME_LEN_MAX};
use perigee_types::{Errno, InodeId};
use siphasher::sip::SipHasher24;

/// Bits of a cookie that tell names of equal hash apart.
const SLOT_BITS: u32 = 15;
/// Cookies 0, 1 and 2 are a gateway's, for the start, `.` and `..`.
const SLOT_FIRST: u64 = 3;
/// Slots of one hash.
const SLOTS: u64 = 1 << SLOT_BITS;
/// No cookie is this large: it has 62 bits.
pub(crate) const COOKIE_END: u64 = 1 << 62;

/// An entry where it is.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) cookie: u64,
    pub(crate) inode: InodeId,
    pub(crate) kind: Kind,
}

impl Found {
    fn at(cookie: u64, dentry: &Dentry) -> Self {
        Self {
            cookie,
            inode: dentry.inode,
            kind: dentry.kind,
        }
    }
}

/// Refuses a name that no directory can hold; `.` and `..` are EINVAL.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if name.len() > NAME_LEN_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, 0 | b'/'))
    {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// The first cookie of the names that share this one's hash.
pub(crate) fn bucket(name: &[u8]) -> u64 {
    // A fixed key: cookies must be the same on every owner, and the slots bear collisions.
    let hash = SipHasher24::new_with_keys(0x7065_7269_6765_6531, 0x6469_7265_6374_6f72).hash(name);
    (hash >> 17) << SLOT_BITS
}

/// The first cookie of the names that share the hash of an entry's.
pub(crate) fn bucket_of(cookie: u64) -> u64 {
    cookie >> SLOT_BITS << SLOT_BITS
}

/// What a directory has under a name.
pub(crate) enum Entry {
    There(Found),
    Missing(Vacancy),
}

/// The name that was looked for is not there, and this is where it would be: good for one [`add`] of the same name by the
/// same draft. Nothing when as many names share its hash as there is room for.
pub(crate) struct Vacancy(Option<u64>);

/// Looks for a name that is likely not there.
pub(crate) fn search(draft: &mut Draft<'_>, dir: InodeId, name: &[u8]) -> Result<Entry, Refusal> {
    let start = bucket(name);
    let range = key::dentries(dir.index(), start, start + SLOTS);
    let mut free = start + SLOT_FIRST;
    for (key, value) in draft.scan(dir.container(), &range, SLOTS as usize)? {
        let Some(Key::Dentry(_, cookie)) = Key::decode(&key) else {
            return Err(record::corrupt(dir.container(), &key, "not a dentry's key"));
        };
        let dentry = record::decode_dentry(dir.container(), &key, &value)?;
        if dentry.name == name {
            return Ok(Entry::There(Found::at(cookie, &dentry)));
        }
        if cookie == free {
            free += 1;
        }
    }
    Ok(Entry::Missing(Vacancy(
        (free < start + SLOTS).then_some(free),
    )))
}

/// The entry of this name, which is likely there: a name whose hash no other name shares is found by its key alone.
pub(crate) fn find(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
) -> Result<Option<Found>, Refusal> {
    let cookie = bucket(name) + SLOT_FIRST;
    let key = Key::Dentry(dir.index(), cookie).encode();
    if let Some(value) = draft.get(dir.container(), &key)? {
        let dentry = record::decode_dentry(dir.container(), &key, &value)?;
        if dentry.name == name {
            return Ok(Some(Found::at(cookie, &dentry)));
        }
    }
    match search(draft, dir, name)? {
        Entry::There(found) => Ok(Some(found)),
        Entry::Missing(_) => Ok(None),
    }
}

/// Where a new name goes; EEXIST when it is there.
pub(crate) fn vacancy(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
) -> Result<Vacancy, Refusal> {
    match search(draft, dir, name)? {
        Entry::There(_) => Err(Errno::EEXIST.into()),
        Entry::Missing(vacancy) => Ok(vacancy),
    }
}

/// Adds an entry where [`search`] found that its name is not there. EMLINK when one more subdirectory is too many, ENOSPC
/// when one more name of its hash is.
pub(crate) fn add(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
    vacancy: Vacancy,
    inode: InodeId,
    kind: Kind,
) -> Result<(), Refusal> {
    let cookie = vacancy.0.ok_or(Errno::ENOSPC)?;
    store(draft, dir, cookie, name, inode, kind);
    changed(draft, dir, name, 1, subdirectory(kind))
}

/// Removes an entry.
pub(crate) fn remove(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
    found: &Found,
) -> Result<(), Refusal> {
    let key = Key::Dentry(dir.index(), found.cookie).encode();
    draft.delete(dir.container(), key);
    changed(draft, dir, name, -1, -subdirectory(found.kind))
}

/// Makes an entry name another inode. It keeps its cookie.
pub(crate) fn redirect(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
    found: &Found,
    inode: InodeId,
    kind: Kind,
) -> Result<(), Refusal> {
    store(draft, dir, found.cookie, name, inode, kind);
    let links = subdirectory(kind) - subdirectory(found.kind);
    changed(draft, dir, name, 0, links)
}

fn subdirectory(kind: Kind) -> i32 {
    i32::from(kind == Kind::Directory)
}

fn store(
    draft: &mut Draft<'_>,
    dir: InodeId,
    cookie: u64,
    name: &[u8],
    inode: InodeId,
    kind: Kind,
) {
    let name = name.to_vec();
    draft.put(
        dir.container(),
        Key::Dentry(dir.index(), cookie).encode(),
        record::encode_dentry(Dentry { name, inode, kind }),
    );
}

/// Accounts for a change of an entry in the directory's own record.
fn changed(
    draft: &mut Draft<'_>,
    dir: InodeId,
    name: &[u8],
    entries: i64,
    links: i32,
) -> Result<(), Refusal> {
    let mut record = draft.directory(dir)?;
    if links > 0 && record.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    let counts = record
        .entries
        .checked_add_signed(entries)
        .zip(record.nlink.checked_add_signed(links));
    let Some((entries, nlink)) = counts else {
        return Err(record::corrupt(
            dir.container(),
            &Key::Inode(dir.index()).encode(),
            "a directory has more entries than it counts",
        ));
    };
    record.entries = entries;
    record.nlink = nlink;
    record.mtime = draft.now();
    record.ctime = draft.now();
    draft.set_inode(dir, record);
    draft.touch(Touched::Listing(dir));
    let name = name.to_vec();
    draft.touch(Touched::Name { dir, name });
    Ok(())
}
