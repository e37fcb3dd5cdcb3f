//! The handle that the rest of a process uses.

use bytes::Bytes;
use parking_lot::RwLock;
use perigee_proto::Priority;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::select;
use tokio::time::{timeout, timeout_at};

use crate::connection::count_dropped_casts;
use crate::crypto;
use crate::error::{CallError, NetError};
use crate::frame::Kind;
use crate::hello::{LaneName, STREAMS_MAX, Stream};
use crate::identity::{ClusterId, PeerName, Serial};
use crate::inbound::Listener;
use crate::lane::Lane;
use crate::limits::{Limits, Merging, NetConfig};
use crate::queue::{Outgoing, SendQueue};
use crate::service::{Answer, Call, CallOptions, Service};
use crate::shared::{Parts, Shared};
use crate::stats::NetStats;
use crate::tls;

/// A connection with so many calls on it wants another one beside it, where that is allowed.
const LOAD_SPREAD: usize = 2;
/// The longest note that peers are told ([`Network::set_note`]).
pub const NOTE_LEN_MAX: usize = 64;

/// A process's place in the network of its cluster. Clones are one network; it stops when the last is dropped.
#[derive(Clone)]
pub struct Network {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
    lanes: RwLock<BTreeMap<(PeerName, LaneName), Arc<Lane>>>,
    /// Connections for bulk data, where that is not one.
    streams: RwLock<BTreeMap<PeerName, u8>>,
    /// Casts to this process itself.
    own_casts: Arc<SendQueue>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
    }
}

