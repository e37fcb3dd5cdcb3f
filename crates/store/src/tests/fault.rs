//! Objects on a disk that fails.

use super::{Bench, C, inode, pattern, r};
use crate::{Adopt, Space, StoreError, WithoutRoom, WriteBatch};
use perigee_types::ContainerId;
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn a_failed_sync_makes_its_container_read_only_for_good() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 8192)).unwrap();
    object.sync_wait().unwrap();
    object.write(0, &pattern(2, 8192)).unwrap();
    bench.disk.set(|faults| faults.syncs_left = Some(0));
    let error = object.sync_wait().unwrap_err();
    assert!(
        matches!(error, StoreError::ReadOnly { container: C, .. }),
        "{error}"
    );
    // The disk would now say yes.
    assert_eq!(object.sync_wait(), Err(error.clone()));
    assert_eq!(object.write(0, b"x"), Err(error.clone()));
    assert_eq!(object.resize(1), Err(error.clone()));
    let other = bench.object(2);
    assert_eq!(other.write(0, b"x"), Err(error.clone()));
    assert!(bench.store().read_only(C).is_some());
    // What the disk dropped is not taken for what was written.
    assert!(matches!(
        object.read(0, &mut [0; 8192]),
        Err(StoreError::Corrupt { .. })
    ));
    // Other containers go on.
    let elsewhere =
        perigee_types::InodeId::new(perigee_types::ContainerId(8), perigee_types::InodeIndex(1));
    let elsewhere = bench.store().object(elsewhere).unwrap();
    elsewhere.write(0, b"x").unwrap();
    elsewhere.sync_wait().unwrap();
    drop((object, other, elsewhere));
    bench.kill();
    bench.open_and_recover(Adopt::Distrust);
    assert_eq!(
        bench.object(1).read_bytes(0, 8192).unwrap(),
        pattern(1, 8192)
    );
    bench.object(1).write(0, b"x").unwrap();
}

#[test]
fn a_failure_to_begin_with_a_file_is_not_forgotten() {
    let bench = Bench::new();
    let object = bench.object(1);
    bench.disk.set(|faults| faults.cannot_begin = true);
    for at in 0..8 {
        object.write(at << 20, &pattern(1, 1 << 20)).unwrap();
    }
    let start = std::time::Instant::now();
    while bench.store().read_only(C).is_none() && start.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    // The disk would say yes.
    assert!(matches!(
        object.sync_wait(),
        Err(StoreError::ReadOnly { container: C, .. })
    ));
}

#[test]
fn a_sync_of_many_that_fails_is_laid_to_the_file_that_failed() {
    // Few files are flushed one by one, many with the whole file system first.
    for count in [4, 40] {
        let bench = Bench::new();
        let objects: Vec<_> = (0..count).map(|number| bench.object(number)).collect();
        for object in &objects {
            object.write(0, &pattern(1, 8192)).unwrap();
        }
        bench.disk.set(|faults| faults.syncs_left = Some(2));
        let error = super::sync_together(objects.clone()).unwrap_err();
        assert!(
            matches!(error, StoreError::ReadOnly { container: C, .. }),
            "{error}"
        );
        for (number, object) in objects.iter().enumerate() {
            let read = object.read(0, &mut [0; 8192]);
            let lost = matches!(read, Err(StoreError::Corrupt { .. }));
            assert_eq!(lost, number == 2, "object {number} of {count}: {read:?}");
        }
    }
}

#[test]
fn a_full_disk_harms_nothing() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    let old = pattern(1, 10_000);
    object.write(0, &old).unwrap();
    for left in [0, 1, 4096, 5000, 9000] {
        bench
            .disk
            .set(|faults| faults.object_bytes_left = Some(left));
        assert_eq!(
            object.write(6000, &pattern(2, 20_000)),
            Err(StoreError::NoSpace)
        );
        bench.disk.set(|faults| faults.object_bytes_left = None);
        assert_eq!(object.len(), Ok(10_000));
        // There was no room for what comes behind the end, and nothing before it is replaced.
        let found = object.read_bytes(0, 20_000).unwrap();
        assert!(found == old, "room for {left} bytes");
        assert_eq!(object.verify(), Ok(vec![]));
        object.write(0, &old).unwrap();
    }
    bench.disk.set(|faults| faults.object_bytes_left = Some(0));
    bench.store().remove_object(inode(1)).unwrap();
    bench.disk.set(|faults| faults.object_bytes_left = None);
    drop(object);
    bench.close();
    bench.open();
    assert_eq!(bench.object(1).len(), Ok(0));
}

