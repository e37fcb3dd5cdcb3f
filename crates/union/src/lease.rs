//! Files whose content another member has read ahead: nobody opens one for writing, or cuts it, before that content is too old
//! to be used.
//!
//! The kernel of this host sees to that: it gives a lease for reading where nobody has the file open for writing, and has who
//! wants to write wait until it is given back, which is when its time is over. So who opens a file after it was closed reads
//! what was written, also where the content was here before.

use perigee_types::NodeId;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Leases at a time: each is an open file.
const LEASES_MAX: usize = 512;
/// After somebody had to wait for one, none is given for so long.
const RESTS: Duration = Duration::from_secs(5);
/// File systems of which nobody writes a file but by this host's kernel (statfs(2)): others know of no lease here.
const LOCAL: [u64; 7] = [
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
];
/// `F_SETSIG` of Linux, which libc lacks.
const F_SETSIG: libc::c_int = 10;

/// What tells a file from others: its file system, and its number there.
pub type Identity = (u64, u64);

#[expect(unsafe_code, reason = "rustix has no leases")]
fn control(file: &File, what: libc::c_int, value: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: none of the commands of this module takes a pointer.
    match unsafe { libc::fcntl(file.as_raw_fd(), what, value) } {
        -1 => Err(io::Error::last_os_error()),
        is => Ok(is),
    }
}

/// Whether leases on files of a directory keep all writers out.
#[must_use]
pub fn are_of_use(directory: impl AsFd) -> bool {
    let statfs = rustix::fs::fstatfs(directory);
    statfs.is_ok_and(|statfs| LOCAL.contains(&(statfs.f_type as u64)))
}

/// A lease, until it is dropped.
#[derive(Debug)]
pub struct Lease(File);

impl Lease {
    /// Takes one on a file that is open for reading.
    ///
    /// # Errors
    /// Somebody writes the file; or it is another user's, or the file system has no leases.
    pub fn take(file: File) -> io::Result<Self> {
        // Who wants to write has this process told by a signal: by one that is ignored.
        control(&file, F_SETSIG, libc::SIGURG)?;
        control(&file, libc::F_SETLEASE, libc::F_RDLCK)?;
        Ok(Self(file))
    }

    /// The file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.0
    }

    /// Whether somebody waits for its end.
    fn is_in_the_way(&self) -> bool {
        control(&self.0, libc::F_GETLEASE, 0).is_ok_and(|is| is != libc::F_RDLCK)
    }
}

#[derive(Debug)]
struct Given {
    to: NodeId,
    of: Identity,
    until: Instant,
    lease: Lease,
}

/// The leases that this host has given.
#[derive(Debug, Default)]
pub struct Leases {
    given: Vec<Given>,
    rests_until: Option<Instant>,
}

impl Leases {
    /// Whether another one may be given now.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        let rests = self.rests_until.is_some_and(|until| now < until);
        !rests && self.given.len() < LEASES_MAX
    }

    /// Keeps one until a moment; `None`: it was one too many, and has ended.
    pub fn give(&mut self, to: NodeId, of: Identity, until: Instant, lease: Lease) -> Option<()> {
        let given = Given {
            to,
            of,
            until,
            lease,
        };
        (self.given.len() < LEASES_MAX).then(|| self.given.push(given))
    }

    /// A member is about to write a file: it uses nothing any more of what it had read ahead of it.
    pub fn give_back(&mut self, by: NodeId, of: Identity) {
        self.given.retain(|given| (given.to, given.of) != (by, of));
    }

    /// Ends those whose time is over.
    pub fn end(&mut self, now: Instant) {
        let over = |given: &Given| given.until <= now;
        if self
            .given
            .iter()
            .any(|given| over(given) && given.lease.is_in_the_way())
        {
            self.rests_until = Some(now + RESTS);
        }
        self.given.retain(|given| !over(given));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags};

    const TERM: Duration = Duration::from_millis(500);

    /// Whether it can be opened for writing without waiting.
    fn is_free(path: &std::path::Path) -> bool {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(_) => true,
            Err(rustix::io::Errno::AGAIN) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn who_wants_to_write_waits_for_the_end_and_then_none_is_given_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"content").unwrap();
        let mut leases = Leases::default();
        let now = Instant::now();
        let take = || Lease::take(File::open(&path).unwrap());
        let writes = File::options().write(true).open(&path).unwrap();
        let refused = take().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "it is written");
        drop(writes);

        leases
            .give(NodeId(2), (1, 1), now + TERM, take().unwrap())
            .unwrap();
        assert!(File::open(&path).is_ok(), "readers wait for nobody");
        leases.give_back(NodeId(3), (1, 1));
        leases.give_back(NodeId(2), (1, 2));
        leases.end(now);
        assert!(!is_free(&path));
        leases.give_back(NodeId(2), (1, 1));
        assert!(is_free(&path), "who has it gives it back and writes");
        assert!(leases.has_room(now + TERM), "nobody had to wait");

        leases
            .give(NodeId(2), (1, 1), now + TERM, take().unwrap())
            .unwrap();
        assert!(!is_free(&path));
        leases.end(now + TERM);
        assert!(is_free(&path));
        assert!(!leases.has_room(now + TERM));
        assert!(leases.has_room(now + TERM + RESTS));
    }
}
