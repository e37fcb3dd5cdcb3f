//! Requests of the kernel, parsed without copying.

use super::fields::Fields;
use thiserror::Error;

/// A message that is not what its opcode promises. The kernel never sends one; a bug here or there does.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("FUSE request of {len} bytes ends inside its fields (opcode {opcode})")]
pub(crate) struct Malformed {
    pub(crate) opcode: u32,
    pub(crate) len: usize,
}

/// What every request starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// Length of [`Header`] on the wire.
const HEADER_LEN: usize = 40;

/// `SETATTR`, with the fields that its mask names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SetattrRequest {
    pub(crate) valid: u32,
    pub(crate) handle: u64,
    pub(crate) size: u64,
    pub(crate) atime: (i64, u32),
    pub(crate) mtime: (i64, u32),
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// `INIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InitRequest {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u64,
}

/// A request. Names have no NUL; times are seconds and nanoseconds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        nodes: &'a [u8],
    },
    Getattr,
    Statx,
    Setattr(SetattrRequest),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        new_name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        len: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        flags: u32,
        /// As of open(2), with what the call itself asks for.
        open_flags: i32,
        data: &'a [u8],
    },
    Flush {
        handle: u64,
        owner: u64,
    },
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
        flags: u32,
    },
    Opendir,
    Readdir {
        handle: u64,
        cookie: u64,
        len: u32,
    },
    ReaddirPlus {
        handle: u64,
        cookie: u64,
        len: u32,
    },
    Releasedir {
        handle: u64,
    },
    Fsyncdir {
        handle: u64,
    },
    Statfs,
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    Getxattr {
        name: &'a [u8],
        len: u32,
    },
    Listxattr {
        len: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Getlk(LockRequest),
    Setlk {
        lock: LockRequest,
        wait: bool,
    },
    Ioctl(IoctlRequest<'a>),
    Fallocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: i32,
    },
    Lseek {
        handle: u64,
        offset: u64,
        whence: i32,
    },
    CopyRange {
        handle: u64,
        offset: u64,
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        len: u64,
        wide: bool,
    },
    Init(InitRequest),
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// Anything that Perigee does not serve.
    Unknown,
}

/// `IOCTL` whose number says how many bytes go in and come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoctlRequest<'a> {
    pub(crate) handle: u64,
    pub(crate) command: u32,
    pub(crate) data: &'a [u8],
    /// Bytes that may come back.
    pub(crate) room: u32,
}

/// `GETLK`, `SETLK` and `SETLKW`; both ends of the range belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRequest {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) kind: u32,
    pub(crate) pid: u32,
    pub(crate) flags: u32,
}

/// Splits a message into header and request.
pub(crate) fn parse(message: &[u8]) -> Result<(Header, Request<'_>), Malformed> {
    let mut fields = Fields::new(message);
    let fail = |opcode| Malformed {
        opcode,
        len: message.len(),
    };
    let (header, declared) = parse_header(&mut fields).ok_or_else(|| fail(0))?;
    if declared != message.len() || message.len() < HEADER_LEN {
        return Err(fail(header.opcode));
    }
    let request = parse_request(header.opcode, &mut fields).ok_or_else(|| fail(header.opcode))?;
    Ok((header, request))
}

fn parse_header(fields: &mut Fields<'_>) -> Option<(Header, usize)> {
    let declared = fields.u32()? as usize;
    let opcode = fields.u32()?;
    let header = Header {
        opcode,
        unique: fields.u64()?,
        node: fields.u64()?,
        uid: fields.u32()?,
        gid: fields.u32()?,
        pid: fields.u32()?,
    };
    // Lengths of extensions, of which none is asked for.
    fields.u32()?;
    Some((header, declared))
}

