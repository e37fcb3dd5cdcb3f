//! Files with content of checkpoints: how they begin, what they have, how they end.

use super::record::{KeptFile, kept_file, put_kept_file};
use super::units::Units;
use super::view::PastView;
use crate::attr::Kind;
use crate::error::Refusal;
use crate::key::{self, Key, Lane};
use crate::record::{self, InodeRecord};
use crate::view::View;
use perigee_types::{
    Batch, CheckpointId, ContainerId, DataCommand, Errno, InodeId, InodeIndex, Mutation, WallTime,
};

/// Rows of units that one record removes.
const ROWS_MAX: usize = 4_096;
/// Checkpoints of one file that have content of their own.
const FILES_MAX: usize = super::checkpoints::CHECKPOINTS_MAX;

/// A file of a checkpoint, and what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptContent {
    /// The checkpoint.
    pub at: CheckpointId,
    /// The file.
    pub kept: KeptFile,
    /// Its units, of the chunks that were asked for.
    pub units: Units,
}

/// The record that begins a file for what is replaced of the content of `of` as of `at`. None where that checkpoint has no
/// such file.
///
/// Errors: ENOSPC when there are no more numbers; [`Refusal::Corrupt`], and what the view says.
pub fn begin_kept_file(
    container: ContainerId,
    view: &mut dyn View,
    (of, at): (InodeIndex, CheckpointId),
    now: WallTime,
) -> Result<Option<(KeptFile, Batch)>, Refusal> {
    let key = Key::Inode(of).encode();
    let mut past = PastView::new(container, at, view);
    let row = past.get(container, &key)?;
    if let Some(refused) = past.refused {
        return Err(refused);
    }
    let Some(row) = row else { return Ok(None) };
    let was = record::decode_inode(container, &key, &row)?;
    if was.kind != Kind::File {
        return Ok(None);
    }
    let counter = Key::NextIndex(Lane::Past).encode();
    let next = match view.get(container, &counter)? {
        Some(value) => record::decode_count(container, &counter, &value)?,
        None => Lane::Past.first().0,
    };
    if next > Lane::Past.last().0 {
        return Err(Errno::ENOSPC.into());
    }
    let file = InodeIndex(next);
    let mut inode = InodeRecord::new(Kind::File, 0o400, was.uid, was.gid, now);
    (inode.nlink, inode.size) = (0, was.size);
    let size = was.size;
    let kept = KeptFile { file, size };
    let put = |key: Vec<u8>, value: Vec<u8>| Mutation {
        key,
        value: Some(value),
    };
    let mutations = vec![
        put(counter, record::encode_count(next + 1)),
        put(Key::Inode(file).encode(), record::encode_inode(&inode)),
        put_kept_file(of, at, Some(kept)),
    ];
    let inode = InodeId::new(container, file);
    let data = vec![DataCommand::Resized { inode, size }];
    Ok(Some((kept, Batch { mutations, data })))
}

/// Content of a file that checkpoints from `at` on have, by rising checkpoint, with the units of some chunks.
///
/// Errors: [`Refusal::Corrupt`], and what the view says.
pub fn kept_content(
    container: ContainerId,
    view: &mut dyn View,
    (of, at): (InodeIndex, CheckpointId),
    chunks: std::ops::Range<u64>,
) -> Result<Vec<KeptContent>, Refusal> {
    let (from, to) = key::kept_files(of, at);
    let rows = view.scan(container, &from, &to, FILES_MAX)?;
    let mut found = Vec::with_capacity(rows.len());
    for (row, value) in rows {
        let Some(Key::KeptFile(_, at)) = Key::decode(&row) else {
            return Err(record::corrupt(
                container,
                &row,
                "not the key of a kept file",
            ));
        };
        let kept = kept_file(container, &row, &value)?;
        let units = kept_units(container, view, kept.file, chunks.clone())?;
        found.push(KeptContent { at, kept, units });
    }
    Ok(found)
}

/// The units of some chunks that a file of a checkpoint has.
///
/// Errors: [`Refusal::Corrupt`], and what the view says.
pub fn kept_units(
    container: ContainerId,
    view: &mut dyn View,
    file: InodeIndex,
    chunks: std::ops::Range<u64>,
) -> Result<Units, Refusal> {
    let from = Key::KeptUnits(file, chunks.start).encode();
    let to = Key::KeptUnits(file, chunks.end).encode();
    let mut units = Units::default();
    for (key, value) in view.scan(container, &from, &to, usize::MAX)? {
        units.add_row(container, &key, &value)?;
    }
    Ok(units)
}

/// The files with content of one checkpoint.
///
/// Errors: [`Refusal::Corrupt`], and what the view says.
pub fn files_of(
    container: ContainerId,
    view: &mut dyn View,
    at: CheckpointId,
) -> Result<Vec<KeptFile>, Refusal> {
    let (from, to) = key::all_kept_files();
    let mut found = Vec::new();
    for (row, value) in view.scan(container, &from, &to, usize::MAX)? {
        if matches!(Key::decode(&row), Some(Key::KeptFile(_, of)) if of == at) {
            found.push(kept_file(container, &row, &value)?);
        }
    }
    Ok(found)
}

/// The record that ends a file of a checkpoint: it has no rows any more, and is removed as files without a name are. Rows
/// that are too many for one record are left, and do no harm.
///
/// Errors: what the view says.
pub fn end_kept_file(
    container: ContainerId,
    view: &mut dyn View,
    (of, at): (InodeIndex, CheckpointId),
    kept: KeptFile,
) -> Result<Batch, Refusal> {
    let (from, to) = key::kept_units(kept.file);
    let rows = view.scan(container, &from, &to, ROWS_MAX)?;
    let remove = |(key, _): (bytes::Bytes, bytes::Bytes)| Mutation {
        key: key.to_vec(),
        value: None,
    };
    let mut mutations: Vec<Mutation> = rows.into_iter().map(remove).collect();
    mutations.push(put_kept_file(of, at, None));
    mutations.push(Mutation {
        key: Key::Orphan(kept.file).encode(),
        value: Some(Vec::new()),
    });
    let data = Vec::new();
    Ok(Batch { mutations, data })
}