impl Network {
    /// Listens, and serves `service` to whoever may call.
    ///
    /// # Errors
    /// The address is taken, the identity is not usable, or the limits contradict each other.
    pub async fn start(config: NetConfig, service: Arc<dyn Service>) -> Result<Self, NetError> {
        let faults = config.limits.faults();
        if !faults.is_empty() {
            return Err(NetError::Limits { faults });
        }
        let shared = Shared::new(Parts {
            name: config.identity.name(),
            cluster: config.identity.cluster(),
            incarnation: u64::from_le_bytes(crypto::random()?),
            protocol: config.protocol,
            merging: config.merging,
            client_tls: tls::client_config(&config.identity)?,
            server_tls: tls::server_config(&config.identity)?,
            limits: config.limits,
            service,
        });
        let socket = TcpListener::bind(config.listen)
            .await
            .map_err(NetError::Listen)?;
        let local_addr = socket.local_addr().map_err(NetError::Listen)?;
        let own_casts = Arc::new(SendQueue::new(shared.limits.queue_bytes_max));
        let listener = Listener {
            shared: Arc::clone(&shared),
            socket,
        };
        spawn(&shared, listener.run());
        spawn(
            &shared,
            deliver_own(Arc::clone(&shared), Arc::clone(&own_casts)),
        );
        Ok(Self {
            handle: Arc::new(Handle {
                shared,
                local_addr,
                lanes: RwLock::default(),
                streams: RwLock::default(),
                own_casts,
            }),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr
    }

    /// Who this process is.
    #[must_use]
    pub fn name(&self) -> PeerName {
        self.handle.shared.name
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.handle.shared.cluster
    }

    /// How messages that wait for one peer leave together.
    #[must_use]
    pub fn merging(&self) -> Merging {
        self.handle.shared.merging
    }

    /// The number of this process among all that had its name.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.handle.shared.incarnation
    }

    /// Says where a peer is. Connections that are open stay; the next ones go there.
    pub fn set_address(&self, peer: PeerName, address: SocketAddr) {
        self.handle.shared.addresses.write().insert(peer, address);
        for ((of, _), lane) in self.handle.lanes.read().iter() {
            if *of == peer {
                lane.on_address_changed();
            }
        }
    }

    /// Says how many connections bulk data to and from `peer` may go over at once, 1 to 4; 1 where nothing was said. Calls on
    /// several may arrive in another order than they were made in: one connection carries over a long way no more than the
    /// system's window in each round trip.
    pub fn set_streams(&self, peer: PeerName, streams: u8) {
        let streams = streams.clamp(1, STREAMS_MAX);
        self.handle.streams.write().insert(peer, streams);
    }

    /// Replaces the set of revoked certificates. Connections with their holders are cut, and no new ones are made.
    pub fn set_revoked(&self, serials: BTreeSet<Serial>) {
        self.handle.shared.set_revoked(serials);
    }

    /// What peers are told with every answer to their pings: at most [`NOTE_LEN_MAX`] bytes, of which more are not sent.
    pub fn set_note(&self, mut note: Bytes) {
        note.truncate(NOTE_LEN_MAX);
        *self.handle.shared.note.write() = note;
    }

    /// Sees to it that there is a connection to `peer`, which measures round trips from then on. One that cannot be made is
    /// not tried again.
    pub fn reach(&self, peer: PeerName) {
        if peer != self.handle.shared.name && !*self.handle.shared.stop.borrow() {
            self.lane(peer, LaneName::Urgent).reach();
        }
    }

    /// Cuts every connection with `peer`. Calls that may be repeated are, over a new one.
    pub fn disconnect(&self, peer: PeerName) {
        self.handle.shared.disconnect(peer);
    }

    /// Asks `to`. A call to this process itself is served here, without a connection.
    ///
    /// # Errors
    /// See [`CallError`]: each says whether the call may have run.
    ///
    /// # Cancel safety
    /// Dropping the future gives the call up: it may have run, and may still run.
    pub async fn call(
        &self,
        to: PeerName,
        call: Call,
        options: CallOptions,
    ) -> Result<Answer, CallError> {
        let shared = &self.handle.shared;
        check_size(&shared.limits, &call)?;
        if *shared.stop.borrow() {
            return Err(CallError::Closed);
        }
        if to == shared.name {
            return self.call_own(call, options).await;
        }
        self.lane_for(to, options.priority)
            .call(call, &options)
            .await
    }

    /// Sends a one-way message; never blocks. It is lost when the peer cannot be reached, when its connection breaks, or
    /// when younger ones fill the queue; each loss that this process sees is counted.
    pub fn cast(&self, to: PeerName, call: Call, priority: Priority) {
        let shared = &self.handle.shared;
        if check_size(&shared.limits, &call).is_err() || *shared.stop.borrow() {
            return count_dropped_casts(&shared.counters.peer(to), 1);
        }
        if to != shared.name {
            return self.lane_for(to, priority).cast(call, priority);
        }
        let mut frame = Outgoing::new(Kind::Cast, priority, call.method, 0);
        // no checksum: it does not leave the process
        frame.body = call.body;
        frame.payload = call.payload;
        let dropped = self.handle.own_casts.push_cast(frame);
        count_dropped_casts(&shared.counters.peer(to), dropped);
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> NetStats {
        let mut stats = self.handle.shared.counters.snapshot();
        for ((peer, _), lane) in self.handle.lanes.read().iter() {
            stats.peers.entry(*peer).or_default().queue_bytes += lane.queue_bytes();
        }
        stats
    }

    /// Closes every connection, fails every call that is open, and waits for those that run here, but no longer than
    /// [`Limits::shutdown_grace`].
    pub async fn shutdown(&self) {
        let shared = &self.handle.shared;
        shared.stop.send_replace(true);
        shared.tasks.empty().await;
        if timeout(shared.limits.shutdown_grace, shared.runs.empty())
            .await
            .is_err()
        {
            tracing::warn!("requests still run after the network was shut down");
        }
    }

    /// The connection for what is sent next: of those for bulk data the one that has least to do. A further one is opened
    /// when all have enough, and used once it is there.
    fn lane_for(&self, peer: PeerName, priority: Priority) -> Arc<Lane> {
        if !LaneName::is_bulk(priority) {
            return self.lane(peer, LaneName::Urgent);
        }
        let mut best = self.lane(peer, LaneName::Bulk(Stream::default()));
        let streams = self.handle.streams.read().get(&peer).copied().unwrap_or(1);
        let mut load = best.load();
        for stream in 1..streams {
            if load < LOAD_SPREAD {
                break;
            }
            let other = self.lane(peer, LaneName::Bulk(Stream(stream)));
            if !other.is_connected() {
                other.reach();
                break;
            }
            if other.load() < load {
                load = other.load();
                best = other;
            }
        }
        best
    }

    fn lane(&self, peer: PeerName, name: LaneName) -> Arc<Lane> {
        if let Some(lane) = self.handle.lanes.read().get(&(peer, name)) {
            return Arc::clone(lane);
        }
        let shared = &self.handle.shared;
        let mut lanes = self.handle.lanes.write();
        let lane = lanes.entry((peer, name)).or_insert_with(|| {
            let lane = Lane::new(Arc::clone(shared), peer, name);
            spawn(shared, Arc::clone(&lane).run());
            lane
        });
        Arc::clone(lane)
    }

    async fn call_own(&self, call: Call, options: CallOptions) -> Result<Answer, CallError> {
        let shared = Arc::clone(&self.handle.shared);
        let deadline = options.deadline_from(Instant::now());
        // a task of its own, so that the call is run to its end as a remote one is
        let work = tokio::spawn(async move {
            let inside = shared.runs.enter();
            let outcome = shared.service.call(shared.name, call, deadline).await;
            drop(inside);
            outcome
        });
        match timeout_at(deadline.into(), work).await {
            Ok(Ok(outcome)) => outcome.map_err(CallError::Refused),
            Ok(Err(_panicked)) => Err(CallError::Failed),
            Err(_) => Err(CallError::DeadlineExceeded),
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("name", &self.name())
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

fn spawn(shared: &Arc<Shared>, task: impl Future<Output = ()> + Send + 'static) {
    let inside = shared.tasks.enter();
    shared.runtime.spawn(async move {
        task.await;
        drop(inside);
    });
}

fn check_size(limits: &Limits, call: &Call) -> Result<(), CallError> {
    for (what, len, max) in [
        ("body", call.body.len(), limits.body_max),
        ("payload", call.payload.len(), limits.payload_max),
    ] {
        if len > max {
            return Err(CallError::TooLarge { what, len, max });
        }
    }
    Ok(())
}

/// Hands the process its own casts, from a task: whoever casts may hold a lock that the service wants.
async fn deliver_own(shared: Arc<Shared>, queue: Arc<SendQueue>) {
    let mut batch = Vec::new();
    loop {
        queue.take(
            Merging::Adaptive,
            std::time::Duration::ZERO,
            Instant::now(),
            &mut batch,
        );
        for frame in batch.drain(..) {
            let call = Call {
                method: frame.method,
                body: frame.body,
                payload: frame.payload,
            };
            shared.service.cast(shared.name, call);
        }
        if queue.is_empty() {
            select! {
                () = shared.stopped() => return,
                () = queue.ready() => {}
            }
        }
    }
}
