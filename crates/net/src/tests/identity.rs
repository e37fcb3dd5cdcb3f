use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use tempfile::tempdir;

use super::{Cluster, n};
use crate::{ClusterCa, Identity, IdentityError, NodeKey, PeerName};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn an_identity_is_kept_in_a_directory_with_its_key_for_the_owner_alone() {
    let (cluster, dir) = (Cluster::new(), tempdir().unwrap());
    let identity = cluster.identity(n(3));
    identity.save(dir.path()).unwrap();
    identity.save(dir.path()).unwrap();
    assert_eq!(mode(&dir.path().join("node.key.pem")), 0o600);
    let loaded = Identity::load(dir.path()).unwrap();
    assert_eq!(loaded.name(), n(3));
    assert_eq!(loaded.cluster(), cluster.0.cluster());
    assert_eq!(loaded.serial(), identity.serial());
    assert_eq!(loaded.fingerprint(), cluster.0.fingerprint());
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let (cluster, dir) = (Cluster::new(), tempdir().unwrap());
    cluster.identity(n(3)).save(dir.path()).unwrap();
    cluster.0.save(dir.path()).unwrap();
    for file in ["node.key.pem", "ca.key.pem"] {
        fs::set_permissions(dir.path().join(file), Permissions::from_mode(0o640)).unwrap();
    }
    assert!(matches!(
        Identity::load(dir.path()),
        Err(IdentityError::KeyIsReadable { mode: 0o640, .. })
    ));
    assert!(matches!(
        ClusterCa::load(dir.path()),
        Err(IdentityError::KeyIsReadable { mode: 0o640, .. })
    ));
}

#[test]
fn a_loaded_authority_issues_certificates_of_the_same_cluster() {
    let (cluster, dir) = (Cluster::new(), tempdir().unwrap());
    cluster.0.save(dir.path()).unwrap();
    assert_eq!(mode(&dir.path().join("ca.key.pem")), 0o600);
    let loaded = Cluster(ClusterCa::load(dir.path()).unwrap());
    assert_eq!(loaded.0.fingerprint(), cluster.0.fingerprint());
    let key = NodeKey::generate().unwrap();
    let (certificate, serial) = loaded.0.issue(&key.request().unwrap(), n(8)).unwrap();
    let identity = Identity::new(&key, &certificate, cluster.0.certificate()).unwrap();
    assert_eq!((identity.name(), identity.serial()), (n(8), &serial));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let (key, wrong) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
    let (certificate, _) = cluster.0.issue(&key.request().unwrap(), n(1)).unwrap();
    let authority = cluster.0.certificate();
    assert!(Identity::new(&key, &certificate, authority).is_ok());
    for (key, certificate, authority) in [
        (&wrong, certificate.as_str(), authority),
        (&key, certificate.as_str(), other.0.certificate()),
        (&key, authority, authority),
        (&key, "", authority),
    ] {
        assert!(Identity::new(key, certificate, authority).is_err());
    }
    let dir = tempdir().unwrap();
    cluster.0.save(dir.path()).unwrap();
    let foreign = tempdir().unwrap();
    other.0.save(foreign.path()).unwrap();
    fs::copy(
        foreign.path().join("ca.key.pem"),
        dir.path().join("ca.key.pem"),
    )
    .unwrap();
    assert!(matches!(
        ClusterCa::load(dir.path()),
        Err(IdentityError::Mismatch { .. })
    ));
}

#[test]
fn a_request_must_prove_its_key_and_cannot_choose_its_name() {
    let cluster = Cluster::new();
    let request = NodeKey::generate().unwrap().request().unwrap();
    assert!(matches!(
        cluster.0.issue(&request, PeerName::Joining),
        Err(IdentityError::BadRequest { .. })
    ));
    let lines: Vec<&str> = request.lines().collect();
    // the signature is at the end
    let mut forged = lines.clone();
    let last: String = forged[lines.len() - 2].chars().rev().collect();
    let at = lines.len() - 2;
    forged[at] = &last;
    for bad in [forged.join("\n"), String::new(), "x".repeat(100_000)] {
        assert!(matches!(
            cluster.0.issue(&bad, n(1)),
            Err(IdentityError::BadRequest { .. })
        ));
    }
}
