//! The side of a union's starter: it starts a member on each host, tells all of them who is there, carries connections
//! between those that cannot reach each other, and starts anew what was lost.

use super::agent::PULSE;
use super::launch::{Launched, Launcher, NotLaunched};
use super::target::{Host, Target};
use crate::branch::Branch;
use crate::channel::{Channel, Duplex, Event};
use crate::member::Union;
use crate::ways::Carrier;
use crate::wire::{
    BranchId, Member, Members, Order, Settings, VERSION, Welcome, Word, decode, encode,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use perigee_cluster::Coordinate;
use perigee_net::{ClusterCa, ClusterId, Identity, NodeKey, PeerName};
use perigee_types::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

/// The member that has the starter.
pub const STARTER: NodeId = NodeId(0);
/// How long a started member may take to serve.
const SERVES: Duration = Duration::from_secs(20);
/// The first pause before a lost member is started anew; doubles.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// The longest one.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// A member that has lived for so long is started anew soon, and one that ends at once later each time.
const LIVES: Duration = Duration::from_secs(60);
/// Addresses of one member.
const ADDRESSES_MAX: usize = 8;
/// Coordinates are passed on no more often.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// One host of a union.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its member.
    pub id: NodeId,
    /// None: this host.
    pub host: Option<Host>,
    /// Directories.
    pub branches: Vec<(BranchId, Vec<u8>)>,
}

impl Place {
    /// As people know it.
    #[must_use]
    pub fn name(&self) -> String {
        self.host
            .as_ref()
            .map_or_else(|| "this host".to_owned(), Host::to_string)
    }
}

/// The hosts of targets, this one first, in the order in which they are named; branches are numbered as they are.
#[must_use]
pub fn places(targets: &[Target]) -> Vec<Place> {
    let mut places = vec![Place {
        id: STARTER,
        host: None,
        branches: Vec::new(),
    }];
    for (number, target) in targets.iter().enumerate() {
        let branch = (BranchId(number as u16), target.directory.clone());
        match places.iter_mut().find(|place| place.host == target.host) {
            Some(place) => place.branches.push(branch),
            None => places.push(Place {
                id: NodeId(places.len() as u32),
                host: target.host.clone(),
                branches: vec![branch],
            }),
        }
    }
    places
}

/// What happens to hosts while a union starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A member serves.
    Serves(String),
    /// It does not, for this reason.
    Failed(String, String),
}

/// How a union is started.
pub struct Plan {
    /// Hosts, this one first.
    pub places: Vec<Place>,
    /// How members are started.
    pub launcher: Launcher,
    /// What holds for all.
    pub settings: Settings,
    /// Where this host has the mount.
    pub mountpoint: PathBuf,
    /// The other hosts are to have it there, too.
    pub everywhere: bool,
}

/// A running union, on the host that has started it.
pub struct Starter {
    me: Weak<Self>,
    plan: Plan,
    authority: ClusterCa,
    union: OnceLock<Arc<Union>>,
    table: Mutex<Table>,
    changed: Notify,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Table {
    version: u64,
    known: BTreeMap<NodeId, Known>,
}

struct Known {
    member: Member,
    channel: Option<Arc<Channel>>,
    /// Told when its host has the mount, or why not.
    mounted: Option<oneshot::Sender<Result<(), String>>>,
}

/// Why a union does not start.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// A directory of this host.
    #[error("cannot open `{directory}`: {error}")]
    Directory {
        /// Which.
        directory: String,
        /// Why.
        error: io::Error,
    },
    /// The system has no random numbers, or no port.
    #[error("{0}")]
    System(String),
    /// Hosts that have no member.
    #[error("{}", .0.iter().map(|(host, why)| format!("{host}: {why}")).collect::<Vec<_>>().join("; "))]
    Hosts(Vec<(String, String)>),
}

fn system(error: impl std::fmt::Display) -> NotStarted {
    NotStarted::System(error.to_string())
}

