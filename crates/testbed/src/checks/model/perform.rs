//! Performing one operation on one directory, with an outcome that can be compared.

use super::op::Op;
use crate::pattern;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// What a caller gets: bytes, or an errno.
pub(super) type Outcome = Result<Vec<u8>, i32>;

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

pub(super) fn perform(op: &Op, root: &Path) -> Outcome {
    let at = |relative: &str| root.join(relative);
    let done = |outcome: Result<(), Errno>| match outcome {
        Ok(()) => Ok(Vec::new()),
        Err(error) => Err(error.raw_os_error()),
    };
    match op {
        Op::Create { .. }
        | Op::Write { .. }
        | Op::Append { .. }
        | Op::Truncate { .. }
        | Op::Punch { .. }
        | Op::Allocate { .. }
        | Op::Copy { .. }
        | Op::Read { .. } => perform_on_data(op, root).map_err(errno),
        Op::Mkdir { path, mode } => done(rustix::fs::mkdir(at(path), (*mode).into())),
        Op::Rmdir { path } => done(rustix::fs::rmdir(at(path))),
        Op::Unlink { path } => done(rustix::fs::unlink(at(path))),
        Op::Rename { from, to, flags } => done(rustix::fs::renameat_with(
            CWD,
            at(from),
            CWD,
            at(to),
            *flags,
        )),
        Op::Link { from, to } => done(rustix::fs::linkat(
            CWD,
            at(from),
            CWD,
            at(to),
            AtFlags::empty(),
        )),
        Op::Symlink { target, path } => done(rustix::fs::symlink(target.as_str(), at(path))),
        Op::Readlink { path } => fs::read_link(at(path))
            .map(|target| target.into_os_string().into_encoded_bytes())
            .map_err(errno),
        Op::Chmod { path, mode } => not_through_links(&at(path))
            .and_then(|()| done(rustix::fs::chmod(at(path), (*mode).into()))),
        Op::Chown { path, uid, gid } => {
            std::os::unix::fs::lchown(at(path), Some(*uid), Some(*gid)).map_err(errno)?;
            Ok(Vec::new())
        }
        Op::SetXattr {
            path,
            name,
            length,
            flags,
        } => {
            let value = vec![(*length % 251) as u8; *length];
            done(rustix::fs::lsetxattr(at(path), *name, &value, *flags))
        }
        Op::GetXattr { path, name } => {
            let mut value = Vec::with_capacity(65_536);
            let room = rustix::buffer::spare_capacity(&mut value);
            let got = rustix::fs::lgetxattr(at(path), *name, room);
            got.map(|_| value).map_err(Errno::raw_os_error)
        }
        Op::RemoveXattr { path, name } => done(rustix::fs::lremovexattr(at(path), *name)),
        Op::List { path } => list(&at(path)).map_err(errno),
        Op::Fifo { path } => {
            let kind = rustix::fs::FileType::Fifo;
            done(rustix::fs::mknodat(CWD, at(path), kind, 0o640.into(), 0))
        }
    }
}

/// Symlinks here are relative to their directory and lead anywhere; following one could leave the
/// tree's own names, so data operations refuse them alike on all sides.
fn not_through_links(path: &Path) -> Result<(), i32> {
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_symlink() => Err(libc::ELOOP),
        _ => Ok(()),
    }
}

fn perform_on_data(op: &Op, root: &Path) -> io::Result<Vec<u8>> {
    // NONBLOCK, since one of the names may be a FIFO.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let open = |path: &str, options: &mut fs::OpenOptions| {
        options.custom_flags(flags).open(root.join(path))
    };
    let mut options = fs::OpenOptions::new();
    match op {
        Op::Create {
            path,
            mode,
            exclusive,
        } => {
            options
                .write(true)
                .create(true)
                .create_new(*exclusive)
                .mode(*mode);
            open(path, &mut options)?;
        }
        Op::Write {
            path,
            offset,
            length,
            content,
        } => {
            let file = open(path, options.write(true))?;
            file.write_all_at(&bytes(*content, *length), *offset)?;
        }
        Op::Append {
            path,
            length,
            content,
        } => {
            let mut file = open(path, options.append(true))?;
            io::Write::write_all(&mut file, &bytes(*content, *length))?;
        }
        Op::Truncate { path, size } => open(path, options.write(true))?.set_len(*size)?,
        Op::Punch {
            path,
            offset,
            length,
        } => {
            let file = open(path, options.write(true))?;
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, how, *offset, *length)?;
        }
        Op::Allocate {
            path,
            offset,
            length,
        } => {
            let file = open(path, options.write(true))?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), *offset, *length)?;
        }
        Op::Copy {
            from,
            to,
            offset,
            length,
        } => {
            let source = open(from, options.read(true))?;
            let target = open(to, fs::OpenOptions::new().write(true))?;
            return copy_range(&source, &target, *offset, *length);
        }
        Op::Read {
            path,
            offset,
            length,
        } => {
            let file = open(path, options.read(true))?;
            return read_range(&file, *offset, *length);
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(Vec::new())
}

/// Copies until the length is reached or the source ends: where one call stops is each file
/// system's own choice.
fn copy_range(
    source: &fs::File,
    target: &fs::File,
    offset: u64,
    length: usize,
) -> io::Result<Vec<u8>> {
    let (mut from, mut to) = (0, offset);
    while (from as usize) < length {
        let want = length - from as usize;
        let got =
            rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), want)?;
        if got == 0 {
            break;
        }
    }
    Ok(from.to_le_bytes().to_vec())
}

fn read_range(file: &fs::File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            got => filled += got,
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

fn bytes(content: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    pattern::fill(content, 0, &mut buffer);
    buffer
}

/// The names of a directory with their types, sorted.
pub(super) fn list(path: &Path) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        lines.push(format!(
            "{} {:?}\n",
            entry.file_name().display(),
            entry.file_type()?
        ));
    }
    lines.sort();
    Ok(lines.concat().into_bytes())
}
