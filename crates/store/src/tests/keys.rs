//! The key-value side, and the directory.

use super::{Bench, C, CLUSTER, identity, inode, options};
use crate::{OpenError, Space, Store, StoreError, WriteBatch};
use bytes::Bytes;
use perigee_types::ContainerId;
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn put(space: Space, key: &[u8], value: &[u8]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.put(space, key, value);
    batch
}

#[test]
fn spaces_and_containers_do_not_see_each_other() {
    let bench = Bench::new();
    let store = bench.store();
    let other = ContainerId(4);
    let mut batch = WriteBatch::new();
    for (at, space) in [
        Space::State(C),
        Space::Log(C),
        Space::Local(C),
        Space::State(other),
    ]
    .into_iter()
    .enumerate()
    {
        batch.put(space, b"key", &[at as u8]);
        batch.put(space, b"", b"empty key");
        batch.put(space, &[0xff; 40], b"last key");
    }
    store.commit(batch).unwrap();
    for (at, space) in [
        Space::State(C),
        Space::Log(C),
        Space::Local(C),
        Space::State(other),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(store.get(space, b"key").unwrap().unwrap(), [at as u8][..]);
        let all = store.scan(space, b"", None, 100).unwrap();
        let keys: Vec<&[u8]> = all.iter().map(|(key, _)| &key[..]).collect();
        assert_eq!(keys, [&b""[..], b"key", &[0xff; 40]]);
        assert_eq!(store.scan(space, b"", Some(b"key"), 100).unwrap().len(), 1);
        assert_eq!(store.scan(space, b"", None, 2).unwrap().len(), 2);
    }
    assert_eq!(store.containers().unwrap(), [C, other]);
    assert_eq!(store.verify_keys().unwrap(), 12);
}

#[test]
fn later_changes_of_a_batch_win_and_ranges_are_half_open() {
    let bench = Bench::new();
    let store = bench.store();
    let log = Space::Log(C);
    let mut batch = WriteBatch::new();
    for seq in 1..=9u64 {
        batch.put(log, &seq.to_be_bytes(), b"record");
    }
    batch.delete_range(log, &3u64.to_be_bytes(), Some(&6u64.to_be_bytes()));
    batch.put(log, &4u64.to_be_bytes(), b"again");
    batch.delete(log, &9u64.to_be_bytes());
    store.commit(batch).unwrap();
    let left: Vec<u8> = store
        .scan(log, b"", None, 100)
        .unwrap()
        .iter()
        .map(|(key, _)| key[7])
        .collect();
    assert_eq!(left, [1, 2, 4, 6, 7, 8]);
}

#[test]
fn a_snapshot_does_not_move() {
    let bench = Bench::new();
    let store = bench.store();
    let space = Space::State(C);
    store.commit(put(space, b"a", b"1")).unwrap();
    let snapshot = store.snapshot().unwrap();
    store.commit(put(space, b"a", b"2")).unwrap();
    assert_eq!(snapshot.get(space, b"a").unwrap(), Some(Bytes::from("1")));
    assert_eq!(snapshot.scan(space, b"", None, 9).unwrap().len(), 1);
    assert_eq!(store.get(space, b"a").unwrap(), Some(Bytes::from("2")));
}

#[test]
fn sixty_four_threads_share_commits_and_are_answered_in_order() {
    let bench = Bench::new();
    let store = bench.store();
    let before = store.commits();
    std::thread::scope(|scope| {
        for thread in 0..64u32 {
            scope.spawn(move || {
                for round in 0..20u32 {
                    let key = [thread.to_be_bytes(), round.to_be_bytes()].concat();
                    store.commit(put(Space::Log(C), &key, b"x")).unwrap();
                }
            });
        }
    });
    let commits = store.commits() - before;
    assert_eq!(
        store.scan(Space::Log(C), b"", None, 9999).unwrap().len(),
        1280
    );
    assert!(commits < 320, "{commits} commits for 1280 submits");

    let (tx, rx) = mpsc::channel();
    for number in 0..200 {
        let tx = tx.clone();
        store.submit(
            put(Space::Log(C), b"k", &[number]),
            Box::new(move |result| tx.send((number, result)).unwrap()),
        );
    }
    let answers: Vec<_> = rx.iter().take(200).collect();
    assert!(answers.iter().map(|(number, _)| *number).eq(0..200));
    assert!(answers.iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn a_lazy_batch_is_invisible_until_committed_and_soon_is() {
    let bench = Bench::new();
    let store = bench.store();
    let space = Space::Local(C);
    store.submit_lazy(put(space, b"a", b"1"), None);
    let start = Instant::now();
    while store.get(space, b"a").unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(2));
    }
    store.submit_lazy(put(space, b"b", b"1"), None);
    store.commit(put(space, b"c", b"1")).unwrap();
    assert!(store.get(space, b"b").unwrap().is_some(), "it rides along");
}

