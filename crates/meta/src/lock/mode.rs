//! The modes of locks, and which of them two owners can have at a time.

use serde::{Deserialize, Serialize};

/// What a lock is for: the modes of the VAX distributed lock manager, of which AwareFS uses these five. `fcntl` and
/// `flock` have two of them.
///
/// The order is that of the wire and of the disk: the first two are what was "shared" and "exclusive" before there were
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// PR: reads, and nobody writes. A shared lock of a program.
    ProtectedRead,
    /// EX: alone. An exclusive lock of a program.
    Exclusive,
    /// CR: reads, whoever writes.
    ConcurrentRead,
    /// CW: writes beside others that do so.
    ConcurrentWrite,
    /// PW: writes, and nobody else does or relies on what it reads.
    ProtectedWrite,
}

impl Mode {
    /// Every one, in the order of the published matrix.
    pub const ALL: [Self; 5] = [
        Self::ConcurrentRead,
        Self::ConcurrentWrite,
        Self::ProtectedRead,
        Self::ProtectedWrite,
        Self::Exclusive,
    ];

    /// The modes that others can have on the same bytes: a row of the published matrix (AwareFS, table 1).
    const fn row(self) -> &'static [Self] {
        match self {
            Self::ConcurrentRead => &[
                Self::ConcurrentRead,
                Self::ConcurrentWrite,
                Self::ProtectedRead,
                Self::ProtectedWrite,
            ],
            Self::ConcurrentWrite => &[Self::ConcurrentRead, Self::ConcurrentWrite],
            Self::ProtectedRead => &[Self::ConcurrentRead, Self::ProtectedRead],
            Self::ProtectedWrite => &[Self::ConcurrentRead],
            Self::Exclusive => &[],
        }
    }

    /// Whether two owners can have these on the same bytes at a time.
    #[must_use]
    pub fn is_compatible_with(self, other: Self) -> bool {
        self.row().contains(&other)
    }

    /// Whether who has this mode may do what `other` is for: it keeps out whoever `other` does.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.row()
            .iter()
            .all(|third| other.is_compatible_with(*third))
    }

    /// Whether it is for readers.
    #[must_use]
    pub const fn is_for_reading(self) -> bool {
        matches!(self, Self::ConcurrentRead | Self::ProtectedRead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_compatible_as_published() {
        // Rows and columns: CR CW PR PW EX.
        let published = [
            [1, 1, 1, 1, 0],
            [1, 1, 0, 0, 0],
            [1, 0, 1, 0, 0],
            [1, 0, 0, 0, 0],
            [0, 0, 0, 0, 0],
        ];
        for (row, one) in published.iter().zip(Mode::ALL) {
            for (cell, two) in row.iter().zip(Mode::ALL) {
                assert_eq!(one.is_compatible_with(two), *cell == 1, "{one:?} {two:?}");
            }
        }
    }

    #[test]
    fn a_mode_covers_what_keeps_out_no_more() {
        let covered = |mode: Mode| {
            Mode::ALL
                .into_iter()
                .filter(move |m| mode.covers(*m))
                .count()
        };
        assert_eq!(Mode::ALL.map(covered), [1, 2, 2, 4, 5]);
        assert!(!Mode::ProtectedRead.covers(Mode::ConcurrentWrite));
        assert!(Mode::ProtectedWrite.covers(Mode::ProtectedRead));
    }

    /// Nodes of before there were five say `Some(false)` and `Some(true)`.
    #[test]
    fn shared_and_exclusive_are_on_the_wire_what_they_were() {
        let bytes = |mode| postcard::to_stdvec(&Some(mode)).expect("plain data");
        let before = |exclusive: bool| postcard::to_stdvec(&Some(exclusive)).expect("plain data");
        assert_eq!(bytes(Mode::ProtectedRead), before(false));
        assert_eq!(bytes(Mode::Exclusive), before(true));
    }
}
