//! Whether what programs saw could have come from one object that did one thing after the other (linearizability).
//!
//! [`record`] calls that overlap, and how each ended · [`model`] objects that do one thing after the other ·
//! [`search`] looks for an order that explains all answers.
#![forbid(unsafe_code)]

pub mod model;
pub mod record;
pub mod search;

pub use model::{Model, Told};
pub use record::{Call, Client, History, Recorder, Ticket};
pub use search::{Budget, Verdict, check};
