//! Locks: what is asked for, who has it, and by which token.
//!
//! [`mode`] has the five modes, [`table`] the locks on one inode, which are state, [`kept`] what a host does with
//! locks that it keeps when nobody uses them, and [`cover`] how it decides about `fcntl` locks by itself. Who waits is in
//! [`crate::queue`]; [`cycle`] finds those over several containers who wait for each other.

pub mod cover;
pub mod cycle;
mod fences;
mod habit;
pub mod kept;
mod mode;
#[cfg(feature = "plant")]
pub mod plant;
mod presence;
pub(crate) mod table;

pub use fences::Fences;
pub use mode::Mode;
pub use presence::{Presence, SessionEnd, lost};
pub use table::{EXACT_MAX, LOCKS_MAX};

use perigee_types::{ByteRange, Epoch, SessionId};
use serde::{Deserialize, Serialize};

/// A kind of lock. The kinds do not see each other, but for [`LockKind::Cover`] and [`LockKind::Posix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockKind {
    /// `fcntl`: by process and byte range. A host may decide about them under a [`LockKind::Cover`].
    Posix,
    /// `flock`: by open file, the whole file. A host may keep it when nobody uses it there, until it is called back
    /// ([`kept`]).
    Flock,
    /// The lock service's own: by open file and byte range, in any mode. It may be kept as a flock is.
    Service,
    /// A session's right to decide by itself about the `fcntl` locks of its own programs ([`cover`]). It stands in the way of
    /// other sessions' covers and `fcntl` locks, and they in its. It is called back as what a host keeps.
    Cover,
}

impl LockKind {
    /// Every one.
    pub(crate) const ALL: [Self; 4] = [Self::Posix, Self::Flock, Self::Service, Self::Cover];

    /// As what a host may keep what stands in the way of a lock of this kind.
    #[must_use]
    pub const fn kept_as(self) -> Option<Self> {
        match self {
            Self::Flock | Self::Service => Some(self),
            Self::Posix => Some(Self::Cover),
            // Who has none asks for each lock: a cover is worth no call.
            Self::Cover => None,
        }
    }
}

/// A lock that is asked for, or that stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// `fcntl`, `flock`, or the service's own.
    pub kind: LockKind,
    /// The kernel's name of the owner inside its session.
    pub owner: u64,
    /// The bytes; `end` is `u64::MAX` for "to the end of the file".
    pub range: ByteRange,
    /// None: unlock.
    pub mode: Option<Mode>,
    /// The process, as shown by `F_GETLK`.
    pub pid: u32,
}

/// Names a grant: rises with every grant of a container, over all of its owners.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Token {
    /// Of the reign in which it was granted.
    pub epoch: Epoch,
    /// Counts the grants of that owner's process.
    pub number: u64,
}

impl Token {
    /// The next one.
    pub(crate) const fn next(self) -> Self {
        Self {
            epoch: self.epoch,
            number: self.number.saturating_add(1),
        }
    }
}

/// Names one wait for a lock inside its session. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaitId(pub u64);

/// What becomes of a request for a lock that somebody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Patience {
    /// It is refused (`F_SETLK`, `LOCK_NB`).
    Refuse,
    /// It has a place among those who wait (`F_SETLKW`).
    Wait(WaitId),
}

/// Who holds a lock, or waits for one: the kernel's name of an owner, and the session it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner {
    /// The mount.
    pub session: SessionId,
    /// The kernel's name of the owner inside it.
    pub owner: u64,
}

/// Whose locks: all of a session's, or those of one owner in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) session: SessionId,
    pub(crate) owner: Option<u64>,
}

/// True when this deliberate fault of the lock service is switched on; a constant `false` in a product build.
macro_rules! planted {
    ($room:expr, $name:ident) => {{
        #[cfg(feature = "plant")]
        {
            $room.plant == Some(crate::lock::plant::Plant::$name)
        }
        #[cfg(not(feature = "plant"))]
        {
            false
        }
    }};
}
pub(crate) use planted;

/// The bytes that a request is about: a flock is always about all of them.
pub(crate) const fn range_of(asked: &FileLock) -> ByteRange {
    match asked.kind {
        LockKind::Posix | LockKind::Service | LockKind::Cover => asked.range,
        LockKind::Flock => ByteRange {
            start: 0,
            end: u64::MAX,
        },
    }
}

/// Whether two owners cannot have both of these at a time.
pub(crate) fn exclude(one: &FileLock, two: &FileLock) -> bool {
    let (Some(first), Some(second)) = (one.mode, two.mode) else {
        return false;
    };
    one.kind == two.kind
        && !first.is_compatible_with(second)
        && range_of(one).overlaps(range_of(two))
}
