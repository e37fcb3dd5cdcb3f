//! The mount point: checked, mounted on by mount(2) or `fusermount3`, found again, and unmounted.

use super::device::Device;
use super::options::MountOptions;
use super::session::REQUEST_PAGES;
use perigee_types::limits::IO_LEN_MAX;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use thiserror::Error;
use tracing::debug;

/// The type that `/proc/mounts` shows.
pub(crate) const FS_TYPE: &str = "fuse.perigee";

/// Why a mount could not be made.
#[derive(Debug, Error)]
pub enum MountError {
    /// The mount point is not there, or cannot be looked at.
    #[error("cannot mount on `{}`: {source}", path.display())]
    Point {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A mount whose daemon is gone lies there.
    #[error("cannot mount on `{}`: a dead mount is there (unmount it first)", path.display())]
    DeadMount {
        /// Where.
        path: PathBuf,
    },
    /// The mount point is a file or something else.
    #[error("cannot mount on `{}`: it is not a directory", path.display())]
    NotDirectory {
        /// Where.
        path: PathBuf,
    },
    /// The mount would hide what the directory has.
    #[error("cannot mount on `{}`: the directory is not empty (`-o nonempty` mounts over it)", path.display())]
    NotEmpty {
        /// Where.
        path: PathBuf,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open `/dev/fuse`: {source} (is the kernel module `fuse` loaded?)")]
    Device {
        /// What the system said.
        source: io::Error,
    },
    /// Options that only root may use.
    #[error("mount option `{option}` takes root")]
    NotAllowed {
        /// Its name.
        option: &'static str,
    },
    /// mount(2) refused.
    #[error("cannot mount on `{}`: {source}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `fusermount3` is not installed, and without it only root can mount.
    #[error("cannot run `fusermount3`, which mounts for users other than root: {source}")]
    NoHelper {
        /// What the system said.
        source: io::Error,
    },
    /// `fusermount3` refused.
    #[error("cannot mount on `{}`: {message}", path.display())]
    Helper {
        /// Where.
        path: PathBuf,
        /// Its words.
        message: String,
    },
    /// The kernel's FUSE is not one that can be served.
    #[error("the kernel speaks FUSE {major}.{minor}, Perigee needs 7.{needed} or later")]
    Protocol {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
        /// The least that is needed.
        needed: u32,
    },
    /// The first exchange with the kernel failed.
    #[error("mount on `{}` broke off at its start: {source}", path.display())]
    Handshake {
        /// Where.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

/// Why a mount could not be unmounted.
#[derive(Debug, Error)]
pub enum UnmountError {
    /// Files are open in it, or it is somebody's working directory.
    #[error("cannot unmount `{}`: it is in use", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Another mount covers it.
    #[error("cannot unmount `{}`: another mount lies over it", path.display())]
    Covered {
        /// Where.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot unmount `{}`: {source}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Whether this process may mount by itself.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The mount point in full, if it is one that can be mounted on.
pub(crate) fn check(path: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let fault = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOTCONN) => MountError::DeadMount {
            path: path.to_owned(),
        },
        _ => MountError::Point {
            path: path.to_owned(),
            source,
        },
    };
    let full = path.canonicalize().map_err(fault)?;
    if !full.metadata().map_err(fault)?.is_dir() {
        return Err(MountError::NotDirectory { path: full });
    }
    if !options.non_empty && full.read_dir().map_err(fault)?.next().is_some() {
        return Err(MountError::NotEmpty { path: full });
    }
    Ok(full)
}

/// Mounts, and gives the connection.
pub(crate) fn attach(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    if is_root() {
        return attach_directly(path, options);
    }
    let forbidden = [(options.devices, "dev"), (options.set_id, "suid")];
    if let Some((_, option)) = forbidden.into_iter().find(|(wanted, _)| *wanted) {
        return Err(MountError::NotAllowed { option });
    }
    attach_by_helper(path, options)
}

fn attach_directly(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    use std::os::fd::AsFd;
    // Each connection has the limit of when it was made.
    if let Err(error) = allow_pages(REQUEST_PAGES) {
        debug!(%error, "direct requests of 1 MiB go in two parts where a buffer begins within a page");
    }
    let device = Device::open().map_err(|source| MountError::Device { source })?;
    let refused = |source: io::Error| MountError::Refused {
        path: path.to_owned(),
        source,
    };
    let mode = path.metadata().map_err(refused)?.mode();
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions,max_read={IO_LEN_MAX}",
        device.as_fd().as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let source = options.source.as_str();
    rustix::mount::mount(source, path, FS_TYPE, flags(options), data.as_c_str())
        .map_err(|error| refused(error.into()))?;
    Ok(device)
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.devices);
    flags.set(MountFlags::NOSUID, !options.set_id);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOATIME, options.no_atime);
    flags
}

/// `fusermount3` mounts, and sends the descriptor of the connection over its standard input, which
/// is a socket. (Its own descriptor by number, as is usual, would leak into other children.)
fn attach_by_helper(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let no_helper = |source: io::Error| MountError::NoHelper { source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(no_helper)?;
    let mut words = format!(
        "fsname={},subtype=perigee,default_permissions,max_read={IO_LEN_MAX}",
        options.source
    );
    let extra = [
        (options.read_only, ",ro"),
        (!options.exec, ",noexec"),
        (options.no_atime, ",noatime"),
        (options.allow_other == Some(true), ",allow_other"),
    ];
    extra
        .iter()
        .filter(|(wanted, _)| *wanted)
        .for_each(|(_, word)| words.push_str(word));
    let child = Command::new("fusermount3")
        .args(["-o", &words, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    let received = receive_fd(&ours);
    let output = child.wait_with_output().map_err(no_helper)?;
    match received {
        Ok(Some(fd)) if output.status.success() => Ok(Device::from(fd)),
        Ok(_) | Err(_) => Err(MountError::Helper {
            path: path.to_owned(),
            message: helper_message(&output),
        }),
    }
}

fn helper_message(output: &std::process::Output) -> String {
    let words = String::from_utf8_lossy(&output.stderr);
    let words = words.trim();
    match (words.is_empty(), output.status.signal()) {
        (false, _) => words.to_owned(),
        (true, Some(signal)) => format!("fusermount3 was killed by signal {signal}"),
        (true, None) => format!("fusermount3 ended with {}", output.status),
    }
}

fn receive_fd(socket: &std::os::unix::net::UnixStream) -> io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [io::IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

/// The device number (`major:minor`) of the topmost mount on `path`, read without asking it.
pub(crate) fn topmost(path: &Path) -> io::Result<Option<String>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(topmost_in(&table, path))
}

fn topmost_in(table: &[u8], path: &Path) -> Option<String> {
    // The last line that names the path is the mount on top.
    table.split(|&byte| byte == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = fields.nth(2)?;
        let point = fields.nth(1)?;
        (unescape(point) == path.as_os_str().as_bytes())
            .then(|| String::from_utf8_lossy(device).into_owned())
    })
}

/// `/proc` writes blanks, tabs, newlines and backslashes as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| byte == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(value.unwrap_or(byte));
        rest = if value.is_some() { &after[3..] } else { after };
    }
    plain
}

/// Lets the kernel put so many pages into one request, on this host: 256 unless somebody allowed more, one too few for a
/// MiB that begins within a page. What it reads in one request `max_read` bounds all the same. Kernels before 6.12 have no such
/// limit to set.
fn allow_pages(pages: u16) -> io::Result<()> {
    const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
    let limit = std::fs::read_to_string(LIMIT)?;
    match limit.trim().parse::<u32>() {
        Ok(limit) if limit >= u32::from(pages) => Ok(()),
        _ => std::fs::write(LIMIT, pages.to_string()),
    }
}

/// Lets the kernel read ahead on this mount by more than the 128 KiB that FUSE starts with.
pub(crate) fn set_read_ahead(device: &str, kb: u32) -> io::Result<()> {
    std::fs::write(
        format!("/sys/class/bdi/{device}/read_ahead_kb"),
        kb.to_string(),
    )
}

/// Unmounts; `lazily`: takes it out of sight at once, and ends it with the last use.
pub(crate) fn detach(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let flags = if lazily {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    let flags = flags | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::InUse {
            path: path.to_owned(),
        }),
        Err(Errno::PERM) if !is_root() => detach_by_helper(path, lazily),
        Err(error) => Err(UnmountError::Refused {
            path: path.to_owned(),
            source: error.into(),
        }),
    }
}

fn detach_by_helper(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let refused = |source: io::Error| UnmountError::Refused {
        path: path.to_owned(),
        source,
    };
    let flags: &[&str] = if lazily { &["-u", "-z"] } else { &["-u"] };
    let output = Command::new("fusermount3")
        .args(flags)
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(refused)?;
    if output.status.success() {
        return Ok(());
    }
    let words = helper_message(&output);
    if words.contains("busy") {
        return Err(UnmountError::InUse {
            path: path.to_owned(),
        });
    }
    Err(refused(io::Error::other(words)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    const TABLE: &[u8] = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        40 22 0:50 / /mnt/with\\040blank rw - fuse.perigee perigee rw\n\
        41 40 0:51 / /mnt/with\\040blank rw shared:3 - tmpfs tmpfs rw\n\
        broken line\n";

    #[test]
    fn the_topmost_of_several_mounts_is_found_by_its_real_name() {
        let path = |text: &str| PathBuf::from(OsString::from_vec(text.as_bytes().to_vec()));
        assert_eq!(
            topmost_in(TABLE, &path("/mnt/with blank")).as_deref(),
            Some("0:51")
        );
        assert_eq!(topmost_in(TABLE, &path("/")).as_deref(), Some("254:0"));
        assert_eq!(topmost_in(TABLE, &path("/mnt")), None);
    }

    #[test]
    fn a_backslash_without_digits_is_itself() {
        assert_eq!(unescape(b"a\\134b\\"), b"a\\b\\");
    }

    #[test]
    fn mount_points_that_cannot_be_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions::default();
        let missing = check(&dir.path().join("missing"), &options).unwrap_err();
        assert!(matches!(missing, MountError::Point { .. }), "{missing}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let not_directory = check(&file, &options).unwrap_err();
        assert!(
            matches!(not_directory, MountError::NotDirectory { .. }),
            "{not_directory}"
        );
        let full = check(dir.path(), &options).unwrap_err();
        assert!(matches!(full, MountError::NotEmpty { .. }), "{full}");
        let over = MountOptions {
            non_empty: true,
            ..options
        };
        assert!(check(dir.path(), &over).is_ok());
    }
}
