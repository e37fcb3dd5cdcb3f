//! What the kernel keeps, and what it drops when it is told.

use crate::memory::Rung;
use crate::rig::{Map, Rig, errno, in_time, until};
use perigee_client::fs::{Caller, KernelCache, NewNode, SetAttr, Stale};
use perigee_meta::SetTime;
use perigee_types::{ByteRange, InodeId, WallTime};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const ELSEWHERE: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};
const LATER: WallTime = WallTime {
    secs: 5_000_000_000,
    nanos: 0,
};
const WHOLE: ByteRange = ByteRange {
    start: 0,
    end: u64::MAX,
};

fn cache(rig: &Rig) -> Arc<dyn KernelCache> {
    rig.mounted().kernel_cache()
}

/// What another host has changed: the kernel is told where it may keep that.
fn changed(rig: &Rig, stale: Stale) {
    let kernel = cache(rig);
    if !kernel.changed(stale) {
        return;
    }
    match stale {
        Stale::Attributes(inode) => kernel.forget_attr(inode),
        Stale::Content(inode) => kernel.forget_data(inode, WHOLE),
        Stale::Names(_) | Stale::AllNames => kernel.forget_names(),
    }
}

/// What one read of three pages finds.
fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 9_000];
    let len = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

/// Another host changes the mode of a file.
fn chmod_elsewhere(rig: &Rig, inode: InodeId, mode: u32) {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    rig.fs
        .change_elsewhere(|tree| tree.set_attr(inode, &set, ELSEWHERE, LATER))
        .unwrap();
}

/// Another host makes a file.
fn create_elsewhere(rig: &Rig, name: &str) -> InodeId {
    make_elsewhere(rig, name, NewNode::File)
}

fn make_elsewhere(rig: &Rig, name: &str, node: NewNode) -> InodeId {
    let (root, name) = (InodeId::ROOT, name.as_bytes());
    rig.fs
        .change_elsewhere(|tree| tree.make(ELSEWHERE, root, name, node, 0o600, LATER))
        .unwrap()
}

#[test]
fn attributes_are_kept_until_they_are_forgotten() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, "x").unwrap();
    let inode = rig.fs.inode("f");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
    assert_eq!(mode(), 0o644);
    chmod_elsewhere(&rig, inode, 0o600);
    assert_eq!(mode(), 0o644, "kept for 60 s");
    cache(&rig).forget_attr(inode);
    assert_eq!(mode(), 0o600);
    // The root directory too, whose number the kernel has not.
    let root_mode = || fs::metadata(rig.root()).unwrap().mode() & 0o777;
    assert_eq!(root_mode(), 0o755);
    chmod_elsewhere(&rig, InodeId::ROOT, 0o711);
    assert_eq!(root_mode(), 0o755);
    changed(&rig, Stale::Attributes(InodeId::ROOT));
    assert_eq!(root_mode(), 0o711);
}

#[test]
fn a_name_that_moved_to_another_directory_is_asked_for_there() {
    let Some(rig) = Rig::new() else { return };
    let inode = |name| rig.fs.inode(name);
    for dir in ["from", "to"] {
        fs::create_dir(rig.path(dir)).unwrap();
    }
    let (to, moved) = (inode("to"), rig.path("to/b"));
    let gone_elsewhere = |name: &[u8]| {
        rig.fs
            .change_elsewhere(|tree| tree.unlink(to, name, LATER))
            .unwrap();
    };
    fs::write(rig.path("from/a"), "x").unwrap();
    fs::metadata(rig.path("from/a")).unwrap();
    fs::rename(rig.path("from/a"), &moved).unwrap();
    gone_elsewhere(b"b");
    assert_eq!(errno(fs::metadata(&moved)), Some(libc::ENOENT));
    // Within a directory one lease has both names.
    fs::write(rig.path("to/c"), "x").unwrap();
    fs::metadata(rig.path("to/c")).unwrap();
    let lookups = || rig.fs.seen.lookups.load(Ordering::SeqCst);
    fs::rename(rig.path("to/c"), &moved).unwrap();
    let before = lookups();
    fs::metadata(&moved).unwrap();
    assert_eq!(lookups(), before, "answered by the kernel");
}

