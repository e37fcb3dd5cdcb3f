//! The engine in process: the promises of every control store, and those beyond.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

mod support;

use perigee_cluster::conformance::{self, Subject};
use perigee_cluster::{BoxFuture, ControlStore, Refusal, Revision, StoreError, Txn, WatchError};
use perigee_control::{Engine, EngineConfig, LocalControl};
use perigee_types::Span;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{MemDisk, local, small};

struct Local(LocalControl);

impl Subject for Local {
    fn store(&self) -> Arc<dyn ControlStore> {
        Arc::new(self.0.clone())
    }
    fn sleep(&self, span: Span) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(span.as_duration()))
    }
}

#[tokio::test]
async fn the_engine_keeps_every_promise() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::create(dir.path(), EngineConfig::default()).unwrap();
    conformance::check(&Local(local(engine))).await.unwrap();
}

#[tokio::test]
async fn an_engine_with_a_short_past_keeps_every_promise() {
    let engine = Engine::create_on(MemDisk::default().boxed(), small()).unwrap();
    conformance::check(&Local(local(engine))).await.unwrap();
}

fn put(n: u64) -> Txn {
    Txn::default().put(format!("/n/{}", n % 10), n.to_string().into_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_misses_nothing_while_the_log_is_switched_under_it() {
    let disk = MemDisk::default();
    let store = local(Engine::create_on(disk.boxed(), small()).unwrap());
    let watching = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut from = Revision(1);
            let mut compacted = 0;
            let mut watch = store.watch("/n/", from);
            while from <= Revision(2000) {
                match watch.next().await {
                    Ok(event) => {
                        assert_eq!(event.revision, from);
                        assert_eq!(event.value, Some((from.0 - 1).to_string().into_bytes()));
                        from = from.next();
                    }
                    // Too slow for so short a past: a list makes good what it missed.
                    Err(WatchError::Compacted { oldest }) => {
                        assert!(oldest > from);
                        let (list, at) = store.list("/n/").await.unwrap();
                        assert!(list.iter().any(|kv| kv.revision == at));
                        from = at.next();
                        watch = store.watch("/n/", from);
                        compacted += 1;
                    }
                    Err(WatchError::Lost) => panic!("a watch was lost"),
                }
            }
            compacted
        })
    };
    for n in 0..2000 {
        store.commit(put(n)).await.unwrap();
    }
    let compacted = watching.await.unwrap();
    assert!(compacted < 1000, "{compacted}");
}

#[tokio::test]
async fn the_past_survives_a_restart_as_far_as_the_log_has_it() {
    let disk = MemDisk::default();
    let config = EngineConfig::default;
    let store = local(Engine::create_on(disk.boxed(), config()).unwrap());
    for n in 0..20 {
        store.commit(put(n)).await.unwrap();
    }
    drop(store);
    let store = local(Engine::open_on(disk.boxed(), config()).unwrap());
    let mut watch = store.watch("/n/", Revision(5));
    for revision in 5..=20 {
        assert_eq!(watch.next().await.unwrap().revision, Revision(revision));
    }
    let mut future = store.watch("/n/", Revision(22));
    assert_eq!(future.next().await, Err(WatchError::Lost));
    drop((watch, future, store));
    let store = local(Engine::open_on(disk.boxed(), config()).unwrap());
    let mut watch = store.watch("/n/", Revision(5));
    let oldest = Revision(21);
    assert_eq!(watch.next().await, Err(WatchError::Compacted { oldest }));
    assert_eq!(watch.next().await, Err(WatchError::Compacted { oldest }));
}

#[tokio::test]
async fn a_watch_is_prompt() {
    let engine = Engine::create_on(MemDisk::default().boxed(), EngineConfig::default()).unwrap();
    let store = local(engine);
    let mut watch = store.watch("/n/", Revision(1));
    let waiting = tokio::spawn(async move {
        watch.next().await.unwrap();
        Instant::now()
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let begun = Instant::now();
    store.commit(put(1)).await.unwrap();
    let late = waiting.await.unwrap().duration_since(begun);
    assert!(late < Duration::from_millis(50), "{late:?}");
}

#[tokio::test]
async fn a_lease_has_its_whole_term_after_a_restart() {
    let disk = MemDisk::default();
    let config = EngineConfig::default;
    let store = local(Engine::create_on(disk.boxed(), config()).unwrap());
    let lease = store.grant_lease(Span::from_millis(600)).await.unwrap();
    let txn = Txn::default().put_leased("/leased", b"x".to_vec(), lease);
    store.commit(txn).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    drop(store);
    let store = local(Engine::open_on(disk.boxed(), config()).unwrap());
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(store.get("/leased").await.unwrap().is_some());
    assert_eq!(store.keep_alive(lease).await, Ok(Span::from_millis(600)));
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(store.get("/leased").await.unwrap().is_none());
    let next = store.grant_lease(Span::from_millis(600)).await.unwrap();
    assert!(next > lease, "a lease's number was given twice");
}

#[tokio::test]
async fn who_watches_a_store_that_closes_is_told() {
    let engine = Engine::create_on(MemDisk::default().boxed(), EngineConfig::default()).unwrap();
    let store = local(engine);
    let mut watch = store.watch("/n/", Revision(1));
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.engine().close();
    assert_eq!(waiting.await.unwrap(), Err(WatchError::Lost));
    assert_eq!(store.get("/n/1").await, Err(StoreError::Unavailable));
    assert_eq!(store.commit(put(1)).await, Err(StoreError::Unavailable));
}

#[tokio::test]
async fn terms_out_of_bounds_are_refused() {
    let engine = Engine::create_on(MemDisk::default().boxed(), EngineConfig::default()).unwrap();
    let store = local(engine);
    for ttl in [
        Span::ZERO,
        Span::from_millis(50),
        Span::from_millis(86_400_001),
    ] {
        let refused = Err(StoreError::Refused {
            why: Refusal::BadTerm { ttl },
        });
        assert_eq!(store.grant_lease(ttl).await, refused);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_share_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let store = local(Engine::create(dir.path(), EngineConfig::default()).unwrap());
    let alone = Instant::now();
    for n in 0..100 {
        store.commit(put(n)).await.unwrap();
    }
    let alone = 100.0 / alone.elapsed().as_secs_f64();
    let together = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|task: u64| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..100 {
                    let key = format!("/t{task}");
                    let txn = Txn::default().put(key, vec![n; 100]);
                    store.commit(txn).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let together = 6400.0 / together.elapsed().as_secs_f64();
    eprintln!("commits/s: {alone:.0} alone, {together:.0} by 64 callers");
    assert_eq!(store.list("/none").await.unwrap().1, Revision(6500));
}
