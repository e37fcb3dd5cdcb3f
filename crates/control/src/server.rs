//! The store as a service of the network: who may ask what, and the answers.

use crate::gatekeeper::Gatekeeper;
use crate::keeper::Keeper;
use crate::wire::{
    AdminError, AskStatus, Commit, ControlStatus, CreateReadmission, CreateToken, Get, Grant, Join,
    KeepAlive, List, ListTokens, Poll, Polled, Revoke, refuse,
};
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_cluster::{ControlStore as _, Node, NodeState, StoreError, Txn, WatchError, authority};
use perigee_net::{AUDIT, Answer, BoxFuture, Call, PeerName, Refusal, Refusals, Service};
use perigee_proto::{Code, Rpc, decode, encode};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{Instrument, info, info_span, warn};

/// The longest that a poll waits, whatever it asks for.
const POLL_WAIT_MAX: Duration = Duration::from_secs(30);
/// How many polls one peer may have waiting. A node has a handful of watches.
const POLLS_MAX: usize = 256;

/// The service of the control process.
#[derive(Debug, Clone)]
pub struct ControlService {
    keeper: Keeper,
    gatekeeper: Arc<Gatekeeper>,
    polls: Arc<Mutex<BTreeMap<PeerName, usize>>>,
    stopping: watch::Sender<bool>,
    /// Bounds the lines about calls that are refused.
    refusals: Arc<Refusals>,
}

impl ControlService {
    /// The service of the store that `keeper` keeps; `gatekeeper` admits new nodes.
    #[must_use]
    pub fn new(keeper: Keeper, gatekeeper: Arc<Gatekeeper>) -> Self {
        Self {
            keeper,
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
    async fn authorize(&self, from: PeerName, method: u16) -> Result<Asker, Refusal> {
        let asker = match from {
            PeerName::Control => Some(Asker::Trusted),
            PeerName::Joining => (method == Join::METHOD).then_some(Asker::Trusted),
            PeerName::Node(id) => match self.keeper.node(id).await {
                // Whoever reads is told what is wrong, and nothing else.
                Err(StoreError::WentBack) if matches!(method, Get::METHOD | List::METHOD) => {
                    Some(Asker::Trusted)
                }
                // Who it is may be known a moment later.
                Err(_) => return Err(refuse(Code::NotReady)),
                Ok(None) => None,
                Ok(Some(node)) => Asker::of(node),
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
        let asker = self.authorize(from, call.method).await?;
        match call.method {
            Get::METHOD => {
                let get: Get = request(&call)?;
                answer::<Get>(self.keeper.get(&get.key).await)
            }
            List::METHOD => {
                let list: List = request(&call)?;
                let page = self.keeper.list_page(&list.prefix, list.after.as_deref());
                answer::<List>(page.await)
            }
            Commit::METHOD => {
                let commit: Commit = request(&call)?;
                if !asker.may_commit(&commit.txn) {
                    return Err(self.forbidden(from, call.method));
                }
                answer::<Commit>(self.keeper.commit(commit.txn).await)
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
                answer::<Grant>(self.keeper.grant_lease(grant.ttl).await)
            }
            KeepAlive::METHOD => {
                let keep: KeepAlive = request(&call)?;
                answer::<KeepAlive>(self.keeper.keep_alive(keep.lease).await)
            }
            Revoke::METHOD => {
                let revoke: Revoke = request(&call)?;
                answer::<Revoke>(self.keeper.revoke(revoke.lease).await)
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
                answer::<ListTokens>(self.gatekeeper.list_tokens().await)
            }
            AskStatus::METHOD => {
                let AskStatus = request(&call)?;
                answer::<AskStatus>(self.status().await)
            }
            Join::METHOD => {
                let join: Join = request(&call)?;
                answer::<Join>(self.gatekeeper.admit(join).await)
            }
            _ => Err(refuse(Code::Unknown)),
        }
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
        self.keeper
            .poll(&poll, until, self.stopping.subscribe())
            .await
    }

    async fn status(&self) -> Result<ControlStatus, AdminError> {
        let directory = self.gatekeeper.directory().await?;
        let nodes = directory.nodes.values();
        Ok(ControlStatus {
            cluster: self.gatekeeper.cluster().0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: directory.revision,
            kept: self.keeper.shown(),
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
