//! Writing: the owner's bytes, and fetched ones.

use super::read::read_block;
use super::table::{block_range, blocks_of};
use super::{Backing, Body, Goes, Object, Writers, outside, spans_of, wholly_invalid};
use crate::core::Grown;
use crate::disk::{DiskFile, Reuse, Sharing, write_content};
use crate::error::StoreError;
use crate::sums::{BLOCK, block_sum, block_sums};
use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, Version};
use std::io;
use std::sync::Arc;

/// So many bytes of growth the disk begins with at once: smaller files it gets in one piece with their sync, if they
/// live that long.
const BEGIN_LEN: u64 = 8 << 20;

/// What goes into a file.
struct Bytes<'a> {
    data: &'a [u8],
    reuse: Reuse,
    /// A file with the same bytes at the same place.
    source: Option<&'a dyn DiskFile>,
}

/// Zeros of which there are fewer in a row take space.
pub(super) const HOLE_MIN: usize = 64 << 10;

/// A part of what is put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// Whole blocks of zeros.
    Hole(ByteRange),
    Bytes(ByteRange),
}

/// Whether bytes of a copy need not take space: they are so many zeros that a hole is worth it.
#[must_use]
pub fn is_hole(bytes: &[u8]) -> bool {
    bytes.len() >= HOLE_MIN && is_zero(bytes)
}

fn is_zero(bytes: &[u8]) -> bool {
    let zeros = [0; BLOCK];
    bytes.chunks(BLOCK).all(|part| *part == zeros[..part.len()])
}

/// Tells holes from bytes, in order. Holes begin and end at multiples of [`HOLE_MIN`].
fn holes_and_bytes(range: ByteRange, data: &[u8]) -> Vec<Piece> {
    let step = HOLE_MIN as u64;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min((at / step + 1) * step);
        let (from, to) = (at - range.start, end - range.start);
        let hole = is_hole(&data[from as usize..to as usize]);
        let next = ByteRange::new(at, end);
        match (pieces.last_mut(), hole) {
            (Some(Piece::Hole(last)), true) | (Some(Piece::Bytes(last)), false) => {
                *last = ByteRange::new(last.start, end);
            }
            (_, true) => pieces.push(Piece::Hole(next)),
            (_, false) => pieces.push(Piece::Bytes(next)),
        }
        at = end;
    }
    pieces
}

