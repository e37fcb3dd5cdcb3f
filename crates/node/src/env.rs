//! What every part of a node shares.

use crate::behind::WritesBehind;
use crate::clock::Clock;
use crate::container::Container;
use crate::coordinates::Coordinates;
use crate::heat::Heats;
use crate::in_force::Lately;
use crate::life::Shown;
use crate::losses::Losses;
use crate::migration::Migrations;
use crate::pace::Pace;
use crate::removals::Removals;
use crate::room::Rooms;
use crate::router::Router;
use crate::scrub::Scrub;
use crate::sessions::Sessions;
use crate::stripes::Stripes;
use crate::usage::Usage;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use perigee_cluster::{ControlStore, Directory};
use perigee_net::{Call, CallError, CallOptions, Merging, Network, PeerName};
use perigee_proto::message::data::Room;
use perigee_proto::{Code, Rpc};
use perigee_store::Store;
use perigee_types::{ContainerId, Epoch, NodeId, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// The current owner of each container, as the control store and the chains tell it.
pub(crate) type Owners = BTreeMap<ContainerId, (Epoch, NodeId)>;

/// One node's shared parts.
pub(crate) struct Env {
    pub(crate) me: NodeId,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<Store>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) control: Arc<dyn ControlStore>,
    pub(crate) sessions: Sessions,
    pub(crate) containers: RwLock<BTreeMap<ContainerId, Arc<Container>>>,
    /// The container in which this node's new directories start, as the control store last told it.
    pub(crate) home: RwLock<Option<ContainerId>>,
    /// Changes of owners wake those who wait for one.
    pub(crate) owners: watch::Sender<Owners>,
    /// The cluster as the control store last told it. Read under the locks of containers: whoever needs those with it takes the
    /// pointer, and lets go of the lock.
    pub(crate) directory: RwLock<Arc<Directory>>,
    pub(crate) usage: Usage,
    pub(crate) heats: Heats,
    pub(crate) removals: Removals,
    pub(crate) rooms: Rooms,
    pub(crate) losses: Losses,
    pub(crate) behind: WritesBehind,
    pub(crate) coordinates: Coordinates,
    /// Calls of holders so far.
    pub(crate) calls: AtomicU64,
    /// Until when this node's sign of life counts.
    pub(crate) life: Shown,
    pub(crate) migrations: Migrations,
    pub(crate) lately: Lately,
    pub(crate) stripes: Arc<Stripes>,
    pub(crate) pace: Pace,
    /// This node stops, and changes no chain any more: those that do not answer may be stopping with it.
    pub(crate) stopping: AtomicBool,
    /// The key-value engine takes nothing more: this node leaves all containers, until it is started again.
    pub(crate) engine_failed: AtomicBool,
    /// Containers whose keys have rotted here: their copies are to be replaced.
    pub(crate) spoiled: Mutex<BTreeSet<ContainerId>>,
    /// Containers of which a state came here in part: what is left is no copy.
    pub(crate) torn: Mutex<BTreeSet<ContainerId>>,
    /// Containers that are being closed here, and are not to be opened.
    pub(crate) closing: Mutex<BTreeSet<ContainerId>>,
    pub(crate) scrub: Scrub,
    appear: tokio::sync::mpsc::Sender<ContainerId>,
    network: Network,
    router: OnceLock<Arc<Router>>,
}

/// Why a call to a peer has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The peer answered that it does not own the container.
    #[error("the peer does not own the container")]
    NotOwner,
    /// The peer cannot answer now, or cannot be reached.
    #[error("the peer cannot answer now: {0}")]
    NotNow(String),
    /// The peer is at it, and has to be asked again.
    #[error("the peer is still at it")]
    Working,
    /// Repeating it does not help.
    #[error("the peer refused: {0}")]
    Refused(String),
}

