//! Power loss: of what was not synced, any part is lost, 4 KiB by 4 KiB.

use super::{Bench, C, inode, pattern, r};
use crate::{Adopt, Space, StoreError, WriteBatch};
use perigee_types::{ByteRange, Version};

/// Synced content, then unsynced writes, then power loss.
fn torn(seed: u64) -> Bench {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 64 << 10)).unwrap();
    object.sync_wait().unwrap();
    object.write(10_000, &pattern(2, 30_000)).unwrap();
    object.write(60_000, &pattern(3, 10_000)).unwrap();
    drop(object);
    bench.lose_power(seed);
    bench
}

#[test]
fn after_power_loss_an_object_waits_for_recovery() {
    let mut bench = torn(1);
    bench.open();
    assert_eq!(bench.store().unrecovered(), [inode(1)]);
    let refused = bench.store().object(inode(1)).err();
    assert_eq!(refused, Some(StoreError::Unrecovered { inode: inode(1) }));
}

#[test]
fn torn_writes_are_adopted_as_a_local_disk_leaves_them() {
    let mut torn_seen = 0;
    for seed in 0..12 {
        let mut bench = torn(seed);
        let recovered = bench.open_and_recover(Adopt::Adopt);
        assert_eq!(recovered.checked, 1);
        torn_seen += recovered.adopted.len();
        let object = bench.object(1);
        assert!(object.is_whole());
        assert_eq!(object.verify(), Ok(vec![]));
        let len = object.len().unwrap();
        assert!(len == 64 << 10 || len == 70_000, "{len}");
        let got = object.read_bytes(0, 70_000).unwrap();
        let (old, new) = (pattern(1, 64 << 10), pattern(2, 30_000));
        assert_eq!(got[..8192], old[..8192]);
        for block in 3..9usize {
            let at = block * 4096;
            let here = &got[at..at + 4096];
            let is_old = here == &old[at..at + 4096];
            let is_new = here == &new[at - 10_000..at - 10_000 + 4096];
            assert!(is_old || is_new, "block {block} is mixed");
        }
        drop(object);
        bench.close();
        bench.open();
        assert_eq!(bench.store().unrecovered(), []);
    }
    assert!(torn_seen > 6, "the crash tears: {torn_seen}");
}

#[test]
fn torn_writes_of_a_replica_become_invalid_at_the_lowest_version() {
    for seed in 0..12 {
        let mut bench = torn(seed);
        let recovered = bench.open_and_recover(Adopt::Distrust);
        let object = bench.object(1);
        let invalid = object.invalid();
        let listed: Vec<ByteRange> = invalid.iter().map(|(range, _)| *range).collect();
        let distrusted = recovered
            .distrusted
            .iter()
            .flat_map(|(_, list)| list.clone());
        assert_eq!(listed, distrusted.collect::<Vec<_>>());
        assert!(
            invalid
                .iter()
                .all(|(_, needed)| *needed == Version::default())
        );
        assert_eq!(object.verify(), Ok(vec![]));
        // What is valid is what was synced, and no later.
        let old = pattern(1, 64 << 10);
        for block in 0..18u64 {
            let end = (block * 4096 + 4096).min(object.len().unwrap());
            let range = r(block * 4096, end);
            match object.read_bytes(range.start, range.len() as usize) {
                Ok(got) if range.end <= 64 << 10 => {
                    assert_eq!(got, old[range.start as usize..range.end as usize]);
                }
                Ok(got) => assert!(got.iter().all(|&byte| byte == 0)),
                Err(error) => assert!(matches!(error, StoreError::Invalid { .. })),
            }
        }
        let whole = r(0, object.len().unwrap());
        let data = pattern(9, whole.len() as usize);
        object.install(whole, &data, super::v(1), None).unwrap();
        assert!(object.is_whole());
        object.sync_wait().unwrap();
        drop(object);
        bench.close();
        bench.open();
        assert!(bench.object(1).is_whole());
    }
}

#[test]
fn what_sync_acknowledged_survives_and_needs_no_trust() {
    for seed in 0..8 {
        let mut bench = Bench::new();
        let object = bench.object(7);
        for round in 0..3u64 {
            object.write(round * 5000, &pattern(round, 6000)).unwrap();
            object.punch(r(100, 200)).unwrap();
            object.sync_wait().unwrap();
        }
        let want = object.read_bytes(0, 99_999).unwrap();
        drop(object);
        bench.lose_power(seed);
        let recovered = bench.open_and_recover(Adopt::Distrust);
        assert_eq!(recovered.distrusted, []);
        assert_eq!(bench.object(7).read_bytes(0, 99_999).unwrap(), want);
    }
}

