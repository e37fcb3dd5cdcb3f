use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

use super::{Cluster, ECHO, GIVE, Node, OPTIONS, PANIC, REFUSE, WAIT, call, n, until};
use crate::{
    Call, CallError, CallOptions, ConnectError, NOTE_LEN_MAX, PeerName, Priority, Refusal, Retry,
};

#[tokio::test]
async fn payloads_of_every_size_travel_both_ways_on_every_priority() {
    let (first, _second) = Cluster::new().pair(|_| {}).await;
    let priorities = [
        Priority::Control,
        Priority::Meta,
        Priority::Data,
        Priority::Background,
    ];
    for (turn, len) in [0, 1, 8191, 8193, 16_384, 300_000, 1 << 20, 16 << 20]
        .into_iter()
        .enumerate()
    {
        let payload: Bytes = (0..len).map(|i: u32| (i % 251) as u8).collect();
        let request = Call {
            payload: payload.clone(),
            ..call(ECHO, vec![turn as u8; turn * 1000])
        };
        let options = CallOptions {
            priority: priorities[turn % 4],
            ..OPTIONS
        };
        let answer = first.net.call(n(2), request, options).await.unwrap();
        assert_eq!(answer.body, vec![turn as u8; turn * 1000]);
        assert!(answer.payload == payload, "{len}");
    }
}

#[tokio::test]
async fn refusals_and_failures_are_told_apart() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    assert_eq!(
        first.ask(&second, call(REFUSE, "why")).await,
        Err(CallError::Refused(Refusal {
            code: 77,
            detail: Bytes::from("why"),
        }))
    );
    assert_eq!(
        first.ask(&second, call(PANIC, "")).await,
        Err(CallError::Failed)
    );
    let too_long = 16_u64 << 20 | 1;
    assert_eq!(
        first
            .ask(&second, call(GIVE, too_long.to_le_bytes().to_vec()))
            .await,
        Err(CallError::AnswerTooLarge)
    );
    let body_max = 1 << 20;
    assert_eq!(
        first.ask(&second, call(ECHO, vec![0; body_max + 1])).await,
        Err(CallError::TooLarge {
            what: "body",
            len: body_max + 1,
            max: body_max
        })
    );
    first
        .ask(&second, call(ECHO, vec![0; body_max]))
        .await
        .unwrap();
    assert_eq!(first.net.stats().peers[&n(2)].connects, 1);
}

#[tokio::test]
async fn a_call_to_oneself_needs_no_connection() {
    let node = Cluster::new().start(n(1)).await;
    node.ask(&node, call(ECHO, "me")).await.unwrap();
    assert_eq!(
        node.ask(&node, call(PANIC, "")).await,
        Err(CallError::Failed)
    );
    assert!(matches!(
        node.ask(&node, call(REFUSE, "")).await,
        Err(CallError::Refused(_))
    ));
    for at in 0..100_u8 {
        node.net.cast(n(1), call(0, vec![at]), Priority::Control);
    }
    until("cast", || node.probe.casts.lock().len() == 100).await;
    assert!(
        node.probe
            .casts
            .lock()
            .iter()
            .enumerate()
            .all(|(at, (_, body))| body[0] == at as u8)
    );
    let stats = node.net.stats();
    assert!(
        stats
            .peers
            .values()
            .all(|peer| peer.connects == 0 && peer.bytes_out == 0)
    );
}

#[tokio::test]
async fn a_deadline_ends_the_waiting_and_not_the_work() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    let short = CallOptions {
        deadline: Duration::from_millis(80),
        ..OPTIONS
    };
    let began = Instant::now();
    let late = first.net.call(n(2), call(WAIT, ""), short).await;
    assert_eq!(late, Err(CallError::DeadlineExceeded));
    assert!(began.elapsed() >= Duration::from_millis(80));
    assert_eq!(second.probe.waiting(), 1);
    second.probe.open_gate();
    until("run to its end", || second.probe.waiting() == 0).await;
    assert_eq!(
        first
            .net
            .call(n(2), call(ECHO, "x"), short)
            .await
            .unwrap()
            .body,
        "x"
    );
}

#[tokio::test]
async fn an_unreachable_peer_fails_a_call_at_once_or_at_its_deadline() {
    let cluster = Cluster::new();
    let node = cluster.start(n(1)).await;
    // a port that nobody listens on
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    node.net.set_address(n(2), gone.local_addr().unwrap());
    drop(gone);
    let once = CallOptions {
        retry: Retry::Never,
        ..OPTIONS
    };
    let began = Instant::now();
    let refused = node.net.call(n(2), call(ECHO, ""), once).await;
    assert!(matches!(
        refused,
        Err(CallError::Unreachable {
            cause: ConnectError::Io { .. },
            ..
        })
    ));
    assert!(began.elapsed() < Duration::from_secs(1));
    let patient = CallOptions {
        deadline: Duration::from_millis(100),
        ..OPTIONS
    };
    let refused = node.net.call(n(2), call(ECHO, ""), patient).await;
    assert!(
        matches!(refused, Err(CallError::Unreachable { .. })),
        "{refused:?}"
    );
    let stats = &node.net.stats().peers[&n(2)];
    // with pauses of 10 ms and more that double, not in a busy loop
    assert!(
        (2..=8).contains(&stats.connects_failed),
        "{}",
        stats.connects_failed
    );
    assert_eq!(stats.queue_bytes, 0);
}

