//! Keys of a container's state. Ordered bytes: one tag byte, then fixed-width big-endian numbers,
//! then a name where the key has one.
//!
//! ```text
//! i index            inode record                 o index      orphan (nothing)
//! n lane             next free index              l index      locks of an inode
//! d index cookie     directory entry              y index      policy of a directory
//! x index name       extended attribute           q session op answer of a session's operation
//! s index            target of a symbolic link    t tx         intent of a transaction
//! p index            parent of a directory        u tx         decision about a transaction
//! h index chunk      who holds a chunk of a file   c checkpoint   a checkpoint
//! k key checkpoint   a row as of a checkpoint      v snapshot     a snapshot (container 1)
//! f index checkpoint the file with what another one was then
//! m index chunk      which parts of such a file are in use
//! r until index      what was removed and is kept until then
//! w index            the columns of a striped file
//! ```
//!
//! A directory's parent is a key of its own so that a transaction that walks upwards reads nothing
//! that an unrelated change (of a time, say) would alter.

use perigee_types::{
    CheckpointId, ContainerId, Epoch, InodeIndex, OpId, SessionId, SnapshotId, TxId,
};

/// Which of the rows of free numbers an inode takes.
///
/// Transactions of other containers take theirs from the upper half: they hold the key locked for a
/// round trip, and creations at home must not wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Made in the container of its parent directory.
    Home,
    /// Made by a transaction from another container.
    Away,
    /// Made by the owner for content of a checkpoint: nobody else takes from it, so it is never locked.
    Past,
}

impl Lane {
    /// The first index of the lane that can be given out.
    #[must_use]
    pub const fn first(self) -> InodeIndex {
        match self {
            Self::Home => InodeIndex(InodeIndex::FIRST.0 + 1),
            Self::Past => InodeIndex(1 << 38),
            Self::Away => InodeIndex(1 << 39),
        }
    }

    /// The last index of the lane.
    #[must_use]
    pub const fn last(self) -> InodeIndex {
        match self {
            Self::Home => InodeIndex((1 << 38) - 1),
            Self::Past => InodeIndex((1 << 39) - 1),
            Self::Away => InodeIndex::MAX,
        }
    }

    /// The lane that an index is of.
    #[must_use]
    pub fn of(index: InodeIndex) -> Self {
        match index {
            index if index <= Self::Home.last() => Self::Home,
            index if index <= Self::Past.last() => Self::Past,
            _ => Self::Away,
        }
    }
}

/// A key of a container's state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The record of an inode.
    Inode(InodeIndex),
    /// The next free index of a lane; absent: its first.
    NextIndex(Lane),
    /// An entry of a directory.
    Dentry(InodeIndex, u64),
    /// An extended attribute.
    Xattr(InodeIndex, Vec<u8>),
    /// The target of a symbolic link, as it is.
    Symlink(InodeIndex),
    /// The directory that holds this directory's name; of the root: itself.
    Parent(InodeIndex),
    /// This inode has no name.
    Orphan(InodeIndex),
    /// The locks held on an inode.
    Locks(InodeIndex),
    /// The policy of a directory.
    Policy(InodeIndex),
    /// The columns of a striped file but the first.
    Columns(InodeIndex),
    /// Who holds a chunk of a file; the value is the driver's.
    Hold(InodeIndex, u64),
    /// A checkpoint of the container.
    Checkpoint(CheckpointId),
    /// What another key held as of a checkpoint, and of those before it that have no such row of their own.
    Kept(Box<Key>, CheckpointId),
    /// The file that has what was replaced since of the content of a file as of a checkpoint.
    KeptFile(InodeIndex, CheckpointId),
    /// Which units of a chunk such a file has.
    KeptUnits(InodeIndex, u64),
    /// What a unit of such a file is known by.
    KeptSum(InodeIndex, u64),
    /// A snapshot; all of them lie in [`ContainerId::ROOT`].
    Snapshot(SnapshotId),
    /// What was removed and is kept until this moment, in milliseconds since 1970.
    Trash(u64, InodeIndex),
    /// What was answered to an operation of a session; the value is the driver's.
    Dedup(SessionId, OpId),
    /// What a prepared transaction will do here.
    Intent(TxId),
    /// How a transaction ended.
    Decision(TxId),
}

