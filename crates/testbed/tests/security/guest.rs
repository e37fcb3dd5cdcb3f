//! A member of the cluster that says what the test wants: its daemon is stopped, its certificate is good.

use super::wire::Papers;
use perigee_net::{
    Answer, BoxFuture, Bytes, Call, CallError, CallOptions, ClusterId, Identity, NetConfig,
    Network, PeerName, Refusal, Service,
};
use perigee_proto::{Code, Priority, Rpc, decode, encode};
use perigee_testbed::Cluster;
use perigee_types::NodeId;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A call to a process of the same machine has its answer within this.
const ANSWER: Duration = Duration::from_secs(10);

/// What a node is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Stores,
    OnlyMounts,
    OnlyReads,
}

impl Kind {
    /// A token for it.
    pub fn token(self, cluster: &mut Cluster) -> String {
        match self {
            Self::OnlyReads => token_by(cluster, &["--read-only"]),
            Self::Stores | Self::OnlyMounts => token_by(cluster, &[]),
        }
    }
}

/// It offers nothing.
struct Silent;

impl Service for Silent {
    fn call(
        &self,
        _: PeerName,
        _: Call,
        _: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>> {
        let code = Code::NotReady.number();
        let detail = Bytes::new();
        Box::pin(async move { Err(Refusal { code, detail }) })
    }
    fn cast(&self, _: PeerName, _: Call) {}
    fn link(&self, _: PeerName, _: bool) {}
}

/// Where the control store of a cluster listens.
pub fn control(cluster: &Cluster) -> SocketAddr {
    let text = std::fs::read_to_string(cluster.dir().join("control/address")).unwrap();
    text.trim().parse().unwrap()
}

/// The number of a cluster, as its status says.
pub fn number(cluster: &mut Cluster) -> ClusterId {
    let text = cluster.perigee(&["status", "--json"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    status["cluster"].as_str().unwrap().parse().unwrap()
}

/// A token, as a person gets it.
pub fn token(cluster: &mut Cluster) -> String {
    token_by(cluster, &[])
}

fn token_by(cluster: &mut Cluster, options: &[&str]) -> String {
    let arguments = [&["token", "--json"], options].concat();
    let text = cluster.perigee(&arguments).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    answer["token"].as_str().unwrap().to_owned()
}

/// A member without its daemon.
pub struct Guest {
    runtime: Runtime,
    network: Network,
    /// Its number.
    pub id: NodeId,
    /// Its data directory.
    pub dir: PathBuf,
}

impl Guest {
    /// Joins as `name`, stops the daemon, and takes its place.
    pub fn join(cluster: &mut Cluster, name: &str, kind: Kind) -> Self {
        let token = kind.token(cluster);
        let dir = cluster.path().join(name);
        let place = dir.to_string_lossy().into_owned();
        let listen = ["--listen", "127.0.0.1:0"];
        let mut join = vec!["join", &token, "--dir", &place, "--name", name];
        join.extend(listen);
        if kind != Kind::Stores {
            join.push("--no-storage");
        }
        for arguments in [&join[..], &["down", "--dir", &place]] {
            let ended = cluster.command(arguments).unwrap();
            assert!(ended.status.success(), "{ended:?}");
        }
        Self::new(cluster, dir.join("node-1"))
    }

    fn new(cluster: &mut Cluster, dir: PathBuf) -> Self {
        let runtime = Runtime::new().unwrap();
        let identity = Identity::load(&dir.join("identity")).unwrap();
        let PeerName::Node(id) = identity.name() else {
            panic!("{identity:?} is no node's");
        };
        let config = NetConfig::new(identity, ([127, 0, 0, 1], 0).into());
        let network = runtime.block_on(Network::start(config, Arc::new(Silent)));
        let network = network.unwrap();
        network.set_address(PeerName::Control, control(cluster));
        for node in cluster.status().unwrap() {
            let name = PeerName::Node(NodeId(node.id));
            network.set_address(name, node.address.parse().unwrap());
        }
        Self {
            runtime,
            network,
            id,
            dir,
        }
    }

    /// Its certificate.
    pub fn papers(&self) -> Papers {
        Papers::load(&self.dir.join("identity"))
    }

    /// Calls, and gives the answer.
    pub fn ask<R: Rpc>(
        &self,
        to: PeerName,
        request: &R,
        payload: &[u8],
    ) -> Result<R::Reply, CallError> {
        self.ask_within(ANSWER, to, request, payload)
    }

    /// The same with another patience: calls to whom no connection can be made end with it.
    pub fn ask_within<R: Rpc>(
        &self,
        deadline: Duration,
        to: PeerName,
        request: &R,
        payload: &[u8],
    ) -> Result<R::Reply, CallError> {
        let call = Call {
            method: R::METHOD,
            body: encode(request),
            payload: Bytes::copy_from_slice(payload),
        };
        let options = CallOptions {
            deadline,
            priority: R::PRIORITY,
            retry: R::RETRY,
        };
        let answer = self
            .runtime
            .block_on(self.network.call(to, call, options))?;
        let bytes = match answer.body.is_empty() {
            true => &answer.payload,
            false => &answer.body,
        };
        Ok(decode(bytes).unwrap())
    }

    /// The reason for which a call is refused; panics when it is not.
    pub fn refusal<R: Rpc>(&self, to: PeerName, request: &R, payload: &[u8]) -> Code
    where
        R::Reply: std::fmt::Debug,
    {
        match self.ask(to, request, payload) {
            Err(CallError::Refused(refusal)) => Code::from_number(refusal.code),
            other => panic!("{} was not refused: {other:?}", R::NAME),
        }
    }

    /// Sends a one-way message.
    pub fn tell(&self, to: PeerName, method: u16, body: Bytes, payload: Bytes) {
        let call = Call {
            method,
            body,
            payload,
        };
        self.network.cast(to, call, Priority::Control);
    }
}
