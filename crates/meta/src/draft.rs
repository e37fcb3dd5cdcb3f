//! The effects of one operation while it runs: reads go through them to the view.
//!
//! Invariant: an inode's record is written at most once, when the draft ends, and its change count
//! rises by one then.

use crate::error::Refusal;
use crate::key::{Key, KeyRange, Lane};
use crate::op::{Context, Outcome, Reply, Touched};
use crate::record::{self, InodeRecord};
use crate::view::View;
use bytes::Bytes;
use perigee_types::{
    Batch, ContainerId, DataCommand, Errno, InodeId, InodeIndex, Mutation, WallTime,
};
use std::collections::{BTreeMap, BTreeSet};

struct Held {
    record: InodeRecord,
    changed: bool,
}

/// See the module.
pub(crate) struct Draft<'a> {
    view: &'a mut dyn View,
    pub(crate) context: &'a Context,
    inodes: BTreeMap<InodeId, Held>,
    writes: BTreeMap<ContainerId, BTreeMap<Vec<u8>, Option<Vec<u8>>>>,
    data: BTreeMap<ContainerId, Vec<DataCommand>>,
    touched: BTreeSet<Touched>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(context: &'a Context, view: &'a mut dyn View) -> Self {
        Self {
            view,
            context,
            inodes: BTreeMap::new(),
            writes: BTreeMap::new(),
            data: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    pub(crate) fn now(&self) -> WallTime {
        self.context.now
    }

    /// The value of a key; not for inode records.
    pub(crate) fn get(
        &mut self,
        container: ContainerId,
        key: &[u8],
    ) -> Result<Option<Bytes>, Refusal> {
        if let Some(value) = self.writes.get(&container).and_then(|keys| keys.get(key)) {
            return Ok(value.as_deref().map(Bytes::copy_from_slice));
        }
        Ok(self.view.get(container, key)?)
    }

    pub(crate) fn put(&mut self, container: ContainerId, key: Vec<u8>, value: Vec<u8>) {
        self.writes
            .entry(container)
            .or_default()
            .insert(key, Some(value));
    }

    pub(crate) fn delete(&mut self, container: ContainerId, key: Vec<u8>) {
        self.writes.entry(container).or_default().insert(key, None);
    }

    /// Entries of a range, the effects so far included.
    pub(crate) fn scan(
        &mut self,
        container: ContainerId,
        (from, to): &KeyRange,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Refusal> {
        let mine: Vec<(Vec<u8>, Option<Vec<u8>>)> = match self.writes.get(&container) {
            Some(keys) if from < to => keys
                .range(from.clone()..to.clone())
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            _ => Vec::new(),
        };
        // Each effect can take away one row of the view at most.
        let rows = self
            .view
            .scan(container, from, to, limit.saturating_add(mine.len()))?;
        if mine.is_empty() {
            return Ok(rows);
        }
        let mut merged: BTreeMap<Bytes, Bytes> = rows.into_iter().collect();
        for (key, value) in mine {
            match value {
                Some(value) => merged.insert(key.into(), value.into()),
                None => merged.remove(key.as_slice()),
            };
        }
        Ok(merged.into_iter().take(limit).collect())
    }

    /// The record of an inode, or ESTALE.
    pub(crate) fn inode(&mut self, inode: InodeId) -> Result<InodeRecord, Refusal> {
        self.find_inode(inode)?.ok_or(Refusal::Errno(Errno::ESTALE))
    }

    /// The record of an inode, if it exists.
    pub(crate) fn find_inode(&mut self, inode: InodeId) -> Result<Option<InodeRecord>, Refusal> {
        if let Some(held) = self.inodes.get(&inode) {
            return Ok(Some(held.record));
        }
        let key = Key::Inode(inode.index()).encode();
        let Some(value) = self.get(inode.container(), &key)? else {
            return Ok(None);
        };
        let record = record::decode_inode(inode.container(), &key, &value)?;
        let changed = false;
        self.inodes.insert(inode, Held { record, changed });
        Ok(Some(record))
    }

    /// The record of the inode that an entry of `dir` names.
    ///
    /// A name without an inode is damage in one container; over two it is a view from between two
    /// steps of a transaction, and ESTALE makes the kernel look again.
    pub(crate) fn named_inode(
        &mut self,
        dir: InodeId,
        inode: InodeId,
    ) -> Result<InodeRecord, Refusal> {
        match self.find_inode(inode)? {
            Some(record) => Ok(record),
            None if dir.container() == inode.container() => Err(record::corrupt(
                inode.container(),
                &Key::Inode(inode.index()).encode(),
                "a directory entry names an inode that is not there",
            )),
            None => Err(Errno::ESTALE.into()),
        }
    }

    /// The record of a directory; ENOTDIR for anything else.
    pub(crate) fn directory(&mut self, inode: InodeId) -> Result<InodeRecord, Refusal> {
        let record = self.inode(inode)?;
        if !record.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(record)
    }

    /// The record of a directory that takes names: one that was removed is ENOENT.
    pub(crate) fn live_directory(&mut self, inode: InodeId) -> Result<InodeRecord, Refusal> {
        let record = self.directory(inode)?;
        if record.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(record)
    }

    /// Replaces the record of an inode, whose attributes other sessions must ask for again.
    pub(crate) fn set_inode(&mut self, inode: InodeId, record: InodeRecord) {
        let changed = true;
        self.inodes.insert(inode, Held { record, changed });
        self.touched.insert(Touched::Attr(inode));
        if record.is_directory() {
            self.touched.insert(Touched::names(inode));
        }
    }

    /// Makes an inode in `container` with a number that was never used.
    pub(crate) fn make_inode(
        &mut self,
        container: ContainerId,
        lane: Lane,
        record: InodeRecord,
    ) -> Result<InodeId, Refusal> {
        let key = Key::NextIndex(lane).encode();
        let next = match self.get(container, &key)? {
            Some(value) => record::decode_count(container, &key, &value)?,
            None => lane.first().0,
        };
        if next < lane.first().0 || next > lane.last().0 + 1 {
            return Err(record::corrupt(container, &key, "outside of its lane"));
        }
        if next > lane.last().0 {
            return Err(Errno::ENOSPC.into());
        }
        self.put(container, key, record::encode_count(next + 1));
        let inode = InodeId::new(container, InodeIndex(next));
        // Nobody can have cached it: no touch.
        self.fill_inode(inode, record);
        Ok(inode)
    }

    /// Completes the record of an inode that this draft makes.
    pub(crate) fn fill_inode(&mut self, inode: InodeId, record: InodeRecord) {
        let changed = true;
        self.inodes.insert(inode, Held { record, changed });
    }

    /// Removes the record of an inode.
    pub(crate) fn remove_inode(&mut self, inode: InodeId) {
        self.inodes.remove(&inode);
        self.delete(inode.container(), Key::Inode(inode.index()).encode());
        self.touched.insert(Touched::Attr(inode));
    }

    /// The directory that holds a directory's name; `None` when it has none any more.
    pub(crate) fn parent(&mut self, dir: InodeId) -> Result<Option<InodeId>, Refusal> {
        let key = Key::Parent(dir.index()).encode();
        match self.get(dir.container(), &key)? {
            Some(value) => Ok(Some(record::decode_inode_id(
                dir.container(),
                &key,
                &value,
            )?)),
            None => Ok(None),
        }
    }

    pub(crate) fn set_parent(&mut self, dir: InodeId, parent: InodeId) {
        self.put(
            dir.container(),
            Key::Parent(dir.index()).encode(),
            record::encode_inode_id(parent),
        );
    }

    pub(crate) fn command(&mut self, command: DataCommand) {
        self.data
            .entry(command.inode().container())
            .or_default()
            .push(command);
    }

    pub(crate) fn touch(&mut self, touched: Touched) {
        self.touched.insert(touched);
    }

    /// Ends the operation.
    pub(crate) fn finish(mut self, reply: Reply) -> Outcome {
        for (inode, mut held) in std::mem::take(&mut self.inodes) {
            if held.changed {
                held.record.change = held.record.change.wrapping_add(1);
                self.put(
                    inode.container(),
                    Key::Inode(inode.index()).encode(),
                    record::encode_inode(&held.record),
                );
            }
        }
        let mut batches: BTreeMap<ContainerId, Batch> = BTreeMap::new();
        for (container, keys) in self.writes {
            batches.entry(container).or_default().mutations = keys
                .into_iter()
                .map(|(key, value)| Mutation { key, value })
                .collect();
        }
        for (container, data) in self.data {
            batches.entry(container).or_default().data = data;
        }
        Outcome {
            reply,
            batches,
            touched: self.touched.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemView;

    #[test]
    fn a_scan_sees_the_effects_so_far_and_fills_its_limit() {
        let put = |key: &[u8]| Mutation {
            key: key.to_vec(),
            value: Some(b"old".to_vec()),
        };
        let mut view = MemView::new();
        let mutations = [b"a", b"b", b"c", b"d", b"e"].map(|key| put(key)).to_vec();
        let data = Vec::new();
        view.apply(ContainerId::ROOT, &Batch { mutations, data });
        let context = Context::default();
        let mut draft = Draft::new(&context, &mut view);
        draft.delete(ContainerId::ROOT, b"a".to_vec());
        draft.put(ContainerId::ROOT, b"c".to_vec(), b"new".to_vec());
        draft.put(ContainerId::ROOT, b"bb".to_vec(), b"new".to_vec());
        draft.put(ContainerId::ROOT, b"z".to_vec(), b"outside".to_vec());
        let mut scan = |limit| {
            let range = (b"a".to_vec(), b"e".to_vec());
            let rows = draft.scan(ContainerId::ROOT, &range, limit);
            let rows = rows.expect("in memory").into_iter();
            rows.map(|(key, value)| (key.to_vec(), value.to_vec()))
                .collect::<Vec<_>>()
        };
        let row = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        let all = vec![
            row(b"b", b"old"),
            row(b"bb", b"new"),
            row(b"c", b"new"),
            row(b"d", b"old"),
        ];
        assert_eq!(scan(9), all);
        assert_eq!(scan(3), all[..3]);
    }
}
