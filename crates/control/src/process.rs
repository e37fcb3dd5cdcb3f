//! The control process: made once, then run.
//!
//! ```text
//! DIR/control/ca.pem ca.key.pem       the cluster's authority
//! DIR/control/node.pem node.key.pem   this process
//! DIR/control/control.log             the store, where it is not in an etcd (then: see `on_etcd`)
//! DIR/control/address                 where it listens, and where tokens say that it is
//! ```
//! Keys and the store have mode 0600. The directory is made beside its place and then renamed, so it is
//! there whole or not at all.

use crate::engine::{Engine, EngineConfig};
use crate::error::{EngineError, shown};
use crate::gatekeeper::{Gatekeeper, wall_now};
use crate::keeper::Keeper;
use crate::local::LocalControl;
use crate::on_etcd::{self, EtcdChoice};
use crate::server::ControlService;
use crate::wire::AdminError;
use perigee_cluster::{
    Admits, ClusterInfo, ControlProcess, ControlStore, Directory, Revision, WatchError, change,
    key, transition,
};
use perigee_etcd::OpenError;
use perigee_net::{
    AUDIT, ClusterCa, ClusterId, Identity, IdentityError, JoinToken, NetConfig, NetError, Network,
    NodeKey, PeerName, Serial, TokenError,
};
use perigee_types::Span;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::{debug, error, info};

/// The feature level of new clusters.
pub const FORMAT: u32 = 1;
/// The control store's part of a node's directory.
const PLACE: &str = "control";
/// The same while it is being made.
const PLACE_NEW: &str = "control.new";
/// The file with the address.
const ADDRESS: &str = "address";
/// The pause before the record is looked at again, after the store did not answer.
const RECORD_PAUSE: Duration = Duration::from_millis(300);
/// How long the first token works.
const FIRST_TOKEN_TTL: Span = Span::from_millis(3_600_000);

/// Why the control process cannot be made or run.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The directory has a control store already.
    #[error("there is a control store in `{dir}` already")]
    Exists {
        /// The directory.
        dir: String,
    },
    /// The directory has no control store.
    #[error("there is no control store in `{dir}`")]
    Missing {
        /// The directory.
        dir: String,
    },
    /// Nodes could not be told where this is.
    #[error("`{address}` is no address that other nodes can reach: name one of this host")]
    BadAddress {
        /// The address.
        address: SocketAddr,
    },
    /// The file with the address is damaged.
    #[error("`{file}` holds no address")]
    BadAddressFile {
        /// The file.
        file: String,
    },
    /// A file of the directory cannot be made or read.
    #[error("cannot {action} `{file}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        file: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The certificates of the cluster.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The store.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The first records.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The first token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The etcd that keeps the record, or is to.
    #[error(transparent)]
    Etcd(#[from] OpenError),
    /// The record has moved before, to somewhere else.
    #[error("the control store is in `{place}` already")]
    OnEtcd {
        /// Where.
        place: String,
    },
    /// The record is this machine's own, and no other process can serve it.
    #[error("the record is in this machine's own store, which no other machine can serve")]
    Embedded,
    /// The disk failed while the process ran. A new process reads what is there.
    #[error("the disk under the control store in `{dir}` failed")]
    DiskFailed {
        /// The directory.
        dir: String,
    },
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ControlError {
    let file = shown(path);
    move |source| ControlError::Io {
        action,
        file,
        source,
    }
}

/// A control store that was just made.
#[derive(Debug)]
pub struct NewControl {
    /// The cluster.
    pub cluster: ClusterId,
    /// Where it will listen.
    pub address: SocketAddr,
    /// Lets in the first node, within an hour.
    pub token: JoinToken,
}

/// Makes a cluster: its certificate authority, its control store in `dir` (made if it is not there),
/// and a token for the first node. Port 0 chooses a free port, once and for all.
///
/// # Errors
/// There is one already; `listen` is an address that others cannot reach; the disk's.
pub async fn init_control(dir: &Path, listen: SocketAddr) -> Result<NewControl, ControlError> {
    init_control_on(dir, listen, None).await
}

/// The same with the record in an etcd, where one is given.
///
/// # Errors
/// As there, and the etcd's.
pub async fn init_control_on(
    dir: &Path,
    listen: SocketAddr,
    etcd: Option<&EtcdChoice>,
) -> Result<NewControl, ControlError> {
    check_absent(dir)?;
    let address = choose_address(listen)?;
    let beside = make_beside(dir)?;
    let (cluster, token) = fill(&beside, address, etcd).await?;
    put_in_place(dir, &beside)?;
    info!(%cluster, %address, "made a cluster");
    Ok(NewControl {
        cluster,
        address,
        token,
    })
}

/// The control store's own directory in `dir`, which must be there.
pub(crate) fn place_of(dir: &Path) -> Result<PathBuf, ControlError> {
    let place = dir.join(PLACE);
    if place.exists() {
        return Ok(place);
    }
    Err(ControlError::Missing { dir: shown(dir) })
}

pub(crate) fn check_absent(dir: &Path) -> Result<(), ControlError> {
    if dir.join(PLACE).exists() {
        return Err(ControlError::Exists { dir: shown(dir) });
    }
    Ok(())
}

/// An empty directory, which will be that of the control store.
pub(crate) fn make_beside(dir: &Path) -> Result<PathBuf, ControlError> {
    let beside = dir.join(PLACE_NEW);
    make_dir(dir)?;
    match fs::remove_dir_all(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &beside)(error));
        }
        _ => {}
    }
    make_dir(&beside)?;
    Ok(beside)
}

