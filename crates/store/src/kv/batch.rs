//! Writes that become durable together, and the spaces that their keys live in.

use crate::kv::key::{self, Tag};
use crate::object::Object;
use perigee_types::ContainerId;
use std::fmt;
use std::sync::Arc;

/// A set of keys of one container. Spaces never see each other's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// The replicated state: effects of committed records alone.
    State(ContainerId),
    /// The replicated log; keys begin with sequence numbers, big-endian.
    Log(ContainerId),
    /// What this node alone knows: promises, positions.
    Local(ContainerId),
}

impl Space {
    /// The container.
    #[must_use]
    pub const fn container(self) -> ContainerId {
        match self {
            Self::State(c) | Self::Log(c) | Self::Local(c) => c,
        }
    }

    pub(crate) const fn tag(self) -> Tag {
        match self {
            Self::State(_) => Tag::State,
            Self::Log(_) => Tag::Log,
            Self::Local(_) => Tag::Local,
        }
    }
}

/// One change, with its key as stored.
pub(crate) enum Op {
    /// `value` has its checksum at the end already.
    Put { key: Vec<u8>, value: Vec<u8> },
    /// Deletes one key.
    Delete { key: Vec<u8> },
    /// Deletes `from..to`.
    DeleteRange { from: Vec<u8>, to: Vec<u8> },
    /// Writes what changed in an object's record and validity. The committer asks the object when it
    /// commits, so that batches that overtake each other cannot bring an older validity back.
    SaveObject(Arc<Object>),
}

/// Changes that are applied in order, all or none.
#[derive(Default)]
pub struct WriteBatch {
    pub(crate) ops: Vec<Op>,
    pub(crate) bytes: usize,
    pub(crate) grows: bool,
    /// Refused if an earlier one of the same container was.
    pub(crate) order: Option<ContainerId>,
    pub(crate) without_room: WithoutRoom,
}

/// What becomes of a batch that a full disk has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutRoom {
    /// It is refused.
    #[default]
    Refused,
    /// It waits until there is room, and those behind it that keep its order do, too. A store that closes refuses it.
    Waits,
}

impl WriteBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This batch is worth nothing without the earlier ones of `container` that said the same: once the store refuses
    /// one of them, it refuses all that follow, until [`crate::Store::begin_order`].
    pub fn keep_order(&mut self, container: ContainerId) {
        self.order = Some(container);
    }

    /// What becomes of it on a full disk; [`WithoutRoom::Waits`] for one that keeps an order.
    pub fn set_without_room(&mut self, without_room: WithoutRoom) {
        self.without_room = without_room;
    }

    /// Sets a key.
    pub fn put(&mut self, space: Space, key: &[u8], value: &[u8]) {
        self.put_tagged(space.container(), space.tag(), key, value);
    }

    /// Deletes a key; no error where there is none.
    pub fn delete(&mut self, space: Space, key: &[u8]) {
        let key = key::encode(space.container(), space.tag(), key);
        self.bytes += key.len();
        self.ops.push(Op::Delete { key });
    }

    /// Deletes the keys `from..to`; `None` reaches to the end of the space.
    pub fn delete_range(&mut self, space: Space, from: &[u8], to: Option<&[u8]>) {
        self.delete_range_tagged(space.container(), space.tag(), from, to);
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Keys and values, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds all changes of `other` after those of this one.
    pub fn append(&mut self, other: Self) {
        self.ops.extend(other.ops);
        self.bytes += other.bytes;
        self.grows |= other.grows;
    }

    pub(crate) fn put_tagged(&mut self, c: ContainerId, tag: Tag, key: &[u8], value: &[u8]) {
        let key = key::encode(c, tag, key);
        let value = key::seal(&key, value);
        self.bytes += key.len() + value.len();
        self.grows = true;
        self.ops.push(Op::Put { key, value });
    }

    pub(crate) fn delete_tagged(&mut self, c: ContainerId, tag: Tag, key: &[u8]) {
        let key = key::encode(c, tag, key);
        self.bytes += key.len();
        self.ops.push(Op::Delete { key });
    }

    pub(crate) fn delete_range_tagged(
        &mut self,
        c: ContainerId,
        tag: Tag,
        from: &[u8],
        to: Option<&[u8]>,
    ) {
        let (from, to) = key::bounds(c, tag, from, to);
        self.bytes += from.len() + to.len();
        self.ops.push(Op::DeleteRange { from, to });
    }

    pub(crate) fn save_object(&mut self, object: &Arc<Object>) {
        self.bytes += 64;
        self.grows = true;
        self.ops.push(Op::SaveObject(Arc::clone(object)));
    }
}

impl fmt::Debug for WriteBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBatch")
            .field("ops", &self.ops.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}
