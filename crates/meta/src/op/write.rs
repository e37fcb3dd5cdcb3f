//! `write` and `fallocate`, as far as the record of the file is concerned.

use crate::attr::Kind;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::op::setattr::{drop_capability, drop_privileges};
use crate::op::{Allocate, Reply, Touched, stripe};
use crate::record::InodeRecord;
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{ByteRange, DataCommand, Errno, InodeId, WallTime};

/// The parts of [`crate::Op::Wrote`] beside the inode.
pub(crate) struct Wrote<'a> {
    pub(crate) ranges: &'a [ByteRange],
    pub(crate) size_at_least: Option<u64>,
    pub(crate) mtime: WallTime,
    pub(crate) kill_privileges: bool,
}

pub(crate) fn wrote(
    draft: &mut Draft<'_>,
    inode: InodeId,
    wrote: &Wrote<'_>,
) -> Result<Reply, Refusal> {
    let mut record = file(draft, inode)?;
    let mut size = record.size.max(wrote.size_at_least.unwrap_or(0));
    for range in wrote.ranges.iter().filter(|range| !range.is_empty()) {
        // No byte lies beyond the end of its file.
        size = size.max(range.end);
        let range = *range;
        draft.command(DataCommand::Written { inode, range });
    }
    if size > FILE_LEN_MAX {
        return Err(Errno::EFBIG.into());
    }
    record.size = size;
    record.mtime = wrote.mtime;
    // The write happened then, not now: a program that has seen that time shall not see it change.
    record.ctime = record.ctime.max(wrote.mtime);
    if wrote.kill_privileges {
        drop_privileges(&mut record);
    }
    drop_capability(draft, inode, &mut record)?;
    draft.set_inode(inode, record);
    draft.touch(Touched::Data(inode));
    Ok(Reply::Attr(record.attr(inode)))
}

pub(crate) fn allocate(
    draft: &mut Draft<'_>,
    inode: InodeId,
    range: ByteRange,
    how: Allocate,
) -> Result<Reply, Refusal> {
    let mut record = file(draft, inode)?;
    if range.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    if range.end > FILE_LEN_MAX {
        return Err(Errno::EFBIG.into());
    }
    let (grows, zeros) = match how {
        Allocate::Extend => (true, false),
        Allocate::KeepSize => (false, false),
        Allocate::PunchHole | Allocate::ZeroRangeKeepSize => (false, true),
        Allocate::ZeroRange => (true, true),
    };
    let before = ByteRange::new(0, record.size);
    if grows && range.end > record.size {
        stripe::on_resize(&mut record, range.end)?;
        record.size = range.end;
        let size = range.end;
        draft.command(DataCommand::Resized { inode, size });
        draft.touch(Touched::Data(inode));
    }
    // What the file gained by growing is zeros already.
    if zeros && let Some(range) = range.intersect(before) {
        draft.command(DataCommand::Punched { inode, range });
        draft.touch(Touched::Data(inode));
    }
    record.mtime = draft.now();
    record.ctime = draft.now();
    draft.set_inode(inode, record);
    Ok(Reply::Attr(record.attr(inode)))
}

fn file(draft: &mut Draft<'_>, inode: InodeId) -> Result<InodeRecord, Refusal> {
    let record = draft.inode(inode)?;
    match record.kind {
        Kind::File => Ok(record),
        Kind::Directory => Err(Errno::EISDIR.into()),
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            Err(Errno::ENODEV.into())
        }
    }
}
