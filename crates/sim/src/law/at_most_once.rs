//! An operation takes effect at most once; one that was answered took effect as it was told, and one that was refused did
//! not.

use crate::names::history::{Executed, Told};
use crate::names::session::changes;
use crate::names::world::Names;
use perigee_types::{Errno, OpId, SessionId};
use std::collections::BTreeMap;

const LAW: &str = "at most once";

type Done<'a> = BTreeMap<(SessionId, OpId), &'a Executed>;

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    let what = find(world);
    if let Some(what) = what {
        world.accuse(LAW, what);
    }
}

fn find(world: &Names) -> Option<String> {
    let history = &world.history;
    let mut done: Done<'_> = BTreeMap::new();
    for executed in &history.executed {
        let committed = |version| history.is_committed(executed.container, version);
        if !executed.record.is_some_and(committed) {
            continue;
        }
        let name = (executed.session, executed.op);
        if let Some(first) = done.insert(name, executed) {
            let (session, op) = name;
            return Some(format!(
                "{session} {op} took effect twice: {:?}, then {:?}",
                first.result, executed.result
            ));
        }
    }
    let changed = history.told.iter().filter(|told| changes(&told.operation));
    changed.into_iter().find_map(|told| {
        let found = done.get(&(told.session, told.op)).copied();
        let what = contradiction(world, told, found)?;
        Some(format!("{} {} {what}", told.session, told.op))
    })
}

fn contradiction(world: &Names, told: &Told, done: Option<&Executed>) -> Option<String> {
    match (&told.result, done) {
        (Ok(_), Some(done)) if done.result == told.result => None,
        (Ok(_), Some(done)) => Some(format!(
            "was told {:?}, and did {:?}",
            told.result, done.result
        )),
        (Ok(_), None) => {
            let same = |executed: &&Executed| {
                (executed.session, executed.op) == (told.session, told.op)
                    && executed.result == told.result
            };
            // Without effects, or lost with the host whose programs alone had seen it.
            let mut all = world.history.executed.iter().filter(same);
            let excused = all.any(|executed| executed.record.is_none() || told.home);
            (!excused).then(|| format!("was told {:?}, and is lost", told.result))
        }
        // The owner has given up: nobody can say.
        (Err(Errno::EIO), _) | (Err(_), None) => None,
        (Err(errno), Some(done)) => Some(format!("was told {errno}, and did {:?}", done.result)),
    }
}
