//! What changes of a striped file and its columns. See [`crate::stripe`].

use crate::attr::Kind;
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{Key, Lane};
use crate::op::remove::mark_orphan;
use crate::op::setattr::{drop_capability, drop_privileges};
use crate::op::{Allocate, Reply, Touched, WriteAt, write};
use crate::record::{self, InodeRecord};
use crate::stripe::{Cuts, Layout, Striping, admit_read};
use perigee_types::limits::FILE_LEN_MAX;
use perigee_types::{ByteRange, ContainerId, DataCommand, Errno, InodeId, StripeWidth};
use std::collections::BTreeSet;

/// Nobody but the daemon has to do with a column.
const COLUMN_MODE: u32 = 0o600;

/// The parts of [`crate::Op::Claim`] beside the inode.
pub(crate) struct Claim {
    pub(crate) at: WriteAt,
    pub(crate) len: u64,
    pub(crate) kill_privileges: bool,
}

fn striped(draft: &mut Draft<'_>, inode: InodeId) -> Result<(InodeRecord, Striping), Refusal> {
    let record = draft.inode(inode)?;
    match record.layout {
        Layout::Striped(striping) => Ok((record, striping)),
        Layout::Whole | Layout::Column { .. } => Err(Errno::EINVAL.into()),
    }
}

/// The columns of a striped file but the first.
fn read(draft: &mut Draft<'_>, inode: InodeId) -> Result<Vec<InodeId>, Refusal> {
    let container = inode.container();
    let key = Key::Columns(inode.index()).encode();
    match draft.get(container, &key)? {
        Some(value) => record::decode_columns(container, &key, &value),
        None => Err(record::corrupt(
            container,
            &key,
            "a striped file has no columns",
        )),
    }
}

pub(crate) fn columns(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    let (record, striping) = striped(draft, inode)?;
    let columns = match striping.made {
        true => read(draft, inode)?,
        false => Vec::new(),
    };
    let attr = record.attr(inode);
    Ok(Reply::Columns { attr, columns })
}

pub(crate) fn make_columns(
    draft: &mut Draft<'_>,
    inode: InodeId,
    within: &[ContainerId],
) -> Result<Reply, Refusal> {
    let (mut record, striping) = striped(draft, inode)?;
    if striping.made {
        return columns(draft, inode);
    }
    let apart: BTreeSet<&ContainerId> = within.iter().collect();
    let narrower = u8::try_from(within.len() + 1)
        .ok()
        .and_then(StripeWidth::of)
        .filter(|width| *width <= striping.width)
        .filter(|_| apart.len() == within.len() && !apart.contains(&inode.container()));
    let width = narrower.ok_or(Errno::EINVAL)?;
    let mut made = Vec::with_capacity(within.len());
    for container in within {
        let column = InodeRecord {
            layout: Layout::Column {
                of: inode,
                cuts: striping.cuts,
            },
            ..InodeRecord::new(Kind::File, COLUMN_MODE, record.uid, record.gid, draft.now())
        };
        made.push(draft.make_inode(*container, Lane::Away, column)?);
    }
    let key = Key::Columns(inode.index()).encode();
    draft.put(inode.container(), key, record::encode_columns(&made));
    record.layout = Layout::Striped(Striping {
        width,
        made: true,
        ..striping
    });
    // Whoever has read a hole where they are keeps that as content of the file, and hears of changes to columns from now on.
    draft.touch(Touched::Data(inode));
    draft.set_inode(inode, record);
    let attr = record.attr(inode);
    let columns = made;
    Ok(Reply::Columns { attr, columns })
}

pub(crate) fn claim(
    draft: &mut Draft<'_>,
    inode: InodeId,
    claim: &Claim,
) -> Result<Reply, Refusal> {
    let (mut record, striping) = striped(draft, inode)?;
    let start = match claim.at {
        WriteAt::Offset(offset) => offset,
        WriteAt::End => record.size,
    };
    let end = start
        .checked_add(claim.len)
        .filter(|end| *end <= FILE_LEN_MAX);
    let end = end.ok_or(Errno::EFBIG)?;
    if claim.len > 0 && striping.cutting.is_some_and(|size| end > size) {
        return Err(Errno::EAGAIN.into());
    }
    if claim.len > 0 && end > record.size {
        record.size = end;
        draft.command(DataCommand::Resized { inode, size: end });
        draft.touch(Touched::Data(inode));
    }
    record.mtime = draft.now();
    record.ctime = draft.now();
    if claim.kill_privileges {
        drop_privileges(&mut record);
    }
    drop_capability(draft, inode, &mut record)?;
    draft.set_inode(inode, record);
    Ok(Reply::Claimed {
        range: ByteRange::new(start, end),
        attr: record.attr(inode),
    })
}