pub(crate) fn put_in_place(dir: &Path, beside: &Path) -> Result<(), ControlError> {
    fs::rename(beside, dir.join(PLACE)).map_err(failed("rename", beside))?;
    sync_dir(dir)
}

pub(crate) fn choose_address(listen: SocketAddr) -> Result<SocketAddr, ControlError> {
    let ip: IpAddr = listen.ip();
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(ControlError::BadAddress { address: listen });
    }
    let bound = TcpListener::bind(listen).and_then(|socket| socket.local_addr());
    bound.map_err(|source| NetError::Listen(source).into())
}

pub(crate) fn make_dir(dir: &Path) -> Result<(), ControlError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(dir).map_err(failed("make", dir))
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), ControlError> {
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(failed("sync", dir))
}

async fn fill(
    dir: &Path,
    address: SocketAddr,
    etcd: Option<&EtcdChoice>,
) -> Result<(ClusterId, JoinToken), ControlError> {
    let cluster = ClusterId::random().map_err(IdentityError::from)?;
    let ca = make_authority(dir, cluster)?;
    write_address(dir, address)?;
    let keeper = match etcd {
        None => {
            let engine = Arc::new(Engine::create(dir, EngineConfig::default())?);
            let store = LocalControl::new(engine);
            make_cluster(&store, cluster).await?;
            Keeper::Embedded(store)
        }
        Some(choice) => {
            let founding = on_etcd::begin(dir, choice, cluster, Revision(0)).await?;
            make_cluster(&founding.store(), cluster).await?;
            let record = on_etcd::finish(dir, founding).await?;
            on_etcd::open(dir, &record, cluster)?
        }
    };
    let gatekeeper = Gatekeeper::new(keeper, ca, address);
    let token = gatekeeper
        .create_token(FIRST_TOKEN_TTL, Admits::Anybody)
        .await?;
    sync_dir(dir)?;
    Ok((cluster, token.text.parse()?))
}

async fn make_cluster(store: &dyn ControlStore, cluster: ClusterId) -> Result<(), ControlError> {
    let info = ClusterInfo {
        id: cluster.0,
        created: wall_now(),
        format: FORMAT,
    };
    let made = change(store, |d| transition::create_cluster(d, info.clone())).await;
    Ok(made.map_err(AdminError::from)?)
}

/// A new authority, and this process' own certificate.
pub(crate) fn make_authority(dir: &Path, cluster: ClusterId) -> Result<ClusterCa, ControlError> {
    let ca = ClusterCa::create(cluster)?;
    ca.save(dir)?;
    certify(dir, &ca, PeerName::Control)?;
    Ok(ca)
}

/// A key and its certificate, in `dir`.
pub(crate) fn certify(dir: &Path, ca: &ClusterCa, name: PeerName) -> Result<Serial, ControlError> {
    let key = NodeKey::generate()?;
    let (certificate, serial) = ca.issue(&key.request()?, name)?;
    Identity::new(&key, &certificate, ca.certificate())?.save(dir)?;
    Ok(serial)
}

pub(crate) fn write_address(dir: &Path, address: SocketAddr) -> Result<(), ControlError> {
    let path = dir.join(ADDRESS);
    fs::write(&path, format!("{address}\n")).map_err(failed("write", &path))?;
    let written = fs::File::open(&path).and_then(|file| file.sync_all());
    written.map_err(failed("sync", &path))
}

/// Where the control store listens whose own directory `place` is.
///
/// # Errors
/// The file that says so cannot be read.
pub fn address(place: &Path) -> Result<SocketAddr, ControlError> {
    let path = place.join(ADDRESS);
    let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
    let address = text.trim().parse().ok();
    address.ok_or_else(|| ControlError::BadAddressFile { file: shown(&path) })
}