#[test]
fn nothing_is_kept_without_time_to_live() {
    let Some(rig) = Rig::new() else { return };
    rig.fs.set_ttl(Duration::ZERO);
    let path = rig.path("f");
    assert_eq!(errno(fs::metadata(&path)), Some(libc::ENOENT));
    let inode = create_elsewhere(&rig, "f");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    chmod_elsewhere(&rig, inode, 0o640);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn names_and_their_absence_are_kept_until_all_names_are_forgotten() {
    let Some(rig) = Rig::new() else { return };
    if !rig.mounted().facts().names_can_be_forgotten {
        eprintln!("skipped: names can be forgotten since Linux 6.16");
        return;
    }
    let (there, missing) = (rig.path("there"), rig.path("missing"));
    fs::write(&there, "x").unwrap();
    let old = fs::metadata(&there).unwrap().ino();
    assert_eq!(errno(fs::metadata(&missing)), Some(libc::ENOENT));
    let lookups = rig.fs.seen.lookups.load(Ordering::SeqCst);
    rig.fs
        .change_elsewhere(|tree| tree.unlink(InodeId::ROOT, b"there", LATER))
        .unwrap();
    let new = create_elsewhere(&rig, "there");
    create_elsewhere(&rig, "missing");
    assert_eq!(fs::metadata(&there).unwrap().ino(), old);
    assert_eq!(errno(fs::metadata(&missing)), Some(libc::ENOENT));
    assert_eq!(
        rig.fs.seen.lookups.load(Ordering::SeqCst),
        lookups,
        "answered by the kernel"
    );
    cache(&rig).forget_names();
    assert_eq!(fs::metadata(&there).unwrap().ino(), new.0);
    assert!(fs::metadata(&missing).is_ok());
    let lookups = rig.fs.seen.lookups.load(Ordering::SeqCst);
    fs::metadata(&there).unwrap();
    assert_eq!(
        rig.fs.seen.lookups.load(Ordering::SeqCst),
        lookups,
        "kept again"
    );
}

#[test]
fn a_working_directory_survives_the_forgetting_of_its_name() {
    let Some(rig) = Rig::new() else { return };
    fs::create_dir_all(rig.path("a/b")).unwrap();
    let script = "cd \"$0/a/b\"; read line; /bin/pwd; : > made";
    let mut child = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(rig.root())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until("chdir", || {
        fs::read_link(format!("/proc/{}/cwd", child.id()))
            .unwrap()
            .ends_with("b")
    });
    cache(&rig).forget_names();
    assert!(fs::metadata(rig.path("a/b")).is_ok());
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let expected = format!("{}\n", rig.path("a/b").display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert!(rig.path("a/b/made").exists());
}

#[test]
fn content_is_kept_until_it_is_forgotten() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, b"old").unwrap();
    let file = File::open(&path).unwrap();
    let read = || {
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(read(), *b"old");
    let inode = rig.fs.inode("f");
    rig.fs
        .change_elsewhere(|tree| tree.write(inode, 0, 0, b"new", LATER))
        .unwrap();
    // (A stat would find out: a read that came to the daemon made the time of access stale, and
    // with the new time of change the kernel drops the pages by itself.)
    assert_eq!(read(), *b"old");
    cache(&rig).forget_data(inode, WHOLE);
    assert_eq!(read(), *b"new");
}

/// A page that the kernel drops beside a write to it, and reads again, has what was before.
#[test]
fn a_page_that_is_read_beside_a_write_to_it_is_not_kept() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, b"old").unwrap();
    let inode = rig.fs.inode("f");
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let (file, writing) = (open(), open());
    let read = || {
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(read(), *b"old");
    rig.fs.hold("write");
    let writer = thread::spawn(move || writing.write_all_at(b"new", 0));
    until("write", || rig.fs.held() == 1);
    assert_eq!(read(), *b"new", "what its own kernel knows");
    // Its time is told before its bytes are in place, as answers that overtake each other tell it: the kernel drops the page.
    let set = SetAttr {
        mtime: Some(SetTime::At(LATER)),
        ..SetAttr::default()
    };
    let told = || {
        rig.fs
            .change_elsewhere(|tree| tree.set_attr(inode, &set, ELSEWHERE, LATER))
            .unwrap();
    };
    told();
    cache(&rig).forget_attr(inode);
    assert_eq!(file.metadata().unwrap().mtime(), LATER.secs);
    assert_eq!(read(), *b"old", "the write is on its way");
    rig.fs.let_go();
    writer.join().unwrap().unwrap();
    told();
    assert_eq!(read(), *b"new");
}

