//! Length, holes and space.

use super::small::blocks_for;
use super::table::{block_range, blocks_of};
use super::write::{HOLE_MIN, Rest, forget_invalid};
use super::{Backing, Body, Goes, Object, Writers};
use crate::disk::{DiskFile, SeekTo};
use crate::error::StoreError;
use crate::sums::BLOCK;
use perigee_types::ByteRange;
use perigee_types::limits::BLOCK_LEN;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Object {
    /// Cuts or extends; what is new reads as zeros. Durable by [`Object::sync`].
    ///
    /// Errors: `Corrupt` when the cut is inside a corrupt block.
    pub fn resize(&self, size: u64) -> Result<(), StoreError> {
        self.check_end(size)?;
        self.core.check_writable(self.inode.container())?;
        let mut body = self.body.write();
        self.check_live(&body)?;
        let old = self.current_len(&body)?;
        body.len = old;
        if size == old {
            return Ok(());
        }
        let goes = body.goes(size, self.core.small_len_max);
        let change = self.note_data_change(goes)?;
        if size > old {
            let file = self.open_for_write(&mut body, goes)?;
            file.set_len(size).map_err(|e| self.io("extend", &e))?;
        } else {
            self.shrink(&mut body, size, change)?;
        }
        body.len = size;
        Ok(())
    }

    fn shrink(&self, body: &mut Body, size: u64, change: u64) -> Result<(), StoreError> {
        let block = size / BLOCK_LEN;
        let kept = ByteRange::new(block * BLOCK_LEN, size);
        self.load_sums(body, block_range(block))?;
        if let Some(file) = self.open_to_change(body)? {
            let mut scratch = [0; BLOCK];
            let rest = if kept.is_empty() {
                Rest::Known
            } else {
                let lost = ByteRange::new(size, body.len);
                self.keep_rest(body, &*file, block, lost, &mut scratch)?
            };
            file.set_len(size).map_err(|e| self.io("cut", &e))?;
            let sum = rest.sum(&scratch[..kept.len() as usize]);
            body.sums.set(block, &[sum], change);
        }
        body.sums.cut(size.div_ceil(BLOCK_LEN), change);
        forget_invalid(body, ByteRange::new(size, u64::MAX));
        Ok(())
    }

    /// Makes a range zeros that take no space, and valid. Length unchanged. Durable by [`Object::sync`].
    ///
    /// Errors: `Corrupt` when it covers a part of a corrupt block.
    pub fn punch(&self, range: ByteRange) -> Result<(), StoreError> {
        self.core.check_writable(self.inode.container())?;
        let mut body = self.body.write();
        self.check_live(&body)?;
        body.len = self.current_len(&body)?;
        let range = ByteRange::new(range.start, range.end.min(body.len));
        if range.is_empty() {
            return Ok(());
        }
        let goes = body.goes(0, self.core.small_len_max);
        let change = self.note_data_change(goes)?;
        if let Some(file) = self.open_to_change(&mut body)? {
            let edges = self.punched_edges(&mut body, range)?;
            file.punch(range).map_err(|e| self.io("punch", &e))?;
            let committed = self.committed();
            let kv = &self.core.kv;
            body.sums.load_used(kv, self.inode, range, committed)?;
            let whole = range.start.div_ceil(BLOCK_LEN)..range.end / BLOCK_LEN;
            body.sums.clear(whole, change);
            for (block, sum) in edges {
                body.sums.set(block, &[sum], change);
            }
        }
        forget_invalid(&mut body, range);
        Ok(())
    }

    /// What there is to be changed in place; `None` when there are no bytes.
    fn open_to_change(&self, body: &mut Body) -> Result<Option<Arc<dyn DiskFile>>, StoreError> {
        match body.backing {
            Backing::Small => Ok(Some(self.open_small_for_write(body)?)),
            _ => self.open_own_file(body),
        }
    }

    /// The new checksums of blocks that a punch hits in part.
    fn punched_edges(
        &self,
        body: &mut Body,
        range: ByteRange,
    ) -> Result<Vec<(u64, u32)>, StoreError> {
        let blocks = blocks_of(range);
        let mut edges = Vec::new();
        for block in [blocks.start, blocks.end - 1] {
            let here = block_range(block);
            let part = range.intersect(here).unwrap_or_default();
            let seen = edges.last().is_some_and(|&(last, _)| last == block);
            if part == here || seen {
                continue;
            }
            self.load_sums(body, here)?;
            let Some(file) = self.open_file(body)? else {
                continue;
            };
            let mut scratch = [0; BLOCK];
            let rest = self.keep_rest(body, &*file, block, part, &mut scratch)?;
            let (from, to) = (part.start - here.start, part.end - here.start);
            scratch[from as usize..to as usize].fill(0);
            edges.push((block, rest.sum(&scratch)));
        }
        Ok(edges)
    }

    /// Takes space for a range, beyond the end too. Length and content unchanged.
    pub fn allocate(&self, range: ByteRange) -> Result<(), StoreError> {
        if range.is_empty() {
            return Ok(());
        }
        self.check_end(range.end)?;
        let mut body = self.body.write();
        let _let_in = self.core.let_in(self.inode.container())?;
        self.check_live(&body)?;
        // Space can be promised in a file alone.
        self.note_data_change(Goes::ToFile)?;
        let file = self.open_for_write(&mut body, Goes::ToFile)?;
        file.allocate(range).map_err(|e| self.io("allocate", &e))
    }

    /// The first byte at or after `offset` that is not in a hole; invalid regions are not holes.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, StoreError> {
        let body = self.body.read();
        self.check_live(&body)?;
        let len = self.current_len(&body)?;
        let rest = ByteRange::new(offset, len);
        let invalid = body.invalid.overlapping(rest).next().map(|(r, _)| r.start);
        let data = match self.open_file(&body)? {
            Some(file) if !rest.is_empty() => file
                .seek(offset, SeekTo::Data)
                .map_err(|e| self.io("seek in", &e))?
                .filter(|&at| at < len),
            _ => None,
        };
        Ok(match (data, invalid) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        })
    }

    /// How many bytes of a range lie before the object's end, if all of them are a hole: by the disk, and by their checksums.
    ///
    /// Errors: `Invalid` when a part must be fetched first.
    pub fn hole_len(&self, range: ByteRange) -> Result<Option<u64>, StoreError> {
        let body = self.body_with_sums(range)?;
        let len = self.current_len(&body)?;
        let range = ByteRange::new(range.start.min(len), range.end.min(len));
        // Of small files the bytes are at hand.
        if range.len() < HOLE_MIN as u64 || body.backing == Backing::Small {
            return Ok(None);
        }
        self.check_valid(&body, range)?;
        let data = match self.open_file(&body)? {
            Some(file) => file
                .seek(range.start, SeekTo::Data)
                .map_err(|e| self.io("seek in", &e))?,
            None => None,
        };
        let mut sums = blocks_of(range).map(|block| body.sums.get(block));
        let hole = data.is_none_or(|at| at >= range.end) && sums.all(|sum| sum == 0);
        Ok(hole.then_some(range.len()))
    }

    /// The first byte at or after `offset` that is in a hole, or the object's end; `None` beyond it.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, StoreError> {
        let body = self.body.read();
        self.check_live(&body)?;
        let len = self.current_len(&body)?;
        if offset >= len {
            return Ok(None);
        }
        let file = self.open_file(&body)?;
        let mut at = offset;
        // An invalid region is no hole: go on behind it.
        for (region, _) in body.invalid.overlapping(ByteRange::new(offset, len)) {
            let hole = self.hole_from(file.as_deref(), at, len)?;
            if hole < region.start {
                return Ok(Some(hole));
            }
            at = at.max(region.end);
        }
        if at >= len {
            return Ok(Some(len));
        }
        self.hole_from(file.as_deref(), at, len).map(Some)
    }

    fn hole_from(&self, file: Option<&dyn DiskFile>, at: u64, len: u64) -> Result<u64, StoreError> {
        let Some(file) = file else {
            return Ok(at);
        };
        let hole = file
            .seek(at, SeekTo::Hole)
            .map_err(|e| self.io("seek in", &e))?;
        // Beyond a file that is shorter than the object there is nothing but hole.
        Ok(hole.unwrap_or(at).min(len))
    }

    /// Space taken here, in units of 512 bytes.
    pub fn allocated_blocks(&self) -> Result<u64, StoreError> {
        let body = self.body.read();
        if body.backing == Backing::Removed {
            return Ok(0);
        }
        if body.backing == Backing::Small {
            return Ok(blocks_for(body.len));
        }
        let change = self.marks.data_change.load(Ordering::Acquire);
        let mut known = self.marks.blocks.lock();
        if body.writers == Writers::Here && change != 0 && known.0 == change {
            return Ok(known.1);
        }
        let blocks = match self.open_file(&body)? {
            Some(file) => file.blocks().map_err(|e| self.io("stat", &e))?,
            None => 0,
        };
        *known = (change, blocks);
        Ok(blocks)
    }
}