impl Object {
    /// The owner's write: what it covers is valid here afterwards. Durable by [`Object::sync`].
    ///
    /// Errors: `Corrupt` when it covers a part of a block whose rest is corrupt; `NoSpace` and `Io` leave
    /// the object's length and everything outside the range as it was.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.write_or_share(offset, data, None)
    }

    /// [`Object::write`] of `data` that was read from the same place of another object, which does not change meanwhile: where
    /// the file system can, both share the disk's blocks, and nothing is written.
    ///
    /// Errors: as [`Object::write`].
    pub fn write_copy(&self, offset: u64, data: &[u8], source: &Self) -> Result<(), StoreError> {
        let shareable = source.shareable()?;
        self.write_or_share(offset, data, shareable.as_deref())
    }

    /// The file whose blocks another object may share: one that nobody writes past this store, so that its blocks are what was
    /// verified.
    fn shareable(&self) -> Result<Option<Arc<dyn DiskFile>>, StoreError> {
        let body = self.body.read();
        self.check_live(&body)?;
        let whole = matches!(body.backing, Backing::Fresh | Backing::Present);
        if !whole || body.writers == Writers::Outside || self.has_other_name(&body)? {
            return Ok(None);
        }
        self.open_file(&body)
    }

    fn write_or_share(
        &self,
        offset: u64,
        data: &[u8],
        source: Option<&dyn DiskFile>,
    ) -> Result<(), StoreError> {
        if data.is_empty() {
            return Ok(());
        }
        let range = ByteRange::with_len(offset, data.len() as u64);
        self.check_end(range.end)?;
        let mut body = self.body.write();
        let _let_in = self.core.let_in(self.inode.container())?;
        self.check_live(&body)?;
        let bytes = Bytes {
            data,
            reuse: Reuse::Likely,
            source,
        };
        self.put(&mut body, range, bytes)?;
        forget_invalid(&mut body, range);
        Ok(())
    }

    /// A replica's fetched bytes, of version `content`: only parts that are invalid still, and need no later
    /// version, are written, and become valid; returns them. With `sums` ([`block_sums`] of
    /// `data`), the bytes are checked first.
    ///
    /// Errors: `Mismatch` when data and sums or length disagree; otherwise as [`Object::write`].
    pub fn install(
        &self,
        range: ByteRange,
        data: &[u8],
        content: Version,
        sums: Option<&[u32]>,
    ) -> Result<Vec<ByteRange>, StoreError> {
        let inode = self.inode;
        let good = sums.is_none_or(|sums| block_sums(data) == sums);
        if data.len() as u64 != range.len() || !good {
            return Err(StoreError::Mismatch { inode, range });
        }
        self.check_end(range.end)?;
        let mut body = self.body.write();
        let _let_in = self.core.let_in(inode.container())?;
        self.check_live(&body)?;
        // A copy of the map's part says what would be filled, and in which pieces.
        let mut wanted = perigee_replica::RegionMap::new();
        for (part, needed) in body.invalid.overlapping(range) {
            wanted.invalidate(part, needed);
        }
        let parts = wanted.fill(range, content);
        for &part in &parts {
            let of = |place: ByteRange| {
                let at = (place.start - range.start) as usize;
                &data[at..at + place.len() as usize]
            };
            for piece in holes_and_bytes(part, of(part)) {
                match piece {
                    Piece::Hole(hole) => self.put_hole(&mut body, hole)?,
                    Piece::Bytes(place) => {
                        let bytes = Bytes {
                            data: of(place),
                            reuse: Reuse::Unlikely,
                            source: None,
                        };
                        self.put(&mut body, place, bytes)?;
                    }
                }
            }
            body.invalid.fill(part, content);
            body.filled.extend(spans_of(part));
        }
        Ok(parts)
    }

    /// Makes whole blocks zeros that take no space. Validity is the caller's.
    fn put_hole(&self, body: &mut Body, range: ByteRange) -> Result<(), StoreError> {
        let change = self.note_data_change(Goes::ToFile)?;
        let file = self.open_for_write(body, Goes::ToFile)?;
        body.len = self.current_len(body)?;
        // The object may be longer than what is on the disk: what is invalid of it has no bytes yet.
        let physical = file.size().map_err(|e| self.io("look at", &e))?;
        if range.end > physical {
            file.set_len(range.end).map_err(|e| self.io("extend", &e))?;
        }
        body.len = body.len.max(range.end);
        file.punch(range).map_err(|e| self.io("punch", &e))?;
        let committed = self.committed();
        let kv = &self.core.kv;
        body.sums.load_used(kv, self.inode, range, committed)?;
        let blocks = range.start / BLOCK_LEN..range.end / BLOCK_LEN;
        body.sums.clear(blocks, change);
        Ok(())
    }

    /// Writes bytes and their checksums. Validity is the caller's.
    fn put(&self, body: &mut Body, range: ByteRange, bytes: Bytes<'_>) -> Result<(), StoreError> {
        let Bytes {
            data,
            reuse,
            source,
        } = bytes;
        let goes = body.goes(range.end, self.core.small_len_max);
        if goes == Goes::ToKeys && !self.core.kv.reserve.takes_small() {
            return Err(StoreError::NoSpace);
        }
        let change = self.note_data_change(goes)?;
        let file = self.open_for_write(body, goes)?;
        if body.writers == Writers::Outside {
            body.len = self.current_len(body)?;
        }
        self.load_sums(body, range)?;
        let sums = self.sums_after(body, &*file, range, data)?;
        let shared = match source.filter(|_| goes == Goes::ToFile) {
            Some(source) => file.share(range, source),
            None => Ok(Sharing::Impossible),
        };
        let written = match shared {
            Ok(Sharing::Impossible) => {
                write_from_the_end(&*file, body.len, range.start, data, reuse)
            }
            shared => shared.map(|_| ()),
        };
        if let Err(error) = written {
            self.mend_failed_write(body, &*file, range, change);
            return Err(self.io("write", &error));
        }
        let old_len = body.len;
        body.len = old_len.max(range.end);
        body.sums.set(range.start / BLOCK_LEN, &sums, change);
        if goes == Goes::ToFile && reuse == Reuse::Likely {
            self.begin_with_growth(body, &file, old_len);
        }
        Ok(())
    }

    /// What a file grows by is rarely written again soon: the disk begins with it while the program goes on, and the
    /// sync at the end finds little left. What replaces older bytes may be replaced over and over, and waits.
    fn begin_with_growth(&self, body: &mut Body, file: &Arc<dyn DiskFile>, old_len: u64) {
        // Behind the end of a file that was cut everything is new again.
        body.begun = body.begun.min(old_len);
        let range = ByteRange::new(body.begun, body.len);
        if range.len() < BEGIN_LEN {
            return;
        }
        body.begun = body.len;
        self.core.grown.lock().push(Grown {
            container: self.inode.container(),
            file: Arc::downgrade(file),
            range,
        });
        self.core.keeper.ring();
    }

    /// The checksums of all blocks that `range` touches, once `data` is in it.
    fn sums_after(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        range: ByteRange,
        data: &[u8],
    ) -> Result<Vec<u32>, StoreError> {
        // Up to the first block border, whole blocks in a row, and what follows the last border.
        let head_end = range.start.next_multiple_of(BLOCK_LEN).min(range.end);
        let (head, rest) = data.split_at((head_end - range.start) as usize);
        let (whole, tail) = rest.split_at(rest.len() - rest.len() % BLOCK);
        let mut sums = Vec::with_capacity(data.len() / BLOCK + 2);
        if !head.is_empty() {
            sums.push(self.edge_sum(body, file, range.start, head)?);
        }
        sums.append(&mut block_sums(whole));
        if !tail.is_empty() {
            let start = head_end + whole.len() as u64;
            sums.push(self.edge_sum(body, file, start, tail)?);
        }
        Ok(sums)
    }

    /// The checksum of a block, once `part` of it is written at `start`.
    fn edge_sum(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        start: u64,
        part: &[u8],
    ) -> Result<u32, StoreError> {
        let block = start / BLOCK_LEN;
        let mut scratch = [0; BLOCK];
        let written = ByteRange::with_len(start, part.len() as u64);
        let rest = self.keep_rest(body, file, block, written, &mut scratch)?;
        let at = (start % BLOCK_LEN) as usize;
        scratch[at..at + part.len()].copy_from_slice(part);
        Ok(rest.sum(&scratch))
    }

    /// Reads what a block has outside of `written` into `scratch`, if that is anything. It must match its
    /// checksum, or a new one would make rot look good; where the rest is invalid, nobody will read it. Where others write
    /// the file unseen, it may not match, and nobody has been told of that yet.
    pub(super) fn keep_rest(
        &self,
        body: &Body,
        file: &dyn DiskFile,
        block: u64,
        written: ByteRange,
        scratch: &mut [u8; BLOCK],
    ) -> Result<Rest, StoreError> {
        let here = block_range(block);
        let here = ByteRange::new(here.start, here.end.min(body.len));
        let rest = outside(here, written);
        if rest.iter().all(|part| part.is_empty()) {
            return Ok(Rest::Known);
        }
        let content = read_block(file, here, scratch).map_err(|e| self.io("read", &e))?;
        if block_sum(content) == body.sums.get(block) {
            return Ok(Rest::Known);
        }
        if body.writers == Writers::Outside {
            return Ok(Rest::ChangedOutside);
        }
        if rest.iter().all(|&part| wholly_invalid(&body.invalid, part)) {
            return Ok(Rest::Known);
        }
        Err(self.corrupt(vec![here]))
    }

    /// After a failed write: the length is as before, and checksums follow what is in the file. Where even
    /// that cannot be read, they stay, and reads will find the blocks corrupt.
    fn mend_failed_write(
        &self,
        body: &mut Body,
        file: &dyn DiskFile,
        range: ByteRange,
        change: u64,
    ) {
        let cut = || -> io::Result<()> {
            if body.writers == Writers::Here && file.size()? > body.len {
                file.set_len(body.len)?;
            }
            Ok(())
        };
        if let Err(error) = cut() {
            tracing::warn!(inode = %self.inode, %error, "cannot undo a failed write");
        }
        let inside = ByteRange::new(range.start.min(body.len), range.end.min(body.len));
        for block in blocks_of(inside) {
            let here = block_range(block);
            let here = ByteRange::new(here.start, here.end.min(body.len));
            let mut scratch = [0; BLOCK];
            if let Ok(content) = read_block(file, here, &mut scratch) {
                body.sums.set(block, &[block_sum(content)], change);
            }
        }
    }
}

