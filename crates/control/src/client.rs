//! The control store from afar.

use crate::wire::{
    AdminError, Admission, AskStatus, Commit, ControlStatus, CreateReadmission, CreateToken, Get,
    Grant, Join, JoinRefusal, KeepAlive, List, ListTokens, NewToken, Poll, Polled, Revoke,
    TokenInfo,
};
use perigee_cluster::{
    Admits, BoxFuture, Committed, ControlStore, Event, JoinRequest, KeyValue, LeaseNumber, Refusal,
    Revision, StoreError, Txn, Watch, WatchError,
};
use perigee_net::{Answer, Call, CallError, CallOptions, JoinError, JoinToken, Network, PeerName};
use perigee_proto::{Code, Rpc, decode, encode};
use perigee_types::{NodeId, Span};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long a call may take, attempts included, before the store counts as away: twice what a restart
/// of the control process takes, and what a disk under load takes for a sync.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a poll waits at the store. A poll whose watch was dropped lingers there as long.
const POLL_WAIT: Span = Span::from_millis(10_000);
/// The longest pause of a watch while the store is away.
const WATCH_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a list begins anew because the store changed between its pages.
const LIST_ATTEMPTS: usize = 16;

/// How a client reaches the control process. The network in the product; tests put faults here.
pub trait Caller: Send + Sync + 'static {
    /// Sends a call and waits for its answer.
    fn call(
        &self,
        call: Call,
        options: CallOptions,
    ) -> BoxFuture<'static, Result<Answer, CallError>>;
}

impl Caller for Network {
    fn call(
        &self,
        call: Call,
        options: CallOptions,
    ) -> BoxFuture<'static, Result<Answer, CallError>> {
        let network = self.clone();
        Box::pin(async move { network.call(PeerName::Control, call, options).await })
    }
}

/// A control store at the other end of the network. Clones share one connection.
#[derive(Clone)]
pub struct RemoteControl {
    caller: Arc<dyn Caller>,
    patience: Duration,
    /// The highest revision that the store has told of.
    seen: Arc<AtomicU64>,
}

/// What a repeat of a call does that may have run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Harmless,
    Harmful,
}

impl fmt::Debug for RemoteControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteControl(..)")
    }
}

/// Why a call has no reply.
enum Failure {
    /// It did not run.
    NotSent,
    /// It ran, or not.
    Unknown,
    /// The store will not do it.
    Refused(Refusal),
}

impl RemoteControl {
    /// The store that `network` reaches as [`PeerName::Control`]; its address must be set there.
    #[must_use]
    pub fn new(network: Network) -> Self {
        Self::with_caller(Arc::new(network))
    }

    /// The store that `caller` reaches.
    #[must_use]
    pub fn with_caller(caller: Arc<dyn Caller>) -> Self {
        Self {
            caller,
            patience: PATIENCE,
            seen: Arc::default(),
        }
    }

    /// Says what the store has told an earlier process: a list of a revision below `seen` is
    /// [`StoreError::WentBack`].
    #[must_use]
    pub fn having_seen(self, seen: Revision) -> Self {
        self.see(seen);
        self
    }

    fn see(&self, seen: Revision) {
        self.seen.fetch_max(seen.0, Ordering::Relaxed);
    }

