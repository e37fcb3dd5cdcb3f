//! redb's file, on the same seam as all others.

use crate::disk::{DiskFile, write_all};
use crate::reserve::Reserve;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How often a full disk is asked again, and after how long: whoever else fills it may be removing what did not fit.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// redb's view of a file. The directory's lock keeps other processes away.
#[derive(Debug)]
pub(crate) struct FileBackend {
    file: Arc<dyn DiskFile>,
    reserve: Arc<Reserve>,
}

impl FileBackend {
    pub(crate) fn new(file: Arc<dyn DiskFile>, reserve: Arc<Reserve>) -> Self {
        Self { file, reserve }
    }

    /// The engine cannot go on after a failed write. What was free when a commit was let in somebody may have taken
    /// meanwhile: then the reserve is what it writes to.
    fn with_room(&self, change: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut tries = TRIES;
        loop {
            match change() {
                Err(error) if is_full(&error) && !self.reserve.is_spent() => self.reserve.give_up(),
                Err(error) if is_full(&error) && tries > 0 => {
                    tries -= 1;
                    thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

impl redb::StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(offset + done as u64, &mut out[done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with_room(|| self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with_room(|| write_all(&*self.file, offset, data))
    }
}