#[test]
fn what_a_sync_of_many_acknowledged_survives_and_needs_no_trust() {
    // Few files are flushed one by one, many with the whole file system.
    for (seed, count) in (0..8).flat_map(|seed| [(seed, 10), (seed, 40)]) {
        let mut bench = Bench::new();
        let objects: Vec<_> = (0..count).map(|number| bench.object(number)).collect();
        for (number, object) in objects.iter().enumerate() {
            object.write(0, &pattern(number as u64, 6000)).unwrap();
        }
        // One of them is synced already, one is named twice, one is gone.
        objects[3].sync_wait().unwrap();
        bench.store().remove_object(inode(5)).unwrap();
        let mut together = objects.clone();
        together.push(objects[7].clone());
        super::sync_together(together).unwrap();
        objects[9].write(1000, &pattern(99, 1000)).unwrap();
        drop(objects);
        bench.lose_power(seed);
        let recovered = bench.open_and_recover(Adopt::Distrust);
        assert!(recovered.distrusted.iter().all(|(i, _)| *i == inode(9)));
        for number in (0..count).filter(|number| ![5, 9].contains(number)) {
            let got = bench.object(number).read_bytes(0, 99_999).unwrap();
            assert_eq!(got, pattern(number, 6000), "object {number}");
        }
    }
}

#[test]
fn acknowledged_batches_survive_power_loss_and_others_are_whole_or_absent() {
    for seed in 0..10u64 {
        let mut bench = Bench::new();
        let store = bench.store();
        for number in 0..20u32 {
            let mut batch = WriteBatch::new();
            for part in 0..4u8 {
                batch.put(
                    Space::Log(C),
                    &[&number.to_be_bytes()[..], &[part]].concat(),
                    &[part; 500],
                );
            }
            if number < 15 {
                store.commit(batch).unwrap();
            } else {
                store.submit_lazy(batch, None);
            }
        }
        bench.lose_power(seed);
        bench.open();
        for number in 0..20u32 {
            let (from, to) = (number.to_be_bytes(), (number + 1).to_be_bytes());
            let found = bench
                .store()
                .scan(Space::Log(C), &from, Some(&to), 9)
                .unwrap();
            assert!(found.len() == 4 || (number >= 15 && found.is_empty()));
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_that_the_kernel_has() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 30_000)).unwrap();
    object.resize(20_000).unwrap();
    drop(object);
    bench.kill();
    let recovered = bench.open_and_recover(Adopt::Adopt);
    assert_eq!(recovered.adopted, [(inode(1), vec![r(0, 20_000)])]);
    assert_eq!(
        bench.object(1).read_bytes(0, 30_000).unwrap(),
        pattern(1, 20_000)
    );
}

#[test]
fn a_file_that_the_crash_took_is_fetched_anew_by_a_replica() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 5000)).unwrap();
    object.sync_wait().unwrap();
    object.write(0, b"x").unwrap();
    drop(object);
    bench.kill();
    std::fs::remove_file(bench.file_of(1)).unwrap();
    bench.open_and_recover(Adopt::Distrust);
    let object = bench.object(1);
    assert_eq!(object.invalid(), [(r(0, 5000), Version::default())]);
    object
        .install(r(0, 5000), &pattern(1, 5000), super::v(1), None)
        .unwrap();
    object.sync_wait().unwrap();
    assert_eq!(object.verify(), Ok(vec![]));
}

#[test]
fn a_cut_that_no_sync_saw_leaves_no_old_checksums_behind() {
    for adopt in [Adopt::Adopt, Adopt::Distrust] {
        let mut bench = Bench::new();
        bench.object(1).write(1000, &pattern(1, 9000)).unwrap();
        bench.close();
        bench.open();
        bench.object(1).resize(0).unwrap();
        bench.kill();
        bench.open_and_recover(adopt);
        let object = bench.object(1);
        object.resize(0).unwrap();
        object.write(20_000, b"x").unwrap();
        assert_eq!(object.read_bytes(0, 20_000).unwrap(), vec![0; 20_000]);
        assert_eq!(object.verify(), Ok(vec![]));
    }
}
