//! Who is in the cluster, which container lies where, and how that record may change.
//!
//! Promises: pure. No runtime, file, socket or clock; the moment, the randomness and the record itself
//! arrive as arguments, and every change is a [`store::Txn`] that whoever holds a
//! [`store::ControlStore`] commits. Read [`model`] first, then [`store`], [`directory`],
//! [`transition`], [`placement`], [`coordinate`], [`nearness`], [`rebalance`] and [`rebuild`]; [`conformance`] says what every control store must do.
#![forbid(unsafe_code)]

pub mod authority;
pub mod codec;
pub mod conformance;
pub mod coordinate;
pub mod directory;
#[cfg(test)]
mod fixture;
pub mod key;
pub mod model;
pub mod nearness;
pub mod placement;
pub mod rebalance;
pub mod rebuild;
pub mod store;
pub mod transition;

pub use codec::DecodeError;
pub use coordinate::{Coordinate, Vivaldi};
pub use directory::Directory;
pub use model::{
    Admits, ClusterInfo, Container, ControlProcess, Grown, Live, Move, Node, NodeState, Policy,
    Purpose, Readmission, Revoked, Role, Token, TokenUse,
};
pub use placement::{Candidate, Step, Whom, choose_first, choose_member, next_step};
pub use store::{
    BoxFuture, Committed, Compare, ControlStore, Event, KeyValue, LeaseNumber, Refusal, Revision,
    StoreError, Txn, Watch, WatchError, Write,
};
pub use transition::{ChangeError, JoinRequest, Joined, PlanError, Planned, change};
