//! What the transport moves over loopback, in one process and with TLS: `cargo run --release -p perigee-net --example
//! loopback [seconds]`. Prints small calls a second at several depths for each way of merging, and bytes a second of
//! 1 MiB payloads in each direction. Both ends run on this machine's cores, so a number is for both ends together.

use bytes::Bytes;
use perigee_net::{
    Answer, BoxFuture, Call, CallOptions, ClusterCa, ClusterId, Identity, Merging, NetConfig,
    Network, NodeKey, PeerName, PeerStats, Priority, Refusal, Retry, Service,
};
use perigee_types::NodeId;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const CLIENT: PeerName = PeerName::Node(NodeId(1));
const SERVER: PeerName = PeerName::Node(NodeId(2));
/// Gives an empty answer.
const PUT: u16 = 1;
/// Gives 1 MiB.
const GET: u16 = 2;
const PAYLOAD_LEN: usize = 1 << 20;

struct Target {
    content: Bytes,
}

impl Service for Target {
    fn call(
        &self,
        _from: PeerName,
        call: Call,
        _deadline: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>> {
        let payload = match call.method {
            GET => self.content.clone(),
            _ => Bytes::new(),
        };
        let body = call.body;
        Box::pin(async move { Ok(Answer { body, payload }) })
    }

    fn cast(&self, _from: PeerName, _call: Call) {}

    fn link(&self, _peer: PeerName, _up: bool) {}
}

async fn start(ca: &ClusterCa, name: PeerName, merging: Merging) -> Result<Network, Failure> {
    let key = NodeKey::generate()?;
    let (certificate, _) = ca.issue(&key.request()?, name)?;
    let identity = Identity::new(&key, &certificate, ca.certificate())?;
    let mut config = NetConfig::new(identity, "127.0.0.1:0".parse()?);
    config.merging = merging;
    let content = Bytes::from(vec![7; PAYLOAD_LEN]);
    Ok(Network::start(config, Arc::new(Target { content })).await?)
}

/// Calls a second with `depth` callers at once, and what was counted meanwhile.
async fn rate(
    net: &Network,
    call: &Call,
    priority: Priority,
    depth: usize,
    time: Duration,
) -> Result<(f64, PeerStats), Failure> {
    let options = CallOptions {
        deadline: Duration::from_secs(60),
        priority,
        retry: Retry::Same,
    };
    net.call(SERVER, call.clone(), options).await?;
    let before = net.stats().peers.remove(&SERVER).unwrap_or_default();
    let began = Instant::now();
    let callers: Vec<_> = (0..depth)
        .map(|_| {
            let (net, call) = (net.clone(), call.clone());
            tokio::spawn(async move {
                let mut calls = 0_u64;
                while began.elapsed() < time {
                    net.call(SERVER, call.clone(), options).await?;
                    calls += 1;
                }
                Ok::<_, perigee_net::CallError>(calls)
            })
        })
        .collect();
    let mut calls = 0;
    for caller in callers {
        calls += caller.await??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut after = net.stats().peers.remove(&SERVER).unwrap_or_default();
    after.frames_out -= before.frames_out;
    after.writes -= before.writes;
    Ok((calls as f64 / seconds, after))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let time = std::env::args()
        .nth(1)
        .map_or(Ok(2.0), |text| text.parse())?;
    let time = Duration::from_secs_f64(time);
    let ca = ClusterCa::create(ClusterId::random()?)?;
    let mut out = std::io::stdout();
    for merging in [Merging::Off, Merging::Fixed(4), Merging::Adaptive] {
        let (client, server) = (
            start(&ca, CLIENT, merging).await?,
            start(&ca, SERVER, merging).await?,
        );
        client.set_address(SERVER, server.local_addr());
        for depth in [1, 16, 64, 256] {
            let call = Call {
                method: PUT,
                body: Bytes::from(vec![1; 64]),
                payload: Bytes::new(),
            };
            let (calls, stats) = rate(&client, &call, Priority::Meta, depth, time).await?;
            let merged = stats.frames_out as f64 / stats.writes.max(1) as f64;
            writeln!(
                out,
                "{merging:?} 64 B depth {depth}: {calls:.0} calls/s, {merged:.1} frames a write"
            )?;
        }
        let content = Bytes::from(vec![3; PAYLOAD_LEN]);
        for (name, method, payload) in [("write", PUT, content), ("read", GET, Bytes::new())] {
            for depth in [1, 4, 16] {
                let call = Call {
                    method,
                    body: Bytes::new(),
                    payload: payload.clone(),
                };
                let (calls, _) = rate(&client, &call, Priority::Data, depth, time).await?;
                let gigabytes = calls * PAYLOAD_LEN as f64 / 1e9;
                writeln!(
                    out,
                    "{merging:?} {name} 1 MiB depth {depth}: {gigabytes:.2} GB/s"
                )?;
            }
        }
        client.shutdown().await;
        server.shutdown().await;
    }
    Ok(())
}
