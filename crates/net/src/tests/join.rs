use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Cluster, ECHO, LOOPBACK, Node, OPTIONS, call, n};
use crate::{
    Answer, BoxFuture, Call, ClusterId, ConnectError, Identity, JoinError, JoinToken, NetConfig,
    Network, NodeKey, PeerName, Refusal, SecretHash, Service, join,
};

const JOIN: u16 = 0x100;
const WRONG_SECRET: u16 = 2001;

/// A control store in small: gives a certificate for a secret that it knows, once.
struct Control {
    cluster: Cluster,
    tokens: Mutex<Vec<SecretHash>>,
}

impl Service for Control {
    fn call(
        &self,
        from: PeerName,
        call: Call,
        _: Instant,
    ) -> BoxFuture<'static, Result<Answer, Refusal>> {
        assert_eq!((from, call.method), (PeerName::Joining, JOIN));
        let (secret, request) = call.body.split_at(32);
        let mut tokens = self.tokens.lock();
        let known = tokens.iter().position(|token| token.matches(secret));
        let outcome = match known {
            None => Err(Refusal {
                code: WRONG_SECRET,
                detail: Bytes::new(),
            }),
            Some(place) => {
                tokens.remove(place);
                let request = std::str::from_utf8(request).unwrap();
                let (certificate, _) = self.cluster.0.issue(request, n(5)).unwrap();
                let body = format!("{certificate}{}", self.cluster.0.certificate());
                Ok(Answer {
                    body: body.into(),
                    payload: Bytes::new(),
                })
            }
        };
        Box::pin(async move { outcome })
    }

    fn cast(&self, _: PeerName, _: Call) {}

    fn link(&self, _: PeerName, _: bool) {}
}

async fn control() -> (Network, Arc<Control>) {
    let service = Arc::new(Control {
        cluster: Cluster::new(),
        tokens: Mutex::default(),
    });
    let config = service.cluster.config(PeerName::Control);
    (
        Network::start(config, service.clone()).await.unwrap(),
        service,
    )
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn token(net: &Network, control: &Control) -> JoinToken {
    let ca = &control.cluster.0;
    let token = JoinToken::new(
        vec![net.local_addr()],
        ca.cluster(),
        ca.fingerprint(),
        now() + 60,
    )
    .unwrap();
    control.tokens.lock().push(token.secret_hash());
    token
}

fn request(token: &JoinToken, key: &NodeKey) -> Call {
    call(
        JOIN,
        [token.secret(), key.request().unwrap().as_bytes()].concat(),
    )
}

#[tokio::test]
async fn a_token_makes_a_member_once() {
    let (net, control) = control().await;
    let token: JoinToken = token(&net, &control).to_string().parse().unwrap();
    let key = NodeKey::generate().unwrap();
    let answer = join(&token, request(&token, &key)).await.unwrap();
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let (certificate, authority) = text.split_once("-----END CERTIFICATE-----\n").unwrap();
    let certificate = format!("{certificate}-----END CERTIFICATE-----\n");
    let identity = Identity::new(&key, &certificate, authority).unwrap();
    assert_eq!(identity.name(), n(5));

    let member = Node::start(NetConfig::new(identity, LOOPBACK.parse().unwrap())).await;
    let other = control.cluster.start(n(6)).await;
    other.knows(&member);
    other
        .net
        .call(n(5), call(ECHO, "welcome"), OPTIONS)
        .await
        .unwrap();

    let again = join(&token, request(&token, &key)).await;
    assert!(matches!(
        again,
        Err(JoinError::Refused(Refusal {
            code: WRONG_SECRET,
            ..
        }))
    ));
}

#[tokio::test]
async fn wrong_and_expired_tokens_are_refused() {
    let (net, control) = control().await;
    let good = token(&net, &control);
    let key = NodeKey::generate().unwrap();

    let mut expired = good.clone();
    expired.expires = now() - 1;
    assert_eq!(
        join(&expired, request(&expired, &key)).await,
        Err(JoinError::Expired)
    );

    let unknown = JoinToken::new(
        good.addresses.clone(),
        good.cluster,
        good.fingerprint,
        now() + 60,
    )
    .unwrap();
    assert!(matches!(
        join(&unknown, request(&unknown, &key)).await,
        Err(JoinError::Refused(Refusal {
            code: WRONG_SECRET,
            ..
        }))
    ));

    // an impostor at the right address: the secret never leaves the client
    let mut pinned_elsewhere = good.clone();
    pinned_elsewhere.fingerprint = Cluster::new().0.fingerprint();
    let mut other_cluster = good.clone();
    other_cluster.cluster = ClusterId(1);
    for wrong in [pinned_elsewhere, other_cluster] {
        let refused = join(&wrong, request(&wrong, &key)).await;
        assert!(
            matches!(
                refused,
                Err(JoinError::Unreachable(ConnectError::Tls { .. }))
            ),
            "{refused:?}"
        );
    }
    assert_eq!(control.tokens.lock().len(), 1);

    let mut second_address = good.clone();
    second_address
        .addresses
        .insert(0, "127.0.0.1:1".parse().unwrap());
    join(&second_address, request(&second_address, &key))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_joining_request_is_bounded() {
    let (net, control) = control().await;
    let token = token(&net, &control);
    let long = call(JOIN, vec![0; (64 << 10) + 1]);
    assert!(matches!(
        join(&token, long).await,
        Err(JoinError::TooLarge { .. })
    ));
    let with_payload = Call {
        payload: Bytes::from("x"),
        ..call(JOIN, "")
    };
    assert!(matches!(
        join(&token, with_payload).await,
        Err(JoinError::TooLarge { .. })
    ));
    tokio::time::timeout(Duration::from_secs(2), net.shutdown())
        .await
        .unwrap();
}
