//! Operations look as if they had run one after the other, in the order of their effects: run so once more, on one state
//! of all containers, each gives the same answer, and all of them the same state.

use crate::clock::Drift;
use crate::names::history::Executed;
use crate::names::host::Rows;
use crate::names::world::Names;
use perigee_meta::memory::MemView;
use perigee_meta::{Key, Op, Refusal, execute};

const LAW: &str = "as if alone";

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    let mut model = MemView::new();
    for (container, rows) in &world.first_rows {
        model.states.insert(*container, rows.clone());
    }
    let mut what = None;
    for executed in world.history.in_order() {
        what = what.or_else(|| replay(world, executed, &mut model));
    }
    for (container, rows) in &world.history.rows {
        let expected = model.states.get(container).map(names);
        if what.is_none() && expected.as_ref() != Some(&names(rows)) {
            what = Some(format!(
                "{container} has another state than its operations make"
            ));
        }
    }
    if let Some(what) = what {
        world.accuse(LAW, what);
    }
}

/// The rows that are about names, not about who asked or who is in doubt.
fn names(rows: &Rows) -> Rows {
    let kept = rows.iter().filter(|(key, _)| {
        !matches!(
            Key::decode(key),
            Some(
                Key::Dedup(..)
                    | Key::Intent(_)
                    | Key::Decision(_)
                    | Key::Checkpoint(_)
                    | Key::Kept(..)
            )
        )
    });
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn replay(world: &Names, executed: &Executed, model: &mut MemView) -> Option<String> {
    let (history, container) = (&world.history, executed.container);
    if !history.is_committed(container, executed.depends) {
        return None;
    }
    if world.drift == Drift::Beyond && executed.record.is_none() {
        // An owner whose lease ended unnoticed has answered from an old state, and changed nothing.
        return None;
    }
    if matches!(executed.operation, Op::Trash { .. }) {
        // A list beside a removal that has a part elsewhere may lack it: nobody was told of that yet.
        return None;
    }
    let ran = execute(&executed.operation, &executed.context, model);
    let result = match &ran {
        Ok(outcome) => Ok(outcome.reply.clone()),
        Err(Refusal::Errno(errno)) => Err(*errno),
        Err(refusal) => return Some(format!("{}: {refusal}", executed.op)),
    };
    if result != executed.result {
        return Some(format!(
            "{} {} {:?} gave {:?}, and alone it gives {result:?}",
            executed.session, executed.op, executed.operation, executed.result
        ));
    }
    if let Ok(outcome) = ran
        && executed.record.is_some()
    {
        model.apply_all(&outcome.batches);
    }
    None
}
