//! Whatever a peer sends as a message is a message or an error.

use perigee_fuzz::{Verdict, assault_plain};
use perigee_proto::message::{chain, data, file, hold, past, report, session, tx};
use perigee_proto::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn message<T: Serialize + DeserializeOwned>(what: &str) {
    assault_plain(what, |bytes| {
        let Ok(value) = decode::<T>(bytes) else {
            return Verdict::Refused;
        };
        // What was taken can be passed on, and means the same there.
        let passed = encode(&value);
        let again: T = decode(&passed).expect("what was encoded can be decoded");
        assert_eq!(encode(&again), passed);
        Verdict::Taken
    });
}

macro_rules! of {
    ($module:ident: $($name:ident),*) => {
        $(message::<$module::$name>(concat!(stringify!($module), "::", stringify!($name)));)*
    };
}

/// What a record of the log does: it comes from the owner, and from this node's own disk.
#[test]
fn fuzz_the_effects_of_a_record() {
    message::<perigee_types::Batch>("types::Batch");
}

#[test]
fn fuzz_every_message() {
    of!(chain: Envelope);
    of!(data: Fetch, Region, Fetched, SyncData, DataSynced, AskRoom, Room, StatePage, StateRows, AskValid, Valid);
    of!(file: Read, ReadDone, CopyAt, ReadCopy, CopyRead, At, Write, Written, Sync, Synced, Whence, Seek, Sought);
    of!(report: AskReport, NodeReport, ScrubWish, Scrub, Scrubbing, ScrubState, ScrubPass, ScrubFound, AskHolders, Hold, Holders, Heat, Rates, Thousandths);
    of!(session: Execute, Executed, Revoke, Revoked, LockTurn, LockTurnHeard, CallLock, LockCalled, AskSessions, OpenSessions, AskWaits, Waits, StillOpen, OpenIn, Open);
    of!(hold: AskRight, Right, WantChunk, Wanted, WriteOrdered, OrderedHeard);
    of!(hold: SendWritten, WrittenTaken, CallHolder, HolderReport);
    of!(past: Query, Queried, ReadPast, PastRead, PartOfSnapshot, PartDone, AskPastUse, PastUses);
    of!(tx: ReadKeys, Keys, Prepare, Prepared, Resolve, Resolved, AskDecision, Decided);
}
