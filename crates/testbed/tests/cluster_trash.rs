//! What was removed where a policy has it kept, and how it comes back.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program, tree, wait};
use rustix::fs::XattrFlags;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs a command that prints JSON.
fn json(cluster: &mut Cluster, arguments: &[&str]) -> (bool, Value) {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let ended = cluster.command(&arguments).unwrap();
    let value = serde_json::from_str(&ended.stdout);
    let value = value.unwrap_or_else(|_| panic!("{arguments:?}: {}{}", ended.stdout, ended.stderr));
    (ended.status.success(), value)
}

fn list(cluster: &mut Cluster, path: &Path) -> Vec<Value> {
    let path = path.to_string_lossy();
    let (done, value) = json(cluster, &["undelete", "list", &path]);
    assert!(done);
    value.as_array().unwrap().clone()
}

fn undelete(cluster: &mut Cluster, path: &Path, more: &[&str]) -> (bool, Value) {
    let path = path.to_string_lossy();
    let arguments: Vec<&str> = ["undelete", &path].iter().chain(more).copied().collect();
    json(cluster, &arguments)
}

fn set(cluster: &mut Cluster, path: &Path, pair: &str) {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["policy", "set", &path, pair]).unwrap();
    assert!(ended.status.success(), "{}", ended.stderr);
}

/// When the files of a tree were changed.
fn times(root: &Path, tree: &tree::Tree) -> BTreeMap<PathBuf, (i64, i64)> {
    let stat = |path: &PathBuf| fs::symlink_metadata(root.join(path)).unwrap();
    let files = tree.keys().filter(|path| !stat(path).is_dir());
    files
        .map(|path| (path.clone(), (stat(path).mtime(), stat(path).mtime_nsec())))
        .collect()
}

/// A tree with old times, attributes, another owner's files, and a part that another host has made.
fn plant(here: &Path, there: &Path) {
    fs::create_dir(here.join("tree")).unwrap();
    tree::make(&here.join("tree"), 60, 7).unwrap();
    fs::create_dir(there.join("far")).unwrap();
    tree::make(&there.join("far"), 20, 8).unwrap();
    let marked = here.join("tree/d00/s00/f03");
    let value = vec![7; 3_000];
    fs::set_permissions(
        &marked,
        std::os::unix::fs::PermissionsExt::from_mode(0o6750),
    )
    .unwrap();
    rustix::fs::lsetxattr(&marked, "user.note", &value, XattrFlags::empty()).unwrap();
    std::os::unix::fs::chown(here.join("tree/d00/s00/f04"), Some(1_234), Some(77)).unwrap();
    std::os::unix::fs::chown(here.join("tree/d00/s01"), Some(1_234), Some(77)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_123);
    let file = fs::File::options().write(true).open(&marked).unwrap();
    file.set_modified(old).unwrap();
}

#[test]
fn a_tree_that_was_removed_comes_back_as_it_was() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::create_dir(here.join("home")).unwrap();
    set(&mut cluster, &here.join("home"), "trash=1h");
    let (home, far_home) = (here.join("home"), there.join("home"));
    plant(&home, &far_home);
    let expected = tree::read(&home).unwrap();
    let changed = times(&home, &expected);

    fs::remove_dir_all(far_home.join("tree")).unwrap();
    fs::remove_dir_all(home.join("far")).unwrap();
    assert_eq!(tree::read(&home).unwrap(), tree::Tree::new());
    let kept = list(&mut cluster, &home);
    assert_eq!(kept.len(), changed.len());
    let marked = home.join("tree/d00/s00/f03");
    let row = kept
        .iter()
        .find(|row| row["path"] == *marked.to_string_lossy());
    let row = row.unwrap();
    assert_eq!(
        (&row["by"], &row["mode"]),
        (&Value::from(0), &Value::from(0o6750))
    );

    // Owners come and go meanwhile.
    cluster.kill(1, Signal::KILL).unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    let here = cluster.mount(1).unwrap();
    let home = here.join("home");
    let cluster = &mut cluster;
    assert_eq!(list(cluster, &there.join("home")).len(), kept.len());

    let (done, one) = undelete(cluster, &home.join("tree/d00/s00/f03"), &[]);
    assert!(done && one["files"] == 1, "{one}");
    let (done, rest) = undelete(cluster, &home, &[]);
    assert!(done, "{rest}");
    assert_eq!(rest["files"], (changed.len() - 1) as u64);
    let seen = tree::read(&there.join("home")).unwrap();
    assert_eq!(tree::differences(&expected, &seen, 5), [""; 0]);
    assert_eq!(times(&home, &seen), changed);
    assert_eq!(list(cluster, &here), Vec::<Value>::new());
}

