//! Small objects: their bytes are a value among the object's keys, not a file.
//!
//! Making, syncing and removing a file costs a local file system more than a few KiB of a commit that is made anyway.
//! An object that outgrows the limit gets a file with its next change, and keeps it.

use super::{Backing, Body, Goes, Object, wholly_invalid};
use crate::disk::{DiskFile, SeekTo, write_all};
use crate::error::StoreError;
use crate::kv::key::{self, Part, Tag};
use crate::sums::{BLOCK, block_sums};
use parking_lot::RwLock;
use perigee_types::ByteRange;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What of an object's bytes is at hand.
#[derive(Debug)]
pub(super) enum Open {
    /// Its backing file, open.
    File(Arc<dyn DiskFile>),
    /// The same, while it has another name: it was taken from a directory of this machine, where it is not removed yet.
    Named(Arc<dyn DiskFile>),
    /// The bytes of a small object that were changed and are not stored yet.
    Small(Arc<SmallFile>),
}

impl Open {
    /// The backing file.
    pub(super) fn backing(&self) -> Option<&Arc<dyn DiskFile>> {
        match self {
            Self::File(file) | Self::Named(file) => Some(file),
            Self::Small(_) => None,
        }
    }

    /// It as a file.
    pub(super) fn file(&self) -> Arc<dyn DiskFile> {
        match self {
            Self::File(file) | Self::Named(file) => Arc::clone(file),
            Self::Small(file) => Arc::clone(file) as _,
        }
    }
}

/// Bytes in memory that behave as a file does. A whole block of zeros counts as a hole.
#[derive(Debug, Default)]
pub(super) struct SmallFile {
    bytes: RwLock<Vec<u8>>,
}

impl SmallFile {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes: RwLock::new(bytes),
        }
    }
}

fn place(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

impl DiskFile for SmallFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bytes.read();
        let rest = place(offset).map_or(&[][..], |at| bytes.get(at..).unwrap_or_default());
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let from = place(offset)?;
        let to = from + data.len();
        let mut bytes = self.bytes.write();
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        bytes[from..to].copy_from_slice(data);
        Ok(data.len())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }

    fn blocks(&self) -> io::Result<u64> {
        Ok(blocks_for(self.size()?))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.write().resize(place(len)?, 0);
        Ok(())
    }

    fn allocate(&self, _range: ByteRange) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, range: ByteRange) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let end = range.end.min(bytes.len() as u64);
        if range.start < end {
            bytes[range.start as usize..end as usize].fill(0);
        }
        Ok(())
    }

    fn seek(&self, offset: u64, to: SeekTo) -> io::Result<Option<u64>> {
        let bytes = self.bytes.read();
        let len = bytes.len() as u64;
        if offset >= len {
            return Ok(None);
        }
        let first = offset as usize / BLOCK;
        let found = bytes.chunks(BLOCK).enumerate().skip(first).find(|(_, b)| {
            let hole = b.iter().all(|&byte| byte == 0);
            hole == (to == SeekTo::Hole)
        });
        Ok(match (found, to) {
            (Some((block, _)), _) => Some(offset.max((block * BLOCK) as u64)),
            (None, SeekTo::Hole) => Some(len),
            (None, SeekTo::Data) => None,
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
}

/// The space that a small object of `len` bytes is said to take, in units of 512 bytes.
pub(crate) fn blocks_for(len: u64) -> u64 {
    len.div_ceil(BLOCK as u64) * (BLOCK as u64 / 512)
}

impl Object {
    /// Whether the object's bytes are read without its file, and nobody is at it now. It may get one at any moment.
    #[must_use]
    pub fn is_at_hand(&self) -> bool {
        let body = self.body.try_read();
        body.is_some_and(|body| matches!(body.backing, Backing::None | Backing::Small))
    }

    /// The bytes of a small object: those in memory, or as they are stored.
    pub(super) fn open_small(&self, body: &Body) -> Result<Arc<SmallFile>, StoreError> {
        if let Some(Open::Small(file)) = &*self.file.lock() {
            return Ok(Arc::clone(file));
        }
        let key = key::object(self.inode, Part::Bytes, 0);
        let tag = Tag::Objects;
        match self.core.kv.get(self.inode.container(), tag, &key) {
            Ok(Some(bytes)) => Ok(Arc::new(SmallFile::new(bytes.to_vec()))),
            Ok(None) | Err(StoreError::Damaged { .. }) => {
                Err(self.corrupt(vec![ByteRange::new(0, body.len)]))
            }
            Err(error) => Err(error),
        }
    }

    /// The bytes of a small object, to be changed: they stay in memory until they are stored. What cannot be read
    /// is made anew where nothing of it is valid.
    pub(super) fn open_small_for_write(
        &self,
        body: &mut Body,
    ) -> Result<Arc<SmallFile>, StoreError> {
        let file = match body.backing {
            Backing::Small => match self.open_small(body) {
                Err(StoreError::Corrupt { .. })
                    if wholly_invalid(&body.invalid, ByteRange::new(0, body.len)) =>
                {
                    Arc::default()
                }
                other => other?,
            },
            _ => Arc::default(),
        };
        body.backing = Backing::Small;
        *self.file.lock() = Some(Open::Small(Arc::clone(&file)));
        Ok(file)
    }

    /// Gives a small object a file, which is its own from now on. Until the next sync the keys still hold what was
    /// stored, and after a crash they are what counts.
    pub(super) fn outgrow(&self, body: &mut Body) -> Result<Arc<dyn DiskFile>, StoreError> {
        let small = self.open_small_for_write(body)?;
        let change = self.note_data_change(Goes::ToFile)?;
        let file = self.create_file().map_err(|e| self.io("make", &e))?;
        let bytes = small.bytes.read();
        if let Err(error) = write_all(&*file, 0, &bytes) {
            // What counts is still among the keys; what is left of the file is emptied when it is made again.
            _ = self.remove_file();
            return Err(self.io("write", &error));
        }
        // None of these is stored yet: small objects store no checksums.
        body.sums.set(0, &block_sums(&bytes), change);
        *self.file.lock() = Some(Open::File(Arc::clone(&file)));
        self.core.open_files.fetch_add(1, Ordering::Relaxed);
        body.backing = Backing::Fresh;
        Ok(file)
    }

    /// The checksums of a small object's bytes, which are not stored.
    pub(super) fn sum_small(&self, body: &mut Body) -> Result<(), StoreError> {
        let small = match self.open_small(body) {
            Err(StoreError::Corrupt { .. })
                if wholly_invalid(&body.invalid, ByteRange::new(0, body.len)) =>
            {
                Arc::default()
            }
            other => other?,
        };
        let sums = block_sums(&small.bytes.read());
        body.sums.set(0, &sums, 0);
        Ok(())
    }

    /// The changed bytes of a small object.
    pub(super) fn unsaved_small(&self) -> Option<Vec<u8>> {
        match &*self.file.lock() {
            Some(Open::Small(file)) => Some(file.bytes.read().clone()),
            _ => None,
        }
    }

    /// Lets the bytes of a small object go, if all of them are stored.
    pub(super) fn forget_small(&self) {
        let mut slot = self.file.lock();
        // Whoever changes them counts the change before it takes them: under the slot's lock the count tells.
        if matches!(*slot, Some(Open::Small(_))) && !self.is_dirty() {
            *slot = None;
        }
    }
}
