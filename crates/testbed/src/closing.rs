//! Closing a file, and hearing what that says.
#![expect(unsafe_code, reason = "the file's drop passes over what close says")]

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;

/// Closes a file.
///
/// Errors: those of close(2), which tells of writes that were answered before they were carried out. It is closed all the same.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was the file's alone, and nobody uses it any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
