//! Short time slices for the threads that answer requests.
#![expect(unsafe_code, reason = "rustix has no sched_setattr")]

use std::io;
use tracing::debug;

/// The shortest that the kernel grants, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// `SCHED_FLAG_RESET_ON_FORK`.
const RESET_ON_FORK: u64 = 1;

/// `struct sched_attr` of Linux, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Has this thread take turns in small pieces: it answers within microseconds, and one that has work for
/// milliseconds, such as the store's committer, would go first for all of them. Its share of the processor stays.
///
/// A kernel before 6.12 does nothing of it.
pub(super) fn shorten() {
    if let Err(error) = set() {
        debug!(%error, "a thread of the mount keeps its long time slice");
    }
}

fn set() -> io::Result<()> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes, for the thread that calls.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.runtime = SLICE_NS;
    // Threads that this one starts have other work.
    attributes.flags |= RESET_ON_FORK;
    // SAFETY: the kernel reads `attributes.size` bytes, which it has just set to no more than there are.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_kernel_takes_it() {
        set().unwrap();
    }
}
