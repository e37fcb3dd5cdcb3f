//! A log to which numbers are appended.

use super::{Model, Told};

/// One log, which is empty at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log;

/// What can be asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// [`Answer::At`].
    Append(u64),
    /// [`Answer::All`].
    Read,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The place of what was appended, from 0 on.
    At(usize),
    /// All that was appended.
    All(Vec<u64>),
}

impl Model for Log {
    type Object = ();
    type Op = Op;
    type Answer = Answer;
    type State = Vec<u64>;

    fn object(&self, _: &Op) {}

    fn first(&self, (): &()) -> Vec<u64> {
        Vec::new()
    }

    fn step(&self, state: &Vec<u64>, op: &Op, told: Told<'_, Answer>) -> Option<Vec<u64>> {
        match (op, told) {
            (Op::Append(_), Told::Answer(Answer::At(place))) if *place != state.len() => None,
            (Op::Append(number), Told::Answer(Answer::At(_)) | Told::Nothing) => {
                let mut after = state.clone();
                after.push(*number);
                Some(after)
            }
            (Op::Read, Told::Answer(Answer::All(all))) => (all == state).then(|| state.clone()),
            (Op::Append(_), Told::Answer(Answer::All(_)))
            | (Op::Read, Told::Answer(Answer::At(_)) | Told::Nothing) => None,
        }
    }
}