/// It keeps the last page of a write locked until the answer, when that is written in part.
#[test]
fn a_write_whose_first_page_is_read_beside_it_ends() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, [1; 8_192]).unwrap();
    let inode = rig.fs.inode("f");
    cache(&rig).forget_data(inode, WHOLE);
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let (asking, reading, writing) = (open(), open(), open());
    rig.fs.hold("write");
    let writer = thread::spawn(move || writing.write_all_at(&[2; 4_100], 0));
    until("write", || rig.fs.held() == 1);
    let set = SetAttr {
        mtime: Some(SetTime::At(LATER)),
        ..SetAttr::default()
    };
    rig.fs
        .change_elsewhere(|tree| tree.set_attr(inode, &set, ELSEWHERE, LATER))
        .unwrap();
    cache(&rig).forget_attr(inode);
    // Drops the first page, and waits for the second.
    let (name, named) = channel();
    let asker = thread::spawn(move || {
        name.send(rustix::thread::gettid()).unwrap();
        asking.metadata().unwrap().mtime()
    });
    let asker_id = named.recv().unwrap().as_raw_nonzero();
    until("wait for a page", || {
        let stat = fs::read_to_string(format!("/proc/self/task/{asker_id}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('D')
    });
    let reading = in_time("read", move || {
        let mut byte = [0];
        reading.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [1], "the write is on its way");
        reading
    });
    rig.fs.let_go();
    in_time("write", || writer.join().unwrap().unwrap());
    in_time("attributes", || asker.join().unwrap());
    let mut byte = [0];
    reading.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [2]);
}

/// The kernel passes over an answer about attributes that a notice has crossed, and reads with what it has.
#[test]
fn a_read_whose_question_about_attributes_crosses_a_notice_shows_nothing_old() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, b"old").unwrap();
    let inode = rig.fs.inode("f");
    let file = Arc::new(File::open(&path).unwrap());
    assert_eq!(read(&file), *b"old");
    // As long as before, longer, one byte into the next page, and shorter.
    for new in [&b"new"[..], b"longer", &[7; 4_097], b"s"] {
        rig.fs
            .change_elsewhere(|tree| {
                let set = SetAttr {
                    size: Some(new.len() as u64),
                    ..SetAttr::default()
                };
                tree.set_attr(inode, &set, ELSEWHERE, LATER)?;
                tree.write(inode, 0, 0, new, LATER)
            })
            .unwrap();
        cache(&rig).forget_attr(inode);
        rig.fs.hold("getattr");
        let reader = {
            let file = Arc::clone(&file);
            thread::spawn(move || read(&file))
        };
        until("getattr", || rig.fs.held() == 1);
        cache(&rig).forget_attr(inode);
        rig.fs.let_go();
        assert_eq!(reader.join().unwrap(), new);
    }
}

/// The kernel notes how old its question is before anybody reads it.
#[test]
fn a_read_finds_the_new_end_when_a_notice_crosses_its_question_before_that_is_taken() {
    let Some(rig) = Rig::with("threads=1") else {
        return;
    };
    let path = rig.path("f");
    fs::write(&path, b"old").unwrap();
    let inode = rig.fs.inode("f");
    let file = File::open(&path).unwrap();
    assert_eq!(read(&file), *b"old");
    rig.fs
        .change_elsewhere(|tree| tree.write(inode, 0, 3, b"er", LATER))
        .unwrap();
    cache(&rig).forget_attr(inode);
    let gate = rig.fs.gate.lock();
    let root = rig.root().to_owned();
    let busy = thread::spawn(move || rustix::fs::statvfs(&root).map(drop));
    let begun = &rig.fs.seen.statfss;
    until("statfs", || begun.load(Ordering::SeqCst) == 1);
    let (tell, told) = channel();
    let reader = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        read(&file)
    });
    let stat = format!("/proc/{}/stat", told.recv().unwrap().as_raw_nonzero());
    until("the question", || {
        fs::read_to_string(&stat).unwrap().contains(") S ")
    });
    cache(&rig).forget_attr(inode);
    drop(gate);
    assert_eq!(reader.join().unwrap(), b"older");
    busy.join().unwrap().unwrap();
}

