//! The cluster's certificate authority, and the keys that it signs.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
    date_time_ymd,
};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use std::fmt;
use std::path::Path;
use webpki::EndEntityCert;
use zeroize::{Zeroize, Zeroizing};

use super::{ClusterId, Fingerprint, IdentityError, PeerName, Serial, pem};
use crate::crypto;

/// A certificate is valid from long ago to long from now: a node whose clock is wrong (an empty battery, a restored
/// snapshot) must still be able to join its cluster, and a certificate ends by revocation, not by forgetting.
const VALID_YEARS: (i32, i32) = (2000, 2099);
/// The longest certificate request that is read: one with a key of any usual kind is under 2 KiB.
const REQUEST_LEN_MAX: usize = 16 << 10;

fn making(error: rcgen::Error) -> IdentityError {
    IdentityError::Making {
        detail: error.to_string(),
    }
}

/// A key without a certificate yet.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// A new key (ECDSA, P-256).
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate() -> Result<Self, IdentityError> {
        KeyPair::generate().map(Self).map_err(making)
    }

    /// The request (PKCS #10, PEM) to have this key certified. It names nobody: the authority decides whose key it is.
    ///
    /// # Errors
    /// The key could not sign.
    pub fn request(&self) -> Result<String, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0).map_err(making)?;
        request.pem().map_err(making)
    }

    /// The key in a PEM text, if there is one.
    pub(super) fn from_pem(text: &str) -> Option<Self> {
        KeyPair::from_pem(text).map(Self).ok()
    }

    pub(super) fn to_der(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.0.serialize_der())
    }
}

impl Drop for NodeKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(..)")
    }
}

/// The authority that makes a cluster: who holds its key decides who is a member. `Debug` does not show the key.
pub struct ClusterCa {
    cluster: ClusterId,
    certificate: String,
    fingerprint: Fingerprint,
    issuer: Issuer<'static, KeyPair>,
}

impl ClusterCa {
    /// A new authority for `cluster`.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn create(cluster: ClusterId) -> Result<Self, IdentityError> {
        let key = KeyPair::generate().map_err(making)?;
        let mut params = authority_params(cluster)?;
        params.serial_number = Some(new_serial()?.1);
        let certificate = params.self_signed(&key).map_err(making)?;
        Ok(Self {
            cluster,
            fingerprint: Fingerprint::of(certificate.der()),
            certificate: pem::encode("CERTIFICATE", certificate.der()),
            issuer: Issuer::new(params, key),
        })
    }

    /// Reads `ca.pem` and `ca.key.pem` of `directory`.
    ///
    /// # Errors
    /// A file is missing or malformed, the key is readable by others, or it belongs to another certificate.
    pub fn load(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join("ca.pem");
        let text = pem::read(&path)?;
        let certificate = pem::certificate(&path.display().to_string(), &text)?;
        let key_path = directory.join("ca.key.pem");
        let key_text = pem::read_key(&key_path)?;
        let key = KeyPair::from_pem(&key_text).map_err(|_| IdentityError::NotPem {
            what: key_path.display().to_string(),
        })?;
        let parsed =
            EndEntityCert::try_from(&certificate).map_err(|error| IdentityError::NoName {
                detail: error.to_string(),
            })?;
        let cluster = parsed
            .valid_dns_names()
            .find_map(|dns| {
                dns.strip_prefix("ca.")?
                    .strip_suffix(".perigee")?
                    .parse()
                    .ok()
            })
            .ok_or_else(|| IdentityError::NoName {
                detail: path.display().to_string(),
            })?;
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        if parsed.subject_public_key_info().as_ref() != public {
            return Err(IdentityError::Mismatch {
                detail: format!(
                    "`{}` is not the key of `{}`",
                    key_path.display(),
                    path.display()
                ),
            });
        }
        Ok(Self {
            cluster,
            fingerprint: Fingerprint::of(&certificate),
            certificate: pem::encode("CERTIFICATE", &certificate),
            issuer: Issuer::new(authority_params(cluster)?, key),
        })
    }

    /// Writes `ca.pem` and `ca.key.pem` (mode 0600) into `directory`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, directory: &Path) -> Result<(), IdentityError> {
        let key = Zeroizing::new(self.issuer.key().serialize_pem());
        pem::write_key(&directory.join("ca.key.pem"), &key)?;
        pem::write(&directory.join("ca.pem"), &self.certificate)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// What join tokens pin.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The authority's certificate as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Certifies that the key of `request` (PKCS #10, PEM) is `name`'s. Returns the certificate as PEM, and its serial
    /// number. Only the key is taken from the request, and its signature must prove that the asker has it.
    ///
    /// # Errors
    /// The request is malformed or wrongly signed, or `name` is [`PeerName::Joining`], which has no certificate.
    pub fn issue(&self, request: &str, name: PeerName) -> Result<(String, Serial), IdentityError> {
        let bad = |detail: String| IdentityError::BadRequest { detail };
        if request.len() > REQUEST_LEN_MAX {
            return Err(bad(format!("{} bytes", request.len())));
        }
        let der = CertificateSigningRequestDer::from_pem_slice(request.as_bytes())
            .map_err(|error| bad(error.to_string()))?;
        let mut request = CertificateSigningRequestParams::from_der(&der)
            .map_err(|error| bad(error.to_string()))?;
        let dns = name
            .dns(self.cluster)
            .ok_or_else(|| bad(format!("`{name}` is nobody's name")))?;
        let (serial, number) = new_serial()?;
        request.params = node_params(&dns)?;
        request.params.serial_number = Some(number);
        let certificate = request.signed_by(&self.issuer).map_err(making)?;
        Ok((pem::encode("CERTIFICATE", certificate.der()), serial))
    }
}

impl fmt::Debug for ClusterCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterCa")
            .field("cluster", &self.cluster)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// 127 random bits: positive, and never the same twice.
fn new_serial() -> Result<(Serial, SerialNumber), IdentityError> {
    let mut bytes = crypto::random::<16>()?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok((Serial::from_bytes(&bytes), SerialNumber::from_slice(&bytes)))
}

fn params(dns: &str) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(VALID_YEARS.0, 1, 1);
    params.not_after = date_time_ymd(VALID_YEARS.1, 12, 31);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, dns);
    params.subject_alt_names = vec![SanType::DnsName(dns.try_into().map_err(making)?)];
    Ok(params)
}

fn authority_params(cluster: ClusterId) -> Result<CertificateParams, IdentityError> {
    let mut params = params(&format!("ca.{cluster}.perigee"))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    Ok(params)
}

fn node_params(dns: &str) -> Result<CertificateParams, IdentityError> {
    let mut params = params(dns)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // every process is both a client and a server
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}
