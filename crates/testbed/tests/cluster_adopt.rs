//! A directory of a machine becomes one of a cluster where it lies: whole, at any moment one or the other, and found out when
//! programs go on writing.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, tree, wait};
use perigee_types::Rng;
use rustix::process::Signal;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Large files of the directory, and their bytes.
const LARGE: u64 = 12;
const LARGE_LEN: u64 = 3 << 20;

/// A directory with small and large files, links, a hole, and names of all kinds.
fn directory(at: &Path, seed: u64) -> tree::Tree {
    fs::create_dir(at).unwrap();
    tree::make(at, 60, seed).unwrap();
    let mut rng = Rng::new(seed);
    for number in 0..LARGE {
        let file = fs::File::create(at.join(format!("large{number}"))).unwrap();
        let mut bytes = vec![0; (LARGE_LEN + rng.below(9_000)) as usize];
        perigee_testbed::pattern::fill(rng.next_u64(), 0, &mut bytes);
        file.write_all_at(&bytes, 0).unwrap();
        if number == 0 {
            file.set_len(40 << 20).unwrap();
        }
    }
    fs::hard_link(at.join("large1"), at.join("d00/another name")).unwrap();
    fs::set_permissions(at.join("large2"), fs::Permissions::from_mode(0o6750)).unwrap();
    rustix::fs::setxattr(
        at.join("large3"),
        "user.note",
        b"kept",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    std::os::unix::fs::chown(at.join("large4"), Some(4_711), Some(4_712)).unwrap();
    tree::read(at).unwrap()
}

fn same(expected: &tree::Tree, seen: &Path) {
    let seen = tree::read(seen).unwrap();
    let differences = tree::differences(expected, &seen, 5);
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Whether the directory is whole there; how many names its files have is left out, since a node gives them one more.
fn is_whole(expected: &tree::Tree, at: &Path) -> bool {
    let without_links = |tree: &tree::Tree| {
        let mut tree = tree.clone();
        tree.values_mut().for_each(|entry| entry.links = 0);
        tree
    };
    let seen = tree::read(at);
    seen.is_ok_and(|seen| without_links(&seen) == without_links(expected))
}

/// The file that a node keeps a file's bytes in, by its number on this machine.
fn stored(cluster: &Cluster, inode: u64) -> Option<PathBuf> {
    let mut folders = vec![cluster.dir().join("node-1/store/objects")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let there = entry.metadata().unwrap();
            if there.is_dir() {
                folders.push(entry.path());
            } else if there.ino() == inode {
                return Some(entry.path());
            }
        }
    }
    None
}

fn adopt(cluster: &mut Cluster, source: &Path, target: &Path, more: &[&str]) -> String {
    let (source, target) = (source.to_string_lossy(), target.to_string_lossy());
    let mut words = vec!["adopt", &*source, &*target];
    words.extend(more);
    let ended = cluster.command(&words).unwrap();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stdout
}

/// What the command says when it does not do it.
fn refused(cluster: &mut Cluster, source: &Path, target: &Path) -> String {
    let words = [Path::new("adopt"), source, target];
    let ended = cluster.command(&words).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stdout);
    ended.stderr
}

