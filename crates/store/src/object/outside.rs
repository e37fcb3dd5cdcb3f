//! Files that the kernel may change unseen: what was changed, and when.

use super::small::Open;
use super::{Backing, Goes, Object, Writers};
use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::touched::By;
use perigee_dirtylog::{Changed, Watch};
use perigee_types::{ByteRange, WallTime};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::debug;

/// What is known of changes by others.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// The kernel tells which parts change; without it the whole file has to be read.
    watch: Option<Watch>,
    /// Something that the watch told was not looked at to the end: all has to be.
    unsure: bool,
    /// The watch has told of nothing when it was asked last.
    silent: bool,
}

impl Outside {
    /// Begins to watch. What is dirty already is written back: the kernel tells of clean pages alone.
    fn begin(&mut self, object: &Object, file: &dyn DiskFile) -> Result<(), StoreError> {
        let Some(log) = object.core.dirty_log() else {
            return Ok(());
        };
        let watch = file.fd().and_then(|fd| log.watch(&*fd));
        let watch = match watch {
            Ok(watch) => watch,
            Err(error) => {
                debug!(inode = %object.inode, %error, "changes of the file are not told");
                return Ok(());
            }
        };
        object.write_back(file, ByteRange::new(0, u64::MAX >> 1))?;
        (self.watch, self.unsure) = (Some(watch), false);
        Ok(())
    }

    /// Where the file may have changed since this was asked last; none: anywhere. What is told is clean then, so that a later
    /// change is told again, but nobody has read it yet.
    fn changed(
        &mut self,
        object: &Object,
        file: &dyn DiskFile,
    ) -> Result<Option<Vec<ByteRange>>, StoreError> {
        let Some(watch) = &self.watch else {
            return Ok(None);
        };
        let told = watch.take();
        let unsure = std::mem::replace(&mut self.unsure, true);
        self.silent = matches!(&told, Changed::Within(ranges) if ranges.is_empty());
        match told {
            Changed::Within(ranges) if !unsure => {
                // All at once: what lies between is clean, or has just been changed.
                if let (Some(first), Some(last)) = (ranges.first(), ranges.last()) {
                    object.write_back(file, ByteRange::new(first.start, last.end))?;
                }
                Ok(Some(ranges))
            }
            Changed::Within(_) | Changed::Anything => {
                object.write_back(file, ByteRange::new(0, u64::MAX >> 1))?;
                Ok(None)
            }
        }
    }
}

impl Object {
    /// Says whether the kernel may change the file unseen (a passthrough writer, a shared mapping). While it may,
    /// a checksum that does not match is not corruption, and reads are not verified. Before it is taken
    /// back, [`Object::rescan`] must have run after the last such write.
    pub fn set_externally_writable(&self, on: bool) -> Result<(), StoreError> {
        let mut outside = self.outside.lock();
        let file = {
            let mut body = self.body.write();
            self.check_live(&body)?;
            let writers = if on { Writers::Outside } else { Writers::Here };
            if writers == body.writers {
                return Ok(());
            }
            if on && self.has_other_name(&body)? {
                return Err(StoreError::Named { inode: self.inode });
            }
            self.core.check_writable(self.inode.container())?;
            self.note_data_change(Goes::ToFile)?;
            if on {
                // Programs may outlive this process, and go on.
                self.core.touched.add(self.inode, By::Others)?;
            } else {
                body.len = self.current_len(&body)?;
            }
            body.writers = writers;
            self.open_file(&body)?
        };
        *outside = Outside::default();
        let begun = match file {
            Some(file) if on => outside.begin(self, &*file),
            _ => Ok(()),
        };
        if begun.is_err() {
            // Nobody was let in.
            self.body.write().writers = Writers::Here;
        }
        begun
    }

    /// The file has changed. If the kernel had told of nothing before the last rescan, it was written to directly, which makes
    /// no page dirty: the next one reads all of it. Says whether that is so.
    pub fn has_changed_untold(&self) -> bool {
        let mut outside = self.outside.lock();
        outside.unsure |= outside.silent;
        outside.silent
    }

    /// Whether the kernel tells what others change, so that [`Object::rescan`] reads that alone. Waits for nothing: while
    /// somebody rescans, it says no.
    #[must_use]
    pub fn tells_changes(&self) -> bool {
        let outside = self.outside.try_lock();
        outside.is_some_and(|outside| outside.watch.is_some())
    }

    /// When the backing file was last changed, by whomever; `None` of an object without one.
    pub fn modified(&self) -> Result<Option<WallTime>, StoreError> {
        let file = {
            let body = self.body.read();
            self.check_live(&body)?;
            if body.backing == Backing::Small {
                return Ok(None);
            }
            self.open_file(&body)?
        };
        let modified = file.map(|file| file.modified()).transpose();
        modified.map_err(|e| self.io("read the time of", &e))
    }

    /// Takes the checksums of blocks that do not match them, and the file's length: for writes that the daemon
    /// did not see. Returns the blocks, cut at the end. Where the kernel tells what has changed, nothing else is read.
    pub fn rescan(&self) -> Result<Vec<ByteRange>, StoreError> {
        let mut outside = self.outside.lock();
        let file = {
            let body = self.body.read();
            self.check_live(&body)?;
            self.open_file(&body)?
        };
        let Some(file) = file else {
            return Ok(Vec::new());
        };
        let changed = outside.changed(self, &*file)?;
        let everything = [ByteRange::ALL];
        let within = changed.as_deref().unwrap_or(&everything);
        self.rescan_within(within)?;
        outside.unsure = false;
        Ok(std::mem::take(&mut self.body.write().unseen))
    }

    /// Whether anybody else may change the file: a map of a program may outlive all its descriptors, and the kernel tells
    /// nobody when it goes. Also while somebody here works with the file: to be asked again.
    ///
    /// Errors: where the file system cannot tell, too.
    pub fn others_may_write(&self) -> Result<bool, StoreError> {
        let body = self.body.write();
        self.check_live(&body)?;
        match body.backing {
            Backing::Fresh | Backing::Present => {}
            Backing::None | Backing::Small | Backing::Removed => return Ok(false),
        }
        let mut slot = self.file.lock();
        if let Some(file) = slot.as_ref().and_then(Open::backing) {
            if Arc::strong_count(file) > 1 {
                return Ok(true);
            }
            *slot = None;
            self.core.open_files.fetch_sub(1, Ordering::Relaxed);
        }
        let path = self.core.layout.object(self.inode);
        let writers = self.core.disk.has_writers(&path);
        writers.map_err(|error| self.io("ask who has open", &error))
    }

    fn write_back(&self, file: &dyn DiskFile, range: ByteRange) -> Result<(), StoreError> {
        // The log knows an object before its file changes on the disk.
        let logged = self.core.touched.sync();
        logged.map_err(|error| self.io("note the change of", &error))?;
        let written = file.write_back(range);
        written.map_err(|error: io::Error| {
            // A later sync may not tell it again.
            let why = format!("cannot write {} back: {error}", self.inode);
            self.core.set_read_only(self.inode.container(), why)
        })
    }
}