/// A page that ends in zeros, and an answer that tells of a longer file and is passed over since something else was answered.
#[test]
fn what_an_overtaken_answer_makes_longer_has_no_zeros_where_bytes_are() {
    let Some(rig) = Rig::new() else { return };
    let path = rig.path("f");
    fs::write(&path, b"old").unwrap();
    let inode = rig.fs.inode("f");
    let file = Arc::new(File::open(&path).unwrap());
    assert_eq!(read(&file), *b"old");
    let map = Map::new(&file, 4_096, false).unwrap();
    cache(&rig).forget_attr(inode);
    rig.fs.hold("getattr");
    let asks = {
        let file = Arc::clone(&file);
        thread::spawn(move || file.metadata().unwrap().len())
    };
    until("first getattr", || rig.fs.held() == 1);
    cache(&rig).forget_attr(inode);
    let reader = {
        let file = Arc::clone(&file);
        thread::spawn(move || read(&file))
    };
    until("second getattr", || rig.fs.held() == 2);
    // This one drops pages, and thereby overtakes the other.
    rig.fs.let_one_go();
    assert_eq!(asks.join().unwrap(), 3);
    // A page fault reads, and asks for no attributes.
    assert_eq!((map.get(2), map.get(3)), (b'd', 0));
    rig.fs
        .change_elsewhere(|tree| tree.write(inode, 0, 3, b"er", LATER))
        .unwrap();
    rig.fs.let_go();
    assert_eq!(reader.join().unwrap(), b"older");
}

#[test]
fn a_listing_is_kept_until_it_is_forgotten() {
    let Some(rig) = Rig::new() else { return };
    fs::write(rig.path("a"), "").unwrap();
    let count = || fs::read_dir(rig.root()).unwrap().count();
    assert_eq!((count(), count()), (1, 1));
    let asked = rig.fs.seen.readdirs.load(Ordering::SeqCst);
    create_elsewhere(&rig, "b");
    assert_eq!(count(), 1);
    assert_eq!(
        rig.fs.seen.readdirs.load(Ordering::SeqCst),
        asked,
        "listed by the kernel"
    );
    changed(&rig, Stale::Content(InodeId::ROOT));
    assert_eq!(count(), 2);
}

/// Of what it has not asked for since, the kernel is not told again.
#[test]
fn what_the_kernel_does_not_keep_it_need_not_be_told() {
    let Some(rig) = Rig::new() else { return };
    for dir in ["d", "other"] {
        fs::create_dir(rig.path(dir)).unwrap();
    }
    let (dir, other) = (rig.fs.inode("d"), rig.fs.inode("other"));
    let kernel = cache(&rig);
    let look = || _ = rustix::fs::stat(rig.path("d")).unwrap();
    let find = || _ = rustix::fs::stat(rig.path("d/missing")).unwrap_err();
    let list = || assert_eq!(fs::read_dir(rig.path("d")).unwrap().count(), 0);
    let open = File::open(rig.path("d")).unwrap();
    // There is none: that is kept, too.
    let ask_acl = || _ = rustix::fs::fgetxattr(&open, "system.posix_acl_access", &mut [0; 64][..]);
    let mut asks: Vec<(Stale, &dyn Fn())> = vec![
        (Stale::Attributes(dir), &look),
        (Stale::Attributes(dir), &ask_acl),
        (Stale::Content(dir), &list),
    ];
    if rig.mounted().facts().names_can_be_forgotten {
        // First: names that were listed may be taken in late.
        asks.insert(0, (Stale::Names(dir), &find));
    }
    for (stale, ask) in asks {
        for _ in 0..2 {
            ask();
            assert!(kernel.changed(stale), "{stale:?}");
            changed(&rig, stale);
            assert!(!kernel.changed(stale), "{stale:?} after it was told");
        }
    }
    assert!(!kernel.changed(Stale::Names(other)), "none was asked for");
    fs::write(rig.path("other/f"), "").unwrap();
    let unknown = create_elsewhere(&rig, "unknown");
    assert!(!kernel.changed(Stale::Attributes(unknown)));
    assert!(!kernel.changed(Stale::Content(unknown)));
    let file = rig.fs.inode("other/f");
    for of_file in [Stale::Attributes(file), Stale::Content(file)] {
        assert!(kernel.changed(of_file) && kernel.changed(of_file));
    }
}

