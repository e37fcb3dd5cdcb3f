//! Error numbers as POSIX programs see them.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// An error number of Linux, the same on every node whatever its kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Errno {
            $(#[doc = $text] $name,)*
        }

        impl Errno {
            /// The number that the kernel and the C library use.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self { $(Self::$name => $number,)* }
            }

            /// The text that a person reads.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The error of a number from the local system; [`Errno::EIO`] when Perigee has no use for it.
            #[must_use]
            pub const fn from_code(code: i32) -> Self {
                match code { $($number => Self::$name,)* _ => Self::EIO }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENOTTY = 25, "no such ioctl of this file";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    EROFS = 30, "read-only";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "resource deadlock avoided";
    ENAMETOOLONG = 36, "name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "timed out";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "quota exceeded";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Errno {}
