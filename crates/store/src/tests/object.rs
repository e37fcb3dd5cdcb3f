//! Objects on a disk that works.

use super::{Bench, C, flip, inode, pattern, r, v};
use crate::disk::RealDisk;
use crate::{Adopt, StoreError, WriteBatch, block_sums};
use perigee_types::Version;
use std::sync::Arc;

fn corrupt(ranges: &[perigee_types::ByteRange]) -> StoreError {
    StoreError::Corrupt {
        inode: inode(1),
        ranges: ranges.to_vec(),
    }
}

/// The backing file, as another program has it.
fn outside(object: &crate::Object) -> std::fs::File {
    use std::os::fd::AsRawFd;
    let fd = object.backing_fd().unwrap();
    let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut open = std::fs::File::options();
    open.read(true).write(true).open(own).unwrap()
}

fn invalid(ranges: &[perigee_types::ByteRange]) -> StoreError {
    StoreError::Invalid {
        inode: inode(1),
        ranges: ranges.to_vec(),
    }
}

#[test]
fn an_object_that_was_never_written_takes_no_file() {
    let bench = Bench::new();
    let object = bench.object(1);
    assert_eq!(object.read(0, &mut [0; 10]), Ok(0));
    assert_eq!(object.len(), Ok(0));
    assert!(!bench.file_of(1).exists());
    object.write(5000, b"x").unwrap();
    assert!(bench.file_of(1).exists());
    assert_eq!(object.read_bytes(4998, 10).unwrap(), b"\0\0x"[..]);
}

#[test]
fn the_disk_begins_with_what_a_file_grows_by() {
    const MIB: u64 = 1 << 20;
    let bench = Bench::new();
    let object = bench.object(1);
    let piece = pattern(1, MIB as usize);
    let write = |from: u64, to: u64| {
        for at in from..to {
            object.write(at * MIB, &piece).unwrap();
        }
    };
    let begun = |expected: &[perigee_types::ByteRange]| {
        let start = std::time::Instant::now();
        let mut found = Vec::new();
        while found != expected && start.elapsed().as_secs() < 20 {
            bench.disk.set(|faults| found.clone_from(&faults.begun));
            std::thread::yield_now();
        }
        assert_eq!(found, expected);
    };
    write(0, 12);
    begun(&[r(0, 8 * MIB)]);
    // What is replaced may be replaced again.
    write(0, 12);
    write(12, 16);
    begun(&[r(0, 8 * MIB), r(8 * MIB, 16 * MIB)]);
    object.resize(MIB).unwrap();
    write(1, 9);
    begun(&[r(0, 8 * MIB), r(8 * MIB, 16 * MIB), r(MIB, 9 * MIB)]);
}

#[test]
fn a_flipped_bit_is_never_returned_and_heals_by_install() {
    let mut bench = Bench::new();
    let data = pattern(1, 10_000);
    for byte in [0, 4095, 4096, 8191, 8192, 9999] {
        let object = bench.object(1);
        object.write(0, &data).unwrap();
        object.sync_wait().unwrap();
        flip(&bench.file_of(1), byte, (byte % 8) as u8);
        let block = byte / 4096 * 4096;
        let bad = r(block, (block + 4096).min(10_000));
        assert_eq!(object.read(byte, &mut [0]), Err(corrupt(&[bad])));
        assert_eq!(object.read(0, &mut vec![0; 10_000]), Err(corrupt(&[bad])));
        assert_eq!(object.verify(), Ok(vec![bad]));
        // What would make the rot look good is refused.
        assert_eq!(
            object.write(bad.end - 1, b"x"),
            if bad.len() == 1 {
                Ok(())
            } else {
                Err(corrupt(&[bad]))
            }
        );
        assert_eq!(object.resize(bad.start + 1), Err(corrupt(&[bad])));
        assert_eq!(
            object.punch(r(bad.start, bad.end - 1)),
            Err(corrupt(&[bad]))
        );
        // A restart forgets nothing.
        drop(object);
        bench.close();
        bench.open();
        let object = bench.object(1);
        assert_eq!(object.verify(), Ok(vec![bad]));
        object.invalidate(bad, Version::default()).unwrap();
        assert_eq!(
            object.read(byte, &mut [0]),
            Err(invalid(&[r(byte, byte + 1)]))
        );
        assert_eq!(object.verify(), Ok(vec![]));
        let good = &data[bad.start as usize..bad.end as usize];
        // In two pieces, neither of which is a whole block.
        let (a, b) = good.split_at(100);
        let mid = bad.start + 100;
        object.install(r(bad.start, mid), a, v(9), None).unwrap();
        object
            .install(r(mid, bad.end), b, v(9), Some(&block_sums(b)))
            .unwrap();
        assert!(object.is_whole());
        assert_eq!(object.read_bytes(0, 10_000).unwrap(), data);
        assert_eq!(object.verify(), Ok(vec![]));
    }
}

