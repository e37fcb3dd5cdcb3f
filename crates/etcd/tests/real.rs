//! Real etcd processes: the promises of every control store, and going on after what happens to etcd.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

use perigee_cluster::conformance::{self, Subject};
use perigee_cluster::{BoxFuture, ControlStore, Revision, StoreError, Txn, WatchError};
use perigee_etcd::{EtcdControl, Founding, Memory, OpenError, Place, Record};
use perigee_testbed::etcd::{self, Etcd};
use perigee_types::Span;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const CLUSTER: u128 = 0xc1;
const PROCESS: u128 = 0x0a;

/// The record of a cluster, and the folder in which a process remembers it.
struct World {
    etcd: Etcd,
    dir: TempDir,
    record: Record,
}

impl World {
    async fn new(members: usize, least: Revision) -> Self {
        let etcd = Etcd::start(members).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let record = found(&etcd, CLUSTER, least, &dir.path().join("memory")).await;
        Self { etcd, dir, record }
    }

    fn memory(&self) -> PathBuf {
        self.dir.path().join("memory")
    }

    /// The store as a process that has just started knows it.
    fn open(&self) -> EtcdControl {
        open(&self.record, CLUSTER, &self.memory())
    }
}

async fn found(etcd: &Etcd, cluster: u128, least: Revision, memory: &Path) -> Record {
    let place: Place = etcd.place().parse().unwrap();
    let founding = Founding::begin(&place, None, cluster, least).await.unwrap();
    founding.finish(PROCESS, memory).await.unwrap()
}

fn open(record: &Record, cluster: u128, memory: &Path) -> EtcdControl {
    let memory = Arc::new(Memory::open(memory).unwrap());
    EtcdControl::open(record, None, cluster, memory).unwrap()
}

struct Real(EtcdControl);

