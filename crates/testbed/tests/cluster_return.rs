//! A node that returns from beyond the log gets what has changed, and nothing else.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::{Cluster, program, wait};
use rustix::fs::XattrFlags;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const FILES: u64 = 48;
const FILE: u64 = 2 * MIB;
/// More than owners keep of their log for who is away.
const LOG: u64 = 40 * MIB;

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut rng = perigee_types::Rng::new(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes());
    words.take(len as usize).collect()
}

fn put(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

fn name(number: u64) -> String {
    format!("file-{number}")
}

/// Bytes that a node has received since it started.
fn received(cluster: &mut Cluster, node: u32) -> u64 {
    let status = cluster.perigee(&["status", "--json", "--node", &node.to_string()]);
    let status: Value = serde_json::from_str(&status.unwrap()).unwrap();
    status["net"]["bytes_received"].as_u64().unwrap()
}

/// Changes that fill the log and change nothing that is left of them.
fn fill_the_log(dir: &Path) {
    let file = dir.join("marked");
    put(&file, b"marked");
    let mut value = vec![0; 32 << 10];
    for round in 0..LOG / value.len() as u64 {
        value.fill(round as u8);
        rustix::fs::setxattr(&file, "user.mark", &value, XattrFlags::empty()).unwrap();
    }
}

/// Some of the files become something else; what they are now, by name.
fn change(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut now = Vec::new();
    for number in 0..FILES {
        let mut content = bytes(number, FILE);
        let path = dir.join(name(number));
        match number {
            0 | 1 => {
                content = bytes(1_000 + number, FILE);
                put(&path, &content);
            }
            // A few bytes.
            2..=5 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(b"changed", MIB + number).unwrap();
                file.sync_all().unwrap();
                let at = (MIB + number) as usize;
                content[at..at + 7].copy_from_slice(b"changed");
            }
            // Shorter, and longer again.
            6 => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(100_000).unwrap();
                file.set_len(FILE).unwrap();
                file.sync_all().unwrap();
                content[100_000..].fill(0);
            }
            7 => {
                fs::remove_file(&path).unwrap();
                continue;
            }
            // Another file of the same name.
            8 => {
                fs::remove_file(&path).unwrap();
                content = bytes(2_000, FILE / 2);
                put(&path, &content);
            }
            _ => {}
        }
        now.push((name(number), content));
    }
    now
}

/// A node is away until the owners have forgotten what it lacks, while `meanwhile` happens; what it received when it came back.
fn away(cluster: &mut Cluster, dir: &Path, meanwhile: impl FnOnce()) -> u64 {
    cluster.kill(3, Signal::KILL).unwrap();
    // Owners keep what it lacks while they take it for one that is about to join.
    wait::until("the chain goes on without the node", LIMIT, || {
        let chains = cluster.chains()?;
        let listed = chains.iter().any(|chain| chain.contains(&3));
        let alive = cluster
            .status()?
            .iter()
            .any(|node| node.id == 3 && node.state == "up");
        Ok((!listed && !alive).then_some(()))
    })
    .unwrap();
    meanwhile();
    fill_the_log(dir);
    cluster.up().unwrap();
    cluster.settle().unwrap();
    received(cluster, 3)
}

#[test]
fn a_node_that_returns_from_beyond_the_log_fetches_what_has_changed() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let dir = cluster.mount(1).unwrap();
    for number in 0..FILES {
        put(&dir.join(name(number)), &bytes(number, FILE));
    }
    cluster.settle().unwrap();
    let mut now = Vec::new();
    let got = away(&mut cluster, &dir, || now = change(&dir));
    println!("{got} bytes of content came");
    // Two whole files and a half one, of what else has changed a piece each, and the last records: some 10 MB. On a busy machine
    // pieces are asked for again, and come twice.
    assert!(got < FILES * FILE / 2, "{got} bytes of content came");

    // Its copy alone tells what there is.
    let there = cluster.mount(3).unwrap();
    for node in [1, 2] {
        cluster.kill(node, Signal::KILL).unwrap();
    }
    for (name, content) in now {
        assert!(fs::read(there.join(&name)).unwrap() == content, "{name}");
    }
    assert!(!there.join(name(7)).exists());
}
