//! The engine as a service of the network: who may ask what, and the answers.

use crate::engine::Engine;
use crate::gatekeeper::Gatekeeper;
use crate::local::WATCH_PAGE_LEN;
use crate::wire::{
    AskStatus, Commit, ControlStatus, CreateReadmission, CreateToken, Get, Grant, Join, KeepAlive,
    List, ListTokens, Page, Poll, Polled, Revoke, refuse,
};
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_cluster::codec::Record as _;
use perigee_cluster::{Node, NodeState, StoreError, Txn, WatchError, authority, key};
use perigee_net::{AUDIT, Answer, BoxFuture, Call, PeerName, Refusal, Refusals, Service};
use perigee_proto::{Code, Rpc, decode, encode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{Instrument, info, info_span, warn};

/// Bytes of one page of a list; with one more value it stays far below a frame.
const LIST_PAGE_LEN: usize = 1 << 20;
/// The longest that a poll waits, whatever it asks for.
const POLL_WAIT_MAX: Duration = Duration::from_secs(30);
/// How many polls one peer may have waiting. A node has a handful of watches.
const POLLS_MAX: usize = 256;

/// The service of the control process.
#[derive(Debug, Clone)]
pub struct ControlService {
    engine: Arc<Engine>,
    gatekeeper: Arc<Gatekeeper>,
    polls: Arc<Mutex<BTreeMap<PeerName, usize>>>,
    stopping: watch::Sender<bool>,
    /// Bounds the lines about calls that are refused.
    refusals: Arc<Refusals>,
}

impl ControlService {
    /// The service of `engine`; `gatekeeper` admits new nodes.
    #[must_use]
    pub fn new(engine: Arc<Engine>, gatekeeper: Arc<Gatekeeper>) -> Self {
        Self {
            engine,
            gatekeeper,
            polls: Arc::default(),
            stopping: watch::Sender::new(false),
            refusals: Arc::default(),
        }
    }

    /// Ends the polls that wait, and takes no new ones: their callers ask the next process.
    pub fn stop_polls(&self) {
        self.stopping.send_replace(true);
    }

    /// What `from` is, when it may call `method` at all: strangers may only join, a node that only mounts may look and
    /// say that it lives, and a node that left may nothing.
    fn authorize(&self, from: PeerName, method: u16) -> Result<Asker, Refusal> {
        let asker = match from {
            PeerName::Control => Some(Asker::Trusted),
            PeerName::Joining => (method == Join::METHOD).then_some(Asker::Trusted),
            PeerName::Node(id) => match self.engine.get(&key::node(id)) {
                // An engine that cannot be read answers for itself.
                Err(_) => Some(Asker::Trusted),
                Ok(None) => None,
                Ok(Some(found)) => Node::decode(&found.value).ok().and_then(Asker::of),
            },
        };
        let may = |asker: &Asker| match asker {
            Asker::Trusted => true,
            Asker::Client(_) => is_for_clients(method),
        };
        asker
            .filter(may)
            .ok_or_else(|| self.forbidden(from, method))
    }

    fn forbidden(&self, from: PeerName, method: u16) -> Refusal {
        if let Some(left_out) = self.refusals.line(Instant::now()) {
            info!(target: AUDIT, event = "call", outcome = "refused", peer = %from, method, left_out);
        }
        refuse(Code::Forbidden)
    }

    async fn run(self, from: PeerName, call: Call, deadline: Instant) -> Result<Answer, Refusal> {
        let asker = self.authorize(from, call.method)?;
        match call.method {
            Get::METHOD => {
                let get: Get = request(&call)?;
                answer::<Get>(self.engine.get(&get.key))
            }
            List::METHOD => {
                let list: List = request(&call)?;
                answer::<List>(self.list(&list))
            }
            Commit::METHOD => {
                let commit: Commit = request(&call)?;
                if !asker.may_commit(&commit.txn) {
                    return Err(self.forbidden(from, call.method));
                }
                answer::<Commit>(self.engine.commit(commit.txn).await)
            }
            Poll::METHOD => {
                let poll: Poll = request(&call)?;
                if *self.stopping.borrow() {
                    return Err(refuse(Code::NotReady));
                }
                let _slot = PollSlot::take(&self.polls, from)?;
                answer::<Poll>(self.poll(poll, deadline).await)
            }
            Grant::METHOD => {
                let grant: Grant = request(&call)?;
                answer::<Grant>(self.engine.grant_lease(grant.ttl).await)
            }
            KeepAlive::METHOD => {
                let keep: KeepAlive = request(&call)?;
                answer::<KeepAlive>(self.engine.keep_alive(keep.lease))
            }
            Revoke::METHOD => {
                let revoke: Revoke = request(&call)?;
                answer::<Revoke>(self.engine.revoke(revoke.lease).await)
            }
            CreateToken::METHOD => {
                let create: CreateToken = request(&call)?;
                let asked = info_span!(target: AUDIT, "asked", by = %from);
                let made = self.gatekeeper.create_token(create.ttl, create.admits);
                let made = made.instrument(asked);
                answer::<CreateToken>(made.await)
            }
            CreateReadmission::METHOD => {
                let create: CreateReadmission = request(&call)?;
                let asked = info_span!(target: AUDIT, "asked", by = %from);
                let made = self.gatekeeper.create_readmission(create.node, create.ttl);
                answer::<CreateReadmission>(made.instrument(asked).await)
            }
            ListTokens::METHOD => {
                let ListTokens = request(&call)?;
                answer::<ListTokens>(self.gatekeeper.list_tokens())
            }
            AskStatus::METHOD => {
                let AskStatus = request(&call)?;
                answer::<AskStatus>(self.status())
            }
            Join::METHOD => {
                let join: Join = request(&call)?;
                answer::<Join>(self.gatekeeper.admit(join).await)
            }
            _ => Err(refuse(Code::Unknown)),
        }
    }

    fn list(&self, list: &List) -> Result<Page, StoreError> {
        let after = list.after.as_deref();
        let (entries, more, revision) =
            self.engine.list_page(&list.prefix, after, LIST_PAGE_LEN)?;
        Ok(Page {
            entries,
            more,
            revision,
        })
    }

    async fn poll(&self, poll: Poll, deadline: Instant) -> Result<Polled, WatchError> {
        // The caller gives up at `deadline`: the answer must be there a little earlier.
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = poll
            .wait
            .as_duration()
            .min(POLL_WAIT_MAX)
            .min(left.mul_f32(0.9));
        let until = tokio::time::Instant::now() + wait;
        // Before the look at the events: a change between the two must end the wait.
        let mut revisions = self.engine.revisions();
        let mut stopping = self.stopping.subscribe();
        let mut from = poll.from;
        loop {
            revisions.borrow_and_update();
            let (events, next) = self.engine.events(&poll.prefix, from, WATCH_PAGE_LEN)?;
            if !events.is_empty() {
                return Ok(Polled { events, next });
            }
            if next == from {
                tokio::select! {
                    changed = revisions.changed() => changed.map_err(|_| WatchError::Lost)?,
                    () = tokio::time::sleep_until(until) => return Ok(Polled { events, next }),
                    _ = stopping.wait_for(|stopping| *stopping) => {
                        return Ok(Polled { events, next });
                    }
                }
            }
            from = next;
        }
    }

    fn status(&self) -> Result<ControlStatus, crate::wire::AdminError> {
        let status = self.engine.status();
        let directory = self.gatekeeper.directory()?;
        let nodes = directory.nodes.values();
        Ok(ControlStatus {
            cluster: directory.cluster.map_or(0, |known| known.record.id),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: status.revision,
            keys: status.keys,
            leases: status.leases,
            len: status.len,
            nodes: nodes.map(|k| (k.record.id, k.record.state)).collect(),
        })
    }
}

/// Who asks.
enum Asker {
    /// It may do whatever its method does.
    Trusted,
    /// A node that only mounts.
    Client(Box<Node>),
}

impl Asker {
    /// None: it has left.
    fn of(node: Node) -> Option<Self> {
        match node {
            Node {
                state: NodeState::Left,
                ..
            } => None,
            node if node.role.stores() => Some(Self::Trusted),
            client => Some(Self::Client(Box::new(client))),
        }
    }

    fn may_commit(&self, txn: &Txn) -> bool {
        match self {
            Self::Trusted => true,
            Self::Client(node) => authority::may_commit(node, txn),
        }
    }
}

/// What a node that only mounts may call. Of its commits, [`authority::may_commit`] decides.
fn is_for_clients(method: u16) -> bool {
    matches!(
        method,
        Get::METHOD
            | List::METHOD
            | Commit::METHOD
            | Poll::METHOD
            | Grant::METHOD
            | KeepAlive::METHOD
            | AskStatus::METHOD
    )
}

impl Service for ControlService {
    fn call(
        &self,
        from: PeerName,
        call: Call,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>> {
        Box::pin(self.clone().run(from, call, deadline))
    }

    fn cast(&self, from: PeerName, call: Call) {
        if let Some(left_out) = self.refusals.line(Instant::now()) {
            let method = call.method;
            warn!(%from, method, left_out, "a one-way message, of which this service has none");
        }
    }

    fn link(&self, _peer: PeerName, _up: bool) {
        // Leases say who is there.
    }
}

fn request<T: Rpc>(call: &Call) -> Result<T, Refusal> {
    decode(&call.body).map_err(|_| refuse(Code::Malformed))
}

/// The longest answer that travels as body; frames take less than 1 MiB there, and 16 MiB of payload.
const BODY_LEN_MAX: usize = 512 << 10;

/// A short answer is the body, a long one the payload. No answer is empty.
fn answer<T: Rpc>(reply: T::Reply) -> Result<Answer, Refusal> {
    let bytes = encode(&reply);
    let (body, payload) = match bytes.len() {
        0..=BODY_LEN_MAX => (bytes, Bytes::new()),
        _ => (Bytes::new(), bytes),
    };
    Ok(Answer { body, payload })
}

/// One of the polls that a peer may have waiting.
struct PollSlot {
    polls: Arc<Mutex<BTreeMap<PeerName, usize>>>,
    peer: PeerName,
}

impl PollSlot {
    fn take(
        polls: &Arc<Mutex<BTreeMap<PeerName, usize>>>,
        peer: PeerName,
    ) -> Result<Self, Refusal> {
        let mut counts = polls.lock();
        let count = counts.entry(peer).or_default();
        if *count >= POLLS_MAX {
            return Err(refuse(Code::NotReady));
        }
        *count += 1;
        Ok(Self {
            polls: Arc::clone(polls),
            peer,
        })
    }
}

impl Drop for PollSlot {
    fn drop(&mut self) {
        let mut counts = self.polls.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}
