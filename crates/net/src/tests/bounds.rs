use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::time::sleep;

use super::{Cluster, ECHO, GIVE, Node, OPTIONS, WAIT, call, n, until};
use crate::{Call, CallOptions, Priority};

const DATA: CallOptions = CallOptions {
    priority: Priority::Data,
    ..OPTIONS
};

fn with_payload(method: u16, len: usize) -> Call {
    Call {
        payload: Bytes::from(vec![1; len]),
        ..call(method, "")
    }
}

#[tokio::test]
async fn requests_at_work_are_bounded_by_bytes_for_each_peer() {
    let cluster = Cluster::new();
    let mut config = cluster.config(n(1));
    config.limits.in_flight_bytes_max = 4 << 20;
    let (node, greedy, modest) = (
        Node::start(config).await,
        cluster.start(n(2)).await,
        cluster.start(n(3)).await,
    );
    greedy.knows(&node);
    modest.knows(&node);
    let mut asked = Vec::new();
    for _ in 0..20 {
        let net = greedy.net.clone();
        asked.push(tokio::spawn(async move {
            net.call(n(1), with_payload(WAIT, 1 << 20), DATA).await
        }));
    }
    until("at the bound", || node.probe.waiting() >= 4).await;
    sleep(Duration::from_millis(100)).await;
    // a request is taken whole once it has begun: the bound, and one more
    assert!(
        node.probe.waiting() <= 5,
        "{} at work",
        node.probe.waiting()
    );
    // another peer, and another lane of the same peer, are not held up
    modest
        .net
        .call(n(1), with_payload(ECHO, 1 << 20), DATA)
        .await
        .unwrap();
    greedy.ask(&node, call(ECHO, "")).await.unwrap();
    node.probe.open_gate();
    for call in asked {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn answers_that_are_not_taken_hold_the_bound_too() {
    let cluster = Cluster::new();
    let mut config = cluster.config(n(1));
    config.limits.in_flight_bytes_max = 1 << 20;
    let (node, caller) = (Node::start(config).await, cluster.start(n(2)).await);
    caller.knows(&node);
    let mut asked = Vec::new();
    for _ in 0..64 {
        let net = caller.net.clone();
        let request = call(GIVE, (1_u64 << 20).to_le_bytes().to_vec());
        asked.push(tokio::spawn(
            async move { net.call(n(1), request, DATA).await },
        ));
    }
    for call in asked {
        assert_eq!(call.await.unwrap().unwrap().payload.len(), 1 << 20);
    }
}

#[tokio::test]
async fn a_full_queue_makes_calls_wait_and_loses_none() {
    let (first, second) = Cluster::new()
        .pair(|config| config.limits.queue_bytes_max = 300 << 10)
        .await;
    let mut asked = Vec::new();
    for _ in 0..50 {
        let net = first.net.clone();
        asked.push(tokio::spawn(async move {
            net.call(n(2), with_payload(ECHO, 100 << 10), DATA).await
        }));
    }
    while !asked.iter().all(|call| call.is_finished()) {
        assert!(
            first
                .net
                .stats()
                .peers
                .get(&n(2))
                .is_none_or(|peer| peer.queue_bytes <= 300 << 10)
        );
        sleep(Duration::from_millis(1)).await;
    }
    for call in asked {
        call.await.unwrap().unwrap();
    }
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_data_goes_over_as_many_connections_as_are_allowed() {
    for streams in [1, 3] {
        let (first, second) = Cluster::new().pair(|_| {}).await;
        first.net.set_streams(n(2), streams);
        let connections = || {
            let stats = first.net.stats();
            stats.peers.get(&n(2)).map_or(0, |peer| peer.connections)
        };
        let mut asked = Vec::new();
        // Each waits for an answer: more go where there is least to do, and a single one opens nothing.
        for number in 1..=12 {
            let net = first.net.clone();
            asked.push(tokio::spawn(async move {
                net.call(n(2), call(WAIT, ""), DATA).await
            }));
            until("at work", || second.probe.waiting() == number).await;
            if number == 1 {
                assert_eq!(connections(), 1);
            }
        }
        until("connected", || connections() == usize::from(streams)).await;
        second.probe.open_gate();
        for call in asked {
            call.await.unwrap().unwrap();
        }
        assert_eq!(connections(), usize::from(streams));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_is_not_held_up_by_bulk_data() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    first
        .net
        .call(n(2), with_payload(ECHO, 1 << 20), DATA)
        .await
        .unwrap();
    let control = CallOptions {
        priority: Priority::Control,
        ..OPTIONS
    };
    first.net.call(n(2), call(ECHO, ""), control).await.unwrap();
    let mut bulk = Vec::new();
    for _ in 0..60 {
        let net = first.net.clone();
        bulk.push(tokio::spawn(async move {
            net.call(n(2), with_payload(ECHO, 4 << 20), DATA).await
        }));
    }
    // let the bulk lane fill its queue
    until("queued", || {
        first.net.stats().peers[&n(2)].queue_bytes > 20 << 20
    })
    .await;
    let began = Instant::now();
    first.net.call(n(2), call(ECHO, ""), control).await.unwrap();
    let took = began.elapsed();
    let left = bulk.iter().filter(|call| !call.is_finished()).count();
    assert!(
        left > 10,
        "the bulk was over before control was, after {took:?}"
    );
    for call in bulk {
        call.await.unwrap().unwrap();
    }
    drop(second);
}
