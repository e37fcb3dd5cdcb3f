//! What was removed under the policy can be brought back as it was until its time, and after it, it is gone.
//!
//! Known from the operations in their order alone: whatever lost its last name is kept, whatever was brought back
//! or purged is not, nothing else is, and nothing is purged early.

use crate::names::Mark;
use crate::names::history::Executed;
use crate::names::world::Names;
use perigee_meta::memory::MemView;
use perigee_meta::{Attr, Context, Key, Kind, Op, Reply, TrashId, execute};
use perigee_types::InodeId;
use std::collections::BTreeMap;

const LAW: &str = "kept";

/// How long after its time something may be there still: owners look for it now and then.
const LATE_SECS: i64 = 8;

/// What is kept, and what it was like.
type Kept = BTreeMap<TrashId, Attr>;

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    if !world.trash_keeps() {
        return;
    }
    let mut model = MemView::new();
    for (container, rows) in &world.first_rows {
        model.states.insert(*container, rows.clone());
    }
    let mut kept = Kept::new();
    let mut marks = Vec::new();
    let mut what = None;
    for executed in world.history.in_order() {
        if executed.record.is_none()
            || !world
                .history
                .is_committed(executed.container, executed.depends)
        {
            continue;
        }
        what = what.or_else(|| follow(executed, &mut model, &mut kept, &mut marks));
    }
    for mark in marks {
        world.note(mark);
    }
    let what = what.or_else(|| compare(world, kept));
    if let Some(what) = what {
        world.accuse(LAW, what);
    }
}

/// Has an operation happen to the model, and to what is kept by it.
fn follow(
    executed: &Executed,
    model: &mut MemView,
    kept: &mut Kept,
    marks: &mut Vec<Mark>,
) -> Option<String> {
    let losing = losing(&executed.operation, &executed.result, model);
    if let (Some(attr), Some(until)) = (losing, executed.context.keep_until) {
        marks.push(Mark::Trashed);
        kept.insert(TrashId::new(until, attr.inode), attr);
    }
    let mut wrong = None;
    match (&executed.operation, &executed.result) {
        (Op::Undelete { id, new_parent, .. }, Ok(Reply::Entry(attr))) => {
            marks.push(Mark::BroughtBack);
            if new_parent.container() != id.inode.container() {
                marks.push(Mark::BroughtAcross);
            }
            let was = kept.remove(id);
            if was.map(looks) != Some(looks(*attr)) || attr.nlink != 1 {
                wrong = Some(format!("{} came back as {attr:?}, was {was:?}", id.inode));
            }
        }
        (Op::Purge { entries, .. }, Ok(_)) => {
            let early = entries.iter().find(|id| !id.is_due(executed.context.now));
            wrong = early.map(|id| format!("{} was purged before its time", id.inode));
            for id in entries {
                kept.remove(id);
            }
        }
        _ => {}
    }
    if let Ok(outcome) = execute(&executed.operation, &executed.context, model) {
        model.apply_all(&outcome.batches);
    }
    wrong
}

/// What loses its last name by an operation that was executed, and stays if it is kept.
fn losing(
    operation: &Op,
    result: &Result<Reply, perigee_types::Errno>,
    model: &mut MemView,
) -> Option<Attr> {
    let inode = match (operation, result) {
        (Op::Unlink { .. }, Ok(Reply::Removed { inode, .. })) => *inode,
        (Op::Rename { .. }, Ok(Reply::Renamed { replaced, .. })) => (*replaced)?,
        _ => return None,
    };
    let attr = attr(model, inode)?;
    (attr.nlink == 1 && attr.kind != Kind::Directory).then_some(attr)
}

fn attr(model: &mut MemView, inode: InodeId) -> Option<Attr> {
    let op = Op::GetAttr { inode };
    match execute(&op, &Context::default(), model).map(|found| found.reply) {
        Ok(Reply::Attr(attr)) => Some(attr),
        _ => None,
    }
}

/// What must be as it was.
fn looks(attr: Attr) -> Attr {
    Attr {
        nlink: 1,
        ctime: perigee_types::WallTime::default(),
        ..attr
    }
}

/// The containers hold what is kept, and nothing after its time.
fn compare(world: &Names, kept: Kept) -> Option<String> {
    let mut left = kept;
    let over = world.wall(-LATE_SECS);
    for (container, rows) in &world.history.rows {
        for key in rows.keys() {
            let Some(Key::Trash(until_ms, index)) = Key::decode(key) else {
                continue;
            };
            let inode = InodeId::new(*container, index);
            let id = TrashId { until_ms, inode };
            if id.is_due(over) {
                return Some(format!("{inode} is kept long after its time"));
            }
            // Rows of directories are of what they were like.
            left.remove(&id);
        }
    }
    let lost = left.keys().next()?;
    Some(format!("{} is not kept any more", lost.inode))
}
