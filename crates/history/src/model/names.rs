//! Names in directories: made, moved, removed, looked up.

use super::{Model, Told};
use crate::record::{CallOf, End, History};
use std::collections::BTreeMap;

/// A namespace of a root directory, and of directories that were made.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The directory that is there at first, empty, and always.
    pub root: Inode,
}

/// The number of a file or directory; no other one ever has it.
pub type Inode = u64;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The directory.
    pub dir: Inode,
    /// The name in it.
    pub name: Vec<u8>,
}

/// How a name moves to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// What was there before has that name no more.
    Replace,
    /// Nothing may be there: else [`Answer::Exists`].
    NoReplace,
    /// Both change places.
    Exchange,
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Gives an inode this name: [`Answer::Done`], [`Answer::Exists`], or [`Answer::Missing`] of the directory.
    Add(Place, Inode),
    /// Removes a name: [`Answer::Done`], [`Answer::Missing`] or [`Answer::NotEmpty`].
    Remove(Place),
    /// Moves a name: [`Answer::Done`], [`Answer::Missing`] or one of the mode.
    Rename(Place, Place, Move),
    /// [`Answer::Is`] or [`Answer::Missing`].
    Find(Place),
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// The name leads there.
    Is(Inode),
    /// There is no such name.
    Missing,
    /// There is such a name.
    Exists,
    /// The name is that of a directory with names in it.
    NotEmpty,
    /// Done, or nothing: see [`History::doubt_renames`].
    DoneOrSame,
}

/// What each name leads to.
pub type State = BTreeMap<Place, Inode>;

impl Model for Names {
    type Object = ();
    type Op = Op;
    type Answer = Answer;
    type State = State;

    fn object(&self, _: &Op) {}

    fn first(&self, (): &()) -> State {
        State::new()
    }

    fn step(&self, state: &State, op: &Op, told: Told<'_, Answer>) -> Option<State> {
        match told {
            Told::Answer(Answer::Done | Answer::DoneOrSame) | Told::Nothing => {
                self.change(state, op)
            }
            Told::Answer(answer) => self.says(state, op, *answer).then(|| state.clone()),
        }
    }

    fn instead(&self, state: &State, op: &Op, answer: &Answer) -> Option<State> {
        let Op::Rename(_, to, _) = op else {
            return None;
        };
        let doubtful = *answer == Answer::DoneOrSame;
        (doubtful && state.contains_key(to)).then(|| state.clone())
    }
}

impl Op {
    /// Whether the name may lead elsewhere, or nowhere, once this is done.
    fn takes_from(&self, place: &Place) -> bool {
        match self {
            Self::Add(..) | Self::Find(_) => false,
            Self::Remove(at) => at == place,
            Self::Rename(from, _, Move::NoReplace) => from == place,
            Self::Rename(from, to, _) => from == place || to == place,
        }
    }
}

impl History<Names> {
    /// Takes into account how Linux renames: it looks at the one name, then at the other one, and when both lead to one
    /// file it is done, as POSIX has it. While another host moves that file from the one to the other, it may find
    /// it at both, and do nothing. Renames beside which something else took the name away are done, or that.
    pub fn doubt_renames(&mut self) {
        let doubtful: Vec<usize> = (0..self.calls.len())
            .filter(|index| self.may_be_same(*index))
            .collect();
        for index in doubtful {
            if let End::Answered { answer, .. } = &mut self.calls[index].end {
                *answer = Answer::DoneOrSame;
            }
        }
    }

    fn may_be_same(&self, index: usize) -> bool {
        let call = &self.calls[index];
        let (Op::Rename(from, to, Move::Replace | Move::Exchange), End::Answered { at, answer }) =
            (&call.op, &call.end)
        else {
            return false;
        };
        let takes = |(other, beside): (usize, &CallOf<Names>)| {
            let is_over = match &beside.end {
                End::Answered { at, answer } => *at < call.invoked || *answer != Answer::Done,
                End::Unknown => false,
            };
            other != index && !is_over && beside.invoked < *at && beside.op.takes_from(from)
        };
        *answer == Answer::Done && from != to && self.calls.iter().enumerate().any(takes)
    }
}

fn has_names(state: &State, inode: Inode) -> bool {
    state.keys().any(|place| place.dir == inode)
}

impl Names {
    fn is_there(self, state: &State, dir: Inode) -> bool {
        dir == self.root || state.values().any(|inode| *inode == dir)
    }

    /// Whether an answer that comes without a change is right.
    fn says(self, state: &State, op: &Op, answer: Answer) -> bool {
        let is = |place: &Place| state.get(place).copied();
        match (op, answer) {
            (Op::Find(place), Answer::Is(inode)) => is(place) == Some(inode),
            (Op::Find(place) | Op::Remove(place), Answer::Missing) => is(place).is_none(),
            (Op::Add(place, _), Answer::Missing) => !self.is_there(state, place.dir),
            (Op::Rename(from, to, how), Answer::Missing) => {
                let no_target = *how == Move::Exchange && is(to).is_none();
                is(from).is_none() || no_target || !self.is_there(state, to.dir)
            }
            (Op::Add(place, _) | Op::Rename(_, place, Move::NoReplace), Answer::Exists) => {
                is(place).is_some()
            }
            (Op::Remove(place) | Op::Rename(_, place, Move::Replace), Answer::NotEmpty) => {
                is(place).is_some_and(|inode| has_names(state, inode))
            }
            _ => false,
        }
    }

    fn change(self, state: &State, op: &Op) -> Option<State> {
        let mut after = state.clone();
        match op {
            Op::Find(_) => return None,
            Op::Add(place, inode) => {
                if !self.is_there(state, place.dir) || after.insert(place.clone(), *inode).is_some()
                {
                    return None;
                }
            }
            Op::Remove(place) => {
                let inode = after.remove(place)?;
                if has_names(state, inode) {
                    return None;
                }
            }
            Op::Rename(from, to, how) => {
                let (moved, there) = (*state.get(from)?, state.get(to).copied());
                if !self.is_there(state, to.dir) {
                    return None;
                }
                match (how, there) {
                    // Two names of one file, or one name: nothing is done.
                    (Move::Replace | Move::Exchange, Some(there)) if there == moved => {}
                    (Move::NoReplace, Some(_)) | (Move::Exchange, None) => return None,
                    (Move::Replace, Some(there)) if has_names(state, there) => return None,
                    (Move::Replace | Move::NoReplace, _) => {
                        after.remove(from);
                        after.insert(to.clone(), moved);
                    }
                    (Move::Exchange, Some(there)) => {
                        after.insert(from.clone(), there);
                        after.insert(to.clone(), moved);
                    }
                }
            }
        }
        Some(after)
    }
}
