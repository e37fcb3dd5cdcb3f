//! Small objects: no file, and nothing of it half there after a crash.

use super::{Bench, flip, inode, pattern, r, v};
use crate::{Adopt, StoreError};

const SMALL: u64 = 16_000;

/// How many backing files there are.
fn files(bench: &Bench) -> usize {
    fn count(path: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .map(|entry| match entry.file_type() {
                Ok(kind) if kind.is_dir() => count(&entry.path()),
                _ => 1,
            })
            .sum()
    }
    count(&bench.path().join("objects"))
}

#[test]
fn a_small_object_has_no_file_and_survives() {
    let mut bench = Bench::with_small(SMALL);
    let object = bench.object(1);
    object.write(0, &pattern(1, 9000)).unwrap();
    object.write(5000, &pattern(2, 100)).unwrap();
    object.sync_wait().unwrap();
    let want = object.read_bytes(0, 9000).unwrap();
    assert_eq!(object.allocated_blocks(), Ok(24));
    drop(object);
    assert_eq!(files(&bench), 0);
    bench.lose_power(1);
    assert_eq!(bench.open_and_recover(Adopt::Distrust).checked, 0);
    assert_eq!(bench.object(1).read_bytes(0, 9999).unwrap(), want);
    bench.store().remove_object(inode(1)).unwrap();
    bench.close();
    bench.open();
    assert!(bench.object(1).is_empty().unwrap());
}

#[test]
fn an_object_that_grows_gets_a_file_and_its_key_goes() {
    let mut bench = Bench::with_small(SMALL);
    let object = bench.object(1);
    let whole = pattern(1, 60_000);
    for (at, piece) in whole.chunks(7000).enumerate() {
        object.write(at as u64 * 7000, piece).unwrap();
        object.sync_wait().unwrap();
    }
    drop(object);
    assert_eq!(files(&bench), 1);
    bench.close();
    let with_file = bench.path().join("state.redb");
    bench.open();
    assert_eq!(bench.object(1).read_bytes(0, 99_999).unwrap(), whole);
    assert_eq!(bench.object(1).verify(), Ok(vec![]));
    // Record and checksums of 60,000 bytes are all that is left among the keys.
    assert_eq!(bench.store().verify_keys(), Ok(2), "{with_file:?}");
    bench.store().remove_object(inode(1)).unwrap();
    assert_eq!(files(&bench), 0);
}

#[test]
fn a_crash_while_it_gets_a_file_leaves_what_was_synced() {
    for adopt in [Adopt::Adopt, Adopt::Distrust] {
        for power in [false, true] {
            let mut bench = Bench::with_small(SMALL);
            let object = bench.object(1);
            object.write(0, &pattern(1, 9000)).unwrap();
            object.sync_wait().unwrap();
            object.write(9000, &pattern(2, 50_000)).unwrap();
            drop(object);
            if power {
                bench.lose_power(3);
            } else {
                bench.kill();
            }
            let recovered = bench.open_and_recover(adopt);
            assert_eq!((recovered.adopted, recovered.distrusted), (vec![], vec![]));
            assert_eq!(files(&bench), 0);
            let object = bench.object(1);
            assert_eq!(object.read_bytes(0, 99_999).unwrap(), pattern(1, 9000));
            object.write(9000, &pattern(2, 50_000)).unwrap();
            object.sync_wait().unwrap();
            assert_eq!(object.read_bytes(9000, 50_000).unwrap(), pattern(2, 50_000));
        }
    }
}