impl Env {
    /// Names one call of a holder, however often it is repeated.
    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// The parts of a node that runs on the runtime of the caller.
    pub(crate) fn new(
        me: NodeId,
        clock: Clock,
        store: Arc<Store>,
        control: Arc<dyn ControlStore>,
        network: Network,
        usage: Usage,
        appear: tokio::sync::mpsc::Sender<ContainerId>,
    ) -> Arc<Self> {
        let began = clock.wall().since(WallTime::default());
        let first_call = began.as_micros() << 10;
        let env = Arc::new(Self {
            me,
            clock,
            store,
            runtime: tokio::runtime::Handle::current(),
            control,
            sessions: Sessions::new(me, network.merging() == Merging::Adaptive),
            containers: RwLock::default(),
            home: RwLock::default(),
            owners: watch::Sender::new(Owners::new()),
            directory: RwLock::default(),
            usage,
            heats: Heats::default(),
            removals: Removals::default(),
            rooms: Rooms::default(),
            losses: Losses::default(),
            behind: WritesBehind::default(),
            coordinates: Coordinates::new(first_call ^ u64::from(me.0)),
            // Another process of this node has other numbers.
            calls: AtomicU64::new(first_call),
            life: Shown::default(),
            migrations: Migrations::default(),
            lately: Lately::default(),
            stripes: Arc::default(),
            pace: Pace::default(),
            stopping: AtomicBool::new(false),
            engine_failed: AtomicBool::new(false),
            spoiled: Mutex::default(),
            torn: Mutex::default(),
            closing: Mutex::default(),
            scrub: Scrub::default(),
            appear,
            network,
            router: OnceLock::new(),
        });
        // The first of two settings; there is no second.
        _ = env.router.set(Router::new(env.clone()));
        env
    }

    pub(crate) fn router(&self) -> Option<Arc<Router>> {
        self.router.get().cloned()
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn container(&self, id: ContainerId) -> Option<Arc<Container>> {
        self.containers.read().get(&id).cloned()
    }

    pub(crate) fn all_containers(&self) -> Vec<Arc<Container>> {
        self.containers.read().values().cloned().collect()
    }

    /// Somebody speaks of a container that this node does not have: it may be about to.
    pub(crate) fn unknown_container(&self, id: ContainerId) {
        if let Err(error) = self.appear.try_send(id) {
            // The sender repeats itself until this node answers.
            tracing::debug!(container = %id, %error, "container not opened yet");
        }
    }

    /// Notes who owns a container; older news than what is known is ignored.
    pub(crate) fn note_owner(self: &Arc<Self>, id: ContainerId, epoch: Epoch, owner: NodeId) {
        let mut before = None;
        self.owners
            .send_if_modified(|owners| match owners.get(&id) {
                Some((known, who)) if *known > epoch || (*known == epoch && *who == owner) => false,
                known => {
                    before = known.map(|(_, who)| *who);
                    owners.insert(id, (epoch, owner));
                    true
                }
            });
        if before.is_some_and(|before| before != owner) {
            let env = self.clone();
            self.runtime
                .spawn_blocking(move || crate::revoke::forget_content(&env, id));
        }
    }

    /// Calls a peer, and decodes its answer; the bytes beside it are the payload.
    pub(crate) async fn ask<R: Rpc>(
        &self,
        node: NodeId,
        request: &R,
        payload: Bytes,
        deadline: Duration,
    ) -> Result<(R::Reply, Bytes), AskError> {
        let call = Call {
            method: R::METHOD,
            body: perigee_proto::encode(request),
            payload,
        };
        let options = CallOptions {
            deadline,
            priority: R::PRIORITY,
            retry: R::RETRY,
        };
        match self
            .network()
            .call(PeerName::Node(node), call, options)
            .await
        {
            Ok(answer) => {
                let reply = perigee_proto::decode(&answer.body)
                    .map_err(|error| AskError::Refused(error.to_string()))?;
                Ok((reply, answer.payload))
            }
            Err(CallError::Refused(refusal)) => Err(match Code::from_number(refusal.code) {
                Code::NotOwner => AskError::NotOwner,
                Code::NotReady => AskError::NotNow("it is not ready".to_owned()),
                Code::Working => AskError::Working,
                Code::Malformed | Code::Failed | Code::Forbidden | Code::Unknown => {
                    AskError::Refused(String::from_utf8_lossy(&refusal.detail).into_owned())
                }
            }),
            Err(other) => Err(AskError::NotNow(other.to_string())),
        }
    }
}

/// Space as `statfs` shows it; `reserved` is free, and not available.
pub(crate) fn statfs(room: &Room, reserved: u64) -> perigee_client::fs::Space {
    let block = perigee_types::limits::BLOCK_LEN;
    let available = room.left();
    perigee_client::fs::Space {
        block_len: block as u32,
        blocks: room.total / block,
        free: available.saturating_add(reserved) / block,
        available: available / block,
        inodes: room.files,
        inodes_free: room.files_free,
    }
}
