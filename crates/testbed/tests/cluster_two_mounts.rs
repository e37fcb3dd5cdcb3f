//! Two mounts of two nodes are one file system: laws 1, 3 and 4 as programs see them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::checks::{cuts, model, two_mounts};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{Cluster, program};
use std::fs;

/// The seed of the random operations; another one is given by `PERIGEE_TEST_SEED`.
const SEED: u64 = 20_261_121;

#[test]
fn what_one_host_did_the_other_sees_at_once() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());

    let failures = two_mounts::run(&first, &second);
    assert!(failures.is_empty(), "{failures:#?}");

    random_operations_agree_with_a_local_directory(&first, &second);
    cluster.umount(2).unwrap();
    cluster.umount(1).unwrap();
}

#[test]
fn no_read_waits_for_ever_beside_the_cuts_of_other_hosts() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mounts = [1, 2, 3].map(|node| cluster.mount(node).unwrap());
    let [home, others @ ..] = &mounts;
    cuts::run(home, others, SEED).unwrap();
    for node in [1, 2, 3] {
        cluster.umount(node).unwrap();
    }
}

fn random_operations_agree_with_a_local_directory(
    first: &std::path::Path,
    second: &std::path::Path,
) {
    let seed = std::env::var("PERIGEE_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(SEED);
    let local = Workspace::new().unwrap();
    let model = local.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::create_dir(first.join("model")).unwrap();
    let hosts = vec![first.join("model"), second.join("model")];
    model::run(&model::Sides { hosts, model }, seed, 4_000).unwrap();
}
