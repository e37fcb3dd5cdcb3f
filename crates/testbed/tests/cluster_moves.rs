//! Ownership that moves to the host that works.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program, wait};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a file's few calls take while ownership moves, which is some 70 ms here; a takeover takes seconds.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Who owns a path, and how often that changed because of who works there.
fn owner(cluster: &mut Cluster, path: &Path) -> (u64, u64) {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    let placement: Value = serde_json::from_str(&ended.stdout).unwrap();
    let moves = placement["moves"].as_u64().unwrap();
    (placement["owner"].as_u64().unwrap(), moves)
}

/// Works on a tree as a program does, and looks at each answer: makes, writes, reads back, renames and removes. Gives the
/// longest time that a file took.
fn work(dir: &Path, who: &str, files: u32) -> Duration {
    let mut longest = Duration::ZERO;
    for number in 0..files {
        let began = Instant::now();
        let path = dir.join(format!("{who}-{number}"));
        let text = format!("{who} wrote {number}");
        fs::write(&path, &text).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), text.len() as u64);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        let there = dir.join(format!("{who}-{number}-there"));
        fs::rename(&path, &there).unwrap();
        if number % 2 == 0 {
            fs::remove_file(&there).unwrap();
        }
        longest = longest.max(began.elapsed());
    }
    longest
}

/// Works until the container belongs to a node; gives the longest time that a file took.
fn work_until_owned(cluster: &mut Cluster, dir: &Path, who: &str, node: u64) -> Duration {
    let mut longest = Duration::ZERO;
    let mut round = 0;
    wait::until(&format!("node {node} owns"), LIMIT, || {
        round += 1;
        longest = longest.max(work(dir, &format!("{who}{round}"), 40));
        Ok((owner(cluster, dir).0 == node).then_some(()))
    })
    .unwrap();
    longest
}

/// Messages that a node has sent to others and got from them.
fn messages(cluster: &mut Cluster, node: u32) -> u64 {
    let node = node.to_string();
    let status = cluster.perigee(&["status", "--json", "--node", &node]);
    let status: Value = serde_json::from_str(&status.unwrap()).unwrap();
    status["net"]["messages_sent"].as_u64().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn ownership_follows_the_host_that_works() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::create_dir(here.join("tree")).unwrap();
    work(&here.join("tree"), "first", 50);
    assert_eq!(owner(&mut cluster, &here.join("tree")), (1, 0));

    let longest = work_until_owned(&mut cluster, &there.join("tree"), "second", 2);
    assert!(longest < PAUSE_MAX, "{longest:?}");
    let (now, moves) = owner(&mut cluster, &there.join("tree"));
    assert_eq!((now, moves), (2, 1));
    // At home now: records go out in groups, and nobody waits for them. A create alone took a message before.
    let before = messages(&mut cluster, 2);
    let began = Instant::now();
    for number in 0..400 {
        fs::write(there.join(format!("tree/home-{number}")), "at home").unwrap();
    }
    let took = began.elapsed();
    let sent = messages(&mut cluster, 2) - before;
    // What the time itself costs: heartbeats and groups of records, to two members each.
    let by_time = 40 + took.as_millis() as u64 / 5;
    assert!(sent < 400 + by_time, "{sent} messages in {took:?}");
    assert_eq!(names(&here.join("tree")), names(&there.join("tree")));

    let longest = work_until_owned(&mut cluster, &here.join("tree"), "third", 1);
    assert!(longest < PAUSE_MAX, "{longest:?}");
    assert_eq!(owner(&mut cluster, &here.join("tree")).1, 2);
    assert_eq!(names(&here.join("tree")), names(&there.join("tree")));
}

#[test]
fn a_file_that_is_open_where_its_owner_was_outlives_its_name() {
    const FILES: u32 = 6;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let (dir, far) = (here.join("tree"), there.join("tree"));
    fs::create_dir(&dir).unwrap();
    let name = |number: u32| format!("open-{number}");
    let make = |number: u32| {
        let file = File::create_new(dir.join(name(number))).unwrap();
        file.write_all_at(b"written before", 0).unwrap();
        file
    };
    let files: Vec<File> = (0..FILES).map(make).collect();
    // Who ordered the names before knew that somebody has the files open; who does now must find out.
    work_until_owned(&mut cluster, &far, "second", 2);
    for number in 0..FILES {
        let path = far.join(name(number));
        match number % 2 {
            0 => fs::remove_file(path).unwrap(),
            _ => {
                let other = far.join("other");
                fs::write(&other, "another").unwrap();
                fs::rename(other, path).unwrap();
            }
        }
    }
    for (number, file) in files.iter().enumerate() {
        assert_eq!(file.metadata().unwrap().nlink(), 0, "file {number}");
        file.write_all_at(b" it went", 14).unwrap();
        file.sync_all().unwrap();
        let mut text = [0; 22];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"written before it went", "file {number}");
    }
}

