//! Files of four hosts by a fifth one: through the union, through `sshfs` of one of them, and through `mergerfs` over `sshfs`
//! of all four.
//!
//! One system is mounted at a time, by root on host 0, and mounted anew before whatever shall be cold. All processes and the
//! network between them are this machine's.
//!
//! Read [`row`] (what is measured), [`system`] (by what), [`session`] (how).

mod report;
mod row;
mod session;
mod system;

pub use report::{store, table};
pub use row::{Act, Place, Row};
pub use system::System;

use super::ground;
use perigee_testbed::delay::Lateness;
use perigee_testbed::ssh_hosts::{Plan, SshHosts};
use perigee_testbed::{Checked, ensure};
use session::Field;
use std::collections::BTreeMap;
use std::time::Duration;

/// Hosts besides the one that mounts.
const HOSTS: u32 = 4;
/// One system in one round; what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(1_800);

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// From each host to each other one and back; one network after the other.
    pub round_trips: Vec<Duration>,
    /// MiB of the large file.
    pub mib: u64,
    /// Small files in each directory.
    pub files: u32,
    /// Files of each tree.
    pub tree: u32,
    /// Rounds; each measures every row of every system once.
    pub rounds: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            round_trips: vec![Duration::from_micros(150), Duration::from_millis(20)],
            mib: 256,
            files: 500,
            tree: 2_000,
            rounds: 5,
        }
    }
}

/// All values of all systems, in the order of the rounds.
pub type Series = BTreeMap<(Row, System), Vec<f64>>;

/// What was measured at one distance.
#[derive(Debug)]
pub struct Distance {
    /// From each host to each other one and back.
    pub round_trip: Duration,
    /// The values, in each row's unit.
    pub series: Series,
    /// How late packets were.
    pub late: Lateness,
}

/// Runs all; `tell` hears of each part before it begins.
///
/// Errors: the first call that fails, content that is not what was written, or a program that is not installed.
pub fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Checked<Vec<Distance>> {
    ensure!(
        settings.tree >= session::DIRECTORIES,
        "a tree has {} directories, and so many files at least",
        session::DIRECTORIES
    );
    let all = settings.round_trips.iter();
    all.map(|round_trip| run_at(settings, *round_trip, &mut tell))
        .collect()
}

fn run_at(
    settings: &Settings,
    round_trip: Duration,
    tell: &mut impl FnMut(&str),
) -> Checked<Distance> {
    let hosts: SshHosts = Plan::of(HOSTS).one_way(|_, _| round_trip / 2).start()?;
    let mut field = Field::new(&hosts, settings)?;
    let mut series = Series::new();
    for round in 1..=settings.rounds {
        for turn in 0..System::ALL.len() {
            // Who comes first changes with the round.
            let system = System::ALL[(round as usize + turn) % System::ALL.len()];
            tell(&format!(
                "{round_trip:?}: round {round} of {}: {}",
                settings.rounds,
                system.title()
            ));
            let measured = ground::watched(&hosts, LIMIT, || field.measure(system));
            for (row, value) in measured.map_err(|error| error.during(system.title()))? {
                series.entry((row, system)).or_default().push(value);
            }
        }
    }
    Ok(Distance {
        round_trip,
        series,
        late: hosts.links().lateness()?,
    })
}