fn parse_request<'a>(opcode: u32, f: &mut Fields<'a>) -> Option<Request<'a>> {
    match opcode {
        3 | 4 | 17 | 21 | 22 | 23 | 24 | 52 => parse_attributes(opcode, f),
        14..=16 | 18 | 20 | 25 | 27..=35 | 39 | 43 | 44 | 46 | 47 | 53 => {
            parse_open_files(opcode, f)
        }
        _ => parse_names(opcode, f),
    }
}

/// Names, and the session itself.
fn parse_names<'a>(opcode: u32, f: &mut Fields<'a>) -> Option<Request<'a>> {
    Some(match opcode {
        1 => Request::Lookup { name: f.name()? },
        2 => Request::Forget { count: f.u64()? },
        5 => Request::Readlink,
        6 => Request::Symlink {
            name: f.name()?,
            target: f.name()?,
        },
        8 => mknod(f)?,
        9 => mkdir(f)?,
        10 => Request::Unlink { name: f.name()? },
        11 => Request::Rmdir { name: f.name()? },
        12 => {
            let new_parent = f.u64()?;
            Request::Rename {
                name: f.name()?,
                new_parent,
                new_name: f.name()?,
                flags: 0,
            }
        }
        13 => Request::Link {
            node: f.u64()?,
            new_name: f.name()?,
        },
        26 => Request::Init(init(f)?),
        36 => Request::Interrupt { unique: f.u64()? },
        38 => Request::Destroy,
        42 => {
            let (count, _padding) = (f.u32()? as usize, f.u32()?);
            Request::BatchForget {
                nodes: f.bytes(count.checked_mul(16)?)?,
            }
        }
        45 => {
            let (new_parent, flags, _padding) = (f.u64()?, f.u32()?, f.u32()?);
            Request::Rename {
                name: f.name()?,
                new_parent,
                new_name: f.name()?,
                flags,
            }
        }
        _ => Request::Unknown,
    })
}

/// Attributes of nodes and of the file system.
fn parse_attributes<'a>(opcode: u32, f: &mut Fields<'a>) -> Option<Request<'a>> {
    Some(match opcode {
        3 => Request::Getattr,
        4 => Request::Setattr(setattr(f)?),
        17 => Request::Statfs,
        21 => {
            let (len, flags) = (f.u32()? as usize, f.u32()?);
            Request::Setxattr {
                name: f.name()?,
                value: f.bytes(len)?,
                flags,
            }
        }
        22 => {
            let (len, _padding) = (f.u32()?, f.u32()?);
            Request::Getxattr {
                name: f.name()?,
                len,
            }
        }
        23 => Request::Listxattr { len: f.u32()? },
        24 => Request::Removexattr { name: f.name()? },
        52 => Request::Statx,
        _ => Request::Unknown,
    })
}

/// Open files and directories.
fn parse_open_files<'a>(opcode: u32, f: &mut Fields<'a>) -> Option<Request<'a>> {
    Some(match opcode {
        14 => Request::Open { flags: f.i32()? },
        15 => read(f).map(|(handle, offset, len)| Request::Read {
            handle,
            offset,
            len,
        })?,
        16 => write(f)?,
        18 => {
            let (handle, _open_flags, _flags) = (f.u64()?, f.u32()?, f.u32()?);
            Request::Release { handle }
        }
        20 => Request::Fsync {
            handle: f.u64()?,
            flags: f.u32()?,
        },
        25 => {
            let (handle, _unused) = (f.u64()?, f.u64()?);
            Request::Flush {
                handle,
                owner: f.u64()?,
            }
        }
        27 => Request::Opendir,
        28 => read(f).map(|(handle, cookie, len)| Request::Readdir {
            handle,
            cookie,
            len,
        })?,
        29 => Request::Releasedir { handle: f.u64()? },
        30 => Request::Fsyncdir { handle: f.u64()? },
        31 => Request::Getlk(lock(f)?),
        32 => Request::Setlk {
            lock: lock(f)?,
            wait: false,
        },
        33 => Request::Setlk {
            lock: lock(f)?,
            wait: true,
        },
        35 => create(f)?,
        39 => {
            let (handle, _flags, command) = (f.u64()?, f.u32()?, f.u32()?);
            let (_arg, len, room) = (f.u64()?, f.u32()? as usize, f.u32()?);
            Request::Ioctl(IoctlRequest {
                handle,
                command,
                data: f.bytes(len)?,
                room,
            })
        }
        43 => {
            let (handle, offset, len) = (f.u64()?, f.u64()?, f.u64()?);
            Request::Fallocate {
                handle,
                offset,
                len,
                mode: f.i32()?,
            }
        }
        44 => read(f).map(|(handle, cookie, len)| Request::ReaddirPlus {
            handle,
            cookie,
            len,
        })?,
        46 => Request::Lseek {
            handle: f.u64()?,
            offset: f.u64()?,
            whence: f.i32()?,
        },
        47 => copy_range(f, false)?,
        53 => copy_range(f, true)?,
        _ => Request::Unknown,
    })
}

