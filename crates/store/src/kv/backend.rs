//! redb's file, on the same seam as all others.

use crate::disk::{DiskFile, write_all};
use std::io;
use std::sync::Arc;

/// redb's view of a file. The directory's lock keeps other processes away.
#[derive(Debug)]
pub(crate) struct FileBackend {
    file: Arc<dyn DiskFile>,
}

impl FileBackend {
    pub(crate) fn new(file: Arc<dyn DiskFile>) -> Self {
        Self { file }
    }
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
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        write_all(&*self.file, offset, data)
    }
}
