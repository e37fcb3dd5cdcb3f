//! A node's life: start, following the control store, periodic duties, stop.

use crate::clock::Clock;
use crate::container::Container;
use crate::control_place::ControlPlaces;
use crate::coordinates;
use crate::env::Env;
use crate::heat;
use crate::inventory;
use crate::leftovers::{self, Leftovers};
use crate::life;
use crate::reopen::{self, Reopening};
use crate::service::NodeService;
use crate::usage::Usage;
use futures_util::future::join_all;
use perigee_client::Session;
use perigee_cluster::{ControlStore, Directory, Event, Role, StoreError as ControlError, key};
use perigee_control::RemoteControl;
use perigee_net::identity::{Identity, Serial};
use perigee_net::{Merging, NetConfig, NetError, Network, PeerName};
use perigee_replica::{ChainView, Input};
use perigee_store::{Adopt, OpenError, Store, StoreError, StoreIdentity};
use perigee_types::{ContainerId, NodeId, SessionId};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::{debug, error, info, warn};

/// How long the control store may take to answer while a node starts.
const CONTROL_PATIENCE: Duration = Duration::from_secs(20);
/// How long the threads of a process that has ended may keep its store locked, and how often it is looked at meanwhile.
const LETS_GO: Duration = Duration::from_secs(10);
const LOOKS_AGAIN: Duration = Duration::from_millis(10);
/// How often a node looks after its containers.
const DUTIES: Duration = Duration::from_millis(250);
/// How often it looks whether those who hold locks are still there.
const LOCKS_SEEN: Duration = Duration::from_millis(1_500);
/// How often owners look for what maps have changed: so long others may have what was there before they did.
const MAPS_SEEN: Duration = Duration::from_millis(1_000);
/// How often owners look for what has been kept for its time.
const TRASH_SEEN: Duration = Duration::from_secs(1);

/// What a node is started with.
pub struct NodeConfig {
    /// Where the node keeps its store.
    pub data_dir: PathBuf,
    /// Certificate and key.
    pub identity: Identity,
    /// Where it listens for its peers; port 0 chooses one.
    pub listen: SocketAddr,
    /// Where the control store listens: one address, or those of several processes that serve it.
    pub control: Vec<SocketAddr>,
    /// How messages that wait for one peer leave together.
    pub merging: Merging,
    /// The version of the program, for people.
    pub version: String,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The certificate is not a node's.
    #[error("the certificate names `{0:?}`, not a node")]
    NotANode(PeerName),
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store in it failed.
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    /// The address cannot be listened on, or the certificate not be used.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The control store said nothing useful in time.
    #[error("the control store at {address} does not answer: {why}")]
    Control {
        /// Where it should be.
        address: SocketAddr,
        /// The last error.
        why: String,
    },
    /// The control store has lost what it had told this node.
    #[error(
        "the control store at {address} is older than what it told this node: it was put back to an older state, or is another one"
    )]
    ControlWentBack {
        /// Where it is.
        address: SocketAddr,
    },
    /// No address of the control store.
    #[error("it is not said where the control store is")]
    NoControl,
    /// The data is another node's.
    #[error("the data is that of {found}, and the certificate that of {me}")]
    OtherNode {
        /// Whose data it is.
        found: NodeId,
        /// Who starts.
        me: NodeId,
    },
    /// The node's inventory was given away: [`inventory::give_away`].
    #[error("its inventory was taken for a control store that is made anew")]
    GivenAway,
    /// The control store does not know this node.
    #[error("{0} is not in the control store's list of nodes")]
    Unlisted(NodeId),
}

/// A running node.
pub struct Node {
    pub(crate) env: Arc<Env>,
    pub(crate) places: Arc<ControlPlaces>,
    pub(crate) remote: Arc<RemoteControl>,
    network: Network,
    tasks: tokio::task::JoinSet<()>,
}

