//! Reading, with every block verified.

use super::scan::cut_at;
use super::table::{block_range, blocks_of};
use super::{Backing, Body, Object, Writers, push_block};
use crate::disk::{DiskFile, read_padded};
use crate::error::StoreError;
use crate::sums::{BLOCK, block_sums};
use bytes::Bytes;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use perigee_types::ByteRange;
use perigee_types::limits::BLOCK_LEN;
use std::io;

impl Object {
    /// Reads into `buf`; how many bytes, fewer only at the object's end.
    ///
    /// Errors: `Invalid` when a part must be fetched first; `Corrupt` when a block does not match its checksum; `Io`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        let asked = ByteRange::with_len(offset, buf.len() as u64);
        let body = self.body_with_sums(asked)?;
        let here = ByteRange::new(0, self.current_len(&body)?);
        let range = asked.intersect(here).unwrap_or_default();
        // `range` lies in `asked`, so its length fits.
        let buf = &mut buf[..range.len() as usize];
        self.read_in(&body, range, buf)?;
        Ok(buf.len())
    }

    /// Fills `buf` with `range`, which ends where the object ends or before.
    fn read_in(&self, body: &Body, range: ByteRange, buf: &mut [u8]) -> Result<(), StoreError> {
        if range.is_empty() {
            return Ok(());
        }
        self.check_valid(body, range)?;
        match self.open_file(body)? {
            None => buf.fill(0),
            // Stored small bytes were checked when they were loaded.
            Some(file) if body.writers == Writers::Outside || body.backing == Backing::Small => {
                read_padded(&*file, range.start, buf).map_err(|e| self.io("read", &e))?;
            }
            Some(file) => self.read_verified(body, &*file, range, buf)?,
        }
        Ok(())
    }

    /// Errors: `Invalid` when a part of `range` must be fetched first.
    pub(super) fn check_valid(&self, body: &Body, range: ByteRange) -> Result<(), StoreError> {
        let invalid = body.invalid.overlapping(range);
        let ranges: Vec<ByteRange> = invalid.map(|(part, _)| part).collect();
        if ranges.is_empty() {
            return Ok(());
        }
        Err(StoreError::Invalid {
            inode: self.inode,
            ranges,
        })
    }

    /// What is in place in `range` and fits its checksums, whether it is valid or not. `None`: some of it does not fit.
    pub fn read_older(&self, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        let mut body = self.body.write();
        self.check_live(&body)?;
        if !self.rotten(&mut body, range)?.is_empty() {
            return Ok(None);
        }
        let known = cut_at(range, self.current_len(&body)?);
        let mut buf = vec![0; usize::try_from(known.len()).unwrap_or(0)];
        if let Some(file) = self.open_file(&body)? {
            read_padded(&*file, known.start, &mut buf).map_err(|e| self.io("read", &e))?;
        }
        Ok(Some(Bytes::from(buf)))
    }

    /// [`Object::read`] into a buffer of its own.
    pub fn read_bytes(&self, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        let asked = ByteRange::with_len(offset, len as u64);
        let body = self.body_with_sums(asked)?;
        // Of one moment with the bytes: what is cut at an older end would pass for zeros behind it.
        let here = ByteRange::new(0, self.current_len(&body)?);
        let range = asked.intersect(here).unwrap_or_default();
        let mut buf = vec![0; range.len() as usize];
        self.read_in(&body, range, &mut buf)?;
        Ok(Bytes::from(buf))
    }

    /// The state, with the checksums of `range` in memory, if it is to be checked by them. Loading takes the lock for itself for a moment.
    pub(super) fn body_with_sums(
        &self,
        range: ByteRange,
    ) -> Result<RwLockReadGuard<'_, Body>, StoreError> {
        let body = self.body.read();
        self.check_live(&body)?;
        let range = ByteRange::new(range.start.min(body.len), range.end.min(body.len));
        if body.sums.has(range) || body.backing == Backing::Small {
            return Ok(body);
        }
        drop(body);
        let mut body = self.body.write();
        self.check_live(&body)?;
        self.load_sums(&mut body, range)?;
        Ok(RwLockWriteGuard::downgrade(body))
    }

    pub(super) fn load_sums(&self, body: &mut Body, range: ByteRange) -> Result<(), StoreError> {
        if body.backing == Backing::Small && !body.sums.has(ByteRange::new(0, 1)) {
            self.sum_small(body)?;
        }
        let committed = self.committed();
        body.sums.load(&self.core.kv, self.inode, range, committed)
    }

    /// Whole blocks are read in place; a block that `range` has only a part of goes through the stack.
    fn read_verified(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        range: ByteRange,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        let mut bad = Vec::new();
        let mut at = range.start;
        let mut rest = buf;
        while at < range.end {
            let block = ByteRange::new(
                at - at % BLOCK_LEN,
                (at - at % BLOCK_LEN + BLOCK_LEN).min(body.len),
            );
            let part = if at > block.start || range.end < block.end {
                let part = ByteRange::new(at, range.end.min(block.end));
                let (here, more) = rest.split_at_mut(part.len() as usize);
                self.read_edge(body, file, block, part, here, &mut bad)?;
                rest = more;
                part
            } else {
                let whole = if range.end == body.len {
                    range.end
                } else {
                    range.end - range.end % BLOCK_LEN
                };
                let part = ByteRange::new(at, whole);
                let (here, more) = rest.split_at_mut(part.len() as usize);
                self.read_whole(body, file, at, here, &mut bad)?;
                rest = more;
                part
            };
            at = part.end;
        }
        if bad.is_empty() {
            return Ok(());
        }
        rest.fill(0);
        Err(self.corrupt(bad))
    }

    /// Reads from the start of the block at `start`. A block that the device cannot read is as one that rotted: another copy has
    /// it, and what is written in its place can be read.
    fn read_whole(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        start: u64,
        out: &mut [u8],
        bad: &mut Vec<ByteRange>,
    ) -> Result<(), StoreError> {
        match read_padded(file, start, out) {
            Ok(()) => check_blocks(body, start, out, bad),
            Err(error) if error.raw_os_error() != Some(libc::EIO) => {
                return Err(self.io("read", &error));
            }
            Err(_) if out.len() <= BLOCK => {
                push_block(bad, ByteRange::with_len(start, out.len() as u64));
            }
            // Where they cannot be read as a whole, some of them may still be.
            Err(_) => {
                for (at, block) in (start..).step_by(BLOCK).zip(out.chunks_mut(BLOCK)) {
                    self.read_whole(body, file, at, block, bad)?;
                }
            }
        }
        Ok(())
    }

    fn read_edge(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        block: ByteRange,
        part: ByteRange,
        out: &mut [u8],
        bad: &mut Vec<ByteRange>,
    ) -> Result<(), StoreError> {
        let mut scratch = [0; BLOCK];
        let content = &mut scratch[..block.len() as usize];
        self.read_whole(body, file, block.start, content, bad)?;
        let from = (part.start - block.start) as usize;
        out.copy_from_slice(&content[from..from + out.len()]);
        Ok(())
    }
}

/// Reads a block, which may be cut at the object's end.
pub(super) fn read_block<'a>(
    file: &dyn DiskFile,
    block: ByteRange,
    scratch: &'a mut [u8; BLOCK],
) -> io::Result<&'a [u8]> {
    let content = &mut scratch[..block.len() as usize];
    read_padded(file, block.start, content)?;
    Ok(content)
}

/// Compares `data`, which starts with the block at `start`, to its checksums; blocks that differ go to `bad`.
fn check_blocks(body: &Body, start: u64, data: &[u8], bad: &mut Vec<ByteRange>) {
    let range = ByteRange::with_len(start, data.len() as u64);
    let blocks = blocks_of(range);
    let wanted = body.sums.row(blocks.start);
    for ((block, sum), wanted) in blocks.zip(block_sums(data)).zip(wanted) {
        if sum != wanted
            && let Some(cut) = block_range(block).intersect(ByteRange::new(0, body.len))
        {
            push_block(bad, cut);
        }
    }
}
