//! Stored values, and their codec.
//!
//! Every value is the postcard form of an enum with one variant for each version, except xattr values and
//! link targets, which are stored as they are, and the value of an orphan key, which is empty. What
//! does not decode wholly, or breaks a limit, is [`Refusal::Corrupt`].

use crate::attr::{Attr, Kind, MODE_ALL};
use crate::error::Refusal;
use crate::lock::{LockKind, Mode, Token};
use crate::stripe::Layout;
use crate::tx::{Decision, Intent};
use perigee_types::limits::{FILE_LEN_MAX, NAME_LEN_MAX};
use perigee_types::{
    ByteRange, ContainerId, Errno, InodeId, OpId, SessionId, StripeWidth, WallTime,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of a directory's size for each entry, as if it were written down: a name and a record.
const ENTRY_LEN: u64 = 64;
/// A directory's size is a multiple of this, and never 0.
const DIRECTORY_UNIT: u64 = 4096;

/// Refuses a stored value.
pub(crate) fn corrupt(container: ContainerId, key: &[u8], what: &'static str) -> Refusal {
    Refusal::Corrupt {
        container,
        key: key.to_vec(),
        what,
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data into memory: no error of postcard applies")
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        Ok(_) | Err(_) => None,
    }
}

/// An inode, without what has keys of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InodeRecord {
    /// Rises with every change, so that no two states of an inode look alike to a transaction.
    pub(crate) change: u64,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    /// Bytes of a file or a link's target; 0 for a directory.
    pub(crate) size: u64,
    pub(crate) rdev: u32,
    pub(crate) atime: WallTime,
    pub(crate) mtime: WallTime,
    pub(crate) ctime: WallTime,
    pub(crate) btime: WallTime,
    /// Entries of a directory.
    pub(crate) entries: u64,
    /// Extended attributes, ACLs included; at 0 no key of one needs to be looked for.
    pub(crate) xattrs: u32,
    /// Bytes of their names and values.
    pub(crate) xattr_bytes: u64,
    /// One of them is the access ACL.
    pub(crate) access_acl: bool,
    /// One of them is the default ACL.
    pub(crate) default_acl: bool,
    /// A directory with a policy of its own.
    pub(crate) policy: bool,
    /// Of anything but a directory: the directory in which it got its last name. That one may have lost the name since,
    /// and may be gone; what was stored in version 1 does not say. Stored beside the rest.
    #[serde(skip)]
    pub(crate) parent: Option<InodeId>,
    /// Where the bytes of a file are. Stored beside the rest.
    #[serde(skip)]
    pub(crate) layout: Layout,
}

impl InodeRecord {
    /// A new inode with one name; directories count `.` as well.
    pub(crate) fn new(kind: Kind, mode: u32, uid: u32, gid: u32, now: WallTime) -> Self {
        Self {
            change: 0,
            kind,
            mode: mode & MODE_ALL,
            uid,
            gid,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            size: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            entries: 0,
            xattrs: 0,
            xattr_bytes: 0,
            access_acl: false,
            default_acl: false,
            policy: false,
            parent: None,
            layout: Layout::Whole,
        }
    }

