//! What is said to the control store over the network.
//!
//! Methods 0x0100 to 0x01ff. What the store says, refusals too, travels in the answer; the transport's
//! refusals ([`Code`]) are for callers who may not ask, or who cannot be understood.

use perigee_cluster::{
    Admits, Committed, Event, JoinRequest, KeyValue, LeaseNumber, NodeState, PlanError, Revision,
    StoreError, TokenUse, Txn, WatchError,
};
use perigee_net::Refusal;
use perigee_proto::{Code, Priority, Retry, Rpc};
use perigee_types::{ContainerId, NodeId, Span, WallTime};
use serde::{Deserialize, Serialize};

macro_rules! services {
    ($($number:literal $name:ident ($request:ty) -> $reply:ty, $retry:ident;)*) => {
        $(impl Rpc for $request {
            const METHOD: u16 = $number;
            const NAME: &'static str = stringify!($name);
            const PRIORITY: Priority = Priority::Control;
            const RETRY: Retry = Retry::$retry;
            type Reply = $reply;
        })*
    };
}

services! {
    0x0100 control_get(Get) -> Result<Option<KeyValue>, StoreError>, Same;
    0x0101 control_list(List) -> Result<Page, StoreError>, Same;
    // the transport runs a repeated call at most once
    0x0102 control_commit(Commit) -> Result<Committed, StoreError>, Same;
    0x0103 control_poll(Poll) -> Result<Polled, WatchError>, Same;
    0x0104 control_grant(Grant) -> Result<LeaseNumber, StoreError>, Same;
    0x0105 control_keep_alive(KeepAlive) -> Result<Span, StoreError>, Same;
    0x0106 control_revoke(Revoke) -> Result<(), StoreError>, Same;
    0x0110 control_create_token(CreateToken) -> Result<NewToken, AdminError>, Same;
    0x0111 control_list_tokens(ListTokens) -> Result<Vec<TokenInfo>, AdminError>, Same;
    0x0112 control_status(AskStatus) -> Result<ControlStatus, AdminError>, Same;
    0x0113 control_create_readmission(CreateReadmission) -> Result<NewToken, AdminError>, Same;
    // the only one for peers without a certificate
    0x0120 control_join(Join) -> Result<Admission, JoinRefusal>, Same;
}

/// [`perigee_cluster::ControlStore::get`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// The key.
    pub key: String,
}

/// A page of [`perigee_cluster::ControlStore::list`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// What all keys begin with.
    pub prefix: String,
    /// The last key of the page before.
    pub after: Option<String>,
}

/// The answer to [`List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Keys in order.
    pub entries: Vec<KeyValue>,
    /// Whether more follow.
    pub more: bool,
    /// The store's revision when this page was read. Pages of different revisions are no list.
    pub revision: Revision,
}

/// [`perigee_cluster::ControlStore::commit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The transaction.
    pub txn: Txn,
}

/// Asks for events, and waits for the first one if there is none yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poll {
    /// What all keys begin with.
    pub prefix: String,
    /// The first revision that is wanted.
    pub from: Revision,
    /// How long to wait, at most.
    pub wait: Span,
}

/// The answer to [`Poll`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polled {
    /// Events of whole revisions, in order; none when the wait was in vain.
    pub events: Vec<Event>,
    /// The revision with which to go on.
    pub next: Revision,
}

/// [`perigee_cluster::ControlStore::grant_lease`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The term.
    pub ttl: Span,
}

/// [`perigee_cluster::ControlStore::keep_alive`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepAlive {
    /// The lease.
    pub lease: LeaseNumber,
}

/// [`perigee_cluster::ControlStore::revoke`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// The lease.
    pub lease: LeaseNumber,
}

/// Asks for a new join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateToken {
    /// How long it can be used; 1 minute to 30 days.
    pub ttl: Span,
    /// What the node may be that it lets in.
    pub admits: Admits,
}

/// Asks for a token that lets a node in again, with what it keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateReadmission {
    /// Which.
    pub node: NodeId,
    /// How long it can be used; 1 minute to 30 days.
    pub ttl: Span,
}

/// A new join token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// Its text form, which is a secret.
    pub text: String,
}

impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewToken(..)")
    }
}

/// Asks which join tokens there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListTokens;

/// A join token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// The first four bytes of the hash of its secret, in hexadecimal: enough to tell tokens apart.
    pub id: String,
    /// When it becomes void.
    pub expires: WallTime,
    /// The node that it let in.
    pub used_by: Option<NodeId>,
}

impl TokenInfo {
    pub(crate) fn of(hash: &[u8; 32], expires: WallTime, used: Option<&TokenUse>) -> Self {
        let [a, b, c, d, ..] = hash;
        Self {
            id: format!("{a:02x}{b:02x}{c:02x}{d:02x}"),
            expires,
            used_by: used.map(|used| used.node),
        }
    }
}

/// Asks how the control store is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskStatus;

/// How the control store is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// The cluster.
    pub cluster: u128,
    /// The version of its program.
    pub version: String,
    /// Its current revision.
    pub revision: Revision,
    /// Where the record is kept, for people: the etcd, or `embedded`.
    pub kept: String,
    /// Nodes and how they stand.
    pub nodes: Vec<(NodeId, NodeState)>,
}

/// Asks to become a node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The token's secret.
    pub secret: [u8; 32],
    /// The request for a certificate: PKCS #10, PEM.
    pub certificate_request: String,
    /// What the node says of itself.
    pub request: JoinRequest,
}

impl std::fmt::Debug for Join {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Join({:?})", self.request)
    }
}

/// What a new node gets. Asking again with the same token and the same certificate request gives the
/// same answer, until the token expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The cluster.
    pub cluster: u128,
    /// Its number.
    pub node: NodeId,
    /// Its home container, if it stores anything.
    pub home: Option<ContainerId>,
    /// Its certificate as PEM.
    pub certificate: String,
    /// The certificate of the cluster's authority as PEM.
    pub authority: String,
}

/// Why nobody joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JoinRefusal {
    /// The token or the request breaks a rule.
    #[error(transparent)]
    Plan(PlanError),
    /// The request for a certificate is malformed, or not signed by its key.
    #[error("the certificate request is not valid")]
    BadCertificateRequest,
    /// The control store cannot do it now. Asking again is safe.
    #[error("the control store cannot admit anybody now; ask again")]
    Away,
}

/// Why an administrator's request was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AdminError {
    /// The record does not allow it.
    #[error(transparent)]
    Plan(PlanError),
    /// The store did not do it.
    #[error(transparent)]
    Store(StoreError),
    /// The store holds what this program cannot read.
    #[error("the control store holds a record that it cannot read")]
    Unreadable,
    /// The term is outside 1 minute to 30 days.
    #[error("a token for {ttl} is outside 1 minute to 30 days")]
    BadTerm {
        /// What was asked for.
        ttl: Span,
    },
    /// No token can be made on this machine now.
    #[error("no random numbers can be had")]
    NoRandomness,
}

/// The transport's form of a code.
pub(crate) fn refuse(code: Code) -> Refusal {
    Refusal {
        code: code.number(),
        detail: bytes::Bytes::new(),
    }
}
