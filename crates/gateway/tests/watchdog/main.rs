//! A daemon that is killed while it tells the kernel to forget a page that somebody is reading. It has to be another
//! process, and its watchdog one more: this program is each of them, by its first argument, and so has no harness.
#![allow(clippy::unwrap_used, reason = "a test stops where it is wrong")]

#[path = "../memory/mod.rs"]
#[allow(dead_code, reason = "the daemon does one thing")]
mod memory;
#[path = "../mount/rig.rs"]
#[allow(dead_code, reason = "there is one test")]
mod rig;

use memory::MemoryFs;
use perigee_client::fs::FileSystem;
use perigee_gateway::fuse::{Hooks, MountOptions, WatchdogCommand, mount, watch};
use perigee_types::ByteRange;
use rig::{PATIENCE, can_mount, until};
use rustix::mount::UnmountFlags;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

const THIS: &str = "/proc/self/exe";
const DAEMON: &str = "the-daemon";
const WATCHDOG: &str = "the-watchdog";
const NAME: &str =
    "a_daemon_killed_while_the_kernel_forgets_pages_dies_and_its_readers_get_an_error";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [DAEMON, point] => daemon(Path::new(point)),
        [WATCHDOG] => watch().unwrap(),
        _ => {
            // As a harness does: words that are no options choose tests by a part of their names.
            let mut chosen = words
                .iter()
                .filter(|word| !word.starts_with('-'))
                .peekable();
            if words.contains(&"--list") {
                println!("{NAME}: test");
            } else if chosen.peek().is_none() || chosen.any(|part| NAME.contains(part)) {
                a_daemon_killed_while_the_kernel_forgets_pages_dies_and_its_readers_get_an_error();
                println!("test {NAME} ... ok");
            }
        }
    }
}

fn daemon(point: &Path) {
    let fs = Arc::new(MemoryFs::default());
    let options = MountOptions {
        watchdog: Some(WatchdogCommand {
            program: THIS.into(),
            arguments: vec![WATCHDOG.into()],
        }),
        ..MountOptions::default()
    };
    let system = Arc::clone(&fs) as Arc<dyn FileSystem>;
    let mounted = mount(system, point, &options, Hooks::default()).unwrap();
    fs.hold("read");
    // Its reader comes when the file is there.
    fs::write(point.join("file"), [1; 4096]).unwrap();
    until("a read is held", || fs.held() > 0);
    let range = ByteRange::new(0, 4096);
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

fn a_daemon_killed_while_the_kernel_forgets_pages_dies_and_its_readers_get_an_error() {
    if !can_mount() {
        return;
    }
    let point = tempfile::tempdir().unwrap();
    let daemon = Command::new(THIS)
        .arg(DAEMON)
        .arg(point.path())
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
