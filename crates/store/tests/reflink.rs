//! Copies between objects, where the file system shares blocks and where it does not. In a program of its own: children of this
//! one keep a store that another test has locked for a moment longer.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_store::{Store, StoreIdentity, StoreOptions};
use perigee_types::{ContainerId, InodeId, InodeIndex, NodeId};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const COPIED: usize = 32 << 20;
const PIECE: usize = 1 << 20;

fn pattern(seed: usize) -> Vec<u8> {
    let bytes = (0..COPIED).map(|at| (at ^ (at >> 8) ^ seed) as u8);
    bytes.collect()
}

/// Copies an object's bytes into another one on the disk at `dir`, and writes over the source; what the copy took of the
/// disk, in bytes.
fn copy_and_write_over(dir: &Path) -> u64 {
    let used = || {
        let stat = rustix::fs::statvfs(dir).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    };
    let identity = StoreIdentity {
        cluster: 7,
        node: NodeId(1),
    };
    let options = StoreOptions {
        reserve_bytes: Some(1 << 20),
        small_len_max: 0,
        ..StoreOptions::default()
    };
    let store = Store::create_with(&dir.join("s"), identity, options).unwrap();
    let object = |index| {
        let inode = InodeId::new(ContainerId::ROOT, InodeIndex(index));
        store.object(inode).unwrap()
    };
    let (source, copy) = (object(1), object(2));
    let data = pattern(1);
    source.write(0, &data).unwrap();
    source.sync_wait().unwrap();
    let before = used();
    for (piece, at) in data.chunks(PIECE).zip((0..).step_by(PIECE)) {
        copy.write_copy(at, piece, &source).unwrap();
    }
    copy.sync_wait().unwrap();
    let took = used().saturating_sub(before);
    source.write(0, &pattern(2)).unwrap();
    source.sync_wait().unwrap();
    assert!(copy.read_bytes(0, COPIED).unwrap() == data);
    assert_eq!(copy.verify().unwrap(), []);
    took
}

/// A disk in a file, until it is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_copy_is_what_its_source_was_and_takes_no_room_where_blocks_are_shared() {
    let dir = tempfile::tempdir().unwrap();
    copy_and_write_over(dir.path());

    let (image, place) = (dir.path().join("image"), dir.path().join("disk"));
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    std::fs::create_dir(&place).unwrap();
    let ran = |program: &str, arguments: &[&str], paths: &[&Path]| {
        let ended = Command::new(program).args(arguments).args(paths).output();
        ended.is_ok_and(|ended| ended.status.success())
    };
    if !ran("mkfs.xfs", &["-q"], &[&image]) || !ran("mount", &["-o", "loop"], &[&image, &place]) {
        eprintln!("skipped: it takes root, mkfs.xfs (xfsprogs), and a kernel that mounts XFS");
        return;
    }
    let mounted = Mounted(place);
    let took = copy_and_write_over(&mounted.0);
    assert!(took < COPIED as u64 / 8, "{took} bytes");
}