impl Node {
    /// Starts a node. It serves its peers when this returns.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        let me = match config.identity.name() {
            PeerName::Node(node) => node,
            other => return Err(StartError::NotANode(other)),
        };
        let cluster = config.identity.cluster().0;
        let store_dir = config.data_dir.join("store");
        let usage = Usage::new(store_dir.clone());
        let store = open_store(&store_dir, StoreIdentity { cluster, node: me }).await?;
        let found = store.identity().node;
        if found != me {
            return Err(StartError::OtherNode { found, me });
        }
        if inventory::is_given_away(&config.data_dir) {
            return Err(StartError::GivenAway);
        }
        let first = config.control.first().copied();
        let first = first.ok_or(StartError::NoControl)?;
        let service = Arc::new(NodeService::default());
        let net = NetConfig {
            merging: config.merging,
            ..NetConfig::new(config.identity, config.listen)
        };
        let network = Network::start(net, service.clone()).await?;
        let copy = inventory::kept_copy(&config.data_dir);
        let places = ControlPlaces::new(network.clone(), first, config.control, &copy);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(places.clone().keep_reachable());
        let remote = RemoteControl::new(network.clone()).having_seen(copy.revision);
        let remote = Arc::new(remote);
        let control: Arc<dyn ControlStore> = remote.clone();
        let directory = match first_list(control.as_ref(), &places).await {
            Ok(directory) => directory,
            Err(error) => {
                network.shutdown().await;
                return Err(error);
            }
        };
        if directory.node(me).is_none() {
            network.shutdown().await;
            return Err(StartError::Unlisted(me));
        }
        recover(&store, &directory, me)?;
        let (appear, appeared) = mpsc::channel(64);
        let env = Env::new(
            me,
            Clock::start(),
            store,
            control,
            network.clone(),
            usage,
            appear,
        );
        service.attach(&env);
        let mut node = Self {
            env,
            places,
            remote,
            network,
            tasks,
        };
        node.take_directory(directory).await;
        let leftovers = Leftovers::of(&node.env)?;
        if node.role().stores() {
            let disk = coordinates::measure_disk(node.env.clone(), config.data_dir.clone());
            node.tasks.spawn(disk);
        }
        let copy = inventory::keep_copy(node.env.clone(), config.data_dir);
        node.tasks.spawn(copy);
        Ok(node.run(appeared, leftovers, config.version).await)
    }

    async fn run(
        mut self,
        appeared: mpsc::Receiver<ContainerId>,
        leftovers: Leftovers,
        version: String,
    ) -> Self {
        self.publish_address().await;
        let env = self.env.clone();
        // Whoever is told that this node serves finds it alive.
        let life = life::begin(&env, &version).await;
        let life = life.inspect_err(|error| warn!(%error, "first sign of life not given"));
        let places = self.places.clone();
        self.tasks
            .spawn(follow(env.clone(), places, appeared, leftovers));
        let places = self.places.clone();
        self.tasks
            .spawn(life::keep(env.clone(), places, version, life.ok()));
        self.tasks.spawn(crate::room::keep_asking(env.clone()));
        self.tasks.spawn(coordinates::run(env.clone()));
        self.tasks.spawn(crate::scrub::run(env.clone()));
        self.tasks.spawn(crate::snapshot::run(env.clone()));
        self.tasks.spawn(crate::deadlock::run(env.clone()));
        self.tasks.spawn(crate::growth::run(env.clone()));
        self.tasks.spawn(duties(env));
        self
    }

    /// Takes over the first picture of the cluster: addresses, and the containers to open.
    async fn take_directory(&self, directory: Directory) {
        self.places.learn(&directory);
        *self.env.directory.write() = Arc::new(directory);
        look(&self.env).await;
    }

    /// Tells the cluster where this node listens, when that has changed.
    async fn publish_address(&self) {
        let (me, address) = (self.env.me, self.network.local_addr());
        let capacity = self.env.store.space().map_or(0, |space| space.total);
        let known = self
            .env
            .directory
            .read()
            .node(me)
            .map(|node| (node.address, node.capacity));
        if known == Some((address, capacity)) {
            return;
        }
        let changed = perigee_cluster::change(self.env.control.as_ref(), |directory| {
            perigee_cluster::transition::update_node(directory, me, address, capacity)
        });
        if let Err(error) = changed.await {
            warn!(%error, "address not published");
        }
    }

    /// This node's number.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.env.me
    }

    /// What this node is to the cluster, as the control store last told.
    #[must_use]
    pub fn role(&self) -> Role {
        let directory = self.env.directory.read();
        directory
            .node(self.env.me)
            .map_or_else(Role::default, |node| node.role)
    }

    /// A new mount's session.
    #[must_use]
    pub fn open_session(&self) -> Option<Arc<Session>> {
        let router = self.env.router()?;
        let session = Session::new(self.env.sessions.next_id(), router);
        self.env.sessions.add(session.clone());
        self.env.behind.open();
        Some(session)
    }

    /// A mount is gone: its locks and leases end.
    pub async fn end_session(&self, session: SessionId) {
        if let Some(ended) = self.env.sessions.remove(session) {
            ended.stop_waiting();
        }
        // Kernels write what programs have mapped after the last close.
        self.env.behind.settle_session(session).await;
        self.env.behind.forget(session);
        let ids: Vec<ContainerId> = self.env.owners.borrow().keys().copied().collect();
        // At once: a node that stops is not to be slower than those that stop with it, or they would be replaced.
        let left = self.env.stripes.session_ended(session);
        let release = |id| crate::router::release_session(&self.env, id, session, left);
        join_all(ids.into_iter().map(release)).await;
    }

    /// Everything that was acknowledged here goes to the other members and to the disk.
    pub async fn quiesce(&self) {
        let containers = self.env.all_containers();
        let quiesced = join_all(containers.iter().map(Container::quiesce));
        tokio::join!(self.env.behind.close(), quiesced);
    }

    /// Puts everything on disk, and ends the node's tasks and connections.
    pub async fn stop(mut self) {
        self.env.stopping.store(true, Ordering::Relaxed);
        self.quiesce().await;
        self.tasks.shutdown().await;
        self.network.shutdown().await;
        for container in self.env.all_containers() {
            container.store_rows();
        }
        if let Err(error) = self.env.store.close() {
            error!(%error, "store not closed cleanly");
        }
    }
}