#[test]
fn a_missing_backing_file_is_corruption_not_zeros() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, b"data").unwrap();
    object.sync_wait().unwrap();
    drop(object);
    bench.close();
    std::fs::remove_file(bench.file_of(1)).unwrap();
    bench.open();
    let object = bench.object(1);
    assert_eq!(object.read(0, &mut [0; 4]), Err(corrupt(&[r(0, 4)])));
    assert_eq!(object.verify(), Ok(vec![r(0, 4)]));
    assert_eq!(object.write(0, b"x"), Err(corrupt(&[r(0, 4)])));
}

#[test]
fn a_shortened_backing_file_is_corruption() {
    let bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 9000)).unwrap();
    object.sync_wait().unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(bench.file_of(1));
    file.unwrap().set_len(5000).unwrap();
    assert_eq!(object.verify(), Ok(vec![r(4096, 9000)]));
    assert_eq!(
        object.read(0, &mut [0; 9000]),
        Err(corrupt(&[r(4096, 9000)]))
    );
    assert_eq!(object.read(0, &mut [0; 4096]), Ok(4096));
}

#[test]
fn content_is_installed_only_where_it_is_still_wanted() {
    let bench = Bench::new();
    let object = bench.object(1);
    object.invalidate(r(0, 300), v(1)).unwrap();
    object.invalidate(r(100, 200), v(5)).unwrap();
    assert_eq!(object.len(), Ok(300));
    assert_eq!(
        object.read(50, &mut [0; 100]),
        Err(invalid(&[r(50, 100), r(100, 150)]))
    );
    let old = vec![b'o'; 300];
    let parts = object.install(r(0, 300), &old, v(4), None).unwrap();
    assert_eq!(parts, [r(0, 100), r(200, 300)]);
    assert_eq!(object.invalid(), [(r(100, 200), v(5))]);
    // What is valid is not written over, whatever its version.
    let new = vec![b'n'; 300];
    let parts = object.install(r(0, 300), &new, v(9), None).unwrap();
    assert_eq!(parts, [r(100, 200)]);
    let all = object.read_bytes(0, 300).unwrap();
    assert_eq!(&all[..], [&old[..100], &new[..100], &old[..100]].concat());
    assert!(object.is_whole());
}

#[test]
fn installed_bytes_must_match_their_checksums_and_length() {
    let bench = Bench::new();
    let object = bench.object(1);
    object.invalidate(r(0, 5000), v(1)).unwrap();
    let data = pattern(1, 5000);
    let mut sums = block_sums(&data);
    sums[1] ^= 1;
    let mismatch = Err(StoreError::Mismatch {
        inode: inode(1),
        range: r(0, 5000),
    });
    assert_eq!(
        object.install(r(0, 5000), &data, v(1), Some(&sums)),
        mismatch
    );
    assert_eq!(object.install(r(0, 5000), &data[1..], v(1), None), mismatch);
    assert!(!object.is_whole());
}

