//! Locks, each with a counter that only its holder should write: who overlaps with another holder, or undoes what
//! another one has counted, is found.

use super::{Model, Told};
use crate::record::Client;

/// Many locks, free at first, with counters at 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Locks;

/// The name of a lock.
pub type Key = u32;

/// What is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Asks for the lock, and does not wait: [`Answer::Done`] or [`Answer::Busy`].
    Take,
    /// Gives it back.
    Give,
    /// Reads the counter: [`Answer::Value`].
    Read,
    /// Writes the counter. A write of which nothing is known may come when its writer holds the lock no more.
    Write(u64),
}

/// What can be asked of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Which lock.
    pub key: Key,
    /// By whom.
    pub by: Client,
    /// What.
    pub act: Act,
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// Somebody else holds the lock.
    Busy,
    /// The counter.
    Value(u64),
}

/// A lock and its counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// Who has it.
    pub holder: Option<Client>,
    /// What is counted.
    pub count: u64,
}

impl Model for Locks {
    type Object = Key;
    type Op = Op;
    type Answer = Answer;
    type State = State;

    fn object(&self, op: &Op) -> Key {
        op.key
    }

    fn first(&self, _: &Key) -> State {
        State::default()
    }

    fn step(&self, state: &State, op: &Op, told: Told<'_, Answer>) -> Option<State> {
        let holds = state.holder == Some(op.by);
        let with = |holder| Some(State { holder, ..*state });
        match (op.act, told) {
            (Act::Take, Told::Answer(Answer::Done) | Told::Nothing) if state.holder.is_none() => {
                with(Some(op.by))
            }
            (Act::Take, Told::Answer(Answer::Busy)) if state.holder.is_some() && !holds => {
                Some(*state)
            }
            (Act::Give, Told::Answer(Answer::Done) | Told::Nothing) if holds => with(None),
            (Act::Read, Told::Answer(Answer::Value(value))) if *value == state.count => {
                Some(*state)
            }
            (Act::Write(count), Told::Answer(Answer::Done)) if holds => {
                Some(State { count, ..*state })
            }
            (Act::Write(count), Told::Nothing) => Some(State { count, ..*state }),
            _ => None,
        }
    }
}