/// It is not told of the change, and then has an answer from before.
#[test]
fn attributes_of_a_known_directory_that_were_asked_for_before_a_change_are_not_kept() {
    let Some(rig) = Rig::new() else { return };
    if !rig.mounted().facts().names_can_be_forgotten {
        return;
    }
    let path = rig.path("d");
    fs::create_dir(&path).unwrap();
    let inode = rig.fs.inode("d");
    // It stays known.
    let open = File::open(&path).unwrap();
    changed(&rig, Stale::Attributes(inode));
    cache(&rig).forget_names();
    rig.fs.hold("lookup");
    let asker = thread::spawn(move || mode_of(&path));
    until("lookup", || rig.fs.held() == 1);
    chmod_elsewhere(&rig, inode, 0o700);
    let told = cache(&rig).changed(Stale::Attributes(inode));
    assert!(!told, "nothing was given since");
    rig.fs.let_go();
    asker.join().unwrap();
    assert_eq!(mode_of(&rig.path("d")), 0o700);
    drop(open);
}

#[test]
fn forgetting_waits_for_no_unanswered_create() {
    let Some(rig) = Rig::new() else { return };
    fs::create_dir(rig.path("d")).unwrap();
    fs::write(rig.path("d/other"), "x").unwrap();
    assert_eq!(fs::read_dir(rig.path("d")).unwrap().count(), 1);
    let (dir, other) = (rig.fs.inode("d"), rig.fs.inode("d/other"));
    rig.fs.hold("create");
    let path = rig.path("d/new");
    let creator = thread::spawn(move || File::create(path).map(drop));
    until("create", || rig.fs.held() == 1);
    let kernel = cache(&rig);
    in_time("forget", move || {
        kernel.forget_names();
        for inode in [dir, other, InodeId::ROOT] {
            kernel.forget_attr(inode);
            kernel.forget_data(inode, WHOLE);
        }
    });
    assert_eq!(rig.fs.held(), 1, "still unanswered");
    rig.fs.let_go();
    creator.join().unwrap().unwrap();
    assert!(fs::metadata(rig.path("d/new")).is_ok());
}

/// By `stat`, for which a name's answer is enough; `statx` asks for the time of birth besides.
fn mode_of(path: &Path) -> u32 {
    rustix::fs::stat(path).unwrap().st_mode & 0o777
}

/// How a name becomes known: by what the file system is asked for.
type Way = fn(&Path);

const WAYS: [(&str, Way); 2] = [
    ("lookup", |path| _ = mode_of(path)),
    ("readdir", |path| {
        let all = fs::read_dir(path.parent().unwrap()).unwrap();
        assert!(all.count() > 0);
    }),
];

/// The kernel drops a notice about an inode that it has not been told of yet.
#[test]
fn attributes_that_were_taken_back_before_the_inode_was_known_are_not_kept() {
    let Some(rig) = Rig::new() else { return };
    for (what, way) in WAYS {
        for node in [NewNode::File, NewNode::Directory] {
            let name = format!("{what}-{node:?}");
            let inode = make_elsewhere(&rig, &name, node);
            let path = rig.path(&name);
            cache(&rig).forget_data(InodeId::ROOT, WHOLE);
            rig.fs.hold(what);
            let asker = thread::spawn(move || way(&path));
            until(what, || rig.fs.held() == 1);
            chmod_elsewhere(&rig, inode, 0o640);
            changed(&rig, Stale::Attributes(inode));
            rig.fs.let_go();
            asker.join().unwrap();
            let mode = mode_of(&rig.path(&name));
            assert_eq!(mode, 0o640, "{name}");
        }
    }
}

#[test]
fn names_that_were_taken_back_before_they_came_are_not_kept() {
    let Some(rig) = Rig::new() else { return };
    for (what, way) in WAYS {
        create_elsewhere(&rig, what);
        create_elsewhere(&rig, "other");
        let path = rig.path(what);
        cache(&rig).forget_names();
        rig.fs.hold(what);
        let asker = thread::spawn(move || way(&path));
        until(what, || rig.fs.held() == 1);
        for name in [what, "other"] {
            rig.fs
                .change_elsewhere(|tree| tree.unlink(InodeId::ROOT, name.as_bytes(), LATER))
                .unwrap();
        }
        changed(&rig, Stale::Names(InodeId::ROOT));
        rig.fs.let_go();
        asker.join().unwrap();
        let asked = rustix::fs::stat(rig.path(what));
        assert_eq!(asked.err(), Some(rustix::io::Errno::NOENT), "{what}");
    }
}

