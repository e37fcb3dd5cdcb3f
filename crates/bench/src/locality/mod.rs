//! Locality: what it costs to write where another host is the owner, and what it brings that ownership moves to who writes.
//!
//! Each node is a process on a host of its own, and every packet between two hosts takes its time
//! ([`perigee_testbed::delay`]). The rows are those of the paper that the protocol is from (AwareFS, its Tables 4, 6
//! and 7): files of one node that all nodes rewrite, random writes into a file that another node made, and how many chunks
//! belong to somebody else after that. Besides there are the
//! two ways in which moving could do harm, two hosts that take turns, and a look at what a write at home needs of the network.
//!
//! Where the version under test has no policy `migration`, the rows that need it are left out, and the table says so.
//!
//! Read [`case`] (what is compared), [`field`] (where it is measured), then the jobs.

mod case;
mod chunks;
mod contend;
mod field;
mod home;
mod names;
mod random;
mod report;
mod rewrite;

pub use case::{Case, Job, Side};
pub use chunks::Moved;
pub use field::Sample;
pub use report::{store, table};

use field::Field;
use perigee_testbed::delay::{Lateness, Wire};
use perigee_testbed::{Checked, ensure};
use std::collections::BTreeMap;
use std::time::Duration;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Nodes, each on a host of its own.
    pub nodes: u32,
    /// From one host to another and back.
    pub round_trip: Duration,
    /// Rounds; each measures every row once.
    pub rounds: u32,
    /// Rounds of the rows of two hosts that take turns: these are close, and want more.
    pub pairs: u32,
    /// Bytes of each file, but of those that are rewritten whole.
    pub file_bytes: u64,
    /// Bytes of each file that is rewritten whole: as many as the machine has time for, since what they begin and end
    /// with weighs less in long ones. The paper has 1 GB.
    pub rewrite_bytes: u64,
    /// How long each row runs that has no end of its own.
    pub time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 3,
            round_trip: Duration::from_millis(1),
            rounds: 3,
            pairs: 5,
            file_bytes: 64 << 20,
            rewrite_bytes: 256 << 20,
            time: Duration::from_secs(2),
        }
    }
}

/// All that was measured, in the order of the rounds.
pub type Series = BTreeMap<Case, Vec<Sample>>;

/// What was measured, and on what.
#[derive(Debug)]
pub struct Outcome {
    /// The samples.
    pub series: Series,
    /// Whether the version under test has a policy for whether ownership moves.
    pub moves: bool,
    /// How late the network's packets were, on the average of the worst round, and at worst.
    pub late: Lateness,
    /// What became of the chunks of clusters of several sizes.
    pub moved: Vec<Moved>,
}

/// Runs the jobs; `tell` hears of each before it begins.
///
/// Errors: the first call that fails, or content that is not what was written.
pub fn run(
    settings: &Settings,
    jobs: &[Job],
    sizes: &[u32],
    mut tell: impl FnMut(&str),
) -> Checked<Outcome> {
    ensure!(
        settings.nodes >= 3,
        "two hosts beside an owner take three nodes"
    );
    tell(&format!(
        "{} nodes, {:?} from host to host and back",
        settings.nodes, settings.round_trip
    ));
    let wire = Wire::of_round_trip(settings.round_trip);
    let mut series = Series::new();
    let mut late = Lateness::default();
    let mut moves = true;
    for round in 1..=settings.rounds.max(settings.pairs) {
        // Directories that are gone leave their containers, whose owners and members go on telling each other that they are
        // there: each round begins without those of the rounds before.
        let mut field = Field::new(settings, wire)?;
        moves = field.moves();
        if round == 1 && !moves {
            tell("this version has no policy `migration`: rows that need it are left out");
        }
        for job in jobs {
            let rounds = if job.is_of_turns() {
                settings.pairs
            } else {
                settings.rounds
            };
            if round > rounds {
                continue;
            }
            tell(&format!("round {round} of {rounds}: {}", job.title()));
            let measured = run_one(&mut field, settings, *job, round);
            let measured = measured.map_err(|error| error.during(job.title()))?;
            for (side, sample) in measured {
                series
                    .entry(Case { job: *job, side })
                    .or_default()
                    .push(sample);
            }
        }
        let now = field.late()?;
        late = Lateness {
            mean: late.mean.max(now.mean),
            worst: late.worst.max(now.worst),
        };
    }
    let mut moved = Vec::new();
    for nodes in sizes {
        tell(&format!("chunks of {nodes} nodes"));
        moved.push(chunks::run(settings, *nodes).map_err(|error| error.during("chunks"))?);
    }
    Ok(Outcome {
        series,
        moves,
        late,
        moved,
    })
}

/// The samples of one job.
type Samples = Vec<(Side, Sample)>;

fn run_one(field: &mut Field, settings: &Settings, job: Job, round: u32) -> Checked<Samples> {
    match job {
        Job::Rewrite => rewrite::run(field, settings),
        Job::Random4k => random::run(field, settings, 4 << 10),
        Job::Random128k => random::run(field, settings, 128 << 10),
        Job::Random1m => random::run(field, settings, 1 << 20),
        Job::Alternate => contend::alternate(field, settings, [1, 2], round),
        Job::AlternateStrangers => contend::alternate(field, settings, [2, 3], round),
        Job::Create => names::by_two(field, settings, round),
        Job::CreateFar => names::by_another(field, settings),
        Job::Home => home::run(field),
        Job::HomeMoved => home::run_moved(field, settings),
    }
}
