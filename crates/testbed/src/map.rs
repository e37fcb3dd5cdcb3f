//! A shared memory map of a file.
#![expect(unsafe_code, reason = "mmap")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// What a map may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    Write,
}

/// A `MAP_SHARED` view of the first bytes of a file. Nobody may shrink the file meanwhile.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<u8>,
    bytes: usize,
    access: Access,
}

impl Shared {
    /// Maps the first `bytes` of `file`.
    ///
    /// Errors: what mmap(2) says.
    pub fn new(file: &File, bytes: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            bytes,
            access,
        })
    }

    /// Copies out what the map shows now; `None` outside it.
    #[must_use]
    pub fn load(&self, offset: usize, length: usize) -> Option<Vec<u8>> {
        let end = offset.checked_add(length)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: the range lies inside the mapping. Volatile, since others change the bytes.
        Some(
            (offset..end)
                .map(|at| unsafe { self.start.add(at).read_volatile() })
                .collect(),
        )
    }

    /// Stores into the map; false outside it or when it was mapped for reading.
    #[must_use]
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let inside = offset
            .checked_add(bytes.len())
            .is_some_and(|end| end <= self.bytes);
        if !inside || self.access == Access::Read {
            return false;
        }
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: the range lies inside a writable mapping.
            unsafe { self.start.add(offset + at).write_volatile(*byte) };
        }
        true
    }

    /// `msync(MS_SYNC)` of the whole map.
    ///
    /// Errors: what msync(2) says.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly the mapping made in `new`.
        let code = unsafe { libc::msync(self.start.as_ptr().cast(), self.bytes, libc::MS_SYNC) };
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, which nothing refers to any more. It cannot
        // fail for such a range.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
