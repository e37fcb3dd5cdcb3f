//! TLS 1.3 between members of a cluster, and the one exception: joining.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerMisbehaved, RootCertStore,
    ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;

use crate::crypto;
use crate::identity::{ClusterId, Fingerprint, Identity, IdentityError, subject_of};

/// Between members: both sides show a certificate.
pub(crate) const ALPN_MEMBER: &[u8] = b"perigee/1";
/// Bytes of a record before they are encrypted, with its header, as rustls counts: the header's 5, the content's kind (1)
/// and the tag (16) make 16 KiB of it, so that full records begin where the kernel copies fast.
const RECORD_LEN: usize = (16 << 10) - 1 - 16;
/// Joining: the client has no certificate yet.
pub(crate) const ALPN_JOIN: &[u8] = b"perigee-join/1";

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(Arc::new(roots))
}

fn member_verifier(
    authority: &CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Error> {
    WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider)
        .build()
        .map_err(|error| Error::General(error.to_string()))
}

/// The configuration of the listener. A client without a certificate passes here; whether it may is decided by the
/// protocol that it chose (`inbound`).
pub(crate) fn server_config(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let provider = crypto::provider();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(identity.authority())?, provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = vec![ALPN_MEMBER.to_vec(), ALPN_JOIN.to_vec()];
    config.max_fragment_size = Some(RECORD_LEN);
    // every connection shows its certificate anew: a revoked one must not come back on a ticket
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// The configuration with which a member connects to another.
pub(crate) fn client_config(identity: &Identity) -> Result<Arc<ClientConfig>, Error> {
    let provider = crypto::provider();
    let verifier = member_verifier(identity.authority(), provider.clone())?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = vec![ALPN_MEMBER.to_vec()];
    config.max_fragment_size = Some(RECORD_LEN);
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// The configuration with which somebody who holds a token connects.
pub(crate) fn join_config(
    cluster: ClusterId,
    fingerprint: Fingerprint,
) -> Result<Arc<ClientConfig>, Error> {
    let provider = crypto::provider();
    let verifier = PinnedAuthority {
        cluster,
        fingerprint,
        provider: provider.clone(),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_JOIN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
pub(crate) fn mismatch(error: Error) -> IdentityError {
    IdentityError::Mismatch {
        detail: error.to_string(),
    }
}

/// Whether certificate, key and authority belong together.
pub(crate) fn check_fit(identity: &Identity) -> Result<(), IdentityError> {
    client_config(identity).map_err(mismatch)?;
    let verifier = member_verifier(identity.authority(), crypto::provider()).map_err(mismatch)?;
    let dns = identity.name().dns(identity.cluster()).unwrap_or_default();
    let name = ServerName::try_from(dns).map_err(|error| IdentityError::NoName {
        detail: error.to_string(),
    })?;
    let chain = identity.chain();
    verifier
        .verify_server_cert(&chain[0], &[], &name, &[], UnixTime::now())
        .map(|_| ())
        .map_err(mismatch)
}

/// Accepts any member of the cluster whose authority has the pinned fingerprint. The server sends the authority's
/// certificate after its own.
#[derive(Debug)]
struct PinnedAuthority {
    cluster: ClusterId,
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let refused = |error| Error::InvalidCertificate(error);
        let authority = intermediates
            .iter()
            .find(|certificate| Fingerprint::of(certificate) == self.fingerprint)
            .ok_or(refused(CertificateError::UnknownIssuer))?;
        let subject = subject_of(end_entity).map_err(|_| refused(CertificateError::BadEncoding))?;
        if subject.cluster != self.cluster {
            return Err(refused(CertificateError::NotValidForName));
        }
        let dns = subject.name.dns(subject.cluster).unwrap_or_default();
        let name =
            ServerName::try_from(dns).map_err(|_| refused(CertificateError::NotValidForName))?;
        member_verifier(&authority.clone().into_owned(), self.provider.clone())?.verify_server_cert(
            end_entity,
            &[],
            &name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerMisbehaved(
            PeerMisbehaved::SelectedUnofferedCipherSuite,
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
