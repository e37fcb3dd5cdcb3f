//! Who gets in, and who does not.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

#[path = "support/cluster.rs"]
mod cluster;

use cluster::{World, loopback, request};
use perigee_cluster::{
    Admits, ControlStore as _, JoinRequest, Node, NodeState, PlanError, Refusal, StoreError,
    change, codec::Record as _, key, transition,
};
use perigee_control::{
    AdminError, Control, ControlError, EnterError, JoinRefusal, RemoteControl, enter, init_control,
};
use perigee_net::{Call, JoinError, JoinToken, NodeKey};
use perigee_proto::Code;
use perigee_types::{ContainerId, NodeId, Span, WallTime};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

fn refusal(error: EnterError) -> JoinRefusal {
    match error {
        EnterError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_token_lets_in_the_first_node() {
    let world = World::new().await;
    let key = NodeKey::generate().unwrap();
    let token = world.made.token.clone();
    let admission = world.enter(&key, "first", &token).await.unwrap();
    assert_eq!(admission.node, NodeId(1));
    assert_eq!(admission.home, Some(ContainerId::ROOT));
    assert_eq!(admission.cluster, world.made.cluster.0);
    let network = world.connect(&key, &admission).await;
    let store = RemoteControl::new(network);
    let found = store.get(&key::node(NodeId(1))).await.unwrap().unwrap();
    let node = Node::decode(&found.value).unwrap();
    assert_eq!(
        (node.name.as_str(), node.state),
        ("first", NodeState::Active)
    );
    let status = store.status().await.unwrap();
    assert_eq!(status.cluster, world.made.cluster.0);
    assert_eq!(status.nodes, [(NodeId(1), NodeState::Active)]);
    // a node may make tokens, and sees which were used, never a secret
    let second = store
        .create_token(Span::from_millis(60_000), Admits::Anybody)
        .await
        .unwrap();
    let tokens = store.list_tokens().await.unwrap();
    let used: Vec<_> = tokens.iter().filter_map(|t| t.used_by).collect();
    assert_eq!((tokens.len(), used), (2, vec![NodeId(1)]));
    let second: JoinToken = second.text.parse().unwrap();
    let key = NodeKey::generate().unwrap();
    let admission = world.enter(&key, "second", &second).await.unwrap();
    assert_eq!(
        (admission.node, admission.home),
        (NodeId(2), Some(ContainerId(2)))
    );
    let too_long = store
        .create_token(Span::from_millis(31 * 24 * 3_600_000), Admits::Anybody)
        .await;
    assert!(matches!(too_long, Err(AdminError::BadTerm { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_show_one_token_one_gets_in() {
    let world = Arc::new(World::new().await);
    for round in 0..3 {
        let token = world.token().await;
        let racers: Vec<_> = (0..8)
            .map(|racer| {
                let (world, token) = (Arc::clone(&world), token.clone());
                tokio::spawn(async move {
                    let key = NodeKey::generate().unwrap();
                    world
                        .enter(&key, &format!("h{round}-{racer}"), &token)
                        .await
                })
            })
            .collect();
        let mut admitted = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => admitted += 1,
                Err(error) => assert!(matches!(
                    refusal(error),
                    JoinRefusal::Plan(PlanError::TokenUsed { .. })
                )),
            }
        }
        assert_eq!(admitted, 1);
    }
    let nodes = world.control.store().list(key::NODES).await.unwrap().0;
    assert_eq!(nodes.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_of_the_very_same_request_gets_the_same_answer() {
    let world = World::new().await;
    let token = world.token().await;
    let text = NodeKey::generate().unwrap().request().unwrap();
    let first = enter(&token, &text, request("a")).await.unwrap();
    // at once and many times, as a client that hears nothing would
    let again = futures_util::future::join_all((0..4).map(|_| enter(&token, &text, request("a"))));
    for answer in again.await {
        assert_eq!(answer.unwrap(), first);
    }
    let thief = NodeKey::generate().unwrap();
    let stolen = world.enter(&thief, "a", &token).await.unwrap_err();
    let used = PlanError::TokenUsed { node: first.node };
    assert_eq!(refusal(stolen), JoinRefusal::Plan(used));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_with_another_token_is_the_same_node_and_spends_nothing() {
    let world = World::new().await;
    let text = NodeKey::generate().unwrap().request().unwrap();
    let first = enter(&world.token().await, &text, request("a")).await;
    let first = first.unwrap();
    let second = world.token().await;
    let again = enter(&second, &text, request("a")).await.unwrap();
    assert_eq!(again, first);
    let key = NodeKey::generate().unwrap();
    let other = world.enter(&key, "b", &second).await.unwrap();
    assert_eq!(other.node, NodeId(2), "the second token was still good");
    // a spent token lets nobody else in, whatever he asked for before
    let stale = enter(&second, &text, request("a")).await.unwrap_err();
    let used = PlanError::TokenUsed { node: other.node };
    assert_eq!(refusal(stale), JoinRefusal::Plan(used));
    // who has left does not come back by an old request
    let guest = JoinRequest {
        storage: false,
        ..request("c")
    };
    let text = NodeKey::generate().unwrap().request().unwrap();
    let token = world.token().await;
    let left = enter(&token, &text, guest.clone()).await.unwrap();
    let control = world.control.store();
    change(&control, |dir| transition::drain(dir, left.node))
        .await
        .unwrap();
    change(&control, |dir| transition::leave(dir, left.node))
        .await
        .unwrap();
    let back = enter(&world.token().await, &text, guest).await.unwrap();
    assert_ne!(back.node, left.node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_requests_do_not_spend_the_token() {
    let world = World::new().await;
    let token = world.token().await;
    let key = NodeKey::generate().unwrap();
    let text = key.request().unwrap();
    let garbage = enter(&token, "not a request", request("a"))
        .await
        .unwrap_err();
    assert_eq!(refusal(garbage), JoinRefusal::BadCertificateRequest);
    let nameless = enter(&token, &text, request("two words"))
        .await
        .unwrap_err();
    assert!(matches!(
        refusal(nameless),
        JoinRefusal::Plan(PlanError::BadName { .. })
    ));
    let forged = JoinToken::new(
        token.addresses.clone(),
        token.cluster,
        token.fingerprint,
        token.expires,
    );
    let forged = enter(&forged.unwrap(), &text, request("a"))
        .await
        .unwrap_err();
    assert_eq!(refusal(forged), JoinRefusal::Plan(PlanError::UnknownToken));
    world.enter(&key, "a", &token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_token_opens_nothing() {
    let world = World::new().await;
    let mut token = world.token().await;
    let hash = token.secret_hash().0;
    let store = world.control.store();
    // as if its time had passed
    let found = store.get(&key::token(&hash)).await.unwrap().unwrap();
    let mut record = perigee_cluster::Token::decode(&found.value).unwrap();
    record.expires = WallTime { secs: 1, nanos: 0 };
    let txn = perigee_cluster::Txn::default().put(found.key, record.encode());
    store.commit(txn).await.unwrap();
    // a holder who turns back the clock is asked by the store as well
    let key = NodeKey::generate().unwrap();
    let late = world.enter(&key, "a", &token).await.unwrap_err();
    assert_eq!(refusal(late), JoinRefusal::Plan(PlanError::TokenExpired));
    token.expires = 1;
    let late = world.enter(&key, "a", &token).await.unwrap_err();
    assert!(
        matches!(late, EnterError::Net(JoinError::Expired)),
        "{late}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_may_ask_for_nothing_else() {
    let world = World::new().await;
    let token = world.token().await;
    for method in (0x0100..0x0120).chain([0x0121, 0x01ff, 0x0200]) {
        let call = Call {
            method,
            ..Call::default()
        };
        let answer = perigee_net::join(&token, call).await;
        match answer.unwrap_err() {
            JoinError::Refused(refusal) => {
                assert_eq!(Code::from_number(refusal.code), Code::Forbidden, "{method}");
            }
            other => panic!("{method:#x}: {other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_left_is_shut_out() {
    let world = World::new().await;
    let keeper = world.member("keeper").await;
    let leaver = world.member("leaver").await;
    let (id, home) = (leaver.admission.node, leaver.admission.home.unwrap());
    let members = [vec![id, keeper.admission.node], vec![keeper.admission.node]];
    for (epoch, chain) in (1..).map(perigee_types::Epoch).zip(members) {
        let planned = change(&keeper.store, |dir| {
            transition::change_chain(dir, home, epoch, epoch.next(), chain.clone())
        });
        planned.await.unwrap();
    }
    assert!(leaver.store.get("/a").await.is_ok());
    change(&keeper.store, |dir| transition::drain(dir, id))
        .await
        .unwrap();
    change(&keeper.store, |dir| transition::leave(dir, id))
        .await
        .unwrap();
    let hasty = leaver
        .store
        .with_patience(std::time::Duration::from_secs(1));
    let shut_out = hasty.get("/a").await.unwrap_err();
    let refused = StoreError::Refused {
        why: Refusal::NotAllowed,
    };
    // refused by name, or already cut off by the serial number of its certificate
    assert!(
        shut_out == refused || shut_out == StoreError::Unavailable,
        "{shut_out}"
    );
    assert!(keeper.store.get("/a").await.is_ok());
}

#[tokio::test]
async fn a_cluster_is_made_once_and_keeps_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let missing = Control::start(dir).await.unwrap_err();
    assert!(matches!(missing, ControlError::Missing { .. }));
    let nowhere = init_control(dir, ([0, 0, 0, 0], 0).into())
        .await
        .unwrap_err();
    assert!(matches!(nowhere, ControlError::BadAddress { .. }));
    // what a crash in the middle left is no obstacle
    std::fs::create_dir(dir.join("control.new")).unwrap();
    std::fs::write(dir.join("control.new/control.log"), b"half").unwrap();
    let made = init_control(dir, loopback()).await.unwrap();
    let again = init_control(dir, loopback()).await.unwrap_err();
    assert!(matches!(again, ControlError::Exists { .. }));
    for file in ["ca.key.pem", "node.key.pem", "control.log"] {
        let mode = std::fs::metadata(dir.join("control").join(file)).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600, "{file}");
    }
    let log = std::fs::read(dir.join("control/control.log")).unwrap();
    let secret = made.token.secret();
    assert!(
        !log.windows(32).any(|window| window == secret),
        "a secret is on disk"
    );
    let stop = async {};
    perigee_control::run_control(dir, stop).await.unwrap();
    let control = Control::start(dir).await.unwrap();
    assert_eq!(control.address(), made.address);
    control.stop().await;
}
