//! The device `/dev/fuse`: whole messages in and out, and its three ioctls.
#![expect(unsafe_code, reason = "rustix has no ioctl of FUSE")]

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One descriptor of a FUSE connection. A request must be answered on the descriptor that gave it.
#[derive(Debug)]
pub(crate) struct Device {
    fd: OwnedFd,
    /// Of the descriptor, and so of all threads that share it.
    is_blocking: Mutex<bool>,
}

/// Whether the kernel took a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It did.
    Taken,
    /// What it belongs to is gone: the request was aborted, the inode forgotten, the mount removed.
    Gone,
}

/// `_IOR(229, 0, uint32_t)`.
const IOC_CLONE: libc::c_ulong = 0x8004_e500;
/// `_IOW(229, 1, struct fuse_backing_map)`.
const IOC_BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `_IOW(229, 2, uint32_t)`.
const IOC_BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

impl Device {
    /// Where the kernel has it.
    pub(crate) const PATH: &str = "/dev/fuse";

    /// A descriptor without a connection.
    pub(crate) fn open() -> io::Result<Self> {
        let fd = rustix::fs::open(Self::PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self::from(fd))
    }

    /// One more descriptor of the same connection, with a queue of its own.
    pub(crate) fn clone_reader(&self) -> io::Result<Self> {
        let clone = Self::open()?;
        let source = self.fd.as_raw_fd().cast_unsigned();
        // SAFETY: both descriptors are open; the kernel reads one u32 from the pointer.
        let answer = unsafe { libc::ioctl(clone.fd.as_raw_fd(), IOC_CLONE, &raw const source) };
        if answer < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(clone)
        }
    }

    /// Whether [`Device::read`] waits; it does to begin with.
    pub(crate) fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        let mut is_blocking = self.is_blocking.lock();
        if *is_blocking == blocking {
            return Ok(());
        }
        let flags = if blocking {
            OFlags::RDWR
        } else {
            OFlags::RDWR | OFlags::NONBLOCK
        };
        rustix::fs::fcntl_setfl(&self.fd, flags)?;
        *is_blocking = blocking;
        Ok(())
    }

    /// The next request. ENODEV: the mount is gone. EAGAIN: there is none, and it does not wait.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// Answers a request. `errno` is 0 or positive.
    pub(crate) fn reply(&self, unique: u64, errno: i32, parts: [&[u8]; 2]) -> io::Result<Delivery> {
        self.send(unique, -errno, parts)
    }

    /// Tells the kernel something that it did not ask for.
    pub(crate) fn notify(&self, code: i32, body: &[u8]) -> io::Result<Delivery> {
        self.send(0, code, [body, &[]])
    }

    /// Tells the kernel something that is followed by one byte that it finds nowhere: it takes the message in as far as that.
    pub(crate) fn notify_without_its_byte(&self, code: i32, body: &[u8]) -> io::Result<Delivery> {
        let header = header(0, code, body.len() + 1)?;
        let part = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let nowhere = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 1,
        };
        let parts = [part(&header), part(body), nowhere];
        loop {
            // SAFETY: the descriptor is open; the kernel only reads what the first two parts point to, and at the address of the
            // third finds nothing.
            let sent = unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr(), 3) };
            if sent >= 0 {
                return Ok(Delivery::Taken);
            }
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EFAULT) => Ok(Delivery::Taken),
                Some(libc::ENOENT | libc::ENODEV) => Ok(Delivery::Gone),
                _ => Err(error),
            };
        }
    }

    fn send(&self, unique: u64, error: i32, parts: [&[u8]; 2]) -> io::Result<Delivery> {
        let header = header(unique, error, parts[0].len() + parts[1].len())?;
        let slices = [
            IoSlice::new(&header),
            IoSlice::new(parts[0]),
            IoSlice::new(parts[1]),
        ];
        loop {
            return match rustix::io::writev(&self.fd, &slices) {
                Ok(_) => Ok(Delivery::Taken),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => Ok(Delivery::Gone),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Registers a file for passthrough. The kernel keeps it open by itself.
    pub(crate) fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap {
            fd: file.as_raw_fd(),
            flags: 0,
            padding: 0,
        };
        // SAFETY: both descriptors are open; the kernel reads one `BackingMap` from the pointer.
        let id = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_BACKING_OPEN, &raw const map) };
        u32::try_from(id).map_err(|_| io::Error::last_os_error())
    }

    /// Takes back what [`Device::open_backing`] gave. Files that are open go on.
    pub(crate) fn close_backing(&self, id: u32) -> io::Result<()> {
        // SAFETY: the descriptor is open; the kernel reads one u32 from the pointer.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_BACKING_CLOSE, &raw const id) };
        if answer < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

const HEADER_LEN: usize = 16;

/// What comes before a body of so many bytes.
fn header(unique: u64, error: i32, len: usize) -> io::Result<[u8; HEADER_LEN]> {
    let len = u32::try_from(HEADER_LEN + len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    Ok(header)
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            is_blocking: Mutex::new(true),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_thread_that_shares_a_descriptor_knows_what_another_has_set() {
        let fd = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let device = Arc::new(Device::from(fd));
        let other = Arc::clone(&device);
        std::thread::spawn(move || other.set_blocking(false).unwrap())
            .join()
            .unwrap();
        let flags = || rustix::fs::fcntl_getfl(&device.fd).unwrap();
        assert!(flags().contains(OFlags::NONBLOCK));
        device.set_blocking(true).unwrap();
        assert!(!flags().contains(OFlags::NONBLOCK));
    }
}
