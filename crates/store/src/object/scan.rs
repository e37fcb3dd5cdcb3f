//! Going over all blocks: scrub, rescan after unseen writes, and recovery.

use super::table::{block_range, blocks_of};
use super::{Backing, Body, Goes, Object, Writers, push_block, spans_of, wholly_invalid};
use crate::disk::{DiskFile, SeekTo, read_padded};
use crate::error::StoreError;
use crate::store::Adopt;
use crate::sums::{BLOCK, GROUP_LEN, block_sum};
use crate::touched::By;
use bytes::Bytes;
use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, Version};
use std::sync::Arc;

/// A block that is not what its checksum says.
struct Differing {
    block: u64,
    /// What it is; `None` when the disk cannot read it.
    sum: Option<u32>,
}

/// Where [`Object::verify_from`] goes on; the default is the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unverified(u64);

/// What one part of an object is like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Blocks that are not what was written, cut at the object's end.
    pub corrupt: Vec<ByteRange>,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Where the rest begins, if there is any.
    pub next: Option<Unverified>,
}

/// What is in place of a part of a file that others may change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AsItIs {
    /// The bytes.
    pub bytes: Bytes,
    /// Blocks that were not what was known of them, cut at the end.
    pub changed: Vec<ByteRange>,
}

impl Object {
    /// Reads all blocks; returns the corrupt ones, cut at the end. To heal: invalidate, then install.
    /// Finds nothing while the file is externally writable. Wholly invalid blocks are passed over.
    pub fn verify(&self) -> Result<Vec<ByteRange>, StoreError> {
        let mut found = Vec::new();
        let mut from = Some(Unverified::default());
        while let Some(next) = from {
            let part = self.verify_from(next)?;
            part.corrupt
                .into_iter()
                .for_each(|range| push_block(&mut found, range));
            from = part.next;
        }
        Ok(found)
    }

    /// The next part of [`Object::verify`]: of a mebibyte or so, so that whoever goes over everything can pause in
    /// between.
    pub fn verify_from(&self, from: Unverified) -> Result<Verified, StoreError> {
        let mut verified = Verified::default();
        let body = self.body.read();
        self.check_live(&body)?;
        if body.writers == Writers::Outside {
            return Ok(verified);
        }
        let file = match self.open_file(&body) {
            // To load a small object's bytes is to check them.
            Ok(Some(_)) if body.backing == Backing::Small => {
                verified.bytes = body.len;
                return Ok(verified);
            }
            Ok(Some(file)) => file,
            Ok(None) => return Ok(verified),
            Err(StoreError::Corrupt { ranges, .. }) => {
                verified.corrupt = ranges;
                return Ok(verified);
            }
            Err(error) => return Err(error),
        };
        let Some(group) = self.next_group(&body, &*file, from.0)? else {
            return Ok(verified);
        };
        drop(body);
        let range = ByteRange::with_len(group * GROUP_LEN, GROUP_LEN);
        let body = self.body_with_sums(range)?;
        let differing = self.compare_group(&body, &*file, group)?;
        for Differing { block, .. } in differing {
            let here = cut_at(block_range(block), body.len);
            if !wholly_invalid(&body.invalid, here) {
                push_block(&mut verified.corrupt, here);
            }
        }
        verified.bytes = cut_at(range, body.len).len();
        verified.next = Some(Unverified(group + 1));
        Ok(verified)
    }

    /// Takes the file's length, and the checksums of blocks in `ranges`, ascending, that do not match them. The blocks are
    /// among the unseen ones, cut at the end: also those before a failure, whose checksums are taken.
    pub(super) fn rescan_within(&self, ranges: &[ByteRange]) -> Result<(), StoreError> {
        let mut from = 0;
        for range in ranges.iter().chain([&ByteRange::new(0, 0)]) {
            let end = range.end.div_ceil(GROUP_LEN);
            from = from.max(range.start / GROUP_LEN);
            loop {
                let mut body = self.body.write();
                self.check_live(&body)?;
                self.core.check_writable(self.inode.container())?;
                if body.backing == Backing::Small {
                    return Ok(());
                }
                let Some(file) = self.open_file(&body)? else {
                    return Ok(());
                };
                let physical = file.size().map_err(|e| self.io("read the length of", &e))?;
                if body.len < physical {
                    self.note_data_change(Goes::ToFile)?;
                    body.len = physical;
                }
                let group = self.next_group(&body, &*file, from)?;
                let Some(group) = group.filter(|group| *group < end) else {
                    break;
                };
                self.take_unseen(&mut body, &*file, group)?;
                from = group + 1;
            }
        }
        Ok(())
    }