#[test]
fn a_directory_becomes_one_of_the_cluster_where_it_lies() {
    let mut cluster = Cluster::start(3).unwrap();
    let (near, far) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let source = cluster.path().join("photos");
    let expected = directory(&source, 1);
    let numbers: Vec<u64> = (0..LARGE)
        .map(|number| {
            fs::metadata(source.join(format!("large{number}")))
                .unwrap()
                .ino()
        })
        .collect();
    let time = |path: &Path| {
        let is = path.symlink_metadata().unwrap();
        (is.mtime(), is.mtime_nsec())
    };
    let times = (
        time(&source),
        time(&source.join("d00")),
        time(&source.join("large5")),
    );
    let target = near.join("photos");
    let said = adopt(&mut cluster, &source, &target, &["--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    // No more than is small has been copied, and none of the others.
    let large = expected
        .values()
        .filter(|entry| entry.size > 16 << 10 && entry.mode & 0o170_000 == 0o100_000);
    let names = large.count() as u64;
    assert_eq!(said["taken_files"].as_u64().unwrap(), names - 1, "{said}");
    for number in numbers {
        let file = stored(&cluster, number).unwrap_or_else(|| panic!("{number} was copied"));
        assert_eq!(
            fs::metadata(&file).unwrap().nlink(),
            1,
            "{}",
            file.display()
        );
    }
    same(&expected, &target);
    assert_eq!(
        times,
        (
            time(&target),
            time(&target.join("d00")),
            time(&target.join("large5"))
        )
    );
    same(&expected, &far.join("photos"));
    assert_eq!(fs::read_link(&source).unwrap(), target);
    // It is a directory as every other.
    let mut file = OpenOptions::new()
        .append(true)
        .open(source.join("large5"))
        .unwrap();
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    let expected = tree::read(&target).unwrap();
    assert!(expected[Path::new("large5")].size > LARGE_LEN);
    same(&expected, &far.join("photos"));
    let hidden = |at: &Path| {
        let names = fs::read_dir(at)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().contains("adopt"))
            .count()
    };
    assert_eq!((hidden(cluster.path()), hidden(&near)), (0, 0));
    // One of the copies is enough.
    cluster.kill(1, Signal::KILL).unwrap();
    same(&expected, &far.join("photos"));
}

/// The command, its node, or both are killed at any moment: the directory is whole in one place, and the same command goes on.
#[test]
fn whoever_breaks_it_off_loses_nothing() {
    let mut cluster = Cluster::start(2).unwrap();
    cluster.mount(1).unwrap();
    let mut rng = Rng::new(5);
    for round in 0..2 {
        let source = cluster.path().join(format!("s{round}"));
        let target = cluster.mount_point(1).join(format!("t{round}"));
        let aside = cluster.path().join(format!(".s{round}.adopted"));
        let staging = cluster.mount_point(1).join(format!(".t{round}.adopting"));
        let expected = directory(&source, round);
        let (mut strikes, mut started) = (0, false);
        let mut longest = 100;
        loop {
            let mut child = begin(&source, &target);
            // Longer each time: at last it comes to its end.
            let limit = Duration::from_millis(rng.below(longest));
            longest += longest / 3;
            let ended = wait::until("it ends", limit, || Ok(child.try_wait().unwrap()));
            if let Ok(status) = ended {
                if status.success() {
                    break;
                }
                // Right after its start a node may not own yet what it had.
                let said = fs::read_to_string(source.with_extension("said")).unwrap();
                assert!(std::mem::take(&mut started), "round {round}: {said}");
                continue;
            }
            strikes += 1;
            let node_too = rng.chance(1, 3);
            started |= node_too;
            if node_too {
                cluster.kill(1, Signal::KILL).unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            if node_too {
                cluster.up().unwrap();
                cluster.mount(1).unwrap();
            }
            let places = [&source, &aside, &staging, &target];
            let whole = places.map(|at| is_whole(&expected, at));
            assert!(
                whole.contains(&true),
                "round {round}, strike {strikes}: nowhere whole"
            );
        }
        assert!(strikes > 2, "round {round}: {strikes} strikes");
        same(&expected, &target);
        assert_eq!(fs::read_link(&source).unwrap(), target);
        assert!(!aside.exists());
    }
    // The other node has all of it, too.
    let far = cluster.mount(2).unwrap();
    let expected = tree::read(&cluster.mount_point(1)).unwrap();
    cluster.kill(1, Signal::KILL).unwrap();
    same(&expected, &far);
}

/// Starts the command, and lets it run.
fn begin(source: &Path, target: &Path) -> Child {
    let mut command = Command::new(perigee_testbed::program::perigee().unwrap());
    command.arg("adopt").args([source, target]);
    let said = fs::File::create(source.with_extension("said")).unwrap();
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    quiet.stderr(said).spawn().unwrap()
}

/// What comes to the old directory, and what is exchanged in it, when it has its other name already: all of it is in the new one,
/// and what leads to the old bytes from elsewhere does not lead to the new ones.
#[test]
fn what_comes_while_it_is_aside_is_not_lost() {
    let mut cluster = Cluster::start(1).unwrap();
    let near = cluster.mount(1).unwrap();
    for round in 0..4 {
        let source = cluster.path().join(format!("s{round}"));
        let aside = cluster.path().join(format!(".s{round}.adopted"));
        let target = near.join(format!("t{round}"));
        directory(&source, round);
        let mut child = begin(&source, &target);
        let moved = wait::until("it is aside", LIMIT, || {
            Ok((aside.exists() || child.try_wait().unwrap().is_some()).then_some(()))
        });
        moved.unwrap();
        // Later each time: before the new one counts, and after.
        std::thread::sleep(Duration::from_millis(round * 20));
        child.kill().unwrap();
        child.wait().unwrap();
        if !aside.exists() {
            if !target.exists() {
                adopt(&mut cluster, &source, &target, &[]);
            }
            continue;
        }
        let before = tree::read(&aside).unwrap();
        let there = |name: &str| before.contains_key(Path::new(name));
        fs::create_dir_all(aside.join("new/deep")).unwrap();
        fs::write(aside.join("new/deep/file"), vec![7; 60_000]).unwrap();
        fs::write(aside.join("new/small"), "new").unwrap();
        let exchanged: Vec<&str> = ["large3", "d00/s00/f02"]
            .into_iter()
            .filter(|name| there(name))
            .collect();
        for name in &exchanged {
            exchange(&aside.join(name));
        }
        let elsewhere = cluster.path().join(format!("elsewhere{round}"));
        if there("large5") {
            fs::hard_link(aside.join("large5"), &elsewhere).unwrap();
        }
        let expected = tree::read(&aside).unwrap();
        adopt(&mut cluster, &source, &target, &[]);
        let seen = tree::read(&target).unwrap();
        for (path, entry) in &expected {
            let seen = seen
                .get(path)
                .unwrap_or_else(|| panic!("round {round}: {} is lost", path.display()));
            assert_eq!(
                (seen.digest, seen.size, seen.mode),
                (entry.digest, entry.size, entry.mode),
                "round {round}: {}",
                path.display()
            );
        }
        if there("large5") {
            let file = OpenOptions::new().write(true).open(&elsewhere).unwrap();
            file.write_all_at(b"of elsewhere alone", 5_000).unwrap();
            let bytes = fs::read(target.join("large5")).unwrap();
            assert_ne!(&bytes[5_000..5_018], b"of elsewhere alone");
        }
        assert!(!aside.exists());
    }
}

/// Another file of the same length and time in the place of one.
fn exchange(path: &Path) {
    let was = fs::metadata(path).unwrap();
    let other = path.with_extension("other");
    fs::write(&other, vec![9; was.len() as usize]).unwrap();
    fs::set_permissions(&other, was.permissions()).unwrap();
    fs::File::options()
        .write(true)
        .open(&other)
        .map(|file| file.set_modified(was.modified().unwrap()))
        .unwrap()
        .unwrap();
    fs::rename(&other, path).unwrap();
}

#[test]
fn only_one_command_is_at_work_on_a_directory() {
    let mut cluster = Cluster::start(1).unwrap();
    let near = cluster.mount(1).unwrap();
    let (source, target) = (cluster.path().join("s"), near.join("t"));
    let expected = directory(&source, 2);
    let mut all: Vec<Child> = (0..4).map(|_| begin(&source, &target)).collect();
    let done = all
        .iter_mut()
        .filter_map(|child| child.wait().unwrap().success().then_some(()));
    assert_eq!(done.count(), 1);
    same(&expected, &target);
    assert_eq!(fs::read_link(&source).unwrap(), target);
    let said = refused(&mut cluster, &source, &target);
    assert!(said.contains("is there already"), "{said}");
}

#[test]
fn what_programs_write_meanwhile_is_found() {
    let mut cluster = Cluster::start(1).unwrap();
    let near = cluster.mount(1).unwrap();
    let (source, target) = (cluster.path().join("logs"), near.join("logs"));
    directory(&source, 3);
    // Somebody writes: all but that is brought, and nothing appears.
    let log = OpenOptions::new()
        .append(true)
        .open(source.join("large7"))
        .unwrap();
    let said = refused(&mut cluster, &source, &target);
    assert!(
        said.contains("open for writing") && said.contains("large7"),
        "{said}"
    );
    assert!(!target.exists() && source.is_dir());
    (&log).write_all(b"a last line").unwrap();
    drop(log);
    // What changes in any way between two runs is as it is at the end.
    fs::write(source.join("large8"), vec![8; 50_000]).unwrap();
    OpenOptions::new()
        .append(true)
        .open(source.join("d00/s00/f02"))
        .unwrap()
        .write_all(b"!")
        .unwrap();
    fs::set_permissions(source.join("large9"), fs::Permissions::from_mode(0o611)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(source.join("large10"), "user.new", b"new", flags).unwrap();
    fs::remove_file(source.join("large0")).unwrap();
    fs::rename(source.join("large6"), source.join("d00/moved")).unwrap();
    fs::create_dir(source.join("empty")).unwrap();
    // A name elsewhere leads to bytes that somebody may change later: they are copied.
    let elsewhere = cluster.path().join("elsewhere");
    fs::write(source.join("shared"), vec![5; 100_000]).unwrap();
    fs::hard_link(source.join("shared"), &elsewhere).unwrap();
    let mut expected = tree::read(&source).unwrap();
    adopt(&mut cluster, &source, &target, &["--no-link"]);
    for (path, entry) in &mut expected {
        // The node's own names, and the one elsewhere.
        let seen = fs::symlink_metadata(target.join(path)).unwrap();
        if seen.is_file() {
            let within = usize::from(path.ends_with("large1") || path.ends_with("another name"));
            assert_eq!(seen.nlink(), 1 + within as u64, "{}", path.display());
            entry.links = seen.nlink();
        }
    }
    same(&expected, &target);
    assert!(!source.exists());
    OpenOptions::new()
        .append(true)
        .open(&elsewhere)
        .unwrap()
        .write_all(b"later")
        .unwrap();
    same(&expected, &target);
}

#[test]
fn what_cannot_be_adopted_is_refused_and_unharmed() {
    let mut cluster = Cluster::start(1).unwrap();
    let near = cluster.mount(1).unwrap();
    let source = cluster.path().join("here");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(near.join("there")).unwrap();
    let elsewhere = cluster.path().to_path_buf();
    let data = cluster.dir();
    let (free, file) = (near.join("free"), source.join("file"));
    let cases: [(&Path, &Path, &str); 8] = [
        (shm.path(), &free, "another file system"),
        (&source, &near.join("there"), "is there already"),
        (&source, &elsewhere.join("no"), "not in a Perigee mount"),
        (&near.join("there"), &free, "in a cluster already"),
        (&data, &free, "the node's own data lie in it"),
        (&elsewhere, &free, "the node's own data lie in it"),
        (&file, &free, "no directory"),
        (&elsewhere.join("gone"), &free, "no such directory"),
    ];
    for (source, target, why) in cases {
        let said = refused(&mut cluster, source, target);
        assert!(said.contains(why), "{}: {said}", source.display());
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    let names: Vec<_> = fs::read_dir(&near)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["there"]);
}

/// The new directory counts, and is about to get its name: what has come in the old one's place since, even with its number, is not
/// what it is made like.
#[test]
fn what_counts_is_not_made_like_a_directory_that_came_later() {
    let mut cluster = Cluster::start(1).unwrap();
    let near = cluster.mount(1).unwrap();
    let source = cluster.path().join("later");
    fs::create_dir(&source).unwrap();
    let staging = near.join(".t.adopting");
    fs::create_dir(&staging).unwrap();
    fs::write(staging.join("file"), "all that there is").unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let (inode, host) = (fs::metadata(&source).unwrap().ino(), host.trim_end());
    let mark = format!("clearing\t{inode}\t{host}\t{}", source.display());
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(
        &staging,
        "user.perigee.adopted-from",
        mark.as_bytes(),
        flags,
    )
    .unwrap();
    let said = refused(&mut cluster, &source, &near.join("t"));
    assert!(said.contains("has come in its place"), "{said}");
    assert_eq!(
        fs::read_to_string(staging.join("file")).unwrap(),
        "all that there is"
    );
    fs::remove_dir(&source).unwrap();
    adopt(&mut cluster, &source, &near.join("t"), &[]);
    assert_eq!(
        fs::read_to_string(source.join("file")).unwrap(),
        "all that there is"
    );
}

/// What a union shows as one directory becomes one of a cluster: what lies on this machine's disk stays there.
#[test]
fn a_directory_of_a_union_is_adopted_as_one() {
    let mut cluster = Cluster::start(1).unwrap();
    let near = cluster.mount(1).unwrap();
    let [first, second, union] = ["b1", "b2", "u"].map(|name| cluster.path().join(name));
    for branch in [&first, &second] {
        fs::create_dir(branch).unwrap();
    }
    fs::create_dir(&union).unwrap();
    directory(&first.join("data"), 1);
    directory(&second.join("data"), 2);
    fs::write(second.join("data/second alone"), vec![2; 70_000]).unwrap();
    fs::write(second.join("beside"), "stays").unwrap();
    let number = fs::metadata(second.join("data/second alone"))
        .unwrap()
        .ino();
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let words = ["union", &shown(&first), &shown(&second), &shown(&union)];
    let made = cluster.command(&words).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let expected = tree::read(&union.join("data")).unwrap();
    let target = near.join("data");
    adopt(&mut cluster, &union.join("data"), &target, &[]);
    // A union does not count the names of directories.
    assert!(is_whole(&expected, &target));
    assert!(stored(&cluster, number).is_some(), "it was copied");
    assert!(is_whole(&expected, &union.join("data/")));
    assert_eq!(fs::read_to_string(union.join("beside")).unwrap(), "stays");
    assert!(!second.join("data").exists());
    let gone = cluster.command(&["umount", &shown(&union)]).unwrap();
    assert!(gone.status.success(), "{}", gone.stderr);
}
