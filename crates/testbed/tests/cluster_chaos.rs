//! The short form of `make chaos`: a few strikes on five nodes, under programs that check every promise.

use perigee_testbed::chaos::nemesis::Kind;
use perigee_testbed::{chaos, program};
use std::time::Duration;

#[test]
fn every_promise_outlives_a_few_strikes() {
    if let Some(reason) = program::why_no_cluster() {
        return eprintln!("{reason}");
    }
    let settings = chaos::Settings {
        nodes: 5,
        time: Duration::from_secs(45),
        seed: 3,
        kinds: Kind::USUAL.to_vec(),
    };
    let outcome = chaos::run(&settings, |line| eprintln!("{line}")).unwrap();
    assert!(!outcome.strikes.is_empty());
}
