//! Asking a mounted file system for a lock in one of the five modes.
#![expect(unsafe_code, reason = "an ioctl of our own has no safe wrapper")]

use perigee_client::lock_ioctl::{COMMAND, LockCall};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Takes a lock on an open file, or lets it go, as [`perigee_client::lock_ioctl`] says. Gives the argument back with the
/// grant's token. Waits where the call does, until a signal comes.
///
/// Errors: ENOTTY for a file of another file system; EAGAIN where it does not wait and others have what excludes it;
/// EDEADLK, EINTR, ENOLCK, and EIO as for any lock.
pub fn lock(file: impl AsFd, call: &LockCall) -> io::Result<LockCall> {
    let mut argument = call.encode();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for the call, and the argument is as long as the ioctl's number says.
    let code = unsafe { libc::ioctl(fd, COMMAND as libc::Ioctl, argument.as_mut_ptr()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    LockCall::decode(&argument).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}
