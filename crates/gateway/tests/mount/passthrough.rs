//! Files that the kernel reads and writes past the daemon, and others of the same inode beside them.

use crate::files::as_user;
use crate::memory::Rung;
use crate::rig::{Map, Rig, errno};
use perigee_types::Rng;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::Ordering;

fn rig(rung: Rung) -> Option<Rig> {
    let rig = Rig::new()?;
    assert!(
        rig.mounted().facts().passthrough,
        "root on Linux 6.9 or later"
    );
    rig.fs.back_new_files();
    rig.fs.set_rung(rung);
    Some(rig)
}

fn counts(rig: &Rig) -> (u64, u64) {
    let seen = &rig.fs.seen;
    (
        seen.reads.load(Ordering::SeqCst),
        seen.writes.load(Ordering::SeqCst),
    )
}

fn read_write(rig: &Rig, name: &str) -> File {
    File::options()
        .read(true)
        .write(true)
        .open(rig.path(name))
        .unwrap()
}

#[test]
fn bytes_pass_the_daemon_by() {
    let Some(rig) = rig(Rung::Passthrough) else {
        return;
    };
    let content = vec![3; 1 << 20];
    fs::write(rig.path("f"), &content).unwrap();
    assert!(fs::read(rig.path("f")).unwrap() == content);
    assert_eq!(fs::metadata(rig.path("f")).unwrap().len(), 1 << 20);
    let map = Map::new(&read_write(&rig, "f"), 4096, true).unwrap();
    map.put(10, 9);
    map.sync();
    assert_eq!(fs::read(rig.path("f")).unwrap()[10], 9);
    assert_eq!(counts(&rig), (0, 0));
}

#[test]
fn a_writer_beside_readers_is_seen_by_the_daemon() {
    let Some(rig) = rig(Rung::Passthrough) else {
        return;
    };
    fs::write(rig.path("f"), b"before").unwrap();
    let reader = File::open(rig.path("f")).unwrap();
    rig.fs.set_rung(Rung::Beside);
    let writer = read_write(&rig, "f");
    writer.write_all_at(b"after!", 0).unwrap();
    assert_eq!(counts(&rig), (0, 1), "the write came");
    let mut bytes = [0; 6];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"after!", "the reader saw it");
    assert_eq!(counts(&rig).0, 0, "past the daemon");
    // Whatever the file system wishes now, the open must fit in.
    for rung in [Rung::Cached, Rung::Direct] {
        rig.fs.set_rung(rung);
        let other = read_write(&rig, "f");
        other.write_all_at(b"A", 0).unwrap();
        Map::new(&other, 6, false).unwrap();
    }
    assert_eq!(counts(&rig), (0, 3));
    drop((reader, writer));
    crate::rig::until("releases", || {
        rig.fs.seen.released.load(Ordering::SeqCst) == 5
    });
    rig.fs.set_rung(Rung::Cached);
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"After!");
    assert_eq!(counts(&rig).0, 1, "alone, it is cached");
}

#[test]
fn passthrough_waits_until_a_cached_file_is_closed() {
    let Some(rig) = rig(Rung::Cached) else { return };
    fs::write(rig.path("f"), b"bytes").unwrap();
    let cached = File::open(rig.path("f")).unwrap();
    rig.fs.set_rung(Rung::Passthrough);
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"bytes");
    assert!(counts(&rig).0 > 0, "read through the daemon");
    drop(cached);
    crate::rig::until("releases", || {
        rig.fs.seen.released.load(Ordering::SeqCst) == 3
    });
    let before = counts(&rig);
    assert_eq!(fs::read(rig.path("f")).unwrap(), b"bytes");
    assert_eq!(counts(&rig), before, "past the daemon");
}

#[test]
fn no_sequence_of_opens_and_maps_is_refused() {
    let Some(rig) = rig(Rung::Passthrough) else {
        return;
    };
    fs::write(rig.path("f"), vec![1; 4096]).unwrap();
    let rungs = [Rung::Cached, Rung::Direct, Rung::Passthrough, Rung::Beside];
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut open: Vec<(File, Vec<Map>)> = Vec::new();
        let mut steps = Vec::new();
        for _ in 0..60 {
            let at = rng.below(open.len() as u64) as usize;
            match rng.below(4) {
                0 if !open.is_empty() => drop(open.swap_remove(at)),
                1 if !open.is_empty() => {
                    let map = Map::new(&open[at].0, 4096, true);
                    steps.push(format!("map {at}"));
                    open[at]
                        .1
                        .push(map.unwrap_or_else(|e| panic!("seed {seed}: {e}: {steps:?}")));
                }
                _ => {
                    let rung = rungs[rng.below(4) as usize];
                    rig.fs.set_rung(rung);
                    steps.push(format!("{rung:?}"));
                    let file = File::options().read(true).write(true).open(rig.path("f"));
                    let file = file.unwrap_or_else(|e| panic!("seed {seed}: {e}: {steps:?}"));
                    file.write_all_at(&[seed as u8], rng.below(4096)).unwrap();
                    open.push((file, Vec::new()));
                }
            }
        }
    }
}

#[test]
fn without_the_right_to_it_files_are_cached() {
    let Some(rig) = Rig::with("nopassthrough") else {
        return;
    };
    assert!(!rig.mounted().facts().passthrough);
    rig.fs.back_new_files();
    for rung in [Rung::Passthrough, Rung::Beside] {
        rig.fs.set_rung(rung);
        fs::write(rig.path("f"), b"bytes").unwrap();
        assert_eq!(fs::read(rig.path("f")).unwrap(), b"bytes");
    }
    assert!(counts(&rig).1 > 0);
}

/// Why the file system must not propose passthrough to a writer of a set-id file: nobody would
/// clear the bits. The kernel leaves that to the daemon, which does not see the write.
#[test]
fn a_write_past_the_daemon_does_not_clear_set_id_bits() {
    let Some(rig) = rig(Rung::Passthrough) else {
        return;
    };
    let path = rig.path("tool");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
    as_user(1234, &path, |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(b"y", 0).unwrap();
    });
    assert_eq!(counts(&rig), (0, 0));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    rig.fs.set_rung(Rung::Beside);
    as_user(1234, &path, |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(b"y", 0).unwrap();
    });
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(errno(File::open(rig.path("missing"))), Some(libc::ENOENT));
}