fn setattr(f: &mut Fields<'_>) -> Option<SetattrRequest> {
    let (valid, _padding) = (f.u32()?, f.u32()?);
    let (handle, size, _lock_owner) = (f.u64()?, f.u64()?, f.u64()?);
    let (atime, mtime, _ctime) = (f.u64()?, f.u64()?, f.u64()?);
    let (atime_nanos, mtime_nanos, _ctime_nanos) = (f.u32()?, f.u32()?, f.u32()?);
    let (mode, _unused) = (f.u32()?, f.u32()?);
    Some(SetattrRequest {
        valid,
        handle,
        size,
        atime: (atime.cast_signed(), atime_nanos),
        mtime: (mtime.cast_signed(), mtime_nanos),
        mode,
        uid: f.u32()?,
        gid: f.u32()?,
    })
}

fn mknod<'a>(f: &mut Fields<'a>) -> Option<Request<'a>> {
    let (mode, rdev, umask, _padding) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    Some(Request::Mknod {
        name: f.name()?,
        mode,
        rdev,
        umask,
    })
}

fn mkdir<'a>(f: &mut Fields<'a>) -> Option<Request<'a>> {
    let (mode, umask) = (f.u32()?, f.u32()?);
    Some(Request::Mkdir {
        name: f.name()?,
        mode,
        umask,
    })
}

fn create<'a>(f: &mut Fields<'a>) -> Option<Request<'a>> {
    let (flags, mode, umask, _open_flags) = (f.i32()?, f.u32()?, f.u32()?, f.u32()?);
    Some(Request::Create {
        name: f.name()?,
        flags,
        mode,
        umask,
    })
}

fn read(f: &mut Fields<'_>) -> Option<(u64, u64, u32)> {
    Some((f.u64()?, f.u64()?, f.u32()?))
}

fn write<'a>(f: &mut Fields<'a>) -> Option<Request<'a>> {
    let (handle, offset, len, flags) = (f.u64()?, f.u64()?, f.u32()? as usize, f.u32()?);
    let (_lock_owner, open_flags, _padding) = (f.u64()?, f.i32()?, f.u32()?);
    Some(Request::Write {
        handle,
        offset,
        flags,
        open_flags,
        data: f.bytes(len)?,
    })
}

fn lock(f: &mut Fields<'_>) -> Option<LockRequest> {
    let (handle, owner) = (f.u64()?, f.u64()?);
    let (first, last, kind, pid) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
    Some(LockRequest {
        handle,
        owner,
        first,
        last,
        kind,
        pid,
        flags: f.u32()?,
    })
}

fn copy_range<'a>(f: &mut Fields<'a>, wide: bool) -> Option<Request<'a>> {
    Some(Request::CopyRange {
        handle: f.u64()?,
        offset: f.u64()?,
        to_node: f.u64()?,
        to_handle: f.u64()?,
        to_offset: f.u64()?,
        len: f.u64()?,
        wide,
    })
}