/// Opens the store, or makes a new one. A process that has ended keeps its store locked until the last of its threads is gone,
/// which may wait for the disk: that is waited for.
async fn open_store(dir: &Path, identity: StoreIdentity) -> Result<Arc<Store>, OpenError> {
    let deadline = tokio::time::Instant::now() + LETS_GO;
    loop {
        let opened = match Store::open(dir, Some(identity.cluster)) {
            Err(OpenError::NotAStore { .. }) => Store::create(dir, identity),
            opened => opened,
        };
        match opened {
            Err(OpenError::Busy { .. }) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LOOKS_AGAIN).await;
            }
            opened => return opened,
        }
    }
}

/// Reads the cluster's record, with patience: the control store may be starting too.
async fn first_list(
    control: &dyn ControlStore,
    places: &ControlPlaces,
) -> Result<Directory, StartError> {
    let deadline = tokio::time::Instant::now() + CONTROL_PATIENCE;
    loop {
        let address = places.asked();
        let why = match list(control).await {
            Ok(directory) => return Ok(directory),
            Err(ListError::Store(ControlError::WentBack)) => {
                return Err(StartError::ControlWentBack { address });
            }
            Err(why) => why.to_string(),
        };
        if tokio::time::Instant::now() > deadline {
            return Err(StartError::Control { address, why });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Why there is no picture of the cluster's record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Store(#[from] ControlError),
    #[error(transparent)]
    Unreadable(#[from] perigee_cluster::DecodeError),
}

async fn list(control: &dyn ControlStore) -> Result<Directory, ListError> {
    let (rows, revision) = control.list(key::ROOT).await?;
    Ok(Directory::from_list(&rows, revision)?)
}

/// After an unclean stop: a container that others hold, or held lately, trusts only what its checksums prove, one that
/// nobody else is to hold takes its bytes as a local disk would.
fn recover(store: &Store, directory: &Directory, me: NodeId) -> Result<(), StoreError> {
    let recovered = store.recover(&|id| match directory.container(id) {
        Some(container) if container.chain == [me] && container.copies == 1 => Adopt::Adopt,
        _ => Adopt::Distrust,
    })?;
    if recovered.checked > 0 {
        info!(
            checked = recovered.checked,
            adopted = recovered.adopted.len(),
            distrusted = recovered.distrusted.len(),
            "files that were being written when the last process stopped were verified"
        );
    }
    Ok(())
}

fn view_of(container: &perigee_cluster::Container) -> ChainView {
    ChainView {
        epoch: container.epoch,
        chain: container.chain.clone(),
    }
}

/// Brings addresses, owners and containers in line with the directory.
async fn look(env: &Arc<Env>) {
    let (nodes, containers, home) = {
        let directory = env.directory.read();
        let nodes: Vec<_> = directory
            .nodes
            .values()
            .map(|known| (known.record.id, known.record.address))
            .collect();
        let containers: Vec<_> = directory
            .containers
            .values()
            .map(|known| known.record.clone())
            .collect();
        (nodes, containers, directory.newest_home_of(env.me))
    };
    let void: Vec<Serial> = {
        let directory = env.directory.read();
        let serials = directory.revoked.keys();
        serials.map(|serial| Serial::from_bytes(serial)).collect()
    };
    env.network().set_revoked(void.into_iter().collect());
    for (node, address) in nodes.into_iter().filter(|(node, _)| *node != env.me) {
        env.network().set_address(PeerName::Node(node), address);
    }
    if let Some(home) = home {
        *env.home.write() = Some(home);
    }
    for record in containers {
        let view = view_of(&record);
        if let Some(owner) = view.owner() {
            env.note_owner(record.id, record.epoch, owner);
        }
        match env.container(record.id) {
            Some(container) if container.epoch() < view.epoch => {
                container.step(Input::View(view));
            }
            Some(_) => {}
            None if record.chain.contains(&env.me) => open(env, record.id, view).await,
            None => {}
        }
    }
}

/// Opens a container here, and starts it.
async fn open(env: &Arc<Env>, id: ContainerId, view: ChainView) {
    if env.closing.lock().contains(&id) {
        // Once it is closed the containers of this node are looked at again.
        return;
    }
    let (opener, at) = (env.clone(), view.clone());
    let opened = env
        .runtime
        .spawn_blocking(move || Container::open(&opener, id, &at))
        .await;
    match opened {
        Ok(Ok(container)) => {
            env.containers.write().insert(id, container.clone());
            container.begin(view);
        }
        Ok(Err(error)) => {
            error!(container = %id, %error, "container cannot be opened");
            if matches!(error, StoreError::Damaged { .. }) {
                env.spoiled.lock().insert(id);
            }
        }
        Err(error) => error!(container = %id, %error, "container cannot be opened"),
    }
}

/// Follows the control store, and opens containers that others speak of.
async fn follow(
    env: Arc<Env>,
    places: Arc<ControlPlaces>,
    mut appeared: mpsc::Receiver<ContainerId>,
    mut leftovers: Leftovers,
) {
    let mut look_for_leftovers = tokio::time::interval(leftovers::LOOK);
    let mut look_for_room = tokio::time::interval(reopen::LOOK);
    let mut reopening = Reopening::default();
    let mut told = None;
    loop {
        let from = env.directory.read().revision.next();
        let mut watch = env.control.watch(key::ROOT, from);
        loop {
            tokio::select! {
                event = watch.next() => match event {
                    Ok(event) => {
                        take_event(&env, &event).await;
                        places.learn(&env.directory.read());
                    }
                    Err(error) => {
                        debug!(%error, "watch ended");
                        break;
                    }
                },
                Some(id) = appeared.recv() => appear(&env, id).await,
                _ = look_for_leftovers.tick() => leftovers.free(&env),
                () = leftovers.freed(&env) => look(&env).await,
                _ = look_for_room.tick() => reopening.close(&env),
                id = reopening.closed(&env) => {
                    leftovers.note_stored(id);
                    look(&env).await;
                }
            }
        }
        match list(env.control.as_ref()).await {
            Ok(directory) => {
                told = None;
                places.learn(&directory);
                *env.directory.write() = Arc::new(directory);
                look(&env).await;
            }
            Err(why) => {
                if told.as_ref() != Some(&why) {
                    tell(&why);
                    told = Some(why);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Says once why the control store is not followed.
fn tell(why: &ListError) {
    match why {
        ListError::Store(ControlError::WentBack) => error!(
            "the control store has lost what it had told this node, which goes on with what it knows: bring back its \
             newest state; if that is lost for good, `perigee rebuild`"
        ),
        why => debug!(%why, "control store is away"),
    }
}

async fn take_event(env: &Arc<Env>, event: &Event) {
    let applied = Arc::make_mut(&mut env.directory.write()).apply(event);
    if let Err(error) = applied {
        return error!(%error, "record of the control store is unreadable");
    }
    look(env).await;
}

/// An owner sends to this node about a container that it does not have: it is to join.
async fn appear(env: &Arc<Env>, id: ContainerId) {
    if env.container(id).is_some() {
        return;
    }
    let view = env.directory.read().container(id).map(view_of);
    if let Some(view) = view {
        open(env, id, view).await;
    }
}

/// What a node does now and then for the containers that it owns.
async fn duties(env: Arc<Env>) {
    let mut locks_seen = tokio::time::Instant::now();
    let mut trash_seen = tokio::time::Instant::now();
    let mut maps_seen = trash_seen;
    let mut sampled = locks_seen;
    loop {
        tokio::time::sleep(DUTIES).await;
        if sampled.elapsed() >= heat::SAMPLE {
            sampled = tokio::time::Instant::now();
            env.heats.sample(sampled.into_std());
        }
        let nodes: Vec<NodeId> = env.directory.read().live.keys().copied().collect();
        if locks_seen.elapsed() >= LOCKS_SEEN {
            locks_seen = tokio::time::Instant::now();
            for container in env.all_containers() {
                let live = nodes.iter().copied().collect();
                env.runtime.spawn(container.end_lost_sessions(live));
            }
        }
        if maps_seen.elapsed() >= MAPS_SEEN {
            maps_seen = tokio::time::Instant::now();
            for container in env.all_containers() {
                if container.maps_change_unseen() {
                    env.runtime
                        .spawn_blocking(move || container.search_unseen());
                }
            }
        }
        if trash_seen.elapsed() >= TRASH_SEEN {
            trash_seen = tokio::time::Instant::now();
            let now = env.clock.wall();
            for container in env.all_containers() {
                container.purge_due(now);
            }
        }
        for container in env.all_containers() {
            let directory = Arc::clone(&env.directory.read());
            container.seek_member(&directory);
            drop(directory);
            container.reap(&nodes).await;
            container.settle_transactions().await;
        }
    }
}