#[test]
fn the_owners_write_makes_what_it_covers_valid() {
    let bench = Bench::new();
    let object = bench.object(1);
    object.invalidate(r(0, 8192), v(3)).unwrap();
    object.write(1000, &[7; 1000]).unwrap();
    assert_eq!(
        object.invalid(),
        [(r(0, 1000), v(3)), (r(2000, 8192), v(3))]
    );
    assert_eq!(object.read_bytes(1000, 1000).unwrap(), [7; 1000][..]);
    object.punch(r(0, 1000)).unwrap();
    object.resize(2000).unwrap();
    assert!(object.is_whole());
    object.resize(9000).unwrap();
    assert_eq!(object.read_bytes(2000, 7000).unwrap(), vec![0; 7000]);
}

#[test]
fn invalidity_is_durable_with_its_batch_in_any_order() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    let (mut first, mut second) = (WriteBatch::new(), WriteBatch::new());
    object.invalidate_in(&mut first, r(0, 10), v(1)).unwrap();
    object
        .invalidate_in(&mut second, r(40 << 20, 50 << 20), v(2))
        .unwrap();
    bench.store().commit(second).unwrap();
    bench.store().commit(first).unwrap();
    drop(object);
    bench.lose_power(1);
    bench.open();
    let object = bench.object(1);
    assert_eq!(
        object.invalid(),
        [(r(0, 10), v(1)), (r(40 << 20, 50 << 20), v(2))]
    );
    assert_eq!(object.len(), Ok(50 << 20));
}

#[test]
fn validity_is_stored_only_after_the_data() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.invalidate(r(0, 8192), v(1)).unwrap();
    object.sync_wait().unwrap();
    object
        .install(r(0, 4096), &pattern(1, 4096), v(1), None)
        .unwrap();
    object.sync_wait().unwrap();
    object
        .install(r(4096, 8192), &pattern(2, 4096), v(1), None)
        .unwrap();
    // A record of the object is committed, and must not claim the second block.
    object.invalidate(r(9000, 9001), v(2)).unwrap();
    bench.store().commit(WriteBatch::new()).unwrap();
    drop(object);
    bench.lose_power(3);
    bench.open_and_recover(Adopt::Distrust);
    let object = bench.object(1);
    let invalid = object.invalid();
    assert!(invalid.contains(&(r(4096, 8192), v(1))), "{invalid:?}");
    assert_eq!(object.read_bytes(0, 4096).unwrap(), pattern(1, 4096));
}

#[test]
fn rot_in_place_of_missing_bytes_is_not_taken_for_the_content() {
    let bench = Bench::with_small(0);
    let object = bench.object(1);
    object.write(0, &pattern(1, 3 * 4096)).unwrap();
    object.sync_wait().unwrap();
    object.invalidate(r(100, 3 * 4096), v(1)).unwrap();
    flip(&bench.file_of(1), 5000, 3);
    assert_eq!(
        object.accept(r(100, 3 * 4096)),
        Ok(vec![r(4096, 8192)]),
        "the block that changed by itself"
    );
    assert_eq!(object.invalid(), [(r(4096, 8192), v(1))]);
    assert_eq!(object.read_bytes(0, 4096).unwrap(), pattern(1, 4096));
    assert_eq!(
        object.read_bytes(8192, 4096).unwrap(),
        pattern(1, 3 * 4096)[8192..]
    );
}

