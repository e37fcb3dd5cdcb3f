use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Cluster, ECHO, Node, OPTIONS, call, n, until};
use crate::tls::{ALPN_MEMBER, join_config};
use crate::{CallError, CallOptions, ConnectError, PeerName, Retry};

const ONCE: CallOptions = CallOptions {
    retry: Retry::Never,
    ..OPTIONS
};

#[tokio::test]
async fn a_peer_is_known_by_its_certificate() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    let answer = first.ask(&second, call(ECHO, "hi")).await.unwrap();
    assert_eq!(answer.body, "hi");
    assert_eq!(*second.probe.callers.lock(), [n(1)]);
    second.ask(&first, call(ECHO, "ho")).await.unwrap();
    assert_eq!(*first.probe.callers.lock(), [n(2)]);
}

#[tokio::test]
async fn without_a_certificate_nothing_is_served() {
    let cluster = Cluster::new();
    let node = cluster.start(n(1)).await;
    let config = join_config(cluster.0.cluster(), cluster.0.fingerprint()).unwrap();
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![ALPN_MEMBER.to_vec()];
    let socket = TcpStream::connect(node.address()).await.unwrap();
    let dns = n(1).dns(cluster.0.cluster()).unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(dns.try_into().unwrap(), socket)
        .await
        .unwrap();
    until("refused", || node.ended("no_certificate") == 1).await;
    drop(stream);
    assert!(node.probe.callers.lock().is_empty());
}

#[tokio::test]
async fn members_of_another_cluster_are_refused_by_both_sides() {
    let (here, there) = (Cluster::new(), Cluster::new());
    let (node, stranger) = (here.start(n(1)).await, there.start(n(2)).await);
    stranger.knows(&node);
    let refused = stranger.net.call(n(1), call(ECHO, ""), ONCE).await;
    assert!(
        matches!(
            refused,
            Err(CallError::Unreachable {
                cause: ConnectError::Tls { .. },
                ..
            })
        ),
        "{refused:?}"
    );
    until("refused", || node.ended("tls") == 1).await;
}

#[tokio::test]
async fn a_member_under_another_name_is_refused() {
    let cluster = Cluster::new();
    let (caller, other) = (cluster.start(n(1)).await, cluster.start(n(2)).await);
    caller.net.set_address(n(3), other.address());
    let refused = caller.net.call(n(3), call(ECHO, ""), ONCE).await;
    assert!(
        matches!(refused, Err(CallError::Unreachable { peer, cause: ConnectError::Tls { .. } }) if peer == n(3)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_revoked_peer_is_cut_off_and_kept_out() {
    let cluster = Cluster::new();
    let thief = cluster.config(n(2));
    let serial = thief.identity.serial().clone();
    let (node, honest, thief) = (
        cluster.start(n(1)).await,
        cluster.start(n(3)).await,
        Node::start(thief).await,
    );
    for peer in [&honest, &thief] {
        peer.knows(&node);
        node.knows(peer);
        peer.ask(&node, call(ECHO, "")).await.unwrap();
    }
    node.net.set_revoked(BTreeSet::from([serial]));
    until("cut", || node.ended("revoked") >= 1).await;
    let refused = thief.net.call(n(1), call(ECHO, ""), ONCE).await;
    assert!(
        matches!(
            refused,
            Err(CallError::Unreachable { .. } | CallError::Lost)
        ),
        "{refused:?}"
    );
    let refused = node.net.call(n(2), call(ECHO, ""), ONCE).await;
    assert!(matches!(
        refused,
        Err(CallError::Unreachable {
            cause: ConnectError::Revoked,
            ..
        })
    ));
    honest.ask(&node, call(ECHO, "")).await.unwrap();
    assert_eq!(thief.probe.callers.lock().len(), 0);
    assert_eq!(
        node.probe
            .callers
            .lock()
            .iter()
            .filter(|peer| **peer == n(2))
            .count(),
        1
    );
    node.net.set_revoked(BTreeSet::new());
    thief.ask(&node, call(ECHO, "")).await.unwrap();
}

#[tokio::test]
async fn versions_that_do_not_overlap_are_named() {
    let cluster = Cluster::new();
    let (mut old, mut new) = (cluster.config(n(1)), cluster.config(n(2)));
    old.protocol = 3..=5;
    new.protocol = 6..=7;
    let (old, new) = (Node::start(old).await, Node::start(new).await);
    new.knows(&old);
    let refused = new.net.call(n(1), call(ECHO, ""), ONCE).await;
    assert_eq!(
        refused,
        Err(CallError::Unreachable {
            peer: n(1),
            cause: ConnectError::Version {
                theirs: 3..=5,
                ours: 6..=7,
            }
        })
    );
    assert_eq!(
        refused.unwrap_err().to_string(),
        "n1 cannot be reached: it speaks protocol 3..5, this binary speaks 6..7"
    );
    assert_eq!(old.ended("hello"), 1);
}

#[tokio::test]
async fn links_are_told_up_and_down_and_refused() {
    let (first, second) = Cluster::new().pair(|_| {}).await;
    first.ask(&second, call(ECHO, "")).await.unwrap();
    until("up", || *second.probe.links.lock() == [(n(1), true)]).await;
    assert_eq!(*first.probe.links.lock(), [(n(2), true)]);
    second.net.shutdown().await;
    until("down", || first.probe.links.lock().contains(&(n(2), false))).await;
    assert_eq!(*second.probe.links.lock(), [(n(1), true), (n(1), false)]);
    first.probe.links.lock().clear();
    let refused = first.net.call(n(2), call(ECHO, ""), ONCE).await;
    assert!(matches!(
        refused,
        Err(CallError::Unreachable {
            cause: ConnectError::Io { .. },
            ..
        })
    ));
    assert!(first.probe.links.lock().contains(&(n(2), false)));
}

#[tokio::test]
async fn a_peer_without_an_address_cannot_be_reached() {
    let node = Cluster::new().start(n(1)).await;
    let refused = node.net.call(PeerName::Control, call(ECHO, ""), ONCE).await;
    assert!(matches!(
        refused,
        Err(CallError::Unreachable {
            cause: ConnectError::NoAddress,
            ..
        })
    ));
}
