//! The control store over the network: the same promises, and going on after what networks do.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

#[path = "support/cluster.rs"]
mod cluster;

use cluster::World;
use parking_lot::Mutex;
use perigee_cluster::conformance::{self, Subject};
use perigee_cluster::{BoxFuture, ControlStore, Revision, StoreError, Txn};
use perigee_control::{Caller, RemoteControl};
use perigee_net::{Answer, Call, CallError, CallOptions, Network};
use perigee_types::{Rng, Span};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Remote(RemoteControl);

impl Subject for Remote {
    fn store(&self) -> Arc<dyn ControlStore> {
        Arc::new(self.0.clone())
    }
    fn sleep(&self, span: Span) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(span.as_duration()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_over_the_network_keeps_every_promise() {
    let world = World::new().await;
    let member = world.member("a").await;
    conformance::check(&Remote(member.store)).await.unwrap();
}

fn put(key: &str, value: u64) -> Txn {
    Txn::default().put(key, value.to_string().into_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_is_prompt_over_the_network() {
    let world = World::new().await;
    let member = world.member("a").await;
    let (_, at) = member.store.list("/w/").await.unwrap();
    let mut watch = member.store.watch("/w/", at.next());
    let mut late = Vec::new();
    for n in 0..20 {
        let mut next = watch.next();
        // the question is on its way before the change is made
        assert!(
            tokio::time::timeout(Duration::from_millis(10), &mut next)
                .await
                .is_err()
        );
        let begun = Instant::now();
        world.control.store().commit(put("/w/a", n)).await.unwrap();
        next.await.unwrap();
        late.push(begun.elapsed());
    }
    late.sort();
    assert!(late[10] < Duration::from_millis(50), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_misses_nothing_over_a_restart_of_the_store() {
    let mut world = World::new().await;
    let member = world.member("a").await;
    let lease = member
        .store
        .grant_lease(Span::from_millis(1000))
        .await
        .unwrap();
    let txn = Txn::default().put_leased("/leased", b"x".to_vec(), lease);
    member.store.commit(txn).await.unwrap();
    let (_, at) = member.store.list("/w/").await.unwrap();
    let mut watch = member.store.watch("/w/", at.next());
    for n in 0..3 {
        for m in 0..5 {
            world
                .control
                .store()
                .commit(put("/w/a", n * 5 + m))
                .await
                .unwrap();
        }
        let first = watch.next().await.unwrap();
        assert_eq!(first.value, Some((n * 5).to_string().into_bytes()));
        world = world.restart(Duration::from_millis(300)).await;
        for m in 1..5 {
            let event = watch.next().await.unwrap();
            assert_eq!(event.value, Some((n * 5 + m).to_string().into_bytes()));
        }
    }
    // Each start gave the lease its whole term.
    assert!(member.store.get("/leased").await.unwrap().is_some());
    assert!(member.store.keep_alive(lease).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_on_when_the_store_comes_back_and_say_so_when_it_does_not() {
    let world = World::new().await;
    let member = world.member("a").await;
    member.store.commit(put("/a", 1)).await.unwrap();
    let store = member.store.clone();
    let dir = world.dir;
    world.control.stop().await;
    // What is sent before the end of the connection is known has an unknown outcome.
    let looks = member
        .store
        .clone()
        .with_patience(Duration::from_millis(100));
    assert_eq!(looks.get("/a").await.unwrap_err(), StoreError::Unavailable);
    let waiting = tokio::spawn(async move { store.commit(put("/a", 2)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let control = perigee_control::Control::start(dir.path()).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(
        control.store().get("/a").await.unwrap().unwrap().value,
        b"2"
    );
    control.stop().await;
    let begun = Instant::now();
    let hasty = member.store.with_patience(Duration::from_secs(1));
    let away = StoreError::Unavailable;
    assert_eq!(hasty.get("/a").await.unwrap_err(), away);
    assert_eq!(hasty.commit(put("/a", 3)).await.unwrap_err(), away);
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

/// Loses questions and answers.
struct Lossy {
    network: Network,
    rng: Mutex<Rng>,
    lost: Mutex<u32>,
}

impl Caller for Lossy {
    fn call(
        &self,
        call: Call,
        options: CallOptions,
    ) -> BoxFuture<'static, Result<Answer, CallError>> {
        let (before, after) = {
            let mut rng = self.rng.lock();
            (rng.chance(1, 4), rng.chance(1, 4))
        };
        if before || after {
            *self.lost.lock() += 1;
        }
        let network = self.network.clone();
        Box::pin(async move {
            if before {
                return Err(CallError::Lost);
            }
            let answer = Caller::call(&network, call, options).await;
            if after { Err(CallError::Lost) } else { answer }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_an_unknown_outcome_and_costs_a_watch_nothing() {
    let world = World::new().await;
    let member = world.member("a").await;
    let lossy = Arc::new(Lossy {
        network: member.network.clone(),
        rng: Mutex::new(Rng::new(7)),
        lost: Mutex::new(0),
    });
    let store = RemoteControl::with_caller(lossy.clone());
    let (_, at) = member.store.list("/w/").await.unwrap();
    let mut watch = store.watch("/w/", at.next());
    let mut revisions = Vec::new();
    for n in 0..40 {
        let done = store.commit(put("/w/a", n)).await;
        let (list, now) = member.store.list("/w/").await.unwrap();
        let there = list.iter().any(|kv| kv.value == n.to_string().into_bytes());
        match done {
            Ok(done) => assert!(there && done.revision == now),
            Err(error) => assert_eq!(error, StoreError::Unknown),
        }
        if there {
            revisions.push(now);
        }
    }
    for revision in revisions {
        assert_eq!(watch.next().await.unwrap().revision, revision);
    }
    assert!(*lossy.lost.lock() > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_are_given_up_leave_nothing_behind() {
    let world = World::new().await;
    let member = world.member("a").await;
    let (_, at) = member.store.list("/w/").await.unwrap();
    let mut watch = member.store.watch("/w/", at.next());
    // far more than the store lets one peer wait for
    for _ in 0..1000 {
        let early = tokio::time::timeout(Duration::ZERO, watch.next()).await;
        assert!(early.is_err());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut other = member.store.watch("/w/", at.next());
    world.control.store().commit(put("/w/a", 1)).await.unwrap();
    for watch in [&mut watch, &mut other] {
        let next = tokio::time::timeout(Duration::from_secs(2), watch.next()).await;
        assert!(next.unwrap().unwrap().revision > Revision(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_comes_in_pages_of_one_revision() {
    let world = World::new().await;
    let member = world.member("a").await;
    let store = world.control.store();
    for n in 0..60 {
        let txn = Txn::default().put(format!("/big/{n:03}"), vec![1; 60_000]);
        store.commit(txn).await.unwrap();
    }
    let (list, at) = member.store.list("/big/").await.unwrap();
    assert_eq!((list.len(), at), (60, store.list("/").await.unwrap().1));
    let conflict = (0..60).fold(Txn::default(), |txn, n| {
        txn.when(format!("/big/{n:03}"), None)
    });
    match member.store.commit(conflict).await {
        Err(StoreError::Conflict { current }) => assert_eq!(current, list),
        other => panic!("{other:?}"),
    }
}
