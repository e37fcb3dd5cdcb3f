//! Writes, cuts and holes of other hosts that are under way at the owner.
//!
//! Their bytes are in the owner's file before they are on the other members. A program on the owner's own host is another
//! host to the writer: it is shown them when they cannot be lost any more (law 3). What it reads past the daemon is not
//! held back.

use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The files that other hosts are writing to.
#[derive(Debug, Default)]
pub(super) struct WritesFromAbroad(Mutex<BTreeMap<InodeId, u32>>);

/// One such write, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay {
    writes: Arc<WritesFromAbroad>,
    inode: InodeId,
}

impl WritesFromAbroad {
    /// A write begins. Before its first byte is in the file.
    pub(super) fn begin(self: &Arc<Self>, inode: InodeId) -> UnderWay {
        *self.0.lock().entry(inode).or_default() += 1;
        UnderWay {
            writes: self.clone(),
            inode,
        }
    }

    /// Whether any is under way.
    pub(super) fn has(&self, inode: InodeId) -> bool {
        self.0.lock().contains_key(&inode)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut writes = self.writes.0.lock();
        if let Some(count) = writes.get_mut(&self.inode) {
            *count -= 1;
            if *count == 0 {
                writes.remove(&self.inode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_to_until_its_last_write_is_over() {
        let (writes, inode) = (Arc::new(WritesFromAbroad::default()), InodeId(1));
        let (first, second) = (writes.begin(inode), writes.begin(inode));
        assert!(writes.has(inode) && !writes.has(InodeId(2)));
        drop(first);
        assert!(writes.has(inode));
        drop(second);
        assert!(!writes.has(inode));
    }
}
