//! The wire surface on one screen: number, name, request, reply, urgency, and what a repeat means.
//!
//! Numbers are never reused. A request's payload, where it has one, is raw bytes beside the body.

use crate::message::{chain, data, file, hold, past, report, session, tx};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// How urgent a call is; a more urgent one overtakes in the queue to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Leases, heartbeats and coordination: before any new work.
    Control,
    /// Operations on names and attributes, and small files.
    Meta,
    /// File content that somebody waits for.
    Data,
    /// Refill, transfer, scrub.
    Background,
}

/// What the caller may do when the connection is lost before the answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Send it again: the receiver runs it at most once, or running it twice is harmless.
    Same,
    /// Report that the outcome is unknown.
    Never,
}

/// One remote procedure.
pub trait Rpc: Serialize + DeserializeOwned {
    /// Number on the wire.
    const METHOD: u16;
    /// Name in logs and metrics.
    const NAME: &'static str;
    /// Urgency.
    const PRIORITY: Priority;
    /// Meaning of a repeat.
    const RETRY: Retry;
    /// What comes back.
    type Reply: Serialize + DeserializeOwned;
}

macro_rules! services {
    ($($number:literal $name:ident ($request:ty) -> $reply:ty, $priority:ident, $retry:ident;)*) => {
        $(impl Rpc for $request {
            const METHOD: u16 = $number;
            const NAME: &'static str = stringify!($name);
            const PRIORITY: Priority = Priority::$priority;
            const RETRY: Retry = Retry::$retry;
            type Reply = $reply;
        })*

        /// The name of a method number, for logs and metrics.
        #[must_use]
        pub const fn method_name(number: u16) -> &'static str {
            match number { $($number => stringify!($name),)* _ => "unknown" }
        }
    };
}

services! {
    // client to owner; the payload of write and of read's answer is the file's bytes
    0x0200 execute(session::Execute) -> session::Executed, Meta, Same;
    0x0201 read(file::Read) -> file::ReadDone, Data, Same;
    0x0202 write(file::Write) -> file::Written, Data, Same;
    0x0203 sync(file::Sync) -> file::Synced, Meta, Same;
    0x0204 seek(file::Seek) -> file::Sought, Meta, Same;
    // a chunk's holder to the owner; the payload of send_written is the bytes
    0x0205 ask_right(hold::AskRight) -> hold::Right, Control, Same;
    0x0206 send_written(hold::SendWritten) -> hold::WrittenTaken, Data, Same;
    0x0208 want_chunk(hold::WantChunk) -> hold::Wanted, Control, Same;
    // client to a member that is nearer than the owner; the payload of the answer is the file's bytes
    0x0207 read_copy(file::ReadCopy) -> file::CopyRead, Data, Same;
    // owner to a session's host
    0x0210 revoke(session::Revoke) -> session::Revoked, Control, Same;
    0x0211 still_open(session::StillOpen) -> session::Open, Meta, Same;
    0x0212 lock_turn(session::LockTurn) -> session::LockTurnHeard, Control, Same;
    0x0213 open_sessions(session::AskSessions) -> session::OpenSessions, Control, Same;
    0x0214 call_holder(hold::CallHolder) -> hold::HolderReport, Control, Same;
    0x0215 call_lock(session::CallLock) -> session::LockCalled, Control, Same;
    0x0216 open_in(session::OpenIn) -> session::Open, Meta, Same;
    0x0217 write_ordered(hold::WriteOrdered) -> hold::OrderedHeard, Control, Same;
    // between the members of a chain; `chain` is a cast, its payload the encoded message
    0x0220 chain(chain::Envelope) -> (), Control, Never;
    0x0221 fetch(data::Fetch) -> data::Fetched, Background, Same;
    0x0222 sync_data(data::SyncData) -> data::DataSynced, Meta, Same;
    0x0223 state_page(data::StatePage) -> data::StateRows, Background, Same;
    0x0224 ask_valid(data::AskValid) -> data::Valid, Meta, Same;
    0x0225 ask_room(data::AskRoom) -> data::Room, Control, Same;
    // between owners: operations over several containers
    0x0230 read_keys(tx::ReadKeys) -> tx::Keys, Meta, Same;
    0x0231 prepare(tx::Prepare) -> tx::Prepared, Meta, Same;
    0x0232 resolve(tx::Resolve) -> tx::Resolved, Control, Same;
    0x0233 decision(tx::AskDecision) -> tx::Decided, Control, Same;
    // between owners: waits for locks
    0x0234 waits(session::AskWaits) -> session::Waits, Control, Same;
    // for people
    0x0240 node_report(report::AskReport) -> report::NodeReport, Meta, Same;
    0x0241 holders(report::AskHolders) -> report::Holders, Meta, Same;
    0x0242 scrub(report::Scrub) -> report::Scrubbing, Meta, Same;
    // client to owner: containers as of a checkpoint; the payload of read_past's answer is the file's bytes
    0x0250 query_past(past::Query) -> past::Queried, Meta, Same;
    0x0251 read_past(past::ReadPast) -> past::PastRead, Data, Same;
    0x0252 part_of_snapshot(past::PartOfSnapshot) -> past::PartDone, Control, Same;
    0x0253 past_use(past::AskPastUse) -> past::PastUses, Meta, Same;
}

/// Why a peer refused a call. The class of each says what the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// The receiver does not own the container: find the owner and ask it.
    NotOwner,
    /// The receiver cannot answer right now (it reconciles, has no lease, is full): ask again.
    NotReady,
    /// The receiver is at it, and it takes longer than this call: ask again, for as long as this is the answer.
    Working,
    /// The request could not be decoded or broke a limit: never repeat it.
    Malformed,
    /// The receiver's own disk or state failed.
    Failed,
    /// The caller's certificate does not allow this call.
    Forbidden,
    /// No such method in this version.
    Unknown,
}

impl Code {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::NotOwner => 4001,
            Self::NotReady => 4002,
            Self::Working => 4003,
            Self::Malformed => 1001,
            Self::Failed => 5001,
            Self::Forbidden => 2001,
            Self::Unknown => 1002,
        }
    }

    /// The code of a number; [`Code::Failed`] for one that this version does not know.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        match number {
            4001 => Self::NotOwner,
            4002 => Self::NotReady,
            4003 => Self::Working,
            1001 => Self::Malformed,
            2001 => Self::Forbidden,
            1002 => Self::Unknown,
            _ => Self::Failed,
        }
    }
}

/// Bytes that are not the message that they should be.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be decoded: {source}")]
pub struct Malformed {
    /// The type that was expected.
    pub what: &'static str,
    /// Why it is not one.
    #[source]
    pub source: postcard::Error,
}

/// Encodes a message body.
///
/// # Panics
/// Never for the types of this crate: their encoding has no failing case.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> bytes::Bytes {
    match postcard::to_stdvec(value) {
        Ok(bytes) => bytes.into(),
        Err(error) => unreachable!("plain data has an encoding: {error}"),
    }
}

/// Decodes a message body. Bytes after the message are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    let (value, rest) = decode_front(bytes)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(Malformed::of::<T>())
    }
}

/// The same of the first bytes; gives those after it, too.
pub fn decode_front<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    let what = std::any::type_name::<T>();
    postcard::take_from_bytes(bytes).map_err(|source| Malformed { what, source })
}

impl Malformed {
    /// Bytes that decode to what is no `T`.
    #[must_use]
    pub fn of<T>() -> Self {
        Self {
            what: std::any::type_name::<T>(),
            source: postcard::Error::DeserializeBadEncoding,
        }
    }
}