#[test]
fn hosts_that_take_turns_soon_have_a_fixed_owner() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::create_dir(here.join("shared")).unwrap();
    for turn in 0..200 {
        let mount = if turn % 2 == 0 { &here } else { &there };
        work(&mount.join("shared"), &format!("turn{turn}"), 2);
    }
    let (_, moves) = owner(&mut cluster, &here.join("shared"));
    assert!(moves <= 1, "{moves} moves");
    // Turns that are as long as a move is dear: each move proves wrong, until none is made.
    for turn in 0..30 {
        let mount = if turn % 2 == 0 { &here } else { &there };
        work(&mount.join("shared"), &format!("long{turn}"), 20);
    }
    let (_, moves) = owner(&mut cluster, &here.join("shared"));
    assert!(moves <= 8, "{moves} moves");
    assert_eq!(names(&here.join("shared")), names(&there.join("shared")));
}

#[test]
fn where_it_is_not_wanted_ownership_stays() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let set = |cluster: &mut Cluster, pair: &str| {
        let path = here.join("kept").to_string_lossy().into_owned();
        let ended = cluster.command(&["policy", "set", &path, pair]).unwrap();
        assert!(ended.status.success(), "{pair}: {}", ended.stderr);
    };
    fs::create_dir(here.join("kept")).unwrap();
    set(&mut cluster, "migration=off");
    work(&there.join("kept"), "far", 300);
    assert_eq!(owner(&mut cluster, &here.join("kept")), (1, 0));
    set(&mut cluster, "migration=always");
    work_until_owned(&mut cluster, &there.join("kept"), "always", 2);
    // A handful is enough now, however often.
    for _ in 0..4 {
        work_until_owned(&mut cluster, &here.join("kept"), "back", 1);
        work_until_owned(&mut cluster, &there.join("kept"), "forth", 2);
    }
}

/// The nodes that have a copy of a path, in order of their numbers.
fn copies(cluster: &mut Cluster, path: &Path) -> Vec<u64> {
    let path = path.to_string_lossy();
    let ended = cluster.command(&["where", "--json", &path]).unwrap();
    let placement: Value = serde_json::from_str(&ended.stdout).unwrap();
    let copies = placement["copies"].as_array().unwrap().iter();
    let mut nodes: Vec<u64> = copies.map(|copy| copy["node"].as_u64().unwrap()).collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn a_copy_and_then_the_ownership_go_to_the_host_that_works_without_one() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(4).unwrap();
    let first = cluster.mount(1).unwrap();
    for (name, migration) in [("works", "adaptive"), ("stays", "off")] {
        let dir = first.join(name);
        fs::create_dir(&dir).unwrap();
        let dir = dir.to_string_lossy();
        let settings = [
            "policy",
            "set",
            &dir,
            "copies=2",
            &format!("migration={migration}"),
        ];
        assert!(cluster.command(&settings).unwrap().status.success());
    }
    let (works, stays) = (first.join("works/tree"), first.join("stays/tree"));
    for tree in [&works, &stays] {
        fs::create_dir(tree).unwrap();
        work(tree, "first", 5);
    }
    let before = wait::until("two copies", LIMIT, || {
        let both = [copies(&mut cluster, &works), copies(&mut cluster, &stays)];
        Ok(both.iter().all(|nodes| nodes.len() == 2).then_some(both))
    });
    let [worked, stayed] = before.unwrap();
    let stranger = (2..=4).find(|node| !worked.contains(node) && !stayed.contains(node));
    let stranger = stranger.unwrap();
    let mount = cluster.mount(stranger as u32).unwrap();
    let mut round = 0;
    let moved = wait::until("the copy is where the work is", LIMIT, || {
        round += 1;
        for tree in ["works/tree", "stays/tree"] {
            work(&mount.join(tree), &format!("there{round}"), 20);
        }
        let nodes = copies(&mut cluster, &works);
        let moved = nodes.len() == 2 && owner(&mut cluster, &works).0 == stranger;
        Ok(moved.then_some(nodes))
    });
    assert!(
        moved.unwrap().contains(&1),
        "the owner of before keeps its copy"
    );
    assert_eq!(
        copies(&mut cluster, &stays),
        stayed,
        "nothing moves where that is not wanted"
    );
    assert_eq!(owner(&mut cluster, &stays), (1, 0));
    assert_eq!(names(&works), names(&mount.join("works/tree")));
}

