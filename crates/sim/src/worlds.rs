//! The worlds that the program simulates, each with what is chosen for it.

use crate::fault::Fault;
use perigee_sim::{
    Detail, Drift, Happening, LeftOut, Scenario, Violation, behind, locks, names, stripes,
};

/// How wrong the clocks are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Clocks {
    /// As the seed says.
    BySeed,
    /// The same in all histories.
    All(Drift),
}

impl Clocks {
    pub(crate) const fn drift(self, seed: u64) -> Drift {
        match self {
            Self::BySeed => Drift::of(seed),
            Self::All(drift) => drift,
        }
    }
}

/// What happens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scenarios {
    /// As the seed says.
    BySeed,
    /// The same in all histories.
    All(Scenario),
}

impl Scenarios {
    pub(crate) const fn scenario(self, seed: u64) -> Scenario {
        match self {
            Self::BySeed => Scenario::of(seed),
            Self::All(scenario) => scenario,
        }
    }
}

/// Which histories are simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum World {
    /// One container with its bytes.
    Chain(Scenarios, Option<perigee_replica::Plant>, Clocks),
    /// A namespace over several containers.
    Names(Option<perigee_meta::Plant>, Clocks),
    /// The lock service of a container.
    Locks(Option<perigee_meta::lock::plant::Plant>),
    /// A striped file.
    Stripes(Option<perigee_meta::stripe::plant::Plant>),
    /// Hosts that write behind.
    Behind(Option<perigee_replica::chunk::behind_plant::Plant>),
}

/// How one history went.
#[derive(Debug, PartialEq)]
pub(crate) struct Went {
    pub(crate) violation: Option<Violation>,
    pub(crate) hash: u64,
    pub(crate) events: u64,
    /// What was met, and how often.
    pub(crate) marks: Vec<(&'static str, u64)>,
    /// Strikes and operations that took place.
    pub(crate) happened: Vec<Happening>,
}

/// The same of a report of any world.
macro_rules! went {
    ($report:expr) => {{
        let report = $report;
        let happened = report.happened;
        went!(report, happened)
    }};
    ($report:ident, $happened:expr) => {
        Went {
            violation: $report.violation,
            hash: $report.hash,
            events: $report.events,
            marks: $report.marks.told(),
            happened: $happened,
        }
    };
}

impl World {
    /// Where a deliberate fault is looked for.
    pub(crate) fn of(fault: Fault, scenarios: Scenarios, clocks: Clocks) -> Self {
        match fault {
            Fault::Chain(plant) => Self::Chain(scenarios, Some(plant), clocks),
            Fault::Names(plant) => Self::Names(Some(plant), clocks),
            Fault::Locks(plant) => Self::Locks(Some(plant)),
            Fault::Stripes(plant) => Self::Stripes(Some(plant)),
            Fault::Behind(plant) => Self::Behind(Some(plant)),
        }
    }

    pub(crate) fn run(self, seed: u64) -> Went {
        self.run_without(seed, LeftOut::default(), Detail::Quiet)
    }

    pub(crate) fn run_without(self, seed: u64, left_out: LeftOut, detail: Detail) -> Went {
        match self {
            Self::Chain(scenarios, plant, clocks) => {
                went!(perigee_sim::run(perigee_sim::Options {
                    scenario: scenarios.scenario(seed),
                    seed,
                    plant,
                    drift: clocks.drift(seed),
                    left_out,
                    detail,
                }))
            }
            Self::Names(plant, clocks) => {
                went!(names::run(names::Options {
                    seed,
                    plant,
                    drift: clocks.drift(seed),
                    left_out,
                    detail,
                }))
            }
            Self::Locks(plant) => {
                went!(locks::run(locks::Options {
                    seed,
                    plant,
                    left_out,
                    detail,
                }))
            }
            Self::Stripes(plant) => {
                let report = stripes::run(&stripes::Options {
                    seed,
                    plant,
                    detail,
                });
                went!(report, Vec::new())
            }
            Self::Behind(plant) => {
                let report = behind::run(&behind::Options {
                    seed,
                    plant,
                    detail,
                });
                went!(report, Vec::new())
            }
        }
    }

    /// Whether its histories can be made smaller: elsewhere, whatever is left out, the rest goes another way.
    pub(crate) const fn shrinks(self) -> bool {
        !matches!(self, Self::Stripes(_) | Self::Behind(_))
    }

    /// The arguments that simulate it again.
    pub(crate) fn words(self) -> String {
        let (plant, world, clocks) = match self {
            Self::Chain(scenarios, plant, clocks) => {
                let scenario = match scenarios {
                    Scenarios::All(Scenario::StoreAway) => " --store-away",
                    Scenarios::All(Scenario::BadDisks) => " --bad-disks",
                    Scenarios::All(Scenario::Chaos) | Scenarios::BySeed => "",
                };
                (plant.map(|plant| plant.name()), scenario, clocks)
            }
            Self::Names(Some(plant), clocks) => (Some(plant.name()), "", clocks),
            Self::Names(None, clocks) => (None, " --names", clocks),
            Self::Locks(Some(plant)) => (Some(plant.name()), "", Clocks::BySeed),
            Self::Locks(None) => (None, " --locks", Clocks::BySeed),
            Self::Stripes(Some(plant)) => (Some(plant.name()), "", Clocks::BySeed),
            Self::Stripes(None) => (None, " --stripes", Clocks::BySeed),
            Self::Behind(Some(plant)) => (Some(plant.name()), "", Clocks::BySeed),
            Self::Behind(None) => (None, " --behind", Clocks::BySeed),
        };
        let plant = plant.map_or(String::new(), |plant| format!(" --plant {plant}"));
        let clocks = match clocks {
            Clocks::BySeed | Clocks::All(Drift::Within) => "",
            Clocks::All(Drift::Beyond) => " --drift",
        };
        format!("{plant}{world}{clocks}")
    }
}
