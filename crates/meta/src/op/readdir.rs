//! `readdir`: the entries of a directory from a cookie on.

use crate::dentry::COOKIE_END;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::{ListEntry, Reply};
use crate::record;
use perigee_types::InodeId;

/// The most entries of one answer.
const ENTRIES_MAX: usize = 4096;

pub(crate) fn readdir(
    draft: &mut Draft<'_>,
    inode: InodeId,
    cookie: u64,
    limit: usize,
) -> Result<Reply, Refusal> {
    draft.directory(inode)?;
    if cookie >= COOKIE_END {
        return Ok(Reply::Listing(Vec::new()));
    }
    let container = inode.container();
    let range = key::dentries(inode.index(), cookie + 1, COOKIE_END);
    let mut entries = Vec::new();
    for (key, value) in draft.scan(container, &range, limit.clamp(1, ENTRIES_MAX))? {
        let Some(Key::Dentry(_, cookie)) = Key::decode(&key) else {
            return Err(record::corrupt(container, &key, "not a dentry's key"));
        };
        let dentry = record::decode_dentry(container, &key, &value)?;
        // One damaged or absent inode must not hide the names around it: its own lookup tells.
        let attr = match draft.find_inode(dentry.inode) {
            Ok(record) => record.map(|record| record.attr(dentry.inode)),
            Err(Refusal::Missing(_) | Refusal::Corrupt { .. } | Refusal::Errno(_)) => None,
        };
        entries.push(ListEntry {
            name: dentry.name,
            inode: dentry.inode,
            kind: dentry.kind,
            cookie,
            attr,
        });
    }
    Ok(Reply::Listing(entries))
}
