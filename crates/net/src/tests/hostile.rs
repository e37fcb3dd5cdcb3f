use perigee_types::Rng;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Cluster, ECHO, Node, call, n, until};
use crate::frame::{HEADER_LEN, Kind};
use crate::hello::{Hello, LaneName};
use crate::limits::Limits;
use crate::queue::Outgoing;
use crate::tls::client_config;
use crate::{Identity, PROTOCOL, Priority};

fn bytes_of(frame: &Outgoing) -> Vec<u8> {
    let mut bytes = frame.header(0, std::time::Instant::now()).to_vec();
    bytes.extend_from_slice(&frame.body);
    bytes.extend_from_slice(&frame.payload);
    bytes
}

fn cast(payload_len: usize) -> Vec<u8> {
    let payload = vec![5; payload_len].into();
    bytes_of(&Outgoing::new(Kind::Cast, Priority::Meta, 9, 0).with_content("body".into(), payload))
}

/// A member that can say anything.
struct Rogue(TlsStream<TcpStream>);

impl Rogue {
    async fn connect(identity: &Identity, node: &Node) -> Self {
        let connector = TlsConnector::from(client_config(identity).unwrap());
        let socket = TcpStream::connect(node.address()).await.unwrap();
        let dns = node.name().dns(identity.cluster()).unwrap();
        let stream = connector.connect(dns.try_into().unwrap(), socket).await;
        Self(stream.unwrap())
    }

    /// A connection that has said hello and was welcome.
    async fn enter(identity: &Identity, node: &Node, incarnation: u64) -> Self {
        let mut rogue = Self::connect(identity, node).await;
        let hello = Hello {
            versions: PROTOCOL,
            lane: LaneName::Urgent,
            cluster: identity.cluster(),
            incarnation,
        };
        rogue.say(&bytes_of(&hello.frame())).await;
        let mut welcome = [0; HEADER_LEN + 13];
        rogue.0.read_exact(&mut welcome).await.unwrap();
        assert_eq!(welcome[HEADER_LEN], 0);
        rogue
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// Reads until the other side closes; false when it does not.
    async fn is_cut_off(&mut self) -> bool {
        let mut rest = Vec::new();
        // an error is an end too
        timeout(Duration::from_secs(5), self.0.read_to_end(&mut rest))
            .await
            .is_ok()
    }
}

/// Frames that nobody may send, and the reason under which each is counted.
fn bad_frames() -> Vec<(&'static str, Vec<u8>)> {
    let good = cast(100);
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let too_long = (Limits::default().payload_max as u32 + 1).to_le_bytes();
    let answer = Outgoing::new(Kind::Answer, Priority::Meta, 0, 1);
    vec![
        ("frame_format", changed(0, &[9])),
        ("frame_kind", changed(1, &[99])),
        ("frame_field", changed(3, &[4])),
        ("frame_too_long", changed(32, &too_long)),
        ("frame_too_long", changed(28, &[0xff; 4])),
        ("frame_checksum", changed(50, &[0xff])),
        ("frame_checksum", changed(8, &[1])),
        ("frame_unexpected", bytes_of(&answer)),
    ]
}

#[tokio::test]
async fn a_bad_frame_disconnects_its_sender_alone_and_is_counted() {
    let cluster = Cluster::new();
    let (node, honest) = (cluster.start(n(1)).await, cluster.start(n(2)).await);
    honest.knows(&node);
    let rogue = cluster.identity(n(9));
    honest.ask(&node, call(ECHO, "")).await.unwrap();
    for (turn, (reason, bytes)) in bad_frames().into_iter().enumerate() {
        let before = node.ended(reason);
        let mut bad = Rogue::enter(&rogue, &node, turn as u64).await;
        // what came before the bad frame is taken
        bad.say(&[cast(10), bytes].concat()).await;
        assert!(bad.is_cut_off().await, "{reason}");
        until(reason, || node.ended(reason) == before + 1).await;
        assert_eq!(node.probe.casts.lock().len(), turn + 1, "{reason}");
        honest.ask(&node, call(ECHO, "still here")).await.unwrap();
    }
    assert_eq!(honest.net.stats().peers[&n(1)].connects, 1);
}

#[tokio::test]
async fn a_connection_that_ends_inside_a_frame_delivers_none_of_it() {
    let cluster = Cluster::new();
    let node = cluster.start(n(1)).await;
    let rogue = cluster.identity(n(9));
    for (turn, len) in [1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 50]
        .into_iter()
        .enumerate()
    {
        let mut bad = Rogue::enter(&rogue, &node, 7).await;
        bad.say(&cast(100)[..len]).await;
        bad.0.shutdown().await.unwrap();
        until("truncated", || {
            node.ended("frame_truncated") == turn as u64 + 1
        })
        .await;
    }
    assert!(node.probe.casts.lock().is_empty());
}

#[tokio::test]
async fn noise_after_the_handshake_never_harms() {
    let cluster = Cluster::new();
    let node = cluster.start(n(1)).await;
    let rogue = cluster.identity(n(9));
    let mut rng = Rng::new(41);
    for turn in 0..40 {
        let mut bad = if turn % 2 == 0 {
            Rogue::enter(&rogue, &node, turn).await
        } else {
            Rogue::connect(&rogue, &node).await
        };
        let mut noise: Vec<u8> = (0..200).map(|_| rng.next_u64() as u8).collect();
        noise[0] = (rng.next_u64() % 3) as u8;
        bad.say(&noise).await;
        bad.0.shutdown().await.unwrap();
        assert!(bad.is_cut_off().await);
    }
    assert!(node.probe.casts.lock().is_empty() && node.probe.callers.lock().is_empty());
}

#[tokio::test]
async fn a_peer_that_is_slow_is_disconnected_at_each_stage() {
    let cluster = Cluster::new();
    let mut config = cluster.config(n(1));
    config.limits.handshake_timeout = Duration::from_millis(100);
    config.limits.ping_interval = Duration::from_millis(50);
    config.limits.idle_timeout = Duration::from_millis(200);
    config.limits.frame_timeout = Duration::from_millis(400);
    let node = Node::start(config).await;
    let rogue = cluster.identity(n(9));

    let silent = TcpStream::connect(node.address()).await.unwrap();
    until("no TLS", || node.ended("handshake_timeout") == 1).await;
    let mute = Rogue::connect(&rogue, &node).await;
    until("no hello", || {
        node.ended("handshake_timeout") + node.ended("idle") == 2
    })
    .await;
    let idle_before = node.ended("idle");
    let idle = Rogue::enter(&rogue, &node, 1).await;
    until("idle", || node.ended("idle") == idle_before + 1).await;
    drop((silent, mute, idle));

    let mut trickle = Rogue::enter(&rogue, &node, 2).await;
    for byte in cast(1000) {
        if node.ended("slow_frame") == 1 || trickle.0.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until("slow frame", || node.ended("slow_frame") == 1).await;
    assert!(node.probe.casts.lock().is_empty());
}

#[tokio::test]
async fn handshakes_at_once_are_bounded() {
    let cluster = Cluster::new();
    let mut config = cluster.config(n(1));
    config.limits.handshakes_max = 3;
    let node = Node::start(config).await;
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(TcpStream::connect(node.address()).await.unwrap());
    }
    until("refused", || node.ended("too_many_handshakes") == 2).await;
    drop(silent);
    let honest = cluster.start(n(2)).await;
    honest.knows(&node);
    honest.ask(&node, call(ECHO, "")).await.unwrap();
}