/// The answer was given, and the program that waits for it has not run yet.
#[test]
fn attributes_that_are_taken_back_while_the_inode_becomes_known_are_not_kept() {
    let Some(rig) = Rig::new() else { return };
    for number in 0..200 {
        let name = format!("f{number}");
        let node = match number % 2 {
            0 => NewNode::File,
            _ => NewNode::Directory,
        };
        let inode = make_elsewhere(&rig, &name, node);
        let path = rig.path(&name);
        let asked = rig.fs.seen.lookups.load(Ordering::SeqCst);
        let asker = thread::spawn(move || mode_of(&path));
        while rig.fs.seen.lookups.load(Ordering::SeqCst) == asked {
            std::hint::spin_loop();
        }
        chmod_elsewhere(&rig, inode, 0o640);
        changed(&rig, Stale::Attributes(inode));
        let mode = mode_of(&rig.path(&name));
        assert_eq!(mode, 0o640, "{name}");
        asker.join().unwrap();
    }
}

/// The same of the names of a listing, which the kernel takes for as young as the moment when it links them in.
#[test]
fn names_that_are_taken_back_while_a_listing_becomes_known_are_not_kept() {
    let Some(rig) = Rig::new() else { return };
    for number in 0..100 {
        let name = format!("f{number}");
        create_elsewhere(&rig, &name);
        let root = rig.root().to_path_buf();
        let asked = rig.fs.seen.readdirs.load(Ordering::SeqCst);
        let asker = thread::spawn(move || fs::read_dir(root).unwrap().count());
        while rig.fs.seen.readdirs.load(Ordering::SeqCst) == asked {
            std::hint::spin_loop();
        }
        rig.fs
            .change_elsewhere(|tree| tree.unlink(InodeId::ROOT, name.as_bytes(), LATER))
            .unwrap();
        changed(&rig, Stale::Names(InodeId::ROOT));
        let found = rustix::fs::stat(rig.path(&name));
        assert_eq!(found.err(), Some(rustix::io::Errno::NOENT), "{name}");
        asker.join().unwrap();
        changed(&rig, Stale::Content(InodeId::ROOT));
    }
}

/// The exception to "forgetting waits for nothing": the kernel waits for reads of the very pages.
/// The file system must answer those first (or forget from a thread on which none of them depends).
#[test]
fn forgetting_content_waits_for_unanswered_reads_of_it_only() {
    let Some(rig) = Rig::new() else { return };
    rig.fs.set_rung(Rung::Cached);
    let path = rig.path("f");
    fs::write(&path, vec![1; 4096]).unwrap();
    let inode = rig.fs.inode("f");
    cache(&rig).forget_data(inode, WHOLE);
    rig.fs.hold("read");
    let reader = thread::spawn(move || {
        let mut byte = [0];
        File::open(path)
            .unwrap()
            .read_exact_at(&mut byte, 0)
            .unwrap();
        byte
    });
    until("read", || rig.fs.held() == 1);
    let kernel = cache(&rig);
    let forgetting = thread::spawn(move || kernel.forget_data(inode, WHOLE));
    let kernel = cache(&rig);
    in_time("attributes", move || kernel.forget_attr(inode));
    thread::sleep(Duration::from_millis(100));
    assert!(
        !forgetting.is_finished(),
        "this kernel no longer waits: the rule can go"
    );
    rig.fs.let_go();
    in_time("data", move || forgetting.join().unwrap());
    assert_eq!(reader.join().unwrap(), [1]);
}

/// What the lock-free way to forget names costs on this kernel: a name is not asked for again but
/// dropped, and with it whatever is mounted there. The file system should forget names seldom.
#[test]
fn forgetting_names_takes_away_what_is_mounted_on_them() {
    let Some(rig) = Rig::new() else { return };
    if !rig.mounted().facts().names_can_be_forgotten {
        return;
    }
    let point = rig.path("below");
    fs::create_dir(&point).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &point, "tmpfs", flags, None).unwrap();
    fs::write(point.join("inner"), "").unwrap();
    cache(&rig).forget_attr(rig.fs.inode("below"));
    assert!(point.join("inner").exists(), "attributes do no harm");
    cache(&rig).forget_names();
    assert!(
        !point.join("inner").exists(),
        "this kernel spares mounts: the rule can go"
    );
}