fn init(f: &mut Fields<'_>) -> Option<InitRequest> {
    let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    // Kernels before the flag `INIT_EXT` end here.
    let high = f.u32().unwrap_or(0);
    Some(InitRequest {
        major,
        minor,
        max_readahead,
        flags: u64::from(high) << 32 | u64::from(low),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend(
            u32::try_from(HEADER_LEN + body.len())
                .unwrap()
                .to_ne_bytes(),
        );
        message.extend(opcode.to_ne_bytes());
        message.extend(7u64.to_ne_bytes());
        message.extend(1u64.to_ne_bytes());
        for id in [1000u32, 100, 4242, 0] {
            message.extend(id.to_ne_bytes());
        }
        message.extend(body);
        message
    }

    #[test]
    fn names_end_at_their_nul() {
        let bytes = message(6, b"link\0../target\0");
        let (header, request) = parse(&bytes).unwrap();
        assert_eq!(
            (header.unique, header.node, header.uid, header.pid),
            (7, 1, 1000, 4242)
        );
        assert_eq!(
            request,
            Request::Symlink {
                name: b"link",
                target: b"../target"
            }
        );
    }

    #[test]
    fn every_cut_of_a_message_is_refused_and_none_panics() {
        let mut write = Vec::new();
        write.extend(9u64.to_ne_bytes());
        write.extend(4096u64.to_ne_bytes());
        write.extend(3u32.to_ne_bytes());
        write.extend(4u32.to_ne_bytes());
        write.extend([0; 8]);
        write.extend((libc::O_WRONLY | libc::O_SYNC).to_ne_bytes());
        write.extend([0; 4]);
        write.extend(b"abc");
        let whole = message(16, &write);
        assert_eq!(
            parse(&whole).unwrap().1,
            Request::Write {
                handle: 9,
                offset: 4096,
                flags: WRITE_FLAGS,
                open_flags: libc::O_WRONLY | libc::O_SYNC,
                data: b"abc"
            }
        );
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            assert!(parse(&cut).is_err(), "declared length is not there");
            if len >= 4 {
                cut[..4].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
                assert!(parse(&cut).is_err(), "fields are not there");
            }
        }
    }

    const WRITE_FLAGS: u32 = super::super::WRITE_KILL_PRIVILEGES;

    #[test]
    fn random_messages_do_not_panic() {
        let mut rng = perigee_types::Rng::new(3);
        for opcode in 0..60 {
            for _ in 0..200 {
                let body: Vec<u8> = (0..rng.below(120)).map(|_| rng.below(256) as u8).collect();
                drop(parse(&message(opcode, &body)));
            }
        }
    }

    #[test]
    fn a_forget_batch_that_promises_more_than_it_has_is_refused() {
        let mut body = Vec::new();
        body.extend(u32::MAX.to_ne_bytes());
        body.extend([0; 36]);
        assert!(parse(&message(42, &body)).is_err());
    }

    #[test]
    fn fuzz_requests() {
        // Every operation that there is, with a body that is long enough for each, and one with names.
        let bodies = [
            vec![0; 200],
            [vec![1; 64], b"name\0other\0".to_vec()].concat(),
            b"a\0b\0".to_vec(),
        ];
        let all = (1..=60).flat_map(|opcode| bodies.iter().map(move |body| message(opcode, body)));
        let examples: Vec<Vec<u8>> = all.filter(|bytes| parse(bytes).is_ok()).collect();
        assert!(examples.len() > 60);
        perigee_fuzz::assault("gateway::Request", &examples, |bytes| {
            let mut bytes = bytes.to_vec();
            // The declared length is right mostly: with a wrong one nothing more is read.
            if bytes.len() > 4 && bytes[4] & 0x80 == 0 {
                let len = u32::try_from(bytes.len()).unwrap();
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
            }
            parse(&bytes).into()
        });
    }
}