#[tokio::test]
async fn a_call_waits_for_a_peer_that_comes_late() {
    let cluster = Cluster::new();
    let first = cluster.start(n(1)).await;
    let asked = tokio::spawn({
        let net = first.net.clone();
        async move { net.call(n(2), call(ECHO, "late"), OPTIONS).await }
    });
    until("tried", || {
        first
            .net
            .stats()
            .peers
            .get(&n(2))
            .is_some_and(|peer| peer.connects_failed > 0)
    })
    .await;
    let second = cluster.start(n(2)).await;
    first.knows(&second);
    assert_eq!(asked.await.unwrap().unwrap().body, "late");
}

#[tokio::test]
async fn casts_arrive_in_order_and_their_losses_are_counted() {
    let cluster = Cluster::new();
    let (first, second) = (cluster.start(n(1)).await, cluster.start(n(2)).await);
    first.knows(&second);
    for at in 0..2000_u32 {
        first
            .net
            .cast(n(2), call(0, at.to_le_bytes().to_vec()), Priority::Control);
        if at % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    until("all", || second.probe.casts.lock().len() == 2000).await;
    let casts = second.probe.casts.lock().clone();
    assert!(
        casts
            .iter()
            .enumerate()
            .all(|(at, (from, body))| { *from == n(1) && body[..] == (at as u32).to_le_bytes() })
    );
    first.net.cast(n(3), call(0, "lost"), Priority::Control);
    first
        .net
        .cast(n(2), call(0, vec![0; 2 << 20]), Priority::Data);
    until("counted", || {
        first.net.stats().peers[&n(3)].casts_dropped == 1
    })
    .await;
    assert_eq!(first.net.stats().peers[&n(2)].casts_dropped, 1);
}

#[tokio::test]
async fn shutdown_ends_open_calls_and_waits_for_running_ones() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    let open = tokio::spawn({
        let net = first.net.clone();
        async move { net.call(n(2), call(WAIT, ""), OPTIONS).await }
    });
    until("running", || second.probe.waiting() == 1).await;
    first.net.shutdown().await;
    assert_eq!(open.await.unwrap(), Err(CallError::Closed));
    assert_eq!(
        first.ask(&second, call(ECHO, "")).await,
        Err(CallError::Closed)
    );
    let (net, probe) = (second.net.clone(), second.probe.clone());
    let closing = tokio::spawn(async move { net.shutdown().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closing.is_finished());
    probe.open_gate();
    closing.await.unwrap();
    assert_eq!(probe.waiting(), 0);
}

#[tokio::test]
async fn a_network_that_is_dropped_stops() {
    let cluster = Cluster::new();
    let node = cluster.start(n(1)).await;
    let address = node.address();
    drop(node);
    let mut tries = 0;
    while TcpListener::bind(address).await.is_err() {
        tries += 1;
        assert!(tries < 500, "still listening");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn round_trips_are_measured_and_bring_what_the_peer_tells_of_itself() {
    let (first, second) = Cluster::new()
        .pair(|config| {
            config.limits.ping_interval = Duration::from_millis(20);
        })
        .await;
    second.net.set_note(Bytes::from_static(b"here"));
    first.net.set_note(Bytes::from(vec![7; NOTE_LEN_MAX + 1]));
    // Nobody calls: a connection is all that it takes.
    first.net.reach(n(2));
    let rtt = |node: &Node, peer| {
        let stats = node.net.stats();
        stats.peers.get(&peer).and_then(|stats| stats.rtt)
    };
    until("measured by both", || {
        rtt(&first, n(2)).is_some() && rtt(&second, n(1)).is_some()
    })
    .await;
    assert!(rtt(&first, n(2)).unwrap() < Duration::from_secs(1));
    for (node, peer, note) in [
        (&first, n(2), b"here".to_vec()),
        (&second, n(1), vec![7; NOTE_LEN_MAX]),
    ] {
        let told = node.probe.round_trips.lock().clone();
        let good = |(from, took, said): &(PeerName, Duration, Vec<u8>)| {
            *from == peer && *took < Duration::from_secs(1) && *said == note
        };
        assert!(!told.is_empty() && told.iter().all(good), "{told:?}");
    }
}

#[tokio::test]
async fn who_cannot_be_reached_is_not_tried_for_ever() {
    let first = Cluster::new().start(n(1)).await;
    first.net.set_address(n(2), ([127, 0, 0, 1], 1).into());
    first.net.reach(n(2));
    let peer = || first.net.stats().peers.remove(&n(2)).unwrap_or_default();
    until("tried", || peer().connects_failed > 0).await;
    until("nothing waits for it", || peer().queue_bytes == 0).await;
}

#[tokio::test]
async fn a_thread_outside_the_runtime_may_make_the_first_cast_to_a_peer() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    let net = first.net.clone();
    let outside =
        std::thread::spawn(move || net.cast(n(2), call(0, "from outside"), Priority::Data));
    outside.join().unwrap();
    until("cast", || second.probe.casts.lock().len() == 1).await;
}
