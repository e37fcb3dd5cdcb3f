//! `perigee topo`: a map of the network that follows it.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::delay::Wire;
use perigee_testbed::sites::{self, HOSTS, RIGHT, Sites};
use perigee_testbed::{Cluster, program};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(400);
/// From a change of the network until the map is right again.
const MINUTE: Duration = Duration::from_secs(60);

/// Waits until the map is right.
fn settles(cluster: &mut Cluster, sites: Sites) {
    sites.lay(cluster).unwrap();
    let began = Instant::now();
    loop {
        let wrong = sites.wrong(cluster).unwrap();
        if wrong < RIGHT {
            eprintln!("right after {:?}: {wrong:.3}", began.elapsed());
            return;
        }
        assert!(began.elapsed() < MINUTE, "{wrong}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn the_map_of_four_sites_is_right_within_a_minute_and_again_after_routes_change() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let wire = Wire::of_round_trip(Duration::from_micros(150));
    let mut cluster = Cluster::start_far_apart(HOSTS, LIMIT, wire).unwrap();
    settles(&mut cluster, Sites::FOUR);
    settles(&mut cluster, Sites::REROUTED);

    let picture = cluster.path().join("map.svg");
    let svg = picture.to_string_lossy().into_owned();
    let text = sites::topo(&mut cluster, &["--svg", &svg]).unwrap();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(
        (1..=HOSTS).all(|host| text.contains(&format!("* n{host}"))),
        "{text}"
    );
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert_eq!(drawn.matches("<circle").count(), HOSTS as usize);
}
