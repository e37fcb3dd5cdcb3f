//! Files and directories, as programs use them.

use crate::memory::Rung;
use crate::rig::{Map, Rig, errno, in_time};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, SeekFrom, Timespec};
use rustix::fs::{Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;

#[test]
fn what_is_written_is_read_and_renamed_and_removed() {
    let Some(rig) = Rig::new() else { return };
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    fs::create_dir(rig.path("d")).unwrap();
    fs::write(rig.path("d/f"), &content).unwrap();
    assert!(fs::read(rig.path("d/f")).unwrap() == content);
    fs::rename(rig.path("d/f"), rig.path("g")).unwrap();
    assert_eq!(errno(fs::metadata(rig.path("d/f"))), Some(libc::ENOENT));
    assert_eq!(fs::metadata(rig.path("g")).unwrap().len(), 3_000_000);
    fs::hard_link(rig.path("g"), rig.path("h")).unwrap();
    assert_eq!(fs::metadata(rig.path("h")).unwrap().nlink(), 2);
    symlink("../somewhere", rig.path("s")).unwrap();
    assert_eq!(
        fs::read_link(rig.path("s")).unwrap().to_str(),
        Some("../somewhere")
    );
    for name in ["g", "h", "s"] {
        fs::remove_file(rig.path(name)).unwrap();
    }
    fs::remove_dir(rig.path("d")).unwrap();
    assert_eq!(fs::read_dir(rig.root()).unwrap().count(), 0);
}

#[test]
fn inode_numbers_are_the_same_everywhere() {
    let Some(rig) = Rig::new() else { return };
    fs::create_dir(rig.path("d")).unwrap();
    let listed: BTreeMap<_, _> = fs::read_dir(rig.root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name(),
                std::os::unix::fs::DirEntryExt::ino(&entry),
            )
        })
        .collect();
    assert_eq!(
        listed.values().next(),
        Some(&fs::metadata(rig.path("d")).unwrap().ino())
    );
    assert_eq!(fs::metadata(rig.root()).unwrap().ino(), (1 << 40) | 1);
    assert!(
        fs::metadata(rig.path("d")).unwrap().created().is_ok(),
        "birth time by statx"
    );
}

#[test]
fn ten_thousand_entries_are_listed_once_while_others_vanish() {
    let Some(rig) = Rig::new() else { return };
    let dir = rig.path("many");
    fs::create_dir(&dir).unwrap();
    let name = |i: u32| format!("file-with-a-name-{i:05}");
    for i in 0..10_000 {
        File::create(dir.join(name(i))).unwrap();
    }
    let victim = dir.clone();
    let remover = thread::spawn(move || {
        for i in (0..10_000).step_by(3) {
            fs::remove_file(victim.join(name(i))).unwrap();
        }
    });
    let mut rounds = 0;
    while !remover.is_finished() || rounds == 0 {
        let mut seen = BTreeMap::<_, u32>::new();
        for entry in fs::read_dir(&dir).unwrap() {
            *seen
                .entry(entry.unwrap().file_name().into_string().unwrap())
                .or_default() += 1;
        }
        for i in (0..10_000).filter(|i| i % 3 != 0) {
            assert_eq!(
                seen.get(&name(i)),
                Some(&1),
                "{} in round {rounds}",
                name(i)
            );
        }
        assert!(seen.values().all(|&count| count == 1));
        rounds += 1;
    }
    remover.join().unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 6_666);
    for entry in fs::read_dir(&dir).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().len(), 0);
    }
}

#[test]
fn a_listing_goes_on_from_where_it_was() {
    let Some(rig) = Rig::new() else { return };
    let names = ["a", "b", "c"];
    names
        .iter()
        .for_each(|name| drop(File::create(rig.path(name)).unwrap()));
    let listed: Vec<_> = rustix::fs::Dir::new(File::open(rig.root()).unwrap())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().to_str().unwrap().to_owned(),
                entry.file_type(),
            )
        })
        .collect();
    let expected = [".", "..", "a", "b", "c"];
    assert!(
        listed.iter().map(|(name, _)| name).eq(expected),
        "{listed:?}"
    );
    assert_eq!(listed[1].1, FileType::Directory);
    assert_eq!(listed[4].1, FileType::RegularFile);
}

#[test]
fn appends_go_to_the_end_and_truncation_empties() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("log");
    let append = || {
        File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap()
    };
    let (mut one, mut two) = (append(), append());
    one.write_all(b"one").unwrap();
    two.write_all(b"two").unwrap();
    one.write_all(b"three").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"onetwothree");
    let lookups = rig.fs.seen.getattrs.load(Ordering::SeqCst);
    drop(
        File::options()
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap(),
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert!(
        rig.fs.seen.getattrs.load(Ordering::SeqCst) <= lookups + 1,
        "truncated by the open"
    );
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), [0; 10]);
}