/// A directory that stays with node 1, which alone has a copy: a member would have more to tell. As nodes 1 and 2 have it.
fn far_directory(cluster: &mut Cluster) -> (PathBuf, PathBuf) {
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let (dir, far) = (here.join("far"), there.join("far"));
    fs::create_dir(&dir).unwrap();
    let name = dir.to_string_lossy();
    let settings = ["policy", "set", &name, "copies=1", "migration=off"];
    assert!(cluster.command(&settings).unwrap().status.success());
    wait::until("a copy at the owner alone", LIMIT, || {
        Ok((copies(cluster, &dir) == [1]).then_some(()))
    })
    .unwrap();
    (dir, far)
}

#[test]
fn a_change_of_a_name_tells_its_host_what_became_of_the_directory() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (dir, far) = far_directory(&mut cluster);
    // Files: a directory would come into a container of who makes it.
    let changed = |path: &Path| {
        let attr = fs::metadata(path).unwrap();
        (attr.mtime(), attr.mtime_nsec())
    };
    // Where both have just made something, nobody may keep anything for a moment.
    let mut round = 0;
    wait::until("the host may keep what it knows", LIMIT, || {
        round += 1;
        File::create_new(far.join(format!("first-{round}"))).unwrap();
        let before = messages(&mut cluster, 2);
        (0..20).for_each(|_| _ = changed(&far));
        Ok((messages(&mut cluster, 2) - before < 15).then_some(()))
    })
    .unwrap();
    let mut last = changed(&far);

    let before = messages(&mut cluster, 2);
    let began = Instant::now();
    for number in 0..100 {
        File::create_new(far.join(number.to_string())).unwrap();
        let now = changed(&far);
        assert!(now > last, "file {number}: {now:?} after {last:?}");
        last = now;
    }
    let took = began.elapsed();
    let sent = messages(&mut cluster, 2) - before;
    // The name is looked up, and made; its directory's attributes would be a third question.
    let by_time = 20 + took.as_millis() as u64 / 10;
    assert!(sent < 200 + by_time, "{sent} messages in {took:?}");

    // What the host has of the directory ends with the next change, whoever makes it.
    for number in 0..30 {
        let (who, other) = match number % 3 {
            0 => (&far, &dir),
            _ => (&dir, &far),
        };
        File::create_new(who.join(format!("again-{number}"))).unwrap();
        let now = changed(other);
        assert!(now > last, "again {number}: {now:?} after {last:?}");
        assert_eq!(changed(who), now);
        last = now;
    }
}

#[test]
fn the_content_of_small_files_comes_with_their_names_and_is_never_old() {
    const FILES: u32 = 60;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (dir, far) = far_directory(&mut cluster);
    let text = |number: u32, round: u32| format!("{number} of round {round}");
    let write = |path: &Path, number: u32, round: u32| {
        fs::write(path, text(number, round)).unwrap();
    };
    let read = |path: &Path, number: u32, round: u32| {
        assert_eq!(fs::read_to_string(path).unwrap(), text(number, round));
    };
    let mut round = 0;
    // Where several hosts change something, nobody may keep anything for a moment: so each round has files of its own.
    wait::until("content comes with names", LIMIT, || {
        round += 1;
        let name = |number: u32| format!("{round}-{number}");
        (0..FILES).for_each(|number| write(&dir.join(name(number)), number, round));
        let before = messages(&mut cluster, 2);
        let began = Instant::now();
        (0..FILES).for_each(|number| read(&far.join(name(number)), number, round));
        let sent = messages(&mut cluster, 2) - before;
        // To look up, open and read each would be three.
        let by_time = 20 + began.elapsed().as_millis() as u64 / 10;
        Ok((sent < u64::from(FILES) * 3 / 2 + by_time).then_some(()))
    })
    .unwrap();
    // What has come and was not read yet goes with the next change, whoever makes it.
    let name = |number: u32| format!("last-{number}");
    (0..FILES).for_each(|number| write(&dir.join(name(number)), number, 1));
    for number in 0..FILES {
        let (near, far) = (dir.join(name(number)), far.join(name(number)));
        let who = if number % 3 == 0 { &far } else { &near };
        fs::metadata(&far).unwrap();
        write(who, number, 2);
        read(&far, number, 2);
        read(&near, number, 2);
        fs::metadata(&far).unwrap();
        let cut = File::options().write(true).open(who).unwrap();
        cut.set_len(1).unwrap();
        let seen = fs::read_to_string(&far).unwrap();
        assert_eq!(seen, text(number, 2)[..1]);
    } // What the session itself has set it sees at once, of files that it has just made and of those that came with their names.
    for number in 0..FILES {
        let path = match number % 2 {
            0 => far.join(format!("own-{number}")),
            _ => far.join(format!("{round}-{number}")),
        };
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        file.set_permissions(Permissions::from_mode(0o600 + number))
            .unwrap();
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600 + number, "{}", path.display());
        fs::hard_link(&path, far.join(format!("link-{number}"))).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
    }
}
