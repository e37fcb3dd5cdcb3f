//! The laws that know no more than the answers of sessions find deliberate faults by themselves.

use perigee_meta::Plant as NamesPlant;
use perigee_replica::Plant;
use perigee_sim::{
    Detail, Drift, Laws, LeftOut, Options, Report, Scenario, Violation, names, run_under,
};

fn chain(seed: u64, plant: Option<Plant>) -> Report {
    let options = Options {
        scenario: Scenario::Chaos,
        seed,
        plant,
        drift: Drift::Within,
        left_out: LeftOut::default(),
        detail: Detail::Quiet,
    };
    run_under(options, Laws::OfAnswers)
}

fn namespace(seed: u64, plant: Option<NamesPlant>) -> names::Report {
    let options = names::Options {
        seed,
        plant,
        drift: Drift::Within,
        left_out: LeftOut::default(),
        detail: Detail::Quiet,
    };
    names::run_under(options, Laws::OfAnswers)
}

/// The first of `seeds` histories that the answers alone show to be wrong.
fn found(seeds: u64, name: &str, broken: impl Fn(u64) -> Option<Violation>) -> (u64, Violation) {
    let found = (1..=seeds).find_map(|seed| Some((seed, broken(seed)?)));
    found.unwrap_or_else(|| panic!("{name} is not found in {seeds} histories"))
}

#[test]
fn the_answers_alone_show_what_is_wrong_with_a_chain() {
    for plant in [Plant::RemoteReadUnreplicated, Plant::DurableIsEnough] {
        let broken = |seed| chain(seed, Some(plant)).violation;
        let (seed, what) = found(10_000, plant.name(), broken);
        assert_eq!(what.law, "explained");
        assert_eq!(chain(seed, None).violation, None);
    }
}

#[test]
fn the_answers_alone_show_what_is_wrong_with_names() {
    for plant in [
        NamesPlant::PreparedNotLocked,
        NamesPlant::LockedIsShown,
        NamesPlant::RepeatRunsAgain,
        NamesPlant::AnswersNotRestored,
    ] {
        let broken = |seed| namespace(seed, Some(plant)).violation;
        let (seed, what) = found(300, plant.name(), broken);
        assert_eq!(what.law, "explained");
        assert_eq!(namespace(seed, None).violation, None);
    }
}