#[test]
fn what_is_there_now_is_never_replaced_and_open_files_work_on() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    set(&mut cluster, &here, "trash=1h");
    fs::create_dir(here.join("tmp")).unwrap();
    set(&mut cluster, &here.join("tmp"), "trash=off");
    let cluster = &mut cluster;

    // Removed below `off`: gone. One of two names: not removed at all.
    fs::write(here.join("tmp/f"), "gone").unwrap();
    fs::remove_file(there.join("tmp/f")).unwrap();
    fs::write(here.join("a"), "linked").unwrap();
    fs::hard_link(here.join("a"), here.join("b")).unwrap();
    fs::remove_file(here.join("a")).unwrap();
    assert_eq!(list(cluster, &here), Vec::<Value>::new());

    // Replaced by a rename, as editors do; twice.
    let file = here.join("f");
    for content in ["first", "second", "third"] {
        fs::write(here.join("f.new"), content).unwrap();
        fs::rename(here.join("f.new"), &file).unwrap();
    }
    assert_eq!(list(cluster, &file).len(), 2);
    let ended = cluster
        .command(&["undelete", &file.to_string_lossy()])
        .unwrap();
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("has this name now") && ended.stderr.contains("--to"));
    assert_eq!(fs::read(there.join("f")).unwrap(), b"third");
    let old = here.join("f.old");
    let (done, _) = undelete(cluster, &file, &["--to", &old.to_string_lossy()]);
    assert!(done);
    assert_eq!(fs::read(there.join("f.old")).unwrap(), b"second");
    let oldest = list(cluster, &file)[0]["id"].to_string();
    let older = here.join("f.older");
    let more = ["--id", &oldest, "--to", &older.to_string_lossy()];
    let (done, _) = undelete(cluster, &here, &more);
    assert!(done);
    assert_eq!(fs::read(there.join("f.older")).unwrap(), b"first");

    // Its directory has got another container since.
    fs::create_dir(here.join("moved")).unwrap();
    fs::write(here.join("moved/f"), "stays where it lies").unwrap();
    fs::remove_file(here.join("moved/f")).unwrap();
    set(cluster, &here.join("moved"), "copies=1");
    let (done, _) = undelete(cluster, &here.join("moved/f"), &[]);
    assert!(done);
    let content = fs::read(there.join("moved/f")).unwrap();
    assert_eq!(content, b"stays where it lies");

    // Open while it is removed, and written until it is closed.
    let mut open = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(here.join("open"))
        .unwrap();
    open.write_all(b"before ").unwrap();
    fs::remove_file(here.join("open")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    open.write_all(b"after").unwrap();
    open.rewind().unwrap();
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "before after");
    // It comes back under the program's hands.
    let (done, _) = undelete(cluster, &here.join("open"), &[]);
    assert!(done);
    open.write_all(b" and later").unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 1);
    drop(open);
    let content = "before after and later";
    for mount in [&there, &here] {
        assert_eq!(fs::read_to_string(mount.join("open")).unwrap(), content);
        assert_eq!(fs::metadata(mount.join("open")).unwrap().nlink(), 1);
    }
    fs::remove_file(there.join("open")).unwrap();
    let (done, _) = undelete(cluster, &there.join("open"), &[]);
    assert!(done);
    assert_eq!(fs::read_to_string(here.join("open")).unwrap(), content);
}

/// Free bytes of the file system.
fn free(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).unwrap();
    stat.f_bavail * stat.f_frsize
}

#[test]
fn what_was_kept_goes_after_its_time_or_when_it_is_purged() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let cluster = &mut cluster;
    set(cluster, &here, "trash=12s");
    const LARGE: usize = 48 << 20;
    fs::write(here.join("short"), vec![1; LARGE]).unwrap();
    fs::remove_file(here.join("short")).unwrap();
    assert_eq!(list(cluster, &here).len(), 1);
    // Also when another node owns it by then.
    cluster.kill(1, Signal::KILL).unwrap();
    wait::until("what was kept is gone", LIMIT, || {
        Ok(list(cluster, &there).is_empty().then_some(()))
    })
    .unwrap();
    cluster.up().unwrap();
    cluster.settle().unwrap();
    let here = cluster.mount(1).unwrap();
    let (done, why) = (
        cluster
            .command(&["undelete", &here.join("short").to_string_lossy()])
            .unwrap(),
        "nothing is kept",
    );
    assert!(
        !done.status.success() && done.stderr.contains(why),
        "{}",
        done.stderr
    );

    set(cluster, &here, "trash=7d");
    fs::write(here.join("long"), vec![2; LARGE]).unwrap();
    fs::File::open(here.join("long"))
        .unwrap()
        .sync_all()
        .unwrap();
    fs::remove_file(here.join("long")).unwrap();
    let full = free(&here);
    let path = here.to_string_lossy().into_owned();
    let (done, purged) = json(cluster, &["undelete", "purge", &path, "--older-than", "1h"]);
    assert!(done && purged["files"] == 0, "{purged}");
    let (done, purged) = json(cluster, &["undelete", "purge", &path]);
    assert!(
        done && purged["files"] == 1 && purged["bytes"] == LARGE,
        "{purged}"
    );
    wait::until("its space is free", LIMIT, || {
        let freed = free(&here).saturating_sub(full);
        Ok((freed > LARGE as u64 / 2).then_some(()))
    })
    .unwrap();
    assert_eq!(list(cluster, &here), Vec::<Value>::new());
}