    /// The attributes that it shows.
    pub(crate) fn attr(&self, inode: InodeId) -> Attr {
        let size = if self.kind == Kind::Directory {
            let len = self.entries.saturating_mul(ENTRY_LEN).max(1);
            len.div_ceil(DIRECTORY_UNIT).saturating_mul(DIRECTORY_UNIT)
        } else {
            self.size
        };
        Attr {
            inode,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size,
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            blocks: size.div_ceil(512),
            layout: self.layout,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    fn is_sound(&self) -> bool {
        self.mode <= MODE_ALL && self.size <= FILE_LEN_MAX
    }
}

#[derive(Serialize, Deserialize)]
enum StoredInode {
    /// A directory, or an inode from before version 2.
    V1(InodeRecord),
    /// With the directory in which it got its last name.
    V2(InodeRecord, InodeId),
    /// Of a striped file, or a column of one, which has no name.
    V3(InodeRecord, Option<InodeId>, Layout),
}

pub(crate) fn encode_inode(record: &InodeRecord) -> Vec<u8> {
    encode(&match (record.layout, record.parent) {
        (Layout::Whole, None) => StoredInode::V1(*record),
        (Layout::Whole, Some(parent)) => StoredInode::V2(*record, parent),
        (layout, parent) => StoredInode::V3(*record, parent, layout),
    })
}

pub(crate) fn decode_inode(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<InodeRecord, Refusal> {
    match decode(value) {
        Some(StoredInode::V1(record)) if record.is_sound() => Ok(record),
        Some(StoredInode::V2(record, parent)) if record.is_sound() => Ok(InodeRecord {
            parent: Some(parent),
            ..record
        }),
        Some(StoredInode::V3(record, parent, layout)) if record.is_sound() => Ok(InodeRecord {
            parent,
            layout,
            ..record
        }),
        _ => Err(corrupt(container, key, "not an inode record")),
    }
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dentry {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: InodeId,
    pub(crate) kind: Kind,
}

#[derive(Serialize, Deserialize)]
enum StoredDentry {
    V1(Dentry),
}

pub(crate) fn encode_dentry(dentry: Dentry) -> Vec<u8> {
    encode(&StoredDentry::V1(dentry))
}

pub(crate) fn decode_dentry(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Dentry, Refusal> {
    match decode(value) {
        Some(StoredDentry::V1(dentry))
            if !dentry.name.is_empty() && dentry.name.len() <= NAME_LEN_MAX =>
        {
            Ok(dentry)
        }
        _ => Err(corrupt(container, key, "not a directory entry")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredInodeId {
    V1(InodeId),
}

/// The value of a parent key.
pub(crate) fn encode_inode_id(inode: InodeId) -> Vec<u8> {
    encode(&StoredInodeId::V1(inode))
}

pub(crate) fn decode_inode_id(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<InodeId, Refusal> {
    match decode(value) {
        Some(StoredInodeId::V1(inode)) => Ok(inode),
        None => Err(corrupt(container, key, "not an inode number")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredColumns {
    V1(Vec<InodeId>),
}

/// The columns of a striped file but the first.
pub(crate) fn encode_columns(columns: &[InodeId]) -> Vec<u8> {
    encode(&StoredColumns::V1(columns.to_vec()))
}

pub(crate) fn decode_columns(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Vec<InodeId>, Refusal> {
    match decode(value) {
        Some(StoredColumns::V1(columns)) if columns.len() < usize::from(StripeWidth::MAX) => {
            Ok(columns)
        }
        _ => Err(corrupt(container, key, "not a list of columns")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredCount {
    V1(u64),
}

/// The value of a next-index key.
pub(crate) fn encode_count(count: u64) -> Vec<u8> {
    encode(&StoredCount::V1(count))
}

pub(crate) fn decode_count(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<u64, Refusal> {
    match decode(value) {
        Some(StoredCount::V1(count)) => Ok(count),
        None => Err(corrupt(container, key, "not a count")),
    }
}

/// A lock that somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldLock {
    pub(crate) session: SessionId,
    pub(crate) owner: u64,
    pub(crate) pid: u32,
    pub(crate) mode: Mode,
    pub(crate) range: ByteRange,
    pub(crate) token: Token,
}

/// A lock that was ended without the word of who had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndedLock {
    pub(crate) kind: LockKind,
    pub(crate) lock: HeldLock,
}

/// The locks held on one inode; each list of held ones is sorted by (session, owner, start), and the ranges of one holder
/// do not overlap.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeldLocks {
    pub(crate) posix: Vec<HeldLock>,
    pub(crate) flock: Vec<HeldLock>,
    pub(crate) service: Vec<HeldLock>,
    /// Of sessions that may believe to have them.
    pub(crate) ended: Vec<EndedLock>,
    pub(crate) covers: Vec<HeldLock>,
}

impl HeldLocks {
    /// Whose locks they are, of any kind; a session with several is named several times.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, LockKind)> + '_ {
        self.held().map(|(session, lock, _)| (session, lock.kind))
    }

    fn is_sound(&self) -> bool {
        let ended = self.ended.iter().map(|ended| &ended.lock);
        let held = LockKind::ALL.into_iter().flat_map(|kind| self.list(kind));
        let mut locks = held.chain(ended);
        locks.all(|lock| !lock.range.is_empty())
    }
}

/// A lock as version 1 stored it: in one of two modes, without a token.
#[derive(Serialize, Deserialize)]
struct HeldLockV1 {
    session: SessionId,
    owner: u64,
    pid: u32,
    exclusive: bool,
    range: ByteRange,
}

impl From<HeldLockV1> for HeldLock {
    fn from(lock: HeldLockV1) -> Self {
        Self {
            session: lock.session,
            owner: lock.owner,
            pid: lock.pid,
            mode: match lock.exclusive {
                true => Mode::Exclusive,
                false => Mode::ProtectedRead,
            },
            range: lock.range,
            token: Token::default(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct HeldLocksV1 {
    posix: Vec<HeldLockV1>,
    flock: Vec<HeldLockV1>,
}

impl From<HeldLocksV1> for HeldLocks {
    fn from(locks: HeldLocksV1) -> Self {
        let list = |locks: Vec<HeldLockV1>| locks.into_iter().map(HeldLock::from).collect();
        Self {
            posix: list(locks.posix),
            flock: list(locks.flock),
            ..Self::default()
        }
    }
}

#[derive(Serialize, Deserialize)]
struct HeldLocksV2 {
    posix: Vec<HeldLock>,
    flock: Vec<HeldLock>,
    service: Vec<HeldLock>,
    ended: Vec<EndedLock>,
}

impl From<HeldLocksV2> for HeldLocks {
    fn from(locks: HeldLocksV2) -> Self {
        Self {
            posix: locks.posix,
            flock: locks.flock,
            service: locks.service,
            ended: locks.ended,
            covers: Vec::new(),
        }
    }
}

#[derive(Serialize, Deserialize)]
enum StoredLocks {
    V1(HeldLocksV1),
    /// In five modes, each with its token, and with those that were ended.
    V2(HeldLocksV2),
    /// With covers.
    V3(HeldLocks),
}

/// A table without covers is as it was before there were any.
pub(crate) fn encode_locks(locks: HeldLocks) -> Vec<u8> {
    if !locks.covers.is_empty() {
        return encode(&StoredLocks::V3(locks));
    }
    encode(&StoredLocks::V2(HeldLocksV2 {
        posix: locks.posix,
        flock: locks.flock,
        service: locks.service,
        ended: locks.ended,
    }))
}

pub(crate) fn decode_locks(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<HeldLocks, Refusal> {
    let locks = match decode(value) {
        Some(StoredLocks::V1(locks)) => Some(HeldLocks::from(locks)),
        Some(StoredLocks::V2(locks)) => Some(HeldLocks::from(locks)),
        Some(StoredLocks::V3(locks)) => Some(locks),
        None => None,
    };
    locks
        .filter(HeldLocks::is_sound)
        .ok_or_else(|| corrupt(container, key, "not a table of locks"))
}

#[derive(Serialize, Deserialize)]
enum StoredPolicy {
    V1(Vec<(String, String)>),
}

pub(crate) fn encode_policy(policy: &[(String, String)]) -> Vec<u8> {
    encode(&StoredPolicy::V1(policy.to_vec()))
}

pub(crate) fn decode_policy(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Vec<(String, String)>, Refusal> {
    match decode(value) {
        Some(StoredPolicy::V1(policy)) => Ok(policy),
        None => Err(corrupt(container, key, "not a policy")),
    }
}

/// What is known of something that was removed and is kept. Of all but directories the inode itself is there, without a
/// name; of a directory no more than this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Its last name.
    pub(crate) name: Vec<u8>,
    /// The directory that had it, which may be removed since.
    pub(crate) parent: InodeId,
    pub(crate) removed: WallTime,
    /// The user who removed it.
    pub(crate) by: u32,
    pub(crate) what: KeptAs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeptAs {
    /// An inode that can get a name again.
    Inode,
    /// What a directory was like: what was in it finds its way back by this.
    Directory { mode: u32, uid: u32, gid: u32 },
}

#[derive(Serialize, Deserialize)]
enum StoredKept {
    V1(Kept),
}

pub(crate) fn encode_kept(kept: Kept) -> Vec<u8> {
    encode(&StoredKept::V1(kept))
}

pub(crate) fn decode_kept(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Kept, Refusal> {
    let mode_ok = |what| match what {
        KeptAs::Inode => true,
        KeptAs::Directory { mode, .. } => mode <= MODE_ALL,
    };
    match decode(value) {
        Some(StoredKept::V1(kept))
            if !kept.name.is_empty() && kept.name.len() <= NAME_LEN_MAX && mode_ok(kept.what) =>
        {
            Ok(kept)
        }
        _ => Err(corrupt(container, key, "not a row of the trash")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredIntent {
    V1(Intent),
}

pub(crate) fn encode_intent(intent: &Intent) -> Vec<u8> {
    encode(&StoredIntent::V1(intent.clone()))
}

pub(crate) fn decode_intent(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Intent, Refusal> {
    match decode(value) {
        Some(StoredIntent::V1(intent)) => Ok(intent),
        None => Err(corrupt(container, key, "not an intent")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredDecision {
    V1(Decision),
}

pub(crate) fn encode_decision(decision: Decision) -> Vec<u8> {
    encode(&StoredDecision::V1(decision))
}

pub(crate) fn decode_decision(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<Decision, Refusal> {
    match decode(value) {
        Some(StoredDecision::V1(decision)) => Ok(decision),
        None => Err(corrupt(container, key, "not a decision")),
    }
}

#[derive(Serialize, Deserialize)]
enum StoredAnswer {
    V1 { through: OpId, answer: Vec<u8> },
    RefusedV1 { through: OpId, errno: Errno },
}

/// What a session was told of an operation, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToldOf {
    /// It was done, with this encoded reply.
    Done(Vec<u8>),
    /// It was not.
    Refused(Errno),
}

/// The value of a dedup key: up to where the session has had its answers, and what it was told of this operation.
pub(crate) fn encode_answer(through: OpId, told: ToldOf) -> Vec<u8> {
    encode(&match told {
        ToldOf::Done(answer) => StoredAnswer::V1 { through, answer },
        ToldOf::Refused(errno) => StoredAnswer::RefusedV1 { through, errno },
    })
}

pub(crate) fn decode_answer(
    container: ContainerId,
    key: &[u8],
    value: &[u8],
) -> Result<(OpId, ToldOf), Refusal> {
    match decode(value) {
        Some(StoredAnswer::V1 { through, answer }) => Ok((through, ToldOf::Done(answer))),
        Some(StoredAnswer::RefusedV1 { through, errno }) => Ok((through, ToldOf::Refused(errno))),
        None => Err(corrupt(container, key, "not an answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::stripe::{Cuts, Striping};
    use perigee_types::InodeIndex;

    /// The bytes on the disks of every cluster that runs version 1: a change here is a new version.
    #[test]
    fn stored_bytes_of_version_1_stay_as_they_are() {
        let time = |secs| WallTime { secs, nanos: 1 };
        let mut inode = InodeRecord::new(Kind::File, 0o644, 1000, 100, time(10));
        inode.change = 3;
        inode.size = 4096;
        inode.mtime = time(-1);
        let expected = [
            0, 3, 0, 164, 3, 232, 7, 100, 1, 128, 32, 0, 20, 1, 1, 1, 20, 1, 20, 1, 0, 0, 0, 0, 0,
            0,
        ];
        assert_eq!(encode_inode(&inode), expected);
        let decoded = decode_inode(ContainerId::ROOT, b"i", &expected);
        assert_eq!(decoded.expect("version 1"), inode);
        let dentry = Dentry {
            name: b"ab".to_vec(),
            inode: InodeId(300),
            kind: Kind::Directory,
        };
        assert_eq!(encode_dentry(dentry), [0, 2, b'a', b'b', 172, 2, 1]);
        assert_eq!(encode_inode_id(InodeId(300)), [0, 172, 2]);
        let done = ToldOf::Done(vec![7, 8]);
        assert_eq!(encode_answer(OpId(300), done), [0, 172, 2, 2, 7, 8]);
        let refused = ToldOf::Refused(Errno::ENOENT);
        assert_eq!(encode_answer(OpId(300), refused), [1, 172, 2, 1]);
        let key = Key::Dentry(InodeIndex(1), 2).encode();
        assert_eq!(key, [b'd', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    /// The same, of version 2.
    #[test]
    fn a_file_says_where_it_got_its_name_since_version_2() {
        let time = WallTime { secs: 10, nanos: 1 };
        let file = InodeRecord {
            parent: Some(InodeId(300)),
            ..InodeRecord::new(Kind::File, 0o644, 1000, 100, time)
        };
        let expected = [
            1, 0, 0, 164, 3, 232, 7, 100, 1, 0, 0, 20, 1, 20, 1, 20, 1, 20, 1, 0, 0, 0, 0, 0, 0,
            172, 2,
        ];
        assert_eq!(encode_inode(&file), expected);
        let decoded = decode_inode(ContainerId::ROOT, b"i", &expected);
        assert_eq!(decoded.expect("version 2"), file);
    }

    /// The same, of striped files and their columns.
    #[test]
    fn a_layout_is_stored_since_version_3() {
        let time = WallTime { secs: 10, nanos: 1 };
        let new = InodeRecord::new(Kind::File, 0o644, 1000, 100, time);
        let rest = [
            0, 0, 164, 3, 232, 7, 100, 1, 0, 0, 20, 1, 20, 1, 20, 1, 20, 1, 0, 0, 0, 0, 0, 0,
        ];
        let striped = InodeRecord {
            parent: Some(InodeId(300)),
            layout: Layout::Striped(Striping {
                width: StripeWidth::of(4).expect("in range"),
                made: true,
                cuts: Cuts(7),
                cutting: Some(5),
            }),
            ..new
        };
        let expected = [&[2][..], &rest, &[1, 172, 2], &[1, 4, 1, 7, 1, 5]].concat();
        assert_eq!(encode_inode(&striped), expected);
        let decoded = decode_inode(ContainerId::ROOT, b"i", &expected);
        assert_eq!(decoded.expect("version 3"), striped);
        let column = InodeRecord {
            layout: Layout::Column {
                of: InodeId(300),
                cuts: Cuts(7),
            },
            ..new
        };
        let expected = [&[2][..], &rest, &[0], &[2, 172, 2, 7]].concat();
        assert_eq!(encode_inode(&column), expected);
        let decoded = decode_inode(ContainerId::ROOT, b"i", &expected);
        assert_eq!(decoded.expect("version 3"), column);
        let columns = [InodeId(300), InodeId(1)];
        assert_eq!(encode_columns(&columns), [0, 2, 172, 2, 1]);
        let key = Key::Columns(InodeIndex(1)).encode();
        assert_eq!(key, [b'w', 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// What was removed and is kept, as it is on disks since there is a trash.
    #[test]
    fn a_row_of_the_trash_stays_as_it_is() {
        let kept = Kept {
            name: b"ab".to_vec(),
            parent: InodeId(300),
            removed: WallTime { secs: 10, nanos: 1 },
            by: 1000,
            what: KeptAs::Inode,
        };
        let bytes = [0, 2, b'a', b'b', 172, 2, 20, 1, 232, 7, 0];
        assert_eq!(encode_kept(kept.clone()), bytes);
        let what = KeptAs::Directory {
            mode: 0o755,
            uid: 1,
            gid: 2,
        };
        let bytes = [0, 2, b'a', b'b', 172, 2, 20, 1, 232, 7, 1, 237, 3, 1, 2];
        assert_eq!(encode_kept(Kept { what, ..kept }), bytes);
        let key = Key::Trash(258, InodeIndex(1)).encode();
        assert_eq!(key, [b'r', 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// The same, of tables of locks.
    #[test]
    fn locks_of_version_1_are_read_and_those_of_version_2_stay_as_they_are() {
        // One fcntl lock of session 300: owner 7, process 9, exclusive, bytes 2 to 5; no flock.
        let before = [0, 1, 172, 2, 7, 9, 1, 2, 5, 0];
        let locks = decode_locks(ContainerId::ROOT, b"l", &before).expect("version 1");
        let held = HeldLock {
            session: SessionId(300),
            owner: 7,
            pid: 9,
            mode: Mode::Exclusive,
            range: ByteRange::new(2, 5),
            token: Token::default(),
        };
        assert_eq!((&locks.posix, &locks.flock), (&vec![held], &vec![]));
        let ended = EndedLock {
            kind: LockKind::Flock,
            lock: held,
        };
        let locks = HeldLocks {
            ended: vec![ended],
            ..locks
        };
        let expected = [
            1, 1, 172, 2, 7, 9, 1, 2, 5, 0, 0, 0, 0, 1, 1, 172, 2, 7, 9, 1, 2, 5, 0, 0,
        ];
        assert_eq!(encode_locks(locks.clone()), expected);
        let decoded = decode_locks(ContainerId::ROOT, b"l", &expected);
        assert_eq!(decoded.expect("version 2"), locks);
        let covered = HeldLocks {
            covers: vec![held],
            ..locks
        };
        let bytes = encode_locks(covered.clone());
        assert_eq!((bytes[0], &bytes[1..24]), (2, &expected[1..]));
        let decoded = decode_locks(ContainerId::ROOT, b"l", &bytes);
        assert_eq!(decoded.expect("version 3"), covered);
    }

    #[test]
    fn trailing_bytes_are_not_a_value() {
        let mut bytes = encode_count(7);
        bytes.push(0);
        assert!(decode_count(ContainerId::ROOT, b"n", &bytes).is_err());
    }
}