#[test]
fn a_shared_map_writes_the_file() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("map");
    fs::write(&path, vec![b'a'; 8192]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let map = Map::new(&file, 8192, true).unwrap();
    map.put(5000, b'b');
    map.sync();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    assert_eq!(byte, *b"b");
    file.write_all_at(b"c", 1).unwrap();
    assert_eq!((map.get(0), map.get(1)), (b'a', b'c'));
    drop((map, file));
    assert_eq!(fs::read(&path).unwrap()[5000], b'b');
}

#[test]
fn direct_io_passes_the_page_cache_by() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("direct");
    fs::write(&path, vec![7; 1 << 16]).unwrap();
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let aligned = Box::new(Aligned([0; 4096]));
    let mut buffer = aligned.0;
    for _ in 0..2 {
        let before = rig.fs.seen.reads.load(Ordering::SeqCst);
        file.read_exact_at(&mut buffer, 4096).unwrap();
        assert_eq!(buffer, [7; 4096]);
        assert!(
            rig.fs.seen.reads.load(Ordering::SeqCst) > before,
            "each read asks"
        );
    }
}

/// The kernel syncs after a write through its page cache, and leaves the others to the daemon: once is enough.
#[test]
fn a_synchronous_write_is_synced_before_it_returns_whatever_way_it_takes() {
    let Some(rig) = Rig::new() else { return };
    let synced = |write: &dyn Fn()| {
        let before = rig.fs.seen.fsyncs.load(Ordering::SeqCst);
        write();
        rig.fs.seen.fsyncs.load(Ordering::SeqCst) - before
    };
    for (number, rung) in [Rung::Cached, Rung::Direct].into_iter().enumerate() {
        rig.fs.set_rung(rung);
        let path = rig.path(&format!("synced-{number}"));
        fs::write(&path, [7; 100]).unwrap();
        let open = |flag| {
            let mut options = File::options();
            let opened = options.write(true).custom_flags(flag).open(&path);
            opened.unwrap()
        };
        for flag in [libc::O_SYNC, libc::O_DSYNC] {
            let file = open(flag);
            let times = synced(&|| file.write_all_at(b"x", 5).unwrap());
            assert_eq!(times, 1, "{rung:?}");
        }
        let file = open(0);
        let times = synced(&|| file.write_all_at(b"y", 6).unwrap());
        assert_eq!(times, 0, "{rung:?}");
    }
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn requests_are_as_large_as_they_may_be() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("large");
    fs::write(&path, vec![1; 8 << 20]).unwrap();
    let writes = rig.fs.seen.writes.load(Ordering::SeqCst);
    assert!(writes <= 16, "8 MiB came in {writes} writes");
    rig.mounted()
        .kernel_cache()
        .forget_data(rig.fs.inode("large"), whole());
    let mut file = File::open(&path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer).unwrap() > 0 {}
    let largest = rig.fs.seen.largest_read.load(Ordering::SeqCst);
    assert!(largest >= 512 << 10, "the largest read was {largest} bytes");
}

fn whole() -> perigee_types::ByteRange {
    perigee_types::ByteRange::ALL
}

#[test]
fn programs_run_from_the_mount() {
    let Some(rig) = Rig::new() else { return };
    fs::copy("/bin/echo", rig.path("echo")).unwrap();
    let path = rig.path("echo");
    let output = in_time("exec", move || {
        Command::new(path).arg("hello").output().unwrap()
    });
    assert_eq!(output.stdout, b"hello\n");
}

#[test]
fn space_can_be_made_and_holes_found() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("holes");
    fs::write(&path, vec![1; 16384]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 4096).unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), 4096);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(4096)).unwrap(), 8192);
    assert_eq!(
        rustix::fs::seek(&file, SeekFrom::Data(16384)),
        Err(rustix::io::Errno::NXIO)
    );
    let mut bytes = [9; 4096];
    file.read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [0; 4096]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 16384, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20480);
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20480);
    let collapse = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
}

#[test]
fn ranges_are_copied_by_the_daemon() {
    let Some(rig) = Rig::new() else { return };
    fs::write(rig.path("from"), b"0123456789").unwrap();
    let from = File::open(rig.path("from")).unwrap();
    let to = File::create(rig.path("to")).unwrap();
    let (mut at, mut into) = (2, 0);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 5);
    assert_eq!(copied, Ok(5));
    assert_eq!(fs::read(rig.path("to")).unwrap(), b"23456");
}

