//! What the transport moves over loopback, in one process and with TLS: `cargo run --release -p perigee-net --example
//! loopback [seconds]`. Prints small calls a second at several depths for each way of merging, and bytes a second of
//! 1 MiB payloads in each direction, and the processor time that both ends together took: it holds on a noisy machine.

use bytes::Bytes;
use perigee_net::{
    Answer, BoxFuture, Call, CallOptions, ClusterCa, ClusterId, Identity, Merging, NetConfig,
    Network, NodeKey, PeerName, Priority, Refusal, Retry, Service,
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

/// Processor time of this process so far, in seconds; the system counts it in hundredths.
fn processor_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let mut total = 0.0;
    for tick in ticks {
        total += tick.parse::<f64>()?;
    }
    Ok(total / 100.0)
}

struct Rate {
    calls_per_second: f64,
    processor_us_per_call: f64,
    frames_per_write: f64,
}

/// Calls with `depth` callers at once.
async fn rate(
    net: &Network,
    call: &Call,
    priority: Priority,
    depth: usize,
    time: Duration,
) -> Result<Rate, Failure> {
    let options = CallOptions {
        deadline: Duration::from_secs(60),
        priority,
        retry: Retry::Same,
    };
    net.call(SERVER, call.clone(), options).await?;
    let before = net.stats().peers.remove(&SERVER).unwrap_or_default();
    let used_before = processor_seconds()?;
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
    let used = processor_seconds()? - used_before;
    let after = net.stats().peers.remove(&SERVER).unwrap_or_default();
    let frames = after.frames_out - before.frames_out;
    let writes = after.writes - before.writes;
    Ok(Rate {
        calls_per_second: calls as f64 / seconds,
        processor_us_per_call: used * 1e6 / calls.max(1) as f64,
        frames_per_write: frames as f64 / writes.max(1) as f64,
    })
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
            let rate = rate(&client, &call, Priority::Meta, depth, time).await?;
            writeln!(
                out,
                "{merging:?} 64 B depth {depth}: {:.0} calls/s, {:.1} us of processor a call, {:.1} frames a write",
                rate.calls_per_second, rate.processor_us_per_call, rate.frames_per_write
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
                let rate = rate(&client, &call, Priority::Data, depth, time).await?;
                let gigabytes = PAYLOAD_LEN as f64 / 1e9;
                writeln!(
                    out,
                    "{merging:?} {name} 1 MiB depth {depth}: {:.2} GB/s, {:.2} s of processor a GB",
                    rate.calls_per_second * gigabytes,
                    rate.processor_us_per_call / 1e6 / gigabytes
                )?;
            }
        }
        client.shutdown().await;
        server.shutdown().await;
    }
    Ok(())
}