#[test]
fn dropping_commits_what_is_queued_and_refuses_what_comes() {
    let mut bench = Bench::new();
    bench
        .store()
        .submit_lazy(put(Space::Local(C), b"a", b"1"), None);
    let object = bench.object(1);
    bench.kill();
    assert_eq!(object.write(0, b"late"), Err(StoreError::Closed));
    drop(object);
    bench.open();
    assert!(bench.store().get(Space::Local(C), b"a").unwrap().is_some());
}

#[test]
fn wiping_a_container_leaves_the_others() {
    let mut bench = Bench::new();
    let other = Space::State(ContainerId(9));
    let store = bench.store();
    store.commit(put(other, b"a", b"1")).unwrap();
    store.commit(put(Space::State(C), b"a", b"1")).unwrap();
    let object = bench.object(1);
    object.write(0, b"bytes").unwrap();
    object.sync_wait().unwrap();
    store.wipe_container(C).unwrap();
    assert_eq!(store.containers().unwrap(), [ContainerId(9)]);
    assert_eq!(
        object.write(0, b"more"),
        Err(StoreError::Removed { inode: inode(1) })
    );
    assert_eq!(bench.object(1).len(), Ok(0));
    drop(object);
    bench.close();
    bench.open();
    assert_eq!(bench.store().unrecovered(), []);
    assert!(bench.store().get(other, b"a").unwrap().is_some());
}

#[test]
fn a_directory_is_for_one_process() {
    let bench = Bench::new();
    let again = Store::open(&bench.path(), None);
    assert!(matches!(again, Err(OpenError::Busy { .. })));
    let made = Store::create(&bench.path(), identity());
    assert!(matches!(made, Err(OpenError::Busy { .. })));
}

#[test]
fn wrong_directories_are_refused_by_name() {
    let mut bench = Bench::new();
    let path = bench.path();
    bench.close();
    let text = |result: Result<_, OpenError>| result.err().map(|e| e.to_string()).unwrap();
    let name = path.display();
    assert_eq!(
        text(Store::open(&path, Some(7))),
        format!(
            "`{name}` belongs to cluster 0000000000000000123456789abcdef0, not to {:032x}",
            7
        )
    );
    assert_eq!(
        text(Store::create(&path, identity())),
        format!("`{name}` holds a store already, of cluster {CLUSTER:032x}")
    );
    let nowhere = bench.dir.path().join("nowhere");
    assert_eq!(
        text(Store::open(&nowhere, None)),
        format!("`{}` holds no store", nowhere.display())
    );
    super::flip(&path.join("FORMAT"), 40, 0);
    assert_eq!(
        text(Store::open(&path, None)),
        format!("`{name}/FORMAT` is damaged: it does not match its checksum")
    );
    std::fs::write(path.join("FORMAT"), "perigee store\nformat 9\n").unwrap();
    assert_eq!(
        text(Store::open(&path, None)),
        format!("`{name}` has format 9, this binary knows up to 5")
    );
}

#[test]
fn a_store_without_its_keys_is_damaged_not_empty() {
    let mut bench = Bench::new();
    bench.close();
    let path = bench.path();
    std::fs::remove_file(path.join("state.redb")).unwrap();
    let opened = Store::open_with(&path, None, options(&bench.disk));
    assert!(matches!(opened, Err(OpenError::Damaged { .. })));
}

#[test]
fn a_flipped_bit_in_a_value_is_found() {
    let mut bench = Bench::new();
    let value = b"a value that is long enough to be found in the file".repeat(4);
    let space = Space::State(C);
    bench.store().commit(put(space, b"key", &value)).unwrap();
    bench.close();
    let keys = bench.path().join("state.redb");
    let bytes = std::fs::read(&keys).unwrap();
    for at in bytes
        .windows(value.len())
        .enumerate()
        .filter(|(_, w)| *w == value)
    {
        super::flip(&keys, at.0 as u64 + 60, 3);
    }
    bench.open();
    let got = bench.store().get(space, b"key");
    assert!(matches!(got, Err(StoreError::Damaged { .. })), "{got:?}");
    assert!(bench.store().verify_keys().is_err());
}
