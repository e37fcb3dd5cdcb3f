//! A real tree, copied in through one host, is read back identically through another.

use super::two_mounts::Pair;
use crate::error::{CheckError, Checked};
use crate::{ensure, tree};
use std::path::Path;

/// What was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// Names in the tree.
    pub names: usize,
    /// Bytes in its files.
    pub bytes: u64,
}

/// Copies `source` to `pair.writer` and compares what the reader sees.
///
/// Errors: `Vacuous` for an empty tree; `Violated` lists the first differences.
pub fn run(source: &Path, pair: &Pair) -> Checked<Compared> {
    tree::copy(source, &pair.writer)?;
    compare(source, &pair.reader)
}

/// Compares a tree with its source.
///
/// Errors: those of [`run`].
pub fn compare(source: &Path, copy: &Path) -> Checked<Compared> {
    let (mut expected, mut seen) = (tree::read(source)?, tree::read(copy)?);
    if expected.is_empty() {
        return Err(CheckError::Vacuous {
            what: "the source tree is empty".to_owned(),
        });
    }
    // A plain copy gives up hard links and belongs to the one who copies.
    for entry in expected.values_mut().chain(seen.values_mut()) {
        entry.links = 0;
        entry.owner = (0, 0);
        entry.attributes.clear();
    }
    let differences = tree::differences(&expected, &seen, 5);
    ensure!(
        differences.is_empty(),
        "the copy differs: {}",
        differences.join("; ")
    );
    Ok(Compared {
        names: expected.len(),
        bytes: expected.values().map(|e| e.size).sum(),
    })
}
