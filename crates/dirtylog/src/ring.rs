//! The ring that the kernel writes events into, and this process reads (`Documentation/bpf/ringbuf.rst`).
#![expect(unsafe_code, reason = "memory that is shared with the kernel")]

use super::bpf::EVENT_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const PAGE: usize = 4_096;
/// Before each record: its length with two bits, and something of the kernel's.
const HEADER_BYTES: u64 = 8;
/// It is being written.
const BUSY: u32 = 1 << 31;
/// It is to be passed over.
const DISCARDED: u32 = 1 << 30;

/// A folio has become dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub inode: u64,
    pub page: u64,
}

/// The ring, mapped: a page with how far it was read, a page with how far it is written, and twice the records, so that
/// none has a gap.
pub(crate) struct Ring {
    consumer: NonNull<c_void>,
    producer: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and is not bound to a thread.
unsafe impl Send for Ring {}

impl Ring {
    pub fn map(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<Self> {
        let bytes = bytes as usize;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new mappings, where the kernel chooses.
        let (consumer, producer) = unsafe {
            let consumer = mmap(null_mut(), PAGE, both, MapFlags::SHARED, fd, 0)?;
            let shared = MapFlags::SHARED;
            let rest = PAGE + 2 * bytes;
            let producer = mmap(null_mut(), rest, ProtFlags::READ, shared, fd, PAGE as u64);
            let producer = producer.inspect_err(|_| _ = munmap(consumer, PAGE))?;
            (consumer, producer)
        };
        let there = |place| NonNull::new(place).ok_or_else(|| io::Error::other("mapped at zero"));
        Ok(Self {
            consumer: there(consumer)?,
            producer: there(producer)?,
            bytes,
        })
    }

    /// Reads all events whose writing had begun before the call.
    pub fn consume(&mut self, mut each: impl FnMut(Event)) {
        // SAFETY: both pages begin with a counter of eight bytes, and are mapped as long as this value lives.
        let (read, written) = unsafe {
            (
                self.consumer.cast::<AtomicU64>().as_ref(),
                self.producer.cast::<AtomicU64>().as_ref(),
            )
        };
        let end = written.load(Ordering::Acquire);
        let mut at = read.load(Ordering::Acquire);
        while at < end {
            let offset = PAGE + (at % self.bytes as u64) as usize;
            // SAFETY: a record begins there, aligned to eight bytes, and lies in what is mapped, since that has the records
            // twice.
            let record = unsafe { self.producer.byte_add(offset) };
            // SAFETY: as above; the kernel changes the header when the record is written.
            let header = unsafe { record.cast::<AtomicU32>().as_ref() };
            let mut length = header.load(Ordering::Acquire);
            while length & BUSY != 0 {
                // Another processor is between two instructions; what comes after it may be complete.
                std::thread::yield_now();
                length = header.load(Ordering::Acquire);
            }
            let bytes = u64::from(length & !DISCARDED);
            if length & DISCARDED == 0 && bytes as usize == EVENT_BYTES {
                // SAFETY: the record is complete, as its length, and the kernel leaves it alone until it was read.
                let [inode, page] = unsafe { record.byte_add(8).cast::<[u64; 2]>().read() };
                each(Event { inode, page });
            }
            at += (bytes + HEADER_BYTES).next_multiple_of(8);
            read.store(at, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it any more.
        unsafe {
            _ = munmap(self.consumer.as_ptr(), PAGE);
            _ = munmap(self.producer.as_ptr(), PAGE + 2 * self.bytes);
        }
    }
}