#[test]
fn writes_that_the_daemon_did_not_see_are_found_by_a_rescan() {
    use std::os::unix::fs::FileExt;
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 20_000)).unwrap();
    object.sync_wait().unwrap();
    let file = outside(&object);
    object.set_externally_writable(true).unwrap();
    file.write_all_at(b"unseen", 5000).unwrap();
    file.write_all_at(b"end", 25_000).unwrap();
    assert_eq!(object.read_bytes(5000, 6).unwrap(), b"unseen"[..]);
    assert_eq!(object.len(), Ok(25_003));
    assert_eq!(object.verify(), Ok(vec![]));
    assert_eq!(object.rescan(), Ok(vec![r(4096, 8192), r(24_576, 25_003)]));
    assert_eq!(object.rescan(), Ok(vec![]));
    object.sync_wait().unwrap();
    // Whatever is written before the process dies is the file's content.
    file.write_all_at(b"more", 25_003).unwrap();
    drop(object);
    bench.lose_power(1);
    let recovered = bench.open_and_recover(Adopt::Adopt);
    assert_eq!(recovered.checked, 1);
    let object = bench.object(1);
    assert_eq!(object.len(), Ok(25_007));
    assert_eq!(object.verify(), Ok(vec![]));
}

#[test]
fn whoever_goes_on_writing_after_the_process_has_died_changes_nothing() {
    use std::os::unix::fs::FileExt;
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 20_000)).unwrap();
    object.write(3 << 20, b"behind a hole").unwrap();
    object.sync_wait().unwrap();
    let file = outside(&object);
    object.set_externally_writable(true).unwrap();
    file.write_all_at(b"in time", 5_000).unwrap();
    let content = object.read_bytes(0, 4 << 20).unwrap();
    let blocks = object.allocated_blocks().unwrap();
    drop(object);
    bench.kill();
    file.write_all_at(b"before", 1).unwrap();
    bench.open_and_recover(Adopt::Adopt);
    file.write_all_at(b"after", 9).unwrap();
    let object = bench.object(1);
    let mut expected = content.to_vec();
    expected[1..7].copy_from_slice(b"before");
    assert_eq!(object.read_bytes(0, 4 << 20).unwrap(), expected);
    assert_eq!(object.verify(), Ok(vec![]));
    assert!(object.allocated_blocks().unwrap() <= blocks, "holes stay");
}

#[test]
fn a_write_into_a_block_that_others_have_changed_does_not_hide_it() {
    use std::os::unix::fs::FileExt;
    type Change = fn(&crate::Object) -> Result<(), StoreError>;
    let changes: [Change; 3] = [
        |object| object.write(4_096 + 100, b"seen"),
        |object| object.punch(r(4_096 + 100, 3 * 4_096)),
        |object| object.resize(4_096 + 100),
    ];
    for change in changes {
        let bench = Bench::new();
        let object = bench.object(1);
        object.write(0, &pattern(1, 20_000)).unwrap();
        object.sync_wait().unwrap();
        let file = outside(&object);
        object.set_externally_writable(true).unwrap();
        file.write_all_at(b"unseen", 4_096).unwrap();
        change(&object).unwrap();
        let found = object.rescan().unwrap();
        let end = object.len().unwrap().min(8_192);
        assert_eq!(found, [r(4_096, end)]);
        object.set_externally_writable(false).unwrap();
        assert_eq!(object.verify(), Ok(vec![]));
        assert_eq!(object.read_bytes(4_096, 6).unwrap(), b"unseen"[..]);
    }
}

#[test]
fn a_map_that_outlives_its_descriptors_is_known_until_it_is_gone() {
    #![expect(unsafe_code, reason = "a map")]
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    const LEN: usize = 20_000;
    let bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, LEN)).unwrap();
    object.sync_wait().unwrap();
    assert_eq!(object.others_may_write(), Ok(false));
    let reading = object.backing_fd().unwrap();
    let file = outside(&object);
    let (both, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping of a file that never gets shorter here.
    let map = unsafe { mmap(std::ptr::null_mut(), LEN, both, shared, &file, 0) }.unwrap();
    assert_eq!(object.others_may_write(), Ok(true));
    drop(file);
    assert_eq!(object.others_may_write(), Ok(true));
    // SAFETY: nobody uses it.
    unsafe { munmap(map, LEN) }.unwrap();
    assert_eq!(object.others_may_write(), Ok(false), "a reader may stay");
    drop(reading);
    // Whoever opens the file while it is asked about waits for a moment, and nothing else happens.
    let path = bench.file_of(1);
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            for _ in 0..2_000 {
                let opened = std::fs::File::options().write(true).open(&path);
                drop(opened.unwrap());
            }
        });
        while !opener.is_finished() {
            object.others_may_write().unwrap();
        }
    });
    assert_eq!(object.others_may_write(), Ok(false));
    assert_eq!(object.read_bytes(0, LEN).unwrap(), pattern(1, LEN));
}