#[test]
fn a_damaged_key_is_corruption_and_heals_by_install() {
    let mut bench = Bench::with_small(SMALL);
    let bytes = pattern(1, 3000);
    bench.object(1).write(0, &bytes).unwrap();
    bench.close();
    let keys = bench.path().join("state.redb");
    let stored = std::fs::read(&keys).unwrap();
    let places = stored.windows(100).enumerate();
    for (at, _) in places.filter(|(_, window)| *window == &bytes[1000..1100]) {
        flip(&keys, at as u64, 3);
    }
    bench.open();
    let object = bench.object(1);
    let corrupt = StoreError::Corrupt {
        inode: inode(1),
        ranges: vec![r(0, 3000)],
    };
    assert_eq!(object.read_bytes(0, 3000), Err(corrupt.clone()));
    assert_eq!(object.verify(), Ok(vec![r(0, 3000)]));
    // A change of a part must not make the rest look good.
    assert_eq!(object.write(10, b"x"), Err(corrupt));
    object.invalidate(r(0, 3000), v(1)).unwrap();
    object.install(r(0, 3000), &bytes, v(1), None).unwrap();
    object.sync_wait().unwrap();
    drop(object);
    bench.close();
    bench.open();
    assert_eq!(bench.object(1).read_bytes(0, 3000).unwrap(), bytes);
}

#[test]
fn a_store_of_format_1_is_read_and_becomes_the_newest() {
    let mut bench = Bench::new();
    bench.object(1).write(0, &pattern(1, 9000)).unwrap();
    bench.close();
    let path = bench.path().join("FORMAT");
    let text = std::fs::read_to_string(&path).unwrap();
    let body = text.replace("format 5", "format 1");
    let body = &body[..body.find("crc32c").unwrap()];
    let old = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
    std::fs::write(&path, old).unwrap();
    bench.open();
    assert_eq!(
        bench.object(1).read_bytes(0, 9999).unwrap(),
        pattern(1, 9000)
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_full_disk_refuses_small_bytes_when_they_are_written() {
    let mut bench = Bench::with_small(SMALL);
    let object = bench.object(1);
    object.write(0, &pattern(1, 5000)).unwrap();
    bench.disk.set(|faults| faults.available = Some(700 << 10));
    let full = Err(StoreError::NoSpace);
    assert_eq!(object.write(100, &pattern(2, 5000)), full);
    assert_eq!(bench.object(2).write(0, b"x"), full);
    // What was taken before finds its room in the reserve.
    object.sync_wait().unwrap();
    bench.disk.set(|faults| faults.available = None);
    drop(object);
    bench.lose_power(1);
    bench.open_and_recover(Adopt::Distrust);
    assert_eq!(
        bench.object(1).read_bytes(0, 9999).unwrap(),
        pattern(1, 5000)
    );
    assert!(bench.object(2).is_empty().unwrap());
}

#[test]
fn what_is_written_while_a_sync_is_under_way_stays() {
    let bench = Bench::with_small(SMALL);
    let object = bench.object(1);
    object.write(0, &pattern(1, 3000)).unwrap();
    // The committer stands still until the object has changed once more.
    let (go, told) = std::sync::mpsc::channel::<()>();
    let hold = Box::new(move |_| _ = told.recv());
    bench.store().submit(crate::WriteBatch::new(), hold);
    let (ends, ended) = std::sync::mpsc::channel();
    object.sync(Box::new(move |result| _ = ends.send(result)));
    object.write(1000, &pattern(2, 500)).unwrap();
    let want = object.read_bytes(0, 9999).unwrap();
    go.send(()).unwrap();
    ended.recv().unwrap().unwrap();
    assert_eq!(object.read_bytes(0, 9999).unwrap(), want);
}

#[test]
fn inodes_removed_in_a_row_take_no_neighbour_along() {
    let mut bench = Bench::with_small(SMALL);
    for index in 1..=9 {
        bench.object(index).write(0, &pattern(index, 300)).unwrap();
        bench.object(index).sync_wait().unwrap();
    }
    // Two rows that one commit finds together, one of them backwards.
    for index in [3, 4, 5, 8, 7] {
        bench.store().remove_object(inode(index)).unwrap();
    }
    bench.close();
    bench.open();
    for index in 1..=9 {
        let kept = bench.object(index).read_bytes(0, 999).unwrap();
        let want = match index {
            3..=5 | 7 | 8 => Vec::new(),
            _ => pattern(index, 300),
        };
        assert_eq!(kept, want, "inode {index}");
    }
}
