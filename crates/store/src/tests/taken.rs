//! Files of this machine that become objects: not a byte is lost on either side, whenever the power goes.

use super::{Bench, pattern, r};
use crate::disk::FileNumber;
use crate::{Adopt, AsTaken, Local, LocalFile, StoreError};
use perigee_types::WallTime;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const LEN: usize = 300_000;

/// A file of this machine with bytes and a hole, of no whole number of blocks.
fn outside(bench: &Bench) -> (PathBuf, Vec<u8>) {
    let path = bench.dir.path().join("outside");
    let file = fs::File::create(&path).unwrap();
    let mut bytes = pattern(7, LEN);
    bytes[20_000..250_000].fill(0);
    file.write_all_at(&bytes[..20_000], 0).unwrap();
    file.write_all_at(&bytes[250_000..], 250_000).unwrap();
    file.sync_all().unwrap();
    (path, bytes)
}

fn number_of(path: &Path) -> FileNumber {
    let there = fs::metadata(path).unwrap();
    FileNumber {
        device: there.dev(),
        inode: there.ino(),
    }
}

fn local(bench: &Bench, path: &Path) -> Result<LocalFile, StoreError> {
    match bench.store().local_file(path, number_of(path))? {
        Local::File(file) => Ok(file),
        other => panic!("{other:?}"),
    }
}

/// Long after everything here.
const LATER: WallTime = WallTime {
    secs: i64::MAX,
    nanos: 0,
};

fn take(bench: &Bench, index: u64, path: &Path) -> Result<WallTime, StoreError> {
    let local = local(bench, path)?;
    bench.object(index).take_file(&local)?;
    Ok(local.modified())
}

