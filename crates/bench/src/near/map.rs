//! How right the map of four sites is.

use super::LIMIT;
use perigee_testbed::delay::Wire;
use perigee_testbed::sites::{self, HOSTS, RIGHT, Sites};
use perigee_testbed::{CheckError, Checked, Cluster};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// From a change of the network until the map is looked at.
const MINUTE: Duration = Duration::from_secs(60);
/// How often the map is looked at meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// How the map followed the network.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Followed {
    /// The relative error of what it says of all pairs of hosts, in the middle, after a minute. By the lengths of the wires.
    pub median_error: f64,
    /// Seconds until that was below a tenth.
    pub right_after_seconds: f64,
}

/// What was measured of the map.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Map {
    /// After the nodes were put where they are.
    pub placed: Followed,
    /// After routes had changed.
    pub rerouted: Followed,
}

impl Map {
    /// Lays the net, and draws the map that `perigee topo` has of it after a minute.
    ///
    /// Errors: a command that fails, or a map that is not right in time.
    pub fn measure(picture: Option<&Path>) -> Checked<Self> {
        let short = Wire::of_round_trip(Duration::from_micros(150));
        let mut cluster = Cluster::start_far_apart(HOSTS, LIMIT, short)?;
        let placed = follow(&mut cluster, Sites::FOUR)?;
        if let Some(picture) = picture {
            let file = picture.to_string_lossy().into_owned();
            sites::topo(&mut cluster, &["--svg", &file])?;
        }
        let rerouted = follow(&mut cluster, Sites::REROUTED)?;
        Ok(Self { placed, rerouted })
    }
}

fn follow(cluster: &mut Cluster, sites: Sites) -> Checked<Followed> {
    sites.lay(cluster)?;
    let began = Instant::now();
    let mut right_after = None;
    loop {
        let wrong = sites.wrong(cluster)?;
        if wrong < RIGHT {
            right_after.get_or_insert(began.elapsed());
        }
        if began.elapsed() >= MINUTE {
            let right_after = right_after.ok_or_else(|| {
                CheckError::violated(format!("the map is off by {wrong:.2} after a minute"))
            })?;
            return Ok(Followed {
                median_error: wrong,
                right_after_seconds: right_after.as_secs_f64(),
            });
        }
        std::thread::sleep(LOOK);
    }
}
