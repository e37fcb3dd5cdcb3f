//! Which hosts have a file: what a scheduler asks.

use super::Mount;
use super::names::Need;
use crate::path::RelPath;
use perigee_client::fs::Kind;
use perigee_types::{Errno, NodeId};

/// A file, and who has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Bytes.
    pub size: u64,
    /// Members with the file that programs see, or with one of the same length and time; the nearest first.
    pub members: Vec<NodeId>,
}

impl Mount {
    /// Finds a file by its path from the root of the union. Symbolic links are not followed.
    ///
    /// # Errors
    /// ENOENT; EISDIR of what is no file; EIO: a host that may have it is away.
    pub async fn locate(&self, path: &RelPath) -> Result<Located, Errno> {
        let (directory, name) = path.split().ok_or(Errno::EISDIR)?;
        let (seen, _) = self.find(&directory, name, Need::All).await?;
        let (_, first) = seen.first().ok_or(Errno::ENOENT)?;
        if first.kind != Kind::File {
            return Err(Errno::EISDIR);
        }
        let roster = self.union.roster();
        let same = seen.copies.iter().filter(|(_, stat)| {
            (stat.kind, stat.size, stat.mtime) == (first.kind, first.size, first.mtime)
        });
        let mut members: Vec<NodeId> = Vec::new();
        for member in same.filter_map(|(branch, _)| roster.holder(*branch)) {
            if !members.contains(&member) {
                members.push(member);
            }
        }
        Ok(Located {
            size: first.size,
            members,
        })
    }
}
