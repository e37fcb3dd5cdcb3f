//! Programs of a host without a copy read the nearest one (law 5), and cannot tell it from the owner's (law 4).
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::delay::Wire;
use perigee_testbed::links::{self, Direction};
use perigee_testbed::{Cluster, pattern, program};
use rustix::fs::{Advice, OFlags};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// Until coordinates are known, and the owner has heard of them.
const FOUND: Duration = Duration::from_secs(90);
const SEED: u64 = 20_261_130;
const MIB: usize = 1 << 20;
const FILE: usize = 32 * MIB;
const OWNER: u32 = 1;

struct Stage {
    cluster: Cluster,
    mounts: Vec<PathBuf>,
    /// The member that is at the site of the reader.
    near: u32,
    /// It has no copy.
    reader: u32,
}

impl Stage {
    /// Four hosts, three of which have copies: the owner and one of them at one site, the near one and the reader at another.
    fn set() -> Self {
        let (mut cluster, roots) = hosts(4, [1, 2, 3, 4]);
        let directory = roots[0].join("d");
        fs::create_dir(&directory).unwrap();
        let place = directory.to_string_lossy().into_owned();
        let set = ["policy", "set", &place, "copies=3", "migration=off"];
        let set = cluster.command(&set).unwrap();
        assert!(set.status.success(), "{}", set.stderr);
        let file = File::create(directory.join("f")).unwrap();
        let mut bytes = vec![0; FILE];
        pattern::fill(SEED, 0, &mut bytes);
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        cluster.settle().unwrap();
        assert_eq!(cluster.owner(&directory).unwrap(), OWNER);
        let told = cluster.command(&["where", "--json", &place]).unwrap();
        let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
        let copies = told["copies"].as_array().unwrap().iter();
        let copies: Vec<u64> = copies.map(|copy| copy["node"].as_u64().unwrap()).collect();
        let [1, other, near] = copies[..] else {
            panic!("three copies are not here: {told:#}");
        };
        let (other, near) = (other as u32, near as u32);
        let reader = 10 - OWNER - other - near;
        let wire = Wire::of_round_trip(Duration::from_millis(40));
        for (a, b) in [
            (OWNER, near),
            (OWNER, reader),
            (other, near),
            (other, reader),
        ] {
            cluster.links().unwrap().reroute(a, b, wire).unwrap();
        }
        let mounts = roots.iter().map(|root| root.join("d")).collect();
        Self {
            cluster,
            mounts,
            near,
            reader,
        }
    }

    fn path(&self, host: u32) -> PathBuf {
        self.mounts[host as usize - 1].join("f")
    }

    /// What has come from a host to the reader.
    fn came(&self, from: u32) -> u64 {
        let direction = Direction {
            from,
            to: self.reader,
        };
        let links = self.cluster.links().unwrap();
        links.traffic(&[direction]).unwrap().bytes
    }

    /// Reads at the reader until bytes come from the near member.
    fn wait_until_near(&self) {
        let began = Instant::now();
        loop {
            let before = self.came(self.near);
            _ = read(&self.path(self.reader), 0, 4 * MIB);
            if self.came(self.near) - before > 2 * MIB as u64 {
                eprintln!("near after {:?}", began.elapsed());
                return;
            }
            assert!(
                began.elapsed() < FOUND,
                "nothing comes from the near member"
            );
        }
    }
}

/// Reads past the kernel's pages.
fn read(path: &Path, offset: usize, len: usize) -> Vec<u8> {
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(path).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset as u64).unwrap();
    bytes
}

#[test]
fn bytes_come_from_the_nearest_copy_while_it_answers_and_are_those_of_the_last_write() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let stage = Stage::set();
    stage.wait_until_near();

    let (near, far) = (stage.came(stage.near), stage.came(OWNER));
    let file = File::open(stage.path(stage.reader)).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let mut bytes = vec![0; FILE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(pattern::first_difference(SEED, 0, &bytes), None);
    let (near, far) = (stage.came(stage.near) - near, stage.came(OWNER) - far);
    assert!(
        near > FILE as u64 * 3 / 4 && far < FILE as u64 / 4,
        "{near} bytes from the near member, {far} from the owner"
    );

    let [owner, member, reader] = [OWNER, stage.near, stage.reader].map(|host| {
        let mut options = File::options();
        options.write(true).open(stage.path(host)).unwrap()
    });
    for round in 0..30_u64 {
        let offset = FILE as u64 / 2 + round * 123 * 4_096;
        // A lease is there when the change comes.
        _ = read(&stage.path(stage.reader), offset as usize, 4_096);
        let bytes = [round as u8 + 1; 4_096];
        let writer = [&owner, &member, &reader][round as usize % 3];
        writer.write_all_at(&bytes, offset).unwrap();
        assert_eq!(
            read(&stage.path(stage.reader), offset as usize, 4_096),
            bytes,
            "{round}"
        );
    }

    // It falls silent, and is passed over; it comes back.
    let links = stage.cluster.links().unwrap();
    for direction in links::both(stage.near, stage.reader) {
        links.cut(direction).unwrap();
    }
    for round in 0..20 {
        let began = Instant::now();
        let bytes = read(&stage.path(stage.reader), round * MIB / 2, MIB / 2);
        let offset = (round * MIB / 2) as u64;
        assert_eq!(pattern::first_difference(SEED, offset, &bytes), None);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(3), "read {round} took {took:?}");
    }
    for direction in links::both(stage.near, stage.reader) {
        links.mend(direction).unwrap();
    }
    stage.wait_until_near();
}