#[test]
fn a_file_is_taken_with_its_holes_and_changed_only_once_it_has_no_other_name() {
    let mut bench = Bench::new();
    let (path, bytes) = outside(&bench);
    let modified = take(&bench, 1, &path).unwrap();
    let number = fs::metadata(&path).unwrap().ino();
    let of_object = |bench: &Bench, index| fs::metadata(bench.file_of(index)).unwrap();
    assert_eq!(of_object(&bench, 1).ino(), number);
    bench.object(1).sync_wait().unwrap();
    bench.lose_power(1);
    let recovered = bench.open_and_recover(Adopt::Distrust);
    assert_eq!((recovered.adopted, recovered.distrusted), (vec![], vec![]));
    let object = bench.object(1);
    assert_eq!(object.read_bytes(0, LEN).unwrap(), bytes);
    assert_eq!(object.verify(), Ok(vec![]));
    let file = number_of(&path);
    let same = object.is_as_taken(file, 1, (modified, LATER));
    assert_eq!(same, Ok(AsTaken::Same));
    // Who has just made another name for it may write later; whoever is another file is not that one.
    let other = bench.dir.path().join("other");
    fs::hard_link(&path, &other).unwrap();
    let named = object.is_as_taken(file, 1, (modified, LATER));
    assert_eq!(named, Ok(AsTaken::Changed));
    fs::remove_file(&other).unwrap();
    let elsewhere = FileNumber {
        inode: file.inode + 1,
        ..file
    };
    let exchanged = object.is_as_taken(elsewhere, 1, (modified, LATER));
    assert_eq!(exchanged, Ok(AsTaken::Changed));
    assert!(matches!(object.backing_fd(), Err(StoreError::Named { .. })));
    let outside = object.set_externally_writable(true);
    assert!(matches!(outside, Err(StoreError::Named { .. })));

    // A change goes to a copy.
    object.write(100_000, &pattern(3, 5_000)).unwrap();
    object.resize(280_000).unwrap();
    object.sync_wait().unwrap();
    assert_ne!(of_object(&bench, 1).ino(), number);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(
        object.read_bytes(100_000, 5_000).unwrap(),
        pattern(3, 5_000)
    );
    let own = object.is_as_taken(file, 1, (modified, LATER));
    assert_eq!(own, Ok(AsTaken::Own));

    // Without another name, it goes to the file itself.
    bench.store().remove_object(super::inode(1)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    drop(object);
    take(&bench, 2, &path).unwrap();
    fs::remove_file(&path).unwrap();
    let object = bench.object(2);
    object.settle_taken().unwrap();
    assert_eq!(of_object(&bench, 2).mode() & 0o7777, 0o600);
    object.write(0, &pattern(4, 10_000)).unwrap();
    object.sync_wait().unwrap();
    assert_eq!(of_object(&bench, 2).ino(), number);
    drop(object);
    bench.close();
    bench.open();
    let object = bench.object(2);
    assert_eq!(object.verify(), Ok(vec![]));
    assert_eq!(object.read_bytes(0, 10_000).unwrap(), pattern(4, 10_000));
    assert_eq!(
        object.read_bytes(250_000, 50_000).unwrap(),
        bytes[250_000..]
    );
    assert!(object.backing_fd().is_ok());
}

#[test]
fn who_writes_to_a_file_before_or_after_is_found_out() {
    let bench = Bench::new();
    let (path, _) = outside(&bench);
    let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let (store, file) = (bench.store(), number_of(&path));
    let written = store.local_file(&path, file).unwrap();
    assert!(matches!(written, Local::Written));
    drop(writer);
    let other = number_of(bench.dir.path());
    for (path, number) in [(path.as_path(), other), (bench.dir.path(), other)] {
        assert!(matches!(store.local_file(path, number), Ok(Local::Other)));
    }
    let local = local(&bench, &path).unwrap();
    let (object, modified) = (bench.object(1), local.modified());
    object.take_file(&local).unwrap();
    // An object has bytes of one file alone.
    let again = object.take_file(&local);
    drop(local);
    assert!(matches!(
        again,
        Err(StoreError::Io {
            code: libc::EEXIST,
            ..
        })
    ));
    let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let look = |since| object.is_as_taken(file, 1, (modified, since));
    assert_eq!(look(LATER), Ok(AsTaken::Written));
    writer.write_all_at(b"else", 1_000).unwrap();
    drop(writer);
    assert_eq!(look(LATER), Ok(AsTaken::Changed));
    // Also where the time is set back.
    let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let back = std::time::Duration::new(modified.secs as u64, modified.nanos);
    writer.set_modified(std::time::UNIX_EPOCH + back).unwrap();
    drop(writer);
    assert_eq!(look(modified), Ok(AsTaken::Changed));
    // Bytes that nobody vouches for are none.
    let read = object.read_bytes(0, 4_096);
    assert!(matches!(read, Err(StoreError::Corrupt { .. })));
    assert!(object.read_bytes(4_096, 4_096).is_ok());
}

#[test]
fn a_file_that_changes_while_it_is_taken_is_refused() {
    let bench = Bench::new();
    let (path, _) = outside(&bench);
    let local = local(&bench, &path).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
    writer.write_all_at(b"more", LEN as u64).unwrap();
    let taken = bench.object(1).take_file(&local);
    assert!(
        matches!(taken, Err(StoreError::Mismatch { .. })),
        "{taken:?}"
    );
}

/// Whenever the power goes, the file is whole under its first name; so it is however the object, of which nothing or all is
/// known then, is changed afterwards; and if taking it had been answered, the object has all of it.
#[test]
fn every_crash_leaves_a_taken_file_whole() {
    for calls in 0.. {
        let mut gone = false;
        for adopt in [Adopt::Adopt, Adopt::Distrust] {
            let case = format!("{calls} calls, {adopt:?}");
            let mut bench = Bench::new();
            let (path, bytes) = outside(&bench);
            bench.disk.set(|faults| faults.calls_left = Some(calls));
            let taken = take(&bench, 1, &path).and_then(|_| bench.object(1).sync_wait());
            gone = bench.disk.is_frozen();
            assert!(taken.is_ok() || gone, "{case}: {taken:?}");
            bench.lose_power(calls.into());
            bench.open_and_recover(adopt);
            assert_eq!(fs::read(&path).unwrap(), bytes, "{case}");
            let object = bench.object(1);
            assert_eq!(object.verify(), Ok(vec![]), "{case}");
            if taken.is_ok() {
                assert_eq!(object.read_bytes(0, LEN).unwrap(), bytes, "{case}");
            }
            if calls % 2 == 0 {
                object.resize(0).unwrap();
            }
            object.write(100, &pattern(9, 9_000)).unwrap();
            object.punch(r(5_000, 6_000)).unwrap();
            object.sync_wait().unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes, "{case}");
            drop(object);
            bench.close();
            bench.open();
            assert_eq!(bench.object(1).verify(), Ok(vec![]), "{case}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "{case}");
        }
        if !gone {
            assert!(calls > 5, "only {calls} places");
            return;
        }
    }
}
