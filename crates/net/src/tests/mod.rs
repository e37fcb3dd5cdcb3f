//! The whole crate over loopback: a probe as the service, and peers good and bad.

mod at_most_once;
mod bounds;
mod calls;
mod hostile;
mod identity;
mod join;
mod membership;
mod merging;

use bytes::Bytes;
use parking_lot::Mutex;
use perigee_types::NodeId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::{
    Answer, BoxFuture, Call, CallError, CallOptions, ClusterCa, ClusterId, Identity, NetConfig,
    Network, NodeKey, PeerName, Priority, Refusal, Retry, Service,
};

/// Gives its body and payload back.
const ECHO: u16 = 1;
/// Counts how often it ran with this body; takes up to 3 ms.
const COUNT: u16 = 2;
/// Runs until the probe's gate opens.
const WAIT: u16 = 3;
/// Is refused with code 77.
const REFUSE: u16 = 4;
/// Panics.
const PANIC: u16 = 5;
/// Gives as many bytes as its body says (8 bytes, little-endian).
const GIVE: u16 = 6;

const LOOPBACK: &str = "127.0.0.1:0";

fn n(number: u32) -> PeerName {
    PeerName::Node(NodeId(number))
}

/// A service that notes what happens to it.
struct Probe {
    counts: Mutex<BTreeMap<Bytes, u32>>,
    casts: Mutex<Vec<(PeerName, Bytes)>>,
    links: Mutex<Vec<(PeerName, bool)>>,
    round_trips: Mutex<Vec<(PeerName, Duration, Vec<u8>)>>,
    callers: Mutex<Vec<PeerName>>,
    waiting: AtomicUsize,
    open: watch::Sender<bool>,
}

impl Probe {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::default(),
            casts: Mutex::default(),
            links: Mutex::default(),
            round_trips: Mutex::default(),
            callers: Mutex::default(),
            waiting: AtomicUsize::new(0),
            open: watch::Sender::new(false),
        })
    }

    fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    fn open_gate(&self) {
        self.open.send_replace(true);
    }

    fn ran(&self, body: &[u8]) -> u32 {
        self.counts.lock().get(body).copied().unwrap_or(0)
    }
}

async fn run(this: &Probe, call: &Call) -> Result<Answer, Refusal> {
    let payload = match call.method {
        ECHO => call.payload.clone(),
        COUNT => {
            *this.counts.lock().entry(call.body.clone()).or_default() += 1;
            let spread = call.body.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            sleep(Duration::from_millis(spread % 4)).await;
            Bytes::new()
        }
        WAIT => {
            this.waiting.fetch_add(1, SeqCst);
            _ = this.open.subscribe().wait_for(|open| *open).await;
            this.waiting.fetch_sub(1, SeqCst);
            Bytes::new()
        }
        REFUSE => {
            return Err(Refusal {
                code: 77,
                detail: call.body.clone(),
            });
        }
        GIVE => {
            let len = u64::from_le_bytes(call.body[..].try_into().unwrap());
            Bytes::from(vec![7; len as usize])
        }
        other => panic!("planted: method {other}"),
    };
    Ok(Answer {
        body: call.body.clone(),
        payload,
    })
}

struct Serving(Arc<Probe>);

impl Service for Serving {
    fn call(
        &self,
        from: PeerName,
        call: Call,
        _deadline: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>> {
        let probe = Arc::clone(&self.0);
        probe.callers.lock().push(from);
        Box::pin(async move { run(&probe, &call).await })
    }

    fn cast(&self, from: PeerName, call: Call) {
        self.0.casts.lock().push((from, call.body));
    }

    fn link(&self, peer: PeerName, up: bool) {
        self.0.links.lock().push((peer, up));
    }

    fn round_trip(&self, peer: PeerName, took: Duration, note: &[u8]) {
        self.0.round_trips.lock().push((peer, took, note.to_vec()));
    }
}

/// A cluster's authority.
struct Cluster(ClusterCa);

impl Cluster {
    fn new() -> Self {
        Self(ClusterCa::create(ClusterId::random().unwrap()).unwrap())
    }

    fn identity(&self, name: PeerName) -> Identity {
        let key = NodeKey::generate().unwrap();
        let (certificate, _) = self.0.issue(&key.request().unwrap(), name).unwrap();
        Identity::new(&key, &certificate, self.0.certificate()).unwrap()
    }

    fn config(&self, name: PeerName) -> NetConfig {
        NetConfig::new(self.identity(name), LOOPBACK.parse().unwrap())
    }

    async fn start(&self, name: PeerName) -> Node {
        Node::start(self.config(name)).await
    }

    /// Two nodes that know each other.
    async fn pair(&self, change: impl Fn(&mut NetConfig)) -> (Node, Node) {
        let mut configs = [n(1), n(2)].map(|name| self.config(name));
        configs.iter_mut().for_each(change);
        let [first, second] = configs;
        let (first, second) = (Node::start(first).await, Node::start(second).await);
        first.knows(&second);
        second.knows(&first);
        (first, second)
    }
}

struct Node {
    net: Network,
    probe: Arc<Probe>,
}

impl Node {
    async fn start(config: NetConfig) -> Self {
        let probe = Probe::new();
        let service = Arc::new(Serving(Arc::clone(&probe)));
        let net = Network::start(config, service).await.unwrap();
        Self { net, probe }
    }

    fn name(&self) -> PeerName {
        self.net.name()
    }

    fn address(&self) -> SocketAddr {
        self.net.local_addr()
    }

    fn knows(&self, other: &Self) {
        self.net.set_address(other.name(), other.address());
    }

    async fn ask(&self, to: &Self, call: Call) -> Result<Answer, CallError> {
        self.net.call(to.name(), call, OPTIONS).await
    }

    fn ended(&self, reason: &str) -> u64 {
        let stats = self.net.stats();
        stats.disconnects.get(reason).copied().unwrap_or(0)
    }
}

const OPTIONS: CallOptions = CallOptions {
    deadline: Duration::from_secs(10),
    priority: Priority::Meta,
    retry: Retry::Same,
};

fn call(method: u16, body: impl Into<Bytes>) -> Call {
    Call {
        method,
        body: body.into(),
        payload: Bytes::new(),
    }
}

/// Waits for a condition, and fails after 10 s.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(10), "never: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}
