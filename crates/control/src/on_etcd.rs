//! A control store whose record is in an etcd: what this process has of it on its disk, and the move there.
//!
//! ```text
//! DIR/control/etcd.json                                where it is
//! DIR/control/etcd.memory                              how far it was, as this process knows
//! DIR/control/etcd-ca.pem etcd.pem etcd.key.pem        who it must be, and who this process is to it, over TLS
//! DIR/control/control.log.moved                        the engine's log, where the record was moved from there
//! ```
//! `etcd.json` decides: a directory that has it is served from etcd, whatever else it has. It is made last, whole or
//! not at all, so a move that was cut off has not happened, and can be made again.

use crate::disk::replace_file;
use crate::engine::{Engine, EngineConfig};
use crate::error::shown;
use crate::journal::NAME as LOG;
use crate::keeper::{EtcdKeeper, Keeper};
use crate::process::{ControlError, failed, place_of, sync_dir};
use crate::state::StoredKey;
use crate::wire::AdminError;
use perigee_cluster::{ControlStore, LeaseNumber, Txn};
use perigee_etcd::place::Secrecy;
use perigee_etcd::{Credentials, EtcdControl, Founding, Memory, OpenError, Place, Record};
use perigee_net::{ClusterCa, ClusterId, IdentityError};
use perigee_types::Span;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tracing::info;

/// Says where the etcd is.
const RECORD: &str = "etcd.json";
/// What is known of it.
const MEMORY: &str = "etcd.memory";
/// Whom its certificates are checked by.
const AUTHORITY: &str = "etcd-ca.pem";
/// This process' certificate there.
const CERTIFICATE: &str = "etcd.pem";
/// The key of that.
const KEY: &str = "etcd.key.pem";
/// What the engine's log is called once the record has moved. Kept, for nobody else has it as it was.
const LOG_MOVED: &str = "control.log.moved";
/// Puts of one transaction of a copy, for as long as their bytes fit.
const COPY_PUTS: usize = 64;
/// Bytes of one transaction of a copy.
const COPY_LEN: usize = 256 << 10;

/// An etcd that somebody chose, and how it is met.
#[derive(Debug, Clone)]
pub struct EtcdChoice {
    /// Where it is.
    pub place: Place,
    /// The files of whoever chose it; copied. Needed where TLS is spoken.
    pub credentials: Option<Credentials>,
}

/// The record that the control store in `place` keeps in an etcd; `None` where it keeps its own.
pub(crate) fn record_of(place: &Path) -> Result<Option<Record>, ControlError> {
    let path = place.join(RECORD);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let record = serde_json::from_slice(&bytes).map_err(io::Error::from);
    record.map(Some).map_err(failed("read", &path))
}

/// The keeper of a record that `place` has.
pub(crate) fn open(
    place: &Path,
    record: &Record,
    cluster: ClusterId,
) -> Result<Keeper, ControlError> {
    put_log_aside(place)?;
    let memory = Arc::new(Memory::open(&place.join(MEMORY))?);
    let credentials = credentials_in(place, &record.place);
    let store = EtcdControl::open(record, credentials.as_ref(), cluster.0, memory)?;
    Ok(Keeper::Etcd(Arc::new(EtcdKeeper::begin(
        store,
        record.process,
    ))))
}

/// The credentials that `place` has, where they are needed.
pub(crate) fn credentials_in(place: &Path, etcd: &Place) -> Option<Credentials> {
    (etcd.secrecy() == Secrecy::Tls).then(|| credential_files(place))
}

/// Where `place` has its credentials.
pub(crate) fn credential_files(place: &Path) -> Credentials {
    Credentials {
        authority: place.join(AUTHORITY),
        certificate: place.join(CERTIFICATE),
        key: place.join(KEY),
    }
}

/// Copies the credentials of a choice into `place`. Whoever is cut off there begins anew.
fn take_credentials(
    place: &Path,
    choice: &EtcdChoice,
) -> Result<Option<Credentials>, ControlError> {
    let Some(own) = credentials_in(place, &choice.place) else {
        return Ok(None);
    };
    let given = choice.credentials.as_ref();
    let given = given.ok_or(OpenError::Credentials(
        perigee_etcd::CredentialsError::Missing,
    ))?;
    for (from, to) in [
        (&given.authority, &own.authority),
        (&given.certificate, &own.certificate),
        (&given.key, &own.key),
    ] {
        let bytes = fs::read(from).map_err(failed("read", from))?;
        replace_file(to, &bytes).map_err(failed("write", to))?;
    }
    Ok(Some(own))
}

/// Begins the record of a cluster in an etcd. `least`: its revisions are above.
pub(crate) async fn begin(
    place: &Path,
    choice: &EtcdChoice,
    cluster: ClusterId,
    least: perigee_cluster::Revision,
) -> Result<Founding, ControlError> {
    let credentials = take_credentials(place, choice)?;
    let begun = Founding::begin(&choice.place, credentials.as_ref(), cluster.0, least);
    Ok(begun.await?)
}

/// Ends that, and makes the control store in `place` one that keeps its record there.
pub(crate) async fn finish(place: &Path, founding: Founding) -> Result<Record, ControlError> {
    let process = ClusterId::random().map_err(IdentityError::from)?.0;
    let record = founding.finish(process, &place.join(MEMORY)).await?;
    write_record(place, &record)?;
    Ok(record)
}

