//! The second world: a namespace over several containers, each with its own chain, on simulated hosts.
//!
//! Sessions make, link, rename and remove names; owners run them with [`perigee_meta::execute`], order their effects in
//! the real [`Chain`](perigee_replica::Chain) and settle operations over two containers with the real
//! [`Transactions`](perigee_meta::tx::Transactions). Reading order: [`world`], [`host`], [`chain`], [`owner`],
//! [`attempt`], [`calls`], [`leases`], [`moves`], [`past`], [`session`], [`trash`], [`chaos`], [`history`], then the laws of names in [`crate::law`].

pub mod attempt;
pub mod calls;
pub mod chain;
pub mod chaos;
pub mod history;
pub mod host;
pub mod leases;
pub mod life;
pub mod moves;
pub mod owner;
pub mod past;
pub mod session;
pub mod trash;
pub mod world;

pub use world::{Options, Report, run, run_under};

use crate::marks::marks;

marks! {
    Takeover = "a container got another owner";
    Ceded = "an owner gave up its lease to a member";
    ClockJump = "a clock jumped";
    Crash = "a host crashed";
    FailedWrite = "a write to a disk failed";
    StateTransfer = "a joiner installed a state";
    Truncation = "records were truncated";
    Alone = "an operation changed one container";
    Home = "an operation at home was answered at once";
    Committed = "a transaction was committed";
    Abandoned = "a transaction was abandoned";
    Conflict = "a participant voted no";
    Waited = "an operation waited for a transaction";
    Torn = "rows of other containers had changed while they were read";
    InDoubt = "a participant in doubt asked its coordinator";
    DoubtCommitted = "a participant in doubt heard that the transaction is committed";
    DoubtAborted = "a participant in doubt heard that the transaction is aborted";
    IntentRestored = "a new owner found a prepared transaction";
    DecisionRestored = "a new owner found a decision";
    Repeated = "an operation that had been executed was answered again";
    RefusedForGood = "an operation that an owner elsewhere may still have was refused for good";
    Running = "a repeat came while the operation was being executed";
    Revoked = "a change waited for sessions to forget";
    LeaseEnded = "a session did not answer, and its lease ended by itself";
    Kept = "a session found a name that it keeps";
    Unknown = "a session gave an operation up";
    RenamedAcross = "a name moved to another container";
    Exchanged = "two names changed places";
    Checkpoint = "an owner made a checkpoint";
    RowKept = "a change kept what it replaced for a checkpoint";
    CheckpointRestored = "a new owner found checkpoints";
    CheckpointGone = "a checkpoint that was wanted no more is gone";
    Replaced = "a rename took the place of a name";
    Trashed = "something was removed and kept";
    BroughtBack = "something came back that had been removed";
    BroughtAcross = "something came back in another container";
    Purged = "something that was kept went after its time";
}
