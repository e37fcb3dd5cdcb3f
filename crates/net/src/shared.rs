//! What every connection of a process shares.

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::audit::{AUDIT, Refusals};
use crate::error::Ended;
use crate::gate::Gate;
use crate::identity::{ClusterId, PeerName, Serial};
use crate::limits::{Limits, Merging};
use crate::service::Service;
use crate::stats::{Counters, PeerCounters};

pub(crate) struct Shared {
    /// Where tasks run: a cast may come from a thread that the runtime does not know.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) name: PeerName,
    pub(crate) cluster: ClusterId,
    /// The number of this process: random, so that its calls are never taken for those of an earlier one.
    pub(crate) incarnation: u64,
    pub(crate) protocol: RangeInclusive<u16>,
    pub(crate) merging: Merging,
    pub(crate) limits: Limits,
    pub(crate) client_tls: Arc<rustls::ClientConfig>,
    pub(crate) server_tls: Arc<rustls::ServerConfig>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) counters: Counters,
    /// Bounds the lines about peers that are refused or break a rule.
    refusals: Refusals,
    pub(crate) addresses: RwLock<BTreeMap<PeerName, SocketAddr>>,
    /// What goes with every answer to a ping.
    pub(crate) note: RwLock<Bytes>,
    revoked: RwLock<BTreeSet<Serial>>,
    connections: Mutex<Connections>,
    pub(crate) stop: watch::Sender<bool>,
    /// Tasks of the transport.
    pub(crate) tasks: Gate,
    /// Calls that the service runs.
    pub(crate) runs: Gate,
    /// Where the time in pings begins.
    pub(crate) started: Instant,
}

#[derive(Default)]
struct Connections {
    next: u64,
    live: BTreeMap<u64, Live>,
}

struct Live {
    peer: PeerName,
    serial: Serial,
    cut: watch::Sender<Option<Ended>>,
}

/// A connection that is open. Dropping it takes it off the list.
pub(crate) struct Registered {
    shared: Arc<Shared>,
    number: u64,
    peer: PeerName,
    counters: Arc<PeerCounters>,
    cut: watch::Receiver<Option<Ended>>,
}

/// What [`Shared`] is made from.
pub(crate) struct Parts {
    pub(crate) name: PeerName,
    pub(crate) cluster: ClusterId,
    pub(crate) incarnation: u64,
    pub(crate) protocol: RangeInclusive<u16>,
    pub(crate) merging: Merging,
    pub(crate) limits: Limits,
    pub(crate) client_tls: Arc<rustls::ClientConfig>,
    pub(crate) server_tls: Arc<rustls::ServerConfig>,
    pub(crate) service: Arc<dyn Service>,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            runtime: tokio::runtime::Handle::current(),
            name: parts.name,
            cluster: parts.cluster,
            incarnation: parts.incarnation,
            protocol: parts.protocol,
            merging: parts.merging,
            limits: parts.limits,
            client_tls: parts.client_tls,
            server_tls: parts.server_tls,
            service: parts.service,
            counters: Counters::default(),
            refusals: Refusals::default(),
            addresses: RwLock::default(),
            note: RwLock::default(),
            revoked: RwLock::default(),
            connections: Mutex::default(),
            stop: watch::Sender::new(false),
            tasks: Gate::new(),
            runs: Gate::new(),
            started: Instant::now(),
        })
    }

    pub(crate) fn is_revoked(&self, serial: &Serial) -> bool {
        self.revoked.read().contains(serial)
    }

    /// Replaces the set, and cuts the connections of whoever is in it now.
    pub(crate) fn set_revoked(&self, revoked: BTreeSet<Serial>) {
        // first the set, then the list: a connection that registers in between looks at the set afterwards
        self.revoked.write().clone_from(&revoked);
        for live in self.connections.lock().live.values() {
            if revoked.contains(&live.serial) {
                live.cut.send_replace(Some(Ended::Revoked));
            }
        }
    }

    /// Cuts every connection with `peer`.
    pub(crate) fn disconnect(&self, peer: PeerName) {
        for live in self.connections.lock().live.values() {
            if live.peer == peer {
                live.cut.send_replace(Some(Ended::Asked));
            }
        }
    }

    /// Puts a connection on the list.
    pub(crate) fn register(self: &Arc<Self>, peer: PeerName, serial: Serial) -> Registered {
        let (sender, cut) = watch::channel(None);
        let counters = self.counters.peer(peer);
        counters.connects.fetch_add(1, Relaxed);
        counters.connections.fetch_add(1, Relaxed);
        let mut connections = self.connections.lock();
        connections.next += 1;
        let number = connections.next;
        let is_first = connections.live.values().all(|live| live.peer != peer);
        if self.is_revoked(&serial) {
            sender.send_replace(Some(Ended::Revoked));
        }
        let live = Live {
            peer,
            serial,
            cut: sender,
        };
        connections.live.insert(number, live);
        if is_first {
            // under the lock, so that the service learns of changes in their order
            self.service.link(peer, true);
        }
        drop(connections);
        Registered {
            shared: Arc::clone(self),
            number,
            peer,
            counters,
            cut,
        }
    }

    /// An attempt to connect failed.
    pub(crate) fn on_unreachable(&self, peer: PeerName) {
        self.counters
            .peer(peer)
            .connects_failed
            .fetch_add(1, Relaxed);
        let connections = self.connections.lock();
        if connections.live.values().all(|live| live.peer != peer) {
            self.service.link(peer, false);
        }
    }

    /// Counts and logs the end of a connection.
    pub(crate) fn on_end(&self, peer: PeerName, reason: &Ended) {
        self.counters.on_end(reason);
        if reason.is_ordinary() {
            debug!(%peer, %reason, "connection ended");
        } else if let Some(left_out) = self.refusals.line(Instant::now()) {
            warn!(%peer, %reason, left_out, "disconnected a peer");
        }
    }

    /// Counts and logs a connection that was not let in, or is cut because its certificate is void. `who` is as far as
    /// it has proved.
    pub(crate) fn on_refused(&self, who: PeerName, address: SocketAddr, reason: &Ended) {
        if reason.is_ordinary() {
            return self.on_end(who, reason);
        }
        self.counters.on_end(reason);
        if let Some(left_out) = self.refusals.line(Instant::now()) {
            let event = "connection";
            info!(target: AUDIT, event, outcome = "refused", peer = %who, %address, %reason, left_out);
        }
    }

    /// Returns when the process stops its network.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // fails only when the sender is gone, and `self` holds it
        _ = stop.wait_for(|stop| *stop).await;
    }
}

impl Registered {
    /// Returns when somebody here wants the connection to end, and why.
    pub(crate) async fn cut(&self) -> Ended {
        let mut cut = self.cut.clone();
        let reason = cut.wait_for(Option::is_some).await;
        reason
            .ok()
            .and_then(|reason| reason.clone())
            .unwrap_or(Ended::Shutdown)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.counters.connections.fetch_sub(1, Relaxed);
        let mut connections = self.shared.connections.lock();
        connections.live.remove(&self.number);
        if connections.live.values().all(|live| live.peer != self.peer) {
            self.shared.service.link(self.peer, false);
        }
    }
}
