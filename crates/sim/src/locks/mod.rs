//! The third world: the lock service of one container, whose owner changes, under programs that lock, wait, write and let
//! go.
//!
//! The room is the real one: [`perigee_meta::queue::LockQueue`] admits, [`perigee_meta::execute`] changes the tables of
//! locks, [`perigee_meta::lock::Fences`] and [`perigee_meta::lock::lost`] say whose locks count no more, and hosts keep
//! locks in [`perigee_meta::lock::kept`] and decide about some by [`perigee_meta::lock::cover`]. What the chain does is taken from its contract, which the first world checks:
//! what is committed survives, of the rest some. Reading order: [`world`], [`owner`], [`host`], [`covers`], [`program`], then
//! `law::locks`.

pub mod covers;
pub mod host;
pub mod owner;
pub mod program;
pub mod world;

pub use world::{Options, Report, run};

use crate::marks::marks;

marks! {
    Granted = "a program was granted a lock";
    Refused = "a program was refused a lock that others had";
    Waited = "a program got a lock that it had waited for";
    Behind = "a request that was free of held locks went behind an earlier one";
    Converted = "a program converted a lock";
    Deadlock = "a wait would have closed a cycle";
    Interrupted = "a program gave up a wait";
    Takeover = "the container got another owner";
    Truncated = "records of an owner that was replaced were lost";
    Crash = "a host crashed with its programs";
    Released = "the locks of a session that is no more ended";
    Expired = "the locks of a session that was cut off were ended";
    Fenced = "a write under a lock that was ended was refused";
    Wrote = "a program wrote under its lock";
    Repeated = "a request was answered again";
    Kept = "a use was served by a lock that the host keeps";
    Silent = "a host did not answer a call for a lock in time";
    Called = "a host gave back a lock that was called for";
    Covered = "a host decided about a lock by itself";
    Uncovered = "a host said which locks its programs have under a cover";
    Circle = "a circle of waits at the owner and on hosts was found";
}
