//! The control store is lost for good: a new one is made from what the nodes know, and nothing else is lost.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_net::identity::PendingKey;
use perigee_testbed::{Cluster, program, wait};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::Duration;

fn content(number: u32) -> Vec<u8> {
    (0..60_000 + number * 7)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ number as u8)
        .collect()
}

fn write_synced(dir: &Path, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let path = dir.join(format!("f{number}"));
        fs::write(&path, content(number)).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    fs::File::open(dir).unwrap().sync_all().unwrap();
}

fn check(dir: &Path, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let found = fs::read(dir.join(format!("f{number}"))).unwrap();
        assert!(found == content(number), "f{number} has other bytes");
    }
}

/// Waits until all four nodes are there, and every container has its copies.
fn whole(cluster: &mut Cluster) {
    let looked = wait::until("nothing is missing", Duration::from_secs(60), || {
        let status = cluster.on_this(&["status"])?;
        Ok(status.status.success().then_some(()))
    });
    looked.unwrap();
}

/// What a command that fails says.
fn refusal(cluster: &mut Cluster, arguments: &[&str]) -> String {
    let ended = cluster.on_this(arguments).unwrap();
    assert!(!ended.status.success(), "{arguments:?} was done");
    ended.stderr
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_lost_control_store_is_made_anew_from_the_nodes() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    // A fourth node, on what is another machine to all commands.
    let elsewhere = cluster.path().join("elsewhere");
    let elsewhere = elsewhere.to_str().unwrap();
    let file = cluster.path().join("elsewhere.inventory");
    let file = file.to_str().unwrap();
    let token = cluster.perigee(&["token", "--json"]).unwrap();
    let token = json(&token)["token"].as_str().unwrap().to_owned();
    let there = |arguments: &[&'static str]| -> Vec<String> {
        let all = arguments.iter().copied().chain(["--dir", elsewhere]);
        all.map(str::to_owned).collect()
    };
    let joined = [
        "join",
        &token,
        "--listen",
        "127.0.0.1:0",
        "--name",
        "far",
        "--dir",
        elsewhere,
    ];
    assert!(cluster.command(&joined).unwrap().status.success());
    let mount = cluster.mount(1).unwrap();
    write_synced(&mount, 0..20);
    // A container that is younger than the other nodes' first copies, with a policy of its own.
    fs::create_dir(mount.join("two")).unwrap();
    let two = mount.join("two").to_str().unwrap().to_owned();
    let set = cluster.command(&["policy", "set", &two, "copies=2"]);
    assert!(set.unwrap().status.success());
    write_synced(&mount.join("two"), 20..30);
    whole(&mut cluster);

    // Everything dies, and the control store's disk does not come back.
    for id in cluster.ids() {
        cluster.kill(id, Signal::KILL).unwrap();
    }
    cluster.perigee(&["down"]).unwrap();
    assert!(cluster.command(&there(&["down"])).unwrap().status.success());
    fs::remove_dir_all(cluster.dir().join("control")).unwrap();

    let missing = refusal(&mut cluster, &["rebuild"]);
    assert!(missing.contains("what far knows is missing"), "{missing}");
    assert!(missing.contains("perigee inventory"), "{missing}");
    let taken = cluster.command(&["inventory", file, "--dir", elsewhere]);
    assert!(taken.unwrap().status.success());
    let wrong = refusal(
        &mut cluster,
        &["rebuild", "--with", file, "--lost", "node-1"],
    );
    assert!(wrong.contains("was named as lost"), "{wrong}");
    let rebuilt = json(
        &cluster
            .perigee(&["rebuild", "--with", file, "--json"])
            .unwrap(),
    );
    assert_eq!(rebuilt["nodes"], 4, "{rebuilt}");
    assert_eq!(
        rebuilt["unserved"].as_array().unwrap().len(),
        0,
        "{rebuilt}"
    );
    let sources = rebuilt["inventories"].as_array().unwrap();
    let revisions: Vec<_> = sources.iter().map(|one| one["revision"].as_u64()).collect();
    assert!(revisions.is_sorted_by(|a, b| a >= b), "{rebuilt}");
    for source in sources {
        let (changed, taken) = (&source["changed_secs"], &source["taken_secs"]);
        assert!(
            changed.as_i64() > Some(0) && changed.as_i64() <= taken.as_i64(),
            "{source}"
        );
        assert!(!source["held"].as_array().unwrap().is_empty(), "{source}");
    }
    assert_eq!(rebuilt["lost"], serde_json::json!([]), "{rebuilt}");
    let again = rebuilt["tokens"][0].clone();
    assert_eq!(again["name"], "far", "{rebuilt}");
    let twice = refusal(&mut cluster, &["rebuild", "--with", file]);
    assert!(twice.contains("there is one"), "{twice}");

    cluster.up().unwrap();
    // A `join --again` that was cut off has left its key, which a start in vain leaves where it is.
    let identity = Path::new(elsewhere).join("node-1/identity");
    let asked = PendingKey::create(&identity).unwrap();
    let ended = cluster.command(&there(&["up"])).unwrap();
    let hint = "perigee join --again TOKEN";
    assert!(ended.stderr.contains(hint), "{}", ended.stderr);
    let kept = PendingKey::load(&identity).unwrap().unwrap();
    assert_eq!(kept.request(), asked.request());
    let ended = cluster.command(&there(&["inventory", "--undo"])).unwrap();
    let why = "a control store was made anew";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    // The token is lost. Another one is good, and the lost one is not any more, whoever finds it.
    let unknown = refusal(&mut cluster, &["token", "--again", "nobody"]);
    assert!(unknown.contains("no node of the cluster"), "{unknown}");
    let another = cluster.perigee(&["token", "--again", "far"]).unwrap();
    let lost = again["token"].as_str().unwrap();
    let back = |token| ["join", "--again", token, "--dir", elsewhere];
    let ended = cluster.command(&back(lost)).unwrap();
    assert!(!ended.status.success(), "a token that another replaced");
    let hint = "perigee token --again far";
    assert!(ended.stderr.contains(hint), "{}", ended.stderr);
    let ended = cluster.command(&back(another.trim())).unwrap();
    assert!(ended.status.success(), "{}", ended.stderr);
    let needless = refusal(&mut cluster, &["token", "--again", "far"]);
    assert!(needless.contains("signs of life"), "{needless}");
    for id in [1, 2] {
        let mount = cluster.mount(id).unwrap();
        check(&mount, 0..20);
        check(&mount.join("two"), 20..30);
        let policy = ["policy", "get", &two, "--json"];
        let policy = json(&cluster.command(&policy).unwrap().stdout);
        let copies: Vec<_> = policy.as_array().unwrap().iter().collect();
        assert_eq!(copies[0]["key"], "copies", "{policy}");
        assert_eq!(copies[0]["value"], "2", "{policy}");
    }
    // The cluster is one like any other: it takes writes, loses a node, and lets new ones in.
    write_synced(&mount, 30..40);
    whole(&mut cluster);
    cluster.kill(3, Signal::KILL).unwrap();
    check(&cluster.mount_point(2), 0..20);
    check(&cluster.mount_point(2), 30..40);
    cluster.perigee(&["up", "--nodes", "4"]).unwrap();
    assert!(cluster.command(&there(&["down"])).unwrap().status.success());
}