/// Writes the blocks behind that of a file's end first: where there is no room for them, nothing is replaced. Otherwise the
/// block of the end could have new bytes before the end and, once it is cut there again, none behind it. That block itself
/// is written in one piece, so that a crash leaves it old or new.
fn write_from_the_end(
    file: &dyn DiskFile,
    end: u64,
    offset: u64,
    data: &[u8],
    reuse: Reuse,
) -> io::Result<()> {
    let behind = end.next_multiple_of(BLOCK_LEN);
    let head = usize::try_from(behind.saturating_sub(offset)).unwrap_or(data.len());
    let (head, rest) = data.split_at(head.min(data.len()));
    if offset < end && !rest.is_empty() {
        write_content(file, behind, rest, reuse)?;
        return write_content(file, offset, head, reuse);
    }
    write_content(file, offset, data, reuse)
}

/// What a block has beside what is written into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// What its checksum says, or nothing that counts.
    Known,
    /// Something that others have written unseen, and no rescan has found yet.
    ChangedOutside,
}

impl Rest {
    /// The checksum of the block once `content` is in it: one that does not match, where a rescan must still find it.
    pub(super) fn sum(self, content: &[u8]) -> u32 {
        match self {
            Self::Known => block_sum(content),
            Self::ChangedOutside => !block_sum(content),
        }
    }
}

/// Makes a range valid, whatever it needed.
pub(super) fn forget_invalid(body: &mut Body, range: ByteRange) {
    if body.invalid.is_empty() {
        return;
    }
    for (part, _) in body.invalid.overlapping(range) {
        body.filled.extend(spans_of(part));
    }
    body.invalid.drop_range(range);
}
