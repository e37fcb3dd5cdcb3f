//! What is stored of an object, or will be by the next commit that it rides in.

use super::validity::Mark;
use super::{Object, SPAN_LEN, span_range, spans_of};
use crate::format::{ObjectRecord, Place, encode_record, encode_regions};
use crate::kv::Op;
use crate::kv::key::{self, Part, Tag};
use perigee_replica::RegionMap;
use perigee_types::{ByteRange, InodeId, Version};
use std::collections::BTreeSet;

/// The stored record and validity. It claims no byte valid that may not be on the disk.
#[derive(Debug)]
pub(super) struct Saved {
    record: ObjectRecord,
    invalid: RegionMap,
    record_unsaved: bool,
    spans_unsaved: BTreeSet<u64>,
    bytes_unsaved: Bytes,
    removed: bool,
}

/// What is to be done about the stored bytes of a small object.
#[derive(Debug, Default)]
enum Bytes {
    #[default]
    Nothing,
    Put(Vec<u8>),
    /// They are in a file now.
    Delete,
}

impl Saved {
    pub(super) fn new(record: ObjectRecord, invalid: RegionMap) -> Self {
        Self {
            record,
            invalid,
            record_unsaved: false,
            spans_unsaved: BTreeSet::new(),
            bytes_unsaved: Bytes::Nothing,
            removed: false,
        }
    }

    pub(super) fn set_record(&mut self, record: ObjectRecord) {
        if self.record.place == Place::Keys && record.place != Place::Keys {
            self.bytes_unsaved = Bytes::Delete;
        }
        if self.record != record {
            self.record = record;
            self.record_unsaved = true;
        }
    }

    /// The bytes of a small object, which are stored with its record and validity or not at all.
    pub(super) fn set_bytes(&mut self, bytes: Vec<u8>) {
        self.bytes_unsaved = Bytes::Put(bytes);
    }

    /// "Invalid" may be stored at any time.
    pub(super) fn mark(&mut self, range: ByteRange, needed: Version, mark: Mark) {
        mark(&mut self.invalid, range, needed);
        self.spans_unsaved.extend(spans_of(range));
        if self.record.len < range.end {
            self.record.len = range.end;
            self.record_unsaved = true;
        }
    }

    /// Takes over the validity of a span, whose data is durable.
    pub(super) fn set_span(&mut self, span: u64, regions: &RegionMap) {
        let range = span_range(span);
        self.invalid.drop_range(range);
        self.invalid.merge(regions, range);
        self.spans_unsaved.insert(span);
    }

    /// Nothing will be stored any more.
    pub(super) fn set_removed(&mut self) {
        self.removed = true;
    }

    fn take_ops(&mut self, inode: InodeId) -> Vec<Op> {
        if self.removed {
            return Vec::new();
        }
        let mut ops = Vec::new();
        if std::mem::take(&mut self.record_unsaved) {
            let value = encode_record(self.record);
            ops.push(put(inode, Part::Record, 0, &value));
        }
        match std::mem::take(&mut self.bytes_unsaved) {
            Bytes::Nothing => {}
            Bytes::Put(bytes) => ops.push(put(inode, Part::Bytes, 0, &bytes)),
            Bytes::Delete => {
                let key = key::object(inode, Part::Bytes, 0);
                let key = key::encode(inode.container(), Tag::Objects, &key);
                ops.push(Op::Delete { key });
            }
        }
        for span in std::mem::take(&mut self.spans_unsaved) {
            let regions = self.invalid.part(span_range(span));
            let index = span * SPAN_LEN;
            ops.push(if regions.is_empty() {
                let key = key::object(inode, Part::Validity, index);
                let key = key::encode(inode.container(), Tag::Objects, &key);
                Op::Delete { key }
            } else {
                put(inode, Part::Validity, index, &encode_regions(regions))
            });
        }
        ops
    }
}

fn put(inode: InodeId, part: Part, index: u64, value: &[u8]) -> Op {
    let key = key::object(inode, part, index);
    let key = key::encode(inode.container(), Tag::Objects, &key);
    let value = key::seal(&key, value);
    Op::Put { key, value }
}

impl Object {
    /// What the committer writes for a batch that saves this object: whatever is unsaved when it commits.
    pub(crate) fn take_unsaved(&self) -> Vec<Op> {
        self.saved.lock().take_ops(self.inode)
    }
}
