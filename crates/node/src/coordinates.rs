//! Where this node is in the network, and how fast its disk is: measured here, told to all, decided about in
//! [`perigee_cluster::nearness`].
//!
//! Every answer to a ping brings a round trip and where the peer is, and takes along where this node is. Connections to
//! members of containers and to the hosts that use them have pings anyway; besides, a node keeps one to a few others by
//! chance, so that the maps of groups that have nothing to do with each other are one.

use crate::env::Env;
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_cluster::coordinate::{self, PROBES};
use perigee_cluster::{Coordinate, Vivaldi};
use perigee_net::PeerName;
use perigee_types::{NodeId, Rng, Span, Tick};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::debug;

/// How often peers may hear where this node is now.
const TOLD: Duration = Duration::from_secs(1);
/// How often the disk is asked how fast it is.
const DISK_ASKED: Duration = Duration::from_secs(600);
/// So many times, of which the fastest counts: the others say what else the disk had to do.
const DISK_TIMES: u32 = 8;
/// From one to the next.
const DISK_PAUSE: Duration = Duration::from_millis(700);
/// What is written there.
const DISK_PROBE: [u8; 4_096] = [0; 4_096];

// More of a note would not be sent.
const _: () = assert!(coordinate::NOTE_LEN_MAX <= perigee_net::NOTE_LEN_MAX);

/// What is known of the network and the disk.
#[derive(Debug)]
pub(crate) struct Coordinates {
    found: Mutex<Found>,
}

#[derive(Debug)]
struct Found {
    vivaldi: Vivaldi,
    rng: Rng,
    disk: Option<Span>,
}

impl Coordinates {
    pub(crate) fn new(seed: u64) -> Self {
        let found = Found {
            vivaldi: Vivaldi::default(),
            rng: Rng::new(seed),
            disk: None,
        };
        Self {
            found: Mutex::new(found),
        }
    }

    /// A peer has answered a ping, with what it tells of itself.
    pub(crate) fn on_round_trip(&self, now: Tick, node: NodeId, took: Duration, note: &[u8]) {
        let Some(told) = Coordinate::from_note(note) else {
            return;
        };
        let took = Span(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        let found = &mut *self.found.lock();
        let rng = &mut found.rng;
        found.vivaldi.on_round_trip(now, (node, told), took, rng);
    }

    /// Where this node is, as far as it knows.
    pub(crate) fn current(&self) -> Coordinate {
        self.found.lock().vivaldi.coordinate()
    }

    /// The round trips to others, without what stood in their way.
    pub(crate) fn round_trips(&self) -> Vec<(NodeId, Span)> {
        self.found.lock().vivaldi.round_trips().collect()
    }

    /// How long the disk takes to keep a few bytes for good.
    pub(crate) fn disk(&self) -> Option<Span> {
        self.found.lock().disk
    }

    /// What all should be told, if it differs enough from what they were.
    pub(crate) fn to_tell(&self, told: Option<Coordinate>) -> Option<Coordinate> {
        let found = self.found.lock();
        let vivaldi = &found.vivaldi;
        vivaldi.is_worth_telling(told).then(|| vivaldi.coordinate())
    }
}

/// Tells peers where this node is, and keeps a connection to a few of them.
pub(crate) async fn run(env: Arc<Env>) {
    let mut probes = BTreeSet::new();
    loop {
        let note = env.coordinates.current().to_note();
        env.network().set_note(Bytes::from(note));
        let live: Vec<NodeId> = {
            let directory = env.directory.read();
            let live = directory.live.keys().copied();
            live.filter(|node| *node != env.me).collect()
        };
        choose_probes(&mut probes, &live, &mut env.coordinates.found.lock().rng);
        for node in &probes {
            env.network().reach(PeerName::Node(*node));
        }
        tokio::time::sleep(TOLD).await;
    }
}

/// Those that are there stay; others are chosen by chance for those that are not.
fn choose_probes(probes: &mut BTreeSet<NodeId>, live: &[NodeId], rng: &mut Rng) {
    probes.retain(|node| live.contains(node));
    let mut others: Vec<NodeId> = live.to_vec();
    others.retain(|node| !probes.contains(node));
    while probes.len() < PROBES && !others.is_empty() {
        let which = rng.below(others.len() as u64) as usize;
        probes.insert(others.swap_remove(which));
    }
}

/// Measures the disk on which a directory lies, from time to time.
pub(crate) async fn measure_disk(env: Arc<Env>, dir: PathBuf) {
    let path = dir.join("disk-probe");
    loop {
        let mut fastest = None;
        for _ in 0..DISK_TIMES {
            let path = path.clone();
            match tokio::task::spawn_blocking(move || keep_a_few_bytes(&path)).await {
                Ok(Ok(took)) => {
                    fastest = Some(fastest.map_or(took, |fastest: Span| fastest.min(took)));
                }
                Ok(Err(error)) => debug!(%error, "the disk does not say how fast it is"),
                // It panics where the runtime stops.
                Err(_) => return,
            }
            tokio::time::sleep(DISK_PAUSE).await;
        }
        if fastest.is_some() {
            env.coordinates.found.lock().disk = fastest;
        }
        tokio::time::sleep(DISK_ASKED).await;
    }
}

fn keep_a_few_bytes(path: &Path) -> io::Result<Span> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let began = Instant::now();
    file.write_all_at(&DISK_PROBE, 0)?;
    file.sync_data()?;
    Ok(Span(
        u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_stay_while_they_live_and_others_take_their_place() {
        let mut rng = Rng::new(1);
        let live: Vec<NodeId> = (1..=20).map(NodeId).collect();
        let mut probes = BTreeSet::new();
        choose_probes(&mut probes, &live[..2], &mut rng);
        assert_eq!(probes.len(), 2, "there are no more");
        choose_probes(&mut probes, &live, &mut rng);
        assert_eq!(probes.len(), PROBES);
        let before = probes.clone();
        choose_probes(&mut probes, &live, &mut rng);
        assert_eq!(probes, before);
        let gone = *before.first().expect("there are some");
        let left: Vec<NodeId> = live.into_iter().filter(|node| *node != gone).collect();
        choose_probes(&mut probes, &left, &mut rng);
        assert!(!probes.contains(&gone) && probes.len() == PROBES);
        assert_eq!(probes.intersection(&before).count(), PROBES - 1);
    }

    #[test]
    fn a_disk_says_how_fast_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk-probe");
        let took = keep_a_few_bytes(&path).expect("it can be written");
        assert!(took > Span::ZERO);
        assert_eq!(std::fs::read(&path).expect("it is there"), DISK_PROBE);
        assert!(keep_a_few_bytes(&dir.path().join("no/such")).is_err());
    }
}
