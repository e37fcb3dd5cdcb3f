//! Files of this machine that become objects as they are: the bytes stay where they lie on the disk, under one more name.
//!
//! While the file has its first name too, nothing changes it in place: a change of the object goes to a copy
//! ([`Object::open_own_file`]), so whoever gives a file away has it back by not removing that name. Programs that change it there
//! meanwhile are found out by its time of change ([`Object::is_as_taken`]).

use super::small::Open;
use super::table::blocks_of;
use super::{Backing, Body, Goes, Object, Writers};
use crate::disk::{DiskFile, FileNumber, SeekTo, read_padded};
use crate::error::StoreError;
use crate::store::Store;
use crate::sums::{GROUP_LEN, block_sums};
use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, WallTime};
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read at once.
const READ_LEN: u64 = 1 << 20;
/// Bytes whose checksums are stored at once: 4 MiB of them.
const STORE_LEN: u64 = 4 << 30;

const _: () = assert!(STORE_LEN.is_multiple_of(GROUP_LEN) && GROUP_LEN.is_multiple_of(BLOCK_LEN));

/// A file of this machine, open, that no object has yet.
#[derive(Debug)]
pub struct LocalFile {
    file: Arc<dyn DiskFile>,
    number: FileNumber,
    len: u64,
    modified: WallTime,
}

impl LocalFile {
    /// Which file it is.
    #[must_use]
    pub const fn number(&self) -> FileNumber {
        self.number
    }

    /// Its length in bytes, when it was opened.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it had no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When its content was last changed, as of then.
    #[must_use]
    pub const fn modified(&self) -> WallTime {
        self.modified
    }
}

/// What there is where a file is said to be.
#[derive(Debug)]
pub enum Local {
    /// The file, and nobody writes to it.
    File(LocalFile),
    /// The file, and somebody has it open for writing, or a map of it that can be stored to.
    Written,
    /// Another one, or none.
    Other,
}

impl Store {
    /// Opens a regular file that an object is to take; anything else is not even opened.
    ///
    /// Errors: those of the system; where the file system cannot tell who writes, too.
    pub fn local_file(&self, path: &Path, number: FileNumber) -> Result<Local, StoreError> {
        let io = |what: &str, error: std::io::Error| about(what, path, &error);
        let file = self.disk().open_known(path, number);
        let Some(file) = file.map_err(|error| io("open", error))? else {
            return Ok(Local::Other);
        };
        let written = file.has_writers();
        if written.map_err(|error| io("ask who writes to", error))? {
            return Ok(Local::Written);
        }
        Ok(Local::File(LocalFile {
            len: file.size().map_err(|e| io("read the length of", e))?,
            modified: file.modified().map_err(|e| io("read the time of", e))?,
            number,
            file,
        }))
    }
}

fn about(what: &str, path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::io(format!("{what} `{}`", path.display()), error)
}

impl Object {
    /// Makes a local file this object's bytes, of which it has none yet: no byte is copied, all are read once for their
    /// checksums. Durable by [`Object::sync`]; what it has done in part when it fails is for [`Store::remove_object`].
    ///
    /// Errors: `Mismatch` when the file changes meanwhile; `Io` with `EEXIST` when the object has bytes already, and with
    /// `EXDEV` when the file is on another file system than the store.
    pub fn take_file(self: &Arc<Self>, local: &LocalFile) -> Result<(), StoreError> {
        self.check_end(local.len)?;
        let link = {
            let mut body = self.body.write();
            self.check_live(&body)?;
            self.core.check_writable(self.inode.container())?;
            if body.len > 0 || body.writers == Writers::Outside || !body.invalid.is_empty() {
                let taken = std::io::Error::from_raw_os_error(libc::EEXIST);
                return Err(self.io("take a file as", &taken));
            }
            self.note_data_change(Goes::ToFile)?;
            self.close_file();
            // A file may be there though there is not a byte in it.
            let link = self
                .remove_file()
                .and_then(|()| self.link_file(&*local.file));
            body.backing = match link {
                Ok(()) => Backing::Fresh,
                Err(_) => Backing::None,
            };
            link
        };
        link.map_err(|e| self.io("take a file as", &e))?;
        let mut at = 0;
        while at < local.len {
            let end = local.len.min(at + STORE_LEN);
            self.take_sums(&*local.file, ByteRange::new(at, end))?;
            at = end;
            if at < local.len {
                // More checksums of one file are not kept in memory.
                self.sync_wait()?;
            }
        }
        let same = (local.file.size(), local.file.modified());
        match same {
            (Ok(len), Ok(modified)) if (len, modified) == (local.len, local.modified) => Ok(()),
            (Err(error), _) | (_, Err(error)) => Err(self.io("look at", &error)),
            _ => Err(StoreError::Mismatch {
                inode: self.inode,
                range: ByteRange::new(0, local.len),
            }),
        }
    }

