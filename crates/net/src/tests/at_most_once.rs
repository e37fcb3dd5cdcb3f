use perigee_types::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::sleep;

use super::{COUNT, Cluster, Node, OPTIONS, WAIT, call, n, until};
use crate::{CallError, CallOptions, NetConfig, Priority, Retry};

fn restless(config: &mut NetConfig) {
    config.limits.backoff_min = Duration::from_millis(2);
    config.limits.backoff_max = Duration::from_millis(10);
}

/// Cuts connections of both sides at random until told to stop.
async fn cut_at_random(first: crate::Network, second: crate::Network, stop: Arc<AtomicBool>) {
    let mut rng = Rng::new(7);
    while !stop.load(SeqCst) {
        sleep(Duration::from_millis(5 + rng.below(30))).await;
        if rng.chance(1, 2) {
            first.disconnect(n(2));
        } else {
            second.disconnect(n(1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_runs_exactly_once_while_connections_are_cut() {
    for streams in [1, 4] {
        exactly_once(streams).await;
    }
}

async fn exactly_once(streams: u8) {
    let (first, second) = Cluster::new().pair(restless).await;
    first.net.set_streams(n(2), streams);
    let stop = Arc::new(AtomicBool::new(false));
    let cutter = tokio::spawn(cut_at_random(
        first.net.clone(),
        second.net.clone(),
        stop.clone(),
    ));
    let mut callers = Vec::new();
    for caller in 0..16_u32 {
        let net = first.net.clone();
        callers.push(tokio::spawn(async move {
            for turn in 0..60_u32 {
                let priority = [Priority::Meta, Priority::Data][turn as usize % 2];
                let options = CallOptions {
                    priority,
                    ..OPTIONS
                };
                let body = [caller.to_le_bytes(), turn.to_le_bytes()].concat();
                net.call(n(2), call(COUNT, body), options).await.unwrap();
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    stop.store(true, SeqCst);
    cutter.await.unwrap();
    let counts = second.probe.counts.lock();
    assert_eq!(counts.len(), 16 * 60);
    assert!(counts.values().all(|count| *count == 1));
    let stats = &first.net.stats().peers[&n(2)];
    assert!(
        stats.connects > 5,
        "too calm: {} connections",
        stats.connects
    );
    assert!(stats.calls_repeated > 0, "no call was ever repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_must_not_be_repeated_run_at_most_once_and_say_when_unsure() {
    let (first, second) = Cluster::new().pair(restless).await;
    let stop = Arc::new(AtomicBool::new(false));
    let cutter = tokio::spawn(cut_at_random(
        first.net.clone(),
        second.net.clone(),
        stop.clone(),
    ));
    let mut lost = 0;
    for turn in 0..300_u32 {
        let options = CallOptions {
            retry: Retry::Never,
            ..OPTIONS
        };
        let body = turn.to_le_bytes().to_vec();
        match first
            .net
            .call(n(2), call(COUNT, body.clone()), options)
            .await
        {
            Ok(_) => assert_eq!(second.probe.ran(&body), 1),
            Err(CallError::Lost) => lost += 1,
            Err(CallError::Unreachable { .. }) => assert_eq!(second.probe.ran(&body), 0),
            Err(other) => panic!("{other}"),
        }
    }
    stop.store(true, SeqCst);
    cutter.await.unwrap();
    assert!(second.probe.counts.lock().values().all(|count| *count == 1));
    assert!(lost > 0, "no call was ever cut");
}

#[tokio::test]
async fn a_repeat_waits_for_the_call_that_runs() {
    let (first, second) = Cluster::new().pair(restless).await;
    let asked = tokio::spawn({
        let net = first.net.clone();
        async move { net.call(n(2), call(WAIT, "x"), OPTIONS).await }
    });
    until("running", || second.probe.waiting() == 1).await;
    for round in 1..4 {
        first.net.disconnect(n(2));
        until("repeated", || {
            first.net.stats().peers[&n(2)].calls_repeated == round
        })
        .await;
    }
    sleep(Duration::from_millis(20)).await;
    assert_eq!(second.probe.waiting(), 1);
    second.probe.open_gate();
    assert_eq!(asked.await.unwrap().unwrap().body, "x");
}

#[tokio::test]
async fn a_call_that_a_dead_process_may_have_run_is_not_repeated_to_its_successor() {
    let cluster = Cluster::new();
    let (first, old) = cluster.pair(restless).await;
    let asked = tokio::spawn({
        let net = first.net.clone();
        async move { net.call(n(2), call(WAIT, ""), OPTIONS).await }
    });
    until("running", || old.probe.waiting() == 1).await;
    let unsent = tokio::spawn({
        let net = first.net.clone();
        let options = CallOptions {
            priority: Priority::Data,
            ..OPTIONS
        };
        async move { net.call(n(2), call(COUNT, "new"), options).await }
    });
    unsent.await.unwrap().unwrap();
    let address = old.address();
    drop(old);
    let successor = loop {
        let mut config = cluster.config(n(2));
        config.listen = address;
        let probe = super::Probe::new();
        let service = Arc::new(super::Serving(Arc::clone(&probe)));
        match crate::Network::start(config, service).await {
            Ok(net) => break Node { net, probe },
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    };
    assert_eq!(asked.await.unwrap(), Err(CallError::Lost));
    assert_eq!(successor.probe.waiting(), 0);
    first.ask(&successor, call(COUNT, "again")).await.unwrap();
}

#[tokio::test]
async fn two_processes_with_one_name_do_not_disturb_each_other() {
    let cluster = Cluster::new();
    let server = cluster.start(n(1)).await;
    let (daemon, command) = (cluster.start(n(2)).await, cluster.start(n(2)).await);
    for turn in 0..20_u8 {
        for (process, tag) in [(&daemon, 0), (&command, 1)] {
            process.knows(&server);
            process
                .ask(&server, call(COUNT, vec![turn, tag]))
                .await
                .unwrap();
        }
    }
    assert_eq!(server.probe.counts.lock().len(), 40);
    assert_eq!(daemon.net.stats().peers[&n(1)].connects, 1);
}
