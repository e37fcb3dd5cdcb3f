//! flock and fcntl locks.

use crate::rig::{Rig, in_time, until};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

fn open(rig: &Rig) -> File {
    let path = rig.path("f");
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

/// A lock of the open file (`F_OFD_SETLK`) on some bytes; the error number.
#[expect(unsafe_code, reason = "rustix has no byte-range locks")]
fn ofd_lock(file: &File, kind: i32, start: i64, len: i64) -> Option<i32> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the kernel reads one `flock`.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    (answer < 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap())
}

#[test]
fn flock_excludes_other_open_files_until_close() {
    let Some(rig) = Rig::new() else { return };
    let (one, two) = (open(&rig), open(&rig));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(
        flock(&two, FlockOperation::NonBlockingLockExclusive),
        Err(Errno::AGAIN)
    );
    let waiting = two.try_clone().unwrap();
    let waiter = thread::spawn(move || flock(&waiting, FlockOperation::LockShared));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    drop(one);
    in_time("flock", move || waiter.join().unwrap()).unwrap();
    // The other kind of lock is another world.
    assert_eq!(ofd_lock(&open(&rig), libc::F_WRLCK, 0, 0), None);
}

#[test]
fn ranges_are_locked_apart() {
    let Some(rig) = Rig::new() else { return };
    let (one, two) = (open(&rig), open(&rig));
    assert_eq!(ofd_lock(&one, libc::F_WRLCK, 0, 100), None);
    assert_eq!(ofd_lock(&two, libc::F_WRLCK, 100, 0), None);
    assert_eq!(ofd_lock(&two, libc::F_RDLCK, 99, 1), Some(libc::EAGAIN));
    assert_eq!(ofd_lock(&one, libc::F_UNLCK, 50, 50), None);
    assert_eq!(ofd_lock(&two, libc::F_RDLCK, 99, 1), None);
    assert_eq!(ofd_lock(&two, libc::F_RDLCK, 49, 1), Some(libc::EAGAIN));
}

#[test]
fn a_lock_of_an_open_file_ends_with_it() {
    let Some(rig) = Rig::new() else { return };
    let (one, two) = (open(&rig), open(&rig));
    assert_eq!(ofd_lock(&one, libc::F_WRLCK, 0, 0), None);
    assert_eq!(ofd_lock(&two, libc::F_WRLCK, 0, 0), Some(libc::EAGAIN));
    drop(one);
    until("unlock", || ofd_lock(&two, libc::F_WRLCK, 0, 0).is_none());
}

#[test]
fn a_lock_of_a_process_ends_with_any_close() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    let file = open(&rig);
    let child = "use Fcntl; $|=1; open(A,'+<',$ARGV[0])||die; open(B,'<',$ARGV[0])||die; \
        $l=pack('s s x4 l! l! i x4',F_WRLCK,0,0,0,0); fcntl(A,F_SETLK,$l)||die; \
        print \"locked\\n\"; <STDIN>; close(B); print \"closed\\n\"; <STDIN>;";
    let mut child = match Command::new("perl")
        .args(["-e", child])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => return eprintln!("skipped: no perl: {error}"),
    };
    // Not by trying to lock: a try that succeeds would be in the child's way.
    let mut locked = String::new();
    let told = child.stdout.as_mut().unwrap();
    BufReader::new(told).read_line(&mut locked).unwrap();
    assert_eq!(locked, "locked\n");
    assert_eq!(
        ofd_lock(&file, libc::F_WRLCK, 0, 0),
        Some(libc::EAGAIN),
        "the child's"
    );
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    until("unlock", || ofd_lock(&file, libc::F_WRLCK, 0, 0).is_none());
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a_program_that_waits_for_a_lock_can_be_killed() {
    let Some(rig) = Rig::new() else { return };
    let holder = open(&rig);
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let waiter = Command::new("flock").arg(rig.path("f")).arg("true").spawn();
    let mut waiter = match waiter {
        Ok(waiter) => waiter,
        Err(error) => return eprintln!("skipped: no flock(1): {error}"),
    };
    thread::sleep(Duration::from_millis(200));
    assert!(waiter.try_wait().unwrap().is_none(), "it waits");
    waiter.kill().unwrap();
    in_time("kill", move || waiter.wait().unwrap());
    assert_eq!(rig.fs.seen.interrupts.load(Ordering::SeqCst), 1);
    flock(&holder, FlockOperation::Unlock).unwrap();
    flock(open(&rig), FlockOperation::NonBlockingLockExclusive).unwrap();
}