    /// Takes what is in place in `range` as the content: it is valid from now on, whatever was needed. Blocks that are not
    /// what was put there, old or new, stay as they are; returns them, cut at the range.
    pub fn accept(&self, range: ByteRange) -> Result<Vec<ByteRange>, StoreError> {
        let mut body = self.body.write();
        self.check_live(&body)?;
        self.core.check_writable(self.inode.container())?;
        let goes = body.goes(0, self.core.small_len_max);
        self.note_data_change(goes)?;
        let rotten = self.rotten(&mut body, range)?;
        let mut left = range;
        for bad in &rotten {
            body.invalid
                .drop_range(ByteRange::new(left.start, bad.start));
            left.start = bad.end;
        }
        body.invalid.drop_range(left);
        let known = cut_at(range, body.len);
        if !known.is_empty() {
            body.filled.extend(spans_of(known));
        }
        Ok(rotten)
    }

    /// The blocks of a range that do not match their checksums, cut at the range. What others write unseen gets new
    /// ones, and a rescan tells of it.
    pub(super) fn rotten(
        &self,
        body: &mut Body,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>, StoreError> {
        let known = cut_at(range, body.len);
        let mut found = Vec::new();
        if known.is_empty() || body.backing == Backing::Small {
            return Ok(found);
        }
        let Some(file) = self.open_file(body)? else {
            return Ok(found);
        };
        for group in known.start / GROUP_LEN..known.end.div_ceil(GROUP_LEN) {
            if body.writers == Writers::Outside {
                self.take_unseen(body, &*file, group)?;
                continue;
            }
            self.load_sums(body, ByteRange::with_len(group * GROUP_LEN, GROUP_LEN))?;
            for Differing { block, .. } in self.compare_group(body, &*file, group)? {
                if let Some(part) = block_range(block).intersect(known) {
                    push_block(&mut found, part);
                }
            }
        }
        Ok(found)
    }

    /// Reads what others may be changing, and takes the checksums of the very bytes that it gives: at most what the object is
    /// known to be long. A rescan does not tell of these changes again.
    ///
    /// Errors: `Invalid` when a part must be fetched first; `Corrupt` when the disk cannot read a block.
    pub fn read_as_it_is(&self, range: ByteRange) -> Result<AsItIs, StoreError> {
        let mut body = self.body.write();
        self.check_live(&body)?;
        self.core.check_writable(self.inode.container())?;
        let range = cut_at(range, body.len);
        let mut read = AsItIs::default();
        if range.is_empty() {
            return Ok(read);
        }
        self.check_valid(&body, range)?;
        let blocks = blocks_of(range);
        let first = block_range(blocks.start).start;
        let whole = cut_at(
            ByteRange::new(first, block_range(blocks.end).start),
            body.len,
        );
        let mut buf = vec![0; usize::try_from(whole.len()).unwrap_or(usize::MAX)];
        if let Some(file) = self.open_file(&body)? {
            self.load_sums(&mut body, whole)?;
            let differing = self.compare_blocks(&body, &*file, whole, &mut buf)?;
            let unread = differing.iter().filter(|block| block.sum.is_none());
            let ranges: Vec<ByteRange> = unread.map(|bad| block_range(bad.block)).collect();
            if !ranges.is_empty() {
                return Err(StoreError::Corrupt {
                    inode: self.inode,
                    ranges,
                });
            }
            self.take_differing(&mut body, differing, &mut read.changed)?;
        }
        // A look that failed half-way has taken these, and nobody has heard of them.
        let untold = body.unseen.iter().filter(|part| part.overlaps(whole));
        read.changed.extend(untold.copied());
        let skipped = (range.start - whole.start) as usize;
        read.bytes = Bytes::from(buf).slice(skipped..skipped + range.len() as usize);
        Ok(read)
    }

    /// After an unclean stop: every block either matches its checksum, or is taken as it is, or is invalid.
    /// Returns those that did not match. `by`: who may have changed the file, and may go on.
    pub(crate) fn settle(
        self: &Arc<Self>,
        adopt: Adopt,
        by: By,
    ) -> Result<Vec<ByteRange>, StoreError> {
        if by == By::Others {
            self.renew_file().map_err(|e| self.io("copy", &e))?;
        }
        let mut found = Vec::new();
        let mut body = self.body.write();
        // The log knows the inode already; this ties it to the object.
        self.note_data_change(Goes::ToFile)?;
        let recorded = body.backing;
        if recorded == Backing::Small {
            // Its keys are as its last sync left them; a file that it was just getting holds nothing more that lasts.
            self.remove_file().map_err(|e| self.io("remove", &e))?;
            return Ok(found);
        }
        body.backing = Backing::Present;
        let file = match self.open_file(&body) {
            Ok(Some(file)) => file,
            Ok(None) | Err(StoreError::Corrupt { .. }) => {
                body.backing = recorded;
                drop(body);
                return self.settle_missing(adopt, recorded);
            }
            Err(error) => return Err(error),
        };
        if recorded == Backing::None {
            body.backing = Backing::Fresh;
        }
        let physical = file.size().map_err(|e| self.io("read the length of", &e))?;
        let invalid_end = body.invalid.iter().last().map_or(0, |(r, _)| r.end);
        match adopt {
            Adopt::Adopt => body.len = physical.max(invalid_end),
            Adopt::Distrust => body.len = body.len.max(physical),
        }
        // Stored checksums of blocks that are cut off must not meet what is written there later.
        let end = body.len.div_ceil(BLOCK_LEN);
        self.load_sums(&mut body, block_range(end))?;
        body.sums.cut(end, self.note_change());
        let mut from = 0;
        while let Some(group) = self.next_group(&body, &*file, from)? {
            self.take_group(&mut body, &*file, group, &mut found)?;
            from = group + 1;
        }
        drop(body);
        if adopt == Adopt::Distrust {
            self.distrust(&found)?;
        }
        Ok(found)
    }

    /// A file that is gone: an owner's reads will say so; a replica fetches it anew.
    fn settle_missing(
        self: &Arc<Self>,
        adopt: Adopt,
        recorded: Backing,
    ) -> Result<Vec<ByteRange>, StoreError> {
        let mut ranges = Vec::new();
        if recorded != Backing::None && adopt == Adopt::Distrust {
            let mut body = self.body.write();
            body.backing = Backing::None;
            body.sums.cut(0, self.note_change());
            ranges.push(ByteRange::new(0, body.len));
            drop(body);
            self.distrust(&ranges)?;
        }
        Ok(ranges)
    }

    fn distrust(self: &Arc<Self>, ranges: &[ByteRange]) -> Result<(), StoreError> {
        for &range in ranges {
            self.invalidate(range, Version::default())?;
        }
        Ok(())
    }

    /// The next group that is in the file, or should be.
    fn next_group(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        from: u64,
    ) -> Result<Option<u64>, StoreError> {
        let start = from * GROUP_LEN;
        if start >= body.len {
            return Ok(None);
        }
        let data = file
            .seek(start, SeekTo::Data)
            .map_err(|e| self.io("seek in", &e))?
            .map(|at| at / GROUP_LEN);
        let committed = self.committed();
        let summed = body
            .sums
            .next_used(&self.core.kv, self.inode, from, committed)?;
        let next = match (data, summed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Ok(next.filter(|&group| group * GROUP_LEN < body.len))
    }

    /// The checksums of the group are in memory.
    fn compare_group(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        group: u64,
    ) -> Result<Vec<Differing>, StoreError> {
        let range = cut_at(ByteRange::with_len(group * GROUP_LEN, GROUP_LEN), body.len);
        let mut buf = vec![0; range.len() as usize];
        self.compare_blocks(body, file, range, &mut buf)
    }

    /// Reads whole blocks, the last one cut at the end, into `buf`, and compares them. Their checksums are in memory.
    fn compare_blocks(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        range: ByteRange,
        buf: &mut [u8],
    ) -> Result<Vec<Differing>, StoreError> {
        let whole = read_padded(file, range.start, buf);
        if let Err(error) = &whole
            && error.raw_os_error() != Some(libc::EIO)
        {
            return Err(self.io("read", error));
        }
        let mut differing = Vec::new();
        for (block, data) in blocks_of(range).zip(buf.chunks_mut(BLOCK)) {
            // Where the group as a whole cannot be read, some of its blocks may still be.
            let readable =
                whole.is_ok() || read_padded(file, block_range(block).start, data).is_ok();
            let sum = readable.then(|| block_sum(data));
            if sum != Some(body.sums.get(block)) {
                differing.push(Differing { block, sum });
            }
        }
        Ok(differing)
    }

    /// Takes the checksums of what others have changed in a group.
    fn take_unseen(
        &self,
        body: &mut Body,
        file: &dyn DiskFile,
        group: u64,
    ) -> Result<(), StoreError> {
        let mut unseen = std::mem::take(&mut body.unseen);
        let taken = self.take_group(body, file, group, &mut unseen);
        body.unseen = unseen;
        taken
    }

    /// Takes the checksums of what is in the file.
    fn take_group(
        &self,
        body: &mut Body,
        file: &dyn DiskFile,
        group: u64,
        found: &mut Vec<ByteRange>,
    ) -> Result<(), StoreError> {
        self.load_sums(body, ByteRange::with_len(group * GROUP_LEN, GROUP_LEN))?;
        let differing = self.compare_group(body, file, group)?;
        self.take_differing(body, differing, found)
    }

    fn take_differing(
        &self,
        body: &mut Body,
        differing: Vec<Differing>,
        found: &mut Vec<ByteRange>,
    ) -> Result<(), StoreError> {
        if differing.is_empty() {
            return Ok(());
        }
        let change = self.note_data_change(Goes::ToFile)?;
        for Differing { block, sum } in differing {
            if let Some(sum) = sum {
                body.sums.set(block, &[sum], change);
            }
            let here = cut_at(block_range(block), body.len);
            if !wholly_invalid(&body.invalid, here) {
                push_block(found, here);
            }
        }
        Ok(())
    }
}

pub(super) fn cut_at(range: ByteRange, end: u64) -> ByteRange {
    ByteRange::new(range.start, range.end.min(end))
}