    /// Sets how long a call may take, attempts included, before the store counts as away; 5 s if not
    /// set. Watches wait for ever.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    async fn once<T: Rpc>(&self, request: &T, time: Duration) -> Result<T::Reply, Failure> {
        let call = Call {
            method: T::METHOD,
            body: encode(request),
            ..Call::default()
        };
        let options = CallOptions {
            deadline: time,
            priority: T::PRIORITY,
            retry: T::RETRY,
        };
        let answer = self.caller.call(call, options).await.map_err(failure)?;
        // What cannot be read may well have been done.
        reply::<T>(&answer).ok_or(Failure::Unknown)
    }

    /// Tries again while the call did not run, or may as well run twice.
    async fn ask<T: Rpc>(&self, request: &T, repeat: Repeat) -> Result<T::Reply, Failure> {
        let until = Instant::now() + self.patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let failure = match self.once(request, left).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let again = match &failure {
                Failure::NotSent => true,
                Failure::Unknown => repeat == Repeat::Harmless,
                Failure::Refused(_) => false,
            };
            if !again || Instant::now() + RETRY_PAUSE >= until {
                return Err(failure);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// For calls of which a repeat is harmless: an unknown outcome is no outcome.
    async fn read<T, R>(&self, request: &T) -> Result<R, StoreError>
    where
        T: Rpc<Reply = Result<R, StoreError>>,
    {
        match self.ask(request, Repeat::Harmless).await {
            Ok(reply) => reply,
            Err(Failure::Refused(why)) => Err(why.into()),
            Err(Failure::NotSent | Failure::Unknown) => Err(StoreError::Unavailable),
        }
    }

    async fn write<T, R>(&self, request: &T) -> Result<R, StoreError>
    where
        T: Rpc<Reply = Result<R, StoreError>>,
    {
        match self.ask(request, Repeat::Harmful).await {
            Ok(reply) => reply,
            Err(Failure::Refused(why)) => Err(why.into()),
            Err(Failure::NotSent) => Err(StoreError::Unavailable),
            Err(Failure::Unknown) => Err(StoreError::Unknown),
        }
    }

    async fn admin<T, R>(&self, request: &T) -> Result<R, AdminError>
    where
        T: Rpc<Reply = Result<R, AdminError>>,
    {
        match self.ask(request, Repeat::Harmful).await {
            Ok(reply) => reply,
            Err(Failure::Refused(why)) => Err(AdminError::Store(why.into())),
            Err(Failure::NotSent) => Err(AdminError::Store(StoreError::Unavailable)),
            Err(Failure::Unknown) => Err(AdminError::Store(StoreError::Unknown)),
        }
    }

    /// Makes a token that lets in one node within `ttl` (1 minute to 30 days).
    ///
    /// # Errors
    /// See [`AdminError`].
    pub async fn create_token(&self, ttl: Span, admits: Admits) -> Result<NewToken, AdminError> {
        self.admin(&CreateToken { ttl, admits }).await
    }

    /// Makes a token that lets a node in again within `ttl` (1 minute to 30 days). Any other for it is void from then on.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub async fn create_readmission(
        &self,
        node: NodeId,
        ttl: Span,
    ) -> Result<NewToken, AdminError> {
        self.admin(&CreateReadmission { node, ttl }).await
    }

    /// The tokens that can be used, and those that were or expired of late.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub async fn list_tokens(&self) -> Result<Vec<TokenInfo>, AdminError> {
        self.admin(&ListTokens).await
    }

    /// How the control store is.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub async fn status(&self) -> Result<ControlStatus, AdminError> {
        self.admin(&AskStatus).await
    }

    async fn list_once(&self, prefix: &str) -> Result<Option<Listed>, StoreError> {
        // Before the question: what others hear of meanwhile may be newer than its answer.
        let seen = self.seen.load(Ordering::Relaxed);
        let mut list = Vec::new();
        let mut at = None;
        loop {
            let after = list.last().map(|kv: &KeyValue| kv.key.clone());
            let prefix = prefix.to_owned();
            let page = self.read(&List { prefix, after }).await?;

            match at {
                None if page.revision.0 < seen => return Err(StoreError::WentBack),
                None => at = Some(page.revision),
                Some(at) if at != page.revision => return Ok(None),
                Some(_) => {}
            }
            self.see(page.revision);
            let more = page.more && !page.entries.is_empty();
            list.extend(page.entries);
            if !more {
                return Ok(Some((list, page.revision)));
            }
        }
    }
}

type Listed = (Vec<KeyValue>, Revision);

fn failure(error: CallError) -> Failure {
    match error {
        CallError::Unreachable { .. } | CallError::Closed => Failure::NotSent,
        CallError::TooLarge { len, max, .. } => {
            Failure::Refused(Refusal::TooLarge { bytes: len, max })
        }
        CallError::Refused(refusal) => match Code::from_number(refusal.code) {
            Code::NotReady | Code::Working => Failure::NotSent,
            Code::Forbidden => Failure::Refused(Refusal::NotAllowed),
            Code::Malformed | Code::Unknown => Failure::Refused(Refusal::Malformed),
            Code::NotOwner | Code::Failed => Failure::Unknown,
        },
        CallError::DeadlineExceeded
        | CallError::Lost
        | CallError::AnswerTooLarge
        | CallError::Failed => Failure::Unknown,
    }
}

