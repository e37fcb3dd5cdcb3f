//! `perigee where` and `status`: how much is done in a container, and who answers it.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn json(cluster: &mut Cluster, arguments: &[&str]) -> Value {
    let ended = cluster.command(arguments).unwrap();
    assert!(ended.status.success(), "{arguments:?}: {}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn make_files(folder: &Path, name: &str) {
    (0..200).for_each(|number| fs::write(folder.join(format!("{name}{number}")), "x").unwrap());
}

/// What `where` says of the programs of one host.
fn host(placement: &Value, node: u32) -> &Value {
    let mut hosts = placement["hosts"].as_array().unwrap().iter();
    hosts.find(|host| host["node"] == node).unwrap()
}

#[test]
fn where_tells_how_much_is_done_and_who_answered_it() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    let folder = here.join("d").to_string_lossy().into_owned();
    fs::create_dir(&folder).unwrap();
    cluster
        .command(&["policy", "set", &folder, "migration=off"])
        .unwrap();
    let placement = json(&mut cluster, &["where", "--json", &folder]);
    assert_eq!(placement["owner"], 1);
    make_files(&here.join("d"), "near");
    let placement = json(&mut cluster, &["where", "--json", &folder]);
    // 200 files are some 400 changes: 7 a second over a minute, however fast they were made.
    let writes = placement["heat"]["here"]["writes_per_second"].as_f64();
    assert!(writes.unwrap() > 2.0, "{placement:#}");
    assert!(host(&placement, 1)["local_calls"].as_f64().unwrap() > 0.95);
    assert_eq!(host(&placement, 2)["local_calls"], Value::Null);

    make_files(&there.join("d"), "far");
    let placement = json(&mut cluster, &["where", "--json", &folder]);
    assert!(host(&placement, 1)["local_calls"].as_f64().unwrap() > 0.95);
    assert!(
        host(&placement, 2)["local_calls"].as_f64().unwrap() < 0.3,
        "{placement:#}"
    );
    let all = placement["local_calls"].as_f64().unwrap();
    assert!((0.2..0.8).contains(&all), "{placement:#}");
    let asked = placement["heat"]["asked"]["writes_per_second"].as_f64();
    assert!(asked.unwrap() > 2.0, "{placement:#}");

    let text = cluster.command(&["where", &folder]).unwrap().stdout;
    assert!(text.contains("reads/s") && text.contains("LOCAL"), "{text}");
    // The path itself is as long as it is.
    let fits = |line: &str| line.contains(&folder) || line.chars().count() <= 80;
    assert!(text.lines().all(fits), "{text}");
    let status = cluster.on_this(&["status", "--json"]).unwrap();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert!(status["nodes"][0]["local_calls"].as_f64().unwrap() > 0.9);
    assert!(status["nodes"][1]["local_calls"].as_f64().unwrap() < 0.5);
}
