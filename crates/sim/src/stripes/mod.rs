//! The fourth world: one striped file, whose columns have owners of their own, under programs of several hosts that read,
//! write, append, cut, lock and free parts of it, and under hosts that crash, or lose their locks, in the middle of that.
//!
//! The room is the real one: what hosts do are the jobs of [`perigee_meta::stripe::job`], and what owners do is
//! [`perigee_meta::execute`]. Each thing that a job asks for happens at a moment of its own, in any order, and also after the host that
//! asked is gone. That an owner orders what it is asked, and loses nothing that it has answered, is taken from the contract of the chain, which
//! the first world checks. Reading order: [`world`], then [`host`], and [`lock`].

pub mod host;
pub mod lock;
pub mod world;

pub use world::{Options, Report, run};

use crate::marks::marks;

marks! {
    Wrote = "a program wrote";
    Grew = "a write made the file longer";
    Appended = "a program appended";
    Cut = "the file was made shorter";
    Punched = "a part was freed";
    Made = "the columns were made";
    Fenced = "a column refused who had not heard of a cut";
    Waited = "growth waited for the end of a cut";
    Helped = "a host ended the cut of another one";
    Crashed = "a host crashed within a job";
    Late = "something was carried out after the host that asked for it was gone";
    Granted = "a host had a lock after another one had lost its own";
    LockWaited = "a lock waited for the end of a cut";
    Refused = "a host that had lost its locks was refused";
    PastEnd = "a program read past the end";
}