fn reply<T: Rpc>(answer: &Answer) -> Option<T::Reply> {
    let bytes = if answer.body.is_empty() {
        &answer.payload
    } else {
        &answer.body
    };
    decode(bytes).ok()
}

impl ControlStore for RemoteControl {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<KeyValue>, StoreError>> {
        let key = key.to_owned();
        Box::pin(async move { self.read(&Get { key }).await })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Listed, StoreError>> {
        Box::pin(async move {
            for _ in 0..LIST_ATTEMPTS {
                if let Some(listed) = self.list_once(prefix).await? {
                    return Ok(listed);
                }
            }
            Err(StoreError::Unavailable)
        })
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            txn.check()?;
            let committed: Committed = self.write(&Commit { txn }).await?;
            self.see(committed.revision);
            Ok(committed)
        })
    }

    fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watch> {
        Box::new(RemoteWatch {
            store: self.clone(),
            prefix: prefix.to_owned(),
            from,
            ready: VecDeque::new(),
            asked: None,
            ended: None,
        })
    }

    fn grant_lease(&self, ttl: Span) -> BoxFuture<'_, Result<LeaseNumber, StoreError>> {
        Box::pin(async move { self.write(&Grant { ttl }).await })
    }

    fn keep_alive(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<Span, StoreError>> {
        Box::pin(async move { self.read(&KeepAlive { lease }).await })
    }

    fn revoke(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.read(&Revoke { lease }).await })
    }
}

/// A watch that asks for the next page again and again. The store keeps nothing of it, so that it
/// goes on after any loss of connection, or a restart of the store, where it was.
struct RemoteWatch {
    store: RemoteControl,
    prefix: String,
    from: Revision,
    ready: VecDeque<Event>,
    /// The question that is on its way; kept when a wait for it is given up, else each wait that is
    /// given up would leave one behind at the store.
    asked: Option<BoxFuture<'static, Result<Polled, WatchError>>>,
    ended: Option<WatchError>,
}

impl Watch for RemoteWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Event, WatchError>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    return Ok(event);
                }
                if let Some(error) = &self.ended {
                    return Err(error.clone());
                }
                let asked = self.asked.get_or_insert_with(|| {
                    let poll = Poll {
                        prefix: self.prefix.clone(),
                        from: self.from,
                        wait: POLL_WAIT,
                    };
                    Box::pin(poll_for_ever(self.store.clone(), poll))
                });
                let polled = asked.await;
                self.asked = None;
                match polled {
                    Ok(polled) => {
                        if let Some(last) = polled.events.last() {
                            self.store.see(last.revision);
                        }
                        self.ready = polled.events.into();
                        self.from = polled.next;
                    }
                    Err(error) => self.ended = Some(error),
                }
            }
        })
    }
}

async fn poll_for_ever(store: RemoteControl, poll: Poll) -> Result<Polled, WatchError> {
    let time = POLL_WAIT.as_duration() + PATIENCE;
    let mut pause = RETRY_PAUSE;
    loop {
        match store.once(&poll, time).await {
            Ok(reply) => return reply,
            Err(Failure::Refused(_)) => return Err(WatchError::Lost),
            Err(Failure::NotSent | Failure::Unknown) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(WATCH_PAUSE_MAX);
    }
}

/// Why a node did not get in.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The control store was not reached, or the answer was lost: ask again with the same key.
    #[error(transparent)]
    Net(#[from] JoinError),
    /// The control store refused.
    #[error(transparent)]
    Refused(#[from] JoinRefusal),
    /// The answer cannot be read.
    #[error("the control store's answer cannot be read")]
    Unreadable,
}

/// Asks to become a node of the token's cluster. `certificate_request` is that of the node's key
/// ([`perigee_net::NodeKey::request`]); when the answer is lost, asking again with the very same one
/// gives the same node.
///
/// # Errors
/// See [`EnterError`].
pub async fn enter(
    token: &JoinToken,
    certificate_request: &str,
    request: JoinRequest,
) -> Result<Admission, EnterError> {
    let join = Join {
        secret: *token.secret(),
        certificate_request: certificate_request.to_owned(),
        request,
    };
    let call = Call {
        method: Join::METHOD,
        body: encode(&join),
        ..Call::default()
    };
    let answer = perigee_net::join(token, call).await?;
    let admission = reply::<Join>(&answer).ok_or(EnterError::Unreadable)?;
    Ok(admission?)
}