/// The tag bytes.
mod tag {
    pub(super) const INODE: u8 = b'i';
    pub(super) const NEXT_INDEX: u8 = b'n';
    pub(super) const DENTRY: u8 = b'd';
    pub(super) const XATTR: u8 = b'x';
    pub(super) const SYMLINK: u8 = b's';
    pub(super) const PARENT: u8 = b'p';
    pub(super) const ORPHAN: u8 = b'o';
    pub(super) const LOCKS: u8 = b'l';
    pub(super) const POLICY: u8 = b'y';
    pub(super) const COLUMNS: u8 = b'w';
    pub(super) const HOLD: u8 = b'h';
    pub(super) const CHECKPOINT: u8 = b'c';
    pub(super) const KEPT: u8 = b'k';
    pub(super) const KEPT_FILE: u8 = b'f';
    pub(super) const KEPT_UNITS: u8 = b'm';
    pub(super) const KEPT_SUM: u8 = b'j';
    pub(super) const SNAPSHOT: u8 = b'v';
    pub(super) const TRASH: u8 = b'r';
    pub(super) const DEDUP: u8 = b'q';
    pub(super) const INTENT: u8 = b't';
    pub(super) const DECISION: u8 = b'u';
}

/// The bytes from the first key of a range up to, not including, the second.
pub type KeyRange = (Vec<u8>, Vec<u8>);

impl Key {
    /// The key as stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        match self {
            Self::Inode(index) => numbers(&mut out, tag::INODE, &[index.0]),
            Self::NextIndex(lane) => out.extend([tag::NEXT_INDEX, *lane as u8]),
            Self::Dentry(index, cookie) => numbers(&mut out, tag::DENTRY, &[index.0, *cookie]),
            Self::Xattr(index, name) => {
                numbers(&mut out, tag::XATTR, &[index.0]);
                out.extend_from_slice(name);
            }
            Self::Symlink(index) => numbers(&mut out, tag::SYMLINK, &[index.0]),
            Self::Parent(index) => numbers(&mut out, tag::PARENT, &[index.0]),
            Self::Orphan(index) => numbers(&mut out, tag::ORPHAN, &[index.0]),
            Self::Locks(index) => numbers(&mut out, tag::LOCKS, &[index.0]),
            Self::Policy(index) => numbers(&mut out, tag::POLICY, &[index.0]),
            Self::Columns(index) => numbers(&mut out, tag::COLUMNS, &[index.0]),
            Self::Hold(index, chunk) => numbers(&mut out, tag::HOLD, &[index.0, *chunk]),
            Self::Checkpoint(at) => numbers(&mut out, tag::CHECKPOINT, &[at.0]),
            Self::Kept(key, at) => {
                out.push(tag::KEPT);
                out.extend(key.encode());
                kept_at(&mut out, *at);
            }
            Self::KeptFile(index, at) => numbers(&mut out, tag::KEPT_FILE, &[index.0, at.0]),
            Self::KeptUnits(index, chunk) => {
                numbers(&mut out, tag::KEPT_UNITS, &[index.0, *chunk]);
            }
            Self::KeptSum(index, unit) => numbers(&mut out, tag::KEPT_SUM, &[index.0, *unit]),
            Self::Snapshot(id) => numbers(&mut out, tag::SNAPSHOT, &[id.0]),
            Self::Trash(until_ms, index) => numbers(&mut out, tag::TRASH, &[*until_ms, index.0]),
            Self::Dedup(session, op) => numbers(&mut out, tag::DEDUP, &[session.0, op.0]),
            Self::Intent(tx) => transaction(&mut out, tag::INTENT, *tx),
            Self::Decision(tx) => transaction(&mut out, tag::DECISION, *tx),
        }
        out
    }

    /// The inode that it tells of; none for what is the container's.
    #[must_use]
    pub const fn inode(&self) -> Option<InodeIndex> {
        match self {
            Self::Inode(index)
            | Self::Dentry(index, _)
            | Self::Xattr(index, _)
            | Self::Symlink(index)
            | Self::Parent(index)
            | Self::Orphan(index)
            | Self::Locks(index)
            | Self::Policy(index)
            | Self::Columns(index)
            | Self::Hold(index, _)
            | Self::Trash(_, index) => Some(*index),
            Self::NextIndex(_)
            | Self::Checkpoint(_)
            | Self::Kept(..)
            | Self::KeptFile(..)
            | Self::KeptUnits(..)
            | Self::KeptSum(..)
            | Self::Snapshot(_)
            | Self::Dedup(..)
            | Self::Intent(_)
            | Self::Decision(_) => None,
        }
    }

    /// Whether a checkpoint has it: what programs see of names and attributes, and nothing that sessions or owners need
    /// among themselves.
    #[must_use]
    pub const fn is_of_past(&self) -> bool {
        matches!(
            self,
            Self::Inode(_)
                | Self::Dentry(..)
                | Self::Xattr(..)
                | Self::Symlink(_)
                | Self::Parent(_)
                | Self::Policy(_)
                | Self::Columns(_)
        )
    }

    /// The key that these bytes stand for; `None` when no key is stored so.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&tag, rest) = bytes.split_first()?;
        Some(match tag {
            tag::INODE => Self::Inode(one(rest)?),
            tag::NEXT_INDEX => match rest {
                [0] => Self::NextIndex(Lane::Home),
                [1] => Self::NextIndex(Lane::Away),
                [2] => Self::NextIndex(Lane::Past),
                _ => return None,
            },
            tag::DENTRY => {
                let [index, cookie] = two(rest)?;
                Self::Dentry(InodeIndex(index), cookie)
            }
            tag::XATTR => {
                let (index, name) = rest.split_first_chunk::<8>()?;
                Self::Xattr(InodeIndex(u64::from_be_bytes(*index)), name.to_vec())
            }
            tag::SYMLINK => Self::Symlink(one(rest)?),
            tag::PARENT => Self::Parent(one(rest)?),
            tag::ORPHAN => Self::Orphan(one(rest)?),
            tag::LOCKS => Self::Locks(one(rest)?),
            tag::POLICY => Self::Policy(one(rest)?),
            tag::COLUMNS => Self::Columns(one(rest)?),
            tag::HOLD => {
                let [index, chunk] = two(rest)?;
                Self::Hold(InodeIndex(index), chunk)
            }
            tag::CHECKPOINT => Self::Checkpoint(CheckpointId(one(rest)?.0)),
            tag::KEPT => {
                let (key, at) = kept(rest)?;
                Self::Kept(Box::new(key), at)
            }
            tag::KEPT_FILE => {
                let [index, at] = two(rest)?;
                Self::KeptFile(InodeIndex(index), CheckpointId(at))
            }
            tag::KEPT_UNITS => {
                let [index, chunk] = two(rest)?;
                Self::KeptUnits(InodeIndex(index), chunk)
            }
            tag::KEPT_SUM => {
                let [index, unit] = two(rest)?;
                Self::KeptSum(InodeIndex(index), unit)
            }
            tag::SNAPSHOT => Self::Snapshot(SnapshotId(one(rest)?.0)),
            tag::TRASH => {
                let [until_ms, index] = two(rest)?;
                Self::Trash(until_ms, InodeIndex(index))
            }
            tag::DEDUP => {
                let [session, op] = two(rest)?;
                Self::Dedup(SessionId(session), OpId(op))
            }
            tag::INTENT => Self::Intent(tx_id(rest)?),
            tag::DECISION => Self::Decision(tx_id(rest)?),
            _ => return None,
        })
    }
}

