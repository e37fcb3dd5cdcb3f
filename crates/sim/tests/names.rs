//! A fixed share of the histories of names that `sim --names` runs by the million, and each deliberate fault once.

use perigee_meta::Plant;
use perigee_sim::names::{Mark, Marks, Options, Report, run};
use perigee_sim::{Detail, Drift, LeftOut};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(Options {
        seed,
        plant,
        drift: Drift::of(seed),
        left_out: LeftOut::default(),
        detail: Detail::Quiet,
    })
}

#[test]
fn no_law_is_broken_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    let mut answered = 0;
    for seed in 1..=1_000 {
        let report = history(seed, None);
        let replay = format!("replay: sim --names --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
        answered += report.answered;
    }
    for (mark, text) in Mark::ALL {
        assert!(marks.0[*mark as usize] > 0, "never met: {text}");
    }
    assert!(answered > 10_000, "only {answered} operations");
}

#[test]
fn one_seed_is_one_history() {
    for seed in 1..=40 {
        assert_eq!(history(seed, None), history(seed, None));
    }
    assert_ne!(history(1, None).hash, history(2, None).hash);
}

#[test]
fn operations_take_effect_once_and_wholly_when_clocks_run_away() {
    let mut marks = Marks::default();
    for seed in 1..=200 {
        let report = run(Options {
            seed,
            plant: None,
            drift: Drift::Beyond,
            left_out: LeftOut::default(),
            detail: Detail::Quiet,
        });
        let replay = format!("replay: sim --drift --names --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
    }
    for mark in [Mark::ClockJump, Mark::Takeover, Mark::Committed] {
        assert!(marks.0[mark as usize] > 100, "{mark:?}");
    }
}

/// Each deliberate fault, and the first seed that finds it. After a change of the simulator: `sim --names --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::VoteBeforeReplicated, 14),
    (Plant::ReadsNotChecked, 1),
    (Plant::PreparedNotLocked, 6),
    (Plant::OwnPartNotLocked, 1),
    (Plant::LocksNotRestored, 60),
    (Plant::IntentsForgotten, 3),
    (Plant::DecidedBeforeReplicated, 13),
    (Plant::DecidedWithoutAll, 39),
    (Plant::UndecidedIsAborted, 36),
    (Plant::DecisionForgotten, 68),
    (Plant::EndedBeforeReplicated, 85),
    (Plant::NumberUsedAgain, 337),
    (Plant::RepeatRunsAgain, 1),
    (Plant::RepeatRunsBeside, 4),
    (Plant::HomeAgainForgotten, 317),
    (Plant::RepeatNotReplicated, 26),
    (Plant::AnswersNotRestored, 5),
    (Plant::ForeignReadNotReplicated, 350),
    (Plant::AnswerNotReadAgain, 10),
    (Plant::LockedIsShown, 2),
    (Plant::AnswerBeforeRevoked, 8),
    (Plant::RevocationOvertaken, 49),
    (Plant::LeaseFromAnswer, 248),
    (Plant::RecentNotForgotten, 1),
    (Plant::RecentOutlivesReign, 21),
    (Plant::PartRevokesNothing, 8),
    (Plant::SeenBeforeRevoked, 2),
    (Plant::MovedNameKept, 47),
    (Plant::CededUnderLeases, 541),
    (Plant::RemovedRowNotKept, 6),
    (Plant::KeptAgain, 2),
    (Plant::CheckpointsNotRestored, 2),
    (Plant::HeirGetsNothing, 2),
    (Plant::OlderCountsAsKept, 2),
    (Plant::ReplacedNotKept, 14),
    (Plant::KeptIsReaped, 13),
    (Plant::BroughtBackStays, 13),
    (Plant::PurgedEarly, 13),
    (Plant::KeptOverEpoch, 110),
];

#[test]
fn every_deliberate_fault_is_found() {
    for &plant in Plant::ALL {
        let name = plant.name();
        let known = FOUND_BY.iter().find(|(known, _)| *known == plant);
        let Some((_, seed)) = known.copied() else {
            panic!("no seed finds {name}: {}", plant.text());
        };
        let found = history(seed, Some(plant)).violation;
        let hint = "see `sim --names --plants`";
        assert!(found.is_some(), "seed {seed} finds {name} no more: {hint}");
        let without = history(seed, None).violation;
        assert_eq!(without, None, "seed {seed} without {name}");
    }
}