impl Subject for Real {
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

fn put(key: &str, value: u64) -> Txn {
    Txn::default().put(key, value.to_string().into_bytes())
}

/// Commits until it is done: what a leader's death leaves open is looked up.
async fn put_surely(store: &EtcdControl, key: &str, value: u64) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match store.commit(put(key, value)).await {
            Ok(_) => return,
            Err(StoreError::Unknown | StoreError::Unavailable) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(Instant::now() < until, "etcd does not come back");
        let found = store.get(key).await;
        if found.is_ok_and(|found| found.is_some_and(|kv| kv.value == value.to_string().as_bytes()))
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_of_one_keeps_every_promise() {
    if !etcd::is_here("an_etcd_of_one_keeps_every_promise") {
        return;
    }
    let world = World::new(1, Revision(0)).await;
    conformance::check(&Real(world.open())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_of_three_keeps_every_promise_with_one_member_gone() {
    if !etcd::is_here("an_etcd_of_three_keeps_every_promise_with_one_member_gone") {
        return;
    }
    let mut world = World::new(3, Revision(1_000_000)).await;
    let store = world.open();
    assert!(store.list("/").await.unwrap().1 > Revision(1_000_000));
    // The one that is asked first.
    world.etcd.kill(0).unwrap();
    put_surely(&store, "/before", 1).await;
    conformance::check(&Real(store)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_misses_nothing_while_members_are_killed_and_come_back() {
    if !etcd::is_here("a_watch_misses_nothing_while_members_are_killed_and_come_back") {
        return;
    }
    let mut world = World::new(3, Revision(0)).await;
    let store = world.open();
    let (_, at) = store.list("/w/").await.unwrap();
    let mut watch = store.watch("/w/", at.next());
    let mut n = 0;
    let mut last = None;
    for member in [0, 1, 2, 0] {
        for _ in 0..5 {
            put_surely(&store, "/w/a", n).await;
            n += 1;
        }
        world.etcd.kill(member).unwrap();
        for _ in 0..5 {
            put_surely(&store, "/w/a", n).await;
            n += 1;
        }
        world.etcd.restart(member).unwrap();
        while last != Some(n - 1) {
            let event = tokio::time::timeout(Duration::from_secs(30), watch.next());
            let value = event.await.unwrap().unwrap().value.unwrap();
            let value: u64 = String::from_utf8(value).unwrap().parse().unwrap();
            // What was not known to be done may be done twice.
            let follows = last.is_none_or(|last| value == last || value == last + 1);
            assert!(follows, "{value} after {last:?}");
            last = Some(value);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_away_is_told_as_such_and_nothing_is_lost_when_it_comes_back() {
    if !etcd::is_here("an_etcd_that_is_away_is_told_as_such") {
        return;
    }
    let mut world = World::new(1, Revision(0)).await;
    let store = world.open();
    let lease = store.grant_lease(Span::from_millis(4000)).await.unwrap();
    let txn = Txn::default().put_leased("/leased", b"x".to_vec(), lease);
    let at = store.commit(txn).await.unwrap().revision;
    let mut watch = store.watch("/w/", at.next());
    world.etcd.kill(0).unwrap();
    let away = Some(StoreError::Unavailable);
    assert_eq!(store.get("/w/a").await.err(), away);
    assert_eq!(store.commit(put("/w/a", 1)).await.err(), away);
    assert_eq!(store.keep_alive(lease).await.err(), away);
    world.etcd.restart(0).unwrap();
    // Its start gave the lease its whole term.
    assert!(store.get("/leased").await.unwrap().is_some());
    assert!(store.keep_alive(lease).await.unwrap() >= Span::from_millis(4000));
    let at = store.commit(put("/w/a", 2)).await.unwrap().revision;
    assert_eq!(watch.next().await.unwrap().revision, at);
    // A process that starts now knows all that.
    assert_eq!(
        world.open().get("/w/a").await.unwrap().unwrap().revision,
        at
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_put_back_is_refused_by_who_runs_and_by_who_starts() {
    if !etcd::is_here("an_etcd_that_was_put_back_is_refused") {
        return;
    }
    let mut world = World::new(1, Revision(0)).await;
    let store = world.open();
    store.commit(put("/a", 1)).await.unwrap();
    world.etcd.kill(0).unwrap();
    world.etcd.back_up().unwrap();
    world.etcd.restart(0).unwrap();
    // as it was left, it may go on
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"1");
    store.commit(put("/a", 2)).await.unwrap();
    let mut watch = store.watch("/", Revision(1));
    world.etcd.kill(0).unwrap();
    world.etcd.put_back().unwrap();
    world.etcd.restart(0).unwrap();
    // Others' changes bring its revision up again, and beyond.
    let other = tempfile::tempdir().unwrap();
    let memory = other.path().join("memory");
    let record = found(&world.etcd, 0xc2, Revision(0), &memory).await;
    let stranger = open(&record, 0xc2, &memory);
    for n in 0..20 {
        stranger.commit(put("/a", n)).await.unwrap();
    }
    for store in [&store, &world.open()] {
        let back = Some(StoreError::WentBack);
        assert_eq!(store.get("/a").await.err(), back);
        assert_eq!(store.list("/").await.err(), back);
        assert_eq!(store.commit(put("/a", 3)).await.err(), back);
    }
    let ended = loop {
        if let Err(error) = watch.next().await {
            break error;
        }
    };
    assert_eq!(ended, WatchError::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_etcd_in_the_place_of_the_known_one_is_refused() {
    if !etcd::is_here("an_empty_etcd_in_the_place_of_the_known_one_is_refused") {
        return;
    }
    let mut world = World::new(1, Revision(0)).await;
    let store = world.open();
    world.etcd.kill(0).unwrap();
    world.etcd.empty().unwrap();
    world.etcd.restart(0).unwrap();
    assert_eq!(store.get("/a").await.err(), Some(StoreError::WentBack));
    // The record of another process is not there either.
    let memory = world.dir.path().join("other");
    let place: Place = world.etcd.place().parse().unwrap();
    let none = Record::find(&place, None, CLUSTER, 0x0b, &memory).await;
    assert!(matches!(none, Err(OpenError::NoRecord { .. })), "{none:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_etcd_serves_several_clusters_and_several_processes_of_each() {
    if !etcd::is_here("one_etcd_serves_several_clusters_and_several_processes_of_each") {
        return;
    }
    let world = World::new(1, Revision(0)).await;
    let store = world.open();
    let memory = world.dir.path().join("second");
    let place: Place = world.etcd.place().parse().unwrap();
    let record = Record::find(&place, None, CLUSTER, 0x0b, &memory)
        .await
        .unwrap();
    let second = open(&record, CLUSTER, &memory);
    let memory = world.dir.path().join("cousin");
    let cousin = found(&world.etcd, 0xc2, Revision(0), &memory).await;
    let cousin = open(&cousin, 0xc2, &memory);
    let mut watch = second.watch("/", store.list("/").await.unwrap().1.next());
    cousin.commit(put("/a", 9)).await.unwrap();
    let at = store.commit(put("/a", 1)).await.unwrap().revision;
    let seen = watch.next().await.unwrap();
    assert_eq!((seen.key.as_str(), seen.revision), ("/a", at));
    let change = Txn::default().when("/a", Some(at)).put("/a", b"2".to_vec());
    second.commit(change.clone()).await.unwrap();
    assert!(matches!(
        store.commit(change).await,
        Err(StoreError::Conflict { .. })
    ));
    assert_eq!(cousin.list("/").await.unwrap().0.len(), 1);
    // What is in use is not made anew; what an attempt left that was cut off is.
    let again = Founding::begin(&place, None, CLUSTER, Revision(0)).await;
    assert!(matches!(again, Err(OpenError::InUse { .. })), "{again:?}");
    let half = Founding::begin(&place, None, 0xc3, Revision(0))
        .await
        .unwrap();
    half.store().commit(put("/half", 1)).await.unwrap();
    drop(half);
    let whole = Founding::begin(&place, None, 0xc3, Revision(0))
        .await
        .unwrap();
    assert!(whole.store().list("/").await.unwrap().0.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_what_was_compacted_says_so_and_misses_no_delete() {
    if !etcd::is_here("a_watch_of_what_was_compacted_says_so_and_misses_no_delete") {
        return;
    }
    let world = World::new(1, Revision(0)).await;
    let store = world.open();
    let first = store.commit(put("/w/a", 1)).await.unwrap().revision;
    let delete = Txn::default().when("/w/a", Some(first)).delete("/w/a");
    let deleted = store.commit(delete).await.unwrap().revision;
    let last = store.commit(put("/w/b", 2)).await.unwrap().revision;
    // One that follows is not disturbed.
    let mut follows = store.watch("/w/", first);
    for at in [first, deleted, last] {
        assert_eq!(follows.next().await.unwrap().revision, at);
    }
    world.etcd.compact(deleted.0).unwrap();
    // Of the revision that it has compacted to, etcd knows no deletes.
    for from in [first, deleted] {
        let mut watch = store.watch("/w/", from);
        let gone = watch.next().await;
        let oldest = last;
        assert_eq!(gone, Err(WatchError::Compacted { oldest }));
        assert_eq!(watch.next().await, Err(WatchError::Compacted { oldest }));
    }
    let mut watch = store.watch("/w/", last);
    assert_eq!(watch.next().await.unwrap().revision, last);
    let next = store.commit(put("/w/b", 3)).await.unwrap().revision;
    assert_eq!(watch.next().await.unwrap().revision, next);
    assert_eq!(follows.next().await.unwrap().revision, next);
}

/// Stands between a client and etcd, and keeps answers to itself for as long as it is told to.
async fn listener_before(etcd: &Etcd, quiet: Arc<AtomicBool>) -> SocketAddr {
    let place = etcd.place();
    let behind: SocketAddr = place.strip_prefix("etcd://").unwrap().parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let quiet = Arc::clone(&quiet);
            tokio::spawn(async move {
                let server = TcpStream::connect(behind).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let asks = tokio::spawn(async move {
                    // A side that has gone away ends the other.
                    _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                });
                let mut answer = vec![0; 64 << 10];
                while let Ok(len @ 1..) = from_server.read(&mut answer).await {
                    let lost = quiet.load(Ordering::Relaxed);
                    if lost || to_client.write_all(&answer[..len]).await.is_err() {
                        break;
                    }
                }
                asks.abort();
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_an_unknown_outcome() {
    if !etcd::is_here("an_answer_that_is_lost_is_an_unknown_outcome") {
        return;
    }
    let world = World::new(1, Revision(0)).await;
    let quiet = Arc::new(AtomicBool::new(false));
    let address = listener_before(&world.etcd, Arc::clone(&quiet)).await;
    let record = Record {
        place: format!("etcd://{address}").parse().unwrap(),
        ..world.record.clone()
    };
    let store = open(&record, CLUSTER, &world.memory());
    store.commit(put("/a", 1)).await.unwrap();
    quiet.store(true, Ordering::Relaxed);
    assert_eq!(store.commit(put("/a", 2)).await, Err(StoreError::Unknown));
    // What was not sent is known to be undone: each connection begins with a question of its own.
    let away = Err(StoreError::Unavailable);
    assert_eq!(store.commit(put("/a", 3)).await, away);
    quiet.store(false, Ordering::Relaxed);
    assert_eq!(store.get("/a").await.unwrap().unwrap().value, b"2");
}
