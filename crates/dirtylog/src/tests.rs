use super::*;
use std::os::unix::fs::FileExt;
use tempfile::NamedTempFile;

const RING: u32 = 1 << 20;

/// A log, or none where this machine has none: then the test says so.
fn log(bytes: u32) -> Option<Arc<DirtyLog>> {
    match DirtyLog::open(bytes) {
        Ok(log) => Some(log),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn file(pages: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    for page in 0..pages {
        file.as_file()
            .write_all_at(&[1; PAGE as usize], page * PAGE)
            .unwrap();
    }
    file
}

fn has(changed: &Changed, page: u64) -> bool {
    match changed {
        Changed::Anything => true,
        Changed::Within(ranges) => {
            let mut ranges = ranges.iter();
            ranges.any(|range| range.start <= page * PAGE && (page + 1) * PAGE <= range.end)
        }
    }
}

fn is_nothing(changed: &Changed) -> bool {
    *changed == Changed::Within(Vec::new())
}

#[test]
fn folios_count_as_long_as_their_alignment_allows() {
    let first = BTreeSet::from([3, 4, 9, 16]);
    let expected = [(3, 8), (9, 10), (16, 32)];
    let expected = expected.map(|(from, to)| ByteRange::new(from * PAGE, to * PAGE));
    assert_eq!(ranges(&first), expected);
}

#[test]
fn each_write_is_found_once_it_was_written_back_before() {
    let Some(log) = log(RING) else { return };
    let file = file(4_096);
    let watch = log.watch(file.as_file()).unwrap();
    file.as_file().sync_data().unwrap();
    _ = watch.take();
    for page in [7, 1_001, 4_001] {
        file.as_file()
            .write_all_at(b"new", page * PAGE + 5)
            .unwrap();
    }
    let changed = watch.take();
    for page in [7, 1_001, 4_001] {
        assert!(has(&changed, page), "{page} is not in {changed:?}");
    }
    // Dirty pages say nothing more; clean ones do.
    file.as_file().sync_data().unwrap();
    assert!(is_nothing(&watch.take()));
    file.as_file().write_all_at(b"newer", 7 * PAGE).unwrap();
    assert!(has(&watch.take(), 7));
    // Growth, too.
    file.as_file().write_all_at(b"more", 5_003 * PAGE).unwrap();
    assert!(has(&watch.take(), 5_003));
}

#[test]
fn stores_through_a_map_are_found_when_the_steps_are_kept() {
    #![expect(unsafe_code, reason = "a store through a map")]
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let Some(log) = log(RING) else { return };
    let file = file(64);
    let watch = log.watch(file.as_file()).unwrap();
    file.as_file().sync_data().unwrap();
    _ = watch.take();
    let (both, len) = (ProtFlags::READ | ProtFlags::WRITE, 64 * PAGE as usize);
    // SAFETY: a new mapping of a file that is as long.
    let map = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            both,
            MapFlags::SHARED,
            file.as_file(),
            0,
        )
    };
    let map = map.unwrap().cast::<u8>();
    for turn in 0..20_u8 {
        let page = u64::from(turn) * 3 + 1;
        // SAFETY: inside the mapping.
        unsafe { map.add((page * PAGE) as usize).write_volatile(turn + 2) };
        let changed = watch.take();
        assert!(has(&changed, page), "turn {turn}: {changed:?}");
        file.as_file().sync_data().unwrap();
        assert!(is_nothing(&watch.take()), "turn {turn}");
        // The same page again, which is read-only to the map now.
        // SAFETY: as above.
        unsafe { map.add((page * PAGE) as usize + 9).write_volatile(turn + 3) };
        assert!(has(&watch.take(), page), "turn {turn}, again");
    }
    // SAFETY: nothing uses it any more.
    unsafe { munmap(map.cast(), len) }.unwrap();
}

#[test]
fn what_is_not_watched_is_not_told_and_what_had_no_room_is() {
    let Some(log) = log(4_096) else { return };
    let (watched, other) = (file(2_048), file(2_048));
    let watch = log.watch(watched.as_file()).unwrap();
    watched.as_file().sync_data().unwrap();
    _ = watch.take();
    other.as_file().sync_data().unwrap();
    other.as_file().write_all_at(b"x", 11 * PAGE).unwrap();
    assert!(is_nothing(&watch.take()));
    // The ring has room for 170 events.
    for page in (0..2_048).map(|page| page | 1) {
        watched.as_file().write_all_at(b"x", page * PAGE).unwrap();
    }
    assert_eq!(watch.take(), Changed::Anything);
    watched.as_file().sync_data().unwrap();
    watched.as_file().write_all_at(b"x", 5 * PAGE).unwrap();
    let after = watch.take();
    assert!(has(&after, 5) && after != Changed::Anything, "{after:?}");
}

#[test]
fn by_many_threads_no_write_that_has_returned_is_missing() {
    let Some(log) = log(RING) else { return };
    let file = file(1_024);
    let watch = log.watch(file.as_file()).unwrap();
    file.as_file().sync_data().unwrap();
    _ = watch.take();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let file = file.as_file();
            scope.spawn(move || {
                for turn in 0..200_u64 {
                    let page = (turn * 7 + thread * 256) % 1_024;
                    file.write_all_at(&[turn as u8; 8], page * PAGE).unwrap();
                }
            });
        }
    });
    let changed = watch.take();
    for thread in 0..4_u64 {
        for turn in 0..200_u64 {
            let page = (turn * 7 + thread * 256) % 1_024;
            assert!(has(&changed, page), "{page}");
        }
    }
}