#[test]
fn the_reserve_lets_keys_in_after_data_and_deletes_always() {
    let bench = Bench::new();
    let store = bench.store();
    let mut put = WriteBatch::new();
    put.put(Space::Log(C), b"a", b"1");
    store.commit(put).unwrap();
    assert!(store.space().unwrap().reserved > 0);

    bench.disk.set(|faults| faults.available = Some(0));
    let mut put = WriteBatch::new();
    put.put(Space::Log(C), b"b", b"1");
    assert_eq!(store.commit(put), Err(StoreError::NoSpace));
    let object = bench.object(1);
    assert_eq!(object.write(0, b"x"), Err(StoreError::NoSpace));
    assert_eq!(store.space().unwrap().available, 0);
    let mut delete = WriteBatch::new();
    delete.delete(Space::Log(C), b"a");
    store.commit(delete).unwrap();
    assert_eq!(store.get(Space::Log(C), b"a"), Ok(None));

    bench.disk.set(|faults| faults.available = None);
    let start = std::time::Instant::now();
    let mut busy = 2..;
    while object.write(0, b"x").is_err() {
        assert!(
            start.elapsed().as_secs() < 5,
            "the reserve was not refilled"
        );
        // A store that is never left alone.
        let number = busy.next().unwrap();
        bench.object(number).resize(5).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Somebody may take what was free when a commit was let in.
#[test]
fn a_disk_that_fills_up_amid_a_commit_costs_the_reserve_and_not_the_engine() {
    let bench = Bench::new();
    let store = bench.store();
    let mut put = WriteBatch::new();
    put.put(Space::Log(C), b"a", b"1");
    bench.disk.set(|faults| faults.keys_refused = 2);
    store.commit(put).unwrap();
    assert!(!store.has_room());
    assert_eq!(bench.object(1).write(0, b"x"), Err(StoreError::NoSpace));
    let found = store.get(Space::Log(C), b"a").unwrap();
    assert_eq!(found.as_deref(), Some(&b"1"[..]));
}

#[test]
fn batches_that_wait_for_room_come_in_their_order_and_hold_nobody_else_up() {
    let mut bench = Bench::new();
    let (sender, receiver) = mpsc::channel();
    let submit = |bench: &Bench, name: &'static str, without_room| {
        let mut batch = WriteBatch::new();
        // Each finds what the one before has left.
        batch.put(Space::Log(C), b"last", name.as_bytes());
        batch.keep_order(C);
        batch.set_without_room(without_room);
        let sender = sender.clone();
        let done = Box::new(move |result| sender.send((name, result)).unwrap());
        bench.store().submit(batch, done);
    };
    let last = |bench: &Bench| bench.store().get(Space::Log(C), b"last").unwrap();
    bench.disk.set(|faults| faults.available = Some(0));
    submit(&bench, "a", WithoutRoom::Waits);
    submit(&bench, "b", WithoutRoom::Waits);
    let other = ContainerId(C.0 + 1);
    let mut put = WriteBatch::new();
    put.put(Space::Log(other), b"a", b"1");
    assert_eq!(bench.store().commit(put), Err(StoreError::NoSpace));
    let mut delete = WriteBatch::new();
    delete.delete(Space::Log(other), b"a");
    bench.store().commit(delete).unwrap();
    // It would not wait by itself.
    submit(&bench, "c", WithoutRoom::Refused);
    let early = receiver.recv_timeout(Duration::from_millis(250));
    assert!(early.is_err(), "{early:?}");
    assert_eq!(last(&bench), None);

    bench.disk.set(|faults| faults.available = None);
    for name in ["a", "b", "c"] {
        let done = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(done, (name, Ok(())));
    }
    assert_eq!(last(&bench).as_deref(), Some(&b"c"[..]));

    // A store that closes does not wait with them.
    bench.disk.set(|faults| faults.available = Some(0));
    submit(&bench, "d", WithoutRoom::Waits);
    bench.close();
    let done = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(done, ("d", Err(StoreError::NoSpace)));
    bench.disk.set(|faults| faults.available = None);
    bench.open();
    assert_eq!(last(&bench).as_deref(), Some(&b"c"[..]));
}

#[test]
fn who_waits_for_much_room_holds_up_nobody_who_needs_little() {
    let bench = Bench::new();
    let (sender, receiver) = mpsc::channel();
    let submit = |container: ContainerId, len: usize| {
        let mut batch = WriteBatch::new();
        batch.put(Space::Log(container), b"a", &vec![1; len]);
        batch.keep_order(container);
        batch.set_without_room(WithoutRoom::Waits);
        let sender = sender.clone();
        let done = Box::new(move |result| sender.send((container, result)).unwrap());
        bench.store().submit(batch, done);
    };
    let much = ContainerId(C.0 + 1);
    bench.disk.set(|faults| faults.available = Some(0));
    submit(much, 1 << 20);
    submit(C, 100);
    bench.disk.set(|faults| faults.available = Some(2 << 20));
    let limit = Duration::from_secs(10);
    assert_eq!(receiver.recv_timeout(limit).unwrap(), (C, Ok(())));
    // What there is is theirs who wait: others would take it from them again and again.
    let mut put = WriteBatch::new();
    put.put(Space::Log(ContainerId(C.0 + 2)), b"a", b"1");
    assert_eq!(bench.store().commit(put), Err(StoreError::NoSpace));
    bench.disk.set(|faults| faults.available = None);
    assert_eq!(receiver.recv_timeout(limit).unwrap(), (much, Ok(())));
}

/// A batch that says of an earlier one that it is on the disk must not get there without it.
#[test]
fn what_builds_on_a_refused_batch_is_refused_until_somebody_begins_anew() {
    let bench = Bench::new();
    let store = bench.store();
    let put = |container: ContainerId, key: &[u8]| {
        let mut batch = WriteBatch::new();
        batch.put(Space::Log(container), key, b"1");
        batch.keep_order(container);
        batch
    };
    let other = ContainerId(C.0 + 1);
    bench.disk.set(|faults| faults.available = Some(0));
    assert_eq!(store.commit(put(C, b"a")), Err(StoreError::NoSpace));
    bench.disk.set(|faults| faults.available = None);
    assert_eq!(store.commit(put(C, b"b")), Err(StoreError::NoSpace));
    store.commit(put(other, b"b")).unwrap();
    store.begin_order(C);
    store.commit(put(C, b"c")).unwrap();
    assert_eq!(store.get(Space::Log(C), b"b"), Ok(None));
}

#[test]
fn a_sync_that_found_no_room_for_its_checksums_is_not_forgotten() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 5000)).unwrap();
    bench.disk.set(|faults| faults.available = Some(0));
    assert_eq!(object.sync_wait(), Err(StoreError::NoSpace));
    bench.disk.set(|faults| faults.available = None);
    object.sync_wait().unwrap();
    drop(object);
    bench.lose_power(5);
    let recovered = bench.open_and_recover(Adopt::Distrust);
    assert_eq!(recovered.distrusted, []);
    assert_eq!(
        bench.object(1).read_bytes(0, 5000).unwrap(),
        pattern(1, 5000)
    );
}