/// A running control store.
#[derive(Debug)]
pub struct Control {
    keeper: Keeper,
    gatekeeper: Arc<Gatekeeper>,
    network: Network,
    service: ControlService,
    revoker: AbortOnDrop,
    /// Says where this process listens, until the store has it.
    _registrar: AbortOnDrop,
    dir: PathBuf,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Control {
    /// Opens the store of `dir` and serves it at the address with which it was made.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub async fn start(dir: &Path) -> Result<Self, ControlError> {
        let place = place_of(dir)?;
        let address = address(&place)?;
        let ca = ClusterCa::load(&place)?;
        let identity = Identity::load(&place)?;
        let keeper = match on_etcd::record_of(&place)? {
            Some(record) => on_etcd::open(&place, &record, ca.cluster())?,
            None => {
                let engine = Engine::open(&place, EngineConfig::default())?;
                Keeper::Embedded(LocalControl::new(Arc::new(engine)))
            }
        };
        let gatekeeper = Arc::new(Gatekeeper::new(keeper.clone(), ca, address));
        let service = ControlService::new(keeper.clone(), Arc::clone(&gatekeeper));
        let config = NetConfig::new(identity, address);
        let network = Network::start(config, Arc::new(service.clone())).await?;
        let revoker = AbortOnDrop(tokio::spawn(revoke(keeper.clone(), network.clone())));
        let registered = register(keeper.clone(), address);
        info!(%address, kept = keeper.shown(), "serving the control store");
        Ok(Self {
            _registrar: AbortOnDrop(tokio::spawn(registered)),
            keeper,
            gatekeeper,
            network,
            service,
            revoker,
            dir: dir.to_owned(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.network.local_addr()
    }

    /// The store, without the way over the network.
    #[must_use]
    pub fn store(&self) -> Keeper {
        self.keeper.clone()
    }

    /// Makes tokens and admits nodes.
    #[must_use]
    pub fn gatekeeper(&self) -> &Gatekeeper {
        &self.gatekeeper
    }

    /// Returns when the disk failed in a way that only a new process can mend.
    pub async fn disk_failed(&self) {
        self.keeper.failed().await;
    }

    /// Stops: no call is taken any more, those that run end, and the directory is free.
    pub async fn stop(mut self) {
        self.revoker.0.abort();
        // It ends because it was told to.
        _ = (&mut self.revoker.0).await;
        self.service.stop_polls();
        self.network.shutdown().await;
        self.keeper.close().await;
        info!(dir = shown(&self.dir), "stopped the control store");
    }
}

/// Runs the control store of `dir` until `shutdown` is ready, or its disk fails.
///
/// # Errors
/// See [`ControlError`].
pub async fn run_control(
    dir: &Path,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ControlError> {
    let control = Control::start(dir).await?;
    let result = tokio::select! {
        () = shutdown => Ok(()),
        () = control.disk_failed() => Err(ControlError::DiskFailed { dir: shown(dir) }),
    };
    control.stop().await;
    result
}

/// Writes down where this process listens, where others serve the same record: nodes and tokens name them all.
async fn register(store: Keeper, address: SocketAddr) {
    let Some(process) = store.process() else {
        return;
    };
    let made = ControlProcess { address };
    let plan = |d: &Directory| Ok(transition::put_control(d, process, made.clone()));
    while let Err(error) = change(&store, plan).await {
        debug!(%error, "the address of this process is not written down yet");
        tokio::time::sleep(RECORD_PAUSE).await;
    }
}

/// Keeps the network's set of void certificates as the store has it, and says which are new.
async fn revoke(store: Keeper, network: Network) {
    let mut known: Option<BTreeSet<Vec<u8>>> = None;
    loop {
        let directory = match store.list(key::REVOKED).await {
            Ok((list, at)) => Directory::from_list(&list, at),
            Err(error) => {
                debug!(%error, "the revoked certificates are not known now");
                tokio::time::sleep(RECORD_PAUSE).await;
                continue;
            }
        };
        let directory = match directory {
            Ok(directory) => directory,
            // Whoever reads it next stops as well; a certificate that is not known to be void is not.
            Err(error) => return error!(%error, "cannot read the revoked certificates"),
        };
        let serials = directory.revoked.keys().map(|s| Serial::from_bytes(s));
        network.set_revoked(serials.collect());
        // Those of earlier processes were told by them.
        let before = known.get_or_insert_with(|| directory.revoked.keys().cloned().collect());
        for (serial, void) in &directory.revoked {
            if before.insert(serial.clone()) {
                let (node, serial) = (void.record.node, Serial::from_bytes(serial));
                info!(target: AUDIT, event = "certificate", outcome = "revoked", %node, %serial);
            }
        }
        let mut watch = store.watch(key::REVOKED, directory.revision.next());
        match watch.next().await {
            Ok(_) | Err(WatchError::Compacted { .. }) => {}
            Err(WatchError::Lost) => tokio::time::sleep(RECORD_PAUSE).await,
        }
    }
}
