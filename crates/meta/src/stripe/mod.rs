//! Files whose chunks are spread over several containers.
//!
//! Chunk *i* of such a file lies in **column** *i mod w*, at its natural offset. Column 0 is the file's own inode, which has
//! the file's names, attributes and length. The others are inodes without a name, each in another container; they are made
//! together, by one transaction, with the first byte past chunk 0, so that small files cost nothing, and go with the file.
//!
//! **Writes** to a column do not pass the file's own owner: whoever writes tells it now and then ([`crate::Op::Claim`]), so that
//! the file has the time of it. A write past the end claims its bytes first, and goes to their column when the file's owner has
//! made it as long, for good: no column is ever longer than its file.
//!
//! **Cuts.** What is written past the end of the file must not be there when the file grows again, and nobody may see the file
//! shorter before everybody does. So a cut has a number, and three steps, each of which may be done by anybody, and again.
//! The file's owner notes to which length the file is to be cut ([`crate::Op::SetAttr`]); from then on nothing is begun
//! beyond that. Each column is cut, and remembers the number ([`crate::Op::CutColumn`]): a write or read of somebody who has not heard
//! of the cut is refused there. Then the file is cut ([`crate::Op::EndCut`]): that is the moment of the change. Whoever finds a cut
//! in the way that has not come to its end ends it.
//!
//! **Locks.** A host that has lost its locks without a word may have writes on their way to columns, whose owners know nothing of locks. So
//! the end of such a lock begins a cut that takes nothing and is in the way of nothing but locks: nobody is granted one before it has
//! come to its end. Each column refuses the host by then, and the file's owner does not tell it the new number.

pub mod job;
#[cfg(feature = "plant")]
pub mod plant;

#[cfg(doc)]
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{ByteRange, Errno, InodeId, StripeWidth};
use serde::{Deserialize, Serialize};

/// Bytes of a chunk.
pub const UNIT: u64 = 64 << 20;

/// Names a cut of a striped file: of two of one file the greater is the later. The upper half says how often the file was made
/// shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Cuts(pub u64);

impl Cuts {
    /// The cut after these that makes the file shorter.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(((self.0 >> 32) + 1) << 32)
    }

    /// The cut after these that takes nothing.
    #[must_use]
    pub const fn next_fence(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether the file was made shorter after that, and so what was its end then may be none any more.
    #[must_use]
    pub const fn is_shorter_since(self, before: Self) -> bool {
        self.0 >> 32 > before.0 >> 32
    }
}

/// What a striped file's own inode says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Striping {
    /// The number of columns, or of those that are to be made.
    pub width: StripeWidth,
    /// Whether the other columns are there.
    pub made: bool,
    /// The cuts so far.
    pub cuts: Cuts,
    /// The length to which it is being cut: [`FILE_LEN_MAX`] where that takes nothing.
    pub cutting: Option<u64>,
}

/// Where the bytes of an inode's file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Layout {
    /// All with the inode.
    #[default]
    Whole,
    /// Those of column 0 with the inode.
    Striped(Striping),
    /// The inode is another column.
    Column {
        /// The file's own inode.
        of: InodeId,
        /// The last cut that it knows.
        cuts: Cuts,
    },
}

impl Layout {
    /// Of a file that is made where this is the policy.
    #[must_use]
    pub fn of_width(width: StripeWidth) -> Self {
        match width {
            StripeWidth::ONE => Self::Whole,
            width => Self::Striped(Striping {
                width,
                made: false,
                cuts: Cuts::default(),
                cutting: None,
            }),
        }
    }

    /// Whether the file has columns beside its own inode.
    #[must_use]
    pub const fn has_columns(self) -> bool {
        matches!(self, Self::Striped(Striping { made: true, .. }))
    }

    /// The striping of a striped file.
    #[must_use]
    pub const fn striping(self) -> Option<Striping> {
        match self {
            Self::Striped(striping) => Some(striping),
            Self::Whole | Self::Column { .. } => None,
        }
    }
}

/// Whether a column, or a striped file's own inode, is written by who knows of these cuts.
///
/// Errors: [`Errno::ESTALE`]: it was cut since, and the file's owner has to be asked again. [`Errno::EAGAIN`]: it goes beyond
/// the end of a cut that is not done.
pub fn admit_write(layout: Layout, end: u64, cuts: Cuts) -> Result<(), Errno> {
    match layout {
        Layout::Column { .. } => admit_read(layout, cuts),
        Layout::Striped(striping) if striping.cutting.is_some_and(|cut| end > cut) => {
            Err(Errno::EAGAIN)
        }
        // An append may have been given a place that was cut away since.
        Layout::Striped(striping) if striping.cuts.is_shorter_since(cuts) => Err(Errno::ESTALE),
        Layout::Striped(_) | Layout::Whole => Ok(()),
    }
}

