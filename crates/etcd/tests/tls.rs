//! A real etcd over TLS: who has no certificate of its authority is not served, and neither is an impostor trusted.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

use perigee_cluster::{ControlStore, Revision, Txn};
use perigee_etcd::{Credentials, EtcdControl, Founding, Memory, OpenError, Place};
use perigee_testbed::etcd::{self, Certificates, Etcd};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An authority with a certificate for 127.0.0.1, in files that begin with `name`.
fn made(dir: &Path, name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let write = |what: &str, text: String| {
        let path = dir.join(format!("{name}.{what}.pem"));
        fs::write(&path, text).unwrap();
        path
    };
    (
        write("ca", authority.pem()),
        write("cert", certificate.pem()),
        write("key", key.serialize_pem()),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_over_tls_is_met_with_certificates_on_both_sides() {
    if !etcd::is_here("etcd_over_tls_is_met_with_certificates_on_both_sides") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (authority, certificate, key) = made(dir.path(), "good");
    let etcd = Etcd::start_secured(
        1,
        Certificates {
            authority: authority.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
        },
    );
    let etcd = etcd.unwrap();
    let place: Place = etcd.place().parse().unwrap();
    let good = Credentials {
        authority,
        certificate,
        key,
    };
    let begun = Founding::begin(&place, Some(&good), 0xc1, Revision(0)).await;
    let memory = dir.path().join("memory");
    let record = begun.unwrap().finish(0x0a, &memory).await.unwrap();
    let memory = Arc::new(Memory::open(&memory).unwrap());
    let store = EtcdControl::open(&record, Some(&good), 0xc1, memory).unwrap();
    let (_, at) = store.list("/").await.unwrap();
    let mut watch = store.watch("/", at.next());
    let put = Txn::default().put("/a", b"1".to_vec());
    let at = store.commit(put).await.unwrap().revision;
    assert_eq!(watch.next().await.unwrap().revision, at);

    let (other_authority, other_certificate, other_key) = made(dir.path(), "other");
    let stranger = Credentials {
        certificate: other_certificate,
        key: other_key,
        ..good.clone()
    };
    let impostor = Credentials {
        authority: other_authority,
        ..good.clone()
    };
    for wrong in [&stranger, &impostor] {
        let refused = Founding::begin(&place, Some(wrong), 0xc2, Revision(0)).await;
        assert!(
            matches!(refused, Err(OpenError::Silent { .. })),
            "{refused:?}"
        );
    }
    let none = Founding::begin(&place, None, 0xc2, Revision(0)).await;
    assert!(matches!(none, Err(OpenError::Credentials(_))), "{none:?}");
    // Nor is anything said in plain text to who wants TLS.
    let plain: Place = etcd.place().replace("etcds", "etcd").parse().unwrap();
    let plain = Founding::begin(&plain, None, 0xc2, Revision(0)).await;
    assert!(matches!(plain, Err(OpenError::Silent { .. })), "{plain:?}");
}
