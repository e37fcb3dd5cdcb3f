//! Files that this host has open, for its own programs and for those of other members.

use crate::branch::{Branch, from_io};
use crate::lease::{Identity, Lease, Leases};
use crate::path::RelPath;
use crate::wire::{Done, FileId, FileOp, How, Parent, Stat};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use perigee_client::fs::Allocate;
use perigee_types::limits::IO_LEN_MAX;
use perigee_types::{Errno, NodeId};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::ReadWriteFlags;
use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Files that one member may have open here.
const OPEN_MAX: usize = 16 << 10;
/// The longest content that goes with the answer to an open.
pub const HEAD_LEN_MAX: u32 = 128 << 10;

/// Files that are read ahead at once.
const AHEAD_COUNT_MAX: usize = 512;
/// The same, bytes.
const AHEAD_LEN_MAX: u32 = 2 << 20;

/// An open file of a branch.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    branch: Arc<Branch>,
}

/// Those of all members.
#[derive(Debug)]
pub struct Files {
    open: Mutex<HashMap<NodeId, HashMap<FileId, Arc<OpenFile>>>>,
    next: AtomicU64,
    leases: Mutex<Leases>,
}

impl Default for Files {
    fn default() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self {
            open: Mutex::default(),
            // Numbers of a process that was lost are not to be those of this one.
            next: AtomicU64::new(RandomState::new().hash_one(std::process::id())),
            leases: Mutex::default(),
        }
    }
}

/// What an open gave.
pub struct Opened {
    /// Names the file.
    pub file: FileId,
    /// Its attributes.
    pub stat: Stat,
    /// This made it.
    pub made: bool,
    /// Its first bytes.
    pub head: Bytes,
}

impl Files {
    /// Opens one for a member, with up to `head` bytes of its content.
    ///
    /// # Errors
    /// What the system says; EMFILE's place is taken by EBUSY where a member has too many.
    pub fn open(
        &self,
        by: NodeId,
        branch: &Arc<Branch>,
        path: &RelPath,
        (how, parents, head): (How, &[Parent], u32),
    ) -> Result<Opened, Errno> {
        let count = self.open.lock().get(&by).map_or(0, HashMap::len);
        if count >= OPEN_MAX {
            return Err(Errno::EBUSY);
        }
        let (file, stat, made) = branch.open_file(path, how, parents)?;
        let id = FileId(self.next.fetch_add(1, Ordering::Relaxed));
        let wanted = stat.size.min(u64::from(head.min(HEAD_LEN_MAX)));
        let head = match how.read && wanted == stat.size {
            true => read(&file, 0, wanted as usize)?,
            false => Bytes::new(),
        };
        let open = OpenFile {
            file,
            branch: Arc::clone(branch),
        };
        self.open
            .lock()
            .entry(by)
            .or_default()
            .insert(id, Arc::new(open));
        Ok(Opened {
            file: id,
            stat,
            made,
            head,
        })
    }

    /// Reads files of a directory for a member that is to open them next. Gives the attributes of each whose content is among
    /// the bytes, and leases on it until a moment.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn read_ahead(
        &self,
        by: NodeId,
        branch: &Branch,
        path: &RelPath,
        (wanted, bytes, until): (&[(Vec<u8>, Identity)], u32, Instant),
    ) -> Result<(Vec<Option<Stat>>, Bytes), Errno> {
        if wanted.len() > AHEAD_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        let mut content = BytesMut::new();
        let most = bytes.min(AHEAD_LEN_MAX) as usize;
        let mut told = Vec::with_capacity(wanted.len());
        for found in branch.open_files(path, wanted)? {
            let left = (most - content.len()) as u64;
            // What takes longer than it may be used is of no use.
            let now = Instant::now();
            let room = now < until && self.leases.lock().has_room(now);
            let fits =
                |(_, stat): &(File, Stat)| room && stat.size <= left.min(u64::from(HEAD_LEN_MAX));
            let kept = found
                .filter(fits)
                .and_then(|found| self.keep(by, branch, found, until));
            told.push(kept.map(|(stat, bytes)| {
                content.extend_from_slice(&bytes);
                stat
            }));
        }
        Ok((told, content.freeze()))
    }

    /// The whole content of a file, which stays so until a moment.
    fn keep(
        &self,
        by: NodeId,
        branch: &Branch,
        (file, before): (File, Stat),
        until: Instant,
    ) -> Option<(Stat, Bytes)> {
        let lease = Lease::take(file).ok()?;
        // From here on it stays as it is: what came before is in what is read now.
        let stat = branch.of_file(lease.file()).ok()?;
        if stat.size != before.size {
            return None;
        }
        let bytes = read(lease.file(), 0, stat.size as usize).ok()?;
        if bytes.len() as u64 != stat.size {
            return None;
        }
        let of = (stat.device, stat.inode);
        self.leases.lock().give(by, of, until, lease)?;
        Some((stat, bytes))
    }

    /// A member is about to write a file.
    pub fn give_back(&self, by: NodeId, of: Option<Identity>) {
        if let Some(of) = of {
            self.leases.lock().give_back(by, of);
        }
    }

    /// Ends the leases whose time is over.
    pub fn end_leases(&self) {
        self.leases.lock().end(Instant::now());
    }

    /// A file of a member.
    ///
    /// # Errors
    /// EBADF: it has no such file open here, or this host has forgotten it.
    pub fn get(&self, by: NodeId, id: FileId) -> Result<Arc<OpenFile>, Errno> {
        let open = self.open.lock();
        let file = open.get(&by).and_then(|files| files.get(&id));
        file.cloned().ok_or(Errno::EBADF)
    }

    /// Closes one. Blocks on the disk.
    pub fn close(&self, by: NodeId, id: FileId) {
        let closed = {
            let mut open = self.open.lock();
            open.get_mut(&by).and_then(|files| files.remove(&id))
        };
        // The last close of a file may take long, and others have theirs open meanwhile.
        drop(closed);
    }

    /// Closes all of a member that is gone. Blocks on the disk.
    pub fn close_all(&self, by: NodeId) {
        let closed = self.open.lock().remove(&by);
        drop(closed);
    }
}

