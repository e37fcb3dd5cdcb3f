//! Four sites of two hosts each, and how right a map of them is.

use crate::cluster::Cluster;
use crate::delay::Wire;
use crate::error::{CheckError, Checked};
use serde_json::Value;
use std::time::Duration;

/// So many hosts: 1 and 2 are at the first site, 3 and 4 at the second, and so on.
pub const HOSTS: u32 = 8;
/// A map is right when it is off by less, in the middle of all pairs of hosts.
pub const RIGHT: f64 = 0.1;

/// The site of a host, counted from 0; a host 0 is at the first.
#[must_use]
pub fn site(host: u32) -> u32 {
    host.saturating_sub(1) / 2
}

/// Milliseconds from site to site and back.
#[derive(Debug, Clone, Copy)]
pub struct Sites([[f64; 4]; 4]);

impl Sites {
    /// As places of one country, and one beyond.
    pub const FOUR: Self = Self([
        [0.15, 5.0, 12.0, 30.0],
        [5.0, 0.15, 8.0, 25.0],
        [12.0, 8.0, 0.15, 18.0],
        [30.0, 25.0, 18.0, 0.15],
    ]);
    /// The same after the first site has been moved next to the last one.
    pub const REROUTED: Self = Self([
        [0.15, 26.0, 20.0, 4.0],
        [26.0, 0.15, 8.0, 25.0],
        [20.0, 8.0, 0.15, 18.0],
        [4.0, 25.0, 18.0, 0.15],
    ]);

    /// Milliseconds from one host to another and back; a host 0 is at the first site.
    #[must_use]
    pub fn between(&self, a: u32, b: u32) -> f64 {
        self.0[site(a) as usize][site(b) as usize]
    }

    /// Lays the wires of a cluster of [`HOSTS`] hosts.
    ///
    /// Errors: those of [`crate::links::Links::reroute`].
    pub fn lay(&self, cluster: &Cluster) -> Checked {
        for (a, b) in pairs() {
            let wire = Wire::of_round_trip(Duration::from_secs_f64(self.between(a, b) / 1e3));
            cluster.links()?.reroute(a, b, wire)?;
        }
        Ok(())
    }

    /// How wrong the map of the first host is about what lies between all hosts, in the middle: by the lengths of the wires, not
    /// by what nodes have measured. Infinite while some host is not on it.
    ///
    /// Errors: `perigee topo` fails.
    pub fn wrong(&self, cluster: &mut Cluster) -> Checked<f64> {
        let topology: Value = serde_json::from_str(&topo(cluster, &["--json"])?)
            .map_err(|error| CheckError::violated(format!("`topo --json`: {error}")))?;
        let at = |host: u32| {
            let at = &topology["nodes"][host as usize - 1]["at"];
            let number = |name: &str| at[name].as_f64();
            Some((number("x_us")?, number("y_us")?, number("height_us")?))
        };
        let error = |(a, b)| {
            let is = self.between(a, b) * 1e3;
            match (at(a), at(b)) {
                (Some(from), Some(to)) => {
                    let predicted = (from.0 - to.0).hypot(from.1 - to.1) + from.2 + to.2;
                    (predicted - is).abs() / is
                }
                _ => f64::INFINITY,
            }
        };
        let mut errors: Vec<f64> = pairs().map(error).collect();
        errors.sort_by(f64::total_cmp);
        Ok(errors[errors.len() / 2])
    }
}

fn pairs() -> impl Iterator<Item = (u32, u32)> {
    (1..=HOSTS).flat_map(|a| (a + 1..=HOSTS).map(move |b| (a, b)))
}

/// What `perigee topo` says on the first host.
///
/// Errors: it fails.
pub fn topo(cluster: &mut Cluster, arguments: &[&str]) -> Checked<String> {
    let dir = cluster.machine(1).to_string_lossy().into_owned();
    let all = [&["topo", "--dir", &dir], arguments].concat();
    let ended = cluster.command(&all)?;
    crate::ensure!(ended.status.success(), "topo: {}", ended.stderr);
    Ok(ended.stdout)
}
