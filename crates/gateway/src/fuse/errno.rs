//! The one table of error numbers that programs on the mount can see.

use perigee_types::Errno;

/// The number that the kernel is told. Exhaustive, so that a new error has to be thought about here.
pub(crate) const fn number(errno: Errno) -> i32 {
    match errno {
        // To the kernel this means "never ask again, for any file": only the gateway may say so.
        Errno::ENOSYS => Errno::EOPNOTSUPP.code(),
        Errno::EPERM
        | Errno::ENOENT
        | Errno::EINTR
        | Errno::EIO
        | Errno::ENXIO
        | Errno::EBADF
        | Errno::EAGAIN
        | Errno::ENOMEM
        | Errno::EACCES
        | Errno::EBUSY
        | Errno::EEXIST
        | Errno::EXDEV
        | Errno::ENODEV
        | Errno::ENOTDIR
        | Errno::EISDIR
        | Errno::EINVAL
        | Errno::ENOTTY
        | Errno::ETXTBSY
        | Errno::EFBIG
        | Errno::ENOSPC
        | Errno::EROFS
        | Errno::EMLINK
        | Errno::ERANGE
        | Errno::EDEADLK
        | Errno::ENAMETOOLONG
        | Errno::ENOLCK
        | Errno::ENOTEMPTY
        | Errno::ELOOP
        | Errno::ENODATA
        | Errno::EPROTO
        | Errno::EOVERFLOW
        | Errno::EOPNOTSUPP
        | Errno::ETIMEDOUT
        | Errno::ESTALE
        | Errno::EDQUOT => errno.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_gateway_can_switch_an_operation_off() {
        assert_eq!(number(Errno::ENOSYS), libc::EOPNOTSUPP);
        assert_eq!(number(Errno::ESTALE), libc::ESTALE);
    }
}