#[test]
fn what_others_write_directly_is_found_though_nobody_tells_of_it() {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 1 << 20)).unwrap();
    object.sync_wait().unwrap();
    object.set_externally_writable(true).unwrap();
    let file = outside(&object);
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut options = std::fs::OpenOptions::new();
    options.write(true).custom_flags(libc::O_DIRECT);
    let Ok(direct) = options.open(path.unwrap()) else {
        println!("skipped: nothing is written directly here");
        return;
    };
    let room = vec![7; 2 * 4_096];
    let start = room.as_ptr().align_offset(4_096);
    let changed = vec![r(8_192, 12_288)];
    assert_eq!(object.rescan(), Ok(vec![]));
    direct
        .write_all_at(&room[start..start + 4_096], 8_192)
        .unwrap();
    let mut found = object.rescan().unwrap();
    if object.has_changed_untold() {
        assert_eq!(found, []);
        found = object.rescan().unwrap();
    }
    assert_eq!(found, changed);
    assert_eq!(object.rescan(), Ok(vec![]));
}

/// Whoever the kernel tells what has changed must find the same as who reads the whole file.
#[test]
fn whatever_others_change_by_calls_and_maps_is_found_and_nothing_else() {
    for seed in 1..=4 {
        others_change(Bench::new(), seed);
    }
}

/// A file system in memory writes nothing back, and says nothing of what becomes dirty.
#[test]
fn whatever_others_change_is_found_where_the_kernel_tells_nothing() {
    let memory = std::path::Path::new("/dev/shm");
    if !memory.is_dir() {
        println!("skipped: there is no /dev/shm");
        return;
    }
    others_change(Bench::within(tempfile::tempdir_in(memory).unwrap(), 0), 5);
}