#[test]
fn an_unreadable_sector_is_as_one_that_rotted() {
    let bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 5000)).unwrap();
    bench.disk.set(|faults| faults.unreadable = true);
    for (len, blocks) in [(10, r(0, 4096)), (5000, r(0, 5000))] {
        let error = object.read(0, &mut vec![0; len]).unwrap_err();
        let ranges = vec![blocks];
        assert_eq!(
            error,
            StoreError::Corrupt {
                inode: object.inode(),
                ranges
            }
        );
    }
    assert_eq!(object.verify(), Ok(vec![r(0, 5000)]));
    bench.disk.set(|faults| faults.unreadable = false);
    assert_eq!(object.verify(), Ok(vec![]));
}

#[test]
fn a_failed_engine_refuses_and_keeps_what_it_had() {
    let mut bench = Bench::new();
    let mut put = WriteBatch::new();
    put.put(Space::Log(C), b"a", b"1");
    bench.store().commit(put).unwrap();
    bench.disk.freeze();
    let mut put = WriteBatch::new();
    put.put(Space::Log(C), b"b", b"1");
    let error = bench.store().commit(put).unwrap_err();
    assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    assert_eq!(bench.store().commit(WriteBatch::new()), Err(error));
    bench.lose_power(1);
    bench.open();
    assert!(bench.store().get(Space::Log(C), b"a").unwrap().is_some());
}
