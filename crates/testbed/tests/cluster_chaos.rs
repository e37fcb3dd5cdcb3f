//! The short form of `make chaos`: a few strikes on five nodes, under programs that check every promise.

use perigee_testbed::chaos::nemesis::Kind;
use perigee_testbed::{chaos, program};
use std::time::Duration;

#[test]
fn every_promise_outlives_a_few_strikes() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut kinds = vec![Kind::Kill, Kind::Stop, Kind::Wipe, Kind::KillAll];
    if rustix::process::geteuid().is_root() {
        kinds.extend([Kind::Full, Kind::Fail, Kind::Jump]);
        kinds.extend([Kind::Cut, Kind::Part, Kind::Deafen]);
    }
    if program::other_perigee().is_some() {
        kinds.push(Kind::Swap);
    } else {
        eprintln!("skipped: another build, which PERIGEE_OTHER_BIN would name");
    }
    let settings = chaos::Settings {
        nodes: 5,
        time: Duration::ZERO,
        seed: 3,
        disks: chaos::Disks::default(),
        sites: None,
        kinds: kinds.clone(),
    };
    let outcome = chaos::run(&settings, |line| eprintln!("{line}")).unwrap();
    assert!(kinds.iter().all(|kind| outcome.strikes.contains_key(kind)));
}
