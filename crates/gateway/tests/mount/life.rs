//! Mounts made, refused, left and taken away.

use crate::memory::MemoryFs;
use crate::rig::{PATIENCE, Rig, errno, in_time, until};
use perigee_gateway::fuse::{
    Busy, Hooks, MountError, MountOptions, SessionEnd, UnmountError, WatchdogCommand, mount,
};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn refused(point: &Path, options: &MountOptions) -> MountError {
    let fs = Arc::new(MemoryFs::default());
    match mount(fs, point, options, Hooks::default()) {
        Ok(_) => panic!("mounted on {}", point.display()),
        Err(error) => error,
    }
}

#[test]
fn a_mount_point_must_be_an_empty_directory() {
    let Some(rig) = Rig::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions::default();
    let missing = refused(&dir.path().join("no"), &options);
    assert!(matches!(missing, MountError::Point { .. }), "{missing}");
    fs::write(dir.path().join("file"), "").unwrap();
    let file = refused(&dir.path().join("file"), &options);
    assert!(matches!(file, MountError::NotDirectory { .. }), "{file}");
    let full = refused(dir.path(), &options);
    assert!(matches!(full, MountError::NotEmpty { .. }), "{full}");
    drop(rig);
}

#[test]
fn the_file_system_has_the_caches_before_the_first_operation() {
    let Some(_) = Rig::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let attached = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&attached);
    let hooks = Hooks {
        attached: Box::new(move |attached| {
            assert!(attached.facts.protocol_minor >= 31);
            attached.cache.forget_names();
            told.store(true, Ordering::SeqCst);
        }),
        ..Hooks::default()
    };
    let fs = Arc::new(MemoryFs::default());
    let mounted = mount(fs, dir.path(), &MountOptions::default(), hooks).unwrap();
    assert!(attached.load(Ordering::SeqCst));
    mounted.unmount(Busy::Refuse).unwrap();
    assert!(mounted.is_over());
}

#[test]
fn a_mount_in_use_stays_unless_it_is_detached() {
    let Some(rig) = Rig::new() else { return };
    fs::write(rig.path("f"), "content").unwrap();
    let mut file = File::open(rig.path("f")).unwrap();
    let busy = rig.mounted().unmount(Busy::Refuse).unwrap_err();
    assert!(matches!(busy, UnmountError::InUse { .. }), "{busy}");
    assert!(rig.path("f").exists());
    rig.mounted().unmount(Busy::Detach).unwrap();
    assert!(!rig.path("f").exists(), "out of sight");
    assert!(!rig.mounted().is_over());
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    drop(file);
    let end = rig.ended.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(end, SessionEnd::Unmounted), "{end:?}");
    rig.mounted().wait();
}

#[test]
fn an_unmount_by_somebody_else_is_told() {
    let Some(rig) = Rig::new() else { return };
    rustix::mount::unmount(rig.root(), rustix::mount::UnmountFlags::empty()).unwrap();
    let end = rig.ended.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(end, SessionEnd::Unmounted), "{end:?}");
    rig.mounted().wait();
    rig.mounted().unmount(Busy::Refuse).unwrap();
}

#[test]
fn what_lies_over_a_mount_is_left_alone() {
    let Some(rig) = Rig::new() else { return };
    let other = Arc::new(MemoryFs::default());
    let above = mount(
        other,
        rig.root(),
        &MountOptions::default(),
        Hooks::default(),
    )
    .unwrap();
    let covered = rig.mounted().unmount(Busy::Detach).unwrap_err();
    assert!(matches!(covered, UnmountError::Covered { .. }), "{covered}");
    fs::write(rig.path("in-the-upper"), "").unwrap();
    above.unmount(Busy::Refuse).unwrap();
    assert!(!rig.path("in-the-upper").exists());
    rig.mounted().unmount(Busy::Refuse).unwrap();
}

#[test]
fn dropping_does_not_hang_on_an_unanswered_operation() {
    let Some(mut rig) = Rig::new() else { return };
    rig.fs.hold("create");
    let path = rig.path("never");
    let creator = std::thread::spawn(move || errno(File::create(path)));
    crate::rig::until("create", || rig.fs.held() == 1);
    let mounted = rig.mounted.take();
    in_time("drop", move || drop(mounted));
    assert!(!creator.is_finished());
    rig.fs.let_go();
    assert_eq!(in_time("create", move || creator.join().unwrap()), None);
    rig.ended.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(rig) = Rig::with("ro,fsname=perigee-test") else {
        return;
    };
    assert_eq!(errno(fs::write(rig.path("f"), "")), Some(libc::EROFS));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.contains(&*rig.root().to_string_lossy()))
        .unwrap();
    assert!(line.starts_with("perigee-test "), "{line}");
    assert!(line.contains(" fuse.perigee ro,nosuid,nodev"), "{line}");
}

#[test]
fn the_kernel_reads_ahead_as_far_as_asked() {
    let Some(rig) = Rig::with("read_ahead_kb=2048") else {
        return;
    };
    let device = std::os::unix::fs::MetadataExt::dev(&fs::metadata(rig.root()).unwrap());
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let kb = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(kb.trim(), "2048");
}

#[test]
fn many_programs_are_served_at_once() {
    let Some(rig) = Rig::with("threads=4") else {
        return;
    };
    let root = rig.root().to_owned();
    let work = move || {
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let root = &root;
                scope.spawn(move || {
                    for i in 0..50 {
                        let path = root.join(format!("{worker}-{i}"));
                        fs::write(&path, [worker; 5000]).unwrap();
                        assert_eq!(fs::read(&path).unwrap(), [worker; 5000]);
                        fs::rename(&path, root.join(format!("{worker}-done-{i}"))).unwrap();
                    }
                });
            }
        });
    };
    in_time("work", work);
    assert_eq!(fs::read_dir(rig.root()).unwrap().count(), 400);
}

#[test]
fn all_that_was_opened_is_released() {
    let Some(rig) = Rig::new() else { return };
    for i in 0..100 {
        fs::write(rig.path(&format!("{i}")), "x").unwrap();
    }
    assert_eq!(fs::read_dir(rig.root()).unwrap().count(), 100);
    for entry in fs::read_dir(rig.root()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let in_use = || rig.fs.change_elsewhere(|tree| tree.in_use());
    until("forgets", || in_use() == (0, 0));
}

#[test]
fn a_mount_that_ends_takes_its_watchdog_along() {
    let Some(_) = Rig::new() else { return };
    let point = tempfile::tempdir().unwrap();
    let options = MountOptions {
        watchdog: Some(WatchdogCommand {
            program: "sh".into(),
            arguments: vec!["-c".into(), "echo watching; exec sleep 86399".into()],
        }),
        ..MountOptions::default()
    };
    let fs = Arc::new(MemoryFs::default());
    let mounted = mount(fs, point.path(), &options, Hooks::default()).unwrap();
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