/// Nothing stands for a lost node but its name: the others go on, also where it was the owner, and give what they have
/// synced to a new node.
#[test]
fn a_node_that_is_lost_with_the_control_store_is_given_up() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    for id in cluster.ids() {
        let mount = cluster.mount(id).unwrap();
        write_synced(&mount, id * 10..id * 10 + 10);
    }
    whole(&mut cluster);
    for id in cluster.ids() {
        cluster.kill(id, Signal::KILL).unwrap();
    }
    cluster.perigee(&["down"]).unwrap();
    fs::remove_dir_all(cluster.dir().join("control")).unwrap();
    fs::remove_dir_all(cluster.dir().join("node-1")).unwrap();

    let missing = refusal(&mut cluster, &["rebuild"]);
    assert!(
        missing.contains("what node-1 knows is missing"),
        "{missing}"
    );
    let rebuilt = ["rebuild", "--lost", "node-1", "--json"];
    let rebuilt = json(&cluster.perigee(&rebuilt).unwrap());
    assert_eq!(rebuilt["nodes"], 2, "{rebuilt}");
    assert_eq!(rebuilt["unserved"], serde_json::json!([]), "{rebuilt}");
    assert_eq!(rebuilt["lost"][0]["name"], "node-1", "{rebuilt}");
    let was_in = rebuilt["lost"][0]["containers"].as_array().unwrap();
    assert_eq!(was_in.len(), 3, "{rebuilt}");

    cluster.perigee(&["up", "--nodes", "3"]).unwrap();
    whole(&mut cluster);
    let nodes = json(&cluster.on_this(&["status", "--json"]).unwrap().stdout)["nodes"].clone();
    let ids: Vec<_> = nodes.as_array().unwrap().iter().collect();
    assert_eq!(ids.len(), 3, "{nodes}");
    assert!(ids.iter().all(|node| node["id"] != 1), "{nodes}");
    for id in [2, 3] {
        let mount = cluster.mount(id).unwrap();
        for written in [10, 20, 30] {
            check(&mount, written..written + 10);
        }
        write_synced(&mount, 40 + id..41 + id);
    }
}

/// Its old control store answers still, and another one may have been made of what it knows.
#[test]
fn a_node_whose_inventory_was_given_away_does_not_start_until_that_is_taken_back() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let far = cluster.path().join("far");
    let far = far.to_str().unwrap();
    let file = cluster.path().join("far.inventory");
    let file = file.to_str().unwrap();
    let token = cluster.perigee(&["token", "--json"]).unwrap();
    let token = json(&token)["token"].as_str().unwrap().to_owned();
    let listen = ["--listen", "127.0.0.1:0", "--name", "far"];
    let join: Vec<&str> = ["join", &token].into_iter().chain(listen).collect();
    let done = |cluster: &mut Cluster, arguments: &[&str]| {
        let all = arguments.iter().copied().chain(["--dir", far]);
        let ended = cluster.command(&all.collect::<Vec<_>>()).unwrap();
        (ended.status.success(), ended.stdout + &ended.stderr)
    };
    assert!(done(&mut cluster, &join).0);
    let (taken, said) = done(&mut cluster, &["inventory", file]);
    assert!(!taken && said.contains("its node runs"), "{said}");
    let (started, said) = done(&mut cluster, &["up"]);
    assert!(
        started,
        "an inventory that was not taken keeps nobody: {said}"
    );
    assert!(done(&mut cluster, &["down"]).0);
    assert!(done(&mut cluster, &["inventory", file]).0);

    let (started, said) = done(&mut cluster, &["up"]);
    assert!(!started, "{said}");
    assert!(said.contains("its inventory was taken"), "{said}");
    assert!(said.contains("perigee join --again TOKEN"), "{said}");
    let (back, said) = done(&mut cluster, &["inventory", "--undo"]);
    assert!(back && said.contains("node-1 may start again"), "{said}");
    let (started, said) = done(&mut cluster, &["up"]);
    assert!(started, "{said}");
    whole(&mut cluster);
    assert!(done(&mut cluster, &["down"]).0);
}
