//! What this node knows of the cluster, kept on its disk for a control store that is made anew.

use crate::container::Container;
use crate::env::Env;
use perigee_cluster::rebuild::{self, Copy, Held, Inventory, Outcome, Place, Rebuilt};
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
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", .path.display())]
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

/// What the node of a data directory knows. It must not run.
///
/// # Errors
/// See [`InventoryError`].
pub fn take(data_dir: &Path) -> Result<Inventory, InventoryError> {
    let store = Store::open(&data_dir.join("store"), None)?;
    let identity = store.identity();
    let mut held = Vec::new();
    for container in store.containers()? {
        held.extend(Container::on_disk(&store, container)?);
    }
    let path = data_dir.join(COPY);
    let copy = match fs::read(&path) {
        Ok(bytes) => Copy::decode(&bytes),
        // A node that has just joined; other nodes have a copy.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Copy::default()),
        Err(source) => return Err(InventoryError::Io { path, source }),
    };
    let copy = copy.unwrap_or_else(|why| {
        warn!(%why, path = %path.display(), "the copy of the control store is left out");
        Copy::default()
    });
    Ok(Inventory {
        node: identity.node,
        cluster: identity.cluster,
        copy,
        held,
    })
}

/// The records of a new control store: see [`rebuild::rebuild`].
///
/// # Errors
/// As there.
pub fn rebuild(
    inventories: &[Inventory],
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
