//! Where the control store is: one process, or several of which each will do.
//!
//! All have one name and one record, and calls know one of them from the next by its number, as they know a process
//! from the one before. So going to another is as if the one had started again, elsewhere. One that is reached may
//! still do nothing: it is cut off from the etcd that has the record.

use parking_lot::Mutex;
use perigee_cluster::Directory;
use perigee_cluster::rebuild::Copy;
use perigee_net::{Network, PeerName};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tracing::info;

/// How often it is looked whether the process that is asked can be reached: a watch always has a question on its way.
const LOOK: Duration = Duration::from_millis(250);
/// Looks in a row that find no connection before the next process is tried: two handshakes.
const LOOKS: u32 = 2;
/// The same after several were tried in vain: on a busy machine a handshake takes longer, and must not be too late each
/// time.
const LOOKS_MAX: u32 = 16;
/// Renewals of the sign of life in a row that may fail, each after seconds, before the next process is tried.
const FAILURES: u32 = 2;

/// The addresses, and the one that is asked.
#[derive(Debug)]
pub(crate) struct ControlPlaces {
    network: Network,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Those of the node's own configuration, which are never forgotten.
    configured: Vec<SocketAddr>,
    all: Vec<SocketAddr>,
    asked: SocketAddr,
    /// Failures in a row of what was asked.
    failures: u32,
}

impl ControlPlaces {
    /// Asks the first of `configured`, of which there is one at least; `copy`: what an earlier process knew.
    pub(crate) fn new(
        network: Network,
        first: SocketAddr,
        configured: Vec<SocketAddr>,
        copy: &Copy,
    ) -> Arc<Self> {
        network.set_address(PeerName::Control, first);
        let places = Self {
            network,
            known: Mutex::new(Known {
                all: configured.clone(),
                configured,
                asked: first,
                failures: 0,
            }),
        };
        if let Ok(directory) = Directory::from_list(&copy.records, copy.revision) {
            places.learn(&directory);
        }
        Arc::new(places)
    }

    /// Takes over what the record says of processes.
    pub(crate) fn learn(&self, directory: &Directory) {
        let controls = directory.controls.values();
        let told = controls.map(|known| known.record.address);
        let mut known = self.known.lock();
        let mut all = known.configured.clone();
        all.extend(told);
        all.sort_unstable();
        all.dedup();
        known.all = all;
    }

    /// The address that is asked.
    pub(crate) fn asked(&self) -> SocketAddr {
        self.known.lock().asked
    }

    /// All addresses.
    pub(crate) fn all(&self) -> Vec<SocketAddr> {
        self.known.lock().all.clone()
    }

    /// Goes on to the next process whenever the one that is asked cannot be reached.
    pub(crate) async fn keep_reachable(self: Arc<Self>) {
        let (mut away, mut looks) = (0, LOOKS);
        loop {
            tokio::time::sleep(LOOK).await;
            let stats = self.network.stats();
            let peer = stats.peers.get(&PeerName::Control);
            let is_reached = peer.is_some_and(|peer| peer.connections > 0);
            if is_reached {
                (away, looks) = (0, LOOKS);
                continue;
            }
            away += 1;
            if away >= looks {
                (away, looks) = (0, (looks * 2).min(LOOKS_MAX));
                self.ask_the_next(&mut self.known.lock());
            }
        }
    }

    /// Takes note of whether the process that is asked did what it was asked for.
    pub(crate) fn note(&self, done: bool) {
        let mut known = self.known.lock();
        known.failures = if done { 0 } else { known.failures + 1 };
        if known.failures >= FAILURES {
            known.failures = 0;
            if self.ask_the_next(&mut known) == Goes::Elsewhere {
                // It is connected, and would be asked on.
                self.network.disconnect(PeerName::Control);
            }
        }
    }

    fn ask_the_next(&self, known: &mut Known) -> Goes {
        let at = known.all.iter().position(|address| *address == known.asked);
        let next = at.map_or(0, |at| (at + 1) % known.all.len().max(1));
        match known.all.get(next).copied() {
            Some(next) if next != known.asked => {
                info!(from = %known.asked, to = %next, "asks another process of the control store");
                known.asked = next;
                self.network.set_address(PeerName::Control, next);
                Goes::Elsewhere
            }
            Some(_) | None => Goes::Nowhere,
        }
    }
}

/// Whether there is another process to ask.
#[derive(Debug, PartialEq, Eq)]
enum Goes {
    Elsewhere,
    Nowhere,
}
