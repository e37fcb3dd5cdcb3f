//! Objects that do one thing after the other.

pub mod file;
pub mod lock;
pub mod log;
pub mod names;
pub mod register;

use std::fmt::Debug;

/// What is known of how a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told<'a, A> {
    /// This was its answer.
    Answer(&'a A),
    /// Nothing.
    Nothing,
}

/// An object that does one thing after the other.
pub trait Model {
    /// Parts that do not know of each other; `()` where there is one.
    type Object: Clone + Ord + Debug;
    /// What can be asked.
    type Op: Debug + Clone;
    /// What is answered, definite errors included.
    type Answer: Debug + Clone;
    /// What the object is between two operations.
    type State: Clone + Ord + Debug;

    /// The part that an operation concerns, and no other.
    fn object(&self, op: &Self::Op) -> Self::Object;

    /// The part before the first operation.
    fn first(&self, object: &Self::Object) -> Self::State;

    /// The state after `op`, when it takes effect in `state` and is answered so. `None`: it cannot be.
    ///
    /// An operation of which nothing is known, and which would do nothing here, is `None`, too.
    fn step(
        &self,
        state: &Self::State,
        op: &Self::Op,
        told: Told<'_, Self::Answer>,
    ) -> Option<Self::State>;

    /// Where an answer says that one of two things was done: the state after the other one.
    fn instead(
        &self,
        _state: &Self::State,
        _op: &Self::Op,
        _answer: &Self::Answer,
    ) -> Option<Self::State> {
        None
    }
}
