//! A control process and nodes, each with its own network.
#![allow(dead_code, reason = "each test file uses a part")]

use perigee_cluster::{Admits, JoinRequest};
use perigee_control::{
    Admission, Control, EnterError, EtcdChoice, NewControl, RemoteControl, enter, init_control_on,
};
use perigee_net::{
    Answer, BoxFuture, Call, Identity, JoinToken, NetConfig, Network, NodeKey, PeerName, Refusal,
    Service,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;

/// A node that offers nothing.
#[derive(Debug)]
struct Silent;

impl Service for Silent {
    fn call(
        &self,
        _: PeerName,
        _: Call,
        _: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>> {
        Box::pin(async {
            Err(Refusal {
                code: 0,
                detail: perigee_net::Bytes::new(),
            })
        })
    }
    fn cast(&self, _: PeerName, _: Call) {}
    fn link(&self, _: PeerName, _: bool) {}
}

pub fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub fn request(name: &str) -> JoinRequest {
    JoinRequest {
        name: name.to_owned(),
        address: ([127, 0, 0, 1], 7001).into(),
        site: None,
        storage: true,
        capacity: 1 << 30,
    }
}

pub struct World {
    pub dir: TempDir,
    pub made: NewControl,
    pub control: Control,
}

pub struct Member {
    pub admission: Admission,
    pub network: Network,
    pub store: RemoteControl,
}

impl World {
    pub async fn new() -> Self {
        Self::on(None).await
    }

    /// With the record in an etcd, where one is given.
    pub async fn on(etcd: Option<&EtcdChoice>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = init_control_on(dir.path(), loopback(), etcd).await.unwrap();
        let control = Control::start(dir.path()).await.unwrap();
        Self { dir, made, control }
    }

    pub async fn token(&self) -> JoinToken {
        let ttl = perigee_types::Span::from_millis(60_000);
        let token = self
            .control
            .gatekeeper()
            .create_token(ttl, Admits::Anybody)
            .await
            .unwrap();
        token.text.parse().unwrap()
    }

    /// A node that joined, and its connection.
    pub async fn member(&self, name: &str) -> Member {
        let key = NodeKey::generate().unwrap();
        let admission = self.enter(&key, name, &self.token().await).await.unwrap();
        let network = self.connect(&key, &admission).await;
        let store = RemoteControl::new(network.clone());
        Member {
            admission,
            network,
            store,
        }
    }

    pub async fn enter(
        &self,
        key: &NodeKey,
        name: &str,
        token: &JoinToken,
    ) -> Result<Admission, EnterError> {
        enter(token, &key.request().unwrap(), request(name)).await
    }

    pub async fn connect(&self, key: &NodeKey, admission: &Admission) -> Network {
        let identity = Identity::new(key, &admission.certificate, &admission.authority).unwrap();
        assert_eq!(identity.name(), PeerName::Node(admission.node));
        let config = NetConfig::new(identity, loopback());
        let network = Network::start(config, Arc::new(Silent)).await.unwrap();
        network.set_address(PeerName::Control, self.made.address);
        network
    }

    /// Stops the control process and starts it again.
    pub async fn restart(self, away: std::time::Duration) -> Self {
        let Self { dir, made, control } = self;
        control.stop().await;
        tokio::time::sleep(away).await;
        let control = Control::start(dir.path()).await.unwrap();
        Self { dir, made, control }
    }
}
