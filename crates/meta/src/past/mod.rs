//! What a container was at an earlier moment: checkpoints, by copy-on-write.
//!
//! A **checkpoint** is one record of a container's log: the state as of that record is kept. It costs nothing to make.
//! From then on whoever orders a change sees to it that what the change replaces is kept, in the same record: of a row
//! its older value ([`keep_rows`]), of a file's content whole units ([`Units`]), copied to a file of their own. Both are
//! ordinary rows and ordinary files of the container, so members, joiners, repair and takeovers need no word about them.
//!
//! What a checkpoint has of a key is the kept row of the first checkpoint from it on, or the row itself where none is
//! ([`PastView`]). Only the newest checkpoint is written to: what changes has been the same for those before it, or has a
//! kept row there already. What was made after the newest needs none, since index numbers tell its age.
//!
//! Source: container versions of AwareFS (section on checkpoints), at the granularity of rows and units; the order of
//! kept rows is that of copy-on-write file systems.

mod checkpoints;
mod files;
mod keeping;
mod leave;
mod record;
mod sums;
mod units;
mod view;

#[cfg(test)]
mod tests;

use crate::key::Lane;
use perigee_types::InodeId;

/// Whether a file is one of a checkpoint's, with content that was replaced since.
#[must_use]
pub fn is_kept_file(inode: InodeId) -> bool {
    Lane::of(inode.index()) == Lane::Past
}

pub use checkpoints::{Checkpoint, Checkpoints, Fate, keep_rows};
pub use files::{KeptContent, begin_kept_file, end_kept_file, files_of, kept_content, kept_units};
pub use keeping::{Due, Keeping, KeptNow};
pub use leave::{Left, Outdated, leave_rows};
pub use record::{KeptFile, kept_file, put_kept_file};
pub(crate) use record::{decode_snapshot, encode_snapshot};
pub use sums::{KeptSum, Sum, remove_sums};
pub use units::{UNIT, Units, chunk_row, units_of};
pub use view::PastView;