/// What becomes of a wish for another length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resize {
    /// The file has it.
    Now,
    /// It has it when its columns have been cut.
    AfterColumns,
}

/// A file is to have another length, or is used up to there. A cut of a striped one begins here, and whatever goes beyond the end of
/// a cut waits for that.
pub(crate) fn on_resize(record: &mut InodeRecord, size: u64) -> Result<Resize, Refusal> {
    let Layout::Striped(striping) = &mut record.layout else {
        return Ok(Resize::Now);
    };
    if size == record.size {
        return Ok(Resize::Now);
    }
    if striping.cutting.is_some() {
        return Err(Errno::EAGAIN.into());
    }
    if size > record.size {
        return Ok(Resize::Now);
    }
    // Also where there is no column yet: whoever makes them may have been given a place before.
    striping.cuts = striping.cuts.next();
    if !striping.made {
        return Ok(Resize::Now);
    }
    striping.cutting = Some(size);
    Ok(Resize::AfterColumns)
}

/// Whether a cut of a file has not come to its end: until then nobody is granted a lock.
pub(crate) fn is_being_cut(record: &InodeRecord) -> bool {
    let striping = record.layout.striping();
    striping.is_some_and(|striping| striping.cutting.is_some())
}

/// Locks of a session ended that it did not give back: what it has on its way to columns must not come after the lock of somebody
/// else. Others go on writing, and make the file longer, meanwhile. The session may know of a cut that is under way, so that one
/// begins anew.
pub(crate) fn fence(draft: &mut Draft<'_>, inode: InodeId) -> Result<(), Refusal> {
    let Some(mut record) = draft.find_inode(inode)? else {
        return Ok(());
    };
    if let Layout::Striped(striping) = &mut record.layout
        && striping.made
    {
        striping.cuts = striping.cuts.next_fence();
        striping.cutting.get_or_insert(FILE_LEN_MAX);
        draft.set_inode(inode, record);
    }
    Ok(())
}

pub(crate) fn cut_column(
    draft: &mut Draft<'_>,
    inode: InodeId,
    cut: Cuts,
    size: u64,
) -> Result<Reply, Refusal> {
    let mut record = draft.inode(inode)?;
    let Layout::Column { of, cuts } = record.layout else {
        return Err(Errno::EINVAL.into());
    };
    if cuts < cut {
        record.layout = Layout::Column { of, cuts: cut };
        if size < record.size {
            record.size = size;
            draft.command(DataCommand::Resized { inode, size });
        }
        // Also where nothing is cut: who has heard of no cut reads what it may keep.
        draft.touch(Touched::Data(inode));
        draft.set_inode(inode, record);
    }
    Ok(Reply::Attr(record.attr(inode)))
}

pub(crate) fn punch_column(
    draft: &mut Draft<'_>,
    inode: InodeId,
    cuts: Cuts,
    range: ByteRange,
) -> Result<Reply, Refusal> {
    admit_read(draft.inode(inode)?.layout, cuts)?;
    write::allocate(draft, inode, range, Allocate::PunchHole)
}

pub(crate) fn end_cut(
    draft: &mut Draft<'_>,
    inode: InodeId,
    cuts: Cuts,
    size: u64,
) -> Result<Reply, Refusal> {
    let (mut record, striping) = striped(draft, inode)?;
    if striping.cuts == cuts && striping.cutting == Some(size) {
        if size < record.size {
            record.size = size;
            draft.command(DataCommand::Resized { inode, size });
            draft.touch(Touched::Data(inode));
        }
        record.layout = Layout::Striped(Striping {
            cutting: None,
            ..striping
        });
        draft.set_inode(inode, record);
    }
    Ok(Reply::Attr(record.attr(inode)))
}

/// A file that has no name is about to be removed for good: its columns go, each by the owner of its container.
pub(crate) fn drop_columns(draft: &mut Draft<'_>, inode: InodeId) -> Result<Reply, Refusal> {
    let (mut record, striping) = striped(draft, inode)?;
    let orphan = Key::Orphan(inode.index()).encode();
    let waits = record.nlink == 0 && draft.get(inode.container(), &orphan)?.is_some();
    if !waits || !striping.made {
        return Ok(Reply::Attr(record.attr(inode)));
    }
    for column in read(draft, inode)? {
        if let Some(mut record) = draft.find_inode(column)? {
            record.nlink = 0;
            draft.set_inode(column, record);
            mark_orphan(draft, column);
        }
    }
    draft.delete(inode.container(), Key::Columns(inode.index()).encode());
    record.layout = Layout::Striped(Striping {
        made: false,
        cutting: None,
        ..striping
    });
    draft.set_inode(inode, record);
    Ok(Reply::Attr(record.attr(inode)))
}
