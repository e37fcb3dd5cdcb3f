//! A checkpoint that is wanted no more: what others need of it goes to them, the rest goes.
//!
//! Step by step, each in a record of its own, and in any order: until the last step the checkpoint is in the list as one
//! that leaves, and all that is kept for it can be found there.

use super::checkpoints::{Checkpoint, Checkpoints};
use super::record::{KeptFile, kept_file, put_kept_file};
use super::view::PastView;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::planted;
use crate::record;
use crate::view::View;
use perigee_types::{CheckpointId, ContainerId, InodeIndex, Mutation};

/// One step over the kept rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// What goes into a record.
    pub mutations: Vec<Mutation>,
    /// Where the next step begins; `None`: all are done.
    pub next: Option<Vec<u8>>,
}

/// Gives the kept rows of a checkpoint to the one before it where that has none, and removes the others. `after`: where the
/// step before ended; `limit`: rows to look at.
///
/// Errors: [`Refusal::Corrupt`], and what the view says.
pub fn leave_rows(
    checkpoints: &Checkpoints,
    (container, leaving): (ContainerId, CheckpointId),
    view: &mut dyn View,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Left, Refusal> {
    let (first, end) = key::all_kept();
    let from = after.map_or(first, |after| [after, &[0]].concat());
    let rows = view.scan(container, &from, &end, limit)?;
    let mut left = Left::default();
    if rows.len() == limit {
        left.next = rows.last().map(|(row, _)| row.to_vec());
    }
    for (row, value) in rows {
        let Some(Key::Kept(key, at)) = Key::decode(&row) else {
            return Err(record::corrupt(
                container,
                &row,
                "not the key of a kept row",
            ));
        };
        if at != leaving {
            continue;
        }
        left.mutations.push(Mutation {
            key: row.to_vec(),
            value: None,
        });
        let index = key.inode();
        let heir = heir(checkpoints, leaving, index);
        let Some((heir, _)) = heir else { continue };
        if planted!(checkpoints, HeirGetsNothing) {
            continue;
        }
        let (from, _) = key::kept_since(&key.encode(), heir);
        if view.scan(container, &from, &row, 1)?.is_empty() {
            left.mutations.push(Mutation {
                key: Key::Kept(key, heir).encode(),
                value: Some(value.to_vec()),
            });
        }
    }
    Ok(left)
}

/// The checkpoint that needs what is kept of an inode for one that leaves.
fn heir(
    checkpoints: &Checkpoints,
    leaving: CheckpointId,
    index: Option<InodeIndex>,
) -> Option<(CheckpointId, &Checkpoint)> {
    let older = checkpoints.before(leaving);
    older.filter(|(_, checkpoint)| index.is_some_and(|index| checkpoint.has(index)))
}

/// What becomes of a file with content of a checkpoint that leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outdated {
    /// Nobody needs it.
    Goes {
        /// Whose content it is.
        of: InodeIndex,
        /// The file.
        kept: KeptFile,
    },
    /// It is the content of another checkpoint from now on.
    Moves {
        /// Whose content it is.
        of: InodeIndex,
        /// The rows that say so.
        rows: Vec<Mutation>,
    },
    /// What it has and another lacks is to be copied there first; then it goes.
    Joins {
        /// Whose content it is.
        of: InodeIndex,
        /// The file.
        kept: KeptFile,
        /// The checkpoint whose file gets it.
        at: CheckpointId,
        /// That file.
        into: KeptFile,
    },
}

impl Outdated {
    /// The next file with content of a checkpoint that leaves, and what becomes of it, among the files of inodes from `from`
    /// on.
    ///
    /// Errors: [`Refusal::Corrupt`], and what the view says.
    pub fn next(
        checkpoints: &Checkpoints,
        (container, leaving): (ContainerId, CheckpointId),
        view: &mut dyn View,
        from: InodeIndex,
    ) -> Result<Option<Self>, Refusal> {
        const PAGE: usize = 256;
        let (_, end) = key::all_kept_files();
        let (mut from, _) = key::kept_files(from, CheckpointId(0));
        loop {
            let rows = view.scan(container, &from, &end, PAGE)?;
            for (row, value) in &rows {
                let Some(Key::KeptFile(of, at)) = Key::decode(row) else {
                    return Err(record::corrupt(
                        container,
                        row,
                        "not the key of a kept file",
                    ));
                };
                if at == leaving {
                    let kept = kept_file(container, row, value)?;
                    let place = (container, leaving);
                    return Self::of(checkpoints, place, view, of, kept).map(Some);
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == PAGE => from = [last, &[0][..]].concat(),
                _ => return Ok(None),
            }
        }
    }

    fn of(
        checkpoints: &Checkpoints,
        (container, leaving): (ContainerId, CheckpointId),
        view: &mut dyn View,
        of: InodeIndex,
        kept: KeptFile,
    ) -> Result<Self, Refusal> {
        let Some((heir, _)) = heir(checkpoints, leaving, Some(of)) else {
            return Ok(Self::Goes { of, kept });
        };
        let (from, _) = key::kept_files(of, heir);
        let to = Key::KeptFile(of, leaving).encode();
        let between = view.scan(container, &from, &to, super::checkpoints::CHECKPOINTS_MAX)?;
        if let Some((row, value)) = between.last() {
            let Some(Key::KeptFile(_, at)) = Key::decode(row) else {
                return Err(record::corrupt(
                    container,
                    row,
                    "not the key of a kept file",
                ));
            };
            let into = kept_file(container, row, value)?;
            return Ok(Self::Joins { of, kept, at, into });
        }
        let key = Key::Inode(of).encode();
        let mut past = PastView::new(container, heir, view);
        let row = past.get(container, &key)?;
        if let Some(refused) = past.refused {
            return Err(refused);
        }
        let Some(row) = row else {
            return Ok(Self::Goes { of, kept });
        };
        let size = record::decode_inode(container, &key, &row)?.size;
        let moved = KeptFile { size, ..kept };
        let rows = vec![
            put_kept_file(of, leaving, None),
            put_kept_file(of, heir, Some(moved)),
        ];
        Ok(Self::Moves { of, rows })
    }
}
