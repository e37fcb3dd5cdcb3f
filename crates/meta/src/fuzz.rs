//! Whatever a disk gives for a row of the name space, or a program for an ACL, is one or an error.

use crate::acl::Acl;
use crate::key::Key;
use crate::record;
use perigee_fuzz::{Verdict, assault, assault_plain};
use perigee_types::{ContainerId, InodeId, InodeIndex};

const HERE: ContainerId = ContainerId(1);

/// A reader of rows; it is given the key only to name it.
type Read<T> = fn(ContainerId, &[u8], &[u8]) -> Result<T, crate::error::Refusal>;

fn row<T>(what: &str, read: Read<T>, write: impl Fn(T) -> Vec<u8>) {
    assault_plain(what, |bytes| {
        let Ok(value) = read(HERE, b"k", bytes) else {
            return Verdict::Refused;
        };
        // What was taken can be written, and is taken again.
        assert!(read(HERE, b"k", &write(value)).is_ok());
        Verdict::Taken
    });
}

#[test]
fn fuzz_every_row() {
    row("meta::inode", record::decode_inode, |v| {
        record::encode_inode(&v)
    });
    row(
        "meta::inode_id",
        record::decode_inode_id,
        record::encode_inode_id,
    );
    row("meta::columns", record::decode_columns, |v| {
        record::encode_columns(&v)
    });
    row("meta::count", record::decode_count, record::encode_count);
    row("meta::locks", record::decode_locks, record::encode_locks);
    row("meta::policy", record::decode_policy, |v| {
        record::encode_policy(&v)
    });
    row("meta::intent", record::decode_intent, |v| {
        record::encode_intent(&v)
    });
    row(
        "meta::decision",
        record::decode_decision,
        record::encode_decision,
    );
    row("meta::answer", record::decode_answer, |(through, told)| {
        record::encode_answer(through, told)
    });
    let kept = record::encode_kept(record::Kept {
        name: b"name".to_vec(),
        parent: InodeId(7),
        removed: perigee_types::WallTime::default(),
        by: 0,
        what: record::KeptAs::Inode,
    });
    assault("meta::kept", &[kept], |bytes| {
        record::decode_kept(HERE, b"k", bytes).into()
    });
    let dentry = record::encode_dentry(record::Dentry {
        name: b"name".to_vec(),
        inode: InodeId(7),
        kind: crate::attr::Kind::File,
    });
    assault("meta::dentry", &[dentry], |bytes| {
        record::decode_dentry(HERE, b"k", bytes).into()
    });
}

#[test]
fn fuzz_keys() {
    let keys = [
        Key::Inode(InodeIndex(9)),
        Key::Dentry(InodeIndex(9), 77),
        Key::Xattr(InodeIndex(9), b"user.a".to_vec()),
        Key::Parent(InodeIndex(1)),
        Key::Trash(9, InodeIndex(1)),
    ];
    let examples = keys.map(|key| key.encode());
    assault("meta::Key", &examples, |bytes| {
        let Some(key) = Key::decode(bytes) else {
            return Verdict::Refused;
        };
        assert_eq!(key.encode(), bytes, "two keys for one thing");
        Verdict::Taken
    });
}

#[test]
fn fuzz_acls() {
    // Version 2: the owner, the group, others.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for tag in [1_u16, 4, 0x20] {
        list.extend(tag.to_le_bytes());
        list.extend(6_u16.to_le_bytes());
        list.extend(u32::MAX.to_le_bytes());
    }
    assault("meta::Acl", &[list], |bytes| Acl::parse(bytes).into());
}
