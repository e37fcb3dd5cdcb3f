//! Records whose effects on the data may be in place already, or not: those that a restarted node finds in its log, and
//! those of an owner that owns no more.
//!
//! They are gone through again, and what they wrote is marked as missing. What lies in place stays there: where no member has
//! better bytes it becomes the content, and it may be all that is left of what an fsync has promised. So a cut that is gone
//! through again takes nothing that a later record of the log has written.

use super::drive::decode_batch;
use perigee_replica::Entry;
use perigee_types::{DataCommand, InodeId, Seq};
use std::collections::BTreeMap;

/// Where writes of such records end, by file.
#[derive(Debug, Default)]
pub(super) struct Uncertain {
    ends: BTreeMap<InodeId, Vec<(Seq, u64)>>,
}

impl Uncertain {
    /// Of these records. One that cannot be read has no effects, and is reported when it is gone through.
    pub(super) fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut ends: BTreeMap<InodeId, Vec<(Seq, u64)>> = BTreeMap::new();
        for entry in entries {
            for command in decode_batch(&entry.payload).unwrap_or_default().data {
                if let DataCommand::Written { inode, range } = command {
                    let of = ends.entry(inode).or_default();
                    of.push((entry.version.seq, range.end));
                }
            }
        }
        Self { ends }
    }

    /// How long a file has to stay when the record at `seq` cuts it to `size`.
    pub(super) fn kept(&self, inode: InodeId, seq: Seq, size: u64) -> u64 {
        let ends = self.ends.get(&inode).map_or(&[][..], Vec::as_slice);
        let later = ends.partition_point(|(at, _)| *at <= seq);
        let ends = ends[later..].iter().map(|(_, end)| *end);
        ends.max().unwrap_or(0).max(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{Batch, ByteRange, ContainerId, Epoch, InodeIndex, Version};

    #[test]
    fn a_cut_keeps_what_later_records_have_written() {
        let inode = |index| InodeId::new(ContainerId::ROOT, InodeIndex(index));
        let wrote = |seq, index, start, end| Entry {
            version: Version {
                epoch: Epoch(1),
                seq: Seq(seq),
            },
            payload: perigee_proto::encode(&Batch {
                data: vec![DataCommand::Written {
                    inode: inode(index),
                    range: ByteRange::new(start, end),
                }],
                ..Batch::default()
            }),
        };
        let records = [wrote(3, 7, 0, 900), wrote(5, 7, 0, 50), wrote(6, 8, 0, 70)];
        let uncertain = Uncertain::of(&records);
        assert_eq!(uncertain.kept(inode(7), Seq(2), 0), 900);
        assert_eq!(uncertain.kept(inode(7), Seq(4), 0), 50);
        assert_eq!(uncertain.kept(inode(7), Seq(4), 60), 60);
        assert_eq!(uncertain.kept(inode(7), Seq(5), 0), 0);
        assert_eq!(uncertain.kept(inode(9), Seq(1), 4), 4);
    }
}
