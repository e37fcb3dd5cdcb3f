//! `perigee where`, `status` and `locate`: how much is done in a container, who answers it, and who has its bytes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// A program in the place of another one, for a script that calls it by its name.
fn stand_in(folder: &Path, name: &str, script: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn work_is_brought_to_the_hosts_that_have_its_data() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let roots: Vec<PathBuf> = (1..=3).map(|node| cluster.mount(node).unwrap()).collect();
    // One directory of each node, whose files lie there alone.
    let mut texts = Vec::new();
    for (node, root) in (1..).zip(&roots) {
        let folder = root.join(format!("of{node}"));
        fs::create_dir(&folder).unwrap();
        let place = folder.to_string_lossy().into_owned();
        let set = ["policy", "set", &place, "copies=1", "migration=off"];
        let set = cluster.command(&set).unwrap();
        assert!(set.status.success(), "{}", set.stderr);
        assert_eq!(cluster.owner(&folder).unwrap(), node);
        for number in 0..4 {
            let text = folder.join(format!("t{node}-{number}.txt"));
            fs::write(&text, "four words of text\n".repeat(5_000 * node as usize)).unwrap();
            texts.push((node, roots[0].join(text.strip_prefix(root).unwrap())));
        }
    }
    let all = roots[0].join("texts");
    fs::create_dir(&all).unwrap();
    for (_, text) in &texts {
        fs::hard_link(text, all.join(text.file_name().unwrap())).unwrap();
    }

    let shown: Vec<String> = texts
        .iter()
        .map(|(_, text)| text.to_string_lossy().into_owned())
        .collect();
    let mut ask = vec!["locate", "--json"];
    ask.extend(shown.iter().map(String::as_str));
    let located = json(&mut cluster, &ask);
    for ((node, text), file) in texts.iter().zip(located["files"].as_array().unwrap()) {
        let size = fs::metadata(text).unwrap().len();
        assert_eq!(file["path"], text.to_string_lossy().into_owned());
        let pieces = serde_json::json!([{ "start": 0, "end": size, "nodes": [node] }]);
        assert_eq!(file["pieces"], pieces, "{file:#}");
    }
    // The third node's are the longest.
    let best = cluster
        .command(&[&["locate", "--best"], &ask[2..]].concat())
        .unwrap();
    assert_eq!(best.stdout, "node-3\n", "{}", best.stderr);
    let folder = roots[0].join("of1").to_string_lossy().into_owned();
    let odd = cluster.command(&["locate", &folder]).unwrap();
    assert_eq!(odd.status.code(), Some(3), "{}{}", odd.stdout, odd.stderr);

    // Both examples, with something else in the place of what runs a command on a host.
    let bin = cluster.path().join("bin");
    let log = cluster.path().join("ran");
    fs::create_dir(&bin).unwrap();
    let noted = format!("echo \"$1 $2\" >> '{}'", log.display());
    stand_in(&bin, "fake-ssh", &format!("{noted}\nexec sh -c \"$2\""));
    stand_in(&bin, "sbatch", &format!("{noted}\nexec sh -c \"$3\""));
    let perigee = program::perigee().unwrap();
    stand_in(
        &bin,
        "perigee",
        &format!("exec '{}' \"$@\"", perigee.display()),
    );
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/locate");
    let run = |program: &mut Command| {
        let ended = program.env("PATH", &path).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{said}");
    };
    run(Command::new("make")
        .arg("-C")
        .arg(&examples)
        .args([&format!("DATA={}", all.display()), "RUN=fake-ssh"]));
    let total = fs::read_to_string(all.join("total")).unwrap();
    assert_eq!(total.trim(), (4 * 4 * 5_000 * (1 + 2 + 3)).to_string());
    let ran = fs::read_to_string(&log).unwrap();
    assert_eq!(ran.lines().count(), texts.len());
    for (node, text) in &texts {
        let name = text.file_name().unwrap().to_str().unwrap();
        let of_it = ran.lines().find(|line| line.contains(name)).unwrap();
        assert!(of_it.starts_with(&format!("node-{node} ")), "{of_it}");
    }
    fs::remove_file(&log).unwrap();
    run(Command::new(examples.join("slurm.sh"))
        .arg("wc -w")
        .args(&shown));
    let ran = fs::read_to_string(&log).unwrap();
    let mut hosts: Vec<&str> = ran
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    hosts.sort_unstable();
    let expected = [
        "--nodelist=node-1",
        "--nodelist=node-2",
        "--nodelist=node-3",
    ];
    assert_eq!(hosts, expected, "{ran}");
}