#[test]
fn the_first_read_of_a_large_file_comes_from_the_near_member() {
    const LEN: usize = 4 * MIB;
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut stage = Stage::set();
    stage.wait_until_near();
    let [made, seen] = [OWNER, stage.reader].map(|host| stage.path(host).with_file_name("g"));
    let file = File::create(made).unwrap();
    let mut bytes = vec![0; LEN];
    pattern::fill(SEED, 0, &mut bytes);
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    stage.cluster.settle().unwrap();
    let far = stage.came(OWNER);
    let found = fs::read(seen).unwrap();
    assert_eq!(found.len(), LEN);
    assert_eq!(pattern::first_difference(SEED, 0, &found), None);
    let far = stage.came(OWNER) - far;
    assert!(far < MIB as u64 / 2, "{far} bytes from the owner");
}

/// Between hosts that are far from each other.
const FAR: Duration = Duration::from_millis(200);

/// Hosts of a cluster that are near each other so far, some of which have it mounted.
fn hosts<const MOUNTS: usize>(count: u32, mounted: [u32; MOUNTS]) -> (Cluster, [PathBuf; MOUNTS]) {
    let wire = Wire::of_round_trip(Duration::from_micros(150));
    let mut cluster = Cluster::start_far_apart(count, LIMIT, wire).unwrap();
    let roots = mounted.map(|node| cluster.mount(node).unwrap());
    (cluster, roots)
}

/// From here on a host is far from others.
fn part(cluster: &Cluster, host: u32, others: &[u32]) {
    for other in others {
        let wire = Wire::of_round_trip(FAR);
        cluster
            .links()
            .unwrap()
            .reroute(*other, host, wire)
            .unwrap();
    }
}

#[test]
fn a_way_that_was_gone_before_takes_no_round_trip_for_each_directory() {
    const NAMES: [&str; 5] = ["a", "b", "c", "e", "g"];
    let Some(_alone) = program::alone() else {
        return;
    };
    let (mut cluster, [here, there]) = hosts(2, [OWNER, 2]);
    let ways: Vec<PathBuf> = NAMES
        .iter()
        .scan(PathBuf::new(), |way, name| {
            way.push(name);
            Some(way.clone())
        })
        .collect();
    for way in &ways {
        fs::create_dir(here.join(way)).unwrap();
    }
    let file = ways[NAMES.len() - 1].join("f");
    fs::write(here.join(&file), b"text").unwrap();
    cluster.settle().unwrap();
    part(&cluster, 2, &[OWNER]);
    assert_eq!(fs::read(there.join(&file)).unwrap(), b"text");
    // So that what is kept there of each directory ends.
    for way in &ways {
        fs::write(here.join(way).join("other"), b"").unwrap();
    }
    cluster.settle().unwrap();
    let began = Instant::now();
    drop(File::open(there.join(&file)).unwrap());
    let took = began.elapsed();
    // The directories, the file, and what is late.
    assert!(took < FAR * 4, "{took:?}");
    // A way that leads elsewhere now is found out.
    fs::rename(here.join("a/b"), here.join("a/old")).unwrap();
    fs::create_dir_all(here.join("a/b/c/e/g")).unwrap();
    fs::write(here.join(&file), b"other").unwrap();
    assert_eq!(fs::read(there.join(&file)).unwrap(), b"other");
    assert_eq!(fs::read(there.join("a/old/c/e/g/f")).unwrap(), b"text");
    fs::rename(there.join("a/b"), there.join("a/new")).unwrap();
    fs::rename(there.join("a/old"), there.join("a/b")).unwrap();
    assert_eq!(fs::read(there.join(&file)).unwrap(), b"text");
    fs::remove_dir_all(there.join("a/b")).unwrap();
    assert!(!there.join(&file).exists());
}

/// How another host makes a name.
type OthersMake<'a> = &'a dyn Fn(&Path);