fn others_change(bench: Bench, seed: u64) {
    #![expect(unsafe_code, reason = "stores through a map")]
    use perigee_types::Rng;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::os::unix::fs::FileExt;
    const LEN: usize = 6 << 20;
    let mut rng = Rng::new(seed);
    let object = bench.object(1);
    object.write(0, &pattern(1, LEN)).unwrap();
    object.sync_wait().unwrap();
    let file = outside(&object);
    object.set_externally_writable(true).unwrap();
    let (both, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping of a file that is as long, and never gets shorter here.
    let map = unsafe { mmap(std::ptr::null_mut(), LEN, both, shared, &file, 0) };
    let map = map.unwrap().cast::<u8>();
    let mut len = LEN as u64;
    for _ in 0..40 {
        let mut blocks = std::collections::BTreeSet::new();
        for _ in 0..rng.below(12) {
            let at = rng.below(LEN as u64 - 9);
            match rng.below(4) {
                // SAFETY: inside the mapping.
                0 | 1 => unsafe {
                    let place = map.add(at as usize);
                    place.write_volatile(place.read_volatile().wrapping_add(1));
                },
                2 => {
                    let was = object.read_bytes(at, 1).unwrap()[0];
                    file.write_all_at(&[was ^ 0x55], at).unwrap();
                }
                _ => {
                    // Growth leaves a hole, or ends a block.
                    let at = len + rng.below(3) * 5_000;
                    file.write_all_at(b"grown", at).unwrap();
                    len = at + 5;
                    blocks.insert(at / 4_096);
                    blocks.insert((at + 4) / 4_096);
                    continue;
                }
            }
            blocks.insert(at / 4_096);
        }
        let found = object.rescan().unwrap();
        let inside = |block: u64| {
            let mut found = found.iter();
            found.any(|range| range.start <= block * 4_096 && block * 4_096 < range.end)
        };
        let count: u64 = found.iter().map(|range| range.len().div_ceil(4_096)).sum();
        assert!(
            blocks.iter().all(|block| inside(*block)) && count == blocks.len() as u64,
            "seed {seed}: {found:?} of {blocks:?}"
        );
        assert_eq!(object.len(), Ok(len));
        if rng.below(3) == 0 {
            object.sync_wait().unwrap();
        }
    }
    // SAFETY: nothing uses it any more.
    unsafe { munmap(map.cast(), LEN) }.unwrap();
    assert_eq!(object.rescan(), Ok(vec![]));
    object.set_externally_writable(false).unwrap();
    assert_eq!(object.verify(), Ok(vec![]), "seed {seed}");
}

#[test]
fn holes_and_invalid_regions_seek_as_they_should() {
    let bench = Bench::new();
    let object = bench.object(1);
    let mib = 1 << 20;
    object.resize(8 * mib).unwrap();
    object.write(2 * mib, &pattern(1, 4096)).unwrap();
    object.invalidate(r(4 * mib, 5 * mib), v(1)).unwrap();
    assert_eq!(object.seek_data(0), Ok(Some(2 * mib)));
    assert_eq!(object.seek_hole(0), Ok(Some(0)));
    assert_eq!(object.seek_hole(2 * mib), Ok(Some(2 * mib + 4096)));
    assert_eq!(object.seek_data(2 * mib + 4096), Ok(Some(4 * mib)));
    assert_eq!(object.seek_hole(4 * mib + 5), Ok(Some(5 * mib)));
    assert_eq!(object.seek_data(5 * mib), Ok(None));
    assert_eq!(object.seek_hole(8 * mib), Ok(None));
    let blocks = object.allocated_blocks().unwrap();
    assert!(blocks < 2048, "sparse: {blocks}");
    object.allocate(r(6 * mib, 9 * mib)).unwrap();
    assert!(object.allocated_blocks().unwrap() >= blocks + 6144);
    assert_eq!(object.len(), Ok(8 * mib));
    object.punch(r(0, 8 * mib)).unwrap();
    assert_eq!(object.read_bytes(2 * mib, 10).unwrap(), [0; 10][..]);
    assert!(object.is_whole());
}

#[test]
fn a_removed_object_is_gone_and_its_number_may_come_back() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    object.write(0, &pattern(1, 5000)).unwrap();
    object.sync_wait().unwrap();
    bench.store().remove_object(inode(1)).unwrap();
    bench.store().remove_object(inode(1)).unwrap();
    assert!(!bench.file_of(1).exists());
    assert_eq!(
        object.read(0, &mut [0; 9]),
        Err(StoreError::Removed { inode: inode(1) })
    );
    object.sync_wait().unwrap();
    // Until the removal is on disk, the old record must not be taken for a new one's.
    bench.store().commit(WriteBatch::new()).unwrap();
    let again = bench.object(1);
    assert_eq!(again.len(), Ok(0));
    again.write(0, b"new").unwrap();
    again.sync_wait().unwrap();
    drop((object, again));
    bench.close();
    bench.open();
    assert_eq!(bench.object(1).read_bytes(0, 99).unwrap(), b"new"[..]);
    assert_eq!(bench.object(1).verify(), Ok(vec![]));
    assert_eq!(bench.store().containers().unwrap(), [C]);
}

