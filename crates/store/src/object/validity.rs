//! Which regions are valid here.

use super::{Body, Object};
use crate::error::StoreError;
use crate::kv::WriteBatch;
use perigee_replica::RegionMap;
use perigee_types::{ByteRange, Version};
use std::sync::Arc;

/// What is to be said of a range: [`RegionMap::invalidate`] or [`RegionMap::spoil`].
pub(super) type Mark = fn(&mut RegionMap, ByteRange, Version);

impl Object {
    /// Marks a range invalid until content of version `needed` is installed; the object reaches to its end at
    /// least. Durable within 100 ms: where a log record depends on it, use [`Object::invalidate_in`].
    pub fn invalidate(
        self: &Arc<Self>,
        range: ByteRange,
        needed: Version,
    ) -> Result<(), StoreError> {
        let mut batch = WriteBatch::new();
        self.invalidate_in(&mut batch, range, needed)?;
        self.core.kv.submit_lazy(batch, None);
        Ok(())
    }

    /// [`Object::invalidate`], durable with `batch`. In memory it holds at once.
    ///
    /// Batches of one object may be submitted in any order.
    pub fn invalidate_in(
        self: &Arc<Self>,
        batch: &mut WriteBatch,
        range: ByteRange,
        needed: Version,
    ) -> Result<(), StoreError> {
        self.mark_in(batch, range, needed, RegionMap::invalidate)
    }

    /// [`Object::invalidate_in`], where what is in place was never the content, and never will be.
    pub fn spoil_in(
        self: &Arc<Self>,
        batch: &mut WriteBatch,
        range: ByteRange,
        needed: Version,
    ) -> Result<(), StoreError> {
        self.mark_in(batch, range, needed, RegionMap::spoil)
    }

    /// The same of what is invalid in `range`, and needs no later version: nobody has content for it.
    pub fn spoil_invalid_in(
        self: &Arc<Self>,
        batch: &mut WriteBatch,
        range: ByteRange,
        as_of: Version,
    ) -> Result<(), StoreError> {
        let mut body = self.body.write();
        let missing = body.invalid.overlapping(range);
        let old: Vec<(ByteRange, Version)> =
            missing.filter(|(_, needed)| *needed <= as_of).collect();
        for (part, needed) in old {
            self.mark_body(&mut body, part, needed, RegionMap::spoil)?;
        }
        drop(body);
        batch.save_object(self);
        Ok(())
    }

    fn mark_in(
        self: &Arc<Self>,
        batch: &mut WriteBatch,
        range: ByteRange,
        needed: Version,
        mark: Mark,
    ) -> Result<(), StoreError> {
        if range.is_empty() {
            return Ok(());
        }
        self.check_end(range.end)?;
        let mut body = self.body.write();
        self.mark_body(&mut body, range, needed, mark)?;
        body.len = body.len.max(range.end);
        if let Some(pending) = &mut body.pending {
            pending.len = pending.len.max(range.end);
        }
        drop(body);
        batch.save_object(self);
        Ok(())
    }

    fn mark_body(
        &self,
        body: &mut Body,
        range: ByteRange,
        needed: Version,
        mark: Mark,
    ) -> Result<(), StoreError> {
        self.check_live(body)?;
        self.note_change();
        mark(&mut body.invalid, range, needed);
        if let Some(pending) = &mut body.pending {
            mark(&mut pending.regions, range, needed);
        }
        self.saved.lock().mark(range, needed, mark);
        Ok(())
    }

    /// The invalid regions, and what version each needs.
    #[must_use]
    pub fn invalid(&self) -> Vec<(ByteRange, Version)> {
        self.body.read().invalid.iter().collect()
    }

    /// The same, with all that is known of them.
    #[must_use]
    pub fn invalid_map(&self) -> RegionMap {
        self.body.read().invalid.clone()
    }

    /// The invalid parts of `range`, and what version each needs.
    #[must_use]
    pub fn invalid_in(&self, range: ByteRange) -> Vec<(ByteRange, Version)> {
        self.body.read().invalid.overlapping(range).collect()
    }

    /// Whether no region is invalid.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.body.read().invalid.is_empty()
    }
}
