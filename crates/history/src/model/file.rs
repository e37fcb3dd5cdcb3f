//! A file of bytes with a length, whose parts may change one after the other.

use super::{Model, Told};
use std::collections::{BTreeMap, BTreeSet};

/// One file, which is empty at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct File;

/// What can be asked of it, or a part of that: who writes more than one byte, or past the end, does several of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// [`Answer::Byte`].
    Read(u64),
    /// [`Answer::Size`].
    Size,
    /// The byte is this, and the file is as long as that at least.
    Write(u64, u8, Writer),
    /// The byte is a hole, where there is one.
    Zero(u64),
    /// The file has this length.
    Resize(u64),
    /// The file is at least as long as this, for a write whose last byte is yet to come.
    Grow(u64, Writer),
    /// The file gets longer by so many bytes, for an append; [`Answer::Place`].
    Reserve(u64, Writer),
}

/// Whoever writes several bytes, or makes the file longer before it writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    /// Of a write to a place of its choice.
    There(u32),
    /// Of an append: nothing is written at a place that a cut has taken away again.
    AtEnd(u32),
}

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// This byte; none past the end.
    Byte(Option<u8>),
    /// This length.
    Size(u64),
    /// Where the new bytes begin.
    Place(u64),
    /// It is so.
    Done,
}

/// The file between two operations.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct State {
    size: u64,
    bytes: BTreeMap<u64, u8>,
    /// What was written by whom.
    written: BTreeSet<(Writer, u64)>,
    /// Places that appends have, and nothing was written to.
    places: BTreeMap<Writer, u64>,
}

impl State {
    fn read(&self, at: u64) -> Option<u8> {
        (at < self.size).then(|| self.bytes.get(&at).copied().unwrap_or(0))
    }
}

impl Model for File {
    type Object = ();
    type Op = Op;
    type Answer = Answer;
    type State = State;

    fn object(&self, _: &Op) {}

    fn first(&self, (): &()) -> State {
        State::default()
    }

    fn step(&self, state: &State, op: &Op, told: Told<'_, Answer>) -> Option<State> {
        let mut next = state.clone();
        let fits = match (op, told) {
            (Op::Read(at), Told::Answer(answer)) => *answer == Answer::Byte(state.read(*at)),
            (Op::Size, Told::Answer(answer)) => *answer == Answer::Size(state.size),
            (Op::Read(_) | Op::Size, Told::Nothing) => return None,
            (Op::Reserve(..), Told::Answer(answer)) => *answer == Answer::Place(state.size),
            (_, Told::Answer(answer)) => *answer == Answer::Done,
            (_, Told::Nothing) => true,
        };
        match *op {
            Op::Read(_) | Op::Size => {}
            Op::Write(at, byte, writer) => {
                next.size = next.size.max(at + 1);
                next.bytes.insert(at, byte);
                next.written.insert((writer, at));
                let placed = next.places.remove(&writer).is_some();
                let goes_on = state.written.iter().any(|(by, _)| *by == writer);
                if matches!(writer, Writer::AtEnd(_)) && !placed && !goes_on {
                    return None;
                }
            }
            Op::Zero(at) => _ = next.bytes.remove(&at),
            Op::Resize(size) => {
                next.bytes.split_off(&size);
                next.size = size;
                next.places.retain(|_, place| *place < size);
            }
            Op::Grow(size, writer) => {
                if state.written.contains(&(writer, size - 1)) {
                    return None;
                }
                next.size = next.size.max(size);
            }
            Op::Reserve(len, writer) => {
                next.places.insert(writer, state.size);
                next.size += len;
            }
        }
        fits.then_some(next)
    }
}
