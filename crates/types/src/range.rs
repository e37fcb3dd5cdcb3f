//! Byte ranges of files.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A half-open range of bytes: `start..end`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The byte after the last one; never below `start`.
    pub end: u64,
}

impl ByteRange {
    /// All of any file.
    pub const ALL: Self = Self::new(0, u64::MAX);

    /// The range from `start` up to, not including, `end`; empty when `end` is not above `start`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self {
            start,
            end: if end < start { start } else { end },
        }
    }

    /// The range of `len` bytes from `start`; cut at the largest offset.
    #[must_use]
    pub const fn with_len(start: u64, len: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(len),
        }
    }

    /// How many bytes it covers.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether it covers nothing.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The bytes that both cover, if any.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Self { start, end })
    }

    /// Whether both cover some byte.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Grown outwards to multiples of `unit`, which is a power of two.
    #[must_use]
    pub const fn align_out(self, unit: u64) -> Self {
        Self {
            start: self.start & !(unit - 1),
            end: self.end.saturating_add(unit - 1) & !(unit - 1),
        }
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