/// Whether what who knows of these cuts has read of a column is what it asked for. To be asked after the read.
///
/// Errors: as those of [`admit_write`].
pub fn admit_read(layout: Layout, cuts: Cuts) -> Result<(), Errno> {
    match layout {
        Layout::Column { cuts: known, .. } if cuts < known => Err(Errno::ESTALE),
        Layout::Column { .. } | Layout::Striped(_) | Layout::Whole => Ok(()),
    }
}

/// Whether bytes up to `end` may be written to an inode itself, as who does not know that a file is striped does.
///
/// Errors: [`Errno::ESTALE`]: it is, and they lie elsewhere. [`Errno::EAGAIN`]: as of [`admit_write`].
pub fn admit_unspread_write(layout: Layout, end: u64) -> Result<(), Errno> {
    admit_unspread(layout, end)?;
    match layout.striping().and_then(|striping| striping.cutting) {
        Some(cut) if end > cut => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

/// Whether bytes up to `end` are with an inode itself, as who does not know that a file is striped takes it.
///
/// Errors: [`Errno::ESTALE`]: it is, and they are not.
pub fn admit_unspread(layout: Layout, end: u64) -> Result<(), Errno> {
    match layout {
        Layout::Striped(_) if end > UNIT => Err(Errno::ESTALE),
        Layout::Striped(_) | Layout::Column { .. } | Layout::Whole => Ok(()),
    }
}

/// What is deliberately wrong; nothing in a product build.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The fault.
    #[cfg(feature = "plant")]
    pub plant: Option<plant::Plant>,
}

/// True when this deliberate fault is switched on; a constant `false` in a product build.
macro_rules! faulty {
    ($faults:expr, $name:ident) => {{
        #[cfg(feature = "plant")]
        {
            $faults.plant == Some(crate::stripe::plant::Plant::$name)
        }
        #[cfg(not(feature = "plant"))]
        {
            _ = $faults;
            false
        }
    }};
}
pub(crate) use faulty;

/// A part of a range that lies in one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Which column.
    pub column: usize,
    /// Where, in the file and in the column alike.
    pub range: ByteRange,
}

/// The parts of a range, in order.
pub fn pieces(width: StripeWidth, range: ByteRange) -> impl Iterator<Item = Piece> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let chunk = at / UNIT;
        let end = range.end.min((chunk + 1).saturating_mul(UNIT));
        let piece = Piece {
            column: (chunk % u64::from(width.get())) as usize,
            range: ByteRange::new(at, end),
        };
        at = end;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_written_beyond_the_end_of_a_cut_that_is_not_done() {
        let layout = |cutting| {
            Layout::Striped(Striping {
                width: StripeWidth::of(3).expect("in range"),
                made: true,
                cuts: Cuts::default().next(),
                cutting,
            })
        };
        for (cutting, end, admitted) in [
            (None, UNIT, Ok(())),
            (Some(100), 100, Ok(())),
            (Some(100), 101, Err(Errno::EAGAIN)),
        ] {
            assert_eq!(admit_unspread_write(layout(cutting), end), admitted);
            let cuts = Cuts::default().next();
            assert_eq!(admit_write(layout(cutting), end, cuts), admitted);
        }
        let beyond = admit_unspread_write(layout(Some(100)), UNIT + 1);
        assert_eq!(beyond, Err(Errno::ESTALE));
        assert_eq!(admit_unspread_write(Layout::Whole, UNIT + 1), Ok(()));
    }

    proptest! {
        #[test]
        fn pieces_are_the_range_and_each_chunk_has_one_column(
            width in 1_u8..=8,
            start in 0_u64..(20 * UNIT),
            len in 0_u64..(9 * UNIT),
        ) {
            let width = StripeWidth::of(width).expect("in range");
            let mut at = start;
            for piece in pieces(width, ByteRange::with_len(start, len)) {
                prop_assert_eq!(piece.range.start, at);
                prop_assert!(!piece.range.is_empty());
                for byte in [piece.range.start, piece.range.end - 1] {
                    let chunk = (byte / UNIT) as usize;
                    prop_assert_eq!(piece.column, chunk % usize::from(width.get()));
                }
                at = piece.range.end;
            }
            prop_assert_eq!(at, start + len);
        }
    }
}