fn read(file: &File, offset: u64, len: usize) -> Result<Bytes, Errno> {
    let mut bytes = BytesMut::zeroed(len);
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(from_io(&error)),
        }
    }
    bytes.truncate(done);
    Ok(bytes.freeze())
}

impl OpenFile {
    /// Attributes.
    ///
    /// # Errors
    /// What the system says.
    pub fn stat(&self) -> Result<Stat, Errno> {
        self.branch.of_file(&self.file)
    }

    /// Up to `len` bytes; fewer only at the end.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, offset: u64, len: u32) -> Result<Bytes, Errno> {
        read(&self.file, offset, (len as usize).min(IO_LEN_MAX))
    }

    /// Writes all of it there; at the end where no place is given.
    ///
    /// # Errors
    /// What the system says: some of it may have been written.
    pub fn write(&self, offset: Option<u64>, mut data: &[u8]) -> Result<(), Errno> {
        if let Some(offset) = offset {
            return self
                .file
                .write_all_at(data, offset)
                .map_err(|e| from_io(&e));
        }
        while !data.is_empty() {
            let flags = ReadWriteFlags::APPEND;
            let slices = [IoSlice::new(data)];
            match rustix::io::pwritev2(&self.file, &slices, 0, flags) {
                Ok(0) => return Err(Errno::EIO),
                Ok(done) => data = &data[done..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Errno::from_code(error.raw_os_error())),
            }
        }
        Ok(())
    }

    /// Everything but reads and writes.
    ///
    /// # Errors
    /// What the system says.
    pub fn perform(&self, op: &FileOp) -> Result<Done, Errno> {
        let system = |error: rustix::io::Errno| Errno::from_code(error.raw_os_error());
        match op {
            FileOp::Stat => Ok(Done::Stat(self.stat()?)),
            FileOp::SetAttr(set) => Ok(Done::Stat(self.branch.set_attr_of(&self.file, set)?)),
            FileOp::Sync => {
                self.file.sync_all().map_err(|error| from_io(&error))?;
                Ok(Done::Nothing)
            }
            FileOp::Allocate(range, how) => {
                let keep = FallocateFlags::KEEP_SIZE;
                let flags = match how {
                    Allocate::Extend => FallocateFlags::empty(),
                    Allocate::KeepSize => keep,
                    Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
                    Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
                    Allocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
                };
                let len = range.end.saturating_sub(range.start);
                rustix::fs::fallocate(&self.file, flags, range.start, len).map_err(system)?;
                Ok(Done::Stat(self.stat()?))
            }
            FileOp::Seek { offset, data } => {
                let from = match data {
                    true => SeekFrom::Data(*offset),
                    false => SeekFrom::Hole(*offset),
                };
                // The place in the file that this moves is nobody's: all else says where.
                let at = rustix::fs::seek(&self.file, from).map_err(system)?;
                Ok(Done::At(at))
            }
            FileOp::Read { .. } | FileOp::Write { .. } => Err(Errno::EINVAL),
        }
    }
}
