use std::time::{Duration, Instant};

use super::{Cluster, ECHO, OPTIONS, call, n};
use crate::{Merging, PeerStats};

const CALLERS: u64 = 64;
const TURNS: u64 = 30;

/// What the calling side counted while many callers called at once.
async fn under_load(merging: Merging) -> PeerStats {
    let (first, _second) = Cluster::new().pair(|config| config.merging = merging).await;
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let net = first.net.clone();
        callers.push(tokio::spawn(async move {
            for _ in 0..TURNS {
                net.call(n(2), call(ECHO, "x"), OPTIONS).await.unwrap();
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    first.net.stats().peers[&n(2)].clone()
}

#[tokio::test]
async fn without_merging_every_frame_is_a_write() {
    let stats = under_load(Merging::Off).await;
    assert!(stats.frames_out >= CALLERS * TURNS);
    assert_eq!((stats.writes, stats.frames_merged), (stats.frames_out, 0));
}

#[tokio::test]
async fn adaptive_merging_sends_what_waits_in_one_write() {
    let stats = under_load(Merging::Adaptive).await;
    assert!(stats.frames_out >= CALLERS * TURNS);
    assert!(
        stats.writes * 4 < stats.frames_out,
        "{} writes of {} frames",
        stats.writes,
        stats.frames_out
    );
    assert!(stats.frames_merged * 10 > stats.frames_out * 9);
    assert_eq!(stats.queue_lengths.iter().sum::<u64>(), stats.writes);
}

#[tokio::test]
async fn a_watermark_merges_its_number_of_frames() {
    let stats = under_load(Merging::Fixed(4)).await;
    assert!(stats.frames_out >= CALLERS * TURNS);
    // a write has at most 4 frames, and mostly has 4
    assert!(stats.writes * 4 >= stats.frames_out);
    assert!(
        stats.writes * 3 < stats.frames_out,
        "{} writes of {} frames",
        stats.writes,
        stats.frames_out
    );
}

#[tokio::test]
async fn a_watermark_that_is_not_reached_delays_and_adaptive_merging_does_not() {
    let mut took = Vec::new();
    for merging in [Merging::Adaptive, Merging::Fixed(8)] {
        let (first, second) = Cluster::new()
            .pair(|config| {
                config.merging = merging;
                config.limits.watermark_wait = Duration::from_millis(20);
            })
            .await;
        first.ask(&second, call(ECHO, "")).await.unwrap();
        let began = Instant::now();
        for _ in 0..10 {
            first.ask(&second, call(ECHO, "")).await.unwrap();
        }
        took.push(began.elapsed());
        // Of the time of a call, so much are the queues at both ends and the service; the rest is on its way.
        let [here, there] = [(&first, n(2)), (&second, n(1))].map(|(node, peer)| {
            let stats = node.net.stats();
            stats.peers[&peer].clone()
        });
        assert_eq!((here.calls, there.served), (11, 11));
        assert!(here.calls_took > here.waited + there.waited + there.serving_took);
        let waits = here.waited.min(there.waited) > Duration::from_millis(190);
        assert_eq!(waits, merging != Merging::Adaptive, "{here:?} {there:?}");
    }
    // call and answer wait for company that does not come: twice 20 ms, ten times
    assert!(took[1] > Duration::from_millis(390), "{took:?}");
    assert!(took[0] < took[1] / 2, "{took:?}");
}
