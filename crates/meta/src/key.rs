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
//! h index chunk      who holds a chunk of a file
//! r until index      what was removed and is kept until then
//! ```
//!
//! A directory's parent is a key of its own so that a transaction that walks upwards reads nothing
//! that an unrelated change (of a time, say) would alter.

use perigee_types::{ContainerId, Epoch, InodeIndex, OpId, SessionId, TxId};

/// Which of the two rows of free numbers an inode takes.
///
/// Transactions of other containers take theirs from the upper half: they hold the key locked for a
/// round trip, and creations at home must not wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Made in the container of its parent directory.
    Home,
    /// Made by a transaction from another container.
    Away,
}

impl Lane {
    /// The first index of the lane that can be given out.
    #[must_use]
    pub const fn first(self) -> InodeIndex {
        match self {
            Self::Home => InodeIndex(InodeIndex::FIRST.0 + 1),
            Self::Away => InodeIndex(1 << 39),
        }
    }

    /// The last index of the lane.
    #[must_use]
    pub const fn last(self) -> InodeIndex {
        match self {
            Self::Home => InodeIndex((1 << 39) - 1),
            Self::Away => InodeIndex::MAX,
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
    /// Who holds a chunk of a file; the value is the driver's.
    Hold(InodeIndex, u64),
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
    pub(super) const HOLD: u8 = b'h';
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
            Self::Hold(index, chunk) => numbers(&mut out, tag::HOLD, &[index.0, *chunk]),
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
            | Self::Hold(index, _)
            | Self::Trash(_, index) => Some(*index),
            Self::NextIndex(_) | Self::Dedup(..) | Self::Intent(_) | Self::Decision(_) => None,
        }
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
            tag::HOLD => {
                let [index, chunk] = two(rest)?;
                Self::Hold(InodeIndex(index), chunk)
            }
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

/// Orphans from this index on.
#[must_use]
pub fn orphans() -> KeyRange {
    tagged(tag::ORPHAN)
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
        prop_oneof![
            index.clone().prop_map(Key::Inode),
            prop_oneof![Just(Lane::Home), Just(Lane::Away)].prop_map(Key::NextIndex),
            (index.clone(), any::<u64>()).prop_map(|(i, c)| Key::Dentry(i, c)),
            (index.clone(), any::<Vec<u8>>()).prop_map(|(i, n)| Key::Xattr(i, n)),
            index.clone().prop_map(Key::Symlink),
            index.clone().prop_map(Key::Parent),
            index.clone().prop_map(Key::Orphan),
            index.clone().prop_map(Key::Locks),
            index.clone().prop_map(Key::Policy),
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
