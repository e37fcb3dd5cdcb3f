//! The data of one inode.

use crate::error::StoreError;
use crate::kv::{Op, WriteBatch};
use bytes::Bytes;
use perigee_types::{ByteRange, InodeId, Version};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The data of one inode on this node: a sparse backing file, its checksums, and which of it is valid.
#[derive(Debug)]
pub struct Object {
    inode: InodeId,
}

impl Object {
    /// The inode.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        self.inode
    }

    /// The length in bytes; regions not yet fetched count.
    pub fn len(&self) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }

    /// Reads into `buf`; how many bytes, fewer only at the object's end.
    ///
    /// Errors: `Invalid` when a part must be fetched first; `Corrupt` when a block does not match its checksum; `Io`.
    pub fn read(&self, _offset: u64, _buf: &mut [u8]) -> Result<usize, StoreError> {
        Err(StoreError::Closed)
    }

    /// [`Object::read`] into a buffer of its own.
    pub fn read_bytes(&self, _offset: u64, _len: usize) -> Result<Bytes, StoreError> {
        Err(StoreError::Closed)
    }

    /// The owner's write: what it covers is valid here afterwards. Durable by [`Object::sync`].
    ///
    /// Errors: `Corrupt` when it covers a part of a block whose rest is corrupt; `NoSpace` and `Io` leave
    /// the object's length and everything outside the range as it was.
    pub fn write(&self, _offset: u64, _data: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// A replica's fetched bytes, of version `content`: only parts that are invalid still, and need no later
    /// version, are written, and become valid; returns them. With `sums` ([`crate::block_sums`] of
    /// `data`), the bytes are checked first.
    ///
    /// Errors: `Mismatch` when data and sums or length disagree; otherwise as [`Object::write`].
    pub fn install(
        &self,
        _range: ByteRange,
        _data: &[u8],
        _content: Version,
        _sums: Option<&[u32]>,
    ) -> Result<Vec<ByteRange>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Marks a range invalid until content of version `needed` is installed; the object reaches to its end at
    /// least. Durable within 100 ms: where a log record depends on it, use [`Object::invalidate_in`].
    pub fn invalidate(
        self: &Arc<Self>,
        _range: ByteRange,
        _needed: Version,
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// [`Object::invalidate`], durable with `batch`.
    pub fn invalidate_in(
        self: &Arc<Self>,
        _batch: &mut WriteBatch,
        _range: ByteRange,
        _needed: Version,
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// The invalid regions, and what version each needs.
    #[must_use]
    pub fn invalid(&self) -> Vec<(ByteRange, Version)> {
        Vec::new()
    }

    /// Whether no region is invalid.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        false
    }

    /// Cuts or extends; what is new reads as zeros. Durable by [`Object::sync`].
    pub fn resize(&self, _size: u64) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Makes a range zeros that take no space, and valid. Length unchanged. Durable by [`Object::sync`].
    pub fn punch(&self, _range: ByteRange) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Takes space for a range, beyond the end too. Length and content unchanged.
    pub fn allocate(&self, _range: ByteRange) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// The first byte at or after `offset` that is not in a hole; invalid regions are not holes.
    pub fn seek_data(&self, _offset: u64) -> Result<Option<u64>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The first byte at or after `offset` that is in a hole, or the object's end; `None` beyond it.
    pub fn seek_hole(&self, _offset: u64) -> Result<Option<u64>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Space taken here, in units of 512 bytes.
    pub fn allocated_blocks(&self) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }

    /// Makes all that was done before durable: the data (on this thread), then checksums and validity, then
    /// `done` runs, on the committer thread or, on failure or where nothing is to do, on this one.
    ///
    /// Errors, through `done`: `ReadOnly` when the disk failed: the container takes no more writes here.
    pub fn sync(self: &Arc<Self>, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        done(Err(StoreError::Closed));
    }

    /// The backing file, open for reading and writing, as long as the object. It is made if it is not there.
    ///
    /// Whoever lets it be written outside of this object calls [`Object::set_externally_writable`] first.
    pub fn backing_fd(&self) -> Result<Arc<OwnedFd>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Says whether the kernel may change the file unseen (a passthrough writer, a shared mapping). While it may,
    /// a checksum that does not match is not corruption, and reads are not verified. Before it is taken
    /// back, [`Object::rescan`] must have run after the last such write.
    pub fn set_externally_writable(&self, _on: bool) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Takes the checksums of blocks that do not match them, and the file's length: for writes that the daemon
    /// did not see. Returns the blocks, cut at the end.
    pub fn rescan(&self) -> Result<Vec<ByteRange>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Reads all blocks; returns the corrupt ones, cut at the end. To heal: invalidate, then install.
    /// Finds nothing while the file is externally writable.
    pub fn verify(&self) -> Result<Vec<ByteRange>, StoreError> {
        Err(StoreError::Closed)
    }

    pub(crate) fn unsaved_ops(&self) -> Vec<Op> {
        Vec::new()
    }
}
