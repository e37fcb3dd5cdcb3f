//! A disk that does not keep what it is given: a file system on an image that has no room to be what it says.

use perigee_testbed::disk::Thin;
use perigee_testbed::{Call, CheckError, Checked, Cluster, disk, pattern, program, wait};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// What the image says that it has, and what there is for it.
const CLAIMED: usize = 1_024;
const THERE: u64 = 120;
const WRITTEN: usize = 256;
const WATCHDOG: Duration = Duration::from_secs(300);
/// A member that fails is gone within this, and nobody is held up for longer.
const LIMIT: Duration = Duration::from_secs(30);

fn run(program: &str, words: &[&str]) -> Checked {
    let status = Command::new(program)
        .args(words)
        .status()
        .call(|| format!("start {program}"))?;
    if status.success() {
        return Ok(());
    }
    Err(CheckError::violated(format!(
        "{program} {words:?}: {status}"
    )))
}

/// Node 3's folder is an ext4 on an image that can hold a part of what it promises: its later syncs end in EIO.
fn failing_disk(dir: &Path) -> Checked {
    let (thin, place) = (dir.join("thin"), dir.join("node-3"));
    disk::mount_small(&thin, THERE)?;
    let image = thin.join("image");
    let made = File::create(&image).and_then(|file| file.set_len((CLAIMED * MIB) as u64));
    made.call(|| "make an image".to_owned())?;
    fs::create_dir_all(&place).call(|| "make the node's folder".to_owned())?;
    let (image, place) = (image.to_string_lossy(), place.to_string_lossy());
    run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", &image])?;
    run("mount", &["-o", "loop", &image, &place])?;
    // Part of every new ext4, and in nobody's way.
    fs::remove_dir(Path::new(&*place).join("lost+found")).call(|| "empty the disk".to_owned())
}

fn can_mount_images() -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting an image needs root");
        return false;
    }
    let loops = Path::new("/dev/loop-control").exists();
    if !loops {
        eprintln!("skipped: there are no loop devices");
    }
    loops
}

#[test]
fn a_member_whose_disk_fails_leaves_and_nobody_waits_for_it() {
    if !can_mount_images() {
        return;
    }
    let mut cluster = Cluster::start_prepared(3, WATCHDOG, failing_disk).unwrap();
    assert!(cluster.chains().unwrap()[0].contains(&3));
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let file = File::create(here.join("f")).unwrap();
    let mut content = vec![0; MIB];
    let mut longest = Duration::ZERO;
    for at in 0..WRITTEN {
        let offset = (at * MIB) as u64;
        pattern::fill(9, offset, &mut content);
        let began = Instant::now();
        file.write_all_at(&content, offset).unwrap();
        if at % 16 == 15 {
            file.sync_all().unwrap();
        }
        longest = longest.max(began.elapsed());
    }
    assert!(longest < LIMIT, "a call took {longest:?}");
    wait::until("the failing node is no member", LIMIT, || {
        Ok((!cluster.chains()?[0].contains(&3)).then_some(()))
    })
    .unwrap();
    let seen = fs::read(there.join("f")).unwrap();
    assert_eq!(seen.len(), WRITTEN * MIB);
    assert_eq!(pattern::first_difference(9, 0, &seen), None);
}

/// What other hosts do in a container that nothing else has changed for a while goes to its next owner.
#[test]
fn no_call_elsewhere_fails_when_the_disk_of_an_owner_does() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !can_mount_images() {
        return;
    }
    let disk = |dir: &Path| Thin::new(&dir.join("thin"), &dir.join("node-2"), 256);
    let mut cluster = Cluster::start_prepared(3, WATCHDOG, |dir| disk(dir).make()).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let folder = here.join("of-2");
    fs::create_dir(there.join("of-2")).unwrap();
    for number in 0..400 {
        fs::write(there.join("of-2").join(format!("f{number}")), "content").unwrap();
    }
    assert_eq!(cluster.owner(&folder).unwrap(), 2);

    let over = AtomicBool::new(false);
    let failed = Mutex::new(Vec::new());
    let until_over = |what: &'static str, call: &mut dyn FnMut(u64) -> io::Result<()>| {
        for number in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            if let Err(error) = call(number) {
                failed
                    .lock()
                    .unwrap()
                    .push(format!("{what} {number}: {error}"));
            }
        }
    };
    let path = |name: &str, number: u64| folder.join(format!("{name} {number}"));
    let mut log = File::options();
    let mut log = log
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    let large = vec![7; MIB];
    disk(&cluster.dir()).fail().unwrap();
    let replaced = std::thread::scope(|threads| {
        threads.spawn(|| until_over("look up", &mut |at| path("no", at).try_exists().map(drop)));
        threads.spawn(|| until_over("append", &mut |_| log.write_all(b"record")));
        threads.spawn(|| until_over("create", &mut |at| File::create(path("f", at)).map(drop)));
        threads.spawn(|| {
            until_over("write", &mut |at| {
                fs::write(here.join(format!("large {}", at % 64)), &large)
            });
        });
        let replaced = wait::until("the failing owner is replaced", LIMIT, || {
            let lists = |chain: &Vec<u32>| chain.contains(&2);
            Ok((!cluster.chains()?.iter().any(lists)).then_some(()))
        });
        over.store(true, Ordering::Relaxed);
        replaced
    });
    assert_eq!(failed.into_inner().unwrap(), Vec::<String>::new());
    replaced.unwrap();
    // Its daemon goes on for its programs, and ends when it is told to.
    let (sender, receiver) = std::sync::mpsc::channel();
    let names = there.join("of-2");
    std::thread::spawn(move || {
        let names = fs::read_dir(names).map(Iterator::count);
        // Nobody receives what comes too late.
        _ = sender.send(names);
    });
    let Ok(names) = receiver.recv_timeout(LIMIT) else {
        cluster.kill_all();
        panic!("the node whose disk failed answers nobody");
    };
    assert!(names.unwrap() >= 400);
    cluster.down().unwrap();
}