impl Starter {
    /// Starts members on all hosts at once, and returns when each of them serves or cannot.
    ///
    /// # Errors
    /// A host has no member, unless the settings leave out such hosts and there is another branch; what stands in the way
    /// on this host.
    pub async fn start(
        plan: Plan,
        progress: mpsc::UnboundedSender<Progress>,
    ) -> Result<(Arc<Self>, Arc<Union>), NotStarted> {
        let cluster = ClusterId::random().map_err(system)?;
        let authority = ClusterCa::create(cluster).map_err(system)?;
        let starter = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            table: Mutex::new(Table {
                version: 0,
                known: plan
                    .places
                    .iter()
                    .map(|place| (place.id, known(place)))
                    .collect(),
            }),
            plan,
            authority,
            union: OnceLock::new(),
            changed: Notify::new(),
            stopping: AtomicBool::new(false),
        });
        let union = starter.own_member().await?;
        _ = starter.union.set(Arc::clone(&union));
        let others: Vec<Place> = starter.plan.places.iter().skip(1).cloned().collect();
        let brought = others.iter().map(|place| {
            let (starter, progress) = (&starter, progress.clone());
            async move {
                let name = place.name();
                match starter.bring(place).await {
                    Ok(()) => {
                        _ = progress.send(Progress::Serves(name));
                        None
                    }
                    Err(why) => {
                        _ = progress.send(Progress::Failed(name.clone(), why.to_string()));
                        Some((name, why.to_string()))
                    }
                }
            }
        });
        let failed: Vec<_> = futures_util::future::join_all(brought)
            .await
            .into_iter()
            .flatten()
            .collect();
        let serving = starter
            .table
            .lock()
            .known
            .values()
            .any(|known| !known.member.away && !known.member.branches.is_empty());
        let enough = failed.is_empty() || (starter.plan.settings.partial && serving);
        if !enough {
            return Err(NotStarted::Hosts(failed));
        }
        starter.tell_members();
        tokio::spawn(pass_on(Arc::downgrade(&starter)));
        for place in others {
            let starter = Arc::downgrade(&starter);
            tokio::spawn(watch_over(starter, place));
        }
        Ok((starter, union))
    }

    /// The member of this host.
    async fn own_member(&self) -> Result<Arc<Union>, NotStarted> {
        let key = NodeKey::generate().map_err(system)?;
        let request = key.request().map_err(system)?;
        let (certificate, _) = self
            .authority
            .issue(&request, PeerName::Node(STARTER))
            .map_err(system)?;
        let authority = self.authority.certificate().to_owned();
        let identity = Identity::new(&key, &certificate, &authority).map_err(system)?;
        let mut branches = Vec::new();
        for (id, directory) in self
            .plan
            .places
            .first()
            .map_or(&[][..], |place| &place.branches)
        {
            let path = std::path::absolute(PathBuf::from(
                <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(directory),
            ));
            let opened = path.and_then(|path| Branch::open(*id, &path));
            branches.push(opened.map_err(|error| NotStarted::Directory {
                directory: String::from_utf8_lossy(directory).into_owned(),
                error,
            })?);
        }
        // Others come here for what is here, alone.
        let open = self.plan.settings.direct && !branches.is_empty();
        let listen = match open {
            true => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            false => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        };
        let settings = self.plan.settings.clone();
        let union = Union::start((STARTER, settings), branches, identity, listen).await;
        let union = union.map_err(system)?;
        union.set_carrier(Arc::new(Spokes(Weak::clone(&self.me))));
        Ok(union)
    }

    /// Starts the member of a host.
    async fn bring(&self, place: &Place) -> Result<(), NotLaunched> {
        let host = place
            .host
            .as_ref()
            .ok_or_else(|| NotLaunched("it is this host".to_owned()))?;
        let Launched {
            child,
            channel,
            mut events,
        } = self.plan.launcher.start(host).await?;
        let greeted = timeout(SERVES, self.greet(place, &channel, &mut events)).await;
        let (addresses, seen) = match greeted {
            Ok(started) => started?,
            Err(_) => return Err(NotLaunched("it did not serve in time".to_owned())),
        };
        self.is_seen_at(seen);
        let (mounted, mount) = oneshot::channel();
        {
            let mut table = self.table.lock();
            if self.is_stopping() {
                // Who ends all members has not seen this one.
                return Err(NotLaunched("the union ends".to_owned()));
            }
            if let Some(known) = table.known.get_mut(&place.id) {
                known.member.addresses = addresses;
                known.member.away = false;
                known.member.born += 1;
                known.channel = Some(Arc::clone(&channel));
                known.mounted = Some(mounted);
            }
        }
        self.tell_members();
        let (starter, id) = (Weak::clone(&self.me), place.id);
        tokio::spawn(async move {
            hear(&starter, id, events).await;
            drop(child);
        });
        if !self.plan.everywhere {
            return Ok(());
        }
        // Who is not told within that time is not told of a failure that comes later, either: its log has it.
        match timeout(SERVES, mount).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(why))) => Err(NotLaunched(why)),
            Ok(Err(_)) => Err(NotLaunched("the connection ended".to_owned())),
            Err(_) => Err(NotLaunched("it did not mount in time".to_owned())),
        }
    }

    async fn greet(
        &self,
        place: &Place,
        channel: &Arc<Channel>,
        events: &mut mpsc::Receiver<Event>,
    ) -> Result<(Vec<SocketAddr>, Option<IpAddr>), NotLaunched> {
        let refuse = |why: String| Err(NotLaunched(why));
        loop {
            let word = match events.recv().await {
                Some(Event::Control(bytes)) => decode::<Word>(&bytes),
                Some(Event::Open(_, incoming)) => {
                    incoming.refuse().await;
                    continue;
                }
                None => return refuse("the connection ended".to_owned()),
            };
            match word {
                Ok(Word::Hello { version, request }) if version == VERSION => {
                    let name = PeerName::Node(place.id);
                    let issued = self.authority.issue(&request, name);
                    let (certificate, _) =
                        issued.map_err(|error| NotLaunched(error.to_string()))?;
                    use std::os::unix::ffi::OsStrExt;
                    let point = self.plan.mountpoint.as_os_str().as_bytes();
                    let welcome = Welcome {
                        me: place.id,
                        certificate,
                        authority: self.authority.certificate().to_owned(),
                        branches: place.branches.clone(),
                        mountpoint: self.plan.everywhere.then(|| point.to_vec()),
                        starter: (super::boot(), point.to_vec()),
                        settings: self.plan.settings.clone(),
                    };
                    channel
                        .control(encode(&Order::Welcome(Box::new(welcome))))
                        .await;
                }
                Ok(Word::Hello { version, .. }) => {
                    return refuse(format!(
                        "it speaks version {version}, this program {VERSION}"
                    ));
                }
                Ok(Word::Started {
                    mut addresses,
                    seen,
                }) => {
                    addresses.truncate(ADDRESSES_MAX);
                    return Ok((addresses, seen));
                }
                Ok(Word::Failed(why)) => return refuse(why),
                Ok(Word::Ping | Word::Coordinate(_) | Word::Mounted) => {}
                Err(error) => return refuse(error.to_string()),
            }
        }
    }

    /// Hosts have seen this one at an address; perhaps it can be reached there.
    fn is_seen_at(&self, address: Option<IpAddr>) {
        let listens = self.plan.settings.direct
            && self
                .plan
                .places
                .first()
                .is_some_and(|p| !p.branches.is_empty());
        let (Some(address), Some(union), true) = (address, self.union.get(), listens) else {
            return;
        };
        let address = SocketAddr::new(address, union.port());
        if let Some(own) = self.table.lock().known.get_mut(&STARTER)
            && !own.member.addresses.contains(&address)
        {
            own.member.addresses.push(address);
        }
    }

    /// Tells everybody who is there.
    fn tell_members(&self) {
        let (members, channels) = {
            let table = &mut *self.table.lock();
            table.version += 1;
            let members = Members {
                version: table.version,
                members: table
                    .known
                    .values()
                    .map(|known| known.member.clone())
                    .collect(),
            };
            let channels = table
                .known
                .values()
                .filter_map(|known| known.channel.clone());
            (members, channels.collect::<Vec<_>>())
        };
        if let Some(union) = self.union.get() {
            union.set_members(members.clone());
        }
        let message = encode(&Order::Members(members));
        for channel in channels {
            let message = message.clone();
            tokio::spawn(async move { channel.control(message).await });
        }
    }

    /// Who is there, and who is away.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let table = self.table.lock();
        table
            .known
            .values()
            .map(|known| known.member.clone())
            .collect()
    }

    /// Where the directories are.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.plan.places
    }

    /// Ends all members; none is started anew.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for known in self.table.lock().known.values_mut() {
            if let Some(channel) = known.channel.take() {
                channel.end();
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn is_mounted(&self, id: NodeId, how: Result<(), String>) {
        let waiting = self
            .table
            .lock()
            .known
            .get_mut(&id)
            .and_then(|known| known.mounted.take());
        if let Some(waiting) = waiting {
            // Whoever waited may have given up.
            _ = waiting.send(how);
        }
    }

    fn lost(&self, id: NodeId) {
        let mut table = self.table.lock();
        if let Some(known) = table.known.get_mut(&id) {
            warn!(host = known.member.name, "is lost");
            known.channel = None;
            known.member.away = true;
        }
        drop(table);
        self.tell_members();
    }
}