#[test]
fn renames_keep_what_their_flags_promise() {
    let Some(rig) = Rig::new() else { return };
    fs::write(rig.path("a"), "a").unwrap();
    fs::write(rig.path("b"), "b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, rig.path("a"), CWD, rig.path("b"), flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(rustix::io::Errno::INVAL));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(rig.path("a")).unwrap(), b"b");
    assert_eq!(fs::read(rig.path("b")).unwrap(), b"a");
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(rig.path("b")).unwrap(), b"b");
}

#[test]
fn modes_owners_and_times_are_set() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6751)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), libc::S_IFREG | 0o6751);
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
        (12, 34, 0o751)
    );
    // Before 1970, with a fraction: the part where implementations differ.
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: -2,
            tv_nsec: 250_000_000,
        },
        last_modification: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
    };
    let mtime = (metadata.mtime(), metadata.mtime_nsec());
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.atime(), metadata.atime_nsec()), (-2, 250_000_000));
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), mtime);
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    assert!(fs::metadata(&path).unwrap().atime() > 1_000_000_000);
}

#[test]
fn special_nodes_keep_their_kind_and_number() {
    let Some(rig) = Rig::with("dev") else { return };
    let null = rustix::fs::makedev(1, 3);
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, rig.path("null"), FileType::CharacterDevice, mode, null).unwrap();
    rustix::fs::mknodat(CWD, rig.path("fifo"), FileType::Fifo, mode, 0).unwrap();
    let metadata = fs::metadata(rig.path("null")).unwrap();
    assert_eq!(
        (metadata.mode() & libc::S_IFMT, metadata.rdev()),
        (libc::S_IFCHR, null)
    );
    fs::write(rig.path("null"), "swallowed").unwrap();
    assert_eq!(fs::read(rig.path("null")).unwrap(), b"");
    assert_eq!(
        fs::metadata(rig.path("fifo")).unwrap().mode() & libc::S_IFMT,
        libc::S_IFIFO
    );
}

#[test]
fn attributes_by_name_come_and_go() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, "").unwrap();
    let get = |buffer: &mut [u8]| rustix::fs::getxattr(&path, "user.k", buffer);
    rustix::fs::setxattr(&path, "user.k", b"value", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&path, "user.k", b"value", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.k"), Ok(5));
    assert_eq!(get(&mut [0; 4]), Err(rustix::io::Errno::RANGE));
    let mut value = [0; 9];
    assert_eq!(get(&mut value), Ok(5));
    assert_eq!(&value[..5], b"value");
    let mut names = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.k\0");
    rustix::fs::removexattr(&path, "user.k").unwrap();
    assert_eq!(get(&mut value), Err(rustix::io::Errno::NODATA));
}

#[test]
fn an_acl_is_kept_and_obeyed() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(open_as(1234, &path), Some(libc::EACCES));
    let acl = acl(&[
        (0x01, 6, NOBODY),
        (0x02, 4, 1234),
        (0x04, 0, NOBODY),
        (0x10, 4, NOBODY),
        (0x20, 0, NOBODY),
    ]);
    rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
    let mut value = [0; 128];
    let len = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut value).unwrap();
    assert_eq!(&value[..len], acl);
    assert_eq!(open_as(1234, &path), None, "the ACL lets this user in");
    assert_eq!(open_as(4321, &path), Some(libc::EACCES));
}

const NOBODY: u32 = u32::MAX;

/// The kernel's form of an ACL: version 2, then tag, permission and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permission.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Opens for reading as another user; the error number.
fn open_as(uid: u32, path: &std::path::Path) -> Option<i32> {
    as_user(uid, path, |path| errno(File::open(path)))
}

#[expect(
    unsafe_code,
    reason = "the user of one thread is changed by a system call only"
)]
pub fn as_user<T: Send + 'static>(
    uid: u32,
    path: &std::path::Path,
    work: impl FnOnce(&std::path::Path) -> T + Send + 'static,
) -> T {
    let path = path.to_owned();
    let thread = thread::spawn(move || {
        // SAFETY: changes the credentials of this thread, which ends after `work`. The group first:
        // afterwards it may not.
        unsafe {
            libc::setfsgid(uid);
            libc::setfsuid(uid);
        }
        work(&path)
    });
    thread.join().unwrap()
}

#[test]
fn a_writer_who_is_not_the_owner_loses_the_set_id_bits() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("tool");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
    as_user(1234, &path, |path| {
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .write_all(b"y")
            .unwrap();
    });
    assert!(
        rig.fs.seen.killing_writes.load(Ordering::SeqCst) > 0,
        "the kernel asked for it"
    );
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn the_umask_is_left_to_the_file_system() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    let made = Command::new("sh")
        .args(["-c", "umask 027; : > \"$0\"; mkdir \"$0.d\""])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(rig.path("f.d")).unwrap().mode() & 0o777, 0o750);
}

#[test]
fn an_open_file_outlives_its_name() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"still here").unwrap();
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}