#[test]
fn idle_files_are_closed_and_opened_again() {
    let mut bench = Bench::new();
    bench.close();
    // On the real disk: the other one keeps files open to undo writes.
    bench.open_on(Arc::new(RealDisk));
    for index in 1..=60 {
        bench.object(index).write(0, &pattern(index, 100)).unwrap();
    }
    let held = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.starts_with(bench.path().join("objects")) && path.is_file())
        .count();
    assert!(held <= 9, "{held} files open, 8 wanted");
    for index in 1..=60 {
        let object = bench.object(index);
        assert_eq!(object.read_bytes(0, 100).unwrap(), pattern(index, 100));
        object.sync_wait().unwrap();
    }
}

#[test]
fn readers_and_writers_of_one_object_do_not_mix_blocks() {
    let bench = Bench::new();
    let object = bench.object(1);
    let len = 64 << 10;
    object.write(0, &pattern(0, len)).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let object = Arc::clone(&object);
            scope.spawn(move || {
                for round in 0..50 {
                    object
                        .write(0, &pattern(writer * 1000 + round, len))
                        .unwrap();
                }
            });
        }
        for _ in 0..2 {
            let object = Arc::clone(&object);
            scope.spawn(move || {
                for _ in 0..100 {
                    let got = object.read_bytes(0, len).unwrap();
                    let seed = (0..256).find(|&seed| pattern(seed, 1)[0] == got[0]);
                    let seed = seed.unwrap();
                    let same = |seed| pattern(seed, len) == got[..];
                    assert!((0..256).any(|more| same(seed ^ more)), "a torn read");
                }
            });
        }
        let object = Arc::clone(&object);
        scope.spawn(move || {
            for _ in 0..10 {
                object.sync_wait().unwrap();
            }
        });
    });
    assert_eq!(object.verify(), Ok(vec![]));
}

/// A copy takes no more space than what it is a copy of, whatever is in place before.
#[test]
fn zeros_that_are_put_in_place_take_no_space() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    let content = |zeros: std::ops::Range<usize>| {
        let mut content = pattern(1, 3 << 20);
        content[zeros].fill(0);
        content
    };
    let mut blocks = Vec::new();
    for (version, zeros) in [(1, 1_000_000..3_000_000), (2, 500_000..3 << 20), (3, 0..0)] {
        let (whole, content) = (r(0, 3 << 20), content(zeros));
        object.invalidate(whole, v(version)).unwrap();
        object.install(whole, &content, v(version), None).unwrap();
        object.sync_wait().unwrap();
        assert!(object.is_whole());
        assert_eq!(object.read_bytes(0, 3 << 20).unwrap(), content);
        assert_eq!(object.verify(), Ok(vec![]));
        blocks.push(object.allocated_blocks().unwrap() * 512);
        let hole = object.hole_len(r(1 << 20, 2 << 20)).unwrap();
        assert_eq!(hole, (version < 3).then_some(1 << 20));
        assert_eq!(object.hole_len(r(0, 4 << 20)), Ok(None));
        assert_eq!(object.hole_len(r(3 << 20, 4 << 20)), Ok(None));
    }
    assert!(blocks[0] < 1_300_000 && blocks[1] < 700_000, "{blocks:?}");
    assert!(blocks[2] >= 3 << 20, "{blocks:?}");
    drop(object);
    bench.kill();
    bench.open_and_recover(Adopt::Adopt);
    let object = bench.object(1);
    assert_eq!(object.read_bytes(0, 3 << 20).unwrap(), content(0..0));
}

/// Of a member that has fetched nothing but zeros the file is as long as the object.
#[test]
fn an_object_of_zeros_keeps_its_length_over_a_crash() {
    let mut bench = Bench::new();
    let object = bench.object(1);
    let whole = r(0, 1 << 20);
    object.invalidate(whole, v(1)).unwrap();
    object
        .install(whole, &vec![0; 1 << 20], v(1), None)
        .unwrap();
    object.sync_wait().unwrap();
    object.write(0, b"touched").unwrap();
    drop(object);
    bench.kill();
    bench.open_and_recover(Adopt::Adopt);
    assert_eq!(bench.object(1).len(), Ok(1 << 20));
}
