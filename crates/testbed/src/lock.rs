//! POSIX record locks and flock, as applications take them.
#![expect(unsafe_code, reason = "record locks with a range have no safe wrapper")]

use rustix::fs::FlockOperation;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Shared with other readers.
    Shared,
    /// Alone.
    Exclusive,
    /// Nothing more.
    Free,
}

/// What to do when another holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Wait for it.
    Wait,
    /// Give `EAGAIN` at once.
    Refuse,
}

/// Bytes of a record lock; a length of 0 reaches to the end, wherever that will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: i64,
    /// Bytes.
    pub length: i64,
}

impl Span {
    /// The whole file.
    pub const WHOLE: Self = Self {
        start: 0,
        length: 0,
    };
}

fn record(mode: Mode, span: Span) -> libc::flock {
    let kind = match mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
        Mode::Free => libc::F_UNLCK,
    };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: span.start,
        l_len: span.length,
        l_pid: 0,
    }
}

/// `fcntl(F_SETLK)` or `fcntl(F_SETLKW)`.
///
/// Errors: `EAGAIN` or `EACCES` for a refused lock, and what else fcntl(2) says.
pub fn fcntl(file: impl AsFd, mode: Mode, span: Span, patience: Patience) -> io::Result<()> {
    let command = match patience {
        Patience::Wait => libc::F_SETLKW,
        Patience::Refuse => libc::F_SETLK,
    };
    set(file, command, mode, span)
}

/// `fcntl(F_OFD_SETLK)` or `fcntl(F_OFD_SETLKW)` for the whole file: the open file holds the lock, and not the process.
///
/// Errors: as those of [`fcntl`].
pub fn ofd(file: impl AsFd, mode: Mode, patience: Patience) -> io::Result<()> {
    let command = match patience {
        Patience::Wait => libc::F_OFD_SETLKW,
        Patience::Refuse => libc::F_OFD_SETLK,
    };
    set(file, command, mode, Span::WHOLE)
}

fn set(file: impl AsFd, command: libc::c_int, mode: Mode, span: Span) -> io::Result<()> {
    let lock = record(mode, span);
    // SAFETY: the descriptor is open for the call and `lock` is a whole `struct flock`.
    let code = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw const lock) };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `fcntl(F_GETLK)`: the span of one lock that stands in the way, if any does.
///
/// Errors: what fcntl(2) says.
pub fn fcntl_obstacle(file: impl AsFd, mode: Mode, span: Span) -> io::Result<Option<Span>> {
    let mut lock = record(mode, span);
    // SAFETY: the descriptor is open for the call and `lock` is a whole `struct flock`.
    let code = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    Ok(Some(Span {
        start: lock.l_start,
        length: lock.l_len,
    }))
}

/// `flock(2)`.
///
/// Errors: `EWOULDBLOCK` for a refused lock, and what else flock(2) says.
pub fn flock(file: impl AsFd, mode: Mode, patience: Patience) -> io::Result<()> {
    let operation = match (mode, patience) {
        (Mode::Shared, Patience::Wait) => FlockOperation::LockShared,
        (Mode::Shared, Patience::Refuse) => FlockOperation::NonBlockingLockShared,
        (Mode::Exclusive, Patience::Wait) => FlockOperation::LockExclusive,
        (Mode::Exclusive, Patience::Refuse) => FlockOperation::NonBlockingLockExclusive,
        (Mode::Free, _) => FlockOperation::Unlock,
    };
    Ok(rustix::fs::flock(file, operation)?)
}

/// The modes of the lock service: CR, CW, PR, PW, EX.
pub const FIVE_MODES: [&str; 5] = ["cr", "cw", "pr", "pw", "ex"];

/// The ioctl `_IOWR('P', 1, 40 bytes)`.
const SERVICE: u32 = 0xc028_5001;

/// What the lock service says to a request: the token of the grant, by epoch and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Token {
    /// The owner's time.
    pub epoch: u64,
    /// Counts its grants.
    pub number: u64,
}

/// Takes a lock of the lock service in the mode at this place of [`FIVE_MODES`], or lets it go, as the mount's ioctl has it.
///
/// Errors: `EAGAIN` for a refused lock, `ENOTTY` for a file of another file system.
pub fn service(
    file: impl AsFd,
    mode: Option<usize>,
    range: std::ops::Range<u64>,
    patience: Patience,
) -> io::Result<Token> {
    let mut words = [
        range.start,
        range.end - range.start,
        mode.map_or(0, |place| place as u64 + 1) | u64::from(patience == Patience::Refuse) << 32,
        0,
        0,
    ];
    if cfg!(target_endian = "big") {
        words[2] = words[2].rotate_left(32);
    }
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for the call and the argument is as long as the ioctl's number says.
    let code = unsafe { libc::ioctl(fd, SERVICE as libc::Ioctl, words.as_mut_ptr()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Token {
        epoch: words[3],
        number: words[4],
    })
}