fn known(place: &Place) -> Known {
    Known {
        member: Member {
            id: place.id,
            name: place.name(),
            addresses: Vec::new(),
            branches: place.branches.iter().map(|(id, _)| *id).collect(),
            coordinate: Vec::new(),
            away: place.id != STARTER,
            born: 0,
        },
        channel: None,
        mounted: None,
    }
}

/// Takes what a member says, until it is gone.
async fn hear(starter: &Weak<Starter>, id: NodeId, mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        let Some(starter) = starter.upgrade() else {
            return;
        };
        match event {
            Event::Control(bytes) => match decode::<Word>(&bytes) {
                Ok(Word::Coordinate(told)) if Coordinate::from_note(&told).is_some() => {
                    if let Some(known) = starter.table.lock().known.get_mut(&id) {
                        known.member.coordinate = told;
                    }
                    starter.changed.notify_one();
                }
                Ok(Word::Failed(why)) => {
                    warn!(%id, why, "a member cannot go on");
                    starter.is_mounted(id, Err(why));
                }
                Ok(Word::Mounted) => starter.is_mounted(id, Ok(())),
                Ok(_) => {}
                Err(error) => {
                    warn!(%id, %error, "a member is not understood");
                    break;
                }
            },
            Event::Open(to, incoming) => {
                tokio::spawn(async move {
                    let Some(io) = starter.connect(to).await else {
                        return incoming.refuse().await;
                    };
                    incoming.carry(io).await;
                });
            }
        }
    }
    if let Some(starter) = starter.upgrade() {
        starter.lost(id);
    }
}