    fn link_file(&self, file: &dyn DiskFile) -> std::io::Result<()> {
        let path = self.core.layout.object(self.inode);
        self.with_shelf(|| self.core.disk.link(file, &path))
    }

    /// Takes the checksums of a part of a file that has just become this object's, and its length up to there.
    fn take_sums(&self, file: &dyn DiskFile, range: ByteRange) -> Result<(), StoreError> {
        let mut buf = vec![0; READ_LEN as usize];
        let mut at = range.start;
        while at < range.end {
            let data = file.seek(at, SeekTo::Data);
            let data = data.map_err(|e| self.io("seek in", &e))?;
            let Some(data) = data.filter(|data| *data < range.end) else {
                break;
            };
            at = data - data % BLOCK_LEN;
            let end = range.end.min(at + READ_LEN);
            let part = &mut buf[..(end - at) as usize];
            read_padded(file, at, part).map_err(|e| self.io("read", &e))?;
            let sums = block_sums(part);
            let mut body = self.body.write();
            self.check_live(&body)?;
            let change = self.note_data_change(Goes::ToFile)?;
            let here = ByteRange::new(at, end);
            self.load_sums(&mut body, here)?;
            body.sums.set(blocks_of(here).start, &sums, change);
            drop(body);
            at = end;
        }
        let mut body = self.body.write();
        self.check_live(&body)?;
        self.note_data_change(Goes::ToFile)?;
        body.len = body.len.max(range.end);
        body.begun = body.len;
        Ok(())
    }

    /// What became of the file that this object took, which has `names` names beside the object's. `modified`: when it had been
    /// changed last then; `since`: a moment after it was taken. If anything about it has changed since, all of it is read.
    ///
    /// Errors: where the file system cannot tell, too.
    pub fn is_as_taken(
        &self,
        number: FileNumber,
        names: u64,
        (modified, since): (WallTime, WallTime),
    ) -> Result<AsTaken, StoreError> {
        let file = {
            let body = self.body.read();
            if !self.has_other_name(&body)? {
                return Ok(AsTaken::Own);
            }
            self.open_file(&body)?
        };
        let Some(file) = file else {
            return Ok(AsTaken::Own);
        };
        let io = |error: std::io::Error| self.io("look at", &error);
        if file.number().map_err(io)? != number {
            return Ok(AsTaken::Changed);
        }
        if file.has_writers().map_err(io)? {
            return Ok(AsTaken::Written);
        }
        // Who knows another name of it may write to it later.
        let known = file.links().map_err(io)? == names + 1;
        if !known || file.modified().map_err(io)? != modified {
            return Ok(AsTaken::Changed);
        }
        let untouched = file.touched().map_err(io)? < since;
        match untouched || self.verify()?.is_empty() {
            true => Ok(AsTaken::Same),
            false => Ok(AsTaken::Changed),
        }
    }

    /// The file that this object took has lost its other names: it is nobody else's any more. One that has another name still is
    /// copied.
    pub fn settle_taken(&self) -> Result<(), StoreError> {
        let body = self.body.write();
        self.check_live(&body)?;
        match body.backing {
            Backing::Fresh | Backing::Present => {}
            Backing::None | Backing::Small | Backing::Removed => return Ok(()),
        }
        let file = self.open_own_file(&body)?;
        match file {
            Some(file) => file.make_own().map_err(|e| self.io("own", &e)),
            None => Ok(()),
        }
    }

    /// Whether the backing file has a name beside its own, so that nothing may change it in place.
    pub(super) fn has_other_name(&self, body: &Body) -> Result<bool, StoreError> {
        if !matches!(body.backing, Backing::Fresh | Backing::Present) {
            return Ok(false);
        }
        self.open_file(body)?;
        let named = match &*self.file.lock() {
            Some(Open::Named(file)) => Arc::clone(file),
            _ => return Ok(false),
        };
        let names = named.links().map_err(|e| self.io("look at", &e))?;
        Ok(names > 1)
    }
}

/// What became of a file that an object took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsTaken {
    /// It is as it was, under its first name too.
    Same,
    /// Somebody may be writing to it.
    Written,
    /// It has changed.
    Changed,
    /// The object has bytes of its own.
    Own,
}
