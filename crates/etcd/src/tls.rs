//! The certificates with which etcd is met.

use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who etcd must be, and who this process is to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The certificates of the authorities that etcd's are checked by, as PEM.
    pub authority: PathBuf,
    /// This side's certificate, with those between it and its authority, as PEM.
    pub certificate: PathBuf,
    /// Its key, as PEM.
    pub key: PathBuf,
}

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read, or is no PEM of its kind.
    #[error("cannot read `{}`: {source}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// Key and certificate do not belong together, or are of a kind that is not known.
    #[error("the certificate `{}` cannot be used: {source}", .file.display())]
    Unusable {
        /// The file of the certificate.
        file: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// An `etcds://` place without credentials.
    #[error("etcd over TLS takes an authority, a certificate and a key")]
    Missing,
}

impl Credentials {
    /// The configuration of connections.
    ///
    /// # Errors
    /// See [`CredentialsError`].
    pub(crate) fn config(&self) -> Result<Arc<rustls::ClientConfig>, CredentialsError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.authority)? {
            let added = roots.add(authority);
            added.map_err(|source| self.unusable(&self.authority, source))?;
        }
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|source| unreadable(&self.key, source))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                builder
                    .with_root_certificates(roots)
                    .with_client_auth_cert(chain, key)
            })
            .map(Arc::new)
            .map_err(|source| self.unusable(&self.certificate, source))
    }

    fn unusable(&self, file: &Path, source: rustls::Error) -> CredentialsError {
        let file = file.to_path_buf();
        CredentialsError::Unusable { file, source }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    read.map_err(|source| unreadable(file, source))
}

fn unreadable(file: &Path, source: rustls_pki_types::pem::Error) -> CredentialsError {
    let file = file.to_path_buf();
    CredentialsError::File { file, source }
}
