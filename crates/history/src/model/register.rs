//! Registers: each holds a number.

use super::{Model, Told};

/// Many registers, which all hold 0 at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Registers;

/// The name of a register.
pub type Key = u32;

/// What can be asked of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// [`Answer::Value`].
    Read(Key),
    /// [`Answer::Written`].
    Write(Key, u64),
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It holds this.
    Value(u64),
    /// It holds what was written.
    Written,
}

impl Model for Registers {
    type Object = Key;
    type Op = Op;
    type Answer = Answer;
    type State = u64;

    fn object(&self, op: &Op) -> Key {
        let (Op::Read(key) | Op::Write(key, _)) = op;
        *key
    }

    fn first(&self, _: &Key) -> u64 {
        0
    }

    fn step(&self, state: &u64, op: &Op, told: Told<'_, Answer>) -> Option<u64> {
        match (op, told) {
            (Op::Read(_), Told::Answer(Answer::Value(value))) => (value == state).then_some(*state),
            (Op::Write(_, value), Told::Answer(Answer::Written) | Told::Nothing) => Some(*value),
            (Op::Read(_), Told::Answer(Answer::Written) | Told::Nothing)
            | (Op::Write(..), Told::Answer(Answer::Value(_))) => None,
        }
    }
}