impl Starter {
    /// A connection to a member, for another one.
    async fn connect(&self, to: NodeId) -> Option<Box<dyn Duplex>> {
        if to == STARTER {
            let port = self.union.get()?.port();
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
            _ = stream.set_nodelay(true);
            return Some(Box::new(stream));
        }
        let channel = self.table.lock().known.get(&to)?.channel.clone()?;
        let (near, far) = tokio::io::duplex(256 << 10);
        tokio::spawn(async move { channel.open(to, Box::new(far)).await });
        Some(Box::new(near))
    }
}

/// Carries connections of this host to members over the SSH connections that they were started by.
struct Spokes(Weak<Starter>);

impl Carrier for Spokes {
    fn carry(&self, to: NodeId, io: Box<dyn Duplex>) -> BoxFuture<'static, ()> {
        let starter = self.0.upgrade();
        async move {
            let channel = starter.and_then(|s| s.table.lock().known.get(&to)?.channel.clone());
            if let Some(channel) = channel {
                channel.open(to, io).await;
            }
        }
        .boxed()
    }
}

/// Says every second that the starter is here, and passes on where members are.
async fn pass_on(starter: Weak<Starter>) {
    let (mut told, mut own) = (Instant::now(), None);
    loop {
        let Some(starter) = starter.upgrade() else {
            return;
        };
        let channels: Vec<Arc<Channel>> = {
            let table = starter.table.lock();
            table
                .known
                .values()
                .filter_map(|known| known.channel.clone())
                .collect()
        };
        for channel in channels {
            tokio::spawn(async move { channel.control(encode(&Order::Ping)).await });
        }
        if let Some(coordinate) = starter.union.get().and_then(|union| union.moved(own)) {
            own = Some(coordinate);
            if let Some(known) = starter.table.lock().known.get_mut(&STARTER) {
                known.member.coordinate = coordinate.to_note();
            }
            starter.changed.notify_one();
        }
        let changed = timeout(PULSE, starter.changed.notified()).await.is_ok();
        if changed {
            tokio::time::sleep(TOLD_EVERY.saturating_sub(told.elapsed())).await;
            told = Instant::now();
            starter.tell_members();
        }
    }
}

/// Starts the member of a host anew whenever it is lost.
async fn watch_over(starter: Weak<Starter>, place: Place) {
    let mut pause = AGAIN_MIN;
    loop {
        let channel = match starter.upgrade() {
            Some(starter) => starter
                .table
                .lock()
                .known
                .get(&place.id)
                .and_then(|known| known.channel.clone()),
            None => return,
        };
        if let Some(channel) = channel {
            let began = Instant::now();
            channel.over().await;
            if began.elapsed() > LIVES {
                pause = AGAIN_MIN;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
        let Some(starter) = starter.upgrade().filter(|starter| !starter.is_stopping()) else {
            return;
        };
        match starter.bring(&place).await {
            Ok(()) => info!(host = place.name(), "is back"),
            Err(why) => warn!(host = place.name(), %why, "is still away"),
        }
    }
}
