//! The control process with its record in a real etcd, and the move there.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

#[path = "support/cluster.rs"]
mod cluster;

use cluster::{Member, World};
use perigee_cluster::conformance::{self, Subject};
use perigee_cluster::{
    BoxFuture, ControlStore, Live, NodeState, Refusal, StoreError, Txn, WatchError, change,
    codec::Record as _, key, transition,
};
use perigee_control::{Control, ControlError, EtcdChoice, RemoteControl, move_control};
use perigee_net::NodeKey;
use perigee_testbed::etcd::{self, Etcd};
use perigee_types::{NodeId, Span};
use std::sync::Arc;
use std::time::Duration;

fn choice(etcd: &Etcd) -> EtcdChoice {
    EtcdChoice {
        place: etcd.place().parse().unwrap(),
        credentials: None,
    }
}

struct Remote(RemoteControl);

impl Subject for Remote {
    fn store(&self) -> Arc<dyn ControlStore> {
        Arc::new(self.0.clone())
    }
    fn sleep(&self, span: Span) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(span.as_duration()))
    }
    fn lease_step(&self) -> Span {
        Span::from_millis(1000)
    }
}

/// Puts a node's sign of life.
async fn live(member: &Member) -> perigee_cluster::LeaseNumber {
    let node = member.admission.node;
    let lease = member.store.grant_lease(Span::from_millis(4000)).await;
    let lease = lease.unwrap();
    let live = Live {
        node,
        free: 1,
        version: "1".to_owned(),
        ..Live::default()
    };
    let txn = Txn::default().put_leased(key::live(node), live.encode(), lease);
    member.store.commit(txn).await.unwrap();
    lease
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_keeps_every_promise_with_its_record_in_etcd() {
    if !etcd::is_here("the_process_keeps_every_promise_with_its_record_in_etcd") {
        return;
    }
    let etcd = Etcd::start(1).unwrap();
    let world = World::on(Some(&choice(&etcd))).await;
    let member = world.member("a").await;
    conformance::check(&Remote(member.store.clone()))
        .await
        .unwrap();
    assert_eq!(member.store.status().await.unwrap().kept, etcd.place());
    // No log of its own, and no etcd that anybody has to find again by hand.
    assert!(!world.dir.path().join("control/control.log").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_join_and_leave_a_cluster_on_etcd_as_any_other() {
    if !etcd::is_here("nodes_join_and_leave_a_cluster_on_etcd_as_any_other") {
        return;
    }
    let etcd = Etcd::start(1).unwrap();
    let world = World::on(Some(&choice(&etcd))).await;
    let key = NodeKey::generate().unwrap();
    let first = world.enter(&key, "first", &world.made.token).await.unwrap();
    assert_eq!(first.node, NodeId(1));
    // a token lets in one
    let other = NodeKey::generate().unwrap();
    assert!(world.enter(&other, "x", &world.made.token).await.is_err());
    let (second, third) = (world.member("second").await, world.member("third").await);
    let leaves = second.admission.node;
    change(&third.store, |d| transition::drain(d, leaves))
        .await
        .unwrap();
    for container in third.store.list(key::CONTAINERS).await.unwrap().0 {
        let found = perigee_cluster::Container::decode(&container.value).unwrap();
        if found.chain == [leaves] {
            let chain = vec![leaves, third.admission.node];
            let (id, next) = (found.id, found.epoch.next());
            let both = change(&third.store, |d| {
                transition::change_chain(d, id, found.epoch, next, chain.clone())
            });
            both.await.unwrap();
            let alone = vec![third.admission.node];
            let one = change(&third.store, |d| {
                transition::change_chain(d, id, next, next.next(), alone.clone())
            });
            one.await.unwrap();
        }
    }
    change(&third.store, |d| transition::leave(d, leaves))
        .await
        .unwrap();
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while second
        .store
        .clone()
        .with_patience(Duration::from_millis(300))
        .get("/a")
        .await
        .is_ok()
    {
        assert!(
            tokio::time::Instant::now() < until,
            "a node that left is served"
        );
    }
    // The next process, which has heard of nothing yet, shuts it out, too.
    let world = world.restart(Duration::ZERO).await;
    let hasty = second.store.with_patience(Duration::from_secs(1));
    assert!(hasty.get("/a").await.is_err());
    let states = third.store.status().await.unwrap().nodes;
    assert!(states.contains(&(leaves, NodeState::Left)));
    drop(world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_moves_to_etcd_with_everything_and_goes_on() {
    if !etcd::is_here("a_cluster_moves_to_etcd_with_everything_and_goes_on") {
        return;
    }
    let etcd = Etcd::start(1).unwrap();
    let World { dir, made, control } = World::new().await;
    let world = World { dir, made, control };
    let member = world.member("a").await;
    for n in 0..200 {
        let txn = Txn::default().put(format!("/bulk/{n:03}"), vec![n as u8; 9_000]);
        member.store.commit(txn).await.unwrap();
    }
    let lease = live(&member).await;
    let (before, at) = member.store.list(key::ROOT).await.unwrap();
    let mut watch = member.store.watch(key::ROOT, at.next());
    let World { dir, made, control } = world;
    control.stop().await;
    let moved = move_control(dir.path(), &choice(&etcd)).await.unwrap();
    assert_eq!(moved.keys, before.len());
    let control = Control::start(dir.path()).await.unwrap();
    let (mut after, now) = member.store.list(key::ROOT).await.unwrap();
    // where the process listens it says anew
    after.retain(|kv| !kv.key.starts_with(key::CONTROLS));
    let content = |list: &[perigee_cluster::KeyValue]| -> Vec<(String, Vec<u8>)> {
        list.iter()
            .map(|kv| (kv.key.clone(), kv.value.clone()))
            .collect()
    };
    assert_eq!(content(&after), content(&before));
    // No watcher takes what is newer for something older: it is told to list again.
    assert!(now > at && after.iter().all(|kv| kv.revision > at));
    assert!(matches!(
        watch.next().await,
        Err(WatchError::Compacted { .. })
    ));
    // The old lease is gone, its key is not: its holder puts it anew under a new one.
    let ended: Result<Span, _> = Err(Refusal::NoLease { lease }.into());
    assert_eq!(member.store.keep_alive(lease).await, ended);
    assert!(
        after
            .iter()
            .any(|kv| kv.key == key::live(member.admission.node))
    );
    live(&member).await;
    // Again is done at once, elsewhere is refused, and the engine's log is not opened any more.
    control.stop().await;
    assert_eq!(
        move_control(dir.path(), &choice(&etcd)).await.unwrap().keys,
        0
    );
    let elsewhere = EtcdChoice {
        place: "etcd://127.0.0.1:1".parse().unwrap(),
        credentials: None,
    };
    let refused = move_control(dir.path(), &elsewhere).await;
    assert!(
        matches!(refused, Err(ControlError::OnEtcd { .. })),
        "{refused:?}"
    );
    assert!(!dir.path().join("control/control.log").exists());
    let world = World {
        control: Control::start(dir.path()).await.unwrap(),
        dir,
        made,
    };
    world.member("b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_was_cut_off_has_not_happened_and_can_be_made_again() {
    if !etcd::is_here("a_move_that_was_cut_off_has_not_happened_and_can_be_made_again") {
        return;
    }
    let mut etcd = Etcd::start(1).unwrap();
    let World { dir, made, control } = World::new().await;
    let store = control.store();
    store
        .commit(Txn::default().put("/n", b"1".to_vec()))
        .await
        .unwrap();
    control.stop().await;
    // Before anything was done: nobody answers there.
    etcd.kill(0).unwrap();
    let failed = move_control(dir.path(), &choice(&etcd)).await;
    assert!(matches!(failed, Err(ControlError::Etcd(_))), "{failed:?}");
    etcd.restart(0).unwrap();
    // At the last moment: all is in etcd, and this directory does not know it.
    move_control(dir.path(), &choice(&etcd)).await.unwrap();
    let place = dir.path().join("control");
    std::fs::remove_file(place.join("etcd.json")).unwrap();
    std::fs::rename(place.join("control.log.moved"), place.join("control.log")).unwrap();
    let control = Control::start(dir.path()).await.unwrap();
    let store = control.store();
    assert_eq!(store.shown(), "embedded");
    store
        .commit(Txn::default().put("/n", b"2".to_vec()))
        .await
        .unwrap();
    control.stop().await;
    // A little later: this directory knows it, and its log has its name still.
    let log = std::fs::read(place.join("control.log")).unwrap();
    move_control(dir.path(), &choice(&etcd)).await.unwrap();
    std::fs::write(place.join("control.log"), log).unwrap();
    let control = Control::start(dir.path()).await.unwrap();
    let store = control.store();
    assert_eq!(store.shown(), etcd.place());
    let found = store.get("/n").await.unwrap().unwrap();
    assert_eq!(found.value, b"2");
    store
        .commit(Txn::default().put("/n", b"3".to_vec()))
        .await
        .unwrap();
    control.stop().await;
    // An old copy of the directory does not take what is in use.
    std::fs::remove_file(place.join("etcd.json")).unwrap();
    std::fs::rename(place.join("control.log.moved"), place.join("control.log")).unwrap();
    let refused = move_control(dir.path(), &choice(&etcd)).await;
    let in_use = matches!(
        refused,
        Err(ControlError::Etcd(perigee_etcd::OpenError::InUse { .. }))
    );
    assert!(in_use, "{refused:?}");
    drop(made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_put_back_serves_nobody_until_its_newest_state_is_there() {
    if !etcd::is_here("an_etcd_that_was_put_back_serves_nobody") {
        return;
    }
    let mut etcd = Etcd::start(1).unwrap();
    let world = World::on(Some(&choice(&etcd))).await;
    let member = world.member("a").await;
    let put = |n: &str| Txn::default().put("/n", n.as_bytes().to_vec());
    member.store.commit(put("1")).await.unwrap();
    etcd.kill(0).unwrap();
    etcd.back_up().unwrap();
    let hasty = member.store.clone().with_patience(Duration::from_secs(1));
    assert_eq!(hasty.get("/n").await.unwrap_err(), StoreError::Unavailable);
    etcd.restart(0).unwrap();
    let at = member.store.commit(put("2")).await.unwrap().revision;
    // The process has heard of all that, and knows its nodes.
    member.store.watch(key::ROOT, at).next().await.unwrap();
    etcd.kill(0).unwrap();
    etcd.set_aside().unwrap();
    etcd.put_back().unwrap();
    etcd.restart(0).unwrap();
    let back = Some(StoreError::WentBack);
    assert_eq!(member.store.get("/n").await.err(), back);
    assert_eq!(member.store.commit(put("3")).await.err(), back);
    let world = world.restart(Duration::ZERO).await;
    // A process that starts now knows of nobody; whoever reads is told why.
    assert_eq!(member.store.get("/n").await.err(), back);
    assert!(hasty.commit(put("3")).await.is_err());
    etcd.kill(0).unwrap();
    etcd.bring_back().unwrap();
    etcd.restart(0).unwrap();
    assert_eq!(member.store.get("/n").await.unwrap().unwrap().value, b"2");
    member.store.commit(put("3")).await.unwrap();
    drop(world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_many_pages_is_of_one_revision_beside_changes() {
    if !etcd::is_here("a_list_of_many_pages_is_of_one_revision_beside_changes") {
        return;
    }
    let etcd = Etcd::start(1).unwrap();
    let world = World::on(Some(&choice(&etcd))).await;
    let member = world.member("a").await;
    let store = world.control.store();
    for n in 0..40 {
        let txn = (0..8).fold(Txn::default(), |txn, m| {
            txn.put(format!("/big/{n:02}{m}"), vec![1; 60_000])
        });
        store.commit(txn).await.unwrap();
    }
    let changing = store.clone();
    let changes = tokio::spawn(async move {
        for n in 0_u64.. {
            let key = "/big/000".to_owned();
            let txn = Txn::default().put(key, n.to_string().into_bytes());
            changing.commit(txn).await.unwrap();
        }
    });
    let mut last = perigee_cluster::Revision(0);
    for _ in 0..5 {
        let (list, at) = member.store.list("/big/").await.unwrap();
        assert_eq!(list.len(), 320);
        assert!(at > last && list.iter().all(|kv| kv.revision <= at));
        last = at;
    }
    changes.abort();
}