/// Makes `place` that of a further process for a record that is there.
pub(crate) async fn find(
    place: &Path,
    choice: &EtcdChoice,
    cluster: ClusterId,
) -> Result<(), ControlError> {
    let process = ClusterId::random().map_err(IdentityError::from)?.0;
    let (credentials, memory) = (choice.credentials.as_ref(), place.join(MEMORY));
    let found = Record::find(&choice.place, credentials, cluster.0, process, &memory);
    write_record(place, &found.await?)
}

fn write_record(place: &Path, record: &Record) -> Result<(), ControlError> {
    let path = place.join(RECORD);
    let bytes = serde_json::to_vec(record).map_err(|error| failed("write", &path)(error.into()))?;
    replace_file(&path, &bytes).map_err(failed("write", &path))
}

/// Nobody opens the log of a record that is elsewhere by mistake.
fn put_log_aside(place: &Path) -> Result<(), ControlError> {
    let log = place.join(LOG);
    match fs::rename(&log, place.join(LOG_MOVED)) {
        Ok(()) => sync_dir(place),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("rename", &log)(error)),
    }
}

/// What a move has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Where the record is now.
    pub place: Place,
    /// How many keys were copied; none where it was there already.
    pub keys: usize,
}

/// Whether [`move_control`] has anything to do, and anything against it, as far as can be said while the control store
/// runs.
///
/// # Errors
/// See [`ControlError`].
pub async fn check_move(dir: &Path, choice: &EtcdChoice) -> Result<MoveNeeded, ControlError> {
    let place = place_of(dir)?;
    if let Some(record) = record_of(&place)? {
        return is_there(&record, choice).map(|()| MoveNeeded::No);
    }
    let cluster = ClusterCa::load(&place)?.cluster().0;
    let checked = Founding::check(&choice.place, choice.credentials.as_ref(), cluster);
    checked.await?;
    Ok(MoveNeeded::Yes)
}

fn is_there(record: &Record, choice: &EtcdChoice) -> Result<(), ControlError> {
    if record.place == choice.place {
        return Ok(());
    }
    let place = record.place.to_string();
    Err(ControlError::OnEtcd { place })
}

/// Whether there is something to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveNeeded {
    /// There is.
    Yes,
    /// The record is there already.
    No,
}

/// Moves the record of the control store of `dir`, which must not run, to an etcd. When this fails the record is where
/// it was; when it is cut off, the record is where it was, or all of it is in etcd. Moving again what has moved is done
/// at once.
///
/// # Errors
/// See [`ControlError`].
pub async fn move_control(dir: &Path, choice: &EtcdChoice) -> Result<Moved, ControlError> {
    let place = place_of(dir)?;
    if let Some(record) = record_of(&place)? {
        is_there(&record, choice)?;
        put_log_aside(&place)?;
        let place = record.place;
        return Ok(Moved { place, keys: 0 });
    }
    let ca = ClusterCa::load(&place)?;
    // Nobody else opens the directory before this ends, so nothing changes beside the copy.
    let engine = Engine::open(&place, EngineConfig::default())?;
    let content = engine.content();
    let founding = begin(&place, choice, ca.cluster(), content.revision).await?;
    let keys = content.keys.len();
    copy(content.keys, &content.leases, &founding.store()).await?;
    let record = finish(&place, founding).await?;
    put_log_aside(&place)?;
    let to = record.place.to_string();
    info!(dir = shown(dir), to, keys, "moved the control store");
    Ok(Moved {
        place: record.place,
        keys,
    })
}

/// Copies keys, those of leases with leases of the same terms: their holders find theirs gone, and put the keys anew.
async fn copy(
    keys: Vec<StoredKey>,
    terms: &BTreeMap<LeaseNumber, Span>,
    to: &dyn ControlStore,
) -> Result<(), ControlError> {
    let mut leases: BTreeMap<LeaseNumber, LeaseNumber> = BTreeMap::new();
    let (mut txn, mut len) = (Txn::default(), 0);
    for stored in keys {
        let lease = match stored.lease {
            None => None,
            Some(old) => match (leases.get(&old), terms.get(&old)) {
                (Some(new), _) => Some(*new),
                (None, Some(ttl)) => {
                    let new = to.grant_lease(*ttl).await.map_err(AdminError::Store)?;
                    leases.insert(old, new);
                    Some(new)
                }
                // A key of no lease that there is has ended.
                (None, None) => continue,
            },
        };
        let grown = stored.key.len() + stored.value.len();
        if txn.writes.len() >= COPY_PUTS || len + grown > COPY_LEN {
            let part = std::mem::take(&mut txn);
            to.commit(part).await.map_err(AdminError::Store)?;
            len = 0;
        }
        len += grown;
        txn = txn.when(stored.key.clone(), None);
        txn = match lease {
            None => txn.put(stored.key, stored.value),
            Some(lease) => txn.put_leased(stored.key, stored.value, lease),
        };
    }
    to.commit(txn).await.map_err(AdminError::Store)?;
    Ok(())
}
