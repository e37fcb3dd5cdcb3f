//! A further process for a record in etcd, on another machine: what it takes from one that is there.
//!
//! It gets the key of the cluster's authority and the certificate for etcd, so whoever has its bundle decides what the
//! cluster is. The record itself it has from etcd; that must know of the cluster.

use crate::disk::replace_file;
use crate::on_etcd::{self, EtcdChoice};
use crate::process::{
    ControlError, certify, check_absent, choose_address, failed, make_beside, place_of,
    put_in_place, sync_dir, write_address,
};
use perigee_etcd::{Credentials, Place};
use perigee_net::{ClusterCa, PeerName};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use tracing::info;

/// The format of bundles.
const FORMAT: u32 = 1;
/// The authority's certificate, and its key.
const AUTHORITY: [&str; 2] = ["ca.pem", "ca.key.pem"];

/// What a further process needs. It is a secret.
#[derive(Serialize, Deserialize)]
pub struct Bundle {
    format: u32,
    /// PEM.
    authority: String,
    /// PEM.
    authority_key: String,
    etcd: Place,
    credentials: Option<EtcdCredentials>,
}

/// [`Credentials`], each as PEM.
#[derive(Serialize, Deserialize)]
struct EtcdCredentials {
    authority: String,
    certificate: String,
    key: String,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bundle({})", self.etcd)
    }
}

/// Why bytes are no bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotABundle {
    /// It is something else, or damaged.
    #[error("it is not what `perigee control export` writes, or damaged")]
    Other,
    /// A later program wrote it.
    #[error("it has format {found}, this program reads up to {FORMAT}")]
    Newer {
        /// Its format.
        found: u32,
    },
}

impl Bundle {
    /// What a further process beside the one of `dir` needs.
    ///
    /// # Errors
    /// The record is not in an etcd; a file cannot be read.
    pub fn of(dir: &Path) -> Result<Self, ControlError> {
        let place = place_of(dir)?;
        let Some(record) = on_etcd::record_of(&place)? else {
            return Err(ControlError::Embedded);
        };
        let read = |path: &Path| fs::read_to_string(path).map_err(failed("read", path));
        let credentials = match on_etcd::credentials_in(&place, &record.place) {
            None => None,
            Some(files) => Some(EtcdCredentials {
                authority: read(&files.authority)?,
                certificate: read(&files.certificate)?,
                key: read(&files.key)?,
            }),
        };
        let [authority, key] = AUTHORITY;
        Ok(Self {
            format: FORMAT,
            authority: read(&place.join(authority))?,
            authority_key: read(&place.join(key))?,
            etcd: record.place,
            credentials,
        })
    }

    /// As a file has it.
    ///
    /// # Errors
    /// It cannot be written as text.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec_pretty(self)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`NotABundle`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NotABundle> {
        let read: Self = serde_json::from_slice(bytes).map_err(|_| NotABundle::Other)?;
        match read.format {
            FORMAT => Ok(read),
            found if found > FORMAT => Err(NotABundle::Newer { found }),
            _ => Err(NotABundle::Other),
        }
    }
}

/// Makes a further control process in `dir`, which will listen on `listen`. Port 0 chooses a free port.
///
/// # Errors
/// There is one already; etcd does not answer, or does not know the cluster; the disk's.
pub async fn join_control(
    dir: &Path,
    listen: SocketAddr,
    bundle: &Bundle,
) -> Result<SocketAddr, ControlError> {
    check_absent(dir)?;
    let address = choose_address(listen)?;
    let beside = make_beside(dir)?;
    let write = |name: &str, text: &str| {
        let path = beside.join(name);
        replace_file(&path, text.as_bytes()).map_err(failed("write", &path))
    };
    let [authority, key] = AUTHORITY;
    write(authority, &bundle.authority)?;
    write(key, &bundle.authority_key)?;
    let ca = ClusterCa::load(&beside)?;
    certify(&beside, &ca, PeerName::Control)?;
    write_address(&beside, address)?;
    let choice = EtcdChoice {
        place: bundle.etcd.clone(),
        credentials: given(&beside, bundle.credentials.as_ref())?,
    };
    on_etcd::find(&beside, &choice, ca.cluster()).await?;
    sync_dir(&beside)?;
    put_in_place(dir, &beside)?;
    info!(cluster = %ca.cluster(), %address, "made a further process for the record");
    Ok(address)
}

/// Puts the credentials of a bundle where they stay.
fn given(
    place: &Path,
    credentials: Option<&EtcdCredentials>,
) -> Result<Option<Credentials>, ControlError> {
    let Some(given) = credentials else {
        return Ok(None);
    };
    let own = on_etcd::credential_files(place);
    for (path, text) in [
        (&own.authority, &given.authority),
        (&own.certificate, &given.certificate),
        (&own.key, &given.key),
    ] {
        replace_file(path, text.as_bytes()).map_err(failed("write", path))?;
    }
    Ok(Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> Bundle {
        Bundle {
            format: FORMAT,
            authority: "a".to_owned(),
            authority_key: "secret".to_owned(),
            etcd: "etcd://127.0.0.1:1".parse().expect("a place"),
            credentials: None,
        }
    }

    #[test]
    fn a_bundle_reads_back_and_what_is_none_is_refused() {
        let bytes = bundle().encode().expect("text");
        assert!(Bundle::decode(&bytes).is_ok_and(|read| read.etcd == bundle().etcd));
        let newer = Bundle {
            format: 2,
            ..bundle()
        };
        let newer = newer.encode().expect("text");
        assert_eq!(
            Bundle::decode(&newer).err(),
            Some(NotABundle::Newer { found: 2 })
        );
        assert_eq!(Bundle::decode(b"{}").err(), Some(NotABundle::Other));
        assert!(!format!("{:?}", bundle()).contains("secret"));
    }
}
