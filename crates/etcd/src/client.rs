//! Calls of an etcd: whichever of its members answers, as often as that is harmless, within a time.

use crate::connection::Connection;
pub(crate) use crate::connection::{Lines, code};
use crate::error::CallError;
use crate::memory::{Known, Memory};
use crate::place::Place;
use crate::wire::{Blob, Op, Range, Txn, TxnDone};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a call may take, attempts included: etcd chooses a new leader within two seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long one member may take for what another one may be asked, too.
const ATTEMPT: Duration = Duration::from_millis(1500);
/// The pause after all members have failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Calls at a time; more wait.
const CALLS_MAX: usize = 64;
/// Connections that are kept for the next calls, for each member.
const IDLE_MAX: usize = 8;

/// What a repeat of a call does that may have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Harmless,
    Harmful,
}

/// What must be there at the start of each connection.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// The key that describes the record.
    pub record: String,
    /// The key with this process' mark.
    pub mark: String,
    /// What this process knows.
    pub memory: Arc<Memory>,
}

/// The members of an etcd.
pub(crate) struct Client {
    place: Place,
    tls: Option<Arc<rustls::ClientConfig>>,
    guard: Option<Guard>,
    idle: Vec<Mutex<Vec<Connection>>>,
    /// The member that answered last.
    current: AtomicUsize,
    calls: Semaphore,
}

impl Client {
    pub(crate) fn new(
        place: Place,
        tls: Option<Arc<rustls::ClientConfig>>,
        guard: Option<Guard>,
    ) -> Self {
        let idle = place.hosts().iter().map(|_| Mutex::default()).collect();
        Self {
            place,
            tls,
            guard,
            idle,
            current: AtomicUsize::new(0),
            calls: Semaphore::new(CALLS_MAX),
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn guard(&self) -> Option<&Guard> {
        self.guard.as_ref()
    }

    /// Asks until there is an answer, or the time is over.
    pub(crate) async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        question: &Q,
        repeat: Repeat,
    ) -> Result<A, CallError> {
        let question = encode(question)?;
        let until = Instant::now() + PATIENCE;
        let Ok(Ok(_slot)) = timeout_at(until, self.calls.acquire()).await else {
            return Err(CallError::NotSent("too many calls wait".to_owned()));
        };
        let mut failed = 0;
        loop {
            let at = self.current.load(Ordering::Relaxed) % self.idle.len();
            let attempt = match repeat {
                Repeat::Harmless => until.min(Instant::now() + ATTEMPT),
                Repeat::Harmful => until,
            };
            let asked = self.attempt(at, path, &question, attempt).await;
            let error = match asked {
                Ok(text) => match serde_json::from_slice(&text) {
                    Ok(answer) => return Ok(answer),
                    // What cannot be read may well have been done.
                    Err(error) => CallError::Unknown(error.to_string()),
                },
                Err(error) => error,
            };
            let again = match &error {
                CallError::NotSent(_) => true,
                CallError::Unknown(_) => repeat == Repeat::Harmless,
                CallError::Refused { .. } | CallError::WentBack => false,
            };
            self.leave(at);
            failed += 1;
            let pause = match failed % self.idle.len() {
                0 => RETRY_PAUSE,
                _ => Duration::ZERO,
            };
            if !again || Instant::now() + pause >= until {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    /// Asks for a stream of answers, of whichever member answers first.
    pub(crate) async fn stream<Q: Serialize>(
        &self,
        path: &str,
        question: &Q,
    ) -> Result<Lines, CallError> {
        let question = encode(question)?;
        let at = self.current.load(Ordering::Relaxed) % self.idle.len();
        let opened = async { self.open(at).await?.stream(path, &question).await };
        let opened = timeout_at(Instant::now() + PATIENCE, opened).await;
        let opened = opened.unwrap_or_else(|_| Err(CallError::Unknown("time is over".into())));
        opened.inspect_err(|_| self.leave(at))
    }

    /// The next call asks another member.
    pub(crate) fn leave(&self, at: usize) {
        // Whoever failed there at the same time has moved on already.
        let next = (at + 1) % self.idle.len();
        let order = Ordering::Relaxed;
        _ = self.current.compare_exchange(at, next, order, order);
    }

    /// The member that is asked now.
    pub(crate) fn member(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.idle.len()
    }

    async fn attempt(
        &self,
        at: usize,
        path: &str,
        question: &Bytes,
        until: Instant,
    ) -> Result<Bytes, CallError> {
        let mut connection = match self.idle(at) {
            Some(connection) => connection,
            None => self.open(at).await?,
        };
        let asked = timeout_at(until, connection.ask(path, question)).await;
        let answer = asked.unwrap_or_else(|_| Err(CallError::Unknown("time is over".into())));
        // One whose answer did not come is of no further use.
        if matches!(answer, Ok(_) | Err(CallError::Refused { .. })) {
            let mut idle = self.idle[at].lock();
            if idle.len() < IDLE_MAX {
                idle.push(connection);
            }
        }
        answer
    }

    fn idle(&self, at: usize) -> Option<Connection> {
        let mut idle = self.idle[at].lock();
        while let Some(connection) = idle.pop() {
            if connection.is_open() {
                return Some(connection);
            }
        }
        None
    }

    /// A connection to a member of the etcd that is known here, in a state that may follow what is known.
    async fn open(&self, at: usize) -> Result<Connection, CallError> {
        let host = &self.place.hosts()[at];
        let secrecy = self.place.secrecy();
        let mut connection = Connection::open(host, secrecy, self.tls.as_ref()).await?;
        let Some(guard) = &self.guard else {
            return Ok(connection);
        };
        // Before the question: what others hear of meanwhile may be newer than its answer.
        let known = guard.memory.known();
        let question = encode(&look(guard))?;
        let until = Instant::now() + ATTEMPT;
        let asked = timeout_at(until, connection.ask("/v3/kv/txn", &question)).await;
        // Whatever became of it, the call itself was not sent.
        let text = match asked {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return Err(CallError::NotSent(error.to_string())),
            Err(_) => return Err(CallError::NotSent(format!("{host}: time is over"))),
        };
        let found = serde_json::from_slice(&text);
        let found = found.map_err(|error| CallError::NotSent(error.to_string()))?;
        if !is_the_one(&known, &found) {
            return Err(CallError::WentBack);
        }
        guard.memory.see(found.header.revision);
        Ok(connection)
    }
}

fn encode<Q: Serialize>(question: &Q) -> Result<Bytes, CallError> {
    let encoded = serde_json::to_vec(question);
    let encoded = encoded.map_err(|error| CallError::NotSent(error.to_string()))?;
    Ok(encoded.into())
}

/// The question at the start of a connection: linearizable, so it tells of all that was acknowledged before.
fn look(guard: &Guard) -> Txn {
    let range = |key: &str| {
        Op::Range(Range {
            key: Blob(key.as_bytes().to_vec()),
            ..Range::default()
        })
    };
    Txn {
        success: vec![range(&guard.record), range(&guard.mark)],
        ..Txn::default()
    }
}

fn is_the_one(known: &Known, found: &TxnDone) -> bool {
    let key_value = |at: usize| {
        let ranged = found.responses.get(at)?.response_range.as_ref()?;
        ranged.kvs.first()
    };
    let now = Known {
        etcd: found.header.cluster_id,
        marked: key_value(1).map_or(0, |mark| mark.mod_revision),
        seen: found.header.revision,
    };
    key_value(0).is_some() && known.allows(now)
}