#[test]
fn a_file_that_is_made_elsewhere_takes_no_round_trip_to_learn_that_its_name_is_not_there() {
    const FILES: u32 = 8;
    const TRIES: u32 = 8;
    let Some(_alone) = program::alone() else {
        return;
    };
    let (mut cluster, [here, there]) = hosts(2, [OWNER, 2]);
    // One that has names, and stays with its owner.
    fs::create_dir(here.join("d")).unwrap();
    let place = here.join("d").to_string_lossy().into_owned();
    let set = ["policy", "set", &place, "copies=1", "migration=off"];
    let set = cluster.command(&set).unwrap();
    assert!(set.status.success(), "{}", set.stderr);
    for name in 0..100 {
        File::create(here.join(format!("d/old{name}"))).unwrap();
    }
    cluster.settle().unwrap();
    assert_eq!(cluster.owner(&here.join("d")).unwrap(), OWNER);
    part(&cluster, 2, &[OWNER]);
    let make = |directory: &Path| {
        let took = (0..FILES).map(|number| {
            let began = Instant::now();
            File::create_new(directory.join(format!("f{number}"))).unwrap();
            began.elapsed()
        });
        let mut took: Vec<Duration> = took.collect();
        took.sort();
        // As it is once the directory is known, whatever else the machine does.
        took[1]
    };
    let took = make(&there.join("d"));
    assert!(took < FAR * 2, "{took:?} where there are names");
    fs::create_dir(there.join("d/new")).unwrap();
    let took = make(&there.join("d/new"));
    assert!(took < FAR * 2, "{took:?} in a new directory");
    // Whoever else makes a name there is seen, though this host was about to say that there is none.
    let (ours, theirs) = (there.join("d/new"), here.join("d/new"));
    let others: [(&str, OthersMake<'_>); 4] = [
        ("made", &|path| drop(File::create_new(path).unwrap())),
        ("moved", &|path| {
            fs::rename(here.join("d/old1"), path).unwrap();
        }),
        ("linked", &|path| {
            fs::hard_link(here.join("d/old2"), path).unwrap();
        }),
        // From another container.
        ("came", &|path| {
            File::create_new(here.join("elsewhere")).unwrap();
            fs::rename(here.join("elsewhere"), path).unwrap();
        }),
    ];
    for (name, others_make) in others {
        // Names are known for as long as those of the way to them, which may just have to be asked for anew.
        let mut took = Vec::new();
        let known = (0..TRIES).find_map(|number| {
            File::create_new(ours.join(format!("{name}{number}"))).unwrap();
            let absent = format!("{name}-{number}");
            let began = Instant::now();
            assert!(!ours.join(&absent).exists());
            took.push(began.elapsed());
            (began.elapsed() < FAR).then_some(absent)
        });
        let Some(absent) = known else {
            panic!("{took:?}: names are not known before {name}");
        };
        others_make(&theirs.join(&absent));
        assert!(ours.join(&absent).exists(), "{name}");
        let refused = File::create_new(ours.join(&absent)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
    }
}

#[test]
fn what_is_small_is_safe_after_one_round_trip_to_the_farthest_member_and_other_bytes_after_two() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let (mut cluster, [root, elsewhere]) = hosts(3, [OWNER, 3]);
    let place = root.to_string_lossy().into_owned();
    let set = cluster.command(&["policy", "set", &place, "migration=off"]);
    let set = set.unwrap();
    assert!(set.status.success(), "{}", set.stderr);
    // Past the daemon and through it, as keys, and by another host. The record carries few bytes; others are asked for, which
    // is a round trip more.
    let files = [
        ("large", &root, MIB, 4_096, 1),
        ("small", &root, 4_096, 4_096, 1),
        ("abroad", &elsewhere, MIB, 4_096, 1),
        ("much", &root, MIB, 256 << 10, 2),
        ("much-abroad", &elsewhere, MIB, 256 << 10, 2),
    ];
    let files = files.map(|(name, root, len, written, trips)| {
        let file = File::create(root.join(name)).unwrap();
        file.write_all_at(&vec![1; len], 0).unwrap();
        file.sync_all().unwrap();
        (name, file, written, trips)
    });
    cluster.settle().unwrap();
    assert_eq!(cluster.owner(&root).unwrap(), OWNER);
    part(&cluster, 2, &[OWNER, 3]);
    for (name, file, written, trips) in files {
        let took = (0..5).map(|round| {
            let bytes = vec![round; written];
            let began = Instant::now();
            file.write_all_at(&bytes, 0).unwrap();
            let written = began.elapsed();
            file.sync_all().unwrap();
            match name {
                // Answered when every member has it; its `fsync` asks them again.
                "abroad" | "much-abroad" => written,
                _ => began.elapsed(),
            }
        });
        let mut took: Vec<Duration> = took.collect();
        took.sort();
        // What the disks take comes on top.
        let most = FAR * trips + FAR / 2;
        assert!(took[2] < most, "{name}: {took:?}");
    }
}