fn numbers(out: &mut Vec<u8>, tag: u8, numbers: &[u64]) {
    out.push(tag);
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn transaction(out: &mut Vec<u8>, tag: u8, tx: TxId) {
    out.push(tag);
    out.extend_from_slice(&tx.container.0.to_be_bytes());
    out.extend_from_slice(&tx.epoch.0.to_be_bytes());
    out.extend_from_slice(&tx.count.to_be_bytes());
}

/// Ends the key of a kept row. The zero ends names, which have none, so that the rows of one key are neighbours and stand
/// in the order of the keys.
fn kept_at(out: &mut Vec<u8>, at: CheckpointId) {
    out.push(0);
    out.extend_from_slice(&at.0.to_be_bytes());
}

/// The key and the checkpoint of a kept row, without its tag.
fn kept(bytes: &[u8]) -> Option<(Key, CheckpointId)> {
    let (key, at) = bytes.split_last_chunk::<8>()?;
    let (0, key) = key.split_last()? else {
        return None;
    };
    let key = Key::decode(key).filter(Key::is_of_past)?;
    Some((key, CheckpointId(u64::from_be_bytes(*at))))
}

fn one(bytes: &[u8]) -> Option<InodeIndex> {
    Some(InodeIndex(u64::from_be_bytes(bytes.try_into().ok()?)))
}

fn two(bytes: &[u8]) -> Option<[u64; 2]> {
    let (first, second) = bytes.split_first_chunk::<8>()?;
    Some([
        u64::from_be_bytes(*first),
        u64::from_be_bytes(second.try_into().ok()?),
    ])
}

fn tx_id(bytes: &[u8]) -> Option<TxId> {
    let (container, rest) = bytes.split_first_chunk::<4>()?;
    let [epoch, count] = two(rest)?;
    Some(TxId {
        container: ContainerId(u32::from_be_bytes(*container)),
        epoch: Epoch(epoch),
        count,
    })
}

/// All keys of one tag.
fn tagged(tag: u8) -> KeyRange {
    (vec![tag], vec![tag + 1])
}

/// All keys of one tag whose first number is this one.
fn under(tag: u8, number: u64) -> KeyRange {
    let (mut from, mut to) = (Vec::new(), Vec::new());
    numbers(&mut from, tag, &[number]);
    match number.checked_add(1) {
        Some(next) => numbers(&mut to, tag, &[next]),
        None => to.push(tag + 1),
    }
    (from, to)
}

/// Entries of a directory with `first <= cookie < end`.
#[must_use]
pub fn dentries(dir: InodeIndex, first: u64, end: u64) -> KeyRange {
    (
        Key::Dentry(dir, first).encode(),
        Key::Dentry(dir, end).encode(),
    )
}

/// Extended attributes of an inode.
#[must_use]
pub fn xattrs(inode: InodeIndex) -> KeyRange {
    under(tag::XATTR, inode.0)
}

/// Orphans behind `after`, or all.
#[must_use]
pub fn orphans(after: Option<InodeIndex>) -> KeyRange {
    let (first, end) = tagged(tag::ORPHAN);
    let from = match after.map(|index| index.0.checked_add(1)) {
        None => first,
        Some(Some(next)) => Key::Orphan(InodeIndex(next)).encode(),
        Some(None) => end.clone(),
    };
    (from, end)
}

/// Lock tables of all inodes.
#[must_use]
pub fn locks() -> KeyRange {
    tagged(tag::LOCKS)
}

/// Who holds which chunks, of all files.
#[must_use]
pub fn holds() -> KeyRange {
    tagged(tag::HOLD)
}

/// Whose table of locks a stored key is, for who looks at all keys that change.
#[must_use]
pub fn is_lock_table(key: &[u8]) -> Option<InodeIndex> {
    if key.first() != Some(&tag::LOCKS) {
        return None;
    }
    match Key::decode(key) {
        Some(Key::Locks(index)) => Some(index),
        _ => None,
    }
}

/// Whether a stored key is that of a checkpoint, for who looks at all keys that change.
#[must_use]
pub fn is_checkpoint(key: &[u8]) -> bool {
    key.first() == Some(&tag::CHECKPOINT)
}

/// Which file a stored key tells of that a checkpoint has another one for, for who looks at all keys that change.
#[must_use]
pub fn is_kept_file(key: &[u8]) -> Option<InodeIndex> {
    if key.first() != Some(&tag::KEPT_FILE) {
        return None;
    }
    match Key::decode(key) {
        Some(Key::KeptFile(of, _)) => Some(of),
        _ => None,
    }
}

/// The policies of all directories.
#[must_use]
pub fn policies() -> KeyRange {
    tagged(tag::POLICY)
}

/// All checkpoints of a container, the oldest first.
#[must_use]
pub fn checkpoints() -> KeyRange {
    tagged(tag::CHECKPOINT)
}

/// All snapshots.
#[must_use]
pub fn snapshots() -> KeyRange {
    tagged(tag::SNAPSHOT)
}

/// All kept rows, those of one key by rising checkpoint.
#[must_use]
pub fn all_kept() -> KeyRange {
    tagged(tag::KEPT)
}

/// The kept rows of one key as of a checkpoint and later ones. The key is as stored.
#[must_use]
pub fn kept_since(key: &[u8], at: CheckpointId) -> KeyRange {
    let mut from = vec![tag::KEPT];
    from.extend_from_slice(key);
    let mut to = from.clone();
    kept_at(&mut from, at);
    // A name that begins with this one goes on with a byte above zero.
    to.push(1);
    (from, to)
}

/// The kept rows of all keys of a range, and some before it whose key begins one of them.
#[must_use]
pub fn kept_of_range(from: &[u8], to: &[u8]) -> KeyRange {
    let tagged = |key: &[u8]| [&[tag::KEPT], key].concat();
    (tagged(from), tagged(to))
}

/// The files with content of one file as of a checkpoint and later ones.
#[must_use]
pub fn kept_files(index: InodeIndex, at: CheckpointId) -> KeyRange {
    let (_, to) = under(tag::KEPT_FILE, index.0);
    (Key::KeptFile(index, at).encode(), to)
}

/// The files with content of all files, by file.
#[must_use]
pub fn all_kept_files() -> KeyRange {
    tagged(tag::KEPT_FILE)
}

/// What a file with content of a checkpoint has.
#[must_use]
pub fn kept_units(index: InodeIndex) -> KeyRange {
    under(tag::KEPT_UNITS, index.0)
}

/// What its units are known by.
#[must_use]
pub fn kept_sums(index: InodeIndex) -> KeyRange {
    under(tag::KEPT_SUM, index.0)
}

/// What was removed and is kept, from this key on: by the end of its time.
#[must_use]
pub fn trash(from: Vec<u8>) -> KeyRange {
    let (first, end) = tagged(tag::TRASH);
    (from.max(first), end)
}

/// Intents of all transactions.
#[must_use]
pub fn intents() -> KeyRange {
    tagged(tag::INTENT)
}

/// Decisions about all transactions.
#[must_use]
pub fn decisions() -> KeyRange {
    tagged(tag::DECISION)
}

/// Where the answer to an operation of a session is kept, for at-most-once execution.
#[must_use]
pub fn dedup_key(session: SessionId, op: OpId) -> Vec<u8> {
    Key::Dedup(session, op).encode()
}

/// All answers kept for a session, by rising [`OpId`].
#[must_use]
pub fn dedup_of_session(session: SessionId) -> KeyRange {
    under(tag::DEDUP, session.0)
}

/// All answers kept, by session.
#[must_use]
pub fn dedup_of_all() -> KeyRange {
    tagged(tag::DEDUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_key() -> impl Strategy<Value = Key> {
        let index = any::<u64>().prop_map(InodeIndex);
        let tx = (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(c, e, count)| TxId {
            container: ContainerId(c),
            epoch: Epoch(e),
            count,
        });
        let at = any::<u64>().prop_map(CheckpointId);
        let of_past = prop_oneof![
            index.clone().prop_map(Key::Inode),
            (index.clone(), any::<u64>()).prop_map(|(i, c)| Key::Dentry(i, c)),
            (index.clone(), any::<Vec<u8>>()).prop_map(|(i, n)| Key::Xattr(i, n)),
        ];
        prop_oneof![
            at.clone().prop_map(Key::Checkpoint),
            (of_past, at.clone()).prop_map(|(key, at)| Key::Kept(Box::new(key), at)),
            (index.clone(), at).prop_map(|(i, at)| Key::KeptFile(i, at)),
            (index.clone(), any::<u64>()).prop_map(|(i, c)| Key::KeptUnits(i, c)),
            (index.clone(), any::<u64>()).prop_map(|(i, u)| Key::KeptSum(i, u)),
            any::<u64>().prop_map(|id| Key::Snapshot(SnapshotId(id))),
            index.clone().prop_map(Key::Inode),
            prop_oneof![Just(Lane::Home), Just(Lane::Away), Just(Lane::Past)]
                .prop_map(Key::NextIndex),
            (index.clone(), any::<u64>()).prop_map(|(i, c)| Key::Dentry(i, c)),
            (index.clone(), any::<Vec<u8>>()).prop_map(|(i, n)| Key::Xattr(i, n)),
            index.clone().prop_map(Key::Symlink),
            index.clone().prop_map(Key::Parent),
            index.clone().prop_map(Key::Orphan),
            index.clone().prop_map(Key::Locks),
            index.clone().prop_map(Key::Policy),
            index.clone().prop_map(Key::Columns),
            (index.clone(), any::<u64>()).prop_map(|(i, c)| Key::Hold(i, c)),
            (index, any::<u64>()).prop_map(|(i, until)| Key::Trash(until, i)),
            any::<(u64, u64)>().prop_map(|(s, o)| Key::Dedup(SessionId(s), OpId(o))),
            tx.clone().prop_map(Key::Intent),
            tx.prop_map(Key::Decision),
        ]
    }

    proptest! {
        #[test]
        fn a_key_reads_back_as_it_was_written(key in any_key()) {
            prop_assert_eq!(Key::decode(&key.encode()), Some(key));
        }

        #[test]
        fn bytes_that_decode_are_the_key_itself(bytes in any::<Vec<u8>>()) {
            if let Some(key) = Key::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }

        #[test]
        fn the_range_of_a_session_has_its_answers_alone(a in any::<u64>(), b in any::<u64>(), op in any::<u64>()) {
            let (from, to) = dedup_of_session(SessionId(a));
            let key = dedup_key(SessionId(b), OpId(op));
            prop_assert_eq!(from <= key && key < to, a == b);
        }
    }
}
