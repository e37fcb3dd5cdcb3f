//! The backing file: made when an object is too long to be small, opened when needed, closed when idle.

use super::small::Open;
use super::{Backing, Body, Goes, Object, Writers};
use crate::disk::{DiskFile, OpenMode, SeekTo, read_padded, write_all};
use crate::error::StoreError;
use perigee_types::ByteRange;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Object {
    /// The file, or what stands for it; `None` when the object has none. One that should be there and is not is corruption.
    pub(super) fn open_file(&self, body: &Body) -> Result<Option<Arc<dyn DiskFile>>, StoreError> {
        match body.backing {
            Backing::None => return Ok(None),
            Backing::Removed => return Err(StoreError::Removed { inode: self.inode }),
            Backing::Small => return Ok(Some(self.open_small(body)?)),
            Backing::Fresh | Backing::Present => {}
        }
        let mut slot = self.file.lock();
        if let Some(open) = &*slot {
            return Ok(Some(open.file()));
        }
        match self.open_existing() {
            Ok(open) => {
                let file = open.file();
                *slot = Some(open);
                self.core.open_files.fetch_add(1, Ordering::Relaxed);
                Ok(Some(file))
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                Err(self.corrupt(vec![ByteRange::new(0, body.len)]))
            }
            Err(e) => Err(self.io("open", &e)),
        }
    }

    /// The file for a change that goes there, made if the object has none. The change must have been noted.
    pub(super) fn open_for_write(
        &self,
        body: &mut Body,
        goes: Goes,
    ) -> Result<Arc<dyn DiskFile>, StoreError> {
        if goes == Goes::ToKeys {
            return Ok(self.open_small_for_write(body)?);
        }
        if body.backing == Backing::Small {
            return self.outgrow(body);
        }
        if let Some(file) = self.open_own_file(body)? {
            return Ok(file);
        }
        let file = self.create_file().map_err(|e| self.io("make", &e))?;
        *self.file.lock() = Some(Open::File(Arc::clone(&file)));
        self.core.open_files.fetch_add(1, Ordering::Relaxed);
        body.backing = Backing::Fresh;
        Ok(file)
    }

    /// Opens the backing file as it may be used: one that has another name is not held open for writing, where programs may
    /// be running it, or have it be read by nobody but themselves.
    fn open_existing(&self) -> io::Result<Open> {
        let path = self.core.layout.object(self.inode);
        let file = match self.core.disk.open(&path, OpenMode::Existing) {
            Ok(file) if file.links()? < 2 => return Ok(Open::File(file)),
            Ok(_) => self.core.disk.open(&path, OpenMode::ReadOnly)?,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ETXTBSY | libc::EACCES)) => {
                self.core.disk.open(&path, OpenMode::ReadOnly)?
            }
            Err(e) => return Err(e),
        };
        Ok(Open::Named(file))
    }

    /// [`Object::open_file`], for a change of what is in it: of a file that has another name a copy takes its place before.
    pub(super) fn open_own_file(
        &self,
        body: &Body,
    ) -> Result<Option<Arc<dyn DiskFile>>, StoreError> {
        let file = self.open_file(body)?;
        let named = match &*self.file.lock() {
            Some(Open::Named(file)) => Arc::clone(file),
            _ => return Ok(file),
        };
        if named.links().map_err(|e| self.io("look at", &e))? > 1 {
            self.renew_file().map_err(|e| self.io("copy", &e))?;
        } else {
            // Whoever had it before has no right to it any more.
            named.make_own().map_err(|e| self.io("own", &e))?;
            self.close_file();
        }
        self.open_file(body)
    }

    /// An object without a record has no bytes: whatever lies under its name is not its own.
    pub(super) fn create_file(&self) -> io::Result<Arc<dyn DiskFile>> {
        let (disk, layout) = (&self.core.disk, &self.core.layout);
        let path = layout.object(self.inode);
        self.with_shelf(|| match disk.open(&path, OpenMode::New) {
            // It may have another name as well: its bytes stay.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                disk.remove_file(&path)?;
                disk.open(&path, OpenMode::New)
            }
            other => other,
        })
    }

    /// Does what needs the directory of the backing file, which is made if it is not there.
    pub(super) fn with_shelf<T>(&self, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let (disk, layout) = (&self.core.disk, &self.core.layout);
        match act() {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                disk.create_dirs(&layout.shelf(self.inode))?;
                disk.sync_dir(&layout.container(self.inode.container()))?;
                disk.sync_dir(&layout.objects())?;
                act()
            }
            other => other,
        }
    }

    /// Puts a copy in the file's place: who still has the old one open, or maps it, changes nothing here any more. For an
    /// object of an earlier process, which wrote the file together with programs that may go on.
    pub(super) fn renew_file(&self) -> io::Result<()> {
        let disk = &self.core.disk;
        let path = self.core.layout.object(self.inode);
        let old = match disk.open(&path, OpenMode::ReadOnly) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            opened => opened?,
        };
        self.close_file();
        let next = path.with_extension("new");
        let made = copy_file(&*old, &*disk.open(&next, OpenMode::Truncate)?);
        let renamed = made.and_then(|()| disk.rename(&next, &path));
        if let Err(error) = renamed {
            // What is left of it would take the space that was missing; what remains of this is overwritten next time.
            _ = disk.remove_file(&next);
            return Err(error);
        }
        disk.sync_dir(&self.core.layout.shelf(self.inode))
    }

    /// Removes the file; no error where there is none.
    pub(super) fn remove_file(&self) -> io::Result<()> {
        let path = self.core.layout.object(self.inode);
        match self.core.disk.remove_file(&path) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Closes the file if nobody uses it. The kernel keeps unwritten pages and their errors with the
    /// inode: a later sync through a new descriptor still reports them.
    pub(crate) fn close_idle_file(&self) {
        let Some(mut slot) = self.file.try_lock() else {
            return;
        };
        let backing = slot.as_ref().and_then(Open::backing);
        if backing.is_some_and(|file| Arc::strong_count(file) == 1) {
            *slot = None;
            self.core.open_files.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn close_file(&self) {
        let open = self.file.lock().take();
        if open.as_ref().and_then(Open::backing).is_some() {
            self.core.open_files.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the file is open.
    pub(crate) fn has_open_file(&self) -> bool {
        self.file
            .try_lock()
            .is_some_and(|slot| slot.as_ref().and_then(Open::backing).is_some())
    }

    /// The backing file, open for reading and writing, as long as the object. It is made if it is not there.
    ///
    /// Whoever lets it be written outside of this object calls [`Object::set_externally_writable`] first.
    ///
    /// Errors: `Named` of one that has another name, whose change would change both.
    pub fn backing_fd(&self) -> Result<Arc<OwnedFd>, StoreError> {
        let mut body = self.body.write();
        self.check_live(&body)?;
        if self.has_other_name(&body)? {
            return Err(StoreError::Named { inode: self.inode });
        }
        let is_new = matches!(body.backing, Backing::None | Backing::Small);
        let let_in = is_new.then(|| self.core.let_in(self.inode.container()));
        let _let_in = let_in.transpose()?;
        if is_new {
            self.note_data_change(Goes::ToFile)?;
        }
        let file = self.open_for_write(&mut body, Goes::ToFile)?;
        let physical = file.size().map_err(|e| self.io("read the length of", &e))?;
        if physical < body.len && body.writers == Writers::Here {
            self.note_data_change(Goes::ToFile)?;
            file.set_len(body.len).map_err(|e| self.io("extend", &e))?;
        }
        file.fd().map_err(|e| self.io("use", &e))
    }
}

/// Copies content and holes, durably.
fn copy_file(from: &dyn DiskFile, to: &dyn DiskFile) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    let size = from.size()?;
    to.set_len(size)?;
    let mut at = 0;
    while at < size {
        let Some(start) = from.seek(at, SeekTo::Data)? else {
            break;
        };
        let end = from.seek(start, SeekTo::Hole)?.unwrap_or(size).min(size);
        let mut piece = vec![0; PIECE.min(end.saturating_sub(start)) as usize];
        let mut from_here = start;
        while from_here < end {
            let len = PIECE.min(end - from_here) as usize;
            let part = &mut piece[..len];
            read_padded(from, from_here, part)?;
            write_all(to, from_here, part)?;
            from_here += len as u64;
        }
        at = end.max(start + 1);
    }
    to.sync_data()
}
