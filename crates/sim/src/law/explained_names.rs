//! Law 4 for names, as the sessions see it: their answers could have come from one namespace that does one thing after
//! the other, whatever they know of containers and transactions.
//!
//! What was answered at home may be lost with the host while its record is not committed: such a change has an unknown
//! outcome, and what was only read there says nothing.

use super::explained::{BUDGET, LAW};
use crate::clock::Drift;
use crate::names::history::{Executed, Heard, Told};
use crate::names::session::changes;
use crate::names::world::Names;
use perigee_history::model::names::{self, Answer, Inode, Move, Place};
use perigee_history::{Client, Recorder, Verdict, check as search};
use perigee_meta::{Op, RenameMode, Reply};
use perigee_types::{Errno, InodeId, OpId, SessionId};
use std::collections::BTreeMap;

type Call = (SessionId, OpId);

/// Checked at the end.
pub(crate) fn check(world: &mut Names) {
    if world.drift == Drift::Beyond {
        // What a host keeps under a lease may be old then.
        return;
    }
    let root = InodeId::ROOT.0;
    let calls = record(world).close();
    if let Verdict::Impossible(stuck) = search(&names::Names { root }, &calls, BUDGET) {
        world.accuse(LAW, stuck.to_string());
    }
}

fn record(world: &Names) -> Recorder<names::Names> {
    let history = &world.history;
    let mut told: BTreeMap<Call, &Told> = BTreeMap::new();
    for one in &history.told {
        told.insert((one.session, one.op), one);
    }
    let mut done: BTreeMap<Call, Vec<&Executed>> = BTreeMap::new();
    for one in &history.executed {
        done.entry((one.session, one.op)).or_default().push(one);
    }
    let (mut recorder, mut open) = (Recorder::default(), BTreeMap::new());
    for heard in &history.heard {
        match heard {
            Heard::Began(session, op, operation) => {
                let call = (*session, *op);
                let done = done.get(&call).map_or(&[][..], Vec::as_slice);
                let outcome = outcome(world, operation, told.get(&call).copied(), done);
                let made = made(told.get(&call).copied(), done);
                let never = matches!(
                    (operation, &outcome),
                    (Op::Make { .. }, Some(Outcome::Unknown))
                ) && made.is_none();
                let asked = asked_for(operation, made).filter(|_| !never);
                if let (Some(outcome), Some(asked)) = (outcome, asked) {
                    let ticket = recorder.invoke(Client(session.node().0), asked);
                    open.insert(call, (ticket, outcome));
                }
            }
            Heard::Told(index) => {
                let one = &history.told[*index];
                if let Some((ticket, Outcome::Answered(answer))) =
                    open.remove(&(one.session, one.op))
                {
                    recorder.answer(ticket, answer);
                }
            }
        }
    }
    recorder
}

enum Outcome {
    Answered(Answer),
    Unknown,
}

/// How a call ended. `None`: it says nothing, and has done nothing that it could be asked about.
fn outcome(
    world: &Names,
    operation: &Op,
    told: Option<&Told>,
    done: &[&Executed],
) -> Option<Outcome> {
    let doubtful = changes(operation).then_some(Outcome::Unknown);
    let Some(told) = told else {
        return doubtful;
    };
    let stays = |done: &&Executed| {
        done.result == told.result && world.history.is_committed(done.container, done.depends)
    };
    if told.home && !done.iter().any(stays) {
        return doubtful;
    }
    let answer = match (&told.result, operation) {
        (Ok(Reply::Entry(attr)), Op::Lookup { .. }) => Answer::Is(attr.inode.0),
        (Ok(Reply::Leads(inode)), Op::Lookup { .. }) => Answer::Is(inode.0),
        (Ok(Reply::Absent), _) | (Err(Errno::ENOENT), Op::Lookup { .. }) => Answer::Missing,
        (Ok(_), _) => Answer::Done,
        (Err(Errno::EIO), _) => return doubtful,
        // Of a link it may be the inode that is gone.
        (Err(Errno::ENOENT | Errno::ESTALE), Op::Link { .. } | Op::Undelete { .. }) => return None,
        (Err(Errno::ENOENT | Errno::ESTALE), _) => Answer::Missing,
        (Err(Errno::EEXIST), _) => Answer::Exists,
        (Err(Errno::ENOTEMPTY), _) => Answer::NotEmpty,
        (Err(_), _) => return None,
    };
    Some(Outcome::Answered(answer))
}

/// The inode that a call has made, as far as anybody was shown it.
fn made(told: Option<&Told>, done: &[&Executed]) -> Option<Inode> {
    let of = |result: &Result<Reply, Errno>| match result {
        Ok(Reply::Created { attr, .. }) => Some(attr.inode.0),
        _ => None,
    };
    let told = told.and_then(|told| of(&told.result));
    told.or_else(|| done.iter().rev().find_map(|done| of(&done.result)))
}

/// What the model is asked for. `None`: it has no such operation.
fn asked_for(operation: &Op, made: Option<Inode>) -> Option<names::Op> {
    let place = |dir: &InodeId, name: &[u8]| Place {
        dir: dir.0,
        name: name.to_vec(),
    };
    Some(match operation {
        // One that was refused is asked about the name alone.
        Op::Make { parent, name, .. } => {
            names::Op::Add(place(parent, name), made.unwrap_or(Inode::MAX))
        }
        Op::Link {
            inode,
            new_parent,
            new_name,
            ..
        } => names::Op::Add(place(new_parent, new_name), inode.0),
        Op::Undelete {
            id,
            new_parent,
            new_name,
            ..
        } => names::Op::Add(place(new_parent, new_name), id.inode.0),
        Op::Unlink { parent, name, .. } | Op::Rmdir { parent, name, .. } => {
            names::Op::Remove(place(parent, name))
        }
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
            ..
        } => {
            let how = match mode {
                RenameMode::Replace => Move::Replace,
                RenameMode::NoReplace => Move::NoReplace,
                RenameMode::Exchange => Move::Exchange,
            };
            names::Op::Rename(place(parent, name), place(new_parent, new_name), how)
        }
        Op::Lookup { parent, name } => names::Op::Find(place(parent, name)),
        _ => return None,
    })
}
