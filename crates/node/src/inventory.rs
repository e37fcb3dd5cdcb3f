//! What this node knows of the cluster, kept on its disk for a control store that is made anew.

use crate::clock::wall_of;
use crate::container::Container;
use crate::env::Env;
use perigee_cluster::rebuild::{self, Copy, Held, Inventories, Inventory, Outcome, Place, Rebuilt};
use perigee_replica::rebuild::go_on;
use perigee_replica::{ChainView, Goes, Witness};
use perigee_store::{OpenError, Store, StoreError};
use perigee_types::NodeId;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::warn;

/// The copy of the control store, in a node's data directory.
const COPY: &str = "cluster.copy";
/// In the data directory of a node whose inventory was given away: it does not start.
const GIVEN_AWAY: &str = "inventory.given";
/// What is in there, for people.
const GIVEN_AWAY_TEXT: &[u8] = b"The inventory of this node was taken for a new control store: the node does not start \
before `perigee join --again TOKEN`.\n`perigee inventory --undo` takes that back, where no control store was made.\n";
/// How soon after a change the copy has it.
const LOOK: Duration = Duration::from_millis(500);

/// Why a data directory's inventory cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// The store cannot be opened: its node runs, or it is damaged.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be read or written.
    #[error("cannot use `{}`: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Writes the copy whenever there is something new to keep.
pub(crate) async fn keep_copy(env: Arc<Env>, data_dir: PathBuf) {
    let mut written: Option<Copy> = None;
    loop {
        let copy = {
            let directory = env.directory.read();
            let seen = written.as_ref().map(|copy| copy.revision);
            (seen != Some(directory.revision)).then(|| Copy::of(&directory))
        };
        if let Some(copy) = copy {
            let same = |old: &Copy| old.records == copy.records;
            if written.as_ref().is_some_and(same) {
                // Signs of life alone.
                written = Some(copy);
            } else {
                written = write_copy(&env, &data_dir, copy).await.or(written);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn write_copy(env: &Env, data_dir: &Path, copy: Copy) -> Option<Copy> {
    let path = data_dir.join(COPY);
    let bytes = copy.encode();
    let put = env.runtime.spawn_blocking(move || replace(&path, &bytes));
    let put = put.await.map_err(io::Error::from).flatten();
    put.inspect_err(|error| warn!(%error, "the copy of the control store is not kept"))
        .ok()
        .map(|()| copy)
}

/// Replaces a file that only its owner may read; the old or the new one is there after a crash.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The copy that an earlier process has kept; an empty one where there is none that can be read.
pub(crate) fn kept_copy(data_dir: &Path) -> Copy {
    let bytes = fs::read(data_dir.join(COPY)).unwrap_or_default();
    Copy::decode(&bytes).unwrap_or_default()
}

/// What the node of a data directory knows. It must not run.
///
/// # Errors
/// See [`InventoryError`].
pub fn take(data_dir: &Path) -> Result<Inventory, InventoryError> {
    let store = open(data_dir)?;
    read(&store, data_dir)
}

/// The same for a control store that is made elsewhere: when this returns the node does not start any more, until
/// [`let_start`]. Should an old control store answer still, the node would go on with it, and others with the new one.
///
/// # Errors
/// See [`InventoryError`]. The node may have been kept from starting.
pub fn give_away(data_dir: &Path) -> Result<Inventory, InventoryError> {
    // Open until the mark is on disk: a node that starts meanwhile does not get the store, and a later one finds the mark.
    let store = open(data_dir)?;
    let inventory = read(&store, data_dir)?;
    let path = data_dir.join(GIVEN_AWAY);
    match replace(&path, GIVEN_AWAY_TEXT) {
        Ok(()) => Ok(inventory),
        Err(source) => Err(InventoryError::Io { path, source }),
    }
}

/// Whether the inventory of a data directory was given away, and its node must not start. So is one whose disk does not say.
#[must_use]
pub fn is_given_away(data_dir: &Path) -> bool {
    data_dir.join(GIVEN_AWAY).try_exists().unwrap_or(true)
}

/// Lets the node of a data directory start again, as what it is by its configuration now. Durable.
///
/// # Errors
/// The mark cannot be removed.
pub fn let_start(data_dir: &Path) -> Result<(), InventoryError> {
    let path = data_dir.join(GIVEN_AWAY);
    let removed = match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) => File::open(data_dir).and_then(|dir| dir.sync_all()),
        Err(error) => Err(error),
    };
    removed.map_err(|source| InventoryError::Io { path, source })
}

fn open(data_dir: &Path) -> Result<Arc<Store>, OpenError> {
    Store::open(&data_dir.join("store"), None)
}

fn read(store: &Store, data_dir: &Path) -> Result<Inventory, InventoryError> {
    let identity = store.identity();
    let mut held = Vec::new();
    for container in store.containers()? {
        held.extend(Container::on_disk(store, container)?);
    }
    let path = data_dir.join(COPY);
    let copy = match fs::read(&path) {
        Ok(bytes) => Copy::decode(&bytes).map(|copy| (copy, fs::metadata(&path).ok())),
        // A node that has just joined; other nodes have a copy.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Copy::default(), None)),
        Err(source) => return Err(InventoryError::Io { path, source }),
    };
    let (copy, file) = copy.unwrap_or_else(|why| {
        warn!(%why, path = %path.display(), "the copy of the control store is left out");
        (Copy::default(), None)
    });
    let changed = file.and_then(|file| file.modified().ok());
    Ok(Inventory {
        node: identity.node,
        cluster: identity.cluster,
        taken: Some(wall_of(SystemTime::now())),
        changed: changed.map(wall_of),
        copy,
        held,
    })
}

/// The records of a new control store: see [`rebuild::rebuild`].
///
/// # Errors
/// As there.
pub fn rebuild(
    inventories: &Inventories,
    lost: &BTreeSet<NodeId>,
) -> Result<Rebuilt, rebuild::RebuildError> {
    let leap = leap();
    rebuild::rebuild(inventories, lost, |listed, held| {
        let listed: Vec<ChainView> = listed.into_iter().map(view).collect();
        let witnesses: Vec<Witness> = held
            .iter()
            .map(|(node, held)| witness(*node, held))
            .collect();
        match go_on(&listed, &witnesses, leap) {
            Some(Goes::On(ChainView { epoch, chain })) => Outcome::On(Place { epoch, chain }),
            Some(Goes::Lost(ChainView { epoch, chain })) => Outcome::Lost(Place { epoch, chain }),
            None => Outcome::Unknown,
        }
    })
}

/// Another number each time that a store is made anew, and above what epochs rise by on their own.
fn leap() -> NonZeroU64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let us = since.map_or(0, |since| since.as_micros() as u64);
    NonZeroU64::MIN.saturating_add(us.max(1 << 40))
}

fn view(Place { epoch, chain }: Place) -> ChainView {
    ChainView { epoch, chain }
}

fn witness(node: NodeId, held: &Held) -> Witness {
    Witness {
        node,
        promised: held.promised,
        complete: held.complete,
        view: held.place.clone().map(view),
    }
}
