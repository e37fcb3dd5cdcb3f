//! A daemon that is killed while it tells the kernel to forget a page that somebody is reading.

use crate::memory::MemoryFs;
use crate::rig::{PATIENCE, can_mount, until};
use perigee_client::fs::FileSystem;
use perigee_gateway::fuse::{Hooks, MountOptions, WatchdogCommand, mount, watch};
use perigee_types::ByteRange;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Where [`the_daemon`] mounts.
const MOUNT_POINT: &str = "PERIGEE_TEST_MOUNT_POINT";

/// This program as another process, which runs one of the tests here.
fn entry(name: &str) -> (PathBuf, Vec<OsString>) {
    let arguments = ["--exact", name, "--ignored", "--nocapture"];
    (
        std::env::current_exe().unwrap(),
        arguments.map(OsString::from).to_vec(),
    )
}

#[test]
#[ignore = "a process that a test here starts"]
fn the_watchdog() {
    if std::env::var_os(MOUNT_POINT).is_some() {
        watch().unwrap();
    }
}

#[test]
#[ignore = "a process that a test here starts"]
fn the_daemon() {
    let Some(point) = std::env::var_os(MOUNT_POINT) else {
        return;
    };
    let fs = Arc::new(MemoryFs::default());
    let (program, arguments) = entry("watchdog::the_watchdog");
    let options = MountOptions {
        watchdog: Some(WatchdogCommand { program, arguments }),
        ..MountOptions::default()
    };
    let mounted = mount(
        Arc::clone(&fs) as Arc<dyn FileSystem>,
        Path::new(&point),
        &options,
        Hooks::default(),
    )
    .unwrap();
    fs.hold("read");
    // Its reader comes when the file is there.
    fs::write(Path::new(&point).join("file"), [1; 4096]).unwrap();
    until("a read is held", || fs.held() > 0);
    let range = ByteRange {
        start: 0,
        end: 4096,
    };
    mounted.kernel_cache().forget_data(fs.inode("file"), range);
    panic!("the kernel forgot a page that is being read");
}

/// Whatever is left of the processes and of the mount goes with it.
struct Scene {
    daemon: Child,
    reader: Option<Child>,
    point: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        // FORCE ends what hangs there; EINVAL when nothing is mounted.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        while rustix::mount::unmount(self.point.path(), flags).is_ok() {}
        for child in std::iter::once(&mut self.daemon).chain(&mut self.reader) {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

fn threads_in_the_kernel(daemon: &Child) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok())
        .filter(|stat| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('D'))
        })
        .count()
}

fn ends_in_time(child: &mut Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn a_daemon_killed_while_the_kernel_forgets_pages_dies_and_its_readers_get_an_error() {
    if !can_mount() {
        return;
    }
    let point = tempfile::tempdir().unwrap();
    let (program, arguments) = entry("watchdog::the_daemon");
    let daemon = Command::new(program)
        .args(arguments)
        .env(MOUNT_POINT, point.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let file = point.path().join("file");
    let mut scene = Scene {
        daemon,
        reader: None,
        point,
    };
    until("the file is there", || {
        file.metadata().is_ok_and(|file| file.len() == 4096)
    });
    let reader = Command::new("cat")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    scene.reader = Some(reader);
    until("the notice waits", || {
        threads_in_the_kernel(&scene.daemon) > 0
    });
    scene.daemon.kill().unwrap();
    assert!(ends_in_time(&mut scene.daemon), "the daemon cannot die");
    let reader = scene.reader.as_mut().unwrap();
    assert!(ends_in_time(reader), "a reader hangs");
    assert!(!reader.wait().unwrap().success(), "a reader read nothing");
}

#[test]
fn a_mount_that_ends_takes_its_watchdog_along_and_aborts_nothing() {
    if !can_mount() {
        return;
    }
    let point = tempfile::tempdir().unwrap();
    let options = MountOptions {
        watchdog: Some(WatchdogCommand {
            program: "sh".into(),
            arguments: vec!["-c".into(), "echo watching; exec sleep 86399".into()],
        }),
        ..MountOptions::default()
    };
    let fs = Arc::new(MemoryFs::default());
    let mounted = mount(fs as _, point.path(), &options, Hooks::default()).unwrap();
    let children = || {
        let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).ok();
        let all = fs::read_dir("/proc/self/task").unwrap();
        let all: String = all.flatten().filter_map(of).collect();
        all.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let is_it = |pid: &String| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x0086399\0")
    };
    until("it runs", || children().iter().any(&is_it));
    fs::write(point.path().join("file"), "content").unwrap();
    drop(mounted);
    until("the watchdog is gone", || !children().iter().any(&is_it));
}
