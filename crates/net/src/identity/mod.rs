//! Who this process is: its certificate and key, and the authority that it trusts.
//!
//! A directory holds `ca.pem` (the authority's certificate), `node.pem` and `node.key.pem` (this process), and at the
//! control store `ca.key.pem`; `joining.pem` while a node has asked for its certificate and does not have it yet. Keys have mode 0600; a key that others may read is refused.
//! Memory that held a key or a token's secret is cleared when it is given back, as far as it is this room's: TLS keeps the key
//! that it signs with as long as the process lives.

mod ca;
mod name;
mod pem;
mod pending;
mod token;

pub use ca::{ClusterCa, NodeKey};
pub use name::{ClusterId, NotAClusterId, PeerName};
pub use pending::PendingKey;
pub use token::{JoinToken, SecretHash, TokenError};

use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use webpki::EndEntityCert;
use zeroize::{Zeroize, Zeroizing};

use crate::crypto::{self, NoRandomness};

/// Why an identity cannot be made, read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("`{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A key that other users may read.
    #[error("`{path}` has mode {mode:04o}: others may read the key; set it to 0600")]
    KeyIsReadable {
        /// The key's file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file that holds no certificate, key or request.
    #[error("`{what}` is not a PEM text of the right kind")]
    NotPem {
        /// The file, or what it should be.
        what: String,
    },
    /// A certificate that names no peer of a cluster.
    #[error("the certificate names no peer: `{detail}`")]
    NoName {
        /// What was found.
        detail: String,
    },
    /// The certificate does not belong to the key or the authority beside it.
    #[error("the certificate does not fit: {detail}")]
    Mismatch {
        /// What does not fit.
        detail: String,
    },
    /// A request for a certificate that cannot be read, or whose signature is wrong.
    #[error("the certificate request is not valid: {detail}")]
    BadRequest {
        /// Why.
        detail: String,
    },
    /// A certificate or key could not be made.
    #[error("cannot make a certificate: {detail}")]
    Making {
        /// Why.
        detail: String,
    },
    /// No random bytes.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
}

/// The SHA-256 of a certificate authority's certificate. Shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(crypto::sha256(certificate))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crypto::to_hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The serial number of a certificate, by which it is revoked. Shown in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// A serial number by its bytes, the most significant first.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|b| **b == 0).count();
        Self(bytes[zeros..].to_vec())
    }

    /// The bytes, the most significant first, without leading zeros.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crypto::to_hex(&self.0))
    }
}

/// What a certificate says: whose it is, of which cluster, and its serial number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) name: PeerName,
    pub(crate) cluster: ClusterId,
    pub(crate) serial: Serial,
}

/// Reads a certificate's subject. It says nothing about who signed it.
pub(crate) fn subject_of(certificate: &CertificateDer<'_>) -> Result<Subject, IdentityError> {
    let parsed = EndEntityCert::try_from(certificate).map_err(|error| IdentityError::NoName {
        detail: error.to_string(),
    })?;
    let names: Vec<&str> = parsed.valid_dns_names().collect();
    let [only] = names[..] else {
        return Err(IdentityError::NoName {
            detail: format!("{} DNS names", names.len()),
        });
    };
    let (name, cluster) = PeerName::from_dns(only).ok_or_else(|| IdentityError::NoName {
        detail: only.to_owned(),
    })?;
    Ok(Subject {
        name,
        cluster,
        serial: Serial::from_bytes(parsed.serial()),
    })
}

/// This process's certificate and key, and the authority of its cluster. `Debug` does not show the key.
pub struct Identity {
    subject: Subject,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Joins what [`ClusterCa::issue`] gave with the key that asked for it.
    ///
    /// # Errors
    /// A text is not PEM, the certificate names no peer, or the parts do not fit each other.
    pub fn new(key: &NodeKey, certificate: &str, authority: &str) -> Result<Self, IdentityError> {
        Self::from_parts(
            pem::certificate("certificate", certificate)?,
            pem::certificate("authority", authority)?,
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_der().to_vec())),
        )
    }

    /// Reads `node.pem`, `node.key.pem` and `ca.pem` of `directory`.
    ///
    /// # Errors
    /// A file is missing or malformed, the key is readable by others, or the three do not fit each other.
    pub fn load(directory: &Path) -> Result<Self, IdentityError> {
        let certificate = directory.join("node.pem");
        let authority = directory.join("ca.pem");
        let key = directory.join("node.key.pem");
        Self::from_parts(
            pem::certificate(
                &certificate.display().to_string(),
                &pem::read(&certificate)?,
            )?,
            pem::certificate(&authority.display().to_string(), &pem::read(&authority)?)?,
            pem::key(&key.display().to_string(), &pem::read_key(&key)?)?,
        )
    }

    /// Writes the three files, the key with mode 0600, each whole or not at all.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), IdentityError> {
        let key = Zeroizing::new(pem::encode("PRIVATE KEY", self.key.secret_der()));
        pem::write_key(&directory.join("node.key.pem"), &key)?;
        let authority = pem::encode("CERTIFICATE", &self.authority);
        pem::write(&directory.join("ca.pem"), &authority)?;
        let certificate = pem::encode("CERTIFICATE", &self.certificate);
        pem::write(&directory.join("node.pem"), &certificate)
    }

    fn from_parts(
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let subject = subject_of(&certificate)?;
        let identity = Self {
            subject,
            certificate,
            authority,
            key,
        };
        crate::tls::check_fit(&identity)?;
        Ok(identity)
    }

    /// How a listener of this member does TLS, for who measures what that alone costs.
    ///
    /// # Errors
    /// The parts do not fit each other.
    pub fn tls_server(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        crate::tls::server_config(self).map_err(crate::tls::mismatch)
    }

    /// The same of who connects to one.
    ///
    /// # Errors
    /// The parts do not fit each other.
    pub fn tls_client(&self) -> Result<Arc<ClientConfig>, IdentityError> {
        crate::tls::client_config(self).map_err(crate::tls::mismatch)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.subject.cluster
    }

    /// This process's name.
    #[must_use]
    pub fn name(&self) -> PeerName {
        self.subject.name
    }

    /// Whether its certificate is that of `key`.
    #[must_use]
    pub fn is_of(&self, key: &NodeKey) -> bool {
        self.key.secret_der() == key.to_der().as_slice()
    }

    /// The serial number of its certificate.
    #[must_use]
    pub fn serial(&self) -> &Serial {
        &self.subject.serial
    }

    /// The fingerprint of the cluster's certificate authority, for join tokens.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.authority)
    }

    /// The authority's certificate as PEM.
    #[must_use]
    pub fn authority_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.authority)
    }

    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone(), self.authority.clone()]
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}
